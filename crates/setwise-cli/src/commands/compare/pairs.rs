//! `setwise compare --pairs LIST`

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use setwise::compare::Comparison;
use setwise::estimate::Progress;
use setwise::files::{FilePairs, ListedPair};
use setwise_report::{Cell, Table as Results};
use setwise_table::{Overrides, Table};

use super::super::{check_not_input, pairs_bar, print_json, print_line};
use super::{Args, print};
use crate::failure::Failure;

/// The result of one pair of the list.
type Outcome = Result<Comparison, Failure>;

/// Compares every pair of a list. A pair that cannot be compared does not stop the others.
pub fn run(list: &Path, args: &Args) -> Result<ExitCode, Failure> {
    let list = FilePairs::read(list)?;
    list.check([])?;
    if let Some(path) = &args.out {
        check_not_input(path, list.files.iter().map(|file| file.as_path()))?;
    }
    let types = args.tables.overrides()?;
    let bar = pairs_bar(list.pairs.len());
    // Pairs often share their reference.
    let mut reference: Option<(usize, Table)> = None;
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(list.pairs.len());
    for pair in &list.pairs {
        outcomes.push(compare(&list, pair, args, &types, &mut reference));
        bar.inc(1);
    }
    bar.finish_and_clear();
    print_outcomes(&list.pairs, &outcomes, args)?;
    let mut failed =
        list.pairs.iter().zip(&outcomes).filter_map(|(pair, outcome)| Some((pair, outcome.as_ref().err()?)));
    if let Some((pair, error)) = failed.next() {
        let count = 1 + failed.count();
        let all = outcomes.len();
        return Err(Failure::usage(format!(
            "{count} of {all} pairs cannot be compared; the first, line {}: {error}",
            pair.line
        )));
    }
    Ok(args.exit_code(outcomes.iter().flatten().any(|c| c.changed)))
}

fn compare(
    list: &FilePairs,
    pair: &ListedPair,
    args: &Args,
    types: &Overrides,
    reference: &mut Option<(usize, Table)>,
) -> Outcome {
    let [a, b] = pair.files;
    if reference.as_ref().is_none_or(|(file, _)| *file != a) {
        *reference = Some((a, Table::read(&list.files[a])?));
    }
    let first = reference.as_ref().map(|(_, table)| table.clone()).expect("a reference has been read");
    let pairing = args.tables.pairing([first, Table::read(&list.files[b])?], types)?;
    Ok(args.compare().run(pairing, &Progress::default())?)
}

/// A line of the JSON output.
#[derive(Serialize)]
struct Line<'a> {
    line: usize,
    reference: &'a str,
    current: &'a str,
    #[serde(flatten)]
    comparison: Option<&'a Comparison>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn print_outcomes(pairs: &[ListedPair], outcomes: &[Outcome], args: &Args) -> Result<(), Failure> {
    if let Some(path) = &args.out {
        table(pairs, outcomes).save(path)?;
    }
    if args.json {
        return pairs.iter().zip(outcomes).try_for_each(|(pair, outcome)| {
            let [reference, current] = pair.names.each_ref().map(String::as_str);
            let error = outcome.as_ref().err().map(ToString::to_string);
            print_json(&Line { line: pair.line, reference, current, comparison: outcome.as_ref().ok(), error })
        });
    }
    let changed = outcomes.iter().flatten().filter(|c| c.changed).count();
    print_line(format!("Changed: {changed} of {} pairs.\n", outcomes.len()))?;
    let rows = pairs.iter().zip(outcomes).map(|(pair, outcome)| {
        let mut cells = pair.names.to_vec();
        match outcome {
            Ok(comparison) => cells.extend(print::verdict_cells(comparison)),
            Err(_) => cells.extend(["–", "", "", ""].map(str::to_owned)),
        }
        (outcome.as_ref().is_ok_and(|c| c.changed), cells)
    });
    let heading = ["", "reference", "current", "divergence", "90 % interval", "p", "what changed"];
    print_line(print::marked_table(heading, rows, &[3, 5]))
}

/// The table that `-o` writes.
fn table(pairs: &[ListedPair], outcomes: &[Outcome]) -> Results {
    let heading = [
        "line",
        "reference",
        "current",
        "changed",
        "p_value",
        "divergence",
        "low",
        "high",
        "rows_reference",
        "rows_current",
        "flagged",
        "summary",
        "error",
    ];
    let mut table = Results::new("", heading);
    for (pair, outcome) in pairs.iter().zip(outcomes) {
        let found = outcome.as_ref().ok();
        let number = |of: &dyn Fn(&Comparison) -> f64| found.map_or(Cell::Empty, |c| Cell::number(of(c), 4));
        let count = |t: usize| found.map_or(Cell::Empty, |c| Cell::Count(c.rows[t]));
        let text = |text: Option<String>| text.map_or(Cell::Empty, Cell::Text);
        let flagged = |c: &Comparison| c.columns.iter().filter(|c| c.flagged).map(|c| c.name.clone()).collect();
        table.push([
            Cell::Count(pair.line),
            pair.names[0].as_str().into(),
            pair.names[1].as_str().into(),
            text(found.map(|c| if c.changed { "yes" } else { "no" }.to_owned())),
            number(&|c| c.p_value),
            number(&|c| c.effect),
            number(&|c| c.interval[0]),
            number(&|c| c.interval[1]),
            count(0),
            count(1),
            found.map_or(Cell::Empty, |c| Cell::List(flagged(c))),
            text(found.map(|c| c.summary.clone())),
            text(outcome.as_ref().err().map(ToString::to_string)),
        ]);
    }
    table
}
