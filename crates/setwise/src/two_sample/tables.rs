//! Tables of mixed columns as samples of numbers.

use std::collections::BTreeMap;

use setwise_table::{Column, ColumnType, PairedColumn, Pairing, Text, Values};

use crate::estimate::Points;
use crate::{Error, Result};

/// Two tables as rows of numbers, with the same columns.
///
/// Numbers, counts and times stay as they are, with the median where a value is missing. Frequent categories have an
/// indicator each, text its number of characters. A column with missing values has an indicator of them. Identifiers
/// and constants are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoded {
    /// The names of the columns, such as `age`, `town=Oslo` or `age is missing`.
    pub names: Vec<String>,
    /// The rows of both tables, row-major.
    pub rows: [Vec<f64>; 2],
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// A column of numbers of both tables.
type Numbers = [Vec<f64>; 2];

impl Encoded {
    /// Encodes the columns that two tables share.
    pub fn new(pairing: &Pairing) -> Result<Self> {
        let mut columns: Vec<(String, Numbers)> = Vec::new();
        let mut notes = pairing.notes.clone();
        for (t, only) in pairing.only.iter().enumerate() {
            notes.extend(only.iter().map(|name| format!("{}: column {name:?} has no counterpart", pairing.tables[t])));
        }
        for column in &pairing.columns {
            match column.column_type {
                ColumnType::Identifier => {
                    notes.push(format!("column {:?} identifies rows and is left out", column.name))
                }
                ColumnType::Constant => notes.push(format!("column {:?} holds one value and is left out", column.name)),
                _ if column.times_lie_apart() => {
                    notes.push(format!("column {:?} is left out: its times do not overlap", column.name));
                }
                ColumnType::Category | ColumnType::Boolean => columns.extend(indicators(column)),
                _ => columns.push((column.name.clone(), column.columns.each_ref().map(numbers))),
            }
            let missing = column.columns.each_ref().map(|c| (0..c.len()).map(|row| is_missing(c, row)).collect());
            let missing: Numbers = missing.map(|m: Vec<bool>| m.into_iter().map(|m| f64::from(u8::from(m))).collect());
            if column.column_type != ColumnType::Identifier && missing.iter().flatten().any(|m| *m > 0.0) {
                columns.push((format!("{} is missing", column.name), missing));
            }
        }
        if columns.is_empty() {
            return Err(Error::Sets(format!(
                "{} and {} share no column that can be compared",
                pairing.tables[0], pairing.tables[1]
            )));
        }
        columns.iter_mut().for_each(|(_, numbers)| fill(numbers));
        let rows = std::array::from_fn(|t| {
            (0..pairing.rows[t]).flat_map(|row| columns.iter().map(move |(_, numbers)| numbers[t][row])).collect()
        });
        Ok(Encoded { names: columns.into_iter().map(|(name, _)| name).collect(), rows, notes })
    }

    /// The rows of a table.
    pub fn points(&self, table: usize) -> Points<'_> {
        Points::new(&self.rows[table], self.names.len()).with_names(&self.names)
    }
}

/// The number of each row's block, from a column of categories; missing values are a block.
pub fn blocks(column: &PairedColumn) -> [Vec<u32>; 2] {
    let mut numbers: BTreeMap<Option<String>, u32> = BTreeMap::new();
    column.columns.each_ref().map(|column| {
        let Values::Text(text) = &column.values else { return vec![0; column.len()] };
        let mut number = |row| {
            let next = numbers.len() as u32;
            *numbers.entry(text.get(row).map(str::to_owned)).or_insert(next)
        };
        (0..column.len()).map(&mut number).collect()
    })
}

fn is_missing(column: &Column, row: usize) -> bool {
    match &column.values {
        Values::Numbers(v) | Values::Times(v) => v[row].is_nan(),
        Values::Text(text) => text.codes[row] == Text::MISSING,
    }
}

/// Numbers and times, or the lengths of texts; NaN where they are missing.
fn numbers(column: &Column) -> Vec<f64> {
    match &column.values {
        Values::Numbers(v) | Values::Times(v) => v.clone(),
        Values::Text(text) => {
            let length = |row| text.get(row).map_or(f64::NAN, |level| level.chars().count() as f64);
            (0..text.codes.len()).map(length).collect()
        }
    }
}

/// Indicators of the levels that many rows have; of two levels one suffices.
fn indicators(column: &PairedColumn) -> Vec<(String, Numbers)> {
    /// Most levels, and fewest rows of one.
    const MOST: usize = 30;
    const FEWEST: u64 = 5;
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let texts = column.columns.each_ref().map(|c| if let Values::Text(text) = &c.values { Some(text) } else { None });
    for text in texts.iter().flatten() {
        text.levels.iter().zip(text.counts()).for_each(|(level, count)| *counts.entry(level).or_default() += count);
    }
    counts.retain(|_, count| *count > 0);
    let mut levels: Vec<(&str, u64)> = counts.into_iter().collect();
    levels.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    if levels.len() == 2 {
        levels.truncate(1);
    }
    levels.truncate(MOST);
    levels.retain(|(_, count)| *count >= FEWEST);
    let of_level = |(level, _): (&str, u64)| {
        let values = texts.map(|text| {
            let Some(text) = text else { return Vec::new() };
            let code = text.levels.find(level);
            text.codes.iter().map(|c| f64::from(u8::from(Some(*c) == code))).collect()
        });
        (format!("{}={level}", column.name), values)
    };
    levels.into_iter().map(of_level).collect()
}

/// Puts the median of both tables where a number is missing, and finite numbers where it is infinite.
fn fill(numbers: &mut Numbers) {
    let mut present: Vec<f64> = numbers.iter().flatten().copied().filter(|x| x.is_finite()).collect();
    present.sort_unstable_by(f64::total_cmp);
    let median = present.get(present.len() / 2).copied().unwrap_or(0.0);
    let ends = [present.first(), present.last()].map(|x| x.copied().unwrap_or(0.0));
    for x in numbers.iter_mut().flatten().filter(|x| !x.is_finite()) {
        *x = match x.is_nan() {
            true => median,
            false => ends[usize::from(*x > 0.0)],
        };
    }
}

#[cfg(test)]
mod tests {
    use setwise_table::{ColumnChoice, Overrides, Table};

    use super::*;

    #[test]
    fn mixed_columns_become_numbers() {
        let a = "id,age,town,note\n".to_owned() + &(0..30).map(|i| row(i, "Oslo")).collect::<String>();
        let b =
            "id,age,town,note\n".to_owned() + &(30..60).map(|i| row(i, ["Rome", "Lima"][i % 2])).collect::<String>();
        let tables = [("a", a), ("b", b)].map(|(name, text)| Table::parse(name, text.as_bytes()).unwrap());
        let pairing = Pairing::new(tables, &ColumnChoice::default(), &Overrides::default()).unwrap();
        let encoded = Encoded::new(&pairing).unwrap();
        let expected = ["age", "age is missing", "town=Oslo", "town=Lima", "town=Rome", "note"];
        assert_eq!(encoded.names, expected);
        assert_eq!(encoded.rows.each_ref().map(Vec::len), [30 * 6, 30 * 6]);
        // The first row has no age.
        assert_eq!(encoded.rows[0][1..6], [1.0, 1.0, 0.0, 0.0, 14.0]);
        assert!(encoded.rows[0][0] > 30.0 && encoded.rows[0][0] < 60.0);
        assert_eq!(encoded.notes, ["column \"id\" identifies rows and is left out"]);
    }

    fn row(i: usize, town: &str) -> String {
        let age = if i == 0 { String::new() } else { format!("{}.5", 20 + i) };
        format!("{},{age},{town},the parcel {i:03}\n", i + 1000)
    }
}
