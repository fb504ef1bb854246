//! Readers of recorded data, one file per format. Every claim of a file is held against what it holds before memory is asked for
//! it, and what is wrong is told with the file and the place.
//!
//! * [`Array`]: arrays of NPY, NPZ and safetensors files, in the type they are stored in.
//! * [`WordVectors`], [`read_dictionary`]: vectors of words, and pairs of words that translate each other.
//! * [`Captioned`]: images with captions.

mod array;
mod captions;
mod content;
mod words;
mod zip;

pub use array::{Array, Kind, read_arrays};
pub use captions::Captioned;
pub use words::{Pair, Part, WordVectors, read_dictionary, read_pairs};

pub(crate) use content::{bad, lines};
pub(crate) use words::{finite, pairs_of};
