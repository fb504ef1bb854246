//! Vectorised exponentials of f64 numbers.

use std::f64::consts::LOG2_E;

use setwise_engine::simd;

/// Adding and subtracting this rounds a number to an integer: the last bit of numbers of this size is one.
const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 · 2⁵²
/// ln 2 as two numbers. The first has so few bits that its product with an exponent is exact.
const LN2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
/// Taylor coefficients 1/k!, from k = 13 down to 0.
const SERIES: [f64; 14] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// e^x for x ≤ 0, to a few units of the last place; arguments below −708 count as −708.
///
/// The function has no branches, so that loops over it are vectorised. With `FUSED` it uses FMA instructions.
#[inline(always)]
pub(super) fn exp<const FUSED: bool>(x: f64) -> f64 {
    let add = |a: f64, b: f64, c: f64| if FUSED { a.mul_add(b, c) } else { a * b + c };
    let x = if x < -708.0 { -708.0 } else { x };
    // x = n · ln 2 + r, with n in the last bits of the rounded number.
    let rounded = add(x, LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = add(n, -LN2[1], add(n, -LN2[0], x));
    let mut series = SERIES[0];
    for c in &SERIES[1..] {
        series = add(series, r, *c);
    }
    series * f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52)
}

/// Replaces all numbers by their [`exp`].
pub(super) fn exp_all(values: &mut [f64]) {
    match simd::isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` has found all instructions that this function enables.
        simd::Isa::Avx512 => unsafe { exp_avx512(values) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` has found all instructions that this function enables.
        simd::Isa::Avx2 => unsafe { exp_avx2(values) },
        _ => values.iter_mut().for_each(|x| *x = exp::<false>(*x)),
    }
}

/// # Safety
/// The machine has AVX-512 F, DQ and VL, and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,fma")]
unsafe fn exp_avx512(values: &mut [f64]) {
    values.iter_mut().for_each(|x| *x = exp::<true>(*x));
}

/// # Safety
/// The machine has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn exp_avx2(values: &mut [f64]) {
    values.iter_mut().for_each(|x| *x = exp::<true>(*x));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_agree_with_the_standard_library_to_rounding() {
        let x: Vec<f64> = (0..70_001).map(|i| -0.01 * f64::from(i)).collect();
        let mut y = x.clone();
        exp_all(&mut y);
        for (x, y) in x.iter().zip(&y) {
            assert!((y / x.exp() - 1.0).abs() < 1e-15 && (exp::<false>(*x) / x.exp() - 1.0).abs() < 1e-15, "{x}");
        }
        let mut far = [-1e300, f64::NEG_INFINITY, f64::NAN, 0.0];
        exp_all(&mut far);
        assert!(far[0] < 1e-300 && far[1] < 1e-300 && far[2].is_nan() && far[3] == 1.0, "{far:?}");
    }
}
