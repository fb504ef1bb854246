//! Resize, crop and normalisation of images for an encoder.

use std::borrow::Cow;

use crate::Result;
use crate::datasets::readers::Image;

/// Resize, crop and normalisation. The defaults are those of networks trained on ImageNet.
///
/// ```
/// use setwise_lab::datasets::readers::Image;
/// use setwise_lab::embed::Preparation;
/// let grey = Image { height: 300, width: 400, channels: 3, pixels: vec![128; 300 * 400 * 3] };
/// let numbers = Preparation::default().apply(&grey)?;
/// assert_eq!(numbers.len(), 224 * 224 * 3);
/// assert!((numbers[0] - (128.0 / 255.0 - 0.485) / 0.229).abs() < 1e-5);
/// # Ok::<(), setwise_lab::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Preparation {
    /// Length of the shorter side after resizing. None skips resizing.
    pub resize: Option<usize>,
    /// Side of the centre crop.
    pub crop: usize,
    /// Mean of each channel, for pixels from 0 to 1.
    pub mean: [f32; 3],
    /// Standard deviation of each channel.
    pub deviation: [f32; 3],
}

impl Default for Preparation {
    fn default() -> Self {
        Preparation { resize: Some(256), crop: 224, mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] }
    }
}

/// Largest side of a resized image.
const MAX_SIDE: usize = 1 << 13;

impl Preparation {
    /// Checks every value.
    pub fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(setwise::Error::Sets(what).into());
        if self.crop == 0 || self.crop > MAX_SIDE {
            return invalid(format!("--crop {}: must be between 1 and {MAX_SIDE}", self.crop));
        }
        if let Some(n) = self.resize.filter(|&n| n < self.crop || n > MAX_SIDE) {
            return invalid(format!(
                "--resize {n}: must be between the side of the crop, {}, and {MAX_SIDE}",
                self.crop
            ));
        }
        if self.deviation.iter().chain(&self.mean).any(|x| !x.is_finite()) || self.deviation.contains(&0.0) {
            return invalid("--mean and --std must be finite, and no --std 0".to_owned());
        }
        Ok(())
    }

    /// The normalised pixels of an image, channels of a pixel side by side.
    pub fn apply(&self, image: &Image) -> Result<Vec<f32>> {
        let Image { height, width, channels, pixels } = image;
        if *channels != 3 {
            return Err(setwise::Error::Sets(format!(
                "the image has {channels} channels, expected red, green and blue"
            ))
            .into());
        }
        if pixels.len() != height * width * 3 || pixels.is_empty() {
            return Err(
                setwise::Error::Sets("the number of pixels does not match the size of the image".to_owned()).into()
            );
        }
        let (height, width) = (*height, *width);
        let mut image = Cow::Borrowed(image);
        if let Some(shorter) = self.resize.filter(|&n| n != height.min(width)) {
            let scaled = |side: usize| (side * shorter).div_euclid(height.min(width)).clamp(shorter, MAX_SIDE);
            image = Cow::Owned(image.resized_triangle(scaled(height), scaled(width)));
        }
        let Image { height, width, pixels, .. } = &*image;
        let (side, height, width) = (self.crop, *height, *width);
        if height < side || width < side {
            return Err(setwise::Error::Sets(format!(
                "is {height} × {width} pixels, too small for a crop of {side} × {side}"
            ))
            .into());
        }
        let (top, left) = ((height - side) / 2, (width - side) / 2);
        let mut numbers = Vec::with_capacity(side * side * 3);
        for y in top..top + side {
            let line = &pixels[(y * width + left) * 3..][..side * 3];
            for pixel in line.chunks_exact(3) {
                numbers.extend((0..3).map(|c| (f32::from(pixel[c]) / 255.0 - self.mean[c]) / self.deviation[c]));
            }
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(height: usize, width: usize) -> Image {
        let pixel = |i: usize| [(i % width) as u8, (i / width) as u8, 7];
        Image { height, width, channels: 3, pixels: (0..height * width).flat_map(pixel).collect() }
    }

    #[test]
    fn the_centre_is_cropped_and_images_of_the_right_size_are_not_resized() {
        let plain = Preparation { resize: Some(4), crop: 2, mean: [0.0; 3], deviation: [1.0 / 255.0; 3] };
        let numbers = plain.apply(&ramp(4, 8)).unwrap();
        let rounded: Vec<i32> = numbers.iter().map(|x| x.round() as i32).collect();
        assert_eq!(rounded, [3, 1, 7, 4, 1, 7, 3, 2, 7, 4, 2, 7]);
    }

    #[test]
    fn invalid_sizes_are_errors() {
        let small = Preparation { resize: None, ..Preparation::default() };
        assert!(small.apply(&ramp(100, 300)).unwrap_err().to_string().contains("100 × 300"));
        assert_eq!(Preparation::default().apply(&ramp(30, 9)).unwrap().len(), 224 * 224 * 3);
        for (wrong, expected) in [
            (Preparation { crop: 0, ..small.clone() }, "--crop 0"),
            (Preparation { resize: Some(100), ..small.clone() }, "--resize 100"),
            (Preparation { deviation: [1.0, 0.0, 1.0], ..small.clone() }, "--std"),
        ] {
            assert!(wrong.check().unwrap_err().to_string().contains(expected));
        }
    }
}
