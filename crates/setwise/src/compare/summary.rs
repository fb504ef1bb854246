//! What a column looks like in one table.

use serde::Serialize;
use setwise_table::times::format_time;
use setwise_table::{Column, ColumnType, PairedColumn, Values};

use super::bins::numbers;

/// Categories that a summary lists.
const TOP: usize = 5;

/// The values of a column in one table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Summary {
    /// Numbers.
    Numbers {
        /// The mean of finite values.
        mean: f64,
        /// Least value, quartiles with the median, and largest value.
        quantiles: [f64; 5],
    },
    /// Dates, with or without times of day.
    Times {
        /// First time.
        first: String,
        /// Median.
        median: String,
        /// Last time.
        last: String,
    },
    /// Categories.
    Categories {
        /// Distinct values.
        distinct: usize,
        /// The most frequent ones with their shares of the rows with a value.
        top: Vec<(String, f64)>,
    },
    /// No values.
    Empty {},
}

impl Summary {
    /// The summaries of both tables.
    pub(super) fn of(paired: &PairedColumn) -> [Summary; 2] {
        std::array::from_fn(|t| Self::of_column(&paired.columns[t], paired.column_type))
    }

    fn of_column(column: &Column, column_type: ColumnType) -> Self {
        match &column.values {
            Values::Text(text) => {
                let counts = text.counts();
                let present: u64 = counts.iter().sum();
                if present == 0 {
                    return Summary::Empty {};
                }
                let mut order: Vec<usize> = (0..counts.len()).filter(|&i| counts[i] > 0).collect();
                let distinct = order.len();
                let level = |i: usize| text.levels.get(i as u32);
                order.sort_by(|&i, &j| counts[j].cmp(&counts[i]).then_with(|| level(i).cmp(level(j))));
                // Texts that all differ have no frequent ones.
                let top = if matches!(column_type, ColumnType::Text | ColumnType::Identifier) { 0 } else { TOP };
                let share = |&i: &usize| (level(i).to_owned(), counts[i] as f64 / present as f64);
                Summary::Categories { distinct, top: order[..distinct.min(top)].iter().map(share).collect() }
            }
            Values::Numbers(_) | Values::Times(_) => {
                let mut sorted: Vec<f64> = numbers(column).iter().copied().filter(|x| !x.is_nan()).collect();
                if sorted.is_empty() {
                    return Summary::Empty {};
                }
                let finite = sorted.iter().filter(|x| x.is_finite());
                let mean = finite.clone().sum::<f64>() / finite.count().max(1) as f64;
                let quantiles = quantiles(&mut sorted);
                match column_type {
                    ColumnType::Time => {
                        let [first, _, median, _, last] = quantiles.map(format_time);
                        Summary::Times { first, median, last }
                    }
                    _ => Summary::Numbers { mean, quantiles },
                }
            }
        }
    }
}

/// Least value, quartiles with the median, and largest value.
fn quantiles(values: &mut [f64]) -> [f64; 5] {
    let n = values.len();
    let mut at = |p: f64| {
        let i = (p * (n - 1) as f64).round() as usize;
        *values.select_nth_unstable_by(i, f64::total_cmp).1
    };
    [at(0.0), at(0.25), at(0.5), at(0.75), at(1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_times_and_categories_have_summaries() {
        let numbers = Column::numbers("x", vec![4.0, f64::NAN, 0.0, 1.0, 3.0, 2.0]);
        let summary = Summary::of_column(&numbers, ColumnType::Numeric);
        assert_eq!(summary, Summary::Numbers { mean: 2.0, quantiles: [0.0, 1.0, 2.0, 3.0, 4.0] });
        let text = Column::text("x", [Some("b"), Some("a"), None, Some("b")]);
        let Summary::Categories { distinct, top } = Summary::of_column(&text, ColumnType::Category) else { panic!() };
        assert_eq!((distinct, &top[0]), (2, &("b".to_owned(), 2.0 / 3.0)));
        let times = Column::new("x", Values::Times(vec![0.0, 86_400.0, 60.0]));
        let Summary::Times { first, median, last } = Summary::of_column(&times, ColumnType::Time) else { panic!() };
        assert_eq!([first, median, last], ["1970-01-01", "1970-01-01 00:01", "1970-01-02"]);
        assert_eq!(Summary::of_column(&Column::text("x", [None]), ColumnType::Constant), Summary::Empty {});
    }
}
