//! Examples for models: raw, prepared, and what their outputs mean.
//!
//! * [`RawBatch`]: examples in double precision; [`Batch`]: as a model sees them, with [`Targets`].
//! * [`Preparation`]: how sets become inputs of a trained model, and its outputs answers.
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
pub use targets::{Reading, Targets, compress, expand};
