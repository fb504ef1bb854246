//! Features of a pair of samples: subsamples for the set model, and estimates from log density ratios at all rows.
//!
//! A pair is cleaned. Its log density ratios are fitted in robust canonical coordinates ([`RatioFit`]), so that neither
//! affine maps of the data nor the order of rows change neighbours and classifiers. Estimates of divergences follow
//! from the ratios in both directions.

use std::cmp::Ordering;

use super::super::points::{check_covariance, check_rows, check_samples, check_varies};
use super::super::ratio::coordinates::{AffineCoordinates, mapped};
use super::super::ratio::{RatioFit, evaluated_rows};
use super::super::shared_rows::same_rows;
use super::super::{Points, Progress};
use super::bounded::Bounded;
use super::cleaning::Cleaned;
use super::directed::{Directed, Direction, SampleMoments};
use crate::sets::Canonical;
use crate::{Error, Result};

/// Rows of each sample that an estimate needs.
pub const MIN_ROWS: usize = 5;
/// Different rows of each sample for every direction of variation. With fewer rows covariances are noise, and estimates
/// for equal distributions are far above zero.
const MIN_ROWS_PER_DIRECTION: f64 = 1.5;
/// Columns that vary. With more of them the classifiers have no products, which the combiner was not trained for.
const MAX_COLUMNS: usize = 32;
/// Rows of each sample in one of at most two subsamples.
const MAX_SUBSAMPLE_ROWS: usize = 256;
/// Rows of each sample in one of more than two subsamples: attention costs the square of the rows.
const MAX_SMALL_SUBSAMPLE_ROWS: usize = 160;
/// Subsamples of a pair.
const MAX_SUBSAMPLES: usize = 4;
/// Rows of the smaller sample in each of several subsamples.
const MIN_SUBSAMPLE_ROWS: usize = 30;
/// Rows of each sample at which log ratios are evaluated. Neighbours are searched among all rows.
const MAX_EVALUATED_ROWS: usize = 65_536;

/// Units of work for each row.
const CLEANING_WORK: usize = 1;
const COORDINATES_WORK: usize = 1;

/// Features of a pair of samples.
pub struct PairFeatures {
    /// Directions in which the samples vary.
    pub dim: usize,
    /// Duplicate rows that were removed from each sample.
    pub duplicates: [usize; 2],
    /// A dequantised column of each sample.
    pub dequantised: [Option<usize>; 2],
    /// Whether both samples have the same rows.
    pub identical: bool,
    /// Disjoint subsamples for the set model.
    pub subsamples: Vec<Subsample>,
    /// Of the divergence of P from Q.
    pub forward: Directed,
    /// Of the divergence of Q from P.
    pub backward: Directed,
    /// Of the bounded divergences.
    pub bounded: Bounded,
}

impl PairFeatures {
    /// Cleans two samples and computes their features.
    ///
    /// The samples are put into an order of their own, so that the features of (Q, P) are those of (P, Q), reversed.
    pub fn of_samples(p: Points, q: Points, progress: &Progress) -> Result<Self> {
        check_samples(p, q)?;
        for points in [p, q] {
            check_rows(points, MIN_ROWS, "an estimate")?;
            check_varies(points)?;
        }
        check_columns(p, q)?;
        check_covariance(p)?;
        let rows = p.len() + q.len();
        progress.plan(CLEANING_WORK * rows + Self::work([p.len(), q.len()]));
        let identical = same_rows(p, q);
        let swapped = is_after(p, q);
        let [first, second] = if swapped { [q, p] } else { [p, q] };
        let Cleaned { rows: [x, y], duplicates, dequantised } = Cleaned::clean(first, second);
        progress.advance(CLEANING_WORK * rows);
        let x = Points::new(&x, p.dim()).named(first.name());
        let y = Points::new(&y, p.dim()).named(second.name());
        let features = PairFeatures { duplicates, dequantised, identical, ..Self::compute(x, y, progress)? };
        Ok(if swapped { features.reversed() } else { features })
    }

    /// The features of the pair (Q, P).
    pub fn reversed(mut self) -> Self {
        self.duplicates.reverse();
        self.dequantised.reverse();
        self.subsamples.iter_mut().for_each(|s| std::mem::swap(&mut s.p, &mut s.q));
        std::mem::swap(&mut self.forward, &mut self.backward);
        self
    }

    /// Units of work of [`PairFeatures::compute`], with these rows.
    fn work(rows: [usize; 2]) -> usize {
        let evaluated = rows.map(|n| n.min(MAX_EVALUATED_ROWS));
        COORDINATES_WORK * (rows[0] + rows[1]) + RatioFit::work(rows, evaluated, 0)
    }

    /// Features of two samples of continuous distributions.
    pub fn compute(p: Points, q: Points, progress: &Progress) -> Result<Self> {
        let coordinates = AffineCoordinates::fit(p, q)?;
        let dim = coordinates.dim;
        let min_rows = (MIN_ROWS as f64).max((MIN_ROWS_PER_DIRECTION * dim as f64).ceil()) as usize;
        for points in [p, q] {
            let (name, rows) = (points.name(), points.len());
            if rows < min_rows {
                return Err(Error::UnsupportedSamples(format!(
                    "{name}: has {rows} different rows; the pretrained estimator needs at least {min_rows} for {dim} \
                     directions of variation"
                )));
            }
        }
        let rows = evaluated_rows(&coordinates, MAX_EVALUATED_ROWS);
        let evaluated = [&rows[0][..], &rows[1][..]];
        let [x, y] = coordinates.select(evaluated);
        let [x, y] = [Points::new(&x, dim), Points::new(&y, dim)];
        let subsamples = subsamples(x, y, [p.len(), q.len()]);
        let all = [0, 1].map(|k| Points::new(&coordinates.rows[k], dim));
        let [mut of_p, mut of_q] = all.map(SampleMoments::new);
        let coordinates = coordinates.compress(evaluated);
        [of_p.tails, of_q.tails] = coordinates.tails;
        progress.advance(COORDINATES_WORK * (p.len() + q.len()));
        let fit = RatioFit::new(&coordinates, [p, q], evaluated, Points::new(&[], p.dim()), progress);
        let sizes = [p.len(), q.len()];
        let forward = Direction { first: &fit.p, second: &fit.q, sign: 1.0, rows: sizes };
        let backward = Direction { first: &fit.q, second: &fit.p, sign: -1.0, rows: [sizes[1], sizes[0]] };
        let [of_first, of_second] = [0, 1].map(|sample| fit.fitted.map(|view| view[sample]));
        Ok(PairFeatures {
            dim,
            duplicates: [0; 2],
            dequantised: [None; 2],
            identical: false,
            subsamples,
            forward: forward.features(&fit, of_first, x, [&of_p, &of_q]),
            backward: backward.features(&fit, of_second, y, [&of_q, &of_p]),
            bounded: Bounded::of(&fit),
        })
    }
}

/// Disjoint rows of both samples for the set model, in the canonical coordinates of these rows.
pub struct Subsample {
    /// Rows of P.
    pub p: Vec<f32>,
    /// Rows of Q.
    pub q: Vec<f32>,
}

/// The number of subsamples of samples with `n` and `m` rows, and the rows each has of both.
fn subsample_sizes(n: usize, m: usize) -> (usize, [usize; 2]) {
    let needed = n.max(m).div_ceil(MAX_SUBSAMPLE_ROWS).min(MAX_SUBSAMPLES);
    let count = needed.min(n.min(m) / MIN_SUBSAMPLE_ROWS).max(1);
    let max_rows = if count > 2 { MAX_SMALL_SUBSAMPLE_ROWS } else { MAX_SUBSAMPLE_ROWS };
    (count, [(n / count).min(max_rows), (m / count).min(max_rows)])
}

fn to_f32(rows: &[f64]) -> Vec<f32> {
    rows.iter().map(|&x| x as f32).collect()
}

/// Disjoint subsamples of two samples for the set model, which have `rows` rows. Those of `x` and `y` are in random
/// order.
fn subsamples(x: Points, y: Points, rows: [usize; 2]) -> Vec<Subsample> {
    let dim = x.dim();
    let (count, sizes) = subsample_sizes(rows[0], rows[1]);
    if count == 1 && sizes == rows {
        return vec![Subsample { p: to_f32(x.data()), q: to_f32(y.data()) }];
    }
    let subsample = |k: usize| {
        let [a, b] =
            [(x, sizes[0]), (y, sizes[1])].map(|(points, size)| &points.data()[k * size * dim..(k + 1) * size * dim]);
        let axes = Canonical::fit(a, b, dim);
        Subsample { p: to_f32(&mapped(&axes, a)), q: to_f32(&mapped(&axes, b)) }
    };
    (0..count).map(subsample).collect()
}

/// Whether samples are exchanged, so that they are in an order of their own.
///
/// The smaller sample is first. Among samples of one size it is the one with the larger variances. Units and signs of
/// columns and the order of rows have no influence.
fn is_after(p: Points, q: Points) -> bool {
    let by_variances = || {
        let logs = |points: Points| points.standard_deviations().into_iter().map(f64::ln);
        let difference: f64 = logs(p).zip(logs(q)).map(|(a, b)| b - a).filter(|x| x.is_finite()).sum();
        difference.total_cmp(&0.0)
    };
    let by_rows = || {
        let [a, b] = [p, q].map(|points| points.sorted_rows().into_iter().flat_map(move |i| points.row(i)));
        a.zip(b).map(|(x, y)| x.total_cmp(y)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    };
    p.len().cmp(&q.len()).then_with(by_variances).then_with(by_rows).is_gt()
}

/// Fails where more than [`MAX_COLUMNS`] columns vary.
fn check_columns(p: Points, q: Points) -> Result<()> {
    let varies = |c: &usize| p.constant(*c).is_none() || p.constant(*c) != q.constant(*c);
    let varying = (0..p.dim()).filter(varies).count();
    if varying > MAX_COLUMNS {
        return Err(Error::UnsupportedSamples(format!(
            "{} and {} have {varying} columns that vary; the pretrained estimator takes at most {MAX_COLUMNS}",
            p.name(),
            q.name()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsamples_have_as_many_rows_as_the_set_model_was_trained_for() {
        assert_eq!(subsample_sizes(200, 250), (1, [200, 250]));
        assert_eq!(subsample_sizes(1000, 1000), (4, [160, 160]));
        assert_eq!(subsample_sizes(5000, 70), (2, [256, 35]));
        assert_eq!(subsample_sizes(600, 40), (1, [256, 40]));
        assert_eq!(subsample_sizes(10, 12), (1, [10, 12]));
    }

    #[test]
    fn reversed_pairs_have_reversed_features() {
        let rows = |k: u64, n: u64| -> Vec<f64> {
            (0..2 * n).map(|i| (((i + 1) * k) as f64 * 0.618_033_988_7).fract().powi(1 + (k % 3) as i32)).collect()
        };
        let (p, q) = (rows(7, 90), rows(11, 300));
        let (p, q) = (Points::new(&p, 2), Points::new(&q, 2));
        let of = |p, q| PairFeatures::of_samples(p, q, &Progress::default()).unwrap();
        let (found, reversed) = (of(p, q), of(q, p).reversed());
        for (a, b) in [(&found.forward, &reversed.forward), (&found.backward, &reversed.backward)] {
            assert_eq!((a.estimates, a.context), (b.estimates, b.context));
        }
        assert_ne!(found.forward.estimates, found.backward.estimates);
        assert_eq!(found.bounded.estimates, reversed.bounded.estimates);
        assert_eq!(found.subsamples.len(), reversed.subsamples.len());
        assert!(found.subsamples.iter().zip(&reversed.subsamples).all(|(a, b)| a.p == b.p && a.q == b.q));
        // 90 rows of P, 300 of Q.
        assert!(found.subsamples[0].p.len() < found.subsamples[0].q.len());
    }

    #[test]
    fn constant_and_collinear_columns_add_no_direction() {
        let rows = |k: usize| -> Vec<f64> {
            (0..60).flat_map(|i| [((i * k) % 17) as f64, 3.0, 2.0 * ((i * k) % 17) as f64]).collect()
        };
        let (p, q) = (rows(5), rows(7));
        let compute =
            |p: &[f64], q: &[f64]| PairFeatures::compute(Points::new(p, 3), Points::new(q, 3), &Progress::default());
        assert_eq!(compute(&p, &q).unwrap().dim, 1);
        let same = vec![1.0; 30];
        let error = compute(&same, &same).err().unwrap().to_string();
        assert!(error.contains("one point"), "{error}");
    }
}
