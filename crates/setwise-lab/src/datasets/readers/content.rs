//! What a file holds, unpacked where it is packed with gzip.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::{Error, Result};

/// More than this is not taken into memory at once.
const MOST: u64 = 4 << 30;

/// An error about a file of data.
pub(crate) fn bad(path: &Path, reason: impl Into<String>) -> Error {
    Error::Dataset { path: path.to_owned(), reason: reason.into() }
}

/// A file's content. Memory grows with what really comes out of it.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = read_start(path, MOST + 1)?;
    if bytes.len() as u64 > MOST {
        return Err(bad(path, format!("holds more than {MOST} bytes")));
    }
    Ok(bytes)
}

/// The first bytes of a file, at most as many as wanted.
pub(super) fn read_start(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most).read_to_end(&mut bytes).map_err(|e| damaged(path, &e, bytes.len()))?;
    Ok(bytes)
}

/// The lines of a text, handed out one after another with their number from one; the text as a whole is never in memory.
pub(crate) fn lines(path: &Path, mut line: impl FnMut(usize, &str) -> Result<()>) -> Result<()> {
    let mut reader = open(path)?;
    let (mut bytes, mut number, mut offset) = (Vec::new(), 0, 0);
    loop {
        bytes.clear();
        let limit = LONGEST_LINE + 1;
        let n = (&mut reader).take(limit).read_until(b'\n', &mut bytes).map_err(|e| damaged(path, &e, offset))?;
        if n == 0 {
            return Ok(());
        }
        (number, offset) = (number + 1, offset + n);
        if n as u64 == limit {
            return Err(bad(path, format!("line {number} is longer than {LONGEST_LINE} bytes")));
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| bad(path, format!("line {number} is not UTF-8 text")))?;
        line(number, text.strip_prefix('\u{feff}').unwrap_or(text).trim_end_matches(['\n', '\r']))?;
    }
}

/// Enough for a vector of ten thousand numbers.
const LONGEST_LINE: u64 = 1 << 18;

/// The file as it is, or unpacked if it begins as gzip does.
fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    let file = File::open(path).map_err(Error::io(path))?;
    let mut plain = BufReader::with_capacity(1 << 16, file);
    let packed = plain.fill_buf().map_err(Error::io(path))?.starts_with(&[0x1f, 0x8b]);
    Ok(match packed {
        true => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(plain))),
        false => Box::new(plain),
    })
}

fn damaged(path: &Path, error: &std::io::Error, offset: usize) -> Error {
    bad(path, format!("cannot be read on after {offset} bytes (as unpacked): {error}"))
}

/// Bytes that are taken off from the front, with the place they came from.
pub(crate) struct Bytes<'a> {
    path: &'a Path,
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Bytes<'a> {
    /// All of a file.
    pub fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Bytes { path, rest: bytes, offset: 0 }
    }

    /// The next `n` bytes, which are `what`.
    pub fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        let Some((part, rest)) = self.rest.split_at_checked(n) else {
            let there = self.rest.len();
            return Err(self.bad(format!("{what} would take {n} bytes, {there} are left")));
        };
        self.rest = rest;
        self.offset += n;
        Ok(part)
    }

    /// The next bytes as a fixed array.
    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        Ok(self.take(N, what)?.try_into().expect("as many as were asked for"))
    }

    /// What is left.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// An error at this place.
    pub fn bad(&self, reason: impl std::fmt::Display) -> Error {
        bad(self.path, format!("offset {}: {reason}", self.offset))
    }
}
