//! Errors of the pretrained estimator and of classical ones on held-out families, and the coverage of its intervals.
//!
//! The classical estimators are nearest neighbours, with the best k of each cell, the Gaussian closed form, and
//! classifiers. On families with fine structure the classifiers are cross-fitted.

use rand::SeedableRng;
use rayon::prelude::*;
use serde_json::json;

use setwise::estimate::ratio::boosting::{Binned, FOLDS, Task};
use setwise::estimate::ratio::classifiers::Classifiers;
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
    /// The families.
    pub families: Families,
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

/// Groups of held-out families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// Smooth differences.
    Smooth,
    /// Fine structure, heavy tails, outliers, supports that overlap in part.
    Structured,
    /// Structured ones that are looked at while the estimator is made.
    Development,
}

impl Families {
    fn list(self) -> &'static [Family] {
        match self {
            Families::Smooth => &Family::SMOOTH,
            Families::Structured => &Family::STRUCTURED,
            Families::Development => &Family::DEVELOPMENT,
        }
    }

    /// The classifiers that are compared.
    fn classifiers(self) -> [&'static str; 2] {
        match self {
            Families::Smooth => ["logistic", "logistic"],
            Families::Structured | Families::Development => ["logistic", "boosting"],
        }
    }

    /// Estimates of the classifiers.
    fn classifier_estimates(self, p: Points, q: Points) -> [f64; 2] {
        match self {
            Families::Smooth => [Logistic.value(p, q).unwrap_or(f64::INFINITY); 2],
            Families::Structured | Families::Development => cross_fitted(p, q),
        }
    }
}

/// KL from logistic regression on columns, squares and products with every row left out of its fit, and from boosted
/// trees with rows of other folds.
fn cross_fitted(p: Points, q: Points) -> [f64; 2] {
    let (n, m, dim) = (p.len(), q.len(), p.dim());
    let logistic = Classifiers::fit(p, q).p.iter().map(|ratios| ratios[1]).sum::<f64>() / n as f64;
    let columns: Vec<Vec<f64>> = (0..dim)
        .map(|c| [p, q].iter().flat_map(|points| points.data().iter().skip(c).step_by(dim)).copied().collect())
        .collect();
    let prior = (m as f64 / n as f64).ln();
    let (offsets, folds) = (vec![-prior; n + m], (0..n + m).map(|i| (i % FOLDS) as u8).collect::<Vec<_>>());
    let task = Task { columns: &Binned::new(&columns), positive: n, offsets: &offsets, folds: &folds, depth: 4 };
    let boosting = task.fit().scores[..n].iter().sum::<f64>() / n as f64;
    [logistic, boosting]
}

/// Values of k for nearest neighbours. Each cell reports the best one.
const NEIGHBOURS: [usize; 4] = [1, 3, 5, 10];
/// Number of methods: ours, each k of nearest neighbours, Gaussian, two classifiers.
const METHODS: usize = 4 + NEIGHBOURS.len();

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
        self.errors[METHODS - 3]
    }

    fn classifiers(&self) -> [f64; 2] {
        [self.errors[METHODS - 2], self.errors[METHODS - 1]]
    }

    /// The better classifier.
    fn classifier(&self) -> f64 {
        self.errors[METHODS - 2].min(self.errors[METHODS - 1])
    }

    fn best_other(&self) -> f64 {
        self.knn().min(self.gaussian()).min(self.classifier())
    }

    fn ratio(&self) -> f64 {
        self.ours() / self.best_other()
    }
}

/// Measures the table. `progress` receives the name of each measurement.
pub fn reproduce(estimator: &Pretrained, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Reproduction> {
    let mut cells = Vec::new();
    for &family in options.families.list() {
        for &dim in options.dims.iter().filter(|&&dim| family.exists(dim)) {
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
            "classifier",
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
            Cell::number(c.classifier(), 4),
            Cell::number(c.ratio(), 2),
            Cell::number(c.coverage, 2),
        ]);
    }
    let notes = notes(&cells, &inside, options);
    let classifiers = |c: &ErrorCell| -> Vec<_> {
        let named = options.families.classifiers().into_iter().zip(c.classifiers());
        named.map(|(name, error)| json!({"name": name, "error": error})).collect()
    };
    let plain = |c: &ErrorCell| {
        json!({
            "family": c.family.name(), "dim": c.dim, "n": c.n, "mean_kl": c.mean_kl, "setwise": c.ours(),
            "knn": NEIGHBOURS.iter().zip(&c.errors[1..]).map(|(k, e)| json!({"k": k, "error": e})).collect::<Vec<_>>(),
            "gaussian": c.gaussian(),
            "classifiers": classifiers(c),
            "ratio": c.ratio(), "coverage": c.coverage,
        })
    };
    let json = json!({
        "cells": cells.iter().map(plain).collect::<Vec<_>>(),
        "share_best": share_best(&cells), "worst_ratio": worst(&cells),
        "coverage_out_of_family": mean(&cells, |c| c.coverage),
        "in_family": {"pairs": options.in_family, "mean_absolute_error": inside.error, "coverage": inside.coverage},
    });
    let name = match options.families {
        Families::Smooth => "estimator",
        Families::Structured => "structured",
        Families::Development => "development",
    };
    Ok(Reproduction { name, table, json, figures: vec![(name.to_owned(), figure(&cells, options))], notes })
}

/// Draws the samples of a cell and measures all methods on them.
fn measure(estimator: &Pretrained, family: Family, dim: usize, n: usize, options: &Options) -> Result<ErrorCell> {
    let cell = (family as u64) << 32 | (dim as u64) << 16 | n as u64;
    let seed = batch_seed(options.seed, Split::Test, cell);
    let data: Vec<(Vec<f64>, Vec<f64>, f64)> = (0..options.examples as u64)
        .into_par_iter()
        .map(|i| {
            let mut rng = Generator::seed_from_u64(batch_seed(seed, Split::Test, i));
            let pair = family.draw(dim, n, &mut rng);
            let [p, q] = pair.sample(n, &mut rng);
            (p, q, pair.kl)
        })
        .collect();
    let pairs: Vec<(Points, Points)> =
        data.iter().map(|(p, q, _)| (Points::new(p, dim), Points::new(q, dim))).collect();
    let classical: Vec<[f64; METHODS - 1]> =
        pairs.par_iter().map(|&(p, q)| classical(p, q, options.families)).collect();
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
fn classical(p: Points, q: Points, families: Families) -> [f64; METHODS - 1] {
    let neighbours = NEIGHBOURS.map(|k| Knn::new(k).value(p, q));
    let known = neighbours.into_iter().chain([GaussianKl::default().value(p, q)]).map(|v| v.unwrap_or(f64::INFINITY));
    let mut all = known.chain(families.classifier_estimates(p, q));
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
    /// Pairs that are held in memory.
    const CHUNK: u64 = 64;
    let ranges = estimator.ranges();
    let max = ranges.rows[1] as f64;
    let draw = |i: u64| {
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
    };
    let (mut error, mut covered, mut count) = (0.0, [0.0f64; 3], [0.0f64; 3]);
    for first in (0..options.in_family as u64).step_by(CHUNK as usize) {
        let last = (first + CHUNK).min(options.in_family as u64);
        let data: Vec<(usize, Vec<f64>, Vec<f64>, f64)> = (first..last).into_par_iter().map(draw).collect();
        let pairs: Vec<(Points, Points)> =
            data.iter().map(|(d, p, q, _)| (Points::new(p, *d), Points::new(q, *d))).collect();
        for ((answer, (_, _, _, kl)), (p, q)) in estimator.answers(&pairs).into_iter().zip(&data).zip(&pairs) {
            let (value, [low, high]) = answer?;
            error += (value - kl).abs();
            let n = p.len().min(q.len());
            let group = usize::from(n >= 100) + usize::from(n >= 500);
            count[group] += 1.0;
            covered[group] += f64::from(u8::from(low <= *kl && *kl <= high));
        }
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
             gaussian {:.4}, the better classifier {:.4}",
            mean(cells, ErrorCell::ours),
            mean(cells, ErrorCell::knn),
            mean(cells, ErrorCell::gaussian),
            mean(cells, ErrorCell::classifier)
        ),
    ];
    for &family in options.families.list() {
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
    for &family in options.families.list() {
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
            .with_series(line("classifier", &ErrorCell::classifier));
        figure = figure.with_panel(panel);
    }
    figure
}
