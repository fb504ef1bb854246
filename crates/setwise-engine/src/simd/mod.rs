//! The machine's vectors behind one trait, chosen at run time.
//!
//! A kernel is a struct that implements [`Kernel`]. Its `run` is generic over a [`Vector`] and always inlined, so each
//! entry point below compiles it with the instruction set of that entry point.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod columns;
mod portable;

use std::sync::OnceLock;

use crate::real::Real;
pub(crate) use columns::{MAX_LANES, columns, load_lanes, store_lanes};
use portable::Lanes;

/// Rows of a register tile where there are 32 vector registers.
pub const TILE_ROWS_32_REGISTERS: usize = 12;
/// Rows of a register tile where there are 16 vector registers.
pub const TILE_ROWS_16_REGISTERS: usize = 6;

/// A vector register of `T`.
///
/// # Safety
/// All methods are `unsafe`. The instructions must exist on this machine, which holds in every kernel that
/// [`Real::dispatch`] runs. Pointers are valid for the lanes named; they need no alignment beyond that of `T`.
#[allow(clippy::missing_safety_doc, missing_docs)]
pub trait Vector<T: Real>: Copy {
    /// Elements in a register.
    const LANES: usize;
    /// Whether there are 32 registers (tiles of twelve rows) or 16 (tiles of six).
    const REGISTERS_32: bool;
    /// Whether specialised variants of a kernel for common shapes pay for their code.
    const TUNED: bool;

    unsafe fn splat(x: T) -> Self;
    unsafe fn load(p: *const T) -> Self;
    unsafe fn store(self, p: *mut T);
    /// Loads the first `n` lanes; the others are zero, and their memory is not accessed.
    unsafe fn load_first(p: *const T, n: usize) -> Self;
    /// Stores the first `n` lanes.
    unsafe fn store_first(self, p: *mut T, n: usize);
    unsafe fn add(self, o: Self) -> Self;
    unsafe fn sub(self, o: Self) -> Self;
    unsafe fn mul(self, o: Self) -> Self;
    unsafe fn div(self, o: Self) -> Self;
    unsafe fn max(self, o: Self) -> Self;
    unsafe fn sqrt(self) -> Self;
    /// `self · b + c`, fused where the machine can.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// Natural exponential; relative error below 2e-7 in single precision, flushes to zero far below.
    unsafe fn exp(self) -> Self;
    /// Two to the power of `self`; relative error below 2e-7 in single precision, clamped to normal numbers.
    unsafe fn exp2(self) -> Self;
    /// The same with less precision, for numbers below 127: relative error below 3e-6 in single precision from −126
    /// on, close to zero below.
    #[inline(always)]
    unsafe fn exp2_coarse(self) -> Self {
        // SAFETY: the caller's contract.
        unsafe { self.exp2() }
    }
    /// `self · b − c`, fused where the machine can.
    unsafe fn mul_sub(self, b: Self, c: Self) -> Self;
    /// `x` in the lanes where `self > 0`, zero elsewhere.
    unsafe fn where_positive(self, x: Self) -> Self;
    /// The two numbers at `p`, alternating.
    unsafe fn splat_pair(p: *const T) -> Self;
    /// `[a₀, b₀, a₁, b₁, …]` in two vectors.
    unsafe fn interleave(a: Self, b: Self) -> [Self; 2];
    /// The inverse of `interleave`: even lanes, then odd lanes, of both.
    unsafe fn deinterleave(a: Self, b: Self) -> [Self; 2];
    /// Sum over lanes, in a fixed order.
    unsafe fn sum(self) -> T;

    /// The sums of `LANES` vectors, each in its lane and in the order of [`Vector::sum`].
    #[inline(always)]
    unsafe fn sum_each(rows: &[Self]) -> Self {
        let mut sums = [T::ZERO; 16];
        // SAFETY: the caller's contract; no vector has more than 16 lanes.
        unsafe {
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum = row.sum();
            }
            Self::load(sums.as_ptr())
        }
    }

    /// Transposes `LANES` rows of eight numbers, `row` apart, to eight rows of `LANES`, `out_row` apart, times
    /// `factor`.
    #[inline(always)]
    unsafe fn transpose_from_rows_of_8(src: *const T, row: usize, out: *mut T, out_row: usize, factor: T) {
        for c in 0..8 {
            for i in 0..Self::LANES {
                // SAFETY: the caller's contract: `LANES` rows of eight and eight rows of `LANES`.
                unsafe { *out.add(c * out_row + i) = *src.add(i * row + c) * factor };
            }
        }
    }

    /// The inverse: eight rows of `LANES` to `LANES` rows of eight.
    #[inline(always)]
    unsafe fn transpose_to_rows_of_8(src: *const T, src_row: usize, out: *mut T, row: usize) {
        for c in 0..8 {
            for i in 0..Self::LANES {
                // SAFETY: the caller's contract: `LANES` rows of eight and eight rows of `LANES`.
                unsafe { *out.add(i * row + c) = *src.add(c * src_row + i) };
            }
        }
    }

    /// Transposes four vectors as a 4 × 4 matrix of quarters; it is its own inverse.
    #[inline(always)]
    unsafe fn transpose_quarters(vectors: [Self; 4]) -> [Self; 4] {
        let quarter = Self::LANES / 4;
        let (mut from, mut to) = ([T::ZERO; 4 * 16], [T::ZERO; 4 * 16]);
        // SAFETY: the caller's contract; no vector has more than 16 lanes.
        unsafe {
            for (i, v) in vectors.into_iter().enumerate() {
                v.store(from.as_mut_ptr().add(i * Self::LANES));
            }
            for (i, x) in from.into_iter().enumerate().take(4 * Self::LANES) {
                let (vector, at) = (i / Self::LANES, i % Self::LANES);
                to[at / quarter * Self::LANES + vector * quarter + at % quarter] = x;
            }
            std::array::from_fn(|i| Self::load(to.as_ptr().add(i * Self::LANES)))
        }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::splat(T::ZERO) }
    }
}

/// A computation written over any vector type.
pub trait Kernel<T: Real> {
    /// The result of the kernel.
    type Out;
    /// Runs the kernel. Implementations are `#[inline(always)]`, so that they are compiled with the instructions of
    /// `V`.
    ///
    /// # Safety
    /// The machine has the instructions of `V`, which [`Real::dispatch`] makes sure of. The kernel's pointers are valid
    /// for the rows and columns its fields name, and nothing else accesses what it writes.
    unsafe fn run<V: Vector<T>>(self) -> Self::Out;
}

/// Instruction sets the engine has kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// 512-bit vectors.
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// Plain loops, as the compiler vectorises them.
    Portable,
}

/// The environment variable that selects a narrower instruction set: `avx512`, `avx2` or `portable`.
const CHOICE: &str = "SETWISE_ISA";

/// Reruns the tests of this executable whose names contain `only` with narrower vectors, since a process has one
/// instruction set. For a test to call.
///
/// # Panics
/// If one of them fails.
#[doc(hidden)]
pub fn test_with_narrower_vectors(only: &str) {
    test_again_with(CHOICE, &["avx2", "portable"], only);
}

/// Reruns the tests whose names contain `only` with each of these values of an environment variable, unless the
/// variable is set.
///
/// # Panics
/// If a test fails, or if no test has such a name.
#[doc(hidden)]
pub fn test_again_with(variable: &str, values: &[&str], only: &str) {
    if std::env::var_os(variable).is_some() {
        return;
    }
    let executable = std::env::current_exe().expect("a test has its executable");
    for value in values {
        let run = std::process::Command::new(&executable).env(variable, value).arg(only).output();
        let run = run.expect("the test executable runs again");
        let stdout = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{variable}={value}: {stdout}");
        assert!(!stdout.contains(" 0 passed"), "{variable}={value}: no test is named {only:?}");
    }
}

/// The instruction set in use: the widest this machine has, or a narrower one that the environment variable
/// `SETWISE_ISA` names (`avx512`, `avx2`, `portable`).
pub fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        let best = widest();
        match std::env::var(CHOICE).as_deref() {
            Ok("portable") => Isa::Portable,
            Ok("avx2") if best != Isa::Portable => Isa::Avx2,
            _ => best,
        }
    })
}

fn widest() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma")
        {
            return Isa::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Isa::Avx2;
        }
    }
    Isa::Portable
}

/// # Safety
/// As for [`Kernel::run`], with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn run_avx512<K: Kernel<f32>>(kernel: K) -> K::Out {
    // SAFETY: this function's contract is that of `run`.
    unsafe { kernel.run::<avx512::F32x16>() }
}

/// # Safety
/// As for [`Kernel::run`], with AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<K: Kernel<f32>>(kernel: K) -> K::Out {
    // SAFETY: this function's contract is that of `run`.
    unsafe { kernel.run::<avx2::F32x8>() }
}

/// Never inlined, so that a kernel that runs in several places is compiled once.
///
/// # Safety
/// As for [`Kernel::run`]; arrays need no special instructions.
#[inline(never)]
unsafe fn run_portable<T: Real, const N: usize, K: Kernel<T>>(kernel: K) -> K::Out {
    // SAFETY: this function's contract is that of `run`.
    unsafe { kernel.run::<Lanes<T, N>>() }
}

/// # Safety
/// As for [`Real::dispatch`].
#[inline(always)]
pub(crate) unsafe fn dispatch_f32<K: Kernel<f32>>(kernel: K) -> K::Out {
    // SAFETY: `isa` has found the instructions each entry point enables; the rest is the caller's contract.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => run_avx512(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => run_avx2(kernel),
            _ => run_portable::<f32, 4, K>(kernel),
        }
    }
}

/// # Safety
/// As for [`Real::dispatch`].
#[inline(always)]
pub(crate) unsafe fn dispatch_f64<K: Kernel<f64>>(kernel: K) -> K::Out {
    // SAFETY: the caller's contract is the same; arrays need no special instructions.
    unsafe { run_portable::<f64, 2, K>(kernel) }
}

pub(crate) fn packed_width_f32() -> usize {
    match isa() {
        Isa::Avx512 => 32,
        Isa::Avx2 => 16,
        Isa::Portable => 8,
    }
}

pub(crate) fn packed_width_f64() -> usize {
    4
}

#[cfg(test)]
mod tests {
    use super::*;

    struct ExpKernel<'a, T>(&'a [T], &'a mut [T]);
    impl<T: Real> Kernel<T> for ExpKernel<'_, T> {
        type Out = ();
        #[inline(always)]
        unsafe fn run<V: Vector<T>>(self) {
            for (x, y) in self.0.chunks(V::LANES).zip(self.1.chunks_mut(V::LANES)) {
                // SAFETY: the slices hold `x.len()` lanes.
                unsafe {
                    V::load_first(x.as_ptr(), x.len()).exp().store_first(y.as_mut_ptr(), x.len());
                }
            }
        }
    }

    #[test]
    fn vector_exponentials_agree_with_the_library_over_the_full_range() {
        let x: Vec<f32> = (0..198_500).map(|i| -90.0 + i as f32 * 0.0009).collect(); // to 88.65, just below overflow
        let mut y = vec![0.0; x.len()];
        // SAFETY: the kernel stays within its slices.
        unsafe { f32::dispatch(ExpKernel(&x, &mut y)) };
        for (&x, &y) in x.iter().zip(&y) {
            let exact = f64::from(x).exp();
            if exact < 1.2e-38 {
                assert!(y <= 1.3e-38, "exp({x}) = {y}");
            } else {
                assert!((f64::from(y) / exact - 1.0).abs() < 2.5e-7, "exp({x}) = {y}, not {exact}");
            }
        }
    }

    struct Exp2Kernel<'a, T, const COARSE: bool>(&'a [T], &'a mut [T]);
    impl<T: Real, const COARSE: bool> Kernel<T> for Exp2Kernel<'_, T, COARSE> {
        type Out = ();
        #[inline(always)]
        unsafe fn run<V: Vector<T>>(self) {
            for (x, y) in self.0.chunks(V::LANES).zip(self.1.chunks_mut(V::LANES)) {
                // SAFETY: the slices hold `x.len()` lanes.
                unsafe {
                    let v = V::load_first(x.as_ptr(), x.len());
                    let v = if COARSE { v.exp2_coarse() } else { v.exp2() };
                    v.store_first(y.as_mut_ptr(), x.len());
                }
            }
        }
    }

    #[test]
    fn vector_powers_of_two_agree_with_the_library_and_keep_nan() {
        let x: Vec<f32> = (0..125_500).map(|i| -125.0 + i as f32 * 0.001).chain([0.0, -1e30, f32::NAN]).collect();
        let mut y = vec![0.0; x.len()];
        // SAFETY: the kernel stays within its slices.
        unsafe { f32::dispatch(Exp2Kernel::<_, false>(&x, &mut y)) };
        let n = x.len();
        for (&x, &y) in x[..n - 2].iter().zip(&y) {
            assert!((f64::from(y) / f64::from(x).exp2() - 1.0).abs() < 2.5e-7, "2^{x} = {y}");
        }
        assert!(y[n - 2] < 1.2e-38 && y[n - 1].is_nan());
        let x: Vec<f32> = (0..125_500).map(|i| -125.9 + i as f32 * 0.002).chain([f32::NAN]).collect(); // to 125.1
        // SAFETY: the kernel stays within its slices.
        unsafe { f32::dispatch(Exp2Kernel::<_, true>(&x, &mut y)) };
        for (&x, &y) in x.iter().zip(&y) {
            let off = (f64::from(y) / f64::from(x).exp2() - 1.0).abs();
            assert!(if x.is_nan() { y.is_nan() } else { off < 3e-6 }, "2^{x} = {y}");
        }
    }

    struct Transposes<'a, T>(&'a [T], &'a mut [T], &'a mut [T]);
    impl<T: Real> Kernel<T> for Transposes<'_, T> {
        type Out = usize;
        #[inline(always)]
        unsafe fn run<V: Vector<T>>(self) -> usize {
            // SAFETY: the buffers hold 16 rows, as many as any vector has lanes.
            unsafe {
                V::transpose_from_rows_of_8(self.0.as_ptr(), 11, self.1.as_mut_ptr(), 20, T::ONE + T::ONE);
                V::transpose_to_rows_of_8(self.1.as_ptr(), 20, self.2.as_mut_ptr(), 9);
            }
            V::LANES
        }
    }

    #[test]
    fn transposes_invert_each_other() {
        let x: Vec<f32> = (0..16 * 11).map(|i| i as f32).collect();
        let (mut columns, mut rows) = (vec![0.0; 8 * 20], vec![0.0; 16 * 9]);
        // SAFETY: the kernel stays within its slices.
        let lanes = unsafe { f32::dispatch(Transposes(&x, &mut columns, &mut rows)) };
        for i in 0..lanes {
            for c in 0..8 {
                assert_eq!(columns[c * 20 + i], 2.0 * x[i * 11 + c]);
                assert_eq!(rows[i * 9 + c], 2.0 * x[i * 11 + c]);
            }
        }
    }

    struct Quarters<'a, T>(&'a [T], &'a mut [T]);
    impl<T: Real> Kernel<T> for Quarters<'_, T> {
        type Out = usize;
        #[inline(always)]
        unsafe fn run<V: Vector<T>>(self) -> usize {
            // SAFETY: the slices hold four vectors.
            unsafe {
                let mut vectors = [V::zero(); 4];
                for (i, v) in vectors.iter_mut().enumerate() {
                    *v = V::load(self.0.as_ptr().add(i * V::LANES));
                }
                for (i, v) in V::transpose_quarters(vectors).into_iter().enumerate() {
                    v.store(self.1.as_mut_ptr().add(i * V::LANES));
                }
            }
            V::LANES
        }
    }

    #[test]
    fn quarters_of_four_vectors_are_transposed() {
        let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let mut y = vec![0.0; 64];
        // SAFETY: the kernel stays within its slices.
        let lanes = unsafe { f32::dispatch(Quarters(&x, &mut y)) };
        let quarter = lanes / 4;
        for (vector, quarter_index, i) in
            (0..4).flat_map(|v| (0..4).flat_map(move |p| (0..quarter).map(move |i| (v, p, i))))
        {
            assert_eq!(
                y[quarter_index * lanes + vector * quarter + i],
                x[vector * lanes + quarter_index * quarter + i]
            );
        }
    }

    struct Sums<'a, T>(&'a [T], &'a mut [T], &'a mut [T]);
    impl<T: Real> Kernel<T> for Sums<'_, T> {
        type Out = usize;
        #[inline(always)]
        unsafe fn run<V: Vector<T>>(self) -> usize {
            // SAFETY: the slices hold `LANES` vectors, or `LANES` sums.
            unsafe {
                let mut rows = [V::zero(); 16];
                for (i, row) in rows.iter_mut().enumerate().take(V::LANES) {
                    *row = V::load(self.0.as_ptr().add(i * V::LANES));
                    self.1[i] = row.sum();
                }
                V::sum_each(&rows[..V::LANES]).store(self.2.as_mut_ptr());
            }
            V::LANES
        }
    }

    #[test]
    fn sum_each_has_the_bits_of_single_sums() {
        let x: Vec<f32> = (0..256).map(|i| (i * 7919 % 1009) as f32 / 31.0 - 11.0).collect();
        let (mut alone, mut together) = (vec![0.0; 16], vec![0.0; 16]);
        // SAFETY: the kernel stays within its slices.
        let lanes = unsafe { f32::dispatch(Sums(&x, &mut alone, &mut together)) };
        assert_eq!(alone[..lanes], together[..lanes]);
        assert!((alone[0] - x[..lanes].iter().sum::<f32>()).abs() < 1e-3);
    }

    struct Pairs<'a, T>(&'a [T], &'a mut [T]);
    impl<T: Real> Kernel<T> for Pairs<'_, T> {
        type Out = usize;
        #[inline(always)]
        unsafe fn run<V: Vector<T>>(self) -> usize {
            // SAFETY: the slices hold two vectors, or five.
            unsafe {
                let (x, y) = (self.0.as_ptr(), self.1.as_mut_ptr());
                let [a, b] = V::interleave(V::load(x), V::load(x.add(V::LANES)));
                let [c, d] = V::deinterleave(a, b);
                for (i, v) in [a, b, c, d, V::splat_pair(x)].into_iter().enumerate() {
                    v.store(y.add(i * V::LANES));
                }
            }
            V::LANES
        }
    }

    #[test]
    fn deinterleave_inverts_interleave() {
        let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
        let mut y = vec![-1.0; 80];
        // SAFETY: the kernel stays within its slices.
        let n = unsafe { f32::dispatch(Pairs(&x, &mut y)) };
        for i in 0..n {
            assert_eq!((y[2 * i], y[2 * i + 1]), (x[i], x[n + i]));
            assert_eq!((y[2 * n + i], y[3 * n + i]), (x[i], x[n + i]));
            assert_eq!(y[4 * n + i], x[i % 2]);
        }
    }

    #[test]
    fn far_negative_exponents_give_zero_and_not_nan() {
        let mut y = [1.0f32; 3];
        // SAFETY: the kernel stays within its slices.
        unsafe { f32::dispatch(ExpKernel(&[-1e30, -200.0, f32::MIN], &mut y)) };
        assert_eq!(y, [0.0; 3]);
    }
}
