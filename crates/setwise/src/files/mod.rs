//! Files.
//!
//! * [`Sample`]: samples in CSV, TSV and NPY files; [`ColumnChoice`]: columns of them; [`write_npy`]: arrays.
//! * [`tensors`]: safetensors files; [`atomic`]: atomic writes.
//!
//! Every reader checks the header of a file against its content.

pub mod atomic;
#[cfg(feature = "samples")]
mod columns;
#[cfg(feature = "samples")]
mod npy;
#[cfg(feature = "samples")]
pub(crate) mod samples;
pub mod tensors;
#[cfg(feature = "samples")]
mod text;

#[cfg(feature = "samples")]
pub use columns::{ColumnChoice, read_matching};
#[cfg(feature = "samples")]
pub use npy::write_npy;
#[cfg(feature = "samples")]
pub use samples::{Sample, pack_samples};
