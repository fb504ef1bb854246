//! The operands of one example, relation and head, and what both passes share.

use super::super::gemm::Epilogue;
use super::head::Rows;
use crate::real::Real;
use crate::simd::{TILE_ROWS_32_REGISTERS, Vector};

/// One example, relation and head, for some queries or all.
#[derive(Clone, Copy)]
pub struct Problem<T> {
    pub queries: usize,
    pub keys: usize,
    /// Factor of the scores.
    pub scale: T,
    /// The same times log₂ e: the softmax is computed with powers of two.
    pub scale_log2: T,
    pub query: Rows<T>,
    pub key: Rows<T>,
    pub value: Rows<T>,
    pub out: Rows<T>,
    /// Whether rows of queries, outputs and their gradients are padded to a full block.
    pub padded: bool,
    /// Whether exponentials with 18 bits suffice.
    pub coarse: bool,
    /// The maximum score of each query, in powers of two; zero where scores are not shifted.
    pub max_score: *mut T,
    /// One over the sum of powers of each query.
    pub inv_sum: *mut T,
}

impl<T: Real> Problem<T> {
    /// Rows of queries to pack and unpack, where `n` of a block of `lanes` are valid.
    #[inline(always)]
    pub fn block_rows(&self, n: usize, lanes: usize) -> usize {
        if self.padded { lanes } else { n }
    }
}

/// Accumulates into rows of `sums`, `row` apart, or overwrites them.
pub struct AccumulateRows<T> {
    pub sums: *mut T,
    pub row: usize,
    pub overwrite: bool,
}

impl<T: Real, V: Vector<T>, const C: usize> Epilogue<T, V, C> for AccumulateRows<T> {
    const BY_REFERENCE: bool = true;

    #[inline(always)]
    unsafe fn start(&self, row: usize) -> [V; C] {
        // SAFETY: callers give `sums` `C` vectors in every row of the product, rows `self.row` apart.
        unsafe {
            let mut start = [V::zero(); C];
            if !self.overwrite {
                for (c, v) in start.iter_mut().enumerate() {
                    *v = V::load(self.sums.add(row * self.row + c * V::LANES));
                }
            }
            start
        }
    }

    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, sums: [V; C]) {
        // SAFETY: as in `start`.
        unsafe {
            for (c, v) in sums.into_iter().enumerate() {
                v.store(self.sums.add(row * self.row + c * V::LANES));
            }
        }
    }
}

/// Keys of a block: at most about `max`, blocks of equal size, in full tiles.
#[inline(always)]
pub fn key_block(keys: usize, max: usize) -> usize {
    keys.div_ceil(keys.div_ceil(max).max(1)).max(1).next_multiple_of(TILE_ROWS_32_REGISTERS)
}

/// Multiplies a block `[width][lanes]` by one factor per lane.
///
/// # Safety
/// The caller runs in a kernel; `block` holds `width` rows of `C` vectors.
#[inline(always)]
pub unsafe fn scale<T: Real, V: Vector<T>, const C: usize>(block: *mut T, width: usize, factor: [V; C]) {
    for e in 0..width {
        for (c, factor) in factor.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe {
                let at = block.add((e * C + c) * V::LANES);
                V::load(at).mul(*factor).store(at);
            }
        }
    }
}

/// Valid lanes of vector `c` of a block of `n` queries.
#[inline(always)]
pub fn lanes_of<T: Real, V: Vector<T>>(n: usize, c: usize) -> usize {
    (n - c * V::LANES).min(V::LANES)
}
