//! Training: gradient steps, and whole runs of experiments that survive being interrupted.
//!
//! * [`Trainer`]: one gradient step at a time, on batches it is handed.
//! * [`Fit`]: the same with a loss, an optimiser and a schedule of learning rates.
//! * [`run`]: an experiment from its first step to its last, with checkpoints and a log, in a [`RunFolder`].
//! * [`run_several`]: many of them side by side.
//! * [`evaluate`]: the error of a model on fresh examples of a task.

mod checkpoint;
mod evaluation;
mod fit;
mod folder;
mod metrics;
mod pretrain;
mod run;
mod several;
mod trainer;

pub use evaluation::{Evaluation, evaluate, for_held_out};
pub use fit::Fit;
pub use folder::{RunFolder, RunLock};
pub use metrics::Record;
pub use pretrain::Encoders;
pub use run::{Event, Outcome, RunOptions, run};
pub use several::{Planned, run_several};
pub(crate) use trainer::check_matrices;
pub use trainer::{BatchLimits, StepOutcome, Trainer};
