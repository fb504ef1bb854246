//! Arrays of NPY, NPZ and safetensors files, in their stored type.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use super::content::{Bytes, bad, read};
use super::zip::unzip;
use crate::Result;

/// The little-endian type of a stored number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    U8,
    U16,
    U32,
    I32,
    I64,
    F16,
    F32,
    F64,
}

impl Kind {
    /// Bytes of a number.
    pub fn size(self) -> usize {
        match self {
            Kind::U8 => 1,
            Kind::U16 | Kind::F16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::I64 | Kind::F64 => 8,
        }
    }
}

/// A row-major array in its stored type.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The type of its numbers.
    pub kind: Kind,
    /// Size of each dimension.
    pub shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Array {
    /// An array from bytes. None if the number of bytes does not match the shape.
    pub fn new(kind: Kind, shape: Vec<usize>, bytes: Vec<u8>) -> Option<Self> {
        let count = shape.iter().try_fold(kind.size(), |n, &s| n.checked_mul(s));
        (count == Some(bytes.len())).then_some(Array { kind, shape, bytes })
    }

    /// The stored bytes, if the type is U8.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        (self.kind == Kind::U8).then_some(self.bytes)
    }

    /// The numbers in single precision.
    pub fn floats(&self) -> Vec<f32> {
        match self.kind {
            Kind::U8 => self.bytes.iter().map(|&b| f32::from(b)).collect(),
            Kind::U16 => self.each(|b| f32::from(u16::from_le_bytes(b))),
            Kind::U32 => self.each(|b| u32::from_le_bytes(b) as f32),
            Kind::I32 => self.each(|b| i32::from_le_bytes(b) as f32),
            Kind::I64 => self.each(|b| i64::from_le_bytes(b) as f32),
            Kind::F16 => self.each(|b| f16_to_f32(u16::from_le_bytes(b))),
            Kind::F32 => self.each(f32::from_le_bytes),
            Kind::F64 => self.each(|b| f64::from_le_bytes(b) as f32),
        }
    }

    /// The numbers as labels, if all are non-negative integers.
    pub fn labels(&self) -> Option<Vec<u32>> {
        match self.kind {
            Kind::U8 => Some(self.bytes.iter().map(|&b| u32::from(b)).collect()),
            Kind::U16 => Some(self.each(|b| u32::from(u16::from_le_bytes(b)))),
            Kind::U32 => Some(self.each(u32::from_le_bytes)),
            Kind::I32 => self.each(|b| u32::try_from(i32::from_le_bytes(b)).ok()).into_iter().collect(),
            Kind::I64 => self.each(|b| u32::try_from(i64::from_le_bytes(b)).ok()).into_iter().collect(),
            Kind::F16 | Kind::F32 | Kind::F64 => None,
        }
    }

    fn each<const N: usize, T>(&self, convert: impl Fn([u8; N]) -> T) -> Vec<T> {
        self.bytes.chunks_exact(N).map(|c| convert(c.try_into().expect("chunks of N bytes"))).collect()
    }

    /// Parses the content of an NPY file.
    pub fn parse_npy(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut rest = Bytes::new(path, bytes);
        if rest.take(6, "the magic number of an NPY file")? != b"\x93NUMPY" {
            return Err(bad(path, "offset 0: this is not an NPY file"));
        }
        let [major, _] = rest.array("the version")?;
        let length = match major {
            1 => u16::from_le_bytes(rest.array("the header's length")?) as usize,
            2 | 3 => u32::from_le_bytes(rest.array("the header's length")?) as usize,
            _ => return Err(rest.bad(format!("NPY version {major} is not supported"))),
        };
        let header = String::from_utf8_lossy(rest.take(length, "the header")?).into_owned();
        let (kind, shape) = parse_header(&header).map_err(|reason| rest.bad(reason))?;
        let count = shape.iter().try_fold(kind.size(), |n, &s| n.checked_mul(s));
        let Some(count) = count.filter(|&n| n <= rest.left()) else {
            return Err(rest.bad(format!("the header claims {shape:?} numbers, {} bytes are left", rest.left())));
        };
        let bytes = rest.take(count, "the numbers")?.to_vec();
        Ok(Array { kind, shape, bytes })
    }
}

/// Type and shape in an NPY header, which is a Python dictionary.
fn parse_header(header: &str) -> std::result::Result<(Kind, Vec<usize>), String> {
    let after = |key: &str| header.split_once(key).map(|(_, rest)| rest.trim_start_matches([':', ' ']));
    let descr = after("'descr'").and_then(|r| r.strip_prefix('\'')).and_then(|r| r.split_once('\''));
    let Some((descr, _)) = descr else { return Err("the header names no plain type".to_owned()) };
    let kind = match descr.trim_start_matches(['<', '|', '=']) {
        "u1" | "b1" => Kind::U8,
        "u2" => Kind::U16,
        "u4" => Kind::U32,
        "i4" => Kind::I32,
        "i8" => Kind::I64,
        "f2" => Kind::F16,
        "f4" => Kind::F32,
        "f8" => Kind::F64,
        _ => return Err(format!("numbers of type {descr:?} are not supported")),
    };
    if after("'fortran_order'").is_none_or(|r| !r.starts_with("False")) {
        return Err("the array is not row-major".to_owned());
    }
    let sizes = after("'shape'").and_then(|r| r.strip_prefix('(')).and_then(|r| r.split_once(')'));
    let Some((sizes, _)) = sizes else { return Err("the header has no shape".to_owned()) };
    let shape = sizes.split(',').map(str::trim).filter(|s| !s.is_empty()).map(|s| s.parse().ok());
    let shape: Option<Vec<usize>> = shape.collect();
    Ok((kind, shape.ok_or_else(|| format!("the shape ({sizes}) cannot be read"))?))
}

/// Reads all arrays of an NPZ or safetensors file by name, or the array of an NPY file under an empty name.
///
/// The content determines the format, not the file name.
pub fn read_arrays(path: &Path) -> Result<BTreeMap<String, Array>> {
    let bytes = read(path)?;
    if bytes.starts_with(b"\x93NUMPY") {
        return Ok(BTreeMap::from([(String::new(), Array::parse_npy(path, &bytes)?)]));
    }
    if bytes.starts_with(b"PK") {
        let entries = unzip(path, &bytes)?;
        let named = entries.into_iter().map(|(name, bytes)| {
            let array = Array::parse_npy(&path.join(&name), &bytes)?;
            Ok((name.strip_suffix(".npy").unwrap_or(&name).to_owned(), array))
        });
        return named.collect();
    }
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|e| bad(path, format!("is neither NPY nor NPZ nor a complete safetensors file: {e}")))?;
    let mut arrays = BTreeMap::new();
    for (name, view) in file.iter() {
        let kind = match view.dtype() {
            Dtype::U8 | Dtype::BOOL => Kind::U8,
            Dtype::U16 => Kind::U16,
            Dtype::U32 => Kind::U32,
            Dtype::I32 => Kind::I32,
            Dtype::I64 => Kind::I64,
            Dtype::F16 => Kind::F16,
            Dtype::F32 => Kind::F32,
            Dtype::F64 => Kind::F64,
            other => return Err(bad(path, format!("tensor {name:?} is of type {other:?}, which is not supported"))),
        };
        let array = Array::new(kind, view.shape().to_vec(), view.data().to_vec());
        let array = array.ok_or_else(|| bad(path, format!("the data of tensor {name:?} does not match its shape")))?;
        arrays.insert(name.to_owned(), array);
    }
    Ok(arrays)
}

/// Converts the bits of an f16 number.
fn f16_to_f32(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 0x3ff));
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An NPY file of version 1.
    pub(crate) fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let header = format!("{header}\n");
        [b"\x93NUMPY\x01\x00", (header.len() as u16).to_le_bytes().as_slice(), header.as_bytes(), data].concat()
    }

    fn parse(descr: &str, shape: &str, data: &[u8]) -> Result<Array> {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        Array::parse_npy(Path::new("a.npy"), &npy(&header, data))
    }

    #[test]
    fn arrays_of_every_type_are_read() {
        let f16_bytes: Vec<u8> = [0x3c00u16, 0xc100, 0x0001, 0x7bff].iter().flat_map(|h| h.to_le_bytes()).collect();
        assert_eq!(parse("<f2", "(2, 2)", &f16_bytes).unwrap().floats(), [1.0, -2.5, 2f32.powi(-24), 65504.0]);
        assert!(f16_to_f32(0x7c01).is_nan() && f16_to_f32(0xfc00) == f32::NEG_INFINITY);
        assert_eq!(parse("|u1", "(3,)", &[1, 2, 255]).unwrap().labels(), Some(vec![1, 2, 255]));
        assert_eq!(parse("<i8", "(1,)", &(-1i64).to_le_bytes()).unwrap().labels(), None);
        assert_eq!(parse("<f8", "()", &0.5f64.to_le_bytes()).unwrap().floats(), [0.5]);
    }

    #[test]
    fn errors_about_hostile_headers_name_the_offset_and_allocate_nothing() {
        for (descr, shape) in
            [("<f4", "(99999999999, 99999999999)"), ("<f4", "(1000000000,)"), ("<c8", "(1,)"), ("<f4", "(-1,)")]
        {
            let error = parse(descr, shape, &[0; 16]).unwrap_err().to_string();
            assert!(error.starts_with("a.npy: offset "), "{error}");
        }
        let error = Array::parse_npy(Path::new("a.npy"), b"\x93NUMPY\x01\x00\xff\xff{").unwrap_err().to_string();
        assert_eq!(error, "a.npy: offset 10: the header needs 65535 bytes, 1 are left");
    }

    #[test]
    fn arrays_of_safetensors_files_are_read_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let bytes = setwise::files::tensors::to_bytes([("x", vec![2], [1.0f32, 2.0].as_slice())], &BTreeMap::new());
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read_arrays(&path).unwrap()["x"].floats(), [1.0, 2.0]);
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let error = read_arrays(&path).unwrap_err().to_string();
        assert!(error.contains("a.safetensors") && error.contains("safetensors file"), "{error}");
    }
}
