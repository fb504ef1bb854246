//! Families whose distributions differ smoothly.

use std::sync::OnceLock;

use rand::RngExt;

use setwise::distributions::{Lkj, Mixture, ln_gamma};
use setwise::random::Generator;

use super::Distributions;
use super::structured::diagonal;
use crate::samplers::{Density, log_uniform, normal};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Laplace,
    Gumbel,
}

/// Independent columns of one kind, with location and scale of each.
struct Columns {
    kind: Kind,
    parameters: Vec<(f64, f64)>,
}

/// Draws Laplace columns. `s` is the perturbation of each.
pub fn laplace(dim: usize, s: f64, rng: &mut Generator) -> Distributions {
    columns(dim, s, Kind::Laplace, rng)
}

/// Draws Gumbel columns.
pub fn gumbel(dim: usize, s: f64, rng: &mut Generator) -> Distributions {
    columns(dim, s, Kind::Gumbel, rng)
}

fn columns(dim: usize, s: f64, kind: Kind, rng: &mut Generator) -> Distributions {
    let p: Vec<(f64, f64)> = (0..dim).map(|_| (normal(rng), log_uniform(0.5, 2.0, rng))).collect();
    let q: Vec<(f64, f64)> =
        p.iter().map(|&(l, b)| (l + s * b * normal(rng), b * (0.7 * s * normal(rng)).exp())).collect();
    let kl = p.iter().zip(&q).map(|(&p, &q)| kind.divergence(p, q)).sum();
    Distributions::with_kl(Columns { kind, parameters: p }, Columns { kind, parameters: q }, kl)
}

impl Kind {
    fn divergence(self, (m1, b1): (f64, f64), (m2, b2): (f64, f64)) -> f64 {
        match self {
            Kind::Laplace => {
                let shift = (m1 - m2).abs();
                (b2 / b1).ln() + (shift + b1 * (-shift / b1).exp()) / b2 - 1.0
            }
            Kind::Gumbel => {
                const EULER: f64 = 0.577_215_664_901_532_9;
                let last = ((m2 - m1) / b2 + ln_gamma(1.0 + b1 / b2)).exp();
                (b2 / b1).ln() - EULER - 1.0 + (m1 - m2 + EULER * b1) / b2 + last
            }
        }
    }
}

impl Density for Columns {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        for _ in 0..n {
            for &(location, scale) in &self.parameters {
                let u: f64 = rng.random::<f64>().clamp(1e-15, 1.0 - 1e-15);
                let x = match self.kind {
                    Kind::Laplace if u < 0.5 => (2.0 * u).ln(),
                    Kind::Laplace => -(2.0 * (1.0 - u)).ln(),
                    Kind::Gumbel => -(-u.ln()).ln(),
                };
                rows.push(location + scale * x);
            }
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let one = |x: f64, (location, scale): (f64, f64)| {
            let z = (x - location) / scale;
            -scale.ln()
                + match self.kind {
                    Kind::Laplace => -z.abs() - std::f64::consts::LN_2,
                    Kind::Gumbel => -z - (-z).exp(),
                }
        };
        rows.chunks_exact(self.parameters.len())
            .map(|row| row.iter().zip(&self.parameters).map(|(&x, &parameters)| one(x, parameters)).sum())
            .collect()
    }
}

/// The logarithm of log-normal points, a usual transformation of such data.
struct LogOfLogNormal(Mixture);

impl Density for LogOfLogNormal {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let first = rows.len();
        self.0.sample(n, rng, rows);
        rows[first..].iter_mut().for_each(|x| *x = x.exp().ln());
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        self.0.log_density(rows)
    }
}

/// Draws log-normal columns, after the logarithm.
pub fn log_normal(dim: usize, s: f64, rng: &mut Generator) -> Distributions {
    let mut factor = vec![0.0; dim * dim];
    Lkj::Correct.draw(dim, 2.0, rng, &mut factor);
    let mean: Vec<f64> = (0..dim).map(|_| normal(rng)).collect();
    let mut other = factor.clone();
    let shift: Vec<f64> = mean.iter().map(|m| m + s * normal(rng)).collect();
    for (i, row) in other.chunks_exact_mut(dim).enumerate() {
        let scale = (0.7 * s * normal(rng)).exp();
        row[..i].iter_mut().for_each(|x| *x += 0.3 * s * normal(rng) / (dim as f64).sqrt());
        row[..=i].iter_mut().for_each(|x| *x *= scale);
    }
    let (p, q) = (Mixture::new(dim, &[1.0], &mean, &factor), Mixture::new(dim, &[1.0], &shift, &other));
    let kl = p.exact_kl(&q).expect("single Gaussians");
    Distributions::with_kl(LogOfLogNormal(p), LogOfLogNormal(q), kl)
}

/// A distribution function on a grid, with linear interpolation, and its inverse.
struct PiecewiseCdf {
    start: f64,
    step: f64,
    values: Vec<f64>,
}

impl PiecewiseCdf {
    /// Integrates a density by Simpson's rule and normalises it.
    fn of(start: f64, end: f64, cells: usize, density: impl Fn(f64) -> f64) -> Self {
        let step = (end - start) / cells as f64;
        let mut values = vec![0.0];
        for i in 0..cells {
            let x = start + i as f64 * step;
            let area = step / 6.0 * (density(x) + 4.0 * density(x + 0.5 * step) + density(x + step));
            values.push(values[i] + area);
        }
        let total = values[cells];
        values.iter_mut().for_each(|v| *v /= total);
        PiecewiseCdf { start, step, values }
    }

    fn at(&self, x: f64) -> f64 {
        let position = ((x - self.start) / self.step).clamp(0.0, (self.values.len() - 1) as f64 - 1e-9);
        let (i, part) = (position as usize, position.fract());
        self.values[i] + part * (self.values[i + 1] - self.values[i])
    }

    fn inverse(&self, value: f64) -> f64 {
        let i = self.values.partition_point(|v| *v < value).clamp(1, self.values.len() - 1);
        let (a, b) = (self.values[i - 1], self.values[i]);
        let part = if b > a { (value - a) / (b - a) } else { 0.5 };
        self.start + self.step * (i as f64 - 1.0 + part.clamp(0.0, 1.0))
    }
}

/// The standard normal distribution function.
fn normal_cdf() -> &'static PiecewiseCdf {
    static CURVE: OnceLock<PiecewiseCdf> = OnceLock::new();
    CURVE.get_or_init(|| PiecewiseCdf::of(-7.0, 7.0, 1 << 14, |x| (-0.5 * x * x).exp()))
}

/// Columns with beta distributions, coupled by a Gaussian copula.
struct Copula {
    /// The copula's Gaussian, with unit variances.
    joint: Mixture,
    independent: Mixture,
    shapes: Vec<(f64, f64)>,
    cdfs: Vec<PiecewiseCdf>,
}

impl Copula {
    fn new(factor: &[f64], shapes: Vec<(f64, f64)>) -> Self {
        let dim = shapes.len();
        let joint = Mixture::new(dim, &[1.0], &vec![0.0; dim], factor);
        let independent = Mixture::new(dim, &[1.0], &vec![0.0; dim], &diagonal(&vec![1.0; dim]));
        let cdfs = shapes
            .iter()
            .map(|&(a, b)| PiecewiseCdf::of(0.0, 1.0, 2048, |x| x.powf(a - 1.0) * (1.0 - x).max(0.0).powf(b - 1.0)))
            .collect();
        Copula { joint, independent, shapes, cdfs }
    }
}

impl Density for Copula {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let first = rows.len();
        self.joint.sample(n, rng, rows);
        for row in rows[first..].chunks_exact_mut(self.shapes.len()) {
            row.iter_mut().zip(&self.cdfs).for_each(|(x, cdf)| *x = cdf.inverse(normal_cdf().at(*x)));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let dim = self.shapes.len();
        let normal: Vec<f64> =
            rows.iter().enumerate().map(|(i, &x)| normal_cdf().inverse(self.cdfs[i % dim].at(x))).collect();
        let (joint, independent) = (self.joint.log_density(&normal), self.independent.log_density(&normal));
        let beta = |row: &[f64]| -> f64 {
            let one = |(&x, &(a, b)): (&f64, &(f64, f64))| {
                let x = x.clamp(1e-12, 1.0 - 1e-12);
                (a - 1.0) * x.ln() + (b - 1.0) * (1.0 - x).ln() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)
            };
            row.iter().zip(&self.shapes).map(one).sum()
        };
        rows.chunks_exact(dim).zip(joint.iter().zip(independent)).map(|(row, (j, a))| j - a + beta(row)).collect()
    }
}

/// Draws Gaussian copulas with beta marginals.
pub fn copulas(dim: usize, s: f64, rng: &mut Generator) -> Distributions {
    let mut factor = vec![0.0; dim * dim];
    Lkj::Correct.draw(dim, 2.0, rng, &mut factor);
    let mut other = factor.clone();
    for (i, row) in other.chunks_exact_mut(dim).enumerate() {
        row[..i].iter_mut().for_each(|x| *x += 0.5 * s * normal(rng) / (dim as f64).sqrt());
        // Rows of unit length keep unit variances.
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        row.iter_mut().for_each(|x| *x /= length);
    }
    let shapes: Vec<(f64, f64)> = (0..dim).map(|_| (log_uniform(1.5, 5.0, rng), log_uniform(1.5, 5.0, rng))).collect();
    let mut near = |x: f64| (x * (0.7 * s * normal(rng)).exp()).clamp(1.1, 12.0);
    let others = shapes.iter().map(|&(a, b)| (near(a), near(b))).collect();
    let (p, q) = (Copula::new(&factor, shapes), Copula::new(&other, others));
    Distributions::new(p, q)
}

/// Parameters of a pair of moons.
#[derive(Clone, Copy)]
struct Moon {
    /// Shift of the lower half circle from its default position.
    shift: [f64; 2],
    /// Fraction of points on the upper half circle.
    share: f64,
    noise: f64,
}

impl Moon {
    /// Gaussians along both half circles. One dimension has the first coordinate only, more than two have noise.
    fn mixture(self, dim: usize, extra: &[(f64, f64)]) -> Mixture {
        const COMPONENTS: usize = 24;
        let (mut weights, mut means, mut factors) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..2 * COMPONENTS {
            let t = std::f64::consts::PI * ((i % COMPONENTS) as f64 + 0.5) / COMPONENTS as f64;
            let (point, weight) = match i < COMPONENTS {
                true => ([t.cos(), t.sin()], self.share),
                false => ([1.0 - t.cos() + self.shift[0], 0.5 - t.sin() + self.shift[1]], 1.0 - self.share),
            };
            weights.push(weight);
            means.extend((0..dim).map(|j| if j < 2 { point[j] } else { extra[j - 2].0 }));
            let scale = |j: usize| if j < 2 { self.noise } else { extra[j - 2].1 };
            factors.extend(diagonal(&(0..dim).map(scale).collect::<Vec<f64>>()));
        }
        Mixture::new(dim, &weights, &means, &factors)
    }
}

/// Draws a pair of moons. `s` is the perturbation over all columns.
pub fn moons(dim: usize, s: f64, rng: &mut Generator) -> Distributions {
    let of_p = Moon { shift: [0.0; 2], share: 0.5, noise: log_uniform(0.1, 0.25, rng) };
    let of_q = Moon {
        shift: [0.25 * s * normal(rng), 0.25 * s * normal(rng)],
        share: (0.5 + 0.2 * s * normal(rng)).clamp(0.1, 0.9),
        noise: of_p.noise * (0.3 * s * normal(rng).abs()).exp(),
    };
    let extra: Vec<(f64, f64)> = (2..dim).map(|_| (0.0, 0.5)).collect();
    let each = s / (dim as f64).sqrt();
    let moved: Vec<(f64, f64)> =
        extra.iter().map(|&(m, b)| (m + 0.5 * each * b * normal(rng), b * (0.3 * each * normal(rng)).exp())).collect();
    let (p, q) = (of_p.mixture(dim, &extra), of_q.mixture(dim, &moved));
    Distributions::new(p, q)
}
