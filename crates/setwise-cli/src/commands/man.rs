//! `setwise man -o DIR`

use std::path::PathBuf;

use super::{make_folder, print_line};
use crate::failure::Failure;

/// Arguments of `man`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder for setwise.1 and a page for every command.
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
}

/// Writes the pages.
pub fn run(args: &Args, command: clap::Command) -> Result<(), Failure> {
    make_folder(&args.out)?;
    clap_mangen::generate_to(command, &args.out)
        .map_err(|source| setwise::Error::Io { path: args.out.clone(), source })?;
    print_line(format!("man pages: {}", args.out.display()))
}
