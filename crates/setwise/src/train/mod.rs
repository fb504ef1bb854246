//! Training: gradient steps on batches.
//!
//! * [`Trainer`]: gradient steps with a given learning rate.
//! * [`Training`]: settings of steps, loss, optimiser and learning-rate schedule.
//! * [`ScheduledTrainer`]: a trainer that follows these settings.

mod scheduled;
mod settings;
mod trainer;

pub use scheduled::ScheduledTrainer;
pub use settings::{LossConfig, Optimizer, Schedule, Training};
pub use trainer::{BatchLimits, StepOutcome, Trainer, check_muon};
