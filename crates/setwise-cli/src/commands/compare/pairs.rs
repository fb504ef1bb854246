//! `setwise compare --pairs LIST`

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use setwise::compare::Comparison;
use setwise::estimate::Progress;
use setwise_report::{Cell, Table as Results};

use super::super::table_pairs::Outcomes;
use super::super::text::marked_table;
use super::super::{print_json, print_line};
use super::{Args, print};
use crate::failure::Failure;

/// Compares every pair of a list.
pub fn run(list: &Path, args: &Args) -> Result<ExitCode, Failure> {
    let types = args.tables.overrides()?;
    let outcomes = Outcomes::new(list, args.out.as_deref(), |tables| {
        Ok(args.compare().run(args.tables.pairing(tables, &types)?, &Progress::default())?)
    })?;
    if let Some(path) = &args.out {
        table(&outcomes).save(path)?;
    }
    match args.json {
        true => outcomes.iter().try_for_each(|(pair, outcome)| {
            let [reference, current] = pair.names.each_ref().map(String::as_str);
            let error = outcome.as_ref().err().map(ToString::to_string);
            print_json(&Line { line: pair.line, reference, current, comparison: outcome.as_ref().ok(), error })
        })?,
        false => print_outcomes(&outcomes)?,
    }
    outcomes.check("compared")?;
    Ok(args.exit_code(outcomes.results().any(|c| c.changed)))
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

fn print_outcomes(outcomes: &Outcomes<Comparison>) -> Result<(), Failure> {
    let changed = outcomes.results().filter(|c| c.changed).count();
    print_line(format!("Changed: {changed} of {} pairs.\n", outcomes.pairs.len()))?;
    let rows = outcomes.iter().map(|(pair, outcome)| {
        let mut cells = pair.names.to_vec();
        match outcome {
            Ok(comparison) => cells.extend(print::verdict_cells(comparison)),
            Err(_) => cells.extend(["–", "", "", ""].map(str::to_owned)),
        }
        (outcome.as_ref().is_ok_and(|c| c.changed), cells)
    });
    let heading = ["", "reference", "current", "divergence", "90 % interval", "p", "what changed"];
    print_line(marked_table(heading, rows, &[3, 5]))
}

/// The table that `-o` writes.
fn table(outcomes: &Outcomes<Comparison>) -> Results {
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
    for (pair, outcome) in outcomes.iter() {
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
