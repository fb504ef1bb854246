//! Many small clusters on lattices, curves, sheets or at random.

use rand::RngExt;

use setwise::distributions::Mixture;
use setwise::random::Generator;

use super::{DensityPair, in_either_order, unit_vector};
use crate::samplers::{log_uniform, normal};

/// Clusters with their own orthogonal axes: `width` across, `length` along the first axis.
#[derive(Clone)]
struct Layout {
    dim: usize,
    weights: Vec<f64>,
    centres: Vec<f64>,
    /// The first axis of every cluster.
    directions: Vec<f64>,
    width: f64,
    length: f64,
    /// Standard deviation across a sheet's normal, where there is one.
    sheet: Option<(Vec<f64>, f64)>,
}

impl Layout {
    fn draw(dim: usize, rng: &mut Generator) -> Self {
        let count = log_uniform(2.0, 97.0, rng) as usize;
        let (centres, directions, spacing) = match rng.random_range(0..5) {
            0 | 1 => scattered(dim, count, rng),
            2 => lattice(dim, count, rng),
            3 if dim > 1 => curve(dim, count.max(12), rng),
            _ => walk(dim, count, rng),
        };
        let count = centres.len() / dim;
        let uneven = if rng.random_bool(0.5) { 0.0 } else { log_uniform(0.2, 1.5, rng) };
        let weights = (0..count).map(|_| (uneven * normal(rng)).exp()).collect();
        let width = spacing * log_uniform(0.04, 1.0, rng);
        let length = if rng.random_bool(0.5) { width } else { width * log_uniform(1.0, 8.0, rng) };
        let sheet =
            (dim > 1 && rng.random_bool(0.25)).then(|| (unit_vector(dim, rng), width * log_uniform(0.03, 0.5, rng)));
        let mut layout = Layout { dim, weights, centres, directions, width, length, sheet };
        layout.flatten();
        layout
    }

    /// Projects centres onto the sheet.
    fn flatten(&mut self) {
        if let Some((normal, _)) = &self.sheet {
            for centre in self.centres.chunks_exact_mut(self.dim) {
                let along: f64 = centre.iter().zip(normal).map(|(c, n)| c * n).sum();
                centre.iter_mut().zip(normal).for_each(|(c, n)| *c -= along * n);
            }
        }
    }

    /// The mixture, with Gaussian noise of deviation `blur` added to every point.
    fn mixture(&self, blur: f64) -> Mixture {
        let d = self.dim;
        let mut factors = Vec::with_capacity(self.weights.len() * d * d);
        for direction in self.directions.chunks_exact(d) {
            let mut cov = vec![0.0; d * d];
            for i in 0..d {
                cov[i * d + i] += self.width.powi(2);
                for j in 0..d {
                    cov[i * d + j] += (self.length.powi(2) - self.width.powi(2)) * direction[i] * direction[j];
                }
            }
            if let Some((normal, thickness)) = &self.sheet {
                // P·Σ·P + thickness²·n·nᵀ, where P projects onto the sheet.
                project(&mut cov, normal, d);
                for i in 0..d {
                    for j in 0..d {
                        cov[i * d + j] += thickness.powi(2) * normal[i] * normal[j];
                    }
                }
            }
            (0..d).for_each(|i| cov[i * d + i] += blur * blur + 1e-12);
            setwise::linalg::cholesky(&mut cov, d).expect("a positive definite covariance");
            factors.extend(cov);
        }
        Mixture::new(d, &self.weights, &self.centres, &factors)
    }

    /// One Gaussian with the mean and the covariance of the mixture, up to a factor.
    fn smooth(&self, scale: f64) -> Mixture {
        let d = self.dim;
        let total: f64 = self.weights.iter().sum();
        let mut mean = vec![0.0; d];
        for (w, c) in self.weights.iter().zip(self.centres.chunks_exact(d)) {
            mean.iter_mut().zip(c).for_each(|(m, c)| *m += w / total * c);
        }
        let mut cov = vec![0.0; d * d];
        for (w, c) in self.weights.iter().zip(self.centres.chunks_exact(d)) {
            for i in 0..d {
                for j in 0..d {
                    cov[i * d + j] += w / total * (c[i] - mean[i]) * (c[j] - mean[j]);
                }
            }
        }
        (0..d).for_each(|i| cov[i * d + i] += self.length.max(self.width).powi(2));
        cov.iter_mut().for_each(|c| *c *= scale * scale);
        setwise::linalg::cholesky(&mut cov, d).expect("a positive definite covariance");
        Mixture::new(d, &[1.0], &mean, &cov)
    }
}

/// Replaces a matrix by P·M·P with P = I − n·nᵀ.
fn project(matrix: &mut [f64], n: &[f64], d: usize) {
    for _ in 0..2 {
        for row in matrix.chunks_exact_mut(d) {
            let along: f64 = row.iter().zip(n).map(|(x, n)| x * n).sum();
            row.iter_mut().zip(n).for_each(|(x, n)| *x -= along * n);
        }
        for i in 0..d {
            for j in 0..i {
                matrix.swap(i * d + j, j * d + i);
            }
        }
    }
}

/// Centres, directions and the typical distance between neighbours.
type Arrangement = (Vec<f64>, Vec<f64>, f64);

fn random_directions(dim: usize, count: usize, rng: &mut Generator) -> Vec<f64> {
    let shared = unit_vector(dim, rng);
    let one = rng.random_bool(0.4);
    (0..count).flat_map(|_| if one { shared.clone() } else { unit_vector(dim, rng) }).collect()
}

fn scattered(dim: usize, count: usize, rng: &mut Generator) -> Arrangement {
    let gaussian = rng.random_bool(0.5);
    let mut one = || if gaussian { normal(rng) } else { 3.4 * (rng.random::<f64>() - 0.5) };
    let centres = (0..count * dim).map(|_| one()).collect();
    (centres, random_directions(dim, count, rng), 2.0 * (count as f64).powf(-1.0 / dim as f64))
}

/// Points of a lattice in a few dimensions, some of them left out; the other coordinates are zero.
fn lattice(dim: usize, count: usize, rng: &mut Generator) -> Arrangement {
    let active = rng.random_range(1..=dim.min(3));
    let side = ((count as f64).powf(1.0 / active as f64).round() as usize).max(2);
    let (kept, jitter) = (rng.random_range(0.5..1.0), 0.2 * rng.random::<f64>());
    let skew = 0.5 * normal(rng);
    let mut centres = Vec::new();
    for i in 0..side.pow(active as u32) {
        if !centres.is_empty() && !rng.random_bool(kept) {
            continue;
        }
        let mut rest = i;
        let mut centre = vec![0.0; dim];
        for c in centre.iter_mut().take(active) {
            *c = (rest % side) as f64 + jitter * normal(rng);
            rest /= side;
        }
        if active > 1 {
            centre[0] += skew * centre[1];
        }
        centres.extend(centre);
    }
    let count = centres.len() / dim;
    (centres, random_directions(dim, count, rng), 1.0)
}

/// Points along a random closed curve: a Fourier series with few terms.
fn curve(dim: usize, count: usize, rng: &mut Generator) -> Arrangement {
    let terms = rng.random_range(1..=4);
    let rough = rng.random_range(0.5..1.5);
    let coefficients: Vec<[f64; 2]> =
        (0..terms * dim).map(|i| [normal(rng), normal(rng)].map(|x| x / ((i / dim + 1) as f64).powf(rough))).collect();
    let at = |t: f64, derivative: bool| -> Vec<f64> {
        let term = |j: usize, [a, b]: [f64; 2]| {
            let k = (j + 1) as f64;
            if derivative { k * (b * (k * t).cos() - a * (k * t).sin()) } else { a * (k * t).cos() + b * (k * t).sin() }
        };
        (0..dim).map(|c| (0..terms).map(|j| term(j, coefficients[j * dim + c])).sum()).collect()
    };
    let angle = |i: usize| std::f64::consts::TAU * i as f64 / count as f64;
    let centres: Vec<f64> = (0..count).flat_map(|i| at(angle(i), false)).collect();
    let mut total = 0.0;
    let directions = (0..count)
        .flat_map(|i| {
            let v = at(angle(i), true);
            let length = v.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-9);
            total += length;
            v.into_iter().map(|x| x / length).collect::<Vec<_>>()
        })
        .collect();
    (centres, directions, total / count as f64 * std::f64::consts::TAU / count as f64 * 2.0)
}

/// A random walk.
fn walk(dim: usize, count: usize, rng: &mut Generator) -> Arrangement {
    let persistence = rng.random::<f64>();
    let mut place = vec![0.0; dim];
    let mut step = unit_vector(dim, rng);
    let (mut centres, mut directions) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let other = unit_vector(dim, rng);
        step.iter_mut().zip(&other).for_each(|(s, o)| *s = persistence * *s + (1.0 - persistence) * o);
        let length = step.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-9);
        step.iter_mut().for_each(|s| *s /= length);
        place.iter_mut().zip(&step).for_each(|(p, s)| *p += s);
        centres.extend(&place);
        directions.extend(&step);
    }
    (centres, directions, 1.0)
}

/// Draws a fine mixture and a smoothed, moved or reweighted version of it, in either order.
pub fn pair(dim: usize, rng: &mut Generator) -> DensityPair {
    let fine = Layout::draw(dim, rng);
    let of_fine = fine.mixture(0.0);
    let other = match rng.random_range(0..11) {
        0..=3 => fine.mixture(fine.width * log_uniform(0.3, 20.0, rng)),
        4..=5 => fine.smooth(log_uniform(0.9, 1.6, rng)),
        6 => {
            let mut moved = fine.clone();
            let step = fine.width * log_uniform(0.1, 3.0, rng);
            moved.centres.iter_mut().for_each(|c| *c += step * normal(rng));
            moved.flatten();
            moved.mixture(fine.width * 0.3 * rng.random::<f64>())
        }
        7 => {
            let mut moved = fine.clone();
            let shift = fine.width * log_uniform(0.1, 3.0, rng);
            let direction = unit_vector(dim, rng);
            for centre in moved.centres.chunks_exact_mut(dim) {
                centre.iter_mut().zip(&direction).for_each(|(c, d)| *c += shift * d);
            }
            moved.mixture(0.0)
        }
        8..=9 => {
            let mut weighted = fine.clone();
            let strength = log_uniform(0.1, 3.0, rng);
            // Some clusters are nearly missing.
            let (missing, depth) = match rng.random_bool(0.5) {
                true => (rng.random_range(0.1..0.6), log_uniform(2.0, 10.0, rng)),
                false => (0.0, 0.0),
            };
            let mut factor = || strength * normal(rng) - if rng.random_bool(missing) { depth } else { 0.0 };
            weighted.weights.iter_mut().for_each(|w| *w *= factor().exp());
            weighted.mixture(0.0)
        }
        // Noise is a part of the second distribution.
        _ => {
            let share = log_uniform(0.02, 0.8, rng);
            let mut all = fine.clone();
            let smooth = fine.smooth(1.2);
            let total: f64 = all.weights.iter().sum();
            all.weights.push(total * share / (1.0 - share));
            let (mean, factor) = smooth.gaussians().next().expect("one component");
            all.centres.extend(mean);
            let narrow = fine.mixture(0.0);
            let factors: Vec<f64> = narrow.gaussians().flat_map(|(_, f)| f.to_vec()).chain(factor.to_vec()).collect();
            Mixture::new(dim, &all.weights, &all.centres, &factors)
        }
    };
    in_either_order(of_fine, other, 0.6, rng)
}
