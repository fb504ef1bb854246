//! Intervals by repeated disjoint subsamples.
//!
//! The bootstrap draws rows with replacement. Duplicates have distance zero, so it is not valid for neighbour
//! estimators. Subsampling splits the rows at random into g disjoint groups of b rows and runs the estimator on each.
//! The variance s² of the g independent values is that of a sample of b rows. At all n rows the variance is s²·b/n, as
//! for every estimator that converges at the rate 1/√n. The split is repeated and the variances are averaged.
//!
//! The interval is the estimate ± 1.725 standard errors, nominal 90 %. This is the quantile of Student's t with 20
//! degrees of freedom, because the standard error is itself estimated from few values.
//!
//! The interval covers sampling noise. It does not include bias, which neighbour estimates have in many dimensions.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

use super::Points;
use crate::Result;

/// Nominal coverage of all intervals.
pub const LEVEL: f64 = 0.9;
/// Standard errors to each side where the standard error is known well.
pub(super) const NORMAL_QUANTILE: f64 = 1.644_853_626_951_472_2;
/// Standard errors to each side where subsamples estimate the standard error.
pub(super) const STUDENT_QUANTILE: f64 = 1.724_718_242_920_788;
/// The name of the method in results.
pub(super) const SUBSAMPLING: &str = "repeated disjoint subsamples";

/// Groups of a split.
const MAX_GROUPS: usize = 20;
/// Rows of a group in large samples.
const GROUP_ROWS: usize = 200;
/// Degrees of freedom of the averaged variance, about.
const DEGREES_OF_FREEDOM: usize = 40;

/// Whether two samples are split independently, or their rows are pairs.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Rows {
    Independent,
    Paired,
}

/// The standard error of an estimate; `None` where half of the rows are fewer than `min_rows`.
pub(super) fn standard_error(
    a: Points,
    b: Points,
    rows: Rows,
    min_rows: usize,
    seed: u64,
    estimate: impl Fn(Points, Points) -> Result<f64>,
) -> Option<f64> {
    let n = a.len().min(b.len());
    let groups = (n / GROUP_ROWS.max(2 * min_rows)).clamp(2, MAX_GROUPS);
    if n / groups < min_rows {
        return None;
    }
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let (mut of_a, mut of_b): (Vec<usize>, Vec<usize>) = ((0..a.len()).collect(), (0..b.len()).collect());
    let repetitions = DEGREES_OF_FREEDOM.div_ceil(groups - 1);
    let mut sum = 0.0;
    let mut used = 0;
    for _ in 0..repetitions {
        of_a.shuffle(&mut rng);
        match rows {
            Rows::Independent => of_b.shuffle(&mut rng),
            Rows::Paired => of_b.clone_from(&of_a),
        }
        let (size_a, size_b) = (a.len() / groups, b.len() / groups);
        let mut values = Vec::with_capacity(groups);
        for (rows_a, rows_b) in of_a.chunks_exact(size_a).zip(of_b.chunks_exact(size_b)).take(groups) {
            let (data_a, data_b) = (a.select(rows_a), b.select(rows_b));
            // A group can fail where the full sample does not, for example if all its rows are equal.
            values.extend(estimate(Points::new(&data_a, a.dim()), Points::new(&data_b, b.dim())));
        }
        if values.len() > 1 {
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (count - 1.0);
            sum += variance / groups as f64;
            used += 1;
        }
    }
    (used > 0).then(|| (sum / f64::from(used)).sqrt())
}

/// The estimate ± `quantile` standard errors.
pub(super) fn symmetric_interval(value: f64, standard_error: Option<f64>, quantile: f64) -> Option<[f64; 2]> {
    standard_error.map(|s| [value - quantile * s, value + quantile * s])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_error_of_a_mean_is_the_deviation_over_the_root_of_n() {
        let data: Vec<f64> = (0..5000).map(|i| f64::from((i * 7919) % 5000) / 5000.0).collect();
        let p = Points::new(&data, 1);
        let mean = |a: Points, _: Points| Ok(a.data().iter().sum::<f64>() / a.len() as f64);
        let s = standard_error(p, p, Rows::Paired, 2, 1, mean).unwrap();
        let exact = (1.0f64 / 12.0 / 5000.0).sqrt();
        assert!((s / exact - 1.0).abs() < 0.25, "{s}, not {exact}");
        assert_eq!(standard_error(p, p, Rows::Paired, 2, 1, mean), Some(s), "the same seed gives the same interval");
        assert_eq!(standard_error(p, p, Rows::Paired, 2501, 1, mean), None);
    }
}
