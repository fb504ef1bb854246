//! Statistics of different kinds on one scale: −ln of a smooth p-value.

use crate::distributions::normal::ln_normal_tail;

/// A shifted and scaled χ² distribution with the mean, variance and skewness of a statistic under permutations.
///
/// Quadratic statistics are sums of weighted χ² variables; three moments describe their upper tail well. The fit only
/// ranks statistics of different kinds: the level of the test does not depend on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calibration {
    mean: f64,
    deviation: f64,
    degrees: f64,
}

impl Calibration {
    /// Fits values under permutations.
    pub fn new(values: &[f64]) -> Self {
        /// Range of skewnesses: that of χ² with one degree of freedom, and of very many.
        const SKEWNESS: [f64; 2] = [0.1, 2.8];
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let moment = |k: i32| values.iter().map(|x| (x - mean).powi(k)).sum::<f64>() / n;
        let deviation = moment(2).sqrt();
        // Rounding errors of a constant are no spread.
        if deviation <= 1e-6 * mean.abs() {
            return Calibration { mean, deviation: 0.0, degrees: 1.0 };
        }
        let skewness = (moment(3) / deviation.powi(3)).clamp(SKEWNESS[0], SKEWNESS[1]);
        Calibration { mean, deviation, degrees: 8.0 / (skewness * skewness) }
    }

    /// −ln of the p-value of a statistic.
    pub fn evidence(self, value: f64) -> f64 {
        if self.deviation == 0.0 {
            return 0.0;
        }
        let nu = self.degrees;
        let chi_squared = (nu + (2.0 * nu).sqrt() * (value - self.mean) / self.deviation).max(1e-6 * nu);
        // The cube root of χ² is nearly normal (Wilson and Hilferty 1931).
        let variance = 2.0 / (9.0 * nu);
        -ln_normal_tail(((chi_squared / nu).cbrt() - 1.0 + variance) / variance.sqrt())
    }
}

/// The evidence of several statistics together: ln Σ exp(4·eᵢ) / 4, close to the largest, but larger where several
/// agree.
pub(super) fn fused(evidence: impl Iterator<Item = f64> + Clone) -> f64 {
    const SHARPNESS: f64 = 4.0;
    let largest = evidence.clone().fold(0.0, f64::max);
    largest + evidence.map(|e| (SHARPNESS * (e - largest)).exp()).sum::<f64>().ln() / SHARPNESS
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::distributions::normal::normal_quantile;
    use crate::random::Generator;

    #[test]
    fn the_evidence_of_chi_squared_variables_is_near_the_log_of_their_p_values() {
        let mut rng = Generator::seed_from_u64(3);
        for degrees in [1, 4, 30] {
            let mut draw = || (0..degrees).map(|_| normal_quantile(rng.random::<f64>()).powi(2)).sum::<f64>();
            let values: Vec<f64> = (0..20_000).map(|_| draw()).collect();
            let fit = Calibration::new(&values[..1000]);
            for level in [0.1, 0.01, 0.001] {
                let mut sorted = values.clone();
                sorted.sort_by(f64::total_cmp);
                let evidence = fit.evidence(sorted[((1.0 - level) * 20_000.0) as usize]);
                assert!((evidence / -f64::ln(level) - 1.0).abs() < 0.3, "{degrees} {level}: {evidence}");
            }
        }
    }

    #[test]
    fn constants_are_no_evidence() {
        let fit = Calibration::new(&[2.0; 50]);
        assert_eq!((fit.evidence(2.0), fit.evidence(3.0)), (0.0, 0.0));
    }

    #[test]
    fn fused_evidence_is_near_the_largest() {
        let one = fused([1.0, 9.0, 0.5].into_iter());
        assert!((one - 9.0).abs() < 1e-9);
        assert!((fused([9.0; 3].into_iter()) - 9.0 - 3f64.ln() / 4.0).abs() < 1e-9);
        assert!(fused([800.0, 900.0].into_iter()).is_finite());
    }
}
