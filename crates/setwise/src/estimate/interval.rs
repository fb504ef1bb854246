//! Intervals by repeated disjoint subsamples.
//!
//! Drawing rows with replacement makes duplicates, whose distance is zero, so the bootstrap is not valid for neighbour estimators.
//! Instead the rows are split at random into g disjoint groups of b, the estimator runs on each, and the variance s² of its g independent
//! values is that of a sample of b rows; the variance at all n rows is s²·b/n, as for every estimator that converges at the root rate.
//! The split is repeated and the variances are averaged. The interval is the estimate ± 1.725 standard deviations, nominal 90 %: the
//! quantile of Student's t with 20 degrees of freedom, because the deviation is itself estimated from few values.
//!
//! It speaks of the noise of sampling. It does not know the bias of an estimator (neighbour estimates in many dimensions have one).

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

use super::Points;
use crate::Result;

/// Nominal coverage of all intervals.
pub const LEVEL: f64 = 0.9;
/// Standard deviations to each side where they are known well.
pub(super) const NORMAL: f64 = 1.644_853_626_951_472_2;
/// Standard deviations to each side where they come from subsamples.
pub(super) const STUDENT: f64 = 1.724_718_242_920_788;
/// What the interval of subsamples is called.
pub(super) const SUBSAMPLES: &str = "repeated disjoint subsamples";

/// Most groups of a split.
const GROUPS: usize = 20;
/// Rows a group has where there are enough.
const ROWS: usize = 200;
/// Independent values the average of variances rests on, about.
const FREEDOM: usize = 40;

/// How samples are split: two samples each by itself, or pairs together.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Rows {
    Independent,
    Paired,
}

/// The standard deviation of an estimate, or nothing where a half of the rows is fewer than `least`.
pub(super) fn deviation(
    a: Points,
    b: Points,
    rows: Rows,
    least: usize,
    seed: u64,
    estimate: impl Fn(Points, Points) -> Result<f64>,
) -> Option<f64> {
    let n = a.len().min(b.len());
    let groups = (n / ROWS.max(2 * least)).clamp(2, GROUPS);
    if n / groups < least {
        return None;
    }
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let (mut of_a, mut of_b): (Vec<usize>, Vec<usize>) = ((0..a.len()).collect(), (0..b.len()).collect());
    let repetitions = FREEDOM.div_ceil(groups - 1);
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
            // A group may be unfit where the whole is not: all its rows equal, say.
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

/// The estimate with a margin to both sides.
pub(super) fn around(value: f64, deviation: Option<f64>, times: f64) -> Option<[f64; 2]> {
    deviation.map(|s| [value - times * s, value + times * s])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_of_a_mean_is_the_textbooks() {
        let data: Vec<f64> = (0..5000).map(|i| f64::from((i * 7919) % 5000) / 5000.0).collect();
        let p = Points::new(&data, 1);
        let mean = |a: Points, _: Points| Ok(a.data().iter().sum::<f64>() / a.len() as f64);
        let s = deviation(p, p, Rows::Paired, 2, 1, mean).unwrap();
        let exact = (1.0f64 / 12.0 / 5000.0).sqrt();
        assert!((s / exact - 1.0).abs() < 0.25, "{s}, not {exact}");
        assert_eq!(deviation(p, p, Rows::Paired, 2, 1, mean), Some(s), "the same seed gives the same interval");
        assert_eq!(deviation(p, p, Rows::Paired, 2501, 1, mean), None);
    }
}
