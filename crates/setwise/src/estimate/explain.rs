//! Attribution of a divergence to columns.
//!
//! Every column has two numbers: the *marginal* divergence of the column alone, and the *drop* of the estimate
//! without it. A column that repeats others has a large marginal divergence and a small drop. A column that differs
//! only in its dependence on others has a small marginal divergence and a large drop. Leaving columns out does not
//! increase a divergence, so that a negative drop is noise or bias.
//!
//! Noise is measured with columns that hold no information: values of a column, shuffled over both samples. The
//! marginal divergence of such a column is noise, and so is the drop when it stands in for the column.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use serde::Serialize;

use super::points::check_widths;
use super::{Estimator, Pair, Points, Progress};
use crate::Result;
use crate::random::Generator;

/// Rows of each sample that columns are compared on: every column costs two more estimates.
const MAX_ROWS: usize = 5000;
/// Columns that are left out one by one.
const MAX_COLUMNS: usize = 64;
/// Numbers in a batch of copies without a column.
const MAX_COPIED_VALUES: usize = 1 << 22;
/// Columns without information that noise is measured with.
const SHUFFLED: usize = 5;
/// Root mean squares of noise within which 90 % of the noise is: a quantile of Student's t with 5 degrees of freedom.
const QUANTILE: f64 = 2.015;
/// Subsets of columns that are estimated together.
const MAX_BATCH: usize = 16;

/// What one column contributes to an estimate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contribution {
    /// The number of the column, from one.
    pub column: usize,
    /// The name of the column, if the samples have a header.
    pub name: Option<String>,
    /// The estimate from this column alone, if there is one.
    pub marginal: Option<f64>,
    /// Its interval.
    pub marginal_interval: Option<[f64; 2]>,
    /// The estimate from all other columns.
    pub without: Option<f64>,
    /// The estimate from all columns minus that from all other columns.
    pub drop: Option<f64>,
    /// Its 90 % interval: noise, and the sampling error that a divergence of this size has.
    pub drop_interval: Option<[f64; 2]>,
}

/// What columns without information reach, in 19 of 20 cases; `None` where it could not be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Noise {
    /// Marginal divergences.
    pub marginal: Option<f64>,
    /// Drops.
    pub drop: Option<f64>,
}

impl Contribution {
    /// The name of the column, or its number.
    pub fn label(&self) -> String {
        label(self.column, self.name.as_deref())
    }

    /// The larger of both numbers, by which columns are sorted.
    fn importance(&self) -> f64 {
        self.marginal.unwrap_or(f64::NEG_INFINITY).max(self.drop.unwrap_or(f64::NEG_INFINITY))
    }
}

fn label(column: usize, name: Option<&str>) -> String {
    match name {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => format!("column {column}"),
    }
}

/// Contributions of all columns, in order of decreasing importance; serialises to what `setwise kl --explain --json`
/// adds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The estimate from all columns.
    #[serde(rename = "estimate")]
    pub all_columns: f64,
    /// Rows of P and of Q that columns are compared on.
    pub n: [usize; 2],
    /// What noise explains.
    pub noise: Noise,
    /// The columns, by the larger of both numbers.
    pub columns: Vec<Contribution>,
    /// Columns without an estimate, and limits that were reached.
    pub warnings: Vec<String>,
}

/// Explains an estimate column by column. `names` holds the names of the columns, or nothing.
///
/// Of larger samples, 5000 rows are drawn with the seed. Of more than 64 columns, the 64 with the largest divergence
/// alone are left out one by one.
///
/// ```
/// use setwise::estimate::{GaussianKl, Points, explain};
/// // The first columns differ by one, the second are the same.
/// let p = [-1.0, 1.0, 0.0, -2.0, 1.0, 1.0];
/// let q = [0.0, 1.0, 1.0, -2.0, 2.0, 1.0];
/// let names = ["shifted".to_owned(), "same".to_owned()];
/// let explanation = explain(&GaussianKl::plug_in(), Points::new(&p, 2), Points::new(&q, 2), &names, 0)?;
/// let first = &explanation.columns[0];
/// assert_eq!((first.column, first.name.as_deref()), (1, Some("shifted")));
/// assert!((first.marginal.unwrap() - 0.5).abs() < 1e-12);
/// # Ok::<(), setwise::Error>(())
/// ```
pub fn explain(estimator: &dyn Estimator, p: Points, q: Points, names: &[String], seed: u64) -> Result<Explanation> {
    explain_observed(estimator, p, q, names, seed, &Progress::default())
}

/// [`explain`], which tells `progress` how far it is.
pub fn explain_observed(
    estimator: &dyn Estimator,
    p: Points,
    q: Points,
    names: &[String],
    seed: u64,
    progress: &Progress,
) -> Result<Explanation> {
    check_widths(p, q)?;
    let dim = p.dim();
    let mut warnings = Vec::new();
    let drawn = draw_rows(p, q, seed);
    let [p, q] = drawn.as_ref().map_or([p, q], |drawn| drawn.points(p, q));
    if drawn.is_some() {
        let rows = p.len().max(q.len());
        warnings.push(format!("columns are compared on {rows} rows drawn from each larger sample"));
    }
    let shuffled_estimates = if dim > 1 { 2 * SHUFFLED } else { SHUFFLED };
    progress.plan(1 + shuffled_estimates + if dim > 1 { dim + dim.min(MAX_COLUMNS) } else { 0 });
    let all_columns = estimator.value(p, q)?;
    progress.advance(1);

    let subsets = ColumnSubsets { estimator, p, q, names, progress };
    let all: Vec<usize> = (0..dim).collect();
    let mut alone = Vec::with_capacity(dim);
    if dim == 1 {
        alone.push(Some((all_columns, estimator.estimate(p, q, seed)?.interval)));
    } else {
        let estimates = |pairs: &[Pair]| estimator.estimates(pairs, seed);
        for answer in subsets.each(&all, "alone", |c| vec![c], estimates) {
            alone.push(answer.map(|e| (e.value, e.interval)).map_err(|e| warnings.push(e.to_string())).ok());
        }
    }
    let marginal: Vec<Option<f64>> = alone.iter().map(|found| found.map(|(value, _)| value)).collect();
    let mut rng = Generator::seed_from_u64(seed);
    let marginal_noise = subsets.marginal_noise(&mut rng);
    let mut or_warn = |values: Vec<Result<f64>>| -> Vec<Option<f64>> {
        values.into_iter().map(|answer| answer.map_err(|e| warnings.push(e.to_string())).ok()).collect()
    };
    let mut left_out = all;
    left_out.sort_by(|&a, &b| {
        marginal[b].unwrap_or(f64::NEG_INFINITY).total_cmp(&marginal[a].unwrap_or(f64::NEG_INFINITY))
    });
    left_out.truncate(MAX_COLUMNS);
    let mut without = vec![None; dim];
    if dim == 1 {
        // Samples without columns do not differ.
        without[0] = Some(0.0);
    } else {
        let others = |c: usize| (0..dim).filter(|&other| other != c).collect();
        let values = |pairs: &[Pair]| estimator.values(pairs);
        for (&c, value) in left_out.iter().zip(or_warn(subsets.each(&left_out, "left out", others, values))) {
            without[c] = value;
        }
    }
    if dim > MAX_COLUMNS {
        warnings.push(format!("only the {MAX_COLUMNS} columns with the largest marginal KL are left out one by one"));
    }
    let drop_noise = match dim {
        1 => marginal_noise,
        _ => {
            let known: Vec<(usize, f64)> = left_out.iter().filter_map(|&c| Some((c, without[c]?))).collect();
            subsets.drop_noise(&known, &mut rng)
        }
    };
    let noise = Noise { marginal: marginal_noise, drop: drop_noise };
    let contribution = |c: usize| Contribution {
        column: c + 1,
        name: names.get(c).cloned(),
        marginal: marginal[c],
        marginal_interval: alone[c].and_then(|(_, interval)| interval),
        without: without[c],
        drop: without[c].map(|without| all_columns - without),
        drop_interval: without[c].zip(noise.drop).map(|(without, noise)| {
            let drop = all_columns - without;
            let reach = noise.hypot(sampling_reach(drop, [p.len(), q.len()]));
            // A drop below zero is noise.
            [drop - reach, (drop + reach).max(0.0)]
        }),
    };
    let mut columns: Vec<Contribution> = (0..dim).map(contribution).collect();
    columns.sort_by(|a, b| b.importance().total_cmp(&a.importance()));
    Ok(Explanation { all_columns, n: [p.len(), q.len()], noise, columns, warnings })
}

/// Rows drawn of two samples.
pub struct DrawnRows([Option<Vec<f64>>; 2]);

/// Draws the rows of larger samples that columns are compared on; `None` where all rows are.
pub fn draw_rows(p: Points, q: Points, seed: u64) -> Option<DrawnRows> {
    let drawn =
        [p, q].map(|points| (points.len() > MAX_ROWS).then(|| points.select(&points.subsample(MAX_ROWS, seed))));
    drawn.iter().any(Option::is_some).then_some(DrawnRows(drawn))
}

impl DrawnRows {
    /// The samples with these rows.
    pub fn points<'a>(&'a self, p: Points<'a>, q: Points<'a>) -> [Points<'a>; 2] {
        std::array::from_fn(|i| {
            let points = [p, q][i];
            self.0[i].as_ref().map_or(points, |data| Points::new(data, points.dim()).named(points.name()))
        })
    }
}

/// Two samples that are estimated from subsets of their columns.
struct ColumnSubsets<'a> {
    estimator: &'a dyn Estimator,
    p: Points<'a>,
    q: Points<'a>,
    names: &'a [String],
    progress: &'a Progress,
}

impl ColumnSubsets<'_> {
    /// One answer for each column of `subjects`, from the columns `kept` for it. Errors contain `how` the column was
    /// used.
    fn each<T>(
        &self,
        subjects: &[usize],
        how: &str,
        kept: impl Fn(usize) -> Vec<usize>,
        answers: impl Fn(&[Pair]) -> Vec<Result<T>>,
    ) -> Vec<Result<T>> {
        let kept: Vec<Vec<usize>> = subjects.iter().map(|&c| kept(c)).collect();
        let names: Vec<[String; 2]> = subjects
            .iter()
            .map(|&c| {
                let column = match self.names.get(c) {
                    Some(name) => format!("column {} {name:?}", c + 1),
                    None => format!("column {}", c + 1),
                };
                [self.p, self.q].map(|points| format!("{} ({column} {how})", points.name()))
            })
            .collect();
        let size = (self.p.len() + self.q.len()) * kept.first().map_or(1, Vec::len);
        let batch = (MAX_COPIED_VALUES / size.max(1)).clamp(1, MAX_BATCH);
        let mut values = Vec::with_capacity(subjects.len());
        for (kept, names) in kept.chunks(batch).zip(names.chunks(batch)) {
            let data: Vec<[Vec<f64>; 2]> = kept.iter().map(|k| [self.p, self.q].map(|s| s.columns(k))).collect();
            let points = |i: usize, side: usize| Points::new(&data[i][side], kept[i].len()).named(&names[i][side]);
            let pairs: Vec<Pair> = (0..kept.len()).map(|i| (points(i, 0), points(i, 1))).collect();
            values.extend(answers(&pairs));
            self.progress.advance(pairs.len());
        }
        values
    }

    /// Marginal estimates of columns without information.
    fn marginal_noise(&self, rng: &mut Generator) -> Option<f64> {
        let shuffled: Vec<[Vec<f64>; 2]> = (0..SHUFFLED).map(|k| self.shuffled(k % self.p.dim(), rng)).collect();
        let alone: Vec<Pair> = shuffled.iter().map(|[a, b]| (Points::new(a, 1), Points::new(b, 1))).collect();
        let values = self.estimator.values(&alone);
        self.progress.advance(SHUFFLED);
        reached(values.into_iter().flatten())
    }

    /// Drops of columns without information: columns are replaced by shuffled ones. `without` holds estimates without
    /// columns.
    fn drop_noise(&self, without: &[(usize, f64)], rng: &mut Generator) -> Option<f64> {
        let drop = |k: usize| {
            let (c, without) = *without.get(k % without.len().max(1))?;
            let shuffled = self.shuffled(c, rng);
            let replaced = |points: Points, values: &[f64]| -> Vec<f64> {
                let row = |i: usize| {
                    let mut row = points.row(i).to_vec();
                    row[c] = values[i];
                    row
                };
                (0..points.len()).flat_map(row).collect()
            };
            let (a, b) = (replaced(self.p, &shuffled[0]), replaced(self.q, &shuffled[1]));
            let value = self.estimator.value(Points::new(&a, self.p.dim()), Points::new(&b, self.p.dim()));
            self.progress.advance(1);
            Some(value.ok()? - without)
        };
        reached((0..SHUFFLED).filter_map(drop))
    }

    /// The values of a column of both samples, shuffled over both.
    fn shuffled(&self, column: usize, rng: &mut Generator) -> [Vec<f64>; 2] {
        let mut values = [self.p, self.q].map(|s| s.columns(&[column])).concat();
        values.shuffle(rng);
        let of_q = values.split_off(self.p.len());
        [values, of_q]
    }
}

/// Half the length of the 90 % interval of a divergence of this size, by the variance of log ratios of Gaussians with
/// equal covariances: twice the divergence.
fn sampling_reach(divergence: f64, rows: [usize; 2]) -> f64 {
    const NORMAL: f64 = 1.645;
    let per_row: f64 = rows.iter().map(|n| 1.0 / *n as f64).sum();
    NORMAL * (2.0 * divergence.max(0.0) * per_row).sqrt()
}

/// What numbers that would be zero without noise reach in 19 of 20 cases.
fn reached(values: impl Iterator<Item = f64>) -> Option<f64> {
    let squares: Vec<f64> = values.map(|value| value * value).collect();
    let mean = squares.iter().sum::<f64>() / squares.len() as f64;
    mean.is_finite().then(|| QUANTILE * mean.sqrt())
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;
    use crate::estimate::{Estimate, GaussianKl, Knn, Quantity};

    fn noise(count: usize, seed: u64) -> Vec<f64> {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        (0..count).map(|_| (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0).collect()
    }

    /// Three columns: one of equal distribution, one that is shifted, a copy of the second with noise.
    fn samples(rows: usize) -> [Vec<f64>; 2] {
        [(1, 0.0), (2, 1.5)].map(|(seed, shift)| {
            let numbers = noise(3 * rows, seed);
            let row = |r: &[f64]| [r[0], r[1] + shift, r[1] + shift + 0.3 * r[2]];
            numbers.chunks_exact(3).flat_map(row).collect()
        })
    }

    #[test]
    fn equal_columns_come_last_and_redundant_columns_have_small_drops() {
        let [p, q] = samples(400);
        let (p, q) = (Points::new(&p, 3), Points::new(&q, 3));
        for estimator in [&Knn::default() as &dyn Estimator, &GaussianKl::default()] {
            let explanation = explain(estimator, p, q, &[], 0).unwrap();
            let [first, second, last] = &explanation.columns[..] else { panic!() };
            assert_eq!((last.column, first.column + second.column), (1, 5), "{explanation:?}");
            assert!(
                first.marginal.unwrap() > 0.7 && last.marginal.unwrap() < 0.2 && last.drop.unwrap() < 0.2,
                "{explanation:?}"
            );
            assert!(second.drop.unwrap() < 0.5 * second.marginal.unwrap(), "{explanation:?}");
            for c in &explanation.columns {
                assert_eq!(c.drop.unwrap(), explanation.all_columns - c.without.unwrap());
            }
            assert_eq!(explanation.all_columns, estimator.value(p, q).unwrap());
        }
    }

    #[test]
    fn marginal_and_without_are_the_estimates_from_these_columns() {
        let [p, q] = samples(60);
        let [p, q] = [&p, &q].map(|s| Points::new(s, 3));
        let explanation = explain(&Knn::default(), p, q, &[], 0).unwrap();
        for c in &explanation.columns {
            let value = |columns: &[usize]| {
                let [p, q] = [p, q].map(|s| s.columns(columns));
                Knn::default().value(Points::new(&p, columns.len()), Points::new(&q, columns.len())).unwrap()
            };
            let others: Vec<usize> = (0..3).filter(|&i| i != c.column - 1).collect();
            assert_eq!((c.marginal, c.without), (Some(value(&[c.column - 1])), Some(value(&others))));
        }
    }

    #[test]
    fn noise_explains_equal_columns_and_not_those_that_differ() {
        let [p, q] = samples(400);
        let (p, q) = (Points::new(&p, 3), Points::new(&q, 3));
        let explanation = explain(&GaussianKl::default(), p, q, &[], 0).unwrap();
        let noise = explanation.noise.marginal.unwrap();
        assert!(noise > 0.0 && noise < 0.1, "{explanation:?}");
        for c in &explanation.columns {
            let [low, high] = c.marginal_interval.unwrap();
            let marginal = c.marginal.unwrap();
            assert!(low <= marginal && marginal <= high, "{c:?}");
            assert_eq!(marginal > 3.0 * noise, c.column > 1, "{explanation:?}");
            let [low, high] = c.drop_interval.unwrap();
            let drop = c.drop.unwrap();
            assert!(drop - low >= 0.999 * explanation.noise.drop.unwrap() && high >= 0.0 && low <= drop, "{c:?}");
        }
    }

    #[test]
    fn one_column_alone_is_the_estimate() {
        let (p, q) = (noise(50, 1), noise(50, 2));
        let explanation = explain(&Knn::default(), Points::new(&p, 1), Points::new(&q, 1), &[], 0).unwrap();
        let only = &explanation.columns[0];
        assert_eq!((only.marginal, only.drop), (Some(explanation.all_columns), Some(explanation.all_columns)));
    }

    #[test]
    fn a_column_without_an_estimate_is_named_in_a_warning() {
        let [mut p, q] = samples(50);
        p.iter_mut().skip(1).step_by(3).for_each(|x| *x = 7.0);
        let names = ["a", "b", "c"].map(str::to_owned);
        let (p, q) = (Points::new(&p, 3).named("p.csv"), Points::new(&q, 3).named("q.csv"));
        let explanation = explain(&Knn::default(), p, q, &names, 0).unwrap();
        let b = explanation.columns.iter().find(|c| c.column == 2).unwrap();
        assert!(b.marginal.is_none() && b.drop.is_some(), "{explanation:?}");
        assert_eq!(explanation.warnings, ["p.csv (column 2 \"b\" alone): all rows are one point"]);
    }

    /// Estimates that encode the numbers of columns and rows; records the sizes of batches.
    struct Counting(std::sync::Mutex<Vec<usize>>);

    impl Estimator for Counting {
        fn value(&self, p: Points, q: Points) -> Result<f64> {
            Ok((p.dim() * 100_000 + p.len() + q.len()) as f64)
        }

        fn estimate(&self, _: Points, _: Points, _: u64) -> Result<Estimate> {
            unreachable!("columns are estimated in batches")
        }

        fn estimates(&self, pairs: &[Pair], _: u64) -> Vec<Result<Estimate>> {
            let estimate = |value| Estimate::new(Quantity::Kl, value, "counting".to_owned(), []);
            self.values(pairs).into_iter().map(|value| value.map(estimate)).collect()
        }

        fn values(&self, pairs: &[Pair]) -> Vec<Result<f64>> {
            self.0.lock().unwrap().push(pairs.len());
            pairs.iter().map(|&(p, q)| self.value(p, q)).collect()
        }
    }

    #[test]
    fn columns_and_rows_are_limited_and_estimated_in_batches() {
        let counting = Counting(Default::default());
        let data = vec![0.0; 70 * 6000];
        let explanation = explain(&counting, Points::new(&data, 70), Points::new(&data[..700], 70), &[], 0).unwrap();
        assert_eq!(explanation.n, [5000, 10]);
        assert_eq!(explanation.columns.len(), 70);
        assert_eq!(explanation.columns.iter().filter(|c| c.drop.is_some()).count(), 64);
        assert!(explanation.warnings.iter().any(|w| w.contains("5000 rows")), "{explanation:?}");
        assert!(explanation.warnings.iter().any(|w| w.contains("64 columns")), "{explanation:?}");
        let requested = counting.0.into_inner().unwrap();
        // All columns alone, shuffled ones, then 64 left out.
        let (alone, rest) = requested.split_at(70usize.div_ceil(MAX_BATCH));
        let (shuffled, left_out) = rest.split_at(1);
        assert_eq!(shuffled, [SHUFFLED]);
        assert_eq!((alone.iter().sum::<usize>(), left_out.iter().sum::<usize>()), (70, 64));
        assert!(alone.iter().all(|&n| n <= MAX_BATCH), "{requested:?}");
        assert!(left_out.iter().all(|&n| n * 5010 * 69 <= MAX_COPIED_VALUES), "{requested:?}");
    }
}
