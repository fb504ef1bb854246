//! CSV and TSV files, with or without a header.
//!
//! The first rows determine how the numbers of each column are written. A column in which a later value is no number
//! is read again as text.

mod dialect;
mod numbers;

use crate::error::Reason;
use crate::table::{Column, Place, Text, Values};
use crate::times::parse_times;
use crate::wording::{MAX_SHOWN, truncated};
use dialect::{delimiter, is_header, is_missing, is_numbered, number_formats};
use numbers::NumberFormat;

/// Rows that determine the format of numbers.
const SAMPLED: usize = 1000;

/// Columns of a text file, and whether it has a header.
pub(crate) struct Read {
    pub columns: Vec<Column>,
    pub named: bool,
    pub first_line: u64,
    /// A row with another number of fields, where the reading ends.
    pub ragged: Option<String>,
}

/// Reads text. Blank lines and lines that begin with `#` are skipped.
pub(crate) fn read_text(bytes: &[u8]) -> Reason<Read> {
    let delimiter = delimiter(bytes);
    let head = read_head(bytes, delimiter)?;
    let formats = number_formats(&head.rows, head.width, delimiter);
    let mut fields: Vec<Field> = formats.into_iter().map(Field::new).collect();
    let ragged = read_fields(bytes, delimiter, &head, &mut fields)?;
    // Columns with a value that is no number are text.
    let mixed: Vec<bool> = fields.iter().map(|f| f.format.is_some() && f.first_text.is_some()).collect();
    if mixed.contains(&true) {
        let skipped = |(field, mixed): (&Field, &bool)| match mixed {
            true => Field { skip: false, ..Field::new(None) },
            false => Field { skip: true, ..Field::new(field.format) },
        };
        let mut again: Vec<Field> = fields.iter().zip(&mixed).map(skipped).collect();
        read_fields(bytes, delimiter, &head, &mut again)?;
        for ((field, text), mixed) in fields.iter_mut().zip(again).zip(&mixed) {
            if *mixed {
                *field = Field { first_text: field.first_text.take(), ..text };
            }
        }
    }
    let names = unique(head.names.unwrap_or_else(|| vec![String::new(); head.width]));
    let columns = names.into_iter().zip(fields).map(|(name, field)| field.column(name)).collect();
    let first_line = head.rows.first().map_or(0, |row| start(bytes, row).0);
    Ok(Read { columns, named: head.named, first_line, ragged })
}

/// The header and the first rows.
struct Head {
    names: Option<Vec<String>>,
    named: bool,
    width: usize,
    rows: Vec<csv::ByteRecord>,
}

fn reader(bytes: &[u8], delimiter: u8) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new()
        .delimiter(delimiter)
        .has_headers(false)
        .flexible(true)
        .comment(Some(b'#'))
        .trim(csv::Trim::All)
        .from_reader(bytes)
}

fn read_head(bytes: &[u8], delimiter: u8) -> Reason<Head> {
    let mut reader = reader(bytes, delimiter);
    let mut rows = Vec::new();
    for record in reader.byte_records() {
        let record = record.map_err(|e| format!("not readable as text: {e}"))?;
        if !is_blank(bytes, &record) {
            rows.push(record);
        }
        if rows.len() > SAMPLED {
            break;
        }
    }
    let Some(first) = rows.first() else { return Err("is empty: it has no rows".to_owned()) };
    let width = first.len();
    let has_decimals =
        |row: &csv::ByteRecord| row.iter().all(|field| field.iter().any(|b| matches!(b, b'.' | b'e' | b'E')));
    let numbered = width > 1 && is_numbered(first.iter()) && rows.len() > 1 && rows[1..].iter().all(has_decimals);
    let named = is_header(first) || numbered;
    let names = named.then(|| rows.remove(0).iter().map(|f| String::from_utf8_lossy(f).into_owned()).collect());
    if rows.is_empty() {
        let several = |name: &&String| name.contains('\n');
        let names: Option<&Vec<String>> = names.as_ref();
        if let Some(name) = names.and_then(|names| names.iter().find(several)) {
            return Err(open_quote(1, names.map_or(0, |n| n.iter().position(|x| x == name).unwrap_or(0)), name));
        }
        return Err("is empty: it has a header and no rows".to_owned());
    }
    Ok(Head { names, named, width, rows })
}

/// Names without repetitions; empty ones become `column N`.
fn unique(names: Vec<String>) -> Vec<String> {
    let mut taken = std::collections::HashSet::new();
    let name = |(i, name): (usize, String)| {
        let name = if name.is_empty() { format!("column {}", i + 1) } else { name };
        let repeated = (2..).map(|n| format!("{name} ({n})"));
        let free = std::iter::once(name.clone()).chain(repeated).find(|name| !taken.contains(name));
        let free = free.expect("numbers do not end");
        taken.insert(free.clone());
        free
    };
    names.into_iter().enumerate().map(name).collect()
}

/// A column that is read.
struct Field {
    /// How its numbers are written; `None` if it is text.
    format: Option<NumberFormat>,
    skip: bool,
    numbers: Vec<f64>,
    text: Text,
    first_missing: Option<Place>,
    first_text: Option<Place>,
    first_infinite: Option<Place>,
    damaged: Option<String>,
}

impl Field {
    fn new(format: Option<NumberFormat>) -> Self {
        Field {
            format,
            skip: false,
            numbers: Vec::new(),
            text: Text::default(),
            first_missing: None,
            first_text: None,
            first_infinite: None,
            damaged: None,
        }
    }

    fn push(&mut self, field: &[u8], line: impl Fn() -> u64) {
        if self.skip {
            return;
        }
        let place = || Place { line: line(), value: truncated(&String::from_utf8_lossy(field), MAX_SHOWN) };
        let missing = is_missing(field);
        if missing {
            self.first_missing.get_or_insert_with(place);
        }
        if let Some(format) = self.format {
            let value = if missing { None } else { format.parse(field) };
            if value.is_none() && !missing {
                self.first_text.get_or_insert_with(place);
            }
            if value.is_some_and(f64::is_infinite) {
                self.first_infinite.get_or_insert_with(place);
            }
            // A column with text is read again.
            if self.first_text.is_none() {
                self.numbers.push(value.unwrap_or(f64::NAN));
            }
        } else if missing {
            self.text.push(None);
        } else if let Ok(text) = std::str::from_utf8(field) {
            if self.first_text.is_none() && NumberFormat::Plain.parse(field).is_none() {
                self.first_text = Some(place());
            }
            self.text.push(Some(text));
        } else {
            let text = String::from_utf8_lossy(field);
            self.damaged.get_or_insert_with(|| {
                let shown = truncated(&text, MAX_SHOWN);
                format!("line {} holds {shown:?}, which is not valid UTF-8; convert the file with iconv", line())
            });
            self.text.push(Some(&text));
        }
    }

    fn column(self, name: String) -> Column {
        let Field { format, numbers, text, first_missing, first_text, first_infinite, damaged, .. } = self;
        let values = match format {
            Some(_) => Values::Numbers(numbers),
            None => parse_times(&text).unwrap_or(Values::Text(text)),
        };
        Column { name, values, first_missing, first_text, first_infinite, damaged }
    }
}

/// Reads rows into the columns, until one has another number of fields.
fn read_fields(bytes: &[u8], delimiter: u8, head: &Head, fields: &mut [Field]) -> Reason<Option<String>> {
    let mut reader = reader(bytes, delimiter);
    let mut record = csv::ByteRecord::new();
    let mut skip_header = head.named;
    while reader.read_byte_record(&mut record).map_err(|e| format!("not readable as text: {e}"))? {
        if is_blank(bytes, &record) || std::mem::take(&mut skip_header) {
            continue;
        }
        let line = || start(bytes, &record).0;
        let last = record.len().saturating_sub(1);
        if record.get(last).is_some_and(|field| field.contains(&b'\n'))
            && reader.position().byte() as usize >= bytes.len()
            && !bytes.trim_ascii_end().ends_with(b"\"")
        {
            return Err(open_quote(line(), last, &String::from_utf8_lossy(&record[last])));
        }
        if record.len() != head.width {
            return Ok(Some(ragged(&record, line(), head, delimiter)));
        }
        for (field, column) in record.iter().zip(fields.iter_mut()) {
            column.push(field, line);
        }
    }
    Ok(None)
}

/// The error of a field of several lines at the end of a file: the likely cause is an open quote.
fn open_quote(line: u64, column: usize, field: &str) -> String {
    let (column, shown) = (column + 1, truncated(field, MAX_SHOWN));
    format!("line {line}, column {column}: {shown:?} goes on over several lines; is a quote not closed?")
}

/// The error of a row with another number of fields than the first.
fn ragged(record: &csv::ByteRecord, line: u64, head: &Head, delimiter: u8) -> String {
    let delimiter = match delimiter {
        b'\t' => "tabs".to_owned(),
        other => format!("{:?}", other as char),
    };
    let plural = |n: usize| if n == 1 { "1 column".to_owned() } else { format!("{n} columns") };
    let lines = if head.named { "the header has" } else { "the lines before have" };
    let hint = match record.len() > head.width {
        true => format!("put fields that contain {delimiter} into quotes"),
        false => format!("is a field left out, or is the delimiter not {delimiter}?"),
    };
    format!("line {line} has {}, {lines} {}; {hint}", plural(record.len()), head.width)
}

/// Whether a record is a line of spaces. An empty field in quotes is a missing value.
fn is_blank(bytes: &[u8], record: &csv::ByteRecord) -> bool {
    record.len() == 1 && record[0].is_empty() && bytes.get(start(bytes, record).1) != Some(&b'"')
}

/// First line and byte of a record. The reader reports the end of the previous record, before blank lines and comments.
fn start(bytes: &[u8], record: &csv::ByteRecord) -> (u64, usize) {
    let (mut line, mut byte) = record.position().map_or((0, 0), |p| (p.line(), p.byte() as usize));
    loop {
        match bytes.get(byte) {
            Some(b'\n') => (line, byte) = (line + 1, byte + 1),
            Some(b'\r') => byte += 1,
            Some(b'#') => byte += bytes[byte..].iter().position(|&b| b == b'\n').unwrap_or(bytes.len() - byte),
            _ => return (line, byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Column> {
        read_text(text.as_bytes()).unwrap().columns
    }

    fn kinds(columns: &[Column]) -> String {
        let kind = |c: &Column| match c.values {
            Values::Numbers(_) => 'n',
            Values::Times(_) => 't',
            Values::Text(_) => 's',
        };
        columns.iter().map(kind).collect()
    }

    #[test]
    fn mixed_columns_are_numbers_times_and_text() {
        let columns = read("id,day,x,town\r\n1,2024-05-01,2.5,Oslo\r\n\r\n# c\r\n2,,NA,\"Rome, Italy\"\r\n");
        assert_eq!(kinds(&columns), "ntns");
        assert_eq!(columns.iter().map(Column::missing).collect::<Vec<_>>(), [0, 1, 1, 0]);
        assert_eq!(columns[2].first_missing, Some(Place { line: 5, value: "NA".to_owned() }));
        let Values::Text(town) = &columns[3].values else { panic!() };
        assert_eq!(town.get(1), Some("Rome, Italy"));
    }

    #[test]
    fn a_number_that_is_text_late_in_the_file_makes_its_column_text() {
        let mut text = String::from("x,y\n");
        (0..2000).for_each(|i| text += &format!("{i},{i}.5\n"));
        let columns = read(&(text.clone() + "many,1\n3,2\n"));
        assert_eq!(kinds(&columns), "sn");
        assert_eq!((columns[0].len(), columns[1].len()), (2002, 2002));
        assert_eq!(columns[0].first_text, Some(Place { line: 2002, value: "many".to_owned() }));
        let Values::Numbers(y) = &columns[1].values else { panic!() };
        assert_eq!(y[2001], 2.0);
    }

    #[test]
    fn columns_without_names_are_numbered_and_repeated_names_too() {
        let names = |text: &str| read(text).into_iter().map(|c| c.name).collect::<Vec<_>>();
        assert_eq!(names("1,a\n2,b\n"), ["column 1", "column 2"]);
        assert_eq!(names(",x,x,x (2)\n0,1,2,3\n"), ["column 1", "x", "x (2)", "x (2) (2)"]);
    }

    #[test]
    fn ragged_rows_and_open_quotes_are_errors_with_their_line() {
        let error = |text: &str| read_text(text.as_bytes()).err().unwrap();
        let ragged = |text: &str| read_text(text.as_bytes()).unwrap().ragged.unwrap();
        let short = ragged("x,y\n1,2\n3\n");
        assert_eq!(short, "line 3 has 1 column, the header has 2; is a field left out, or is the delimiter not ','?");
        let long = ragged("x;y\n1;2\n3;4;5\n");
        assert_eq!(long, "line 3 has 3 columns, the header has 2; put fields that contain ';' into quotes");
        let open = error("x,note\n1,a\n2,\"b\n3,c\n");
        assert!(open.ends_with("goes on over several lines; is a quote not closed?"), "{open}");
        assert_eq!(error("x,y\n"), "is empty: it has a header and no rows");
    }

    #[test]
    fn other_encodings_are_reported_by_the_column() {
        let read = read_text(b"x,name\n1,Ren\xe9\n2,Ann\n").unwrap().columns;
        assert_eq!(
            read[1].damaged.as_deref(),
            Some("line 2 holds \"Ren\u{fffd}\", which is not valid UTF-8; convert the file with iconv")
        );
    }
}
