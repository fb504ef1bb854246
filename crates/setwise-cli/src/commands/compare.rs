//! `setwise compare REFERENCE CURRENT`, `--by` and `--pairs`

mod pairs;
mod periods;
mod print;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use rand::SeedableRng;
use setwise::compare::Compare;
use setwise::files::atomic::write_atomically;
use setwise_report::{Page, Table as Results, compare_page, compare_table};
use setwise_table::{Overrides, Period, Profile, Table};

use super::tables::TableArgs;
use super::{check_not_input, check_output, print_json, print_line, reading, with_progress};
use crate::failure::Failure;

/// Arguments of `compare`.
#[derive(clap::Args)]
#[command(override_usage = "setwise compare [OPTIONS] <REFERENCE> <CURRENT>
       setwise compare [OPTIONS] --reference-profile <FILE> <CURRENT>
       setwise compare [OPTIONS] --by <PERIOD> <TABLE>
       setwise compare [OPTIONS] --pairs <LIST>")]
pub struct Args {
    /// Reference table: CSV, TSV, JSON lines, NPY, NPZ, Parquet or Arrow; `-` is standard input.
    #[arg(required_unless_present = "pairs")]
    reference: Option<PathBuf>,
    /// Current table, whose columns are matched by name.
    current: Option<PathBuf>,
    /// Level of significance: the chance of any flag where nothing changed.
    #[arg(long, value_name = "ALPHA", default_value_t = 0.05)]
    alpha: f64,
    /// Least effect that is flagged, as a share of rows.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    min_effect: f64,
    #[command(flatten)]
    tables: TableArgs,
    /// Compare periods of a table: year, quarter, month, week, day or hour.
    #[arg(long, value_name = "PERIOD", conflicts_with = "pairs")]
    by: Option<Period>,
    /// Column of times for --by [default: the only one].
    #[arg(long, value_name = "COLUMN", requires = "by", hide_short_help = true)]
    time: Option<String>,
    /// What --by compares a period with: first or previous [default: first].
    #[arg(long, value_enum, hide_possible_values = true, requires = "by", conflicts_with_all = ["current", "reference_profile"], hide_short_help = true)]
    against: Option<Against>,
    /// Save what a comparison needs of the reference.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pairs", "reference_profile"])]
    save_profile: Option<PathBuf>,
    /// Compare with a saved reference.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pairs", "current"])]
    reference_profile: Option<PathBuf>,
    /// Compare many pairs, listed in a file with two tables per line; `-` is standard input.
    #[arg(long, value_name = "LIST", conflicts_with_all = ["reference", "current", "report"])]
    pairs: Option<PathBuf>,
    /// Write the columns, or the pairs, as .csv, .md, .json or .parquet.
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

/// What a period is compared with.
#[derive(Clone, Copy, ValueEnum)]
enum Against {
    First,
    Previous,
}

/// The exit code of tables that differ, with --fail-on-change.
const CHANGED: u8 = 3;

/// Runs it.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    args.check_outputs()?;
    if let Some(list) = &args.pairs {
        return pairs::run(list, &args);
    }
    let only_saves = args.save_profile.is_some() && args.current.is_none() && args.by.is_none();
    if !only_saves && args.current.is_none() && args.by.is_none() && args.reference_profile.is_none() {
        return Err(Failure::usage("give two tables, REFERENCE and CURRENT; --by compares the periods of one"));
    }
    let mut types = args.tables.overrides()?;
    let mut tables = args.read(&types)?;
    if let Some(path) = &args.save_profile {
        args.save(&tables[0], &types, path)?;
        if only_saves {
            return print_line(format!("profile: {}", path.display())).map(|()| ExitCode::SUCCESS);
        }
    }
    if let Some(path) = &args.reference_profile {
        let profile = Profile::read(path)?;
        tables.insert(0, profile.table);
        types = types.or(profile.types);
    }
    if let Some(by) = args.by {
        return periods::run(&args, by, tables, &types);
    }
    let [reference, current] = tables.try_into().expect("two tables");
    let pairing = args.tables.pairing([reference, current], &types)?;
    let comparison = with_progress("comparing the tables", |progress| args.compare().run(pairing, progress))?;
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
    Ok(args.exit_code(comparison.changed))
}

impl Args {
    fn compare(&self) -> Compare {
        Compare { alpha: self.alpha, min_effect: self.min_effect, seed: self.seed }
    }

    fn exit_code(&self, changed: bool) -> ExitCode {
        if self.fail_on_change && changed { ExitCode::from(CHANGED) } else { ExitCode::SUCCESS }
    }

    /// Refuses outputs that cannot be written, or that are inputs.
    fn check_outputs(&self) -> Result<(), Failure> {
        if let Some(path) = &self.out {
            Results::check_extension(path)?;
        }
        if let Some(path) = &self.report {
            Page::check_extension(path)?;
        }
        let inputs = [&self.reference, &self.current, &self.reference_profile, &self.pairs, &self.tables.types_file];
        for path in [&self.out, &self.report, &self.save_profile].into_iter().flatten() {
            check_output(path)?;
            check_not_input(path, inputs.into_iter().flatten().map(PathBuf::as_path))?;
        }
        Ok(())
    }

    /// Reads the tables that are named. The error names the problems of both.
    fn read(&self, types: &Overrides) -> Result<Vec<Table>, Failure> {
        match [self.reference.as_deref(), self.current.as_deref()] {
            [Some(a), Some(b)] => self.tables.read(&[a, b], types),
            paths => {
                let paths: Vec<&Path> = paths.into_iter().flatten().collect();
                reading(&paths, || paths.iter().map(|path| Ok(Table::read(path)?)).collect())
            }
        }
    }

    /// Saves the chosen columns of a reference.
    fn save(&self, table: &Table, types: &Overrides, path: &Path) -> Result<(), Failure> {
        let draw = |rows: usize, kept: usize| {
            let mut rng = rand_pcg::Pcg64Mcg::seed_from_u64(self.seed);
            let mut drawn: Vec<u32> =
                rand::seq::index::sample(&mut rng, rows, kept).iter().map(|row| row as u32).collect();
            drawn.sort_unstable();
            drawn
        };
        let names: Vec<String> = table.columns.iter().map(|c| c.name.clone()).collect();
        let chosen = self.tables.choice().of(&names, names.len());
        let chosen = chosen.map_err(|reason| Failure::usage(format!("{}: {reason}", table.path.display())))?;
        let columns = chosen.columns.iter().map(|&c| table.columns[c].clone()).collect();
        let profile = Profile::new(
            Table { columns, path: table.path.clone(), skipped: table.skipped.clone(), ..*table },
            types,
            draw,
        )?;
        write_atomically(path, &profile.to_bytes())
            .map_err(|source| setwise::Error::Io { path: path.to_owned(), source }.into())
    }
}
