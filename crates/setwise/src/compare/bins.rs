//! A column of two tables as counts in bins.
//!
//! Ordered columns have bins between quantiles of both tables. A value that many rows share has a bin of its own.
//! Categories have a bin each, the rarest ones a common one. Missing values are counted apart.

use std::collections::BTreeMap;

use setwise_table::{Column, Text, Values};

/// Most bins of a column.
pub(super) const MAX_BINS: usize = 256;
/// The code of a missing value.
pub(super) const MISSING: u16 = u16::MAX;
/// Values that determine the bins; of longer columns a systematic sample.
const MAX_SORTED: usize = 1 << 18;

/// What a bin holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Bin {
    /// Numbers or times from the first to the second.
    Range(f64, f64),
    /// A category.
    Level(String),
    /// This number of rare categories.
    Rare(usize),
}

/// A column of two tables as bins.
#[derive(Clone, Debug)]
pub(super) struct Binned {
    pub bins: Vec<Bin>,
    /// Whether the bins have an order.
    pub ordered: bool,
    /// The bin of each row of both tables, or [`MISSING`].
    pub codes: [Vec<u16>; 2],
    /// Rows of both tables in each bin.
    pub counts: [Vec<u64>; 2],
    /// Rows of both tables with a missing value.
    pub missing: [u64; 2],
}

impl Binned {
    /// Bins numbers or times, in which NaN is missing.
    pub fn ordered(values: [&[f64]; 2]) -> Self {
        let rows = values[0].len() + values[1].len();
        let ranges = quantile_bins(values, (rows / 20).clamp(8, MAX_BINS));
        let uppers: Vec<f64> = ranges.iter().map(|r| r.1).collect();
        let last = ranges.len().saturating_sub(1);
        // Bins of a sample of long columns: values beyond the ends are in the outer bins.
        let code = |x: &f64| match x.is_nan() {
            true => MISSING,
            false => uppers.partition_point(|upper| upper < x).min(last) as u16,
        };
        let codes = values.map(|v| v.iter().map(code).collect());
        Self::of_codes(ranges.into_iter().map(|(low, high)| Bin::Range(low, high)).collect(), true, codes)
    }

    /// Bins categories.
    pub fn levels(values: [&Text; 2]) -> Self {
        let mut pooled: BTreeMap<&str, u64> = BTreeMap::new();
        for text in values {
            for (level, count) in text.levels.iter().zip(text.counts()).filter(|(_, n)| *n > 0) {
                *pooled.entry(level).or_default() += count;
            }
        }
        let mut order: Vec<(&str, u64)> = pooled.into_iter().collect();
        order.sort_by_key(|(level, count)| (std::cmp::Reverse(*count), *level));
        let own = if order.len() > MAX_BINS { MAX_BINS - 1 } else { order.len() };
        let rare = order.len() - own;
        let mut bins: Vec<Bin> = order[..own].iter().map(|(level, _)| Bin::Level((*level).to_owned())).collect();
        if rare > 0 {
            bins.push(Bin::Rare(rare));
        }
        let codes = values.map(|text| {
            let mut of_level = vec![own as u16; text.levels.len()];
            for (bin, (level, _)) in order[..own].iter().enumerate() {
                if let Some(code) = text.levels.find(level) {
                    of_level[code as usize] = bin as u16;
                }
            }
            text.codes.iter().map(|c| if *c == Text::MISSING { MISSING } else { of_level[*c as usize] }).collect()
        });
        Self::of_codes(bins, false, codes)
    }

    fn of_codes(bins: Vec<Bin>, ordered: bool, codes: [Vec<u16>; 2]) -> Self {
        let mut missing = [0; 2];
        let counts = std::array::from_fn(|t| {
            let mut counts = vec![0; bins.len()];
            for code in &codes[t] {
                match *code {
                    MISSING => missing[t] += 1,
                    code => counts[code as usize] += 1,
                }
            }
            counts
        });
        Binned { bins, ordered, codes, counts, missing }
    }

    /// Rows of each table with a value.
    pub fn present(&self) -> [u64; 2] {
        std::array::from_fn(|t| self.counts[t].iter().sum())
    }

    /// Rows of both tables in each bin.
    pub fn totals(&self) -> Vec<u64> {
        self.counts[0].iter().zip(&self.counts[1]).map(|(a, b)| a + b).collect()
    }
}

/// The numbers of a column of an ordered type.
pub(super) fn numbers(column: &Column) -> &[f64] {
    match &column.values {
        Values::Numbers(v) | Values::Times(v) => v,
        Values::Text(_) => &[],
    }
}

/// Ranges of pooled values with about equally many rows.
fn quantile_bins(values: [&[f64]; 2], bins: usize) -> Vec<(f64, f64)> {
    let step = (values[0].len() + values[1].len()).div_ceil(MAX_SORTED).max(1);
    let sample = values.iter().flat_map(|v| v.iter().step_by(step));
    let mut sorted: Vec<f64> = sample.copied().filter(|x| !x.is_nan()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let size = sorted.len().div_ceil(bins).max(1);
    let mut ranges: Vec<(f64, f64)> = Vec::new();
    let (mut low, mut in_bin) = (0, 0);
    for run in sorted.chunk_by(|a, b| a == b) {
        let start = low + in_bin;
        // A value that many rows share closes the bin before it.
        if in_bin > 0 && (2 * run.len() >= size || in_bin + run.len() > size) {
            ranges.push((sorted[low], sorted[start - 1]));
            (low, in_bin) = (start, 0);
        }
        in_bin += run.len();
        if 2 * run.len() >= size || in_bin >= size {
            ranges.push((sorted[low], sorted[start + run.len() - 1]));
            (low, in_bin) = (start + run.len(), 0);
        }
    }
    if in_bin > 0 {
        ranges.push((sorted[low], sorted[sorted.len() - 1]));
    }
    // Values that many rows share add bins; neighbours are merged until there are few enough.
    while ranges.len() > MAX_BINS {
        ranges = ranges.chunks(2).map(|pair| (pair[0].0, pair[pair.len() - 1].1)).collect();
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_many_rows_share_has_its_own_bin() {
        let a: Vec<f64> = (0..1000).map(f64::from).collect();
        let mut b = a.clone();
        b[..100].fill(500.0);
        b[999] = f64::NAN;
        let binned = Binned::ordered([&a, &b]);
        let own = binned.bins.iter().position(|bin| *bin == Bin::Range(500.0, 500.0)).unwrap();
        assert_eq!((binned.counts[0][own], binned.counts[1][own]), (1, 101));
        assert_eq!((binned.present(), binned.missing), ([1000, 999], [0, 1]));
        let ranges: Vec<(f64, f64)> =
            binned.bins.iter().map(|b| if let Bin::Range(l, h) = b { (*l, *h) } else { panic!() }).collect();
        assert!(ranges.windows(2).all(|w| w[0].1 < w[1].0) && ranges.len() > 80);
    }

    #[test]
    fn few_distinct_values_have_a_bin_each() {
        let a: Vec<f64> = (0..500).map(|i| f64::from(i % 5)).collect();
        let binned = Binned::ordered([&a, &a[..300]]);
        assert_eq!(binned.bins.len(), 5);
        assert_eq!(binned.counts, [vec![100; 5], vec![60; 5]]);
        let infinite = Binned::ordered([&[f64::INFINITY, 1.0, 1.0], &[f64::NEG_INFINITY, f64::NAN]]);
        assert_eq!(infinite.counts, [vec![0, 2, 1], vec![1, 0, 0]]);
        let none = Binned::ordered([&[f64::NAN], &[]]);
        assert_eq!((none.bins.len(), none.missing), (0, [1, 0]));
    }

    #[test]
    fn rare_categories_share_a_bin() {
        let text = |rows: &[(&str, usize)]| {
            let mut text = Text::default();
            rows.iter().for_each(|(level, n)| (0..*n).for_each(|_| text.push(Some(level))));
            text.push(None);
            text
        };
        let names: Vec<String> = (0..300).map(|i| format!("r{i}")).collect();
        let mut rows: Vec<(&str, usize)> = names.iter().map(|n| (n.as_str(), 1)).collect();
        rows.push(("often", 9));
        let binned = Binned::levels([&text(&rows), &text(&[("new", 4), ("often", 1)])]);
        assert_eq!(binned.bins[..2], [Bin::Level("often".to_owned()), Bin::Level("new".to_owned())]);
        assert_eq!(binned.bins[255], Bin::Rare(302 - 255));
        assert_eq!((binned.counts[0][0], binned.counts[1][0], binned.counts[1][1]), (9, 1, 4));
        assert_eq!((binned.counts[0].iter().sum::<u64>(), binned.missing), (309, [1, 1]));
    }
}
