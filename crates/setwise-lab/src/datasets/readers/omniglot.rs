//! Omniglot: handwritten characters of fifty alphabets.

use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::array::read_arrays;
use super::content::bad;
use super::{Array, Image};
use crate::{Error, Result};

/// Side of a drawing in pixels.
pub const OMNIGLOT_SIDE: usize = 105;
/// Bytes of a drawing as bits.
const BYTES: usize = (OMNIGLOT_SIDE * OMNIGLOT_SIDE).div_ceil(8);

/// Drawings of one part of Omniglot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Omniglot {
    /// The drawings, one bit per pixel, the most significant bit first. Each drawing starts at a byte. Ink is 1.
    pub bits: Vec<u8>,
    /// The character of each drawing, numbered from zero over all alphabets.
    pub characters: Vec<u32>,
    /// The alphabet of each drawing.
    pub alphabets: Vec<u32>,
}

impl Omniglot {
    /// Reads a part (`background` or `evaluation`) from an NPZ file of packed bits.
    pub fn read_packed(path: &Path, part: &str) -> Result<Self> {
        let mut arrays = read_arrays(path)?;
        let mut take = |name: &str| {
            let name = format!("{part}_{name}");
            arrays.remove(&name).ok_or_else(|| bad(path, format!("has no array {name:?}")))
        };
        let bits = take("bits")?;
        let labels = |name: &str, array: Array, n: usize| {
            let has_label_per_item = array.shape == [n];
            let labels = array.labels().filter(|_| has_label_per_item);
            labels.ok_or_else(|| bad(path, format!("array \"{part}_{name}\" has no label for each of {n} drawings")))
        };
        let [n, BYTES] = bits.shape[..] else {
            return Err(bad(
                path,
                format!("array \"{part}_bits\" has shape {:?}, not [drawings, {BYTES}]", bits.shape),
            ));
        };
        let characters = labels("char", take("char")?, n)?;
        let alphabets = labels("alphabet", take("alphabet")?, n)?;
        let kind = bits.kind;
        let bits = bits
            .into_bytes()
            .ok_or_else(|| bad(path, format!("array \"{part}_bits\" is of {kind:?}, not of bytes")))?;
        Ok(Omniglot { bits, characters, alphabets })
    }

    /// Reads a folder of images, `ALPHABET/CHARACTER/DRAWING.png`, as in `images_background.zip`.
    ///
    /// Names are sorted, so the numbers of characters are deterministic.
    pub fn read_folder(path: &Path) -> Result<Self> {
        let mut drawings: Vec<(PathBuf, u32, u32)> = Vec::new();
        let mut character = 0;
        for (alphabet, folder) in entries(path)?.into_iter().filter(|p| p.is_dir()).enumerate() {
            for folder in entries(&folder)?.into_iter().filter(|p| p.is_dir()) {
                let files = entries(&folder)?.into_iter().filter(|p| p.extension().is_some_and(|e| e == "png"));
                drawings.extend(files.map(|p| (p, character, alphabet as u32)));
                character += 1;
            }
        }
        if drawings.is_empty() {
            return Err(bad(path, "has no ALPHABET/CHARACTER/DRAWING.png"));
        }
        let bits: Vec<Vec<u8>> = drawings.par_iter().map(|d| read_drawing(&d.0)).collect::<Result<_>>()?;
        let (characters, alphabets) = drawings.iter().map(|d| (d.1, d.2)).unzip();
        Ok(Omniglot { bits: bits.concat(), characters, alphabets })
    }

    /// Number of drawings.
    pub fn len(&self) -> usize {
        self.characters.len()
    }

    /// Whether there are no drawings.
    pub fn is_empty(&self) -> bool {
        self.characters.is_empty()
    }

    /// A drawing as an image in which ink is white.
    pub fn image(&self, drawing: usize) -> Image {
        let row = &self.bits[drawing * BYTES..(drawing + 1) * BYTES];
        let pixel = |i: usize| if row[i / 8] >> (7 - i % 8) & 1 == 1 { 255 } else { 0 };
        let (height, width) = (OMNIGLOT_SIDE, OMNIGLOT_SIDE);
        Image { height, width, channels: 1, pixels: (0..height * width).map(pixel).collect() }
    }
}

/// The entries of a folder, sorted by name.
fn entries(path: &Path) -> Result<Vec<PathBuf>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path).map_err(Error::io(path))? {
        entries.push(entry.map_err(Error::io(path))?.path());
    }
    entries.sort();
    Ok(entries)
}

/// Reads the bits of a drawing. Ink is dark in the files.
fn read_drawing(path: &Path) -> Result<Vec<u8>> {
    let image = Image::read(path, 1)?;
    if (image.height, image.width) != (OMNIGLOT_SIDE, OMNIGLOT_SIDE) {
        let (h, w) = (image.height, image.width);
        return Err(bad(path, format!("is {h} × {w} pixels; drawings are {OMNIGLOT_SIDE} × {OMNIGLOT_SIDE}")));
    }
    let mut bits = vec![0; BYTES];
    for (i, _) in image.pixels.iter().enumerate().filter(|p| *p.1 < 128) {
        bits[i / 8] |= 128 >> (i % 8);
    }
    Ok(bits)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::images::tests::png;
    use super::*;

    /// Writes a folder of synthetic drawings: counts of alphabets, characters of each, drawings of each.
    pub(crate) fn omniglot_folder(path: &Path, counts: [usize; 3]) {
        for a in 0..counts[0] {
            for c in 0..counts[1] {
                let folder = path.join(format!("Alphabet{a:02}/character{c:02}"));
                std::fs::create_dir_all(&folder).unwrap();
                for d in 0..counts[2] {
                    // The distance of lines depends on the character, their offset on the drawing.
                    let ink = |i: usize| if (i + d).is_multiple_of(3 + 2 * a + c) { 0 } else { 255 };
                    let pixels: Vec<u8> = (0..OMNIGLOT_SIDE * OMNIGLOT_SIDE).map(ink).collect();
                    std::fs::write(folder.join(format!("{d:04}.png")), png(OMNIGLOT_SIDE, OMNIGLOT_SIDE, &pixels))
                        .unwrap();
                }
            }
        }
    }

    #[test]
    fn a_folder_of_drawings_has_sorted_characters_and_ink_is_one() {
        let dir = tempfile::tempdir().unwrap();
        omniglot_folder(dir.path(), [2, 2, 3]);
        let found = Omniglot::read_folder(dir.path()).unwrap();
        assert_eq!(found.characters, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
        assert_eq!(found.alphabets, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(found.image(0).pixels[..6], [255, 0, 0, 255, 0, 0]);
        assert_eq!(found.image(1).pixels[..6], [0, 0, 255, 0, 0, 255]);
        std::fs::write(dir.path().join("Alphabet00/character00/0009.png"), png(2, 2, &[0; 4])).unwrap();
        let error = Omniglot::read_folder(dir.path()).unwrap_err().to_string();
        assert!(error.contains("0009.png") && error.contains("2 × 2"), "{error}");
    }

    #[test]
    fn resized_real_drawings_agree_with_another_program() {
        let Some(data) = crate::datasets::real_data() else { return };
        let folder = data.of(crate::datasets::DataSet::Omniglot).unwrap();
        let drawings = Omniglot::read_packed(&folder.join("omniglot_105_bits.npz"), "evaluation").unwrap();
        assert_eq!(drawings.len(), 13180);
        assert_eq!(drawings.characters.iter().max(), Some(&658));
        // The same drawings, resized by another program.
        let small = read_arrays(&folder.join("omniglot_28_gray.npz")).unwrap().remove("evaluation_images").unwrap();
        let small = small.into_bytes().unwrap();
        // Its filter counts full pixels, so values differ at edges, but less than between drawings.
        for i in (0..13000).step_by(997) {
            let ours = drawings.image(i).resized(28, 28).pixels;
            let difference = |j: usize| {
                let theirs = &small[j * 784..(j + 1) * 784];
                ours.iter().zip(theirs).map(|(&a, &b)| f64::from(a.abs_diff(b))).sum::<f64>() / 784.0
            };
            assert!(
                difference(i) < 5.0 && difference(i + 50) > 10.0,
                "{i}: {} and {}",
                difference(i),
                difference(i + 50)
            );
        }
    }
}
