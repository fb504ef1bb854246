//! The page of `setwise compare --report`.

use std::fmt::Write;
use std::path::Path;

use setwise::compare::{ColumnChange, Comparison, Histogram, Summary, percent, short_number};
use setwise_table::ColumnType;
use setwise_table::times::format_time;

use super::svg::{escaped, unbroken};
use super::{Cell, Page, Table, decimals, named_p, p_text};

/// Unchanged columns that are listed without a fold.
const MAX_OPEN: usize = 15;
/// Width and height of the chart in a row.
const SMALL: [f64; 2] = [160.0, 38.0];
/// Width and height of the chart in the details.
const LARGE: [f64; 2] = [640.0, 150.0];
/// Width of the bar of an effect.
const BAR_WIDTH: f64 = 150.0;

/// The page of a comparison: the verdict, and a row for each column with its values in both tables.
pub fn compare_page(comparison: &Comparison) -> Page {
    let names = short_names(&comparison.tables);
    let flagged = comparison.columns.iter().filter(|c| c.flagged).count();
    let compared = comparison.columns.iter().filter(|c| c.p_value.is_some()).count();
    let answer = match (comparison.changed, flagged) {
        (false, _) => format!("No change in {}", counted(compared, "column")),
        (true, 0) => "Changed".to_owned(),
        (true, _) => format!("Changed: {flagged} of {}", counted(compared, "column")),
    };
    let [low, high] = comparison.interval.map(decimals);
    let below = format!(
        "{}; Jensen–Shannon divergence {} nats, 90 % interval {low} to {high}",
        named_p("p", comparison.p_value),
        decimals(comparison.effect)
    );
    let legend: String = names
        .iter()
        .zip(comparison.rows)
        .map(|(name, rows)| format!("<span><b>{}</b> {}</span>", escaped(name), counted(rows, "row")))
        .collect();
    let page = Page::new(format!("{} → {}", names[0], names[1]))
        .with_answer(&answer, &below)
        .push(format_args!("<p class=\"legend\">{legend}</p>"))
        .push(format_args!("<p>{}</p>", unbroken(&comparison.summary)));
    let page = with_columns(page, comparison, &names);
    let page = with_joint_changes(page, comparison);
    with_remarks(page, comparison, &names)
}

/// The names of two files, without their folders if they differ.
fn short_names(tables: &[String; 2]) -> [String; 2] {
    let last = |name: &String| {
        Path::new(name).file_name().map_or_else(|| name.clone(), |last| last.to_string_lossy().into_owned())
    };
    let short = tables.each_ref().map(last);
    if short[0] == short[1] { tables.clone() } else { short }
}

fn counted(n: usize, thing: &str) -> String {
    let digits = n.to_string();
    let mut number = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) && digits.len() > 4 {
            number.push('\u{202f}');
        }
        number.push(digit);
    }
    format!("{number} {thing}{}", if n == 1 { "" } else { "s" })
}

fn with_columns(mut page: Page, comparison: &Comparison, names: &[String; 2]) -> Page {
    let largest = comparison.columns.iter().map(|c| c.interval[1].max(c.noise)).fold(1e-9, f64::max);
    let row = |column: &ColumnChange| row(column, names, largest, comparison.min_effect);
    let (changed, unchanged): (Vec<_>, Vec<_>) = comparison.columns.iter().partition(|c| c.flagged);
    if !changed.is_empty() {
        page = page.with_heading("Changed columns");
        page = changed.iter().fold(page, |page, column| page.push(format_args!("{}", row(column))));
    }
    if unchanged.is_empty() {
        return page;
    }
    page = page.with_heading("Columns without a change");
    let (open, folded) = unchanged.split_at(unchanged.len().min(MAX_OPEN));
    page = open.iter().fold(page, |page, column| page.push(format_args!("{}", row(column))));
    if !folded.is_empty() {
        let rows: String = folded.iter().map(|column| row(column)).collect();
        let title = format!("{} more", counted(folded.len(), "column"));
        page = page.push(format_args!("<details><summary>{title}</summary>\n{rows}</details>"));
    }
    page
}

/// A row of a column; details follow on a click.
fn row(column: &ColumnChange, names: &[String; 2], largest: f64, min_effect: f64) -> String {
    let [low, high] = column.interval.map(percent);
    let size = match column.p_value {
        Some(_) => format!(
            "<b>{}</b>{}<small>{low} to {high}</small>",
            percent(column.effect),
            effect_bar(column, largest, min_effect)
        ),
        None => String::new(),
    };
    let small = column.histogram.as_ref().map_or(String::new(), |h| chart(h, SMALL, "the values in both tables"));
    let change = if column.flagged || column.p_value.is_none() { unbroken(&column.change) } else { String::new() };
    let class = if column.flagged { "column" } else { "column unchanged" };
    format!(
        "<details class=\"{class}\"><summary><span class=\"name\">{}<small>{}</small></span><span>{small}</span>\
         <span class=\"size\">{size}</span><span class=\"change\">{change}</span></summary>\n{}</details>\n",
        escaped(&column.name),
        column.column_type,
        details(column, names)
    )
}

/// The effect as a bar with its interval; noise reaches as far as the light part.
fn effect_bar(column: &ColumnChange, largest: f64, min_effect: f64) -> String {
    let x = |effect: f64| BAR_WIDTH * (effect / largest).clamp(0.0, 1.0);
    let [low, high] = column.interval;
    format!(
        "<svg width=\"{BAR_WIDTH}\" height=\"12\" role=\"img\" aria-label=\"effect {}\">\
         <rect class=\"noise\" width=\"{:.1}\" height=\"12\"/><rect class=\"bar\" y=\"3\" width=\"{:.1}\" height=\"6\"/>\
         <path class=\"whisker\" d=\"M{:.1},6H{:.1}M{:.1},1V11\"/></svg>",
        percent(column.effect),
        x(column.noise.max(min_effect)),
        x(column.effect),
        x(low),
        x(high),
        x(high),
    )
}

/// The shares of both tables, with a common scale.
fn chart(histogram: &Histogram, [width, height]: [f64; 2], label: &str) -> String {
    let shares = match histogram {
        Histogram::Ranges { shares, .. } => shares.each_ref().map(Vec::as_slice),
        // The sum of all others would hide the rest.
        Histogram::Levels { shares, others, .. } => shares.each_ref().map(|s| &s[..s.len() - usize::from(*others > 0)]),
    };
    let most = shares.into_iter().flatten().copied().fold(1e-12, f64::max);
    let y = |share: f64| height * (1.0 - share / most);
    let count = shares[0].len().max(1) as f64;
    let mut svg = format!("<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" ");
    svg += &format!("role=\"img\" aria-label=\"{label}\">");
    match histogram {
        Histogram::Ranges { .. } => {
            for (class, shares) in ["area", "edge"].into_iter().zip(shares) {
                let mut path = format!("M0,{height}");
                for (i, share) in shares.iter().enumerate() {
                    let (left, right) = (width * i as f64 / count, width * (i + 1) as f64 / count);
                    write!(path, "L{left:.1},{y:.1}H{right:.1}", y = y(*share)).expect("a write to memory");
                }
                svg += &format!("<path class=\"{class}\" d=\"{path}V{height}Z\"/>");
            }
        }
        Histogram::Levels { .. } => {
            let slot = (width / count).min(width / 4.0);
            let bar = 0.38 * slot;
            for (t, (class, shares)) in ["first", "second"].into_iter().zip(shares).enumerate() {
                for (i, share) in shares.iter().enumerate() {
                    let x = slot * i as f64 + 0.12 * slot + bar * t as f64;
                    let top = y(*share);
                    svg += &format!(
                        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{bar:.1}\" height=\"{:.1}\"/>",
                        height - top
                    );
                }
            }
        }
    }
    svg + &format!("<rect class=\"rest\" y=\"{height}\" width=\"{width}\" height=\"1\"/></svg>")
}

/// The values of a column in both tables, in full.
fn details(column: &ColumnChange, names: &[String; 2]) -> String {
    let mut rows = vec![("missing".to_owned(), column.missing.map(percent))];
    match &column.values {
        [Summary::Numbers { mean: m, quantiles: q }, Summary::Numbers { mean: n, quantiles: r }] => {
            rows.push(("mean".to_owned(), [*m, *n].map(short_number)));
            let labels = ["minimum", "lower quartile", "median", "upper quartile", "maximum"];
            let quantiles = labels.iter().zip(q.iter().zip(r));
            rows.extend(quantiles.map(|(label, (a, b))| ((*label).to_owned(), [*a, *b].map(short_number))));
        }
        [Summary::Times { first: a, median: m, last: b }, Summary::Times { first: c, median: n, last: d }] => {
            let times = [("first", a, c), ("median", m, n), ("last", b, d)];
            rows.extend(times.map(|(label, a, b)| (label.to_owned(), [a.clone(), b.clone()])));
        }
        [Summary::Categories { distinct: a, .. }, Summary::Categories { distinct: b, .. }] => {
            rows.push(("distinct values".to_owned(), [*a, *b].map(|n| n.to_string())));
        }
        _ => {}
    }
    let mut more = "<div class=\"more\">".to_owned();
    match &column.histogram {
        Some(histogram @ Histogram::Ranges { edges, .. }) => {
            let end = |x: f64| match column.column_type {
                ColumnType::Time => format_time(x),
                _ => short_number(x),
            };
            more += &format!(
                "<figure><div class=\"wide\">{}</div><figcaption>{} from {} to {}, as shares of rows</figcaption></figure>",
                chart(histogram, LARGE, "the values in both tables"),
                if column.column_type == ColumnType::Text { "numbers of characters" } else { "values" },
                end(edges[0]),
                end(edges[edges.len() - 1]),
            );
        }
        Some(Histogram::Levels { names, shares, .. }) => {
            rows.extend(names.iter().enumerate().map(|(i, name)| {
                (
                    format!("“{name}”"),
                    [0, 1].map(|t: usize| if shares[t][i] > 0.0 { percent(shares[t][i]) } else { "–".to_owned() }),
                )
            }));
        }
        None => {}
    }
    more += &format!(
        "<div class=\"wide\"><table><thead><tr><th></th><th>{}</th><th>{}</th></tr></thead><tbody>",
        escaped(&names[0]),
        escaped(&names[1])
    );
    for (label, [before, after]) in &rows {
        more += &format!("<tr><td>{}</td><td>{}</td><td>{}</td></tr>", escaped(label), escaped(before), escaped(after));
    }
    more += "</tbody></table></div>";
    if let (Some(p), Some(q)) = (column.p_value, column.q_value) {
        let [low, high] = column.interval.map(percent);
        more += &format!(
            "<p>Effect {}, 90 % interval {low} to {high}; noise alone reaches {}. {}, {}.{}</p>",
            percent(column.effect),
            percent(column.noise),
            escaped(&named_p("p", p)),
            escaped(&named_p("q", q)),
            if column.change.is_empty() {
                String::new()
            } else {
                format!(" Largest change: {}.", escaped(&column.change))
            },
        );
    }
    more + "</div>"
}

/// Pairs of columns, and repeated rows.
fn with_joint_changes(mut page: Page, comparison: &Comparison) -> Page {
    if !comparison.pairs.is_empty() {
        let heading = ["column", "with", "correlation before", "after", "effect", "q"];
        let mut table = Table::new("", heading);
        for pair in &comparison.pairs {
            let [a, b] = &pair.columns;
            let [before, after] = pair.correlations.map(|r| Cell::number(r, 2));
            let effect = percent(pair.effect);
            let q = p_text(pair.q_value);
            table.push([
                a.as_str().into(),
                b.as_str().into(),
                before,
                after,
                effect.as_str().into(),
                q.as_str().into(),
            ]);
        }
        page = page
            .with_heading("Changed dependence")
            .with_paragraph("Neither column of a pair changed by itself.")
            .with_table(&table);
    }
    if let Some(repeated) = comparison.repeated_rows.as_ref().filter(|r| r.flagged) {
        let [before, after] = repeated.shares.map(percent);
        page = page.with_heading("Repeated rows").with_paragraph(&format!(
            "{before} of the rows repeat another one before, {after} after ({}).",
            named_p("p", repeated.p_value)
        ));
    }
    page
}

/// Columns of one table only, notes, and how to read the page.
fn with_remarks(page: Page, comparison: &Comparison, names: &[String; 2]) -> Page {
    let only = comparison.only.iter().zip(names).filter(|(columns, _)| !columns.is_empty());
    let mut notes: Vec<String> =
        only.map(|(columns, name)| format!("only in {name}: {}", columns.join(", "))).collect();
    notes.extend(comparison.notes.iter().cloned());
    let page = if notes.is_empty() { page } else { page.with_heading("Notes").with_notes(&notes) };
    page.with_heading("How to read this page").with_paragraph(&format!(
        "The effect of a column is the largest change of the share of rows in any range of values, set of categories, \
         or of missing values. Its line is the 90 % interval; the light band is what noise or the least effect of {} \
         explains. A column counts as changed where its effect is larger than that and significant: the chance of any \
         such column in two tables of the same distribution is at most {}. Made by setwise {}.",
        percent(comparison.min_effect),
        percent(comparison.alpha),
        env!("CARGO_PKG_VERSION")
    ))
}

#[cfg(test)]
mod tests {
    use setwise::compare::Compare;
    use setwise::estimate::Progress;
    use setwise_table::{ColumnChoice, Overrides, Pairing, Table};

    use super::*;

    fn page(columns: usize) -> String {
        let table = |name: &str, shift: usize| {
            let mut text = (0..columns).map(|c| format!("<c{c}>,")).collect::<String>() + "town,day\n";
            for i in 0..400 {
                (0..columns).for_each(|c| text += &format!("{},", (i * 7919 + c) % 1009));
                let town = if shift > 0 && i % 4 == 0 { "<new>" } else { ["Oslo", "Rome & Co"][i % 2] };
                text += &format!("{town},2026-01-{:02}\n", 1 + i % 28);
            }
            Table::parse(name, text.as_bytes()).unwrap()
        };
        let tables = [table("data/a.csv", 0), table("data/<b>.csv", 1)];
        let pairing = Pairing::new(tables, &ColumnChoice::default(), &Overrides::default()).unwrap();
        compare_page(&Compare::default().run(pairing, &Progress::default()).unwrap()).to_html()
    }

    #[test]
    fn the_page_shows_the_verdict_and_a_row_for_each_column() {
        let html = page(3);
        for expected in [
            "<h1>a.csv → &lt;b&gt;.csv</h1>",
            "Changed: 1 of 5 columns",
            "“&lt;new&gt;”: new, 25\u{a0}%",
            "<b>a.csv</b> 400 rows",
            "&lt;c0&gt;",
            "2026-01-01",
            "How to read this page",
        ] {
            assert!(html.contains(expected), "{expected}\n{html}");
        }
        assert_eq!(html.matches("<details class=\"column").count(), 5);
        assert!(!html.contains("<b>.csv") && !html.contains("<c0>") && !html.contains("<new>"));
        assert!(!html.contains("<script") && !html.contains("NaN"));
    }

    #[test]
    fn unchanged_columns_of_wide_tables_are_folded() {
        let html = page(30);
        assert!(html.contains(&format!("<summary>{} columns more</summary>", 31 - MAX_OPEN)), "{html}");
    }

    #[test]
    fn long_numbers_have_groups_and_equal_names_keep_their_folders() {
        assert_eq!([counted(1, "row"), counted(9999, "row")], ["1 row", "9999 rows"]);
        assert_eq!(counted(1_234_567, "row"), "1\u{202f}234\u{202f}567 rows");
        assert_eq!(short_names(&["a/x.csv".to_owned(), "b/x.csv".to_owned()]), ["a/x.csv", "b/x.csv"]);
    }
}
