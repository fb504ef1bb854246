//! The laboratory of setwise: experiments, the data they learn from, runs, and the paper's tables.
//!
//! | module | holds |
//! | --- | --- |
//! | [`reproduce`] | the paper's tables and figures, ours beside the paper's |
//! | [`grid`] | experiments × presets × seeds, planned and trained |
//! | `selftest` | a GPU against the CPU in double precision (feature `cuda`) |
//! | [`estimator`] | training of the pretrained KL estimator's second network |
//! | [`speed`] | rates of samplers, times of steps |
//! | [`run`] | training runs with checkpoints and a log, evaluation |
//! | [`experiment`] | tasks, models and training as TOML; the built-in experiments |
//! | [`embed`] | features of images by ONNX encoders (feature `onnx`) |
//! | [`datasets`] | readers of recorded data, and tasks that pick examples from it |
//! | [`samplers`] | tasks that draw examples from random distributions |
//! | [`import`] | weights of the paper's PyTorch code |
//! | [`prefetch`] | threads that draw batches ahead |
//!
//! No module imports one that stands above it in this table.

pub mod datasets;
pub mod embed;
mod error;
pub mod estimator;
pub mod experiment;
pub mod grid;
pub mod import;
pub mod prefetch;
pub mod reproduce;
pub mod run;
pub mod samplers;
#[cfg(feature = "cuda")]
pub mod selftest;
pub mod speed;

pub use error::Error;

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
