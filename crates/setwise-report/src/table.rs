//! A table of results, with one cell type for everything that ends up in one.

use std::path::Path;

use serde::ser::{Serialize, SerializeMap, Serializer};

use setwise::files::atomic::write_atomically;
use setwise::{Error, Result};

/// What one cell holds. `digits` counts decimals in Markdown; CSV and JSON keep the number as it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A number.
    Number {
        /// The number.
        value: f64,
        /// Decimals to show.
        digits: usize,
    },
    /// A mean and its standard error.
    Estimate {
        /// The mean.
        mean: f64,
        /// Its standard error.
        error: f64,
        /// Decimals to show.
        digits: usize,
    },
    /// A whole number.
    Count(usize),
    /// Several words or sentences: joined by semicolons, a list in JSON.
    List(Vec<String>),
    /// Nothing was measured: `not run` in Markdown, empty in CSV, null in JSON.
    NotRun,
    /// Nothing is to be said: empty, null in JSON.
    Empty,
}

impl Cell {
    /// A number shown with `digits` decimals.
    pub fn number(value: f64, digits: usize) -> Cell {
        Cell::Number { value, digits }
    }

    /// A mean and its standard error, shown with `digits` decimals.
    pub fn estimate(mean: f64, error: f64, digits: usize) -> Cell {
        Cell::Estimate { mean, error, digits }
    }

    /// The number that is compared with others of its column.
    fn value(&self) -> Option<f64> {
        match *self {
            Cell::Number { value, .. } | Cell::Estimate { mean: value, .. } if !value.is_nan() => Some(value),
            _ => None,
        }
    }

    /// The cell as read by people, without escapes.
    fn shown(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Number { value, digits } => shown(*value, *digits),
            Cell::Estimate { mean, error, digits } => format!("{} ± {}", shown(*mean, *digits), shown(*error, *digits)),
            Cell::Count(n) => n.to_string(),
            Cell::List(items) => items.join("; "),
            Cell::NotRun => "not run".into(),
            Cell::Empty => String::new(),
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

/// Numbers whose decimals would hide them, or that would fill a line, turn to powers of ten.
fn shown(value: f64, digits: usize) -> String {
    let fixed = format!("{value:.digits$}");
    let vanished = value != 0.0 && fixed.chars().all(|c| matches!(c, '0' | '.' | '-'));
    let huge = value.is_finite() && value.abs() >= 1e9;
    if vanished || huge { format!("{value:.*e}", digits.min(3)) } else { fixed }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Text(text) => serializer.serialize_str(text),
            Cell::Number { value, .. } => Exact(*value).serialize(serializer),
            Cell::Estimate { mean, error, .. } => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("mean", &Exact(*mean))?;
                map.serialize_entry("se", &Exact(*error))?;
                map.end()
            }
            Cell::Count(n) => serializer.serialize_u64(*n as u64),
            Cell::List(items) => items.serialize(serializer),
            Cell::NotRun | Cell::Empty => serializer.serialize_unit(),
        }
    }
}

/// A number for JSON. JSON has no NaN, and null means "not run", so that what is not finite becomes a string.
struct Exact(f64);

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            serializer.serialize_f64(self.0)
        } else {
            serializer.serialize_str(&self.0.to_string())
        }
    }
}

/// Which number of a column is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Errors, times.
    Lowest,
    /// Accuracies.
    Highest,
}

/// A title, named columns, and rows of cells.
#[derive(Clone, Debug)]
pub struct Table {
    title: String,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

#[derive(Clone, Debug)]
struct Column {
    name: String,
    best: Option<Goal>,
}

impl Table {
    /// A table without rows.
    ///
    /// # Panics
    /// Where two columns have the same name: JSON could not tell them apart.
    pub fn new<S: Into<String>>(title: impl Into<String>, columns: impl IntoIterator<Item = S>) -> Table {
        let columns: Vec<Column> = columns.into_iter().map(|name| Column { name: name.into(), best: None }).collect();
        for (i, column) in columns.iter().enumerate() {
            assert!(columns[..i].iter().all(|c| c.name != column.name), "two columns are called {:?}", column.name);
        }
        Table { title: title.into(), columns, rows: Vec::new() }
    }

    /// Marks the best cell of a column, and those that look the same, bold in Markdown. A name that is no column marks
    /// nothing.
    pub fn with_best(mut self, column: &str, goal: Goal) -> Table {
        self.columns.iter_mut().filter(|c| c.name == column).for_each(|c| c.best = Some(goal));
        self
    }

    /// Adds a row.
    ///
    /// # Panics
    /// Where the row has not one cell for each column.
    pub fn push(&mut self, row: impl IntoIterator<Item = Cell>) {
        let row: Vec<Cell> = row.into_iter().collect();
        assert_eq!(row.len(), self.columns.len(), "cells in a row of the table {:?}", self.title);
        self.rows.push(row);
    }

    /// The title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The rows so far.
    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// The heading and the rows as read by people, each cell with whether its column stands to the right.
    pub(super) fn shown(&self) -> Vec<Vec<(String, bool)>> {
        let right: Vec<bool> = (0..self.columns.len()).map(|c| self.holds_numbers(c)).collect();
        let aligned = |texts: Vec<String>| texts.into_iter().zip(right.iter().copied()).collect();
        let heading = self.columns.iter().map(|c| c.name.clone()).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::shown).collect());
        std::iter::once(heading).chain(rows).map(aligned).collect()
    }

    fn holds_numbers(&self, column: usize) -> bool {
        self.rows.iter().any(|row| !matches!(row[column], Cell::Text(_) | Cell::List(_) | Cell::NotRun | Cell::Empty))
    }

    /// GitHub Markdown: the title in bold, then columns padded to the same width, numbers to the right.
    pub fn to_markdown(&self) -> String {
        let columns: Vec<(Vec<String>, bool)> = (0..self.columns.len()).map(|c| self.markdown_column(c)).collect();
        let widths: Vec<usize> = columns
            .iter()
            .map(|(cells, _)| cells.iter().map(|s| s.chars().count()).max().unwrap_or(0).max(3))
            .collect();
        let mut text = String::new();
        if !self.title.is_empty() {
            text += &format!("**{}**\n\n", escaped(&self.title));
        }
        for line in 0..self.rows.len() + 1 {
            for ((cells, right), &width) in columns.iter().zip(&widths) {
                let cell = &cells[line];
                text += &if *right { format!("| {cell:>width$} ") } else { format!("| {cell:<width$} ") };
            }
            text += "|\n";
            if line == 0 {
                for ((_, right), &width) in columns.iter().zip(&widths) {
                    text += &if *right {
                        format!("| {:->width$}: ", "", width = width - 1)
                    } else {
                        format!("| {:-<width$} ", "")
                    };
                }
                text += "|\n";
            }
        }
        text
    }

    /// A column's heading and cells as Markdown, and whether it stands to the right.
    fn markdown_column(&self, column: usize) -> (Vec<String>, bool) {
        let Column { name, best } = &self.columns[column];
        let cells = || self.rows.iter().map(|row| &row[column]);
        let best = best.and_then(|goal| {
            let order = |a: &&Cell, b: &&Cell| a.value().partial_cmp(&b.value()).unwrap_or(std::cmp::Ordering::Equal);
            let numbers = cells().filter(|cell| cell.value().is_some());
            match goal {
                Goal::Lowest => numbers.min_by(order),
                Goal::Highest => numbers.max_by(order),
            }
        });
        // Two estimates are equally good where their means look the same, whatever their errors.
        let shown_value = |cell: &Cell| match *cell {
            Cell::Number { value, digits } | Cell::Estimate { mean: value, digits, .. } => Some(shown(value, digits)),
            _ => None,
        };
        let best = best.and_then(shown_value);
        let heading = std::iter::once(escaped(name));
        let texts = heading.chain(cells().map(|cell| {
            let text = escaped(&cell.shown());
            if best.is_some() && shown_value(cell) == best { format!("**{text}**") } else { text }
        }));
        (texts.collect(), self.holds_numbers(column))
    }

    /// CSV with every digit. A column with standard errors is followed by a second one, named with ` se` at its end.
    pub fn to_csv(&self) -> String {
        let with_error: Vec<bool> = (0..self.columns.len())
            .map(|c| self.rows.iter().any(|row| matches!(row[c], Cell::Estimate { .. })))
            .collect();
        let mut heading = Vec::new();
        for (column, &with_error) in self.columns.iter().zip(&with_error) {
            heading.push(column.name.clone());
            heading.extend(with_error.then(|| format!("{} se", column.name)));
        }
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(&heading).expect("a write to memory");
        for row in &self.rows {
            let mut record = Vec::new();
            for (cell, &with_error) in row.iter().zip(&with_error) {
                let (value, error) = match cell {
                    Cell::Text(text) => (text.clone(), None),
                    Cell::Number { value, .. } => (value.to_string(), None),
                    Cell::Estimate { mean, error, .. } => (mean.to_string(), Some(error.to_string())),
                    Cell::Count(_) | Cell::List(_) => (cell.shown(), None),
                    Cell::NotRun | Cell::Empty => (String::new(), None),
                };
                record.push(value);
                record.extend(with_error.then(|| error.unwrap_or_default()));
            }
            writer.write_record(&record).expect("a record as long as the heading, written to memory");
        }
        let bytes = writer.into_inner().expect("a write to memory");
        String::from_utf8(bytes).expect("CSV made of strings")
    }

    /// JSON: an array with an object for each row, its keys in the order of the columns. An estimate is an object with
    /// `mean` and
    /// `se`.
    pub fn to_json(&self) -> String {
        struct Row<'a>(&'a [Column], &'a [Cell]);
        impl Serialize for Row<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|column| &column.name).zip(self.1))
            }
        }
        let rows: Vec<Row> = self.rows.iter().map(|row| Row(&self.columns, row)).collect();
        serde_json::to_string_pretty(&rows).expect("strings and finite numbers")
    }

    /// Writes the table in the format that the file's extension names: `md`, `csv` or `json`; as a whole or not at all.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let text = Self::format_of(path)?(self);
        write_atomically(path, text.as_bytes()).map_err(Error::io(path))
    }

    /// Whether a file's extension names a format that [`Table::save`] can write; worth asking before long work.
    pub fn check_extension(path: impl AsRef<Path>) -> Result<()> {
        Self::format_of(path.as_ref()).map(|_| ())
    }

    fn format_of(path: &Path) -> Result<fn(&Table) -> String> {
        const KNOWN: &str = ".md, .csv and .json";
        match super::extension(path, KNOWN)?.as_str() {
            "md" => Ok(Table::to_markdown),
            "csv" => Ok(Table::to_csv),
            "json" => Ok(|table| table.to_json() + "\n"),
            _ => Err(super::unknown_extension(path, KNOWN)),
        }
    }
}

/// Text as a cell of a Markdown table shows it: nothing in it is markup, and it stays on its line.
fn escaped(text: &str) -> String {
    let characters: Vec<char> = text.trim().replace("\r\n", "\n").chars().collect();
    let inside_word = |i: usize| {
        let word = |c: Option<&char>| c.is_some_and(|c| c.is_alphanumeric() || *c == '_');
        i > 0 && word(characters.get(i - 1)) && word(characters.get(i + 1))
    };
    let mut escaped = String::with_capacity(text.len());
    for (i, &c) in characters.iter().enumerate() {
        match c {
            '\n' | '\r' => escaped += "<br>",
            '\\' | '|' | '*' | '`' | '<' | '[' | ']' => escaped.extend(['\\', c]),
            '_' if !inside_word(i) => escaped += "\\_",
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("Errors", ["method", "d = 2", "time"])
            .with_best("d = 2", Goal::Lowest)
            .with_best("time", Goal::Highest);
        table.push(["a|b".into(), Cell::estimate(0.25, 0.0625, 2), Cell::number(3.0, 1)]);
        table.push(["say \"hi\", you".into(), Cell::estimate(0.1234567890123, 0.01, 2), Cell::number(12.5, 1)]);
        table.push(["third".into(), Cell::NotRun, Cell::number(f64::NAN, 1)]);
        table
    }

    #[test]
    fn markdown_is_aligned_escaped_and_marks_the_best() {
        let expected = "\
**Errors**

| method        |           d = 2 |     time |
| ------------- | --------------: | -------: |
| a\\|b          |     0.25 ± 0.06 |      3.0 |
| say \"hi\", you | **0.12 ± 0.01** | **12.5** |
| third         |         not run |      NaN |
";
        assert_eq!(table().to_markdown(), expected);
    }

    #[test]
    fn csv_quotes_keeps_every_digit_and_leaves_what_was_not_run_empty() {
        let expected = "method,d = 2,d = 2 se,time\na|b,0.25,0.0625,3\n\
             \"say \"\"hi\"\", you\",0.1234567890123,0.01,12.5\nthird,,,NaN\n";
        assert_eq!(table().to_csv(), expected);
    }

    #[test]
    fn json_rows_are_objects_in_column_order_with_null_for_what_was_not_run() {
        let json = table().to_json();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let expected = serde_json::json!([
            {"method": "a|b", "d = 2": {"mean": 0.25, "se": 0.0625}, "time": 3.0},
            {"method": "say \"hi\", you", "d = 2": {"mean": 0.1234567890123, "se": 0.01}, "time": 12.5},
            {"method": "third", "d = 2": null, "time": "NaN"},
        ]);
        assert_eq!(value, expected);
        assert!(json.find("method") < json.find("d = 2"));
    }

    #[test]
    fn counts_lists_and_what_is_empty_are_themselves_in_every_format() {
        let mut table = Table::new("", ["n", "notes", "error"]);
        table.push([Cell::Count(3), Cell::List(vec!["a".into(), "b".into()]), Cell::Empty]);
        assert!(table.to_markdown().ends_with("|   3 | a; b  |       |\n"), "{}", table.to_markdown());
        assert_eq!(table.to_csv(), "n,notes,error\n3,a; b,\n");
        let json: String = table.to_json().split_whitespace().collect();
        assert_eq!(json, r#"[{"n":3,"notes":["a","b"],"error":null}]"#);
    }

    #[test]
    fn cells_that_look_like_the_best_are_marked_with_it() {
        let mut table = Table::new("", ["x"]).with_best("x", Goal::Lowest);
        for value in [0.1201, 0.1199, 0.13] {
            table.push([Cell::number(value, 2)]);
        }
        assert_eq!(table.to_markdown().matches("**0.12**").count(), 2);
        assert_eq!(table.to_markdown().matches("**").count(), 4);
    }

    #[test]
    fn numbers_that_decimals_would_hide_turn_to_powers_of_ten() {
        assert_eq!(shown(1.25e-7, 3), "1.250e-7");
        assert_eq!(shown(0.0, 3), "0.000");
        assert_eq!(shown(6.02e23, 2), "6.02e23");
        assert_eq!(shown(f64::INFINITY, 2), "inf");
    }

    #[test]
    fn markup_in_text_is_shown_and_not_obeyed() {
        assert_eq!(escaped("*a* <b> `c` [d](e)\nf\\|g"), "\\*a\\* \\<b> \\`c\\` \\[d\\](e)<br>f\\\\\\|g");
        assert_eq!(escaped("multi_set _x_"), "multi_set \\_x\\_");
    }

    #[test]
    fn a_table_without_rows_still_has_its_heading() {
        let table = Table::new("", ["a", "b"]).with_best("a", Goal::Lowest);
        assert_eq!(table.to_markdown(), "| a   | b   |\n| --- | --- |\n");
        assert_eq!(table.to_csv(), "a,b\n");
        assert_eq!(table.to_json(), "[]");
    }

    #[test]
    fn saving_follows_the_extension_and_names_the_known_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.MD");
        table().save(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), table().to_markdown());
        let error = table().save(folder.path().join("table.xls")).unwrap_err().to_string();
        assert!(error.contains("table.xls") && error.contains(".csv"), "{error}");
        assert!(table().save(folder.path().join("table")).is_err());
    }
}
