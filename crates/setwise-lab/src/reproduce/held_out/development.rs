//! Families on which the estimator is tried while it is made. They belong neither to its training nor to its
//! evaluation.

use rand::RngExt;
use rand_distr::{ChiSquared, Distribution, Exp1, StudentT};

use setwise::distributions::{Mixture, ln_gamma};
use setwise::random::Generator;

use super::Distributions;
use super::structured::{OnCube, diagonal, uniform_cube};
use crate::samplers::{Density, log_sum_exp, log_uniform, normal, normal_log_density};

/// Puts two distributions into either order.
fn either(p: impl Density + 'static, q: impl Density + 'static, rng: &mut Generator) -> Distributions {
    if rng.random_bool(0.7) { Distributions::new(p, q) } else { Distributions::new(q, p) }
}

/// Waves whose frequency grows along the first column, against the uniform distribution.
pub fn chirp(dim: usize, rng: &mut Generator) -> Distributions {
    let (strength, turns) = (rng.random_range(0.6..0.98), log_uniform(3.0, 15.0, rng));
    let wave = move |x: f64| 1.0 + strength * (std::f64::consts::TAU * turns * x * x).cos();
    const CELLS: usize = 20_000;
    let mean = (0..CELLS).map(|i| wave((i as f64 + 0.5) / CELLS as f64)).sum::<f64>() / CELLS as f64;
    let density = move |row: &[f64]| wave(row[0]) / mean;
    either(OnCube { dim, density, max: 2.0 / mean }, uniform_cube(dim), rng)
}

/// Columns in pairs of equal signs, or products of three, against independent ones.
pub fn signs(dim: usize, rng: &mut Generator) -> Distributions {
    let (strength, active) = (rng.random_range(0.5..0.95), dim.min(3));
    let density = move |row: &[f64]| {
        1.0 + strength * row[..active].iter().map(|x| if *x < 0.5 { -1.0 } else { 1.0 }).product::<f64>()
    };
    either(OnCube { dim, density, max: 2.0 }, uniform_cube(dim), rng)
}

/// Rings in a disc with noise in further columns.
struct Rings {
    dim: usize,
    /// Every second ring of this many is empty; one is a disc.
    rings: usize,
}

impl Density for Rings {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        for _ in 0..n {
            let (radius, angle) = loop {
                let r = rng.random::<f64>().sqrt();
                if self.rings == 1 || ((r * self.rings as f64) as usize).is_multiple_of(2) {
                    break (r, std::f64::consts::TAU * rng.random::<f64>());
                }
            };
            rows.extend([radius * angle.cos(), radius * angle.sin()]);
            rows.extend((2..self.dim).map(|_| 0.5 * normal(rng)));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let count = self.rings as f64;
        let area = |i: usize| ((i + 1).pow(2) - i.pow(2)) as f64 / (count * count);
        let share: f64 = (0..self.rings).step_by(2).map(area).sum();
        let one = |row: &[f64]| {
            let r = row[0].hypot(row[1]);
            let inside = r < 1.0 && (self.rings == 1 || ((r * count) as usize).is_multiple_of(2));
            let noise: f64 = row[2..].iter().map(|x| -2.0 * x * x - 0.5 * std::f64::consts::TAU.ln() + 2f64.ln()).sum();
            noise + if inside { -(share * std::f64::consts::PI).ln() } else { f64::NEG_INFINITY }
        };
        rows.chunks_exact(self.dim).map(one).collect()
    }
}

/// Concentric rings, against a disc.
pub fn rings(dim: usize, rng: &mut Generator) -> Distributions {
    let count = 2 * rng.random_range(1..=4);
    Distributions::new(Rings { dim, rings: count }, Rings { dim, rings: 1 })
}

/// Clusters of Laplace columns with one scale.
struct LaplaceClusters {
    dim: usize,
    centres: Vec<f64>,
    scale: f64,
}

impl Density for LaplaceClusters {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let count = self.centres.len() / self.dim;
        for _ in 0..n {
            let cluster = rng.random_range(0..count);
            for c in &self.centres[cluster * self.dim..(cluster + 1) * self.dim] {
                let distance: f64 = Exp1.sample(rng);
                rows.push(c + self.scale * if rng.random_bool(0.5) { distance } else { -distance });
            }
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let count = (self.centres.len() / self.dim) as f64;
        let constant = -(2.0 * self.scale).ln() * self.dim as f64 - count.ln();
        let one = |row: &[f64]| {
            let term = |centre: &[f64]| -> f64 {
                -row.iter().zip(centre).map(|(x, c)| (x - c).abs()).sum::<f64>() / self.scale
            };
            let terms: Vec<f64> = self.centres.chunks_exact(self.dim).map(term).collect();
            constant + log_sum_exp(&terms)
        };
        rows.chunks_exact(self.dim).map(one).collect()
    }
}

/// Peaked clusters and wider ones.
pub fn peaks(dim: usize, rng: &mut Generator) -> Distributions {
    let count = rng.random_range(4..=16);
    let centres: Vec<f64> = (0..count * dim).map(|_| 4.0 * (rng.random::<f64>() - 0.5)).collect();
    let scale = log_uniform(0.03, 0.3, rng);
    let clusters = |scale: f64| LaplaceClusters { dim, centres: centres.clone(), scale };
    let wider = scale * (log_uniform(0.3, 3.0, rng) / (dim as f64).sqrt()).exp();
    either(clusters(scale), clusters(wider), rng)
}

/// Normal columns, the first two with density 1 + a·cos(k·angle + c·radius) relative to the normal one.
struct Swirl {
    dim: usize,
    strength: f64,
    arms: f64,
    twist: f64,
}

impl Swirl {
    fn factor(&self, row: &[f64]) -> f64 {
        1.0 + self.strength * (self.arms * row[1].atan2(row[0]) + self.twist * row[0].hypot(row[1])).cos()
    }
}

impl Density for Swirl {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let mut row = vec![0.0; self.dim];
        for _ in 0..n {
            loop {
                row.iter_mut().for_each(|x| *x = normal(rng));
                if 2.0 * rng.random::<f64>() < self.factor(&row) {
                    break;
                }
            }
            rows.extend_from_slice(&row);
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        rows.chunks_exact(self.dim).map(|row| normal_log_density(row) + self.factor(row).ln()).collect()
    }
}

/// Spiral arms, against a Gaussian.
pub fn swirl(dim: usize, rng: &mut Generator) -> Distributions {
    let swirl = Swirl {
        dim,
        strength: rng.random_range(0.6..0.98),
        arms: f64::from(rng.random_range(1..=4)),
        twist: log_uniform(0.5, 6.0, rng),
    };
    either(swirl, Mixture::new(dim, &[1.0], &vec![0.0; dim], &diagonal(&vec![1.0; dim])), rng)
}

/// Independent columns of Student's t with these locations and scales.
struct HeavyColumns {
    freedom: f64,
    columns: Vec<[f64; 2]>,
}

impl Density for HeavyColumns {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let law = StudentT::new(self.freedom).expect("degrees of freedom above zero");
        for _ in 0..n {
            rows.extend(self.columns.iter().map(|[location, scale]| location + scale * law.sample(rng)));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let v = self.freedom;
        let constant = ln_gamma(0.5 * (v + 1.0)) - ln_gamma(0.5 * v) - 0.5 * (v * std::f64::consts::PI).ln();
        let one = |(x, [location, scale]): (&f64, &[f64; 2])| {
            let z = (x - location) / scale;
            constant - scale.ln() - 0.5 * (v + 1.0) * (z * z / v).ln_1p()
        };
        rows.chunks_exact(self.columns.len()).map(|row| row.iter().zip(&self.columns).map(one).sum()).collect()
    }
}

/// Columns with heavy tails, against moved and scaled ones.
pub fn heavy(dim: usize, rng: &mut Generator) -> Distributions {
    let size = log_uniform(0.2, 1.5, rng) / (dim as f64).sqrt();
    let moved = (0..dim).map(|_| [size * normal(rng), (0.7 * size * normal(rng)).exp()]).collect();
    let freedom = rng.random_range(1.2..2.5);
    let columns = |columns: Vec<[f64; 2]>| HeavyColumns { freedom, columns };
    Distributions::new(columns(vec![[0.0, 1.0]; dim]), columns(moved))
}

/// Exponential columns that begin at these places.
struct Exponentials(Vec<f64>);

impl Density for Exponentials {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        for _ in 0..n {
            rows.extend(self.0.iter().map(|start| start + Distribution::<f64>::sample(&Exp1, rng)));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let one = |(x, start): (&f64, &f64)| if x >= start { start - x } else { f64::NEG_INFINITY };
        rows.chunks_exact(self.0.len()).map(|row| row.iter().zip(&self.0).map(one).sum()).collect()
    }
}

/// Exponential columns that begin later than those of the second distribution: KL is the sum of the delays.
pub fn delays(dim: usize, rng: &mut Generator) -> Distributions {
    let size = log_uniform(0.05, 1.0, rng) / dim as f64;
    let starts: Vec<f64> = (0..dim).map(|_| size * rng.random_range(0.5..1.5)).collect();
    let kl = starts.iter().sum();
    Distributions::with_kl(Exponentials(starts), Exponentials(vec![0.0; dim]), kl)
}

/// A waved sheet over a normal distribution, with chi-squared distances from it.
struct Sheet {
    dim: usize,
    frequency: f64,
    thickness: f64,
}

impl Density for Sheet {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let above = ChiSquared::new(3.0).expect("degrees of freedom above zero");
        for _ in 0..n {
            let first = rows.len();
            rows.extend((1..self.dim).map(|_| normal(rng)));
            rows.push((self.frequency * rows[first]).sin() + self.thickness * above.sample(rng));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let one = |row: &[f64]| {
            let (last, others) = row.split_last().expect("two columns or more");
            let z = (last - (self.frequency * row[0]).sin()) / self.thickness;
            if z <= 0.0 {
                return f64::NEG_INFINITY;
            }
            normal_log_density(others) + 0.5 * z.ln() - 0.5 * z - 1.5 * 2f64.ln() - ln_gamma(1.5) - self.thickness.ln()
        };
        rows.chunks_exact(self.dim).map(one).collect()
    }
}

/// A waved sheet, against one a little thicker.
pub fn sheet(dim: usize, rng: &mut Generator) -> Distributions {
    let (frequency, thickness) = (log_uniform(1.0, 6.0, rng), log_uniform(0.03, 0.3, rng));
    let p = Sheet { dim, frequency, thickness };
    let q = Sheet { dim, frequency, thickness: thickness * log_uniform(1.2, 5.0, rng) };
    Distributions::new(p, q)
}
