//! The two number types the engine computes with: `f32` for work, `f64` for checking gradients.

use std::fmt::{Debug, Display};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use crate::simd::{self, Kernel};

/// A floating-point type the engine can be instantiated with.
///
/// Kernels are written once, over [`crate::simd::Vector`]; [`Real::dispatch`] runs them with the widest vectors this
/// machine has for the type.
pub trait Real:
    Copy
    + Debug
    + Display
    + Default
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
    + Sum
    + 'static
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The most negative finite value, the start of a running maximum.
    const LOWEST: Self;

    /// Rounds a double to this type.
    fn from_f64(x: f64) -> Self;
    /// Converts to a double.
    fn to_f64(self) -> f64;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Natural exponential.
    fn exp(self) -> Self;
    /// Two to the power of the number.
    fn exp2(self) -> Self;
    /// True unless NaN or infinite.
    fn is_finite(self) -> bool;

    /// Runs `kernel` with the widest vectors this machine has for the type.
    ///
    /// # Safety
    /// The caller fulfils the kernel's own contract, which its fields document: pointers are valid for the rows and
    /// columns named, and nothing else accesses what the kernel writes.
    unsafe fn dispatch<K: Kernel<Self>>(kernel: K) -> K::Out;

    /// Columns in one strip of a packed matrix: two vectors of this machine.
    fn packed_width() -> usize;

    /// The larger of the two; the first where they compare equal.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if other > self { other } else { self }
    }

    /// Converts a count or an index; exact up to 2²⁴ in single precision.
    #[inline(always)]
    fn from_usize(n: usize) -> Self {
        Self::from_f64(n as f64)
    }
}

macro_rules! real {
    ($t:ty, $dispatch:path, $width:path) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = <$t>::MIN;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            #[inline(always)]
            fn exp2(self) -> Self {
                <$t>::exp2(self)
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                <$t>::is_finite(self)
            }
            #[inline(always)]
            unsafe fn dispatch<K: Kernel<Self>>(kernel: K) -> K::Out {
                // SAFETY: the caller's contract is the same.
                unsafe { $dispatch(kernel) }
            }
            fn packed_width() -> usize {
                $width()
            }
        }
    };
}

real!(f32, simd::dispatch_f32, simd::packed_width_f32);
real!(f64, simd::dispatch_f64, simd::packed_width_f64);
