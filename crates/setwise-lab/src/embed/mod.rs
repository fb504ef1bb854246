//! Features of images: an encoder applied to a folder, in parallel.
//!
//! * [`Preparation`]: resize, crop and normalisation of an image for an encoder.
//! * [`Encoder`]: an ONNX model (feature `onnx`).
//! * [`images_in`], [`embed_images`]: all images of a folder; [`Features`]: their features, as a file.

#[cfg(feature = "onnx")]
mod onnx;
mod preparation;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use setwise::files::atomic::write_atomically;
use setwise::files::tensors::to_bytes;
use setwise::files::write_npy;

use crate::datasets::readers::{Image, bad};
use crate::{Error, Result};

#[cfg(feature = "onnx")]
pub use onnx::Encoder;
pub use preparation::Preparation;

/// The encoder of builds without the feature `onnx`. It cannot be constructed.
#[cfg(not(feature = "onnx"))]
pub struct Encoder(std::convert::Infallible);

#[cfg(not(feature = "onnx"))]
impl Encoder {
    /// Returns an error: this build has no encoders.
    pub fn load(_: &Path, _: &Preparation) -> Result<Self> {
        Err(setwise::Error::Device("this setwise was built without ONNX; build it with --features onnx".to_owned())
            .into())
    }

    /// Never called.
    pub fn encode(&self, _: &Image) -> Result<Vec<f32>> {
        match self.0 {}
    }
}

/// Features of images.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Names of the images, in the order of rows.
    pub names: Vec<String>,
    /// Features of an image.
    pub width: usize,
    /// Row-major features `[images, width]`.
    pub rows: Vec<f32>,
}

impl Features {
    /// Writes the features as NPY for the extension `.npy`, otherwise as safetensors.
    ///
    /// NPY has the names of the images in a text beside it (`.names.txt`). Safetensors has the array `features` and
    /// the names, one per line, in its metadata.
    pub fn save(&self, path: &Path) -> Result<()> {
        let (shape, names) = ([self.names.len(), self.width], self.names.join("\n"));
        if path.extension().is_some_and(|e| e == "npy") {
            let list = path.with_extension("names.txt");
            write_npy(path, &shape, &self.rows)?;
            return write_atomically(&list, (names + "\n").as_bytes()).map_err(Error::io(&list));
        }
        let metadata = BTreeMap::from([("names".to_owned(), names)]);
        let bytes = to_bytes([("features", shape.to_vec(), self.rows.as_slice())], &metadata);
        write_atomically(path, &bytes).map_err(Error::io(path))
    }
}

/// The images of a folder (`.jpg`, `.jpeg` and `.png`), sorted by name.
pub fn images_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        if extension.is_some_and(|e| ["jpg", "jpeg", "png"].contains(&e.as_str())) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    if found.is_empty() {
        return Err(bad(folder, "has no images (.jpg, .jpeg or .png)"));
    }
    Ok(found)
}

/// Applies an encoder to images on all threads of the current pool. `done` is called after each image.
pub fn embed_images(
    images: &[PathBuf],
    encode: impl Fn(&Image) -> Result<Vec<f32>> + Sync,
    done: impl Fn() + Sync,
) -> Result<Features> {
    let rows: Vec<Vec<f32>> = images
        .par_iter()
        .map(|path| {
            let row = encode(&Image::read(path, 3)?).map_err(|e| bad(path, e.to_string()))?;
            done();
            Ok(row)
        })
        .collect::<Result<_>>()?;
    let width = rows.first().map_or(0, Vec::len);
    if let Some(i) = rows.iter().position(|r| r.len() != width || r.iter().any(|x| !x.is_finite())) {
        return Err(bad(
            &images[i],
            format!("has {} features, some of them not finite; others have {width}", rows[i].len()),
        ));
    }
    let name = |p: &PathBuf| p.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
    Ok(Features { names: images.iter().map(name).collect(), width, rows: rows.concat() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasets::readers::{read_arrays, synthetic};

    #[test]
    fn features_are_in_the_order_of_names_and_written_in_both_formats() {
        let dir = tempfile::tempdir().unwrap();
        assert!(images_in(dir.path()).unwrap_err().to_string().contains("no images"));
        for (name, grey) in [("b.png", 20), ("a.PNG", 10), ("c.jpg", 30)] {
            std::fs::write(dir.path().join(name), synthetic::png(2, 2, &[grey; 4])).unwrap();
        }
        std::fs::write(dir.path().join("notes.txt"), "x").unwrap();
        let images = images_in(dir.path()).unwrap();
        let count = std::sync::atomic::AtomicUsize::new(0);
        let encode = |p: &Image| Ok(vec![f32::from(p.pixels[0]), 1.0]);
        let features = embed_images(&images, encode, || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        let features = features.unwrap();
        assert_eq!((features.names.join(" "), count.into_inner()), ("a.PNG b.png c.jpg".to_owned(), 3));
        assert_eq!(features.rows, [10.0, 1.0, 20.0, 1.0, 30.0, 1.0]);
        for name in ["f.safetensors", "f.npy"] {
            let path = dir.path().join(name);
            features.save(&path).unwrap();
            let array = read_arrays(&path).unwrap().into_values().next().unwrap();
            assert_eq!((array.shape.clone(), array.floats()), (vec![3, 2], features.rows.clone()), "{name}");
        }
        assert_eq!(std::fs::read_to_string(dir.path().join("f.names.txt")).unwrap(), "a.PNG\nb.png\nc.jpg\n");
        std::fs::write(dir.path().join("b.png"), "no image").unwrap();
        let error = embed_images(&images, encode, || {}).unwrap_err().to_string();
        assert!(error.contains("b.png: is not a readable image"), "{error}");
    }
}
