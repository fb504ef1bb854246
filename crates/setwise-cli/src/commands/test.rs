//! `setwise test P Q`

use std::path::PathBuf;

use clap::ValueEnum;
use setwise::estimate::{Points, file_warnings};
use setwise::two_sample::{Statistic, TwoSampleTest};

use super::{ColumnArgs, print_json, print_line, with_progress};
use crate::failure::Failure;

/// Arguments of `test`.
#[derive(clap::Args)]
pub struct Args {
    /// Sample of P: CSV, TSV or NPY with a point per row; `-` is standard input.
    p: PathBuf,
    /// Sample of Q, with the same columns.
    q: PathBuf,
    /// Test statistic.
    #[arg(long, value_enum, default_value_t = Method::Energy)]
    method: Method,
    /// Number of permutations.
    #[arg(long, value_name = "N", default_value_t = 999)]
    permutations: usize,
    /// Bandwidth of the kernel of mmd, in standard deviations [default: the median distance].
    #[arg(long, value_name = "H")]
    bandwidth: Option<f64>,
    /// Maximum number of rows of each sample; larger ones are subsampled.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    rows: usize,
    /// Seed of the permutations.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Method {
    /// Energy distance: no bandwidth to choose, most sensitive to shifts.
    Energy,
    /// Maximum mean discrepancy with a Gaussian kernel.
    Mmd,
}

/// P and Q count as different if p is at most this level of significance.
const LEVEL: f64 = 0.05;

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    if args.bandwidth.is_some() && args.method != Method::Mmd {
        return Err(Failure::usage("--bandwidth is for --method mmd"));
    }
    let [of_p, of_q] = args.columns.read([&args.p, &args.q])?;
    let statistic = match args.method {
        Method::Energy => Statistic::Energy,
        Method::Mmd => Statistic::Mmd { bandwidth: args.bandwidth },
    };
    let test = TwoSampleTest { statistic, permutations: args.permutations, max_rows: args.rows, seed: args.seed };
    let (p, q) = (Points::of(&of_p)?, Points::of(&of_q)?);
    let mut result = with_progress("permuting the samples", |progress| test.run_observed(p, q, progress))?;
    result.warnings.extend(file_warnings(&of_p, &of_q));
    if args.json {
        return print_json(&result);
    }
    // The number of permutations determines the resolution of p.
    let digits = (args.permutations + 1).ilog10().max(2) as usize;
    let conclusion = if result.p_value > LEVEL { "no evidence that P and Q differ" } else { "P and Q differ" };
    print_line(format!("p = {:.digits$}: {conclusion} (permutation test, {})", result.p_value, result.method))?;
    print_line(format!(
        "statistic {:.4}, reached by {} of {} permutations",
        result.statistic, result.as_large, result.permutations
    ))?;
    print_line(format!("rows {} and {}, columns {}", result.n[0], result.n[1], result.dim))?;
    result.warnings.iter().try_for_each(|w| print_line(format!("warning: {w}")))
}
