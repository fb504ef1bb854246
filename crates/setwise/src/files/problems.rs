//! What is wrong with the columns of a table that must hold numbers: the first problem of each.

use setwise_table::table::Place;
use setwise_table::wording::{MAX_SHOWN, truncated};
use setwise_table::{Column, Table, Values};

/// The numbers of a column; `None` if it holds something else.
pub(super) fn numbers(column: &Column) -> Option<&[f64]> {
    match &column.values {
        Values::Numbers(values) => Some(values),
        Values::Times(_) | Values::Text(_) => None,
    }
}

/// Fails unless all values of the chosen columns are finite numbers and no row is ragged. The error lists the problems
/// in file order.
pub(super) fn check(table: &Table, chosen: &[usize], ragged: Option<String>) -> Result<(), String> {
    const MAX_LISTED: usize = 8;
    let mut found: Vec<(u64, String)> = chosen.iter().filter_map(|&c| problem(table, c)).collect();
    found.sort_by_key(|(line, _)| *line);
    let is_number = |&c: &usize| numbers(&table.columns[c]).is_some_and(|v| v[0].is_finite());
    if let (false, Some((line, first))) = (table.named, found.first_mut())
        && Some(*line) == table.first_line
        && let Some(column) = chosen.iter().position(is_number)
    {
        first.push_str(&format!("; the line is no header, as its column {} is one", chosen[column] + 1));
    }
    found.extend(ragged.map(|problem| (u64::MAX, problem)));
    match found.as_slice() {
        [] => Ok(()),
        [(_, only)] => Err(only.clone()),
        all => {
            let more = all.len().saturating_sub(MAX_LISTED);
            let mut report = format!("has {} problems, the first of each column:", all.len());
            all.iter().take(MAX_LISTED).for_each(|(_, line)| report.push_str(&format!("\n  {line}")));
            if more > 0 {
                report.push_str(&format!("\n  and {more} more"));
            }
            Err(report)
        }
    }
}

/// The first problem of a column with its line.
fn problem(table: &Table, c: usize) -> Option<(u64, String)> {
    let column = &table.columns[c];
    let name = match table.named && column.name != format!("column {}", c + 1) {
        true => format!(" ({:?})", truncated(&column.name, MAX_SHOWN)),
        false => String::new(),
    };
    let places = [&column.first_missing, &column.first_text, &column.first_infinite].into_iter().flatten();
    if let Some(place) = places.min_by_key(|place| place.line) {
        return Some((place.line, at(place, &format!("column {}{name}", c + 1))));
    }
    if let Some(damaged) = &column.damaged {
        return Some((0, format!("column {}{name}: {damaged}", c + 1)));
    }
    // Formats without lines.
    let Some(values) = numbers(column) else {
        let kind = if matches!(column.values, Values::Times(_)) { "times" } else { "text" };
        return Some((0, format!("column {}{name} holds {kind}; every value must be a finite number", c + 1)));
    };
    let row = values.iter().position(|x| !x.is_finite())?;
    let value = if values[row].is_nan() { "missing".to_owned() } else { values[row].to_string() };
    let place = format!("row {}, column {}{name}", row + 1, c + 1);
    Some((row as u64 + 1, format!("{place} is {value}; every value must be a finite number")))
}

fn at(place: &Place, column: &str) -> String {
    let Place { line, value } = place;
    match value.parse::<f64>() {
        Ok(x) => format!("line {line}, {column} is {x}; every value must be a finite number"),
        Err(_) => format!("line {line}, {column}: {value:?} is not a number"),
    }
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
            (
                "1,2\n3\n",
                "points.csv: line 2 has 1 column, the lines before have 2; is a field left out, or is the delimiter not ','?",
            ),
            ("1,2\n3,nan\n", "points.csv: line 2, column 2 is NaN; every value must be a finite number"),
            ("1,2\n\n# c\n3,x\n", "points.csv: line 4, column 2: \"x\" is not a number"),
            ("1,2\r\n\r\n3,x\r\n", "points.csv: line 3, column 2: \"x\" is not a number"),
            ("1,2\n-inf,0\n", "points.csv: line 2, column 1 is -inf; every value must be a finite number"),
            ("", "points.csv: is empty: it has no rows"),
            ("x,y\n", "points.csv: is empty: it has a header and no rows"),
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
             not a number\n  line 5 has 3 columns, the header has 4; is a field left out, or is the \
             delimiter not ','?"
        );
        let wide = format!("{}\n", vec!["a,1"; 20].join(","));
        let error = text(&wide).unwrap_err().to_string();
        assert!(error.contains("has 20 problems") && error.ends_with("\n  and 12 more"), "{error}");
    }
}
