//! Files: samples ([`Sample`]: CSV, TSV, NPY), arrays ([`write_npy`]), tensors ([`tensors`]: safetensors), atomic writes ([`atomic`]).
//!
//! Every reader checks what a file claims against what it holds.

pub mod atomic;
#[cfg(feature = "samples")]
mod npy;
#[cfg(feature = "samples")]
pub(crate) mod samples;
pub mod tensors;
#[cfg(feature = "samples")]
mod text;

#[cfg(feature = "samples")]
pub use npy::write_npy;
#[cfg(feature = "samples")]
pub use samples::{Sample, batch_of};
