//! Models: one validated config ([`ModelConfig`]), the paper's architectures as presets of it, the program each config stands
//! for (`build`), a config with its parameters ([`Model`]), and one that many threads ask at once ([`SharedModel`]). [`Images`] puts a
//! convolutional encoder in front of any of them. [`Preparation`] is what sets go through before a trained model sees them.

mod build;
mod config;
mod images;
mod model;
mod preparation;
mod presets;
mod shared;

pub use build::program;
pub use config::{
    AttentionScale, Encoder, Merge, ModelConfig, OutputKind, Pooling, RelationPool, Relations, Sharing, ValidConfig,
};
pub use images::{ImageEncoder, Images};
pub use model::{Model, Prediction};
pub use preparation::Preparation;
pub use presets::{PRESETS, Preset};
pub use shared::SharedModel;
