//! JSON lines, and JSON arrays of objects.
//!
//! Each object is a row. Keys of nested objects are joined by dots; arrays stay text.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::error::Reason;
use crate::table::{Column, Place, Text, Values};
use crate::wording::{MAX_SHOWN, truncated};

/// Whether the content is JSON: its first character begins an object, or an array of objects.
pub(crate) fn is_json(bytes: &[u8]) -> bool {
    match bytes.trim_ascii_start() {
        [b'{', rest @ ..] => matches!(rest.trim_ascii_start().first(), Some(b'"' | b'}')),
        [b'[', rest @ ..] => matches!(rest.trim_ascii_start().first(), Some(b'{' | b']')),
        _ => false,
    }
}

/// Reads all rows.
pub(crate) fn read_json_columns(bytes: &[u8]) -> Reason<Vec<Column>> {
    let mut builder = Builder::default();
    if bytes.trim_ascii_start().starts_with(b"[") {
        serde_json::from_slice::<Rows>(bytes).map_err(|e| broken(&e))?.0.into_iter().enumerate().for_each(
            // Rows of an array have no lines: rows are counted.
            |(i, row)| builder.push(i as u64 + 1, row),
        );
        return Ok(builder.finish());
    }
    let mut rows = serde_json::Deserializer::from_slice(bytes).into_iter::<Row>();
    let (mut line, mut counted) = (1, 0);
    loop {
        let start = rows.byte_offset();
        let Some(row) = rows.next() else { return Ok(builder.finish()) };
        let row = row.map_err(|e| broken(&e))?;
        let leading = bytes[start..].len() - bytes[start..].trim_ascii_start().len();
        line += memchr::memchr_iter(b'\n', &bytes[counted..start + leading]).count() as u64;
        counted = start + leading;
        builder.push(line, row);
    }
}

fn broken(e: &serde_json::Error) -> String {
    format!("line {}, character {}: is not a row of JSON: {}", e.line(), e.column(), without_place(&e.to_string()))
}

fn without_place(message: &str) -> &str {
    message.split(" at line ").next().unwrap_or(message)
}

/// Keys with their values, in the order of the file.
struct Row(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Row;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object with a value for each column")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row, A::Error> {
                let mut fields = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    flatten(key, value, &mut fields);
                }
                Ok(Row(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

fn flatten(key: String, value: Value, fields: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(nested) => {
            nested.into_iter().for_each(|(name, value)| flatten(format!("{key}.{name}"), value, fields));
        }
        value => fields.push((key, value)),
    }
}

struct Rows(Vec<Row>);

impl<'de> Deserialize<'de> for Rows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items;
        impl<'de> Visitor<'de> for Items {
            type Value = Rows;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an array of objects")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Rows, A::Error> {
                let mut rows = Vec::new();
                while let Some(row) = seq.next_element()? {
                    rows.push(row);
                }
                Ok(Rows(rows))
            }
        }
        deserializer.deserialize_seq(Items)
    }
}

#[derive(Default)]
struct Builder {
    rows: usize,
    columns: Vec<Growing>,
    places: HashMap<String, usize>,
}

/// A column that grows, as numbers until its first text.
struct Growing {
    name: String,
    values: Values,
    first_missing: Option<Place>,
    first_text: Option<Place>,
}

impl Builder {
    fn push(&mut self, line: u64, row: Row) {
        for (key, value) in row.0 {
            let place = *self.places.entry(key).or_insert_with_key(|name| {
                let values = Values::Numbers(Vec::new());
                self.columns.push(Growing { name: name.clone(), values, first_missing: None, first_text: None });
                self.columns.len() - 1
            });
            let column = &mut self.columns[place];
            column.pad(self.rows, line);
            // A key that is repeated in a row counts once.
            if column.len() == self.rows {
                column.push(line, &value);
            }
        }
        self.rows += 1;
    }

    fn finish(mut self) -> Vec<Column> {
        let rows = self.rows;
        let finished = self.columns.drain(..).map(|mut column| {
            column.pad(rows, rows as u64);
            let Growing { name, values, first_missing, first_text } = column;
            Column { name, values, first_missing, first_text, first_infinite: None, damaged: None }
        });
        finished.collect()
    }
}

impl Growing {
    fn len(&self) -> usize {
        match &self.values {
            Values::Numbers(v) | Values::Times(v) => v.len(),
            Values::Text(text) => text.codes.len(),
        }
    }

    /// Adds missing values for the rows without the key.
    fn pad(&mut self, rows: usize, line: u64) {
        while self.len() < rows {
            self.missing(line);
        }
    }

    fn missing(&mut self, line: u64) {
        self.first_missing.get_or_insert_with(|| Place { line, value: "null".to_owned() });
        match &mut self.values {
            Values::Numbers(v) | Values::Times(v) => v.push(f64::NAN),
            Values::Text(text) => text.push(None),
        }
    }

    fn push(&mut self, line: u64, value: &Value) {
        let written = match value {
            Value::Null => return self.missing(line),
            Value::Number(x) => {
                if let (Values::Numbers(values), Some(x)) = (&mut self.values, x.as_f64()) {
                    return values.push(x);
                }
                x.to_string()
            }
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.first_text.get_or_insert_with(|| Place { line, value: truncated(&written, MAX_SHOWN) });
        if let Values::Numbers(numbers) = &self.values {
            let mut text = Text::default();
            numbers.iter().for_each(|x| text.push((!x.is_nan()).then(|| x.to_string()).as_deref()));
            self.values = Values::Text(text);
        }
        if let Values::Text(text) = &mut self.values {
            text.push(Some(&written));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_objects_in_lines_or_in_an_array() {
        let lines = b"{\"x\": 1, \"y\": \"a\"}\n\n{\"y\": null, \"z\": {\"w\": true}}\n{\"x\": 2.5, \"y\": \"b\"}\n";
        let array = b"[{\"x\": 1, \"y\": \"a\"}, {\"z\": {\"w\": true}}, {\"x\": 2.5, \"y\": \"b\"}]";
        for content in [lines.as_slice(), array] {
            assert!(is_json(content));
            let columns = read_json_columns(content).unwrap();
            assert_eq!(columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["x", "y", "z.w"]);
            assert_eq!(columns.iter().map(Column::missing).collect::<Vec<_>>(), [1, 1, 2]);
            let Values::Text(z) = &columns[2].values else { panic!() };
            assert_eq!((z.get(0), z.get(1)), (None, Some("true")));
        }
    }

    #[test]
    fn broken_rows_are_errors_with_their_line() {
        for (content, expected) in [
            ("{\"x\": 1}\n{\"x\": }\n", "line 2, character 7: is not a row of JSON: expected value"),
            ("{\"x\": 1}\n[1, 2]\n", "line 2, character 0: is not a row of JSON: invalid type: sequence"),
            ("[{\"x\": 1}, 2]", "line 1, character 12: is not a row of JSON: invalid type"),
            ("{\"x\": 1}\n{\"x\"", "line 2, character 4: is not a row of JSON: EOF"),
        ] {
            let error = read_json_columns(content.as_bytes()).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_column_of_numbers_becomes_text_at_its_first_text() {
        let columns = read_json_columns(b"{\"x\": 1}\n{\"x\": \"two\"}\n{\"x\": 3}\n").unwrap();
        let Values::Text(text) = &columns[0].values else { panic!() };
        assert_eq!(text.levels.iter().collect::<Vec<_>>(), ["1", "two", "3"]);
        assert_eq!(columns[0].first_text, Some(Place { line: 2, value: "two".to_owned() }));
    }
}
