//! KL divergence from a classifier: logistic regression of "from P or from Q".

use setwise_engine::simd::{Isa, isa};

use super::interval::{self, Rows};
use super::points::{check_rows, check_widths};
use super::{Dim, Estimate, Estimator, Points, Quantity};
use crate::linalg::{cholesky, solve_lower};
use crate::{Error, Result};

/// The log odds of a logistic regression, corrected for the numbers of rows, estimate log p − log q; their mean over the rows of P
/// estimates KL(P‖Q).
///
/// The features are all columns, their squares and products, each scaled to mean zero and deviation one over both samples; the penalty
/// is half the sum of squared coefficients (what other software calls C = 1), the intercept is free. Right in the limit for
/// pairs of Gaussians.
///
/// ```
/// use setwise::estimate::{Estimator, Logistic, Points};
/// let p: Vec<f64> = (0..400).map(|i| f64::from(i % 20) / 20.0).collect();
/// let q: Vec<f64> = p.iter().map(|x| x + 2.0).collect();
/// assert!(Logistic.value(Points::new(&p, 1), Points::new(&p, 1))?.abs() < 1e-9);
/// assert!(Logistic.value(Points::new(&p, 1), Points::new(&q, 1))? > 1.0);
/// # Ok::<(), setwise::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Logistic;

/// Newton steps at most, and the length of a step that ends them.
const STEPS: usize = 30;
const ENOUGH: f64 = 1e-6;

impl Estimator for Logistic {
    fn value(&self, p: Points, q: Points) -> Result<f64> {
        check_widths(p, q)?;
        check_rows(p, 2, "a classifier")?;
        check_rows(q, 2, "a classifier")?;
        let (n, m) = (p.len(), q.len());
        let rows = features(p, q);
        let width = rows.len() / (n + m);
        let weights = regress(&rows, width, n)?;
        let odds = |row: &[f64]| row.iter().zip(&weights).map(|(x, w)| x * w).sum::<f64>();
        let mean = rows.chunks_exact(width).take(n).map(odds).sum::<f64>() / n as f64;
        Ok(mean + (m as f64 / n as f64).ln())
    }

    fn estimate(&self, p: Points, q: Points, seed: u64) -> Result<Estimate> {
        let value = self.value(p, q)?;
        let least = 2 * (p.dim() + 2);
        let deviation = interval::deviation(p, q, Rows::Independent, least, seed, |p, q| self.value(p, q));
        let mut estimate = Estimate::new(Quantity::Kl, value, "logistic".to_owned(), []);
        (estimate.n, estimate.dim) = (vec![p.len(), q.len()], Dim::One(p.dim()));
        Ok(estimate.with_interval(interval::around(value, deviation, interval::STUDENT), interval::SUBSAMPLES))
    }
}

/// Scales columns to mean zero and deviation one; those that do not vary become zero.
fn standardise(rows: &mut [f64], width: usize) {
    let n = (rows.len() / width) as f64;
    for c in 0..width {
        let mean = rows.iter().skip(c).step_by(width).sum::<f64>() / n;
        let variance = rows.iter().skip(c).step_by(width).map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let scale = if variance > 0.0 { variance.sqrt().recip() } else { 0.0 };
        rows.iter_mut().skip(c).step_by(width).for_each(|x| *x = (*x - mean) * scale);
    }
}

/// Rows of both samples: columns, squares and products, and a one at the end.
fn features(p: Points, q: Points) -> Vec<f64> {
    let d = p.dim();
    let mut plain = [p.data(), q.data()].concat();
    standardise(&mut plain, d);
    let width = d + d * (d + 1) / 2;
    let mut rows = Vec::with_capacity(plain.len() / d * width);
    for row in plain.chunks_exact(d) {
        rows.extend_from_slice(row);
        rows.extend((0..d).flat_map(|i| (i..d).map(move |j| row[i] * row[j])));
    }
    standardise(&mut rows, width);
    rows.chunks_exact(width).flat_map(|r| r.iter().copied().chain([1.0])).collect()
}

/// Coefficients that maximise the penalised likelihood of the first `positive` rows being from P, by Newton steps, shortened
/// until the likelihood rises.
fn regress(rows: &[f64], width: usize, positive: usize) -> Result<Vec<f64>> {
    let mut weights = vec![0.0; width];
    let dot = |row: &[f64], w: &[f64]| row.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
    let objective = |w: &[f64]| -> f64 {
        let fit = |(i, row): (usize, &[f64])| {
            let s = if i < positive { dot(row, w) } else { -dot(row, w) };
            // −log(1 + e^−s) without overflow.
            s.min(0.0) - (-s.abs()).exp().ln_1p()
        };
        let likelihood: f64 = rows.chunks_exact(width).enumerate().map(fit).sum();
        likelihood - 0.5 * w[..width - 1].iter().map(|w| w * w).sum::<f64>()
    };
    let mut current = objective(&weights);
    for _ in 0..STEPS {
        let mut gradient: Vec<f64> = weights.iter().map(|w| -w).collect();
        gradient[width - 1] = 0.0;
        let mut hessian = vec![0.0; width * width];
        let mut curves = Vec::with_capacity(rows.len() / width);
        for (i, row) in rows.chunks_exact(width).enumerate() {
            let p = 1.0 / (1.0 + (-dot(row, &weights)).exp());
            let error = f64::from(u8::from(i < positive)) - p;
            gradient.iter_mut().zip(row).for_each(|(g, x)| *g += error * x);
            curves.push((p * (1.0 - p)).max(1e-12));
        }
        weighted_squares(rows, &curves, width, &mut hessian);
        for a in 0..width {
            hessian[a * width + a] += if a + 1 < width { 1.0 } else { 1e-9 };
            for b in 0..a {
                hessian[b * width + a] = hessian[a * width + b];
            }
        }
        cholesky(&mut hessian, width).map_err(|_| {
            Error::Estimate("the classifier's equations cannot be solved; rescale the columns".to_owned())
        })?;
        let mut step = gradient;
        solve_lower(&hessian, width, &mut step);
        solve_upper(&hessian, width, &mut step);
        let mut share = 1.0;
        let (next, value) = loop {
            let next: Vec<f64> = weights.iter().zip(&step).map(|(w, s)| w + share * s).collect();
            let value = objective(&next);
            if value >= current || share < 1e-6 {
                break (next, value);
            }
            share *= 0.5;
        };
        let length = step.iter().map(|s| s * s).sum::<f64>().sqrt() * share;
        (weights, current) = (next, value);
        if length < ENOUGH * (1.0 + weights.iter().map(|w| w * w).sum::<f64>().sqrt()) {
            break;
        }
    }
    Ok(weights)
}

/// Adds Σᵢ cᵢ·xᵢ·xᵢᵀ to the lower half of a matrix.
fn weighted_squares(rows: &[f64], curves: &[f64], width: usize, out: &mut [f64]) {
    // SAFETY: `isa` has found the instructions each entry point enables.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => squares_avx512(rows, curves, width, out),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => squares_avx2(rows, curves, width, out),
            _ => squares(rows, curves, width, out),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,fma")]
unsafe fn squares_avx512(rows: &[f64], curves: &[f64], width: usize, out: &mut [f64]) {
    squares(rows, curves, width, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn squares_avx2(rows: &[f64], curves: &[f64], width: usize, out: &mut [f64]) {
    squares(rows, curves, width, out);
}

/// Four rows at a time, so that the matrix is read and written a quarter as often.
#[inline(always)]
fn squares(rows: &[f64], curves: &[f64], width: usize, out: &mut [f64]) {
    let zeros = vec![0.0; width];
    for (rows, curves) in rows.chunks(4 * width).zip(curves.chunks(4)) {
        let row = |k: usize| if k < curves.len() { &rows[k * width..(k + 1) * width] } else { &zeros[..] };
        let curve = |k: usize| curves.get(k).copied().unwrap_or(0.0);
        let x = [row(0), row(1), row(2), row(3)];
        for a in 0..width {
            let c: [f64; 4] = std::array::from_fn(|k| curve(k) * x[k][a]);
            let others = x[0][..=a].iter().zip(&x[1][..=a]).zip(x[2][..=a].iter().zip(&x[3][..=a]));
            for (h, ((x0, x1), (x2, x3))) in out[a * width..a * width + a + 1].iter_mut().zip(others) {
                *h += c[0] * x0 + c[1] * x1 + c[2] * x2 + c[3] * x3;
            }
        }
    }
}

/// Solves Lᵀ·x = b in place of b.
fn solve_upper(factor: &[f64], n: usize, b: &mut [f64]) {
    for i in (0..n).rev() {
        b[i] /= factor[i * n + i];
        let x = b[i];
        b[..i].iter_mut().zip(&factor[i * n..i * n + i]).for_each(|(b, l)| *b -= l * x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Generator, Mixture};
    use rand::SeedableRng;

    #[test]
    fn the_divergence_of_gaussians_is_found_with_many_rows() {
        let p = Mixture::new(2, &[1.0], &[0.0, 0.0], &[1.0, 0.0, 0.4, 0.9]);
        let q = Mixture::new(2, &[1.0], &[0.7, 0.0], &[1.3, 0.0, 0.0, 1.0]);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        let mut rng = Generator::seed_from_u64(1);
        p.sample(20_000, &mut rng, &mut x);
        q.sample(10_000, &mut rng, &mut y);
        let (found, exact) = (Logistic.value(Points::new(&x, 2), Points::new(&y, 2)).unwrap(), p.exact_kl(&q).unwrap());
        assert!((found - exact).abs() < 0.02, "{found}, not {exact}");
    }

    #[test]
    fn the_coefficients_have_no_slope_left() {
        let rows = [1.0, 1.0, -0.5, 1.0, 0.3, 1.0, -1.2, 1.0, 0.4, 1.0];
        let w = regress(&rows, 2, 2).unwrap();
        let slope = |a: usize| {
            let one = |(i, r): (usize, &[f64])| {
                let p = 1.0 / (1.0 + (-(r[0] * w[0] + r[1] * w[1])).exp());
                (f64::from(u8::from(i < 2)) - p) * r[a]
            };
            rows.chunks_exact(2).enumerate().map(one).sum::<f64>() - if a == 0 { w[0] } else { 0.0 }
        };
        assert!(slope(0).abs() < 1e-5 && slope(1).abs() < 1e-5);
    }
}
