//! Lists of pairs of sample files.
//!
//! Every line names two files, relative to the list's folder. A comma or a tab separates the names; without either,
//! spaces do. Between commas, names may stand in double quotes. Blank lines, lines that begin with `#` and a first line
//! `p,q` are skipped.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::{Pair, Points};
use crate::files::{ColumnChoice, Sample};
use crate::{Error, Result};

/// A list with its samples. Every file is read once.
#[derive(Debug)]
pub struct PairList {
    samples: Vec<Sample>,
    pairs: Vec<ListedPair>,
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedPair {
    /// The number of the line, from one.
    pub line: usize,
    /// The two files as the list names them.
    pub names: [String; 2],
    /// Indices of both samples in the list.
    samples: [usize; 2],
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
        let path = path.as_ref();
        let from_input = path == Path::new("-");
        let name = if from_input { Path::new("standard input") } else { path };
        let text = if from_input { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
        let text = text.map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => bad_list(name, "is not text; a list has two sample files on every line"),
            _ => Error::io(name)(e),
        })?;
        let folder = if from_input { Path::new("") } else { path.parent().unwrap_or(Path::new("")) };
        Self::parse(name, folder, &text, choice)
    }

    fn parse(list: &Path, folder: &Path, text: &str, choice: &ColumnChoice) -> Result<Self> {
        let mut bad: Vec<(usize, String)> = Vec::new();
        let (mut paths, mut indices) = (Vec::new(), HashMap::<PathBuf, usize>::new());
        let mut pairs: Vec<ListedPair> = Vec::new();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).peekable();
        lines.next_if(|(_, line)| file_names(line).is_ok_and(|[p, q]| is_header(&p, &q)));
        for (line, content) in lines {
            match file_names(content) {
                Ok(names) => {
                    let samples = [&names[0], &names[1]].map(|name| {
                        let path = folder.join(name);
                        *indices.entry(path.clone()).or_insert_with(|| {
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
            return Err(bad_list(list, "names no files; write two sample files on every line"));
        }
        let read: Vec<Result<Sample>> = paths.par_iter().map(|path| one_sample(path, choice)).collect();
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

    /// Number of files.
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

/// Reads a file that holds one sample.
fn one_sample(path: &Path, choice: &ColumnChoice) -> Result<Sample> {
    let sample = Sample::read_columns(path, choice)?;
    Points::of(&sample)?;
    Ok(sample)
}

/// The numbers of other bad lines.
fn others(bad: &[(usize, String)]) -> String {
    const MAX_LISTED: usize = 8;
    let lines: Vec<String> = bad.iter().take(MAX_LISTED).map(|(line, _)| line.to_string()).collect();
    match bad.len() {
        0 => String::new(),
        1 => format!("; line {} is bad too", lines[0]),
        n if n <= MAX_LISTED => format!("; lines {} are bad too", lines.join(", ")),
        n => format!("; lines {} and {} others are bad too", lines.join(", "), n - MAX_LISTED),
    }
}

/// The two file names of a line.
fn file_names(line: &str) -> std::result::Result<[String; 2], String> {
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
        names.try_into().map_err(|_| format!("{line:?} names {count} files; write two, separated by a comma"))?;
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
