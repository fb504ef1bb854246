//! `setwise kl P Q` and `setwise kl --pairs LIST`

mod pairs;

use std::path::PathBuf;

use clap::ValueEnum;
use comfy_table::{CellAlignment, presets};
use serde::Serialize;
use setwise::estimate::{
    Estimate, Explanation, KlMethod, KlOptions, Points, Quantity, draw_rows, explain_observed, file_warnings,
};
use setwise::files::Sample;
use setwise_report::{Page, decimals, kl_page, noise_bar};

use super::{
    ColumnArgs, DeviceArgs, check_not_input, check_output, print_estimate, print_json, print_line, short_name,
    with_progress,
};
use crate::failure::Failure;

/// Arguments of `kl`.
#[derive(clap::Args)]
#[command(override_usage = "setwise kl [OPTIONS] <P> <Q>\n       setwise kl [OPTIONS] --pairs <LIST>")]
pub struct Args {
    /// Sample of P: CSV, TSV or NPY with a point per row; `-` is standard input.
    #[arg(required_unless_present = "pairs")]
    p: Option<PathBuf>,
    /// Sample of Q, with the same columns.
    #[arg(required_unless_present = "pairs")]
    q: Option<PathBuf>,
    /// Estimator [default: pretrained; knn if --k is given].
    #[arg(long, value_enum)]
    method: Option<Method>,
    /// Rank of the neighbour that knn measures the distance to [default: 3].
    #[arg(long)]
    k: Option<usize>,
    /// Seed of intervals and subsamples.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Estimate KL(Q‖P) too.
    #[arg(long, conflicts_with_all = ["pairs", "explain", "report"])]
    both: bool,
    /// Print each column's marginal KL and the drop without it.
    #[arg(long, conflicts_with = "pairs")]
    explain: bool,
    /// Write an HTML page with the estimate, the columns and plots.
    #[arg(long, value_name = "FILE.html", conflicts_with = "pairs")]
    report: Option<PathBuf>,
    /// Estimate many pairs, listed in a file with two samples per line; `-` is standard input.
    #[arg(long, value_name = "LIST", conflicts_with_all = ["p", "q"])]
    pairs: Option<PathBuf>,
    /// Write the results of --pairs as .csv, .json or .md.
    #[arg(short, long, value_name = "FILE.csv")]
    out: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Method {
    /// Built-in trained estimator.
    Pretrained,
    /// Nearest neighbours (Wang, Kulkarni, Verdú).
    Knn,
    /// Closed form for two Gaussians with the samples' moments.
    Gaussian,
    /// Logistic regression of P against Q on columns, squares and products.
    Logistic,
}

impl Args {
    fn options(&self) -> KlOptions {
        let method = self.method.map(|method| match method {
            Method::Pretrained => KlMethod::Pretrained,
            Method::Knn => KlMethod::Knn,
            Method::Gaussian => KlMethod::Gaussian,
            Method::Logistic => KlMethod::Logistic,
        });
        KlOptions::of(method, self.k, self.seed)
    }

    /// Refuses options that the method does not use.
    fn check(&self) -> Result<(), Failure> {
        if self.k.is_some() && self.options().method != KlMethod::Knn {
            return Err(Failure::usage("--k is for --method knn"));
        }
        if self.device.has_precision() && self.options().method != KlMethod::Pretrained {
            return Err(Failure::usage("--precision is for --method pretrained"));
        }
        Ok(())
    }
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    args.check()?;
    if let Some(list) = &args.pairs {
        return pairs::run(list, &args);
    }
    let (Some(p), Some(q)) = (&args.p, &args.q) else {
        return Err(Failure::usage("give two samples P and Q, or --pairs LIST"));
    };
    if args.out.is_some() {
        return Err(Failure::usage("-o writes the results of --pairs; use --report for two samples"));
    }
    if let Some(path) = &args.report {
        check_output(path)?;
        check_not_input(path, [p.as_path(), q])?;
        Page::check_extension(path)?;
    }
    let [of_p, of_q] = args.columns.read([p, q])?;
    let (p, q) = (Points::of(&of_p)?, Points::of(&of_q)?);
    let estimator = args.options().with_device(args.device.open()?).estimator()?;
    if args.both {
        let work = |progress: &_| estimator.both_directions(p, q, args.seed, progress);
        let [mut estimate, mut reverse] = with_progress("estimating KL(P‖Q) and KL(Q‖P)", work)?;
        estimate.warnings.extend(file_warnings(&of_p, &of_q));
        reverse.warnings.extend(file_warnings(&of_q, &of_p));
        reverse.quantity = Quantity::ReverseKl;
        if args.json {
            return print_json(&BothDirections { estimate: &estimate, reverse: &reverse });
        }
        print_estimate("KL(P‖Q)", &estimate, false)?;
        return print_estimate("KL(Q‖P)", &reverse, false);
    }
    // Columns are explained on the rows of the estimate.
    let explains = args.explain || args.report.is_some();
    let drawn = if explains { draw_rows(p, q, args.seed) } else { None };
    let [p, q] = drawn.as_ref().map_or([p, q], |drawn| drawn.points(p, q));
    let work = |progress: &_| estimator.estimate_observed(p, q, args.seed, progress);
    let mut estimate = with_progress("estimating KL(P‖Q)", work)?;
    estimate.warnings.extend(file_warnings(&of_p, &of_q));
    if drawn.is_some() {
        let rows = p.len().max(q.len());
        let warning =
            format!("{rows} rows are drawn from each larger sample to explain it; without --explain all count");
        estimate.warnings.push(warning);
    }
    if !explains {
        return print_estimate("KL(P‖Q)", &estimate, args.json);
    }

    let names = names(&of_p, &of_q);
    let work = |progress: &_| explain_observed(estimate.made_by(&*estimator), p, q, names, args.seed, progress);
    let explanation = with_progress("attributing the estimate to columns", work)?;
    if let Some(path) = &args.report {
        kl_page(&estimate, &explanation, p, q, args.seed).save(path)?;
    }
    if args.json {
        let explanation = args.explain.then_some(&explanation);
        return print_json(&Explained { estimate: &estimate, explanation });
    }
    print_estimate("KL(P‖Q)", &estimate, false)?;
    if args.explain {
        print_explanation(&explanation)?;
    }
    args.report.as_ref().map_or(Ok(()), |path| print_line(format!("report: {}", path.display())))
}

/// The column names of P, or of Q if P has no header.
fn names<'a>(p: &'a Sample, q: &'a Sample) -> &'a [String] {
    if p.names.is_empty() { &q.names } else { &p.names }
}

#[derive(Serialize)]
struct BothDirections<'a> {
    #[serde(flatten)]
    estimate: &'a Estimate,
    reverse: &'a Estimate,
}

#[derive(Serialize)]
struct Explained<'a> {
    #[serde(flatten)]
    estimate: &'a Estimate,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<&'a Explanation>,
}

/// Maximum number of columns, and of warnings, that are printed.
const MAX_COLUMNS: usize = 12;
/// Characters of the longest bar.
const BAR_WIDTH: usize = 12;

/// Prints the columns as a table with bars, which are light as far as noise reaches.
fn print_explanation(explanation: &Explanation) -> Result<(), Failure> {
    let columns = &explanation.columns;
    let numbers = columns.iter().flat_map(|c| [c.marginal, c.drop]).flatten();
    let largest = numbers.filter(|x| x.is_finite()).fold(0.0, f64::max);
    let cells = |value: Option<f64>, interval: Option<[f64; 2]>, noise: Option<f64>| {
        let bar = value.map(|value| noise_bar(value, noise.unwrap_or(0.0), largest, BAR_WIDTH));
        let range = interval.map(|[low, high]| format!("{} to {}", decimals(low), decimals(high)));
        [value.map_or("–".to_owned(), decimals), range.unwrap_or_default(), bar.unwrap_or_default()]
    };
    let mut table = comfy_table::Table::new();
    let heading = ["", "marginal KL", "90 % interval", "", "drop without it", "90 % interval", ""];
    table.load_style(presets::NOTHING).set_header(heading);
    let noise = explanation.noise;
    for c in columns.iter().take(MAX_COLUMNS) {
        let marginal = cells(c.marginal, c.marginal_interval, noise.marginal);
        let drop = cells(c.drop, c.drop_interval, noise.drop);
        table.add_row([short_name(&c.label())].into_iter().chain(marginal).chain(drop));
    }
    for right in [1, 2, 4, 5] {
        if let Some(column) = table.column_mut(right) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    print_line(format!("\n{}", table.trim_fmt()))?;
    if columns.len() > MAX_COLUMNS {
        print_line(format!("and {} more columns; --json prints all", columns.len() - MAX_COLUMNS))?;
    }
    if let (Some(marginal), Some(drop)) = (noise.marginal, noise.drop) {
        let [marginal, drop] = [marginal, drop].map(decimals);
        print_line(format!("noise alone reaches {marginal} and {drop}: light bars"))?;
    }
    explanation.warnings.iter().take(MAX_COLUMNS).try_for_each(|w| print_line(format!("warning: {w}")))
}
