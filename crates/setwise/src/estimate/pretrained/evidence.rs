//! What the estimator looks at: parts of the samples for the set model, and classical estimates on all rows.
//!
//! Everything is computed in [`Canonical`] coordinates, so no affine map of the data and no order of the rows changes it.

use rand::SeedableRng;
use rand::seq::SliceRandom;

use super::super::neighbors::{Neighbors, Norm};
use super::super::points::{check_rows, check_widths};
use super::super::{Estimator, Logistic, Points, digamma};
use crate::data::Generator;
use crate::linalg::{cholesky, log_det, moments, solve_lower, symmetric_eigen};
use crate::sets::Canonical;
use crate::{Error, Result};

/// Fewer rows leave nothing to estimate from.
pub const FEWEST: usize = 5;
/// Most rows of a part, most parts, and rows a part keeps of the smaller sample.
const PART: usize = 256;
const PARTS: usize = 4;
const LEAST_OF_PART: usize = 30;
/// Neighbours whose distances are taken.
const NEIGHBOURS: [usize; 4] = [1, 3, 8, 20];
/// Classical numbers per pair of samples.
pub const CLASSICAL: usize = 18;
/// Rows of each sample a classifier is trained on.
const CLASSIFIED: usize = 1024;

/// Two parts of the samples in coordinates of their own.
pub struct Part {
    /// Rows of P.
    pub p: Vec<f32>,
    /// Rows of Q.
    pub q: Vec<f32>,
}

/// What is seen of a pair of samples.
pub struct Evidence {
    /// Directions in which the samples vary.
    pub dim: usize,
    /// Disjoint parts.
    pub parts: Vec<Part>,
    /// Sizes, shapes and classical estimates of the divergence, those as they are.
    pub classical: [f64; CLASSICAL],
    /// How many of the classical numbers, from the end, are divergences.
    pub divergences: usize,
}

/// How many parts samples of these sizes are cut into, and the rows each part has of both.
fn cut(n: usize, m: usize) -> (usize, [usize; 2]) {
    let wanted = n.max(m).div_ceil(PART).min(PARTS);
    let parts = wanted.min(n.min(m) / LEAST_OF_PART).max(1);
    (parts, [(n / parts).min(PART), (m / parts).min(PART)])
}

impl Evidence {
    /// Looks at two samples.
    pub fn of(p: Points, q: Points) -> Result<Self> {
        check_widths(p, q)?;
        check_rows(p, FEWEST, "an estimate")?;
        check_rows(q, FEWEST, "an estimate")?;
        for points in [p, q] {
            if (1..points.len()).all(|i| points.row(i) == points.row(0)) {
                return Err(Error::Estimate(format!("{}: all rows are one point", points.name())));
            }
        }
        let frame = Canonical::of(p.data(), q.data(), p.dim());
        let (x, y, dim) = if frame.rank() == p.dim() {
            (mapped(&frame, p.data()), mapped(&frame, q.data()), p.dim())
        } else {
            let Some((x, y, dim)) = varying(p, q) else {
                return Err(Error::Estimate(format!("all rows of {} and {} are one point", p.name(), q.name())));
            };
            let frame = Canonical::of(&x, &y, dim);
            (mapped(&frame, &x), mapped(&frame, &y), dim)
        };
        if x.iter().chain(&y).any(|v| !v.is_finite()) {
            return Err(Error::Estimate(format!(
                "numbers of {} and {} are beyond what can be squared; rescale the columns",
                p.name(),
                q.name()
            )));
        }
        let rows = [p.len(), q.len()];
        let (count, sizes) = cut(rows[0], rows[1]);
        let parts = match count == 1 && sizes == rows {
            true => vec![Part { p: single(&x), q: single(&y) }],
            false => {
                let (of_p, of_q) = (shuffled(&x, dim, 1), shuffled(&y, dim, 2));
                let take = |rows: &[f64], order: &[usize], k: usize, size: usize| -> Vec<f64> {
                    order[k * size..(k + 1) * size]
                        .iter()
                        .flat_map(|&i| &rows[i * dim..(i + 1) * dim])
                        .copied()
                        .collect()
                };
                let part = |k: usize| {
                    let (a, b) = (take(&x, &of_p, k, sizes[0]), take(&y, &of_q, k, sizes[1]));
                    let frame = Canonical::of(&a, &b, dim);
                    Part { p: single(&mapped(&frame, &a)), q: single(&mapped(&frame, &b)) }
                };
                (0..count).map(part).collect()
            }
        };
        let (x, y) = (Points::new(&x, dim), Points::new(&y, dim));
        Ok(Evidence { dim, parts, classical: classical(x, y), divergences: NEIGHBOURS.len() + 5 })
    }
}

fn mapped(frame: &Canonical, rows: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; rows.len()];
    frame.apply(rows, &mut out);
    out
}

fn single(rows: &[f64]) -> Vec<f32> {
    rows.iter().map(|&x| x as f32).collect()
}

/// Rows in a random order that depends on where they lie and not on how they were listed.
fn shuffled(rows: &[f64], dim: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows.len() / dim).collect();
    order.sort_by(|&a, &b| rows[a * dim].total_cmp(&rows[b * dim]));
    order.shuffle(&mut Generator::seed_from_u64(seed));
    order
}

/// The samples along the directions in which their union varies, with the number of these; none if nothing varies.
fn varying(p: Points, q: Points) -> Option<(Vec<f64>, Vec<f64>, usize)> {
    let d = p.dim();
    let (mean, mut cov) = moments(&[p.data(), q.data()].concat(), d, 1);
    let scale: Vec<f64> = (0..d).map(|i| cov[i * d + i].sqrt()).map(|s| if s > 0.0 { 1.0 / s } else { 0.0 }).collect();
    for (i, row) in cov.chunks_exact_mut(d).enumerate() {
        row.iter_mut().zip(&scale).for_each(|(c, s)| *c *= s * scale[i]);
    }
    let (values, vectors) = symmetric_eigen(&mut cov, d);
    let kept: Vec<&[f64]> =
        values.iter().zip(vectors.chunks_exact(d)).filter(|(v, _)| **v > 1e-9 * d as f64).map(|(_, e)| e).collect();
    let project = |points: Points| -> Vec<f64> {
        let along =
            |row: &[f64], axis: &[f64]| -> f64 { (0..d).map(|i| (row[i] - mean[i]) * scale[i] * axis[i]).sum() };
        (0..points.len())
            .flat_map(|i| kept.iter().map(move |axis| along(points.row(i), axis)).collect::<Vec<_>>())
            .collect()
    };
    (!kept.is_empty()).then(|| (project(p), project(q), kept.len()))
}

/// Numbers about sizes and shapes, then divergences: neighbours, Gaussians, a classifier.
fn classical(x: Points, y: Points) -> [f64; CLASSICAL] {
    let (n, m, d) = (x.len() as f64, y.len() as f64, x.dim() as f64);
    let (of_x, of_y) = (Shape::of(x), Shape::of(y));
    let shift: f64 = of_x.mean.iter().zip(&of_y.mean).map(|(a, b)| (a - b) * (a - b)).sum();
    let [k1, k3, k8, k20] = neighbours(x, y);
    [
        n.ln(),
        m.ln(),
        d.ln(),
        (d / n).sqrt(),
        (d / m).sqrt(),
        1.0 / d,
        shift,
        of_x.tails(x).ln(),
        of_y.tails(y).ln(),
        k1,
        k3,
        k8,
        k20,
        gaussian(&of_x, &of_y, x.dim(), false),
        gaussian(&of_x, &of_y, x.dim(), true),
        gaussian(&of_y, &of_x, x.dim(), true),
        gaussian(&of_x.shrunk(x.dim()), &of_y.shrunk(x.dim()), x.dim(), false),
        classifier(x, y),
    ]
}

/// The classifier's estimate on a bounded number of rows. Its equations can always be solved in whitened coordinates.
fn classifier(x: Points, y: Points) -> f64 {
    let some = |points: Points, seed: u64| match points.len() > CLASSIFIED {
        true => points.select(&shuffled(points.data(), points.dim(), seed)[..CLASSIFIED]),
        false => points.data().to_vec(),
    };
    let (a, b) = (some(x, 1), some(y, 2));
    Logistic.value(Points::new(&a, x.dim()), Points::new(&b, y.dim())).unwrap_or(0.0)
}

/// Estimates of KL(P‖Q) from several neighbours in one pass over the points.
fn neighbours(x: Points, y: Points) -> [f64; 4] {
    let (n, m, d) = (x.len(), y.len(), x.dim() as f64);
    let ks = NEIGHBOURS.map(|k| k.min(n - 1).min(m));
    let (of_x, of_y) = (Neighbors::new(x, Norm::Euclidean), Neighbors::new(y, Norm::Euclidean));
    let (rho, nu) = (of_x.kths(x, of_x.order(), ks.map(|k| k + 1)), of_y.kths(x, of_x.order(), ks));
    let mut sums = [0.0; 4];
    for (r, v) in rho.iter().zip(&nu) {
        for i in 0..4 {
            // Coincident points are no farther apart than rounding.
            sums[i] += (v[i].max(1e-16) / r[i].max(1e-16)).ln();
        }
    }
    sums.map(|s| 0.5 * d * s / n as f64 + (m as f64 / (n as f64 - 1.0)).ln())
}

/// Moments of a sample in whitened coordinates.
struct Shape {
    rows: f64,
    mean: Vec<f64>,
    cov: Vec<f64>,
    factor: Vec<f64>,
}

/// Added to variances, which are about one: directions in which one sample does not vary stay finite.
const RIDGE: f64 = 1e-5;

impl Shape {
    fn of(points: Points) -> Self {
        let (mean, cov) = moments(points.data(), points.dim(), 1);
        Self::new(points.len() as f64, mean, cov, points.dim())
    }

    fn new(rows: f64, mean: Vec<f64>, cov: Vec<f64>, d: usize) -> Self {
        let mut factor = cov.clone();
        (0..d).for_each(|i| factor[i * d + i] += RIDGE);
        // The ridge makes it positive definite unless rounding is larger than that.
        if cholesky(&mut factor, d).is_err() {
            factor.fill(0.0);
            (0..d).for_each(|i| factor[i * d + i] = (cov[i * d + i].max(0.0) + RIDGE).sqrt());
        }
        Shape { rows, mean, cov, factor }
    }

    /// The covariance drawn toward a multiple of the identity, the more the fewer rows there are.
    fn shrunk(&self, d: usize) -> Self {
        let a = d as f64 / (self.rows + d as f64);
        let average = (0..d).map(|i| self.cov[i * d + i]).sum::<f64>() / d as f64;
        let entry = |(i, c): (usize, &f64)| (1.0 - a) * c + if i % (d + 1) == 0 { a * average } else { 0.0 };
        let cov = self.cov.iter().enumerate().map(entry).collect();
        Self::new(self.rows, self.mean.clone(), cov, d)
    }

    /// Mean fourth power of the distance from the centre, one for Gaussians.
    fn tails(&self, points: Points) -> f64 {
        let d = points.dim();
        let mut z = vec![0.0; d];
        let mut sum = 0.0;
        for i in 0..points.len() {
            z.iter_mut().zip(points.row(i).iter().zip(&self.mean)).for_each(|(z, (x, m))| *z = x - m);
            solve_lower(&self.factor, d, &mut z);
            sum += z.iter().map(|z| z * z).sum::<f64>().powi(2);
        }
        (sum / self.rows / (d * (d + 2)) as f64).max(1e-3)
    }

    /// E log det of a sample's covariance less that of the distribution, for Gaussians.
    fn log_det_bias(&self, d: usize) -> f64 {
        let half = |i: usize| 0.5 * (self.rows - 1.0 - i as f64).max(1.0);
        (0..d).map(|i| digamma(half(i))).sum::<f64>() - d as f64 * (0.5 * (self.rows - 1.0)).ln()
    }
}

/// The divergence of two Gaussians with these moments, as it is or freed of the bias it has where both are Gaussian:
/// E Σ̂q⁻¹ = Σq⁻¹·(m − 1)/(m − d − 2), E log det Σ̂ in terms of digamma, and the noise of the means.
fn gaussian(p: &Shape, q: &Shape, d: usize, debiased: bool) -> f64 {
    let width = d as f64;
    let mut column = vec![0.0; d];
    let mut trace = 0.0;
    for j in 0..d {
        column.iter_mut().enumerate().for_each(|(i, c)| *c = p.factor[i * d + j]);
        solve_lower(&q.factor, d, &mut column);
        trace += column.iter().map(|c| c * c).sum::<f64>();
    }
    column.iter_mut().zip(q.mean.iter().zip(&p.mean)).for_each(|(c, (q, p))| *c = q - p);
    solve_lower(&q.factor, d, &mut column);
    let shift: f64 = column.iter().map(|c| c * c).sum();
    let volume = log_det(&q.factor, d) - log_det(&p.factor, d);
    if !debiased {
        return 0.5 * (trace + shift - width + volume);
    }
    let share = ((q.rows - width - 2.0) / (q.rows - 1.0)).max(0.05);
    let noise = share * trace / p.rows + width / q.rows;
    let bias = q.log_det_bias(d) - p.log_det_bias(d);
    0.5 * (share * (trace + shift) - noise - width + volume - bias)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Mixture;

    #[test]
    fn parts_are_disjoint_and_as_large_as_the_model_was_trained_for() {
        assert_eq!(cut(200, 250), (1, [200, 250]));
        assert_eq!(cut(1000, 1000), (4, [250, 250]));
        assert_eq!(cut(5000, 70), (2, [256, 35]));
        assert_eq!(cut(600, 40), (1, [256, 40]));
        assert_eq!(cut(10, 12), (1, [10, 12]));
    }

    #[test]
    fn the_debiased_gaussian_divergence_has_no_bias_on_gaussians() {
        let p = Mixture::new(3, &[1.0], &[0.0; 3], &[1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.3, 0.8]);
        let q = Mixture::new(3, &[1.0], &[0.5, 0.0, 0.2], &[1.2, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
        let exact = p.exact_kl(&q).unwrap();
        let mut rng = Generator::seed_from_u64(1);
        let (mut plain, mut free) = (0.0, 0.0);
        for _ in 0..2000 {
            let (mut x, mut y) = (Vec::new(), Vec::new());
            p.sample(40, &mut rng, &mut x);
            q.sample(30, &mut rng, &mut y);
            let (x, y) = (Shape::of(Points::new(&x, 3)), Shape::of(Points::new(&y, 3)));
            plain += gaussian(&x, &y, 3, false) / 2000.0;
            free += gaussian(&x, &y, 3, true) / 2000.0;
        }
        assert!((free - exact).abs() < 0.02 && plain - exact > 0.1, "{exact}: {free}, {plain}");
    }

    #[test]
    fn columns_that_do_not_vary_or_repeat_others_are_left_out() {
        let rows = |k: usize| -> Vec<f64> {
            (0..60).flat_map(|i| [((i * k) % 17) as f64, 3.0, 2.0 * ((i * k) % 17) as f64]).collect()
        };
        let (p, q) = (rows(5), rows(7));
        assert_eq!(Evidence::of(Points::new(&p, 3), Points::new(&q, 3)).unwrap().dim, 1);
        let same = vec![1.0; 30];
        let said = Evidence::of(Points::new(&same, 3), Points::new(&same, 3)).err().unwrap().to_string();
        assert!(said.contains("one point"), "{said}");
    }
}
