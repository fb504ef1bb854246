//! Two-sample tests: do two samples have one distribution?
//!
//! If P and Q are equal, the assignment of rows to samples is arbitrary. Random permutations assign the rows again to
//! samples of the same sizes. The p-value is the share of assignments whose statistic is at least the observed one, the
//! observed assignment included. The level of the test is exact for all distributions, sizes and statistics.
//!
//! | module | holds |
//! | --- | --- |
//! | `adaptive` | the default: many statistics of label-blind columns, fused within every permutation |
//! | `encode` | label-blind columns of the pooled sample: bumps, ranks, normal scores, repeated values |
//! | `features` | columns summed over groups of rows, and their covariance |
//! | `quadratic` | statistics that are quadratic in sums of columns |
//! | `calibrate` | statistics of different kinds on one scale |
//! | `witness` | how well rows of both samples are told apart: a cross-fitted AUC |
//! | `design` | which rows may be exchanged: all, those of a pair, those of a block |
//! | `tables` | tables of mixed columns as samples of numbers |
//! | `labels`, `product` | permuted labels, and their products with columns |
//! | `kernel`, `permutations` | the energy distance and MMD over all pairs of rows, for all permutations at once |

mod adaptive;
mod calibrate;
mod design;
mod encode;
mod features;
mod kernel;
mod labels;
mod permutations;
mod product;
mod quadratic;
mod result;
mod tables;
mod witness;

use setwise_engine::splitmix64;

use crate::estimate::{Points, Progress};
use crate::{Error, Result};
use adaptive::Adaptive;
use kernel::{Kernel, Standardised};
use labels::Labels;
use permutations::Permutations;

pub use adaptive::Aspect;
pub use design::Design;
pub use kernel::Statistic;
pub use result::{Finding, TestResult};
pub use tables::{Encoded, blocks};

/// A permutation test of two samples. Columns are standardised over both samples, so that units have no influence.
///
/// The adaptive test uses all rows; time and memory are linear in them. Tests of one kernel are quadratic in the rows,
/// and draw [`TwoSampleTest::max_rows`] of larger samples at random.
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
    /// The level of significance. The adaptive test draws no more permutations once p is above it in any case.
    pub alpha: f64,
    /// Maximum number of rows of each sample for tests of one kernel; more are subsampled.
    pub max_rows: usize,
    /// Seed of the permutations, and of the rows that are drawn.
    pub seed: u64,
}

impl Default for TwoSampleTest {
    /// The adaptive test at level 5 %, 999 permutations.
    fn default() -> Self {
        TwoSampleTest { statistic: Statistic::Adaptive, permutations: 999, alpha: 0.05, max_rows: 10_000, seed: 0 }
    }
}

/// Permutations of a test.
const MAX_PERMUTATIONS: usize = 100_000;

impl TwoSampleTest {
    /// Tests two independent samples.
    pub fn run(&self, p: Points, q: Points) -> Result<TestResult> {
        self.run_observed(p, q, Design::Independent, &Progress::default())
    }

    /// Tests two samples with a design. It tells `progress` how far it is.
    pub fn run_observed(&self, p: Points, q: Points, design: Design, progress: &Progress) -> Result<TestResult> {
        self.check(p, q)?;
        design.check(p, q)?;
        let mut warnings = Vec::new();
        let kept = self.rows_used(p, q, &design, &mut warnings);
        let [n, m] = kept.each_ref().map(Vec::len);
        let raw = [p.select(&kept[0]), q.select(&kept[1])].concat();
        let pooled = Standardised::new(raw.clone(), p.dim());
        let max_pairs = if self.statistic == Statistic::Adaptive { Adaptive::MAX_PAIRS } else { usize::MAX };
        let blocks = design.blocks(&kept, max_pairs);
        if let Some(column) = pooled.constant() {
            let name = p.column_name(column - 1).unwrap_or_else(|| column.to_string());
            warnings.push(format!("column {name} holds one value only in both samples and has no influence"));
        }
        let labels = Labels::new((0..n + m).map(|row| row < n).collect(), &blocks, self.seed);
        let adaptive = (self.statistic == Statistic::Adaptive)
            .then(|| Adaptive::new(&raw, &pooled, n, &design, &blocks, self.seed));
        let assignments = adaptive.as_ref().map_or_else(|| labels.assignments(), Adaptive::assignments);
        if let Some(splits) = assignments.filter(|&splits| splits <= self.permutations as f64) {
            // An exchange of all labels leaves every statistic as it is.
            let equal = if n == m && !matches!(design, Design::Blocked { .. }) { 2.0 } else { 1.0 };
            warnings.push(format!(
                "there are only {splits} ways to split so few rows: no p-value is much below {:.3}",
                (equal / splits).min(1.0)
            ));
        }
        let result = TestResult {
            quantity: (),
            p_value: 1.0,
            alpha: self.alpha,
            different: false,
            statistic: 0.0,
            auc: None,
            interval: None,
            permutations: self.permutations,
            as_large: 0,
            n: [p.len(), q.len()],
            dim: p.dim(),
            method: String::new(),
            findings: Vec::new(),
            warnings,
        };
        let result = match &adaptive {
            Some(test) => self.run_adaptive(test, [p, q], result, progress),
            None => self.run_kernel(&pooled, [n, m], &labels, result, progress)?,
        };
        Ok(TestResult { different: result.p_value <= self.alpha, ..result })
    }

    /// The rows of both samples that are used. What is left out is warned of.
    fn rows_used(&self, p: Points, q: Points, design: &Design, warnings: &mut Vec<String>) -> [Vec<usize>; 2] {
        /// An adaptive test uses at most so many rows of one sample for each row of the other.
        const MAX_RATIO: usize = 20;
        let max_rows = match self.statistic {
            Statistic::Adaptive => (MAX_RATIO * p.len().min(q.len())).max(self.max_rows),
            _ => self.max_rows,
        };
        for (points, side) in [(p, "P"), (q, "Q")] {
            if points.len() > max_rows {
                let (name, all) = (points.name(), points.len());
                warnings.push(format!("{name}: {max_rows} of {all} rows of {side} are used, drawn at random"));
            }
        }
        // The seeds differ, so that different rows are drawn if P and Q are the same file.
        let of_q = if matches!(design, Design::Paired) { self.seed } else { splitmix64(self.seed) };
        [p.subsample(max_rows, self.seed), q.subsample(max_rows, of_q)]
    }

    fn run_adaptive(
        &self,
        test: &Adaptive,
        [p, q]: [Points; 2],
        result: TestResult,
        progress: &Progress,
    ) -> TestResult {
        let found = test.run(self.permutations, self.alpha, progress);
        let name = |c: &usize| p.column_name(*c).or(q.column_name(*c)).unwrap_or_else(|| (c + 1).to_string());
        let finding = |f: adaptive::Found| Finding {
            aspect: f.aspect,
            columns: f.columns.iter().map(name).collect(),
            p_value: f.p_value,
        };
        TestResult {
            p_value: found.p_value,
            statistic: found.evidence,
            auc: found.separation.map(|s| s.auc),
            interval: found.separation.map(|s| s.interval),
            permutations: found.permutations,
            as_large: found.as_large,
            method: "adaptive".to_owned(),
            findings: found.found.into_iter().map(finding).collect(),
            ..result
        }
    }

    fn run_kernel(
        &self,
        pooled: &Standardised,
        [n, m]: [usize; 2],
        labels: &Labels,
        result: TestResult,
        progress: &Progress,
    ) -> Result<TestResult> {
        let kernel = Kernel::new(&self.statistic, pooled, self.seed)?;
        let permutations = Permutations::new(labels, self.permutations);
        let sums = permutations.sums(pooled, kernel, progress);
        let observed = kernel.value(sums[0], n, m);
        // Equal statistics of different permutations differ by the rounding errors of terms that cancel.
        let tolerance = permutations.relative_error() * sums[0].magnitude() / ((n + m) as f64).powi(2);
        let as_large = sums[1..].iter().filter(|&&s| kernel.value(s, n, m) >= observed - tolerance).count();
        let p_value = (1 + as_large) as f64 / (1 + self.permutations) as f64;
        Ok(TestResult { p_value, statistic: observed, as_large, method: kernel.name(), ..result })
    }

    fn check(&self, p: Points, q: Points) -> Result<()> {
        crate::estimate::check_widths(p, q)?;
        if self.permutations == 0 || self.permutations > MAX_PERMUTATIONS {
            let n = self.permutations;
            return Err(Error::Estimate(format!("{n} permutations: must be 1 to {MAX_PERMUTATIONS}")));
        }
        if !(self.alpha > 0.0 && self.alpha < 1.0) {
            return Err(Error::Setting {
                key: "alpha".to_owned(),
                reason: format!("is {}; give a share below 1", self.alpha),
            });
        }
        if self.max_rows < 2 {
            return Err(Error::Estimate(format!("at most {} rows: must be 2 or more", self.max_rows)));
        }
        for points in [p, q] {
            if let Some(i) = points.data().iter().position(|x| !x.is_finite()) {
                let (row, column) = (i / points.dim() + 1, i % points.dim() + 1);
                let x = points.data()[i];
                return Err(Error::Estimate(format!(
                    "{}: row {row}, column {column} is {x}; every value must be a finite number",
                    points.name()
                )));
            }
        }
        [p, q].into_iter().try_for_each(|s| crate::estimate::check_rows(s, 2, "a two-sample test"))
    }
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

    const ALL: [Statistic; 3] = [Statistic::Adaptive, Statistic::Energy, Statistic::Mmd { bandwidth: None }];

    fn p_value(statistic: &Statistic, p: &[f64], q: &[f64], dim: usize, permutations: usize) -> f64 {
        let test = TwoSampleTest { statistic: statistic.clone(), permutations, ..TwoSampleTest::default() };
        test.run(Points::new(p, dim), Points::new(q, dim)).unwrap().p_value
    }

    #[test]
    fn the_progress_reaches_its_end() {
        let (p, q) = (normals(200, 1, |x| x), normals(150, 2, |x| x));
        let progress = Progress::default();
        TwoSampleTest::default()
            .run_observed(Points::new(&p, 2), Points::new(&q, 2), Design::Independent, &progress)
            .unwrap();
        assert_eq!(progress.share(), Some(1.0));
    }

    #[test]
    fn equal_distributions_are_rejected_as_rarely_as_the_level_says() {
        for statistic in &ALL {
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
    fn the_level_holds_for_one_seed_and_samples_of_different_sizes() {
        // Bumps around rows of the smaller sample would favour either answer.
        let rejected = (0..120).filter(|&trial| {
            let (p, q) = (normals(8, 2 * trial, |x| x), normals(300, 2 * trial + 1, |x| x));
            p_value(&Statistic::Adaptive, &p, &q, 2, 99) <= 0.05
        });
        let rejected = rejected.count();
        // Four standard deviations of 120 trials.
        assert!(rejected <= 15, "{rejected} of 120");
    }

    #[test]
    fn shifts_scales_and_dependence_are_detected() {
        let base = normals(300, 1, |x| x);
        let shifted = normals(300, 2, |x| x + 0.5);
        let scaled = normals(300, 3, |x| 2.0 * x);
        let same = normals(300, 7, |x| x);
        // Both columns standard normal, but each a copy of the other.
        let dependent: Vec<f64> = normals(500, 5, |x| x).into_iter().flat_map(|x| [x, x]).collect();
        for statistic in &ALL {
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
        for statistic in ALL {
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
        let test =
            TwoSampleTest { statistic: Statistic::Energy, max_rows: 100, permutations: 19, ..Default::default() };
        let result = test.run(Points::new(&p, 1).named("p.csv"), Points::new(&q, 1)).unwrap();
        assert_eq!(result.n, [500, 40]);
        assert_eq!(result.warnings, ["p.csv: 100 of 500 rows of P are used, drawn at random"]);
        let few = TwoSampleTest::default().run(Points::new(&p[..3], 1), Points::new(&q[..3], 1)).unwrap();
        assert_eq!(few.warnings, ["there are only 20 ways to split so few rows: no p-value is much below 0.100"]);
        assert!(few.p_value > 0.02);
    }

    #[test]
    fn samples_of_one_repeated_row_have_p_value_one() {
        let same = [7.0; 20];
        for statistic in &ALL {
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
        let infinite = Points::new(&[1.0, 2.0, f64::NAN, 4.0], 2).named("nan.csv");
        assert!(error(with(), p, infinite).starts_with("nan.csv: row 2, column 1 is NaN"));
        assert_eq!(error(with(), p, one), "one.csv: has 1 rows, a two-sample test needs at least 2");
        assert!(error(with(), p, narrow).contains("narrow.csv has 1"));
        assert!(error(TwoSampleTest { permutations: 0, ..with() }, p, p).contains("1 to 100000"));
        assert!(error(TwoSampleTest { max_rows: 1, ..with() }, p, p).contains("must be 2 or more"));
        let statistic = Statistic::Mmd { bandwidth: Some(0.0) };
        assert!(error(TwoSampleTest { statistic, ..with() }, p, p).contains("bandwidth"));
    }
}
