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
    /// A setting with a value that is not allowed.
    #[error("{key}: {reason}")]
    Setting {
        /// The key, with its tables.
        key: String,
        /// What is wrong with it and what is allowed.
        reason: String,
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
    /// Turns an I/O error into one that names its file.
    pub fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }

    /// An error about a field of a model config.
    pub fn config(field: &'static str, reason: impl Into<String>) -> Error {
        Error::Config { field, reason: reason.into() }
    }
}
