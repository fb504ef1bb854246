//! Tables of mixed columns as samples of numbers.

use std::collections::BTreeMap;
use std::ops::Range;

use setwise_table::pairing::lie_apart;
use setwise_table::{Column, ColumnChoice, ColumnType, Overrides, PairedColumn, Pairing, Table, Text, Values};

use super::samples::Design;
use super::{PermutationTest, TestResult};
use crate::estimate::{Points, Progress};
use crate::{Error, Result};

/// Tables as rows of numbers, with the same columns.
///
/// Numbers, counts and times stay as they are, with the median where a value is missing. Frequent categories have an
/// indicator each, text its number of characters. A column with missing values has an indicator of them. Identifiers
/// and constants are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoded {
    /// The names of the columns, such as `age`, `town=Oslo` or `age is missing`.
    pub names: Vec<String>,
    /// The rows of each table, row-major.
    pub rows: Vec<Vec<f64>>,
    /// The block of each row of each table, where a column of blocks is named.
    pub blocks: Option<Vec<Vec<u32>>>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// A column of numbers of both tables.
type Numbers = [Vec<f64>; 2];

impl Encoded {
    /// Encodes the chosen columns that two or more tables share. A column of `blocks` is no column of the samples.
    pub fn new(tables: Vec<Table>, choice: &ColumnChoice, types: &Overrides, blocks: Option<&str>) -> Result<Self> {
        if tables.len() < 2 {
            return Err(Error::Sets("a test needs two samples or more".to_owned()));
        }
        check_widths(&tables)?;
        let rows: Vec<usize> = tables.iter().map(|table| table.rows).collect();
        let mut types = types.clone();
        let blocks = match blocks {
            Some(column) => {
                let (name, blocks) = blocks_of(column, &tables)?;
                types.set(&name, ColumnType::Category);
                Some((name, blocks))
            }
            None => None,
        };
        let mut pairing = Pairing::of_many(tables, choice, &types)?;
        pairing.columns.retain(|column| blocks.as_ref().is_none_or(|(name, _)| *name != column.name));
        Ok(Encoded { blocks: blocks.map(|(_, blocks)| blocks), ..Self::of_pairing(&pairing, &places(&rows))? })
    }

    /// Tests the tables, whose names are for messages. Rows i of all tables belong together if `paired` is set.
    pub fn test(
        &self,
        test: &PermutationTest,
        names: &[String],
        paired: bool,
        progress: &Progress,
    ) -> Result<TestResult> {
        let blocks: Vec<&[u32]> = self.blocks.iter().flatten().map(Vec::as_slice).collect();
        let design = match (&self.blocks, paired) {
            (Some(_), _) => Design::Blocked(&blocks),
            (None, true) => Design::Paired,
            (None, false) => Design::Independent,
        };
        let points: Vec<Points> = names.iter().enumerate().map(|(t, name)| self.points(t).named(name)).collect();
        let result = test.samples(&points, design, progress)?;
        let warnings = result.warnings.into_iter().chain(self.notes.iter().cloned()).collect();
        Ok(TestResult { warnings, ..result })
    }

    /// The columns of tables at these places of a pairing.
    fn of_pairing(pairing: &Pairing, places: &[Place]) -> Result<Self> {
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
                _ if times_lie_apart(column, places) => {
                    notes.push(format!("column {:?} is left out: its times do not overlap", column.name));
                }
                ColumnType::Category | ColumnType::Boolean => columns.extend(indicators(column, &mut notes)),
                _ => columns.push((column.name.clone(), column.columns.each_ref().map(numbers))),
            }
            let missing = column.columns.each_ref().map(|c| (0..c.len()).map(|row| is_missing(c, row)).collect());
            let missing: Numbers = missing.map(|m: Vec<bool>| m.into_iter().map(|m| f64::from(u8::from(m))).collect());
            if column.column_type != ColumnType::Identifier && missing.iter().flatten().any(|m| *m > 0.0) {
                columns.push((format!("{} is missing", column.name), missing));
            }
        }
        if columns.is_empty() {
            let [a, b] = &pairing.tables;
            let why = notes.iter().map(|note| format!("\n  {note}")).collect::<String>();
            return Err(Error::Sets(format!("{a} and {b} share no column that can be compared{why}")));
        }
        columns.iter_mut().for_each(|(_, numbers)| fill(numbers));
        let of_table = |(side, rows): &Place| -> Vec<f64> {
            rows.clone().flat_map(|row| columns.iter().map(move |(_, numbers)| numbers[*side][row])).collect()
        };
        let rows = places.iter().map(of_table).collect();
        Ok(Encoded { names: columns.into_iter().map(|(name, _)| name).collect(), rows, blocks: None, notes })
    }

    /// The rows of a table.
    pub fn points(&self, table: usize) -> Points<'_> {
        Points::new(&self.rows[table], self.names.len()).with_names(&self.names)
    }
}

/// Tables without names are matched by position, so they need the same number of columns.
fn check_widths(tables: &[Table]) -> Result<()> {
    let Some(other) = tables.iter().find(|table| table.columns.len() != tables[0].columns.len()) else { return Ok(()) };
    if tables.iter().any(|table| table.named) {
        return Ok(());
    }
    let [a, b] = [&tables[0], other].map(|table| format!("{} has {}", table.path.display(), table.columns.len()));
    Err(Error::Sets(format!("{a} columns, {b}")))
}

/// Where the rows of a table are in a pairing: in its first or second table, and in which rows of it.
type Place = (usize, Range<usize>);

/// The places of tables with so many rows, where the second one and those after it lie below one another.
fn places(rows: &[usize]) -> Vec<Place> {
    let mut end = 0;
    let place = |(t, &count): (usize, &usize)| match t {
        0 => (0, 0..count),
        _ => {
            end += count;
            (1, end - count..end)
        }
    };
    rows.iter().enumerate().map(place).collect()
}

/// Whether the times of any two tables lie apart, as those of two months do.
fn times_lie_apart(column: &PairedColumn, places: &[Place]) -> bool {
    let [Values::Times(a), Values::Times(b)] = column.columns.each_ref().map(|c| &c.values) else { return false };
    let times = |(side, rows): &Place| &[a, b][*side][rows.clone()];
    places.iter().enumerate().any(|(k, one)| places[..k].iter().any(|other| lie_apart(times(one), times(other))))
}

/// The name of a column of blocks, and the number of the block of each row of each table; missing values are a block.
fn blocks_of(column: &str, tables: &[Table]) -> Result<(String, Vec<Vec<u32>>)> {
    let names: Vec<String> = tables[0].columns.iter().map(|c| c.name.clone()).collect();
    let keep = ColumnChoice { keep: vec![column.to_owned()], drop: Vec::new() };
    let no_column =
        |table: &Table| Error::Sets(format!("{}: has no column {column:?} of blocks", table.path.display()));
    let chosen = keep.of(&names, names.len()).map_err(|_| no_column(&tables[0]))?;
    let &[place] = chosen.columns.as_slice() else { return Err(no_column(&tables[0])) };
    let mut numbers: BTreeMap<Option<String>, u32> = BTreeMap::new();
    let mut of_tables = Vec::new();
    for table in tables {
        let found = if table.named { table.column(&names[place]) } else { table.columns.get(place) };
        let column = found.ok_or_else(|| no_column(table))?.clone().into_type(ColumnType::Category)?;
        let Values::Text(text) = &column.values else { continue };
        let mut number = |row: usize| {
            let next = numbers.len() as u32;
            *numbers.entry(text.get(row).map(str::to_owned)).or_insert(next)
        };
        of_tables.push((0..column.len()).map(&mut number).collect());
    }
    Ok((names[place].clone(), of_tables))
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

/// Indicators of the levels that many rows have, and one of all others; of two levels one indicator suffices.
fn indicators(column: &PairedColumn, notes: &mut Vec<String>) -> Vec<(String, Numbers)> {
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
    let all = levels.len();
    if all == 2 {
        levels.truncate(1);
    }
    levels.truncate(MOST);
    levels.retain(|(_, count)| *count >= FEWEST);
    let kept: Vec<&str> = levels.iter().map(|(level, _)| *level).collect();
    let indicator = |is: &dyn Fn(&str) -> bool| -> Numbers {
        texts.map(|text| {
            let Some(text) = text else { return Vec::new() };
            let of_level: Vec<f64> = text.levels.iter().map(|level| f64::from(u8::from(is(level)))).collect();
            text.codes.iter().map(|code| of_level.get(*code as usize).copied().unwrap_or(0.0)).collect()
        })
    };
    let of_level = |level: &&str| (format!("{}={level}", column.name), indicator(&|other| other == *level));
    let mut columns: Vec<(String, Numbers)> = kept.iter().map(of_level).collect();
    let others = all - kept.len();
    if all > 2 && others > 0 {
        notes.push(format!("column {:?}: {others} rare levels of {all} count as one", column.name));
        columns.push((format!("{} is rare", column.name), indicator(&|level| !kept.contains(&level))));
    }
    columns
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
        let encode = |tables: Vec<Table>, blocks| {
            Encoded::new(tables, &ColumnChoice::default(), &Overrides::default(), blocks).unwrap()
        };
        let encoded = encode(tables.to_vec(), None);
        let expected = ["age", "age is missing", "town=Oslo", "town=Lima", "town=Rome", "note"];
        assert_eq!(encoded.names, expected);
        assert_eq!(encoded.rows.iter().map(Vec::len).collect::<Vec<_>>(), [30 * 6, 30 * 6]);
        // The first row has no age.
        assert_eq!(encoded.rows[0][1..6], [1.0, 1.0, 0.0, 0.0, 14.0]);
        assert!(encoded.rows[0][0] > 30.0 && encoded.rows[0][0] < 60.0);
        assert_eq!(encoded.notes, ["column \"id\" identifies rows and is left out"]);
        let [a, b] = tables;
        let c =
            "id,age,town,note\n".to_owned() + &(60..90).map(|i| row(i, ["Rome", "Lima"][i % 2])).collect::<String>();
        let three = encode(vec![a, b, Table::parse("c", c.as_bytes()).unwrap()], Some("town"));
        assert_eq!(three.names, ["age", "age is missing", "note"]);
        assert_eq!(three.rows.iter().map(Vec::len).collect::<Vec<_>>(), [30 * 3; 3]);
        assert_eq!(three.blocks.map(|blocks| blocks[2][..4].to_vec()), Some(vec![1, 2, 1, 2]));
    }

    #[test]
    fn rare_levels_count_as_one() {
        let levels = |from: usize, to: usize| -> String {
            (from..to).map(|i| if i % 3 == 0 { format!("c{i}\n") } else { "usual\n".to_owned() }).collect()
        };
        let tables = [levels(0, 30), levels(30, 90)]
            .map(|text| Table::parse("t", format!("code\n{text}").as_bytes()).unwrap())
            .to_vec();
        let mut types = Overrides::default();
        types.set("code", ColumnType::Category);
        let encoded = Encoded::new(tables, &ColumnChoice::default(), &types, None).unwrap();
        assert_eq!(encoded.names, ["code=usual", "code is rare"]);
        assert_eq!(encoded.rows[0][..4], [0.0, 1.0, 1.0, 0.0]);
        assert_eq!(encoded.notes, ["column \"code\": 30 rare levels of 31 count as one"]);
    }

    fn row(i: usize, town: &str) -> String {
        let age = if i == 0 { String::new() } else { format!("{}.5", 20 + i) };
        format!("{},{age},{town},the parcel {i:03}\n", i + 1000)
    }
}
