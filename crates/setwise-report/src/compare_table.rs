//! The columns of a comparison as a table, and its parts in words.

use setwise::compare::{Comparison, Summary, percent, short_number};

use super::terminal::filled;
use super::{Cell, Table};

/// The columns of a comparison with all numbers, for files.
pub fn compare_table(comparison: &Comparison) -> Table {
    let mut table = Table::new(
        "",
        [
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
        ],
    );
    for column in &comparison.columns {
        let number = |x: f64| Cell::number(x, 4);
        let maybe = |x: Option<f64>| x.map_or(Cell::Empty, |x| Cell::number(x, 4));
        table.push([
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
        ]);
    }
    table
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
            let shown =
                top.iter().take(SHOWN).map(|(level, share)| format!("{} {}", shortened(level), percent(*share)));
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
            format!("{} {} → {after}", shortened(level), percent(*share))
        }
        [before, after] => format!("{} → {}", summary_text(before), summary_text(after)),
    }
}

fn shortened(level: &str) -> String {
    const MAX_CHARS: usize = 16;
    match level.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &level[..end]),
        None => level.to_owned(),
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
