//! Sample files: rows are elements, columns are dimensions.
//!
//! CSV or TSV (a first row without numbers is a header, blank lines and those beginning with `#` are skipped) hold one set; NPY holds one set `[n, d]` or a stack of
//! examples `[examples, n, d]`. The kind is told by the content, not the name. `-` is standard input.

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use npyz::{DType, NpyFile, Order, TypeChar};

use super::text::parse_text;
use crate::sets::PackedSet;
use crate::{Error, Result, SetBatch};

/// One set, or one set of each of several examples of equal size.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Where it came from.
    pub path: PathBuf,
    /// Row-major numbers, in double precision: columns far from zero keep their digits.
    pub data: Vec<f64>,
    /// Number of examples; 1 for a single set.
    pub examples: usize,
    /// Rows of each.
    pub rows: usize,
    /// Numbers in a row.
    pub width: usize,
    /// Names of the columns from a header; none where there is no header.
    pub names: Vec<String>,
}

impl Sample {
    /// Reads a file; errors name it and, where there is one, the row and column.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let name = if path == Path::new("-") { Path::new("standard input") } else { path };
        Self::parse(name, &content(path)?)
    }

    /// Reads a file's content.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        Self::parse_as(path, bytes, parse_npy)
    }

    /// Reads a file's content; NPY files are understood by `npy`.
    pub(crate) fn parse_as(path: &Path, bytes: &[u8], npy: impl Fn(&[u8]) -> Parsed) -> Result<Self> {
        let bad = |reason: String| Error::Sample { path: path.to_owned(), reason };
        if let Some((_, kind)) = NOT_READ.iter().find(|(magic, _)| bytes.starts_with(magic)) {
            return Err(bad(format!("is {kind}, which is not read; save the numbers as CSV, TSV or NPY")));
        }
        let parsed = if bytes.starts_with(b"\x93NUMPY") { npy(bytes) } else { parse_text(bytes) };
        let (data, [examples, rows, width], names) = parsed.map_err(bad)?;
        if examples == 0 || rows == 0 {
            return Err(bad("is empty: it has no rows of numbers".to_owned()));
        }
        if width == 0 {
            return Err(bad("its rows have no columns".to_owned()));
        }
        let sample = Sample { path: path.to_owned(), data, examples, rows, width, names };
        if let Some(i) = sample.data.iter().position(|x| !x.is_finite()) {
            let place = sample.place(i, "row", "column");
            return Err(bad(format!("{place} is {}; every value must be a finite number", sample.data[i])));
        }
        Ok(sample)
    }

    /// Where a number stands; rows and columns may have other names.
    pub(crate) fn place(&self, i: usize, row_name: &str, column_name: &str) -> String {
        let (row, column) = (i / self.width, i % self.width + 1);
        let example = if self.examples > 1 { format!("example {}, ", row / self.rows + 1) } else { String::new() };
        format!("{example}{row_name} {}, {column_name} {column}", row % self.rows + 1)
    }
}

/// Packs one sample per set into a batch; all must have as many examples.
pub fn batch_of(samples: Vec<Sample>) -> Result<SetBatch> {
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

/// What a file holds, or standard input where the path is `-`.
pub(crate) fn content(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).map_err(Error::io(Path::new("standard input")))?;
    } else {
        bytes = std::fs::read(path).map_err(Error::io(path))?;
    }
    Ok(bytes)
}

/// What people may take for a sample file, by how it begins.
const NOT_READ: [(&[u8], &str); 5] = [
    (b"PAR1", "a Parquet file"),
    (b"PK\x03\x04", "a ZIP archive (NPZ or a spreadsheet)"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"\x89HDF", "an HDF5 file"),
];

/// Numbers; examples, rows and width; names of columns.
pub(crate) type Parsed = std::result::Result<(Vec<f64>, [usize; 3], Vec<String>), String>;

/// The reader multiplies the header's sizes unchecked, so a product that overflows is refused before it.
fn check_claimed_size(bytes: &[u8]) -> std::result::Result<(), String> {
    // Magic, version, and the header's length: two bytes in the first version, four in later ones.
    let (start, length) = match *bytes {
        [_, _, _, _, _, _, 1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
        [_, _, _, _, _, _, _, _, a, b, c, d, ..] => (12, u32::from_le_bytes([a, b, c, d]) as usize),
        _ => return Ok(()), // cut off, which the reader refuses
    };
    let header = String::from_utf8_lossy(&bytes[start.min(bytes.len())..bytes.len().min(start.saturating_add(length))]);
    let Some(sizes) = header.split("shape").nth(1).and_then(|s| s.split('(').nth(1)).and_then(|s| s.split(')').next())
    else {
        return Ok(()); // a malformed header, which the reader refuses
    };
    let mut product = 1u64;
    for size in sizes.split(',').map(str::trim).filter(|s| !s.is_empty()) {
        let n = size.trim_end_matches('L').parse::<u64>().ok();
        product =
            n.and_then(|n| product.checked_mul(n)).ok_or_else(|| format!("its header speaks of ({sizes}) numbers"))?;
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

/// An array of a NPY file.
pub(crate) struct Array {
    pub shape: Vec<usize>,
    /// The last index runs fastest.
    pub data: Vec<f64>,
    /// Whether its numbers are bytes.
    pub bytes: bool,
}

pub(crate) fn read_npy(bytes: &[u8]) -> std::result::Result<Array, String> {
    check_claimed_size(bytes)?;
    let file = NpyFile::new(Cursor::new(bytes)).map_err(|e| format!("not a NPY file: {e}"))?;
    let shape: Vec<u64> = file.shape().to_vec();
    let order = file.order();
    let DType::Plain(kind) = file.dtype() else {
        return Err("holds records; plain numbers are read".to_owned());
    };
    let size = kind.size_field();
    // The header's claim is held against the file before anything is allocated for it.
    let count = shape.iter().try_fold(1u64, |n, &m| n.checked_mul(m));
    match count.and_then(|n| n.checked_mul(size.max(1))) {
        Some(wanted) if wanted <= bytes.len() as u64 => {}
        _ => {
            return Err(format!(
                "its header speaks of {shape:?} numbers of {size} bytes, the file has {} bytes",
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
        let columns = data;
        data = (0..columns.len()).map(|i| columns[fortran_place(i, &shape)]).collect();
    }
    Ok(Array { shape, data, bytes: is_bytes })
}

/// Where the element that is `i`-th with the last index running fastest stands with the first index running fastest.
fn fortran_place(mut i: usize, shape: &[usize]) -> usize {
    let (mut place, mut step) = (0, shape.iter().product::<usize>());
    for &n in shape.iter().rev() {
        step /= n;
        place += i % n * step;
        i /= n;
    }
    place
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn text(content: &str) -> Result<Sample> {
        Sample::parse(Path::new("points.csv"), content.as_bytes())
    }

    #[test]
    fn files_of_other_kinds_are_called_by_their_name() {
        let error = Sample::parse(Path::new("p.parquet"), b"PAR1\x15\x04").unwrap_err().to_string();
        assert_eq!(error, "p.parquet: is a Parquet file, which is not read; save the numbers as CSV, TSV or NPY");
        let error = Sample::parse(Path::new("p.csv.gz"), b"\x1f\x8b\x08").unwrap_err().to_string();
        assert!(error.contains("compressed with gzip"), "{error}");
    }

    /// A NPY file by hand.
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
    fn hostile_npy_headers_allocate_nothing_and_are_refused() {
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
    fn columns_far_from_zero_keep_their_digits_and_models_refuse_what_single_precision_cannot_hold() {
        assert_eq!(text("100000000.25\n").unwrap().data, [100000000.25]);
        let error = batch_of(vec![text("1,2\n3,1e300\n").unwrap()]).unwrap_err().to_string();
        assert_eq!(error, "points.csv: 1e300 is too large for a model's single precision");
    }

    #[test]
    fn sets_of_a_batch_must_have_as_many_examples() {
        let one = text("1,2\n").unwrap();
        let mut two = one.clone();
        (two.examples, two.data) = (2, vec![0.0; 4]);
        let error = batch_of(vec![one, two]).unwrap_err().to_string();
        assert!(error.contains("1 examples") && error.contains("2"), "{error}");
    }
}
