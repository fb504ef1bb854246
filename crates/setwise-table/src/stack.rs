//! The columns that several tables share, with the second table and those after it below one another.

use std::collections::HashSet;

use crate::choice::ColumnChoice;
use crate::error::{Error, Result};
use crate::pairing::{Pairing, take_names};
use crate::table::{Column, Place, Table, Text, Values};
use crate::types::{ColumnType, Overrides, check_mixed, kind, of_different_kinds};

impl Pairing {
    /// Matches the chosen columns of two or more tables by name. The second table and those after it become one.
    ///
    /// Tables without names match by position. The type of a column follows from all tables.
    pub fn of_many(mut tables: Vec<Table>, choice: &ColumnChoice, overrides: &Overrides) -> Result<Self> {
        if tables.len() > 2 {
            take_names(&mut tables);
            let names = column_names(&tables);
            let chosen = choice.of(&names, names.len());
            let chosen = chosen.map_err(|reason| Error::Columns(format!("{}: {reason}", tables[0].path.display())))?;
            // What is not known is an error of the pairing.
            if chosen.absent.is_empty() {
                let chosen: HashSet<&String> = chosen.columns.iter().map(|&c| &names[c]).collect();
                for table in &mut tables {
                    table.columns.retain(|column| chosen.contains(&column.name));
                }
                let mut types = types_of(&tables, &names)?;
                for name in overrides.names() {
                    let is_dropped = names.iter().any(|n| n == name && !chosen.contains(n));
                    if let Some(set) = overrides.get(name).filter(|_| !is_dropped) {
                        types.set(name, set);
                    }
                }
                let first = tables.remove(0);
                return Pairing::new([first, stack(tables, &types)?], &ColumnChoice::default(), &types);
            }
        }
        match <[Table; 2]>::try_from(tables) {
            Ok(tables) => Pairing::new(tables, choice, overrides),
            Err(mut tables) if tables.len() > 2 => {
                let first = tables.remove(0);
                Pairing::new([first, stack(tables, overrides)?], choice, overrides)
            }
            Err(_) => Err(Error::Columns("two tables or more are needed".to_owned())),
        }
    }
}

/// The names of the columns of tables, in the order in which they appear first.
fn column_names(tables: &[Table]) -> Vec<String> {
    let mut seen = HashSet::new();
    let all = tables.iter().flat_map(|table| &table.columns).map(|column| &column.name);
    all.filter(|name| seen.insert(*name)).cloned().collect()
}

/// The types of columns that all tables have. The error lists values that are no numbers among numbers.
fn types_of(tables: &[Table], names: &[String]) -> Result<Overrides> {
    let (mut types, mut problems) = (Overrides::default(), Vec::new());
    for name in names {
        let found: Option<Vec<&Column>> = tables.iter().map(|table| table.column(name)).collect();
        let Some(columns) = found else { continue };
        for (table, column) in tables.iter().zip(&columns) {
            problems.extend(check_mixed(column).err().map(|reason| format!("{}: {reason}", table.path.display())));
        }
        // Columns of different kinds are an error that names the files.
        if let Ok(inferred) = ColumnType::infer(&columns) {
            types.set(name, inferred);
        }
    }
    match problems.is_empty() {
        true => Ok(types),
        false => Err(Error::Columns(problems.join("\n  "))),
    }
}

/// Tables below one another, with the columns they share. The error lists the columns of different kinds.
fn stack(tables: Vec<Table>, types: &Overrides) -> Result<Table> {
    let paths: Vec<String> = tables.iter().map(|table| table.path.display().to_string()).collect();
    let mut skipped: Vec<(String, String)> = tables.iter().flat_map(|table| table.skipped.clone()).collect();
    let (mut columns, mut problems) = (Vec::new(), Vec::new());
    for name in column_names(&tables) {
        if let Some(t) = tables.iter().position(|table| table.column(&name).is_none()) {
            skipped.push((name, format!("is not in {}", paths[t])));
            continue;
        }
        let found: Vec<&Column> = tables.iter().filter_map(|table| table.column(&name)).collect();
        match stacked(&found, types) {
            Ok(column) => columns.push(column),
            Err([a, b]) => {
                let [of_a, of_b] = [a, b].map(|t| format!("{} in {}", kind(found[t]), paths[t]));
                problems.push(format!("column {name:?} holds {of_a} and {of_b}"));
            }
        }
    }
    if !problems.is_empty() {
        return Err(Error::Columns(problems.join("\n  ")));
    }
    let rows = tables.iter().map(|table| table.rows).sum();
    let named = tables.iter().any(|table| table.named);
    Ok(Table { path: paths.join(", ").into(), rows, columns, named, skipped, first_line: None, sample_of: None })
}

/// Columns below one another. The error has the places of two that hold different kinds of values.
fn stacked(columns: &[&Column], types: &Overrides) -> std::result::Result<Column, [usize; 2]> {
    let of_type = |to: ColumnType| columns.iter().map(|c| (*c).clone().into_type(to)).collect::<Result<Vec<Column>>>();
    let typed = match types.get(&columns[0].name).map(of_type) {
        Some(Ok(typed)) => typed,
        _ => columns.iter().map(|c| (*c).clone()).collect(),
    };
    let of: Vec<&Column> = typed.iter().collect();
    if let Some(different) = of_different_kinds(&of) {
        let place = |column: &Column| of.iter().position(|c| std::ptr::eq(*c, column)).unwrap_or(0);
        return Err(different.map(place));
    }
    let numbers = || {
        let of_column = |column: &&Column| match &column.values {
            Values::Numbers(v) | Values::Times(v) => v.clone(),
            // A column of missing values.
            Values::Text(text) => vec![f64::NAN; text.codes.len()],
        };
        of.iter().flat_map(of_column).collect()
    };
    let filled = of.iter().find(|c| c.missing() < c.len()).unwrap_or(&of[0]);
    let values = match &filled.values {
        Values::Numbers(_) => Values::Numbers(numbers()),
        Values::Times(_) => Values::Times(numbers()),
        Values::Text(_) => {
            let mut all = Text::default();
            for column in &of {
                match &column.values {
                    Values::Text(text) => (0..text.codes.len()).for_each(|row| all.push(text.get(row))),
                    _ => (0..column.len()).for_each(|_| all.push(None)),
                }
            }
            Values::Text(all)
        }
    };
    let first = |place: fn(&Column) -> &Option<Place>| of.iter().find_map(|c| place(c).clone());
    Ok(Column {
        name: of[0].name.clone(),
        values,
        first_missing: first(|c| &c.first_missing),
        first_text: first(|c| &c.first_text),
        first_infinite: first(|c| &c.first_infinite),
        damaged: of.iter().find_map(|c| c.damaged.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairing(texts: &[&str], drop: &[&str], types: &[&str]) -> Result<Pairing> {
        let mut overrides = Overrides::default();
        types.iter().for_each(|item| overrides.add(item).unwrap());
        let table = |(i, text): (usize, &&str)| Table::parse(format!("{i}.csv"), text.as_bytes()).unwrap();
        let choice = ColumnChoice { keep: Vec::new(), drop: drop.iter().map(|s| (*s).to_owned()).collect() };
        Pairing::of_many(texts.iter().enumerate().map(table).collect(), &choice, &overrides)
    }

    #[test]
    fn columns_are_matched_by_name() {
        let texts = ["x,town,y\n1.5,Oslo,2\n2,Rome,3\n", "town,x\nRome,3\n", "x,town\n,Bari\n"];
        let all = pairing(&texts, &[], &[]).unwrap();
        assert_eq!((all.rows, all.tables[1].as_str()), ([2, 2], "1.csv, 2.csv"));
        let names: Vec<&str> = all.columns.iter().map(|c| c.name.as_str()).collect();
        assert_eq!((names, &all.only[0]), (vec!["x", "town"], &vec!["y".to_owned()]));
        let Values::Numbers(x) = &all.columns[0].columns[1].values else { panic!() };
        assert!(x[0] == 3.0 && x[1].is_nan());
        // The names of a table without any are those of the first one with names.
        let unnamed = pairing(&["x,y\n1.5,2\n", "2.5,3\n4,5\n", "y,x\n6,7.5\n"], &[], &[]).unwrap();
        let Values::Numbers(x) = &unnamed.columns[0].columns[1].values else { panic!() };
        assert_eq!((unnamed.columns[0].name.as_str(), x.as_slice()), ("x", [2.5, 4.0, 7.5].as_slice()));
    }

    #[test]
    fn types_follow_from_all_tables_in_any_order() {
        let rows = |from: usize| (from..from + 40).map(|i| format!("{i},1.5\n")).collect::<String>();
        let [a, b] = [0, 30].map(|from| "row,x\n".to_owned() + &rows(from));
        for texts in [[&a, &b, &b], [&b, &a, &b]] {
            let found = pairing(&texts.map(String::as_str), &[], &[]).unwrap();
            assert_eq!(found.columns[0].column_type, ColumnType::Identifier);
        }
    }

    #[test]
    fn columns_of_different_kinds_are_errors_unless_a_type_is_set() {
        let texts = ["x,y\n1,a\n", "x,y\n1,a\n", "x,y\nb,c\n"];
        let error = pairing(&texts, &[], &[]).unwrap_err().to_string();
        assert_eq!(error, "column \"x\" holds numbers in 1.csv and text in 2.csv");
        assert_eq!(pairing(&texts, &["x"], &[]).unwrap().columns.len(), 1);
        let typed = pairing(&texts, &[], &["x=category"]).unwrap();
        assert!(matches!(typed.columns[0].columns[1].values, Values::Text(_)));
    }
}
