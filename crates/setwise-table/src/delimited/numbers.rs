//! Numbers as text: decimal points and commas, grouped thousands.

/// How the numbers of a column are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberFormat {
    /// `1234.5`
    Plain,
    /// `1,234.5`, `1 234.5` or `1'234.5`
    Grouped,
    /// `1234,5`, `1.234,5` or `1 234,5`
    DecimalComma,
}

impl NumberFormat {
    /// Parses a number; `None` if the field is none. NaN is none: it is a missing value.
    pub fn parse(self, field: &[u8]) -> Option<f64> {
        let text = std::str::from_utf8(field).ok()?;
        match self {
            NumberFormat::Plain => plain(text),
            NumberFormat::Grouped => {
                plain(text).or_else(|| grouped(text, &[',', ' ', '\u{a0}', '\u{202f}', '\''], '.'))
            }
            NumberFormat::DecimalComma => {
                grouped(text, &['.', ' ', '\u{a0}', '\u{202f}', '\''], ',').or_else(|| comma(text))
            }
        }
    }

    /// The format in which all fields are numbers. In files with decimal commas, commas come first.
    pub fn of<'a>(fields: impl Iterator<Item = &'a [u8]> + Clone, decimal_comma: bool) -> Option<Self> {
        let candidates = match decimal_comma {
            true => [NumberFormat::DecimalComma, NumberFormat::Plain, NumberFormat::Grouped],
            false => [NumberFormat::Plain, NumberFormat::Grouped, NumberFormat::DecimalComma],
        };
        candidates.into_iter().find(|format| fields.clone().all(|field| format.parse(field).is_some()))
    }
}

fn plain(text: &str) -> Option<f64> {
    text.parse().ok().filter(|x: &f64| !x.is_nan())
}

/// A number with a decimal comma and without groups.
fn comma(text: &str) -> Option<f64> {
    let well_formed = text.matches(',').count() <= 1 && !text.contains('.');
    well_formed.then(|| plain(&text.replace(',', "."))).flatten()
}

/// A number in groups of three digits.
fn grouped(text: &str, separators: &[char], decimal: char) -> Option<f64> {
    let (sign, digits) = match text.strip_prefix(['-', '+', '\u{2212}']) {
        Some(rest) => (if text.starts_with('+') { 1.0 } else { -1.0 }, rest),
        None => (1.0, text),
    };
    let (whole, fraction) = match digits.split_once(decimal) {
        Some((whole, fraction)) => (whole, fraction),
        None => (digits, ""),
    };
    let separator = separators.iter().copied().find(|s| whole.contains(*s))?;
    let mut groups = whole.split(separator);
    let first = groups.next()?;
    let is_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let valid = (1..=3).contains(&first.len())
        && is_digits(first)
        && groups.all(|group| group.len() == 3 && is_digits(group))
        && is_digits(fraction);
    valid.then(|| format!("{}.{fraction}0", whole.replace(separator, "")).parse().ok().map(|x: f64| sign * x)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_commas_and_grouped_thousands_are_numbers() {
        use NumberFormat::{DecimalComma, Grouped, Plain};
        for (format, text, expected) in [
            (Plain, "1234.5", Some(1234.5)),
            (Plain, "-1e-3", Some(-1e-3)),
            (Plain, "1,234", None),
            (Plain, "nan", None),
            (Grouped, "1,234,567.25", Some(1_234_567.25)),
            (Grouped, "-1 234", Some(-1234.0)),
            (Grouped, "12.5", Some(12.5)),
            (Grouped, "1,23", None),
            (Grouped, "1,2345", None),
            (Grouped, "1,234 567", None),
            (DecimalComma, "1234,5", Some(1234.5)),
            (DecimalComma, "-1.234,5", Some(-1234.5)),
            (DecimalComma, "1.234", Some(1234.0)),
            (DecimalComma, "1.5", None),
            (DecimalComma, "7", Some(7.0)),
            (DecimalComma, "1,2,3", None),
        ] {
            assert_eq!(format.parse(text.as_bytes()), expected, "{format:?} {text}");
        }
    }
}
