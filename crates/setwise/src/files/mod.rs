//! Files: models (`model_file`), samples ([`Sample`]) also of images (`images`) and lists of them ([`PairList`]), arrays ([`write_npy`]), weights of the
//! published PyTorch code (`reference`); all through safetensors,
//! CSV and NPY readers that check every claim against what the file holds.

pub(crate) mod atomic;
mod images;
mod model_file;
mod npy;
mod pair_list;
mod reference;
mod samples;
pub(crate) mod tensors;
mod text;

pub use npy::write_npy;
pub use pair_list::{ListedPair, PairList};
pub use reference::ReferenceOptions;
pub use samples::{Sample, batch_of};
