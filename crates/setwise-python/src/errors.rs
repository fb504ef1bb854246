//! Errors as Python exceptions.

use pyo3::PyErr;
use pyo3::exceptions::{PyFloatingPointError, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use setwise::Error;

use crate::options::python_name;

/// A failure outside the interpreter lock, where no exception can be created.
pub enum Failure {
    /// A `ValueError` with this text.
    Value(String),
    /// An error of the library.
    Library(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Library(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Value(text) => value_error(text),
            Failure::Library(error) => exception(error),
        }
    }
}

/// The exception of a library error. Settings have their Python names.
pub fn exception(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        // The kind determines the subclass of OSError, such as FileNotFoundError.
        Error::Io { source, .. } => std::io::Error::new(source.kind(), text).into(),
        Error::Config { field, reason } => PyValueError::new_err(format!("{}: {reason}", python_name(field))),
        Error::Setting { key, reason } => {
            let key = key.strip_prefix("training.").unwrap_or(&key);
            PyValueError::new_err(format!("{}: {reason}", python_name(key)))
        }
        Error::NotFinite { .. } => PyFloatingPointError::new_err(text),
        Error::Engine(setwise_engine::Error::TooLarge { .. }) => PyMemoryError::new_err(text),
        Error::Device(_) => PyRuntimeError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}

/// A `ValueError`.
pub fn value_error(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}

/// A `TypeError`.
pub fn type_error(text: impl Into<String>) -> PyErr {
    PyTypeError::new_err(text.into())
}
