//! Experiments as TOML: a task, a model and its training.
//!
//! * [`Task`]: the examples and their labels.
//! * [`Training`](setwise::train::Training): steps, loss, optimiser, learning rate.
//! * [`Combiner`]: the second network of an estimator.
//! * [`Experiment`]: all of these. [`find`] reads one from a file or by the name of a built-in experiment.
//! * [`ValidExperiment`]: a checked experiment, which draws examples.
//! * [`PackedExamples`]: drawn examples as arrays.

mod built_in;
mod combiner;
mod config;
mod curriculum;
mod dataset_tasks;
mod packed_examples;
mod run_settings;
mod task;
mod valid;

pub use built_in::{built_in_names, find};
pub use combiner::{Combiner, ManyRows};
pub use config::Experiment;
pub use curriculum::{Phase, phase_of};
pub use dataset_tasks::{AlignCaptionsTask, AlignWordsTask, CountTask, DistinguishImagesTask};
pub use packed_examples::PackedExamples;
pub use run_settings::{Pretraining, RunSettings};
pub use task::{BroadKlTask, DistinguishTask, KlTask, Metric, MiTask, Task};
pub use valid::{Draw, ValidExperiment};
