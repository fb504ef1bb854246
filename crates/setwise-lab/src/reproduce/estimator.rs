//! The pretrained estimator on families it never saw, beside classical ones, and the coverage of its intervals.

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

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Columns of the samples.
    pub dims: Vec<usize>,
    /// Rows of both.
    pub sizes: Vec<usize>,
    /// Pairs of samples for each cell.
    pub examples: usize,
    /// Pairs for the coverage in the trained family.
    pub in_family: usize,
    /// Their seed.
    pub seed: u64,
}

/// Neighbours of which the best counts, cell by cell.
const NEIGHBOURS: [usize; 4] = [1, 3, 5, 10];
/// Columns of a cell's errors: ours, each neighbour, Gaussian, logistic.
const METHODS: usize = 3 + NEIGHBOURS.len();

/// One cell of the comparison.
struct Measured {
    family: Family,
    dim: usize,
    n: usize,
    /// Mean absolute errors.
    errors: [f64; METHODS],
    coverage: f64,
    mean_kl: f64,
}

impl Measured {
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

/// Measures everything. `progress` hears what is being measured.
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
    progress("coverage in the trained family");
    let inside = in_family(estimator, options)?;
    let mut table = Table::new(
        "Mean absolute error of KL divergence on families the estimator never saw",
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
    let plain = |c: &Measured| {
        json!({
            "family": c.family.name(), "dim": c.dim, "n": c.n, "mean_kl": c.mean_kl, "setwise": c.ours(),
            "knn": NEIGHBOURS.iter().zip(&c.errors[1..]).map(|(k, e)| json!({"k": k, "error": e})).collect::<Vec<_>>(),
            "gaussian": c.gaussian(), "logistic": c.logistic(), "ratio": c.ratio(), "coverage": c.coverage,
        })
    };
    let json = json!({
        "cells": cells.iter().map(plain).collect::<Vec<_>>(), "share_best": share_best(&cells), "worst_ratio": worst(&cells),
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

/// Draws the samples of a cell and judges all methods on them.
fn measure(estimator: &Pretrained, family: Family, dim: usize, n: usize, options: &Options) -> Result<Measured> {
    let place = (family as u64) << 32 | (dim as u64) << 16 | n as u64;
    let seed = batch_seed(options.seed, Split::Test, place);
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
    Ok(Measured { family, dim, n, errors, coverage: covered, mean_kl })
}

/// The other methods; what cannot answer is infinitely wrong.
fn classical(p: Points, q: Points) -> [f64; METHODS - 1] {
    let neighbours = NEIGHBOURS.map(|k| Knn::new(k).value(p, q));
    let others = [GaussianKl.value(p, q), Logistic.value(p, q)];
    let mut all = neighbours.into_iter().chain(others).map(|v| v.unwrap_or(f64::INFINITY));
    std::array::from_fn(|_| all.next().expect("one for each method"))
}

/// Error and coverage on fresh pairs of the trained kind.
struct InFamily {
    error: f64,
    coverage: f64,
    /// Coverage where the samples have fewer than 100 rows, up to 500, and more.
    by_size: [f64; 3],
}

fn in_family(estimator: &Pretrained, options: &Options) -> Result<InFamily> {
    let ranges = estimator.ranges();
    let most = ranges.rows[1] as f64;
    let data: Vec<(usize, Vec<f64>, Vec<f64>, f64)> = (0..options.in_family as u64)
        .into_par_iter()
        .map(|i| {
            use rand::RngExt;
            let mut rng = Generator::seed_from_u64(batch_seed(options.seed ^ 0xfa, Split::Test, i));
            let dim = rng.random_range(ranges.dims[0]..=ranges.dims[1]);
            let least = ranges.rows[0] as f64;
            let mut size = || (least * (most / least).powf(rng.random::<f64>())) as usize;
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
    let (mut error, mut within, mut count) = (0.0, [0.0f64; 3], [0.0f64; 3]);
    for ((answer, (_, _, _, kl)), (p, q)) in estimator.answers(&pairs).into_iter().zip(&data).zip(&pairs) {
        let (value, [low, high]) = answer?;
        error += (value - kl).abs();
        let n = p.len().min(q.len());
        let group = usize::from(n >= 100) + usize::from(n >= 500);
        count[group] += 1.0;
        within[group] += f64::from(u8::from(low <= *kl && *kl <= high));
    }
    let total: f64 = count.iter().sum();
    let by_size = std::array::from_fn(|i| within[i] / count[i].max(1.0));
    Ok(InFamily { error: error / total, coverage: within.iter().sum::<f64>() / total, by_size })
}

fn share_best(cells: &[Measured]) -> f64 {
    cells.iter().filter(|c| c.ratio() <= 1.0).count() as f64 / cells.len() as f64
}

fn worst(cells: &[Measured]) -> f64 {
    cells.iter().map(Measured::ratio).fold(0.0, f64::max)
}

fn mean(cells: &[Measured], f: impl Fn(&Measured) -> f64) -> f64 {
    cells.iter().map(f).sum::<f64>() / cells.len() as f64
}

fn notes(cells: &[Measured], inside: &InFamily, options: &Options) -> Vec<String> {
    let mut notes = vec![
        format!("{} pairs of samples in each cell, both samples of n rows, seed {}", options.examples, options.seed),
        format!(
            "setwise is best in {:.1} % of {} cells; at worst its error is {:.2} times the best other's",
            100.0 * share_best(cells),
            cells.len(),
            worst(cells)
        ),
        format!(
            "mean over all cells: setwise {:.4}, knn with the best k of {NEIGHBOURS:?} in each cell {:.4}, gaussian {:.4}, logistic \
             regression on columns, squares and products {:.4}",
            mean(cells, Measured::ours),
            mean(cells, Measured::knn),
            mean(cells, Measured::gaussian),
            mean(cells, Measured::logistic)
        ),
    ];
    for family in Family::ALL {
        let own: Vec<&Measured> = cells.iter().filter(|c| c.family == family).collect();
        let best = own.iter().filter(|c| c.ratio() <= 1.0).count();
        let worst = own.iter().map(|c| c.ratio()).fold(0.0, f64::max);
        let covered = own.iter().map(|c| c.coverage).sum::<f64>() / own.len() as f64;
        notes.push(format!(
            "{}: best in {best} of {} cells, at worst {worst:.2} times the best other; {:.1} % of the intervals cover",
            family.name(),
            own.len(),
            100.0 * covered
        ));
    }
    notes.push(format!(
        "in the trained family ({} fresh pairs): mean absolute error {:.4}, {:.1} % of the 90 % intervals cover ({:.1} % below 100 rows, {:.1} % \
         from 100 to 499, {:.1} % above)",
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
fn figure(cells: &[Measured], options: &Options) -> Figure {
    let mut figure = Figure::new("Error of KL estimates on unseen families, mean over dimensions").with_columns(3);
    for family in Family::ALL {
        let line = |name: &str, f: &dyn Fn(&Measured) -> f64| {
            let at = |&n: &usize| {
                let own: Vec<f64> = cells.iter().filter(|c| c.family == family && c.n == n).map(f).collect();
                (n as f64, own.iter().sum::<f64>() / own.len() as f64)
            };
            Series::new(name, options.sizes.iter().map(at))
        };
        let panel = Panel::new(family.name(), Axis::log("rows"), Axis::log("mean absolute error, nats"))
            .with_series(line("setwise", &Measured::ours))
            .with_series(line("knn, best k", &Measured::knn))
            .with_series(line("gaussian", &Measured::gaussian))
            .with_series(line("logistic", &Measured::logistic));
        figure = figure.with_panel(panel);
    }
    figure
}
