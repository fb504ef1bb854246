//! Lists of pairs of sample files.
//!
//! Every line names two files, relative to the list's folder, separated by a comma (names may stand in double quotes), a tab or, where
//! there is neither, by spaces. Blank lines and those that begin with `#` are skipped, and so is a first line `p,q`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::{Pair, Points};
use crate::files::Sample;
use crate::{Error, Result};

/// A list with the samples it names, each read once however often it is named.
#[derive(Debug)]
pub struct PairList {
    samples: Vec<Sample>,
    pairs: Vec<ListedPair>,
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedPair {
    /// Its number, from one.
    pub line: usize,
    /// The two files as the list names them.
    pub names: [String; 2],
    /// Where they are among the samples.
    samples: [usize; 2],
}

impl PairList {
    /// Reads a list and, on all threads, the files it names; `-` is standard input, whose names are relative to the current folder.
    /// Nothing but two samples of equally many columns on every line will do: the error names the first line that is bad and why, and
    /// the numbers of the others.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let from_input = path == Path::new("-");
        let name = if from_input { Path::new("standard input") } else { path };
        let text = if from_input { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
        let text = text.map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => bad_list(name, "is no text; a list names two sample files a line"),
            _ => Error::io(name)(e),
        })?;
        let folder = if from_input { Path::new("") } else { path.parent().unwrap_or(Path::new("")) };
        Self::parse(name, folder, &text)
    }

    fn parse(list: &Path, folder: &Path, text: &str) -> Result<Self> {
        let mut bad: Vec<(usize, String)> = Vec::new();
        let (mut paths, mut places) = (Vec::new(), HashMap::<PathBuf, usize>::new());
        let mut pairs: Vec<ListedPair> = Vec::new();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).peekable();
        lines.next_if(|(_, line)| names_of(line).is_ok_and(|[p, q]| is_header(&p, &q)));
        for (line, content) in lines {
            match names_of(content) {
                Ok(names) => {
                    let samples = [&names[0], &names[1]].map(|name| {
                        let path = folder.join(name);
                        *places.entry(path.clone()).or_insert_with(|| {
                            paths.push(path);
                            paths.len() - 1
                        })
                    });
                    pairs.push(ListedPair { line, names, samples });
                }
                Err(reason) => bad.push((line, reason)),
            }
        }
        if bad.is_empty() && pairs.is_empty() {
            return Err(bad_list(list, "names no files; two sample files a line are wanted"));
        }
        let read: Vec<Result<Sample>> = paths.par_iter().map(one_sample).collect();
        for pair in &pairs {
            let problem = match pair.samples.map(|i| &read[i]) {
                [Err(e), _] | [_, Err(e)] => Some(e.to_string()),
                [Ok(p), Ok(q)] if p.width != q.width => Some(format!(
                    "{} has {} columns, {} has {}: both samples must have the same",
                    pair.names[0], p.width, pair.names[1], q.width
                )),
                _ => None,
            };
            bad.extend(problem.map(|reason| (pair.line, reason)));
        }
        bad.sort_by_key(|(line, _)| *line);
        if let Some((line, reason)) = bad.first() {
            return Err(bad_list(list, format!("line {line}: {reason}{}", others(&bad[1..]))));
        }
        Ok(PairList { samples: read.into_iter().collect::<Result<_>>()?, pairs })
    }

    /// The pairs, in the order of their lines.
    pub fn pairs(&self) -> &[ListedPair] {
        &self.pairs
    }

    /// How many files were read.
    pub fn files(&self) -> usize {
        self.samples.len()
    }

    /// The samples of a pair.
    pub fn samples(&self, pair: &ListedPair) -> [&Sample; 2] {
        pair.samples.map(|i| &self.samples[i])
    }

    /// The points of a pair.
    pub fn points(&self, pair: &ListedPair) -> Result<Pair<'_>> {
        let [p, q] = self.samples(pair);
        Ok((Points::of(p)?, Points::of(q)?))
    }
}

fn bad_list(list: &Path, reason: impl Into<String>) -> Error {
    Error::Sample { path: list.to_owned(), reason: reason.into() }
}

/// A file that holds one set.
fn one_sample(path: &PathBuf) -> Result<Sample> {
    let sample = Sample::read(path)?;
    Points::of(&sample)?;
    Ok(sample)
}

/// Numbers of further lines that are bad.
fn others(bad: &[(usize, String)]) -> String {
    const SHOWN: usize = 8;
    let lines: Vec<String> = bad.iter().take(SHOWN).map(|(line, _)| line.to_string()).collect();
    match bad.len() {
        0 => String::new(),
        1 => format!("; line {} is bad too", lines[0]),
        n if n <= SHOWN => format!("; lines {} are bad too", lines.join(", ")),
        n => format!("; lines {} and {} others are bad too", lines.join(", "), n - SHOWN),
    }
}

/// The two files a line names.
fn names_of(line: &str) -> std::result::Result<[String; 2], String> {
    let names: Vec<String> = match ['\t', ','].into_iter().find(|&d| line.contains(d)) {
        None => line.split_whitespace().map(str::to_owned).collect(),
        Some(delimiter) => {
            let mut reader = csv::ReaderBuilder::new()
                .delimiter(delimiter as u8)
                .has_headers(false)
                .trim(csv::Trim::All)
                .from_reader(line.as_bytes());
            let record = reader.records().next().transpose().map_err(|e| e.to_string())?;
            record.iter().flatten().map(str::to_owned).collect()
        }
    };
    let count = names.len();
    let names: [String; 2] =
        names.try_into().map_err(|_| format!("{line:?} names {count} files; two are wanted, separated by a comma"))?;
    if names.iter().any(String::is_empty) {
        return Err(format!("{line:?} lacks a file name"));
    }
    if names.iter().any(|name| name == "-") {
        return Err("a list cannot name standard input".to_owned());
    }
    Ok(names)
}

fn is_header(p: &str, q: &str) -> bool {
    p.eq_ignore_ascii_case("p") && q.eq_ignore_ascii_case("q")
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
    fn commas_tabs_and_spaces_separate_names_relative_to_the_list_and_files_are_read_once() {
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
    fn bad_lines_are_named_with_their_file_before_anything_else_happens() {
        let said = |text: &str| read(text).unwrap_err().to_string();
        let error = said("data/a.csv,data/a.csv\ndata/a.csv,none.csv\ndata/a.csv\ndata/a.csv,one.tsv\n");
        assert!(error.contains("list.txt: line 2: ") && error.contains("none.csv: No such file"), "{error}");
        assert!(error.ends_with("; lines 3, 4 are bad too"), "{error}");
        assert!(said("a b c\n").ends_with("line 1: \"a b c\" names 3 files; two are wanted, separated by a comma"));
        assert!(said("a,\n").ends_with("line 1: \"a,\" lacks a file name"));
        assert!(said("-,a\n").ends_with("line 1: a list cannot name standard input"));
        let error = said("data/a.csv,one.tsv");
        assert!(error.ends_with("line 1: data/a.csv has 2 columns, one.tsv has 1: both samples must have the same"));
        assert!(said("# nothing\n").contains("names no files"));
        let many: String = (0..20).map(|i| format!("{i}\n")).collect();
        assert!(said(&many).ends_with("lines 2, 3, 4, 5, 6, 7, 8, 9 and 11 others are bad too"), "{}", said(&many));
    }
}
