//! Runs of experiments, with checkpoints and a log.
//!
//! * [`run`]: one experiment in a [`RunFolder`]; [`run_several`]: concurrent runs.
//! * [`evaluate`]: the error of a model on fresh examples of a task.

mod checkpoint;
mod evaluation;
mod folder;
mod metrics;
mod prepare_folder;
mod pretrain;
mod several;
mod train;

pub use evaluation::{Evaluation, evaluate, for_held_out};
pub use folder::{RunFolder, RunLock};
pub use metrics::Record;
pub use pretrain::Encoders;
pub use several::{RunPlan, run_several};
pub use train::{Event, Outcome, RunOptions, run};
