//! Two samples and a question, or a function of several sets to learn.
//!
//! A *set* is an unordered collection of vectors; an *example* is one or more sets. Models answer with one vector per example,
//! which no permutation inside a set changes, or with one vector per element, which moves with it.
//!
//! | module | holds |
//! | --- | --- |
//! | [`estimate`] | KL divergence and mutual information with intervals: pretrained and classical |
//! | [`two_sample`] | permutation tests of whether two samples have one distribution |
//! | [`models`] | one validated config for all architectures, trained models and their files |
//! | [`train`] | gradient steps, optimisers and schedules |
//! | [`data`] | examples, their preparation, and what outputs mean |
//! | [`sets`] | packed ragged batches, whitening, canonical axes |
//! | [`nn`] | the blocks that models are made of |
//! | [`files`] | sample files (CSV, TSV, NPY) and tensors |
//! | [`distributions`], [`linalg`], [`random`] | Gaussian mixtures with known densities, small symmetric matrices, the generator |
//!
//! No module imports one that stands above it in this table, and `crates/setwise/src/lib.rs` is the list that a check reads.
//!
//! ```
//! use setwise::{Model, ModelConfig, SetBatch};
//!
//! let config = ModelConfig::preset("multi-set-transformer", 2)?.with_latent(16).with_hidden(32);
//! let mut model = Model::new(config.validate()?, 7);
//! // One example of two sets with three and two points in the plane.
//! let batch = SetBatch::from_examples(2, &[vec![&[0.0, 0.0, 1.0, 0.0, 0.0, 1.0], &[2.0, 2.0, 3.0, 3.0]]])?;
//! let answer = model.predict(&batch)?;
//! assert_eq!(answer.example(0), &[answer.values()[0]]);
//! # Ok::<(), setwise::Error>(())
//! ```

pub mod data;
mod device;
pub mod distributions;
mod error;
pub mod estimate;
pub mod files;
pub mod linalg;
pub mod models;
pub mod nn;
pub mod random;
pub mod sets;
pub mod train;
pub mod two_sample;

pub use device::Device;
#[cfg(feature = "cuda")]
pub use device::Precision;
pub use error::Error;
pub use models::{Model, ModelConfig, Prediction, ValidConfig};
pub use sets::SetBatch;
pub use setwise_engine::{Adam, Loss};
pub use train::Trainer;

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
