//! One file per command: its arguments, the call of the library, and the output.

pub mod bench;
pub mod compare;
pub mod completions;
pub mod divergence;
pub mod embed;
pub mod eval;
pub mod import;
pub mod kl;
pub mod man;
pub mod mi;
pub mod models;
mod pair_line;
pub mod predict;
mod progress;
pub mod ratio;
pub mod reproduce;
pub mod sample;
pub mod sampler;
pub mod selftest;
mod table_pairs;
mod tables;
pub mod test;
mod text;
pub mod train;

use std::io::Write;
use std::path::{Path, PathBuf};

use setwise::Error;
use setwise::estimate::{Dim, Estimate};
use setwise::files::{ColumnChoice, Sample, read_matching};
use setwise_lab::datasets::DataFolder;
use setwise_report::decimals;

use crate::failure::Failure;
pub use progress::{pairs_bar, with_progress};
pub use text::short_name;

/// Prints a line to standard output. The process exits with 0 if the reader has closed the pipe.
pub fn print_line(text: impl std::fmt::Display) -> Result<(), Failure> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => Err(Failure::other(format!("standard output: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// Prints a line to standard error. A closed standard error is no failure.
pub fn log(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Creates a folder for results, before the work that fills it.
pub fn make_folder(path: &Path) -> Result<(), Failure> {
    if path.exists() && !path.is_dir() {
        return Err(Failure::usage(format!("{}: is a file; choose a folder", path.display())));
    }
    std::fs::create_dir_all(path).map_err(|source| setwise::Error::Io { path: path.to_owned(), source }.into())
}

/// Checks that a file can be written to a path, before the work that fills it.
pub fn check_output(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let folder = folder.display();
        return Err(Failure::usage(format!("{}: folder {folder} does not exist; create it first", path.display())));
    }
    // Results replace a file by a rename, which must not happen to a device.
    if path.exists() && !path.is_file() {
        return Err(Failure::usage(format!("{}: is not a regular file; choose another name", path.display())));
    }
    Ok(())
}

/// Refuses an output that would overwrite an input, directly or through a link.
pub fn check_not_input<'a>(path: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    let Ok(output) = path.canonicalize() else { return Ok(()) };
    let Some(input) = inputs.into_iter().find(|input| input.canonicalize().is_ok_and(|input| input == output)) else {
        return Ok(());
    };
    let reason = match input == path {
        true => "is both input and output".to_owned(),
        false => format!("is the same file as the input {}", input.display()),
    };
    Err(Failure::usage(format!("{}: {reason}; choose another output", path.display())))
}

/// Reads two samples. One of them may be standard input.
pub fn read_samples(paths: [&PathBuf; 2]) -> Result<[Sample; 2], Failure> {
    let paths = paths.map(|p| p.as_path());
    reading(&paths, || Ok([Sample::read(paths[0])?, Sample::read(paths[1])?]))
}

/// Reads files, at most one of which is standard input, and shows the time it takes.
fn reading<T>(paths: &[&Path], read: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    match paths.iter().filter(|p| p.as_os_str() == "-").count() {
        0 => with_progress("reading the samples", |_| read()),
        // A progress bar would hide what a person types.
        1 => read(),
        _ => Err(Failure::usage("standard input (-) can be only one of the samples")),
    }
}

/// The columns that are compared.
#[derive(clap::Args)]
pub struct ColumnArgs {
    /// Columns to compare: names, numbers from 1, or ranges such as a..d, separated by commas [default: all].
    #[arg(long, value_name = "COLUMNS")]
    columns: Vec<String>,
    /// Columns to leave out, likewise.
    #[arg(long, value_name = "COLUMNS")]
    drop: Vec<String>,
}

impl ColumnArgs {
    /// The choice of columns.
    pub fn choice(&self) -> ColumnChoice {
        ColumnChoice { keep: self.columns.clone(), drop: self.drop.clone() }
    }

    /// Reads these columns of files, matched by name. One of the files may be standard input.
    pub fn read<const N: usize>(&self, paths: [&PathBuf; N]) -> Result<[Sample; N], Failure> {
        let hint = |reason: String| format!("{reason}\n--columns chooses columns, --drop leaves columns out");
        let with_hint = |error| match error {
            Error::Sample { path, reason } if reason.contains("column ") => {
                Error::Sample { path, reason: hint(reason) }
            }
            Error::Sets(reason) => Error::Sets(hint(reason)),
            error => error,
        };
        let paths = paths.map(|p| p.as_path());
        let read = || Ok(read_matching(&paths, &self.choice()).map_err(with_hint)?);
        let samples: Vec<Sample> = reading(&paths, read)?;
        Ok(samples.try_into().expect("one sample for each path"))
    }
}

/// Prints a line of JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    print_line(serde_json::to_string(value).map_err(|e| Failure::other(e.to_string()))?)
}

/// Prints an estimate. `label` names the estimated quantity.
pub fn print_estimate(label: &str, estimate: &Estimate, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(estimate);
    }
    let interval = estimate.interval.map_or(String::new(), |[low, high]| {
        format!(", {:.0} % interval {} to {}", 100.0 * estimate.level, decimals(low), decimals(high))
    });
    print_line(format!("{label} = {} nats{interval}", decimals(estimate.value)))?;
    let rows = estimate.n.iter().map(usize::to_string).collect::<Vec<_>>().join(" and ");
    let columns = match estimate.dim {
        Dim::One(d) => d.to_string(),
        Dim::Two([x, y]) => format!("{x} and {y}"),
    };
    print_line(format!("rows {rows}, columns {columns}, method {}", estimate.method))?;
    estimate.warnings.iter().try_for_each(|w| print_line(format!("warning: {w}")))?;
    if let Some(fallback) = &estimate.fallback {
        let interval = fallback
            .interval
            .map_or(String::new(), |[low, high]| format!(", interval {} to {}", decimals(low), decimals(high)));
        print_line(format!("fallback, method {}: {} nats{interval}", fallback.method, decimals(fallback.value)))?;
    }
    Ok(())
}

/// The folder of recorded data.
#[derive(clap::Args)]
pub struct DataArgs {
    /// Folder of the data sets [default: SETWISE_DATA].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl DataArgs {
    /// The folder: the given one or that of the environment variable.
    pub fn find(&self) -> Result<DataFolder, Failure> {
        match &self.data {
            Some(path) if !path.is_dir() => {
                Err(Failure::usage(format!("--data {}: folder does not exist", path.display())))
            }
            given => Ok(DataFolder::find(given.clone())),
        }
    }
}

/// The device and its precision.
#[derive(Clone, clap::Args)]
pub struct DeviceArgs {
    /// Device: cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// Precision of matrix products: f32, tf32 or bf16 on a GPU; f32 or bf16x3 (AMX) on a CPU.
    #[arg(long, value_name = "PRECISION")]
    precision: Option<String>,
}

impl DeviceArgs {
    /// The name of the device, as given.
    pub fn name(&self) -> &str {
        &self.device
    }

    /// Opens the device.
    pub fn open(&self) -> setwise::Result<setwise::Device> {
        setwise::Device::find(&self.device, self.precision.as_deref())
    }

    /// The precision of matrix products: the given one or the device's default.
    pub fn precision(&self) -> &str {
        self.precision.as_deref().unwrap_or(if self.device == "cpu" { "f32" } else { "tf32" })
    }

    /// Whether a precision is given.
    pub fn has_precision(&self) -> bool {
        self.precision.is_some()
    }
}
