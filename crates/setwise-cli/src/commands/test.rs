//! `setwise test P Q`

use std::path::PathBuf;

use clap::ValueEnum;
use setwise::two_sample::{Design, Encoded, Statistic, TwoSampleTest};
use setwise_table::{ColumnChoice, Pairing, Table};

use super::tables::TableArgs;
use super::{print_json, print_line, with_progress};
use crate::failure::Failure;

/// Arguments of `test`.
#[derive(clap::Args)]
pub struct Args {
    /// Sample of P, a table of any columns: CSV, TSV, JSON lines, NPY, NPZ, Parquet or Arrow; `-` is standard input.
    p: PathBuf,
    /// Sample of Q, whose columns are matched by name.
    q: PathBuf,
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
    /// Maximum number of rows of each sample for energy and mmd; larger ones are subsampled.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    rows: usize,
    /// Seed of the permutations.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    tables: TableArgs,
    /// Row i of P and row i of Q belong together, such as before and after.
    #[arg(long, conflicts_with = "blocks")]
    paired: bool,
    /// Column of blocks, such as sites or days: only rows of one block are exchanged.
    #[arg(long, value_name = "COLUMN")]
    blocks: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Method {
    /// Many statistics in one: kernels of several widths, ranks of columns, dependence of pairs.
    Adaptive,
    /// Energy distance: no bandwidth to choose, most sensitive to shifts.
    Energy,
    /// Maximum mean discrepancy with a Gaussian kernel.
    Mmd,
}

/// Findings that are printed.
const MAX_FINDINGS: usize = 3;

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    if args.bandwidth.is_some() && args.method != Method::Mmd {
        return Err(Failure::usage("--bandwidth is for --method mmd"));
    }
    let types = args.tables.overrides()?;
    let tables = args.tables.read([&args.p, &args.q], &types)?;
    check_widths(&tables)?;
    let names = [0, 1].map(|t: usize| tables[t].path.display().to_string());
    let blocks = args.blocks.as_deref().map(|column| take_blocks(column, &tables)).transpose()?;
    let mut pairing = args.tables.pairing(tables, &types)?;
    pairing.columns.retain(|column| Some(&column.name) != args.blocks.as_ref());
    let samples = Encoded::new(&pairing)?;
    let statistic = match args.method {
        Method::Adaptive => Statistic::Adaptive,
        Method::Energy => Statistic::Energy,
        Method::Mmd => Statistic::Mmd { bandwidth: args.bandwidth },
    };
    let design = match &blocks {
        Some([p, q]) => Design::Blocked { p, q },
        None if args.paired => Design::Paired,
        None => Design::Independent,
    };
    let (permutations, alpha) = (args.permutations, args.alpha);
    let test = TwoSampleTest { statistic, permutations, alpha, max_rows: args.rows, seed: args.seed };
    let [p, q] = [0, 1].map(|t: usize| samples.points(t).named(&names[t]));
    let mut result = with_progress("permuting the samples", |progress| test.run_observed(p, q, design, progress))?;
    result.warnings.extend(samples.notes);
    if args.json {
        return print_json(&result);
    }
    // The number of permutations determines the resolution of p.
    let digits = (args.permutations + 1).ilog10().max(2) as usize;
    let conclusion = if result.different { "P and Q differ" } else { "no evidence that P and Q differ" };
    print_line(format!("p = {:.digits$}: {conclusion} (permutation test, {})", result.p_value, result.method))?;
    let found = result.findings.iter().filter(|f| result.different && f.p_value <= args.alpha);
    found.take(MAX_FINDINGS).try_for_each(|f| print_line(format!("  {}, p = {:.digits$}", f.text(), f.p_value)))?;
    if let (Some(auc), Some([low, high])) = (result.auc, result.interval) {
        print_line(format!("AUC {auc:.3}, 90 % interval {low:.3} to {high:.3} (0.5: the same, 1: separate)"))?;
    }
    print_line(format!(
        "statistic {:.4}, reached by {} of {} permutations",
        result.statistic, result.as_large, result.permutations
    ))?;
    print_line(format!("rows {} and {}, columns {}", result.n[0], result.n[1], result.dim))?;
    result.warnings.iter().try_for_each(|w| print_line(format!("warning: {w}")))
}

/// Tables without names are matched by position, so they need the same number of columns.
fn check_widths([p, q]: &[Table; 2]) -> Result<(), Failure> {
    if p.named || q.named || p.columns.len() == q.columns.len() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{} has {} columns, {} has {}",
        p.path.display(),
        p.columns.len(),
        q.path.display(),
        q.columns.len()
    )))
}

/// The number of the block of each row.
fn take_blocks(column: &str, tables: &[Table; 2]) -> Result<[Vec<u32>; 2], Failure> {
    let keep = ColumnChoice { keep: vec![column.to_owned()], drop: Vec::new() };
    let mut types = setwise_table::Overrides::default();
    types.set(column, setwise_table::ColumnType::Category);
    let pairing = Pairing::new(tables.clone(), &keep, &types)?;
    Ok(setwise::two_sample::blocks(&pairing.columns[0]))
}
