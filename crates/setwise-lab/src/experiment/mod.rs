//! Experiments: what is drawn, what learns from it, and how; written as TOML.
//!
//! * [`Task`]: the examples and their labels.
//! * [`Training`]: steps, loss, optimiser, learning rate.
//! * [`Combiner`]: the second network of an estimator.
//! * [`Experiment`]: all with a model; read from a file or by the name of one that is built in, and checked as a whole.

mod combiner;
mod curriculum;
mod files;
mod recorded;
mod schedule;
mod settings;
mod task;

pub use combiner::Combiner;
pub use curriculum::{Phase, phase_of};
pub use files::{built_in_names, find};
pub use recorded::{AlignCaptionsTask, AlignWordsTask, CountTask, DistinguishImagesTask};
pub use schedule::{Pretraining, RunSettings};
pub use settings::{Draw, Experiment, ValidExperiment};
pub use task::{BroadKlTask, DistinguishTask, KlTask, Metric, MiTask, Task};
