//! Lists of pairs of sample files.

use std::path::Path;

use rayon::prelude::*;

use super::{Pair, Points};
use crate::Result;
use crate::files::{ColumnChoice, FilePairs, ListedPair, Sample};

/// A list with its samples. Every file is read once.
#[derive(Debug)]
pub struct PairList {
    samples: Vec<Sample>,
    pairs: Vec<ListedPair>,
}

impl PairList {
    /// Reads a list and its files, on all threads. The path `-` is standard input, with names relative to the current
    /// folder.
    ///
    /// Fails where a line does not name two samples of the same width. The error names the first bad line with the
    /// reason, and the numbers of the others.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        Self::read_columns(path, &ColumnChoice::default())
    }

    /// Reads a list and the chosen columns of its files. Every file must have them, those to leave out too.
    pub fn read_columns(path: impl AsRef<Path>, choice: &ColumnChoice) -> Result<Self> {
        let list = FilePairs::read(path)?;
        let read: Vec<Result<Sample>> = list.files.par_iter().map(|path| one_sample(path, choice)).collect();
        let problem = |pair: &ListedPair| match pair.files.map(|i| &read[i]) {
            [Err(e), _] | [_, Err(e)] => Some(e.to_string()),
            [Ok(p), Ok(q)] if p.width != q.width => Some(format!(
                "{} has {} columns, {} has {}: both samples must have the same",
                pair.names[0], p.width, pair.names[1], q.width
            )),
            _ => None,
        };
        list.check(list.pairs.iter().filter_map(|pair| Some((pair.line, problem(pair)?))))?;
        Ok(PairList { samples: read.into_iter().collect::<Result<_>>()?, pairs: list.pairs })
    }

    /// The pairs, in the order of their lines.
    pub fn pairs(&self) -> &[ListedPair] {
        &self.pairs
    }

    /// Number of files.
    pub fn files(&self) -> usize {
        self.samples.len()
    }

    /// The samples of a pair.
    pub fn samples(&self, pair: &ListedPair) -> [&Sample; 2] {
        pair.files.map(|i| &self.samples[i])
    }

    /// The points of a pair.
    pub fn points(&self, pair: &ListedPair) -> Result<Pair<'_>> {
        let [p, q] = self.samples(pair);
        Ok((Points::of(p)?, Points::of(q)?))
    }
}

/// Reads a file that holds one sample.
fn one_sample(path: &Path, choice: &ColumnChoice) -> Result<Sample> {
    let sample = Sample::read_columns(path, choice)?;
    Points::of(&sample)?;
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        for (name, text) in [("data/a.csv", "1,2\n3,4\n"), ("b, c.csv", "x,y\n5,6\n"), ("one.tsv", "1\n2\n")] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn read(text: &str) -> Result<PairList> {
        let folder = folder();
        let path = folder.path().join("list.txt");
        std::fs::write(&path, text).unwrap();
        PairList::read(path)
    }

    #[test]
    fn commas_tabs_and_spaces_separate_names_and_every_file_is_read_once() {
        let text =
            "\u{feff}# pairs\n\nP, Q\ndata/a.csv,\"b, c.csv\"\n data/a.csv\tb, c.csv \n\ndata/a.csv   data/a.csv\r\n";
        let list = read(text).unwrap();
        assert_eq!(list.pairs().iter().map(|p| p.line).collect::<Vec<_>>(), [4, 5, 7]);
        assert_eq!(list.pairs()[1].names, ["data/a.csv", "b, c.csv"]);
        assert_eq!(list.files(), 2);
        let (p, q) = list.points(&list.pairs()[0]).unwrap();
        assert_eq!((p.data(), q.data()), (&[1.0, 2.0, 3.0, 4.0][..], &[5.0, 6.0][..]));
    }

    #[test]
    fn the_error_names_bad_lines_and_their_files() {
        let error_of = |text: &str| read(text).unwrap_err().to_string();
        let error = error_of("data/a.csv,data/a.csv\ndata/a.csv,none.csv\ndata/a.csv\ndata/a.csv,one.tsv\n");
        assert!(error.contains("list.txt: line 2: ") && error.contains("none.csv: No such file"), "{error}");
        assert!(error.ends_with("; lines 3, 4 are bad too"), "{error}");
        assert!(error_of("a b c\n").ends_with("line 1: \"a b c\" names 3 files; write two, separated by a comma"));
        assert!(error_of("a,\n").ends_with("line 1: \"a,\" lacks a file name"));
        assert!(error_of("-,a\n").ends_with("line 1: a list cannot name standard input"));
        let error = error_of("data/a.csv,one.tsv");
        assert!(error.ends_with("line 1: data/a.csv has 2 columns, one.tsv has 1: both samples must have the same"));
        assert!(error_of("# nothing\n").contains("names no files"));
        let many: String = (0..20).map(|i| format!("{i}\n")).collect();
        assert!(
            error_of(&many).ends_with("lines 2, 3, 4, 5, 6, 7, 8, 9 and 11 others are bad too"),
            "{}",
            error_of(&many)
        );
    }
}
