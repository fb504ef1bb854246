//! Sample files: rows are elements, columns are dimensions.
//!
//! Tables of all formats hold one set; their columns must be numbers. NPY files hold one set `[n, d]`, one of numbers
//! `[n]`, or a stack of examples `[examples, n, d]`. The path `-` is standard input.

use std::path::{Path, PathBuf};

use setwise_table::numpy::{self, Array};
use setwise_table::source::{display_name, read_bytes};
use setwise_table::{Column, ColumnChoice, Table};

use super::columns::read_matching;
use super::problems;
use crate::sets::PackedSet;
use crate::{Error, Result, SetBatch};

/// One set, or a stack of examples with one set of equal size each.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Path of the file.
    pub path: PathBuf,
    /// Row-major numbers in f64: columns far from zero keep their digits.
    pub data: Vec<f64>,
    /// Number of examples; 1 for a single set.
    pub examples: usize,
    /// Rows of each example.
    pub rows: usize,
    /// Width of a row.
    pub width: usize,
    /// Column names of the header; empty without a header.
    pub names: Vec<String>,
}

impl Sample {
    /// Reads a file. Errors name the file, and the row and column if there is one.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::read_chosen(path.as_ref(), &ColumnChoice::default())?.0)
    }

    /// Reads the chosen columns of a file. Text in other columns is no error.
    pub fn read_columns(path: impl AsRef<Path>, choice: &ColumnChoice) -> Result<Self> {
        let read = read_matching(&[path.as_ref()], choice)?;
        Ok(read.into_iter().next().expect("one sample for each path"))
    }

    /// Reads the chosen columns of a file, with the columns to leave out that it does not have.
    pub(super) fn read_chosen(path: &Path, choice: &ColumnChoice) -> Result<(Self, Vec<String>)> {
        Self::parse_chosen(display_name(path), read_bytes(path)?, parse_npy, choice)
    }

    /// Parses a file's content.
    #[cfg(test)]
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        Self::parse_with(path, bytes.to_vec(), parse_npy)
    }

    /// Parses a file's content, NPY files with `parse_npy`.
    pub(crate) fn parse_with(path: &Path, bytes: Vec<u8>, parse_npy: impl Fn(&[u8]) -> Parsed) -> Result<Self> {
        Ok(Self::parse_chosen(path, bytes, parse_npy, &ColumnChoice::default())?.0)
    }

    /// Parses the chosen columns of a file's content, NPY files with `parse_npy`.
    fn parse_chosen(
        path: &Path,
        bytes: Vec<u8>,
        parse_npy: impl Fn(&[u8]) -> Parsed,
        choice: &ColumnChoice,
    ) -> Result<(Self, Vec<String>)> {
        if !bytes.starts_with(numpy::MAGIC) {
            let (table, ragged) = Table::parse_until_ragged(path, bytes)?;
            return Self::of_table(table, ragged, choice);
        }
        let bad = |reason: String| Error::Sample { path: path.to_owned(), reason };
        let (data, [examples, rows, width]) = parse_npy(&bytes).map_err(bad)?;
        if examples == 0 || rows == 0 {
            return Err(bad("is empty: it has no rows".to_owned()));
        }
        if width == 0 {
            return Err(bad("its rows have no columns".to_owned()));
        }
        let sample = Sample { path: path.to_owned(), data, examples, rows, width, names: Vec::new() };
        let chosen = choice.of(&[], width).map_err(bad)?;
        let is_chosen = |i: usize| chosen.columns.contains(&(i % width));
        if let Some(i) = (0..sample.data.len()).find(|&i| !sample.data[i].is_finite() && is_chosen(i)) {
            let location = sample.location(i, "row", "column");
            return Err(bad(format!("{location} is {}; every value must be a finite number", sample.data[i])));
        }
        let sample = if choice.is_all() { sample } else { sample.select(&chosen.columns) };
        Ok((sample, chosen.absent))
    }

    /// The chosen columns of a table, which must hold numbers. The error has the first problem of each column.
    fn of_table(table: Table, ragged: Option<String>, choice: &ColumnChoice) -> Result<(Self, Vec<String>)> {
        // A column without a name has an empty one.
        let name = |(c, column): (usize, &Column)| match column.name == format!("column {}", c + 1) {
            true => String::new(),
            false => column.name.clone(),
        };
        let names: Vec<String> = match table.named {
            true => table.columns.iter().enumerate().map(name).collect(),
            false => Vec::new(),
        };
        let bad = |reason: String| Error::Sample { path: table.path.clone(), reason };
        let chosen = choice.of(&names, table.columns.len()).map_err(bad)?;
        problems::check(&table, &chosen.columns, ragged).map_err(bad)?;
        let columns: Vec<&[f64]> =
            chosen.columns.iter().filter_map(|&c| problems::numbers(&table.columns[c])).collect();
        let (rows, width) = (table.rows, columns.len());
        let data = (0..rows).flat_map(|i| columns.iter().map(move |column| column[i])).collect();
        let names = chosen.columns.iter().filter_map(|&c| names.get(c).cloned()).collect();
        Ok((Sample { path: table.path, data, examples: 1, rows, width, names }, chosen.absent))
    }

    /// The sample with these columns, in this order.
    pub(super) fn select(&self, columns: &[usize]) -> Self {
        Sample {
            data: self.data.chunks_exact(self.width).flat_map(|row| columns.iter().map(|&c| row[c])).collect(),
            width: columns.len(),
            names: columns.iter().filter_map(|&c| self.names.get(c).cloned()).collect(),
            path: self.path.clone(),
            ..*self
        }
    }

    /// The sample of a range of columns. Its path names the range, since errors count columns from there.
    ///
    /// # Panics
    /// If the range is empty or ends beyond the columns.
    pub fn columns(&self, range: std::ops::Range<usize>) -> Self {
        assert!(!range.is_empty() && range.end <= self.width, "{range:?} of {} columns", self.width);
        let path = format!("{} (columns {} to {})", self.path.display(), range.start + 1, range.end).into();
        Sample { path, ..self.select(&range.collect::<Vec<_>>()) }
    }

    /// Location of number `i` for error messages, with these names of rows and columns.
    pub(crate) fn location(&self, i: usize, row_name: &str, column_name: &str) -> String {
        let (row, column) = (i / self.width, i % self.width + 1);
        let example = if self.examples > 1 { format!("example {}, ", row / self.rows + 1) } else { String::new() };
        format!("{example}{row_name} {}, {column_name} {column}", row % self.rows + 1)
    }
}

/// Packs one sample per set into a batch. All samples must have the same number of examples.
pub fn pack_samples(samples: Vec<Sample>) -> Result<SetBatch> {
    if let Some(other) = samples.iter().find(|s| s.examples != samples[0].examples) {
        return Err(Error::Sets(format!(
            "{} holds {} examples, {} holds {}: the sets of a batch must have the same number",
            samples[0].path.display(),
            samples[0].examples,
            other.path.display(),
            other.examples
        )));
    }
    let mut sets = Vec::with_capacity(samples.len());
    for s in samples {
        let offsets = (0..=s.examples).map(|i| i * s.rows).collect();
        if let Some(x) = s.data.iter().find(|x| !(**x as f32).is_finite()) {
            return Err(Error::Sample {
                path: s.path,
                reason: format!("{x:e} is too large for a model's single precision"),
            });
        }
        sets.push(PackedSet::new(s.data.into_iter().map(|x| x as f32).collect(), s.width, offsets));
    }
    SetBatch::new(sets)
}

/// Numbers; examples, rows and width.
pub(crate) type Parsed = std::result::Result<(Vec<f64>, [usize; 3]), String>;

fn parse_npy(bytes: &[u8]) -> Parsed {
    let Array { shape, data, .. } = numpy::read_npy(bytes)?;
    match *shape.as_slice() {
        [n] => Ok((data, [1, n, 1])),
        [n, d] => Ok((data, [1, n, d])),
        [b, n, d] => Ok((data, [b, n, d])),
        _ => {
            Err(format!("has shape {shape:?}; a set is [rows, columns], a stack of examples [examples, rows, columns]"))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn text(content: &str) -> Result<Sample> {
        Sample::parse(Path::new("points.csv"), content.as_bytes())
    }

    /// A NPY file with this header.
    pub fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let mut text = header.to_owned();
        while !(10 + text.len() + 1).is_multiple_of(64) {
            text.push(' ');
        }
        text.push('\n');
        let mut out = b"\x93NUMPY\x01\x00".to_vec();
        out.extend((text.len() as u16).to_le_bytes());
        out.extend(text.as_bytes());
        out.extend(data);
        out
    }

    fn parse(header: &str, data: &[u8]) -> Result<Sample> {
        Sample::parse(Path::new("a.npy"), &npy(header, data))
    }

    #[test]
    fn npy_arrays_of_two_and_three_dimensions_are_read() {
        let numbers: Vec<u8> = (1..=12).flat_map(|i| (i as f64).to_le_bytes()).collect();
        let s = parse("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3, 2), }", &numbers).unwrap();
        assert_eq!((s.examples, s.rows, s.width), (2, 3, 2));
        assert_eq!(s.data[..4], [1.0, 2.0, 3.0, 4.0]);
        let s = parse("{'descr': '<f8', 'fortran_order': True, 'shape': (3, 4), }", &numbers).unwrap();
        assert_eq!(s.data[..4], [1.0, 4.0, 7.0, 10.0]);
        let s = parse("{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3, 2), }", &numbers).unwrap();
        assert_eq!(s.data[..6], [1.0, 7.0, 3.0, 9.0, 5.0, 11.0]);
        let bytes: Vec<u8> = vec![1, 2, 3, 4];
        assert_eq!(
            parse("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2), }", &bytes).unwrap().data,
            [1.0, 2.0, 3.0, 4.0]
        );
    }

    #[test]
    fn hostile_npy_headers_are_refused_without_allocating() {
        for shape in
            ["(99999999999, 99999999999)", "(4611686018427387904, 4)", "(1000000, 1000)", "(5,)", "(0, 2)", "(2, 0)"]
        {
            let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
            let error = parse(&header, &[0; 16]).unwrap_err().to_string();
            assert!(error.starts_with("a.npy: "), "{error}");
        }
        assert!(parse("{'descr': '<c8', 'fortran_order': False, 'shape': (1, 2), }", &[0; 16]).is_err());
        let nan = f32::NAN.to_le_bytes();
        let data = [1f32.to_le_bytes(), 2f32.to_le_bytes(), 3f32.to_le_bytes(), nan].concat();
        let error = parse("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 2), }", &data).unwrap_err();
        assert!(error.to_string().contains("example 2, row 1, column 2 is NaN"), "{error}");
    }

    #[test]
    fn columns_far_from_zero_keep_their_digits_and_batches_refuse_numbers_beyond_f32() {
        assert_eq!(text("100000000.25\n").unwrap().data, [100000000.25]);
        let error = pack_samples(vec![text("1,2\n3,1e300\n").unwrap()]).unwrap_err().to_string();
        assert_eq!(error, "points.csv: 1e300 is too large for a model's single precision");
    }

    #[test]
    fn sets_of_a_batch_must_have_the_same_number_of_examples() {
        let one = text("1,2\n").unwrap();
        let mut two = one.clone();
        (two.examples, two.data) = (2, vec![0.0; 4]);
        let error = pack_samples(vec![one, two]).unwrap_err().to_string();
        assert!(error.contains("1 examples") && error.contains("2"), "{error}");
    }
}
