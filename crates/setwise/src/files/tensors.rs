//! Safetensors files, read with every claim of the header checked against what the file holds.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use crate::{Error, Result};

/// A tensor in single precision.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

/// The tensors and the metadata of a file.
pub(crate) struct TensorFile {
    pub tensors: BTreeMap<String, Tensor>,
    pub metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// Reads a file. Memory used is at most twice the file's size; nothing in it is run.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(Error::io(path))?;
        Self::parse(&bytes).map_err(|reason| Error::ModelFile { path: path.to_owned(), reason })
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|e| format!("not a whole safetensors file: {e}"))?;
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

fn numbers<const N: usize>(bytes: &[u8], convert: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.chunks_exact(N).map(|c| convert(c.try_into().expect("chunks of N bytes"))).collect()
}
