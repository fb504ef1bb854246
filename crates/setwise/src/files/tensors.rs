//! Safetensors files, read with a checked header and written deterministically.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{TensorView, serialize};
use safetensors::{Dtype, SafeTensors};

use crate::{Error, Result};

/// A tensor in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The shape.
    pub shape: Vec<usize>,
    /// Row-major numbers.
    pub data: Vec<f32>,
}

/// The tensors and the metadata of a file.
pub struct TensorFile {
    /// Tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Metadata by key.
    pub metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// Reads a file. Memory use is at most twice the file's size.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(Error::io(path))?;
        Self::parse(&bytes).map_err(|reason| Error::ModelFile { path: path.to_owned(), reason })
    }

    /// Parses a file's content.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|e| format!("not an intact safetensors file: {e}"))?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
        let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
        let mut tensors = BTreeMap::new();
        for (name, view) in file.iter() {
            let data = match view.dtype() {
                Dtype::F32 => numbers(view.data(), |b: [u8; 4]| f32::from_le_bytes(b)),
                Dtype::F64 => numbers(view.data(), |b: [u8; 8]| f64::from_le_bytes(b) as f32),
                Dtype::I64 => numbers(view.data(), |b: [u8; 8]| i64::from_le_bytes(b) as f32),
                other => return Err(format!("tensor {name:?} is of type {other:?}; F32 and F64 are read")),
            };
            if data.len() != view.shape().iter().product::<usize>() {
                return Err(format!("tensor {name:?} has {} values for the shape {:?}", data.len(), view.shape()));
            }
            tensors.insert(name.to_owned(), Tensor { shape: view.shape().to_vec(), data });
        }
        Ok(TensorFile { tensors, metadata })
    }
}

/// The content of a file of f32 tensors. Equal tensors and metadata give equal bytes: metadata is sorted by key.
pub fn to_bytes<'a>(
    tensors: impl IntoIterator<Item = (&'a str, Vec<usize>, &'a [f32])>,
    metadata: &BTreeMap<String, String>,
) -> Vec<u8> {
    let raw: Vec<(&str, Vec<usize>, Vec<u8>)> =
        tensors.into_iter().map(|(name, shape, data)| (name, shape, little_endian(data))).collect();
    let views = raw.iter().map(|(name, shape, bytes)| {
        (*name, TensorView::new(Dtype::F32, shape.clone(), bytes).expect("bytes of the shape"))
    });
    // `safetensors` writes metadata in the random order of a hash map, so metadata is added to the header here.
    let plain = serialize(views, None).expect("plain tensors serialise");
    let (length, rest) = plain.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize);
    let mut header: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(header).expect("a header just written");
    header.insert("__metadata__".to_owned(), serde_json::json!(metadata));
    let mut header = serde_json::to_vec(&header).expect("plain data");
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes(), header.as_slice(), data].concat()
}

/// Numbers as little-endian bytes.
pub fn little_endian(data: &[f32]) -> Vec<u8> {
    // Writing into a buffer of known length compiles to one copy; an iterator of bytes would push them one by one.
    let mut bytes = vec![0; 4 * data.len()];
    bytes.chunks_exact_mut(4).zip(data).for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes()));
    bytes
}

/// Converts little-endian chunks of N bytes.
fn numbers<const N: usize>(bytes: &[u8], convert: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.chunks_exact(N).map(|c| convert(c.try_into().expect("chunks of N bytes"))).collect()
}
