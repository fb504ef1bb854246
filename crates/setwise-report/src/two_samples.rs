//! Figures of two samples: how their columns are distributed, and which of them an estimate comes from.

use setwise::estimate::{Contribution, Explanation, Points};

use super::{Axis, Figure, Panel, Series, Style};

/// Columns in the chart of contributions.
pub const CHARTED: usize = 20;
/// Columns with a histogram.
const HISTOGRAMS: usize = 6;
/// Columns whose pairs are scattered: six pairs.
const SCATTERED: usize = 4;
/// Rows of each sample in a scatter plot.
pub const DOTS: usize = 1000;
/// Turns in which the dots of both samples are drawn.
const TURNS: usize = 10;
/// Most letters of a column's name in a figure.
const NAME: usize = 28;

/// Bars of the own divergence of columns and of the loss without them, the most important first.
pub fn contributions(explanation: &Explanation) -> Figure {
    let columns = &explanation.columns[..explanation.columns.len().min(CHARTED)];
    let series = |name: &str, value: fn(&Contribution) -> Option<f64>| {
        let points = columns.iter().enumerate().filter_map(|(i, c)| Some((value(c)?, i as f64)));
        Series::new(name, points).with_style(Style::Bars)
    };
    let names = columns.iter().map(|c| shortened(&c.label(), NAME));
    let panel = Panel::new("", Axis::linear("nats"), Axis::names(names))
        .with_series(series("own KL", |c| c.alone))
        .with_series(series("loss without it", |c| c.loss));
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
        let axis = Axis::linear(shortened(&column.label(), NAME)).with_range(bins.low, bins.high());
        let panel = Panel::new("", axis, Axis::linear("density"));
        let names = ["P", "Q"].into_iter().zip(&values);
        figure.with_panel(names.fold(panel, |panel, (name, values)| {
            panel.with_series(Series::new(name, bins.outline(values)).with_style(Style::Filled))
        }))
    })
}

/// Scatter plots of the pairs of the most important columns; none with a single column.
///
/// The seed selects the rows of large samples that are plotted.
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
            let room = 0.02 * (high - low);
            Axis::linear(shortened(&column.label(), NAME)).with_range(low - room, high + room)
        })
        .collect();
    let figure = Figure::new("").with_columns(pairs.len().min(3));
    let figure = if pairs.len() == 1 { figure.with_panel_size(480.0, 380.0) } else { figure };
    Some(pairs.into_iter().fold(figure, |figure, (a, b)| {
        let (x, y) = (columns[a].column - 1, columns[b].column - 1);
        let mut panel = Panel::new("", axes[a].clone(), axes[b].clone());
        // In turns, or the sample drawn last would hide the other.
        for turn in 0..TURNS {
            for (name, (points, rows)) in ["P", "Q"].into_iter().zip([p, q].into_iter().zip(&rows)) {
                let dots = rows.iter().skip(turn).step_by(TURNS).map(|&i| (points.row(i)[x], points.row(i)[y]));
                panel = panel.with_series(Series::new(name, dots).with_style(Style::Dots));
            }
        }
        figure.with_panel(panel)
    }))
}

/// Text of at most so many letters.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Where nearly all values of both samples lie: values far out in thin tails would press all others together.
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

/// Most bins of a histogram.
const MOST_BINS: f64 = 60.0;

impl Bins {
    /// One for each number where there are few whole ones, otherwise as wide as Freedman and Diaconis would have them.
    fn of(values: &[Vec<f64>; 2]) -> Bins {
        let (low, high) = central(values);
        let span = high - low;
        if !span.is_finite() || span <= 0.0 {
            return Bins { low: low - 0.5, width: 1.0, count: 1 };
        }
        if span < MOST_BINS && values.iter().flatten().all(|x| x.fract() == 0.0) {
            return Bins { low: low.ceil() - 0.5, width: 1.0, count: (high.floor() - low.ceil()) as usize + 1 };
        }
        let sorted = sorted(values);
        let n = sorted.len() as f64;
        let wanted = 2.0 * (quantile(&sorted, 0.75) - quantile(&sorted, 0.25)) / (n / 2.0).cbrt();
        let count = if wanted > 0.0 { (span / wanted).ceil() } else { n.sqrt() };
        let count = count.clamp(8.0, MOST_BINS) as usize;
        Bins { low, width: span / count as f64, count }
    }

    fn high(&self) -> f64 {
        self.low + self.width * self.count as f64
    }

    /// The outline of a sample's density, from zero back to zero.
    fn outline(&self, values: &[f64]) -> Vec<(f64, f64)> {
        let mut counts = vec![0usize; self.count];
        for &x in values {
            let bin = (x - self.low) / self.width;
            // The highest value belongs to the last bin; rounding may push it a little further.
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
    fn one_far_value_does_not_squeeze_the_others_and_one_value_alone_has_a_bin() {
        let mut p: Vec<f64> = (0..1000).map(|i| f64::from(i) / 1000.0).collect();
        p[500] = 1e9;
        let bins = Bins::of(&[p.clone(), p]);
        assert!(bins.high() < 2.0);
        let bins = Bins::of(&[vec![3.0; 5], vec![3.0; 5]]);
        assert_eq!((bins.count, bins.outline(&[3.0])[1].1), (1, 1.0));
        let whole = Bins::of(&[vec![1.0, 2.0, 2.0], vec![5.0]]);
        assert_eq!((whole.low, whole.high(), whole.count), (0.5, 5.5, 5));
        // A range beyond all numbers does not panic.
        let bins = Bins::of(&[vec![-1.7e308, 1.7e308], vec![0.0]]);
        assert_eq!(bins.outline(&[0.0]).len(), 2 + 2 * bins.count);
    }

    #[test]
    fn long_names_are_shortened_by_letters() {
        assert_eq!(shortened("äöüß", 4), "äöüß");
        assert_eq!(shortened("äöüßx", 4), "äöü…");
    }
}
