//! NPY arrays and NPZ archives of them.

use std::io::Cursor;

use half::f16;
use npyz::{DType, NpyFile, Order, TypeChar};

use crate::error::Reason;
use crate::table::{Column, Text, Values};
use crate::zip::unzip;

/// The magic bytes of a NPY file.
pub const MAGIC: &[u8] = b"\x93NUMPY";

/// The array of a NPY file.
pub struct Array {
    /// The shape.
    pub shape: Vec<usize>,
    /// Row-major numbers.
    pub data: Vec<f64>,
    /// Whether the numbers are stored as bytes (uint8).
    pub bytes: bool,
    /// Whether the values are stored as truth values.
    pub booleans: bool,
}

/// Reads a NPY file of numbers.
pub fn read_npy(bytes: &[u8]) -> Result<Array, String> {
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
    let stored = (kind.type_char(), size);
    let data = match stored {
        (TypeChar::Float, 2) => file.into_vec::<f16>().map(|v| v.into_iter().map(f64::from).collect()),
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
        (TypeChar::Bool, 1) => file.into_vec::<bool>().map(|v| v.into_iter().map(|x| f64::from(u8::from(x))).collect()),
        _ => return Err(format!("holds values of type {kind}; floats, integers and truth values are read")),
    };
    let mut data: Vec<f64> = data.map_err(|e| format!("its numbers cannot be read: {e}"))?;
    let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
    if order == Order::Fortran {
        let column_major = data;
        data = (0..column_major.len()).map(|i| column_major[fortran_index(i, &shape)]).collect();
    }
    let (bytes, booleans) = (stored == (TypeChar::Uint, 1), stored.0 == TypeChar::Bool);
    Ok(Array { shape, data, bytes, booleans })
}

/// Refuses headers whose sizes overflow when multiplied: `npyz` does not check the product.
fn check_header_size(bytes: &[u8]) -> Reason<()> {
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

/// The columns of an array with one or two axes, with these names if there are several.
fn columns(array: &Array, name: impl Fn(Option<usize>) -> String) -> Reason<Vec<Column>> {
    let column = |name: String, values: Vec<f64>| match array.booleans {
        true => Column::new(name, Values::Text(truth_values(&values))),
        false => Column::numbers(name, values),
    };
    match *array.shape.as_slice() {
        [_] => Ok(vec![column(name(None), array.data.clone())]),
        [_, width] => {
            let of = |c: usize| array.data.iter().skip(c).step_by(width.max(1)).copied().collect();
            Ok((0..width).map(|c| column(name(Some(c)), of(c))).collect())
        }
        _ => Err(format!("has shape {:?}; a table is [rows] or [rows, columns]", array.shape)),
    }
}

/// Zeros and ones as text.
pub(crate) fn truth_values(values: &[f64]) -> Text {
    let mut text = Text::default();
    values.iter().for_each(|x| text.push((!x.is_nan()).then_some(if *x == 0.0 { "false" } else { "true" })));
    text
}

/// The columns of a NPY file.
pub(crate) fn read_npy_columns(bytes: &[u8]) -> Reason<Vec<Column>> {
    columns(&read_npy(bytes)?, |c| format!("column {}", c.unwrap_or(0) + 1))
}

/// The columns of an archive: each array is a column, or several with numbered names.
pub(crate) fn read_npz_columns(bytes: &[u8]) -> Reason<Vec<Column>> {
    let mut all = Vec::new();
    let mut rows: Option<(String, usize)> = None;
    for (name, content) in unzip(bytes)? {
        let Some(name) = name.strip_suffix(".npy").map(str::to_owned) else {
            return Err(format!("holds {name:?}, which is no NPY array; is it a spreadsheet? save it as CSV"));
        };
        let array = read_npy(&content).map_err(|reason| format!("array {name:?} {reason}"))?;
        let n = array.shape.first().copied().unwrap_or(0);
        match &rows {
            Some((first, first_rows)) if *first_rows != n => {
                return Err(format!(
                    "array {name:?} has {n} rows, {first:?} has {first_rows}; all arrays must have as many"
                ));
            }
            Some(_) => {}
            None => rows = Some((name.clone(), n)),
        }
        let of = |c: Option<usize>| c.map_or(name.clone(), |c| format!("{name}.{}", c + 1));
        all.extend(columns(&array, of).map_err(|reason| format!("array {name:?} {reason}"))?);
    }
    match all.is_empty() {
        true => Err("holds no arrays".to_owned()),
        false => Ok(all),
    }
}
