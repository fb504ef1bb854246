//! Special functions of counts and of the normal distribution.

use std::f64::consts::{PI, SQRT_2};

/// Tables of k·ln k and ln k!, computed directly beyond their end.
pub(super) struct LogTables {
    k_ln_k: Vec<f64>,
    ln_factorial: Vec<f64>,
}

impl LogTables {
    /// Largest tables: 8 MiB each.
    const MAX: usize = 1 << 20;

    /// Tables for counts up to `n`.
    pub fn new(n: u64) -> Self {
        let size = (n as usize).min(Self::MAX) + 1;
        let mut sum = 0.0;
        let ln_factorial = (0..size).map(|k| {
            sum += if k > 1 { (k as f64).ln() } else { 0.0 };
            sum
        });
        LogTables { ln_factorial: ln_factorial.collect(), k_ln_k: (0..size).map(|k| x_ln_x(k as f64)).collect() }
    }

    /// k·ln k, which is 0 at 0.
    pub fn k_ln_k(&self, k: u64) -> f64 {
        self.k_ln_k.get(k as usize).copied().unwrap_or_else(|| x_ln_x(k as f64))
    }

    /// ln k!
    pub fn ln_factorial(&self, k: u64) -> f64 {
        self.ln_factorial.get(k as usize).copied().unwrap_or_else(|| {
            let k = k as f64;
            (k + 0.5) * k.ln() - k + 0.5 * (2.0 * PI).ln() + 1.0 / (12.0 * k)
        })
    }
}

fn x_ln_x(x: f64) -> f64 {
    if x > 0.0 { x * x.ln() } else { 0.0 }
}

/// P(Z > z) of a standard normal variable.
pub(super) fn normal_tail(z: f64) -> f64 {
    if z < 0.0 { 1.0 - normal_tail(-z) } else { 0.5 * erfc(z / SQRT_2) }
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
    // erfc x = e^(−x²)/√π · 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + …))))
    let fraction = (1..=60).rev().fold(x, |tail, k| x + 0.5 * f64::from(k) / tail);
    (-x * x).exp() / (PI.sqrt() * fraction)
}

/// The z with P(Z < z) = p, by Newton's method on the tail.
pub(super) fn normal_quantile(p: f64) -> f64 {
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
pub(super) fn chi_squared_tail(x: f64, degrees: f64) -> f64 {
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
        }
        for p in [1e-12, 1e-4, 0.025, 0.3, 0.5, 0.7, 0.975, 0.999] {
            let z = normal_quantile(p);
            assert!((normal_tail(-z) / p - 1.0).abs() < 1e-9, "{p}: {z}");
        }
    }

    #[test]
    fn logs_of_factorials_beyond_the_table_continue_it() {
        let tables = LogTables::new(1000);
        let direct: f64 = (1..=1500).map(|k| f64::from(k).ln()).sum();
        assert!((tables.ln_factorial(1500) - direct).abs() < 1e-9);
        assert!((tables.ln_factorial(1000) - tables.ln_factorial(999) - 1000f64.ln()).abs() < 1e-9);
        assert_eq!((tables.k_ln_k(0), tables.k_ln_k(1), tables.ln_factorial(1)), (0.0, 0.0, 0.0));
        assert!((tables.k_ln_k(2000) - 2000.0 * 2000f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn tails_of_chi_squared_match_tables() {
        for (x, degrees, tail) in [(3.841, 1.0, 0.05), (18.307, 10.0, 0.05), (135.807, 100.0, 0.01)] {
            assert!((chi_squared_tail(x, degrees) / tail - 1.0).abs() < 0.08);
        }
    }
}
