//! IDX files: MNIST and its relatives.

use std::path::Path;

use super::content::{Bytes, bad, read_start};
use super::{Array, Kind};
use crate::Result;

/// Reads an IDX file of bytes, packed with gzip or not: two zero bytes, the type, the number of dimensions, their sizes with the big end
/// first, and the numbers.
pub fn read_idx(path: &Path) -> Result<Array> {
    // A packed file may unpack to much more than its header speaks of; no more than that is unpacked, and one byte to tell.
    let start = read_start(path, LONGEST_HEADER)?;
    let mut rest = Bytes::new(path, &start);
    let size = shape(path, &mut rest)?.iter().try_fold(1u64, |n, &s| n.checked_mul(s as u64));
    match size.filter(|&n| n <= MOST) {
        Some(size) => parse(path, &read_start(path, LONGEST_HEADER + size + 1)?),
        None => Err(rest.bad(format!("the header speaks of more than {MOST} bytes"))),
    }
}

/// Four bytes, and four for each of at most 255 dimensions.
const LONGEST_HEADER: u64 = 4 + 4 * 255;
/// No file of images is larger.
const MOST: u64 = 1 << 31;

/// The shape a header speaks of.
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
        return Err(rest.bad(format!("the header speaks of {shape:?} bytes, {} are there", rest.left())));
    };
    let bytes = rest.take(count, "the numbers")?.to_vec();
    Ok(Array::new(Kind::U8, shape, bytes).expect("as many as the shape has"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const SMALL: [u8; 16] = [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 2, 9, 8, 7, 6];

    #[test]
    fn the_numbers_are_the_same_packed_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x-idx2-ubyte");
        std::fs::write(&path, SMALL).unwrap();
        let plain = read_idx(&path).unwrap();
        assert_eq!((plain.shape.clone(), plain.clone().into_bytes()), (vec![2, 2], Some(vec![9, 8, 7, 6])));
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(&SMALL).unwrap();
        let packed = packer.finish().unwrap();
        std::fs::write(&path, &packed).unwrap();
        assert_eq!(read_idx(&path).unwrap(), plain);
        std::fs::write(&path, &packed[..packed.len() - 9]).unwrap();
        let error = read_idx(&path).unwrap_err().to_string();
        assert!(error.contains("x-idx2-ubyte") && error.contains("cannot be read on after"), "{error}");
    }

    #[test]
    fn damaged_and_hostile_files_are_refused_with_the_offset() {
        let said = |bytes: &[u8]| parse(Path::new("x"), bytes).unwrap_err().to_string();
        assert_eq!(said(&SMALL[..15]), "x: offset 12: the header speaks of [2, 2] bytes, 3 are there");
        assert_eq!(said(&SMALL[..6]), "x: offset 4: a size would take 4 bytes, 2 are left");
        assert!(said(&[0, 0, 13, 1, 0, 0, 0, 1, 0]).contains("offset 0: the first word is 00 00 0d"));
        let huge = [vec![0, 0, 8, 200], vec![255; 800], vec![0; 9]].concat();
        assert!(said(&huge).contains("offset 804"), "{}", said(&huge));
    }
}
