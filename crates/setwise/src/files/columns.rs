//! Columns of several files, matched by name.

use std::path::Path;

use setwise_table::ColumnChoice;
use setwise_table::wording::listed;

use super::Sample;
use crate::{Error, Result};

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
                .map(|(which, names)| format!("only the {which} has {}", listed(names)))
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
