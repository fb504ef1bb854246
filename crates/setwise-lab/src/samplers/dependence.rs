//! Paired samples of correlated Gaussians, labelled with their mutual information.

use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};

use setwise::distributions::IntRange;
use setwise::random::Generator;

use super::Sampler;

/// Paired rows (x, y) of standard Gaussians: corr(x_i, y_i) = ρ, all other pairs of coordinates are independent.
///
/// ρ is uniform in a range for each example. The label is I(X; Y) = −(d/2)·log(1 − ρ²).
#[derive(Clone, Debug, PartialEq)]
pub struct Dependence {
    /// Range of ρ, inside (−1, 1). Equal ends fix ρ.
    pub rho: [f64; 2],
}

impl Dependence {
    /// The mutual information of `dim` coordinates with correlation `rho`.
    ///
    /// ```
    /// let information = setwise_lab::samplers::Dependence::information(2, 0.5);
    /// assert!((information - (4.0f64 / 3.0).ln()).abs() < 1e-12);
    /// ```
    pub fn information(dim: usize, rho: f64) -> f64 {
        -0.5 * dim as f64 * (-rho * rho).ln_1p()
    }
}

impl Sampler for Dependence {
    fn sets(&self) -> usize {
        2
    }

    fn draw(&self, dim: usize, size: IntRange, rng: &mut Generator, rows: &mut [Vec<f64>]) -> f64 {
        let rho = self.rho[0] + (self.rho[1] - self.rho[0]) * rng.random::<f64>();
        let n = size.draw(rng);
        let rest = (1.0 - rho * rho).sqrt();
        let [x, y] = rows else { unreachable!("two sets") };
        for _ in 0..n * dim {
            let a: f64 = StandardNormal.sample(rng);
            let b: f64 = StandardNormal.sample(rng);
            x.push(a);
            y.push(rho * a + rest * b);
        }
        Self::information(dim, rho)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn paired_coordinates_have_correlation_rho_and_other_pairs_have_none() {
        let mut rows = vec![Vec::new(); 2];
        let label = Dependence { rho: [0.6, 0.6] }.draw(
            2,
            IntRange::new(100_000, 100_000),
            &mut Generator::seed_from_u64(2),
            &mut rows,
        );
        assert_eq!(label, Dependence::information(2, 0.6));
        let mean = |f: &dyn Fn(&[f64], &[f64]) -> f64| {
            rows[0].chunks_exact(2).zip(rows[1].chunks_exact(2)).map(|(x, y)| f(x, y)).sum::<f64>() / 1e5
        };
        assert!((mean(&|x, y| x[0] * y[0]) - 0.6).abs() < 0.02);
        assert!(mean(&|x, y| x[0] * y[1]).abs() < 0.02);
        assert!((mean(&|_, y| y[1] * y[1]) - 1.0).abs() < 0.02);
    }
}
