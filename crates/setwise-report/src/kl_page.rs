//! The page of `setwise kl --report`.

use setwise::estimate::{Estimate, Explanation, Points};

use super::two_samples::{CHARTED, DOTS, contributions, histograms, scatters};
use super::{Cell, Page, Table, decimals};

/// The page of a divergence: interval, warnings, columns, and figures of both samples.
///
/// `p` and `q` must be the explained samples. The seed selects the rows of large samples in scatter plots.
pub fn kl_page(estimate: &Estimate, explanation: &Explanation, p: Points, q: Points, seed: u64) -> Page {
    let interval = match estimate.interval {
        Some([low, high]) => {
            format!("{:.0} % interval {} to {}", 100.0 * estimate.level, decimals(low), decimals(high))
        }
        None => "no interval: there are too few rows".to_owned(),
    };
    let mut page = Page::new(format!("KL divergence of {} from {}", p.name(), q.name()))
        .with_answer(&format!("KL(P‖Q) = {} nats", decimals(estimate.value)), &interval)
        .with_facts(&[
            ("P", &format!("{}, {} rows", p.name(), p.len())),
            ("Q", &format!("{}, {} rows", q.name(), q.len())),
            ("columns", &p.dim().to_string()),
            ("method", &estimate.method),
            ("interval from", &estimate.interval_method.to_owned()),
            ("made by", &format!("setwise {}", env!("CARGO_PKG_VERSION"))),
        ])
        .with_notes(&estimate.warnings);
    if p.dim() > 1 {
        page = with_columns(page, explanation);
    }
    page = page.with_heading("Each column").with_figure(
        &histograms(explanation, p, q),
        "Histograms of both samples, as densities over common bins. Values far out in thin tails are not shown.",
    );
    if let Some(figure) = scatters(explanation, p, q, seed) {
        let rows = match p.len().max(q.len()) {
            n if n > DOTS => format!("At most {DOTS} rows of each sample, drawn at random."),
            _ => "Rows of both samples.".to_owned(),
        };
        let caption = format!("{rows} Values far out in thin tails are not shown.");
        page = page.with_heading("Pairs of columns").with_figure(&figure, &caption);
    }
    page
}

fn with_columns(page: Page, explanation: &Explanation) -> Page {
    let page = page
        .with_heading("Which columns contribute")
        .with_paragraph(
            "Marginal KL is the estimate from a column alone. The drop is how much smaller the estimate is without the \
             column: small where other columns say the same, large where the difference is in how it depends on \
             others. Bars that end before the dashed line of their number are noise.",
        )
        .with_notes(&explanation.warnings);
    let caption = match explanation.columns.len() {
        n if n > CHARTED => format!("The {CHARTED} most important of {n} columns, by the larger of both numbers."),
        _ => "Columns by the larger of both numbers.".to_owned(),
    };
    let heading = ["column", "name", "marginal KL", "90 % interval", "KL without it", "drop", "interval of the drop"];
    let mut table = Table::new("", heading);
    for c in &explanation.columns {
        let number = |value: Option<f64>| value.map_or(Cell::Text("–".to_owned()), |v| Cell::number(v, 4));
        let name = c.name.clone().unwrap_or_default();
        let range = |interval: Option<[f64; 2]>| -> Cell {
            interval.map_or("–".to_owned(), |[low, high]| format!("{} to {}", decimals(low), decimals(high))).into()
        };
        table.push([
            c.column.to_string().into(),
            name.into(),
            number(c.marginal),
            range(c.marginal_interval),
            number(c.without),
            number(c.drop),
            range(c.drop_interval),
        ]);
    }
    page.with_figure(&contributions(explanation), &caption).with_table(&table).with_paragraph(&format!(
        "KL of all columns, from which drops are counted: {}, from {} and {} rows.",
        decimals(explanation.all_columns),
        explanation.n[0],
        explanation.n[1]
    ))
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use setwise::estimate::{Estimator, GaussianKl, explain};

    use super::*;

    fn page(dim: usize) -> String {
        let data = |seed: u64| -> Vec<f64> {
            let mut rng = Pcg64Mcg::seed_from_u64(seed);
            (0..40 * dim).map(|_| rng.random()).collect()
        };
        let (p, q) = (data(1), data(2));
        let (p, q) = (Points::new(&p, dim).named("<p>.csv"), Points::new(&q, dim).named("q & r.csv"));
        let names: Vec<String> = (0..dim).map(|c| format!("<c{c}>")).collect();
        let estimate = GaussianKl::default().estimate(p, q, 0).unwrap();
        let explanation = explain(&GaussianKl::default(), p, q, &names, 0).unwrap();
        kl_page(&estimate, &explanation, p, q, 0).to_html()
    }

    #[test]
    fn the_page_shows_the_estimate_the_columns_and_both_samples() {
        let html = page(3);
        for expected in [
            "KL(P‖Q) = ",
            "90 % interval",
            "&lt;p&gt;.csv, 40 rows",
            "q &amp; r.csv",
            "&lt;c0&gt;",
            "marginal KL",
            "gaussian",
        ] {
            assert!(html.contains(expected), "{expected}");
        }
        assert_eq!(html.matches("<figure>").count(), 3);
        assert!(!html.contains("<p>.csv") && !html.contains("<c0>"));
    }

    #[test]
    fn a_single_column_has_only_a_histogram() {
        let html = page(1);
        assert_eq!(html.matches("<figure>").count(), 1);
        assert!(!html.contains("Which columns contribute"));
    }
}
