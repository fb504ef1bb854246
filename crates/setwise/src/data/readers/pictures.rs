//! Pictures in files (PNG and JPEG), and their sizes changed.

use std::io::Cursor;
use std::path::Path;

use image::{DynamicImage, GrayImage, ImageReader, Limits, RgbImage};
use jpeg_decoder::PixelFormat;

use super::content::{bad, read};
use crate::Result;

/// Pixels of a picture, row by row, with its channels side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Rows of pixels.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// 1 for grey, 3 for red, green and blue.
    pub channels: usize,
    /// The bytes.
    pub pixels: Vec<u8>,
}

/// Largest side of a picture, and memory for decoding one.
const LARGEST_SIDE: u32 = 1 << 14;
const MOST_MEMORY: u64 = 1 << 29;

impl Picture {
    /// Reads a PNG or JPEG file, told by its content; `channels` is 1 or 3.
    pub fn read(path: &Path, channels: usize) -> Result<Self> {
        Self::parse(path, &read(path)?, channels)
    }

    /// Reads the content of a file.
    pub fn parse(path: &Path, bytes: &[u8], channels: usize) -> Result<Self> {
        if bytes.starts_with(&[0xff, 0xd8]) {
            return parse_jpeg(bytes, channels)
                .map_err(|reason| bad(path, format!("is no picture that can be read: {reason}")));
        }
        let decode = || -> std::result::Result<DynamicImage, image::ImageError> {
            let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
            let mut limits = Limits::default();
            (limits.max_image_width, limits.max_image_height) = (Some(LARGEST_SIDE), Some(LARGEST_SIDE));
            limits.max_alloc = Some(MOST_MEMORY);
            reader.limits(limits);
            reader.decode()
        };
        let decoded = decode().map_err(|e| bad(path, format!("is no picture that can be read: {e}")))?;
        Ok(Self::of(decoded, channels))
    }

    fn of(decoded: DynamicImage, channels: usize) -> Self {
        let (width, height) = (decoded.width() as usize, decoded.height() as usize);
        let pixels = if channels == 1 { decoded.into_luma8().into_raw() } else { decoded.into_rgb8().into_raw() };
        Picture { height, width, channels, pixels }
    }

    /// The largest square in the middle.
    pub fn centre_square(&self) -> Self {
        let side = self.height.min(self.width);
        let (top, left) = ((self.height - side) / 2, (self.width - side) / 2);
        let row = |y: usize| {
            let first = ((top + y) * self.width + left) * self.channels;
            &self.pixels[first..first + side * self.channels]
        };
        let pixels = (0..side).flat_map(row).copied().collect();
        Picture { height: side, width: side, channels: self.channels, pixels }
    }

    /// The picture in another size; each new pixel is the mean of the area it covers.
    pub fn resized(&self, height: usize, width: usize) -> Self {
        let across = shares(self.width, width);
        let down = shares(self.height, height);
        let (channels, mut rows) = (self.channels, Vec::with_capacity(self.height * width * self.channels));
        for line in self.pixels.chunks_exact(self.width * channels) {
            for parts in &across {
                for channel in 0..channels {
                    let value: f32 =
                        parts.iter().map(|&(x, share)| share * f32::from(line[x * channels + channel])).sum();
                    rows.push(value);
                }
            }
        }
        let stride = width * channels;
        let column = |parts: &Vec<(usize, f32)>, i: usize| -> f32 {
            parts.iter().map(|&(y, share)| share * rows[y * stride + i]).sum()
        };
        let pixels = down.iter().flat_map(|parts| (0..stride).map(move |i| column(parts, i).round() as u8)).collect();
        Picture { height, width, channels, pixels }
    }
}

/// Reads a JPEG file.
fn parse_jpeg(bytes: &[u8], channels: usize) -> std::result::Result<Picture, String> {
    let mut decoder = jpeg_decoder::Decoder::new(bytes);
    decoder.set_max_decoding_buffer_size(MOST_MEMORY as usize);
    decoder.read_info().map_err(|e| e.to_string())?;
    let info = decoder.info().ok_or("it has no header")?;
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    if width > LARGEST_SIDE || height > LARGEST_SIDE {
        return Err(format!("it is {height} × {width} pixels, {LARGEST_SIDE} is the longest side"));
    }
    let pixels = decoder.decode().map_err(|e| e.to_string())?;
    let whole = || "its pixels are not all there".to_owned();
    let decoded = match info.pixel_format {
        PixelFormat::L8 => DynamicImage::ImageLuma8(GrayImage::from_raw(width, height, pixels).ok_or_else(whole)?),
        PixelFormat::RGB24 => DynamicImage::ImageRgb8(RgbImage::from_raw(width, height, pixels).ok_or_else(whole)?),
        other => return Err(format!("its pixels are {other:?}; grey and coloured ones are read")),
    };
    Ok(Picture::of(decoded, channels))
}

/// For each of `to` pixels the pixels of `from` it covers, with their shares of it.
fn shares(from: usize, to: usize) -> Vec<Vec<(usize, f32)>> {
    let step = from as f64 / to as f64;
    let of = |i: usize| {
        let (first, last) = (i as f64 * step, (i + 1) as f64 * step);
        let covered = first.floor() as usize..(last.ceil() as usize).min(from);
        let share = |x: usize| ((last.min(x as f64 + 1.0) - first.max(x as f64)) / step) as f32;
        covered.map(|x| (x, share(x))).filter(|p| p.1 > 1e-6).collect()
    };
    (0..to).map(of).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A PNG file of a grey picture.
    pub(crate) fn png(height: usize, width: usize, pixels: &[u8]) -> Vec<u8> {
        let mut out = Cursor::new(Vec::new());
        let image = image::GrayImage::from_raw(width as u32, height as u32, pixels.to_vec()).unwrap();
        image.write_to(&mut out, image::ImageFormat::Png).unwrap();
        out.into_inner()
    }

    #[test]
    fn pictures_are_read_in_grey_and_in_colour_and_damage_is_told_of() {
        let bytes = png(2, 3, &[0, 50, 100, 150, 200, 250]);
        let grey = Picture::parse(Path::new("p.png"), &bytes, 1).unwrap();
        assert_eq!((grey.height, grey.width, grey.pixels.as_slice()), (2, 3, [0, 50, 100, 150, 200, 250].as_slice()));
        assert_eq!(Picture::parse(Path::new("p.png"), &bytes, 3).unwrap().pixels[3..6], [50, 50, 50]);
        for cut in [0, 7, 30, bytes.len() - 20] {
            let error = Picture::parse(Path::new("p.png"), &bytes[..cut], 1).unwrap_err().to_string();
            assert!(error.starts_with("p.png: is no picture"), "{error}");
        }
    }

    #[test]
    fn pixels_of_another_size_are_means_of_areas() {
        let picture = Picture { height: 2, width: 3, channels: 1, pixels: vec![0, 30, 60, 90, 120, 150] };
        assert_eq!(picture.resized(1, 1).pixels, [75]);
        assert_eq!(picture.resized(2, 3), picture);
        // One and a half pixels across: (0 + 15) / 1.5 and (15 + 60) / 1.5.
        assert_eq!(picture.resized(2, 2).pixels, [10, 50, 100, 140]);
        assert_eq!(picture.centre_square().pixels, [0, 30, 90, 120]);
    }
}
