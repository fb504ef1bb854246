//! Boosted trees that split the columns of two samples, their canonical axes and the distance from the centre.
//!
//! Trees enter twice: alone, as one of the stacked estimates, and as a correction of the stacked estimate.

use rayon::prelude::*;

use super::super::Points;
use super::boosting::{Binned, Boosting, FOLDS, Task};

/// Rows of each sample that trees are grown on.
const MAX_ROWS: usize = 20_000;
/// Canonical axes that trees split.
const MAX_AXES: usize = 8;

/// Units of work for each row that trees are grown on.
const WORK: usize = 30;

/// The rows of one sample: in its own columns, and in canonical coordinates.
pub type TreeRows<'a> = (Points<'a>, Points<'a>);

/// Numbers of a row that trees split.
fn numbers<'a>(raw: &'a [f64], canonical: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
    let several = canonical.len() > 1;
    let axes = if several { canonical.len().min(MAX_AXES) } else { 0 };
    let distance = several.then(|| canonical.iter().map(|x| x * x).sum::<f64>());
    raw.iter().chain(&canonical[..axes]).copied().chain(distance)
}

/// Columns and folds of the rows of P and Q.
pub struct TreeData {
    columns: Binned,
    folds: Vec<u8>,
    /// Rows of P and Q that trees are grown on, from the first one on.
    rows: [usize; 2],
}

/// Depths of trees for samples of so many rows.
fn depths(rows: usize) -> (&'static [usize], usize) {
    match rows {
        0..200 => (&[1, 2], 2),
        200..1000 => (&[1, 3], 3),
        1000..5000 => (&[3], 4),
        5000..20_000 => (&[5], 5),
        _ => (&[6], 6),
    }
}

impl TreeData {
    /// Units of work of growing trees once, for samples of these rows.
    pub fn work(rows: [usize; 2]) -> usize {
        WORK * rows.map(|n| n.min(MAX_ROWS)).iter().sum::<usize>()
    }

    /// Bins the rows of both samples, which are in random order.
    pub fn new(samples: [TreeRows; 2]) -> Self {
        let rows = samples.map(|(raw, _)| raw.len().min(MAX_ROWS));
        let places = || [0, 1].into_iter().flat_map(|k| (0..rows[k]).map(move |i| (k, i)));
        let width = numbers(samples[0].0.row(0), samples[0].1.row(0)).count();
        let mut columns = vec![Vec::with_capacity(rows[0] + rows[1]); width];
        for (k, i) in places() {
            let row = numbers(samples[k].0.row(i), samples[k].1.row(i));
            columns.iter_mut().zip(row).for_each(|(column, x)| column.push(x));
        }
        let folds = places().map(|(_, i)| (i % FOLDS) as u8).collect();
        TreeData { columns: Binned::new(&columns), folds, rows }
    }

    fn fit(&self, offsets: &[f64], depth: usize) -> Boosting {
        Task { columns: &self.columns, positive: self.rows[0], offsets, folds: &self.folds, depth }.fit()
    }

    /// The log odds of P where both samples have the same density.
    fn prior(&self) -> f64 {
        (self.rows[0] as f64 / self.rows[1] as f64).ln()
    }

    /// Trees alone, of the depth whose scores separate rows outside of the fold best.
    pub fn alone(&self) -> Trees<'_> {
        let offsets = vec![self.prior(); self.folds.len()];
        let (depths, _) = depths(self.rows[0].min(self.rows[1]));
        let fits: Vec<Boosting> = depths.par_iter().map(|&depth| self.fit(&offsets, depth)).collect();
        let best = fits.into_iter().min_by(|a, b| a.loss.total_cmp(&b.loss));
        Trees { data: self, boosting: best.expect("one depth at least") }
    }

    /// Trees that correct log ratios of both samples.
    pub fn correction(&self, ratios: [&[f64]; 2]) -> Trees<'_> {
        let prior = self.prior();
        let of_sample = |k: usize| ratios[k][..self.rows[k]].iter().map(move |r| r + prior);
        let offsets: Vec<f64> = of_sample(0).chain(of_sample(1)).collect();
        let (_, depth) = depths(self.rows[0].min(self.rows[1]));
        Trees { data: self, boosting: self.fit(&offsets, depth) }
    }
}

/// Grown trees.
pub struct Trees<'a> {
    data: &'a TreeData,
    boosting: Boosting,
}

impl Trees<'_> {
    /// Rounds of boosting.
    pub fn rounds(&self) -> usize {
        self.boosting.rounds()
    }

    /// Scores of the rows of sample `k`: P, Q, or other rows. Those of rows that the trees are grown on are
    /// out-of-fold.
    pub fn scores(&self, k: usize, (raw, canonical): TreeRows) -> Vec<f64> {
        let known = self.data.rows.get(k).copied().unwrap_or(0);
        let first = if k == 0 { 0 } else { self.data.rows[0] };
        let one = |i: usize| match i < known {
            true => self.boosting.scores[first + i],
            false => {
                let row: Vec<f64> = numbers(raw.row(i), canonical.row(i)).collect();
                self.boosting.score(&row)
            }
        };
        (0..raw.len()).into_par_iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Generator;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn rows_that_trees_are_not_grown_on_get_the_ratio_of_the_trees() {
        // P has three quarters of its first column below one half; Q is uniform and has twice as many rows.
        let mut rng = Generator::seed_from_u64(3);
        let mut rows = |n: usize, low: f64| -> Vec<f64> {
            let row = |_| {
                let first = 0.5 * rng.random::<f64>() + if rng.random_bool(low) { 0.0 } else { 0.5 };
                [first, rng.random()]
            };
            (0..n).flat_map(row).collect()
        };
        let [p, q, other] = [rows(3000, 0.75), rows(MAX_ROWS + 500, 0.5), rows(200, 0.5)];
        let [p, q, other] = [&p, &q, &other].map(|rows| (Points::new(rows, 2), Points::new(rows, 2)));
        let data = TreeData::new([p, q]);
        let trees = data.alone();
        for (k, rows) in [(0, p), (1, q), (2, other)] {
            let scores = trees.scores(k, rows);
            assert_eq!(scores.len(), rows.0.len());
            let error = |i: usize| {
                let truth = if rows.0.row(i)[0] < 0.5 { 1.5f64 } else { 0.5 }.ln();
                (scores[i] - truth).powi(2)
            };
            let mean = (0..rows.0.len()).map(error).sum::<f64>() / rows.0.len() as f64;
            assert!(mean < 0.05, "sample {k}: {mean}");
        }
        // Trees have nothing to correct where the ratio is known.
        let truth = |rows: TreeRows| -> Vec<f64> {
            (0..rows.0.len()).map(|i| if rows.0.row(i)[0] < 0.5 { 1.5f64 } else { 0.5 }.ln()).collect()
        };
        assert!(data.correction([&truth(p), &truth(q)]).rounds() < 5);
    }
}
