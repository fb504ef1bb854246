//! Files.
//!
//! * [`Sample`]: numbers in files of all formats of `setwise-table`; [`ColumnChoice`]: columns of them.
//! * [`FilePairs`]: lists of pairs of files.
//! * [`write_npy`]: arrays as files of NumPy.
//! * [`tensors`]: safetensors files; [`atomic`]: atomic writes.
//!
//! Every reader checks the header of a file against its content.

pub mod atomic;
#[cfg(feature = "samples")]
mod columns;
#[cfg(feature = "samples")]
mod npy;
#[cfg(feature = "samples")]
mod pair_names;
#[cfg(feature = "samples")]
mod problems;
#[cfg(feature = "samples")]
pub(crate) mod samples;
pub mod tensors;
#[cfg(feature = "samples")]
pub use columns::read_matching;
#[cfg(feature = "samples")]
pub use npy::write_npy;
#[cfg(feature = "samples")]
pub use pair_names::{FilePairs, ListedPair};
#[cfg(feature = "samples")]
pub use samples::{Sample, pack_samples};
#[cfg(feature = "samples")]
pub use setwise_table::ColumnChoice;
