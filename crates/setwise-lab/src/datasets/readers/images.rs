//! Images in files (PNG and JPEG), and their sizes changed.

use std::io::Cursor;
use std::path::Path;

use jpeg_decoder::PixelFormat;
use png::{BitDepth, Transformations};

use super::content::{bad, read};
use crate::Result;

/// Pixels of an image, row by row, with its channels side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Rows of pixels.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// 1 for grey, 3 for red, green and blue.
    pub channels: usize,
    /// The bytes.
    pub pixels: Vec<u8>,
}

/// Largest side of an image, and memory for decoding one.
const LARGEST_SIDE: u32 = 1 << 14;
const MOST_MEMORY: usize = 1 << 29;

impl Image {
    /// Reads a PNG or JPEG file, told by its content; `channels` is 1 or 3.
    pub fn read(path: &Path, channels: usize) -> Result<Self> {
        Self::parse(path, &read(path)?, channels)
    }

    /// Reads the content of a file.
    pub fn parse(path: &Path, bytes: &[u8], channels: usize) -> Result<Self> {
        let jpeg = bytes.starts_with(&[0xff, 0xd8]);
        let decoded = if jpeg { parse_jpeg(bytes) } else { parse_png(bytes) };
        let decoded = decoded.map_err(|reason| bad(path, format!("is no image that can be read: {reason}")))?;
        Ok(decoded.in_channels(channels))
    }

    /// Grey from colours by how bright they are, colours of grey, and nothing that was transparent.
    fn in_channels(self, channels: usize) -> Self {
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

    /// The largest square in the middle.
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

    /// The image in another size; each new pixel is the mean of the area it covers.
    pub fn resized(&self, height: usize, width: usize) -> Self {
        self.mixed(&shares(self.height, height), &shares(self.width, width))
    }

    /// The image in another size; each new pixel is a mean of those around it that counts the nearest most.
    pub fn smoothed(&self, height: usize, width: usize) -> Self {
        self.mixed(&near(self.height, height), &near(self.width, width))
    }

    /// New rows and columns as sums of shares of the old ones.
    fn mixed(&self, down: &[Vec<(usize, f32)>], across: &[Vec<(usize, f32)>]) -> Self {
        let (height, width) = (down.len(), across.len());
        let (channels, mut rows) = (self.channels, Vec::with_capacity(self.height * width * self.channels));
        for line in self.pixels.chunks_exact(self.width * channels) {
            for parts in across {
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
        Image { height, width, channels, pixels }
    }
}

fn check_size(height: u32, width: u32) -> std::result::Result<(), String> {
    if width > LARGEST_SIDE || height > LARGEST_SIDE {
        return Err(format!("it is {height} × {width} pixels, {LARGEST_SIDE} is the longest side"));
    }
    Ok(())
}

/// Reads a PNG file: grey or coloured, with one channel more where it has transparent parts.
fn parse_png(bytes: &[u8]) -> std::result::Result<Image, String> {
    let told = |e: png::DecodingError| e.to_string();
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: MOST_MEMORY });
    decoder.set_transformations(Transformations::EXPAND);
    if !bytes.starts_with(b"\x89PNG") {
        return Err("it is neither a PNG nor a JPEG file".to_owned());
    }
    let mut reader = decoder.read_info().map_err(told)?;
    let (width, height) = reader.info().size();
    check_size(height, width)?;
    let size = reader
        .output_buffer_size()
        .filter(|&n| n <= MOST_MEMORY)
        .ok_or_else(|| format!("its {height} × {width} pixels take more than {MOST_MEMORY} bytes"))?;
    let mut pixels = vec![0; size];
    let info = reader.next_frame(&mut pixels).map_err(told)?;
    if info.bit_depth == BitDepth::Sixteen {
        let eight = |b: &[u8]| ((u32::from(b[0]) * 256 + u32::from(b[1]) + 128) / 257) as u8;
        pixels = pixels.chunks_exact(2).map(eight).collect();
    }
    let channels = info.color_type.samples();
    Ok(Image { height: height as usize, width: width as usize, channels, pixels })
}

/// Reads a JPEG file, grey or coloured.
fn parse_jpeg(bytes: &[u8]) -> std::result::Result<Image, String> {
    let mut decoder = jpeg_decoder::Decoder::new(bytes);
    decoder.set_max_decoding_buffer_size(MOST_MEMORY);
    decoder.read_info().map_err(|e| e.to_string())?;
    let info = decoder.info().ok_or("it has no header")?;
    check_size(info.height.into(), info.width.into())?;
    let pixels = decoder.decode().map_err(|e| e.to_string())?;
    let channels = match info.pixel_format {
        PixelFormat::L8 => 1,
        PixelFormat::RGB24 => 3,
        other => return Err(format!("its pixels are {other:?}; grey and coloured ones are read")),
    };
    let (height, width) = (info.height as usize, info.width as usize);
    if pixels.len() != height * width * channels {
        return Err("its pixels are not all there".to_owned());
    }
    Ok(Image { height, width, channels, pixels })
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

/// For each of `to` pixels those of `from` less than a new pixel away, or an old one where these are wider, with shares that fall with the distance.
fn near(from: usize, to: usize) -> Vec<Vec<(usize, f32)>> {
    let step = from as f64 / to as f64;
    let reach = step.max(1.0);
    let of = |i: usize| {
        let centre = (i as f64 + 0.5) * step - 0.5;
        let around = (centre - reach).ceil().max(0.0) as usize..=((centre + reach).floor() as usize).min(from - 1);
        let share = |x: usize| 1.0 - (x as f64 - centre).abs() / reach;
        let total: f64 = around.clone().map(share).sum();
        around.map(|x| (x, (share(x) / total) as f32)).collect()
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
    fn images_are_read_in_grey_and_in_colour_and_damage_is_told_of() {
        let bytes = png(2, 3, &[0, 50, 100, 150, 200, 250]);
        let grey = Image::parse(Path::new("p.png"), &bytes, 1).unwrap();
        assert_eq!((grey.height, grey.width, grey.pixels.as_slice()), (2, 3, [0, 50, 100, 150, 200, 250].as_slice()));
        assert_eq!(Image::parse(Path::new("p.png"), &bytes, 3).unwrap().pixels[3..6], [50, 50, 50]);
        for cut in [0, 7, 30, bytes.len() - 20] {
            let error = Image::parse(Path::new("p.png"), &bytes[..cut], 1).unwrap_err().to_string();
            assert!(error.starts_with("p.png: is no image"), "{error}");
        }
    }

    #[test]
    fn every_kind_of_png_is_read_in_grey_and_in_colour() {
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
    fn an_image_that_is_too_large_is_not_read() {
        let mut bytes = png(1, 1, &[0]);
        bytes[16..20].copy_from_slice(&20_000u32.to_be_bytes());
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&crc.finalize().to_be_bytes());
        let error = Image::parse(Path::new("p.png"), &bytes, 1).unwrap_err().to_string();
        assert!(error.contains("1 × 20000 pixels"), "{error}");
    }

    #[test]
    fn smoothed_pixels_are_those_around_them() {
        let image = Image { height: 1, width: 4, channels: 1, pixels: vec![0, 40, 80, 200] };
        assert_eq!(image.smoothed(1, 4), image);
        // Three, three and one seventh.
        assert_eq!(image.smoothed(1, 2).pixels, [29, 126]);
        assert_eq!(image.smoothed(2, 8).pixels[..8], [0, 10, 30, 50, 70, 110, 170, 200]);
        assert_eq!(image.smoothed(1, 1).pixels, [77]);
    }

    #[test]
    fn pixels_of_another_size_are_means_of_areas() {
        let image = Image { height: 2, width: 3, channels: 1, pixels: vec![0, 30, 60, 90, 120, 150] };
        assert_eq!(image.resized(1, 1).pixels, [75]);
        assert_eq!(image.resized(2, 3), image);
        // One and a half pixels across: (0 + 15) / 1.5 and (15 + 60) / 1.5.
        assert_eq!(image.resized(2, 2).pixels, [10, 50, 100, 140]);
        assert_eq!(image.centre_square().pixels, [0, 30, 90, 120]);
    }
}
