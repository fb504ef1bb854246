//! Zip archives of NPZ files: entries that are stored or deflated.

use std::io::Read;
use std::path::Path;

use flate2::read::DeflateDecoder;

use super::content::{Bytes, bad};
use crate::Result;

/// An entry of the central directory.
struct Entry {
    name: String,
    method: u16,
    crc: u32,
    compressed_size: usize,
    size: usize,
    /// Offset of the local header.
    local: usize,
}

/// Names and contents of all entries, with checksums verified. Memory grows with the decompressed bytes, not with a
/// claimed size.
pub(super) fn unzip(path: &Path, bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
    entries(path, bytes)?.into_iter().map(|e| Ok((e.name.clone(), content(path, bytes, &e)?))).collect()
}

/// The central directory, located by the record at the end of the archive.
fn entries(path: &Path, bytes: &[u8]) -> Result<Vec<Entry>> {
    const END: [u8; 4] = *b"PK\x05\x06";
    // The end record is 22 bytes and a comment of at most 65535.
    let first = bytes.len().saturating_sub(22 + 65535);
    let end = (first..bytes.len().saturating_sub(21)).rev().find(|&i| bytes[i..].starts_with(&END));
    let Some(end) = end else { return Err(bad(path, "is not a complete zip archive: it has no central directory")) };
    let (count, start) = (u16_at(bytes, end + 10), u32_at(bytes, end + 16));
    if start >= end {
        return Err(bad(path, format!("offset {end}: the central directory cannot be at {start}")));
    }
    let mut rest = Bytes::new(path, &bytes[..end]);
    rest.take(start, "the content before the central directory")?;
    let mut entries = Vec::new();
    for i in 0..count {
        let head = rest.take(46, "an entry of the central directory")?;
        if !head.starts_with(b"PK\x01\x02") {
            return Err(rest.bad(format!("entry {i} of the central directory is corrupt")));
        }
        let [name, extra, comment] = [28, 30, 32].map(|at| u16_at(head, at) as usize);
        let name = String::from_utf8_lossy(rest.take(name, "an entry's name")?).into_owned();
        let more = rest.take(extra, "an entry's extra fields")?;
        rest.take(comment, "an entry's comment")?;
        let mut entry = Entry {
            name,
            method: u16_at(head, 10),
            crc: u32_at(head, 16) as u32,
            compressed_size: u32_at(head, 20),
            size: u32_at(head, 24),
            local: u32_at(head, 42),
        };
        zip64_sizes(&mut entry, more);
        entries.push(entry);
    }
    Ok(entries)
}

/// Reads sizes above 32 bits from the Zip64 extra field.
fn zip64_sizes(entry: &mut Entry, mut extra: &[u8]) {
    while extra.len() >= 4 {
        let (id, size) = (u16_at(extra, 0), u16_at(extra, 2) as usize);
        let Some(field) = extra.get(4..4 + size) else { return };
        if id == 1 {
            let mut numbers =
                field.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes")) as usize);
            for size in [&mut entry.size, &mut entry.compressed_size, &mut entry.local] {
                if *size == 0xffff_ffff {
                    *size = numbers.next().unwrap_or(*size);
                }
            }
        }
        extra = &extra[4 + size..];
    }
}

fn content(path: &Path, bytes: &[u8], entry: &Entry) -> Result<Vec<u8>> {
    let mut rest = Bytes::new(path, bytes);
    rest.take(entry.local, "the content before an entry")?;
    let head = rest.take(30, "an entry's header")?;
    if !head.starts_with(b"PK\x03\x04") {
        return Err(rest.bad(format!("the header of {:?} is corrupt", entry.name)));
    }
    rest.take(u16_at(head, 26) as usize + u16_at(head, 28) as usize, "an entry's name")?;
    let compressed = rest.take(entry.compressed_size, &format!("{:?}", entry.name))?;
    let content = match entry.method {
        0 => compressed.to_vec(),
        8 => {
            let mut content = Vec::new();
            // One byte more than claimed detects content that is too long.
            let result = DeflateDecoder::new(compressed).take(entry.size as u64 + 1).read_to_end(&mut content);
            result.map_err(|e| {
                rest.bad(format!("{:?} cannot be decompressed after {} bytes: {e}", entry.name, content.len()))
            })?;
            content
        }
        other => {
            let reason = format!("{:?} uses compression method {other}; stored and deflated are supported", entry.name);
            return Err(rest.bad(reason));
        }
    };
    if content.len() != entry.size || crc32fast::hash(&content) != entry.crc {
        return Err(rest.bad(format!("the content of {:?} does not match its size and checksum", entry.name)));
    }
    Ok(content)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use super::*;

    /// An archive with one deflated entry per name.
    pub(crate) fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let (mut out, mut table) = (Vec::new(), Vec::new());
        for (name, content) in entries {
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(content).unwrap();
            let compressed = encoder.finish().unwrap();
            let mut head = Vec::new();
            head.extend([20u16, 0, 8, 0, 0].iter().flat_map(|x| x.to_le_bytes()));
            let sizes = [crc32fast::hash(content), compressed.len() as u32, content.len() as u32];
            head.extend(sizes.iter().flat_map(|x| x.to_le_bytes()));
            head.extend((name.len() as u16).to_le_bytes());
            head.extend(0u16.to_le_bytes());
            table.extend(b"PK\x01\x02\x14\x00");
            table.extend(&head);
            table.extend([0; 10]);
            table.extend((out.len() as u32).to_le_bytes());
            table.extend(name.as_bytes());
            out.extend(b"PK\x03\x04");
            out.extend(&head);
            out.extend(name.as_bytes());
            out.extend(compressed);
        }
        let start = out.len() as u32;
        out.extend(&table);
        out.extend(b"PK\x05\x06\x00\x00\x00\x00");
        out.extend([entries.len() as u16; 2].iter().flat_map(|x| x.to_le_bytes()));
        out.extend([table.len() as u32, start].iter().flat_map(|x| x.to_le_bytes()));
        out.extend([0, 0]);
        out
    }

    #[test]
    fn written_entries_are_read_back() {
        let big = vec![7u8; 100_000];
        let archive = zip(&[("a.npy", b"hello"), ("b.npy", &big)]);
        let found = unzip(Path::new("x.npz"), &archive).unwrap();
        assert_eq!(found, [("a.npy".to_owned(), b"hello".to_vec()), ("b.npy".to_owned(), big)]);
    }

    #[test]
    fn corrupt_archives_are_errors_and_never_panic() {
        let complete = zip(&[("a.npy", b"some content that is packed"), ("b", &[1, 2, 3])]);
        let good = unzip(Path::new("x.npz"), &complete).unwrap();
        let mut errors = 0;
        for i in 0..complete.len() {
            let mut bytes = complete.clone();
            bytes[i] ^= 0x55;
            // Fields that do not matter, such as dates, may change.
            if let Err(e) = unzip(Path::new("x.npz"), &bytes) {
                assert!(e.to_string().starts_with("x.npz: "), "{e}");
                errors += 1;
            } else {
                let changed = unzip(Path::new("x.npz"), &bytes).unwrap();
                assert!(changed.len() < 2 || changed.iter().zip(&good).all(|(a, b)| a.1 == b.1), "byte {i}");
            }
            assert!(unzip(Path::new("x.npz"), &complete[..i]).is_err(), "cut after {i}");
        }
        assert!(errors > complete.len() / 2);
    }
}
