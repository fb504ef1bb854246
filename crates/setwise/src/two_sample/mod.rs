//! Two-sample tests: do two samples have one distribution?
//!
//! If P and Q are equal, the assignment of rows to samples is arbitrary. Random permutations assign the rows again to
//! samples of the same sizes. The p-value is the share of assignments whose statistic is at least the observed one, the
//! observed assignment included. The level of the test is exact for all distributions, sizes and statistics.
//!
//! `kernel` holds the statistics, `permutations` computes them for all permutations at once.

mod kernel;
mod permutations;

use serde::{Serialize, Serializer};
use setwise_engine::splitmix64;

use crate::estimate::{Points, Progress};
use crate::{Error, Result};
use kernel::{Kernel, Standardised};
use permutations::Permutations;

pub use kernel::Statistic;

/// A permutation test of two samples. Columns are standardised over both samples, so that units have no influence.
///
/// Memory is linear in the rows, time quadratic in the rows times the permutations. Of larger samples,
/// [`TwoSampleTest::max_rows`] rows are drawn at random.
///
/// ```
/// use setwise::estimate::Points;
/// use setwise::two_sample::TwoSampleTest;
/// let p: Vec<f64> = (0..60).map(|i| f64::from(i * 37 % 60)).collect();
/// let q: Vec<f64> = (0..50).map(|i| f64::from(i * 31 % 50) + 40.0).collect();
/// let (p, q) = (Points::new(&p, 1), Points::new(&q, 1));
/// assert_eq!(TwoSampleTest::default().run(p, q)?.p_value, 0.001);
/// assert!(TwoSampleTest::default().run(p, p)?.p_value > 0.9);
/// # Ok::<(), setwise::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TwoSampleTest {
    /// The statistic.
    pub statistic: Statistic,
    /// Random permutations; the smallest p-value is 1 / (permutations + 1).
    pub permutations: usize,
    /// Maximum number of rows of each sample; more are subsampled.
    pub max_rows: usize,
    /// Seed of the permutations, and of the rows that are drawn.
    pub seed: u64,
}

impl Default for TwoSampleTest {
    /// Energy distance, 999 permutations, up to 10,000 rows of each sample.
    fn default() -> Self {
        TwoSampleTest { statistic: Statistic::Energy, permutations: 999, max_rows: 10_000, seed: 0 }
    }
}

/// Permutations of a test.
const MAX_PERMUTATIONS: usize = 100_000;

/// The outcome of a test; serialises to the JSON the command line prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestResult {
    /// Always `test`.
    #[serde(serialize_with = "test")]
    pub quantity: (),
    /// The probability, if P and Q are the same, of a statistic at least as large.
    pub p_value: f64,
    /// The statistic; see [`Statistic`].
    pub statistic: f64,
    /// Random permutations.
    pub permutations: usize,
    /// Permutations whose statistic is at least the observed one.
    pub as_large: usize,
    /// Rows of P and Q.
    pub n: [usize; 2],
    /// Width of a row.
    pub dim: usize,
    /// What was compared.
    pub method: String,
    /// What should be known about it.
    pub warnings: Vec<String>,
}

fn test<S: Serializer>(_: &(), s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_str("test")
}

impl TwoSampleTest {
    /// Tests two samples.
    pub fn run(&self, p: Points, q: Points) -> Result<TestResult> {
        self.run_observed(p, q, &Progress::default())
    }

    /// [`TwoSampleTest::run`], which tells `progress` how far it is.
    pub fn run_observed(&self, p: Points, q: Points, progress: &Progress) -> Result<TestResult> {
        self.check(p, q)?;
        let mut warnings = Vec::new();
        for (points, side) in [(p, "P"), (q, "Q")] {
            if points.len() > self.max_rows {
                warnings.push(format!(
                    "{}: {} of {} rows of {side} are used, drawn at random",
                    points.name(),
                    self.max_rows,
                    points.len()
                ));
            }
        }
        // The seeds differ, so that different rows are drawn if P and Q are the same file.
        let [of_p, of_q] =
            [(p, self.seed), (q, splitmix64(self.seed))].map(|(s, seed)| s.select(&s.subsample(self.max_rows, seed)));
        let (n, m) = (of_p.len() / p.dim(), of_q.len() / q.dim());
        let pooled = Standardised::new([of_p, of_q].concat(), p.dim());
        if let Some(column) = pooled.constant() {
            warnings.push(format!("column {column} holds one value only in both samples and has no influence"));
        }
        if let Some(splits) = split_count(n, m).filter(|&splits| splits <= self.permutations as f64) {
            warnings.push(format!(
                "there are only {splits} ways to split so few rows: no p-value is below {:.2}",
                1.0 / splits
            ));
        }
        let kernel = Kernel::new(&self.statistic, &pooled, self.seed)?;
        let permutations = Permutations::new(n, m, self.permutations, self.seed);
        let sums = permutations.sums(&pooled, kernel, progress);
        let observed = kernel.value(sums[0], n, m);
        // Equal statistics of different permutations differ by the rounding errors of terms that cancel.
        let tolerance = permutations.relative_error() * sums[0].magnitude() / ((n + m) as f64).powi(2);
        let as_large = sums[1..].iter().filter(|&&s| kernel.value(s, n, m) >= observed - tolerance).count();
        Ok(TestResult {
            quantity: (),
            p_value: (1 + as_large) as f64 / (1 + self.permutations) as f64,
            statistic: observed,
            permutations: self.permutations,
            as_large,
            n: [p.len(), q.len()],
            dim: p.dim(),
            method: kernel.name(),
            warnings,
        })
    }

    fn check(&self, p: Points, q: Points) -> Result<()> {
        crate::estimate::check_widths(p, q)?;
        if self.permutations == 0 || self.permutations > MAX_PERMUTATIONS {
            let n = self.permutations;
            return Err(Error::Estimate(format!("{n} permutations: must be 1 to {MAX_PERMUTATIONS}")));
        }
        if self.max_rows < 2 {
            return Err(Error::Estimate(format!("at most {} rows: must be 2 or more", self.max_rows)));
        }
        [p, q].into_iter().try_for_each(|s| crate::estimate::check_rows(s, 2, "a two-sample test"))
    }
}

/// The number of ways to split n + m rows into samples of n and m; `None` where the smaller has more than 20 rows.
fn split_count(n: usize, m: usize) -> Option<f64> {
    let (smaller, all) = (n.min(m), n + m);
    if smaller > 20 {
        return None;
    }
    Some((0..smaller).map(|i| (all - i) as f64 / (i + 1) as f64).product::<f64>().round())
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    fn normals(count: usize, seed: u64, f: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        (0..count).map(|_| f((0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0)).collect()
    }

    const BOTH: [Statistic; 2] = [Statistic::Energy, Statistic::Mmd { bandwidth: None }];

    fn p_value(statistic: &Statistic, p: &[f64], q: &[f64], dim: usize, permutations: usize) -> f64 {
        let test = TwoSampleTest { statistic: statistic.clone(), permutations, ..TwoSampleTest::default() };
        test.run(Points::new(p, dim), Points::new(q, dim)).unwrap().p_value
    }

    #[test]
    fn the_progress_reaches_its_end() {
        let (p, q) = (normals(200, 1, |x| x), normals(150, 2, |x| x));
        let progress = Progress::default();
        TwoSampleTest::default().run_observed(Points::new(&p, 2), Points::new(&q, 2), &progress).unwrap();
        assert_eq!(progress.share(), Some(1.0));
    }

    #[test]
    fn equal_distributions_are_rejected_as_rarely_as_the_level_says() {
        for statistic in &BOTH {
            let mut below = [0; 2];
            for trial in 0..400 {
                let (p, q) = (normals(30, 2 * trial, |x| x), normals(50, 2 * trial + 1, |x| x));
                let p = p_value(statistic, &p, &q, 2, 99);
                below[0] += usize::from(p <= 0.05);
                below[1] += usize::from(p <= 0.5);
            }
            // Four standard deviations of 400 trials.
            assert!((4..=38).contains(&below[0]) && (160..=240).contains(&below[1]), "{statistic:?}: {below:?}");
        }
    }

    #[test]
    fn shifts_scales_and_dependence_are_detected() {
        let base = normals(300, 1, |x| x);
        let shifted = normals(300, 2, |x| x + 0.5);
        let scaled = normals(300, 3, |x| 2.0 * x);
        let same = normals(300, 7, |x| x);
        // Both columns standard normal, but each a copy of the other.
        let dependent: Vec<f64> = normals(500, 5, |x| x).into_iter().flat_map(|x| [x, x]).collect();
        for statistic in &BOTH {
            assert!(p_value(statistic, &normals(1000, 6, |x| x), &dependent, 2, 199) <= 0.01, "{statistic:?}");
            for other in [&shifted, &scaled] {
                assert!(p_value(statistic, &base, other, 2, 199) <= 0.01, "{statistic:?}");
            }
            assert!(p_value(statistic, &base, &same, 2, 199) > 0.01, "{statistic:?}");
        }
    }

    #[test]
    fn results_depend_on_the_seed_and_not_on_units_or_threads() {
        let (p, q) = (normals(80, 1, |x| x), normals(90, 2, |x| x + 0.2));
        for statistic in BOTH {
            let test = TwoSampleTest { statistic, ..TwoSampleTest::default() };
            let answer = |p: &[f64], q: &[f64]| test.run(Points::new(p, 2), Points::new(q, 2)).unwrap();
            let first = answer(&p, &q);
            assert_eq!(first, answer(&p, &q));
            let threads = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
            assert_eq!(first, threads.install(|| answer(&p, &q)));
            let units =
                |s: &[f64]| -> Vec<f64> { s.chunks(2).flat_map(|r| [1e-200 * r[0], 1e150 * r[1] + 1e150]).collect() };
            let other = answer(&units(&p), &units(&q));
            assert!((other.statistic - first.statistic).abs() < 1e-9, "{other:?}, {first:?}");
            assert_eq!(other.p_value, first.p_value);
        }
    }

    #[test]
    fn large_samples_are_subsampled_and_small_ones_get_a_warning() {
        let (p, q) = (normals(500, 1, |x| x), normals(40, 2, |x| x));
        let test = TwoSampleTest { max_rows: 100, permutations: 19, ..TwoSampleTest::default() };
        let result = test.run(Points::new(&p, 1).named("p.csv"), Points::new(&q, 1)).unwrap();
        assert_eq!(result.n, [500, 40]);
        assert_eq!(result.warnings, ["p.csv: 100 of 500 rows of P are used, drawn at random"]);
        let few = TwoSampleTest::default().run(Points::new(&p[..3], 1), Points::new(&q[..3], 1)).unwrap();
        assert_eq!(few.warnings, ["there are only 20 ways to split so few rows: no p-value is below 0.05"]);
        assert!(few.p_value > 0.02);
    }

    #[test]
    fn samples_of_one_repeated_row_have_p_value_one() {
        let same = [7.0; 20];
        for statistic in &BOTH {
            assert_eq!(p_value(statistic, &same, &same, 2, 99), 1.0);
        }
    }

    #[test]
    fn errors_name_the_sample_and_the_reason() {
        let error = |test: TwoSampleTest, p: Points, q: Points| test.run(p, q).unwrap_err().to_string();
        let p = Points::new(&[1.0, 2.0, 3.0, 4.0], 2).named("p.csv");
        let one = Points::new(&[1.0, 2.0], 2).named("one.csv");
        let narrow = Points::new(&[1.0, 2.0], 1).named("narrow.csv");
        let with = TwoSampleTest::default;
        assert_eq!(error(with(), p, one), "one.csv: has 1 rows, a two-sample test needs at least 2");
        assert!(error(with(), p, narrow).contains("narrow.csv has 1"));
        assert!(error(TwoSampleTest { permutations: 0, ..with() }, p, p).contains("1 to 100000"));
        assert!(error(TwoSampleTest { max_rows: 1, ..with() }, p, p).contains("must be 2 or more"));
        let statistic = Statistic::Mmd { bandwidth: Some(0.0) };
        assert!(error(TwoSampleTest { statistic, ..with() }, p, p).contains("bandwidth"));
    }
}
