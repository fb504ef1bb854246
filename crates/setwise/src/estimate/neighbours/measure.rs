//! Measures of distance, and the blocks of points they are computed to.
//!
//! A *measure* grows with the distance and costs less: the square for the Euclidean norm, the distance itself for the
//! maximum norm. Columns may form two groups (the X and the Y of pairs). The measure of a pair is the larger of both.
//!
//! Points lie in transposed blocks of [`LANES`], so that one query and eight points share vector instructions. Every
//! measure is summed over columns in the same order, and rounding is monotone. So bounds of boxes hold exactly, and a
//! tree gives the same numbers as a pass over all points.

use super::Norm;
use crate::estimate::Points;

/// Points in a block.
pub(super) const LANES: usize = 8;

/// How differences of columns accumulate.
pub(super) trait Measure: Copy + Send + Sync {
    fn add(sum: f64, difference: f64) -> f64;
}

#[derive(Clone, Copy)]
pub(super) struct SquaredEuclidean;

#[derive(Clone, Copy)]
pub(super) struct Chebyshev;

impl Measure for SquaredEuclidean {
    #[inline(always)]
    fn add(sum: f64, difference: f64) -> f64 {
        sum + difference * difference
    }
}

impl Measure for Chebyshev {
    #[inline(always)]
    fn add(sum: f64, difference: f64) -> f64 {
        larger(sum, difference.abs())
    }
}

/// `f64::max` for numbers other than NaN, in one instruction.
#[inline(always)]
pub(super) fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// The distance of a measure.
pub(super) fn distance(norm: Norm, measure: f64) -> f64 {
    match norm {
        Norm::Euclidean => measure.sqrt(),
        Norm::Maximum => measure,
    }
}

/// Measures of eight points in each of both groups of columns.
pub(super) type GroupMeasures = [[f64; LANES]; 2];

/// Measures from a query to the points of a block, `[dim, LANES]`. The first group has `split` columns.
#[inline(always)]
pub(super) fn block_measures<M: Measure>(block: &[f64], query: &[f64], split: usize) -> GroupMeasures {
    let group = |block: &[f64], query: &[f64]| {
        let mut sum = [0.0; LANES];
        for (column, &q) in block.chunks_exact(LANES).zip(query) {
            for (s, &x) in sum.iter_mut().zip(column) {
                *s = M::add(*s, x - q);
            }
        }
        sum
    };
    let (first, second) = block.split_at(split * LANES);
    let (a, b) = query.split_at(split);
    [group(first, a), if b.is_empty() { [0.0; LANES] } else { group(second, b) }]
}

/// The larger measure of both groups, for each point.
#[inline(always)]
pub(super) fn joint_measures(groups: &GroupMeasures) -> [f64; LANES] {
    let mut out = groups[0];
    for (o, &second) in out.iter_mut().zip(&groups[1]) {
        *o = larger(*o, second);
    }
    out
}

/// The smallest measure of points in a box. `bounds` holds the minima of all columns, then the maxima.
#[inline(always)]
pub(super) fn min_measure<M: Measure>(bounds: &[f64], query: &[f64], split: usize) -> f64 {
    let (low, high) = bounds.split_at(query.len());
    let mut sums = [0.0; 2];
    for (c, &q) in query.iter().enumerate() {
        let distance = larger(larger(low[c] - q, q - high[c]), 0.0);
        let sum = &mut sums[usize::from(c >= split)];
        *sum = M::add(*sum, distance);
    }
    larger(sums[0], sums[1])
}

/// The largest measure of points in a box.
#[inline(always)]
pub(super) fn max_measure<M: Measure>(bounds: &[f64], query: &[f64], split: usize) -> f64 {
    let (low, high) = bounds.split_at(query.len());
    let mut sums = [0.0; 2];
    for (c, &q) in query.iter().enumerate() {
        let sum = &mut sums[usize::from(c >= split)];
        *sum = M::add(*sum, larger(q - low[c], high[c] - q));
    }
    larger(sums[0], sums[1])
}

/// Points in blocks `[blocks, dim, LANES]`. Lanes beyond the last point are infinite.
pub(super) struct Blocks {
    data: Vec<f64>,
    dim: usize,
    len: usize,
}

impl Blocks {
    pub fn pack(points: Points, order: impl ExactSizeIterator<Item = usize>) -> Self {
        let (dim, len) = (points.dim(), order.len());
        let mut data = vec![f64::INFINITY; len.div_ceil(LANES) * LANES * dim];
        for (slot, i) in order.enumerate() {
            let block = slot / LANES * LANES * dim + slot % LANES;
            for (c, &x) in points.row(i).iter().enumerate() {
                data[block + c * LANES] = x;
            }
        }
        Blocks { data, dim, len }
    }

    /// Number of points.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The blocks of a range.
    #[inline(always)]
    pub fn blocks(&self, range: std::ops::Range<usize>) -> std::slice::ChunksExact<'_, f64> {
        let size = LANES * self.dim;
        self.data[range.start * size..range.end * size].chunks_exact(size)
    }

    /// Number of blocks.
    pub fn count(&self) -> usize {
        self.len.div_ceil(LANES)
    }
}
