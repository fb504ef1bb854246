//! Warnings about samples whose supports differ in a way that no estimate can measure, about values on a grid, and
//! about rows of both samples.

use super::Points;
use super::shared_rows::shared_rows_warning;
use crate::linalg::moments;

/// Random rows that determine whether a column depends on others.
const MAX_ROWS: usize = 10_000;
/// Columns among which dependences are searched: the time grows with the third power of their number.
const MAX_COLUMNS: usize = 256;
/// Fewer rows of equal distributions may not overlap by chance.
const MIN_ROWS: usize = 30;
/// A column depends linearly on others where they leave less than this share of its variance.
const MIN_FREE_SHARE: f64 = 1e-9;
/// Values farther outside of the quartiles, in interquartile ranges, are outliers.
const OUTLIER_RANGES: f64 = 10.0;

/// The mean ratio of the smaller to the larger of adjacent spacings, above which values are evenly spaced. Random
/// values have 0.39, with a standard error of 0.05 for [`MIN_ROWS`] rows.
const MIN_REGULARITY: f64 = 0.65;

/// Warnings about columns that are constant, depend on other columns in one sample only, or do not overlap, about
/// samples on a grid, and about rows of both samples.
pub(super) fn support_warnings(p: Points, q: Points) -> Vec<String> {
    let mut warnings = constant_column_warnings(p, q);
    warnings.extend(shared_rows_warning(p, q));
    warnings.extend([p, q].into_iter().find_map(evenly_spaced_warning));
    warnings.extend(dependent_column_warning(p, q));
    warnings.extend(disjoint_column_warning(p, q));
    warnings
}

/// A column's name in either file, or its number.
fn label(p: Points, q: Points, c: usize) -> String {
    if p.names.is_empty() { q.column_label(c) } else { p.column_label(c) }
}

/// Warnings about constant columns of two samples.
///
/// A column with the same value in both has no influence. With different values the divergence is infinite. Only the
/// first column of each kind is named.
fn constant_column_warnings(p: Points, q: Points) -> Vec<String> {
    let values = |c: usize| (p.constant(c), q.constant(c));
    let same = (0..p.dim()).find(|&c| values(c).0.is_some() && values(c).0 == values(c).1);
    let same = same.map(|c| format!("{} holds one value only and has no influence", label(p, q, c)));
    let differing = (0..p.dim()).find_map(|c| {
        let (column, of_p, of_q) = (label(p, q, c), p.name(), q.name());
        let varies = |one: &str, other: &str| {
            format!(
                "{one}: {column} holds one value only and varies in {other}; for continuous distributions KL is \
                 infinite and total variation 1"
            )
        };
        match values(c) {
            (Some(x), Some(y)) if x != y => Some(format!(
                "{column} is always {x} in {of_p} and always {y} in {of_q}: KL is infinite and total variation 1"
            )),
            (Some(_), None) => Some(varies(of_p, of_q)),
            (None, Some(_)) => Some(varies(of_q, of_p)),
            _ => None,
        }
    });
    same.into_iter().chain(differing).collect()
}

/// A warning about the first column that is a linear function of the columns before it in one sample, and is none in
/// the other.
fn dependent_column_warning(p: Points, q: Points) -> Option<String> {
    let varying: Vec<usize> = (0..p.dim()).filter(|&c| p.constant(c).is_none() && q.constant(c).is_none()).collect();
    if varying.len() > MAX_COLUMNS {
        return None;
    }
    let (of_p, of_q) = (dependent_columns(p, &varying), dependent_columns(q, &varying));
    let place = of_p.iter().zip(&of_q).position(|(a, b)| a != b)?;
    let (one, other) = if of_p[place] { (p, q) } else { (q, p) };
    Some(format!(
        "{}: {} is a linear function of the columns before it, unlike in {}; for continuous distributions KL is \
         infinite and total variation 1",
        one.name(),
        label(one, other, varying[place]),
        other.name()
    ))
}

/// Some columns of random rows without far outliers, whose variance would hide that of the others.
fn usual_rows(points: Points, columns: &[usize]) -> Vec<f64> {
    let rows = points.select(&points.subsample(MAX_ROWS, 0));
    let rows = Points::new(&rows, points.dim()).columns(columns);
    let limits: Vec<[f64; 2]> = (0..columns.len())
        .map(|c| {
            let mut values: Vec<f64> = rows.iter().skip(c).step_by(columns.len()).copied().collect();
            values.sort_unstable_by(f64::total_cmp);
            let at = |quarter: usize| values[quarter * (values.len() - 1) / 4];
            let range = at(3) - at(1);
            let reach = if range > 0.0 { OUTLIER_RANGES * range } else { f64::INFINITY };
            [at(1) - reach, at(3) + reach]
        })
        .collect();
    let usual = |row: &&[f64]| row.iter().zip(&limits).all(|(x, [low, high])| (*low..=*high).contains(x));
    rows.chunks_exact(columns.len().max(1)).filter(usual).flatten().copied().collect()
}

/// For each of some columns that vary, whether it is a linear function of those before it.
fn dependent_columns(points: Points, columns: &[usize]) -> Vec<bool> {
    let d = columns.len();
    let rows = usual_rows(points, columns);
    if rows.len() <= (d + 1) * d {
        return vec![false; d];
    }
    let (_, mut cov) = moments(&rows, d.max(1), 1);
    let variances: Vec<f64> = (0..d).map(|i| cov[i * d + i]).collect();
    // Elimination leaves the variances that the columns before do not explain.
    (0..d)
        .map(|j| {
            let free = cov[j * d + j];
            let dependent = variances[j] > 0.0 && free <= MIN_FREE_SHARE * variances[j];
            if free > MIN_FREE_SHARE * variances[j] {
                for i in j + 1..d {
                    let factor = cov[i * d + j] / free;
                    for k in j + 1..d {
                        cov[i * d + k] -= factor * cov[j * d + k];
                    }
                }
            }
            dependent
        })
        .collect()
}

/// A warning about the first varying column in which all values of one sample lie below those of the other.
fn disjoint_column_warning(p: Points, q: Points) -> Option<String> {
    let range = |points: Points, c: usize| {
        let column = points.data().iter().skip(c).step_by(points.dim());
        column.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], &x| [low.min(x), high.max(x)])
    };
    let disjoint = |&c: &usize| {
        let ([low_p, high_p], [low_q, high_q]) = (range(p, c), range(q, c));
        low_p < high_p && low_q < high_q && (high_p < low_q || high_q < low_p)
    };
    if p.len().min(q.len()) < MIN_ROWS {
        return None;
    }
    let column = (0..p.dim()).find(disjoint)?;
    Some(format!(
        "{}: the values of {} and {} do not overlap; nothing in the samples bounds KL from above",
        label(p, q, column),
        p.name(),
        q.name()
    ))
}

/// A warning about a sample whose columns are all evenly spaced, as in a grid, a counter or a quasi-random sequence.
///
/// A row of a random sample says nothing about where the others are. On a grid it does, and every estimate that leaves
/// rows out mistakes this for a difference.
fn evenly_spaced_warning(points: Points) -> Option<String> {
    let mut varying = (0..points.dim()).filter(|&c| points.constant(c).is_none()).peekable();
    let first = *varying.peek()?;
    varying.all(|c| evenly_spaced(points, c)).then(|| {
        format!(
            "{}: the values of {} are evenly spaced, as on a grid; rows of a grid are no random sample, and the \
             estimate is no evidence",
            points.name(),
            points.column_label(first)
        )
    })
}

/// Whether the different values of a column are evenly spaced. Those of a column with repeated values never are.
fn evenly_spaced(points: Points, c: usize) -> bool {
    let mut values: Vec<f64> = points.data().iter().skip(c).step_by(points.dim()).copied().collect();
    values.sort_unstable_by(f64::total_cmp);
    let spacings: Vec<f64> = values.windows(2).map(|w| w[1] - w[0]).filter(|&s| s > 0.0).collect();
    if values.len() < MIN_ROWS || (spacings.len() as f64) < 0.9 * (values.len() - 1) as f64 {
        return false;
    }
    let ratios = spacings.windows(2).map(|w| w[0].min(w[1]) / w[0].max(w[1]));
    ratios.sum::<f64>() > MIN_REGULARITY * (spacings.len() - 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Generator;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn constant_columns_have_no_influence_only_if_both_samples_have_the_value() {
        let warnings_text = |p: [f64; 6], q: [f64; 6]| {
            let (p, q) = (Points::new(&p, 2).named("p.csv"), Points::new(&q, 2).named("q.csv"));
            constant_column_warnings(p, q).join("; ")
        };
        let constant = [1.0, 5.0, 2.0, 5.0, 3.0, 5.0];
        assert_eq!(warnings_text(constant, constant), "column 2 holds one value only and has no influence");
        let other = constant.map(|x| x + 1.0);
        assert_eq!(
            warnings_text(constant, other),
            "column 2 is always 5 in p.csv and always 6 in q.csv: KL is infinite and total variation 1"
        );
        let varying = [1.0, 5.0, 2.0, 4.0, 3.0, 9.0];
        assert!(
            warnings_text(constant, varying).starts_with("p.csv: column 2 holds one value only and varies in q.csv")
        );
        assert!(
            warnings_text(varying, constant).starts_with("q.csv: column 2 holds one value only and varies in p.csv")
        );
        assert_eq!(warnings_text(varying, varying), "");
    }

    #[test]
    fn a_column_that_is_a_copy_in_one_sample_is_named() {
        let rows = |copy: bool| -> Vec<f64> {
            let row = |i: i32| {
                let (a, b) = (f64::from(i * 37 % 101), f64::from(i * i % 89));
                [a, b, if copy { 2.0 * a - b } else { f64::from(i * 53 % 97) }]
            };
            (0..60).flat_map(row).collect()
        };
        let (copied, free) = (rows(true), rows(false));
        let warnings = |p: &[f64], q: &[f64]| {
            support_warnings(Points::new(p, 3).named("p.csv"), Points::new(q, 3).named("q.csv")).join("; ")
        };
        for (p, q, name) in [(&copied, &free, "p.csv"), (&free, &copied, "q.csv")] {
            let text = warnings(p, q);
            assert!(text.starts_with(&format!("{name}: column 3 is a linear function")), "{text}");
        }
        for rows in [&copied, &free] {
            assert!(!warnings(rows, rows).contains("linear function"));
        }
    }

    #[test]
    fn a_code_for_missing_values_does_not_make_columns_dependent() {
        let mut rng = Generator::seed_from_u64(6);
        let mut draw = || -> Vec<f64> { (0..300).map(|_| rng.random()).collect() };
        let (mut p, q) = (draw(), draw());
        p[..3].fill(-999_999.0);
        assert_eq!(dependent_column_warning(Points::new(&p, 3), Points::new(&q, 3)), None);
    }

    #[test]
    fn columns_without_overlap_are_named() {
        let rows = |from: f64| -> Vec<f64> {
            (0..40).map(|i| f64::from(i * i)).flat_map(|x| [(0.618 * x).fract(), from + (0.414 * x).fract()]).collect()
        };
        let warnings = |from: f64| support_warnings(Points::new(&rows(0.0), 2), Points::new(&rows(from), 2)).join("; ");
        assert!(warnings(1.5).starts_with("column 2: the values of"));
        assert_eq!(warnings(0.5), "");
    }

    #[test]
    fn grids_and_quasi_random_sequences_are_named_and_random_values_are_not() {
        let mut rng = Generator::seed_from_u64(4);
        let mut uniform = |n: usize| -> Vec<f64> { (0..n).map(|_| rng.random()).collect() };
        let warning = |rows: &[f64], dim: usize| evenly_spaced_warning(Points::new(rows, dim));
        let grid: Vec<f64> = (0..200).map(|i| f64::from(i * 77 % 200)).collect();
        let golden: Vec<f64> = (0..200).map(|i| (f64::from(i) * 0.618_034).fract()).collect();
        for rows in [&grid, &golden] {
            assert!(warning(rows, 1).unwrap().contains("column 1 are evenly spaced"));
            // Beside a random column a grid does no harm.
            let beside: Vec<f64> = rows.iter().zip(uniform(200)).flat_map(|(x, y)| [*x, y]).collect();
            assert_eq!(warning(&beside, 2), None);
        }
        for n in [30, 100, 1000] {
            for _ in 0..100 {
                assert_eq!(warning(&uniform(n), 1), None);
            }
        }
        // Rounded values repeat.
        let rounded: Vec<f64> = uniform(400).iter().map(|x| (100.0 * x).round()).collect();
        assert_eq!(warning(&rounded, 1), None);
    }
}
