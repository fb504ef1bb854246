//! Distances, and the blocks of points they are taken to.
//!
//! Distances are compared in a *measure* that grows with them and is cheaper: the square for the Euclidean norm, the distance itself for
//! the maximum norm. Columns may fall into two groups (the X and the Y of pairs); the measure of a pair is the larger of both.
//!
//! Points lie in blocks of [`LANES`], column by column, so that one query meets eight points in a few vector instructions. Every
//! measure is summed column by column in the same order, whoever asks, and rounding is monotone: bounds of boxes hold exactly, and a
//! tree gives the same numbers as a pass over all points.

use super::Norm;
use crate::estimate::Points;

/// Points in a block.
pub(super) const LANES: usize = 8;

/// How differences of columns add up.
pub(super) trait Measure: Copy + Send + Sync {
    fn add(so_far: f64, difference: f64) -> f64;
}

#[derive(Clone, Copy)]
pub(super) struct Squares;

#[derive(Clone, Copy)]
pub(super) struct Largest;

impl Measure for Squares {
    #[inline(always)]
    fn add(so_far: f64, difference: f64) -> f64 {
        so_far + difference * difference
    }
}

impl Measure for Largest {
    #[inline(always)]
    fn add(so_far: f64, difference: f64) -> f64 {
        larger(so_far, difference.abs())
    }
}

/// `f64::max` for numbers that are no NaN, in one instruction.
#[inline(always)]
pub(super) fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// The distance a measure stands for.
pub(super) fn distance(norm: Norm, measure: f64) -> f64 {
    match norm {
        Norm::Euclidean => measure.sqrt(),
        Norm::Maximum => measure,
    }
}

/// Measures of eight points, group by group.
pub(super) type Lanes = [[f64; LANES]; 2];

/// Measures of the points of a block; `split` columns are the first group.
#[inline(always)]
pub(super) fn lanes<M: Measure>(block: &[f64], query: &[f64], split: usize) -> Lanes {
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

/// Measure of the whole point.
#[inline(always)]
pub(super) fn whole(lanes: &Lanes) -> [f64; LANES] {
    let mut out = lanes[0];
    for (o, &second) in out.iter_mut().zip(&lanes[1]) {
        *o = larger(*o, second);
    }
    out
}

/// The smallest measure a point in a box can have. `bounds` are the lows of all columns, then the highs.
#[inline(always)]
pub(super) fn nearest<M: Measure>(bounds: &[f64], query: &[f64], split: usize) -> f64 {
    let (low, high) = bounds.split_at(query.len());
    let mut sums = [0.0; 2];
    for (c, &q) in query.iter().enumerate() {
        let outside = larger(larger(low[c] - q, q - high[c]), 0.0);
        let sum = &mut sums[usize::from(c >= split)];
        *sum = M::add(*sum, outside);
    }
    larger(sums[0], sums[1])
}

/// The largest measure a point in a box can have.
#[inline(always)]
pub(super) fn farthest<M: Measure>(bounds: &[f64], query: &[f64], split: usize) -> f64 {
    let (low, high) = bounds.split_at(query.len());
    let mut sums = [0.0; 2];
    for (c, &q) in query.iter().enumerate() {
        let sum = &mut sums[usize::from(c >= split)];
        *sum = M::add(*sum, larger(q - low[c], high[c] - q));
    }
    larger(sums[0], sums[1])
}

/// Points in blocks, column by column within a block; lanes beyond the last point are infinitely far.
pub(super) struct Blocks {
    data: Vec<f64>,
    dim: usize,
    len: usize,
}

impl Blocks {
    pub fn pack(points: Points, order: impl ExactSizeIterator<Item = usize>) -> Self {
        let (dim, len) = (points.dim(), order.len());
        let mut data = vec![f64::INFINITY; len.div_ceil(LANES) * LANES * dim];
        for (place, i) in order.enumerate() {
            let block = place / LANES * LANES * dim + place % LANES;
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

    /// Blocks `range`, one after another.
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
