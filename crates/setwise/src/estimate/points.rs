//! Samples as estimators read them, checks of samples, and warnings about them.

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

use crate::files::Sample;
use crate::{Error, Result};

/// A borrowed sample: row-major `[n, dim]`, with a name for messages.
///
/// ```
/// use setwise::estimate::Points;
/// let points = Points::new(&[0.0, 1.0, 2.0, 3.0], 2);
/// assert_eq!((points.len(), points.row(1)), (2, &[2.0, 3.0][..]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Points<'a> {
    data: &'a [f64],
    dim: usize,
    name: &'a str,
    /// Names of the columns, or nothing.
    pub(super) names: &'a [String],
}

impl<'a> Points<'a> {
    /// Rows of `dim` numbers.
    ///
    /// # Panics
    /// If `data` does not consist of full rows, or `dim` is zero.
    pub fn new(data: &'a [f64], dim: usize) -> Self {
        assert!(dim > 0 && data.len().is_multiple_of(dim), "{} numbers are not rows of {dim}", data.len());
        Points { data, dim, name: "the sample", names: &[] }
    }

    /// The points of a file that holds one set.
    pub fn of(sample: &'a Sample) -> Result<Self> {
        if sample.examples != 1 {
            return Err(Error::Sample {
                path: sample.path.clone(),
                reason: format!("holds a stack of {} examples; give one sample [rows, columns]", sample.examples),
            });
        }
        let points = Points::new(&sample.data, sample.width).named(sample.path.to_str().unwrap_or("the sample"));
        Ok(Points { names: &sample.names, ..points })
    }

    /// The same points under a name for messages.
    pub fn named(self, name: &'a str) -> Self {
        Points { name, ..self }
    }

    /// The same points with names of their columns.
    pub fn with_names(self, names: &'a [String]) -> Self {
        Points { names, ..self }
    }

    /// Other numbers under the same names.
    pub(super) fn with_data<'b>(self, data: &'b [f64]) -> Points<'b>
    where
        'a: 'b,
    {
        Points { data, ..self }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.data.len() / self.dim
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Numbers in a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// All numbers.
    pub fn data(&self) -> &'a [f64] {
        self.data
    }

    /// One row.
    pub fn row(&self, i: usize) -> &'a [f64] {
        &self.data[i * self.dim..(i + 1) * self.dim]
    }

    /// The name in messages.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The name of a column, if it has one.
    pub(crate) fn column_name(&self, c: usize) -> Option<String> {
        self.names.get(c).filter(|name| !name.is_empty()).cloned()
    }

    /// A column in messages: its number from one, and its name.
    pub(super) fn column_label(&self, c: usize) -> String {
        column_label(self.names, c)
    }

    /// Gathers rows by index.
    pub(crate) fn select(&self, rows: &[usize]) -> Vec<f64> {
        rows.iter().flat_map(|&i| self.row(i)).copied().collect()
    }

    /// Indices of at most `max` rows drawn without replacement, in ascending order.
    pub fn subsample(&self, max: usize, seed: u64) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..self.len()).collect();
        if rows.len() > max {
            rows.shuffle(&mut Pcg64Mcg::seed_from_u64(seed));
            rows.truncate(max);
            rows.sort_unstable();
        }
        rows
    }

    /// Gathers columns by index; row-major.
    pub fn columns(&self, columns: &[usize]) -> Vec<f64> {
        self.data.chunks_exact(self.dim).flat_map(|row| columns.iter().map(|&c| row[c])).collect()
    }

    /// The value of a constant column.
    pub(super) fn constant(&self, column: usize) -> Option<f64> {
        let first = *self.data.get(column)?;
        self.data.iter().skip(column).step_by(self.dim).all(|x| *x == first).then_some(first)
    }

    /// The first constant column.
    pub(super) fn constant_column(&self) -> Option<usize> {
        (0..self.dim).find(|&c| self.constant(c).is_some())
    }

    /// The share of a column's values that equal an earlier one; zero for a constant column.
    pub(super) fn repeated_share(&self, column: usize) -> f64 {
        let mut values: Vec<f64> = self.data.iter().skip(column).step_by(self.dim).map(|x| x + 0.0).collect();
        values.sort_unstable_by(f64::total_cmp);
        let equal = values.windows(2).filter(|w| w[0] == w[1]).count();
        if equal + 1 == values.len() { 0.0 } else { equal as f64 / values.len() as f64 }
    }

    /// Standard standard_deviations of the columns.
    pub(super) fn standard_deviations(&self) -> Vec<f64> {
        let n = self.len() as f64;
        let column = |c: usize| self.data.iter().skip(c).step_by(self.dim);
        let deviation = |c: usize| {
            let mean = column(c).sum::<f64>() / n;
            (column(c).map(|x| (x - mean) * (x - mean)).sum::<f64>() / n).sqrt()
        };
        (0..self.dim).map(deviation).collect()
    }

    /// Indices of rows, sorted by value.
    pub(super) fn sorted_rows(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_unstable_by(|&a, &b| self.compare(a, b));
        order
    }

    /// The number of rows that equal an earlier row.
    pub(super) fn duplicates(&self) -> usize {
        self.sorted_rows().windows(2).filter(|w| self.row(w[0]) == self.row(w[1])).count()
    }

    fn compare(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let pairs = self.row(a).iter().zip(self.row(b));
        // Adding zero turns −0 into 0.
        pairs.map(|(x, y)| (x + 0.0).total_cmp(&(y + 0.0))).find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    }

    /// A warning about duplicate rows, which distort neighbour estimates.
    pub(super) fn repeated_rows_warning(&self) -> Option<String> {
        let (duplicates, rows, name) = (self.duplicates(), self.len(), self.name);
        (duplicates > 0).then(|| {
            format!(
                "{name}: {duplicates} of {rows} rows repeat an earlier row; the estimator assumes continuous values"
            )
        })
    }

    /// Warnings about constant columns and duplicate rows.
    pub(super) fn warnings(&self) -> Vec<String> {
        let constant = self
            .constant_column()
            .map(|c| format!("{}: {} holds one value only and has no influence", self.name, self.column_label(c)));
        constant.into_iter().chain(self.repeated_rows_warning()).collect()
    }
}

/// The largest magnitude of a number and the smallest span of a column, so that sums of squares are finite and
/// positive.
const MAX_MAGNITUDE: f64 = 1e150;
const MIN_SPAN: f64 = 1e-140;

/// Fails where squares overflow or underflow; the error names the column.
fn check_scale(p: Points) -> Result<()> {
    let mut spans = vec![[f64::INFINITY, f64::NEG_INFINITY]; p.dim];
    for row in p.data.chunks_exact(p.dim) {
        spans.iter_mut().zip(row).for_each(|([low, high], &x)| (*low, *high) = (low.min(x), high.max(x)));
    }
    for (c, [low, high]) in spans.into_iter().enumerate() {
        let (name, column, largest, span) = (p.name, p.column_label(c), high.max(-low), high - low);
        if largest > MAX_MAGNITUDE {
            let row = p.data.iter().skip(c).step_by(p.dim).position(|x| x.abs() == largest).unwrap_or(0) + 1;
            return Err(Error::Estimate(format!(
                "{name}: row {row}, {column} is {:e}, whose square overflows; rescale the column",
                p.row(row - 1)[c]
            )));
        }
        if span > 0.0 && span < MIN_SPAN {
            return Err(Error::Estimate(format!(
                "{name}: {column} spans {span:e}, whose square underflows; rescale the column"
            )));
        }
    }
    Ok(())
}

/// Fails where all rows are equal.
pub(super) fn check_varies(p: Points) -> Result<()> {
    match (1..p.len()).all(|i| p.row(i) == p.row(0)) {
        true => Err(Error::Estimate(format!("{}: all rows are one point", p.name))),
        false => Ok(()),
    }
}

/// Fails where the widths of two samples differ, or squares overflow or underflow.
pub(super) fn check_samples(p: Points, q: Points) -> Result<()> {
    check_widths(p, q)?;
    [p, q].into_iter().try_for_each(check_scale)
}

/// Fails where the widths of two samples differ.
pub(crate) fn check_widths(p: Points, q: Points) -> Result<()> {
    if p.dim != q.dim {
        return Err(Error::Estimate(format!(
            "{} has {} columns, {} has {}: both samples must have the same",
            p.name, p.dim, q.name, q.dim
        )));
    }
    Ok(())
}

/// Columns of samples whose covariance matrix is computed.
const MAX_COLUMNS: usize = 4096;

/// Fails where a covariance matrix would not fit in memory or take hours.
pub(crate) fn check_covariance(p: Points) -> Result<()> {
    if p.dim > MAX_COLUMNS {
        let (name, dim) = (p.name, p.dim);
        return Err(Error::Estimate(format!(
            "{name}: has {dim} columns; methods with covariances take at most {MAX_COLUMNS}, knn takes any number"
        )));
    }
    Ok(())
}

/// Fails where paired samples have different numbers of rows, or squares overflow or underflow.
pub(super) fn check_pairs(x: Points, y: Points) -> Result<()> {
    if x.len() != y.len() {
        return Err(Error::Estimate(format!(
            "{} has {} rows, {} has {}: rows are pairs, so both must have the same number",
            x.name,
            x.len(),
            y.name,
            y.len()
        )));
    }
    [x, y].into_iter().try_for_each(check_scale)
}

/// Fails with fewer than `min_rows` rows, which `why` needs.
pub(crate) fn check_rows(p: Points, min_rows: usize, why: &str) -> Result<()> {
    if p.len() < min_rows {
        return Err(Error::Estimate(format!("{}: has {} rows, {why} needs at least {min_rows}", p.name, p.len())));
    }
    Ok(())
}

/// Rows of X followed by rows of Y: `[n, dim x + dim y]`.
pub(super) fn concatenated_rows(x: Points, y: Points) -> Vec<f64> {
    (0..x.len()).flat_map(|i| x.row(i).iter().chain(y.row(i))).copied().collect()
}

/// Warnings about two files that are compared: columns whose names differ, columns that count rows.
pub fn file_warnings(p: &Sample, q: &Sample) -> Vec<String> {
    let mut out = Vec::new();
    let pairs = p.names.iter().zip(&q.names).enumerate();
    let differing: Vec<_> = pairs.filter(|(_, (a, b))| a != b).collect();
    if let Some((column, (a, b))) = differing.first() {
        let (p, q, column) = (p.path.display(), q.path.display(), column + 1);
        let swapped = differing.iter().any(|(_, (name, _))| name == b);
        let advice = if swapped { "; reorder them" } else { "" };
        out.push(format!("column {column} is {a:?} in {p} and {b:?} in {q}: columns are compared by position{advice}"));
    }
    out.extend([p, q].into_iter().filter_map(numbered_header_warning));
    out.extend([p, q].into_iter().filter_map(index_column_warning));
    out
}

/// A warning about a first row 0, 1, 2, … that is read as a header.
fn numbered_header_warning(sample: &Sample) -> Option<String> {
    let numbered = sample.names.len() > 1 && sample.names.iter().enumerate().all(|(i, name)| *name == i.to_string());
    let last = sample.names.len().saturating_sub(1);
    numbered.then(|| format!("{}: the first row, 0 to {last}, is read as a header", sample.path.display()))
}

/// A column in messages: its number from one, and its name.
fn column_label(names: &[String], c: usize) -> String {
    match names.get(c) {
        Some(name) if !name.is_empty() => format!("column {} ({name:?})", c + 1),
        _ => format!("column {}", c + 1),
    }
}

/// A warning about a column that counts the rows.
pub fn index_column_warning(sample: &Sample) -> Option<String> {
    let column = (0..sample.width).find(|&c| counts_rows(sample, c))?;
    let label = column_label(&sample.names, column);
    Some(format!("{}: {label} counts the rows; leave the index out", sample.path.display()))
}

/// Whether a column is 0, 1, 2, … or 1, 2, 3, …
fn counts_rows(sample: &Sample, column: usize) -> bool {
    let first = sample.data[column];
    let mut values = sample.data.iter().skip(column).step_by(sample.width).enumerate();
    sample.rows >= 10 && (first == 0.0 || first == 1.0) && values.all(|(i, &x)| x == first + i as f64)
}

/// Warnings in sorted order, each once.
pub(super) fn unique_sorted(warnings: impl IntoIterator<Item = String>) -> Vec<String> {
    let unique: BTreeMap<String, ()> = warnings.into_iter().map(|w| (w, ())).collect();
    unique.into_keys().collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Estimator, GaussianKl, GaussianMi, Knn, Ksg, Logistic, Mine, Pretrained};
    use super::*;

    #[test]
    fn warnings_name_duplicate_rows_and_constant_columns() {
        let p = Points::new(&[0.0, 1.0, -0.0, 1.0, 2.0, 1.0, 0.0, 1.0], 2).named("p.csv");
        assert_eq!((p.duplicates(), p.constant_column()), (2, Some(1)));
        let warnings_text = p.warnings().join("; ");
        assert!(
            warnings_text.contains("p.csv: column 2 holds one value") && warnings_text.contains("2 of 4 rows"),
            "{warnings_text}"
        );
    }

    #[test]
    fn every_method_refuses_numbers_whose_squares_overflow_or_underflow() {
        let plain: Vec<f64> = (0..120).map(|i| ((i * i) % 101) as f64 + 0.1 * i as f64).collect();
        let scaled = |by: f64| -> Vec<f64> {
            plain.iter().enumerate().map(|(i, x)| if i % 2 == 1 { x * by } else { *x }).collect()
        };
        let methods: [&dyn Estimator; 7] = [
            &Pretrained::built_in().unwrap(),
            &Knn::default(),
            &GaussianKl::default(),
            &Logistic,
            &Ksg::default(),
            &GaussianMi::default(),
            &Mine::default(),
        ];
        for (by, expected) in [(1e153, "row 56, column 2 is "), (1e-200, "column 2 spans ")] {
            let (p, q) = (scaled(by), scaled(1.0));
            let (p, q) = (Points::new(&p, 2).named("p.csv"), Points::new(&q, 2));
            for (i, method) in methods.iter().enumerate() {
                let error = method.value(p, q).unwrap_err().to_string();
                assert!(error.starts_with(&format!("p.csv: {expected}")) && error.contains("rescale"), "{i}: {error}");
            }
        }
        let (p, q) = (scaled(1e100), scaled(1.0));
        let (p, q) = (Points::new(&p, 2), Points::new(&q, 2));
        assert!(methods[..4].iter().all(|m| m.value(p, q).is_ok_and(f64::is_finite)));
    }

    #[test]
    fn warnings_name_different_headers_and_columns_that_count_rows() {
        let file = |name: &str, text: &str| Sample::parse(name.as_ref(), text.as_bytes()).unwrap();
        let (p, q) = (file("p.csv", "a,b\n1,2\n"), file("q.csv", "b,a\n1,2\n"));
        let warnings_text = file_warnings(&p, &q).join("; ");
        assert!(
            warnings_text.starts_with("column 1 is \"a\" in p.csv and \"b\" in q.csv")
                && warnings_text.contains("reorder"),
            "{warnings_text}"
        );
        assert_eq!(file_warnings(&p, &p), [""; 0]);
        assert_eq!(file_warnings(&p, &file("r.csv", "1,2\n")), [""; 0]);
        let rows: String = (0..20).map(|i| format!("{i},{}\n", i * i)).collect();
        let warnings_text = file_warnings(&p, &file("i.csv", &format!(",x\n{rows}")));
        assert_eq!(warnings_text[1], "i.csv: column 1 counts the rows; leave the index out");
    }

    #[test]
    fn a_seed_determines_the_subsampled_rows() {
        let data: Vec<f64> = (0..100).map(f64::from).collect();
        let p = Points::new(&data, 1);
        let rows = p.subsample(10, 1);
        assert!(rows.len() == 10 && rows.is_sorted() && rows == p.subsample(10, 1) && rows != p.subsample(10, 2));
        assert_eq!(p.subsample(100, 1).len(), 100);
        assert_eq!(Points::new(&data[..6], 3).columns(&[2, 0]), [2.0, 0.0, 5.0, 3.0]);
    }

    #[test]
    fn errors_name_samples_of_different_shapes() {
        let (p, q) = (Points::new(&[1.0, 2.0], 2).named("p.csv"), Points::new(&[1.0, 2.0], 1).named("q.csv"));
        let error = check_widths(p, q).unwrap_err().to_string();
        assert_eq!(error, "p.csv has 2 columns, q.csv has 1: both samples must have the same");
        let error = check_pairs(p, q).unwrap_err().to_string();
        assert_eq!(error, "p.csv has 1 rows, q.csv has 2: rows are pairs, so both must have the same number");
    }
}
