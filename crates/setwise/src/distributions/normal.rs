//! Tails and quantiles of the normal and the χ² distribution.

use std::f64::consts::{PI, SQRT_2};

/// P(Z > z) of a standard normal variable.
pub fn normal_tail(z: f64) -> f64 {
    if z < 0.0 { 1.0 - normal_tail(-z) } else { 0.5 * erfc(z / SQRT_2) }
}

/// ln P(Z > z) of a standard normal variable.
pub(crate) fn ln_normal_tail(z: f64) -> f64 {
    const FAR: f64 = 6.0;
    if z < FAR { normal_tail(z).ln() } else { -0.5 * z * z - (2.0 * PI.sqrt() * continued_fraction(z / SQRT_2)).ln() }
}

/// The complementary error function for x ≥ 0: a series for small x, a continued fraction for large x.
fn erfc(x: f64) -> f64 {
    if x < 2.0 {
        // erf x = 2/√π · e^(−x²) · Σ 2ᵏ x^(2k+1) / (1·3·…·(2k+1))
        let (mut term, mut sum, mut k) = (x, x, 0.0);
        while term > 1e-17 * sum {
            k += 1.0;
            term *= 2.0 * x * x / (2.0 * k + 1.0);
            sum += term;
        }
        return 1.0 - 2.0 / PI.sqrt() * (-x * x).exp() * sum;
    }
    // erfc x = e^(−x²)/√π · 1/(x + (1/2)/(x + …))
    (-x * x).exp() / (PI.sqrt() * continued_fraction(x))
}

/// x + (1/2)/(x + 1/(x + (3/2)/(x + …)))
fn continued_fraction(x: f64) -> f64 {
    (1..=60).rev().fold(x, |tail, k| x + 0.5 * f64::from(k) / tail)
}

/// The z with P(Z < z) = p, by Newton's method on the tail.
pub(crate) fn normal_quantile(p: f64) -> f64 {
    if p > 0.5 {
        return -normal_quantile(1.0 - p);
    }
    if p <= 0.0 {
        return f64::NEG_INFINITY;
    }
    // A start to the left of the solution: steps of a convex function then stay there.
    let mut z = -(-2.0 * p.ln()).sqrt();
    for _ in 0..60 {
        let tail = normal_tail(-z);
        let density = (-0.5 * z * z).exp() / (2.0 * PI).sqrt();
        // Newton's method for ln Φ converges fast from far out.
        let step = (tail / p).ln() * tail / density;
        z -= step;
        if step.abs() < 1e-12 {
            break;
        }
    }
    z
}

/// P(X > x) of a chi-squared variable, by the cube root approximation of Wilson and Hilferty.
pub(crate) fn chi_squared_tail(x: f64, degrees: f64) -> f64 {
    let variance = 2.0 / (9.0 * degrees);
    normal_tail(((x / degrees).cbrt() - 1.0 + variance) / variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_and_quantiles_of_the_normal_distribution_match_tables() {
        for (z, tail) in [
            (0.0, 0.5),
            (1.0, 0.158_655_253_931_457_05),
            (1.96, 0.024_997_895_148_220_43),
            (3.0, 1.349_898_031_630_094_6e-3),
            (6.0, 9.865_876_450_376_98e-10),
            (10.0, 7.619_853_024_160_527e-24),
        ] {
            assert!((normal_tail(z) / tail - 1.0).abs() < 1e-9, "{z}: {}", normal_tail(z));
            assert!((ln_normal_tail(z) - f64::ln(tail)).abs() < 1e-9, "{z}: {}", ln_normal_tail(z));
        }
        // −z²/2 − ln(z √2π) − ln(1 + 1/z² …)
        assert!((ln_normal_tail(100.0) + 5_005.524_208_694_205).abs() < 1e-6, "{}", ln_normal_tail(100.0));
        for p in [1e-12, 1e-4, 0.025, 0.3, 0.5, 0.7, 0.975, 0.999] {
            let z = normal_quantile(p);
            assert!((normal_tail(-z) / p - 1.0).abs() < 1e-9, "{p}: {z}");
        }
    }

    #[test]
    fn tails_of_chi_squared_match_tables() {
        for (x, degrees, tail) in [(3.841, 1.0, 0.05), (18.307, 10.0, 0.05), (135.807, 100.0, 0.01)] {
            assert!((chi_squared_tail(x, degrees) / tail - 1.0).abs() < 0.08);
        }
    }
}
