//! Which columns an estimate of divergence comes from.
//!
//! Two views, because neither tells all: a column's *own* divergence (the estimate from it alone) and the *loss* (how much smaller the
//! estimate is without it). A column that repeats what others say has a large own divergence and a small loss; one that differs only in
//! how it depends on others has a small own divergence and a large loss. Divergence does not grow when columns are left out, so that a loss
//! below zero is noise or bias.

use serde::Serialize;

use super::points::check_widths;
use super::{Estimator, Pair, Points};
use crate::Result;

/// Rows of each sample that columns are compared on: every column costs two estimates more.
const MOST_ROWS: usize = 5000;
/// Columns that are left out in turn.
const MOST_COLUMNS: usize = 64;
/// Numbers that are copied at a time to leave columns out.
const COPIED: usize = 1 << 22;

/// What one column has to do with an estimate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contribution {
    /// Its number, counted from one.
    pub column: usize,
    /// Its name, where the samples have a header.
    pub name: Option<String>,
    /// The estimate from this column alone; none where there is no estimate.
    pub own: Option<f64>,
    /// The estimate from all other columns.
    pub without: Option<f64>,
    /// How much smaller that is than the estimate from all columns.
    pub loss: Option<f64>,
}

impl Contribution {
    /// What people call the column.
    pub fn label(&self) -> String {
        label(self.column, self.name.as_deref())
    }

    /// What columns are ordered by: the larger of both views.
    fn weight(&self) -> f64 {
        self.own.unwrap_or(f64::NEG_INFINITY).max(self.loss.unwrap_or(f64::NEG_INFINITY))
    }
}

fn label(column: usize, name: Option<&str>) -> String {
    match name {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => format!("column {column}"),
    }
}

/// All columns, the most important first; serialises to what `setwise kl --explain --json` adds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The estimate from all columns that losses are counted from.
    #[serde(rename = "estimate")]
    pub whole: f64,
    /// Rows of P and of Q that columns were compared on.
    pub n: [usize; 2],
    /// The columns, ordered by the larger of own divergence and loss.
    pub columns: Vec<Contribution>,
    /// Columns without a number and why, and what was left away.
    pub warnings: Vec<String>,
}

/// Explains an estimator's answer column by column. `names` are those of the columns, or none. Of samples with more than 5000 rows as many
/// are drawn with the seed; with more than 64 columns those with the largest own divergence are left out in turn.
///
/// ```
/// use setwise::estimate::{GaussianKl, Points, explain};
/// // The first columns differ by one, the second are the same.
/// let p = [-1.0, 1.0, 0.0, -2.0, 1.0, 1.0];
/// let q = [0.0, 1.0, 1.0, -2.0, 2.0, 1.0];
/// let names = ["shifted".to_owned(), "same".to_owned()];
/// let explanation = explain(&GaussianKl, Points::new(&p, 2), Points::new(&q, 2), &names, 0)?;
/// let first = &explanation.columns[0];
/// assert_eq!((first.column, first.name.as_deref()), (1, Some("shifted")));
/// assert!((first.own.unwrap() - 0.5).abs() < 1e-12);
/// # Ok::<(), setwise::Error>(())
/// ```
pub fn explain(estimator: &dyn Estimator, p: Points, q: Points, names: &[String], seed: u64) -> Result<Explanation> {
    check_widths(p, q)?;
    let dim = p.dim();
    let mut warnings = Vec::new();
    let drawn =
        [p, q].map(|points| (points.len() > MOST_ROWS).then(|| points.select(&points.subsample(MOST_ROWS, seed))));
    let [p, q]: [Points; 2] = std::array::from_fn(|i| {
        let whole = [p, q][i];
        drawn[i].as_ref().map_or(whole, |data| Points::new(data, dim).named(whole.name()))
    });
    if drawn.iter().any(Option::is_some) {
        let rows = p.len().max(q.len());
        warnings.push(format!("columns were compared on {rows} rows drawn from each larger sample"));
    }
    let whole = estimator.value(p, q)?;

    let views = Views { estimator, p, q, names };
    let mut failed = |answers: Vec<Result<f64>>| -> Vec<Option<f64>> {
        answers.into_iter().map(|answer| answer.map_err(|e| warnings.push(e.to_string())).ok()).collect()
    };
    let all: Vec<usize> = (0..dim).collect();
    let own = if dim == 1 { vec![Some(whole)] } else { failed(views.values(&all, "alone", |c| vec![c])) };
    let mut left_out = all;
    left_out.sort_by(|&a, &b| own[b].unwrap_or(f64::NEG_INFINITY).total_cmp(&own[a].unwrap_or(f64::NEG_INFINITY)));
    left_out.truncate(MOST_COLUMNS);
    let mut without = vec![None; dim];
    if dim == 1 {
        // Nothing is left that could differ.
        without[0] = Some(0.0);
    } else {
        let others = |c: usize| (0..dim).filter(|&other| other != c).collect();
        for (&c, value) in left_out.iter().zip(failed(views.values(&left_out, "left out", others))) {
            without[c] = value;
        }
    }
    if dim > MOST_COLUMNS {
        warnings.push(format!("only the {MOST_COLUMNS} columns of largest own divergence were left out in turn"));
    }
    let contribution = |c: usize| Contribution {
        column: c + 1,
        name: names.get(c).cloned(),
        own: own[c],
        without: without[c],
        loss: without[c].map(|without| whole - without),
    };
    let mut columns: Vec<Contribution> = (0..dim).map(contribution).collect();
    columns.sort_by(|a, b| b.weight().total_cmp(&a.weight()));
    Ok(Explanation { whole, n: [p.len(), q.len()], columns, warnings })
}

/// Two samples seen through some of their columns.
struct Views<'a> {
    estimator: &'a dyn Estimator,
    p: Points<'a>,
    q: Points<'a>,
    names: &'a [String],
}

impl Views<'_> {
    /// The estimate for each of `subjects` from the columns it keeps; `how` tells in messages what was done with the subject.
    fn values(&self, subjects: &[usize], how: &str, kept: impl Fn(usize) -> Vec<usize>) -> Vec<Result<f64>> {
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
        let at_once = (COPIED / size.max(1)).max(1);
        let mut answers = Vec::with_capacity(subjects.len());
        for (kept, names) in kept.chunks(at_once).zip(names.chunks(at_once)) {
            let data: Vec<[Vec<f64>; 2]> = kept.iter().map(|k| [self.p, self.q].map(|s| s.columns(k))).collect();
            let points = |i: usize, side: usize| Points::new(&data[i][side], kept[i].len()).named(&names[i][side]);
            let pairs: Vec<Pair> = (0..kept.len()).map(|i| (points(i, 0), points(i, 1))).collect();
            answers.extend(self.estimator.values(&pairs));
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;
    use crate::estimate::{Estimate, GaussianKl, Knn};

    fn noise(count: usize, seed: u64) -> Vec<f64> {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        (0..count).map(|_| (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0).collect()
    }

    /// Columns: one that says nothing, one that is shifted, a copy of it with a little noise.
    fn samples(rows: usize) -> [Vec<f64>; 2] {
        [(1, 0.0), (2, 1.5)].map(|(seed, shift)| {
            let numbers = noise(3 * rows, seed);
            let row = |r: &[f64]| [r[0], r[1] + shift, r[1] + shift + 0.3 * r[2]];
            numbers.chunks_exact(3).flat_map(row).collect()
        })
    }

    #[test]
    fn a_column_that_says_nothing_comes_last_and_a_repeated_one_is_missed_little() {
        let [p, q] = samples(400);
        let (p, q) = (Points::new(&p, 3), Points::new(&q, 3));
        for estimator in [&Knn::default() as &dyn Estimator, &GaussianKl] {
            let explanation = explain(estimator, p, q, &[], 0).unwrap();
            let [first, second, last] = &explanation.columns[..] else { panic!() };
            assert_eq!((last.column, first.column + second.column), (1, 5), "{explanation:?}");
            assert!(first.own.unwrap() > 0.7 && last.own.unwrap() < 0.2 && last.loss.unwrap() < 0.2, "{explanation:?}");
            assert!(second.loss.unwrap() < 0.5 * second.own.unwrap(), "{explanation:?}");
            for c in &explanation.columns {
                assert_eq!(c.loss.unwrap(), explanation.whole - c.without.unwrap());
            }
            assert_eq!(explanation.whole, estimator.value(p, q).unwrap());
        }
    }

    #[test]
    fn own_and_without_are_the_estimates_of_those_columns() {
        let [p, q] = samples(60);
        let [p, q] = [&p, &q].map(|s| Points::new(s, 3));
        let explanation = explain(&Knn::default(), p, q, &[], 0).unwrap();
        for c in &explanation.columns {
            let value = |columns: &[usize]| {
                let [p, q] = [p, q].map(|s| s.columns(columns));
                Knn::default().value(Points::new(&p, columns.len()), Points::new(&q, columns.len())).unwrap()
            };
            let others: Vec<usize> = (0..3).filter(|&i| i != c.column - 1).collect();
            assert_eq!((c.own, c.without), (Some(value(&[c.column - 1])), Some(value(&others))));
        }
    }

    #[test]
    fn one_column_alone_is_the_estimate() {
        let (p, q) = (noise(50, 1), noise(50, 2));
        let explanation = explain(&Knn::default(), Points::new(&p, 1), Points::new(&q, 1), &[], 0).unwrap();
        let only = &explanation.columns[0];
        assert_eq!((only.own, only.loss), (Some(explanation.whole), Some(explanation.whole)));
    }

    #[test]
    fn a_column_without_an_estimate_is_named_and_the_others_are_explained() {
        let [mut p, q] = samples(50);
        p.iter_mut().skip(1).step_by(3).for_each(|x| *x = 7.0);
        let names = ["a", "b", "c"].map(str::to_owned);
        let (p, q) = (Points::new(&p, 3).named("p.csv"), Points::new(&q, 3).named("q.csv"));
        let explanation = explain(&Knn::default(), p, q, &names, 0).unwrap();
        let b = explanation.columns.iter().find(|c| c.column == 2).unwrap();
        assert!(b.own.is_none() && b.loss.is_some(), "{explanation:?}");
        assert_eq!(explanation.warnings, ["p.csv (column 2 \"b\" alone): all rows are one point"]);
    }

    /// The number of columns and rows, and how many pairs were asked for at a time.
    struct Counting(std::sync::Mutex<Vec<usize>>);

    impl Estimator for Counting {
        fn value(&self, p: Points, q: Points) -> Result<f64> {
            Ok((p.dim() * 100_000 + p.len() + q.len()) as f64)
        }

        fn estimate(&self, _: Points, _: Points, _: u64) -> Result<Estimate> {
            unreachable!("numbers alone are asked for")
        }

        fn values(&self, pairs: &[Pair]) -> Vec<Result<f64>> {
            self.0.lock().unwrap().push(pairs.len());
            pairs.iter().map(|&(p, q)| self.value(p, q)).collect()
        }
    }

    #[test]
    fn many_columns_and_rows_are_limited_and_asked_for_in_batches() {
        let counting = Counting(Default::default());
        let data = vec![0.0; 70 * 6000];
        let explanation = explain(&counting, Points::new(&data, 70), Points::new(&data[..700], 70), &[], 0).unwrap();
        assert_eq!(explanation.n, [5000, 10]);
        assert_eq!(explanation.columns.len(), 70);
        assert_eq!(explanation.columns.iter().filter(|c| c.loss.is_some()).count(), 64);
        assert!(explanation.warnings.iter().any(|w| w.contains("5000 rows")), "{explanation:?}");
        assert!(explanation.warnings.iter().any(|w| w.contains("64 columns")), "{explanation:?}");
        let asked = counting.0.into_inner().unwrap();
        assert_eq!((asked[0], asked[1..].iter().sum::<usize>()), (70, 64));
        assert!(asked[1..].iter().all(|&n| n * 5010 * 69 <= COPIED), "{asked:?}");
    }
}
