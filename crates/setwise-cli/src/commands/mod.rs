//! One file per command: its arguments and what it does with them.

pub mod bench;
pub mod completions;
pub mod embed;
pub mod eval;
pub mod import;
pub mod kl;
pub mod man;
pub mod mi;
pub mod models;
pub mod predict;
pub mod reproduce;
pub mod sample;
pub mod sampler;
pub mod selftest;
pub mod test;
pub mod train;

use std::io::Write;
use std::path::{Path, PathBuf};

use setwise::estimate::{Dim, Estimate};
use setwise::files::Sample;
use setwise_lab::datasets::DataFolder;
use setwise_lab::experiment::{Experiment, ValidExperiment};
use setwise_report::decimals;

use crate::failure::Failure;

/// Prints a line; a reader that has gone away ends the command quietly.
pub fn print_line(text: impl std::fmt::Display) -> Result<(), Failure> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => Err(Failure::other(format!("standard output: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// Prints a line about progress to standard error; nobody has to be listening.
pub fn log(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Makes a folder for results, before the work that fills it.
pub fn make_folder(path: &Path) -> Result<(), Failure> {
    if path.exists() && !path.is_dir() {
        return Err(Failure::usage(format!("{}: is a file, a folder is wanted", path.display())));
    }
    std::fs::create_dir_all(path).map_err(|source| setwise::Error::Io { path: path.to_owned(), source }.into())
}

/// Refuses, before the work, what no file can be written to after it.
pub fn check_output(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Failure::usage(format!("{}: there is no folder {}", path.display(), folder.display())));
    }
    // Results replace a file as a whole, which must not happen to a device.
    if path.exists() && !path.is_file() {
        return Err(Failure::usage(format!("{}: is no ordinary file", path.display())));
    }
    Ok(())
}

/// Refuses an output that would be written over an input, also where a link leads to it.
pub fn check_apart<'a>(path: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    let Ok(itself) = path.canonicalize() else { return Ok(()) };
    match inputs.into_iter().find(|input| input.canonicalize().is_ok_and(|input| input == itself)) {
        Some(input) if input == path => Err(Failure::usage(format!("{}: is an input and the output", path.display()))),
        Some(input) => Err(Failure::usage(format!("{}: is the input {}", path.display(), input.display()))),
        None => Ok(()),
    }
}

/// An experiment that can be run; errors say which one cannot.
pub fn valid(name: &str, experiment: Experiment) -> Result<ValidExperiment, Failure> {
    experiment.validate().map_err(|error| {
        let said = match &error {
            setwise_lab::Error::Experiment { key, reason }
            | setwise_lab::Error::Library(setwise::Error::Setting { key, reason }) => {
                format!("{name}: {key}: {reason}")
            }
            other => format!("{name}: {other}"),
        };
        Failure::from(error).instead(said)
    })
}

/// Reads two samples, of which one may be standard input.
pub fn read_samples(paths: [&PathBuf; 2]) -> Result<[Sample; 2], Failure> {
    if paths.iter().all(|p| p.as_os_str() == "-") {
        return Err(Failure::usage("standard input can be one sample only"));
    }
    Ok([Sample::read(paths[0])?, Sample::read(paths[1])?])
}

/// Prints a line of JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    print_line(serde_json::to_string(value).map_err(|e| Failure::other(e.to_string()))?)
}

/// Prints an estimate.
pub fn answer(what: &str, estimate: &Estimate, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(estimate);
    }
    let interval = estimate.interval.map_or(String::new(), |[low, high]| {
        format!(", {:.0} % interval {} to {}", 100.0 * estimate.level, decimals(low), decimals(high))
    });
    print_line(format!("{what} = {} nats{interval}", decimals(estimate.value)))?;
    let rows = estimate.n.iter().map(usize::to_string).collect::<Vec<_>>().join(" and ");
    let columns = match estimate.dim {
        Dim::One(d) => d.to_string(),
        Dim::Two([x, y]) => format!("{x} and {y}"),
    };
    print_line(format!("rows {rows}, columns {columns}, method {}", estimate.method))?;
    estimate.warnings.iter().try_for_each(|w| print_line(format!("note: {w}")))?;
    if let Some(other) = &estimate.fallback {
        let interval = other
            .interval
            .map_or(String::new(), |[low, high]| format!(", interval {} to {}", decimals(low), decimals(high)));
        print_line(format!("beside it, method {}: {} nats{interval}", other.method, decimals(other.value)))?;
    }
    Ok(())
}

/// Where recorded data is.
#[derive(clap::Args)]
pub struct DataArgs {
    /// Folder of the data sets [default: SETWISE_DATA].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl DataArgs {
    /// The folder.
    pub fn find(&self) -> Result<DataFolder, Failure> {
        match &self.data {
            Some(path) if !path.is_dir() => {
                Err(Failure::usage(format!("--data {}: there is no such folder", path.display())))
            }
            given => Ok(DataFolder::find(given.clone())),
        }
    }
}

/// Where to compute.
#[derive(Clone, clap::Args)]
pub struct DeviceArgs {
    /// cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// Precision of matrix products: f32, tf32 or bf16 on a GPU; f32 or bf16x3 (AMX) on a CPU.
    #[arg(long, value_name = "PRECISION")]
    precision: Option<String>,
}

impl DeviceArgs {
    /// What was asked for.
    pub fn name(&self) -> &str {
        &self.device
    }

    /// Opens the device.
    pub fn find(&self) -> Result<setwise::Device, Failure> {
        Ok(self.open()?)
    }

    /// Opens the device, with an error of the library.
    pub fn open(&self) -> setwise::Result<setwise::Device> {
        setwise::Device::find(&self.device, self.precision.as_deref())
    }

    /// How products are made, as given or as usual.
    pub fn precision(&self) -> &str {
        self.precision.as_deref().unwrap_or(if self.device == "cpu" { "f32" } else { "tf32" })
    }

    /// Whether a precision was asked for.
    pub fn has_precision(&self) -> bool {
        self.precision.is_some()
    }
}
