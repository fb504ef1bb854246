//! Smooth invertible maps of points.

use rand::{Rng, RngExt};
use rand_distr::{Distribution, StandardNormal};

use setwise::distributions::Mixture;
use setwise::random::Generator;

use super::marginals::{asinh, sinh};
use super::{Law, log_uniform};

/// A map that both samples go through, so that the ratio of their densities stays: the points are brought to about mean zero and
/// width one, then go through layers that bend and mix them.
pub struct Warp {
    dim: usize,
    centre: Vec<f64>,
    scale: Vec<f64>,
    layers: Vec<Layer>,
}

enum Layer {
    /// Reflections in random directions: points turn.
    Turn(Vec<Vec<f64>>),
    /// Each coordinate through a bend of its own.
    Bend(Vec<Bend>),
    /// The later coordinates are moved and stretched by a function of an earlier one.
    Couple { from: usize, shift: Vec<f64>, stretch: f64 },
}

#[derive(Clone, Copy)]
enum Bend {
    /// sinh(weight·asinh(x) + skew): heavier or lighter tails, skewed.
    SinhArcsinh { skew: f64, weight: f64 },
    /// x + a·x³.
    Cubic { a: f64 },
    /// tanh(a·x): bounded.
    Squash { a: f64 },
    /// exp(a·x): one-sided.
    Exponential { a: f64 },
}

impl Bend {
    fn draw(rng: &mut impl Rng) -> Self {
        match rng.random_range(0..4) {
            0 => Bend::SinhArcsinh { skew: 1.0 * rng.random::<f64>() - 0.5, weight: log_uniform(0.5, 1.5, rng) },
            1 => Bend::Cubic { a: log_uniform(0.01, 0.5, rng) },
            2 => Bend::Squash { a: log_uniform(0.3, 2.5, rng) },
            _ => Bend::Exponential { a: log_uniform(0.1, 0.8, rng) },
        }
    }

    fn at(self, x: f64) -> f64 {
        // Far out a bend goes on in a straight line, so that no point is lost to rounding.
        let near = x.clamp(-8.0, 8.0);
        let bent = match self {
            Bend::SinhArcsinh { skew, weight } => sinh(weight * asinh(near) + skew),
            Bend::Cubic { a } => near + a * near * near * near,
            Bend::Squash { a } => (a * near).tanh() / a,
            Bend::Exponential { a } => (a * near).exp_m1() / a,
        };
        bent + 0.1 * (x - near)
    }
}

fn normal(rng: &mut impl Rng) -> f64 {
    StandardNormal.sample(rng)
}

/// Points to tell place and width from.
const PROBE: usize = 48;

fn place(laws: &[&dyn Law], dim: usize, rng: &mut Generator) -> (Vec<f64>, Vec<f64>) {
    let mut rows = Vec::new();
    laws.iter().for_each(|law| law.sample(PROBE, rng, &mut rows));
    let n = (rows.len() / dim) as f64;
    let column = |i: usize| rows.iter().skip(i).step_by(dim);
    let centre: Vec<f64> = (0..dim).map(|i| column(i).sum::<f64>() / n).collect();
    let width = |i: usize| (column(i).map(|x| (x - centre[i]).powi(2)).sum::<f64>() / n).sqrt().max(1e-9);
    let scale = (0..dim).map(width).collect();
    (centre, scale)
}

impl Warp {
    /// A random map for points of two laws.
    pub fn draw(dim: usize, p: &dyn Law, q: &dyn Law, rng: &mut Generator) -> Self {
        let (centre, scale) = place(&[p, q], dim, rng);
        let mut layers = Vec::new();
        for _ in 0..rng.random_range(1..=2) {
            if dim > 1 && rng.random_bool(0.5) {
                layers.push(Layer::Turn((0..2).map(|_| (0..dim).map(|_| normal(rng)).collect()).collect()));
            }
            if dim > 1 && rng.random_bool(0.35) {
                let strength = log_uniform(0.1, 0.8, rng);
                let from = rng.random_range(0..dim - 1);
                let shift = (from + 1..dim).map(|_| strength * normal(rng)).collect();
                layers.push(Layer::Couple { from, shift, stretch: 0.4 * rng.random::<f64>() });
            } else {
                let one = rng.random_bool(0.4).then(|| Bend::draw(rng));
                layers.push(Layer::Bend((0..dim).map(|_| one.unwrap_or_else(|| Bend::draw(rng))).collect()));
            }
        }
        Warp { dim, centre, scale, layers }
    }

    /// Maps row-major points in place.
    pub fn apply(&self, rows: &mut [f64]) {
        for row in rows.chunks_exact_mut(self.dim) {
            for (x, (c, s)) in row.iter_mut().zip(self.centre.iter().zip(&self.scale)) {
                *x = (*x - c) / s;
            }
            self.layers.iter().for_each(|layer| layer.apply(row));
        }
    }
}

impl Layer {
    fn apply(&self, row: &mut [f64]) {
        match self {
            Layer::Turn(mirrors) => {
                for v in mirrors {
                    let square: f64 = v.iter().map(|x| x * x).sum();
                    let dot: f64 = row.iter().zip(v).map(|(x, y)| x * y).sum();
                    row.iter_mut().zip(v).for_each(|(x, y)| *x -= 2.0 * dot / square * y);
                }
            }
            Layer::Bend(bends) => row.iter_mut().zip(bends).for_each(|(x, b)| *x = b.at(*x)),
            Layer::Couple { from, shift, stretch } => {
                let x = row[*from].clamp(-5.0, 5.0);
                for (y, s) in row[from + 1..].iter_mut().zip(shift) {
                    *y = *y * (stretch * (s * x).tanh()).exp() + s * (x * x - 1.0);
                }
            }
        }
    }
}

/// x_j + a_j·(u² − 1) for the coordinates after the first, u the first in units of its width: clusters become curved. Volumes stay, so
/// densities are those of the straight clusters at the point the map came from.
#[derive(Clone)]
pub struct Shear {
    centre: f64,
    scale: f64,
    amounts: Vec<f64>,
}

/// A mixture bent by a shear.
pub struct Sheared {
    shear: Shear,
    straight: Mixture,
    dim: usize,
}

impl Shear {
    /// A random one for points of a mixture.
    pub fn draw(dim: usize, p: &Mixture, rng: &mut Generator) -> Self {
        let (centre, scale) = place(&[p], dim, rng);
        let strength = log_uniform(0.1, 1.0, rng);
        let amounts = scale[1..].iter().map(|s| strength * s * normal(rng)).collect();
        Shear { centre: centre[0], scale: scale[0], amounts }
    }

    /// Another one nearby.
    pub fn perturbed(&self, s: f64, rng: &mut Generator) -> Self {
        let mut other = self.clone();
        other.amounts.iter_mut().for_each(|a| *a *= 1.0 + 0.5 * s.min(2.0) * normal(rng));
        other
    }

    /// A mixture bent by it.
    pub fn of(self, straight: Mixture) -> Sheared {
        let dim = self.amounts.len() + 1;
        Sheared { shear: self, straight, dim }
    }

    fn apply(&self, row: &mut [f64], sign: f64) {
        let u = ((row[0] - self.centre) / self.scale).clamp(-4.0, 4.0);
        row[1..].iter_mut().zip(&self.amounts).for_each(|(x, a)| *x += sign * a * (u * u - 1.0));
    }
}

impl Law for Sheared {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let first = rows.len();
        self.straight.sample(n, rng, rows);
        rows[first..].chunks_exact_mut(self.dim).for_each(|row| self.shear.apply(row, 1.0));
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let mut straight = rows.to_vec();
        straight.chunks_exact_mut(self.dim).for_each(|row| self.shear.apply(row, -1.0));
        self.straight.log_density(&straight)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn different_points_stay_different_and_finite() {
        let mut rng = Generator::seed_from_u64(3);
        let m = Mixture::new(2, &[1.0], &[0.0, 0.0], &[1.0, 0.0, 0.3, 1.0]).with_freedom(2.2);
        for _ in 0..100 {
            let warp = Warp::draw(2, &m, &m, &mut rng);
            let mut rows = Vec::new();
            m.sample(200, &mut rng, &mut rows);
            warp.apply(&mut rows);
            assert!(rows.iter().all(|x| x.is_finite() && x.abs() < 1e6));
            let mut points: Vec<[u64; 2]> = rows.chunks_exact(2).map(|r| [r[0].to_bits(), r[1].to_bits()]).collect();
            points.sort_unstable();
            points.dedup();
            assert_eq!(points.len(), 200);
        }
    }

    #[test]
    fn a_sheared_density_is_that_of_the_straight_point() {
        let mut rng = Generator::seed_from_u64(4);
        let m = Mixture::new(2, &[1.0], &[0.5, 0.0], &[1.0, 0.0, 0.3, 1.0]);
        let bent = Shear::draw(2, &m, &mut rng).of(m.clone());
        let mut straight = Vec::new();
        m.sample(50, &mut Generator::seed_from_u64(9), &mut straight);
        let mut rows = Vec::new();
        bent.sample(50, &mut Generator::seed_from_u64(9), &mut rows);
        for (a, b) in bent.log_density(&rows).iter().zip(m.log_density(&straight)) {
            assert!((a - b).abs() < 1e-9);
        }
    }
}
