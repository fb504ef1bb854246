//! Reading of a table: the format of a file is known from its content.

use std::path::{Path, PathBuf};

use crate::error::{Error, Reason, Result};
use crate::source::{STANDARD_INPUT, decoded, decompressed, display_name, read_bytes};
use crate::table::{Column, Table};
use crate::{delimited, json, numpy};

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
    Npy,
    Npz,
    Parquet,
    Arrow,
}

/// Magic bytes and names of formats that are not supported.
const UNSUPPORTED: [(&[u8], &str); 4] = [
    (b"\x89HDF", "an HDF5 file"),
    (b"\xd0\xcf\x11\xe0", "an Excel file"),
    (b"SQLite format 3", "an SQLite database"),
    (b"%PDF", "a PDF file"),
];

impl Format {
    /// The format of a file from its first bytes.
    fn of(bytes: &[u8]) -> Reason<Self> {
        if let Some((_, kind)) = UNSUPPORTED.iter().find(|(magic, _)| bytes.starts_with(magic)) {
            return Err(format!("is {kind}, which is not read; save the table as CSV or Parquet"));
        }
        let begins =
            |word: &[u8]| bytes.trim_ascii_start().get(..word.len()).is_some_and(|b| b.eq_ignore_ascii_case(word));
        if begins(b"<!doctype") || begins(b"<html") || begins(b"<?xml") {
            return Err("is a page of HTML or XML, not a table; save the table itself as CSV".to_owned());
        }
        Ok(match bytes {
            _ if bytes.starts_with(numpy::MAGIC) => Format::Npy,
            _ if bytes.starts_with(b"PK\x03\x04") => Format::Npz,
            _ if bytes.starts_with(b"PAR1") => Format::Parquet,
            // A file, or a stream that begins with the length of its schema.
            _ if bytes.starts_with(b"ARROW1") || bytes.starts_with(b"\xff\xff\xff\xff") => Format::Arrow,
            _ if json::is_json(bytes) => Format::Json,
            _ => Format::Text,
        })
    }
}

impl Table {
    /// Reads a file, or standard input where the path is `-`. The content determines the format, not the name.
    ///
    /// Formats are CSV, TSV, JSON lines, NPY, NPZ, and with the feature `arrow` Parquet and Arrow IPC. Text may be
    /// UTF-8 or UTF-16, and compressed with gzip or zstd.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        unless_ragged(Self::read_until_ragged(path)?)
    }

    /// Reads a file up to a row with another number of columns. What is wrong with this row comes beside the table, so
    /// that a caller can report it with other problems.
    pub fn read_until_ragged(path: impl AsRef<Path>) -> Result<(Self, Option<String>)> {
        let path = path.as_ref();
        #[cfg(feature = "arrow")]
        if path != Path::new(STANDARD_INPUT) && starts_as_parquet(path) {
            return Ok((crate::arrow::read_parquet_file(path)?, None));
        }
        let _ = STANDARD_INPUT;
        Self::parse_until_ragged(display_name(path), read_bytes(path)?)
    }

    /// Reads a file's content. Errors name `path`.
    pub fn parse(path: impl AsRef<Path>, bytes: &[u8]) -> Result<Self> {
        unless_ragged(Self::parse_until_ragged(path.as_ref(), bytes.to_vec())?)
    }

    /// Parses a file's content as [`Table::read_until_ragged`] does.
    pub fn parse_until_ragged(path: &Path, bytes: Vec<u8>) -> Result<(Self, Option<String>)> {
        let parsed = decompressed(bytes).and_then(|bytes| parse(path.to_owned(), bytes));
        parsed.map_err(|reason| Error::file(path, reason))
    }
}

/// The table, unless it ends with a ragged row.
fn unless_ragged((table, ragged): (Table, Option<String>)) -> Result<Table> {
    match ragged {
        None => Ok(table),
        Some(ragged) => Err(Error::file(&table.path, ragged)),
    }
}

fn parse(path: PathBuf, bytes: Vec<u8>) -> Reason<(Table, Option<String>)> {
    let format = Format::of(&bytes)?;
    let bytes = if matches!(format, Format::Text | Format::Json) { decoded(bytes)? } else { bytes };
    // UTF-16 hides the first characters of JSON.
    let format = if format == Format::Text { Format::of(&bytes)? } else { format };
    let (columns, named) = match format {
        Format::Text => {
            let read = delimited::read_text(&bytes)?;
            // Columns end in the same row.
            if let (Some(ragged), 0) = (&read.ragged, read.columns.first().map_or(0, Column::len)) {
                return Err(ragged.clone());
            }
            let table = Table::of_columns(path, read.columns, read.named)?;
            return Ok((Table { first_line: Some(read.first_line), ..table }, read.ragged));
        }
        Format::Json => (json::read_json_columns(&bytes)?, true),
        Format::Npy => (numpy::read_npy_columns(&bytes)?, false),
        Format::Npz => (numpy::read_npz_columns(&bytes)?, true),
        #[cfg(feature = "arrow")]
        Format::Parquet => return Ok((crate::arrow::read_parquet(path, bytes)?, None)),
        #[cfg(feature = "arrow")]
        Format::Arrow => return Ok((crate::arrow::read_ipc(path, bytes)?, None)),
        #[cfg(not(feature = "arrow"))]
        Format::Parquet => return Err(needs_arrow("a Parquet file")),
        #[cfg(not(feature = "arrow"))]
        Format::Arrow => return Err(needs_arrow("an Arrow file")),
    };
    Ok((Table::of_columns(path, columns, named)?, None))
}

#[cfg(not(feature = "arrow"))]
fn needs_arrow(kind: &str) -> String {
    format!("is {kind}, which this build does not read; build with --features arrow, or save it as CSV")
}

#[cfg(feature = "arrow")]
fn starts_as_parquet(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; 4];
    std::fs::File::open(path).and_then(|mut f| f.read_exact(&mut magic)).is_ok() && &magic == b"PAR1"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(bytes: &[u8]) -> String {
        Table::parse("t", bytes).unwrap_err().to_string()
    }

    #[test]
    fn formats_are_known_by_their_content() {
        for (bytes, expected) in [
            (b"PAR1....".as_slice(), Format::Parquet),
            (b"ARROW1\0\0", Format::Arrow),
            (b"{\"x\": 1}\n", Format::Json),
            (b"[{\"x\": 1}]", Format::Json),
            (b"{x},y\n1,2\n", Format::Text),
            (b"[a],b\n1,2\n", Format::Text),
        ] {
            assert_eq!(Format::of(bytes).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_no_table_is_an_error_that_says_so() {
        assert!(error(b"").contains("is empty"));
        assert!(error(b"x\n").contains("is empty"), "{}", error(b"x\n"));
        assert!(error(b"\x89HDF\r\n").contains("is an HDF5 file, which is not read"));
        assert!(error(b"[]").contains("no columns"));
        assert!(error(b" <!DOCTYPE html><table>").contains("is a page of HTML"));
        assert!(error(b"PK\x03\x04....").contains("is not a complete zip archive"));
        assert!(error(b"\x1f\x8b\x08").contains("is it truncated?"));
        assert!(Table::read("missing.csv").unwrap_err().to_string().starts_with("missing.csv: "));
        let folder = tempfile::tempdir().unwrap();
        assert!(Table::read(folder.path()).unwrap_err().to_string().ends_with("is a folder; give one of its files"));
    }

    #[cfg(unix)]
    #[test]
    fn a_sparse_file_of_ten_gigabytes_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("huge.csv");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(10 << 30).unwrap();
        let error = Table::read(&path).unwrap_err().to_string();
        assert!(
            error.ends_with(
                "is not a table: byte 1 is zero, and it is no CSV, TSV, JSON, NPY, NPZ, Parquet or Arrow file"
            ),
            "{error}"
        );
    }

    #[test]
    fn compressed_and_utf16_tables_are_read() {
        let text = "x,town\n1,Århus\n2,Oslo\n";
        let utf16: Vec<u8> = std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, &utf16).unwrap();
        for bytes in [utf16.clone(), encoder.finish().unwrap()] {
            let table = Table::parse("t", &bytes).unwrap();
            assert_eq!((table.rows, table.columns[1].name.as_str()), (2, "town"));
        }
    }
}
