//! Learn functions of several sets, and use them.
//!
//! A *set* is an unordered collection of vectors; an *example* is one or more sets. The models here answer with one vector per
//! example that does not depend on the order inside any set, or with one vector per element that moves along with it.
//!
//! * [`sets`]: packed ragged batches.
//! * [`nn`]: the blocks models are made of.
//! * [`models`]: one validated config for all architectures, the paper's ten as presets, and trained models.
//! * [`linalg`]: small symmetric matrices.
//! * [`data`]: samplers, and threads that draw batches ahead.
//! * [`embed`]: features of pictures by ONNX encoders.
//! * [`experiment`]: what is drawn, what learns from it and how, as TOML.
//! * [`estimate`]: classical estimators of KL divergence and mutual information.
//! * [`files`]: model files, sample files, and weights of the published PyTorch code.
//! * [`train`]: gradient steps, and whole runs that survive being interrupted.
//! * [`report`]: tables and plots of results.
//! * [`two_sample`]: tests whether two samples are of one distribution.
//! * [`reproduce`]: the paper's tables and figures again.
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
pub mod embed;
mod error;
pub mod estimate;
pub mod experiment;
pub mod files;
pub mod linalg;
pub mod models;
pub mod nn;
pub mod report;
pub mod reproduce;
#[cfg(feature = "cuda")]
pub mod selftest;
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
