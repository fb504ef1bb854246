//! Gaussian plug-in estimators: the closed forms at the moments of the samples.
//!
//! Covariances are divided by n − 1. Both estimators are consistent for Gaussians. For other distributions the limit of
//! MI is a lower bound and that of KL an approximation.

use super::interval::{self, Rows};
use super::points::{check_covariance, check_pairs, check_rows, check_samples, concatenated_rows};
use super::{Dim, Estimate, Estimator, Points, Quantity};
use crate::distributions::gaussian_kl;
use crate::linalg::{cholesky, log_det, moments};
use crate::{Error, Result};

/// KL(P‖Q) ≈ ½ [tr(Σq⁻¹Σp) + (μq − μp)ᵀ Σq⁻¹ (μq − μp) − d + log(det Σq / det Σp)].
///
/// ```
/// use setwise::estimate::{Estimator, GaussianKl, Points};
/// // Means 0 and 1, variance 1 both: KL is ½.
/// let kl = GaussianKl.value(Points::new(&[-1.0, 0.0, 1.0], 1), Points::new(&[0.0, 1.0, 2.0], 1))?;
/// assert!((kl - 0.5).abs() < 1e-12);
/// # Ok::<(), setwise::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GaussianKl;

/// I(X; Y) ≈ ½ log(det Σx · det Σy / det Σxy).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GaussianMi;

impl Estimator for GaussianKl {
    fn value(&self, p: Points, q: Points) -> Result<f64> {
        check_samples(p, q)?;
        check_covariance(p)?;
        let (of_p, of_q) = (Fit::new(p)?, Fit::new(q)?);
        Ok(gaussian_kl(p.dim(), &of_p.mean, &of_p.factor, &of_q.mean, &of_q.factor))
    }

    fn estimate(&self, p: Points, q: Points, seed: u64) -> Result<Estimate> {
        let value = self.value(p, q)?;
        let min_rows = 2 * (p.dim() + 2);
        let standard_error = interval::standard_error(p, q, Rows::Independent, min_rows, seed, |p, q| self.value(p, q));
        let mut estimate = Estimate::new(Quantity::Kl, value, "gaussian".to_owned(), []);
        (estimate.n, estimate.dim) = (vec![p.len(), q.len()], Dim::One(p.dim()));
        Ok(estimate.with_interval(
            interval::symmetric_interval(value, standard_error, interval::STUDENT_QUANTILE),
            interval::SUBSAMPLING,
        ))
    }
}

impl Estimator for GaussianMi {
    fn value(&self, x: Points, y: Points) -> Result<f64> {
        check_pairs(x, y)?;
        check_covariance(x)?;
        check_covariance(y)?;
        let (of_x, of_y) = (Fit::new(x)?, Fit::new(y)?);
        let data = concatenated_rows(x, y);
        let name = format!("{} and {} side by side", x.name(), y.name());
        let joint = Fit::new(Points::new(&data, x.dim() + y.dim()).named(&name))?;
        let log_det = |fit: &Fit, d| log_det(&fit.factor, d);
        Ok(0.5 * (log_det(&of_x, x.dim()) + log_det(&of_y, y.dim()) - log_det(&joint, x.dim() + y.dim())))
    }

    fn estimate(&self, x: Points, y: Points, seed: u64) -> Result<Estimate> {
        let value = self.value(x, y)?;
        let min_rows = 2 * (x.dim() + y.dim() + 2);
        let standard_error = interval::standard_error(x, y, Rows::Paired, min_rows, seed, |x, y| self.value(x, y));
        let mut estimate = Estimate::new(Quantity::Mi, value, "gaussian".to_owned(), []);
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
                "{}: column {column} holds one value only, so no Gaussian fits; leave it out or use knn",
                p.name()
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
                "{name}: column {} is a linear function of the columns before it; leave it out",
                column + 1
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

    #[test]
    fn the_mutual_information_follows_from_the_correlation() {
        let (x, y) = ([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]);
        let value = GaussianMi.value(Points::new(&x, 1), Points::new(&y, 1)).unwrap();
        assert!((value + 0.5 * (1.0f64 - 0.8 * 0.8).ln()).abs() < 1e-12, "{value}");
    }

    #[test]
    fn errors_name_the_column_that_makes_a_covariance_singular() {
        let p = Points::new(&[1.0, 5.0, 2.0, 5.0, 3.0, 5.0], 2).named("p.csv");
        let line = Points::new(&[1.0, 2.0, 2.0, 4.0, 3.0, 6.0, 4.0, 8.0], 2).named("q.csv");
        let error_of = |p, q| GaussianKl.value(p, q).unwrap_err().to_string();
        assert!(error_of(p, line).starts_with("p.csv: column 2 holds one value only"));
        assert_eq!(error_of(line, line), "q.csv: column 2 is a linear function of the columns before it; leave it out");
        let x = Points::new(&[1.0, 2.0, 4.0], 1).named("x.csv");
        let error = GaussianMi.value(x, x).unwrap_err().to_string();
        assert_eq!(
            error,
            "x.csv and x.csv side by side: column 2 is a linear function of the columns before it; leave it out"
        );
    }
}
