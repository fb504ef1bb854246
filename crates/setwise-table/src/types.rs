//! The type of a column: what a comparison of its values means.

use std::collections::BTreeMap;
use std::path::Path;

use hashbrown::HashSet;

use crate::error::{Error, Reason, Result};
use crate::table::{Column, Text, Values};
use crate::times::{format_time, parse_times};

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnType {
    /// Numbers.
    Numeric,
    /// Whole numbers from zero.
    Count,
    /// Two values.
    Boolean,
    /// A few texts without order.
    Category,
    /// Dates, with or without times of day.
    Time,
    /// Values that differ in every row.
    Identifier,
    /// One value.
    Constant,
    /// Free text.
    Text,
}

impl ColumnType {
    /// All types.
    pub const ALL: [ColumnType; 8] = [
        ColumnType::Numeric,
        ColumnType::Count,
        ColumnType::Boolean,
        ColumnType::Category,
        ColumnType::Time,
        ColumnType::Identifier,
        ColumnType::Constant,
        ColumnType::Text,
    ];

    /// The name that a person types.
    pub fn name(self) -> &'static str {
        match self {
            ColumnType::Numeric => "numeric",
            ColumnType::Count => "count",
            ColumnType::Boolean => "boolean",
            ColumnType::Category => "category",
            ColumnType::Time => "time",
            ColumnType::Identifier => "identifier",
            ColumnType::Constant => "constant",
            ColumnType::Text => "text",
        }
    }

    /// Whether the values are numbers or times.
    pub fn is_ordered(self) -> bool {
        matches!(self, ColumnType::Numeric | ColumnType::Count | ColumnType::Time)
    }

    /// The type that columns of several tables share.
    ///
    /// Fails where a column holds numbers and other text, or one table has numbers and another has text.
    pub fn infer(columns: &[&Column]) -> Result<Self> {
        for column in columns {
            check_mixed(column).map_err(Error::Columns)?;
        }
        let filled: Vec<&Column> = columns.iter().copied().filter(|c| c.missing() < c.len()).collect();
        let Some(first) = filled.first() else { return Ok(ColumnType::Constant) };
        if let Some([a, b]) = of_different_kinds(&filled) {
            let (name, a, b) = (&a.name, kind(a), kind(b));
            return Err(Error::Columns(format!("column {name:?} holds {a} in one table and {b} in the other")));
        }
        Ok(match &first.values {
            Values::Times(_) => ColumnType::Time,
            Values::Numbers(_) => of_numbers(&filled),
            Values::Text(_) => of_text(&filled),
        })
    }
}

impl std::fmt::Display for ColumnType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for ColumnType {
    type Err = String;

    fn from_str(text: &str) -> Reason<Self> {
        let found = ColumnType::ALL.into_iter().find(|t| t.name() == text);
        let known: Vec<&str> = ColumnType::ALL.iter().map(|t| t.name()).collect();
        found.ok_or_else(|| format!("{text:?} is no type of a column; there are {}", known.join(", ")))
    }
}

/// What a column holds.
pub(crate) fn kind(column: &Column) -> &'static str {
    match column.values {
        Values::Numbers(_) => "numbers",
        Values::Times(_) => "times",
        Values::Text(_) => "text",
    }
}

/// Two columns of which one holds numbers and the other text or times; columns without values hold neither.
pub(crate) fn of_different_kinds<'a>(columns: &[&'a Column]) -> Option<[&'a Column; 2]> {
    let mut filled = columns.iter().copied().filter(|c| c.missing() < c.len());
    let first = filled.next()?;
    filled.find(|c| kind(c) != kind(first)).map(|other| [first, other])
}

/// Fails where at least 90 % of the values of a column of text are numbers, or a value is damaged.
pub(crate) fn check_mixed(column: &Column) -> Reason<()> {
    const NUMBERS: f64 = 0.9;
    if let Some(damaged) = &column.damaged {
        return Err(format!("column {:?}: {damaged}", column.name));
    }
    let (Values::Text(text), Some(place)) = (&column.values, &column.first_text) else { return Ok(()) };
    let is_number = |level: &str| level.parse::<f64>().is_ok();
    let (mut numbers, mut all) = (0, 0);
    for (level, count) in text.levels.iter().zip(text.counts()) {
        all += count;
        numbers += if is_number(level) { count } else { 0 };
    }
    if (numbers as f64) < NUMBERS * all as f64 || numbers == 0 {
        return Ok(());
    }
    Err(format!(
        "line {}, column {:?}: {:?} is no number, as {} of {all} values are",
        place.line, column.name, place.value, numbers
    ))
}

/// The numbers of columns, without missing ones.
fn numbers<'a>(columns: &'a [&Column]) -> impl Iterator<Item = f64> + Clone + 'a {
    let of = |c: &&'a Column| match &c.values {
        Values::Numbers(v) | Values::Times(v) => v.as_slice(),
        Values::Text(_) => &[],
    };
    columns.iter().flat_map(of).copied().filter(|x| !x.is_nan())
}

fn of_numbers(columns: &[&Column]) -> ColumnType {
    let distinct = distinct_up_to(numbers(columns), 3);
    if distinct.len() == 1 {
        return ColumnType::Constant;
    }
    if distinct.len() == 2 && distinct.iter().all(|x| *x == 0.0 || *x == 1.0) {
        return ColumnType::Boolean;
    }
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2⁵³
    if numbers(columns).any(|x| x.fract() != 0.0) {
        return ColumnType::Numeric;
    }
    let named = is_named_as_identifier(&columns[0].name);
    if columns.iter().all(|c| is_identifier(c, named)) || continues(columns) {
        return ColumnType::Identifier;
    }
    if numbers(columns).any(|x| x.abs() > EXACT) {
        return ColumnType::Numeric;
    }
    if numbers(columns).all(|x| x >= 0.0) { ColumnType::Count } else { ColumnType::Numeric }
}

/// Distinct numbers, at most `max`.
fn distinct_up_to(values: impl Iterator<Item = f64>, max: usize) -> Vec<f64> {
    let mut found: Vec<f64> = Vec::new();
    for x in values {
        if !found.contains(&x) {
            found.push(x);
            if found.len() == max {
                break;
            }
        }
    }
    found
}

/// Whether whole numbers identify rows: they are mostly distinct and named so, or count the rows.
fn is_identifier(column: &Column, named: bool) -> bool {
    const MIN_ROWS: usize = 5;
    let one = [column];
    let values = numbers(&one);
    let n = values.clone().count();
    if n < MIN_ROWS {
        return named;
    }
    if named {
        let distinct: HashSet<u64> = values.map(f64::to_bits).collect();
        return 2 * distinct.len() > n;
    }
    let rising = values.clone().zip(values.clone().skip(1)).all(|(a, b)| a < b);
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
    rising && high - low < 2.0 * n as f64
}

/// Whether whole numbers rise from row to row, and from each table to the next, as those of orders do.
fn continues(columns: &[&Column]) -> bool {
    const MIN_ROWS: usize = 50;
    let rising = numbers(columns).zip(numbers(columns).skip(1)).all(|(a, b)| a < b);
    columns.len() > 1 && rising && columns.iter().all(|c| c.len() - c.missing() >= MIN_ROWS)
}

/// Whether a name says that its column identifies rows.
fn is_named_as_identifier(name: &str) -> bool {
    const WORDS: [&str; 9] = ["id", "ids", "uuid", "guid", "index", "idx", "identifier", "rowid", "unnamed"];
    let lower = name.to_lowercase();
    let mut words = lower.split(|c: char| !c.is_alphanumeric());
    words.any(|word| WORDS.contains(&word)) || (name.len() > 2 && (name.ends_with("Id") || name.ends_with("ID")))
}

fn of_text(columns: &[&Column]) -> ColumnType {
    let texts: Vec<&Text> =
        columns.iter().filter_map(|c| if let Values::Text(text) = &c.values { Some(text) } else { None }).collect();
    let levels: HashSet<&str> = texts.iter().flat_map(|t| used_levels(t)).collect();
    if levels.len() == 1 {
        return ColumnType::Constant;
    }
    const TRUTH: [[&str; 2]; 6] = [["true", "false"], ["t", "f"], ["yes", "no"], ["y", "n"], ["1", "0"], ["on", "off"]];
    let both = |pair: &[&str; 2]| levels.iter().all(|l| pair.iter().any(|p| l.eq_ignore_ascii_case(p)));
    if levels.len() == 2 && TRUTH.iter().any(both) {
        return ColumnType::Boolean;
    }
    let shapes: Vec<Shape> = texts.iter().map(|t| Shape::of(t)).collect();
    let named = is_named_as_identifier(&columns[0].name);
    if shapes.iter().all(|s| s.is_identifier(named)) {
        ColumnType::Identifier
    } else if shapes.iter().all(Shape::is_free_text) {
        ColumnType::Text
    } else {
        ColumnType::Category
    }
}

/// Levels that rows have.
fn used_levels(text: &Text) -> impl Iterator<Item = &str> {
    let counts = text.counts();
    text.levels.iter().enumerate().filter(move |(i, _)| counts[*i] > 0).map(|(_, level)| level)
}

/// What a column of text looks like.
struct Shape {
    /// Rows that are not missing.
    rows: usize,
    /// Distinct values as a share of these.
    distinct: f64,
    /// Mean number of characters and of words of the distinct values.
    chars: f64,
    words: f64,
}

impl Shape {
    fn of(text: &Text) -> Self {
        let rows = text.codes.iter().filter(|c| **c != Text::MISSING).count();
        let (mut levels, mut chars, mut words) = (0, 0, 0);
        for level in used_levels(text) {
            levels += 1;
            chars += level.chars().count();
            words += level.split_whitespace().count();
        }
        let mean = |sum: usize| sum as f64 / levels.max(1) as f64;
        Shape { rows, distinct: levels as f64 / rows.max(1) as f64, chars: mean(chars), words: mean(words) }
    }

    fn is_identifier(&self, named: bool) -> bool {
        const MIN_ROWS: usize = 20;
        let distinct = if named { 0.5 } else { 0.98 };
        self.rows >= MIN_ROWS && self.distinct > distinct && self.words < 1.1 && self.chars <= 64.0
    }

    fn is_free_text(&self) -> bool {
        self.distinct > 0.3 && ((self.words >= 2.0 && self.chars >= 12.0) || self.chars > 50.0)
    }
}

/// Types that a person sets, by column name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(BTreeMap<String, ColumnType>);

impl Overrides {
    /// Adds `COLUMN=TYPE`.
    pub fn add(&mut self, item: &str) -> Result<()> {
        let Some((name, column_type)) = item.rsplit_once('=') else {
            return Err(Error::Columns(format!("{item:?}: give COLUMN=TYPE, such as zip=category")));
        };
        let column_type = column_type.trim().parse().map_err(Error::Columns)?;
        self.set(name.trim(), column_type);
        Ok(())
    }

    /// Sets the type of a column.
    pub fn set(&mut self, name: &str, column_type: ColumnType) {
        self.0.insert(name.to_owned(), column_type);
    }

    /// Reads a TOML file with a line `column = "type"` for each column.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        let types: BTreeMap<String, String> = toml::from_str(&text).map_err(|e| Error::file(path, e.to_string()))?;
        let parse = |(name, column_type): (String, String)| Ok((name, column_type.parse()?));
        let types = types.into_iter().map(parse).collect::<Reason<_>>().map_err(|e| Error::file(path, e))?;
        Ok(Overrides(types))
    }

    /// These types, and others where none is set.
    pub fn or(mut self, others: Overrides) -> Self {
        others.0.into_iter().for_each(|(name, of)| {
            self.0.entry(name).or_insert(of);
        });
        self
    }

    /// The type of a column, if it is set.
    pub fn get(&self, name: &str) -> Option<ColumnType> {
        self.0.get(name).copied()
    }

    /// Names of columns whose type is set.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl Column {
    /// The column with values as a type stores them: numbers for ordered types, text for the others.
    ///
    /// Text that is no number is missing in a numeric column.
    pub fn into_type(mut self, to: ColumnType) -> Result<Self> {
        self.values = match (to, self.values) {
            (ColumnType::Numeric | ColumnType::Count, Values::Text(text)) => {
                let parsed: Vec<f64> = text.levels.iter().map(|l| l.parse().unwrap_or(f64::NAN)).collect();
                if !parsed.is_empty() && parsed.iter().all(|x| x.is_nan()) {
                    let value = text.levels.get(0);
                    return Err(Error::Columns(format!("column {:?} holds no numbers; {value:?} is text", self.name)));
                }
                let of = |c: &u32| parsed.get(*c as usize).copied().unwrap_or(f64::NAN);
                Values::Numbers(text.codes.iter().map(of).collect())
            }
            (ColumnType::Time, Values::Text(text)) => match parse_times(&text) {
                Some(times) => times,
                None if text.levels.is_empty() => Values::Times(vec![f64::NAN; text.codes.len()]),
                None => {
                    return Err(Error::Columns(format!("column {:?} holds text that is no date or time", self.name)));
                }
            },
            (ColumnType::Time, Values::Numbers(v)) => Values::Times(v),
            (ColumnType::Numeric | ColumnType::Count, Values::Times(v)) => Values::Numbers(v),
            (to, Values::Numbers(v)) if !to.is_ordered() => Values::Text(written(&v, |x| x.to_string())),
            (to, Values::Times(v)) if !to.is_ordered() => Values::Text(written(&v, format_time)),
            (_, values) => values,
        };
        Ok(self)
    }
}

/// Numbers as text.
fn written(values: &[f64], format: impl Fn(f64) -> String) -> Text {
    let mut text = Text::default();
    values.iter().for_each(|x| text.push((!x.is_nan()).then(|| format(*x)).as_deref()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Table;

    fn infer(name: &str, values: &[&str]) -> ColumnType {
        // The second column keeps empty lines from being skipped.
        let rows: String = values.iter().map(|v| format!("{v},x\n")).collect();
        let table = Table::parse("t", format!("{name},other\n{rows}").as_bytes()).unwrap();
        ColumnType::infer(&[&table.columns[0], &table.columns[0]]).unwrap()
    }

    #[test]
    fn types_follow_from_values_and_names() {
        use ColumnType::*;
        let many = |f: fn(usize) -> String| -> Vec<String> { (0..40).map(f).collect() };
        let infer_many =
            |name: &str, f: fn(usize) -> String| infer(name, &many(f).iter().map(String::as_str).collect::<Vec<_>>());
        for (name, values, expected) in [
            ("x", ["1.5", "2", "NA"].as_slice(), Numeric),
            ("x", &["1", "-2", "1"], Numeric),
            ("x", &["1", "2", "1"], Count),
            ("x", &["1", "0", "1"], Boolean),
            ("x", &["Yes", "no", ""], Boolean),
            ("x", &["a", "b", "a"], Category),
            ("x", &["a", "a", ""], Constant),
            ("x", &["7", "7", "7"], Constant),
            ("x", &["", "NA", "?"], Constant),
            ("x", &["2024-05-01", "2024-05-02", ""], Time),
        ] {
            assert_eq!(infer(name, values), expected, "{name} {values:?}");
        }
        assert_eq!(infer_many("row", |i| (i + 100).to_string()), Identifier);
        assert_eq!(infer_many("x", |i| (i * i).to_string()), Count);
        assert_eq!(infer_many("customer_id", |i| ((i * 7919) % 1009).to_string()), Identifier);
        assert_eq!(infer_many("paid", |i| ((i * 7919) % 1009).to_string()), Count);
        assert_eq!(infer_many("code", |i| format!("a{i:05x}")), Identifier);
        assert_eq!(infer_many("note", |i| format!("the parcel {i} came late")), Text);
        assert_eq!(infer_many("town", |i| format!("Saint {}", i % 5)), Category);
    }

    #[test]
    fn columns_of_numbers_with_a_text_are_errors_that_name_the_place() {
        let mut csv = "x,y\n".to_owned();
        (0..30).for_each(|i| csv += &format!("{i}.5,{i}\n"));
        csv += "many,1\n";
        let table = Table::parse("t", csv.as_bytes()).unwrap();
        let error = ColumnType::infer(&[&table.columns[0]]).unwrap_err().to_string();
        assert_eq!(error, "line 32, column \"x\": \"many\" is no number, as 30 of 31 values are");
        let numeric = table.columns[0].clone().into_type(ColumnType::Numeric).unwrap();
        assert_eq!(numeric.missing(), 1);
        let text = Column::text("y", [Some("a")]);
        let error = ColumnType::infer(&[&table.columns[1], &text]).unwrap_err().to_string();
        assert_eq!(error, "column \"y\" holds numbers in one table and text in the other");
        // A column without values has no type of its own.
        let empty = Column::text("y", [None]);
        assert_eq!(ColumnType::infer(&[&empty, &table.columns[1]]).unwrap(), ColumnType::Count);
    }

    #[test]
    fn overrides_come_from_items_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("types.toml");
        std::fs::write(&path, "zip = \"category\"\n\"first = name\" = \"text\"\n").unwrap();
        let mut types = Overrides::read(&path).unwrap();
        types.add("first = name=identifier").unwrap();
        assert_eq!(types.get("first = name"), Some(ColumnType::Identifier));
        assert_eq!((types.get("zip"), types.get("x")), (Some(ColumnType::Category), None));
        assert!(types.add("zip").is_err());
        let error = types.add("zip=number").unwrap_err().to_string();
        assert!(error.starts_with("\"number\" is no type of a column; there are numeric, count"), "{error}");
        std::fs::write(&path, "zip = 3\n").unwrap();
        assert!(Overrides::read(&path).unwrap_err().to_string().contains("types.toml: "));
    }
}
