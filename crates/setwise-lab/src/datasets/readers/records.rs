//! TFRecord files of Meta-Dataset: framing with checksums, and the image and label of each message.

use std::path::Path;

use super::content::{Bytes, read};
use crate::Result;

/// A record: an encoded image and its class.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The image as the content of a JPEG or PNG file.
    pub image: Vec<u8>,
    /// Its class, if the record has one.
    pub label: Option<i64>,
}

/// Reads all records of a file and verifies both checksums of each.
pub fn read_records(path: &Path) -> Result<Vec<Record>> {
    parse(path, &read(path)?)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Record>> {
    let mut rest = Bytes::new(path, bytes);
    let mut records = Vec::new();
    while rest.left() > 0 {
        let number = records.len();
        let length: [u8; 8] = rest.array("a record's length")?;
        let sum = u32::from_le_bytes(rest.array("the checksum of a length")?);
        if masked(&length) != sum {
            return Err(rest.bad(format!("record {number}: the checksum of its length does not match")));
        }
        let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
        let content = rest.take(length, &format!("record {number}"))?;
        let sum = u32::from_le_bytes(rest.array("a record's checksum")?);
        if masked(content) != sum {
            return Err(rest.bad(format!("record {number}: its checksum does not match")));
        }
        records.push(example(content).map_err(|reason| rest.bad(format!("record {number}: {reason}")))?);
    }
    Ok(records)
}

/// The masked CRC-32C of TFRecords: rotated, plus a constant.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let (mut c, mut bit) = (i as u32, 0);
            while bit < 8 {
                c = if c & 1 == 1 { c >> 1 ^ 0x82f6_3b78 } else { c >> 1 };
                bit += 1;
            }
            table[i] = c;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |c, &b| TABLE[((c ^ u32::from(b)) & 255) as usize] ^ c >> 8)
}

/// A field of a protobuf message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The next field of a message with its number. None at the end of the message.
fn next<'a>(rest: &mut &'a [u8]) -> Result<Option<(u64, Field<'a>)>, String> {
    if rest.is_empty() {
        return Ok(None);
    }
    let key = varint(rest)?;
    let field = match key & 7 {
        0 => Field::Number(varint(rest)?),
        1 => Field::Bytes(take(rest, 8)?),
        2 => {
            let length = usize::try_from(varint(rest)?).unwrap_or(usize::MAX);
            Field::Bytes(take(rest, length)?)
        }
        5 => Field::Bytes(take(rest, 4)?),
        other => return Err(format!("a field has unknown wire type {other}")),
    };
    Ok(Some((key >> 3, field)))
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8], String> {
    let (part, after) =
        rest.split_at_checked(n).ok_or_else(|| format!("a field of {n} bytes where {} are left", rest.len()))?;
    *rest = after;
    Ok(part)
}

fn varint(rest: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for i in 0..10 {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 127) << (7 * i);
        if byte < 128 {
            return Ok(value);
        }
    }
    Err("a number of more than ten bytes".to_owned())
}

/// All fields of bytes with a given number.
fn parts(mut message: &[u8], field_number: u64) -> Result<Vec<&[u8]>, String> {
    let mut parts_of_field = Vec::new();
    while let Some((number, field)) = next(&mut message)? {
        if let Field::Bytes(bytes) = field
            && number == field_number
        {
            parts_of_field.push(bytes);
        }
    }
    Ok(parts_of_field)
}

/// Example { features = 1 { map<string, Feature> feature = 1 } }, a map being entries of key = 1 and value = 2.
fn example(message: &[u8]) -> Result<Record, String> {
    let (mut image, mut label) = (None, None);
    for features in parts(message, 1)? {
        for entry in parts(features, 1)? {
            let (key, value) = (parts(entry, 1)?, parts(entry, 2)?);
            match (key.last().copied(), value.last()) {
                (Some(b"image" | b"image/encoded"), Some(value)) => image = first_bytes(value)?,
                (Some(b"label" | b"image/class/label"), Some(value)) => label = first_number(value)?,
                _ => {}
            }
        }
    }
    Ok(Record { image: image.ok_or("it has no feature \"image\"")?, label })
}

/// Feature { bytes_list = 1 { repeated bytes value = 1 } }
fn first_bytes(feature: &[u8]) -> Result<Option<Vec<u8>>, String> {
    for list in parts(feature, 1)? {
        if let Some(bytes) = parts(list, 1)?.first() {
            return Ok(Some(bytes.to_vec()));
        }
    }
    Ok(None)
}

/// Feature { int64_list = 3 { repeated int64 value = 1, packed or not } }
fn first_number(feature: &[u8]) -> Result<Option<i64>, String> {
    for mut list in parts(feature, 3)? {
        if let Some((1, field)) = next(&mut list)? {
            return match field {
                Field::Number(n) => Ok(Some(n as i64)),
                Field::Bytes(mut packed) => Ok(Some(varint(&mut packed)? as i64)),
            };
        }
    }
    Ok(None)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        let mut n = bytes.len();
        while n >= 128 {
            out.push(n as u8 | 128);
            n >>= 7;
        }
        out.push(n as u8);
        [out, bytes.to_vec()].concat()
    }

    /// A file with one record per image.
    pub(crate) fn record_file(images: &[(&[u8], u8)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (image, label) in images {
            let entry = |key: &str, feature: &[u8]| field(1, &[field(1, key.as_bytes()), field(2, feature)].concat());
            let image = entry("image", &field(1, &field(1, image)));
            let label = entry("label", &field(3, &field(1, &[*label])));
            let content = field(1, &[image, label].concat());
            let length = (content.len() as u64).to_le_bytes();
            out.extend(length);
            out.extend(masked(&length).to_le_bytes());
            out.extend(&content);
            out.extend(masked(&content).to_le_bytes());
        }
        out
    }

    #[test]
    fn checksums_equal_those_of_rfc_3720() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    }

    #[test]
    fn written_records_are_read_back() {
        let long = vec![5; 1000];
        let records = parse(Path::new("0.tfrecords"), &record_file(&[(b"jpeg", 7), (&long, 100)])).unwrap();
        assert_eq!(
            records,
            [Record { image: b"jpeg".to_vec(), label: Some(7) }, Record { image: long, label: Some(100) }]
        );
    }

    #[test]
    fn errors_about_every_corrupt_byte_and_every_truncation_name_the_offset() {
        let complete = record_file(&[(b"some image", 7), (b"another", 9)]);
        let first = record_file(&[(b"some image", 7)]).len();
        for i in 0..complete.len() {
            let mut bytes = complete.clone();
            bytes[i] ^= 0x10;
            let error = parse(Path::new("0.tfrecords"), &bytes).unwrap_err().to_string();
            assert!(error.starts_with("0.tfrecords: offset "), "{error}");
            if i > 0 && i != first {
                assert!(parse(Path::new("0.tfrecords"), &complete[..i]).is_err(), "cut after {i}");
            }
        }
    }

    #[test]
    fn messages_with_wrong_lengths_are_errors() {
        for message in
            [vec![10, 200], vec![10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], vec![11], vec![10, 2, 10, 9]]
        {
            assert!(example(&message).is_err(), "{message:?}");
        }
    }
}
