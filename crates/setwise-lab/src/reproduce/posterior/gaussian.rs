//! The posterior of one Gaussian of a mixture given its points: Markov steps that leave it invariant.
//!
//! Steps update the Cholesky factor L of the covariance row by row. A row is a vector (ℓ, λ) with λ on the diagonal.
//! Its prior depends on |ℓ| and λ alone. Given λ the likelihood is Gaussian in ℓ, so elliptical slice sampling of ℓ
//! mixes fast.

use rand::Rng;
use rand_distr::{Distribution, StandardNormal};

use setwise::distributions::MixtureLaw;
use setwise::linalg::{cholesky, solve_lower, solve_lower_transposed};

use super::slice;

/// Width of the first slice for logarithms of scales. Their prior deviation is a few tenths.
const LOG_WIDTH: f64 = 2.0;

/// The prior of a component's mean and factor.
pub struct Prior<'a> {
    pub law: &'a MixtureLaw,
    pub dim: usize,
}

impl Prior<'_> {
    /// Log density of row `i` as a vector of i + 1 coordinates, up to a constant: `square` is |ℓ|², `last` is λ.
    ///
    /// The row's length s is log-normal. Its angle θ, with y = sin²θ, has density sin^(2a−1)·cos^(2b−1). The volume
    /// element is s^i·sin^(i−1) ds dθ dΩ.
    fn row_log_density(&self, i: usize, square: f64, last: f64) -> f64 {
        let length = (square + last * last).sqrt();
        let log_length = length.ln();
        let scale = -0.5 * (log_length / self.law.log_scale_sd).powi(2) - (1 + i) as f64 * log_length;
        if i == 0 {
            return scale;
        }
        let (a, b) = self.law.lkj.beta_parameters(self.dim, self.law.concentration, i);
        let sine = match 2.0 * a - i as f64 {
            0.0 => 0.0,
            power => power * (0.5 * square.ln() - log_length),
        };
        scale + sine + (2.0 * b - 1.0) * (last.ln() - log_length)
    }

    /// Mean square of a coordinate of ℓ: the variance of the Gaussian that approximates the prior in proposals.
    fn row_variance(&self, i: usize) -> f64 {
        let (a, b) = self.law.lkj.beta_parameters(self.dim, self.law.concentration, i);
        (2.0 * self.law.log_scale_sd.powi(2)).exp() * a / (a + b) / i as f64
    }
}

/// Steps of mean and factor, given at least one row-major point.
pub fn step(prior: &Prior, mean: &mut [f64], factor: &mut [f64], points: &[f64], rng: &mut impl Rng) {
    let (d, n) = (prior.dim, points.len() / prior.dim);
    let mut centre = vec![0.0; d];
    for row in points.chunks_exact(d) {
        centre.iter_mut().zip(row).for_each(|(c, x)| *c += x / n as f64);
    }
    step_mean(prior.law.spread, mean, factor, &centre, n, rng);
    let centred: Vec<f64> =
        (0..d).flat_map(|i| points[i..].iter().step_by(d).map(move |x| (i, x))).map(|(i, x)| x - mean[i]).collect();
    Rows::new(prior, factor, &centred, n).step(rng);
}

/// Steps of the mean given the factor.
///
/// Its posterior is a Gaussian around the points' centre with covariance L·Lᵀ/n, truncated to a cube. The steps update one coordinate after another, in the coordinates of L.
fn step_mean(side: f64, mean: &mut [f64], factor: &[f64], centre: &[f64], n: usize, rng: &mut impl Rng) {
    let (d, root) = (mean.len(), (n as f64).sqrt());
    let mut whitened: Vec<f64> = mean.iter().zip(centre).map(|(m, c)| (m - c) * root).collect();
    solve_lower(factor, d, &mut whitened);
    for (j, t) in whitened.iter_mut().enumerate() {
        let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
        let slope = |i: usize| factor[i * d + j] / root;
        for i in (j..d).filter(|&i| slope(i) != 0.0) {
            let (at_zero, at_side) = (*t - mean[i] / slope(i), *t + (side - mean[i]) / slope(i));
            low = low.max(at_zero.min(at_side));
            high = high.min(at_zero.max(at_side));
        }
        let next = slice::truncated_normal_step(*t, low, high, rng);
        for (i, m) in mean.iter_mut().enumerate().skip(j) {
            *m = (*m + slope(i) * (next - *t)).clamp(0.0, side);
        }
        *t = next;
    }
}

/// Steps of the rows of the factor, one after another.
struct Rows<'a> {
    prior: &'a Prior<'a>,
    factor: &'a mut [f64],
    n: usize,
    /// Points minus the mean, `[dim, points]`.
    centred: &'a [f64],
    /// L⁻¹ times the centred points, `[dim, points]`.
    whitened: Vec<f64>,
    /// Gram matrix of the rows of `whitened`, up to the current row.
    gram: Vec<f64>,
}

impl<'a> Rows<'a> {
    fn new(prior: &'a Prior, factor: &'a mut [f64], centred: &'a [f64], n: usize) -> Self {
        let d = prior.dim;
        let mut whitened = centred.to_vec();
        for i in 0..d {
            let (done, rest) = whitened.split_at_mut(i * n);
            let row = &mut rest[..n];
            for (k, w) in done.chunks_exact(n).enumerate() {
                add(row, -factor[i * d + k], w);
            }
            let scale = 1.0 / factor[i * d + i];
            row.iter_mut().for_each(|x| *x *= scale);
        }
        Rows { prior, factor, n, centred, whitened, gram: vec![0.0; d * d] }
    }

    fn step(&mut self, rng: &mut impl Rng) {
        for i in 0..self.prior.dim {
            self.step_row(i, rng);
        }
    }

    /// Steps of row i.
    ///
    /// Whitened coordinate i is w = (x − Σ ℓ_k·w_k)/λ. Coordinates j > i are c_j + g_j·w, where neither c nor g depends
    /// on the row. With G = Σ g_j² and h = Σ g_j·c_j, the log likelihood is −n·log λ − ½(1 + G)|w|² − h·w.
    fn step_row(&mut self, i: usize, rng: &mut impl Rng) {
        let (d, n) = (self.prior.dim, self.n);
        let (before, rest) = self.whitened.split_at_mut(i * n);
        let (current, after) = rest.split_at_mut(n);
        let x = &self.centred[i * n..(i + 1) * n];
        let mut g = vec![0.0; d - i - 1];
        let mut h = vec![0.0; n];
        for j in i + 1..d {
            let row = &self.factor[j * d..(j + 1) * d];
            g[j - i - 1] = -(row[i] + dot(&row[i + 1..j], &g[..j - i - 1])) / row[j];
        }
        for (g, w) in g.iter().zip(after.chunks_exact(n)) {
            add(&mut h, *g, w);
        }
        let square_g = dot(&g, &g);
        add(&mut h, -square_g, current);
        let weight = 1.0 + square_g;

        let (row, prior) = (&mut self.factor[i * d..i * d + i + 1], self.prior);
        let last = row[i];
        if i > 0 {
            let tilt = |w: &[f64]| weight / (last * last) * dot(w, x) + dot(w, &h) / last;
            let linear: Vec<f64> = before.chunks_exact(n).map(tilt).collect();
            let variance = prior.row_variance(i);
            let mut precision = vec![0.0; i * i];
            for (k, p) in precision.chunks_exact_mut(i).enumerate() {
                p.iter_mut().zip(&self.gram[k * d..]).take(k + 1).for_each(|(p, q)| *p = weight / (last * last) * q);
                p[k] += 1.0 / variance;
            }
            step_off_diagonal(&mut row[..i], &mut precision, linear, rng, |square| {
                prior.row_log_density(i, square, last) + 0.5 * square / variance
            });
        }

        // Steps of the diagonal, and of a factor of the full row. Both need only scalar products of the points.
        let mut part = vec![0.0; n];
        for (l, w) in row[..i].iter().zip(before.chunks_exact(n)) {
            add(&mut part, *l, w);
        }
        let (xx, xp, pp) = (dot(x, x), dot(x, &part), dot(&part, &part));
        let (hx, hp, square) = (dot(&h, x), dot(&h, &part), dot(&row[..i], &row[..i]));
        let points = n as f64;
        let fit = |c: f64, last: f64| {
            let (residual, product) = (xx - 2.0 * c * xp + c * c * pp, hx - c * hp);
            let likelihood = -points * last.ln() - 0.5 * weight * residual / (last * last) - product / last;
            likelihood + prior.row_log_density(i, c * c * square, last)
        };
        let last = slice::slice_sample(last.ln(), LOG_WIDTH, rng, |t| fit(1.0, t.exp()) + t).exp();
        let volume = (i + 1) as f64;
        let c = slice::slice_sample(0.0, LOG_WIDTH, rng, |t| fit(t.exp(), t.exp() * last) + volume * t).exp();
        row[..i].iter_mut().for_each(|l| *l *= c);
        row[i] = c * last;

        let scale = 1.0 / row[i];
        let moved: Vec<f64> = x.iter().zip(&part).map(|(x, p)| (x - c * p) * scale).collect();
        let change: Vec<f64> = moved.iter().zip(&*current).map(|(new, old)| new - old).collect();
        for (g, w) in g.iter().zip(after.chunks_exact_mut(n)) {
            add(w, *g, &change);
        }
        current.copy_from_slice(&moved);
        for (q, w) in self.gram[i * d..].iter_mut().zip(before.chunks_exact(n).chain([&moved[..]])) {
            *q = dot(&moved, w);
        }
    }
}

/// A step of `entries`, whose density is a Gaussian times a factor of the square of their length.
///
/// The Gaussian has the given precision matrix, of which the lower half is read, and linear term.
fn step_off_diagonal(
    entries: &mut [f64],
    precision: &mut [f64],
    mut linear: Vec<f64>,
    rng: &mut impl Rng,
    log_factor: impl Fn(f64) -> f64,
) {
    let i = entries.len();
    if cholesky(precision, i).is_err() {
        // The precision does not depend on `entries`, so skipping the step leaves the posterior invariant.
        return;
    }
    solve_lower(precision, i, &mut linear);
    solve_lower_transposed(precision, i, &mut linear);
    let mut other: Vec<f64> = (0..i).map(|_| StandardNormal.sample(rng)).collect();
    solve_lower_transposed(precision, i, &mut other);
    let offset: Vec<f64> = entries.iter().zip(&linear).map(|(l, m)| l - m).collect();
    // |m + offset·cos + other·sin|² from six scalar products.
    let (mm, oo, vv) = (dot(&linear, &linear), dot(&offset, &offset), dot(&other, &other));
    let (mo, mv, ov) = (dot(&linear, &offset), dot(&linear, &other), dot(&offset, &other));
    let square = |angle: f64| {
        let (s, c) = angle.sin_cos();
        (mm + c * c * oo + s * s * vv + 2.0 * (c * mo + s * mv + c * s * ov)).max(0.0)
    };
    let (s, c) = slice::elliptical_slice_sample(rng, |angle| log_factor(square(angle))).sin_cos();
    for (entry, ((m, o), v)) in entries.iter_mut().zip(linear.iter().zip(&offset).zip(&other)) {
        *entry = m + c * o + s * v;
    }
}

/// Scalar product with four partial sums.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let (fours, others) = (a.chunks_exact(4).zip(b.chunks_exact(4)), a.len() / 4 * 4);
    for (a, b) in fours {
        for k in 0..4 {
            sums[k] += a[k] * b[k];
        }
    }
    let rest: f64 = a[others..].iter().zip(&b[others..]).map(|(a, b)| a * b).sum();
    sums[0] + sums[1] + sums[2] + sums[3] + rest
}

/// a += c·b
fn add(a: &mut [f64], c: f64, b: &[f64]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += c * b);
}
