//! Errors of the laboratory. Each names its file, key or step.

use std::path::PathBuf;

/// Errors of the laboratory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the library.
    #[error(transparent)]
    Library(#[from] setwise::Error),
    /// A file of a data set that is missing or cannot be used.
    #[error("{}: {reason}", path.display())]
    Dataset {
        /// The file or folder.
        path: PathBuf,
        /// The problem, with its position in the file.
        reason: String,
    },
    /// An invalid value of an experiment.
    #[error("experiment: {key}: {reason}")]
    Experiment {
        /// The key, with its tables.
        key: String,
        /// The problem and the allowed values.
        reason: String,
    },
    /// An experiment that cannot be parsed.
    #[error("{0}")]
    ExperimentText(String),
    /// A name that is neither a file nor a built-in experiment.
    #[error("{name:?} is neither a file nor a built-in experiment; built in are {known}")]
    UnknownExperiment {
        /// The unknown name.
        name: String,
        /// Names of the built-in experiments.
        known: String,
    },
    /// A run folder that cannot be used.
    #[error("{}: {reason}", path.display())]
    Run {
        /// The folder or file.
        path: PathBuf,
        /// The problem and its remedy.
        reason: String,
    },
    /// A checkpoint that could not be written.
    #[error("{}: the checkpoint of step {step} could not be written: {source}; {last}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// Steps done.
        step: u64,
        /// The cause.
        source: std::io::Error,
        /// The state of the previous checkpoint.
        last: String,
    },
    /// A non-finite value in training.
    #[error("the {what} of step {step} is {value} (batch seed {batch_seed}); {last}")]
    Diverged {
        /// The quantity: loss or gradient.
        what: &'static str,
        /// The step.
        step: u64,
        /// The non-finite value.
        value: f64,
        /// Seed of the batch.
        batch_seed: u64,
        /// The last good checkpoint.
        last: String,
    },
    /// A stop requested by the caller. Finished work is kept.
    #[error("stopped")]
    Stopped,
    /// A prefetching thread has panicked.
    #[error("a thread that draws batches has panicked; see its message above")]
    Prefetch,
}

impl Error {
    /// Adds the path of a file to an I/O error.
    pub fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Library(setwise::Error::io(path)(source))
    }
}

impl From<setwise_engine::Error> for Error {
    fn from(error: setwise_engine::Error) -> Self {
        Error::Library(error.into())
    }
}
