//! What a comparison needs of a reference table, in one file.
//!
//! A profile is gzip-compressed JSON: rows of the table, column by column, with the type of each column. Of long tables
//! it holds a random sample of rows. It holds values of the reference, so it deserves the same care.

use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Reason, Result};
use crate::source::read_bytes;
use crate::table::{Column, Levels, Table, Text, Values};
use crate::types::{ColumnType, Overrides};

/// Most rows of a profile.
pub const MAX_ROWS: usize = 200_000;
/// The version of the format.
const VERSION: u32 = 1;

/// A reference table with the types of its columns.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The rows.
    pub table: Table,
    /// The type of each column.
    pub types: Overrides,
}

/// The content of a profile.
#[derive(Serialize, Deserialize)]
struct Content {
    setwise_profile: u32,
    table: PathBuf,
    rows: usize,
    rows_of_table: usize,
    named: bool,
    columns: Vec<StoredColumn>,
}

#[derive(Serialize, Deserialize)]
struct StoredColumn {
    name: String,
    /// The type, where it is not known from the values of both tables.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    column_type: Option<ColumnType>,
    #[serde(flatten)]
    values: StoredValues,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredValues {
    Numbers(Vec<Number>),
    Times(Vec<Number>),
    Text { levels: Vec<String>, codes: Vec<Option<u32>> },
}

/// A number that JSON can hold: missing values are null, infinite ones text.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Number {
    Missing,
    Finite(f64),
    Infinite(String),
}

impl From<f64> for Number {
    fn from(x: f64) -> Self {
        match x {
            x if x.is_nan() => Number::Missing,
            x if x.is_finite() => Number::Finite(x),
            x => Number::Infinite(x.to_string()),
        }
    }
}

impl Number {
    fn value(self) -> Reason<f64> {
        match self {
            Number::Missing => Ok(f64::NAN),
            Number::Finite(x) => Ok(x),
            Number::Infinite(text) => text.parse().map_err(|_| format!("{text:?} is no number")),
        }
    }
}

impl Profile {
    /// The profile of a table. Types that are set stay so; others are known from both tables that are compared.
    ///
    /// `sample` chooses so many of all rows where there are more than [`MAX_ROWS`].
    pub fn new(table: Table, overrides: &Overrides, sample: impl FnOnce(usize, usize) -> Vec<u32>) -> Result<Self> {
        let (mut types, mut problems) = (Overrides::default(), Vec::new());
        let is_long = table.rows > MAX_ROWS;
        for column in &table.columns {
            match overrides.get(&column.name).map_or_else(|| ColumnType::infer(&[column]), Ok) {
                // Rows that are drawn do not show whether numbers count all rows.
                Ok(of) if overrides.get(&column.name).is_some() || (is_long && of == ColumnType::Identifier) => {
                    types.set(&column.name, of);
                }
                Ok(_) => {}
                Err(e) => problems.push(e.to_string()),
            }
        }
        if !problems.is_empty() {
            return Err(Error::file(&table.path, problems.join("\n  ")));
        }
        if !is_long {
            return Ok(Profile { table, types });
        }
        let kept = sample(table.rows, MAX_ROWS);
        let columns = table.columns.iter().map(|c| c.select(&kept)).collect();
        let sample_of = table.sample_of.or(Some(table.rows));
        Ok(Profile { table: Table { columns, rows: kept.len(), sample_of, ..table }, types })
    }

    /// The profile as bytes of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let columns = self.table.columns.iter().map(|column| StoredColumn {
            name: column.name.clone(),
            column_type: self.types.get(&column.name),
            values: match &column.values {
                Values::Numbers(v) => StoredValues::Numbers(v.iter().map(|x| Number::from(*x)).collect()),
                Values::Times(v) => StoredValues::Times(v.iter().map(|x| Number::from(*x)).collect()),
                Values::Text(text) => StoredValues::Text {
                    levels: text.levels.iter().map(str::to_owned).collect(),
                    codes: text.codes.iter().map(|c| (*c != Text::MISSING).then_some(*c)).collect(),
                },
            },
        });
        let content = Content {
            setwise_profile: VERSION,
            table: self.table.path.clone(),
            rows: self.table.rows,
            rows_of_table: self.table.sample_of.unwrap_or(self.table.rows),
            named: self.table.named,
            columns: columns.collect(),
        };
        let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut writer = BufWriter::new(gzip);
        serde_json::to_writer(&mut writer, &content).expect("a write to memory");
        writer.flush().expect("a write to memory");
        let gzip = writer.into_inner().map_err(|e| e.into_error()).expect("a write to memory");
        gzip.finish().expect("a write to memory")
    }

    /// Reads a profile.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = read_bytes(path)?;
        Self::parse(&bytes).map_err(|reason| Error::file(path, reason))
    }

    fn parse(bytes: &[u8]) -> Reason<Self> {
        const NOT_ONE: &str = "is no profile; `setwise compare REFERENCE --save-profile FILE` makes one";
        if !bytes.starts_with(b"\x1f\x8b") {
            return Err(NOT_ONE.to_owned());
        }
        // A column holds at most so much more than its compressed text.
        let limit = (64 << 20) + 250 * bytes.len() as u64;
        let reader = BufReader::new(flate2::read::MultiGzDecoder::new(bytes).take(limit));
        let content: Content = serde_json::from_reader(reader).map_err(|e| match e.classify() {
            serde_json::error::Category::Io => format!("cannot be decompressed: {e}; is it truncated?"),
            _ => format!("{NOT_ONE} ({e})"),
        })?;
        if content.setwise_profile != VERSION {
            return Err(format!("has version {}; this setwise reads {VERSION}", content.setwise_profile));
        }
        let mut types = Overrides::default();
        let mut columns = Vec::with_capacity(content.columns.len());
        for column in content.columns {
            let values = column.values.values().map_err(|reason| format!("column {:?}: {reason}", column.name))?;
            column.column_type.into_iter().for_each(|of| types.set(&column.name, of));
            let column = Column::new(column.name, values);
            if column.len() != content.rows {
                return Err(format!("column {:?} has {} rows of {}", column.name, column.len(), content.rows));
            }
            columns.push(column);
        }
        let table = Table::of_columns(content.table, columns, content.named)?;
        let sample_of = (content.rows_of_table > table.rows).then_some(content.rows_of_table);
        Ok(Profile { table: Table { sample_of, ..table }, types })
    }
}

impl StoredValues {
    fn values(self) -> Reason<Values> {
        let of = |numbers: Vec<Number>| numbers.into_iter().map(Number::value).collect::<Reason<Vec<f64>>>();
        Ok(match self {
            StoredValues::Numbers(numbers) => Values::Numbers(of(numbers)?),
            StoredValues::Times(numbers) => Values::Times(of(numbers)?),
            StoredValues::Text { levels: texts, codes } => {
                let mut levels = Levels::default();
                for (i, text) in texts.iter().enumerate() {
                    if levels.code(text) as usize != i {
                        return Err(format!("level {text:?} appears twice"));
                    }
                }
                let code = |code: Option<u32>| match code {
                    None => Ok(Text::MISSING),
                    Some(code) if (code as usize) < texts.len() => Ok(code),
                    Some(code) => Err(format!("code {code} has no level")),
                };
                Values::Text(Text { codes: codes.into_iter().map(code).collect::<Reason<_>>()?, levels })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(_: usize, kept: usize) -> Vec<u32> {
        (0..kept as u32).collect()
    }

    #[test]
    fn a_profile_keeps_values_and_types() {
        let csv = "id,x,town,day\n1,0.1,Oslo,2026-01-05\n2,inf,NA,2026-01-06\n3,,Rome,\n4,5e-324,Oslo,2026-02-01\n";
        let table = Table::parse("a.csv", csv.as_bytes()).unwrap();
        let mut overrides = Overrides::default();
        overrides.add("id=identifier").unwrap();
        let profile = Profile::new(table, &overrides, first).unwrap();
        let bytes = profile.to_bytes();
        let read = Profile::parse(&bytes).unwrap();
        let values = |profile: &Profile| {
            let of = |c: &Column| format!("{} {:?}", c.name, c.values);
            profile.table.columns.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(values(&read), values(&profile));
        assert_eq!((read.types.get("id"), read.types.get("day")), (Some(ColumnType::Identifier), None));
        assert_eq!((read.table.rows, read.table.sample_of, read.table.path.to_str()), (4, None, Some("a.csv")));
        for part in [1, bytes.len() / 2, bytes.len() - 1] {
            assert!(Profile::parse(&bytes[..part]).is_err());
        }
        let error = Profile::parse(b"x,y\n1,2\n").unwrap_err();
        assert!(error.starts_with("is no profile"), "{error}");
    }

    #[test]
    fn damaged_content_is_an_error() {
        let parse = |columns: &str| {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            let text = format!(
                "{{\"setwise_profile\":1,\"table\":\"t\",\"rows\":1,\"rows_of_table\":1,\"named\":true,\"columns\":[{columns}]}}"
            );
            gzip.write_all(text.as_bytes()).unwrap();
            Profile::parse(&gzip.finish().unwrap()).map(|p| p.table.rows)
        };
        assert_eq!(parse(r#"{"name":"x","type":"numeric","numbers":[2.5]}"#), Ok(1));
        for (column, expected) in [
            (r#"{"name":"x","type":"numeric","numbers":[2.5,1]}"#, "column \"x\" has 2 rows of 1"),
            (r#"{"name":"x","type":"numeric","numbers":["two"]}"#, "column \"x\": \"two\" is no number"),
            (
                r#"{"name":"x","type":"category","text":{"levels":["a"],"codes":[1]}}"#,
                "column \"x\": code 1 has no level",
            ),
            (
                r#"{"name":"x","type":"category","text":{"levels":["a","a"],"codes":[1]}}"#,
                "column \"x\": level \"a\" appears twice",
            ),
        ] {
            assert_eq!(parse(column).unwrap_err(), expected);
        }
    }

    #[test]
    fn long_tables_are_sampled() {
        let column = Column::numbers("x", (0..MAX_ROWS + 5).map(|i| i as f64 + 0.5).collect());
        let table = Table::of_columns(PathBuf::from("t"), vec![column], true).unwrap();
        let profile = Profile::new(table, &Overrides::default(), first).unwrap();
        let read = Profile::parse(&profile.to_bytes()).unwrap();
        assert_eq!((read.table.rows, read.table.sample_of), (MAX_ROWS, Some(MAX_ROWS + 5)));
    }
}
