//! A comparison in the terminal.

use setwise::compare::{ColumnChange, Comparison};
use setwise_report::{decimals, named_p, noise_bar, p_text, percent, values_text};

use crate::commands::print_line;
use crate::commands::text::{marked_table, short_name};
use crate::failure::Failure;

/// Columns without a flag that are listed.
const MAX_UNFLAGGED: usize = 12;
/// Notes that are listed.
const MAX_NOTES: usize = 6;

/// Prints the verdict, the columns, and what else a reader should know.
pub fn comparison(comparison: &Comparison) -> Result<(), Failure> {
    print_line(&comparison.summary)?;
    let [low, high] = comparison.interval.map(decimals);
    print_line(format!(
        "{}, Jensen–Shannon divergence {} nats, 90 % interval {low} to {high}",
        named_p("p", comparison.p_value),
        decimals(comparison.effect),
    ))?;
    let [a, b] = &comparison.tables;
    print_line(format!("{a}: {} rows; {b}: {} rows\n", comparison.rows[0], comparison.rows[1]))?;
    print_line(columns(&comparison.columns))?;
    let hidden = hidden(&comparison.columns);
    if hidden > 0 {
        print_line(format!("and {hidden} more columns without a change; --json and -o have all of them"))?;
    }
    for pair in &comparison.pairs {
        let [x, y] = &pair.columns;
        let [before, after] = pair.correlations;
        print_line(format!(
            "correlation of {x} with {y}: {before:.2} before, {after:.2} after ({})",
            named_p("q", pair.q_value)
        ))?;
    }
    if let Some(repeated) = comparison.repeated_rows.as_ref().filter(|r| r.flagged) {
        let [before, after] = repeated.shares.map(percent);
        print_line(format!("repeated rows: {before} before, {after} after ({})", named_p("p", repeated.p_value)))?;
    }
    for (names, path) in comparison.only.iter().zip([a, b]).filter(|(names, _)| !names.is_empty()) {
        print_line(format!("only in {path}: {}", names.join(", ")))?;
    }
    comparison.notes.iter().take(MAX_NOTES).try_for_each(|note| print_line(format!("note: {note}")))
}

/// Columns that the table leaves out.
fn hidden(columns: &[ColumnChange]) -> usize {
    columns.iter().filter(|c| !c.flagged).count().saturating_sub(MAX_UNFLAGGED)
}

/// The table of the columns. Flagged ones have a mark; noise has a light bar.
fn columns(columns: &[ColumnChange]) -> String {
    let heading = ["", "column", "type", "effect", "", "90 % interval", "q", "missing", "values", "change"];
    let largest = columns.iter().map(|c| c.interval[1]).fold(0.0, f64::max);
    let flagged = columns.iter().filter(|c| c.flagged);
    let unflagged = columns.iter().filter(|c| !c.flagged).take(MAX_UNFLAGGED);
    let cells = |column: &ColumnChange| {
        let [low, high] = column.interval.map(percent);
        let [before, after] = column.missing.map(percent);
        let missing = if column.missing == [0.0, 0.0] { String::new() } else { format!("{before} → {after}") };
        let compared = column.p_value.is_some();
        let cells = vec![
            short_name(&column.name),
            column.column_type.to_string(),
            if compared { percent(column.effect) } else { String::new() },
            if compared { noise_bar(column.effect, column.noise, largest, 8) } else { String::new() },
            if compared { format!("{low} to {high}") } else { String::new() },
            column.q_value.map_or(String::new(), p_text),
            missing,
            values_text(&column.values),
            if column.flagged || !compared { column.change.clone() } else { String::new() },
        ];
        (column.flagged, cells)
    };
    marked_table(heading, flagged.chain(unflagged).map(cells), &[3, 6])
}

/// Divergence, interval, p-value and what changed, in short.
pub fn verdict_cells(comparison: &Comparison) -> [String; 4] {
    const NAMED: usize = 4;
    let [low, high] = comparison.interval.map(decimals);
    let mut names: Vec<String> = comparison.columns.iter().filter(|c| c.flagged).map(|c| short_name(&c.name)).collect();
    names.extend(comparison.pairs.iter().map(|pair| pair.columns.join(" with ")));
    names.extend(comparison.repeated_rows.iter().filter(|r| r.flagged).map(|_| "repeated rows".to_owned()));
    if comparison.changed && names.is_empty() {
        names.push("all columns together".to_owned());
    }
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    [decimals(comparison.effect), format!("{low} to {high}"), p_text(comparison.p_value), names.join(", ")]
}
