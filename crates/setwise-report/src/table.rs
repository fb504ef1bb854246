//! A table of results as Markdown, CSV and JSON.

use std::path::Path;

use serde::ser::{Serialize, Serializer};

use setwise::files::atomic::write_atomically;
use setwise::{Error, Result};

use super::cell::{Cell, format_number};

/// The best number of a column.
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
    /// Where two columns have the same name, which JSON cannot represent.
    pub fn new<S: Into<String>>(title: impl Into<String>, columns: impl IntoIterator<Item = S>) -> Table {
        let columns: Vec<Column> = columns.into_iter().map(|name| Column { name: name.into(), best: None }).collect();
        for (i, column) in columns.iter().enumerate() {
            assert!(columns[..i].iter().all(|c| c.name != column.name), "two columns are called {:?}", column.name);
        }
        Table { title: title.into(), columns, rows: Vec::new() }
    }

    /// Marks the best cell of a column, and cells with the same text, bold in Markdown. Unknown columns are ignored.
    pub fn with_best(mut self, column: &str, goal: Goal) -> Table {
        self.columns.iter_mut().filter(|c| c.name == column).for_each(|c| c.best = Some(goal));
        self
    }

    /// Adds a row.
    ///
    /// # Panics
    /// Where the number of cells differs from the number of columns.
    pub fn push(&mut self, row: impl IntoIterator<Item = Cell>) {
        let row: Vec<Cell> = row.into_iter().collect();
        assert_eq!(row.len(), self.columns.len(), "cells in a row of the table {:?}", self.title);
        self.rows.push(row);
    }

    /// The title.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The rows.
    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// The texts of heading and rows. The flag of a cell is whether its column is right-aligned.
    pub(super) fn texts(&self) -> Vec<Vec<(String, bool)>> {
        let right: Vec<bool> = (0..self.columns.len()).map(|c| self.holds_numbers(c)).collect();
        let aligned = |texts: Vec<String>| texts.into_iter().zip(right.iter().copied()).collect();
        let heading = self.columns.iter().map(|c| c.name.clone()).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::display).collect());
        std::iter::once(heading).chain(rows).map(aligned).collect()
    }

    fn holds_numbers(&self, column: usize) -> bool {
        self.rows.iter().any(|row| !matches!(row[column], Cell::Text(_) | Cell::List(_) | Cell::NotRun | Cell::Empty))
    }

    /// GitHub Markdown: the title in bold, then padded columns with right-aligned numbers.
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

    /// Heading and cells of a column as Markdown, and whether the column is right-aligned.
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
        // Estimates with the same displayed mean are equally good.
        let displayed_value = |cell: &Cell| match *cell {
            Cell::Number { value, digits } | Cell::Estimate { mean: value, digits, .. } => {
                Some(format_number(value, digits))
            }
            _ => None,
        };
        let best = best.and_then(displayed_value);
        let heading = std::iter::once(escaped(name));
        let texts = heading.chain(cells().map(|cell| {
            let text = escaped(&cell.display());
            if best.is_some() && displayed_value(cell) == best { format!("**{text}**") } else { text }
        }));
        (texts.collect(), self.holds_numbers(column))
    }

    /// CSV with full precision. A column with standard errors has a second column with the suffix ` se`.
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
                    Cell::Count(_) | Cell::List(_) => (cell.display(), None),
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

    /// JSON: an array with an object for each row, keys in the order of columns. An estimate is an object with `mean`
    /// and `se`.
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

    /// Writes the table atomically in the format of the file's extension: `md`, `csv`, `json`, and with the feature `arrow` `parquet`.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let content = Self::format_of(path)?(self);
        write_atomically(path, &content).map_err(Error::io(path))
    }

    /// Checks the extension of a file name, for example before long work.
    pub fn check_extension(path: impl AsRef<Path>) -> Result<()> {
        Self::format_of(path.as_ref()).map(|_| ())
    }

    fn format_of(path: &Path) -> Result<fn(&Table) -> Vec<u8>> {
        const KNOWN: &str =
            if cfg!(feature = "arrow") { ".md, .csv, .json and .parquet" } else { ".md, .csv and .json" };
        match super::extension(path, KNOWN)?.as_str() {
            "md" => Ok(|table| table.to_markdown().into_bytes()),
            "csv" => Ok(|table| table.to_csv().into_bytes()),
            "json" => Ok(|table| (table.to_json() + "\n").into_bytes()),
            #[cfg(feature = "arrow")]
            "parquet" => Ok(Table::to_parquet),
            _ => Err(super::unknown_extension(path, KNOWN)),
        }
    }

    /// A Parquet file with columns of numbers and of text, unrounded.
    #[cfg(feature = "arrow")]
    fn to_parquet(&self) -> Vec<u8> {
        use setwise_table::{Column, Values};
        let number = |cell: &Cell| match cell {
            Cell::Number { value, .. } => Some(*value),
            Cell::Count(n) => Some(*n as f64),
            Cell::Empty | Cell::NotRun => Some(f64::NAN),
            _ => None,
        };
        let text = |cell: &Cell| (!matches!(cell, Cell::Empty | Cell::NotRun)).then(|| cell.display());
        let column = |(c, of): (usize, &self::Column)| {
            let cells = || self.rows.iter().map(|row| &row[c]);
            match cells().map(number).collect::<Option<Vec<f64>>>() {
                Some(numbers) => Column::new(&of.name, Values::Numbers(numbers)),
                None => {
                    let texts: Vec<Option<String>> = cells().map(text).collect();
                    Column::text(&of.name, texts.iter().map(Option::as_deref))
                }
            }
        };
        let columns = self.columns.iter().enumerate().map(column).collect();
        let rows = self.rows.len();
        setwise_table::Table { columns, rows, named: true, ..setwise_table::Table::default() }.to_parquet()
    }
}

/// Escapes text for a cell of a Markdown table. Line breaks become `<br>`.
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
    fn csv_quotes_text_keeps_every_digit_and_leaves_cells_not_run_empty() {
        let expected = "method,d = 2,d = 2 se,time\na|b,0.25,0.0625,3\n\
             \"say \"\"hi\"\", you\",0.1234567890123,0.01,12.5\nthird,,,NaN\n";
        assert_eq!(table().to_csv(), expected);
    }

    #[test]
    fn json_rows_are_objects_in_column_order_with_null_for_cells_not_run() {
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
    fn counts_lists_and_empty_cells_have_a_text_in_every_format() {
        let mut table = Table::new("", ["n", "notes", "error"]);
        table.push([Cell::Count(3), Cell::List(vec!["a".into(), "b".into()]), Cell::Empty]);
        assert!(table.to_markdown().ends_with("|   3 | a; b  |       |\n"), "{}", table.to_markdown());
        assert_eq!(table.to_csv(), "n,notes,error\n3,a; b,\n");
        let json: String = table.to_json().split_whitespace().collect();
        assert_eq!(json, r#"[{"n":3,"notes":["a","b"],"error":null}]"#);
    }

    #[test]
    fn cells_with_the_text_of_the_best_are_marked_too() {
        let mut table = Table::new("", ["x"]).with_best("x", Goal::Lowest);
        for value in [0.1201, 0.1199, 0.13] {
            table.push([Cell::number(value, 2)]);
        }
        assert_eq!(table.to_markdown().matches("**0.12**").count(), 2);
        assert_eq!(table.to_markdown().matches("**").count(), 4);
    }

    #[test]
    fn numbers_that_round_to_zero_have_scientific_notation() {
        assert_eq!(format_number(1.25e-7, 3), "1.250e-7");
        assert_eq!(format_number(0.0, 3), "0.000");
        assert_eq!(format_number(6.02e23, 2), "6.02e23");
        assert_eq!(format_number(f64::INFINITY, 2), "inf");
    }

    #[test]
    fn markup_in_text_is_escaped() {
        assert_eq!(escaped("*a* <b> `c` [d](e)\nf\\|g"), "\\*a\\* \\<b> \\`c\\` \\[d\\](e)<br>f\\\\\\|g");
        assert_eq!(escaped("multi_set _x_"), "multi_set \\_x\\_");
    }

    #[test]
    fn a_table_without_rows_has_its_heading() {
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
