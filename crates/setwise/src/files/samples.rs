//! Sample files: rows are elements, columns are dimensions.
//!
//! CSV and TSV files hold one set. A first row without numbers is a header; blank lines and lines that begin with `#`
//! are skipped. NPY files hold one set `[n, d]` or a stack of examples `[examples, n, d]`. The content determines the
//! format, not the name. The path `-` is standard input.

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use npyz::{DType, NpyFile, Order, TypeChar};

use super::columns::{ColumnChoice, read_matching};
use super::text::parse_text;
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
        let name = if path == Path::new("-") { Path::new("standard input") } else { path };
        Self::parse_chosen(name, &read_bytes(path)?, parse_npy, choice)
    }

    /// Parses a file's content.
    #[cfg(test)]
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        Self::parse_with(path, bytes, parse_npy)
    }

    /// Parses a file's content, NPY files with `parse_npy`.
    pub(crate) fn parse_with(path: &Path, bytes: &[u8], parse_npy: impl Fn(&[u8]) -> Parsed) -> Result<Self> {
        Ok(Self::parse_chosen(path, bytes, parse_npy, &ColumnChoice::default())?.0)
    }

    /// Parses the chosen columns of a file's content, NPY files with `parse_npy`.
    fn parse_chosen(
        path: &Path,
        bytes: &[u8],
        parse_npy: impl Fn(&[u8]) -> Parsed,
        choice: &ColumnChoice,
    ) -> Result<(Self, Vec<String>)> {
        let bad = |reason: String| Error::Sample { path: path.to_owned(), reason };
        if let Some((_, kind)) = UNSUPPORTED_FORMATS.iter().find(|(magic, _)| bytes.starts_with(magic)) {
            return Err(bad(format!("is {kind}, which is not read; save the numbers as CSV, TSV or NPY")));
        }
        let is_npy = bytes.starts_with(b"\x93NUMPY");
        let mut absent = Vec::new();
        let mut choose = |names: &[String], width| {
            let chosen = choice.of(names, width)?;
            absent = chosen.absent;
            Ok(chosen.columns)
        };
        let parsed = if is_npy { parse_npy(bytes) } else { parse_text(bytes, &mut choose) };
        let (data, [examples, rows, width], names) = parsed.map_err(bad)?;
        if examples == 0 || rows == 0 {
            return Err(bad("is empty: it has no rows of numbers".to_owned()));
        }
        if width == 0 {
            return Err(bad("its rows have no columns".to_owned()));
        }
        let sample = Sample { path: path.to_owned(), data, examples, rows, width, names };
        let chosen = (is_npy && !choice.is_all()).then(|| choose(&[], width)).transpose().map_err(bad)?;
        let is_chosen = |i: usize| chosen.as_ref().is_none_or(|columns| columns.contains(&(i % width)));
        if let Some(i) = (0..sample.data.len()).find(|&i| !sample.data[i].is_finite() && is_chosen(i)) {
            let location = sample.location(i, "row", "column");
            return Err(bad(format!("{location} is {}; every value must be a finite number", sample.data[i])));
        }
        let sample = match chosen {
            Some(columns) => sample.select(&columns),
            None => sample,
        };
        Ok((sample, absent))
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

/// The content of a file, or of standard input if the path is `-`.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).map_err(Error::io(Path::new("standard input")))?;
    } else {
        bytes = std::fs::read(path).map_err(Error::io(path))?;
    }
    Ok(bytes)
}

/// Magic bytes and names of formats that are not supported.
const UNSUPPORTED_FORMATS: [(&[u8], &str); 5] = [
    (b"PAR1", "a Parquet file"),
    (b"PK\x03\x04", "a ZIP archive (NPZ or a spreadsheet)"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"\x89HDF", "an HDF5 file"),
];

/// Numbers; examples, rows and width; column names.
pub(crate) type Parsed = std::result::Result<(Vec<f64>, [usize; 3], Vec<String>), String>;

/// Refuses headers whose sizes overflow when multiplied: `npyz` does not check the product.
fn check_header_size(bytes: &[u8]) -> std::result::Result<(), String> {
    // Magic, version, and the header's length: two bytes in the first version, four in later ones.
    let (start, length) = match *bytes {
        [_, _, _, _, _, _, 1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
        [_, _, _, _, _, _, _, _, a, b, c, d, ..] => (12, u32::from_le_bytes([a, b, c, d]) as usize),
        _ => return Ok(()), // the reader refuses a truncated header
    };
    let header = String::from_utf8_lossy(&bytes[start.min(bytes.len())..bytes.len().min(start.saturating_add(length))]);
    let Some(sizes) = header.split("shape").nth(1).and_then(|s| s.split('(').nth(1)).and_then(|s| s.split(')').next())
    else {
        return Ok(()); // the reader refuses a malformed header
    };
    let mut product = 1u64;
    for size in sizes.split(',').map(str::trim).filter(|s| !s.is_empty()) {
        let n = size.trim_end_matches('L').parse::<u64>().ok();
        let overflow = || format!("its header has the shape ({sizes}), which overflows");
        product = n.and_then(|n| product.checked_mul(n)).ok_or_else(overflow)?;
    }
    Ok(())
}

fn parse_npy(bytes: &[u8]) -> Parsed {
    let Array { shape, data, .. } = read_npy(bytes)?;
    match *shape.as_slice() {
        [n, d] => Ok((data, [1, n, d], Vec::new())),
        [b, n, d] => Ok((data, [b, n, d], Vec::new())),
        _ => {
            Err(format!("has shape {shape:?}; a set is [rows, columns], a stack of examples [examples, rows, columns]"))
        }
    }
}

/// The array of a NPY file.
pub(crate) struct Array {
    pub shape: Vec<usize>,
    /// Row-major numbers.
    pub data: Vec<f64>,
    /// Whether the numbers are stored as bytes (uint8).
    pub bytes: bool,
}

pub(crate) fn read_npy(bytes: &[u8]) -> std::result::Result<Array, String> {
    check_header_size(bytes)?;
    let file = NpyFile::new(Cursor::new(bytes)).map_err(|e| format!("not a NPY file: {e}"))?;
    let shape: Vec<u64> = file.shape().to_vec();
    let order = file.order();
    let DType::Plain(kind) = file.dtype() else {
        return Err("holds records; plain numbers are read".to_owned());
    };
    let size = kind.size_field();
    // The header's size is checked against the file before memory is allocated.
    let count = shape.iter().try_fold(1u64, |n, &m| n.checked_mul(m));
    match count.and_then(|n| n.checked_mul(size.max(1))) {
        Some(expected) if expected <= bytes.len() as u64 => {}
        _ => {
            return Err(format!(
                "its header has the shape {shape:?} with numbers of {size} bytes, the file has {} bytes",
                bytes.len()
            ));
        }
    }
    macro_rules! read {
        ($t:ty) => {
            file.into_vec::<$t>().map(|v| v.into_iter().map(|x| x as f64).collect::<Vec<f64>>())
        };
    }
    let is_bytes = (kind.type_char(), size) == (TypeChar::Uint, 1);
    let data = match (kind.type_char(), size) {
        (TypeChar::Float, 4) => read!(f32),
        (TypeChar::Float, 8) => read!(f64),
        (TypeChar::Int, 1) => read!(i8),
        (TypeChar::Int, 2) => read!(i16),
        (TypeChar::Int, 4) => read!(i32),
        (TypeChar::Int, 8) => read!(i64),
        (TypeChar::Uint, 1) => read!(u8),
        (TypeChar::Uint, 2) => read!(u16),
        (TypeChar::Uint, 4) => read!(u32),
        (TypeChar::Uint, 8) => read!(u64),
        _ => return Err(format!("holds numbers of type {kind}; floats of 4 and 8 bytes and integers are read")),
    };
    let mut data = data.map_err(|e| format!("its numbers cannot be read: {e}"))?;
    let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
    if order == Order::Fortran {
        let column_major = data;
        data = (0..column_major.len()).map(|i| column_major[fortran_index(i, &shape)]).collect();
    }
    Ok(Array { shape, data, bytes: is_bytes })
}

/// Column-major index of the element with row-major index `i`.
fn fortran_index(mut i: usize, shape: &[usize]) -> usize {
    let (mut index, mut stride) = (0, shape.iter().product::<usize>());
    for &n in shape.iter().rev() {
        stride /= n;
        index += i % n * stride;
        i /= n;
    }
    index
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn text(content: &str) -> Result<Sample> {
        Sample::parse(Path::new("points.csv"), content.as_bytes())
    }

    #[test]
    fn unsupported_formats_are_refused_by_name() {
        let error = Sample::parse(Path::new("p.parquet"), b"PAR1\x15\x04").unwrap_err().to_string();
        assert_eq!(error, "p.parquet: is a Parquet file, which is not read; save the numbers as CSV, TSV or NPY");
        let error = Sample::parse(Path::new("p.csv.gz"), b"\x1f\x8b\x08").unwrap_err().to_string();
        assert!(error.contains("compressed with gzip"), "{error}");
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
            ["(99999999999, 99999999999)", "(4611686018427387904, 4)", "(1000000, 1000)", "(3,)", "(0, 2)", "(2, 0)"]
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
