//! Columns of two tables, matched by name, with the type they share.

use crate::choice::ColumnChoice;
use crate::error::{Error, Reason, Result};
use crate::table::{Column, Table, Values};
use crate::types::{ColumnType, Overrides, check_mixed, kind, of_different_kinds};
use crate::wording::listed;

/// A column of two tables.
#[derive(Clone, Debug)]
pub struct PairedColumn {
    /// The name.
    pub name: String,
    /// The type of its values in both tables.
    pub column_type: ColumnType,
    /// The column of each table, stored as the type requires.
    pub columns: [Column; 2],
}

impl PairedColumn {
    /// Whether nearly all times of one table lie before those of the other, as those of two months do.
    pub fn times_lie_apart(&self) -> bool {
        let [Values::Times(a), Values::Times(b)] = self.columns.each_ref().map(|c| &c.values) else { return false };
        lie_apart(a, b)
    }
}

/// Whether nearly all numbers of one list lie before those of the other; NaN is a missing number.
pub fn lie_apart(a: &[f64], b: &[f64]) -> bool {
    const OVERLAP: f64 = 0.05;
    let range = |v: &[f64]| v.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(*x), h.max(*x)));
    let share = |v: &[f64], (low, high): (f64, f64)| {
        let present = v.iter().filter(|x| !x.is_nan()).count();
        v.iter().filter(|x| (low..=high).contains(*x)).count() as f64 / present.max(1) as f64
    };
    let (of_a, of_b) = (range(a), range(b));
    of_a.0 <= of_a.1 && of_b.0 <= of_b.1 && share(a, of_b) < OVERLAP && share(b, of_a) < OVERLAP
}

/// The columns that two tables share.
#[derive(Clone, Debug)]
pub struct Pairing {
    /// The file or the name of each table.
    pub tables: [String; 2],
    /// Rows of each table.
    pub rows: [usize; 2],
    /// Columns of both tables, in the order of the first.
    pub columns: Vec<PairedColumn>,
    /// Columns that only one of the tables has.
    pub only: [Vec<String>; 2],
    /// What a reader should know about the match.
    pub notes: Vec<String>,
    /// Whether a table is a sample of a longer one, which has more repeated rows.
    pub sampled: bool,
}

impl Pairing {
    /// Matches the chosen columns of two tables by name.
    ///
    /// Tables without names match by position. The error lists the problems of all columns.
    pub fn new(tables: [Table; 2], choice: &ColumnChoice, overrides: &Overrides) -> Result<Self> {
        let paths = [&tables[0], &tables[1]].map(|t| t.path.display().to_string());
        let (rows, mut notes) = ([tables[0].rows, tables[1].rows], Vec::new());
        let sampled = tables.iter().any(|table| table.sample_of.is_some());
        for (table, path) in tables.iter().zip(&paths) {
            let note =
                |n: usize| format!("{path}: {} rows drawn from {n}; repeated values are not compared", table.rows);
            notes.extend(table.sample_of.map(note));
            let note = |(name, why): &(String, String)| format!("{path}: column {name:?} is left out: it {why}");
            notes.extend(table.skipped.iter().map(note));
        }
        let [first, mut second] = tables;
        let mut first = first;
        take_names([&mut first, &mut second]);
        let mut names: Vec<String> = first.columns.iter().map(|c| c.name.clone()).collect();
        names.extend(second.columns.iter().filter(|c| first.column(&c.name).is_none()).map(|c| c.name.clone()));
        let chosen =
            choice.of(&names, names.len()).map_err(|reason| Error::Columns(format!("{}: {reason}", paths[0])))?;
        let untyped = overrides.names().filter(|name| !names.iter().any(|n| n == name)).map(str::to_owned);
        let unknown: Vec<String> = chosen.absent.iter().cloned().chain(untyped).collect();
        if !unknown.is_empty() {
            let [unknown, known] = [&unknown, &names].map(|names| listed(names));
            return Err(Error::Columns(format!("no column is called {unknown}; there are {known}")));
        }
        let chosen: Vec<&String> = chosen.columns.iter().map(|&c| &names[c]).collect();
        let absent = |table: &Table| -> Vec<String> {
            chosen.iter().filter(|name| table.column(name).is_none()).map(|name| (*name).clone()).collect()
        };
        let only = [absent(&second), absent(&first)];
        notes.extend(renamed(&first, &second, &only));
        let (mut columns, mut problems) = (Vec::new(), Vec::new());
        for name in chosen {
            let (Some(a), Some(b)) = (first.column(name), second.column(name)) else { continue };
            match pair([a, b], &paths, overrides.get(name)) {
                Ok(column) => {
                    for (t, before) in [a, b].into_iter().enumerate() {
                        let lost = column.columns[t].missing() - before.missing();
                        if lost > 0 {
                            notes.push(format!("{}: {lost} values of column {name:?} are no numbers", paths[t]));
                        }
                    }
                    columns.push(column);
                }
                Err(reason) => problems.push(reason),
            }
        }
        match problems.as_slice() {
            [] => {}
            [only] => return Err(Error::Columns(only.clone())),
            all => {
                return Err(Error::Columns(format!(
                    "{} columns cannot be compared:\n  {}",
                    all.len(),
                    all.join("\n  ")
                )));
            }
        }
        if columns.is_empty() {
            let lists = only.each_ref().map(|names| listed(names));
            return Err(Error::Columns(format!(
                "{} and {} have no column in common: the former has {}, the latter has {}",
                paths[0], paths[1], lists[0], lists[1]
            )));
        }
        Ok(Pairing { tables: paths, rows, columns, only, notes, sampled })
    }

    /// The pairing of some rows of each table; `None` stands for all of them.
    pub fn select(&self, rows: [Option<&[u32]>; 2]) -> Self {
        let of = |column: &PairedColumn| PairedColumn {
            name: column.name.clone(),
            column_type: column.column_type,
            columns: std::array::from_fn(|t| match rows[t] {
                Some(rows) => column.columns[t].select(rows),
                None => column.columns[t].clone(),
            }),
        };
        Pairing {
            tables: self.tables.clone(),
            rows: std::array::from_fn(|t| rows[t].map_or(self.rows[t], <[u32]>::len)),
            columns: self.columns.iter().map(of).collect(),
            only: self.only.clone(),
            notes: Vec::new(),
            sampled: self.sampled,
        }
    }
}

/// Gives tables without names those of the first table with names, if it has as many columns.
pub(crate) fn take_names<'a>(tables: impl IntoIterator<Item = &'a mut Table>) {
    let mut tables: Vec<&mut Table> = tables.into_iter().collect();
    let Some(named) = tables.iter().find(|table| table.named) else { return };
    let names: Vec<String> = named.columns.iter().map(|c| c.name.clone()).collect();
    for table in tables.iter_mut().filter(|table| !table.named && table.columns.len() == names.len()) {
        table.columns.iter_mut().zip(&names).for_each(|(c, name)| c.name.clone_from(name));
        table.named = true;
    }
}

/// Columns in the same place that have different names may be renamed ones.
fn renamed(first: &Table, second: &Table, only: &[Vec<String>; 2]) -> Vec<String> {
    let places = first.columns.iter().zip(&second.columns);
    let renamed = places.filter(|(a, b)| only[0].contains(&a.name) && only[1].contains(&b.name));
    renamed
        .map(|(a, b)| format!("column {:?} may be called {:?} in {}", a.name, b.name, second.path.display()))
        .collect()
}

/// A pair of columns with their type. The error names the file.
fn pair(columns: [&Column; 2], paths: &[String; 2], set: Option<ColumnType>) -> Reason<PairedColumn> {
    let name = &columns[0].name;
    let in_file = |t: usize| move |reason| format!("{}: {reason}", paths[t]);
    let column_type = match set {
        Some(set) => set,
        None => {
            (0..2).try_for_each(|t| check_mixed(columns[t]).map_err(in_file(t)))?;
            if of_different_kinds(&columns).is_some() {
                let [first, second] = [0, 1].map(|t: usize| {
                    let place = columns[t].first_text.as_ref();
                    let place = place.map_or(String::new(), |p| format!(" (line {}: {:?})", p.line, p.value));
                    format!("{} in {}{place}", kind(columns[t]), paths[t])
                });
                return Err(format!("column {name:?} holds {first} and {second}"));
            }
            ColumnType::infer(&columns).map_err(|e| e.to_string())?
        }
    };
    let stored = |t: usize| columns[t].clone().into_type(column_type).map_err(|e| in_file(t)(e.to_string()));
    Ok(PairedColumn { name: name.clone(), column_type, columns: [stored(0)?, stored(1)?] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairing(a: &str, b: &str, choice: &ColumnChoice, types: &[&str]) -> Result<Pairing> {
        let mut overrides = Overrides::default();
        types.iter().for_each(|item| overrides.add(item).unwrap());
        let table = |name, text: &str| Table::parse(name, text.as_bytes()).unwrap();
        Pairing::new([table("a.csv", a), table("b.csv", b)], choice, &overrides)
    }

    #[test]
    fn columns_are_matched_by_name_and_typed_together() {
        let all = ColumnChoice::default();
        let found = pairing("id,x,town\n1,2.5,Oslo\n2,3,Rome\n", "town,y,x\nRome,1,4\nOslo,2,5\n", &all, &[]).unwrap();
        let types: Vec<_> = found.columns.iter().map(|c| (c.name.as_str(), c.column_type)).collect();
        assert_eq!(types, [("x", ColumnType::Numeric), ("town", ColumnType::Category)]);
        assert_eq!(found.only, [vec!["id".to_owned()], vec!["y".to_owned()]]);
        let renamed = pairing("x,town\n1,Oslo\n", "x,city\n2,Rome\n", &all, &[]).unwrap();
        assert_eq!(renamed.notes, ["column \"town\" may be called \"city\" in b.csv"]);
        let unnamed = pairing("x,town\n1,Oslo\n2,Rome\n", "2,Rome\n7,Oslo\n", &all, &["x=category"]).unwrap();
        assert_eq!(unnamed.columns[0].column_type, ColumnType::Category);
        assert_eq!(unnamed.columns.len(), 2);
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let mixed: String = (0..20).map(|i| format!("{i},{i},{i}\n")).collect();
        let a = format!("x,y,z\n{mixed}many,2,3\n");
        let b = format!("x,y,z\n{}", "1,a,2\n".repeat(3));
        let all = ColumnChoice::default();
        let error = pairing(&a, &b, &all, &[]).unwrap_err().to_string();
        assert_eq!(
            error,
            "2 columns cannot be compared:\n  a.csv: line 22, column \"x\": \"many\" is no number, as 20 of 21 values \
             are\n  column \"y\" holds numbers in a.csv and text in b.csv (line 2: \"a\")"
        );
        let drop = ColumnChoice { keep: Vec::new(), drop: vec!["x,y".to_owned()] };
        assert_eq!(pairing(&a, &b, &drop, &[]).unwrap().columns.len(), 1);
        let lenient = pairing(&a, &b, &all, &["x=numeric", "y=category"]).unwrap();
        assert_eq!(lenient.columns.len(), 3);
        assert_eq!(lenient.notes, ["a.csv: 1 values of column \"x\" are no numbers"]);
        let error = pairing(&a, &b, &all, &["x=numeric", "y=numeric"]).unwrap_err().to_string();
        assert_eq!(error, "b.csv: column \"y\" holds no numbers; \"a\" is text");
        let drop = ColumnChoice { keep: Vec::new(), drop: vec!["x,u,v".to_owned()] };
        let error = pairing(&a, &b, &drop, &["w=text"]).unwrap_err().to_string();
        assert_eq!(error, "no column is called \"u\", \"v\", \"w\"; there are \"x\", \"y\", \"z\"");
        let error = pairing("x\n1\n", "y\n2\n", &all, &[]).unwrap_err().to_string();
        assert_eq!(error, "a.csv and b.csv have no column in common: the former has \"x\", the latter has \"y\"");
    }
}
