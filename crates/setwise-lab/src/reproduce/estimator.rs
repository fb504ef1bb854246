//! Errors of the pretrained estimator and of classical ones on held-out families, and the coverage of its intervals.

use rand::SeedableRng;
use rayon::prelude::*;
use serde_json::json;

use setwise::estimate::{Estimator, GaussianKl, Knn, Logistic, Points, Pretrained};
use setwise::random::Generator;
use setwise_report::{Axis, Cell, Figure, Panel, Series, Table};

use super::Reproduction;
use super::held_out::Family;
use crate::Result;
use crate::samplers::{BroadPairs, Split, batch_seed};

/// Options of the measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Columns of the samples.
    pub dims: Vec<usize>,
    /// Rows of both samples.
    pub sizes: Vec<usize>,
    /// Pairs of samples for each cell.
    pub examples: usize,
    /// Pairs for the coverage in the trained family.
    pub in_family: usize,
    /// Their seed.
    pub seed: u64,
}

/// Values of k for nearest neighbours. Each cell reports the best one.
const NEIGHBOURS: [usize; 4] = [1, 3, 5, 10];
/// Number of methods: ours, each k of nearest neighbours, Gaussian, logistic.
const METHODS: usize = 3 + NEIGHBOURS.len();

/// Errors for one family, dimension and sample size.
struct ErrorCell {
    family: Family,
    dim: usize,
    n: usize,
    /// Mean absolute errors.
    errors: [f64; METHODS],
    coverage: f64,
    mean_kl: f64,
}

impl ErrorCell {
    fn ours(&self) -> f64 {
        self.errors[0]
    }

    fn knn(&self) -> f64 {
        self.errors[1..=NEIGHBOURS.len()].iter().fold(f64::INFINITY, |a, &e| a.min(e))
    }

    fn gaussian(&self) -> f64 {
        self.errors[METHODS - 2]
    }

    fn logistic(&self) -> f64 {
        self.errors[METHODS - 1]
    }

    fn best_other(&self) -> f64 {
        self.knn().min(self.gaussian()).min(self.logistic())
    }

    fn ratio(&self) -> f64 {
        self.ours() / self.best_other()
    }
}

/// Measures the table. `progress` receives the name of each measurement.
pub fn reproduce(estimator: &Pretrained, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Reproduction> {
    let mut cells = Vec::new();
    for family in Family::ALL {
        for &dim in &options.dims {
            progress(&format!("{}, d = {dim}", family.name()));
            for &n in &options.sizes {
                cells.push(measure(estimator, family, dim, n, options)?);
            }
        }
    }
    progress("coverage in the training family");
    let inside = in_family(estimator, options)?;
    let mut table = Table::new(
        "Mean absolute error of KL divergence on held-out families",
        [
            "family",
            "d",
            "n",
            "mean KL",
            "setwise",
            "knn, best k",
            "gaussian",
            "logistic",
            "setwise / best other",
            "covered",
        ],
    );
    for c in &cells {
        table.push([
            c.family.name().into(),
            c.dim.to_string().into(),
            c.n.to_string().into(),
            Cell::number(c.mean_kl, 2),
            Cell::number(c.ours(), 4),
            Cell::number(c.knn(), 4),
            Cell::number(c.gaussian(), 4),
            Cell::number(c.logistic(), 4),
            Cell::number(c.ratio(), 2),
            Cell::number(c.coverage, 2),
        ]);
    }
    let notes = notes(&cells, &inside, options);
    let plain = |c: &ErrorCell| {
        json!({
            "family": c.family.name(), "dim": c.dim, "n": c.n, "mean_kl": c.mean_kl, "setwise": c.ours(),
            "knn": NEIGHBOURS.iter().zip(&c.errors[1..]).map(|(k, e)| json!({"k": k, "error": e})).collect::<Vec<_>>(),
            "gaussian": c.gaussian(), "logistic": c.logistic(), "ratio": c.ratio(), "coverage": c.coverage,
        })
    };
    let json = json!({
        "cells": cells.iter().map(plain).collect::<Vec<_>>(),
        "share_best": share_best(&cells), "worst_ratio": worst(&cells),
        "coverage_out_of_family": mean(&cells, |c| c.coverage),
        "in_family": {"pairs": options.in_family, "mean_absolute_error": inside.error, "coverage": inside.coverage},
    });
    Ok(Reproduction {
        name: "estimator",
        table,
        json,
        figures: vec![("estimator".to_owned(), figure(&cells, options))],
        notes,
    })
}

/// Draws the samples of a cell and measures all methods on them.
fn measure(estimator: &Pretrained, family: Family, dim: usize, n: usize, options: &Options) -> Result<ErrorCell> {
    let cell = (family as u64) << 32 | (dim as u64) << 16 | n as u64;
    let seed = batch_seed(options.seed, Split::Test, cell);
    let data: Vec<(Vec<f64>, Vec<f64>, f64)> = (0..options.examples as u64)
        .into_par_iter()
        .map(|i| {
            let mut rng = Generator::seed_from_u64(batch_seed(seed, Split::Test, i));
            let pair = family.draw(dim, &mut rng);
            let (mut p, mut q) = (Vec::new(), Vec::new());
            pair.p.sample(n, &mut rng, &mut p);
            pair.q.sample(n, &mut rng, &mut q);
            (p, q, pair.kl)
        })
        .collect();
    let pairs: Vec<(Points, Points)> =
        data.iter().map(|(p, q, _)| (Points::new(p, dim), Points::new(q, dim))).collect();
    let classical: Vec<[f64; METHODS - 1]> = pairs.par_iter().map(|&(p, q)| classical(p, q)).collect();
    let mut errors = [0.0; METHODS];
    let mut covered = 0.0;
    let share = 1.0 / options.examples as f64;
    for ((answer, others), (_, _, kl)) in estimator.answers(&pairs).into_iter().zip(&classical).zip(&data) {
        let (value, [low, high]) = answer?;
        errors[0] += (value - kl).abs() * share;
        errors[1..].iter_mut().zip(others).for_each(|(e, value)| *e += (value - kl).abs() * share);
        covered += if low <= *kl && *kl <= high { share } else { 0.0 };
    }
    let mean_kl = data.iter().map(|d| d.2).sum::<f64>() * share;
    Ok(ErrorCell { family, dim, n, errors, coverage: covered, mean_kl })
}

/// Estimates of the other methods. A method that fails has an infinite error.
fn classical(p: Points, q: Points) -> [f64; METHODS - 1] {
    let neighbours = NEIGHBOURS.map(|k| Knn::new(k).value(p, q));
    let others = [GaussianKl.value(p, q), Logistic.value(p, q)];
    let mut all = neighbours.into_iter().chain(others).map(|v| v.unwrap_or(f64::INFINITY));
    std::array::from_fn(|_| all.next().expect("one for each method"))
}

/// Error and coverage on fresh pairs of the training family.
struct InFamily {
    error: f64,
    coverage: f64,
    /// Coverage for samples below 100 rows, from 100 to 499, and from 500.
    by_size: [f64; 3],
}

fn in_family(estimator: &Pretrained, options: &Options) -> Result<InFamily> {
    let ranges = estimator.ranges();
    let max = ranges.rows[1] as f64;
    let data: Vec<(usize, Vec<f64>, Vec<f64>, f64)> = (0..options.in_family as u64)
        .into_par_iter()
        .map(|i| {
            use rand::RngExt;
            let mut rng = Generator::seed_from_u64(batch_seed(options.seed ^ 0xfa, Split::Test, i));
            let dim = rng.random_range(ranges.dims[0]..=ranges.dims[1]);
            let min = ranges.rows[0] as f64;
            let mut size = || (min * (max / min).powf(rng.random::<f64>())) as usize;
            let (n, m) = (size(), size());
            let pair = BroadPairs { max_divergence: ranges.max_divergence }.pair(dim, &mut rng);
            let (mut p, mut q) = (Vec::new(), Vec::new());
            pair.sample_p(n, &mut rng, &mut p);
            pair.sample_q(m, &mut rng, &mut q);
            (dim, p, q, pair.truth.value)
        })
        .collect();
    let pairs: Vec<(Points, Points)> =
        data.iter().map(|(d, p, q, _)| (Points::new(p, *d), Points::new(q, *d))).collect();
    let (mut error, mut covered, mut count) = (0.0, [0.0f64; 3], [0.0f64; 3]);
    for ((answer, (_, _, _, kl)), (p, q)) in estimator.answers(&pairs).into_iter().zip(&data).zip(&pairs) {
        let (value, [low, high]) = answer?;
        error += (value - kl).abs();
        let n = p.len().min(q.len());
        let group = usize::from(n >= 100) + usize::from(n >= 500);
        count[group] += 1.0;
        covered[group] += f64::from(u8::from(low <= *kl && *kl <= high));
    }
    let total: f64 = count.iter().sum();
    let by_size = std::array::from_fn(|i| covered[i] / count[i].max(1.0));
    Ok(InFamily { error: error / total, coverage: covered.iter().sum::<f64>() / total, by_size })
}

fn share_best(cells: &[ErrorCell]) -> f64 {
    cells.iter().filter(|c| c.ratio() <= 1.0).count() as f64 / cells.len() as f64
}

fn worst(cells: &[ErrorCell]) -> f64 {
    cells.iter().map(ErrorCell::ratio).fold(0.0, f64::max)
}

fn mean(cells: &[ErrorCell], f: impl Fn(&ErrorCell) -> f64) -> f64 {
    cells.iter().map(f).sum::<f64>() / cells.len() as f64
}

fn notes(cells: &[ErrorCell], inside: &InFamily, options: &Options) -> Vec<String> {
    let mut notes = vec![
        format!("{} pairs of samples in each cell, both samples of n rows, seed {}", options.examples, options.seed),
        format!(
            "setwise is best in {:.1} % of {} cells; at worst its error is {:.2} times the best other's",
            100.0 * share_best(cells),
            cells.len(),
            worst(cells)
        ),
        format!(
            "mean over all cells: setwise {:.4}, knn with the best k of {NEIGHBOURS:?} in each cell {:.4}, \
             gaussian {:.4}, logistic regression on columns, squares and products {:.4}",
            mean(cells, ErrorCell::ours),
            mean(cells, ErrorCell::knn),
            mean(cells, ErrorCell::gaussian),
            mean(cells, ErrorCell::logistic)
        ),
    ];
    for family in Family::ALL {
        let of_family: Vec<&ErrorCell> = cells.iter().filter(|c| c.family == family).collect();
        let best = of_family.iter().filter(|c| c.ratio() <= 1.0).count();
        let worst = of_family.iter().map(|c| c.ratio()).fold(0.0, f64::max);
        let covered = of_family.iter().map(|c| c.coverage).sum::<f64>() / of_family.len() as f64;
        notes.push(format!(
            "{}: best in {best} of {} cells, at worst {worst:.2} times the best other; {:.1} % of the intervals cover",
            family.name(),
            of_family.len(),
            100.0 * covered
        ));
    }
    notes.push(format!(
        "in the training family ({} fresh pairs): mean absolute error {:.4}, {:.1} % of the 90 % intervals cover \
         ({:.1} % below 100 rows, {:.1} % from 100 to 499, {:.1} % above)",
        options.in_family,
        inside.error,
        100.0 * inside.coverage,
        100.0 * inside.by_size[0],
        100.0 * inside.by_size[1],
        100.0 * inside.by_size[2]
    ));
    notes
}

/// Errors against the number of rows, a panel for each family, averaged over dimensions.
fn figure(cells: &[ErrorCell], options: &Options) -> Figure {
    let mut figure = Figure::new("Error of KL estimates on held-out families, mean over dimensions").with_columns(3);
    for family in Family::ALL {
        let line = |name: &str, f: &dyn Fn(&ErrorCell) -> f64| {
            let at = |&n: &usize| {
                let of_family: Vec<f64> = cells.iter().filter(|c| c.family == family && c.n == n).map(f).collect();
                (n as f64, of_family.iter().sum::<f64>() / of_family.len() as f64)
            };
            Series::new(name, options.sizes.iter().map(at))
        };
        let panel = Panel::new(family.name(), Axis::log("rows"), Axis::log("mean absolute error, nats"))
            .with_series(line("setwise", &ErrorCell::ours))
            .with_series(line("knn, best k", &ErrorCell::knn))
            .with_series(line("gaussian", &ErrorCell::gaussian))
            .with_series(line("logistic", &ErrorCell::logistic));
        figure = figure.with_panel(panel);
    }
    figure
}
