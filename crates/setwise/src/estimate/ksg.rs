//! Mutual information from nearest neighbours (Kraskov, Stögbauer, Grassberger, 2004).

use super::cross_check;
use super::interval::{self, Rows};
use super::neighbours::{Neighbours, Norm, Search};
use super::points::{check_pairs, check_rows, check_varies, concatenated_rows};
use super::special::digamma;
use super::{Dim, Estimate, Estimator, Points, Quantity};
use crate::{Error, Result};

/// Which of the paper's two estimators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Squares: ψ(k) + ψ(n) − ⟨ψ(n_x + 1) + ψ(n_y + 1)⟩, counting points strictly within the k-th neighbour's distance.
    One,
    /// Rectangles: ψ(k) − 1/k + ψ(n) − ⟨ψ(n_x) + ψ(n_y)⟩, counting points within the sides of the k neighbours'
    /// rectangle.
    Two,
}

/// The KSG estimators.
///
/// The distance of two pairs is the larger of the distances of their X and of their Y, in the maximum norm. Columns are
/// scaled to variance one first, so that units have no influence. The published code for the paper's figure uses the
/// Euclidean norm and unscaled columns.
///
/// **Ties.** Variant two includes all points at the k-th distance in the rectangle and uses their number as k. So does
/// variant one where k or more pairs coincide: it counts the points at distance zero, which is the plug-in estimate for
/// discrete values. Without ties these are the paper's formulas. Duplicate rows of X or Y get a warning.
///
/// **Many columns.** Neighbours saturate where many columns depend strongly. Where the Gaussian copula
/// ([`GaussianMi::copula`](super::GaussianMi::copula)) lies above the estimate, the interval reaches there, and a
/// warning says so.
///
/// ```
/// use rand::{RngExt, SeedableRng};
/// use setwise::estimate::{Estimator, Ksg, Points};
/// let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(1);
/// let x: Vec<f64> = (0..1000).map(|_| rng.random()).collect();
/// // On a circle of length one, Y is uniform; knowing X leaves half of the circle.
/// let y: Vec<f64> = x.iter().map(|x| (x + 0.5 * rng.random::<f64>()) % 1.0).collect();
/// let mi = Ksg::default().value(Points::new(&x, 1), Points::new(&y, 1))?;
/// assert!((mi - f64::ln(2.0)).abs() < 0.1);
/// # Ok::<(), setwise::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ksg {
    k: usize,
    variant: Variant,
    norm: Norm,
    scaled: bool,
}

impl Default for Ksg {
    /// The third neighbour, variant one, maximum norm, columns of variance one. Mean absolute errors on Gaussian pairs
    /// show why:
    ///
    /// | columns, rows | k = 1 | k = 3 | k = 10 |
    /// | --- | --- | --- | --- |
    /// | 1, 100 | 0.100 | 0.066 | 0.057 |
    /// | 2, 125 | 0.121 | 0.116 | 0.196 |
    fn default() -> Self {
        Ksg { k: 3, variant: Variant::One, norm: Norm::Maximum, scaled: true }
    }
}

impl Ksg {
    /// With the k-th neighbour.
    pub fn new(k: usize) -> Self {
        Ksg { k, ..Ksg::default() }
    }

    /// With a variant.
    pub fn with_variant(self, variant: Variant) -> Self {
        Ksg { variant, ..self }
    }

    /// With a norm within X and within Y.
    pub fn with_norm(self, norm: Norm) -> Self {
        Ksg { norm, ..self }
    }

    /// Without scaling of columns.
    pub fn unscaled(self) -> Self {
        Ksg { scaled: false, ..self }
    }

    fn check(&self, x: Points, y: Points) -> Result<()> {
        check_pairs(x, y)?;
        if self.k == 0 {
            return Err(Error::Estimate("k is 0; the nearest neighbour is k = 1".to_owned()));
        }
        check_rows(x, self.k.saturating_add(1), &format!("k = {}", self.k))?;
        check_varies(x)?;
        check_varies(y)
    }
}

impl Estimator for Ksg {
    fn value(&self, x: Points, y: Points) -> Result<f64> {
        self.check(x, y)?;
        if self.scaled {
            let (a, b) = (scaled(x), scaled(y));
            let (x, y) = (Points::new(&a, x.dim()).named(x.name()), Points::new(&b, y.dim()).named(y.name()));
            return self.unscaled().value(x, y);
        }
        let n = x.len();
        let data = concatenated_rows(x, y);
        let pairs = Points::new(&data, x.dim() + y.dim());
        let joint = Neighbours::grouped(pairs, x.dim(), self.norm, Search::Auto);
        let order = joint.order();
        let radius = joint.kth_measures(pairs, order, self.k + 1);
        if radius.contains(&f64::INFINITY) {
            return Err(Error::Estimate(format!(
                "distances between the rows of {} or of {} overflow; rescale the columns",
                x.name(),
                y.name()
            )));
        }
        // Every count includes the point itself.
        let counts = |p: Points, radius: &(dyn Fn(usize) -> (f64, bool) + Sync)| {
            Neighbours::new(p, self.norm).counts_by_measure(p, order, radius)
        };
        let all = digamma(n as f64);
        let value = match self.variant {
            Variant::One => {
                let zeros: Vec<usize> = (0..n).filter(|&i| radius[i] == 0.0).collect();
                let within = |i: usize| (radius[i], radius[i] > 0.0);
                let (n_x, n_y) = (counts(x, &within), counts(y, &within));
                let sum: f64 = n_x.iter().zip(&n_y).map(|(&a, &b)| digamma(a as f64) + digamma(b as f64)).sum();
                let base = digamma(self.k as f64);
                let mut ties = 0.0;
                if !zeros.is_empty() {
                    let at = pairs.select(&zeros);
                    let at = joint.counts_by_measure(Points::new(&at, pairs.dim()), &[], |_| (0.0, false));
                    ties = at.iter().map(|&c| digamma((c - 1) as f64) - base).sum();
                }
                base + all + (ties - sum) / n as f64
            }
            Variant::Two => {
                let extents = joint.extents(pairs, order, &radius);
                let n_x = counts(x, &|i| (extents[i].1[0], false));
                let n_y = counts(y, &|i| (extents[i].1[1], false));
                let mut sum = 0.0;
                for (i, (count, _)) in extents.iter().enumerate() {
                    let k = (count - 1) as f64;
                    sum += digamma(k) - 1.0 / k - digamma((n_x[i] - 1) as f64) - digamma((n_y[i] - 1) as f64);
                }
                sum / n as f64 + all
            }
        };
        Ok(value)
    }

    fn estimate(&self, x: Points, y: Points, seed: u64) -> Result<Estimate> {
        let value = self.value(x, y)?;
        let standard_error =
            interval::standard_error(x, y, Rows::Paired, 2 * (self.k + 1), seed, |x, y| self.value(x, y));
        let variant = match self.variant {
            Variant::One => 1,
            Variant::Two => 2,
        };
        let warnings = x.warnings().into_iter().chain(y.warnings());
        let mut estimate = Estimate::new(Quantity::Mi, value, format!("ksg {variant}, k = {}", self.k), warnings);
        (estimate.n, estimate.dim) = (vec![x.len()], Dim::Two([x.dim(), y.dim()]));
        let mut estimate = estimate.with_interval(
            interval::symmetric_interval(value, standard_error, interval::STUDENT_QUANTILE),
            interval::SUBSAMPLING,
        );
        cross_check::reach_copula(&mut estimate, x, y, seed);
        Ok(estimate)
    }
}

/// Columns with a variance of about one.
///
/// Factors have twelve significant bits, so that products with numbers of up to 41 bits are exact. Equal distances stay
/// equal.
fn scaled(p: Points) -> Vec<f64> {
    let mut out = p.data().to_vec();
    for (c, deviation) in p.standard_deviations().into_iter().enumerate() {
        let factor = 1.0 / deviation;
        if factor.is_normal() {
            let factor = f64::from_bits((factor.to_bits() + (1 << 40)) >> 41 << 41);
            out.iter_mut().skip(c).step_by(p.dim()).for_each(|x| *x *= factor);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mutual_information_of_a_discrete_variable_with_itself_is_its_entropy() {
        let x: Vec<f64> = (0..900).map(|i| f64::from(i % 3)).collect();
        let p = Points::new(&x, 1);
        for variant in [Variant::One, Variant::Two] {
            let value = Ksg::new(3).with_variant(variant).value(p, p).unwrap();
            assert!((value - 3.0f64.ln()).abs() < 0.02, "{variant:?}: {value}");
        }
    }

    #[test]
    fn scaling_keeps_equal_distances_of_integers_equal() {
        let data: Vec<f64> = (0..100).map(f64::from).collect();
        let out = scaled(Points::new(&data, 1));
        assert!(out.windows(2).all(|w| w[1] - w[0] == out[1]), "{out:?}");
        assert!((out[99] - 99.0 / 28.866).abs() < 1e-2);
    }

    #[test]
    fn errors_name_samples_without_an_estimate() {
        let (x, y) = ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]);
        let (x, y) = (Points::new(&x, 1).named("x.csv"), Points::new(&y, 1).named("y.csv"));
        let error_of = |x, y, k| Ksg::new(k).value(x, y).unwrap_err().to_string();
        assert_eq!(error_of(x, y, 1), "y.csv: all rows are one point");
        assert_eq!(error_of(x, x, 4), "x.csv: has 4 rows, k = 4 needs at least 5");
        assert!(error_of(x, x, usize::MAX).starts_with("x.csv: has 4 rows"));
        assert!(error_of(x, Points::new(&[1.0], 1), 1).contains("rows are pairs"));
    }
}
