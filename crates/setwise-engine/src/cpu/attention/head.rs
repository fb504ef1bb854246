//! One head's rows: where they lie, and how blocks of them are packed for the kernels and written back.

use super::super::gemm::Strided;
use super::super::norm::{get, put};
use crate::real::Real;
use crate::simd::{Kernel, Vector};

/// Eight numbers for each query of a block, whatever the machine's vectors.
const EIGHTS: usize = 8 * 32;

/// Rows of one head: element `(i, c · len + l)` is at `ptr[i * row + c * chunk_stride + l]`.
#[derive(Clone, Copy)]
pub struct Head<T> {
    pub ptr: *mut T,
    pub row: usize,
    pub chunks: usize,
    pub chunk_stride: usize,
    pub chunk_len: usize,
}

impl<T: Real> Head<T> {
    #[inline(always)]
    pub fn width(&self) -> usize {
        self.chunks * self.chunk_len
    }

    /// The rows from one on.
    pub fn rows_from(self, row: usize) -> Self {
        // SAFETY: callers name rows that there are.
        Head { ptr: unsafe { self.ptr.add(row * self.row) }, ..self }
    }

    /// Packs rows `first..first + n` transposed into `[width][lanes]`, times `factor`; `lanes` is `C` vectors. Lanes beyond `n` hold
    /// anything finite: nobody reads what becomes of them.
    #[inline(always)]
    pub unsafe fn pack_transposed<V: Vector<T>, const C: usize>(self, first: usize, n: usize, out: *mut T, factor: T) {
        let lanes = C * V::LANES;
        let width = self.width();
        let mut rows = [T::ZERO; EIGHTS];
        unsafe {
            let mut e = 0;
            while e + 8 <= width {
                let (src, row) = if self.chunk_len.is_multiple_of(8) && n == lanes {
                    (self.place(first, e).cast_const(), self.row)
                } else {
                    for i in 0..n {
                        self.copy_eight(first + i, e, rows.as_mut_ptr().add(8 * i), true);
                    }
                    (rows.as_ptr(), 8)
                };
                for c in 0..C {
                    let out = out.add(e * lanes + c * V::LANES);
                    V::columns_of_eight(src.add(c * V::LANES * row), row, out, lanes, factor);
                }
                e += 8;
            }
            for e in e..width {
                for i in 0..n {
                    *out.add(e * lanes + i) = *self.place(first + i, e) * factor;
                }
                for i in n..lanes {
                    *out.add(e * lanes + i) = T::ZERO;
                }
            }
        }
    }

    /// Address of number `e` of a row.
    #[inline(always)]
    unsafe fn place(self, row: usize, e: usize) -> *mut T {
        unsafe { self.ptr.add(row * self.row + e / self.chunk_len * self.chunk_stride + e % self.chunk_len) }
    }

    /// Copies numbers `e..e + 8` of a row out to `eight`, or in from there.
    #[inline(always)]
    unsafe fn copy_eight(self, row: usize, e: usize, eight: *mut T, out: bool) {
        unsafe {
            if self.chunk_len.is_multiple_of(8) {
                let at = self.place(row, e).cast::<[T; 8]>();
                let eight = eight.cast::<[T; 8]>();
                if out {
                    eight.write_unaligned(at.read_unaligned())
                } else {
                    at.write_unaligned(eight.read_unaligned())
                }
            } else if self.chunk_len.is_multiple_of(4) {
                for half in [0, 4] {
                    let at = self.place(row, e + half).cast::<[T; 4]>();
                    let eight = eight.add(half).cast::<[T; 4]>();
                    if out {
                        eight.write_unaligned(at.read_unaligned())
                    } else {
                        at.write_unaligned(eight.read_unaligned())
                    }
                }
            } else {
                for j in 0..8 {
                    let (at, eight) = (self.place(row, e + j), eight.add(j));
                    if out { *eight = *at } else { *at = *eight }
                }
            }
        }
    }

    /// Packs rows `first..first + n` one after another, `stride` apart, times `factor`, zero beyond the width.
    #[inline(always)]
    pub unsafe fn pack_rows<V: Vector<T>>(self, first: usize, n: usize, stride: usize, out: *mut T, factor: T) {
        unsafe {
            for i in 0..n {
                let dst = out.add(i * stride);
                for j in (self.width()..stride).step_by(V::LANES) {
                    V::zero().store_first(dst.add(j), V::LANES.min(stride - j));
                }
                for c in 0..self.chunks {
                    let src = self.ptr.add((first + i) * self.row + c * self.chunk_stride);
                    copy::<T, V>(src, dst.add(c * self.chunk_len), self.chunk_len, factor);
                }
            }
        }
    }

    /// The rows as a matrix: as they lie, or packed into `out` where they lie in chunks.
    #[inline(always)]
    pub unsafe fn matrix<V: Vector<T>>(self, n: usize, out: *mut T) -> Strided<T> {
        if self.chunks == 1 {
            return Strided { ptr: self.ptr, row: self.row, col: 1 };
        }
        unsafe { self.pack_rows::<V>(0, n, self.width(), out, T::ONE) };
        Strided { ptr: out, row: self.width(), col: 1 }
    }

    /// Writes `rows[i][..width]`, `stride` apart, to the head's place.
    #[inline(always)]
    pub unsafe fn unpack_rows<V: Vector<T>>(self, n: usize, stride: usize, rows: *const T) {
        unsafe {
            for i in 0..n {
                for c in 0..self.chunks {
                    let dst = self.ptr.add(i * self.row + c * self.chunk_stride);
                    copy::<T, V>(rows.add(i * stride + c * self.chunk_len), dst, self.chunk_len, T::ONE);
                }
            }
        }
    }

    /// Writes a transposed block `[width][lanes]` to rows `first..first + n`; `lanes` is `C` vectors.
    #[inline(always)]
    pub unsafe fn unpack_transposed<V: Vector<T>, const C: usize>(self, first: usize, n: usize, block: *const T) {
        let lanes = C * V::LANES;
        let width = self.width();
        let mut rows = [T::ZERO; EIGHTS];
        unsafe {
            let mut e = 0;
            while e + 8 <= width {
                let src = block.add(e * lanes);
                let direct = self.chunk_len.is_multiple_of(8) && n == lanes;
                let (dst, row) = if direct { (self.place(first, e), self.row) } else { (rows.as_mut_ptr(), 8) };
                for c in 0..C {
                    V::rows_of_eight(src.add(c * V::LANES), lanes, dst.add(c * V::LANES * row), row);
                }
                if !direct {
                    for i in 0..n {
                        self.copy_eight(first + i, e, rows.as_mut_ptr().add(8 * i), false);
                    }
                }
                e += 8;
            }
            for e in e..width {
                for i in 0..n {
                    *self.place(first + i, e) = *block.add(e * lanes + i);
                }
            }
        }
    }
}

/// Packs rows of all heads, whose numbers share cache lines, one head after another: `[head][padded][width]`, zero behind the rows.
pub struct PackHeads<T> {
    /// The first head; the others stand beside it.
    pub first: Head<T>,
    pub heads: usize,
    pub rows: usize,
    pub padded: usize,
    pub out: *mut T,
}

impl<T: Real> PackHeads<T> {
    /// Elements of the packed rows.
    pub fn len(&self) -> usize {
        self.heads * self.padded * self.first.width()
    }

    /// A head among the packed rows.
    pub fn packed(&self, head: usize) -> Head<T> {
        let width = self.first.width();
        // SAFETY: within the packed rows.
        let ptr = unsafe { self.out.add(head * self.padded * width) };
        Head { ptr, row: width, chunks: 1, chunk_stride: 0, chunk_len: width }
    }
}

impl<T: Real> Kernel<T> for &PackHeads<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let (from, width) = (self.first, self.first.width());
        unsafe {
            for i in 0..self.rows {
                for h in 0..self.heads {
                    let src = from.ptr.add(i * from.row + h * from.chunk_len);
                    let dst = self.out.add((h * self.padded + i) * width);
                    if from.chunk_len == 4 {
                        // The usual chunk: nothing to ask on the way.
                        let dst = dst.cast::<[T; 4]>();
                        for c in 0..from.chunks {
                            let four = src.add(c * from.chunk_stride).cast::<[T; 4]>();
                            dst.add(c).write_unaligned(four.read_unaligned());
                        }
                    } else {
                        for c in 0..from.chunks {
                            let (src, dst) = (src.add(c * from.chunk_stride), dst.add(c * from.chunk_len));
                            copy::<T, V>(src, dst, from.chunk_len, T::ONE);
                        }
                    }
                }
            }
            for h in 0..self.heads {
                let rest = self.out.add((h * self.padded + self.rows) * width);
                std::slice::from_raw_parts_mut(rest, (self.padded - self.rows) * width).fill(T::ZERO);
            }
        }
    }
}

#[inline(always)]
unsafe fn copy<T: Real, V: Vector<T>>(src: *const T, dst: *mut T, n: usize, factor: T) {
    unsafe {
        if n == 4 {
            // The usual chunk of dimension-equivariant heads.
            let four = src.cast::<[T; 4]>().read_unaligned();
            dst.cast::<[T; 4]>().write_unaligned(four.map(|x| x * factor));
            return;
        }
        let mut j = 0;
        while j < n {
            let lanes = (n - j).min(V::LANES);
            put(get::<T, V>(src.add(j), lanes).mul(V::splat(factor)), dst.add(j), lanes);
            j += V::LANES;
        }
    }
}
