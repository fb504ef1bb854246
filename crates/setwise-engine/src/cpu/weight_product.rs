//! Products with a long inner dimension and a small result: the gradients of weights.

use super::gemm::{Epilogue, Strided, multiply_rows, tile as multiply};
use super::packed_product::packed_len;
use super::sums::ColumnSums;
use crate::real::Real;
use crate::simd::{Kernel, TILE_ROWS_16_REGISTERS, TILE_ROWS_32_REGISTERS, Vector};

/// `c[m × n] += aᵀ · b` over `rows` rows, and the column sums of `a` are added to `sums`: the gradients of a weight
/// and its bias.
///
/// Operands whose rows are close to each other are read in place. Otherwise both are packed, one chunk of rows at a
/// time: `b` into strips (unless its rows are close), `a` into tiles `[k][tile rows]`. The inner loop then reads both
/// in order, whatever their row strides.
pub struct WeightProduct<T> {
    pub m: usize,
    pub n: usize,
    pub rows: usize,
    pub a: *const T,
    pub a_row: usize,
    pub b: *const T,
    pub b_row: usize,
    pub c: *mut T,
    pub c_row: usize,
    /// `m` values, or null.
    pub sums: *mut T,
    /// [`weight_scratch`] elements.
    pub scratch: *mut T,
}

/// Rows of the long dimension in a chunk: one strip and one tile of them fit the first cache level.
const WEIGHT_CHUNK: usize = 192;

/// Rows of the result in a tile where both operands are read in place, and the largest row stride for that.
const IN_PLACE_ROWS: usize = 16;
const IN_PLACE_STRIDE: usize = 64;

/// Scratch of a [`WeightProduct`].
pub fn weight_scratch<T: Real>(m: usize, n: usize) -> usize {
    packed_len::<T>(WEIGHT_CHUNK, n) + (m + TILE_ROWS_32_REGISTERS) * WEIGHT_CHUNK + 16
}

/// Adds to the elements at `c`.
struct Accumulate<T, const C: usize> {
    c: *mut T,
    c_row: usize,
    cols: [usize; C],
}

impl<T: Real, V: Vector<T>, const C: usize> Epilogue<T, V, C> for Accumulate<T, C> {
    #[inline(always)]
    unsafe fn start(&self, row: usize) -> [V; C] {
        // SAFETY: rows of the result; `cols` counts the valid lanes.
        unsafe {
            let mut start = [V::zero(); C];
            for (c, v) in start.iter_mut().enumerate() {
                *v = V::load_first(self.c.add(row * self.c_row + c * V::LANES), self.cols[c]);
            }
            start
        }
    }

    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, sums: [V; C]) {
        // SAFETY: rows of the result; `cols` counts the valid lanes.
        unsafe {
            for (c, v) in sums.into_iter().enumerate() {
                v.store_first(self.c.add(row * self.c_row + c * V::LANES), self.cols[c]);
            }
        }
    }
}

impl<T: Real> Kernel<T> for WeightProduct<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        debug_assert!(self.a.is_aligned() && self.b.is_aligned() && self.c.is_aligned() && self.scratch.is_aligned());
        debug_assert!(self.m <= 1 || self.c_row >= self.n, "rows of the result overlap");
        let width = 2 * V::LANES;
        let tile = if V::REGISTERS_32 { TILE_ROWS_32_REGISTERS } else { TILE_ROWS_16_REGISTERS };
        if V::REGISTERS_32
            && self.m.is_multiple_of(IN_PLACE_ROWS)
            && self.a_row <= IN_PLACE_STRIDE
            && self.n.is_multiple_of(V::LANES)
            && self.b_row <= IN_PLACE_STRIDE
        {
            // SAFETY: the contract of `Kernel::run`; all vectors of columns are full.
            return unsafe { self.in_place::<V>() };
        }
        let mut first = 0;
        while first < self.rows {
            let k = WEIGHT_CHUNK.min(self.rows - first);
            // SAFETY: the contract of `Kernel::run`: rows `first..first + k` of both operands, and `weight_scratch`
            // elements of scratch.
            unsafe {
                let tiles = self.scratch;
                let packed = tiles.add(((self.m + tile) * WEIGHT_CHUNK).next_multiple_of(16));
                let a = self.a.add(first * self.a_row);
                for t in (0..self.m).step_by(tile) {
                    self.pack_tile::<V>(a.add(t), k, tile.min(self.m - t), tile, tiles.add(t * k), t);
                }
                let b = self.b.add(first * self.b_row);
                for col in (0..self.n).step_by(width) {
                    let strip = packed.add(col * k);
                    if self.n - col > V::LANES {
                        self.strip::<V, 2>(b, k, col, tile, tiles, strip);
                    } else {
                        self.strip::<V, 1>(b, k, col, tile, tiles, strip);
                    }
                }
            }
            first += k;
        }
    }
}

impl<T: Real> WeightProduct<T> {
    /// Reads both operands in place.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; `m` is a multiple of [`IN_PLACE_ROWS`] and `n` of a vector's lanes.
    #[inline(always)]
    unsafe fn in_place<V: Vector<T>>(&self) {
        // SAFETY: the caller's contract: full vectors of columns, `m` a multiple of the tile's rows.
        unsafe {
            for first in (0..self.rows).step_by(WEIGHT_CHUNK) {
                let k = WEIGHT_CHUNK.min(self.rows - first);
                let (a, b) = (self.a.add(first * self.a_row), self.b.add(first * self.b_row));
                let mut col = 0;
                macro_rules! tiles {
                    ($rows:expr, $vectors:expr) => {
                        for t in (0..self.m).step_by($rows) {
                            let a = Strided { ptr: a.add(t), row: 1, col: self.a_row };
                            let (c, c_row) = (self.c.add(t * self.c_row + col), self.c_row);
                            let mut epilogue = Accumulate { c, c_row, cols: [V::LANES; $vectors] };
                            let mut sums = [[V::zero(); $vectors]; $rows];
                            for (r, sum) in sums.iter_mut().enumerate() {
                                *sum = epilogue.start(r);
                            }
                            multiply::<T, V, $rows, $vectors, false>(k, a, b.add(col), self.b_row, &mut sums);
                            for (r, sum) in sums.into_iter().enumerate() {
                                epilogue.finish(r, sum);
                            }
                        }
                    };
                }
                while col + 2 * V::LANES <= self.n {
                    tiles!(8, 2);
                    col += 2 * V::LANES;
                }
                if col < self.n {
                    tiles!(IN_PLACE_ROWS, 1);
                }
                if !self.sums.is_null() {
                    ColumnSums { rows: k, cols: self.m, x: a, x_row: self.a_row, sums: self.sums, weight: T::ONE }
                        .run::<V>();
                }
            }
        }
    }

    /// Packs `C` vectors of columns of `b` from `col` on, and multiplies them with all tiles of `a`.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; `k` rows at `b`, packed tiles of all rows of the result, and a strip at `strip`.
    #[inline(always)]
    unsafe fn strip<V: Vector<T>, const C: usize>(
        &self,
        b: *const T,
        k: usize,
        col: usize,
        tile: usize,
        tiles: *const T,
        strip: *mut T,
    ) {
        // SAFETY: the caller's contract; `close` means that a full strip can be read in place.
        unsafe {
            let mut cols = [0; C];
            for (c, n) in cols.iter_mut().enumerate() {
                *n = V::LANES.min(self.n - col - c * V::LANES);
            }
            let width = C * V::LANES;
            let close = self.n - col >= width && self.b_row <= 2 * width;
            let (rows, row) = if close { (b.add(col), self.b_row) } else { (strip.cast_const(), width) };
            if !close {
                for i in 0..k {
                    let src = b.add(i * self.b_row + col);
                    for (c, &n) in cols.iter().enumerate() {
                        V::load_first(src.add(c * V::LANES), n).store(strip.add((i * C + c) * V::LANES));
                    }
                }
            }
            for t in (0..self.m).step_by(tile) {
                let a = Strided { ptr: tiles.add(t * k), row: 1, col: tile };
                let mut epilogue = Accumulate { c: self.c.add(t * self.c_row + col), c_row: self.c_row, cols };
                multiply_rows::<T, V, C>(tile.min(self.m - t), k, a, rows, row, &mut epilogue);
            }
        }
    }

    /// Packs `rows` columns of `a` over `k` rows into `[k][tile]` and adds up the columns.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; `rows` columns of `k` rows at `a`, and `k × tile` elements at `out`.
    #[inline(always)]
    unsafe fn pack_tile<V: Vector<T>>(
        &self,
        a: *const T,
        k: usize,
        rows: usize,
        tile: usize,
        out: *mut T,
        first: usize,
    ) {
        // SAFETY: the caller's contract: `rows` columns of `k` rows of `a`, one packed tile.
        unsafe {
            for part in (0..rows).step_by(V::LANES) {
                let n = V::LANES.min(rows - part);
                // Four accumulators: a single one would serialise the additions.
                let mut sums = [V::zero(); 4];
                macro_rules! pack_row {
                    ($i:expr, $sum:expr) => {{
                        let v = V::load_first(a.add($i * self.a_row + part), n);
                        v.store_first(out.add($i * tile + part), n);
                        *$sum = v.add(*$sum);
                    }};
                }
                for i in (0..k / 4 * 4).step_by(4) {
                    for (r, sum) in sums.iter_mut().enumerate() {
                        pack_row!(i + r, sum);
                    }
                }
                for i in k / 4 * 4..k {
                    pack_row!(i, &mut sums[0]);
                }
                if !self.sums.is_null() {
                    let [a, b, c, d] = sums;
                    let out = self.sums.add(first + part);
                    a.add(b).add(c.add(d)).add(V::load_first(out, n)).store_first(out, n);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::gemm::tests::numbers;
    use super::*;

    #[test]
    fn weight_gradients_accumulate() {
        for (rows, m, n) in
            [(300, 13, 37), (500, 96, 64), (7, 1, 1), (200, 24, 33), (300, 16, 16), (191, 32, 48), (3, 16, 64)]
        {
            let (a, b) = (numbers(rows * m, 4), numbers(rows * n, 5));
            let mut c = vec![1.0f32; m * n];
            let mut sums = vec![2.0f32; m];
            let mut scratch = vec![0.0; weight_scratch::<f32>(m, n)];
            let kernel = WeightProduct {
                m,
                n,
                rows,
                a: a.as_ptr(),
                a_row: m,
                b: b.as_ptr(),
                b_row: n,
                c: c.as_mut_ptr(),
                c_row: n,
                sums: sums.as_mut_ptr(),
                scratch: scratch.as_mut_ptr(),
            };
            // SAFETY: `a` and `b` have `rows` rows; the scratch has its documented length.
            unsafe { f32::dispatch(kernel) };
            for i in 0..m {
                for j in 0..n {
                    let exact: f64 = (0..rows).map(|r| f64::from(a[r * m + i]) * f64::from(b[r * n + j])).sum();
                    assert!((f64::from(c[i * n + j]) - 1.0 - exact).abs() < 1e-4);
                }
                let exact: f64 = (0..rows).map(|r| f64::from(a[r * m + i])).sum();
                assert!((f64::from(sums[i]) - 2.0 - exact).abs() < 1e-4);
            }
        }
    }
}
