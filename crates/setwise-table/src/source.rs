//! The bytes of a file: standard input, compression, encoding.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Reason, Result};

/// The path that is standard input.
pub const STANDARD_INPUT: &str = "-";

/// The name of a path in messages.
pub fn display_name(path: &Path) -> &Path {
    if path == Path::new(STANDARD_INPUT) { Path::new("standard input") } else { path }
}

/// Reads a file, or standard input, whole. A file that cannot be a table ends the reading early.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let name = display_name(path);
    if path == Path::new(STANDARD_INPUT) {
        return read_checked(std::io::stdin().lock(), u64::MAX).map_err(|e| e.at(name));
    }
    if path.is_dir() {
        return Err(Error::file(path, "is a folder; give one of its files"));
    }
    read_checked(File::open(path).map_err(Error::io(path))?, u64::MAX).map_err(|e| e.at(name))
}

/// Magic bytes of binary formats, whose zeros are no sign of damage.
const BINARY: [&[u8]; 8] = [
    b"\x93NUMPY",
    b"PK\x03\x04",
    b"PAR1",
    b"ARROW1",
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"\xff\xff\xff\xff",
    b"\x89HDF",
];

/// A failed read.
enum Failed {
    Io(std::io::Error),
    Reason(String),
}

impl Failed {
    fn at(self, path: &Path) -> Error {
        match self {
            Failed::Io(source) => Error::Io { path: path.to_owned(), source },
            Failed::Reason(reason) => Error::file(path, reason),
        }
    }
}

/// Reads to the end, but not beyond a zero byte in text or beyond `limit` bytes.
fn read_checked(mut source: impl Read, limit: u64) -> std::result::Result<Vec<u8>, Failed> {
    const CHUNK: usize = 1 << 20;
    let mut bytes = Vec::new();
    loop {
        let start = bytes.len();
        let read = (&mut source).take(CHUNK as u64).read_to_end(&mut bytes).map_err(Failed::Io)?;
        if read == 0 {
            return Ok(bytes);
        }
        let is_text = !BINARY.iter().any(|magic| bytes.starts_with(magic)) && utf16(&bytes).is_none();
        if is_text && let Some(i) = memchr::memchr(0, &bytes[start..]) {
            let at = start + i;
            let known = "it is no CSV, TSV, JSON, NPY, NPZ, Parquet or Arrow file";
            return Err(Failed::Reason(format!("is not a table: byte {} is zero, and {known}", at + 1)));
        }
        if bytes.len() as u64 > limit {
            return Err(Failed::Reason(format!(
                "decompresses to more than {} MiB, far more than its size justifies; decompress it yourself",
                limit >> 20
            )));
        }
    }
}

/// Decompresses gzip and zstd; other content stays as it is.
pub(crate) fn decompressed(bytes: Vec<u8>) -> Reason<Vec<u8>> {
    const BASE: u64 = 64 << 20;
    const RATIO: u64 = 250;
    let limit = BASE + RATIO * bytes.len() as u64;
    let (method, read) = if bytes.starts_with(b"\x1f\x8b") {
        ("gzip", read_checked(flate2::read::MultiGzDecoder::new(bytes.as_slice()), limit))
    } else if bytes.starts_with(b"\x28\xb5\x2f\xfd") {
        ("zstd", read_zstd(&bytes, limit))
    } else {
        return Ok(bytes);
    };
    read.map_err(|failed| match failed {
        Failed::Io(e) => format!("is compressed with {method} and cannot be decompressed: {e}; is it truncated?"),
        Failed::Reason(reason) => reason,
    })
}

/// Decompresses all frames.
fn read_zstd(bytes: &[u8], limit: u64) -> std::result::Result<Vec<u8>, Failed> {
    let damaged = |e: &dyn std::fmt::Display| Failed::Io(std::io::Error::other(e.to_string()));
    let (mut rest, mut all) = (bytes, Vec::new());
    while !rest.is_empty() {
        let decoder = ruzstd::decoding::StreamingDecoder::new(&mut rest).map_err(|e| damaged(&e))?;
        all.extend(read_checked(decoder, limit.saturating_sub(all.len() as u64))?);
    }
    Ok(all)
}

/// The byte order of UTF-16: of its byte order mark, or of ASCII characters at the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Little,
    Big,
}

fn utf16(bytes: &[u8]) -> Option<Order> {
    match *bytes {
        [0xff, 0xfe, ..] => Some(Order::Little),
        [0xfe, 0xff, ..] => Some(Order::Big),
        [a, 0, b, 0, ..] if a != 0 && b != 0 => Some(Order::Little),
        [0, a, 0, b, ..] if a != 0 && b != 0 => Some(Order::Big),
        _ => None,
    }
}

/// Text as UTF-8 without a byte order mark. Bytes that are no UTF-8 stay, for their column to report.
pub(crate) fn decoded(bytes: Vec<u8>) -> Reason<Vec<u8>> {
    let Some(order) = utf16(&bytes) else {
        return Ok(match bytes.strip_prefix(b"\xef\xbb\xbf") {
            Some(rest) => rest.to_vec(),
            None => bytes,
        });
    };
    if bytes.len() % 2 == 1 {
        return Err("is UTF-16 with half a character at its end; is it truncated?".to_owned());
    }
    let units = bytes.chunks_exact(2).map(|c| match order {
        Order::Little => u16::from_le_bytes([c[0], c[1]]),
        Order::Big => u16::from_be_bytes([c[0], c[1]]),
    });
    let mut text = String::with_capacity(bytes.len() / 2);
    for (i, c) in char::decode_utf16(units).enumerate() {
        match c {
            Ok('\u{feff}') if i == 0 => {}
            Ok(c) => text.push(c),
            Err(_) => {
                let line = text.matches('\n').count() + 1;
                return Err(format!("line {line} is not valid UTF-16; save the file as UTF-8"));
            }
        }
    }
    Ok(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf16_and_byte_order_marks_become_plain_utf8() {
        let expected = "x,é\n1,2\n".as_bytes();
        let units = |mark: &[u16], big: bool| -> Vec<u8> {
            let text = mark.iter().copied().chain("x,é\n1,2\n".encode_utf16());
            text.flat_map(|u| if big { u.to_be_bytes() } else { u.to_le_bytes() }).collect()
        };
        for bytes in [
            expected.to_vec(),
            [b"\xef\xbb\xbf", expected].concat(),
            units(&[0xfeff], false),
            units(&[0xfeff], true),
            units(&[], false),
            units(&[], true),
        ] {
            assert_eq!(decoded(bytes).unwrap(), expected);
        }
        let error = decoded([units(&[0xfeff], false), vec![0x00, 0xd8]].concat()).unwrap_err();
        assert_eq!(error, "line 3 is not valid UTF-16; save the file as UTF-8");
    }

    #[test]
    fn a_zero_byte_ends_the_reading_of_text() {
        let zeros = std::io::repeat(0);
        let Err(Failed::Reason(reason)) = read_checked(b"x,y\n".as_slice().chain(zeros), u64::MAX) else { panic!() };
        assert_eq!(
            reason,
            "is not a table: byte 5 is zero, and it is no CSV, TSV, JSON, NPY, NPZ, Parquet or Arrow file"
        );
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gzip_is_decompressed_truncated_gzip_and_bombs_are_errors() {
        let content = b"x\n1\n2\n".repeat(100);
        let compressed = gzip(&content);
        assert_eq!(decompressed(compressed.clone()).unwrap(), content);
        // Two members, as `cat a.gz b.gz` makes them.
        assert_eq!(decompressed([compressed.clone(), compressed.clone()].concat()).unwrap().len(), 2 * content.len());
        let error = decompressed(compressed[..compressed.len() - 9].to_vec()).unwrap_err();
        assert!(error.starts_with("is compressed with gzip and cannot be decompressed: "), "{error}");
        let error = decompressed(gzip(&vec![b'1'; 200 << 20])).unwrap_err();
        assert!(error.contains("far more than its size justifies"), "{error}");
    }

    #[test]
    fn zstd_is_decompressed() {
        let content = b"x\n1\n2\n".repeat(100);
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let frame = ruzstd::encoding::compress_to_vec(content.as_slice(), level);
        assert_eq!(decompressed(frame.clone()).unwrap(), content);
        assert_eq!(decompressed([frame.clone(), frame.clone()].concat()).unwrap().len(), 2 * content.len());
        let error = decompressed(frame[..frame.len() - 5].to_vec()).unwrap_err();
        assert!(error.starts_with("is compressed with zstd and cannot be decompressed: "), "{error}");
    }
}
