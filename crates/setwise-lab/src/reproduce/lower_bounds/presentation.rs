//! The table and the figure of the lower bounds.

use setwise_report::{Axis, Cell, Figure, Panel, Series, Style, Table};

use super::posterior_draws::{DIVISORS, PosteriorDraws};
use super::{COMPONENTS, Dimension, FULL, Method, mean};

/// Names in the table and the figure.
const LOWER_BOUND: &str = "lower bound";
const POSTERIOR_MEDIAN: &str = "posterior median, computed";
/// Methods without training.
pub(super) const CLASSICAL: [&str; 3] = [POSTERIOR_MEDIAN, "gaussian", "knn"];

pub(super) fn table(columns: &[Dimension]) -> Table {
    let names = columns.iter().map(|c| format!("d = {}", c.dim));
    let mut table = Table::new(
        "Mean absolute error of KL divergence, and lower bounds",
        std::iter::once("estimate".to_owned()).chain(names),
    );
    let mut row = |name: &str, cell: &dyn Fn(&Dimension) -> Cell| {
        table.push(std::iter::once(name.into()).chain(columns.iter().map(cell)));
    };
    let estimate = |(mean, error): (f64, f64)| Cell::estimate(mean, error, 4);
    row(LOWER_BOUND, &|c| estimate(c.lower_bound(FULL)));
    row("lower bound, half of the steps", &|c| estimate(c.lower_bound(FULL - 1)));
    row("lower bound, a quarter of the steps", &|c| estimate(c.lower_bound(FULL - 2)));
    row("median of the chain from the truth", &|c| estimate(c.mean(|o| o.error[FULL])));
    let mut methods: Vec<&str> = Vec::new();
    for method in columns.iter().flat_map(|c| &c.methods) {
        if !methods.contains(&method.name.as_str()) {
            methods.push(&method.name);
        }
    }
    let of = |c: &Dimension, name: &str, number: &dyn Fn(&Method) -> (f64, f64)| {
        c.methods.iter().find(|m| m.name == name).map_or(Cell::NotRun, |m| estimate(number(m)))
    };
    for name in &methods {
        row(name, &|c| of(c, name, &|m| mean(m.errors.iter().copied())));
    }
    row("the paper's best", &|c| Cell::number(c.paper_best(), 4));
    for name in &methods {
        row(&format!("{name}, excess over the lower bound"), &|c| of(c, name, &|m| c.excess(m)));
    }
    for name in methods.iter().filter(|name| !CLASSICAL.contains(name)) {
        for k in COMPONENTS {
            let among =
                if k.start() == k.end() { k.start().to_string() } else { format!("{} to {}", k.start(), k.end()) };
            row(&format!("{name}, excess over the lower bound, q of {among} components"), &|c| {
                if c.count(&k) < 2 { Cell::Empty } else { of(c, name, &|m| c.excess_among(m, &k)) }
            });
        }
    }
    row("effective sample size of a chain", &|c| Cell::number(c.effective_size(), 0));
    table
}

/// Errors against the length of the chains, a panel for each dimension.
pub(super) fn figure(columns: &[Dimension], steps: usize) -> Figure {
    let mut figure = Figure::new("Lower bounds of the error").with_columns(2);
    for c in columns {
        let mut panel =
            Panel::new(format!("d = {}", c.dim), Axis::log("steps of the chain"), Axis::linear("mean absolute error"));
        let at = |part: usize| (steps / DIVISORS[part]) as f64;
        let points = |of: &dyn Fn(&PosteriorDraws, usize) -> f64| -> Vec<(f64, f64)> {
            (0..DIVISORS.len()).map(|k| (at(k), c.mean(|o| of(o, k)).0)).collect()
        };
        panel = panel
            .with_series(Series::new(LOWER_BOUND, points(&|o, k| o.spread[k])))
            .with_series(Series::new(POSTERIOR_MEDIAN, points(&|o, k| o.expected_error(o.from_prior[k]))));
        // The errors of classical estimates would dominate the scale.
        let models = c.methods.iter().filter(|m| !CLASSICAL.contains(&m.name.as_str()));
        for m in models {
            let level = mean(m.expected.iter().copied()).0;
            let line = Series::new(&m.name, [(at(0), level), (at(FULL), level)]).with_style(Style::Dashed);
            panel = panel.with_series(line);
        }
        figure = figure.with_panel(panel);
    }
    figure
}
