//! Errors, each with the file, row, key or tensor it is about.

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
    /// An unknown preset name.
    #[error("no preset is called {name:?}; there are {known}")]
    UnknownPreset {
        /// The unknown name.
        name: String,
        /// The presets that exist, separated by commas.
        known: String,
    },
    /// A file that could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A damaged model file, or one whose tensors do not match its config.
    #[error("{}: {reason}", path.display())]
    ModelFile {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the tensor's name where there is one.
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
    /// A setting whose value is out of range.
    #[error("{key}: {reason}")]
    Setting {
        /// The key with its tables, such as `training.learning-rate`.
        key: String,
        /// What is wrong with it and what is allowed.
        reason: String,
    },
    /// A loss or gradient that is not finite; the step was not applied.
    #[error("the {what} of step {step} is {value}; the model is as it was before this step")]
    NotFinite {
        /// `loss` or `gradient`.
        what: &'static str,
        /// The step.
        step: u64,
        /// The value that is not finite.
        value: f64,
    },
    /// An unknown or missing device, or a precision it does not have.
    #[error("{0}")]
    Device(String),
    /// Sets whose sizes do not match each other or the model.
    #[error("{0}")]
    Sets(String),
    /// Samples that an estimator cannot use.
    #[error("{0}")]
    Estimate(String),
    /// Samples that the pretrained estimator does not support; classical estimators may.
    #[error("{0}")]
    UnsupportedSamples(String),
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] setwise_engine::Error),
}

impl Error {
    /// Adds the path to an I/O error.
    pub fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }

    /// An error about a field of a model config.
    pub(crate) fn config(field: &'static str, reason: impl Into<String>) -> Error {
        Error::Config { field, reason: reason.into() }
    }
}

#[cfg(feature = "samples")]
impl From<setwise_table::Error> for Error {
    fn from(error: setwise_table::Error) -> Error {
        match error {
            setwise_table::Error::Io { path, source } => Error::Io { path, source },
            setwise_table::Error::File { path, reason } => Error::Sample { path, reason },
            setwise_table::Error::Columns(reason) => Error::Sets(reason),
        }
    }
}
