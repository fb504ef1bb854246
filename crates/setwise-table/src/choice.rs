//! Choice of columns by name, number or range.

use std::ops::RangeInclusive;

use crate::error::Reason;
use crate::wording::listed;

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
pub struct Chosen {
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
    pub fn of(&self, names: &[String], width: usize) -> Result<Chosen, String> {
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
    fn find(&self, item: &str) -> Reason<Vec<usize>> {
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
            names => format!("has no column {item:?}; its columns are {}", listed(names)),
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
}
