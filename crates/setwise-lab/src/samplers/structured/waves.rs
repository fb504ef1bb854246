//! Gaussian densities that are modulated by cosines.

use rand::RngExt;

use setwise::random::Generator;

use super::{DensityPair, in_either_order, unit_vector};
use crate::samplers::broad::Density;
use crate::samplers::{log_uniform, normal};

/// φ(x)·Πⱼ(1 + aⱼ·cos(ωⱼᵀx + βⱼ)) / Z, where the ωⱼ are orthogonal, so that the factors of Z are known.
#[derive(Clone)]
struct Waves {
    dim: usize,
    waves: Vec<Wave>,
}

#[derive(Clone)]
struct Wave {
    amplitude: f64,
    frequency: Vec<f64>,
    phase: f64,
    /// Logarithm of the mean of the factor.
    log_constant: f64,
}

impl Wave {
    fn new(amplitude: f64, frequency: Vec<f64>, phase: f64) -> Self {
        let square: f64 = frequency.iter().map(|f| f * f).sum();
        let log_constant = (1.0 + amplitude * (-0.5 * square).exp() * phase.cos()).ln();
        Wave { amplitude, frequency, phase, log_constant }
    }

    fn factor(&self, row: &[f64]) -> f64 {
        let angle: f64 = row.iter().zip(&self.frequency).map(|(x, f)| x * f).sum::<f64>() + self.phase;
        1.0 + self.amplitude * angle.cos()
    }
}

impl Density for Waves {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let mut row = vec![0.0; self.dim];
        for _ in 0..n {
            loop {
                row.iter_mut().for_each(|x| *x = normal(rng));
                let accepted =
                    |wave: &Wave, rng: &mut Generator| rng.random::<f64>() * (1.0 + wave.amplitude) < wave.factor(&row);
                if self.waves.iter().all(|wave| accepted(wave, rng)) {
                    break;
                }
            }
            rows.extend_from_slice(&row);
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let constant = -0.5 * self.dim as f64 * std::f64::consts::TAU.ln();
        let density = |row: &[f64]| {
            let normal = constant - 0.5 * row.iter().map(|x| x * x).sum::<f64>();
            let waves = |w: &Wave| w.factor(row).max(1e-12).ln() - w.log_constant;
            normal + self.waves.iter().map(waves).sum::<f64>()
        };
        rows.chunks_exact(self.dim).map(density).collect()
    }
}

/// Orthogonal directions: along columns, or rotated.
fn directions(dim: usize, count: usize, rng: &mut Generator) -> Vec<Vec<f64>> {
    let mut found: Vec<Vec<f64>> = Vec::new();
    let along_columns = rng.random_bool(0.4);
    while found.len() < count {
        let mut v = match along_columns {
            true => {
                let mut v = vec![0.0; dim];
                v[found.len()] = 1.0;
                v
            }
            false => unit_vector(dim, rng),
        };
        for other in &found {
            let along: f64 = v.iter().zip(other).map(|(a, b)| a * b).sum();
            v.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
        }
        let length = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        if length > 0.1 {
            v.iter_mut().for_each(|x| *x /= length);
            found.push(v);
        }
    }
    found
}

/// The distance of neighbours among 20,000 points shrinks with this power of the dimension. Waves that are shorter are
/// not visible in any sample.
fn max_frequency(dim: usize) -> f64 {
    20_000f64.powf(1.0 / dim as f64).min(25.0)
}

fn wave(direction: &[f64], rng: &mut Generator) -> Wave {
    let amplitude = 1.0 - 0.999 * rng.random::<f64>().powi(2);
    let frequency = log_uniform(0.7, max_frequency(direction.len()), rng);
    let phase = std::f64::consts::TAU * rng.random::<f64>();
    Wave::new(amplitude, direction.iter().map(|x| frequency * x).collect(), phase)
}

/// Draws two modulated Gaussians: with and without the waves, or with changed waves.
pub fn pair(dim: usize, rng: &mut Generator) -> DensityPair {
    let count = rng.random_range(1..=dim.min(3));
    let directions = directions(dim, count, rng);
    let one = Waves { dim, waves: directions.iter().map(|d| wave(d, rng)).collect() };
    let other = match rng.random_range(0..4) {
        0 | 1 => Waves { dim, waves: Vec::new() },
        2 => {
            let step = log_uniform(0.1, 3.0, rng);
            let moved = |w: &Wave, rng: &mut Generator| {
                Wave::new(w.amplitude, w.frequency.clone(), w.phase + step * normal(rng))
            };
            Waves { dim, waves: one.waves.iter().map(|w| moved(w, rng)).collect() }
        }
        _ => Waves { dim, waves: directions.iter().map(|d| wave(d, rng)).collect() },
    };
    in_either_order(one, other, 0.65, rng)
}
