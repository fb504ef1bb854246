//! Zip archives of NPZ files: entries that are stored or deflated.

use std::io::Read;

use flate2::read::DeflateDecoder;

use crate::error::Reason;

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
pub fn unzip(bytes: &[u8]) -> Reason<Vec<(String, Vec<u8>)>> {
    entries(bytes)?.into_iter().map(|entry| Ok((entry.name.clone(), content(bytes, &entry)?))).collect()
}

/// Bytes that are read from the front.
struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize, what: &str) -> Reason<&'a [u8]> {
        let end = self.offset.checked_add(n).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| format!("offset {}: {what} is cut off", self.offset))?;
        let taken = &self.bytes[self.offset..end];
        self.offset = end;
        Ok(taken)
    }
}

/// The central directory, located by the record at the end of the archive.
fn entries(bytes: &[u8]) -> Reason<Vec<Entry>> {
    const END: [u8; 4] = *b"PK\x05\x06";
    // The end record is 22 bytes and a comment of at most 65535.
    let first = bytes.len().saturating_sub(22 + 65535);
    let end = (first..bytes.len().saturating_sub(21)).rev().find(|&i| bytes[i..].starts_with(&END));
    let end = end.ok_or("is not a complete zip archive: it has no central directory; is it truncated?")?;
    let (count, start) = (u16_at(bytes, end + 10), u32_at(bytes, end + 16));
    if start >= end {
        return Err(format!("offset {end}: the central directory cannot be at {start}"));
    }
    let mut rest = Cursor { bytes: &bytes[..end], offset: start };
    let mut entries = Vec::new();
    for i in 0..count {
        let head = rest.take(46, "an entry of the central directory")?;
        if !head.starts_with(b"PK\x01\x02") {
            return Err(format!("offset {}: entry {i} of the central directory is corrupt", rest.offset));
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

fn content(bytes: &[u8], entry: &Entry) -> Reason<Vec<u8>> {
    let mut rest = Cursor { bytes, offset: 0 };
    rest.take(entry.local, "the content before an entry")?;
    let head = rest.take(30, "an entry's header")?;
    if !head.starts_with(b"PK\x03\x04") {
        return Err(format!("offset {}: the header of {:?} is corrupt", entry.local, entry.name));
    }
    rest.take(u16_at(head, 26) as usize + u16_at(head, 28) as usize, "an entry's name")?;
    let compressed = rest.take(entry.compressed_size, &format!("{:?}", entry.name))?;
    let content = match entry.method {
        0 => compressed.to_vec(),
        8 => {
            let mut content = Vec::new();
            // One byte more than claimed detects content that is too long.
            let result = DeflateDecoder::new(compressed).take(entry.size as u64 + 1).read_to_end(&mut content);
            result
                .map_err(|e| format!("{:?} cannot be decompressed after {} bytes: {e}", entry.name, content.len()))?;
            content
        }
        other => {
            return Err(format!("{:?} uses compression method {other}; stored and deflated are supported", entry.name));
        }
    };
    if content.len() != entry.size || crc32fast::hash(&content) != entry.crc {
        return Err(format!("the content of {:?} does not match its size and checksum", entry.name));
    }
    Ok(content)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}
