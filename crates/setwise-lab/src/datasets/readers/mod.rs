//! Readers of data sets, one module per format.
//!
//! Sizes claimed by a file are checked before memory is allocated. Errors name the file and the position.
//!
//! * [`Array`]: arrays of NPY, NPZ and safetensors files, in their stored type.
//! * [`read_idx`]: MNIST and similar data sets.
//! * [`Omniglot`]: in packed form or as a folder of images.
//! * [`Image`]: PNG and JPEG files.
//! * [`read_records`]: TFRecords of Meta-Dataset.
//! * [`WordVectors`], [`read_dictionary`]: word vectors, and pairs of words that translate each other.
//! * [`Captioned`]: images with captions.

mod array;
mod captions;
mod content;
mod idx;
mod images;
mod omniglot;
mod records;
mod words;
mod zip;

pub use array::{Array, Kind, read_arrays};
pub use captions::Captioned;
pub(crate) use content::{bad, lines};
pub use idx::read_idx;
pub use images::Image;
pub use omniglot::{OMNIGLOT_SIDE, Omniglot};
pub use records::{Record, read_records};
pub use words::{Pair, WordVectors, read_dictionary, read_pairs};
pub(crate) use words::{finite, pairs_of};

#[cfg(test)]
pub(crate) mod synthetic {
    //! Synthetic files for tests.
    pub(crate) use super::images::tests::png;
    pub(crate) use super::omniglot::tests::omniglot_folder;
    pub(crate) use super::records::tests::record_file;
    pub(crate) use super::zip::tests::zip;
}
