//! Sets of images from files.

use std::path::Path;

use setwise_table::numpy::{Array, read_npy};
use setwise_table::source::read_bytes;

use super::Images;
use crate::files::samples::{Parsed, Sample};
use crate::{Error, Result};

impl Sample {
    /// Reads sets of images.
    ///
    /// NPY files have shape `[n, height, width]`, `[n, height, width, channels]` or `[n, height · width · channels]`. A
    /// stack of examples has one more axis in front. CSV and TSV files hold one image per line. Bytes are divided by
    /// 255; other numbers must be from 0 to 1.
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
        Self::parse_images(path, read_bytes(path)?, images)
    }

    /// Parses a file's content as [`Sample::read_images`] does.
    fn parse_images(path: &Path, bytes: Vec<u8>, images: &Images) -> Result<Self> {
        let sample = Self::parse_with(path, bytes, |bytes| parse(bytes, images))?;
        match sample.data.iter().position(|x| !(0.0..=1.0).contains(x)) {
            None => Ok(sample),
            Some(i) => {
                let (location, x) = (sample.location(i, "image", "number"), sample.data[i]);
                let reason = format!("{location} is {x}; pixels are bytes (uint8) or numbers from 0 to 1");
                Err(Error::Sample { path: sample.path, reason })
            }
        }
    }
}

fn parse(bytes: &[u8], images: &Images) -> Parsed {
    let Array { shape, mut data, bytes, .. } = read_npy(bytes)?;
    let Images { height, width, channels, .. } = *images;
    let full = [height, width, channels];
    let flat = [images.numbers()];
    // Valid shapes of one image; one or two axes are in front of it.
    let mut suffixes: Vec<&[usize]> = vec![&full, &flat];
    if channels == 1 {
        suffixes.push(&full[..2]);
    }
    let leading = suffixes.iter().find_map(|end| shape.strip_suffix(*end).filter(|axes| matches!(axes.len(), 1 | 2)));
    let (examples, rows) = match leading {
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
    Ok((data, [examples, rows, images.numbers()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::samples::tests::npy;
    use crate::models::ImageEncoder;

    fn read(shape: &str, kind: &str, data: &[u8], images: &Images) -> Result<Sample> {
        let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
        Sample::parse_images(Path::new("a.npy"), npy(&header, data), images)
    }

    #[test]
    fn images_are_read_from_all_equivalent_shapes() {
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
    fn numbers_outside_zero_to_one_are_refused_with_their_location() {
        let grey = Images::new(ImageEncoder::Mnist).with_size(4, 5, 1);
        let with =
            |x: f32| -> Vec<u8> { (0..120).flat_map(|i| (if i == 67 { x } else { 0.5 }).to_le_bytes()).collect() };
        let error = |shape: &str, kind: &str, data: &[u8]| read(shape, kind, data, &grey).unwrap_err().to_string();
        let end = "pixels are bytes (uint8) or numbers from 0 to 1";
        assert_eq!(error("(6, 4, 5)", "<f4", &with(200.0)), format!("a.npy: image 4, number 8 is 200; {end}"));
        assert_eq!(
            error("(2, 3, 4, 5)", "<f4", &with(-0.25)),
            format!("a.npy: example 2, image 1, number 8 is -0.25; {end}")
        );
        let integers: Vec<u8> = (0..20i32).flat_map(i32::to_le_bytes).collect();
        assert_eq!(error("(1, 4, 5)", "<i4", &integers), format!("a.npy: image 1, number 3 is 2; {end}"));
        let line = (0..20).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
        let text = Sample::parse_images(Path::new("a.csv"), line.as_bytes().to_vec(), &grey).unwrap_err().to_string();
        assert_eq!(text, format!("a.csv: image 1, number 3 is 2; {end}"));
        assert!(read("(6, 4, 5)", "<f4", &with(1.0), &grey).is_ok());
    }

    #[test]
    fn the_error_of_another_shape_lists_the_valid_shapes() {
        let colour = Images::new(ImageEncoder::Meta).with_size(15, 15, 3);
        for shape in ["(2, 15, 15)", "(15, 15, 3)", "(675,)", "(1, 1, 1, 15, 15, 3)", "(1, 15, 45)"] {
            let error = read(shape, "|u1", &[0; 675], &colour).unwrap_err().to_string();
            assert!(error.starts_with("a.npy: "), "{shape}: {error}");
        }
        let error = read("(1, 15, 45)", "|u1", &[0; 675], &colour).unwrap_err().to_string();
        assert!(error.contains("[n, 15, 15, 3]") && error.contains("[n, 675]"), "{error}");
    }
}
