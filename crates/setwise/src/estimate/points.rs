//! A sample as the estimators see it.

use std::collections::BTreeMap;

use crate::files::Sample;
use crate::{Error, Result};

/// A borrowed sample: row-major `[n, dim]`, with the name messages call it by.
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
}

impl<'a> Points<'a> {
    /// Rows of `dim` numbers.
    ///
    /// # Panics
    /// If `data` is not a whole number of rows, or `dim` is zero.
    pub fn new(data: &'a [f64], dim: usize) -> Self {
        assert!(dim > 0 && data.len().is_multiple_of(dim), "{} numbers are no rows of {dim}", data.len());
        Points { data, dim, name: "the sample" }
    }

    /// The points of a file that holds one set.
    pub fn of(sample: &'a Sample) -> Result<Self> {
        if sample.examples != 1 {
            return Err(Error::Sample {
                path: sample.path.clone(),
                reason: format!("holds a stack of {} examples; one sample [rows, columns] is wanted", sample.examples),
            });
        }
        Ok(Points::new(&sample.data, sample.width).named(sample.path.to_str().unwrap_or("the sample")))
    }

    /// The same points under a name for messages.
    pub fn named(self, name: &'a str) -> Self {
        Points { name, ..self }
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

    /// What messages call it.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The rows named, in that order.
    pub(super) fn select(&self, rows: &[usize]) -> Vec<f64> {
        rows.iter().flat_map(|&i| self.row(i)).copied().collect()
    }

    /// The first column that holds one value only, counted from one.
    pub(super) fn constant_column(&self) -> Option<usize> {
        (0..self.dim).find(|&c| (1..self.len()).all(|i| self.row(i)[c] == self.data[c])).map(|c| c + 1)
    }

    /// The first column of which more than a tenth of the values equal another, counted from one, and that share; columns of
    /// one value are not counted.
    pub(super) fn discrete_column(&self) -> Option<(usize, f64)> {
        let repeated = |c: usize| {
            let mut values: Vec<f64> = self.data.iter().skip(c).step_by(self.dim).map(|x| x + 0.0).collect();
            values.sort_unstable_by(f64::total_cmp);
            let equal = values.windows(2).filter(|w| w[0] == w[1]).count();
            if equal + 1 == values.len() { 0.0 } else { equal as f64 / values.len() as f64 }
        };
        (0..self.dim).map(|c| (c + 1, repeated(c))).find(|r| r.1 > 0.1)
    }

    /// Standard deviations of the columns.
    pub(super) fn deviations(&self) -> Vec<f64> {
        let n = self.len() as f64;
        let column = |c: usize| self.data.iter().skip(c).step_by(self.dim);
        let deviation = |c: usize| {
            let mean = column(c).sum::<f64>() / n;
            (column(c).map(|x| (x - mean) * (x - mean)).sum::<f64>() / n).sqrt()
        };
        (0..self.dim).map(deviation).collect()
    }

    /// Rows that equal an earlier row.
    pub(super) fn duplicates(&self) -> usize {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_unstable_by(|&a, &b| self.compare(a, b));
        order.windows(2).filter(|w| self.row(w[0]) == self.row(w[1])).count()
    }

    fn compare(&self, a: usize, b: usize) -> std::cmp::Ordering {
        let pairs = self.row(a).iter().zip(self.row(b));
        // Zeros of both signs are one value.
        pairs.map(|(x, y)| (x + 0.0).total_cmp(&(y + 0.0))).find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    }

    /// What may make neighbour estimates less than they seem: repeated rows, columns of one value.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        if let Some(column) = self.constant_column() {
            out.push(format!("{}: column {column} holds one value only and says nothing", self.name));
        }
        let duplicates = self.duplicates();
        if duplicates > 0 {
            out.push(format!(
                "{}: {duplicates} of {} rows repeat an earlier row; the estimator is made for continuous distributions",
                self.name,
                self.len()
            ));
        }
        out
    }
}

/// Two samples of one space; fails naming both if their widths differ.
pub(super) fn check_widths(p: Points, q: Points) -> Result<()> {
    if p.dim != q.dim {
        return Err(Error::Estimate(format!(
            "{} has {} columns, {} has {}: both samples must have the same",
            p.name, p.dim, q.name, q.dim
        )));
    }
    Ok(())
}

/// Paired rows; fails naming both if their numbers differ.
pub(super) fn check_pairs(x: Points, y: Points) -> Result<()> {
    if x.len() != y.len() {
        return Err(Error::Estimate(format!(
            "{} has {} rows, {} has {}: rows are pairs, so both must have as many",
            x.name,
            x.len(),
            y.name,
            y.len()
        )));
    }
    Ok(())
}

/// At least `least` rows, for the reason given.
pub(super) fn check_rows(p: Points, least: usize, why: &str) -> Result<()> {
    if p.len() < least {
        return Err(Error::Estimate(format!("{}: has {} rows, {why} needs at least {least}", p.name, p.len())));
    }
    Ok(())
}

/// Rows `[x; y]`.
pub(super) fn joined(x: Points, y: Points) -> Vec<f64> {
    (0..x.len()).flat_map(|i| x.row(i).iter().chain(y.row(i))).copied().collect()
}

/// Merges warnings that say the same of both samples.
pub(super) fn merged(warnings: impl IntoIterator<Item = String>) -> Vec<String> {
    let unique: BTreeMap<String, ()> = warnings.into_iter().map(|w| (w, ())).collect();
    unique.into_keys().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_rows_and_constant_columns_are_found() {
        let p = Points::new(&[0.0, 1.0, -0.0, 1.0, 2.0, 1.0, 0.0, 1.0], 2).named("p.csv");
        assert_eq!((p.duplicates(), p.constant_column()), (2, Some(2)));
        let said = p.warnings().join("; ");
        assert!(said.contains("p.csv: column 2 holds one value") && said.contains("2 of 4 rows"), "{said}");
    }

    #[test]
    fn samples_that_do_not_fit_are_named() {
        let (p, q) = (Points::new(&[1.0, 2.0], 2).named("p.csv"), Points::new(&[1.0, 2.0], 1).named("q.csv"));
        let error = check_widths(p, q).unwrap_err().to_string();
        assert_eq!(error, "p.csv has 2 columns, q.csv has 1: both samples must have the same");
        let error = check_pairs(p, q).unwrap_err().to_string();
        assert_eq!(error, "p.csv has 1 rows, q.csv has 2: rows are pairs, so both must have as many");
    }
}
