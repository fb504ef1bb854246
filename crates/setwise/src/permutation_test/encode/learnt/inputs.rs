//! What the network sees of the pooled sample.

use rayon::prelude::*;

use super::super::{Bumps, Encode, Ranks, Shape, Stored, bandwidths, radius_cosines, whitened};
use crate::permutation_test::standardised::{Standardised, sorted_rows};

/// Numbers of an entry.
pub const OF_ENTRY: usize = 4;
/// Numbers of a row.
pub const OF_ROW: usize = 2 * WIDTHS + 1;
/// Widths of density estimates.
const WIDTHS: usize = 5;

/// What the network of the adaptive test sees of rows of the pooled sample, for its training. No number depends on
/// which sample a row is from.
pub struct Inputs {
    /// Number of columns.
    pub dim: usize,
    /// `[rows, dim, OF_ENTRY]`: rank as a share of the rows, normal score, share of equal values, asinh of the
    /// standardised value.
    pub entries: Vec<f32>,
    /// `[rows, OF_ROW]`: log densities of whitened rows and of normal scores at five widths, and the cosine of the rank
    /// of the distance from the mean.
    pub rows: Vec<f32>,
}

/// The pooled sample and what is derived of it.
pub struct PooledRows<'a> {
    /// Columns with mean zero and variance one.
    pub standardised: &'a [f64],
    pub ranks: &'a Ranks,
    pub scores: &'a [f32],
    pub white: &'a [f32],
    /// Cosines of the rank of the distance from the mean, the first of which is an input.
    pub radius: &'a Stored,
    /// All rows in an order that labels do not determine.
    pub order: &'a [u32],
}

impl PooledRows<'_> {
    /// Derives them of a pooled sample, for a function of them.
    pub fn with<R>(data: &[f64], dim: usize, of: impl FnOnce(&PooledRows) -> R) -> R {
        let standardised = Standardised::new(data.to_vec(), dim);
        let ranks = Ranks::new(data, dim);
        let white = whitened(&standardised.data, dim);
        of(&PooledRows {
            standardised: &standardised.data,
            ranks: &ranks,
            scores: &ranks.normal_scores(),
            white: &white,
            radius: &radius_cosines(&white, dim, 1),
            order: &sorted_rows(data, dim),
        })
    }
}

impl Inputs {
    /// The inputs of a pooled sample, all rows of it.
    pub fn of_all(data: &[f64], dim: usize, seed: u64) -> Self {
        let all: Vec<u32> = (0..(data.len() / dim) as u32).collect();
        PooledRows::with(data, dim, |pooled| Self::new(pooled, &all, seed))
    }

    /// The inputs of some rows of a pooled sample.
    pub fn new(pooled: &PooledRows, rows: &[u32], seed: u64) -> Self {
        /// Normal scores are clamped, as in training.
        const LARGEST_SCORE: f32 = 3.891;
        let dim = pooled.ranks.dim;
        let count = pooled.order.len();
        let mut entries = vec![0.0; rows.len() * dim * OF_ENTRY];
        for c in 0..dim {
            let repeats = pooled.ranks.repeats(c);
            for (row, out) in rows.iter().zip(entries.chunks_exact_mut(dim * OF_ENTRY)) {
                let at = *row as usize * dim + c;
                let share = pooled.ranks.shares[at];
                let equal = repeats[(f64::from(share) * (2 * count) as f64).round() as usize];
                let score = pooled.scores[at].clamp(-LARGEST_SCORE, LARGEST_SCORE);
                let value = pooled.standardised[at].asinh() as f32;
                let entry = [share, score, (equal - 1) as f32 / count as f32, value];
                out[c * OF_ENTRY..][..OF_ENTRY].copy_from_slice(&entry);
            }
        }
        Inputs { dim, entries, rows: of_rows(pooled, rows, seed) }
    }
}

/// Log densities by kernels around random rows, and the distance from the mean.
fn of_rows(pooled: &PooledRows, rows: &[u32], seed: u64) -> Vec<f32> {
    /// Centres of density estimates.
    const CENTRES: usize = 128;
    /// Rows whose distances determine the widths.
    const SAMPLED: usize = 200;
    /// Density where no centre is near.
    const LEAST: f32 = 1e-4;
    let dim = pooled.ranks.dim;
    let order = pooled.order;
    let some: Vec<u32> = order.iter().copied().step_by(order.len().div_ceil(SAMPLED)).collect();
    let mut out = vec![0.0; rows.len() * OF_ROW];
    for (space, points) in [pooled.white, pooled.scores].into_iter().enumerate() {
        let kinds = bandwidths::<WIDTHS>(points, dim, &some, seed).map(|h| (Shape::Gaussian, h, CENTRES));
        let bumps = Bumps::new(points, dim, order, &kinds, seed ^ 1);
        out.par_chunks_exact_mut(OF_ROW).zip(rows).for_each(|(out, &row)| {
            let mut values = vec![0.0; bumps.width()];
            bumps.encode(row as usize, &mut values);
            for (k, out) in out[space * WIDTHS..][..WIDTHS].iter_mut().enumerate() {
                let values = &values[bumps.columns(k)];
                *out = (values.iter().sum::<f32>() / values.len() as f32 + LEAST).ln();
            }
        });
    }
    let radius = |row: u32| pooled.radius.values[row as usize * pooled.radius.width];
    out.chunks_exact_mut(OF_ROW).zip(rows).for_each(|(out, &row)| out[2 * WIDTHS] = radius(row));
    out
}
