//! How a command fails: what is said, and the exit code scripts rely on (2 bad usage or input, 1 anything else).

use std::fmt;

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// The user asked for something that cannot be, or handed in bad data.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure { message: message.into(), code: 2 }
    }

    /// Something else went wrong.
    pub fn other(message: impl Into<String>) -> Self {
        Failure { message: message.into(), code: 1 }
    }

    /// Another message for the same kind of failure.
    pub fn instead(self, message: impl Into<String>) -> Self {
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
            // A file that is not there is the user's; a disk that is full is not.
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
