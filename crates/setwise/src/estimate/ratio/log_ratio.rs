//! The log density ratio for users: one number for every row.

use serde::Serialize;

use super::super::points::{check_covariance, check_rows, check_samples};
use super::super::shared_rows::same_rows;
use super::super::supports::support_warnings;
use super::super::{Points, Progress};
use super::coordinates::AffineCoordinates;
use super::{RatioFit, evaluated_rows};
use crate::{Error, Result};

/// Rows of each sample that a ratio needs.
const MIN_ROWS: usize = 10;
/// Rows of each sample for every direction of variation. With fewer rows covariances are noise.
const MIN_ROWS_PER_DIRECTION: usize = 2;
/// Weights with a smaller effective sample size, or a smaller share of the rows of Q, get a warning.
const MIN_EFFECTIVE_ROWS: f64 = 10.0;
const MIN_EFFECTIVE_SHARE: f64 = 0.02;

/// Units of work for each row.
const COORDINATES_WORK: usize = 1;

/// Estimates of log p/q at the rows of two samples, and at other rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogRatio {
    /// At the rows of P.
    pub p: Vec<f64>,
    /// At the rows of Q.
    pub q: Vec<f64>,
    /// At the other rows.
    pub other: Vec<f64>,
    /// The effective sample size of the rows of Q with weights p/q: (Σw)² / Σw².
    pub effective_sample_size: f64,
    /// Reasons for which the ratio may be wrong, or weights may be useless.
    pub warnings: Vec<String>,
}

/// Estimates log p/q from samples of P and Q, at their rows and at `other` rows.
///
/// The estimates that are combined at a row of P or Q do not use that row; their weights use all rows. Other rows are
/// taken for new ones, even where they equal a row of a sample. Where both samples have the same rows, the ratio is
/// one.
///
/// ```
/// use setwise::estimate::{Points, log_ratio};
/// use rand::{RngExt, SeedableRng};
/// // P is uniform on (0, 1), Q on (0, 2): the ratio is 2 below one.
/// let mut rng = setwise::random::Generator::seed_from_u64(1);
/// let mut uniform = |end: f64| -> Vec<f64> { (0..500).map(|_| end * rng.random::<f64>()).collect() };
/// let (p, q) = (uniform(1.0), uniform(2.0));
/// let ratio = log_ratio(Points::new(&p, 1), Points::new(&q, 1), None)?;
/// let mean = ratio.p.iter().sum::<f64>() / 500.0;
/// assert!((mean - f64::ln(2.0)).abs() < 0.15, "{mean}");
/// # Ok::<(), setwise::Error>(())
/// ```
pub fn log_ratio(p: Points, q: Points, other: Option<Points>) -> Result<LogRatio> {
    log_ratio_observed(p, q, other, &Progress::default())
}

/// [`log_ratio`], which tells `progress` how far it is.
pub fn log_ratio_observed(p: Points, q: Points, other: Option<Points>, progress: &Progress) -> Result<LogRatio> {
    check_samples(p, q)?;
    check_covariance(p)?;
    let none = Points::new(&[], p.dim());
    let other = other.unwrap_or(none);
    check_samples(p, other)?;
    for points in [p, q] {
        check_rows(points, MIN_ROWS, "a density ratio")?;
    }
    let sizes = [p.len(), q.len()];
    if same_rows(p, q) {
        let [of_p, of_q, other] = [p, q, other].map(|points| vec![0.0; points.len()]);
        return Ok(LogRatio {
            p: of_p,
            q: of_q,
            other,
            effective_sample_size: q.len() as f64,
            warnings: support_warnings(p, q),
        });
    }
    let coordinates_work = COORDINATES_WORK * (sizes[0] + sizes[1]);
    progress.plan(coordinates_work + RatioFit::work(sizes, sizes, other.len()));
    let coordinates = AffineCoordinates::fit(p, q)?;
    let needed = MIN_ROWS_PER_DIRECTION * coordinates.dim;
    if let Some(few) = [p, q].into_iter().find(|points| points.len() < needed) {
        return Err(Error::Estimate(format!(
            "{}: has {} rows; a density ratio in {} directions of variation needs at least {needed}",
            few.name(),
            few.len(),
            coordinates.dim
        )));
    }
    let rows = evaluated_rows(&coordinates, usize::MAX);
    let evaluated = [&rows[0][..], &rows[1][..]];
    progress.advance(coordinates_work);
    let fit = RatioFit::new(&coordinates.compress(evaluated), [p, q], evaluated, other, progress);
    let in_order = |ratios: &[f64], rows: &[usize]| {
        let mut ordered = vec![0.0; ratios.len()];
        rows.iter().zip(ratios).for_each(|(&i, r)| ordered[i] = *r);
        ordered
    };
    let (of_p, of_q) = (in_order(&fit.p.boosted, &rows[0]), in_order(&fit.q.boosted, &rows[1]));
    let weights = importance_weights(&of_q, &of_q);
    let effective_sample_size = weights.iter().sum::<f64>().powi(2) / weights.iter().map(|w| w * w).sum::<f64>();
    let mut warnings = support_warnings(p, q);
    if effective_sample_size < MIN_EFFECTIVE_ROWS || effective_sample_size < MIN_EFFECTIVE_SHARE * q.len() as f64 {
        warnings.push(format!(
            "the weights of {} rest on about {effective_sample_size:.0} of {} rows; averages with these weights mean \
             little",
            q.name(),
            q.len()
        ));
    }
    Ok(LogRatio { p: of_p, q: of_q, other: fit.other.boosted, effective_sample_size, warnings })
}

impl LogRatio {
    /// Weights p/q at rows with these log ratios. At the rows of Q their mean is one, and averages with these weights
    /// are averages over P.
    pub fn weights(&self, log_ratios: &[f64]) -> Vec<f64> {
        importance_weights(&self.q, log_ratios)
    }
}

/// Weights of rows with these log ratios, in units of the mean over the rows of Q.
fn importance_weights(of_q: &[f64], log_ratios: &[f64]) -> Vec<f64> {
    let max = of_q.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
    let mean = of_q.iter().map(|r| (r - max).exp()).sum::<f64>() / of_q.len().max(1) as f64;
    log_ratios.iter().map(|r| (r - max).exp() / mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributions::Mixture;
    use crate::random::Generator;
    use rand::SeedableRng;

    fn samples(n: usize, dim: usize, shift: f64) -> (Vec<f64>, Vec<f64>) {
        let identity: Vec<f64> = (0..dim * dim).map(|i| f64::from(u8::from(i % (dim + 1) == 0))).collect();
        let mut rng = Generator::seed_from_u64(3);
        let mut draw = |mean: f64| {
            let mut rows = Vec::new();
            Mixture::new(dim, &[1.0], &vec![mean; dim], &identity).sample(n, &mut rng, &mut rows);
            rows
        };
        (draw(0.0), draw(shift))
    }

    #[test]
    fn the_ratio_of_gaussians_is_linear_at_all_rows() {
        let (p, q) = samples(1000, 2, 0.5);
        let other = [0.0, 0.0, 1.0, 1.0, -1.0, 0.5];
        let (p, q) = (Points::new(&p, 2), Points::new(&q, 2));
        let ratio = log_ratio(p, q, Some(Points::new(&other, 2))).unwrap();
        // log p/q = Σ (½·s² − s·x).
        let exact = |row: &[f64]| row.iter().map(|x| 0.125 - 0.5 * x).sum::<f64>();
        let error = |points: Points, values: &[f64]| {
            (0..points.len()).map(|i| (values[i] - exact(points.row(i))).powi(2)).sum::<f64>() / points.len() as f64
        };
        assert!(
            error(p, &ratio.p) < 0.02 && error(q, &ratio.q) < 0.02,
            "{} {}",
            error(p, &ratio.p),
            error(q, &ratio.q)
        );
        assert!(error(Points::new(&other, 2), &ratio.other) < 0.03, "{:?}", ratio.other);
        assert!(ratio.warnings.is_empty() && ratio.effective_sample_size > 300.0, "{}", ratio.effective_sample_size);
    }

    #[test]
    fn weights_make_means_over_q_means_over_p() {
        let (p, q) = samples(2000, 1, 1.0);
        let ratio = log_ratio(Points::new(&p, 1), Points::new(&q, 1), None).unwrap();
        let weights = ratio.weights(&ratio.q);
        // Other rows have the weights of equal rows of Q.
        assert_eq!(ratio.weights(&ratio.q[7..9]), weights[7..9]);
        assert!((weights.iter().sum::<f64>() / 2000.0 - 1.0).abs() < 1e-9);
        let mean = weights.iter().zip(&q).map(|(w, x)| w * x).sum::<f64>() / 2000.0;
        assert!(mean.abs() < 0.1, "{mean}");
    }

    #[test]
    fn equal_samples_have_a_ratio_of_one_and_a_warning() {
        let (p, _) = samples(100, 2, 0.0);
        let reversed: Vec<f64> = p.chunks(2).rev().flatten().copied().collect();
        let ratio =
            log_ratio(Points::new(&p, 2), Points::new(&reversed, 2), Some(Points::new(&[0.5, 9.0], 2))).unwrap();
        assert!(ratio.p.iter().chain(&ratio.q).chain(&ratio.other).all(|r| *r == 0.0));
        assert!(ratio.warnings.iter().any(|w| w.contains("have the same rows")), "{:?}", ratio.warnings);
    }

    #[test]
    fn samples_far_apart_get_a_warning() {
        let (p, q) = samples(200, 2, 30.0);
        let ratio = log_ratio(Points::new(&p, 2), Points::new(&q, 2).named("q.csv"), None).unwrap();
        assert!(ratio.p.iter().all(|r| *r > 0.0) && ratio.q.iter().all(|r| *r < 0.0));
        let (short, _) = samples(6, 2, 0.0);
        let error = log_ratio(Points::new(&short, 2).named("p.csv"), Points::new(&q, 2), None).unwrap_err().to_string();
        assert!(error.starts_with("p.csv: has 6 rows"), "{error}");
    }
}
