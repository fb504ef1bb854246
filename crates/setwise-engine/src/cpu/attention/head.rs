//! The rows of one head: their layout, and how blocks of them are packed for kernels and written back.

use super::super::gemm::Strided;
use crate::real::Real;
use crate::simd::{Kernel, Vector, columns, load_lanes, store_lanes};

/// Eight numbers for each query of the largest block: two vectors of at most 16 lanes.
const EIGHTS: usize = 8 * 32;

/// Contiguous rows of one head, as kernels see them: element `(i, e)` is `ptr[i * row + e]`.
#[derive(Clone, Copy)]
pub struct Rows<T> {
    pub ptr: *mut T,
    pub row: usize,
    pub width: usize,
}

impl<T: Real> Rows<T> {
    /// The rows from index `row` on.
    ///
    /// # Safety
    /// There are at least `row` rows.
    #[inline(always)]
    pub unsafe fn from(self, row: usize) -> Self {
        // SAFETY: rows of one buffer, by the caller's contract.
        Rows { ptr: unsafe { self.ptr.add(row * self.row) }, ..self }
    }

    /// The rows as a matrix.
    #[inline(always)]
    pub fn matrix(self) -> Strided<T> {
        Strided { ptr: self.ptr, row: self.row, col: 1 }
    }

    /// The transposed matrix.
    #[inline(always)]
    pub fn transposed(self) -> Strided<T> {
        Strided { ptr: self.ptr, row: 1, col: self.row }
    }

    /// Packs the first `n` rows transposed into `[width][lanes]`, times `factor`; `lanes` is `C` vectors. Lanes beyond
    /// `n` hold finite numbers, whose results nobody reads.
    ///
    /// # Safety
    /// The caller runs in a kernel; `n` rows are valid, and so are `width` rows of `C` vectors at `out`.
    #[inline(always)]
    pub unsafe fn pack_transposed<V: Vector<T>, const C: usize>(self, n: usize, out: *mut T, factor: T) {
        let lanes = C * V::LANES;
        let mut rows = [T::ZERO; EIGHTS];
        // SAFETY: the caller's contract; `rows` holds eight numbers of each lane, at most 32.
        unsafe {
            let mut e = 0;
            while e + 8 <= self.width {
                let (mut src, mut row) = (self.ptr.add(e).cast_const(), self.row);
                if n < lanes {
                    for i in 0..n {
                        copy_eight(src.add(i * row), rows.as_mut_ptr().add(8 * i));
                    }
                    (src, row) = (rows.as_ptr(), 8);
                }
                for c in 0..C {
                    let out = out.add(e * lanes + c * V::LANES);
                    V::transpose_from_rows_of_8(src.add(c * V::LANES * row), row, out, lanes, factor);
                }
                e += 8;
            }
            for e in e..self.width {
                for i in 0..n {
                    *out.add(e * lanes + i) = *self.ptr.add(i * self.row + e) * factor;
                }
                for i in n..lanes {
                    *out.add(e * lanes + i) = T::ZERO;
                }
            }
        }
    }

    /// Writes a transposed block `[width][lanes]` to the first `n` rows; `lanes` is `C` vectors.
    ///
    /// # Safety
    /// The caller runs in a kernel; `width` rows of `C` vectors at `block` are valid, and so are `n` rows.
    #[inline(always)]
    pub unsafe fn unpack_transposed<V: Vector<T>, const C: usize>(self, n: usize, block: *const T) {
        let lanes = C * V::LANES;
        let mut rows = [T::ZERO; EIGHTS];
        // SAFETY: the caller's contract; `rows` holds eight numbers of each lane, at most 32.
        unsafe {
            let mut e = 0;
            while e + 8 <= self.width {
                let direct = n == lanes;
                let (dst, row) = if direct { (self.ptr.add(e), self.row) } else { (rows.as_mut_ptr(), 8) };
                for c in 0..C {
                    let src = block.add(e * lanes + c * V::LANES);
                    V::transpose_to_rows_of_8(src, lanes, dst.add(c * V::LANES * row), row);
                }
                if !direct {
                    for i in 0..n {
                        copy_eight(rows.as_ptr().add(8 * i), self.ptr.add(i * self.row + e));
                    }
                }
                e += 8;
            }
            for e in e..self.width {
                for i in 0..n {
                    *self.ptr.add(i * self.row + e) = *block.add(e * lanes + i);
                }
            }
        }
    }
}

/// # Safety
/// Both pointers are valid for eight elements.
#[inline(always)]
unsafe fn copy_eight<T: Real>(from: *const T, to: *mut T) {
    // SAFETY: the caller's contract.
    unsafe { to.cast::<[T; 8]>().write_unaligned(from.cast::<[T; 8]>().read_unaligned()) }
}

/// Rows of one head in chunks: element `(i, c · len + l)` is `ptr[i * row + c * chunk_stride + l]`.
#[derive(Clone, Copy)]
pub struct Head<T> {
    pub ptr: *mut T,
    pub row: usize,
    pub chunks: usize,
    pub chunk_stride: usize,
    pub chunk_len: usize,
}

impl<T: Real> Head<T> {
    /// Numbers in a row.
    pub fn width(&self) -> usize {
        self.chunks * self.chunk_len
    }
}

/// Rows of several heads. Heads in chunks share cache lines and are packed together, as `[head][padded][width]`;
/// others are used where they are.
#[derive(Clone, Copy)]
pub struct Heads<T> {
    /// The first head; the others follow it in each row.
    pub first: Head<T>,
    pub heads: usize,
    pub rows: usize,
    /// Rows of the packed buffer.
    pub padded: usize,
    /// The buffer chunks are packed to.
    pub packed: *mut T,
}

impl<T: Real> Heads<T> {
    /// Elements of the packed buffer.
    pub fn len(&self) -> usize {
        if self.first.chunks == 1 { 0 } else { self.heads * self.padded * self.first.width() }
    }

    /// The rows of one head.
    pub fn rows(&self, head: usize) -> Rows<T> {
        let width = self.first.width();
        if self.first.chunks == 1 {
            Rows { ptr: self.first.ptr.wrapping_add(head * width), row: self.first.row, width }
        } else {
            Rows { ptr: self.packed.wrapping_add(head * self.padded * width), row: width, width }
        }
    }

    /// Packs rows in chunks, with zeros behind them.
    ///
    /// # Safety
    /// The heads are valid for `rows` rows, and `packed` for [`Heads::len`] elements that nothing else accesses.
    pub unsafe fn pack(self) -> Self {
        if self.first.chunks > 1 {
            // SAFETY: the caller's contract.
            unsafe { T::dispatch(Packing::<T, false>(self)) };
        }
        self
    }

    /// Writes packed rows back to their chunks.
    ///
    /// # Safety
    /// As for [`Heads::pack`]; nothing else accesses the chunks.
    pub unsafe fn unpack(&self) {
        if self.first.chunks > 1 {
            // SAFETY: the caller's contract.
            unsafe { T::dispatch(Packing::<T, true>(*self)) };
        }
    }
}

/// Packs heads in chunks, or writes them back.
struct Packing<T, const BACK: bool>(Heads<T>);

impl<T: Real, const BACK: bool> Kernel<T> for Packing<T, BACK> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let Heads { first, heads, rows, padded, packed: buffer } = self.0;
        let width = first.width();
        // Four heads of four numbers fill a vector: one transpose moves four chunks.
        let vectorised = if V::LANES == 16 && heads == 4 && first.chunk_len == 4 { first.chunks / 4 * 4 } else { 0 };
        // SAFETY: the contract of `Kernel::run`: `chunks` chunks of `heads · chunk_len` numbers in each of `rows` rows,
        // and `heads · padded` rows of `width` at `buffer`, are valid. `rows ≤ padded`.
        unsafe {
            for i in 0..rows {
                for c in (0..vectorised).step_by(4) {
                    let mut vectors = [V::zero(); 4];
                    let chunk = |j: usize| first.ptr.add(i * first.row + (c + j) * first.chunk_stride);
                    let packed = |h: usize| buffer.add((h * padded + i) * width + 4 * c);
                    for (j, v) in vectors.iter_mut().enumerate() {
                        *v = V::load(if BACK { packed(j) } else { chunk(j) });
                    }
                    for (j, v) in V::transpose_quarters(vectors).into_iter().enumerate() {
                        v.store(if BACK { chunk(j) } else { packed(j) });
                    }
                }
                for h in 0..heads {
                    let chunks = first.ptr.add(i * first.row + h * first.chunk_len);
                    let packed = buffer.add((h * padded + i) * width);
                    if first.chunk_len == 4 {
                        // A chunk of known length needs no loop.
                        for c in vectorised..first.chunks {
                            let at =
                                [chunks.add(c * first.chunk_stride), packed.add(4 * c)].map(|p| p.cast::<[T; 4]>());
                            let [from, to] = if BACK { [at[1], at[0]] } else { at };
                            to.write_unaligned(from.read_unaligned());
                        }
                    } else {
                        for c in 0..first.chunks {
                            let at = [chunks.add(c * first.chunk_stride), packed.add(c * first.chunk_len)];
                            let [from, to] = if BACK { [at[1], at[0]] } else { at };
                            columns!(V, first.chunk_len, |j, n| store_lanes(
                                load_lanes::<T, V>(from.add(j), n),
                                to.add(j),
                                n
                            ));
                        }
                    }
                }
            }
            if !BACK {
                for h in 0..heads {
                    let rest = buffer.add((h * padded + rows) * width);
                    std::slice::from_raw_parts_mut(rest, (padded - rows) * width).fill(T::ZERO);
                }
            }
        }
    }
}
