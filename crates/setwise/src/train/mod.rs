//! Training: gradient steps on batches.
//!
//! * [`Trainer`]: one gradient step at a time.
//! * [`Training`]: steps, loss, optimiser and learning-rate schedule as settings, checked.
//! * [`Fit`]: a trainer that follows such settings.

mod fit;
mod settings;
mod trainer;

pub use fit::Fit;
pub use settings::{LossConfig, Optimizer, Schedule, Training};
pub use trainer::{BatchLimits, StepOutcome, Trainer, check_matrices};
