//! Products with a long inner dimension and a small result: the gradients of weights.

use super::gemm::{Epilogue, Strided, multiply_rows, tile as multiply};
use super::packed_product::packed_len;
use super::sums::ColumnSums;
use crate::real::Real;
use crate::simd::{Kernel, TILE_ROWS_16_REGISTERS, TILE_ROWS_32_REGISTERS, Vector};

/// `c += aᵀ · b`, and the column sums of `a` are added to `bias_grad`. These are the gradients of a weight (`a` is dy,
/// `b` is x) and of its bias.
///
/// # Shapes
/// `a [rows, m]`, `b [rows, n]` and `c [m, n]`, row-major with row strides `a_row`, `b_row` and `c_row` in elements.
/// `c`, `bias_grad` and `scratch` are disjoint from each other and from both operands.
///
/// With 32 registers, `m` a multiple of [`IN_PLACE_ROWS`], full vectors of columns and both row strides at most
/// [`IN_PLACE_STRIDE`], both operands are read in place. Otherwise they are packed, one chunk of [`WEIGHT_CHUNK`] rows
/// at a time: `a` into tiles `[k][tile rows]`, `b` into strips `[k][strip]`. A full strip of a `b` whose row stride is
/// at most two strip widths is read in place.
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
    /// `m` elements, or null.
    pub bias_grad: *mut T,
    /// [`weight_scratch`] elements, with arbitrary contents.
    pub scratch: *mut T,
}

/// Rows of the long dimension in a chunk. One strip and one tile of a chunk take 33 KiB with AVX-512 in f32 (42 KiB in
/// f64) and half of that with AVX2. They fit an L1 cache of 48 KiB, and L2 otherwise.
const WEIGHT_CHUNK: usize = 192;

// Strips behind the tiles of a chunk begin at a multiple of 64 bytes.
const _: () = assert!(WEIGHT_CHUNK.is_multiple_of(16));

/// `m` is a multiple of this where both operands are read in place. Tiles are 8 rows × 2 vectors, and 16 × 1 for a last
/// single vector. Both have 16 accumulators, so 16 registers do not suffice.
const IN_PLACE_ROWS: usize = 16;

/// The largest row stride, in elements, at which both operands are read in place: a chunk of each then takes at most
/// 48 KiB in f32.
const IN_PLACE_STRIDE: usize = 64;

/// Elements of scratch of a [`WeightProduct`]: the packed tiles of `a` and strips of `b` of one chunk.
pub fn weight_scratch<T: Real>(m: usize, n: usize) -> usize {
    packed_len::<T>(WEIGHT_CHUNK, n) + (m + TILE_ROWS_32_REGISTERS) * WEIGHT_CHUNK
}

/// Adds to rows of the result: sums start from the elements at `c` and are stored there. Vector `v` of a row has
/// `cols[v]` valid lanes.
struct Accumulate<T, const C: usize> {
    c: *mut T,
    c_row: usize,
    cols: [usize; C],
}

impl<T: Real, V: Vector<T>, const C: usize> Epilogue<T, V, C> for Accumulate<T, C> {
    #[inline(always)]
    unsafe fn start(&self, row: usize) -> [V; C] {
        // SAFETY: `row` is a row of the tile at `c`, and `cols[v]` lanes of vector `v` lie within the `n` columns. Both
        // follow from how `multiply_strip` and `in_place` construct this. Nothing else accesses `c` (`Kernel::run`).
        unsafe {
            let mut start = [V::zero(); C];
            for (v, vector) in start.iter_mut().enumerate() {
                *vector = V::load_first(self.c.add(row * self.c_row + v * V::LANES), self.cols[v]);
            }
            start
        }
    }

    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, accumulators: [V; C]) {
        // SAFETY: as in `start`.
        unsafe {
            for (v, vector) in accumulators.into_iter().enumerate() {
                vector.store_first(self.c.add(row * self.c_row + v * V::LANES), self.cols[v]);
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
        let tile_rows = if V::REGISTERS_32 { TILE_ROWS_32_REGISTERS } else { TILE_ROWS_16_REGISTERS };
        if V::REGISTERS_32
            && self.m.is_multiple_of(IN_PLACE_ROWS)
            && self.a_row <= IN_PLACE_STRIDE
            && self.n.is_multiple_of(V::LANES)
            && self.b_row <= IN_PLACE_STRIDE
        {
            // SAFETY: the contract of `Kernel::run`; `m` is a multiple of `IN_PLACE_ROWS` and `n` of the lanes.
            return unsafe { self.in_place::<V>() };
        }
        let mut first = 0;
        while first < self.rows {
            let k = WEIGHT_CHUNK.min(self.rows - first);
            // SAFETY: the contract of `Kernel::run`; rows `first..first + k` of both operands exist. The tiles take at
            // most `m + tile_rows` columns of `k ≤ WEIGHT_CHUNK` rows, the strips `packed_len(k, n)` elements behind
            // them; `weight_scratch` counts both.
            unsafe {
                let tiles = self.scratch;
                let packed = tiles.add((self.m + tile_rows) * WEIGHT_CHUNK);
                let a = self.a.add(first * self.a_row);
                for t in (0..self.m).step_by(tile_rows) {
                    self.pack_tile::<V>(a.add(t), k, tile_rows.min(self.m - t), tile_rows, tiles.add(t * k), t);
                }
                let b = self.b.add(first * self.b_row);
                for col in (0..self.n).step_by(width) {
                    let strip = packed.add(col * k);
                    if self.n - col > V::LANES {
                        self.multiply_strip::<V, 2>(b, k, col, tile_rows, tiles, strip);
                    } else {
                        self.multiply_strip::<V, 1>(b, k, col, tile_rows, tiles, strip);
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
        // SAFETY: rows `first..first + k` of both operands exist. `m` is a multiple of 8 and 16, so all rows of a tile
        // exist; `col` plus a tile's vectors is at most `n`, so all lanes do. `bias_grad` has `m` elements.
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
                            let mut accumulators = [[V::zero(); $vectors]; $rows];
                            for (r, row) in accumulators.iter_mut().enumerate() {
                                *row = epilogue.start(r);
                            }
                            multiply::<T, V, $rows, $vectors, false>(k, a, b.add(col), self.b_row, &mut accumulators);
                            for (r, row) in accumulators.into_iter().enumerate() {
                                epilogue.finish(r, row);
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
                if !self.bias_grad.is_null() {
                    ColumnSums { rows: k, cols: self.m, x: a, x_row: self.a_row, sums: self.bias_grad, weight: T::ONE }
                        .run::<V>();
                }
            }
        }
    }

    /// Multiplies `C` vectors of columns of `b`, from `col` on, with all tiles of `a`. It packs them into `strip`
    /// first, unless they are read in place.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; `k` rows at `b` and `col + (C − 1) · LANES < n`. `tiles` has the packed tiles of all `m`
    /// columns of `a`, and `strip` holds `k · C` vectors.
    #[inline(always)]
    unsafe fn multiply_strip<V: Vector<T>, const C: usize>(
        &self,
        b: *const T,
        k: usize,
        col: usize,
        tile_rows: usize,
        tiles: *const T,
        strip: *mut T,
    ) {
        // SAFETY: vector `v` has `cols[v]` columns of `b`, and only these are read. Without packing, `n − col` is at
        // least the strip's width, so all lanes of `b` exist. Tile `t` has `tile_rows.min(m − t)` valid rows.
        unsafe {
            let mut cols = [0; C];
            for (v, lanes) in cols.iter_mut().enumerate() {
                *lanes = V::LANES.min(self.n - col - v * V::LANES);
            }
            let width = C * V::LANES;
            let in_place = self.n - col >= width && self.b_row <= 2 * width;
            let (b_strip, b_stride) = if in_place { (b.add(col), self.b_row) } else { (strip.cast_const(), width) };
            if !in_place {
                for i in 0..k {
                    let src = b.add(i * self.b_row + col);
                    for (v, &lanes) in cols.iter().enumerate() {
                        V::load_first(src.add(v * V::LANES), lanes).store(strip.add((i * C + v) * V::LANES));
                    }
                }
            }
            for t in (0..self.m).step_by(tile_rows) {
                let a = Strided { ptr: tiles.add(t * k), row: 1, col: tile_rows };
                let mut epilogue = Accumulate { c: self.c.add(t * self.c_row + col), c_row: self.c_row, cols };
                multiply_rows::<T, V, C>(tile_rows.min(self.m - t), k, a, b_strip, b_stride, &mut epilogue);
            }
        }
    }

    /// Packs `cols` columns of `a`, the first of which is column `first_column`, over `k` rows into `packed [k,
    /// tile_rows]`. It adds the column sums to `bias_grad[first_column..first_column + cols]`, unless that is null.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; `cols ≤ tile_rows` columns of `k` rows at `a`, `k × tile_rows` elements at `packed`, and
    /// `first_column + cols ≤ m`.
    #[inline(always)]
    unsafe fn pack_tile<V: Vector<T>>(
        &self,
        a: *const T,
        k: usize,
        cols: usize,
        tile_rows: usize,
        packed: *mut T,
        first_column: usize,
    ) {
        // SAFETY: rows `i < k` and columns `part..part + lanes` of at most `cols` are read and written. `bias_grad` has
        // `m ≥ first_column + cols` elements.
        unsafe {
            for part in (0..cols).step_by(V::LANES) {
                let lanes = V::LANES.min(cols - part);
                // Four accumulators: a single one would serialise the additions.
                let mut sums = [V::zero(); 4];
                macro_rules! pack_row {
                    ($i:expr, $sum:expr) => {{
                        let v = V::load_first(a.add($i * self.a_row + part), lanes);
                        v.store_first(packed.add($i * tile_rows + part), lanes);
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
                if !self.bias_grad.is_null() {
                    let [s0, s1, s2, s3] = sums;
                    let target = self.bias_grad.add(first_column + part);
                    s0.add(s1).add(s2.add(s3)).add(V::load_first(target, lanes)).store_first(target, lanes);
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
            let mut bias_grad = vec![2.0f32; m];
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
                bias_grad: bias_grad.as_mut_ptr(),
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
                assert!((f64::from(bias_grad[i]) - 2.0 - exact).abs() < 1e-4);
            }
        }
    }
}
