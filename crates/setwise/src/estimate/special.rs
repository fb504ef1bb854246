//! Special functions: digamma of neighbour counts, softplus of log odds.

/// ψ(x) for x > 0, to about fourteen digits.
pub fn digamma(mut x: f64) -> f64 {
    // The recurrence ψ(x) = ψ(x + 1) − 1/x raises the argument until the asymptotic series is exact to rounding.
    let mut recurrence = 0.0;
    while x < 10.0 {
        recurrence -= 1.0 / x;
        x += 1.0;
    }
    let s = 1.0 / (x * x);
    let series = s
        * (1.0 / 12.0
            - s * (1.0 / 120.0 - s * (1.0 / 252.0 - s * (1.0 / 240.0 - s * (1.0 / 132.0 - s * 691.0 / 32760.0)))));
    recurrence + x.ln() - 0.5 / x - series
}

/// log(1 + eˣ), which does not overflow. The logistic loss of a margin m is softplus(−m).
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_arguments_give_harmonic_numbers_minus_eulers_constant() {
        let mut harmonic = -0.577_215_664_901_532_9;
        for n in 1..2000 {
            assert!((digamma(f64::from(n)) - harmonic).abs() < 2e-14 * f64::max(1.0, harmonic), "{n}");
            harmonic += 1.0 / f64::from(n);
        }
        assert!((digamma(0.5) + 1.963_510_026_021_423_5).abs() < 1e-13);
    }

    #[test]
    fn softplus_is_finite_for_all_arguments() {
        assert!((softplus(0.0) - 2f64.ln()).abs() < 1e-15);
        assert_eq!((softplus(800.0), softplus(-800.0)), (800.0, 0.0));
    }
}
