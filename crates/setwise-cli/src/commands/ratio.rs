//! `setwise ratio P Q`

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;
use setwise::estimate::{LogRatio, Points, file_warnings, log_ratio_observed};
use setwise::files::atomic::write_atomically;
use setwise_report::decimals;

use super::{ColumnArgs, check_not_input, check_output, print_json, print_line, with_progress};
use crate::failure::Failure;

/// Arguments of `ratio`.
#[derive(clap::Args)]
pub struct Args {
    /// Sample of P: CSV, TSV or NPY with a point per row; `-` is standard input.
    p: PathBuf,
    /// Sample of Q, with the same columns.
    q: PathBuf,
    /// Evaluate the ratio at the rows of this file, in place of the rows of P and Q.
    #[arg(long, value_name = "FILE")]
    at: Option<PathBuf>,
    /// Write the columns sample, row and log_ratio.
    #[arg(short, long, value_name = "FILE.csv")]
    out: Option<PathBuf>,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What is printed.
#[derive(Serialize)]
struct Summary<'a> {
    n: [usize; 2],
    dim: usize,
    /// Means of log p/q over the rows of P and of Q.
    mean_log_ratio: [f64; 2],
    effective_sample_size: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    out: Option<&'a PathBuf>,
    warnings: &'a [String],
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    if let Some(path) = &args.out {
        check_output(path)?;
        check_not_input(path, [args.p.as_path(), &args.q].into_iter().chain(args.at.as_deref()))?;
    }
    let (of_p, of_q, at) = match &args.at {
        None => args.columns.read([&args.p, &args.q]).map(|[p, q]| (p, q, None))?,
        Some(at) => args.columns.read([&args.p, &args.q, at]).map(|[p, q, at]| (p, q, Some(at)))?,
    };
    let (p, q) = (Points::of(&of_p)?, Points::of(&of_q)?);
    let other = at.as_ref().map(Points::of).transpose()?;
    let mut ratio = with_progress("estimating log p/q", |progress| log_ratio_observed(p, q, other, progress))?;
    ratio.warnings.extend(file_warnings(&of_p, &of_q));
    if let Some(at) = &at {
        // What is said of P is said once.
        let about_at = file_warnings(&of_p, at).into_iter().filter(|w| !ratio.warnings.contains(w)).collect::<Vec<_>>();
        ratio.warnings.extend(about_at);
    }
    if let Some(path) = &args.out {
        write_atomically(path, csv(&ratio, at.is_some()).as_bytes())
            .map_err(|source| setwise::Error::Io { path: path.clone(), source })?;
    }
    let mean = |ratios: &[f64]| ratios.iter().sum::<f64>() / ratios.len() as f64;
    let summary = Summary {
        n: [p.len(), q.len()],
        dim: p.dim(),
        mean_log_ratio: [mean(&ratio.p), mean(&ratio.q)],
        effective_sample_size: ratio.effective_sample_size,
        out: args.out.as_ref(),
        warnings: &ratio.warnings,
    };
    if args.json {
        return print_json(&summary);
    }
    let [over_p, over_q] = summary.mean_log_ratio.map(decimals);
    print_line(format!("log p/q has mean {over_p} over P and {over_q} over Q"))?;
    print_line(format!("weights p/q of Q: effective sample size {:.0} of {}", ratio.effective_sample_size, q.len()))?;
    print_line(format!("rows {} and {}, columns {}", p.len(), q.len(), p.dim()))?;
    ratio.warnings.iter().try_for_each(|w| print_line(format!("warning: {w}")))?;
    args.out.as_ref().map_or(Ok(()), |path| print_line(format!("log ratios: {}", path.display())))
}

/// The columns sample, row and log_ratio. Rows count from one.
fn csv(ratio: &LogRatio, at: bool) -> String {
    let samples: &[(&str, &[f64])] = if at { &[("at", &ratio.other)] } else { &[("p", &ratio.p), ("q", &ratio.q)] };
    let mut text = String::from("sample,row,log_ratio\n");
    for (name, values) in samples {
        for (i, value) in values.iter().enumerate() {
            let _ = writeln!(text, "{name},{},{value:.6}", i + 1);
        }
    }
    text
}
