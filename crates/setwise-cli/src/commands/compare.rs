//! `setwise compare REFERENCE CURRENT`

mod print;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use setwise::compare::{Compare, Comparison};
use setwise_report::{Page, Table as Results, compare_page, compare_table};
use setwise_table::{Error as TableError, Overrides, Pairing, Table};

use super::{ColumnArgs, check_not_input, check_output, print_json, reading, with_progress};
use crate::failure::Failure;

/// Arguments of `compare`.
#[derive(clap::Args)]
pub struct Args {
    /// Reference table: CSV, TSV, JSON lines, NPY, NPZ, Parquet or Arrow; `-` is standard input.
    reference: PathBuf,
    /// Current table, whose columns are matched by name.
    current: PathBuf,
    /// Level of significance: the chance of any flag where nothing changed.
    #[arg(long, value_name = "ALPHA", default_value_t = 0.05)]
    alpha: f64,
    /// Least effect that is flagged, as a share of rows.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    min_effect: f64,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Type of a column, such as zip=category; repeatable. Types are numeric, count, boolean, category, time,
    /// identifier, constant and text.
    #[arg(long = "as", value_name = "COLUMN=TYPE")]
    types: Vec<String>,
    /// TOML file with a line `column = "type"` for each column.
    #[arg(long = "types", value_name = "FILE")]
    types_file: Option<PathBuf>,
    /// Write the columns as .csv, .md or .json.
    #[arg(short, long, value_name = "FILE.csv")]
    out: Option<PathBuf>,
    /// Write an HTML page with the verdict and a chart of each column.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Exit with 3 if the tables differ.
    #[arg(long)]
    fail_on_change: bool,
    /// Seed of permutations and intervals.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The exit code of tables that differ, with --fail-on-change.
const CHANGED: u8 = 3;

/// Runs it.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let inputs = [args.reference.as_path(), args.current.as_path()];
    if let Some(path) = &args.out {
        Results::check_extension(path)?;
        check_output(path)?;
        check_not_input(path, inputs)?;
    }
    if let Some(path) = &args.report {
        Page::check_extension(path)?;
        check_output(path)?;
        check_not_input(path, inputs)?;
    }
    let overrides = args.overrides()?;
    let paths = [&args.reference, &args.current];
    let tables = reading(&paths, || read_both(inputs))?;
    let pairing = Pairing::new(tables, &args.columns.choice(), &overrides).map_err(with_hint)?;
    let compare = Compare { alpha: args.alpha, min_effect: args.min_effect, seed: args.seed };
    let comparison = with_progress("comparing the tables", |progress| compare.run(pairing, progress))?;
    if let Some(path) = &args.out {
        compare_table(&comparison).save(path)?;
    }
    if let Some(path) = &args.report {
        compare_page(&comparison).save(path)?;
    }
    match args.json {
        true => print_json(&comparison)?,
        false => print::comparison(&comparison)?,
    }
    Ok(exit_code(&comparison, args.fail_on_change))
}

fn exit_code(comparison: &Comparison, fail_on_change: bool) -> ExitCode {
    if fail_on_change && comparison.changed { ExitCode::from(CHANGED) } else { ExitCode::SUCCESS }
}

impl Args {
    fn overrides(&self) -> Result<Overrides, Failure> {
        let mut overrides = self.types_file.as_ref().map(Overrides::read).transpose()?.unwrap_or_default();
        for item in &self.types {
            overrides.add(item).map_err(|e| Failure::usage(format!("--as {e}")))?;
        }
        Ok(overrides)
    }
}

/// Reads both tables, at the same time. The error names the problems of both.
fn read_both(paths: [&Path; 2]) -> Result<[Table; 2], Failure> {
    match rayon::join(|| Table::read(paths[0]), || Table::read(paths[1])) {
        (Ok(a), Ok(b)) => Ok([a, b]),
        (Err(a), Err(b)) if paths[0] != paths[1] => Err(Failure::usage(format!("{a}\nsetwise: {b}"))),
        (Err(e), _) | (_, Err(e)) => Err(e.into()),
    }
}

/// An error about columns, with the options that help.
fn with_hint(error: TableError) -> Failure {
    match error {
        TableError::Columns(reason) if reason.contains("column \"") => Failure::usage(format!(
            "{reason}\n--as COLUMN=TYPE sets a type, such as category or numeric; --drop leaves columns out"
        )),
        error => error.into(),
    }
}
