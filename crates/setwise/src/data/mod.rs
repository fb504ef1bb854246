//! Examples for models: raw, prepared, and the decoding of outputs.
//!
//! * [`RawBatch`]: examples in f64; [`Batch`]: inputs of a model with [`Targets`].
//! * [`Preparation`]: maps sets to inputs of a trained model, and its outputs to labels.
//! * [`Scale`]: scaling of rows.
//! * [`Examples`], [`Epochs`]: examples in memory, and the order in which training visits them.

mod batch;
mod epochs;
mod examples;
mod preparation;
mod scale;
mod targets;

pub use batch::{Batch, RawBatch, RawSet};
pub use epochs::Epochs;
pub use examples::Examples;
pub use preparation::Preparation;
pub use scale::{Scale, scale};
pub use targets::{LabelEstimate, Targets, compress};
