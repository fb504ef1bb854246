//! Noisy graphs of rough functions: one coordinate depends on the others.

use rand::RngExt;

use setwise::random::Generator;

use super::{DensityPair, in_either_order, unit_vector};
use crate::samplers::broad::Density;
use crate::samplers::{log_uniform, normal, normal_log_density};

/// Standard normal coordinates, the last of which is f(others) plus noise with deviation σ(others).
#[derive(Clone)]
struct Graph {
    dim: usize,
    /// Amplitude, frequency vector and phase of each term of f.
    terms: Vec<(f64, Vec<f64>, f64)>,
    noise: f64,
    /// How strongly the noise varies with the first coordinate.
    uneven: f64,
}

impl Graph {
    fn centre(&self, inputs: &[f64]) -> f64 {
        let term = |(a, w, phase): &(f64, Vec<f64>, f64)| {
            a * (inputs.iter().zip(w).map(|(x, w)| x * w).sum::<f64>() + phase).sin()
        };
        self.terms.iter().map(term).sum()
    }

    fn noise(&self, inputs: &[f64]) -> f64 {
        self.noise * (self.uneven * inputs[0].sin()).exp()
    }
}

impl Density for Graph {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        for _ in 0..n {
            let inputs: Vec<f64> = (1..self.dim).map(|_| normal(rng)).collect();
            let last = self.centre(&inputs) + self.noise(&inputs) * normal(rng);
            rows.extend(inputs);
            rows.push(last);
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let density = |row: &[f64]| {
            let (last, inputs) = row.split_last().expect("two columns or more");
            let noise = self.noise(inputs);
            let z = (last - self.centre(inputs)) / noise;
            normal_log_density(inputs) + normal_log_density(&[z]) - noise.ln()
        };
        rows.chunks_exact(self.dim).map(density).collect()
    }
}

/// Draws a graph against pure noise, a noisier graph, or a moved graph.
pub fn pair(dim: usize, rng: &mut Generator) -> DensityPair {
    let inputs = dim - 1;
    let count = rng.random_range(1..=3);
    // Rougher graphs are not visible in any sample.
    let rough = log_uniform(0.5, 8f64.min(20_000f64.powf(1.0 / dim as f64)), rng);
    let terms: Vec<(f64, Vec<f64>, f64)> = (0..count)
        .map(|_| {
            let frequency: Vec<f64> =
                unit_vector(inputs, rng).into_iter().map(|x| x * rough * log_uniform(0.5, 1.5, rng)).collect();
            (rng.random_range(0.4..1.2), frequency, std::f64::consts::TAU * rng.random::<f64>())
        })
        .collect();
    let spread = terms.iter().map(|(a, ..)| 0.5 * a * a).sum::<f64>().sqrt();
    let noise = spread * log_uniform(0.05, 1.5, rng);
    let one = Graph { dim, terms, noise, uneven: if rng.random_bool(0.5) { 0.0 } else { 0.7 * normal(rng) } };
    let mut other = one.clone();
    match rng.random_range(0..4) {
        0 | 1 => {
            other.terms.clear();
            other.noise = (spread * spread + noise * noise).sqrt() * log_uniform(0.95, 1.4, rng);
            other.uneven = 0.0;
        }
        2 => other.noise *= log_uniform(1.1, 4.0, rng),
        _ => {
            let step = log_uniform(0.03, 1.0, rng) * (noise / spread).min(1.0) * 2.0;
            other.terms.iter_mut().for_each(|(a, _, phase)| {
                *a *= (step * normal(rng)).exp();
                *phase += step * normal(rng);
            });
        }
    }
    in_either_order(one, other, 0.7, rng)
}
