//! A column of both tables for a chart.

use serde::Serialize;

use super::bins::{Bin, Binned};

/// Largest number of bins of a histogram.
const MAX_BINS: f64 = 60.0;
/// Beyond so many whole numbers, bins need not hold equally many of them.
const MANY_BINS: f64 = 1000.0;
/// Values that determine the bins; of longer columns a systematic sample.
const MAX_SORTED: usize = 1 << 16;
/// The most frequent categories that are shown.
const FREQUENT: usize = 8;
/// Other categories that are shown because they moved most.
const MOVED: usize = 4;

/// Shares of the rows with a value, in both tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Histogram {
    /// Consecutive ranges of numbers, or of times as seconds since 1970. Values far out in thin tails are left out.
    Ranges {
        /// The ends of all ranges.
        edges: Vec<f64>,
        /// Shares in each range.
        shares: [Vec<f64>; 2],
    },
    /// Categories, the most frequent first.
    Levels {
        /// The categories. If there are others, the last name stands for them.
        names: Vec<String>,
        /// The number of other categories.
        others: usize,
        /// Shares of each.
        shares: [Vec<f64>; 2],
    },
}

impl Histogram {
    /// Numbers, or times in seconds.
    pub(super) fn of_numbers(values: [&[f64]; 2], are_times: bool) -> Self {
        const DAY: f64 = 86_400.0;
        let bins = Bins::of_multiples(values, if are_times { DAY } else { 1.0 });
        Histogram::Ranges { edges: bins.edges(), shares: values.map(|v| bins.shares(v)) }
    }

    /// Bins of categories are sorted by frequency.
    pub(super) fn of_levels(binned: &Binned) -> Self {
        let present = binned.present();
        let share = |t: usize, bin: usize| binned.counts[t][bin] as f64 / present[t].max(1) as f64;
        let mut shown: Vec<usize> = (0..binned.bins.len().min(FREQUENT)).collect();
        let mut others: Vec<usize> = (shown.len()..binned.bins.len()).collect();
        let moved = |bin: &usize| (share(1, *bin) - share(0, *bin)).abs();
        others.sort_by(|a, b| moved(b).total_cmp(&moved(a)).then(a.cmp(b)));
        // A single other category needs no summary.
        let also = if others.len() == MOVED + 1 { others.len() } else { others.len().min(MOVED) };
        let rest = others.split_off(also);
        others.sort_unstable();
        shown.extend(others);
        let name = |&bin: &usize| match &binned.bins[bin] {
            Bin::Level(level) => level.clone(),
            Bin::Rare(count) => format!("{count} rare ones"),
            Bin::Range(low, _) => low.to_string(),
        };
        let mut names: Vec<String> = shown.iter().map(name).collect();
        let mut shares = [0, 1].map(|t| shown.iter().map(|&bin| share(t, bin)).collect::<Vec<f64>>());
        if !rest.is_empty() {
            names.push(format!("{} others", rest.len()));
            (0..2).for_each(|t| shares[t].push(rest.iter().map(|&bin| share(t, bin)).sum()));
        }
        Histogram::Levels { names, others: rest.len(), shares }
    }
}

/// Equal bins over two samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bins {
    low: f64,
    width: f64,
    count: usize,
}

impl Bins {
    /// Bins of equally many integers where values are such, otherwise bins by the rule of Freedman and Diaconis.
    pub fn of(values: [&[f64]; 2]) -> Bins {
        Self::of_multiples(values, 1.0)
    }

    /// Bins of equally many multiples of a unit where all values are such.
    fn of_multiples(values: [&[f64]; 2], unit: f64) -> Bins {
        let sorted = sorted(values);
        let Some((low, high)) = central(&sorted) else { return Bins { low: 0.0, width: 1.0, count: 1 } };
        let span = high - low;
        if !span.is_finite() || span <= 0.0 {
            return Bins { low: low - 0.5, width: 1.0, count: 1 };
        }
        if sorted.iter().all(|x| x % unit == 0.0) && span < MANY_BINS * unit {
            let (first, last) = ((low / unit).ceil(), (high / unit).floor());
            // Every bin holds equally many multiples.
            let step = ((last - first + 1.0) / MAX_BINS).ceil();
            let count = ((last - first + 1.0) / step).ceil() as usize;
            return Bins { low: unit * (first - 0.5), width: unit * step, count };
        }
        let n = (values[0].len() + values[1].len()) as f64;
        let bin_width = 2.0 * (quantile(&sorted, 0.75) - quantile(&sorted, 0.25)) / (n / 2.0).cbrt();
        let count = if bin_width > 0.0 { (span / bin_width).ceil() } else { n.sqrt() };
        let count = count.clamp(8.0, MAX_BINS) as usize;
        Bins { low, width: span / count as f64, count }
    }

    /// The ends of all bins.
    pub fn edges(&self) -> Vec<f64> {
        (0..=self.count).map(|i| self.low + i as f64 * self.width).collect()
    }

    /// The share of values in each bin, of all that are no NaN.
    pub fn shares(&self, values: &[f64]) -> Vec<f64> {
        let mut counts = vec![0u64; self.count];
        let mut present = 0u64;
        for &x in values.iter().filter(|x| !x.is_nan()) {
            present += 1;
            let bin = (x - self.low) / self.width;
            // The largest value belongs to the last bin, also if rounding moves it beyond.
            if (0.0..=self.count as f64 * (1.0 + 1e-9)).contains(&bin) {
                counts[(bin as usize).min(self.count - 1)] += 1;
            }
        }
        counts.into_iter().map(|count| count as f64 / present.max(1) as f64).collect()
    }
}

/// The range of nearly all finite values of two samples, without thin tails.
pub fn central_range(values: [&[f64]; 2]) -> Option<(f64, f64)> {
    central(&sorted(values))
}

fn central(sorted: &[f64]) -> Option<(f64, f64)> {
    let (first, last) = (sorted.first()?, sorted.last()?);
    let (low, high) = (quantile(sorted, 0.005), quantile(sorted, 0.995));
    let reach = 0.5 * (high - low);
    Some((first.max(low - reach), last.min(high + reach)))
}

/// Finite values of both samples in order.
fn sorted(values: [&[f64]; 2]) -> Vec<f64> {
    let step = (values[0].len() + values[1].len()).div_ceil(MAX_SORTED).max(1);
    let sample = values.into_iter().flat_map(|v| v.iter().step_by(step));
    let mut sorted: Vec<f64> = sample.copied().filter(|x| x.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

#[cfg(test)]
mod tests {
    use setwise_table::Text;

    use super::*;

    #[test]
    fn shares_of_a_histogram_add_up_to_one_over_a_narrow_range() {
        let p: Vec<f64> = (0..1000).map(|i| f64::from((i * 7919) % 1000) / 1000.0).collect();
        let q: Vec<f64> = p.iter().map(|x| 0.5 * x).chain([f64::NAN]).collect();
        let bins = Bins::of([&p, &q]);
        for values in [&p, &q] {
            let sum: f64 = bins.shares(values).iter().sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        }
        assert_eq!(bins.edges().len(), bins.count + 1);
        let mut far = p.clone();
        far[500] = 1e9;
        assert!(*Bins::of([&far, &far]).edges().last().unwrap() < 2.0);
    }

    #[test]
    fn constants_integers_and_odd_values_have_bins() {
        let constant = Bins::of([&[3.0; 5], &[3.0; 5]]);
        assert_eq!((constant.edges(), constant.shares(&[3.0])), (vec![2.5, 3.5], vec![1.0]));
        let integers = Bins::of([&[1.0, 2.0, 2.0], &[5.0]]);
        assert_eq!(integers.edges(), [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]);
        for odd in [&[f64::NAN][..], &[], &[f64::INFINITY]] {
            assert_eq!(Bins::of([odd, &[]]).shares(odd), [0.0]);
        }
        let ages: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(Bins::of([&ages, &ages]).shares(&ages), [0.02; 50]);
        // A range that overflows does not panic.
        assert_eq!(Bins::of([&[-1.7e308, 1.7e308], &[0.0]]).shares(&[0.0]).len(), 1);
    }

    #[test]
    fn categories_that_moved_are_shown_beside_frequent_ones() {
        let names: Vec<String> = (0..40).map(|i| format!("l{i:02}")).collect();
        let mut texts = [Text::default(), Text::default()];
        for (t, text) in texts.iter_mut().enumerate() {
            for (i, name) in names.iter().enumerate() {
                let rows = if (i, t) == (35, 1) { 30 } else { 100 - i };
                (0..rows).for_each(|_| text.push(Some(name)));
            }
        }
        let histogram = Histogram::of_levels(&Binned::levels([&texts[0], &texts[1]]));
        let Histogram::Levels { names, shares, others: 28 } = histogram else { panic!("{histogram:?}") };
        assert_eq!((names.len(), names[0].as_str(), names[12].as_str()), (13, "l00", "28 others"));
        assert!(names.contains(&"l35".to_owned()));
        assert!(shares.iter().all(|s| (s.iter().sum::<f64>() - 1.0).abs() < 1e-9));
    }
}
