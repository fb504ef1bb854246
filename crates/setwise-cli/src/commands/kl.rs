//! `setwise kl P Q` and `setwise kl --pairs LIST`

mod pairs;

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;
use setwise::estimate::{Estimate, Explanation, KlMethod, KlOptions, Points, explain, file_warnings};
use setwise::files::Sample;
use setwise_report::{Page, bar_table, kl_page};

use super::{DeviceArgs, answer, check_apart, check_output, print_json, print_line, read_samples};
use crate::failure::Failure;

/// Arguments of `kl`.
#[derive(clap::Args)]
#[command(
    override_usage = "setwise kl [OPTIONS] <P> <Q>\n       setwise kl [OPTIONS] --pairs <LIST>",
    after_help = "\
The pretrained estimator answers with calibrated quantiles: nine of ten divergences like those it was trained for lie in its interval. \
It was trained for 1 to 16 columns and 30 rows or more (`setwise models` tells); where samples are outside of that, it says so and gives \
another estimate beside its own. With more than 32 columns that vary, or fewer than one and a half rows for each of them, knn answers instead. Samples of more than 8000 \
rows are dealt to chunks, whose answers are averaged.\n\n\
Intervals of the other methods are nominal 90 % from repeated disjoint subsamples: the rows are split at random into groups, and the spread of the groups' \
estimates, scaled to all rows, is that of the estimate. They do not cover an estimator's bias. (Drawing rows with replacement would make \
duplicates, which neighbour estimators cannot take.)\n\n\
Points that coincide: a neighbour at distance zero is replaced by the nearest one at a positive distance, with its own number. The pretrained \
estimator takes rows that repeat once, and spreads columns of few values (counts, codes, rounded numbers) between the midpoints of these.\n\n\
--json prints one object: quantity, estimate, interval, level, unit, n (rows of P and Q), dim, method, interval_method, warnings. With \
--explain it has an explanation: estimate (of all columns), n, columns (largest first, each with column, name, own, without, loss) and \
warnings. With --pairs it prints such an object a line, in the order of the list, with line, p and q before the rest; where there is no \
estimate, error says why. Where another estimate stands beside it, fallback has its method, estimate and interval."
)]
pub struct Args {
    /// Sample of P: CSV, TSV or NPY, rows are elements and columns dimensions. `-` is standard input.
    #[arg(required_unless_present = "pairs")]
    p: Option<PathBuf>,
    /// Sample of Q, with as many columns.
    #[arg(required_unless_present = "pairs")]
    q: Option<PathBuf>,
    /// How to estimate; pretrained if not given, or knn where --k is.
    #[arg(long, value_enum)]
    method: Option<Method>,
    /// Which neighbour `knn` measures the distance to; 3 if not given. A larger k has less noise and more bias; 3 did well in
    /// trials with 1 to 8 columns.
    #[arg(long)]
    k: Option<usize>,
    /// Seed of the interval, and of the rows that are drawn of large samples to be explained and shown.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Show which columns contribute: each column's own KL, and how much the estimate loses without it.
    #[arg(long, conflicts_with = "pairs")]
    explain: bool,
    /// Write a page with the estimate, the columns, and plots of both samples.
    #[arg(long, value_name = "FILE.html", conflicts_with = "pairs")]
    report: Option<PathBuf>,
    /// Estimate many pairs: a file naming two sample files a line, relative to its folder, separated by a comma, a tab or spaces; `-` is
    /// standard input.
    #[arg(long, value_name = "LIST", conflicts_with_all = ["p", "q"])]
    pairs: Option<PathBuf>,
    /// Write the results of --pairs as a table: .csv, .json or .md.
    #[arg(short, long, alias = "output", value_name = "FILE.csv")]
    out: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Method {
    /// The trained estimator that is built in.
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

    /// Refuses options that the method has no use for.
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
        return Err(Failure::usage("two samples are wanted"));
    };
    if args.out.is_some() {
        return Err(Failure::usage("-o is for the results of --pairs; --report writes a page about two samples"));
    }
    if let Some(path) = &args.report {
        check_output(path)?;
        check_apart(path, [p.as_path(), q])?;
        Page::check_extension(path)?;
    }
    let [of_p, of_q] = read_samples([p, q])?;
    let (p, q) = (Points::of(&of_p)?, Points::of(&of_q)?);
    let estimator = args.options().estimator(&args.device.find()?)?;
    let mut estimate = estimator.estimate(p, q, args.seed)?;
    estimate.warnings.extend(file_warnings(&of_p, &of_q));
    if !args.explain && args.report.is_none() {
        return answer("KL(P‖Q)", &estimate, args.json);
    }

    let explanation = explain(estimate.made_by(&*estimator), p, q, names(&of_p, &of_q), args.seed)?;
    if let Some(path) = &args.report {
        kl_page(&estimate, &explanation, p, q, args.seed).save(path)?;
    }
    if args.json {
        let explanation = args.explain.then_some(&explanation);
        return print_json(&Explained { estimate: &estimate, explanation });
    }
    answer("KL(P‖Q)", &estimate, false)?;
    if args.explain {
        show(&explanation)?;
    }
    args.report.as_ref().map_or(Ok(()), |path| print_line(format!("report: {}", path.display())))
}

/// The header of either sample: columns are matched by place.
fn names<'a>(p: &'a Sample, q: &'a Sample) -> &'a [String] {
    if p.names.is_empty() { &q.names } else { &p.names }
}

#[derive(Serialize)]
struct Explained<'a> {
    #[serde(flatten)]
    estimate: &'a Estimate,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<&'a Explanation>,
}

/// Columns shown to people.
const SHOWN: usize = 12;
/// Characters of a name, and of the longest bar.
const NAME: usize = 24;
const BAR: usize = 20;

fn show(explanation: &Explanation) -> Result<(), Failure> {
    let columns = &explanation.columns;
    let rows: Vec<(String, Vec<Option<f64>>)> =
        columns.iter().take(SHOWN).map(|c| (printable(&c.label(), NAME), vec![c.alone, c.loss])).collect();
    print_line(format!("\n{}", bar_table(["", "own KL", "loss without it"], &rows, BAR).trim_end()))?;
    if columns.len() > SHOWN {
        print_line(format!("and {} more columns; --json has all of them", columns.len() - SHOWN))?;
    }
    explanation.warnings.iter().take(SHOWN).try_for_each(|w| print_line(format!("note: {w}")))
}

/// A name that neither fills the line nor commands the terminal.
fn printable(name: &str, most: usize) -> String {
    let mut letters: Vec<char> = name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if letters.len() > most {
        letters.truncate(most - 1);
        letters.push('…');
    }
    letters.into_iter().collect()
}
