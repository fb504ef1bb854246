//! The content of a file, decompressed where it is gzip.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::{Error, Result};

/// Largest content that is read into memory.
const MAX_BYTES: u64 = 4 << 30;

/// An error about a file of a data set.
pub(crate) fn bad(path: &Path, reason: impl Into<String>) -> Error {
    Error::Dataset { path: path.to_owned(), reason: reason.into() }
}

/// Reads the content of a file. Memory grows with the bytes that are read, not with a claimed size.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = read_start(path, MAX_BYTES + 1)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(bad(path, format!("has more than {MAX_BYTES} bytes")));
    }
    Ok(bytes)
}

/// Reads at most `max_bytes` bytes from the start of a file.
pub(super) fn read_start(path: &Path, max_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(max_bytes).read_to_end(&mut bytes).map_err(|e| read_error(path, &e, bytes.len()))?;
    Ok(bytes)
}

/// Calls `line` with each line of a text and its number from one. One line is in memory at a time.
pub(crate) fn lines(path: &Path, mut line: impl FnMut(usize, &str) -> Result<()>) -> Result<()> {
    let mut reader = open(path)?;
    let (mut bytes, mut number, mut offset) = (Vec::new(), 0, 0);
    loop {
        bytes.clear();
        let limit = MAX_LINE_BYTES + 1;
        let n = (&mut reader).take(limit).read_until(b'\n', &mut bytes).map_err(|e| read_error(path, &e, offset))?;
        if n == 0 {
            return Ok(());
        }
        (number, offset) = (number + 1, offset + n);
        if n as u64 == limit {
            return Err(bad(path, format!("line {number} is longer than {MAX_LINE_BYTES} bytes")));
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| bad(path, format!("line {number} is not UTF-8 text")))?;
        line(number, text.strip_prefix('\u{feff}').unwrap_or(text).trim_end_matches(['\n', '\r']))?;
    }
}

/// Longest line of a text: enough for a vector of ten thousand numbers.
const MAX_LINE_BYTES: u64 = 1 << 18;

/// Opens a file, and decompresses it if it starts with the magic number of gzip.
fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    let file = File::open(path).map_err(Error::io(path))?;
    let mut uncompressed = BufReader::with_capacity(1 << 16, file);
    let compressed = uncompressed.fill_buf().map_err(Error::io(path))?.starts_with(&[0x1f, 0x8b]);
    Ok(match compressed {
        true => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(uncompressed))),
        false => Box::new(uncompressed),
    })
}

fn read_error(path: &Path, error: &std::io::Error, offset: usize) -> Error {
    bad(path, format!("cannot be read after byte {offset} (decompressed): {error}"))
}

/// A reader of bytes that knows its offset in the file.
pub(crate) struct Bytes<'a> {
    path: &'a Path,
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Bytes<'a> {
    /// A reader at the start of a file's content.
    pub fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Bytes { path, rest: bytes, offset: 0 }
    }

    /// Takes the next `n` bytes. Errors call them `what`.
    pub fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        let Some((part, rest)) = self.rest.split_at_checked(n) else {
            let left = self.rest.len();
            return Err(self.bad(format!("{what} needs {n} bytes, {left} are left")));
        };
        self.rest = rest;
        self.offset += n;
        Ok(part)
    }

    /// Takes the next N bytes.
    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        Ok(self.take(N, what)?.try_into().expect("N bytes"))
    }

    /// Number of bytes left.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// An error at the current offset.
    pub fn bad(&self, reason: impl std::fmt::Display) -> Error {
        bad(self.path, format!("offset {}: {reason}", self.offset))
    }
}
