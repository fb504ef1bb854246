//! Files: samples ([`Sample`]: CSV, TSV, NPY), arrays ([`write_npy`]), tensors ([`tensors`]: safetensors), atomic writes ([`atomic`]).
//!
//! Every reader checks what a file claims against what it holds.

pub mod atomic;
mod npy;
pub(crate) mod samples;
pub mod tensors;
mod text;

pub use npy::write_npy;
pub use samples::{Sample, batch_of};
