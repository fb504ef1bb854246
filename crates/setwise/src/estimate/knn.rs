//! KL divergence from nearest neighbours (Wang, Kulkarni, Verdú, 2009).

use super::interval::{self, Rows};
use super::neighbours::{Neighbours, Norm};
use super::points::{check_rows, check_samples};
use super::special::digamma;
use super::supports::support_warnings;
use super::{Dim, Estimate, Estimator, Points, Quantity};
use crate::{Error, Result};

/// The k-nearest-neighbour divergence, in Euclidean distance:
///
/// KL(P‖Q) ≈ d/n · Σᵢ log(νᵢ / ρᵢ) + log(m / (n − 1)),
///
/// with n points of P and m points of Q. ρᵢ is the distance from the i-th point of P to its k-th nearest other point of
/// P. νᵢ is the distance to its k-th nearest point of Q.
///
/// **Ties.** A distance is zero where k points coincide with the i-th. The smallest positive distance replaces it, and
/// the number kᵢ of points up to that distance replaces k. As in the paper's estimator with a k for every point,
/// ψ(kᵢ) − ψ(lᵢ) corrects for numbers that differ between P (kᵢ) and Q (lᵢ). Without coincident points this is the
/// formula above. If all points coincide there is no estimate.
///
/// ```
/// use rand::{RngExt, SeedableRng};
/// use setwise::estimate::{Estimator, Knn, Points};
/// // Uniform on (0, 1) and on (0, 2).
/// let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(1);
/// let p: Vec<f64> = (0..2000).map(|_| rng.random()).collect();
/// let q: Vec<f64> = (0..1000).map(|_| 2.0 * rng.random::<f64>()).collect();
/// let kl = Knn::default().value(Points::new(&p, 1), Points::new(&q, 1))?;
/// assert!((kl - f64::ln(2.0)).abs() < 0.1);
/// # Ok::<(), setwise::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knn {
    k: usize,
    offset: f64,
}

impl Default for Knn {
    /// The third neighbour. Mean absolute errors on random Gaussian mixtures show why:
    ///
    /// | columns, rows | k = 1 | k = 3 | k = 10 |
    /// | --- | --- | --- | --- |
    /// | 2, 125 | 0.170 | 0.143 | 0.156 |
    /// | 8 | 0.597 | 0.667 | 0.762 |
    ///
    /// The bias grows with k and with the number of columns.
    fn default() -> Self {
        Knn { k: 3, offset: 0.0 }
    }
}

impl Knn {
    /// With the k-th neighbour.
    pub fn new(k: usize) -> Self {
        Knn { k, ..Knn::default() }
    }

    /// Adds a number to every distance instead of replacing zeros, as the published code does with 1e-5.
    pub fn with_offset(self, offset: f64) -> Self {
        Knn { offset, ..self }
    }

    fn check(&self, p: Points, q: Points) -> Result<()> {
        check_samples(p, q)?;
        if self.k == 0 {
            return Err(Error::Estimate("k is 0; the nearest neighbour is k = 1".to_owned()));
        }
        check_rows(p, self.k.saturating_add(1), &format!("k = {}", self.k))?;
        check_rows(q, self.k, &format!("k = {}", self.k))
    }
}

impl Estimator for Knn {
    fn value(&self, p: Points, q: Points) -> Result<f64> {
        self.check(p, q)?;
        let (n, m) = (p.len() as f64, q.len() as f64);
        let (of_p, of_q) = (Neighbours::new(p, Norm::Euclidean), Neighbours::new(q, Norm::Euclidean));
        // Measures are squared distances.
        let rho = of_p.kth_measures(p, of_p.order(), self.k + 1);
        let nu = of_q.kth_measures(p, of_p.order(), self.k);
        let mut sum = 0.0;
        if self.offset > 0.0 {
            for (r, v) in rho.iter().zip(&nu) {
                sum += ((v.sqrt() + self.offset) / (r.sqrt() + self.offset)).ln();
            }
        } else {
            let (rho, k) = replace_zeros(&of_p, p, rho, self.k, 1)?;
            let (nu, l) = replace_zeros(&of_q, p, nu, self.k, 0)
                .map_err(|_| Error::Estimate(format!("all rows of {} are one point of {}", q.name(), p.name())))?;
            for (r, v) in rho.iter().zip(&nu) {
                sum += 0.5 * (v / r).ln();
            }
            let correction = |ks: &[(usize, usize)]| ks.iter().map(|&(_, k)| digamma(k as f64)).sum::<f64>();
            let base = digamma(self.k as f64);
            sum += (correction(&k) - base * k.len() as f64 - correction(&l) + base * l.len() as f64) / p.dim() as f64;
        }
        let value = p.dim() as f64 / n * sum + (m / (n - 1.0)).ln();
        if !value.is_finite() {
            return Err(Error::Estimate(format!(
                "distances between the rows of {} and {} overflow; rescale the columns",
                p.name(),
                q.name()
            )));
        }
        Ok(value)
    }

    fn estimate(&self, p: Points, q: Points, seed: u64) -> Result<Estimate> {
        let value = self.value(p, q)?;
        let standard_error =
            interval::standard_error(p, q, Rows::Independent, 2 * (self.k + 1), seed, |p, q| self.value(p, q));
        let warnings = support_warnings(p, q)
            .into_iter()
            .chain(p.repeated_rows_warning())
            .chain(q.repeated_rows_warning())
            .chain(uneven_scale_warning(p));
        let mut estimate = Estimate::new(Quantity::Kl, value, format!("knn, k = {}", self.k), warnings);
        (estimate.n, estimate.dim) = (vec![p.len(), q.len()], Dim::One(p.dim()));
        Ok(estimate.with_interval(
            interval::symmetric_interval(value, standard_error, interval::STUDENT_QUANTILE),
            interval::SUBSAMPLING,
        ))
    }
}

/// A warning about columns of different scales: columns of small spread have little influence on distances.
fn uneven_scale_warning(p: Points) -> Option<String> {
    let spreads = || p.standard_deviations().into_iter().filter(|&s| s > 0.0);
    let (low, high) = (spreads().fold(f64::INFINITY, f64::min), spreads().fold(0.0, f64::max));
    let name = p.name();
    (high > 100.0 * low).then(|| {
        format!(
            "{name}: the spreads of columns differ by a factor of {:.0}; rescale the columns of both samples",
            high / low
        )
    })
}

/// Measures with zeros replaced by the smallest positive measure, and (row, number of points up to it) for each of
/// them.
type Replaced = (Vec<f64>, Vec<(usize, usize)>);

/// Replaces zeros among `measures`; `self_count` is one where the queries are among the points, else zero.
fn replace_zeros(
    points: &Neighbours,
    queries: Points,
    mut measures: Vec<f64>,
    k: usize,
    self_count: usize,
) -> Result<Replaced> {
    let zeros: Vec<usize> = (0..measures.len()).filter(|&i| measures[i] == 0.0).collect();
    let mut numbers = Vec::with_capacity(zeros.len());
    if !zeros.is_empty() {
        let data = queries.select(&zeros);
        for (&i, (measure, count)) in zeros.iter().zip(points.first_positive(Points::new(&data, queries.dim()))) {
            // If not all points coincide, squared distances to the others overflow. The caller fails for that reason.
            if measure == f64::INFINITY && count == points.len() {
                return Err(Error::Estimate(format!("{}: all rows are one point", queries.name())));
            }
            measures[i] = measure;
            numbers.push((i, (count - self_count).max(k)));
        }
    }
    Ok((measures, numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_are_replaced_by_the_first_positive_distance_and_their_number() {
        // The first three points of P coincide: with k = 1, ρ is 1 at k = 3 for them (two ties and the point at 1).
        let p = Points::new(&[0.0, 0.0, 0.0, 1.0], 1);
        let q = Points::new(&[0.5, 2.0, 4.0], 1);
        let value = Knn::new(1).value(p, q).unwrap();
        let logs = [0.5f64, 0.5, 0.5, 0.5].map(f64::ln).iter().sum::<f64>();
        let expected = (logs + 3.0 * (digamma(3.0) - digamma(1.0))) / 4.0;
        assert!((value - expected).abs() < 1e-12, "{value}, not {expected}");
    }

    #[test]
    fn errors_name_the_sample_without_an_estimate() {
        let same = Points::new(&[1.0; 6], 1).named("p.csv");
        let other = Points::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 1).named("q.csv");
        let error_of = |p, q, k| Knn::new(k).value(p, q).unwrap_err().to_string();
        assert_eq!(error_of(same, other, 2), "p.csv: all rows are one point");
        assert_eq!(error_of(other, same, 2), "all rows of p.csv are one point of q.csv");
        assert_eq!(error_of(other, other, 6), "q.csv: has 6 rows, k = 6 needs at least 7");
        assert!(error_of(other, other, usize::MAX).starts_with("q.csv: has 6 rows"));
        assert_eq!(error_of(other, other, 0), "k is 0; the nearest neighbour is k = 1");
        let huge = Points::new(&[1e200, -1e200, 2e200], 1);
        assert!(error_of(huge, huge, 1).contains("rescale"));
    }
}
