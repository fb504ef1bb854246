//! Products of independent columns with different shapes.

use std::f64::consts::{LN_2, PI, TAU};

use rand::{Rng, RngExt};
use rand_distr::{ChiSquared, Distribution, Exp1, Gamma};

use setwise::distributions::ln_gamma;
use setwise::random::Generator;

use super::{Density, heavy_tailed_freedom};
use crate::samplers::{log_uniform, normal};

/// The shape of a column, with location zero and scale about one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Normal,
    Logistic,
    Student {
        freedom: f64,
    },
    /// On (−1, 1).
    Uniform,
    /// A split normal: half normals of scales 1 and `ratio` that meet at the mode.
    Split {
        ratio: f64,
    },
    /// sinh((asinh(z) + skew) / weight) with a standard normal z (Jones and Pewsey, 2009).
    SinhArcsinh {
        skew: f64,
        weight: f64,
    },
    /// On (0, ∞).
    Gamma {
        shape: f64,
    },
    /// Two normals at ±`distance`, the upper one with probability `share`.
    Bimodal {
        distance: f64,
        share: f64,
    },
}

/// A column: location + scale · shape.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Column {
    shape: Shape,
    location: f64,
    scale: f64,
}

/// A product of columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Marginals {
    columns: Vec<Column>,
}

/// The heaviest tails of a column, those below a Cauchy distribution's.
const MIN_FREEDOM: f64 = 0.7;

/// A faster asinh than the standard library's, which also rounds correctly for tiny arguments.
pub(super) fn asinh(x: f64) -> f64 {
    (x.abs() + (x * x + 1.0).sqrt()).ln().copysign(x)
}

/// See [`asinh`].
pub(super) fn sinh(x: f64) -> f64 {
    let e = x.exp();
    0.5 * (e - 1.0 / e)
}

impl Shape {
    fn draw(rng: &mut impl Rng) -> Self {
        match rng.random_range(0..9) {
            0 => Shape::Normal,
            1 => Shape::Logistic,
            2 => Shape::Student { freedom: log_uniform(2.5, 15.0, rng) },
            3 | 4 => Shape::Uniform,
            5 => Shape::Split { ratio: log_uniform(0.25, 4.0, rng) },
            6 => Shape::SinhArcsinh { skew: 1.2 * rng.random::<f64>() - 0.6, weight: log_uniform(0.6, 1.5, rng) },
            7 => Shape::Gamma { shape: log_uniform(0.8, 8.0, rng) },
            _ => Shape::Bimodal { distance: log_uniform(0.8, 4.0, rng), share: 0.1 + 0.8 * rng.random::<f64>() },
        }
    }

    fn sample(self, rng: &mut impl Rng) -> f64 {
        match self {
            Shape::Normal => normal(rng),
            Shape::Logistic => {
                let u: f64 = rng.random::<f64>().clamp(1e-12, 1.0 - 1e-12);
                (u / (1.0 - u)).ln()
            }
            Shape::Student { freedom } => {
                let chi = ChiSquared::new(freedom).expect("degrees above zero").sample(rng);
                normal(rng) * (freedom / chi).sqrt()
            }
            // Inside the edge, because rounding could move points on it outside.
            Shape::Uniform => (1.0 - 1e-12) * (2.0 * rng.random::<f64>() - 1.0),
            Shape::Split { ratio } => {
                let z = normal(rng).abs();
                if rng.random::<f64>() * (1.0 + ratio) < ratio { z * ratio } else { -z }
            }
            Shape::SinhArcsinh { skew, weight } => sinh((asinh(normal(rng)) + skew) / weight),
            Shape::Gamma { shape } => Gamma::new(shape, 1.0).expect("a shape above zero").sample(rng).max(1e-12),
            Shape::Bimodal { distance, share } => {
                normal(rng) + if rng.random::<f64>() < share { distance } else { -distance }
            }
        }
    }

    /// The constant term of the log density.
    fn log_constant(self) -> f64 {
        let gaussian = -0.5 * TAU.ln();
        match self {
            Shape::Normal | Shape::Bimodal { .. } => gaussian,
            Shape::Logistic => 0.0,
            Shape::Student { freedom: v } => ln_gamma(0.5 * (v + 1.0)) - ln_gamma(0.5 * v) - 0.5 * (v * PI).ln(),
            Shape::Uniform => -LN_2,
            Shape::Split { ratio } => gaussian + LN_2 - (1.0 + ratio).ln(),
            Shape::SinhArcsinh { weight, .. } => gaussian + weight.ln(),
            Shape::Gamma { shape } => -ln_gamma(shape),
        }
    }

    /// The log density without its constant term.
    fn log_kernel(self, x: f64) -> f64 {
        match self {
            Shape::Normal => -0.5 * x * x,
            Shape::Logistic => -x.abs() - 2.0 * (1.0 + (-x.abs()).exp()).ln(),
            Shape::Student { freedom: v } => -0.5 * (v + 1.0) * (1.0 + x * x / v).ln(),
            Shape::Uniform if x.abs() <= 1.0 => 0.0,
            Shape::Uniform => f64::NEG_INFINITY,
            Shape::Split { ratio } => {
                let z = if x > 0.0 { x / ratio } else { x };
                -0.5 * z * z
            }
            Shape::SinhArcsinh { skew, weight } => {
                let z = sinh(weight * asinh(x) - skew);
                // cosh² = 1 + sinh².
                0.5 * (((1.0 + z * z) / (1.0 + x * x)).ln() - z * z)
            }
            Shape::Gamma { shape } if x > 0.0 => (shape - 1.0) * x.ln() - x,
            Shape::Gamma { .. } => f64::NEG_INFINITY,
            Shape::Bimodal { distance, share } => {
                let (a, b) = (-0.5 * (x - distance).powi(2), -0.5 * (x + distance).powi(2));
                let largest = a.max(b);
                largest + (share * (a - largest).exp() + (1.0 - share) * (b - largest).exp()).ln()
            }
        }
    }

    /// Draws a shape of the same kind with nearby parameters.
    fn perturbed(self, s: f64, rng: &mut impl Rng) -> Self {
        let near = |x: f64, min: f64, max: f64, rng: &mut _| (x * (s * normal(rng)).exp()).clamp(min, max);
        match self {
            Shape::Student { freedom } => Shape::Student { freedom: near(freedom, MIN_FREEDOM, 60.0, rng) },
            Shape::Split { ratio } => Shape::Split { ratio: near(ratio, 0.1, 10.0, rng) },
            Shape::SinhArcsinh { skew, weight } => Shape::SinhArcsinh {
                skew: (skew + 0.5 * s * normal(rng)).clamp(-1.5, 1.5),
                weight: near(weight, 0.4, 2.5, rng),
            },
            Shape::Gamma { shape } => Shape::Gamma { shape: near(shape, 0.4, 20.0, rng) },
            Shape::Bimodal { distance, share } => Shape::Bimodal {
                distance: near(distance, 0.2, 6.0, rng),
                share: (share + 0.4 * s * normal(rng)).clamp(0.03, 0.97),
            },
            other => other,
        }
    }

    /// Whether the support is (−∞, ∞), so that KL of any other shape from this one is finite.
    fn full_support(self) -> bool {
        !matches!(self, Shape::Uniform | Shape::Gamma { .. })
    }

    /// Whether the tails are too light to stand in for heavy ones.
    fn light_tails(self) -> bool {
        !matches!(self, Shape::Student { .. } | Shape::SinhArcsinh { .. })
    }

    /// Approximate mean and deviation.
    fn moments(self) -> (f64, f64) {
        match self {
            Shape::Logistic => (0.0, 1.8),
            Shape::Uniform => (0.0, 0.577),
            Shape::Split { ratio } => ((ratio - 1.0) * 0.8, 0.5 * (1.0 + ratio)),
            Shape::Gamma { shape } => (shape, shape.sqrt()),
            Shape::Bimodal { distance, share } => {
                (distance * (2.0 * share - 1.0), (1.0 + 4.0 * share * (1.0 - share) * distance * distance).sqrt())
            }
            _ => (0.0, 1.2),
        }
    }
}

impl Column {
    /// Draws a nearby column with respect to which this one is absolutely continuous.
    fn perturbed(self, s: f64, rng: &mut impl Rng) -> Self {
        match self.shape {
            Shape::Uniform => {
                // A wider interval that contains this one.
                let grow = |rng: &mut _| s * Distribution::<f64>::sample(&Exp1, rng);
                let (low, high) =
                    (self.location - self.scale * (1.0 + grow(rng)), self.location + self.scale * (1.0 + grow(rng)));
                Column { shape: Shape::Uniform, location: 0.5 * (low + high), scale: 0.5 * (high - low) }
            }
            Shape::Gamma { .. } => Column {
                shape: self.shape.perturbed(s, rng),
                location: self.location,
                scale: self.scale * (s.min(2.0) * normal(rng)).exp(),
            },
            _ => Column {
                shape: if rng.random_bool(0.5) { self.shape.perturbed(s.min(1.5), rng) } else { self.shape },
                location: self.location + s * self.scale * normal(rng),
                scale: self.scale * (0.7 * s.min(2.0) * normal(rng)).exp(),
            },
        }
    }

    /// Draws a column of another kind with about the same location and scale.
    fn replaced(self, rng: &mut impl Rng) -> Self {
        let (mean, deviation) = self.shape.moments();
        let shape = loop {
            let shape = Shape::draw(rng);
            if shape.full_support() && (self.shape.light_tails() || !shape.light_tails()) {
                break shape;
            }
        };
        let (other_mean, other_deviation) = shape.moments();
        let scale = self.scale * deviation / other_deviation * log_uniform(0.8, 1.6, rng);
        Column { shape, location: self.location + self.scale * mean - scale * other_mean, scale }
    }
}

impl Marginals {
    /// Draws columns, and perturbed ones.
    pub fn pair(dim: usize, strength: f64, rng: &mut impl Rng) -> (Self, Self) {
        let one_kind = rng.random_bool(0.4).then(|| Shape::draw(rng));
        let p: Vec<Column> = (0..dim)
            .map(|_| Column {
                shape: one_kind.unwrap_or_else(|| Shape::draw(rng)),
                location: normal(rng),
                scale: log_uniform(0.5, 2.0, rng),
            })
            .collect();
        if strength == 0.0 {
            return (Marginals { columns: p.clone() }, Marginals { columns: p });
        }
        // Where only some columns are perturbed, each is perturbed more: the total stays the same.
        let share = if rng.random_bool(0.4) { rng.random::<f64>() } else { 1.0 };
        let s = strength / share.max(1.0 / dim as f64).sqrt();
        let replace = if rng.random_bool(0.3) { 0.5 * rng.random::<f64>() * (s * s).min(1.0) } else { 0.0 };
        let q = p
            .iter()
            .map(|&c| match (rng.random::<f64>() < share, rng.random::<f64>() < replace) {
                (_, true) => c.replaced(rng),
                (true, _) => c.perturbed(s, rng),
                _ => c,
            })
            .collect();
        (Marginals { columns: p }, Marginals { columns: q })
    }

    /// Draws columns with heavy tails, down to those of a Cauchy distribution and below, and perturbed ones.
    pub fn heavy_tailed_pair(dim: usize, strength: f64, rng: &mut impl Rng) -> (Self, Self) {
        let shared = rng.random_bool(0.4).then(|| heavy_tailed_freedom(rng));
        let p: Vec<Column> = (0..dim)
            .map(|_| Column {
                shape: Shape::Student { freedom: shared.unwrap_or_else(|| heavy_tailed_freedom(rng)) },
                location: normal(rng),
                scale: log_uniform(0.5, 2.0, rng),
            })
            .collect();
        let q = p.iter().map(|c| c.perturbed(strength, rng)).collect();
        (Marginals { columns: p }, Marginals { columns: q })
    }

    /// The columns in which two products differ. Equal columns contribute nothing to the divergence.
    pub fn differing(&self, other: &Self) -> (Self, Self) {
        let pairs = self.columns.iter().zip(&other.columns).filter(|(a, b)| a != b);
        let (a, b) = pairs.map(|(a, b)| (*a, *b)).unzip();
        (Marginals { columns: a }, Marginals { columns: b })
    }

    /// Whether there are no columns.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }
}

impl Density for Marginals {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        rows.reserve(n * self.columns.len());
        for _ in 0..n {
            rows.extend(self.columns.iter().map(|c| c.location + c.scale * c.shape.sample(rng)));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let constant: f64 = self.columns.iter().map(|c| c.shape.log_constant() - c.scale.ln()).sum();
        let of_row = |row: &[f64]| {
            let kernels = self.columns.iter().zip(row).map(|(c, x)| c.shape.log_kernel((x - c.location) / c.scale));
            constant + kernels.sum::<f64>()
        };
        rows.chunks_exact(self.columns.len()).map(of_row).collect()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn samples_of_every_shape_follow_its_density() {
        let mut rng = Generator::seed_from_u64(2);
        let shapes = [
            Shape::Normal,
            Shape::Logistic,
            Shape::Student { freedom: 4.0 },
            Shape::Uniform,
            Shape::Split { ratio: 3.0 },
            Shape::SinhArcsinh { skew: 0.4, weight: 0.8 },
            Shape::Gamma { shape: 2.5 },
            Shape::Bimodal { distance: 2.0, share: 0.3 },
        ];
        for shape in shapes {
            let grid = (0..200_000).map(|i| (f64::from(i) - 100_000.0 + 0.5) * 1e-3);
            let (mut total, mut below) = (0.0, 0.0);
            for x in grid {
                let mass = (shape.log_constant() + shape.log_kernel(x)).exp() * 1e-3;
                total += mass;
                below += if x < 0.7 { mass } else { 0.0 };
            }
            let sampled = (0..100_000).filter(|_| shape.sample(&mut rng) < 0.7).count() as f64 / 1e5;
            assert!(
                (total - 1.0).abs() < 2e-3 && (below - sampled).abs() < 6e-3,
                "{shape:?}: {total}, {below}, {sampled}"
            );
        }
    }

    #[test]
    fn the_first_distribution_is_absolutely_continuous_with_respect_to_the_second() {
        let mut rng = Generator::seed_from_u64(5);
        for _ in 0..200 {
            let (p, q) = Marginals::pair(3, 0.5, &mut rng);
            let mut rows = Vec::new();
            p.sample(200, &mut rng, &mut rows);
            assert!(q.log_density(&rows).iter().all(|l| l.is_finite()), "{p:?} and {q:?}");
        }
    }
}
