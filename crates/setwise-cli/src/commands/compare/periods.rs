//! `setwise compare --by PERIOD`

use std::process::ExitCode;

use setwise::compare::{Against, PeriodComparison};
use setwise_report::{period_columns, periods_page, periods_table, sparkline};
use setwise_table::{Overrides, Period, Table};

use super::super::text::{marked_table, short_name};
use super::super::{print_json, print_line, with_progress};
use super::{Args, print};
use crate::failure::Failure;

/// Effects that a full block shows at least.
const LEAST: f64 = 0.05;
/// Columns that are listed.
const MAX_COLUMNS: usize = 20;

/// Compares the periods of the last table. With two tables, the first is the reference.
pub fn run(args: &Args, by: Period, mut tables: Vec<Table>, types: &Overrides) -> Result<ExitCode, Failure> {
    let current = tables.pop().expect("a table");
    let name = current.path.display().to_string();
    let (tables, against) = match (tables.pop(), args.against) {
        (Some(reference), _) => ([reference, current], Against::Reference),
        (None, Some(super::Against::Previous)) => ([current.clone(), current], Against::Previous),
        (None, _) => ([current.clone(), current], Against::First),
    };
    let pairing = args.tables.pairing(tables, types)?;
    let found = with_progress("comparing the periods", |progress| {
        args.compare().run_periods(pairing, by, args.time.as_deref(), against, progress)
    })?;
    if let Some(path) = &args.out {
        periods_table(&found).save(path)?;
    }
    if let Some(path) = &args.report {
        periods_page(&found, &name).save(path)?;
    }
    match args.json {
        true => print_json(&found)?,
        false => print(&found)?,
    }
    Ok(args.exit_code(found.changed))
}

/// Prints a line for each period, then the effect on each column over time.
fn print(found: &PeriodComparison) -> Result<(), Failure> {
    let by = found.by;
    let changed = found.periods.iter().filter(|p| p.comparison.changed).count();
    match changed {
        0 => print_line(format!("No evidence of a change in {} {by}s.\n", found.periods.len()))?,
        n => print_line(format!("Changed in {n} of {} {by}s.\n", found.periods.len()))?,
    }
    let heading = ["", by.name(), "against", "rows", "divergence", "90 % interval", "p", "what changed"];
    let rows = found.periods.iter().map(|p| {
        let mut cells = vec![p.period.clone(), p.against.clone(), p.comparison.rows[1].to_string()];
        cells.extend(print::verdict_cells(&p.comparison));
        (p.comparison.changed, cells)
    });
    print_line(marked_table(heading, rows, &[3, 4, 6]))?;
    let (columns, places) = (period_columns(found), found.places());
    let (first, last) = (&found.periods[0].period, &found.periods[found.periods.len() - 1].period);
    print_line(format!("\neffect on each column, {first} to {last}"))?;
    let rows = columns.iter().take(MAX_COLUMNS).map(|(name, changes)| {
        // Zero is the foot of every line.
        let effects: Vec<f64> = changes.iter().map(|c| c.map_or(f64::NAN, |c| c.effect)).collect();
        let flagged: Vec<&str> = found
            .periods
            .iter()
            .zip(changes)
            .filter(|(_, c)| c.is_some_and(|c| c.flagged))
            .map(|(p, _)| p.period.as_str())
            .collect();
        let largest = effects.iter().copied().filter(|e| e.is_finite()).fold(0.0, f64::max);
        let mut line = vec![f64::NAN; places.last().map_or(0, |last| last + 1)];
        places.iter().zip(&effects).for_each(|(&place, effect)| line[place] = *effect);
        let length = line.len();
        line.extend([0.0, largest.max(LEAST)]);
        let line: String = sparkline(&line).chars().take(length).collect();
        let text = if flagged.is_empty() { String::new() } else { format!("flagged in {}", flagged.join(", ")) };
        (!flagged.is_empty(), vec![short_name(name), line, setwise_report::percent(largest), text])
    });
    print_line(marked_table(["", "column", "over time", "largest", ""], rows, &[3]))?;
    if columns.len() > MAX_COLUMNS {
        print_line(format!("and {} more columns; --json and -o have all of them", columns.len() - MAX_COLUMNS))?;
    }
    found.notes.iter().try_for_each(|note| print_line(format!("note: {note}")))
}
