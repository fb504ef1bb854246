//! A table: named columns of equal length.

use std::hash::BuildHasher;
use std::path::PathBuf;

use hashbrown::{DefaultHashBuilder, HashTable};

/// Columns of equal length.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The file, or a name.
    pub path: PathBuf,
    /// Number of rows.
    pub rows: usize,
    /// The columns.
    pub columns: Vec<Column>,
    /// Whether the columns have names of their own.
    pub named: bool,
    /// Columns that hold no values that can be compared, with the reason.
    pub skipped: Vec<(String, String)>,
    /// The line of the first row of a text file.
    pub first_line: Option<u64>,
    /// The number of rows of a longer table of which this one is a random sample.
    pub sample_of: Option<usize>,
}

impl Table {
    /// A table of columns of equal length; fails if there are no columns or no rows.
    pub fn of_columns(path: PathBuf, columns: Vec<Column>, named: bool) -> Result<Self, String> {
        let rows = columns.first().map_or(0, Column::len);
        match (columns.is_empty(), rows) {
            (true, _) => Err("is empty: it has no columns".to_owned()),
            (_, 0) => Err("is empty: it has no rows".to_owned()),
            _ => Ok(Table { path, rows, columns, named, skipped: Vec::new(), first_line: None, sample_of: None }),
        }
    }

    /// The column of a name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|c| c.name == name)
    }
}

/// A named column.
#[derive(Clone, Debug)]
pub struct Column {
    /// The name; `column N` where the file has none.
    pub name: String,
    /// One value for each row.
    pub values: Values,
    /// The first missing value.
    pub first_missing: Option<Place>,
    /// A column of text: its first value that is no number.
    pub first_text: Option<Place>,
    /// A column of numbers: its first infinite value.
    pub first_infinite: Option<Place>,
    /// A value that is not valid text.
    pub damaged: Option<String>,
}

/// A value of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, from one.
    pub line: u64,
    /// The value as it is written.
    pub value: String,
}

/// The values of a column, one for each row.
#[derive(Clone, Debug)]
pub enum Values {
    /// Numbers; NaN is a missing value.
    Numbers(Vec<f64>),
    /// Seconds since 1970-01-01 00:00 UTC; NaN is a missing value.
    Times(Vec<f64>),
    /// Text.
    Text(Text),
}

impl Column {
    /// A column of numbers; NaN is a missing value.
    pub fn numbers(name: impl Into<String>, values: Vec<f64>) -> Self {
        Self::new(name, Values::Numbers(values))
    }

    /// A column of text; `None` is a missing value.
    pub fn text<'a>(name: impl Into<String>, values: impl IntoIterator<Item = Option<&'a str>>) -> Self {
        let mut text = Text::default();
        values.into_iter().for_each(|value| text.push(value));
        Self::new(name, Values::Text(text))
    }

    /// A column of values.
    pub fn new(name: impl Into<String>, values: Values) -> Self {
        Column { name: name.into(), values, first_missing: None, first_text: None, first_infinite: None, damaged: None }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match &self.values {
            Values::Numbers(v) | Values::Times(v) => v.len(),
            Values::Text(text) => text.codes.len(),
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of missing values.
    pub fn missing(&self) -> usize {
        match &self.values {
            Values::Numbers(v) | Values::Times(v) => v.iter().filter(|x| x.is_nan()).count(),
            Values::Text(text) => text.codes.iter().filter(|c| **c == Text::MISSING).count(),
        }
    }

    /// The column with these rows only.
    pub fn select(&self, rows: &[u32]) -> Self {
        let of = |v: &[f64]| rows.iter().map(|&i| v[i as usize]).collect();
        let values = match &self.values {
            Values::Numbers(v) => Values::Numbers(of(v)),
            Values::Times(v) => Values::Times(of(v)),
            Values::Text(text) => Values::Text(Text {
                codes: rows.iter().map(|&i| text.codes[i as usize]).collect(),
                levels: text.levels.clone(),
            }),
        };
        Column { values, ..self.clone_without_values() }
    }

    fn clone_without_values(&self) -> Self {
        Column {
            name: self.name.clone(),
            values: Values::Numbers(Vec::new()),
            first_missing: self.first_missing.clone(),
            first_text: self.first_text.clone(),
            first_infinite: self.first_infinite.clone(),
            damaged: self.damaged.clone(),
        }
    }
}

/// Text, each distinct value stored once.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// The level of each row, or [`Text::MISSING`].
    pub codes: Vec<u32>,
    /// The distinct values.
    pub levels: Levels,
}

impl Text {
    /// The code of a missing value.
    pub const MISSING: u32 = u32::MAX;

    /// Adds a row.
    pub fn push(&mut self, value: Option<&str>) {
        let code = value.map_or(Self::MISSING, |value| self.levels.code(value));
        self.codes.push(code);
    }

    /// The value of a row.
    pub fn get(&self, row: usize) -> Option<&str> {
        let code = self.codes[row];
        (code != Self::MISSING).then(|| self.levels.get(code))
    }

    /// Rows of each level.
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = vec![0; self.levels.len()];
        self.codes.iter().filter(|c| **c != Self::MISSING).for_each(|&c| counts[c as usize] += 1);
        counts
    }
}

/// Distinct texts in the order of their first appearance, stored one after the other.
#[derive(Clone, Default)]
pub struct Levels {
    text: String,
    /// The end of each level in `text`.
    ends: Vec<usize>,
    codes: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Levels {
    /// Number of levels.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The level of a code.
    pub fn get(&self, code: u32) -> &str {
        level(&self.text, &self.ends, code)
    }

    /// All levels.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.ends.len() as u32).map(|code| self.get(code))
    }

    /// The code of a text, if it is a level.
    pub fn find(&self, value: &str) -> Option<u32> {
        self.codes.find(self.hasher.hash_one(value), |&code| self.get(code) == value).copied()
    }

    /// The code of a text, which becomes a level if it is none.
    pub fn code(&mut self, value: &str) -> u32 {
        if let Some(code) = self.find(value) {
            return code;
        }
        let code = self.ends.len() as u32;
        self.text.push_str(value);
        self.ends.push(self.text.len());
        let Levels { text, ends, codes, hasher } = self;
        codes.insert_unique(hasher.hash_one(value), code, |&c| hasher.hash_one(level(text, ends, c)));
        code
    }
}

fn level<'a>(text: &'a str, ends: &[usize], code: u32) -> &'a str {
    let code = code as usize;
    let start = if code == 0 { 0 } else { ends[code - 1] };
    &text[start..ends[code]]
}

impl std::fmt::Debug for Levels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_stored_once_in_order_of_appearance() {
        let column = Column::text("town", [Some("Oslo"), None, Some(""), Some("Oslo"), Some("Rome")]);
        let Values::Text(text) = &column.values else { panic!() };
        assert_eq!(text.codes, [0, Text::MISSING, 1, 0, 2]);
        assert_eq!(text.levels.iter().collect::<Vec<_>>(), ["Oslo", "", "Rome"]);
        assert_eq!((text.levels.find("Rome"), text.levels.find("Rom")), (Some(2), None));
        assert_eq!((text.get(1), text.get(3), text.counts()), (None, Some("Oslo"), vec![2, 1, 1]));
        assert_eq!((column.len(), column.missing()), (5, 1));
    }

    #[test]
    fn selected_rows_keep_their_values() {
        let column = Column::numbers("x", vec![1.0, f64::NAN, 3.0]).select(&[2, 1]);
        assert_eq!((column.len(), column.missing(), column.name.as_str()), (2, 1, "x"));
    }
}
