//! Logarithms of counts and factorials.

use std::f64::consts::PI;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_factorials_beyond_the_table_continue_it() {
        let tables = LogTables::new(1000);
        let direct: f64 = (1..=1500).map(|k| f64::from(k).ln()).sum();
        assert!((tables.ln_factorial(1500) - direct).abs() < 1e-9);
        assert!((tables.ln_factorial(1000) - tables.ln_factorial(999) - 1000f64.ln()).abs() < 1e-9);
        assert_eq!((tables.k_ln_k(0), tables.k_ln_k(1), tables.ln_factorial(1)), (0.0, 0.0, 0.0));
        assert!((tables.k_ln_k(2000) - 2000.0 * 2000f64.ln()).abs() < 1e-9);
    }
}
