//! `setwise completions SHELL`

use clap_complete::{Shell, generate};

use crate::failure::Failure;

/// Arguments of `completions`.
#[derive(clap::Args)]
pub struct Args {
    /// Shell.
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args, mut command: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut command, "setwise", &mut script);
    super::print_line(String::from_utf8_lossy(&script).trim_end())
}
