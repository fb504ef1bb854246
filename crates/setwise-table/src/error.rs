//! The error of a file: which one, what is wrong, where, and what to do.

use std::path::{Path, PathBuf};

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file without a table, or a damaged one.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column, and what to do.
        reason: String,
    },
    /// Columns that cannot be used, or choices of columns that the tables do not have.
    #[error("{0}")]
    Columns(String),
}

impl Error {
    pub(crate) fn file(path: &Path, reason: impl Into<String>) -> Error {
        Error::File { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }
}

/// What is wrong with a file. The reader that knows its path makes it an [`Error`].
pub(crate) type Reason<T> = std::result::Result<T, String>;
