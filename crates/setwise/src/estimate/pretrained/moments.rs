//! Moments of samples in canonical coordinates: closed forms for Gaussians, and tests of normality.

use super::super::Points;
use super::super::gaussian::{inverse_factor, without_bias};
use crate::distributions::trace_and_shift;
use crate::linalg::{cholesky, log_det, moments, solve_lower};

/// Mean and covariance of a sample of `rows` rows, and the lower Cholesky factor of the covariance plus a ridge.
pub struct Moments {
    rows: f64,
    pub mean: Vec<f64>,
    cov: Vec<f64>,
    factor: Vec<f64>,
}

/// Added to variances, which are about one. Directions in which one sample does not vary stay finite.
const VARIANCE_RIDGE: f64 = 1e-5;
/// The smallest factor of an inverse covariance: with few rows for each column no factor makes it unbiased.
const MIN_FACTOR: f64 = 0.05;

impl Moments {
    pub fn of(points: Points) -> Self {
        let (mean, cov) = moments(points.data(), points.dim(), 1);
        Self::new(points.len() as f64, mean, cov, points.dim())
    }

    fn new(rows: f64, mean: Vec<f64>, cov: Vec<f64>, d: usize) -> Self {
        let mut factor = cov.clone();
        (0..d).for_each(|i| factor[i * d + i] += VARIANCE_RIDGE);
        // The ridge makes the matrix positive definite, unless rounding errors exceed the ridge.
        if cholesky(&mut factor, d).is_err() {
            factor.fill(0.0);
            (0..d).for_each(|i| factor[i * d + i] = (cov[i * d + i].max(0.0) + VARIANCE_RIDGE).sqrt());
        }
        Moments { rows, mean, cov, factor }
    }

    /// Moments with the covariance shrunk toward a multiple of the identity, by the share d / (rows + d).
    pub fn shrunk_covariance(&self, d: usize) -> Self {
        let a = d as f64 / (self.rows + d as f64);
        let average = (0..d).map(|i| self.cov[i * d + i]).sum::<f64>() / d as f64;
        let entry = |(i, c): (usize, &f64)| (1.0 - a) * c + if i % (d + 1) == 0 { a * average } else { 0.0 };
        let cov = self.cov.iter().enumerate().map(entry).collect();
        Self::new(self.rows, self.mean.clone(), cov, d)
    }

    /// Writes L⁻¹(row − mean) to `z`: in these coordinates the sample has mean zero and covariance one.
    fn whiten(&self, row: &[f64], z: &mut [f64]) {
        z.iter_mut().zip(row.iter().zip(&self.mean)).for_each(|(z, (x, m))| *z = x - m);
        solve_lower(&self.factor, z.len(), z);
    }

    /// How far the sample is from a Gaussian, as four numbers.
    ///
    /// 1. The logarithm of the mean fourth power of the distance from the mean, relative to a Gaussian's.
    /// 2. Mardia's multivariate kurtosis (1970), in standard errors.
    /// 3. The sum of squared third moments of single coordinates, in standard errors.
    /// 4. The sum of squared excess fourth moments of single coordinates, in standard errors.
    ///
    /// The last three are compressed by asinh.
    pub fn non_gaussianity(&self, points: Points) -> [f64; 4] {
        let d = points.dim();
        let mut z = vec![0.0; d];
        let (mut fourth, mut thirds, mut fourths) = (0.0, vec![0.0; d], vec![0.0; d]);
        for i in 0..points.len() {
            self.whiten(points.row(i), &mut z);
            fourth += z.iter().map(|z| z * z).sum::<f64>().powi(2);
            for (c, z) in z.iter().enumerate() {
                thirds[c] += z * z * z;
                fourths[c] += z * z * z * z;
            }
        }
        let (n, width) = (self.rows, d as f64);
        let normal = width * (width + 2.0);
        let fourth = fourth / n;
        let kurtosis = (fourth - normal * (n - 1.0) / (n + 1.0)) * (n / (8.0 * normal)).sqrt();
        let thirds: f64 = thirds.iter().map(|t| (t / n).powi(2)).sum();
        let skewness = (n / 6.0 * thirds - width) / (2.0 * width).sqrt();
        let expected = 3.0 * (n - 1.0) / (n + 1.0);
        let fourths: f64 = fourths.iter().map(|f| (f / n - expected).powi(2)).sum();
        let marginal_kurtosis = (n / 24.0 * fourths - width) / (2.0 * width).sqrt();
        [(fourth / normal).max(1e-3).ln(), kurtosis.asinh(), skewness.asinh(), marginal_kurtosis.asinh()]
    }
}

/// KL(P‖Q) of two Gaussians with these moments; if `debiased`, without the bias for Gaussian samples.
pub fn gaussian_divergence(p: &Moments, q: &Moments, d: usize, debiased: bool) -> f64 {
    let terms @ (trace, shift) = trace_and_shift(d, &p.mean, &p.factor, &q.mean, &q.factor);
    let log_det_ratio = log_det(&q.factor, d) - log_det(&p.factor, d);
    match debiased {
        true => without_bias(terms, log_det_ratio, [p.rows, q.rows], d, inverse_factor(q.rows, d).max(MIN_FACTOR)),
        false => 0.5 * (trace + shift - d as f64 + log_det_ratio),
    }
}

/// The approximate standard error of the Gaussian divergence: that of the mean log density ratio over the rows of P.
pub fn gaussian_standard_error(p: &Moments, q: &Moments, x: Points) -> f64 {
    let (mut of_p, mut of_q) = (vec![0.0; x.dim()], vec![0.0; x.dim()]);
    let (mut sum, mut square) = (0.0, 0.0);
    for i in 0..x.len() {
        p.whiten(x.row(i), &mut of_p);
        q.whiten(x.row(i), &mut of_q);
        let ratio = 0.5 * of_q.iter().zip(&of_p).map(|(q, p)| q * q - p * p).sum::<f64>();
        sum += ratio;
        square += ratio * ratio;
    }
    let n = x.len() as f64;
    ((square / n - (sum / n).powi(2)).max(0.0) / n).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributions::Mixture;
    use crate::random::Generator;
    use rand::SeedableRng;

    #[test]
    fn the_debiased_gaussian_divergence_has_no_bias_on_gaussians() {
        let p = Mixture::new(3, &[1.0], &[0.0; 3], &[1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.3, 0.8]);
        let q = Mixture::new(3, &[1.0], &[0.5, 0.0, 0.2], &[1.2, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
        let exact = p.exact_kl(&q).unwrap();
        let mut rng = Generator::seed_from_u64(1);
        let (mut biased, mut debiased) = (0.0, 0.0);
        for _ in 0..2000 {
            let (mut x, mut y) = (Vec::new(), Vec::new());
            p.sample(40, &mut rng, &mut x);
            q.sample(30, &mut rng, &mut y);
            let (x, y) = (Moments::of(Points::new(&x, 3)), Moments::of(Points::new(&y, 3)));
            biased += gaussian_divergence(&x, &y, 3, false) / 2000.0;
            debiased += gaussian_divergence(&x, &y, 3, true) / 2000.0;
        }
        assert!((debiased - exact).abs() < 0.02 && biased - exact > 0.1, "{exact}: {debiased}, {biased}");
    }

    #[test]
    fn tests_of_normality_accept_gaussian_samples_and_reject_heavy_tails() {
        let mut rng = Generator::seed_from_u64(2);
        let normal = Mixture::new(2, &[1.0], &[0.0; 2], &[1.0, 0.0, 0.5, 1.0]);
        let heavy = normal.clone().with_degrees_of_freedom(3.0);
        let non_gaussianity = |law: &Mixture, rng: &mut Generator| {
            let mut x = Vec::new();
            law.sample(2000, rng, &mut x);
            let x = Points::new(&x, 2);
            Moments::of(x).non_gaussianity(x)
        };
        for _ in 0..5 {
            assert!(non_gaussianity(&normal, &mut rng).iter().all(|f| f.abs() < 2.0));
            assert!(non_gaussianity(&heavy, &mut rng)[1..].iter().any(|f| *f > 3.0));
        }
    }
}
