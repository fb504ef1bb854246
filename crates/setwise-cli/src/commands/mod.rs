//! One file per command: its arguments and what it does with them.

pub mod bench;
pub mod eval;
pub mod import;
pub mod models;
pub mod predict;
pub mod sample;
pub mod train;

use std::io::Write;

use crate::failure::Failure;

/// Prints a line; a reader that has gone away ends the command quietly.
pub fn say(text: impl std::fmt::Display) -> Result<(), Failure> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => Err(Failure::other(format!("standard output: {e}"))),
        Ok(()) => Ok(()),
    }
}
