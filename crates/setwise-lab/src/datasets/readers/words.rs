//! Word vectors, and pairs of words that translate each other.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::content::{bad, lines};
use super::{Array, read_arrays};
use crate::Result;
use crate::samplers::Split;

/// Words and their vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct WordVectors {
    /// Width of a vector.
    pub width: usize,
    /// The words, in the order of their vectors.
    pub words: Vec<String>,
    /// The vectors, one after another.
    pub rows: Vec<f32>,
}

impl WordVectors {
    /// Reads the text format of fastText and word2vec (`.vec`, also compressed with gzip).
    ///
    /// An optional first line has two counts. Every other line has a word and its numbers. Only words in `vocabulary`
    /// are kept.
    pub fn read_text(path: &Path, vocabulary: &HashSet<String>) -> Result<Self> {
        let mut found = WordVectors { width: 0, words: Vec::new(), rows: Vec::new() };
        let mut seen = HashSet::new();
        lines(path, |number, line| {
            let parts: Vec<&str> = line.trim_end().split(' ').collect();
            if number == 1 && parts.len() == 2 && parts.iter().all(|p| p.parse::<u64>().is_ok()) {
                return Ok(());
            }
            if found.width == 0 {
                found.width = parts.len().saturating_sub(1);
            }
            let width = found.width;
            // A word may contain spaces, so numbers are counted from the end.
            if width == 0 || parts.len() <= width {
                let reason =
                    format!("line {number}: {} parts, a word and {} numbers are expected", parts.len(), width.max(1));
                return Err(bad(path, reason));
            }
            let (word, numbers) = parts.split_at(parts.len() - width);
            let word = word.join(" ");
            if !vocabulary.contains(&word) || !seen.insert(word.clone()) {
                return Ok(());
            }
            for (i, number_text) in numbers.iter().enumerate() {
                let value = number_text.parse::<f32>().ok().filter(|x| x.is_finite());
                let reason = || format!("line {number}, number {}: {number_text:?} is no finite number", i + 1);
                found.rows.push(value.ok_or_else(|| bad(path, reason()))?);
            }
            found.words.push(word);
            Ok(())
        })?;
        if found.words.is_empty() {
            return Err(bad(path, "contains none of the words of the dictionary"));
        }
        Ok(found)
    }

    /// Reads vectors from an array of a file, and their words from a text, one per line.
    pub fn read_packed(vectors: &Path, tensor: &str, words: &Path) -> Result<Self> {
        let arrays = read_arrays(vectors)?;
        let Some(array) = arrays.get(tensor) else {
            let names: Vec<&String> = arrays.keys().collect();
            return Err(bad(vectors, format!("has no array {tensor:?}; it has {names:?}")));
        };
        let mut list = Vec::new();
        lines(words, |_, line| {
            list.push(line.to_owned());
            Ok(())
        })?;
        match array.shape[..] {
            [n, width] if n == list.len() && width > 0 => {
                Ok(WordVectors { width, words: list, rows: finite(vectors, tensor, array)? })
            }
            _ => {
                let reason = format!("has shape {:?}, {} has {} words", array.shape, words.display(), list.len());
                Err(bad(vectors, format!("array {tensor:?} {reason}")))
            }
        }
    }
}

/// The numbers of an array, or an error where one is not finite.
pub(crate) fn finite(path: &Path, name: &str, array: &Array) -> Result<Vec<f32>> {
    let numbers = array.floats();
    match numbers.iter().position(|x| !x.is_finite()) {
        None => Ok(numbers),
        Some(i) => {
            let width = array.shape.last().copied().unwrap_or(1).max(1);
            let position = format!("row {}, column {}", i / width + 1, i % width + 1);
            Err(bad(path, format!("array {name:?}, {position} is {}; every value must be finite", numbers[i])))
        }
    }
}

/// Two words that translate each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Row of the word in the first language.
    pub left: u32,
    /// Row of the word in the second language.
    pub right: u32,
    /// Split of the word in the first language. Words of the second language may be in several splits.
    pub split: Split,
}

/// Reads a dictionary of MUSE: two words per line, separated by a space or tab.
pub fn read_dictionary(path: &Path) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    lines(path, |number, line| {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some(a), Some(b), None) => pairs.push((a.to_owned(), b.to_owned())),
            (None, ..) => {}
            _ => return Err(bad(path, format!("line {number}: {line:?} is not a pair of words"))),
        }
        Ok(())
    })?;
    Ok(pairs)
}

/// Pairs of a dictionary as rows of two lists of vectors. Pairs of words without vectors are dropped.
///
/// Words of the first language in `test` are in the test split. A hash assigns a tenth of the others to validation.
pub(crate) fn pairs_of(
    dictionary: &[(String, String)],
    test: &[(String, String)],
    left: &WordVectors,
    right: &WordVectors,
) -> Vec<Pair> {
    let rows = |v: &WordVectors| -> HashMap<String, u32> {
        v.words.iter().enumerate().map(|(i, w)| (w.clone(), i as u32)).collect()
    };
    let (left, right) = (rows(left), rows(right));
    let test_words: HashSet<&str> = test.iter().map(|p| p.0.as_str()).collect();
    let known = dictionary.iter().chain(test).filter_map(|(a, b)| {
        Some(Pair {
            left: *left.get(a)?,
            right: *right.get(b)?,
            split: split_of_word(a, test_words.contains(a.as_str())),
        })
    });
    let mut pairs: Vec<Pair> = known.collect();
    pairs.sort_by_key(|p| (p.left, p.right));
    pairs.dedup_by_key(|p| (p.left, p.right));
    pairs
}

fn split_of_word(word: &str, test: bool) -> Split {
    match crc32fast::hash(word.as_bytes()) % 10 {
        _ if test => Split::Test,
        0 => Split::Validation,
        _ => Split::Training,
    }
}

/// Reads a tab-separated table of pairs with a header.
///
/// Columns `en_row` and `fr_row` (or `left_row` and `right_row`) are rows of the vectors. Column `en` (or `left`) is
/// the word of the first language. Column `split` is `test` for pairs of the test split.
pub fn read_pairs(path: &Path, rows: [usize; 2]) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    let mut columns: Option<[usize; 4]> = None;
    lines(path, |number, line| {
        let cells: Vec<&str> = line.split('\t').collect();
        let Some([word, left, right, split]) = columns else {
            let column = |names: [&str; 2]| {
                let found = cells.iter().position(|c| names.contains(c));
                found.ok_or_else(|| bad(path, format!("line {number}: there is no column {:?}", names[0])))
            };
            let word = column(["en", "left"])?;
            let rows = [column(["en_row", "left_row"])?, column(["fr_row", "right_row"])?];
            columns = Some([word, rows[0], rows[1], column(["split", "part"])?]);
            return Ok(());
        };
        let row = |column: usize, rows: usize| {
            let text = cells.get(column).copied().unwrap_or("");
            let row = text.parse::<u32>().ok().filter(|&r| (r as usize) < rows);
            row.ok_or_else(|| bad(path, format!("line {number}: {text:?} is not a row of {rows} vectors")))
        };
        let (word, split_name) = (cells.get(word).copied().unwrap_or(""), cells.get(split).copied().unwrap_or(""));
        pairs.push(Pair {
            left: row(left, rows[0])?,
            right: row(right, rows[1])?,
            split: split_of_word(word, split_name == "test"),
        });
        Ok(())
    })?;
    if pairs.is_empty() {
        return Err(bad(path, "has no pairs"));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words.txt");
        std::fs::write(&path, content).unwrap();
        (dir, path)
    }

    fn vocabulary(words: &[&str]) -> HashSet<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn vectors_of_the_vocabulary_are_read_with_and_without_counts() {
        for head in ["", "3 2\n"] {
            let (_dir, path) = file(&format!("{head}cat 1 2\nnew york 3 4\ndog 5 -6e-1\n"));
            let found = WordVectors::read_text(&path, &vocabulary(&["dog", "new york"])).unwrap();
            assert_eq!((found.width, found.words), (2, vec!["new york".to_owned(), "dog".to_owned()]));
            assert_eq!(found.rows, [3.0, 4.0, 5.0, -0.6]);
        }
    }

    #[test]
    fn errors_in_a_text_name_the_line() {
        for (content, expected) in [
            ("2 2\ncat 1 2\ndog 3 x\n", "line 3, number 2: \"x\" is no finite number"),
            ("cat 1 2\ndog 3\n", "line 2: 2 parts, a word and 2 numbers are expected"),
            ("bird 1 2\n", "contains none of the words"),
        ] {
            let (_dir, path) = file(content);
            let error = WordVectors::read_text(&path, &vocabulary(&["cat", "dog"])).unwrap_err().to_string();
            assert!(error.contains("words.txt") && error.contains(expected), "{error}");
        }
        let (_dir, path) = file("cat chat\ndog\n");
        assert!(read_dictionary(&path).unwrap_err().to_string().contains("line 2"));
        let (_dir, path) = file("en\tfr\ten_row\tfr_row\tsplit\nthe\tle\t0\t9\ttrain\n");
        assert!(read_pairs(&path, [3, 3]).unwrap_err().to_string().contains("line 2: \"9\" is not a row of 3 vectors"));
    }

    #[test]
    fn pairs_are_rows_and_words_without_vectors_are_dropped() {
        let vectors = |words: &[&str]| WordVectors {
            width: 1,
            words: words.iter().map(|w| (*w).to_owned()).collect(),
            rows: vec![0.0; words.len()],
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let all = [pair("cat", "chat"), pair("dog", "chien"), pair("dog", "toutou"), pair("dog", "chien")];
        let pairs = pairs_of(&all, &[pair("dog", "chien")], &vectors(&["dog", "cat"]), &vectors(&["chien", "chat"]));
        assert_eq!(pairs.iter().map(|p| (p.left, p.right)).collect::<Vec<_>>(), [(0, 0), (1, 1)]);
        assert_eq!(pairs[0].split, Split::Test);
        assert_ne!(pairs[1].split, Split::Test);
    }
}
