//! The page of `setwise compare --by … --report`.

use setwise::compare::{ColumnChange, PeriodComparison, percent};

use super::svg::{escaped, unbroken};
use super::{Page, compare_table::period_columns};

/// Width and height of the chart of a column.
const CHART: [f64; 2] = [420.0, 44.0];
/// Columns that are listed without a fold.
const MAX_OPEN: usize = 20;

/// The page of changes over time: the effect on each column in each period, and what changed in each.
pub fn periods_page(found: &PeriodComparison, table: &str) -> Page {
    let changed = found.periods.iter().filter(|p| p.comparison.changed).count();
    let by = found.by;
    let answer = match changed {
        0 => format!("No change in {} {by}s", found.periods.len()),
        n => format!("Changed in {n} of {} {by}s", found.periods.len()),
    };
    let against = match found.periods.first() {
        Some(first) if found.periods.iter().all(|p| p.against == first.against) => first.against.clone(),
        _ => format!("the {by} before"),
    };
    let below = format!("Each {by} of {table} by {}, against {against}", found.time);
    let mut page = Page::new(format!("{table} by {by}")).with_answer(&answer, &below);
    let (first, last) = (&found.periods[0], &found.periods[found.periods.len() - 1]);
    page = page.with_heading("Effects over time").with_paragraph(&format!(
        "A bar for each {by} from {} to {}, full at the largest effect of the column. Flagged {by}s are orange; a light \
         part is noise.",
        first.period, last.period
    ));
    let (columns, places) = (period_columns(found), found.places());
    let row = |(name, changes): &(String, Vec<Option<&ColumnChange>>)| {
        let largest = found.periods.iter().zip(changes).filter_map(|(p, c)| Some((p, (*c)?)));
        let largest =
            largest.max_by(|a, b| (a.1.flagged, a.1.effect).partial_cmp(&(b.1.flagged, b.1.effect)).expect("numbers"));
        let text = match largest {
            Some((p, c)) if c.flagged => {
                format!("<b>{}</b> {}<small>{}</small>", percent(c.effect), escaped(&p.period), unbroken(&c.change))
            }
            Some((p, c)) => format!("<small>at most {}, {}</small>", percent(c.effect), escaped(&p.period)),
            None => String::new(),
        };
        let class = if largest.is_some_and(|(_, c)| c.flagged) { "column" } else { "column unchanged" };
        format!(
            "<div class=\"{class} over-time\"><span class=\"name\">{}</span>{}<span class=\"change\">{text}</span></div>\n",
            escaped(name),
            chart(changes, &places)
        )
    };
    let (open, folded) = columns.split_at(columns.len().min(MAX_OPEN));
    page = page.push(format_args!("{}", open.iter().map(row).collect::<String>()));
    if !folded.is_empty() {
        let rows: String = folded.iter().map(row).collect();
        page = page.push(format_args!("<details><summary>{} more columns</summary>\n{rows}</details>", folded.len()));
    }
    page = page.with_heading(&format!("What changed in each {by}"));
    for p in &found.periods {
        let c = &p.comparison;
        page = page.push(format_args!(
            "<p class=\"period\"><b>{}{}</b> {} rows, Jensen–Shannon divergence {:.4} nats. {}</p>",
            if c.changed { "● " } else { "" },
            escaped(&p.period),
            c.rows[1],
            c.effect,
            unbroken(&c.summary)
        ));
    }
    page = if found.notes.is_empty() { page } else { page.with_heading("Notes").with_notes(&found.notes) };
    page.with_heading("How to read this page").with_paragraph(&format!(
        "The effect on a column is the largest change of the share of rows in any range of values, set of categories, \
         or of missing values. The chance of any flag where nothing changed is at most {} for all {by}s together. Made \
         by setwise {}.",
        percent(found.alpha),
        env!("CARGO_PKG_VERSION")
    ))
}

/// A bar for the effect in each period, at its place on the axis of time.
fn chart(changes: &[Option<&ColumnChange>], places: &[usize]) -> String {
    /// Effects that a full bar shows at least.
    const LEAST: f64 = 0.05;
    let [width, height] = CHART;
    let most = changes.iter().flatten().map(|c| c.effect).fold(LEAST, f64::max);
    let slot = (width / places.last().map_or(1, |last| last + 1) as f64).min(28.0);
    let mut svg = format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"effects over time\">"
    );
    for (&place, change) in places.iter().zip(changes) {
        let Some(change) = change else { continue };
        let tall = |effect: f64| (height * effect / most).clamp(0.0, height);
        let (x, bar) = (slot * place as f64 + 0.1 * slot, 0.8 * slot);
        let class = if change.flagged { "second" } else { "bar" };
        for (class, tall) in [(class, tall(change.effect)), ("noise", tall(change.noise))] {
            let y = height - tall;
            svg +=
                &format!("<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{bar:.1}\" height=\"{tall:.1}\"/>");
        }
    }
    svg + &format!("<rect class=\"rest\" y=\"{height}\" width=\"{width}\" height=\"1\"/></svg>")
}

#[cfg(test)]
mod tests {
    use setwise::compare::{Against, Compare};
    use setwise::estimate::Progress;
    use setwise_table::{ColumnChoice, Overrides, Pairing, Period, Table};

    use super::*;

    #[test]
    fn the_page_shows_a_chart_for_each_column_and_a_line_for_each_period() {
        let mut text = "day,x,<y>\n".to_owned();
        for i in 0..1200 {
            let month = 1 + i / 300;
            let x = (i * 7919 % 1009) as f64 / 1009.0 + if month == 3 && i % 3 == 0 { 2.0 } else { 0.0 };
            text += &format!("2026-{month:02}-{:02},{x},{}\n", 1 + i % 28, (i * 31 % 97) as f64 + 0.5);
        }
        let table = || Table::parse("t.csv", text.as_bytes()).unwrap();
        let pairing = Pairing::new([table(), table()], &ColumnChoice::default(), &Overrides::default()).unwrap();
        let found =
            Compare::default().run_periods(pairing, Period::Month, None, Against::First, &Progress::default()).unwrap();
        let html = periods_page(&found, "t.csv").to_html();
        assert!(html.contains("Changed in 1 of 3 months") && html.contains("&lt;y&gt;"), "{html}");
        assert_eq!((html.matches("over-time\"").count(), html.matches("class=\"period\"").count()), (2, 3));
        assert_eq!(html.matches("class=\"second\"").count(), 1);
    }
}
