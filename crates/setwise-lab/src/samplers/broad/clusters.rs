//! Random mixtures and perturbations of them.

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Gamma};

use setwise::distributions::{Lkj, Mixture};
use setwise::random::Generator;

use super::Density;
use crate::samplers::{log_uniform, normal};

/// The parameters of a mixture.
#[derive(Clone, Debug)]
pub struct Clusters {
    dim: usize,
    weights: Vec<f64>,
    means: Vec<f64>,
    /// Lower Cholesky factors.
    factors: Vec<f64>,
    /// Degrees of freedom of Student's t; infinite for Gaussians.
    freedom: f64,
}

impl Density for Mixture {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        Mixture::sample(self, n, rng, rows);
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        Mixture::log_density(self, rows)
    }
}

impl Clusters {
    /// Draws one to eight clusters with random weights, spread, scales and correlations. A third have t tails.
    pub fn draw(dim: usize, rng: &mut impl Rng) -> Self {
        let count = if rng.random_bool(0.3) { 1 } else { rng.random_range(2..=8) };
        let shape = Gamma::new(log_uniform(0.5, 8.0, rng), 1.0).expect("a shape above zero");
        let weights = (0..count).map(|_| shape.sample(rng).max(1e-3)).collect();
        // Distances between centres per coordinate, in units of a cluster's scale.
        let spread = log_uniform(0.3, 4.0, rng) / (dim as f64).powf(0.5 * rng.random::<f64>());
        let means = (0..count * dim).map(|_| spread * normal(rng)).collect();
        let (axes, sizes) = (0.8 * rng.random::<f64>(), 0.7 * rng.random::<f64>());
        let concentration = log_uniform(0.7, 30.0, rng);
        let one_shape = rng.random_bool(0.4);
        let mut factors = vec![0.0; count * dim * dim];
        for k in 0..count {
            if k > 0 && one_shape {
                factors.copy_within(..dim * dim, k * dim * dim);
            } else {
                let factor = &mut factors[k * dim * dim..(k + 1) * dim * dim];
                Lkj::Correct.draw(dim, concentration, rng, factor);
                for row in factor.chunks_exact_mut(dim) {
                    let s = (axes * normal(rng)).exp();
                    row.iter_mut().for_each(|x| *x *= s);
                }
            }
            let s = (sizes * normal(rng)).exp();
            factors[k * dim * dim..(k + 1) * dim * dim].iter_mut().for_each(|x| *x *= s);
        }
        let freedom = if rng.random_bool(0.35) { log_uniform(2.2, 20.0, rng) } else { f64::INFINITY };
        Clusters { dim, weights, means, factors, freedom }
    }

    /// The first cluster alone, with the tails of a Gaussian.
    pub fn first(mut self) -> Self {
        self.weights.truncate(1);
        self.means.truncate(self.dim);
        self.factors.truncate(self.dim * self.dim);
        self.freedom = f64::INFINITY;
        self
    }

    /// The clusters with these degrees of freedom.
    pub fn with_freedom(mut self, freedom: f64) -> Self {
        self.freedom = freedom;
        self
    }

    /// The clusters with the tails of others, which change a little in half of the cases.
    pub fn with_freedom_near(self, other: &Clusters, rng: &mut impl Rng) -> Self {
        let factor = if rng.random_bool(0.5) { 1.0 } else { log_uniform(0.7, 1.5, rng) };
        self.with_freedom(other.freedom * factor)
    }

    /// Draws tails for which the divergence of `p` from these clusters is finite and measurable.
    pub fn with_tails_of(mut self, p: &Clusters, rng: &mut impl Rng) -> Self {
        self.freedom = match p.freedom.is_finite() {
            true => p.freedom * log_uniform(0.7, 1.6, rng),
            false if rng.random_bool(0.2) => log_uniform(2.2, 20.0, rng),
            false => f64::INFINITY,
        };
        self
    }

    /// Draws clusters near these.
    ///
    /// Strength s moves centres by about s scales in each coordinate, and perturbs scales, correlations, weights and
    /// tails likewise. Each kind of perturbation is random, as is whether it acts along one coordinate only.
    pub fn perturbed(&self, s: f64, rng: &mut impl Rng) -> Self {
        let mut c = self.clone();
        if s == 0.0 {
            return c;
        }
        let (d, count) = (self.dim, self.weights.len());
        let mut chosen: [bool; 4] = std::array::from_fn(|_| rng.random_bool(0.55));
        chosen[rng.random_range(0..4)] = true;
        let [centres, scales, shapes, weights] = chosen;
        // A perturbation of one coordinate is as strong as one of all coordinates.
        let along = rng.random_bool(0.35);
        let total = s * (d as f64).sqrt();
        let common: Vec<f64> = direction(d, s, total, along, rng);
        let together = rng.random_bool(0.5);
        for k in 0..count {
            let factor = &mut c.factors[k * d * d..(k + 1) * d * d];
            if centres {
                let shift = if together { common.clone() } else { direction(d, s, total, along, rng) };
                let mean = &mut c.means[k * d..(k + 1) * d];
                for (i, m) in mean.iter_mut().enumerate() {
                    *m += factor[i * d..i * d + i + 1].iter().zip(&shift).map(|(l, z)| l * z).sum::<f64>();
                }
            }
            if shapes {
                shear_factor(factor, d, s, rng);
            }
        }
        if scales {
            let each: Vec<f64> = match rng.random_bool(0.5) {
                true => vec![s * normal(rng); d],
                false => direction(d, s, total, along, rng),
            };
            for row in c.factors.chunks_exact_mut(d * d).flat_map(|f| f.chunks_exact_mut(d).zip(&each)) {
                let scale = (0.7 * row.1.clamp(-2.0, 2.0)).exp();
                row.0.iter_mut().for_each(|x| *x *= scale);
            }
        }
        if weights {
            c.weights.iter_mut().for_each(|w| *w *= (1.5 * total.min(2.0) * normal(rng)).exp());
        }
        if c.freedom.is_finite() {
            c.freedom = (c.freedom * (s.min(1.0) * normal(rng)).exp()).clamp(1.5, 100.0);
        } else if rng.random_bool(0.1) {
            c.freedom = 3.0 / s.min(2.0) + 2.0;
        }
        c
    }

    /// The distribution.
    pub fn mixture(&self) -> Mixture {
        let m = Mixture::new(self.dim, &self.weights, &self.means, &self.factors);
        if self.freedom.is_finite() { m.with_degrees_of_freedom(self.freedom) } else { m }
    }
}

/// Draws a normal vector of deviation `s` in each coordinate, or of deviation `total` in one coordinate.
fn direction(d: usize, s: f64, total: f64, along: bool, rng: &mut impl Rng) -> Vec<f64> {
    if !along {
        return (0..d).map(|_| s * normal(rng)).collect();
    }
    let mut v = vec![0.0; d];
    v[rng.random_range(0..d)] = total * normal(rng);
    v
}

/// L ← L·(I + 1.5·T) with T strictly lower triangular, which changes axes and correlations.
fn shear_factor(factor: &mut [f64], d: usize, s: f64, rng: &mut impl Rng) {
    let strength = s.min(1.0) / (d as f64).sqrt().max(1.0);
    let lower: Vec<f64> = (0..d * d).map(|_| strength * normal(rng)).collect();
    for i in 0..d {
        // Entry j of row i reads entries j..=i only, so the update runs in place from the left.
        for j in 0..i {
            let sum: f64 = (j + 1..=i).map(|k| factor[i * d + k] * lower[k * d + j]).sum();
            factor[i * d + j] += 1.5 * sum;
        }
    }
}
