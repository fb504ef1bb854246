//! Vectors of eight f32 lanes (AVX2 with fused multiply-add).

use std::arch::x86_64::*;

use super::Vector;
use super::avx512::{EXP, EXP2, LN2_HIGH, LN2_LOW};

/// One 256-bit register.
#[derive(Clone, Copy)]
pub struct F32x8(__m256);

/// Lane masks of partial loads: eight ones, then eight zeros, read at an offset.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    // SAFETY: AVX2 and FMA exist; eight elements from `8 - n.min(8)` on lie in the table.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - n.min(8)).cast()) }
}

// All methods rely on the contract of [`Vector`]: AVX2 and FMA exist, and pointers are valid for the lanes named.
impl Vector<f32> for F32x8 {
    const LANES: usize = 8;
    const REGISTERS_32: bool = false;
    const TUNED: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe { F32x8(_mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: AVX2 and FMA exist; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { F32x8(_mm256_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: AVX2 and FMA exist; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { _mm256_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: AVX2 and FMA exist; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { F32x8(_mm256_maskload_ps(p, first(n))) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: AVX2 and FMA exist; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { _mm256_maskstore_ps(p, first(n), self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe { F32x8(_mm256_add_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe { F32x8(_mm256_sub_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe { F32x8(_mm256_mul_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe { F32x8(_mm256_div_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe { F32x8(_mm256_max_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe { F32x8(_mm256_sqrt_ps(self.0)) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe { F32x8(_mm256_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        // As in the 512-bit version. The power of two is built in the exponent bits, in two steps, so that the largest
        // results do not overflow.
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe {
            let x = _mm256_min_ps(_mm256_set1_ps(89.0), self.0);
            let x = _mm256_max_ps(_mm256_set1_ps(-120.0), x);
            let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(
                x,
                _mm256_set1_ps(std::f32::consts::LOG2_E),
            ));
            let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_HIGH), x);
            let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_LOW), r);
            let mut p = _mm256_set1_ps(EXP[0]);
            for c in &EXP[1..] {
                p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(*c));
            }
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let rest = _mm256_sub_epi32(n, half);
            let bias = _mm256_set1_epi32(127);
            let power = |k| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(k, bias)));
            let y = _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(rest));
            let normal = _mm256_cmp_ps::<_CMP_NLE_UQ>(x, _mm256_set1_ps(-87.4));
            F32x8(_mm256_and_ps(y, normal))
        }
    }
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe {
            let x = _mm256_min_ps(_mm256_set1_ps(127.9), self.0);
            let x = _mm256_max_ps(_mm256_set1_ps(-126.0), x);
            let n = _mm256_floor_ps(x);
            let r = _mm256_sub_ps(x, n);
            let mut p = _mm256_set1_ps(EXP2[0]);
            for c in &EXP2[1..] {
                p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(*c));
            }
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            F32x8(_mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))))
        }
    }
    #[inline(always)]
    unsafe fn mul_sub(self, b: Self, c: Self) -> Self {
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe { F32x8(_mm256_fmsub_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn where_positive(self, x: Self) -> Self {
        // SAFETY: AVX2 and FMA exist; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe {
            let positive = _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, _mm256_setzero_ps());
            F32x8(_mm256_and_ps(positive, x.0))
        }
    }
    #[inline(always)]
    unsafe fn splat_pair(p: *const f32) -> Self {
        // SAFETY: AVX2 and FMA exist; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { F32x8(_mm256_castpd_ps(_mm256_set1_pd(p.cast::<f64>().read_unaligned()))) }
    }
    #[inline(always)]
    unsafe fn interleave(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: AVX2 and FMA exist (contract of `Vector`).
        unsafe {
            let (low, high) = (_mm256_unpacklo_ps(a.0, b.0), _mm256_unpackhi_ps(a.0, b.0));
            [F32x8(_mm256_permute2f128_ps::<0x20>(low, high)), F32x8(_mm256_permute2f128_ps::<0x31>(low, high))]
        }
    }
    #[inline(always)]
    unsafe fn deinterleave(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: AVX2 and FMA exist; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe {
            let (x, y) = (_mm256_permute2f128_ps::<0x20>(a.0, b.0), _mm256_permute2f128_ps::<0x31>(a.0, b.0));
            let (even, odd) = (_mm256_shuffle_ps::<0b10_00_10_00>(x, y), _mm256_shuffle_ps::<0b11_01_11_01>(x, y));
            [F32x8(even), F32x8(odd)]
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut lanes = [0.0f32; 8];
        // SAFETY: AVX2 and FMA exist; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { self.store(lanes.as_mut_ptr()) };
        let [a, b, c, d, e, f, g, h] = lanes;
        ((a + e) + (b + f)) + ((c + g) + (d + h))
    }
}
