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

/// A text for an error message, truncated.
pub(crate) fn truncated(text: &str) -> String {
    const MAX_CHARS: usize = 40;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Names in quotes, the first ones of many.
pub(crate) fn listed<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    const MAX_LISTED: usize = 12;
    let more = names.len().saturating_sub(MAX_LISTED);
    let first: Vec<String> = names.take(MAX_LISTED).map(|name| format!("{name:?}")).collect();
    let first = first.join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}
