//! Files: models (`model_file`), samples ([`Sample`]), weights of the published PyTorch code (`reference`); all through safetensors,
//! CSV and NPY readers that check every claim against what the file holds.

mod model_file;
mod reference;
mod samples;
mod tensors;

pub use reference::ReferenceOptions;
pub use samples::{Sample, batch_of};
