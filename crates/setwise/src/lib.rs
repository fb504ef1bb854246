//! Two samples and a question, or a function of several sets to learn.
//!
//! A *set* is an unordered collection of vectors; an *example* is one or more sets. A model outputs one vector per
//! example, invariant to permutations inside each set, or one vector per element, equivariant to them.
//!
//! | module | holds |
//! | --- | --- |
//! | [`estimate`] | pretrained and classical estimators of KL divergence and mutual information, with intervals |
//! | [`two_sample`] | permutation tests of the hypothesis that two samples have one distribution |
//! | [`models`] | one validated config for all architectures, trained models and their files |
//! | [`train`] | gradient steps, optimisers and learning-rate schedules |
//! | [`data`] | examples, their preparation, targets and the decoding of outputs |
//! | [`sets`] | packed ragged batches, whitening, canonical axes |
//! | [`nn`] | attention, pair networks and the layers around them |
//! | [`files`] | sample files (CSV, TSV, NPY) and tensors |
//! | [`distributions`] | Gaussian mixtures with known densities, random correlation matrices |
//! | [`linalg`], [`random`] | small symmetric matrices, the random number generator |
//!
//! No module imports one above it in this table; `cargo xtask` checks this.
//!
//! ```
//! use setwise::{Model, ModelConfig, SetBatch};
//!
//! let config = ModelConfig::preset("multi-set-transformer", 2)?.with_latent(16).with_hidden(32);
//! let mut model = Model::new(config.validate()?, 7);
//! // One example of two sets, with three and two points in the plane.
//! let batch = SetBatch::from_examples(2, &[vec![&[0.0, 0.0, 1.0, 0.0, 0.0, 1.0], &[2.0, 2.0, 3.0, 3.0]]])?;
//! let prediction = model.predict(&batch)?;
//! assert_eq!(prediction.example(0), &[prediction.values()[0]]);
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
