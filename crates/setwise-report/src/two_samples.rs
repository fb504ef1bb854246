//! Figures of two samples: distributions of columns, and contributions of columns to an estimate.

use setwise::compare::{Bins, central_range};
use setwise::estimate::{Contribution, Explanation, Points};
use setwise_table::wording::truncated;

use super::{Axis, Figure, Panel, Series, Style};

/// Columns in the chart of contributions.
pub const CHARTED: usize = 20;
/// Columns with a histogram.
const HISTOGRAMS: usize = 6;
/// Columns with scatter plots of all pairs: six plots.
const SCATTERED: usize = 4;
/// Rows of each sample in a scatter plot.
pub const DOTS: usize = 1000;
/// Rounds in which the dots of both samples are drawn alternately.
const ROUNDS: usize = 10;
/// Largest number of letters of a column's name in a figure.
const MAX_NAME_LENGTH: usize = 28;

/// Bars of each column's marginal KL and of the drop without it, the most important column first, with lines where noise
/// reaches.
pub fn contributions(explanation: &Explanation) -> Figure {
    let columns = &explanation.columns[..explanation.columns.len().min(CHARTED)];
    let series = |name: &str, value: fn(&Contribution) -> Option<f64>| {
        let points = columns.iter().enumerate().filter_map(|(i, c)| Some((value(c)?, i as f64)));
        Series::new(name, points).with_style(Style::Bars)
    };
    let names = columns.iter().map(|c| truncated(&c.label(), MAX_NAME_LENGTH));
    let panel = Panel::new("", Axis::linear("nats"), Axis::names(names))
        .with_series(series("marginal KL", |c| c.marginal))
        .with_series(series("drop without it", |c| c.drop));
    let noise = [("noise of the marginal", explanation.noise.marginal), ("noise of the drop", explanation.noise.drop)];
    let panel = noise.into_iter().filter_map(|(name, at)| Some((name, at?))).fold(panel, |panel, (name, at)| {
        let line = [(at, -0.5), (at, columns.len() as f64 - 0.5)];
        panel.with_series(Series::new(name, line).with_style(Style::Dashed))
    });
    Figure::new("").with_panel(panel).with_panel_size(480.0, 20.0 + 34.0 * columns.len() as f64)
}

/// Histograms of both samples' most important columns, as densities over common bins.
pub fn histograms(explanation: &Explanation, p: Points, q: Points) -> Figure {
    let columns = &explanation.columns[..explanation.columns.len().min(HISTOGRAMS)];
    let figure = Figure::new("").with_columns(columns.len().min(3));
    let figure = if columns.len() == 1 { figure.with_panel_size(480.0, 300.0) } else { figure };
    columns.iter().fold(figure, |figure, column| {
        let values = [p, q].map(|points| points.columns(&[column.column - 1]));
        let bins = Bins::of(values.each_ref().map(Vec::as_slice));
        let edges = bins.edges();
        let axis = Axis::linear(truncated(&column.label(), MAX_NAME_LENGTH));
        let axis = axis.with_range(edges[0], edges[edges.len() - 1]);
        let panel = Panel::new("", axis, Axis::linear("density"));
        let names = ["P", "Q"].into_iter().zip(&values);
        figure.with_panel(names.fold(panel, |panel, (name, values)| {
            panel.with_series(Series::new(name, outline(&edges, &bins.shares(values))).with_style(Style::Filled))
        }))
    })
}

/// Scatter plots of pairs of the most important columns. None with a single column.
///
/// Large samples are subsampled by the seed.
pub fn scatters(explanation: &Explanation, p: Points, q: Points, seed: u64) -> Option<Figure> {
    let columns = &explanation.columns[..explanation.columns.len().min(SCATTERED)];
    let pairs: Vec<(usize, usize)> = (0..columns.len()).flat_map(|b| (0..b).map(move |a| (a, b))).collect();
    if pairs.is_empty() {
        return None;
    }
    let rows = [p, q].map(|points| points.subsample(DOTS, seed));
    let axes: Vec<Axis> = columns
        .iter()
        .map(|column| {
            let values = [p, q].map(|points| points.columns(&[column.column - 1]));
            let (low, high) = central_range(values.each_ref().map(Vec::as_slice)).unwrap_or((0.0, 1.0));
            let margin = 0.02 * (high - low);
            Axis::linear(truncated(&column.label(), MAX_NAME_LENGTH)).with_range(low - margin, high + margin)
        })
        .collect();
    let figure = Figure::new("").with_columns(pairs.len().min(3));
    let figure = if pairs.len() == 1 { figure.with_panel_size(480.0, 380.0) } else { figure };
    Some(pairs.into_iter().fold(figure, |figure, (a, b)| {
        let (x, y) = (columns[a].column - 1, columns[b].column - 1);
        let mut panel = Panel::new("", axes[a].clone(), axes[b].clone());
        // Alternating rounds, because the sample drawn last would hide the other.
        for round in 0..ROUNDS {
            for (name, (points, rows)) in ["P", "Q"].into_iter().zip([p, q].into_iter().zip(&rows)) {
                let dots = rows.iter().skip(round).step_by(ROUNDS).map(|&i| (points.row(i)[x], points.row(i)[y]));
                panel = panel.with_series(Series::new(name, dots).with_style(Style::Dots));
            }
        }
        figure.with_panel(panel)
    }))
}

/// The outline of a sample's density over bins, which starts and ends at zero.
fn outline(edges: &[f64], shares: &[f64]) -> Vec<(f64, f64)> {
    let mut points = vec![(edges[0], 0.0)];
    for (range, share) in edges.windows(2).zip(shares) {
        let density = share / (range[1] - range[0]);
        points.extend([(range[0], density), (range[1], density)]);
    }
    points.push((edges[edges.len() - 1], 0.0));
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_density_of_a_histogram_has_area_one() {
        let outline = outline(&[0.0, 0.5, 1.0], &[0.25, 0.75]);
        let area: f64 = outline.windows(2).map(|w| (w[1].0 - w[0].0) * w[0].1).sum();
        assert!((area - 1.0).abs() < 1e-12, "{area}");
        assert_eq!((outline[0], outline[outline.len() - 1]), ((0.0, 0.0), (1.0, 0.0)));
    }
}
