//! Models: one validated config for all architectures, and configs with their parameters.
//!
//! * [`ModelConfig`]: the config; [`PRESETS`]: the paper's architectures; [`program`]: the operations of a config.
//! * [`Model`]: a config with its parameters, saved and loaded as safetensors.
//! * [`SharedModel`]: a model that several threads use at once.
//! * [`Images`]: a convolutional encoder in front of any architecture.

mod build;
mod config;
mod file;
#[cfg(feature = "samples")]
mod image_sets;
mod images;
mod model;
mod presets;
mod shared;

pub use build::program;
pub use config::{
    AttentionScale, Encoder, Merge, ModelConfig, OutputKind, Pooling, RelationPool, Relations, Sharing, ValidConfig,
};
pub use file::collect_params;
pub use images::{ImageEncoder, Images};
pub use model::{Model, Prediction};
pub use presets::{PRESETS, Preset};
pub use shared::SharedModel;
