//! What can go wrong, each with the file, row, key or tensor it is about.

use std::path::PathBuf;

/// Errors of the library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model config that cannot be built.
    #[error("model config: {field}: {reason}")]
    Config {
        /// The field.
        field: &'static str,
        /// What is wrong with it and what is allowed.
        reason: String,
    },
    /// A name that is no preset.
    #[error("no preset is called {name:?}; there are {known}")]
    UnknownPreset {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A file that could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A model file that does not hold what it should.
    #[error("{}: {reason}", path.display())]
    ModelFile {
        /// The file.
        path: PathBuf,
        /// What is wrong, naming the tensor where there is one.
        reason: String,
    },
    /// A sample file that cannot be used.
    #[error("{}: {reason}", path.display())]
    Sample {
        /// The file.
        path: PathBuf,
        /// What is wrong, with row and column.
        reason: String,
    },
    /// A file of recorded data that is not there or cannot be used.
    #[error("{}: {reason}", path.display())]
    Data {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, with the place in the file.
        reason: String,
    },
    /// A value of an experiment that cannot be.
    #[error("experiment: {key}: {reason}")]
    Experiment {
        /// The key, with its tables.
        key: String,
        /// What is wrong with it and what is allowed.
        reason: String,
    },
    /// An experiment that cannot be read.
    #[error("{0}")]
    ExperimentText(String),
    /// A name that is neither a file nor an experiment that is built in.
    #[error("there is no file {name:?}, and no experiment of this name is built in; there are {known}")]
    UnknownExperiment {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A run folder that cannot be used.
    #[error("{}: {reason}", path.display())]
    Run {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A checkpoint that could not be written.
    #[error("{}: the checkpoint of step {step} could not be written: {source}; {last}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// Steps done.
        step: u64,
        /// Why.
        source: std::io::Error,
        /// What is still there.
        last: String,
    },
    /// Training that has left the numbers.
    #[error("the {what} of step {step} is {value} (batch seed {batch_seed}); {last}")]
    Diverged {
        /// Loss or gradient.
        what: &'static str,
        /// The step.
        step: u64,
        /// What it was.
        value: f64,
        /// Seed of the batch.
        batch_seed: u64,
        /// The checkpoint to go back to.
        last: String,
    },
    /// A step that has left the numbers and was not made.
    #[error("the {what} of step {step} is {value}; the model is as it was before this step")]
    NotFinite {
        /// Loss or gradient.
        what: &'static str,
        /// The step.
        step: u64,
        /// What it was.
        value: f64,
    },
    /// A device that is not there.
    #[error("{0}")]
    Device(String),
    /// A thread that draws batches has ended.
    #[error("a thread that draws batches has stopped; its own message says why")]
    Feed,
    /// Sets that do not fit each other or the model.
    #[error("{0}")]
    Sets(String),
    /// Samples an estimator cannot work with.
    #[error("{0}")]
    Estimate(String),
    /// Samples a trained estimator is not made for; others may be.
    #[error("{0}")]
    Unfit(String),
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] setwise_engine::Error),
}

impl Error {
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }

    pub(crate) fn config(field: &'static str, reason: impl Into<String>) -> Error {
        Error::Config { field, reason: reason.into() }
    }
}
