//! Vectors of sixteen f32 lanes (AVX-512).

use std::arch::x86_64::*;

use super::Vector;

/// One 512-bit register.
#[derive(Clone, Copy)]
pub struct F32x16(pub __m512);

#[inline(always)]
fn first(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1u16 << n) - 1 }
}

// All methods rely on the contract of [`Vector`]: AVX-512 exists, and pointers are valid for the lanes named.
impl Vector<f32> for F32x16 {
    const LANES: usize = 16;
    const REGISTERS_32: bool = true;
    const TUNED: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { F32x16(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: AVX-512 exists; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { F32x16(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: AVX-512 exists; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self {
        // SAFETY: AVX-512 exists; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { F32x16(_mm512_maskz_loadu_ps(first(n), p)) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize) {
        // SAFETY: AVX-512 exists; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { _mm512_mask_storeu_ps(p, first(n), self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { F32x16(_mm512_add_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { F32x16(_mm512_sub_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { F32x16(_mm512_mul_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { F32x16(_mm512_div_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { F32x16(_mm512_max_ps(self.0, o.0)) }
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { F32x16(_mm512_sqrt_ps(self.0)) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { F32x16(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        // exp(x) = 2^n · exp(r) with n = round(x / ln 2). A two-term reduction gives r in [−ln 2 / 2, ln 2 / 2], and a
        // polynomial of degree six gives exp(r). NaN stays NaN.
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe {
            let x = _mm512_max_ps(_mm512_set1_ps(-120.0), self.0);
            let n = _mm512_roundscale_ps::<0>(_mm512_mul_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E)));
            let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN2_HIGH), x);
            let r = _mm512_fnmadd_ps(n, _mm512_set1_ps(LN2_LOW), r);
            let mut p = _mm512_set1_ps(EXP[0]);
            for c in &EXP[1..] {
                p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
            }
            let y = _mm512_scalef_ps(p, n);
            let normal = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(x, _mm512_set1_ps(-87.4));
            F32x16(_mm512_maskz_mov_ps(normal, y))
        }
    }
    #[inline(always)]
    unsafe fn exp2(self) -> Self {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { power(_mm512_max_ps(_mm512_set1_ps(-126.0), self.0), &EXP2) }
    }
    #[inline(always)]
    unsafe fn exp2_coarse(self) -> Self {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { power(self.0, &EXP2_COARSE) }
    }
    #[inline(always)]
    unsafe fn mul_sub(self, b: Self, c: Self) -> Self {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { F32x16(_mm512_fmsub_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn where_positive(self, x: Self) -> Self {
        // SAFETY: AVX-512 exists; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe {
            let positive = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, _mm512_setzero_ps());
            F32x16(_mm512_maskz_mov_ps(positive, x.0))
        }
    }
    #[inline(always)]
    unsafe fn splat_pair(p: *const f32) -> Self {
        // SAFETY: AVX-512 exists; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe { F32x16(_mm512_castpd_ps(_mm512_set1_pd(p.cast::<f64>().read_unaligned()))) }
    }
    #[inline(always)]
    unsafe fn interleave(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            [F32x16(_mm512_permutex2var_ps(a.0, low, b.0)), F32x16(_mm512_permutex2var_ps(a.0, high, b.0))]
        }
    }
    #[inline(always)]
    unsafe fn deinterleave(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            [F32x16(_mm512_permutex2var_ps(a.0, even, b.0)), F32x16(_mm512_permutex2var_ps(a.0, odd, b.0))]
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn sum_each(rows: &[Self]) -> Self {
        // Halves, quarters, pairs and single lanes are added in the order of `sum`, two vectors in one each time. The
        // order of rows puts every sum in its lane.
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe {
            let mut eight = [_mm512_setzero_ps(); 8];
            for (k, e) in eight.iter_mut().enumerate() {
                // Vector k holds rows a and a + 8, and their halves.
                let a = [0, 4, 1, 5, 2, 6, 3, 7][k];
                let (x, y) = (rows[a].0, rows[a + 8].0);
                *e = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(x, y), _mm512_shuffle_f32x4::<0xee>(x, y));
            }
            let mut four = [_mm512_setzero_ps(); 4];
            for (k, f) in four.iter_mut().enumerate() {
                // Rows a, a + 8, a + 4, a + 12, a quarter each.
                let (x, y) = (eight[2 * k], eight[2 * k + 1]);
                *f = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(x, y), _mm512_shuffle_f32x4::<0xdd>(x, y));
            }
            let mut two = [_mm512_setzero_ps(); 2];
            for (k, t) in two.iter_mut().enumerate() {
                let (x, y) = (four[2 * k], four[2 * k + 1]);
                *t = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(x, y), _mm512_shuffle_ps::<0xee>(x, y));
            }
            let [x, y] = two;
            let sums = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(x, y), _mm512_shuffle_ps::<0xdd>(x, y));
            // Quarters of the vector are rows 0.., 8.., 4.. and 12..
            F32x16(_mm512_shuffle_f32x4::<0b11_01_10_00>(sums, sums))
        }
    }
    #[inline(always)]
    unsafe fn transpose_quarters([a, b, c, d]: [Self; 4]) -> [Self; 4] {
        // SAFETY: AVX-512 exists (contract of `Vector`).
        unsafe {
            let (ab, cd) = (_mm512_shuffle_f32x4::<0x44>(a.0, b.0), _mm512_shuffle_f32x4::<0x44>(c.0, d.0));
            let (late_ab, late_cd) = (_mm512_shuffle_f32x4::<0xee>(a.0, b.0), _mm512_shuffle_f32x4::<0xee>(c.0, d.0));
            [
                F32x16(_mm512_shuffle_f32x4::<0x88>(ab, cd)),
                F32x16(_mm512_shuffle_f32x4::<0xdd>(ab, cd)),
                F32x16(_mm512_shuffle_f32x4::<0x88>(late_ab, late_cd)),
                F32x16(_mm512_shuffle_f32x4::<0xdd>(late_ab, late_cd)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn transpose_from_rows_of_8(src: *const f32, row: usize, out: *mut f32, out_row: usize, factor: f32) {
        // SAFETY: AVX-512 exists; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe {
            let mut z = [_mm512_setzero_ps(); 8];
            for (r, z) in z.iter_mut().enumerate() {
                let low = _mm512_castps256_ps512(_mm256_loadu_ps(src.add(r * row)));
                *z = _mm512_insertf32x8::<1>(low, _mm256_loadu_ps(src.add((r + 8) * row)));
            }
            for (c, z) in transpose_halves(z).into_iter().enumerate() {
                _mm512_storeu_ps(out.add(c * out_row), _mm512_mul_ps(z, _mm512_set1_ps(factor)));
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose_to_rows_of_8(src: *const f32, src_row: usize, out: *mut f32, row: usize) {
        // SAFETY: AVX-512 exists; the pointers are valid for the lanes named (contract of `Vector`).
        unsafe {
            let mut z = [_mm512_setzero_ps(); 8];
            for (c, z) in z.iter_mut().enumerate() {
                *z = _mm512_loadu_ps(src.add(c * src_row));
            }
            for (r, z) in transpose_halves(z).into_iter().enumerate() {
                _mm256_storeu_ps(out.add(r * row), _mm512_castps512_ps256(z));
                _mm256_storeu_ps(out.add((r + 8) * row), _mm512_extractf32x8_ps::<1>(z));
            }
        }
    }
}

/// Transposes the 8 × 8 numbers in the low halves of the registers, and those in the high halves.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
pub(crate) unsafe fn transpose_halves(z: [__m512; 8]) -> [__m512; 8] {
    // SAFETY: AVX-512 exists (contract of `Vector`).
    unsafe {
        let mut pairs = [_mm512_setzero_ps(); 8];
        for i in 0..4 {
            pairs[2 * i] = _mm512_unpacklo_ps(z[2 * i], z[2 * i + 1]);
            pairs[2 * i + 1] = _mm512_unpackhi_ps(z[2 * i], z[2 * i + 1]);
        }
        // fours[4 g + j]: column j (and 4 + j in the upper 128 bits of each half) of rows 4 g .. 4 g + 3.
        let mut fours = [_mm512_setzero_ps(); 8];
        for g in 0..2 {
            for h in 0..2 {
                let (a, b) = (pairs[4 * g + h], pairs[4 * g + 2 + h]);
                fours[4 * g + 2 * h] = _mm512_shuffle_ps::<0b01_00_01_00>(a, b);
                fours[4 * g + 2 * h + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(a, b);
            }
        }
        let low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
        let high = _mm512_setr_epi32(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
        let mut out = [_mm512_setzero_ps(); 8];
        for j in 0..4 {
            out[j] = _mm512_permutex2var_ps(fours[j], low, fours[4 + j]);
            out[4 + j] = _mm512_permutex2var_ps(fours[j], high, fours[4 + j]);
        }
        out
    }
}

/// 2^x = 2^floor(x) · 2^r with r in [0, 1). One instruction gives r, a polynomial 2^r, and another instruction scales
/// by 2^floor(x).
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn power(x: __m512, polynomial: &[f32]) -> F32x16 {
    // SAFETY: AVX-512 exists (contract of `Vector`).
    unsafe {
        let r = _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x);
        let mut p = _mm512_set1_ps(polynomial[0]);
        for c in &polynomial[1..] {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
        }
        F32x16(_mm512_scalef_ps(p, x))
    }
}

/// The leading bits of ln 2, short enough that `n · LN2_HIGH` is exact.
pub(super) const LN2_HIGH: f32 = 0.693_359_4;
/// ln 2 − [`LN2_HIGH`].
pub(super) const LN2_LOW: f32 = -2.121_944_4e-4;
/// Minimax coefficients of exp on [−ln 2 / 2, ln 2 / 2], highest power first (relative error 2e-9).
pub(super) const EXP: [f32; 7] = [0.001_383_679_5, 0.008_374_857, 0.041_668_23, 0.166_664_2, 0.499_999_9, 1.0, 1.0];
/// Minimax coefficients of 2^r on [0, 1), highest power first (relative error 8e-8).
pub(super) const EXP2: [f32; 6] =
    [0.001_877_576_7, 0.008_989_341, 0.055_826_318, 0.240_153_61, 0.693_153_1, 0.999_999_94];
/// The same with one power less (relative error 2.6e-6).
const EXP2_COARSE: [f32; 5] = [0.013_534_168, 0.052_011_46, 0.241_442_76, 0.693_003_83, 1.000_002_6];
