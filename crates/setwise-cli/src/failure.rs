//! Failures of commands: a message and an exit code.
//!
//! Scripts rely on the exit code: 2 for bad usage or input, 130 for an interrupt, 1 for anything else.

use std::fmt;

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// Bad usage or bad input.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure { message: message.into(), code: 2 }
    }

    /// Any other failure.
    pub fn other(message: impl Into<String>) -> Self {
        Failure { message: message.into(), code: 1 }
    }

    /// The same failure with another message.
    pub fn with_message(self, message: impl Into<String>) -> Self {
        Failure { message: message.into(), ..self }
    }

    /// The process's exit code.
    pub fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<setwise::Error> for Failure {
    fn from(error: setwise::Error) -> Self {
        match &error {
            // A missing or unreadable file is bad input. A full disk is not.
            setwise::Error::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound
                | std::io::ErrorKind::InvalidInput
                | std::io::ErrorKind::InvalidData
                | std::io::ErrorKind::PermissionDenied
                | std::io::ErrorKind::AlreadyExists
                | std::io::ErrorKind::ReadOnlyFilesystem
                | std::io::ErrorKind::IsADirectory
                | std::io::ErrorKind::NotADirectory => Failure::usage(error.to_string()),
                _ => Failure::other(error.to_string()),
            },
            setwise::Error::NotFinite { .. } => Failure::other(error.to_string()),
            _ => Failure::usage(error.to_string()),
        }
    }
}

impl From<setwise_table::Error> for Failure {
    fn from(error: setwise_table::Error) -> Self {
        match error {
            setwise_table::Error::Io { path, source } => setwise::Error::Io { path, source }.into(),
            other => Failure::usage(other.to_string()),
        }
    }
}

impl From<setwise_lab::Error> for Failure {
    fn from(error: setwise_lab::Error) -> Self {
        match error {
            setwise_lab::Error::Library(error) => error.into(),
            setwise_lab::Error::Checkpoint { .. }
            | setwise_lab::Error::Diverged { .. }
            | setwise_lab::Error::Prefetch => Failure::other(error.to_string()),
            _ => Failure::usage(error.to_string()),
        }
    }
}
