//! Vectors as arrays: the fallback for machines without the special instructions, and the `f64` instantiation.
//!
//! Arrays of 16 bytes become one register on every target (SSE2, NEON), and a tile of six rows and two vectors fits
//! sixteen registers. Arrays of 32 bytes need twice as many and compile more slowly.

use super::Vector;
use crate::real::Real;

/// `N` lanes in an array.
#[derive(Clone, Copy)]
pub struct Lanes<T, const N: usize>([T; N]);

impl<T: Real, const N: usize> Lanes<T, N> {
    #[inline(always)]
    fn zip(self, o: Self, f: impl Fn(T, T) -> T) -> Self {
        let mut out = self.0;
        for (a, b) in out.iter_mut().zip(o.0) {
            *a = f(*a, b);
        }
        Lanes(out)
    }
}

impl<T: Real, const N: usize> Vector<T> for Lanes<T, N> {
    const LANES: usize = N;
    const REGISTERS_32: bool = false;
    const TUNED: bool = false;

    #[inline(always)]
    unsafe fn splat(x: T) -> Self {
        Lanes([x; N])
    }
    #[inline(always)]
    unsafe fn load(p: *const T) -> Self {
        // SAFETY: the pointers are valid for the lanes named (contract of `Vector`).
        Lanes(unsafe { p.cast::<[T; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut T) {
        // SAFETY: the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { p.cast::<[T; N]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const T, n: usize) -> Self {
        let mut out = [T::ZERO; N];
        for (i, x) in out.iter_mut().enumerate().take(n) {
            // SAFETY: the pointers are valid for the lanes named (contract of `Vector`).
            *x = unsafe { *p.add(i) };
        }
        Lanes(out)
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut T, n: usize) {
        for (i, x) in self.0.iter().enumerate().take(n) {
            // SAFETY: the pointers are valid for the lanes named (contract of `Vector`).
            unsafe { *p.add(i) = *x };
        }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        self.zip(o, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        self.zip(o, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        self.zip(o, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        self.zip(o, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        self.zip(o, T::larger)
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        self.zip(self, |a, _| a.sqrt())
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        self.zip(b, |a, b| a * b).zip(c, |a, c| a + c)
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        self.zip(self, |a, _| a.exp())
    }
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        self.zip(self, |a, _| a.exp2())
    }
    #[inline(always)]
    unsafe fn mul_sub(self, b: Self, c: Self) -> Self {
        self.zip(b, |a, b| a * b).zip(c, |a, c| a - c)
    }
    #[inline(always)]
    unsafe fn where_positive(self, x: Self) -> Self {
        self.zip(x, |a, x| if a > T::ZERO { x } else { T::ZERO })
    }
    #[inline(always)]
    unsafe fn splat_pair(p: *const T) -> Self {
        let mut out = [T::ZERO; N];
        for (i, x) in out.iter_mut().enumerate() {
            // SAFETY: the pointers are valid for the lanes named (contract of `Vector`).
            *x = unsafe { *p.add(i % 2) };
        }
        Lanes(out)
    }
    #[inline(always)]
    unsafe fn interleave(a: Self, b: Self) -> [Self; 2] {
        let mut out = [[T::ZERO; N]; 2];
        for i in 0..N {
            out[2 * i / N][2 * i % N] = a.0[i];
            out[2 * i / N][2 * i % N + 1] = b.0[i];
        }
        out.map(Lanes)
    }
    #[inline(always)]
    unsafe fn deinterleave(a: Self, b: Self) -> [Self; 2] {
        let (mut even, mut odd) = ([T::ZERO; N], [T::ZERO; N]);
        for (i, (even, odd)) in even.iter_mut().zip(&mut odd).enumerate() {
            let from = if 2 * i < N { a } else { b };
            (*even, *odd) = (from.0[2 * i % N], from.0[2 * i % N + 1]);
        }
        [Lanes(even), Lanes(odd)]
    }
    #[inline(always)]
    unsafe fn sum(self) -> T {
        self.0.into_iter().sum()
    }
}
