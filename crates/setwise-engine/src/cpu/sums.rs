//! Sums of rows, and sums over rows.

use std::ops::Range;

use super::tasks::{Ptr, Threads, chunk_range};
use crate::real::Real;
use crate::simd::{Kernel, Vector, columns, load_lanes, store_lanes};

/// `dst = Σ sources`, or `dst += Σ sources` where `accumulate`, over rows `first..first + rows` of `cols` columns.
pub struct SumRows<'a, T> {
    pub rows: usize,
    pub cols: usize,
    pub dst: *mut T,
    pub dst_row: usize,
    pub accumulate: bool,
    /// Addresses and row strides.
    pub sources: &'a [(Ptr<T>, usize)],
    pub first: usize,
}

impl<T: Real> Kernel<T> for SumRows<'_, T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        // SAFETY: the contract of `Kernel::run`: rows `first..first + rows` of `dst` and of all sources are valid.
        unsafe {
            for r in self.first..self.first + self.rows {
                let dst = self.dst.wrapping_add(r * self.dst_row);
                columns!(V, self.cols, |j, n| {
                    let mut sum = if self.accumulate { load_lanes::<T, V>(dst.add(j), n) } else { V::zero() };
                    for &(src, row) in self.sources {
                        sum = sum.add(load_lanes(src.at(r * row + j), n));
                    }
                    store_lanes(sum, dst.add(j), n);
                });
            }
        }
    }
}

/// `dst = Σ sources`, or `dst += Σ sources` where `accumulate`, rows in parallel. `dst` and sources are (address, row
/// stride).
///
/// # Safety
/// `dst` and all sources are valid for `cols` columns of every row of `rows`. Nothing else accesses those of `dst`.
pub unsafe fn sum_rows<T: Real>(
    threads: Threads,
    rows: Range<usize>,
    cols: usize,
    (dst, dst_row): (Ptr<T>, usize),
    accumulate: bool,
    sources: &[(Ptr<T>, usize)],
) {
    let step = (32_768 / cols.max(1)).clamp(64, 4096);
    threads.run(rows.len().div_ceil(step), |t| {
        let Range { start: first, end } = chunk_range(rows.clone(), t, step);
        let kernel = SumRows { rows: end - first, cols, dst: dst.at(0), dst_row, accumulate, sources, first };
        // SAFETY: the caller's contract for `rows`, of which tasks have disjoint chunks.
        unsafe { T::dispatch(kernel) };
    });
}

/// `sums[j] += weight · Σ_i x[i, j]` over some rows, with four accumulators: a single one would serialise the
/// additions. `x` is `[rows, cols]` with row stride `x_row`, `sums` `[cols]`.
pub struct ColumnSums<T> {
    pub rows: usize,
    pub cols: usize,
    pub x: *const T,
    pub x_row: usize,
    pub sums: *mut T,
    /// Multiplies the sum.
    pub weight: T,
}

impl<T: Real> Kernel<T> for ColumnSums<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        // SAFETY: the contract of `Kernel::run`: `x` has `rows` rows of `cols` numbers, `sums` one row.
        unsafe {
            columns!(V, self.cols, |j, n| {
                let mut sums = [V::zero(); 4];
                let full = self.rows / 4 * 4;
                for first in (0..full).step_by(4) {
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.add(load_lanes(self.x.add((first + r) * self.x_row + j), n));
                    }
                }
                for r in full..self.rows {
                    sums[0] = sums[0].add(load_lanes(self.x.add(r * self.x_row + j), n));
                }
                let [a, b, c, d] = sums;
                let sum = a.add(b).add(c.add(d));
                let out = self.sums.add(j);
                store_lanes(sum.mul_add(V::splat(self.weight), load_lanes(out, n)), out, n);
            });
        }
    }
}
