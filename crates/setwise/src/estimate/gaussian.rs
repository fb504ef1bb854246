//! Gaussian estimators: the closed forms at the moments of the samples.
//!
//! Covariances are divided by n − 1. The estimators are consistent for Gaussians. For other distributions the limit of
//! MI is a lower bound and that of KL an approximation.

use super::cross_check::disagreement;
use super::interval::{self, Rows};
use super::points::{check_covariance, check_pairs, check_rows, check_samples, concatenated_rows};
use super::supports::support_warnings;
use super::{Dim, Estimate, Estimator, Points, Quantity, digamma};
use crate::distributions::{gaussian_kl, trace_and_shift};
use crate::linalg::{cholesky, log_det, moments};
use crate::ranks::normal_scores;
use crate::{Error, Result};

/// KL(P‖Q) ≈ ½ [tr(Σq⁻¹Σp) + (μq − μp)ᵀ Σq⁻¹ (μq − μp) − d + log(det Σq / det Σp)].
///
/// The bias of the closed form at sample moments is removed, exactly so for samples of Gaussians: with d columns and m
/// rows of Q it is about d²/m. [`GaussianKl::plug_in`] keeps it.
///
/// ```
/// use setwise::estimate::{Estimator, GaussianKl, Points};
/// // Means 0 and 1, variance 1 both: KL is ½.
/// let (p, q) = (Points::new(&[-1.0, 0.0, 1.0], 1), Points::new(&[0.0, 1.0, 2.0], 1));
/// assert!((GaussianKl::plug_in().value(p, q)? - 0.5).abs() < 1e-12);
/// // Three rows do not determine the bias.
/// assert!(GaussianKl::default().value(p, q).is_err());
/// # Ok::<(), setwise::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GaussianKl {
    biased: bool,
}

/// Samples with fewer rows for each column get a warning: the estimate varies by about √(d/m)·√d nats.
const MIN_ROWS_PER_COLUMN: usize = 3;

impl GaussianKl {
    /// The closed form at the moments of the samples, with its bias.
    pub fn plug_in() -> Self {
        GaussianKl { biased: true }
    }
}

/// I(X; Y) ≈ ½ log(det Σx · det Σy / det Σxy).
///
/// The bias of the closed form at sample moments is removed, exactly so for samples of Gaussians: with 10 columns each
/// and 200 rows it is 0.27 nats. [`GaussianMi::plug_in`] keeps it. [`GaussianMi::copula`] is of normal scores.
///
/// ```
/// use setwise::estimate::{Estimator, GaussianMi, Points};
/// // The correlation is 0.8; by chance four rows have a positive estimate.
/// let (x, y) = (Points::new(&[1.0, 2.0, 3.0, 4.0], 1), Points::new(&[1.0, 3.0, 2.0, 4.0], 1));
/// assert!((GaussianMi::plug_in().value(x, y)? + 0.5 * f64::ln(1.0 - 0.8 * 0.8)).abs() < 1e-12);
/// assert!(GaussianMi::default().value(x, y)? < 0.25);
/// # Ok::<(), setwise::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GaussianMi {
    biased: bool,
    of_scores: bool,
}

impl GaussianMi {
    /// The closed form at the moments of the pairs, with its bias.
    pub fn plug_in() -> Self {
        GaussianMi { biased: true, of_scores: false }
    }

    /// The Gaussian copula: the closed form at the moments of normal scores. Strictly increasing maps of a column, and
    /// units, have no influence; outliers have little.
    pub fn copula() -> Self {
        GaussianMi { biased: false, of_scores: true }
    }
}

impl Estimator for GaussianKl {
    fn value(&self, p: Points, q: Points) -> Result<f64> {
        check_samples(p, q)?;
        check_covariance(p)?;
        let (of_p, of_q) = (Fit::new(p)?, Fit::new(q)?);
        let d = p.dim();
        if self.biased {
            return Ok(gaussian_kl(d, &of_p.mean, &of_p.factor, &of_q.mean, &of_q.factor));
        }
        check_rows(q, d + 3, &format!("an unbiased Gaussian fit of {d} columns"))?;
        let terms = trace_and_shift(d, &of_p.mean, &of_p.factor, &of_q.mean, &of_q.factor);
        let log_dets = log_det(&of_q.factor, d) - log_det(&of_p.factor, d);
        let rows = [p.len() as f64, q.len() as f64];
        Ok(without_bias(terms, log_dets, rows, d, inverse_factor(rows[1], d)))
    }

    fn estimate(&self, p: Points, q: Points, seed: u64) -> Result<Estimate> {
        let value = self.value(p, q)?;
        let min_rows = 2 * (p.dim() + 2);
        let standard_error = interval::standard_error(p, q, Rows::Independent, min_rows, seed, |p, q| self.value(p, q));
        let few = |points: Points| {
            (points.len() < MIN_ROWS_PER_COLUMN * p.dim()).then(|| {
                let (name, rows, columns) = (points.name(), points.len(), points.dim());
                format!("{name}: has {rows} rows for {columns} columns; the Gaussian fit is noisy")
            })
        };
        let warnings: Vec<String> = [p, q].into_iter().filter_map(few).chain(support_warnings(p, q)).collect();
        let mut estimate = Estimate::new(Quantity::Kl, value, "gaussian".to_owned(), warnings);
        (estimate.n, estimate.dim) = (vec![p.len(), q.len()], Dim::One(p.dim()));
        let mut estimate = estimate.with_interval(
            interval::symmetric_interval(value, standard_error, interval::STUDENT_QUANTILE),
            interval::SUBSAMPLING,
        );
        estimate.warnings.extend(disagreement(&estimate, p, q, seed));
        Ok(estimate)
    }
}

/// The factor that makes Σ̂q⁻¹ unbiased: E Σ̂q⁻¹ = Σq⁻¹ (m − 1) / (m − d − 2), for m rows of d columns.
pub(super) fn inverse_factor(rows: f64, d: usize) -> f64 {
    (rows - d as f64 - 2.0) / (rows - 1.0)
}

/// The closed form at the moments of samples of `rows` Gaussian rows, without its bias.
///
/// The bias has three sources: that of Σ̂q⁻¹, which `inverse_factor` removes, those of log det Σ̂, and the variances of
/// the means. `log_dets` is log(det Σ̂q / det Σ̂p).
pub(super) fn without_bias(
    (trace, shift): (f64, f64),
    log_dets: f64,
    [n, m]: [f64; 2],
    d: usize,
    inverse_factor: f64,
) -> f64 {
    let width = d as f64;
    let mean_variance = inverse_factor * trace / n + width / m;
    let bias = log_det_bias(m, d) - log_det_bias(n, d);
    0.5 * (inverse_factor * (trace + shift) - mean_variance - width + log_dets - bias)
}

/// E log det Σ̂ − log det Σ for the covariance of `rows` Gaussian rows of `d` columns.
fn log_det_bias(rows: f64, d: usize) -> f64 {
    let terms = (1..=d).map(|i| digamma(0.5 * (rows - i as f64).max(1.0)));
    terms.sum::<f64>() + d as f64 * (2.0 / (rows - 1.0)).ln()
}

impl Estimator for GaussianMi {
    fn value(&self, x: Points, y: Points) -> Result<f64> {
        check_pairs(x, y)?;
        if self.of_scores {
            let [a, b] = [x, y].map(|points| normal_scores(points.data(), points.dim()));
            return GaussianMi { of_scores: false, ..*self }.value(x.with_data(&a), y.with_data(&b));
        }
        check_covariance(x)?;
        check_covariance(y)?;
        let (of_x, of_y) = (Fit::new(x)?, Fit::new(y)?);
        let data = concatenated_rows(x, y);
        let name = format!("{} and {} side by side", x.name(), y.name());
        let joint = Fit::new(Points::new(&data, x.dim() + y.dim()).named(&name))?;
        // Without the bias of log det.
        let log_det = |fit: &Fit, d: usize| {
            log_det(&fit.factor, d) - if self.biased { 0.0 } else { log_det_bias(x.len() as f64, d) }
        };
        Ok(0.5 * (log_det(&of_x, x.dim()) + log_det(&of_y, y.dim()) - log_det(&joint, x.dim() + y.dim())))
    }

    fn estimate(&self, x: Points, y: Points, seed: u64) -> Result<Estimate> {
        let value = self.value(x, y)?;
        let min_rows = 2 * (x.dim() + y.dim() + 2);
        let standard_error = interval::standard_error(x, y, Rows::Paired, min_rows, seed, |x, y| self.value(x, y));
        let method = if self.of_scores { "gaussian copula" } else { "gaussian" };
        let mut estimate = Estimate::new(Quantity::Mi, value, method.to_owned(), []);
        (estimate.n, estimate.dim) = (vec![x.len()], Dim::Two([x.dim(), y.dim()]));
        Ok(estimate.with_interval(
            interval::symmetric_interval(value, standard_error, interval::STUDENT_QUANTILE),
            interval::SUBSAMPLING,
        ))
    }
}

/// Moments of a sample, the covariance as its Cholesky factor.
struct Fit {
    mean: Vec<f64>,
    factor: Vec<f64>,
}

impl Fit {
    fn new(p: Points) -> Result<Self> {
        let d = p.dim();
        check_rows(p, d + 1, &format!("a Gaussian fit of {d} columns"))?;
        if let Some(column) = p.constant_column() {
            return Err(Error::Estimate(format!(
                "{}: {} holds one value only, so no Gaussian fits; leave it out or use knn",
                p.name(),
                p.column_label(column)
            )));
        }
        let (mean, mut factor) = moments(p.data(), d, 1);
        // With variance one in every column, the units have no influence on whether the factor exists.
        let scale: Vec<f64> = (0..d).map(|c| factor[c * d + c].sqrt()).collect();
        for (r, row) in factor.chunks_exact_mut(d).enumerate() {
            row.iter_mut().zip(&scale).for_each(|(x, s)| *x /= s * scale[r]);
        }
        cholesky(&mut factor, d).map_err(|column| {
            let name = p.name();
            Error::Estimate(format!(
                "{name}: {} is a linear function of the columns before it; leave it out",
                p.column_label(column)
            ))
        })?;
        for (row, s) in factor.chunks_exact_mut(d).zip(&scale) {
            row.iter_mut().for_each(|x| *x *= s);
        }
        Ok(Fit { mean, factor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Generator;
    use rand::SeedableRng;
    use rand_distr::{Distribution, StandardNormal};

    #[test]
    fn the_mutual_information_follows_from_the_correlation() {
        let (x, y) = ([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]);
        let value = GaussianMi::plug_in().value(Points::new(&x, 1), Points::new(&y, 1)).unwrap();
        assert!((value + 0.5 * (1.0f64 - 0.8 * 0.8).ln()).abs() < 1e-12, "{value}");
    }

    #[test]
    fn the_estimate_has_no_bias_on_gaussians_of_many_columns() {
        let (n, m, d) = (60, 50, 20);
        let mut rng = Generator::seed_from_u64(4);
        let mut mean = 0.0;
        for _ in 0..300 {
            let mut draw =
                |rows: usize| -> Vec<f64> { (0..rows * d).map(|_| StandardNormal.sample(&mut rng)).collect() };
            let (x, y) = (draw(n), draw(m));
            mean += GaussianKl::default().value(Points::new(&x, d), Points::new(&y, d)).unwrap() / 300.0;
        }
        assert!(mean.abs() < 0.2, "{mean}");
        let x: Vec<f64> = (0..25 * d).map(|_| StandardNormal.sample(&mut rng)).collect();
        let x = Points::new(&x, d).named("x.csv");
        let warnings = GaussianKl::default().estimate(x, x, 0).unwrap().warnings;
        assert!(warnings.iter().any(|w| w.starts_with("x.csv: has 25 rows for 20 columns")), "{warnings:?}");
        let error = GaussianKl::default().value(x, Points::new(&x.data()[..22 * d], d)).unwrap_err().to_string();
        assert!(error.contains("needs at least 23"), "{error}");
    }

    #[test]
    fn mutual_information_has_no_bias_on_gaussians_of_many_columns() {
        let (n, d) = (60, 10);
        let mut rng = Generator::seed_from_u64(5);
        let [mut mean, mut of_scores, mut biased] = [0.0; 3];
        for _ in 0..200 {
            let mut draw = || -> Vec<f64> { (0..n * d).map(|_| StandardNormal.sample(&mut rng)).collect() };
            let (x, y) = (draw(), draw());
            let (x, y) = (Points::new(&x, d), Points::new(&y, d));
            mean += GaussianMi::default().value(x, y).unwrap() / 200.0;
            of_scores += GaussianMi::copula().value(x, y).unwrap() / 200.0;
            biased += GaussianMi::plug_in().value(x, y).unwrap() / 200.0;
        }
        assert!(mean.abs() < 0.04 && of_scores.abs() < 0.1 && biased > 0.8, "{mean} {of_scores} {biased}");
    }

    #[test]
    fn increasing_maps_and_outliers_do_not_change_the_copula() {
        let mut rng = Generator::seed_from_u64(6);
        let x: Vec<f64> = (0..300).map(|_| StandardNormal.sample(&mut rng)).collect();
        let noise = |rng: &mut Generator| -> f64 { StandardNormal.sample(rng) };
        let y: Vec<f64> = x.iter().map(|x| x + noise(&mut rng)).collect();
        let value = |x: &[f64], y: &[f64]| GaussianMi::copula().value(Points::new(x, 1), Points::new(y, 1)).unwrap();
        let before = value(&x, &y);
        assert!((before - 0.5 * 2.0f64.ln()).abs() < 0.1, "{before}");
        let mapped: Vec<f64> = x.iter().map(|x| 1e100 * (x - 20.0).exp()).collect();
        assert_eq!(value(&mapped, &y), before);
        let mut wrong = y.clone();
        wrong[3] = -9999.0;
        assert!((value(&x, &wrong) - before).abs() < 0.05);
    }

    #[test]
    fn errors_name_the_column_that_makes_a_covariance_singular() {
        let p = Points::new(&[1.0, 5.0, 2.0, 5.0, 3.0, 5.0], 2).named("p.csv");
        let line = Points::new(&[1.0, 2.0, 2.0, 4.0, 3.0, 6.0, 4.0, 8.0], 2).named("q.csv");
        let error_of = |p, q| GaussianKl::default().value(p, q).unwrap_err().to_string();
        assert!(error_of(p, line).starts_with("p.csv: column 2 holds one value only"));
        assert_eq!(error_of(line, line), "q.csv: column 2 is a linear function of the columns before it; leave it out");
        let x = Points::new(&[1.0, 2.0, 4.0], 1).named("x.csv");
        let error = GaussianMi::default().value(x, x).unwrap_err().to_string();
        assert_eq!(
            error,
            "x.csv and x.csv side by side: column 2 is a linear function of the columns before it; leave it out"
        );
    }
}
