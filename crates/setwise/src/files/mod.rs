//! Files.
//!
//! * [`Sample`]: samples in CSV, TSV and NPY files; [`write_npy`]: arrays.
//! * [`tensors`]: safetensors files; [`atomic`]: atomic writes.
//!
//! Every reader checks the header of a file against its content.

pub mod atomic;
mod npy;
pub(crate) mod samples;
pub mod tensors;
mod text;

pub use npy::write_npy;
pub use samples::{Sample, pack_samples};
