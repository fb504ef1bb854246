//! Warnings about samples whose supports differ in a way that no estimate can measure.

use super::Points;
use crate::linalg::moments;

/// Random rows that determine whether a column depends on others.
const MAX_ROWS: usize = 10_000;
/// Columns among which dependences are searched: the time grows with the third power of their number.
const MAX_COLUMNS: usize = 256;
/// Fewer rows of equal distributions may not overlap by chance.
const MIN_ROWS: usize = 30;
/// A column depends linearly on others where they leave less than this share of its variance.
const MIN_FREE_SHARE: f64 = 1e-9;

/// Warnings about columns that are constant, depend on other columns in one sample only, or do not overlap.
pub(super) fn support_warnings(p: Points, q: Points) -> Vec<String> {
    let mut warnings = constant_column_warnings(p, q);
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
                 infinite"
            )
        };
        match values(c) {
            (Some(x), Some(y)) if x != y => {
                Some(format!("{column} is always {x} in {of_p} and always {y} in {of_q}: KL is infinite"))
            }
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
         infinite",
        one.name(),
        label(one, other, varying[place]),
        other.name()
    ))
}

/// For each of some columns that vary, whether it is a linear function of those before it.
fn dependent_columns(points: Points, columns: &[usize]) -> Vec<bool> {
    let d = columns.len();
    let rows = points.select(&points.subsample(MAX_ROWS, 0));
    let rows = Points::new(&rows, points.dim());
    if rows.len() <= d + 1 {
        return vec![false; d];
    }
    let (_, mut cov) = moments(&rows.columns(columns), d.max(1), 1);
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

#[cfg(test)]
mod tests {
    use super::*;

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
            "column 2 is always 5 in p.csv and always 6 in q.csv: KL is infinite"
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
        assert_eq!(warnings(&copied, &copied) + &warnings(&free, &free), "");
    }

    #[test]
    fn columns_without_overlap_are_named() {
        let rows = |from: f64| -> Vec<f64> { (0..40).flat_map(|i| [f64::from(i), from + f64::from(i)]).collect() };
        let warnings = |from: f64| support_warnings(Points::new(&rows(0.0), 2), Points::new(&rows(from), 2)).join("; ");
        assert!(warnings(50.0).starts_with("column 2: the values of"));
        assert_eq!(warnings(10.0), "");
    }
}
