//! Zip archives, as far as NPZ files need them: entries that are stored or deflated.

use std::io::Read;
use std::path::Path;

use flate2::read::DeflateDecoder;

use super::content::{Bytes, bad};
use crate::Result;

/// An entry of the archive's table of contents.
struct Entry {
    name: String,
    method: u16,
    crc: u32,
    packed: usize,
    unpacked: usize,
    local: usize,
}

/// Names and contents of all entries. Memory grows with what really comes out of an entry, and a checksum that does not fit is an error.
pub(super) fn unzip(path: &Path, bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
    entries(path, bytes)?.into_iter().map(|e| Ok((e.name.clone(), content(path, bytes, &e)?))).collect()
}

/// The table of contents, found from the archive's end.
fn entries(path: &Path, bytes: &[u8]) -> Result<Vec<Entry>> {
    const END: [u8; 4] = *b"PK\x05\x06";
    // The end record is 22 bytes and a comment of at most 65535.
    let first = bytes.len().saturating_sub(22 + 65535);
    let place = (first..bytes.len().saturating_sub(21)).rev().find(|&i| bytes[i..].starts_with(&END));
    let Some(place) = place else { return Err(bad(path, "is no whole zip archive: it has no table of contents")) };
    let (count, start) = (u16_at(bytes, place + 10), u32_at(bytes, place + 16));
    if start >= place {
        return Err(bad(path, format!("offset {place}: the table of contents would be at {start}")));
    }
    let mut rest = Bytes::new(path, &bytes[..place]);
    rest.take(start, "what comes before the table of contents")?;
    let mut entries = Vec::new();
    for i in 0..count {
        let head = rest.take(46, "an entry of the table of contents")?;
        if !head.starts_with(b"PK\x01\x02") {
            return Err(rest.bad(format!("entry {i} of the table of contents is damaged")));
        }
        let [name, extra, comment] = [28, 30, 32].map(|at| u16_at(head, at) as usize);
        let name = String::from_utf8_lossy(rest.take(name, "an entry's name")?).into_owned();
        let more = rest.take(extra, "an entry's extra fields")?;
        rest.take(comment, "an entry's comment")?;
        let mut entry = Entry {
            name,
            method: u16_at(head, 10),
            crc: u32_at(head, 16) as u32,
            packed: u32_at(head, 20),
            unpacked: u32_at(head, 24),
            local: u32_at(head, 42),
        };
        wide_sizes(&mut entry, more);
        entries.push(entry);
    }
    Ok(entries)
}

/// Sizes that do not fit 32 bits stand in an extra field.
fn wide_sizes(entry: &mut Entry, mut extra: &[u8]) {
    while extra.len() >= 4 {
        let (id, size) = (u16_at(extra, 0), u16_at(extra, 2) as usize);
        let Some(field) = extra.get(4..4 + size) else { return };
        if id == 1 {
            let mut numbers =
                field.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes")) as usize);
            for size in [&mut entry.unpacked, &mut entry.packed, &mut entry.local] {
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
    rest.take(entry.local, "what comes before an entry")?;
    let head = rest.take(30, "an entry's header")?;
    if !head.starts_with(b"PK\x03\x04") {
        return Err(rest.bad(format!("the header of {:?} is damaged", entry.name)));
    }
    rest.take(u16_at(head, 26) as usize + u16_at(head, 28) as usize, "an entry's name")?;
    let packed = rest.take(entry.packed, &format!("{:?}", entry.name))?;
    let content = match entry.method {
        0 => packed.to_vec(),
        8 => {
            let mut content = Vec::new();
            // One byte more than is claimed shows that there is more.
            let unpacked = DeflateDecoder::new(packed).take(entry.unpacked as u64 + 1).read_to_end(&mut content);
            unpacked.map_err(|e| {
                rest.bad(format!("{:?} cannot be unpacked after {} bytes: {e}", entry.name, content.len()))
            })?;
            content
        }
        other => {
            return Err(
                rest.bad(format!("{:?} is packed by method {other}; stored and deflated ones are read", entry.name))
            );
        }
    };
    if content.len() != entry.unpacked || crc32fast::hash(&content) != entry.crc {
        return Err(rest.bad(format!("the content of {:?} does not fit its size and checksum", entry.name)));
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
            let mut packer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(content).unwrap();
            let packed = packer.finish().unwrap();
            let mut head = Vec::new();
            head.extend([20u16, 0, 8, 0, 0].iter().flat_map(|x| x.to_le_bytes()));
            let sizes = [crc32fast::hash(content), packed.len() as u32, content.len() as u32];
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
            out.extend(packed);
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
    fn entries_come_out_as_they_went_in() {
        let big = vec![7u8; 100_000];
        let archive = zip(&[("a.npy", b"hello"), ("b.npy", &big)]);
        let found = unzip(Path::new("x.npz"), &archive).unwrap();
        assert_eq!(found, [("a.npy".to_owned(), b"hello".to_vec()), ("b.npy".to_owned(), big)]);
    }

    #[test]
    fn no_damage_panics_and_all_of_it_is_told_of() {
        let whole = zip(&[("a.npy", b"some content that is packed"), ("b", &[1, 2, 3])]);
        let good = unzip(Path::new("x.npz"), &whole).unwrap();
        let mut told = 0;
        for i in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[i] ^= 0x55;
            // Fields that do not matter, such as dates, may change.
            if let Err(e) = unzip(Path::new("x.npz"), &bytes) {
                assert!(e.to_string().starts_with("x.npz: "), "{e}");
                told += 1;
            } else {
                let changed = unzip(Path::new("x.npz"), &bytes).unwrap();
                assert!(changed.len() < 2 || changed.iter().zip(&good).all(|(a, b)| a.1 == b.1), "byte {i}");
            }
            assert!(unzip(Path::new("x.npz"), &whole[..i]).is_err(), "cut after {i}");
        }
        assert!(told > whole.len() / 2);
    }
}
