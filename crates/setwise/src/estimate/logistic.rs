//! KL divergence from a classifier: logistic regression of "from P or from Q".

use super::cross_check::disagreement;
use super::interval::{self, Rows};
use super::points::{check_rows, check_samples};
use super::regression::{Design, inverse_deviation};
use super::supports::support_warnings;
use super::{Dim, Estimate, Estimator, Points, Quantity};
use crate::{Error, Result};

/// Logistic regression of P against Q.
///
/// The log odds, corrected for the numbers of rows, estimate log p − log q. Their mean over the rows of P estimates
/// KL(P‖Q). The estimate is consistent for pairs of Gaussians.
///
/// Features are columns, squares and, up to 32 columns, products. Each has mean zero and deviation one over both
/// samples. The penalty is half the sum of squared coefficients (C = 1 in scikit-learn), without the intercept.
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

/// A fit ends after a step of this length, relative to the length of the coefficients.
const TOLERANCE: f64 = 1e-6;

/// The time of a fit grows with the third power of the number of columns.
const MAX_COLUMNS: usize = 512;

impl Estimator for Logistic {
    fn value(&self, p: Points, q: Points) -> Result<f64> {
        check_samples(p, q)?;
        if p.dim() > MAX_COLUMNS {
            let (name, dim) = (p.name(), p.dim());
            return Err(Error::Estimate(format!(
                "{name}: has {dim} columns, logistic takes at most {MAX_COLUMNS}; knn takes any"
            )));
        }
        check_rows(p, 2, "a classifier")?;
        check_rows(q, 2, "a classifier")?;
        let (n, m) = (p.len(), q.len());
        let (features, columns) = quadratic_features(p, q);
        let fit = Design::standardised(&features, columns, n).fit(&vec![0.0; columns + 1], TOLERANCE)?;
        let mean = fit.log_odds[..n].iter().sum::<f64>() / n as f64;
        Ok(mean + (m as f64 / n as f64).ln())
    }

    fn estimate(&self, p: Points, q: Points, seed: u64) -> Result<Estimate> {
        let value = self.value(p, q)?;
        let min_rows = 2 * (p.dim() + 2);
        let standard_error = interval::standard_error(p, q, Rows::Independent, min_rows, seed, |p, q| self.value(p, q));
        let mut estimate = Estimate::new(Quantity::Kl, value, "logistic".to_owned(), support_warnings(p, q));
        (estimate.n, estimate.dim) = (vec![p.len(), q.len()], Dim::One(p.dim()));
        let mut estimate = estimate.with_interval(
            interval::symmetric_interval(value, standard_error, interval::STUDENT_QUANTILE),
            interval::SUBSAMPLING,
        );
        estimate.warnings.extend(disagreement(&estimate, p, q, seed));
        Ok(estimate)
    }
}

/// Columns whose products are features. The number of products grows with the square, the time of a fit with the sixth
/// power of the columns.
const MAX_PRODUCT_COLUMNS: usize = 32;

/// Standardised columns, squares and products of the rows of P, then of Q, and their number.
pub(super) fn quadratic_features(p: Points, q: Points) -> (Vec<f64>, usize) {
    let d = p.dim();
    let data = [p.data(), q.data()].concat();
    let n = (data.len() / d) as f64;
    let (mut mean, mut scale) = (vec![0.0; d], vec![0.0; d]);
    for row in data.chunks_exact(d) {
        mean.iter_mut().zip(row).for_each(|(m, x)| *m += x / n);
    }
    for row in data.chunks_exact(d) {
        scale.iter_mut().zip(row.iter().zip(&mean)).for_each(|(s, (x, m))| *s += (x - m) * (x - m));
    }
    scale.iter_mut().zip(&mean).for_each(|(s, m)| *s = inverse_deviation(*s, *m, n));
    let with_products = d <= MAX_PRODUCT_COLUMNS;
    let width = if with_products { d + d * (d + 1) / 2 } else { 2 * d };
    let mut rows = Vec::with_capacity(data.len() / d * width);
    let mut row = vec![0.0; d];
    for data in data.chunks_exact(d) {
        row.iter_mut().zip(data.iter().zip(mean.iter().zip(&scale))).for_each(|(r, (x, (m, s)))| *r = (x - m) * s);
        rows.extend_from_slice(&row);
        for i in 0..d {
            let x = row[i];
            let last = if with_products { d } else { i + 1 };
            rows.extend(row[i..last].iter().map(|y| x * y));
        }
    }
    (rows, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributions::Mixture;
    use crate::random::Generator;
    use rand::SeedableRng;

    #[test]
    fn the_estimate_of_many_rows_is_the_divergence_of_gaussians() {
        let p = Mixture::new(2, &[1.0], &[0.0, 0.0], &[1.0, 0.0, 0.4, 0.9]);
        let q = Mixture::new(2, &[1.0], &[0.7, 0.0], &[1.3, 0.0, 0.0, 1.0]);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        let mut rng = Generator::seed_from_u64(1);
        p.sample(20_000, &mut rng, &mut x);
        q.sample(10_000, &mut rng, &mut y);
        let (value, exact) = (Logistic.value(Points::new(&x, 2), Points::new(&y, 2)).unwrap(), p.exact_kl(&q).unwrap());
        assert!((value - exact).abs() < 0.02, "{value}, not {exact}");
    }
}
