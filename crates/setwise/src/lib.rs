//! Two samples and a question, or a function of several sets to learn.
//!
//! A *set* is an unordered collection of vectors; an *example* is one or more sets. A model outputs one vector per
//! example, invariant to permutations inside each set, or one vector per element, equivariant to them.
//!
//! | module | holds |
//! | --- | --- |
//! | [`compare`] | what changed between two tables of mixed columns, how much and how sure |
//! | [`permutation_test`] | permutation tests: whether samples have one distribution, whether columns are independent |
//! | [`estimate`] | pretrained and classical estimators of KL divergence and mutual information, with intervals |
//! | [`train`] | gradient steps, optimisers and learning-rate schedules |
//! | [`data`] | examples, their preparation, targets and the decoding of outputs |
//! | [`models`] | one validated config for all architectures, trained models and their files |
//! | [`nn`] | attention, pair networks and the layers around them |
//! | [`files`] | samples in files of the formats of `setwise-table`, and tensors |
//! | [`sets`] | packed ragged batches, whitening, canonical axes |
//! | [`distributions`] | Gaussian mixtures with known densities, random correlation matrices |
//! | [`linalg`], [`random`] | small symmetric matrices, the random number generator |
//!
//! A module imports only modules below it in this table.
//!
//! | feature | default | adds |
//! | --- | --- | --- |
//! | `estimate` | yes | `compare`, `estimate`, `permutation_test`, `distributions` |
//! | `samples` | yes | sample files in `files`, and what models do with them |
//! | `arrow` | no | Parquet and Arrow files |
//! | `cuda` | no | NVIDIA GPUs; the CUDA libraries are loaded at run time |
//!
//! Sets, models and training need none of them.
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

#[cfg(feature = "estimate")]
pub mod compare;
pub mod data;
mod device;
#[cfg(any(feature = "estimate", test))]
pub mod distributions;
mod error;
#[cfg(feature = "estimate")]
pub mod estimate;
pub mod files;
pub mod linalg;
pub mod models;
pub mod nn;
#[cfg(feature = "estimate")]
pub mod permutation_test;
pub mod random;
#[cfg(feature = "estimate")]
mod ranks;
pub mod sets;
pub mod train;

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

/// Compiles the Rust blocks of the documentation with the doctests.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/tutorials/train-a-function.md")]
    struct TrainAFunction;
}
