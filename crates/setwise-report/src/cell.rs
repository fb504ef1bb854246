//! Cells of a table.

use serde::ser::{Serialize, SerializeMap, Serializer};

/// A cell. `digits` is the number of decimals in Markdown. CSV and JSON have full precision.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Text.
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
    /// An integer.
    Count(usize),
    /// Several texts: joined by semicolons, a list in JSON.
    List(Vec<String>),
    /// Not measured: `not run` in Markdown, empty in CSV, null in JSON.
    NotRun,
    /// Empty; null in JSON.
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

    /// The value for the comparison with other cells of the column.
    pub(super) fn value(&self) -> Option<f64> {
        match *self {
            Cell::Number { value, .. } | Cell::Estimate { mean: value, .. } if !value.is_nan() => Some(value),
            _ => None,
        }
    }

    /// The text of the cell, without escapes.
    pub(super) fn display(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Number { value, digits } => format_number(*value, *digits),
            Cell::Estimate { mean, error, digits } => {
                format!("{} ± {}", format_number(*mean, *digits), format_number(*error, *digits))
            }
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

/// Formats a number with `digits` decimals. Numbers that round to zero or are huge have scientific notation.
pub(super) fn format_number(value: f64, digits: usize) -> String {
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

/// A number for JSON. Non-finite numbers become strings, because JSON has no NaN and null means "not run".
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
