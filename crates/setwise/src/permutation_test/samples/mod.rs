//! Tests of two or more samples: do they have one distribution?
//!
//! | module | holds |
//! | --- | --- |
//! | `adaptive` | the default: many statistics of label-blind columns, fused within every permutation |
//! | `statistics` | the statistics it fuses, with their weights |
//! | `features` | columns summed over groups of rows, and their covariance |
//! | `quadratic` | statistics that are quadratic in sums of columns |
//! | `witness` | how well rows of two samples are told apart: a cross-fitted AUC |
//! | `design` | which rows may be exchanged: all, those of a subject, those of a block |
//! | `labels` | permuted labels |
//! | `pairwise` | each two of several samples, with adjusted p-values |
//! | `kernel`, `permutations` | the energy distance and MMD over all pairs of rows, for all permutations at once |

mod adaptive;
mod design;
mod features;
mod kernel;
mod labels;
mod pairwise;
mod permutations;
mod quadratic;
mod statistics;
mod witness;

use setwise_engine::splitmix64;

use super::PermutationTest;
use super::result::{Finding, Question, TestResult};
use super::sequential::Comparison;
use super::standardised::Standardised;
use crate::estimate::{Dim, Points, Progress, check_widths};
use crate::{Device, Error, Result};
use adaptive::Adaptive;
use kernel::Kernel;
use labels::Labels;
use permutations::{Permutations, Sums};

pub use design::Design;
pub use kernel::Statistic;

impl PermutationTest {
    /// Tests two independent samples.
    pub fn two_samples(&self, p: Points, q: Points) -> Result<TestResult> {
        self.samples(&[p, q], Design::Independent, &Progress::default())
    }

    /// Tests two or more samples with a design. It tells `progress` how far it is.
    ///
    /// Of three or more samples each two are tested as well.
    pub fn samples(&self, samples: &[Points], design: Design, progress: &Progress) -> Result<TestResult> {
        self.check_samples(samples)?;
        design.check(samples)?;
        let pairs = pairwise::pairs(samples.len());
        progress.plan(pairs.len());
        let result = self.all_samples(samples, design, progress)?;
        if pairs.is_empty() {
            return Ok(result);
        }
        let test_pair = |&[a, b]: &[usize; 2]| {
            let pair = [samples[a], samples[b]];
            let test = |design: Design| {
                let mut tested = self.all_samples(&pair, design, &Progress::default())?;
                // Where nothing can be exchanged, the p-value is one.
                tested.warnings.extend(design.check(&pair).err().map(|e| e.to_string()));
                Ok(tested)
            };
            let tested = design.of_some(&[a, b], test);
            progress.advance(1);
            tested
        };
        let of_pairs = pairs.iter().map(test_pair).collect::<Result<Vec<TestResult>>>()?;
        Ok(TestResult { pairs: pairwise::adjusted(&result, &pairs, of_pairs), ..result })
    }

    /// Tests samples all together.
    fn all_samples(&self, samples: &[Points], design: Design, progress: &Progress) -> Result<TestResult> {
        let mut warnings = Vec::new();
        let kept = self.rows_used(samples, &design, &mut warnings);
        let raw: Vec<f64> = samples.iter().zip(&kept).flat_map(|(points, rows)| points.select(rows)).collect();
        let pooled = Standardised::new(raw.clone(), samples[0].dim());
        let max_subjects = match self.statistic {
            Statistic::Adaptive => Adaptive::max_subjects(samples.len()),
            _ => usize::MAX,
        };
        let blocks = design.blocks(&kept, max_subjects);
        if let Some(column) = pooled.constant {
            let name = column_name(samples, column - 1);
            let all = if samples.len() == 2 { "both" } else { "all" };
            warnings.push(format!("column {name} holds one value only in {all} samples and has no influence"));
        }
        let sample: Vec<u8> = kept.iter().enumerate().flat_map(|(s, rows)| rows.iter().map(move |_| s as u8)).collect();
        let adaptive = (self.statistic == Statistic::Adaptive)
            .then(|| Adaptive::new(&raw, &pooled, &sample, &design, &blocks, self.seed));
        let labels = Labels::new(sample, &blocks, self.seed);
        let assignments = adaptive.as_ref().map_or_else(|| labels.assignments(), Adaptive::assignments);
        if let Some(splits) = assignments.filter(|&splits| splits <= self.permutations as f64) {
            let equal = if matches!(design, Design::Blocked(_)) { 1.0 } else { exchanges(&kept) };
            warnings.push(format!(
                "there are only {splits} ways to split so few rows: no p-value is much below {:.3}",
                (equal / splits).min(1.0)
            ));
        }
        let result = TestResult {
            quantity: Question::Samples,
            p_value: 1.0,
            alpha: self.alpha,
            significant: false,
            statistic: 0.0,
            auc: None,
            interval: None,
            permutations: self.permutations,
            as_large: 0,
            n: samples.iter().map(Points::len).collect(),
            dim: Dim::One(samples[0].dim()),
            method: String::new(),
            findings: Vec::new(),
            pairs: Vec::new(),
            warnings,
        };
        let result = match &adaptive {
            Some(test) => self.run_adaptive(test, samples, result, progress),
            None => self.run_kernel(&pooled, [kept[0].len(), kept[1].len()], &labels, result, progress)?,
        };
        Ok(TestResult { significant: result.p_value <= self.alpha, ..result })
    }

    /// The rows of each sample that are used. What is left out is warned of.
    fn rows_used(&self, samples: &[Points], design: &Design, warnings: &mut Vec<String>) -> Vec<Vec<usize>> {
        /// An adaptive test uses at most so many rows of one sample for each row of the smallest.
        const MAX_RATIO: usize = 20;
        let smallest = samples.iter().map(Points::len).min().unwrap_or(0);
        let max_rows = match self.statistic {
            Statistic::Adaptive => (MAX_RATIO * smallest).max(self.max_rows),
            _ => self.max_rows,
        };
        let mut seed = self.seed;
        let mut of_sample = |(s, points): (usize, &Points)| {
            if points.len() > max_rows {
                let (name, all) = (points.name(), points.len());
                warnings.push(format!("{name}: {max_rows} of {all} rows of {} are used, drawn at random", letter(s)));
            }
            let rows = points.subsample(max_rows, seed);
            // The seeds differ, so that different rows are drawn if two samples are the same file.
            if !matches!(design, Design::Paired) {
                seed = splitmix64(seed);
            }
            rows
        };
        samples.iter().enumerate().map(&mut of_sample).collect()
    }

    fn run_adaptive(&self, test: &Adaptive, samples: &[Points], result: TestResult, progress: &Progress) -> TestResult {
        let compared = test.run(Comparison { permutations: self.permutations, alpha: self.alpha }, progress);
        let name = |c: &usize| column_name(samples, *c);
        let finding = |(aspect, columns, p_value): adaptive::Found| Finding {
            aspect,
            columns: columns.iter().map(name).collect(),
            p_value,
        };
        let separation = test.separation(&compared);
        TestResult {
            p_value: compared.p_value,
            statistic: compared.evidence,
            auc: separation.map(|s| s.auc),
            interval: separation.map(|s| s.interval),
            permutations: compared.permutations,
            as_large: compared.as_large,
            method: "adaptive".to_owned(),
            findings: test.found(&compared).into_iter().map(finding).collect(),
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
        let sums = permutations.sums(pooled, kernel, &self.device, progress)?;
        let observed = kernel.value(sums[0], n, m);
        // Equal statistics of different permutations differ by the rounding errors of terms that cancel.
        let tolerance = permutations.relative_error() * sums[0].magnitude() / ((n + m) as f64).powi(2);
        let is_less = |s: &&Sums| kernel.value(**s, n, m) < observed - tolerance;
        let as_large = self.permutations - sums[1..].iter().filter(is_less).count();
        let p_value = (1 + as_large) as f64 / (1 + self.permutations) as f64;
        Ok(TestResult { p_value, statistic: observed, as_large, method: kernel.name(), ..result })
    }

    fn check_samples(&self, samples: &[Points]) -> Result<()> {
        let count = samples.len();
        match count {
            0 | 1 => return Err(Error::Sets("a test needs two samples or more".to_owned())),
            2..=Labels::MAX_SAMPLES => {}
            _ => return Err(Error::Sets(format!("{count} samples: at most {} are tested", Labels::MAX_SAMPLES))),
        }
        if self.statistic == Statistic::Adaptive && !matches!(self.device, Device::Cpu) {
            return Err(Error::Device(
                "the adaptive test runs on the CPU; other devices are for energy and mmd".into(),
            ));
        }
        if count > 2 && self.statistic != Statistic::Adaptive {
            return Err(Error::Sets(format!("{count} samples: tests of one kernel are for two")));
        }
        samples[1..].iter().try_for_each(|q| check_widths(samples[0], *q))?;
        self.check(samples, "a test of samples")
    }
}

/// The name of a column, or its number.
fn column_name(samples: &[Points], column: usize) -> String {
    samples.iter().find_map(|points| points.column_name(column)).unwrap_or_else(|| (column + 1).to_string())
}

/// The name of a sample in messages.
fn letter(sample: usize) -> String {
    match sample {
        0 => "P".to_owned(),
        1 => "Q".to_owned(),
        _ => format!("sample {}", sample + 1),
    }
}

/// Exchanges of samples of equal size, which leave every statistic as it is.
fn exchanges(kept: &[Vec<usize>]) -> f64 {
    let mut sizes: Vec<usize> = kept.iter().map(Vec::len).collect();
    sizes.sort_unstable();
    sizes.chunk_by(|a, b| a == b).map(|equal| (1..=equal.len()).product::<usize>() as f64).product()
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
        let test = PermutationTest { statistic: statistic.clone(), permutations, ..PermutationTest::default() };
        test.two_samples(Points::new(p, dim), Points::new(q, dim)).unwrap().p_value
    }

    #[test]
    fn the_progress_reaches_its_end() {
        let (p, q) = (normals(200, 1, |x| x), normals(150, 2, |x| x));
        let progress = Progress::default();
        PermutationTest::default()
            .samples(
                &[Points::new(&p, 2), Points::new(&q, 2), Points::new(&p[..40], 2)],
                Design::Independent,
                &progress,
            )
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
            let test = PermutationTest { statistic, ..PermutationTest::default() };
            let answer = |p: &[f64], q: &[f64]| test.two_samples(Points::new(p, 2), Points::new(q, 2)).unwrap();
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
            PermutationTest { statistic: Statistic::Energy, max_rows: 100, permutations: 19, ..Default::default() };
        let result = test.two_samples(Points::new(&p, 1).named("p.csv"), Points::new(&q, 1)).unwrap();
        assert_eq!(result.n, [500, 40]);
        assert_eq!(result.warnings, ["p.csv: 100 of 500 rows of P are used, drawn at random"]);
        let few = PermutationTest::default().two_samples(Points::new(&p[..3], 1), Points::new(&q[..3], 1)).unwrap();
        assert_eq!(few.warnings, ["there are only 20 ways to split so few rows: no p-value is much below 0.100"]);
        assert!(few.p_value > 0.02);
    }

    #[test]
    fn three_samples_are_tested_together_and_in_pairs() {
        let draw = |seed: u64, shift: f64| normals(200, seed, |x| x + shift);
        let test = PermutationTest { permutations: 199, ..Default::default() };
        let run = |samples: [&Vec<f64>; 3], design: Design| {
            test.samples(&samples.map(|s| Points::new(s, 2)), design, &Progress::default()).unwrap()
        };
        let (a, b, c) = (draw(11, 0.0), draw(12, 0.0), draw(13, 0.7));
        let found = run([&a, &b, &c], Design::Independent);
        assert_eq!((found.p_value, found.n.clone()), (0.005, vec![100, 100, 100]));
        let different: Vec<[usize; 2]> = found.pairs.iter().filter(|p| p.significant).map(|p| p.samples).collect();
        assert_eq!(different, [[0, 2], [1, 2]]);
        assert!(found.pairs.iter().all(|p| p.adjusted >= p.p_value && p.auc.is_some()));
        assert!(!run([&a, &b, &draw(15, 0.0)], Design::Independent).significant);
        // The same subjects with effects of their own, shifted a little each time.
        let subjects = normals(200, 5, |x| 5.0 * x);
        let near = |seed: u64, shift: f64| -> Vec<f64> {
            subjects.iter().zip(normals(200, seed, |x| x)).map(|(s, x)| s + x + shift).collect()
        };
        let (a, b, c) = (near(6, 0.0), near(7, 0.0), near(8, 0.8));
        assert!(!run([&a, &b, &c], Design::Independent).significant);
        let paired = run([&a, &b, &c], Design::Paired);
        assert!(paired.significant && paired.pairs.iter().all(|p| p.auc.is_none()));
        assert!(!paired.pairs[0].significant && paired.pairs[1].significant);
        let blocks: Vec<u32> = (0..100).collect();
        assert!(run([&a, &b, &c], Design::Blocked(&[&blocks, &blocks, &blocks])).significant);
    }

    #[test]
    fn equal_samples_are_rejected_as_rarely_as_the_level_says_where_there_are_three() {
        let test = PermutationTest { permutations: 99, ..Default::default() };
        let rejected = (0..150).filter(|&trial| {
            let samples = [20, 30, 60].map(|n: usize| normals(n, 100 * trial + n as u64, |x| x));
            let points = samples.each_ref().map(|s| Points::new(s, 2));
            test.samples(&points, Design::Independent, &Progress::default()).unwrap().significant
        });
        let rejected = rejected.count();
        // Four standard deviations of 150 trials.
        assert!(rejected <= 18, "{rejected} of 150");
    }

    #[test]
    fn extreme_values_and_columns_without_variance_are_no_evidence() {
        // Near rows at distances whose squares are zero in single precision, far from both ends.
        let with_ends = |seed: u64| -> Vec<f64> {
            let mut values = normals(60, seed, |x| x);
            (values[3], values[7]) = (1e21, -1e21);
            values
        };
        let wide = |seed: u64| normals(30 * 70, seed, |x| x);
        for statistic in &ALL {
            assert!(p_value(statistic, &with_ends(1), &with_ends(2), 1, 199) > 0.01, "{statistic:?}");
            // More columns than rows.
            assert!(p_value(statistic, &wide(5), &wide(6), 70, 199) > 0.01, "{statistic:?}");
        }
        let narrow = Statistic::Mmd { bandwidth: Some(1e-15) };
        let repeated = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0];
        assert!(p_value(&narrow, &repeated, &repeated, 1, 99) > 0.5);
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
        let error = |test: PermutationTest, p: Points, q: Points| test.two_samples(p, q).unwrap_err().to_string();
        let p = Points::new(&[1.0, 2.0, 3.0, 4.0], 2).named("p.csv");
        let one = Points::new(&[1.0, 2.0], 2).named("one.csv");
        let narrow = Points::new(&[1.0, 2.0], 1).named("narrow.csv");
        let with = PermutationTest::default;
        let infinite = Points::new(&[1.0, 2.0, f64::NAN, 4.0], 2).named("nan.csv");
        assert!(error(with(), p, infinite).starts_with("nan.csv: row 2, column 1 is NaN"));
        assert_eq!(error(with(), p, one), "one.csv: has 1 rows, a test of samples needs at least 2");
        assert!(error(with(), p, narrow).contains("narrow.csv has 1"));
        assert!(error(PermutationTest { permutations: 0, ..with() }, p, p).contains("1 to 100000"));
        assert!(error(PermutationTest { max_rows: 1, ..with() }, p, p).contains("must be 2 or more"));
        let statistic = Statistic::Mmd { bandwidth: Some(0.0) };
        assert!(error(PermutationTest { statistic, ..with() }, p, p).contains("bandwidth"));
    }
}
