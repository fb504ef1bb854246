//! Lists of pairs of files.
//!
//! Every line names two files, relative to the list's folder. A comma or a tab separates the names; without either,
//! spaces do. Between commas, names may stand in double quotes. Blank lines, lines that begin with `#` and a first line
//! `p,q` are skipped.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A list of pairs of files.
#[derive(Clone, Debug)]
pub struct FilePairs {
    /// The pairs, in the order of their lines.
    pub pairs: Vec<ListedPair>,
    /// The files, each once.
    pub files: Vec<PathBuf>,
    list: PathBuf,
    /// Lines that name no pair, with the reason.
    bad: Vec<(usize, String)>,
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedPair {
    /// The number of the line, from one.
    pub line: usize,
    /// The two files as the list names them.
    pub names: [String; 2],
    /// Indices of both files in the list.
    pub files: [usize; 2],
}

impl FilePairs {
    /// Reads a list, but not its files. The path `-` is standard input, with names relative to the current folder.
    ///
    /// Bad lines are kept for [`FilePairs::check`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let from_input = path == Path::new("-");
        let list = if from_input { Path::new("standard input") } else { path };
        let text = if from_input { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
        let text = text.map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => bad_list(list, "is not text; a list has two files on every line"),
            _ => Error::io(list)(e),
        })?;
        let folder = if from_input { Path::new("") } else { path.parent().unwrap_or(Path::new("")) };
        let mut indices = HashMap::<PathBuf, usize>::new();
        let mut read = FilePairs { pairs: Vec::new(), files: Vec::new(), list: list.to_owned(), bad: Vec::new() };
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).peekable();
        lines.next_if(|(_, line)| file_names(line).is_ok_and(|[p, q]| is_header(&p, &q)));
        for (line, content) in lines {
            match file_names(content) {
                Ok(names) => {
                    let files = [&names[0], &names[1]].map(|name| {
                        let path = folder.join(name);
                        *indices.entry(path.clone()).or_insert_with(|| {
                            read.files.push(path);
                            read.files.len() - 1
                        })
                    });
                    read.pairs.push(ListedPair { line, names, files });
                }
                Err(reason) => read.bad.push((line, reason)),
            }
        }
        if read.bad.is_empty() && read.pairs.is_empty() {
            return Err(bad_list(list, "names no files; write two files on every line"));
        }
        Ok(read)
    }

    /// Fails if lines are bad, by themselves or for these reasons.
    ///
    /// The error names the first bad line with the reason, and the numbers of the others.
    pub fn check(&self, more: impl IntoIterator<Item = (usize, String)>) -> Result<()> {
        let mut bad = self.bad.clone();
        bad.extend(more);
        bad.sort_by_key(|(line, _)| *line);
        match bad.first() {
            Some((line, reason)) => Err(bad_list(&self.list, format!("line {line}: {reason}{}", others(&bad[1..])))),
            None => Ok(()),
        }
    }
}

fn bad_list(list: &Path, reason: impl Into<String>) -> Error {
    Error::Sample { path: list.to_owned(), reason: reason.into() }
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
