//! One file per command: its arguments and what it does with them.

pub mod bench;
pub mod eval;
pub mod import;
pub mod kl;
pub mod mi;
pub mod models;
pub mod predict;
pub mod reproduce;
pub mod sample;
pub mod sampler;
pub mod selftest;
pub mod train;

use std::io::Write;
use std::path::{Path, PathBuf};

use setwise::estimate::{Dim, Estimate};
use setwise::files::Sample;

use crate::failure::Failure;

/// Prints a line; a reader that has gone away ends the command quietly.
pub fn say(text: impl std::fmt::Display) -> Result<(), Failure> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => Err(Failure::other(format!("standard output: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// Prints a line about progress to standard error; nobody has to be listening.
pub fn note(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Makes a folder for results, before the work that fills it.
pub fn make_folder(path: &Path) -> Result<(), Failure> {
    if path.exists() && !path.is_dir() {
        return Err(Failure::usage(format!("{}: is a file, a folder is wanted", path.display())));
    }
    std::fs::create_dir_all(path).map_err(|source| setwise::Error::Io { path: path.to_owned(), source }.into())
}

/// Reads two samples, of which one may be standard input.
pub fn read_samples(paths: [&PathBuf; 2]) -> Result<[Sample; 2], Failure> {
    if paths.iter().all(|p| p.as_os_str() == "-") {
        return Err(Failure::usage("standard input can be one sample only"));
    }
    Ok([Sample::read(paths[0])?, Sample::read(paths[1])?])
}

/// Prints an estimate.
pub fn answer(what: &str, estimate: &Estimate, json: bool) -> Result<(), Failure> {
    if json {
        return say(serde_json::to_string(estimate).map_err(|e| Failure::other(e.to_string()))?);
    }
    let interval = estimate.interval.map_or(String::new(), |[low, high]| {
        format!(", {:.0} % interval {low:.4} to {high:.4}", 100.0 * estimate.level)
    });
    say(format!("{what} = {:.4} nats{interval}", estimate.value))?;
    let rows = estimate.n.iter().map(usize::to_string).collect::<Vec<_>>().join(" and ");
    let columns = match estimate.dim {
        Dim::One(d) => d.to_string(),
        Dim::Two([x, y]) => format!("{x} and {y}"),
    };
    say(format!("rows {rows}, columns {columns}, method {}", estimate.method))?;
    estimate.warnings.iter().try_for_each(|w| say(format!("note: {w}")))?;
    if let Some(other) = &estimate.fallback {
        let interval = other.interval.map_or(String::new(), |[low, high]| format!(", interval {low:.4} to {high:.4}"));
        say(format!("beside it, method {}: {:.4} nats{interval}", other.method, other.value))?;
    }
    Ok(())
}

/// Where to compute.
#[derive(clap::Args)]
pub struct DeviceArgs {
    /// cpu, cuda, or cuda:N for GPU N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// Matrix products of a GPU: f32, tf32 (operands rounded to 11 bits) or bf16 (to 8 bits).
    #[arg(long, value_name = "PRECISION", default_value = "tf32")]
    precision: String,
}

impl DeviceArgs {
    /// What was asked for.
    pub fn name(&self) -> &str {
        &self.device
    }

    /// Opens the device.
    pub fn find(&self) -> Result<setwise::Device, Failure> {
        Ok(setwise::Device::find(&self.device, &self.precision)?)
    }
}
