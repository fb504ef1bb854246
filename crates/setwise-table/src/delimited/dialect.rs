//! How a text file is written: its delimiter, its header, the numbers of each column.

use super::numbers::NumberFormat;

/// Values that stand for a missing one, in lower case.
const MISSING: [&str; 11] = ["", "na", "n/a", "nan", "null", "none", "?", "-", "#n/a", "<na>", "nat"];

/// Whether a field stands for a missing value.
pub(crate) fn is_missing(field: &[u8]) -> bool {
    field.len() <= 4 && MISSING.iter().any(|m| field.eq_ignore_ascii_case(m.as_bytes()))
}

/// The delimiter: the first of tab, semicolon, comma and bar that the first line has outside of quotes, with more
/// commas than semicolons and bars taking precedence.
pub(crate) fn delimiter(bytes: &[u8]) -> u8 {
    let lines = bytes.split_inclusive(|&b| b == b'\n');
    let skipped: usize = lines.take_while(|l| l.trim_ascii().is_empty() || l[0] == b'#').map(<[u8]>::len).sum();
    let (mut counts, mut quoted) = ([0usize; 4], false);
    const CANDIDATES: [u8; 4] = [b'\t', b',', b';', b'|'];
    for &b in &bytes[skipped..] {
        match b {
            b'"' => quoted = !quoted,
            b'\n' if !quoted => break,
            _ if !quoted => {
                if let Some(i) = CANDIDATES.iter().position(|c| *c == b) {
                    counts[i] += 1;
                }
            }
            _ => {}
        }
    }
    let [tabs, commas, semicolons, bars] = counts;
    match () {
        () if tabs > 0 => b'\t',
        () if commas > 0 && commas >= semicolons && commas >= bars => b',',
        () if semicolons > 0 && semicolons >= bars => b';',
        () if bars > 0 => b'|',
        () => b',',
    }
}

/// Whether a first row is a header: no field is a number and not all fields are missing.
///
/// An empty field followed by 0, 1, 2, … is a header too: data frames write it for columns without names. Without the
/// empty field it is one where all other fields of the file are decimals.
pub(crate) fn is_header(record: &csv::ByteRecord) -> bool {
    if record.len() > 1 && record[0].is_empty() && is_numbered(record.iter().skip(1)) {
        return true;
    }
    let is_number = |field| NumberFormat::Plain.parse(field).is_some();
    !record.iter().any(is_number) && !record.iter().all(is_missing)
}

/// Whether fields are 0, 1, 2, …
pub(crate) fn is_numbered<'a>(fields: impl Iterator<Item = &'a [u8]>) -> bool {
    fields.enumerate().all(|(i, field)| field == i.to_string().as_bytes())
}

/// The format of each column's numbers from its first rows; `None` is text.
///
/// A column whose numbers can only be read with decimal commas decides for the others: in such a file `1.234` is a
/// thousand. So do semicolons between the columns.
pub(crate) fn number_formats(rows: &[csv::ByteRecord], width: usize, delimiter: u8) -> Vec<Option<NumberFormat>> {
    let fields = |c: usize| rows.iter().filter_map(move |row| row.get(c)).filter(|field| !is_missing(field));
    let formats =
        |comma: bool| -> Vec<Option<NumberFormat>> { (0..width).map(|c| NumberFormat::of(fields(c), comma)).collect() };
    let only_with_commas = formats(false).contains(&Some(NumberFormat::DecimalComma));
    let has_commas = (0..width).any(|c| fields(c).any(|field| field.contains(&b',')));
    formats(only_with_commas || (delimiter == b';' && has_commas))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formats(text: &str, delimiter: u8) -> Vec<Option<NumberFormat>> {
        let mut reader = csv::ReaderBuilder::new().has_headers(false).delimiter(delimiter).from_reader(text.as_bytes());
        let rows: Vec<csv::ByteRecord> = reader.byte_records().map(Result::unwrap).collect();
        number_formats(&rows, rows[0].len(), delimiter)
    }

    #[test]
    fn the_first_line_has_the_delimiter() {
        for (text, expected) in
            [("a,b;c,d\n", b','), ("a;b\n1,5;2\n", b';'), ("a\tb,c\n", b'\t'), ("a|b|c\n", b'|'), ("\"a;b\",c", b',')]
        {
            assert_eq!(delimiter(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_column_of_decimal_commas_decides_for_the_others() {
        use NumberFormat::{DecimalComma, Grouped, Plain};
        assert_eq!(formats("1,5;1.234;x\n2,25;7.000;y\n", b';'), [Some(DecimalComma), Some(DecimalComma), None]);
        assert_eq!(formats("\"1,234\",1.5\n", b','), [Some(Grouped), Some(Plain)]);
        assert_eq!(formats("1.234;1.5\n", b';'), [Some(Plain), Some(Plain)]);
        assert_eq!(formats("1,234;1.5\n", b';'), [Some(DecimalComma), Some(Plain)]);
        assert_eq!(formats("?;NA\n1;\n", b';'), [Some(Plain), Some(Plain)]);
    }
}
