//! Products with a packed right operand, and their epilogues.
//!
//! Columns are packed in *strips* of two vectors, each stored `[k][strip]`.

use super::gemm::{Epilogue, Strided, multiply_rows, sigmoid};
use crate::program::Activation;
use crate::real::Real;
use crate::simd::{Kernel, Vector, load_lanes, store_lanes};

/// Elements of a packed `k × n` matrix.
pub fn packed_len<T: Real>(k: usize, n: usize) -> usize {
    let width = T::packed_width();
    n.div_ceil(width) * width * k
}

/// Packs a `k × n` matrix whose element `(i, j)` is `src[i * k_stride + j * n_stride]`. Columns beyond `n` are zero.
///
/// # Safety
/// `src` is valid for the matrix, `dst` for [`packed_len`] elements.
pub unsafe fn pack_matrix<T: Real>(dst: *mut T, src: *const T, k_stride: usize, n_stride: usize, k: usize, n: usize) {
    let width = T::packed_width();
    for first in (0..n).step_by(width) {
        let cols = width.min(n - first);
        // SAFETY: the caller's contract: `cols` columns from `first` on of the source, one strip of `width` columns of
        // the result.
        unsafe {
            let out = dst.add(first * k);
            let src = src.add(first * n_stride);
            if n_stride == 1 {
                for i in 0..k {
                    let row = out.add(i * width);
                    std::ptr::copy_nonoverlapping(src.add(i * k_stride), row, cols);
                    std::slice::from_raw_parts_mut(row.add(cols), width - cols).fill(T::ZERO);
                }
            } else {
                // A transpose: eight source rows at a time, so that each cache line written is used fully.
                for j in (0..width).step_by(8) {
                    for i in 0..k {
                        for j in j..(j + 8).min(width) {
                            let inside = j < cols;
                            *out.add(i * width + j) =
                                if inside { *src.add(i * k_stride + j * n_stride) } else { T::ZERO };
                        }
                    }
                }
            }
        }
    }
}

/// `c[m × n] = act(a · packed + bias)`, or `c += …` where `accumulate`; then the residual and the gate.
///
/// `a` is `[m, k]` with any strides, `packed` a `k × n` matrix from [`pack_matrix`], `c` has row stride `c_row`.
#[derive(Clone, Copy)]
pub struct PackedProduct<T> {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: Strided<T>,
    pub packed: *const T,
    pub c: *mut T,
    pub c_row: usize,
    /// `n` values, or null.
    pub bias: *const T,
    pub accumulate: bool,
    pub activation: Activation,
    /// Added after the activation, with its row stride; null for none.
    pub residual: *const T,
    pub residual_row: usize,
    /// Results are zero where this is not positive (the backward step of a ReLU), with its row stride; null for none.
    pub gate: *const T,
    pub gate_row: usize,
}

impl<T> PackedProduct<T> {
    /// `c[m × n] = a · packed` of contiguous rows, without an epilogue; callers override fields.
    pub fn plain([m, k, n]: [usize; 3], a: *const T, packed: *const T, c: *mut T) -> Self {
        PackedProduct {
            m,
            k,
            n,
            a: Strided { ptr: a, row: k, col: 1 },
            packed,
            c,
            c_row: n,
            bias: std::ptr::null(),
            accumulate: false,
            activation: Activation::None,
            residual: std::ptr::null(),
            residual_row: 0,
            gate: std::ptr::null(),
            gate_row: 0,
        }
    }
}

/// The epilogue of `C` full vectors of columns of a [`PackedProduct`] without accumulation and gate. It is the usual
/// one of a forward pass and has no branches.
struct PlainEpilogue<T, V, const C: usize, const RELU: bool, const RESIDUAL: bool> {
    bias: [V; C],
    residual: *const T,
    residual_row: usize,
    c: *mut T,
    c_row: usize,
}

impl<T: Real, V: Vector<T>, const C: usize, const RELU: bool, const RESIDUAL: bool> Epilogue<T, V, C>
    for PlainEpilogue<T, V, C, RELU, RESIDUAL>
{
    #[inline(always)]
    unsafe fn start(&self, _row: usize) -> [V; C] {
        self.bias
    }

    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, sums: [V; C]) {
        for (c, mut sum) in sums.into_iter().enumerate() {
            // SAFETY: `PackedProduct::strip` constructs this for `C` full vectors of columns, and `multiply_rows`
            // passes rows below `m`. `RESIDUAL` is set only where `residual` is not null.
            unsafe {
                if RELU {
                    sum = sum.max(V::zero());
                }
                if RESIDUAL {
                    sum = sum.add(V::load(self.residual.add(row * self.residual_row + c * V::LANES)));
                }
                sum.store(self.c.add(row * self.c_row + c * V::LANES));
            }
        }
    }
}

/// The general epilogue of `C` vectors of columns of a [`PackedProduct`].
struct GeneralEpilogue<T, V, const C: usize> {
    bias: [V; C],
    activation: Activation,
    /// The old result and the residual, at the first column; null for none.
    add: [*const T; 2],
    add_row: [usize; 2],
    gate: *const T,
    gate_row: usize,
    c: *mut T,
    c_row: usize,
    /// Valid lanes of each vector.
    cols: [usize; C],
}

impl<T: Real, V: Vector<T>, const C: usize> Epilogue<T, V, C> for GeneralEpilogue<T, V, C> {
    #[inline(always)]
    unsafe fn start(&self, _row: usize) -> [V; C] {
        self.bias
    }

    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, mut sums: [V; C]) {
        // SAFETY: `multiply_rows` passes rows below `m`. `cols` counts the lanes of each vector that lie below `n`, and
        // only these are accessed. Pointers are tested for null.
        unsafe {
            for s in &mut sums {
                match self.activation {
                    Activation::None => {}
                    Activation::Relu => *s = s.max(V::zero()),
                    Activation::Sigmoid => *s = sigmoid::<T, V>(*s),
                }
            }
            for i in 0..2 {
                if !self.add[i].is_null() {
                    let p = self.add[i].add(row * self.add_row[i]);
                    for (c, s) in sums.iter_mut().enumerate() {
                        *s = s.add(load_lanes(p.add(c * V::LANES), self.cols[c]));
                    }
                }
            }
            if !self.gate.is_null() {
                let p = self.gate.add(row * self.gate_row);
                for (c, s) in sums.iter_mut().enumerate() {
                    *s = load_lanes::<T, V>(p.add(c * V::LANES), self.cols[c]).where_positive(*s);
                }
            }
            let out = self.c.add(row * self.c_row);
            for (c, s) in sums.into_iter().enumerate() {
                store_lanes(s, out.add(c * V::LANES), self.cols[c]);
            }
        }
    }
}

impl<T: Real> PackedProduct<T> {
    /// Columns `first..` of one strip: `C` vectors.
    ///
    /// # Safety
    /// The caller runs in a kernel; `first + (C − 1) · LANES < n`, and `strip` has `k` packed rows of two vectors.
    #[inline(always)]
    unsafe fn strip<V: Vector<T>, const C: usize>(&self, first: usize, strip: *const T) {
        // SAFETY: the caller's contract. `first + (C − 1) · LANES < n`, so `cols` does not underflow, and it bounds the
        // access to bias, operands and result. The strip has `k` rows of two vectors.
        unsafe {
            let mut cols = [0; C];
            let mut bias = [V::zero(); C];
            for c in 0..C {
                let at = first + c * V::LANES;
                cols[c] = V::LANES.min(self.n - at);
                if !self.bias.is_null() {
                    bias[c] = V::load_first(self.bias.add(at), cols[c]);
                }
            }
            let none = std::ptr::null();
            let at = |p: *const T| if p.is_null() { none } else { p.add(first) };
            let c = self.c.add(first);
            let full = first + C * V::LANES <= self.n;
            if full && !self.accumulate && self.gate.is_null() && self.activation != Activation::Sigmoid {
                let (residual, residual_row) = (at(self.residual), self.residual_row);
                macro_rules! plain {
                    ($relu:literal, $residual:literal) => {{
                        let c_row = self.c_row;
                        let mut epilogue =
                            PlainEpilogue::<T, V, C, $relu, $residual> { bias, residual, residual_row, c, c_row };
                        multiply_rows::<T, V, C>(self.m, self.k, self.a, strip, 2 * V::LANES, &mut epilogue);
                    }};
                }
                return match (self.activation == Activation::Relu, residual.is_null()) {
                    (false, true) => plain!(false, false),
                    (false, false) => plain!(false, true),
                    (true, true) => plain!(true, false),
                    (true, false) => plain!(true, true),
                };
            }
            let mut epilogue = GeneralEpilogue {
                bias,
                activation: self.activation,
                add: [if self.accumulate { c } else { none }, at(self.residual)],
                add_row: [self.c_row, self.residual_row],
                gate: at(self.gate),
                gate_row: self.gate_row,
                c,
                c_row: self.c_row,
                cols,
            };
            multiply_rows::<T, V, C>(self.m, self.k, self.a, strip, 2 * V::LANES, &mut epilogue);
        }
    }
}

impl<T: Real> Kernel<T> for PackedProduct<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        debug_assert!(self.a.ptr.is_aligned() && self.packed.is_aligned() && self.c.is_aligned());
        debug_assert!(self.m <= 1 || self.c_row >= self.n, "rows of the result overlap");
        debug_assert!(self.residual.is_null() || self.m <= 1 || self.residual_row >= self.n);
        debug_assert!(self.gate.is_null() || self.m <= 1 || self.gate_row >= self.n);
        let width = 2 * V::LANES;
        for first in (0..self.n).step_by(width) {
            // SAFETY: the contract of `Kernel::run`: strips of `2 * LANES` columns follow each other, `k` rows each.
            unsafe {
                let strip = self.packed.add(first * self.k);
                if self.n - first > V::LANES {
                    self.strip::<V, 2>(first, strip);
                } else {
                    self.strip::<V, 1>(first, strip);
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
    fn products_equal_the_textbook_sum_for_every_awkward_size() {
        for (m, k, n) in [(1, 1, 1), (3, 5, 7), (12, 8, 32), (25, 33, 31), (13, 16, 65), (50, 3, 100)] {
            let (a, b, bias) = (numbers(m * k, 1), numbers(n * k, 2), numbers(n, 3));
            let mut packed = vec![0.0; packed_len::<f32>(k, n)];
            let mut c = vec![f32::NAN; m * n];
            // SAFETY: `packed` has its documented length; `a`, `bias` and `c` have `m × k`, `n` and `m × n` elements.
            unsafe {
                // `b` is `[n, k]`: the weight of a linear layer.
                pack_matrix(packed.as_mut_ptr(), b.as_ptr(), 1, k, k, n);
                f32::dispatch(PackedProduct {
                    m,
                    k,
                    n,
                    a: Strided { ptr: a.as_ptr(), row: k, col: 1 },
                    packed: packed.as_ptr(),
                    c: c.as_mut_ptr(),
                    c_row: n,
                    bias: bias.as_ptr(),
                    accumulate: false,
                    activation: Activation::Relu,
                    residual: std::ptr::null(),
                    residual_row: 0,
                    gate: std::ptr::null(),
                    gate_row: 0,
                });
            }
            for i in 0..m {
                for j in 0..n {
                    let exact: f32 = (0..k).map(|l| a[i * k + l] * b[j * k + l]).sum::<f32>() + bias[j];
                    assert!((c[i * n + j] - exact.max(0.0)).abs() < 1e-5, "{m}×{k}×{n} at ({i}, {j})");
                }
            }
        }
    }
}
