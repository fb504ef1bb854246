//! Spherical shells in some of the dimensions, with Gaussian noise in the others.

use rand::RngExt;
use rand_distr::{ChiSquared, Distribution};

use setwise::distributions::ln_gamma;
use setwise::random::Generator;

use super::{DensityPair, in_either_order, unit_vector};
use crate::samplers::broad::Density;
use crate::samplers::{log_sphere_area, log_sum_exp, log_uniform, normal, normal_log_density};

/// A spherical distribution of the first `active` coordinates; the others are standard normal.
struct Shells {
    dim: usize,
    active: usize,
    radius: Radius,
}

#[derive(Clone)]
enum Radius {
    /// A mixture of log-normals: weights, locations and scales.
    LogNormals(Vec<[f64; 3]>),
    /// The norm of a normal vector with this deviation.
    Normal(f64),
}

impl Radius {
    fn sample(&self, active: usize, rng: &mut Generator) -> f64 {
        match self {
            Radius::Normal(scale) => {
                let chi = ChiSquared::new(active as f64).expect("degrees of freedom above zero");
                scale * chi.sample(rng).sqrt()
            }
            Radius::LogNormals(parts) => {
                let mut u: f64 = rng.random();
                let part = parts.iter().find(|[w, ..]| {
                    u -= w;
                    u < 0.0
                });
                let [_, location, scale] = part.unwrap_or(&parts[0]);
                (location + scale * normal(rng)).exp()
            }
        }
    }

    fn log_density(&self, r: f64, active: usize) -> f64 {
        match self {
            Radius::Normal(scale) => {
                let (k, z) = (active as f64, r / scale);
                (1.0 - 0.5 * k) * 2f64.ln() - ln_gamma(0.5 * k) + (k - 1.0) * z.ln() - 0.5 * z * z - scale.ln()
            }
            Radius::LogNormals(parts) => {
                let log = r.ln();
                let term = |[w, location, scale]: &[f64; 3]| {
                    w.ln()
                        - 0.5 * ((log - location) / scale).powi(2)
                        - scale.ln()
                        - 0.5 * std::f64::consts::TAU.ln()
                        - log
                };
                let terms: Vec<f64> = parts.iter().map(term).collect();
                log_sum_exp(&terms)
            }
        }
    }

    /// The same with every shell thicker by a factor.
    fn blurred(&self, factor: f64) -> Self {
        match self {
            Radius::LogNormals(parts) => {
                Radius::LogNormals(parts.iter().map(|&[w, location, scale]| [w, location, scale * factor]).collect())
            }
            normal => normal.clone(),
        }
    }
}

impl Density for Shells {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        for _ in 0..n {
            let r = self.radius.sample(self.active, rng);
            rows.extend(unit_vector(self.active, rng).into_iter().map(|x| r * x));
            rows.extend((self.active..self.dim).map(|_| normal(rng)));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let k = self.active as f64;
        let area = log_sphere_area(self.active);
        let density = |row: &[f64]| {
            let (inner, outer) = row.split_at(self.active);
            let r = inner.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-300);
            self.radius.log_density(r, self.active) - (k - 1.0) * r.ln() - area + normal_log_density(outer)
        };
        rows.chunks_exact(self.dim).map(density).collect()
    }
}

/// Draws shells against a Gaussian, against thicker shells, or against other shells.
pub fn pair(dim: usize, rng: &mut Generator) -> DensityPair {
    let active = rng.random_range(2..=dim);
    let radius = |rng: &mut Generator| {
        let count = rng.random_range(1..=3);
        let weights: Vec<f64> = (0..count).map(|_| rng.random_range(0.3..1.0)).collect();
        let total: f64 = weights.iter().sum();
        let thickness = log_uniform(0.02, 0.5, rng);
        let centre = 0.5 * (active as f64).ln();
        let part = |w: &f64| [w / total, centre + 0.4 * normal(rng), thickness * log_uniform(0.5, 2.0, rng)];
        Radius::LogNormals(weights.iter().map(part).collect())
    };
    let one = radius(rng);
    let other = match rng.random_range(0..4) {
        0 | 1 => Radius::Normal(log_uniform(0.7, 1.5, rng)),
        2 => one.blurred(log_uniform(1.1, 6.0, rng)),
        _ => radius(rng).blurred(2.0),
    };
    let shells = |radius: Radius| Shells { dim, active, radius };
    in_either_order(shells(one), shells(other), 0.7, rng)
}
