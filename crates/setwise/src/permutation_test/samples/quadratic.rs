//! Statistics that are quadratic in sums of columns over the samples.

use std::ops::Range;

use rayon::prelude::*;

use super::super::product::STRIP;
use super::features::Features;
use crate::linalg::{cholesky, solve_lower, solve_lower_transposed};

/// Centred sums of columns over samples for many permutations.
pub(super) struct Sums {
    /// `[column][permutations / STRIP][sample][STRIP]`
    values: Vec<f32>,
    /// Numbers of a column.
    stride: usize,
    /// Samples, of which the second of two is left out.
    samples: usize,
    /// The weight of the squares of each sample.
    weights: Vec<f64>,
}

impl Sums {
    /// Sums of columns with `stride` numbers each.
    pub fn new(values: Vec<f32>, stride: usize, samples: usize) -> Self {
        Sums { values, stride, samples, weights: vec![1.0; samples] }
    }

    /// The sums with a weight for each sample.
    pub fn weighted(self, weights: &[f64]) -> Self {
        Sums { weights: weights.to_vec(), ..self }
    }

    /// Number of strips of permutations.
    fn strips(&self) -> usize {
        self.stride / (STRIP * self.samples)
    }

    /// Sums of a column over a sample, for the permutations of a strip.
    pub fn of_strip(&self, column: usize, strip: usize, sample: usize) -> &[f32] {
        let at = column * self.stride + (strip * self.samples + sample) * STRIP;
        &self.values[at..at + STRIP]
    }

    /// The sum of a column over a sample in one permutation.
    fn at(&self, column: usize, permutation: usize, sample: usize) -> f64 {
        f64::from(self.of_strip(column, permutation / STRIP, sample)[permutation % STRIP])
    }
}

/// Variances up to this one are rounding errors.
const NO_VARIANCE: f64 = 1e-10;

/// How sums of columns become a statistic, the weighted mean over samples where there are several.
pub(super) enum Reduction {
    /// sᵀA⁻¹s: the Cholesky factor of A. It is the covariance of these columns, or the kernel matrix of their centres,
    /// plus a ridge.
    Inverse(Vec<f64>),
    /// Σ s² / variance.
    Sum(Vec<f64>),
    /// The largest Σ w s² of groups of columns, w the same in each group.
    Largest { weights: Vec<f64>, group: usize },
    /// ln Σ exp(rate · Σ s² − offset) of groups of columns, an offset for each group.
    SoftLargest { rate: f64, offsets: Vec<f64>, group: usize },
}

/// A statistic with the columns it is of.
pub(super) struct Quadratic {
    pub columns: Vec<usize>,
    reduction: Reduction,
}

impl Quadratic {
    /// The squared length of the whitened sums of columns.
    pub fn whitened(features: &Features, columns: Vec<usize>, ridge: f64) -> Self {
        let (width, n) = (features.width, columns.len());
        let at = |a: usize, b: usize| features.covariance[a.max(b) * width + a.min(b)];
        let mut covariance = vec![0.0; n * n];
        for (i, &a) in columns.iter().enumerate() {
            columns.iter().enumerate().for_each(|(j, &b)| covariance[i * n + j] = at(a, b));
        }
        Self::inverse(features, columns, covariance, ridge)
    }

    /// The maximum mean discrepancy by Nyström's approximation, with the kernel matrix of the columns' centres.
    pub fn kernel(features: &Features, columns: Range<usize>, matrix: Vec<f64>) -> Self {
        const RIDGE: f64 = 1e-3;
        Self::inverse(features, columns.collect(), matrix, RIDGE)
    }

    /// sᵀ(A + ridge · mean(diag A) · I)⁻¹s; the sum of squares where A is zero or has no factor.
    fn inverse(features: &Features, columns: Vec<usize>, mut a: Vec<f64>, ridge: f64) -> Self {
        let n = columns.len();
        let mean = (0..n).map(|i| a[i * n + i]).sum::<f64>() / n.max(1) as f64;
        if mean < NO_VARIANCE {
            return Self::sum(features, columns);
        }
        (0..n).for_each(|i| a[i * n + i] += ridge * mean);
        match cholesky(&mut a, n) {
            Ok(()) => Quadratic { columns, reduction: Reduction::Inverse(a) },
            // Rounding errors that outweigh the ridge.
            Err(_) => Self::sum(features, columns),
        }
    }

    /// The sum of squares of standardised columns.
    pub fn sum(features: &Features, columns: Vec<usize>) -> Self {
        let rates = columns.iter().map(|&c| rate(features, c)).collect();
        Quadratic { columns, reduction: Reduction::Sum(rates) }
    }

    /// The largest square of standardised columns.
    pub fn largest(features: &Features, columns: Range<usize>) -> Self {
        let weights = columns.clone().map(|c| rate(features, c)).collect();
        Quadratic { columns: columns.collect(), reduction: Reduction::Largest { weights, group: 1 } }
    }

    /// The largest weighted sum of squares of groups of columns; `weights` is of one group.
    pub fn largest_group(columns: Range<usize>, weights: &[f64]) -> Self {
        let all = weights.iter().copied().cycle().take(columns.len()).collect();
        let reduction = Reduction::Largest { weights: all, group: weights.len() };
        Quadratic { columns: columns.collect(), reduction }
    }

    /// The log of the sum of exponentials of groups of `group` columns, an offset for each.
    pub fn soft_largest(columns: Range<usize>, group: usize, rate: f64, offsets: Vec<f64>) -> Self {
        Quadratic { columns: columns.collect(), reduction: Reduction::SoftLargest { rate, offsets, group } }
    }

    /// Its values for all permutations.
    pub fn values(&self, sums: &Sums) -> Vec<f64> {
        (0..sums.strips()).into_par_iter().flat_map_iter(|strip| self.values_of_strip(sums, strip)).collect()
    }

    /// Its value for a permutation.
    pub fn value(&self, sums: &Sums, permutation: usize) -> f64 {
        self.values_of_strip(sums, permutation / STRIP)[permutation % STRIP]
    }

    fn values_of_strip(&self, sums: &Sums, strip: usize) -> [f64; STRIP] {
        let mut values = [0.0; STRIP];
        let samples = || sums.weights.iter().enumerate();
        match &self.reduction {
            Reduction::Inverse(factor) => {
                // Forward substitution of all permutations at once.
                let n = self.columns.len();
                let mut solved: Vec<f64> = Vec::with_capacity(n * STRIP);
                for (sample, weight) in samples() {
                    solved.clear();
                    for (i, &c) in self.columns.iter().enumerate() {
                        let (before, factors) = (&solved[..], &factor[i * n..i * n + i]);
                        let mut x = [0.0; STRIP];
                        x.iter_mut().zip(sums.of_strip(c, strip, sample)).for_each(|(x, s)| *x = f64::from(*s));
                        for (factor, y) in factors.iter().zip(before.chunks_exact(STRIP)) {
                            x.iter_mut().zip(y).for_each(|(x, y)| *x -= factor * y);
                        }
                        let pivot = 1.0 / factor[i * n + i];
                        x.iter_mut().for_each(|x| *x *= pivot);
                        values.iter_mut().zip(&x).for_each(|(value, x)| *value += weight * x * x);
                        solved.extend(x);
                    }
                }
            }
            Reduction::Sum(rates) => {
                for (sample, weight) in samples() {
                    for (&c, rate) in self.columns.iter().zip(rates) {
                        add_squares(&mut values, weight * rate, sums.of_strip(c, strip, sample));
                    }
                }
            }
            Reduction::Largest { weights, group } => {
                for (columns, rates) in self.columns.chunks(*group).zip(weights.chunks(*group)) {
                    let mut sum = [0.0; STRIP];
                    for (sample, weight) in samples() {
                        for (&c, rate) in columns.iter().zip(rates) {
                            add_squares(&mut sum, weight * rate, sums.of_strip(c, strip, sample));
                        }
                    }
                    values.iter_mut().zip(sum).for_each(|(value, sum)| *value = value.max(sum));
                }
            }
            Reduction::SoftLargest { rate, offsets, group } => {
                let of_group = |(columns, offset): (&[usize], &f64)| {
                    let mut sum = [-offset; STRIP];
                    for (sample, weight) in samples() {
                        columns
                            .iter()
                            .for_each(|&c| add_squares(&mut sum, weight * rate, sums.of_strip(c, strip, sample)));
                    }
                    sum
                };
                let groups: Vec<[f64; STRIP]> = self.columns.chunks(*group).zip(offsets).map(of_group).collect();
                for (i, value) in values.iter_mut().enumerate() {
                    *value = ln_sum_exp(groups.iter().map(|sums| sums[i]));
                }
            }
        }
        values
    }

    /// The direction in its columns along which sums over the first sample of a permutation are largest for the
    /// statistic.
    pub fn direction(&self, sums: &Sums, permutation: usize) -> Vec<f64> {
        let mut direction: Vec<f64> = self.columns.iter().map(|&c| sums.at(c, permutation, 0)).collect();
        match &self.reduction {
            Reduction::Inverse(factor) => {
                let n = self.columns.len();
                solve_lower(factor, n, &mut direction);
                solve_lower_transposed(factor, n, &mut direction);
            }
            Reduction::Sum(rates) => direction.iter_mut().zip(rates).for_each(|(x, rate)| *x *= rate),
            Reduction::Largest { weights, group } => {
                let largest = self.largest_of(sums, permutation);
                let within = |i: usize| if Some(i / group) == largest { weights[i] } else { 0.0 };
                direction.iter_mut().enumerate().for_each(|(i, x)| *x *= within(i));
            }
            Reduction::SoftLargest { group, .. } => {
                let values = self.of_groups(sums, permutation);
                let total = ln_sum_exp(values.iter().copied());
                direction.iter_mut().enumerate().for_each(|(i, x)| *x *= (values[i / group] - total).exp());
            }
        }
        direction
    }

    /// The group of columns that is the largest in a permutation, of statistics that look for one.
    pub fn largest_of(&self, sums: &Sums, permutation: usize) -> Option<usize> {
        let values = self.of_groups(sums, permutation);
        values.into_iter().enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(place, _)| place)
    }

    /// Values of the groups in a permutation; none for statistics without groups.
    fn of_groups(&self, sums: &Sums, permutation: usize) -> Vec<f64> {
        let square = |c: usize| {
            let samples = sums.weights.iter().enumerate();
            samples.map(|(sample, weight)| weight * sums.at(c, permutation, sample).powi(2)).sum::<f64>()
        };
        let weighted = |columns: &[usize], rates: &[f64]| {
            columns.iter().zip(rates).map(|(&c, rate)| rate * square(c)).sum::<f64>()
        };
        match &self.reduction {
            Reduction::Inverse(_) | Reduction::Sum(_) => Vec::new(),
            Reduction::Largest { weights, group } => {
                let groups = self.columns.chunks(*group).zip(weights.chunks(*group));
                groups.map(|(columns, rates)| weighted(columns, rates)).collect()
            }
            Reduction::SoftLargest { rate, offsets, group } => {
                let rates = vec![*rate; *group];
                let groups = self.columns.chunks(*group).zip(offsets);
                groups.map(|(columns, offset)| weighted(columns, &rates) - offset).collect()
            }
        }
    }
}

/// ln Σ exp(x)
fn ln_sum_exp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = values.clone().fold(f64::NEG_INFINITY, f64::max);
    largest + values.map(|x| (x - largest).exp()).sum::<f64>().ln()
}

/// Adds `rate` times the squares of sums.
fn add_squares(values: &mut [f64; STRIP], rate: f64, sums: &[f32]) {
    values.iter_mut().zip(sums).for_each(|(value, s)| *value += rate * f64::from(*s).powi(2));
}

/// One over the variance of a column; zero for a constant one.
fn rate(features: &Features, c: usize) -> f64 {
    let variance = features.variances[c];
    if variance > NO_VARIANCE { 1.0 / variance } else { 0.0 }
}
