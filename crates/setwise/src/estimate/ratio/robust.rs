//! Coordinates in which outliers and heavy tails have little influence.
//!
//! The scatter of the union of both samples is that of a fitted multivariate t distribution. Rows far from the centre
//! are drawn toward it along their direction by a logarithm. This map is invertible, so that it leaves the divergence
//! unchanged. No invertible affine map of the data changes the result up to a rotation, which canonical axes remove.

use super::super::Points;
use crate::linalg::{cholesky, solve_lower};

/// Degrees of freedom of the fitted t distribution.
const FREEDOM: f64 = 2.0;
/// Steps of the fit.
const STEPS: usize = 12;
/// Rows of each sample that determine the scatter.
const MAX_ROWS: usize = 20_000;
/// Distances beyond √d plus this number are compressed.
const MARGIN: f64 = 3.0;

/// A fitted map to robust coordinates.
pub struct Robust {
    dim: usize,
    mean: Vec<f64>,
    /// Lower Cholesky factor of the scatter.
    factor: Vec<f64>,
}

impl Robust {
    /// Fits the map to samples whose union has a covariance of full rank. Both samples have the same weight.
    pub fn fit(p: Points, q: Points) -> Self {
        let d = p.dim();
        let mut rows = Vec::new();
        for points in [p, q] {
            let step = points.len().div_ceil(MAX_ROWS);
            let count = points.len().div_ceil(step) as f64;
            rows.extend((0..points.len()).step_by(step).map(|i| (points.row(i), 0.5 / count)));
        }
        let mut mean = vec![0.0; d];
        for (row, share) in &rows {
            mean.iter_mut().zip(*row).for_each(|(m, x)| *m += share * x);
        }
        let mut factor = vec![0.0; d * d];
        let mut weights = vec![1.0; rows.len()];
        let mut centred = vec![0.0; d];
        let mut distances = vec![0.0; rows.len()];
        for _ in 0..STEPS {
            let mut cov = vec![0.0; d * d];
            let mut moved = vec![0.0; d];
            let mut total = 0.0;
            for ((row, share), weight) in rows.iter().zip(&weights) {
                let w = share * weight;
                total += w;
                for (i, (c, (x, m))) in centred.iter_mut().zip(row.iter().zip(&mean)).enumerate() {
                    *c = x - m;
                    moved[i] += w * *c;
                }
                for i in 0..d {
                    let x = w * centred[i];
                    cov[i * d..=i * d + i].iter_mut().zip(&centred).for_each(|(c, y)| *c += x * y);
                }
            }
            for i in 0..d {
                for j in 0..i {
                    cov[j * d + i] = cov[i * d + j];
                }
            }
            moved.iter_mut().for_each(|m| *m /= total);
            for i in 0..d {
                for j in 0..d {
                    cov[i * d + j] -= total * moved[i] * moved[j];
                }
            }
            let largest = (0..d).map(|i| cov[i * d + i]).fold(0.0, f64::max);
            (0..d).for_each(|i| cov[i * d + i] += 1e-12 * largest);
            if cholesky(&mut cov, d).is_err() {
                break;
            }
            factor = cov;
            mean.iter_mut().zip(&moved).for_each(|(m, x)| *m += x);
            for ((row, _), (distance, weight)) in rows.iter().zip(distances.iter_mut().zip(&mut weights)) {
                centred.iter_mut().zip(row.iter().zip(&mean)).for_each(|(c, (x, m))| *c = x - m);
                solve_lower(&factor, d, &mut centred);
                *distance = centred.iter().map(|c| c * c).sum::<f64>();
                *weight = (FREEDOM + d as f64) / (FREEDOM + *distance);
            }
        }
        // The median squared distance becomes that of a normal distribution.
        let middle = distances.len() / 2;
        let (_, median, _) = distances.select_nth_unstable_by(middle, f64::total_cmp);
        let width = d as f64;
        let normal = width * (1.0 - 2.0 / (9.0 * width)).powi(3);
        let scale = (median.max(1e-300) / normal).sqrt();
        factor.iter_mut().for_each(|f| *f *= scale);
        Robust { dim: d, mean, factor }
    }

    /// Maps rows, and returns the share of rows whose distance is compressed and the largest distance.
    pub fn apply(&self, rows: &mut [f64]) -> [f64; 2] {
        let limit = (self.dim as f64).sqrt() + MARGIN;
        let (mut compressed, mut largest) = (0usize, 0.0f64);
        for row in rows.chunks_exact_mut(self.dim) {
            row.iter_mut().zip(&self.mean).for_each(|(x, m)| *x -= m);
            solve_lower(&self.factor, self.dim, row);
            let distance = row.iter().map(|x| x * x).sum::<f64>().sqrt();
            largest = largest.max(distance);
            if distance > limit {
                compressed += 1;
                let factor = limit * (1.0 + (distance / limit).ln()) / distance;
                row.iter_mut().for_each(|x| *x *= factor);
            }
        }
        [compressed as f64 / (rows.len() / self.dim) as f64, largest]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Generator;
    use rand::SeedableRng;
    use rand_distr::{Distribution, StandardNormal};

    #[test]
    fn one_far_row_leaves_the_others_where_they_are() {
        let mut rng = Generator::seed_from_u64(1);
        let mut draw = |n: usize| -> Vec<f64> { (0..n).map(|_| StandardNormal.sample(&mut rng)).collect() };
        let (p, q) = (draw(200), draw(200));
        let mut outlier = q.clone();
        outlier[7] = 1e6;
        let map = |q: &[f64]| {
            let mut rows = p.clone();
            Robust::fit(Points::new(&p, 2), Points::new(q, 2)).apply(&mut rows);
            rows
        };
        let difference = map(&q).iter().zip(map(&outlier)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(difference < 0.3, "{difference}");
    }

    #[test]
    fn the_map_is_invertible_along_every_direction() {
        let p: Vec<f64> = (0..50).map(|i| f64::from(i * 7 % 50) - 25.0).collect();
        let robust = Robust::fit(Points::new(&p, 1), Points::new(&p, 1));
        let mut far: Vec<f64> = (0..60).map(|i| 1.5f64.powi(i)).collect();
        robust.apply(&mut far);
        assert!(far.windows(2).all(|w| w[0] < w[1]), "{far:?}");
    }
}
