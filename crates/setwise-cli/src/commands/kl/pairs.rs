//! `setwise kl --pairs LIST`

use std::path::Path;

use comfy_table::{CellAlignment, presets};
use setwise::estimate::{Dim, Estimate, ManyPairs, PairList};
use setwise::files::ListedPair;
use setwise_report::{Cell, Table, decimals};

use super::super::pair_line::PairLine;
use super::super::{check_not_input, check_output, pairs_bar, print_json, print_line};
use super::Args;
use crate::failure::Failure;

/// Maximum number of warnings that are printed.
const MAX_WARNINGS: usize = 10;

/// The result of one pair of the list.
type Outcome = Result<Estimate, setwise::Error>;

/// Reads every file before the first estimate, so that a mistake in the list costs no time. The device opens meanwhile.
pub fn run(list: &Path, args: &Args) -> Result<(), Failure> {
    if let Some(path) = &args.out {
        check_output(path)?;
        check_not_input(path, [list])?;
        Table::check_extension(path)?;
    }
    let device = args.device.clone();
    let gpu = device.name() != "cpu";
    let estimator = ManyPairs::open(&args.options(), gpu, move || device.open())?;
    let list = PairList::read_columns(list, &args.columns.choice())?;
    if let Some(path) = &args.out {
        let samples = list.pairs().iter().flat_map(|pair| list.samples(pair));
        check_not_input(path, samples.map(|sample| sample.path.as_path()))?;
    }
    let bar = pairs_bar(list.pairs().len());
    let outcomes = estimator.estimates(&list, |done| bar.inc(done as u64))?;
    bar.finish_and_clear();
    print_outcomes(&list, &outcomes, args)
}

/// Writes or prints the outcomes. Fails if a pair has no estimate.
fn print_outcomes(list: &PairList, outcomes: &[Outcome], args: &Args) -> Result<(), Failure> {
    if let Some(path) = &args.out {
        table(list.pairs(), outcomes).save(path)?;
    }
    if args.json {
        list.pairs().iter().zip(outcomes).try_for_each(|(pair, outcome)| print_json(&PairLine::of(pair, outcome)))?;
    } else if let Some(path) = &args.out {
        print_line(format!("{} pairs of {} files: {}", outcomes.len(), list.files(), path.display()))?;
    } else {
        print_table(list.pairs(), outcomes)?;
    }
    let mut failed =
        list.pairs().iter().zip(outcomes).filter_map(|(pair, outcome)| Some((pair, outcome.as_ref().err()?)));
    match failed.next() {
        None => Ok(()),
        Some((pair, error)) => Err(Failure::usage(format!(
            "{} of {} pairs have no estimate; the first, line {}: {error}",
            1 + failed.count(),
            outcomes.len(),
            pair.line
        ))),
    }
}

/// The table that `-o` writes: all results, unrounded.
fn table(pairs: &[ListedPair], outcomes: &[Outcome]) -> Table {
    let columns = ["line", "p", "q", "estimate", "low", "high", "n_p", "n_q", "dim", "method", "warnings", "error"];
    let fallback = ["fallback_method", "fallback_estimate", "fallback_low", "fallback_high"];
    let mut table = Table::new("", columns.into_iter().chain(fallback));
    for (pair, outcome) in pairs.iter().zip(outcomes) {
        let number = |value: Option<f64>| value.map_or(Cell::Empty, |v| Cell::number(v, 4));
        let count = |value: Option<usize>| value.map_or(Cell::Empty, Cell::Count);
        let text = |value: Option<String>| value.map_or(Cell::Empty, Cell::Text);
        let e = outcome.as_ref().ok();
        let interval = e.and_then(|e| e.interval);
        let fallback = e.and_then(|e| e.fallback.as_ref());
        let fallback_interval = fallback.and_then(|f| f.interval);
        let dim = e.map(|e| match e.dim {
            Dim::One(d) => d,
            Dim::Two([x, y]) => x + y,
        });
        table.push([
            count(Some(pair.line)),
            pair.names[0].as_str().into(),
            pair.names[1].as_str().into(),
            number(e.map(|e| e.value)),
            number(interval.map(|i| i[0])),
            number(interval.map(|i| i[1])),
            count(e.and_then(|e| e.n.first().copied())),
            count(e.and_then(|e| e.n.get(1).copied())),
            count(dim),
            text(e.map(|e| e.method.clone())),
            e.map_or(Cell::Empty, |e| Cell::List(e.warnings.clone())),
            text(outcome.as_ref().err().map(ToString::to_string)),
            text(fallback.map(|f| f.method.clone())),
            number(fallback.map(|f| f.value)),
            number(fallback_interval.map(|i| i[0])),
            number(fallback_interval.map(|i| i[1])),
        ]);
    }
    table
}

/// Prints a table of the estimates, and some of the warnings.
fn print_table(pairs: &[ListedPair], outcomes: &[Outcome]) -> Result<(), Failure> {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING).set_header(["P", "Q", "KL(P‖Q)", "90 % interval", "rows"]);
    let mut warnings = Vec::new();
    for (pair, outcome) in pairs.iter().zip(outcomes) {
        let [p, q] = &pair.names;
        match outcome {
            Ok(e) => {
                let interval =
                    e.interval.map_or(String::new(), |[low, high]| format!("{} to {}", decimals(low), decimals(high)));
                let rows = e.n.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                table.add_row([p, q, &decimals(e.value), &interval, &rows]);
                warnings.extend(e.warnings.iter().map(|w| format!("line {}: {w}", pair.line)));
            }
            Err(_) => {
                table.add_row([p.as_str(), q, "–", "", ""]);
            }
        }
    }
    for column in 2..5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    print_line(table.trim_fmt())?;
    warnings.iter().take(MAX_WARNINGS).try_for_each(|w| print_line(format!("warning: {w}")))?;
    match warnings.len().saturating_sub(MAX_WARNINGS) {
        0 => Ok(()),
        more => print_line(format!("and {more} more warnings; --json and -o have all of them")),
    }
}
