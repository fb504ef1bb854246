//! What changed between two tables, how much and how sure.
//!
//! | file | holds |
//! | --- | --- |
//! | `bins`, `draws` | a column as counts in bins, and random permutations of rows as counts |
//! | `marginal_test` | the permutation test of one column |
//! | `effect` | the size of a change on one scale for all types, with an interval |
//! | `digits` | the number of decimals, which rounding changes |
//! | `dependence` | pairs of columns whose correlation changed |
//! | `classifier` | differences of all columns at once, and the Jensen–Shannon divergence |
//! | `repeats` | rows that repeat others |
//! | `periods` | the same over time, period by period |
//! | `verdict` | the joint test and the flags of columns |
//! | `summary`, `sentence`, `histogram` | what a column looks like, its change in words, and a chart of it |
//!
//! The chance that anything is flagged that did not change is at most alpha, whatever else changed: flags are those of
//! the procedure of Holm, over columns, pairs of columns, the classifier and repeated rows. They also need an effect
//! above `min_effect`. The joint test is a weighted Bonferroni combination of the same parts.

mod bins;
mod classifier;
mod dependence;
mod digits;
mod draws;
mod effect;
mod histogram;
mod log_tables;
mod marginal_test;
mod periods;
mod repeats;
mod sentence;
mod summary;
mod verdict;

use rayon::prelude::*;
use serde::Serialize;
use setwise_table::{Column, ColumnType, PairedColumn, Pairing, Text, Values};

use crate::estimate::Progress;
use crate::{Error, Result};
use bins::{Binned, numbers};
use digits::decimal_classes;
pub use effect::Effect;
use effect::effect;
pub use histogram::{Bins, Histogram, central_range};
use log_tables::LogTables;
use marginal_test::p_value;
pub use periods::{Against, PeriodChange, PeriodComparison};
use sentence::{moved, sentence};
pub use sentence::{percent, short_number};
pub use summary::Summary;
use verdict::{Divergence, Evidence};

/// What counts as a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compare {
    /// The level of significance of everything that is flagged, together.
    pub alpha: f64,
    /// Effects up to this share of rows are not flagged.
    pub min_effect: f64,
    /// The seed of permutations, intervals and the classifier.
    pub seed: u64,
}

impl Default for Compare {
    fn default() -> Self {
        Compare { alpha: 0.05, min_effect: 0.01, seed: 0 }
    }
}

/// What changed between two tables.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Whether the tables differ: significantly, and by more than the least effect.
    pub changed: bool,
    /// The p-value of the hypothesis that both tables have one distribution.
    pub p_value: f64,
    /// The Jensen–Shannon divergence of all compared columns, in nats.
    pub effect: f64,
    /// Its 90 % interval.
    pub interval: [f64; 2],
    /// The level of significance.
    pub alpha: f64,
    /// Effects up to this share of rows are not flagged.
    pub min_effect: f64,
    /// The file or the name of each table.
    pub tables: [String; 2],
    /// Rows of both tables.
    pub rows: [usize; 2],
    /// What changed, in a sentence.
    pub summary: String,
    /// The columns, those with the largest effect first.
    pub columns: Vec<ColumnChange>,
    /// Pairs of columns whose dependence changed although neither column is flagged.
    pub pairs: Vec<PairChange>,
    /// Rows that repeat others of their table.
    pub repeated_rows: Option<RepeatedRows>,
    /// Columns that only one of the tables has.
    pub only: [Vec<String>; 2],
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// A column of two tables.
#[derive(Clone, Debug, Serialize)]
pub struct ColumnChange {
    /// The name.
    pub name: String,
    /// The type of its values.
    #[serde(rename = "type")]
    pub column_type: ColumnType,
    /// Whether it changed: significantly, and by more than the least effect.
    pub flagged: bool,
    /// The largest change of the share of rows in any range of values, set of categories, or of missing values.
    pub effect: f64,
    /// Its 90 % interval.
    pub interval: [f64; 2],
    /// The effect that noise alone shows in one of twenty comparisons.
    pub noise: f64,
    /// The p-value; absent where the column is not compared.
    pub p_value: Option<f64>,
    /// The q-value of Benjamini and Hochberg.
    pub q_value: Option<f64>,
    /// Shares of missing values in both tables.
    pub missing: [f64; 2],
    /// The values in both tables.
    pub values: [Summary; 2],
    /// The largest change in words.
    pub change: String,
    /// The values in both tables, for a chart; absent where they all differ.
    #[serde(skip)]
    pub histogram: Option<Histogram>,
}

/// A pair of columns whose dependence changed.
#[derive(Clone, Debug, Serialize)]
pub struct PairChange {
    /// Names of the columns; a category comes with the level that is meant.
    pub columns: [String; 2],
    /// Correlations in both tables: of the normal scores of ranks, or of indicators of levels.
    pub correlations: [f64; 2],
    /// The change of the share of rows in which both columns lie on the same side of their medians.
    pub effect: f64,
    /// Its 90 % interval.
    pub interval: [f64; 2],
    /// The p-value.
    pub p_value: f64,
    /// The q-value of Benjamini and Hochberg among all pairs.
    pub q_value: f64,
}

/// Rows that repeat others of their table.
#[derive(Clone, Debug, Serialize)]
pub struct RepeatedRows {
    /// Whether their share changed.
    pub flagged: bool,
    /// Shares of rows in both tables.
    pub shares: [f64; 2],
    /// The p-value.
    pub p_value: f64,
}

impl Compare {
    /// Compares two tables.
    pub fn run(&self, pairing: Pairing, progress: &Progress) -> Result<Comparison> {
        progress.plan(Self::units(&pairing));
        self.run_planned(pairing, progress)
    }

    /// The units of work of a comparison.
    fn units(pairing: &Pairing) -> usize {
        const JOINT: usize = 4;
        pairing.columns.len() + JOINT
    }

    fn run_planned(&self, mut pairing: Pairing, progress: &Progress) -> Result<Comparison> {
        for (key, x) in [("alpha", self.alpha), ("min-effect", self.min_effect)] {
            if !(0.0..1.0).contains(&x) {
                return Err(Error::Setting { key: key.to_owned(), reason: format!("is {x}; give a share below 1") });
            }
        }
        let rows = pairing.rows;
        let tables = LogTables::new((rows[0] + rows[1]) as u64);
        let permutations = marginal_test::permutations(pairing.columns.len(), self.alpha);
        let study = |(c, paired): (usize, &PairedColumn)| {
            let seed = setwise_engine::splitmix64(self.seed ^ c as u64);
            let studied = Studied::new(paired, pairing.sampled, &tables, permutations, seed);
            progress.advance(1);
            studied
        };
        let studied: Vec<Studied> = pairing.columns.par_iter().enumerate().map(study).collect();
        let joint: Vec<(usize, &Binned)> =
            studied.iter().enumerate().filter_map(|(c, s)| s.joint.as_ref().map(|binned| (c, binned))).collect();
        if joint.len() > dependence::MAX_COLUMNS {
            let (some, all) = (dependence::MAX_COLUMNS, joint.len());
            pairing
                .notes
                .push(format!("pairs of the first {some} of {all} columns are compared; --columns chooses them"));
        }
        let of_columns: Vec<&Binned> = joint.iter().map(|(_, binned)| *binned).collect();
        let ((pairs, separation), repeats) = rayon::join(
            || {
                let pairs = dependence::pair_differences(&joint, rows, self.seed);
                progress.advance(1);
                let separation = classifier::separate(&of_columns, rows, self.seed);
                progress.advance(2);
                (pairs, separation)
            },
            || {
                let compared = |c: &&PairedColumn| c.column_type != ColumnType::Identifier;
                let keys = [0, 1].map(|t: usize| {
                    let columns: Vec<&Column> =
                        pairing.columns.iter().filter(compared).map(|c| &c.columns[t]).collect();
                    repeats::row_keys(&columns, rows[t])
                });
                let repeats = if pairing.sampled { None } else { repeats::repeats([&keys[0], &keys[1]], self.seed) };
                progress.advance(1);
                repeats
            },
        );
        Ok(self.verdict(pairing, studied, Evidence { pairs, separation, repeats }))
    }
}

/// A column with its test and its effect.
struct Studied {
    p_value: Option<f64>,
    effect: Effect,
    missing: [f64; 2],
    values: [Summary; 2],
    change: String,
    histogram: Option<Histogram>,
    divergence: Divergence,
    /// Its bins, if it takes part in comparisons of several columns.
    joint: Option<Binned>,
}

impl Studied {
    fn new(paired: &PairedColumn, sampled: bool, tables: &LogTables, permutations: usize, seed: u64) -> Self {
        let column_type = paired.column_type;
        let [a, b] = &paired.columns;
        let lengths = match column_type {
            ColumnType::Text => [a, b].map(|column| text_lengths(text(column))),
            _ => Default::default(),
        };
        let binned = match column_type {
            ColumnType::Numeric | ColumnType::Count | ColumnType::Time => Binned::ordered([numbers(a), numbers(b)]),
            ColumnType::Category | ColumnType::Boolean | ColumnType::Constant => {
                Binned::levels(paired.columns.each_ref().map(text))
            }
            ColumnType::Text => Binned::ordered([&lengths[0], &lengths[1]]),
            // The values differ in every row: only missing ones are compared, and repeated ones.
            ColumnType::Identifier => {
                Binned::ordered(paired.columns.each_ref().map(presence).each_ref().map(Vec::as_slice))
            }
        };
        let subject = match column_type {
            ColumnType::Text => "numbers of characters",
            ColumnType::Time => "times",
            _ => "values",
        };
        let missing = [a, b].map(|c| c.missing() as f64 / c.len().max(1) as f64);
        let values = Summary::of(paired);
        let histogram = match column_type {
            ColumnType::Numeric | ColumnType::Count | ColumnType::Time => {
                Some(Histogram::of_numbers([numbers(a), numbers(b)], column_type == ColumnType::Time))
            }
            ColumnType::Category | ColumnType::Boolean | ColumnType::Constant => Some(Histogram::of_levels(&binned)),
            ColumnType::Text => Some(Histogram::of_numbers([&lengths[0], &lengths[1]], false)),
            ColumnType::Identifier => None,
        };
        let apart = paired.times_lie_apart();
        if apart {
            let none = Effect { value: 0.0, interval: [0.0; 2], noise: 0.0 };
            let change = "the periods differ: not compared".to_owned();
            return Studied {
                p_value: None,
                effect: none,
                missing,
                values,
                change,
                histogram,
                divergence: Divergence::default(),
                joint: None,
            };
        }
        let (mut size, event) = effect(&binned, seed);
        let mut p = p_value(&binned, tables, permutations, seed);
        let mut change = if size.value > 0.0 { sentence(&binned, event, column_type, subject) } else { String::new() };
        // A second look at the column has a small part of the level.
        const SECOND_SHARE: f64 = 0.1;
        let mut second = |second_p: f64, second_size: Effect, second_change: String| {
            p = (p / (1.0 - SECOND_SHARE)).min(second_p / SECOND_SHARE).min(1.0);
            // It is told where it is clearly larger: values that change their digits often change otherwise too.
            if second_size.interval[0] > size.interval[1] {
                (size, change) = (second_size, second_change);
            }
        };
        let mut divergence = Divergence::default();
        match column_type {
            ColumnType::Numeric | ColumnType::Count => {
                if let Some(classes) = decimal_classes([numbers(a), numbers(b)]) {
                    let (size, event) = effect(&classes, seed);
                    let change = sentence(&classes, event, ColumnType::Category, "").replace(['“', '”'], "");
                    divergence = verdict::marginal_divergence(&classes);
                    second(p_value(&classes, tables, permutations, seed), size, change);
                }
            }
            // A sample of a table has fewer repeated values.
            ColumnType::Identifier if !sampled => {
                let keys = [a, b].map(repeats::value_keys);
                if let Some(found) = repeats::repeats_of_equal_sizes(keys, seed) {
                    let shares = found.counts.map(|n| n as f64 / found.rows as f64);
                    let change = (shares[1] - shares[0]).abs();
                    let error = shares.map(|s| s * (1.0 - s) / found.rows as f64).iter().sum::<f64>().sqrt();
                    let ends = [change - 1.645 * error, change + 1.645 * error].map(|x| x.clamp(0.0, 1.0));
                    let size = Effect { value: change, interval: ends, noise: 1.96 * error };
                    second(found.p_value, size, moved("repeated values", shares));
                }
            }
            _ => {}
        }
        let divergence = divergence.larger(verdict::marginal_divergence(&binned));
        let joint = (column_type != ColumnType::Identifier && column_type != ColumnType::Constant).then_some(binned);
        Studied { p_value: Some(p), effect: size, missing, values, change, histogram, divergence, joint }
    }
}

/// The text of a column that is stored as text.
fn text(column: &Column) -> &Text {
    static NONE: std::sync::LazyLock<Text> = std::sync::LazyLock::new(Text::default);
    match &column.values {
        Values::Text(text) => text,
        _ => &NONE,
    }
}

/// The number of characters of each text; NaN where it is missing.
fn text_lengths(text: &Text) -> Vec<f64> {
    let lengths: Vec<f64> = text.levels.iter().map(|level| level.chars().count() as f64).collect();
    text.codes.iter().map(|c| lengths.get(*c as usize).copied().unwrap_or(f64::NAN)).collect()
}

/// Zero where a value is present, NaN where it is missing.
fn presence(column: &Column) -> Vec<f64> {
    match &column.values {
        Values::Numbers(v) | Values::Times(v) => v.iter().map(|x| if x.is_nan() { f64::NAN } else { 0.0 }).collect(),
        Values::Text(text) => text.codes.iter().map(|c| if *c == Text::MISSING { f64::NAN } else { 0.0 }).collect(),
    }
}
