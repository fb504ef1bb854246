//! PNG and JPEG images, and their resampling.

use std::io::Cursor;
use std::path::Path;

use jpeg_decoder::PixelFormat;
use png::{BitDepth, Transformations};

use super::content::{bad, read};
use crate::Result;

/// An image: pixels row by row, channels of a pixel side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Number of rows.
    pub height: usize,
    /// Pixels in a row.
    pub width: usize,
    /// 1 for grey, 3 for red, green and blue.
    pub channels: usize,
    /// The bytes.
    pub pixels: Vec<u8>,
}

/// Largest side of an image.
const MAX_SIDE: u32 = 1 << 14;
/// Bytes of memory a decoder may use.
const MAX_MEMORY: usize = 1 << 29;

impl Image {
    /// Reads a PNG or JPEG file. The content determines the format. `channels` is 1 or 3.
    pub fn read(path: &Path, channels: usize) -> Result<Self> {
        Self::parse(path, &read(path)?, channels)
    }

    /// Parses the content of a PNG or JPEG file.
    pub fn parse(path: &Path, bytes: &[u8], channels: usize) -> Result<Self> {
        let jpeg = bytes.starts_with(&[0xff, 0xd8]);
        let decoded = if jpeg { parse_jpeg(bytes) } else { parse_png(bytes) };
        let decoded = decoded.map_err(|reason| bad(path, format!("is not a readable image: {reason}")))?;
        Ok(decoded.with_channels(channels))
    }

    /// Converts between grey and RGB and drops the alpha channel. Grey is the luminance.
    fn with_channels(self, channels: usize) -> Self {
        let grey = |p: &[u8]| {
            ((2126 * u32::from(p[0]) + 7152 * u32::from(p[1]) + 722 * u32::from(p[2]) + 5000) / 10_000) as u8
        };
        let of = self.pixels.chunks_exact(self.channels);
        let pixels = match (self.channels, channels) {
            (1, 1) | (3, 3) => return self,
            (2, 1) => of.map(|p| p[0]).collect(),
            (_, 1) => of.map(grey).collect(),
            (1 | 2, _) => of.flat_map(|p| [p[0]; 3]).collect(),
            _ => of.flat_map(|p| [p[0], p[1], p[2]]).collect(),
        };
        Image { pixels, channels, ..self }
    }

    /// The largest centred square.
    pub fn centre_square(&self) -> Self {
        let side = self.height.min(self.width);
        let (top, left) = ((self.height - side) / 2, (self.width - side) / 2);
        let row = |y: usize| {
            let first = ((top + y) * self.width + left) * self.channels;
            &self.pixels[first..first + side * self.channels]
        };
        let pixels = (0..side).flat_map(row).copied().collect();
        Image { height: side, width: side, channels: self.channels, pixels }
    }

    /// Resizes by area averaging: each new pixel is the mean of the area it covers.
    pub fn resized(&self, height: usize, width: usize) -> Self {
        self.resampled(&area_weights(self.height, height), &area_weights(self.width, width))
    }

    /// Resizes with a triangle filter: weights of old pixels fall linearly with their distance.
    pub fn resized_triangle(&self, height: usize, width: usize) -> Self {
        self.resampled(&triangle_weights(self.height, height), &triangle_weights(self.width, width))
    }

    /// Resamples with a separable filter: weights for rows and for columns.
    fn resampled(&self, down: &[Vec<(usize, f32)>], across: &[Vec<(usize, f32)>]) -> Self {
        let (height, width) = (down.len(), across.len());
        let (channels, mut rows) = (self.channels, Vec::with_capacity(self.height * width * self.channels));
        for line in self.pixels.chunks_exact(self.width * channels) {
            for parts in across {
                for channel in 0..channels {
                    let value: f32 =
                        parts.iter().map(|&(x, weight)| weight * f32::from(line[x * channels + channel])).sum();
                    rows.push(value);
                }
            }
        }
        let stride = width * channels;
        let column = |parts: &Vec<(usize, f32)>, i: usize| -> f32 {
            parts.iter().map(|&(y, weight)| weight * rows[y * stride + i]).sum()
        };
        let pixels = down.iter().flat_map(|parts| (0..stride).map(move |i| column(parts, i).round() as u8)).collect();
        Image { height, width, channels, pixels }
    }
}

fn check_size(height: u32, width: u32) -> std::result::Result<(), String> {
    if width > MAX_SIDE || height > MAX_SIDE {
        return Err(format!("it is {height} × {width} pixels, {MAX_SIDE} is the longest side"));
    }
    Ok(())
}

/// Decodes a PNG file: grey or RGB, with an alpha channel if the file has one.
fn parse_png(bytes: &[u8]) -> std::result::Result<Image, String> {
    let message = |e: png::DecodingError| e.to_string();
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: MAX_MEMORY });
    decoder.set_transformations(Transformations::EXPAND);
    if !bytes.starts_with(b"\x89PNG") {
        return Err("it is neither a PNG nor a JPEG file".to_owned());
    }
    let mut reader = decoder.read_info().map_err(message)?;
    let (width, height) = reader.info().size();
    check_size(height, width)?;
    let size = reader
        .output_buffer_size()
        .filter(|&n| n <= MAX_MEMORY)
        .ok_or_else(|| format!("its {height} × {width} pixels take more than {MAX_MEMORY} bytes"))?;
    let mut pixels = vec![0; size];
    let info = reader.next_frame(&mut pixels).map_err(message)?;
    if info.bit_depth == BitDepth::Sixteen {
        let eight = |b: &[u8]| ((u32::from(b[0]) * 256 + u32::from(b[1]) + 128) / 257) as u8;
        pixels = pixels.chunks_exact(2).map(eight).collect();
    }
    let channels = info.color_type.samples();
    Ok(Image { height: height as usize, width: width as usize, channels, pixels })
}

/// Decodes a JPEG file, grey or RGB.
fn parse_jpeg(bytes: &[u8]) -> std::result::Result<Image, String> {
    let mut decoder = jpeg_decoder::Decoder::new(bytes);
    decoder.set_max_decoding_buffer_size(MAX_MEMORY);
    decoder.read_info().map_err(|e| e.to_string())?;
    let info = decoder.info().ok_or("it has no header")?;
    check_size(info.height.into(), info.width.into())?;
    let pixels = decoder.decode().map_err(|e| e.to_string())?;
    let channels = match info.pixel_format {
        PixelFormat::L8 => 1,
        PixelFormat::RGB24 => 3,
        other => return Err(format!("its pixels are {other:?}; grey and RGB are supported")),
    };
    let (height, width) = (info.height as usize, info.width as usize);
    if pixels.len() != height * width * channels {
        return Err("it has too few pixels".to_owned());
    }
    Ok(Image { height, width, channels, pixels })
}

/// For each of `to` new pixels, the old pixels it covers and their weights.
fn area_weights(from: usize, to: usize) -> Vec<Vec<(usize, f32)>> {
    let step = from as f64 / to as f64;
    let of = |i: usize| {
        let (first, last) = (i as f64 * step, (i + 1) as f64 * step);
        let covered = first.floor() as usize..(last.ceil() as usize).min(from);
        let weight = |x: usize| ((last.min(x as f64 + 1.0) - first.max(x as f64)) / step) as f32;
        covered.map(|x| (x, weight(x))).filter(|p| p.1 > 1e-6).collect()
    };
    (0..to).map(of).collect()
}

/// For each of `to` new pixels, the old pixels closer than max(1, from/to) and their weights.
fn triangle_weights(from: usize, to: usize) -> Vec<Vec<(usize, f32)>> {
    let step = from as f64 / to as f64;
    let reach = step.max(1.0);
    let of = |i: usize| {
        let centre = (i as f64 + 0.5) * step - 0.5;
        let around = (centre - reach).ceil().max(0.0) as usize..=((centre + reach).floor() as usize).min(from - 1);
        let weight = |x: usize| 1.0 - (x as f64 - centre).abs() / reach;
        let total: f64 = around.clone().map(weight).sum();
        around.map(|x| (x, (weight(x) / total) as f32)).collect()
    };
    (0..to).map(of).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use png::ColorType;

    use super::*;

    /// A PNG file of a grey image.
    pub(crate) fn png(height: usize, width: usize, pixels: &[u8]) -> Vec<u8> {
        png_of(height, width, ColorType::Grayscale, BitDepth::Eight, pixels)
    }

    fn png_of(height: usize, width: usize, color: ColorType, depth: BitDepth, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, width as u32, height as u32);
        encoder.set_color(color);
        encoder.set_depth(depth);
        if color == ColorType::Indexed {
            encoder.set_palette([255, 0, 0, 0, 255, 0, 0, 0, 255].as_slice());
            encoder.set_trns([255, 0, 255].as_slice());
        }
        encoder.write_header().unwrap().write_image_data(data).unwrap();
        out
    }

    #[test]
    fn images_are_read_as_grey_and_rgb_and_truncated_files_are_errors() {
        let bytes = png(2, 3, &[0, 50, 100, 150, 200, 250]);
        let grey = Image::parse(Path::new("p.png"), &bytes, 1).unwrap();
        assert_eq!((grey.height, grey.width, grey.pixels.as_slice()), (2, 3, [0, 50, 100, 150, 200, 250].as_slice()));
        assert_eq!(Image::parse(Path::new("p.png"), &bytes, 3).unwrap().pixels[3..6], [50, 50, 50]);
        for cut in [0, 7, 30, bytes.len() - 20] {
            let error = Image::parse(Path::new("p.png"), &bytes[..cut], 1).unwrap_err().to_string();
            assert!(error.starts_with("p.png: is not a readable image"), "{error}");
        }
    }

    #[test]
    fn every_kind_of_png_is_read_as_grey_and_rgb() {
        use BitDepth::{Eight, One, Sixteen, Two};
        let (all, red) = ([10, 20, 30, 0, 255, 128], [54, 182, 18]);
        for (color, depth, data, grey, rgb) in [
            (ColorType::Grayscale, One, &[0b0100_0000, 0b1000_0000][..], [0, 255, 255, 0], [0, 0, 0, 255]),
            (ColorType::Grayscale, Sixteen, &[0, 127, 0, 129, 255, 255, 127, 255], [0, 1, 255, 127], [0, 0, 0, 1]),
            (ColorType::GrayscaleAlpha, Eight, &[5, 0, 6, 9, 7, 255, 8, 0], [5, 6, 7, 8], [5, 5, 5, 6]),
            (ColorType::Rgb, Eight, &[&all[..], &all].concat(), [19, 192, 19, 192], [10, 20, 30, 0]),
            (ColorType::Rgba, Eight, &[[10, 20, 30, 1]; 4].concat(), [19; 4], [10, 20, 30, 10]),
            (ColorType::Indexed, Two, &[0b0001_0000, 0b1000_0000], [red[0], red[1], red[2], red[0]], [255, 0, 0, 0]),
        ] {
            let bytes = png_of(2, 2, color, depth, data);
            let read = |channels| Image::parse(Path::new("p.png"), &bytes, channels).unwrap();
            assert_eq!(read(1).pixels, grey, "{color:?} {depth:?}");
            assert_eq!((read(3).pixels.len(), &read(3).pixels[..4]), (12, &rgb[..]), "{color:?} {depth:?}");
        }
    }

    #[test]
    fn an_image_that_is_too_large_is_an_error() {
        let mut bytes = png(1, 1, &[0]);
        bytes[16..20].copy_from_slice(&20_000u32.to_be_bytes());
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&crc.finalize().to_be_bytes());
        let error = Image::parse(Path::new("p.png"), &bytes, 1).unwrap_err().to_string();
        assert!(error.contains("1 × 20000 pixels"), "{error}");
    }

    #[test]
    fn a_triangle_filter_weights_near_pixels_most() {
        let image = Image { height: 1, width: 4, channels: 1, pixels: vec![0, 40, 80, 200] };
        assert_eq!(image.resized_triangle(1, 4), image);
        // Three, three and one seventh.
        assert_eq!(image.resized_triangle(1, 2).pixels, [29, 126]);
        assert_eq!(image.resized_triangle(2, 8).pixels[..8], [0, 10, 30, 50, 70, 110, 170, 200]);
        assert_eq!(image.resized_triangle(1, 1).pixels, [77]);
    }

    #[test]
    fn resized_pixels_are_means_of_areas() {
        let image = Image { height: 2, width: 3, channels: 1, pixels: vec![0, 30, 60, 90, 120, 150] };
        assert_eq!(image.resized(1, 1).pixels, [75]);
        assert_eq!(image.resized(2, 3), image);
        // One and a half pixels across: (0 + 15) / 1.5 and (15 + 60) / 1.5.
        assert_eq!(image.resized(2, 2).pixels, [10, 50, 100, 140]);
        assert_eq!(image.centre_square().pixels, [0, 30, 90, 120]);
    }
}
