//! Choice of columns, and columns of several files matched by name.

use std::ops::RangeInclusive;
use std::path::Path;

use super::Sample;
use crate::{Error, Result};

/// The columns of a file that are read.
///
/// An item is a name, a number from one, or a range of either such as `a..d` or `2..5`. Commas separate items. A name
/// takes precedence over other meanings, so names may contain commas and dots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnChoice {
    /// Columns that are kept; all of them if the list is empty.
    pub keep: Vec<String>,
    /// Columns that are left out.
    pub drop: Vec<String>,
}

/// Columns of one file.
pub(super) struct Chosen {
    /// Their places, in the order of the file.
    pub columns: Vec<usize>,
    /// Items to leave out that the file does not have.
    pub absent: Vec<String>,
}

impl ColumnChoice {
    /// Whether all columns are read.
    pub fn is_all(&self) -> bool {
        self.keep.is_empty() && self.drop.is_empty()
    }

    /// The chosen columns of a file with these names, which are empty without a header.
    pub(super) fn of(&self, names: &[String], width: usize) -> std::result::Result<Chosen, String> {
        let header = Header { names, width };
        let mut chosen = vec![self.keep.is_empty(); width];
        for item in self.keep.iter().flat_map(|item| header.items(item)) {
            header.find(item)?.into_iter().for_each(|c| chosen[c] = true);
        }
        let mut absent = Vec::new();
        for item in self.drop.iter().flat_map(|item| header.items(item)) {
            match header.find(item) {
                Ok(found) => found.into_iter().for_each(|c| chosen[c] = false),
                Err(_) => absent.push(item.to_owned()),
            }
        }
        let columns: Vec<usize> = (0..width).filter(|&c| chosen[c]).collect();
        if columns.is_empty() && width > 0 {
            return Err("has no other columns than those that are left out".to_owned());
        }
        Ok(Chosen { columns, absent })
    }
}

/// The columns of a file.
struct Header<'a> {
    names: &'a [String],
    width: usize,
}

impl Header<'_> {
    /// The items of a list, which is one item if a column has its name.
    fn items<'i>(&self, list: &'i str) -> Vec<&'i str> {
        match self.names.iter().any(|name| name == list) {
            true => vec![list],
            false => list.split(',').map(str::trim).filter(|item| !item.is_empty()).collect(),
        }
    }

    /// The columns of an item.
    fn find(&self, item: &str) -> std::result::Result<Vec<usize>, String> {
        let named = self.named(item);
        if !named.is_empty() {
            return Ok(named);
        }
        let range = item.split_once("..").and_then(|(first, last)| self.range(first.trim(), last.trim()));
        match range.or_else(|| self.numbered(item).map(|c| c..=c)) {
            Some(range) if range.is_empty() => Err(format!("has the columns of {item:?} in the other order")),
            Some(range) => Ok(range.collect()),
            None => Err(self.unknown(item)),
        }
    }

    fn named(&self, name: &str) -> Vec<usize> {
        self.names.iter().enumerate().filter(|(_, n)| *n == name).map(|(c, _)| c).collect()
    }

    fn numbered(&self, item: &str) -> Option<usize> {
        item.parse().ok().filter(|n| (1..=self.width).contains(n)).map(|n: usize| n - 1)
    }

    fn range(&self, first: &str, last: &str) -> Option<RangeInclusive<usize>> {
        let one = |item: &str| self.named(item).first().copied().or_else(|| self.numbered(item));
        Some(one(first)?..=one(last)?)
    }

    fn unknown(&self, item: &str) -> String {
        match self.names {
            [] => format!("has no column {item:?}: it has no header, and its columns are 1 to {}", self.width),
            names => format!("has no column {item:?}; its columns are {}", listed(names.iter())),
        }
    }
}

/// Names in quotes, the first ones of many.
fn listed<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    const MAX_LISTED: usize = 12;
    let more = names.len().saturating_sub(MAX_LISTED);
    let first: Vec<String> = names.take(MAX_LISTED).map(|name| format!("{name:?}")).collect();
    let first = first.join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

/// Reads the chosen columns of files that are compared. Columns of the others are put into the order of the first.
///
/// Columns are matched by name where both files have a header without repeated names. Otherwise, and where some
/// columns in the same place have other names, they are matched by position.
pub fn read_matching(paths: &[&Path], choice: &ColumnChoice) -> Result<Vec<Sample>> {
    let read: Vec<(Sample, Vec<String>)> =
        paths.iter().map(|path| Sample::read_chosen(path, choice)).collect::<Result<_>>()?;
    if let Some((first, absent)) = read.first()
        && let Some(item) = absent.iter().find(|item| read.iter().all(|(_, absent)| absent.contains(item)))
    {
        let others = if read.len() > 1 { ", nor has any other file" } else { "" };
        let reason = format!("has no column {item:?} to leave out{others}");
        return Err(Error::Sample { path: first.path.clone(), reason });
    }
    let mut samples = read.into_iter().map(|(sample, _)| sample);
    let Some(first) = samples.next() else { return Ok(Vec::new()) };
    let others: Vec<Sample> = samples.map(|other| matched(&first, other)).collect::<Result<_>>()?;
    Ok(std::iter::once(first).chain(others).collect())
}

/// A sample with its columns in the order of another's.
fn matched(first: &Sample, other: Sample) -> Result<Sample> {
    let repeated = |names: &[String]| names.iter().enumerate().any(|(i, name)| names[..i].contains(name));
    if [first, &other].iter().any(|s| s.names.is_empty() || repeated(&s.names)) {
        return Ok(other);
    }
    let place = |name: &String| other.names.iter().position(|n| n == name);
    // Columns with other names in the same place are renamed ones.
    let in_place = |c: usize| place(&first.names[c]).is_none_or(|at| at == c);
    if other.width == first.width && (0..first.width).all(in_place) {
        return Ok(other);
    }
    let order: Option<Vec<usize>> = first.names.iter().map(place).collect();
    match order {
        Some(order) if other.width == first.width => Ok(other.select(&order)),
        _ => {
            let only = |a: &Sample, b: &Sample| -> Vec<String> {
                a.names.iter().filter(|name| !b.names.contains(name)).cloned().collect()
            };
            let lists = [("former", only(first, &other)), ("latter", only(&other, first))];
            let only: Vec<String> = lists
                .iter()
                .filter(|(_, names)| !names.is_empty())
                .map(|(which, names)| format!("only the {which} has {}", listed(names.iter())))
                .collect();
            Err(Error::Sets(format!(
                "{} has {} columns, {} has {}: {}; rename columns, or leave them out",
                first.path.display(),
                first.width,
                other.path.display(),
                other.width,
                only.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(keep: &[&str], drop: &[&str]) -> ColumnChoice {
        let owned = |items: &[&str]| items.iter().map(|s| (*s).to_owned()).collect();
        ColumnChoice { keep: owned(keep), drop: owned(drop) }
    }

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn names_numbers_and_ranges_choose_columns() {
        let header = names(&["id", "a", "b", "c, d", "e..f"]);
        for (keep, drop, expected) in [
            (vec![], vec![], vec![0, 1, 2, 3, 4]),
            (vec!["b,a"], vec![], vec![1, 2]),
            (vec!["a..c, d"], vec!["e..f"], vec![]),
            (vec!["2..3", "5"], vec![], vec![1, 2, 4]),
            (vec!["id..b"], vec!["a"], vec![0, 2]),
            (vec!["c, d", "e..f"], vec![], vec![3, 4]),
            (vec![], vec!["id", "e..f", "not there"], vec![1, 2, 3]),
        ] {
            let found = choice(&keep, &drop).of(&header, 5).map(|c| c.columns);
            match expected.is_empty() {
                true => assert!(found.is_err(), "{keep:?}"),
                false => assert_eq!(found.unwrap(), expected, "{keep:?} {drop:?}"),
            }
        }
        assert_eq!(choice(&["2..3"], &[]).of(&[], 3).unwrap().columns, [1, 2]);
        assert_eq!(choice(&[], &["x, id"]).of(&header, 5).unwrap().absent, ["x"]);
    }

    #[test]
    fn unknown_columns_are_named_with_those_there_are() {
        let error = |keep: &str, header: &[&str], width| choice(&[keep], &[]).of(&names(header), width).err().unwrap();
        assert_eq!(error("x", &["a", "b"], 2), "has no column \"x\"; its columns are \"a\", \"b\"");
        assert_eq!(error("x", &[], 3), "has no column \"x\": it has no header, and its columns are 1 to 3");
        assert_eq!(error("b..a", &["a", "b"], 2), "has the columns of \"b..a\" in the other order");
        assert_eq!(error("0", &["a", "b"], 2), "has no column \"0\"; its columns are \"a\", \"b\"");
        let all = choice(&[], &["1..2"]).of(&names(&["a", "b"]), 2).err().unwrap();
        assert_eq!(all, "has no other columns than those that are left out");
    }

    fn read(files: &[&str], choice: &ColumnChoice) -> Result<Vec<Sample>> {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..files.len()).map(|i| folder.path().join(["p.csv", "q.csv", "at.csv"][i])).collect();
        paths.iter().zip(files).for_each(|(path, text)| std::fs::write(path, text).unwrap());
        read_matching(&paths.iter().map(|p| p.as_path()).collect::<Vec<_>>(), choice)
    }

    #[test]
    fn columns_are_matched_by_name() {
        let read_all = |files: &[&str]| read(files, &ColumnChoice::default());
        let both = read_all(&["a,b,c\n1,2,3\n", "c,a,b\n6,4,5\n", "b,c,a\n8,9,7\n"]).unwrap();
        assert_eq!(both[1].data, [4.0, 5.0, 6.0]);
        assert_eq!((&both[2].names, &both[2].data[..]), (&both[0].names, &[7.0, 8.0, 9.0][..]));
        // Renamed, repeated or absent names are matched by position.
        for (p, q) in [("a,b\n1,2\n", "a,x\n3,4\n"), ("a,a\n1,2\n", "a,b\n3,4\n"), ("1,2\n", "b,a\n3,4\n")] {
            assert_eq!(read_all(&[p, q]).unwrap()[1].data, [3.0, 4.0], "{p} {q}");
        }
        for (p, q, expected) in [
            (
                "a,b,c\n1,2,3\n",
                "c,x\n1,2\n",
                "q.csv has 2: only the former has \"a\", \"b\", only the latter has \"x\"; rename",
            ),
            ("a\n1\n", "a,x\n1,2\n", "q.csv has 2: only the latter has \"x\"; rename"),
            ("a,b\n1,2\n", "b\n1\n", "q.csv has 1: only the former has \"a\"; rename"),
            // A renamed column and a moved one.
            (
                "a,b,c\n1,2,3\n",
                "b,a,x\n1,2,3\n",
                "q.csv has 3: only the former has \"c\", only the latter has \"x\"; rename",
            ),
        ] {
            let error = read_all(&[p, q]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn text_in_columns_that_are_left_out_is_not_read() {
        let (p, q) = ("day,x,note\nmonday,1,\"a, b\"\ntuesday,2,\n", "x,note\n3,?\n4,none\n");
        for choice in [choice(&[], &["day,note"]), choice(&["x"], &[])] {
            let both = read(&[p, q], &choice).unwrap();
            assert_eq!((&both[0].data[..], &both[1].data[..]), (&[1.0, 2.0][..], &[3.0, 4.0][..]));
            assert_eq!(both[0].names, ["x"]);
        }
        // A field of several lines is text. A quote that is not closed takes the rest of the file.
        let lines = "x,note\n1,\"two\nlines\"\n2,b\n";
        assert_eq!(read(&[lines], &choice(&["x"], &[])).unwrap()[0].data, [1.0, 2.0]);
        for open in ["x,note\n1,a\n2,\"b\n3,c\n4,d\n", "x,note,y\n1,\"a,3\n2,b,4\n"] {
            let error = read(&[open], &choice(&["x"], &[])).unwrap_err().to_string();
            assert!(error.ends_with("goes on over several lines; is a quote not closed?"), "{error}");
        }
        let error = read(&[p, q], &choice(&["x"], &["nigth"])).unwrap_err().to_string();
        assert!(error.ends_with("p.csv: has no column \"nigth\" to leave out, nor has any other file"), "{error}");
    }
}
