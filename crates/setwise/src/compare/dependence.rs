//! Pairs of columns whose dependence changed.
//!
//! Ordered columns become normal scores of their ranks within a table, categories become indicators of their common
//! levels. The correlation of scores does not depend on what happens to either column alone. It is that of the rows in
//! which both columns have a value. The variance of a correlation ρ of standardised x and y is that of ψ = xy − ρ(x² + y²)/2, whatever their distribution.

use rand::SeedableRng;
use rayon::prelude::*;

use super::bins::{Binned, MISSING};
use super::draws::drawn_rows;
use crate::distributions::normal::{normal_quantile, normal_tail};
use crate::random::Generator;

/// Rows of each table that are drawn of larger ones.
const MAX_ROWS: usize = 50_000;
/// Fewer rows have no normal approximation.
const MIN_ROWS: usize = 50;
/// Columns whose pairs are compared.
pub(super) const MAX_COLUMNS: usize = 60;
/// Levels of a category that have a feature, and rows in each table that a level needs.
const MAX_LEVELS: usize = 4;
const MIN_LEVEL_ROWS: usize = 30;

/// How the dependence of two columns changed.
#[derive(Clone, Debug)]
pub(super) struct PairDifference {
    /// Places of the columns.
    pub columns: [usize; 2],
    pub p_value: f64,
    /// Correlations of the features with the clearest change, in both tables.
    pub correlations: [f64; 2],
    /// The change of the share of rows in which both features lie on the same side of their medians.
    pub effect: f64,
    /// Its standard error.
    pub error: f64,
    /// The levels that the features of categories indicate.
    pub levels: [Option<usize>; 2],
}

/// A feature of a column: standardised values in both tables.
struct Feature {
    column: usize,
    level: Option<usize>,
    values: [Vec<f32>; 2],
    /// Fourth moments.
    fourth: [f64; 2],
    /// Whether values are missing, which are NaN.
    missing: [bool; 2],
}

/// All pairs of columns, compared.
pub(super) fn pair_differences(columns: &[(usize, &Binned)], rows: [usize; 2], seed: u64) -> Vec<PairDifference> {
    if rows.iter().any(|n| *n < MIN_ROWS) {
        return Vec::new();
    }
    let mut rng = Generator::seed_from_u64(seed);
    let drawn = rows.map(|n| drawn_rows(n, MAX_ROWS, &mut rng));
    let features: Vec<Vec<Feature>> =
        columns.par_iter().take(MAX_COLUMNS).map(|(column, binned)| features(*column, binned, &drawn)).collect();
    let pairs: Vec<(usize, usize)> =
        (0..features.len()).flat_map(|i| (i + 1..features.len()).map(move |j| (i, j))).collect();
    pairs.into_par_iter().filter_map(|(i, j)| compare_pair(&features[i], &features[j])).collect()
}

fn features(column: usize, binned: &Binned, drawn: &[Vec<u32>; 2]) -> Vec<Feature> {
    let codes = [0, 1].map(|t: usize| drawn[t].iter().map(|&i| binned.codes[t][i as usize]).collect::<Vec<u16>>());
    let feature = |level: Option<usize>, values: [Option<Vec<f32>>; 2]| -> Option<Feature> {
        let [Some(a), Some(b)] = values else { return None };
        let missing = codes.each_ref().map(|codes| codes.contains(&MISSING));
        Some(Feature { column, level, fourth: [fourth_moment(&a), fourth_moment(&b)], values: [a, b], missing })
    };
    if binned.ordered {
        let scores = [0, 1].map(|t: usize| standardised(&codes[t], &normal_scores(&codes[t], binned.bins.len())));
        return feature(None, scores).into_iter().collect();
    }
    // Of two levels one says all.
    let levels = if binned.bins.len() == 2 { 1 } else { binned.bins.len().min(MAX_LEVELS) };
    let indicator = |level: usize| {
        let of = |t: usize| {
            let rows = codes[t].iter().filter(|c| **c as usize == level).count();
            let enough = rows >= MIN_LEVEL_ROWS && codes[t].len() - rows >= MIN_LEVEL_ROWS;
            let mut scores = vec![0.0; binned.bins.len()];
            scores[level] = 1.0;
            enough.then(|| standardised(&codes[t], &scores)).flatten()
        };
        feature(Some(level), [of(0), of(1)])
    };
    (0..levels).filter_map(indicator).collect()
}

/// The normal quantile of the middle rank of each bin.
fn normal_scores(codes: &[u16], bins: usize) -> Vec<f64> {
    let mut counts = vec![0.0; bins];
    codes.iter().filter(|c| **c != MISSING).for_each(|c| counts[*c as usize] += 1.0);
    let present: f64 = counts.iter().sum();
    let score = counts.iter().scan(0.0, |below, count| {
        let middle = (*below + 0.5 * count) / present;
        *below += count;
        Some(if *count > 0.0 { normal_quantile(middle) } else { 0.0 })
    });
    score.collect()
}

/// The score of each row with mean 0 and variance 1; missing values are NaN. `None` without variation.
fn standardised(codes: &[u16], scores: &[f64]) -> Option<Vec<f32>> {
    let of = |c: &u16| if *c == MISSING { f32::NAN } else { scores[*c as usize] as f32 };
    let mut values: Vec<f32> = codes.iter().map(of).collect();
    standardise(&mut values).then_some(values)
}

/// Gives values mean 0 and variance 1, NaN left out; false where they are few or do not vary.
fn standardise(values: &mut [f32]) -> bool {
    let present = || values.iter().filter(|x| !x.is_nan()).map(|x| f64::from(*x));
    let n = present().count() as f64;
    if n < MIN_ROWS as f64 {
        return false;
    }
    let mean = present().sum::<f64>() / n;
    let variance = present().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    if variance < 1e-9 {
        return false;
    }
    let scale = 1.0 / variance.sqrt();
    values.iter_mut().for_each(|x| *x = (scale * (f64::from(*x) - mean)) as f32);
    true
}

fn fourth_moment(values: &[f32]) -> f64 {
    let present = || values.iter().filter(|x| !x.is_nan());
    present().map(|x| f64::from(*x).powi(4)).sum::<f64>() / present().count().max(1) as f64
}

/// The clearest change among the features of two columns, with its p-value multiplied by their number.
fn compare_pair(of_a: &[Feature], of_b: &[Feature]) -> Option<PairDifference> {
    let pairs = of_a.iter().flat_map(|a| of_b.iter().map(move |b| (a, b)));
    let compared = pairs.filter_map(|(a, b)| compare_features(a, b));
    let best = compared.min_by(|a, b| a.p_value.total_cmp(&b.p_value))?;
    let count = (of_a.len() * of_b.len()) as f64;
    Some(PairDifference { p_value: (count * best.p_value).min(1.0), ..best })
}

fn compare_features(a: &Feature, b: &Feature) -> Option<PairDifference> {
    let correlations = [Correlation::of(a, b, 0)?, Correlation::of(a, b, 1)?];
    let [first, second] = &correlations;
    let variance = first.variance + second.variance;
    let error = (first.angle_variance() + second.angle_variance()).sqrt();
    if variance.is_nan() || variance <= 1e-14 || !error.is_finite() {
        return None;
    }
    let z = (second.value - first.value).abs() / variance.sqrt();
    let angle = |c: &Correlation| c.value.clamp(-1.0, 1.0).asin();
    Some(PairDifference {
        columns: [a.column, b.column],
        p_value: (2.0 * normal_tail(z)).min(1.0),
        correlations: [first.value, second.value],
        effect: (angle(second) - angle(first)).abs() / std::f64::consts::PI,
        error: error / std::f64::consts::PI,
        levels: [a.level, b.level],
    })
}

/// A correlation with the variance of its estimate.
struct Correlation {
    value: f64,
    variance: f64,
}

impl Correlation {
    /// The correlation over rows in which both columns have a value; `None` where these are few or do not vary.
    fn of(a: &Feature, b: &Feature, t: usize) -> Option<Self> {
        let (x, y) = (&a.values[t], &b.values[t]);
        if !a.missing[t] && !b.missing[t] {
            return Some(Self::of_standardised(x, y, a.fourth[t] + b.fourth[t]));
        }
        let both = x.iter().zip(y).filter(|(x, y)| !x.is_nan() && !y.is_nan());
        let (mut x, mut y): (Vec<f32>, Vec<f32>) = both.unzip();
        if !standardise(&mut x) || !standardise(&mut y) {
            return None;
        }
        Some(Self::of_standardised(&x, &y, fourth_moment(&x) + fourth_moment(&y)))
    }

    fn of_standardised(x: &[f32], y: &[f32], fourth: f64) -> Self {
        let n = x.len() as f64;
        let [xy, xxyy, xxxy, xyyy] = product_moments(x, y).map(|sum| sum / n);
        let psi = xxyy - xy * (xxxy + xyyy) + 0.25 * xy * xy * (fourth + 2.0 * xxyy);
        Correlation { value: xy, variance: psi.max(0.0) / n }
    }

    /// The variance of the correlation's arc sine.
    fn angle_variance(&self) -> f64 {
        self.variance / (1.0 - self.value * self.value).max(1e-6)
    }
}

/// Sums of xy, x²y², x³y and xy³.
fn product_moments(x: &[f32], y: &[f32]) -> [f64; 4] {
    const LANES: usize = 8;
    const BLOCK: usize = 4096;
    let mut sums = [0.0f64; 4];
    for (x, y) in x.chunks(BLOCK).zip(y.chunks(BLOCK)) {
        let mut lanes = [[0.0f32; LANES]; 4];
        let (xs, ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
        let rest = xs.remainder().iter().zip(ys.remainder());
        for (x, y) in rest {
            let xy = x * y;
            [xy, xy * xy, xy * x * x, xy * y * y].iter().zip(&mut sums).for_each(|(m, sum)| *sum += f64::from(*m));
        }
        for (x, y) in xs.zip(ys) {
            for k in 0..LANES {
                let xy = x[k] * y[k];
                lanes[0][k] += xy;
                lanes[1][k] += xy * xy;
                lanes[2][k] += xy * x[k] * x[k];
                lanes[3][k] += xy * y[k] * y[k];
            }
        }
        lanes.iter().zip(&mut sums).for_each(|(lane, sum)| *sum += lane.iter().map(|l| f64::from(*l)).sum::<f64>());
    }
    sums
}

#[cfg(test)]
mod tests {
    use rand::RngExt;
    use rand_distr::StandardNormal;

    use super::*;

    fn correlated(rng: &mut Generator, n: usize, rho: f64) -> [Vec<f64>; 2] {
        let pair = |rng: &mut Generator| -> (f64, f64) {
            let (x, z): (f64, f64) = (rng.sample(StandardNormal), rng.sample(StandardNormal));
            (x.exp(), rho * x + (1.0 - rho * rho).sqrt() * z)
        };
        let (x, y) = (0..n).map(|_| pair(rng)).unzip();
        [x, y]
    }

    fn difference(rng: &mut Generator, n: [usize; 2], rho: [f64; 2]) -> PairDifference {
        let samples = [0, 1].map(|t| correlated(rng, n[t], rho[t]));
        let binned = [0, 1].map(|c: usize| Binned::ordered([&samples[0][c], &samples[1][c]]));
        pair_differences(&[(0, &binned[0]), (1, &binned[1])], n, 0).remove(0)
    }

    #[test]
    fn p_values_of_equal_dependence_are_uniform() {
        let mut rng = Generator::seed_from_u64(5);
        for rho in [0.0, 0.8] {
            let p: Vec<f64> = (0..400).map(|_| difference(&mut rng, [200, 300], [rho, rho]).p_value).collect();
            for level in [0.01, 0.05, 0.3] {
                let share = p.iter().filter(|p| **p <= level).count() as f64 / 400.0;
                assert!(share <= level + 4.0 * (level / 400.0f64).sqrt(), "{rho}: {share} at {level}");
            }
        }
    }

    #[test]
    fn changes_of_correlation_are_found_with_their_size() {
        let mut rng = Generator::seed_from_u64(6);
        let found = difference(&mut rng, [2000, 3000], [0.0, 0.3]);
        let expected = 0.3f64.asin() / std::f64::consts::PI;
        assert!(found.p_value < 1e-6 && (found.effect - expected).abs() < 3.0 * found.error, "{found:?}");
        assert!(found.error < 0.02);
    }
}
