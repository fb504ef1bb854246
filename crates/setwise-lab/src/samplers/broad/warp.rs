//! Smooth invertible maps of points.

use rand::{Rng, RngExt};

use setwise::distributions::Mixture;
use setwise::random::Generator;

use super::Density;
use super::marginals::{asinh, sinh};
use crate::samplers::{log_uniform, normal};

/// An invertible map for both samples, which preserves the ratio of their densities.
///
/// The map standardises points by estimated means and deviations, then applies layers that bend and mix coordinates.
pub struct Warp {
    dim: usize,
    centre: Vec<f64>,
    scale: Vec<f64>,
    layers: Vec<Layer>,
}

enum Layer {
    /// Householder reflections in random directions: a rotation.
    Reflect(Vec<Vec<f64>>),
    /// A monotone function for each coordinate.
    Bend(Vec<Bend>),
    /// A coupling layer: coordinates after `from` are shifted and scaled by functions of coordinate `from`.
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
        // Linear extrapolation beyond ±8 keeps distinct points distinct despite rounding.
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

/// Points of each density that estimate its location and scale.
const PROBE_POINTS: usize = 48;

fn location_and_scale(densities: &[&dyn Density], dim: usize, rng: &mut Generator) -> (Vec<f64>, Vec<f64>) {
    let mut rows = Vec::new();
    densities.iter().for_each(|density| density.sample(PROBE_POINTS, rng, &mut rows));
    let n = (rows.len() / dim) as f64;
    let column = |i: usize| rows.iter().skip(i).step_by(dim);
    let centre: Vec<f64> = (0..dim).map(|i| column(i).sum::<f64>() / n).collect();
    let width = |i: usize| (column(i).map(|x| (x - centre[i]).powi(2)).sum::<f64>() / n).sqrt().max(1e-9);
    let scale = (0..dim).map(width).collect();
    (centre, scale)
}

impl Warp {
    /// Draws a random map for points of two densities.
    pub fn draw(dim: usize, p: &dyn Density, q: &dyn Density, rng: &mut Generator) -> Self {
        let (centre, scale) = location_and_scale(&[p, q], dim, rng);
        let mut layers = Vec::new();
        for _ in 0..rng.random_range(1..=2) {
            if dim > 1 && rng.random_bool(0.5) {
                layers.push(Layer::Reflect((0..2).map(|_| (0..dim).map(|_| normal(rng)).collect()).collect()));
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

    /// Maps row-major points in location_and_scale.
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
            Layer::Reflect(normals) => {
                for v in normals {
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

/// A shear that curves clusters: x_j + a_j·(u² − 1) for j > 0, with u = (x_0 − centre)/scale.
///
/// The shear preserves volume, so the density of an image is the density of its preimage.
#[derive(Clone)]
pub struct Shear {
    centre: f64,
    scale: f64,
    amounts: Vec<f64>,
}

/// The image of a mixture under a shear.
pub struct Sheared {
    shear: Shear,
    preimage: Mixture,
    dim: usize,
}

impl Shear {
    /// Draws a random shear for points of a mixture.
    pub fn draw(dim: usize, p: &Mixture, rng: &mut Generator) -> Self {
        let (centre, scale) = location_and_scale(&[p], dim, rng);
        let strength = log_uniform(0.1, 1.0, rng);
        let amounts = scale[1..].iter().map(|s| strength * s * normal(rng)).collect();
        Shear { centre: centre[0], scale: scale[0], amounts }
    }

    /// Draws a shear near this one.
    pub fn perturbed(&self, s: f64, rng: &mut Generator) -> Self {
        let mut other = self.clone();
        other.amounts.iter_mut().for_each(|a| *a *= 1.0 + 0.5 * s.min(2.0) * normal(rng));
        other
    }

    /// The image of a mixture under the shear.
    pub fn of(self, preimage: Mixture) -> Sheared {
        let dim = self.amounts.len() + 1;
        Sheared { shear: self, preimage, dim }
    }

    fn apply(&self, row: &mut [f64], sign: f64) {
        let u = ((row[0] - self.centre) / self.scale).clamp(-4.0, 4.0);
        row[1..].iter_mut().zip(&self.amounts).for_each(|(x, a)| *x += sign * a * (u * u - 1.0));
    }
}

impl Density for Sheared {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let first = rows.len();
        self.preimage.sample(n, rng, rows);
        rows[first..].chunks_exact_mut(self.dim).for_each(|row| self.shear.apply(row, 1.0));
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let mut preimage = rows.to_vec();
        preimage.chunks_exact_mut(self.dim).for_each(|row| self.shear.apply(row, -1.0));
        self.preimage.log_density(&preimage)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_warp_keeps_distinct_points_distinct_and_finite() {
        let mut rng = Generator::seed_from_u64(3);
        let m = Mixture::new(2, &[1.0], &[0.0, 0.0], &[1.0, 0.0, 0.3, 1.0]).with_degrees_of_freedom(2.2);
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
    fn the_density_of_a_sheared_point_is_that_of_its_preimage() {
        let mut rng = Generator::seed_from_u64(4);
        let m = Mixture::new(2, &[1.0], &[0.5, 0.0], &[1.0, 0.0, 0.3, 1.0]);
        let bent = Shear::draw(2, &m, &mut rng).of(m.clone());
        let mut preimage = Vec::new();
        m.sample(50, &mut Generator::seed_from_u64(9), &mut preimage);
        let mut rows = Vec::new();
        bent.sample(50, &mut Generator::seed_from_u64(9), &mut rows);
        for (a, b) in bent.log_density(&rows).iter().zip(m.log_density(&preimage)) {
            assert!((a - b).abs() < 1e-9);
        }
    }
}
