//! Statistics that are quadratic in sums of columns over the first sample.

use std::ops::Range;

use rayon::prelude::*;

use super::features::Features;
use crate::linalg::{cholesky, solve_lower, solve_lower_transposed};

/// How sums of columns become a statistic.
pub(super) enum Reduction {
    /// ‖(C + ridge · mean(diag C) · I)^(−1/2) s‖² with the covariance C of these columns: the factor of that matrix.
    Whitened(Vec<f64>),
    /// Σ s² / variance.
    Sum(Vec<f64>),
    /// The largest Σ w s² of groups of columns, w the same in each group.
    Largest { weights: Vec<f64>, group: usize },
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
        let mean = columns.iter().map(|&c| at(c, c)).sum::<f64>() / n.max(1) as f64;
        let mut factor = vec![0.0; n * n];
        for (i, &a) in columns.iter().enumerate() {
            columns.iter().enumerate().for_each(|(j, &b)| factor[i * n + j] = at(a, b));
            factor[i * n + i] += ridge * mean + f64::MIN_POSITIVE;
        }
        match cholesky(&mut factor, n) {
            Ok(()) => Quadratic { columns, reduction: Reduction::Whitened(factor) },
            // Rounding errors that outweigh the ridge; all columns are constant.
            Err(_) => Self::sum(features, columns),
        }
    }

    /// The sum of squares of standardised columns.
    pub fn sum(features: &Features, columns: Vec<usize>) -> Self {
        let rates = columns.iter().map(|&c| rate(features, c)).collect();
        Quadratic { columns, reduction: Reduction::Sum(rates) }
    }

    /// The sum of squares of columns as they are.
    pub fn plain_sum(columns: Range<usize>) -> Self {
        Quadratic { reduction: Reduction::Sum(vec![1.0; columns.len()]), columns: columns.collect() }
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

    /// Its values for all permutations, from sums `[width, permutations]`.
    pub fn values(&self, sums: &[f32], permutations: usize) -> Vec<f64> {
        /// Permutations of a task.
        const TASK: usize = 64;
        let tasks = (0..permutations.div_ceil(TASK)).into_par_iter().flat_map_iter(|task| {
            let range = task * TASK..((task + 1) * TASK).min(permutations);
            self.values_of(sums, permutations, range)
        });
        tasks.collect()
    }

    /// Its value for a permutation.
    pub fn value(&self, sums: &[f32], permutations: usize, permutation: usize) -> f64 {
        self.values_of(sums, permutations, permutation..permutation + 1)[0]
    }

    fn values_of(&self, sums: &[f32], permutations: usize, range: Range<usize>) -> Vec<f64> {
        let row = |c: usize| &sums[c * permutations + range.start..c * permutations + range.end];
        let mut values = vec![0.0; range.len()];
        match &self.reduction {
            Reduction::Whitened(factor) => {
                // Forward substitution of all permutations at once.
                let (n, width) = (self.columns.len(), range.len());
                let mut solved: Vec<f64> = Vec::with_capacity(n * width);
                for (i, &c) in self.columns.iter().enumerate() {
                    let (before, factors) = (&solved[..], &factor[i * n..i * n + i]);
                    let mut x: Vec<f64> = row(c).iter().map(|s| f64::from(*s)).collect();
                    for (factor, y) in factors.iter().zip(before.chunks_exact(width)) {
                        x.iter_mut().zip(y).for_each(|(x, y)| *x -= factor * y);
                    }
                    let pivot = 1.0 / factor[i * n + i];
                    x.iter_mut().for_each(|x| *x *= pivot);
                    values.iter_mut().zip(&x).for_each(|(value, x)| *value += x * x);
                    solved.extend(x);
                }
            }
            Reduction::Sum(rates) => {
                for (&c, rate) in self.columns.iter().zip(rates) {
                    values.iter_mut().zip(row(c)).for_each(|(value, s)| *value += rate * f64::from(*s).powi(2));
                }
            }
            Reduction::Largest { weights, group } => {
                for (columns, weights) in self.columns.chunks(*group).zip(weights.chunks(*group)) {
                    let mut sum = vec![0.0; range.len()];
                    for (&c, weight) in columns.iter().zip(weights) {
                        sum.iter_mut().zip(row(c)).for_each(|(sum, s)| *sum += weight * f64::from(*s).powi(2));
                    }
                    values.iter_mut().zip(sum).for_each(|(value, sum)| *value = value.max(sum));
                }
            }
        }
        values
    }

    /// The direction in its columns along which sums of a permutation are largest for the statistic.
    pub fn direction(&self, sums: &[f32], permutations: usize, permutation: usize) -> Vec<f64> {
        let sum = |c: usize| f64::from(sums[c * permutations + permutation]);
        let mut direction: Vec<f64> = self.columns.iter().map(|&c| sum(c)).collect();
        match &self.reduction {
            Reduction::Whitened(factor) => {
                let n = self.columns.len();
                solve_lower(factor, n, &mut direction);
                solve_lower_transposed(factor, n, &mut direction);
            }
            Reduction::Sum(rates) => direction.iter_mut().zip(rates).for_each(|(x, rate)| *x *= rate),
            Reduction::Largest { weights, group } => {
                let largest = self.largest_of(sums, permutations, permutation);
                let within = |i: usize| if Some(i / group) == largest { weights[i] } else { 0.0 };
                direction.iter_mut().enumerate().for_each(|(i, x)| *x *= within(i));
            }
        }
        direction
    }

    /// The group of columns that is the largest in a permutation, of statistics that look for one.
    pub fn largest_of(&self, sums: &[f32], permutations: usize, permutation: usize) -> Option<usize> {
        let Reduction::Largest { weights, group } = &self.reduction else { return None };
        let groups = self.columns.chunks(*group).zip(weights.chunks(*group));
        let value = |(columns, weights): (&[usize], &[f64])| {
            let squares = columns.iter().map(|&c| f64::from(sums[c * permutations + permutation]).powi(2));
            squares.zip(weights).map(|(square, weight)| weight * square).sum::<f64>()
        };
        groups.map(value).enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(place, _)| place)
    }
}

/// One over the variance of a column; zero for a constant one.
fn rate(features: &Features, c: usize) -> f64 {
    /// A variance that is rounding error.
    const NONE: f64 = 1e-10;
    let variance = features.covariance[c * features.width + c];
    if variance > NONE { 1.0 / variance } else { 0.0 }
}
