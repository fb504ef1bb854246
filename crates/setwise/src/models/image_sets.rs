//! Sets of images from files.

use std::path::Path;

use super::Images;
use crate::files::samples::{Array, Parsed, Sample, content, read_npy};
use crate::{Error, Result};

impl Sample {
    /// Reads sets of images: NPY `[n, height, width]`, with a last `[…, channels]` where pixels have colours, or the pixels of an image as
    /// one row; a stack of examples has one more index in front. Bytes are divided by 255, other numbers must be from 0 to 1. CSV and TSV
    /// hold an image per line.
    ///
    /// ```
    /// use setwise::files::{Sample, write_npy};
    /// use setwise::models::{ImageEncoder, Images};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("x.npy");
    /// write_npy(&path, &[5, 28, 28], &[255u8; 5 * 28 * 28])?;
    /// let sample = Sample::read_images(&path, &Images::new(ImageEncoder::Mnist))?;
    /// assert_eq!((sample.examples, sample.rows, sample.width, sample.data[0]), (1, 5, 784, 1.0));
    /// # Ok::<(), setwise::Error>(())
    /// ```
    pub fn read_images(path: impl AsRef<Path>, images: &Images) -> Result<Self> {
        let path = path.as_ref();
        Self::parse_images(path, &content(path)?, images)
    }

    /// Reads a file's content as [`Sample::read_images`] does.
    pub fn parse_images(path: &Path, bytes: &[u8], images: &Images) -> Result<Self> {
        let sample = Self::parse_as(path, bytes, |bytes| parse(bytes, images))?;
        match sample.data.iter().position(|x| !(0.0..=1.0).contains(x)) {
            None => Ok(sample),
            Some(i) => {
                let (place, x) = (sample.place(i, "image", "number"), sample.data[i]);
                let reason = format!("{place} is {x}; pixels are bytes (uint8) or numbers from 0 to 1");
                Err(Error::Sample { path: sample.path, reason })
            }
        }
    }
}

fn parse(bytes: &[u8], images: &Images) -> Parsed {
    let Array { shape, mut data, bytes } = read_npy(bytes)?;
    let Images { height, width, channels, .. } = *images;
    let whole = [height, width, channels];
    let row = [images.numbers()];
    // What an image may look like, and what is left of the shape in front of it.
    let mut ends: Vec<&[usize]> = vec![&whole, &row];
    if channels == 1 {
        ends.push(&whole[..2]);
    }
    let found = ends.iter().find_map(|end| shape.strip_suffix(*end).filter(|left| matches!(left.len(), 1 | 2)));
    let (examples, rows) = match found {
        Some(&[rows]) => (1, rows),
        Some(&[examples, rows]) => (examples, rows),
        _ => {
            let size =
                if channels == 1 { format!("{height}, {width}") } else { format!("{height}, {width}, {channels}") };
            return Err(format!(
                "has shape {shape:?}; the model takes sets of images [n, {size}] or [n, {}], or a stack of such sets",
                images.numbers()
            ));
        }
    };
    if bytes {
        data.iter_mut().for_each(|x| *x /= 255.0);
    }
    Ok((data, [examples, rows, images.numbers()], Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::samples::tests::npy;
    use crate::models::ImageEncoder;

    fn read(shape: &str, kind: &str, data: &[u8], images: &Images) -> Result<Sample> {
        let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
        Sample::parse_images(Path::new("a.npy"), &npy(&header, data), images)
    }

    #[test]
    fn images_are_read_from_every_shape_that_says_the_same() {
        let grey = Images::new(ImageEncoder::Mnist).with_size(4, 5, 1);
        let data: Vec<u8> = (0..120).map(|i| i * 2).collect();
        for (shape, sizes) in [
            ("(6, 4, 5)", (1, 6)),
            ("(6, 4, 5, 1)", (1, 6)),
            ("(6, 20)", (1, 6)),
            ("(2, 3, 4, 5)", (2, 3)),
            ("(2, 3, 4, 5, 1)", (2, 3)),
            ("(2, 3, 20)", (2, 3)),
        ] {
            let s = read(shape, "|u1", &data, &grey).unwrap();
            assert_eq!(((s.examples, s.rows), s.width), (sizes, 20), "{shape}");
            assert_eq!(s.data[100], 200.0 / 255.0);
        }
        let colour = grey.with_size(4, 5, 3);
        assert_eq!(read("(2, 4, 5, 3)", "|u1", &data, &colour).unwrap().width, 60);
        let floats: Vec<u8> = (0..20).flat_map(|i| (i as f32 / 32.0).to_le_bytes()).collect();
        assert_eq!(read("(1, 4, 5)", "<f4", &floats, &grey).unwrap().data[7], 7.0 / 32.0);
    }

    #[test]
    fn numbers_that_are_neither_bytes_nor_shares_of_white_are_refused_with_their_place() {
        let grey = Images::new(ImageEncoder::Mnist).with_size(4, 5, 1);
        let with =
            |x: f32| -> Vec<u8> { (0..120).flat_map(|i| (if i == 67 { x } else { 0.5 }).to_le_bytes()).collect() };
        let said = |shape: &str, kind: &str, data: &[u8]| read(shape, kind, data, &grey).unwrap_err().to_string();
        let end = "pixels are bytes (uint8) or numbers from 0 to 1";
        assert_eq!(said("(6, 4, 5)", "<f4", &with(200.0)), format!("a.npy: image 4, number 8 is 200; {end}"));
        assert_eq!(
            said("(2, 3, 4, 5)", "<f4", &with(-0.25)),
            format!("a.npy: example 2, image 1, number 8 is -0.25; {end}")
        );
        let integers: Vec<u8> = (0..20i32).flat_map(i32::to_le_bytes).collect();
        assert_eq!(said("(1, 4, 5)", "<i4", &integers), format!("a.npy: image 1, number 3 is 2; {end}"));
        let line = (0..20).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
        let error = Sample::parse_images(Path::new("a.csv"), line.as_bytes(), &grey).unwrap_err().to_string();
        assert_eq!(error, format!("a.csv: image 1, number 3 is 2; {end}"));
        assert!(read("(6, 4, 5)", "<f4", &with(1.0), &grey).is_ok());
    }

    #[test]
    fn other_shapes_are_refused_with_those_that_are_taken() {
        let colour = Images::new(ImageEncoder::Meta).with_size(15, 15, 3);
        for shape in ["(2, 15, 15)", "(15, 15, 3)", "(675,)", "(1, 1, 1, 15, 15, 3)", "(1, 15, 45)"] {
            let error = read(shape, "|u1", &[0; 675], &colour).unwrap_err().to_string();
            assert!(error.starts_with("a.npy: "), "{shape}: {error}");
        }
        let error = read("(1, 15, 45)", "|u1", &[0; 675], &colour).unwrap_err().to_string();
        assert!(error.contains("[n, 15, 15, 3]") && error.contains("[n, 675]"), "{error}");
    }
}
