//! IDX files: MNIST and its relatives.

use std::path::Path;

use super::content::{Bytes, bad, read_start};
use super::{Array, Kind};
use crate::Result;

/// Reads an IDX file of bytes, compressed with gzip or not.
///
/// Layout: two zero bytes, the type, the number of dimensions, big-endian sizes, and the data.
pub fn read_idx(path: &Path) -> Result<Array> {
    // A compressed file may be much larger than its header claims. One byte more than claimed detects this.
    let start = read_start(path, MAX_HEADER_BYTES)?;
    let mut rest = Bytes::new(path, &start);
    let size = shape(path, &mut rest)?.iter().try_fold(1u64, |n, &s| n.checked_mul(s as u64));
    match size.filter(|&n| n <= MAX_BYTES) {
        Some(size) => parse(path, &read_start(path, MAX_HEADER_BYTES + size + 1)?),
        None => Err(rest.bad(format!("the header claims more than {MAX_BYTES} bytes"))),
    }
}

/// Four bytes, and four for each of at most 255 dimensions.
const MAX_HEADER_BYTES: u64 = 4 + 4 * 255;
/// Largest data that is read.
const MAX_BYTES: u64 = 1 << 31;

/// The shape in the header.
fn shape(path: &Path, rest: &mut Bytes) -> Result<Vec<usize>> {
    let [a, b, kind, dims] = rest.array("the first word of an IDX file")?;
    if [a, b] != [0, 0] || kind != 8 {
        let reason = format!("the first word is {a:02x} {b:02x} {kind:02x}; an IDX file of bytes begins with 00 00 08");
        return Err(bad(path, format!("offset 0: {reason}")));
    }
    (0..dims).map(|_| Ok(u32::from_be_bytes(rest.array("a size")?) as usize)).collect()
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Array> {
    let mut rest = Bytes::new(path, bytes);
    let shape = shape(path, &mut rest)?;
    let count = shape.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
    let Some(count) = count.filter(|&n| n == rest.left()) else {
        return Err(rest.bad(format!("the header claims {shape:?} bytes, {} are left", rest.left())));
    };
    let bytes = rest.take(count, "the numbers")?.to_vec();
    Ok(Array::new(Kind::U8, shape, bytes).expect("the shape's number of bytes"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const TINY: [u8; 16] = [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 2, 9, 8, 7, 6];

    #[test]
    fn compressed_and_uncompressed_files_give_the_same_array() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x-idx2-ubyte");
        std::fs::write(&path, TINY).unwrap();
        let expected = read_idx(&path).unwrap();
        assert_eq!((expected.shape.clone(), expected.clone().into_bytes()), (vec![2, 2], Some(vec![9, 8, 7, 6])));
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&TINY).unwrap();
        let compressed = encoder.finish().unwrap();
        std::fs::write(&path, &compressed).unwrap();
        assert_eq!(read_idx(&path).unwrap(), expected);
        std::fs::write(&path, &compressed[..compressed.len() - 9]).unwrap();
        let error = read_idx(&path).unwrap_err().to_string();
        assert!(error.contains("x-idx2-ubyte") && error.contains("cannot be read after byte"), "{error}");
    }

    #[test]
    fn errors_about_corrupt_and_hostile_files_name_the_offset() {
        let message = |bytes: &[u8]| parse(Path::new("x"), bytes).unwrap_err().to_string();
        assert_eq!(message(&TINY[..15]), "x: offset 12: the header claims [2, 2] bytes, 3 are left");
        assert_eq!(message(&TINY[..6]), "x: offset 4: a size needs 4 bytes, 2 are left");
        assert!(message(&[0, 0, 13, 1, 0, 0, 0, 1, 0]).contains("offset 0: the first word is 00 00 0d"));
        let huge = [vec![0, 0, 8, 200], vec![255; 800], vec![0; 9]].concat();
        assert!(message(&huge).contains("offset 804"), "{}", message(&huge));
    }
}
