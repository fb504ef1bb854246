//! CSV and TSV files, with or without a header.

use super::samples::Parsed;

/// Chooses columns of a file with these names, which are empty without a header, and this number of columns.
pub(super) type Choose<'a> = dyn FnMut(&[String], usize) -> Result<Vec<usize>, String> + 'a;

/// Parses the chosen columns of text. Blank lines and lines that begin with `#` are skipped.
///
/// A first row without numbers is a header. So is 0, 1, 2, … where all other fields have decimals.
pub(super) fn parse_text(bytes: &[u8], choose: &mut Choose) -> Parsed {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter(bytes))
        .has_headers(false)
        .flexible(true)
        .comment(Some(b'#'))
        .trim(csv::Trim::All)
        .from_reader(bytes);
    let mut data = Vec::new();
    let (mut width, mut rows) = (0, 0);
    let mut chosen = Vec::new();
    let mut names: Option<Vec<String>> = None;
    let mut problems = Problems::default();
    let mut record = csv::ByteRecord::new();
    let mut first = true;
    // Whether the first row is 0, 1, 2, …, and whether all fields of the others are written with a decimal point.
    let (mut numbered, mut decimals) = (false, true);
    while reader.read_byte_record(&mut record).map_err(|e| format!("not readable as text: {e}"))? {
        if is_blank(bytes, &record) {
            continue;
        }
        let is_first = std::mem::take(&mut first);
        if is_first {
            width = record.len();
            let parsed: Vec<Option<f64>> = record.iter().map(number).collect();
            if is_header(&record, &parsed) {
                let header: Vec<String> = record.iter().map(text).collect();
                chosen = choose(&header, width)?;
                names = Some(header);
                continue;
            }
            numbered = is_numbered(record.iter());
            // Names of numbered columns are known at the end.
            chosen = if numbered { (0..width).collect() } else { choose(&[], width)? };
            let numbers = || parsed.iter().position(Option::is_some);
            problems.no_header = chosen.iter().find_map(|&c| parsed[c].is_none().then(numbers)).flatten();
        } else {
            decimals &= record.iter().all(|field| field.iter().any(|b| matches!(b, b'.' | b'e' | b'E')));
        }
        let line = || start(bytes, &record).0;
        let several_lines = |c: usize| record.get(c).is_some_and(|field| field.contains(&b'\n'));
        // Text in columns that are not chosen may have several lines.
        let last = record.len().saturating_sub(1);
        let at_end = || reader.position().byte() as usize >= bytes.len();
        let never_closed = several_lines(last) && at_end() && !bytes.trim_ascii_end().ends_with(b"\"");
        if let Some(column) = chosen.iter().copied().find(|&c| several_lines(c)).or(never_closed.then_some(last)) {
            return Err(open_quote(line(), column, &text(&record[column])));
        }
        if record.len() != width {
            problems.end = Some(format!("line {} has {} columns, the lines before have {width}", line(), record.len()));
            break;
        }
        for &column in &chosen {
            let value = number(&record[column]);
            if !value.is_some_and(f64::is_finite) && problems.is_new(column) {
                let name = names.as_ref().map_or(String::new(), |n| format!(" ({:?})", truncated(&n[column])));
                let place = format!("line {}, column {}{name}", line(), column + 1);
                problems.found.push((
                    column,
                    match value {
                        Some(x) => format!("{place} is {x}; every value must be a finite number"),
                        None => format!("{place}: {:?} is not a number", truncated(&text(&record[column]))),
                    },
                ));
            }
            data.push(value.unwrap_or(f64::NAN));
        }
        rows += 1;
    }
    problems.check()?;
    let open = |names: &Vec<String>| names.iter().position(|name| name.contains('\n'));
    if let Some((column, names)) = names.as_ref().filter(|_| rows == 0).and_then(|n| open(n).map(|c| (c, n))) {
        return Err(open_quote(1, column, &names[column]));
    }
    if numbered && decimals && rows > 1 && width > 1 {
        names = Some(data.drain(..width).map(|x| x.to_string()).collect());
        rows -= 1;
    }
    if numbered {
        let all = names.as_deref().unwrap_or_default();
        chosen = choose(all, width)?;
        if chosen.len() < width {
            data = data.chunks_exact(width).flat_map(|row| chosen.iter().map(|&c| row[c])).collect();
        }
    }
    let names = names.map_or_else(Vec::new, |names| chosen.iter().map(|&c| names[c].clone()).collect());
    Ok((data, [1, rows, chosen.len()], names))
}

/// What is wrong with a file: the first problem of each column.
#[derive(Default)]
struct Problems {
    /// Columns with their problems, in the order of the file.
    found: Vec<(usize, String)>,
    /// A problem after which nothing is read.
    end: Option<String>,
    /// A column of the first row that is a number, where others are none: the row is no header.
    no_header: Option<usize>,
}

impl Problems {
    fn is_new(&self, column: usize) -> bool {
        self.found.iter().all(|(c, _)| *c != column)
    }

    /// The error of all problems, if there are any.
    fn check(self) -> Result<(), String> {
        const MAX_LISTED: usize = 8;
        let mut lines: Vec<String> = self.found.into_iter().map(|(_, problem)| problem).collect();
        if let (Some(line), Some(column)) = (lines.first_mut(), self.no_header) {
            line.push_str(&format!("; the line is no header, as its column {} is one", column + 1));
        }
        lines.extend(self.end);
        match lines.as_slice() {
            [] => Ok(()),
            [only] => Err(only.clone()),
            all => {
                let more = all.len().saturating_sub(MAX_LISTED);
                let mut report = format!("has {} problems, the first of each column:", all.len());
                all.iter().take(MAX_LISTED).for_each(|line| report.push_str(&format!("\n  {line}")));
                if more > 0 {
                    report.push_str(&format!("\n  and {more} more"));
                }
                Err(report)
            }
        }
    }
}

/// The error of a data field of several lines: the likely cause is an open quote.
fn open_quote(line: u64, column: usize, field: &str) -> String {
    let column = column + 1;
    format!("line {line}, column {column}: {:?} goes on over several lines; is a quote not closed?", truncated(field))
}

fn number(field: &[u8]) -> Option<f64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// A field for an error message, truncated.
fn truncated(field: &str) -> String {
    const MAX_CHARS: usize = 40;
    match field.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &field[..end]),
        None => field.to_owned(),
    }
}

/// Fields that stand for a missing value.
const MISSING: [&str; 7] = ["", "na", "n/a", "null", "none", "?", "-"];

/// Whether a first row is a header: no field is a number and not all fields are missing.
///
/// An empty field followed by 0, 1, 2, … is a header too: data frames write it for columns without names. Without the
/// empty field it is one where all other fields of the file are decimals.
fn is_header(record: &csv::ByteRecord, parsed: &[Option<f64>]) -> bool {
    if record.len() > 1 && record[0].is_empty() && is_numbered(record.iter().skip(1)) {
        return true;
    }
    let missing = |field: &[u8]| MISSING.iter().any(|m| field.eq_ignore_ascii_case(m.as_bytes()));
    parsed.iter().all(Option::is_none) && !record.iter().all(missing)
}

/// Whether fields are 0, 1, 2, …
fn is_numbered<'a>(fields: impl Iterator<Item = &'a [u8]>) -> bool {
    fields.enumerate().all(|(i, field)| field == i.to_string().as_bytes())
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

/// The delimiter: tab, comma or semicolon, whichever the first data line has outside quotes.
fn delimiter(bytes: &[u8]) -> u8 {
    let lines = bytes.split_inclusive(|&b| b == b'\n');
    let skipped: usize = lines.take_while(|l| l.trim_ascii().is_empty() || l[0] == b'#').map(<[u8]>::len).sum();
    let (mut outside, mut quoted) = (Vec::new(), false);
    for &b in &bytes[skipped..] {
        match b {
            b'"' => quoted = !quoted,
            b'\n' if !quoted => break,
            _ if !quoted => outside.push(b),
            _ => {}
        }
    }
    [b'\t', b',', b';'].into_iter().find(|d| outside.contains(d)).unwrap_or(b',')
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Sample;
    use crate::Result;

    fn text(content: &str) -> Result<Sample> {
        Sample::parse(Path::new("points.csv"), content.as_bytes())
    }

    #[test]
    fn headers_comments_tabs_and_semicolons_are_parsed() {
        for content in [
            "1,2\n3,4\n",
            "x,y\n1,2\n3,4\n",
            "# made by hand\n1\t2\n3\t4",
            "a;b\n1;2\n\n3;4\n",
            "\u{feff}1, 2\r\n3, 4\r\n",
            "\r\nx;y\r\n1;2\r\n\r\n3;4\r\n",
            "   \n1\t2\n  \n3\t4\n \n",
            "\"height, m\";\"w\"\n1;2\n3;4\n",
            "\"of\ntwo, lines\";w\n1;2\n3;4\n",
        ] {
            let s = text(content).unwrap();
            assert_eq!((s.rows, s.width, s.data), (2, 2, vec![1.0, 2.0, 3.0, 4.0]), "{content:?}");
        }
    }

    #[test]
    fn a_header_names_the_columns() {
        assert_eq!(text("x,the y\n1,2\n").unwrap().names, ["x", "the y"]);
        assert!(text("1,2\n").unwrap().names.is_empty());
        // A data frame whose index and columns have no names.
        assert_eq!(text(",0,1\n0,2.5,3\n1,4,5\n").unwrap().names, ["", "0", "1"]);
        assert_eq!(text(",x\n0,2.5\n").unwrap().rows, 1);
        // A data frame whose columns have no names, without its index; integers may be data.
        let numbered = text("0,1\n2.5,3.0\n4.0,5e-3\n").unwrap();
        assert_eq!((numbered.names, numbered.data), (vec!["0".to_owned(), "1".to_owned()], vec![2.5, 3.0, 4.0, 5e-3]));
        for data in ["0,0\n0.5,1.5\n", "0,1\n1,0\n", "0,1\n2.5,3\n", "0,1\n", "1,0\n2.5,3.5\n"] {
            let plain = text(data).unwrap();
            assert!(plain.names.is_empty() && plain.data.len() == 2 * data.lines().count(), "{data}");
        }
    }

    #[test]
    fn a_first_row_with_a_bad_value_is_not_a_header() {
        for (content, expected) in [
            (
                "NA,0.3\n1,2\n",
                "line 1, column 1: \"NA\" is not a number; the line is no header, as its column 2 is one",
            ),
            (
                "# c\n1,O.5\n1,2\n",
                "line 2, column 2: \"O.5\" is not a number; the line is no header, as its column 1 is one",
            ),
            ("NA\n1\n2\n", "line 1, column 1: \"NA\" is not a number"),
            (
                "n/a,null\n1,2\n",
                "has 2 problems, the first of each column:\n  line 1, column 1: \"n/a\" is not a number\n  line 1, \
                 column 2: \"null\" is not a number",
            ),
            ("1\n\"\"\n2\n", "line 2, column 1: \"\" is not a number"),
        ] {
            assert_eq!(text(content).unwrap_err().to_string(), format!("points.csv: {expected}"));
        }
    }

    #[test]
    fn an_open_quote_gives_a_short_error() {
        let rest = "3,4\n".repeat(1000);
        for (content, location) in [
            (format!("x,y\n1,\"2\n{rest}"), "line 2, column 2: \"2\\n3,4"),
            (format!("1,2\n\n\"1,2\n{rest}"), "line 3, column 1: \"1,2\\n3,4"),
            (format!("\"x,y\n{rest}"), "line 1, column 1: \"x,y\\n3,4"),
        ] {
            let error = text(&content).unwrap_err().to_string();
            assert!(error.starts_with(&format!("points.csv: {location}")), "{error}");
            assert!(error.ends_with("…\" goes on over several lines; is a quote not closed?"), "{error}");
            assert!(error.len() < 150, "{error}");
        }
        let error = text(&format!("1,2\n3,{}\n", "x".repeat(1000))).unwrap_err().to_string();
        assert!(error.contains("…\" is not a number") && error.len() < 150, "{error}");
    }

    #[test]
    fn errors_name_line_and_column() {
        for (content, expected) in [
            ("x,y\n1,2\n3,four\n", "points.csv: line 3, column 2 (\"y\"): \"four\" is not a number"),
            ("1,2\n3\n", "points.csv: line 2 has 1 columns, the lines before have 2"),
            ("1,2\n3,nan\n", "points.csv: line 2, column 2 is NaN; every value must be a finite number"),
            ("1,2\n\n# c\n3,x\n", "points.csv: line 4, column 2: \"x\" is not a number"),
            ("1,2\r\n\r\n3,x\r\n", "points.csv: line 3, column 2: \"x\" is not a number"),
            ("1,2\n-inf,0\n", "points.csv: line 2, column 1 is -inf; every value must be a finite number"),
            ("", "points.csv: is empty: it has no rows of numbers"),
            ("x,y\n", "points.csv: is empty: it has no rows of numbers"),
        ] {
            assert_eq!(text(content).unwrap_err().to_string(), expected);
        }
    }
    #[test]
    fn all_columns_with_problems_are_named_at_once() {
        let table = "id,day,x,place\n1,monday,2.5,Rome\n2,tuesday,NA,Rome\n3,friday,4.5,Oslo\n4,5,6\n";
        assert_eq!(
            text(table).unwrap_err().to_string(),
            "points.csv: has 4 problems, the first of each column:\n  line 2, column 2 (\"day\"): \"monday\" is not a \
             number\n  line 2, column 4 (\"place\"): \"Rome\" is not a number\n  line 3, column 3 (\"x\"): \"NA\" is \
             not a number\n  line 5 has 3 columns, the lines before have 4"
        );
        let wide = format!("{}\n", vec!["a,1"; 20].join(","));
        let error = text(&wide).unwrap_err().to_string();
        assert!(error.contains("has 20 problems") && error.ends_with("\n  and 12 more"), "{error}");
    }
}
