//! Matrix products for tall, thin operands.
//!
//! Every product of the engine, except those of `amx`, is built from one register tile: `R` rows by `C` vectors of
//! columns, accumulated over `k`. The left operand is read element by element with any two strides, so it may be
//! transposed. The right operand is read as rows of vectors. Most products read it *packed*: columns are cut into
//! *strips* of two vectors, each stored `[k][strip]`, so that the inner loop reads memory in order. `WeightProduct`
//! reads operands with short rows in place.
//!
//! Cost of a full tile on AVX-512: 24 fused multiply-adds, 2 loads and 12 broadcasts for each `k`. Arithmetic is the
//! limit as long as the strip stays in the first two cache levels.
//!
//! A sum over `k` runs from first to last in one accumulator, whatever the tile. The bits of a product depend neither
//! on the number of threads nor on how rows are split into tasks.

use crate::real::Real;
use crate::simd::{TILE_ROWS_16_REGISTERS, TILE_ROWS_32_REGISTERS, Vector};

/// A matrix read element by element: `at(i, k) = *ptr.add(i * row + k * col)`.
#[derive(Clone, Copy)]
pub struct Strided<T> {
    pub ptr: *const T,
    pub row: usize,
    pub col: usize,
}

impl<T> Strided<T> {
    /// # Safety
    /// The matrix has at least `rows` rows.
    #[inline(always)]
    pub unsafe fn down(self, rows: usize) -> Self {
        // SAFETY: the caller's contract.
        Strided { ptr: unsafe { self.ptr.add(rows * self.row) }, ..self }
    }
}

/// Accumulates `R × C` vectors: `acc[r][c] += Σ_k a(r, k) · b[k][c]`, with row stride `b_row` of `b`. Where `PAIRED`,
/// `a(r, k)` is two numbers: one for even columns, one for odd.
///
/// # Safety
/// The caller runs in a kernel; `a` has `R` rows of `k` elements (pairs where `PAIRED`), `b` has `k` rows of `C`
/// vectors.
#[inline(always)]
pub unsafe fn tile<T: Real, V: Vector<T>, const R: usize, const C: usize, const PAIRED: bool>(
    k: usize,
    a: Strided<T>,
    b: *const T,
    b_row: usize,
    acc: &mut [[V; C]; R],
) {
    // SAFETY: the caller's contract: `a` has `R` rows of `k` elements, `b` has `k` rows of `C` vectors.
    unsafe {
        // One address for every three rows; scaled indexing reaches the other two. Advancing `k` then costs few
        // additions, and none depends on another.
        let mut bases = [a.ptr; R];
        for (g, base) in bases[..R.div_ceil(3)].iter_mut().enumerate() {
            *base = unrelated(a.ptr.wrapping_add(3 * g * a.row));
        }
        let mut bp = b;
        for _ in 0..k {
            let mut cols = [V::zero(); C];
            for (c, v) in cols.iter_mut().enumerate() {
                *v = V::load(bp.add(c * V::LANES));
            }
            for (r, row) in acc.iter_mut().enumerate() {
                let at = bases[r / 3].add((r % 3) * a.row);
                let x = if PAIRED { V::splat_pair(at) } else { V::splat(*at) };
                for (sum, v) in row.iter_mut().zip(cols) {
                    *sum = x.mul_add(v, *sum);
                }
            }
            for base in &mut bases[..R.div_ceil(3)] {
                *base = base.wrapping_add(a.col);
            }
            bp = bp.add(b_row);
        }
    }
}

/// The same address, with its origin hidden from the compiler. Otherwise the compiler derives all addresses of a tile
/// from one, in a serial dependency.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block)] // the address is passed through, not read
fn unrelated<T>(p: *const T) -> *const T {
    #[cfg(target_arch = "x86_64")]
    {
        let mut p = p;
        // SAFETY: no instruction at all.
        unsafe { std::arch::asm!("/* {0} */", inout(reg) p, options(pure, nomem, nostack, preserves_flags)) };
        p
    }
    #[cfg(not(target_arch = "x86_64"))]
    p
}

/// The prologue and epilogue of a product's rows: what a sum starts from, and what is done with it. This is a trait
/// and not a pair of closures, because only methods can be forced to inline into kernels.
pub trait Epilogue<T: Real, V: Vector<T>, const C: usize> {
    /// Whether finished rows are read by reference and not moved out of an array iterator. In kernels of several
    /// products the compiler copies such an iterator, with all sums, on the stack for each row. Elsewhere the iterator
    /// is a little faster.
    const BY_REFERENCE: bool = false;

    /// The vectors the sum of a row starts from.
    ///
    /// # Safety
    /// The caller runs in a kernel, and the product has this row.
    #[inline(always)]
    unsafe fn start(&self, _row: usize) -> [V; C] {
        // SAFETY: the caller runs in a kernel.
        unsafe { [V::zero(); C] }
    }

    /// Stores a finished row.
    ///
    /// # Safety
    /// As for [`Epilogue::start`].
    unsafe fn finish(&mut self, row: usize, sums: [V; C]);
}

/// Runs [`tile`] over `rows` rows, in the tallest tiles the registers allow.
///
/// # Safety
/// As for [`tile`], for `rows` rows; `epilogue` accepts each of them.
#[inline(always)]
pub unsafe fn multiply_rows<T: Real, V: Vector<T>, const C: usize>(
    rows: usize,
    k: usize,
    a: Strided<T>,
    b: *const T,
    b_row: usize,
    epilogue: &mut impl Epilogue<T, V, C>,
) {
    // SAFETY: the caller's contract.
    unsafe { multiply_rows_paired::<T, V, C, false, _>(rows, k, a, b, b_row, epilogue) }
}

/// The same; where `PAIRED`, with separate factors for even and odd columns.
///
/// # Safety
/// As for [`multiply_rows`].
#[inline(always)]
pub unsafe fn multiply_rows_paired<T: Real, V: Vector<T>, const C: usize, const PAIRED: bool, E: Epilogue<T, V, C>>(
    rows: usize,
    k: usize,
    a: Strided<T>,
    b: *const T,
    b_row: usize,
    epilogue: &mut E,
) {
    macro_rules! row_tiles {
        ($from:expr, $r:expr) => {{
            let mut i = $from;
            while rows - i >= $r {
                // SAFETY: the caller's contract; the rows `i..i + $r` lie below `rows`.
                unsafe {
                    let mut acc = [[V::zero(); C]; $r];
                    for (r, row) in acc.iter_mut().enumerate() {
                        *row = epilogue.start(i + r);
                    }
                    tile::<T, V, $r, C, PAIRED>(k, a.down(i), b, b_row, &mut acc);
                    if E::BY_REFERENCE {
                        for (r, row) in acc.iter().enumerate() {
                            epilogue.finish(i + r, *row);
                        }
                    } else {
                        for (r, row) in acc.into_iter().enumerate() {
                            epilogue.finish(i + r, row);
                        }
                    }
                }
                i += $r;
            }
            i
        }};
    }
    let mut done = 0;
    if V::REGISTERS_32 {
        done = row_tiles!(done, TILE_ROWS_32_REGISTERS);
        done = row_tiles!(done, 8);
        done = row_tiles!(done, 4);
    } else {
        done = row_tiles!(done, TILE_ROWS_16_REGISTERS);
        done = row_tiles!(done, 2);
    }
    row_tiles!(done, 1);
}

/// `1 / (1 + exp(−x))`; exp saturates, so large |x| give exactly 0 or 1.
///
/// # Safety
/// The caller runs in a kernel.
#[inline(always)]
pub unsafe fn sigmoid<T: Real, V: Vector<T>>(x: V) -> V {
    // SAFETY: the caller runs in a kernel.
    unsafe {
        let one = V::splat(T::ONE);
        let e = V::zero().sub(x).exp();
        one.div(one.add(e))
    }
}

#[cfg(test)]
pub mod tests {
    /// Pseudo-random numbers in [−½, ½).
    pub fn numbers(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((state >> 40) as f32 / 16_777_216.0) - 0.5
            })
            .collect()
    }
}
