//! What can go wrong in the laboratory, each with the file, key or step it is about.

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
    /// Work that was stopped from outside; what was done is kept.
    #[error("stopped")]
    Stopped,
    /// A thread that draws batches has ended.
    #[error("a thread that draws batches has stopped; its own message says why")]
    Prefetch,
}

impl Error {
    /// Turns an I/O error into one that names its file.
    pub fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Library(setwise::Error::io(path)(source))
    }
}

impl From<setwise_engine::Error> for Error {
    fn from(error: setwise_engine::Error) -> Self {
        Error::Library(error.into())
    }
}
