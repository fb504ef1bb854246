//! Lists of pairs of tables of mixed columns.

use std::path::Path;

use setwise::files::{FilePairs, ListedPair};
use setwise_table::Table;

use super::{check_not_input, pairs_bar};
use crate::failure::Failure;

/// The result of one pair of a list.
pub type Outcome<T> = Result<T, Failure>;

/// A list of pairs with the result of each.
pub struct Outcomes<T> {
    pub pairs: Vec<ListedPair>,
    pub of_pairs: Vec<Outcome<T>>,
}

impl<T> Outcomes<T> {
    /// Does `work` for every pair of a list. A pair that fails does not stop the others. `out` is no file of the list.
    pub fn new(list: &Path, out: Option<&Path>, work: impl Fn([Table; 2]) -> Outcome<T>) -> Outcome<Self> {
        let list = FilePairs::read(list)?;
        list.check([])?;
        if let Some(path) = out {
            check_not_input(path, list.files.iter().map(|file| file.as_path()))?;
        }
        let bar = pairs_bar(list.pairs.len());
        // Pairs often share their first table.
        let mut first: Option<(usize, Table)> = None;
        let mut of_pair = |pair: &ListedPair| -> Outcome<T> {
            let [a, b] = pair.files;
            if first.as_ref().is_none_or(|(file, _)| *file != a) {
                first = Some((a, Table::read(&list.files[a])?));
            }
            let table = first.as_ref().map(|(_, table)| table.clone()).expect("a table has been read");
            work([table, Table::read(&list.files[b])?])
        };
        let mut of_pairs = Vec::with_capacity(list.pairs.len());
        for pair in &list.pairs {
            of_pairs.push(of_pair(pair));
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(Outcomes { pairs: list.pairs, of_pairs })
    }

    /// Each pair with its result.
    pub fn iter(&self) -> impl Iterator<Item = (&ListedPair, &Outcome<T>)> {
        self.pairs.iter().zip(&self.of_pairs)
    }

    /// The results of the pairs that have one.
    pub fn results(&self) -> impl Iterator<Item = &T> {
        self.of_pairs.iter().flatten()
    }

    /// Fails if a pair failed; `verb` is what was done with the others.
    pub fn check(&self, verb: &str) -> Result<(), Failure> {
        let mut failed = self.iter().filter_map(|(pair, outcome)| Some((pair, outcome.as_ref().err()?)));
        let Some((pair, error)) = failed.next() else { return Ok(()) };
        let (count, all) = (1 + failed.count(), self.pairs.len());
        let line = pair.line;
        Err(Failure::usage(format!("{count} of {all} pairs cannot be {verb}; the first, line {line}: {error}")))
    }
}
