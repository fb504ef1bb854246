//! `setwise test P Q`, `setwise test A B C ...` and `--pairs`

mod pairs;
pub mod print;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use setwise::Device;
use setwise::estimate::Progress;
use setwise::permutation_test::{PermutationTest, Statistic, TestResult};
use setwise_report::Table as Results;
use setwise_table::{Overrides, Table};

use super::tables::TableArgs;
use super::{check_not_input, check_output, print_json, with_progress};
use crate::failure::Failure;

/// Arguments of `test`.
#[derive(clap::Args)]
#[command(override_usage = "setwise test [OPTIONS] <P> <Q>
       setwise test [OPTIONS] <A> <B> <C>...
       setwise test [OPTIONS] --pairs <LIST>")]
pub struct Args {
    /// Samples, tables of any columns matched by name: CSV, TSV, JSON lines, NPY, NPZ, Parquet or Arrow; `-` is
    /// standard input. Of three or more, all together and each two are tested.
    #[arg(required_unless_present = "pairs", num_args = 2.., value_name = "SAMPLE")]
    samples: Vec<PathBuf>,
    /// Test statistic.
    #[arg(long, value_enum, default_value_t = Method::Adaptive)]
    method: Method,
    /// Level of significance.
    #[arg(long, default_value_t = 0.05)]
    alpha: f64,
    /// Number of permutations.
    #[arg(long, value_name = "N", default_value_t = 999)]
    permutations: usize,
    /// Bandwidth of the kernel of mmd, in standard deviations [default: the median distance].
    #[arg(long, value_name = "H")]
    bandwidth: Option<f64>,
    /// Maximum rows of each sample; adaptive takes up to 20 times the smallest sample.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    rows: usize,
    /// Seed of the permutations, 0 by default.
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    seed: u64,
    /// Device of energy and mmd: cpu (the default), cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu", hide_default_value = true)]
    device: String,
    #[command(flatten)]
    tables: TableArgs,
    /// Rows i of all samples belong together, such as before and after.
    #[arg(long, conflicts_with = "blocks")]
    paired: bool,
    /// Column of blocks, such as sites or days: only rows of one block are exchanged.
    #[arg(long, value_name = "COLUMN")]
    blocks: Option<String>,
    /// Test many pairs, listed in a file with two tables per line; `-` is standard input.
    #[arg(long, value_name = "LIST", conflicts_with = "samples")]
    pairs: Option<PathBuf>,
    /// Write the pairs of --pairs as .csv, .md, .json or .parquet.
    #[arg(short, long, value_name = "FILE.csv")]
    out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Method {
    /// Many statistics in one: kernels, ranks of columns, dependence of pairs.
    Adaptive,
    /// Energy distance: no bandwidth to choose, most sensitive to shifts.
    Energy,
    /// Maximum mean discrepancy with a Gaussian kernel.
    Mmd,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    if args.bandwidth.is_some() && args.method != Method::Mmd {
        return Err(Failure::usage("--bandwidth is for --method mmd"));
    }
    if args.device != "cpu" && args.method == Method::Adaptive {
        return Err(Failure::usage("--device is for --method energy and mmd; the adaptive test runs on the CPU"));
    }
    if args.out.is_some() && args.pairs.is_none() {
        return Err(Failure::usage("--out is for --pairs"));
    }
    if let Some(path) = &args.out {
        Results::check_extension(path)?;
        check_output(path)?;
        check_not_input(path, args.pairs.iter().chain(&args.tables.types_file).map(PathBuf::as_path))?;
    }
    let device = Device::find(&args.device, None)?;
    if let Some(list) = &args.pairs {
        return pairs::run(list, &args, &device);
    }
    let types = args.tables.overrides()?;
    let paths: Vec<&Path> = args.samples.iter().map(PathBuf::as_path).collect();
    let tables = args.tables.read(&paths, &types)?;
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let test = with_progress("permuting the samples", |progress| args.test(tables, &types, &device, progress))?;
    match args.json {
        true => print_json(&test),
        false => print::samples(&test, &names, args.permutations),
    }
}

impl Args {
    /// Tests tables.
    fn test(
        &self,
        tables: Vec<Table>,
        types: &Overrides,
        device: &Device,
        progress: &Progress,
    ) -> Result<TestResult, Failure> {
        let names: Vec<String> = tables.iter().map(|table| table.path.display().to_string()).collect();
        let samples = self.tables.encoded(tables, types, self.blocks.as_deref())?;
        let statistic = match self.method {
            Method::Adaptive => Statistic::Adaptive,
            Method::Energy => Statistic::Energy,
            Method::Mmd => Statistic::Mmd { bandwidth: self.bandwidth },
        };
        let test = PermutationTest {
            statistic,
            permutations: self.permutations,
            alpha: self.alpha,
            max_rows: self.rows,
            seed: self.seed,
            device: device.clone(),
        };
        Ok(samples.test(&test, &names, self.paired, progress)?)
    }
}
