//! The columns of a comparison as a table, and its parts in words.

use setwise::compare::{ColumnChange, Comparison, PeriodComparison, Summary, percent, short_number};
use setwise_table::wording::truncated;

use super::terminal::filled;
use super::{Cell, Table};

/// Most characters of a category.
const MAX_LEVEL: usize = 16;

/// The columns of a comparison with all numbers, for files.
pub fn compare_table(comparison: &Comparison) -> Table {
    let mut table = Table::new("", COLUMNS);
    comparison.columns.iter().for_each(|column| table.push(cells(column)));
    table
}

/// The columns of all periods with all numbers, for files.
pub fn periods_table(found: &PeriodComparison) -> Table {
    let mut table = Table::new("", ["period", "against"].into_iter().chain(COLUMNS));
    for p in &found.periods {
        for column in &p.comparison.columns {
            let period: [Cell; 2] = [p.period.as_str().into(), p.against.as_str().into()];
            table.push(period.into_iter().chain(cells(column)));
        }
    }
    table
}

/// The change of each column in each period. Columns with a flag are first, then those with the largest effect.
pub fn period_columns(found: &PeriodComparison) -> Vec<(String, Vec<Option<&ColumnChange>>)> {
    let mut names: Vec<&str> = Vec::new();
    for column in found.periods.iter().flat_map(|p| &p.comparison.columns).filter(|c| c.p_value.is_some()) {
        if !names.contains(&column.name.as_str()) {
            names.push(&column.name);
        }
    }
    let of = |name: &str| -> Vec<Option<&ColumnChange>> {
        found.periods.iter().map(|p| p.comparison.columns.iter().find(|c| c.name == name)).collect()
    };
    let mut columns: Vec<(String, Vec<Option<&ColumnChange>>)> =
        names.into_iter().map(|name| (name.to_owned(), of(name))).collect();
    let rank = |changes: &[Option<&ColumnChange>]| {
        let flagged = changes.iter().flatten().filter(|c| c.flagged).count();
        (flagged, changes.iter().flatten().map(|c| c.effect).fold(0.0, f64::max))
    };
    columns.sort_by(|a, b| rank(&b.1).partial_cmp(&rank(&a.1)).expect("effects are numbers").then(a.0.cmp(&b.0)));
    columns
}

const COLUMNS: [&str; 14] = [
    "column",
    "type",
    "flagged",
    "effect",
    "low",
    "high",
    "noise",
    "p_value",
    "q_value",
    "missing_before",
    "missing_after",
    "before",
    "after",
    "change",
];

fn cells(column: &ColumnChange) -> [Cell; 14] {
    let number = |x: f64| Cell::number(x, 4);
    let maybe = |x: Option<f64>| x.map_or(Cell::Empty, number);
    [
        column.name.as_str().into(),
        column.column_type.name().into(),
        if column.flagged { "yes" } else { "no" }.into(),
        number(column.effect),
        number(column.interval[0]),
        number(column.interval[1]),
        number(column.noise),
        maybe(column.p_value),
        maybe(column.q_value),
        number(column.missing[0]),
        number(column.missing[1]),
        summary_text(&column.values[0]).as_str().into(),
        summary_text(&column.values[1]).as_str().into(),
        column.change.as_str().into(),
    ]
}

/// The values of a column in a few words: mean and quartiles, first and last time, or the most frequent categories.
pub fn summary_text(summary: &Summary) -> String {
    match summary {
        Summary::Numbers { mean, quantiles: [_, first, median, third, _] } => {
            let [mean, first, median, third] = [*mean, *first, *median, *third].map(short_number);
            format!("mean {mean}, quartiles {first}, {median}, {third}")
        }
        Summary::Times { first, last, .. } => format!("{first} to {last}"),
        Summary::Categories { distinct, top } if top.is_empty() => format!("{distinct} distinct"),
        Summary::Categories { top, .. } => {
            const SHOWN: usize = 3;
            let shown = top
                .iter()
                .take(SHOWN)
                .map(|(level, share)| format!("{} {}", truncated(level, MAX_LEVEL), percent(*share)));
            shown.collect::<Vec<_>>().join(", ")
        }
        Summary::Empty {} => String::new(),
    }
}

/// How the values of a column moved, in few words: means, first times, or the category that is most frequent.
pub fn values_text(values: &[Summary; 2]) -> String {
    match values {
        [Summary::Numbers { mean: before, .. }, Summary::Numbers { mean: after, .. }] => {
            format!("mean {} → {}", short_number(*before), short_number(*after))
        }
        [Summary::Times { first: before, .. }, Summary::Times { first: after, .. }] => {
            format!("from {before} → {after}")
        }
        [Summary::Categories { distinct: before, top }, Summary::Categories { distinct: after, top: now }] => {
            let Some((level, share)) = top.first() else { return format!("{before} → {after} distinct") };
            let after =
                now.iter().find(|(name, _)| name == level).map_or("…".to_owned(), |(_, share)| percent(*share));
            format!("{} {} → {after}", truncated(level, MAX_LEVEL), percent(*share))
        }
        [before, after] => format!("{} → {}", summary_text(before), summary_text(after)),
    }
}

/// A bar of at most `width` characters for an effect: light where noise alone reaches, full beyond.
///
/// ```
/// assert_eq!(setwise_report::noise_bar(0.2, 0.05, 0.4, 8), "░███");
/// ```
pub fn noise_bar(effect: f64, noise: f64, largest: f64, width: usize) -> String {
    let whole = filled(effect, largest, width);
    let light = filled(noise.min(effect), largest, width);
    format!("{}{}", "░".repeat(light), "█".repeat(whole - light))
}

/// The least p-value that is shown.
const LEAST: f64 = 1e-99;

/// A p-value with two digits that count.
pub fn p_text(p: f64) -> String {
    match p {
        p if p >= 0.001 => format!("{p:.3}"),
        p if p < LEAST => format!("<{LEAST:e}"),
        p => format!("{p:.0e}"),
    }
}

/// A p-value with its name.
pub fn named_p(name: &str, p: f64) -> String {
    if p < LEAST { format!("{name} < {LEAST:e}") } else { format!("{name} = {}", p_text(p)) }
}
