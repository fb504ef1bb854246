//! Figures of two samples: distributions of columns, and contributions of columns to an estimate.

use setwise::estimate::{Contribution, Explanation, Points};

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

/// Bars of each column's marginal KL and of the drop without it, the most important column first.
pub fn contributions(explanation: &Explanation) -> Figure {
    let columns = &explanation.columns[..explanation.columns.len().min(CHARTED)];
    let series = |name: &str, value: fn(&Contribution) -> Option<f64>| {
        let points = columns.iter().enumerate().filter_map(|(i, c)| Some((value(c)?, i as f64)));
        Series::new(name, points).with_style(Style::Bars)
    };
    let names = columns.iter().map(|c| shortened(&c.label(), MAX_NAME_LENGTH));
    let panel = Panel::new("", Axis::linear("nats"), Axis::names(names))
        .with_series(series("marginal KL", |c| c.marginal))
        .with_series(series("drop without it", |c| c.drop));
    Figure::new("").with_panel(panel).with_panel_size(480.0, 20.0 + 34.0 * columns.len() as f64)
}

/// Histograms of both samples' most important columns, as densities over common bins.
pub fn histograms(explanation: &Explanation, p: Points, q: Points) -> Figure {
    let columns = &explanation.columns[..explanation.columns.len().min(HISTOGRAMS)];
    let figure = Figure::new("").with_columns(columns.len().min(3));
    let figure = if columns.len() == 1 { figure.with_panel_size(480.0, 300.0) } else { figure };
    columns.iter().fold(figure, |figure, column| {
        let values = [p, q].map(|points| points.columns(&[column.column - 1]));
        let bins = Bins::of(&values);
        let axis = Axis::linear(shortened(&column.label(), MAX_NAME_LENGTH)).with_range(bins.low, bins.high());
        let panel = Panel::new("", axis, Axis::linear("density"));
        let names = ["P", "Q"].into_iter().zip(&values);
        figure.with_panel(names.fold(panel, |panel, (name, values)| {
            panel.with_series(Series::new(name, bins.outline(values)).with_style(Style::Filled))
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
            let (low, high) = central(&[p, q].map(|points| points.columns(&[column.column - 1])));
            let margin = 0.02 * (high - low);
            Axis::linear(shortened(&column.label(), MAX_NAME_LENGTH)).with_range(low - margin, high + margin)
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

/// Text truncated to `max_length` letters.
pub(super) fn shortened(text: &str, max_length: usize) -> String {
    if text.chars().count() <= max_length {
        return text.to_owned();
    }
    text.chars().take(max_length - 1).chain(['…']).collect()
}

/// The range of nearly all values of both samples, without thin tails.
fn central(values: &[Vec<f64>; 2]) -> (f64, f64) {
    let sorted = sorted(values);
    let (low, high) = (quantile(&sorted, 0.005), quantile(&sorted, 0.995));
    let reach = 0.5 * (high - low);
    (sorted[0].max(low - reach), sorted[sorted.len() - 1].min(high + reach))
}

fn sorted(values: &[Vec<f64>; 2]) -> Vec<f64> {
    let mut sorted = values.concat();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// Equal bins over both samples.
struct Bins {
    low: f64,
    width: f64,
    count: usize,
}

/// Largest number of bins of a histogram.
const MAX_BINS: f64 = 60.0;

impl Bins {
    /// One bin for each integer where there are few, otherwise bins by the rule of Freedman and Diaconis.
    fn of(values: &[Vec<f64>; 2]) -> Bins {
        let (low, high) = central(values);
        let span = high - low;
        if !span.is_finite() || span <= 0.0 {
            return Bins { low: low - 0.5, width: 1.0, count: 1 };
        }
        if span < MAX_BINS && values.iter().flatten().all(|x| x.fract() == 0.0) {
            return Bins { low: low.ceil() - 0.5, width: 1.0, count: (high.floor() - low.ceil()) as usize + 1 };
        }
        let sorted = sorted(values);
        let n = sorted.len() as f64;
        let bin_width = 2.0 * (quantile(&sorted, 0.75) - quantile(&sorted, 0.25)) / (n / 2.0).cbrt();
        let count = if bin_width > 0.0 { (span / bin_width).ceil() } else { n.sqrt() };
        let count = count.clamp(8.0, MAX_BINS) as usize;
        Bins { low, width: span / count as f64, count }
    }

    fn high(&self) -> f64 {
        self.low + self.width * self.count as f64
    }

    /// The outline of a sample's density, which starts and ends at zero.
    fn outline(&self, values: &[f64]) -> Vec<(f64, f64)> {
        let mut counts = vec![0usize; self.count];
        for &x in values {
            let bin = (x - self.low) / self.width;
            // The largest value belongs to the last bin, also if rounding moves it beyond.
            if (0.0..=self.count as f64 * (1.0 + 1e-9)).contains(&bin) {
                counts[(bin as usize).min(self.count - 1)] += 1;
            }
        }
        let edge = |i: usize| self.low + i as f64 * self.width;
        let mut points = vec![(edge(0), 0.0)];
        for (i, &count) in counts.iter().enumerate() {
            let density = count as f64 / values.len() as f64 / self.width;
            points.extend([(edge(i), density), (edge(i + 1), density)]);
        }
        points.push((edge(self.count), 0.0));
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_density_of_a_histogram_has_area_one() {
        let p: Vec<f64> = (0..1000).map(|i| f64::from((i * 7919) % 1000) / 1000.0).collect();
        let q: Vec<f64> = p.iter().map(|x| 0.5 * x).collect();
        let both = [p, q];
        let bins = Bins::of(&both);
        for values in &both {
            let outline = bins.outline(values);
            let area: f64 = outline.windows(2).map(|w| (w[1].0 - w[0].0) * w[0].1).sum();
            assert!((area - 1.0).abs() < 1e-9, "{area}");
            assert_eq!((outline[0].1, outline[outline.len() - 1].1), (0.0, 0.0));
        }
    }

    #[test]
    fn an_outlier_does_not_widen_the_bins_and_a_constant_has_one_bin() {
        let mut p: Vec<f64> = (0..1000).map(|i| f64::from(i) / 1000.0).collect();
        p[500] = 1e9;
        let bins = Bins::of(&[p.clone(), p]);
        assert!(bins.high() < 2.0);
        let bins = Bins::of(&[vec![3.0; 5], vec![3.0; 5]]);
        assert_eq!((bins.count, bins.outline(&[3.0])[1].1), (1, 1.0));
        let integers = Bins::of(&[vec![1.0, 2.0, 2.0], vec![5.0]]);
        assert_eq!((integers.low, integers.high(), integers.count), (0.5, 5.5, 5));
        // A range that overflows does not panic.
        let bins = Bins::of(&[vec![-1.7e308, 1.7e308], vec![0.0]]);
        assert_eq!(bins.outline(&[0.0]).len(), 2 + 2 * bins.count);
    }

    #[test]
    fn long_names_are_truncated_by_letters() {
        assert_eq!(shortened("äöüß", 4), "äöüß");
        assert_eq!(shortened("äöüßx", 4), "äöü…");
    }
}
