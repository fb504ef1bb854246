//! Data sets of images for counting and classification tasks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use super::classes::Classes;
use super::readers::{Image, OMNIGLOT_SIDE, Omniglot, bad, read_arrays, read_idx, read_records};
use super::{Counting, DataFolder, DataSet, Items, SameClass};
use crate::{Error, Result};

/// Side of MNIST's images.
pub const MNIST_SIDE: usize = 28;
/// Side of images of mixed data sets.
pub const MIXED_SIDE: usize = 32;
const MIXED_CHANNELS: usize = 3;

/// Number of MNIST's validation images: the last ones of the training file.
const MNIST_VALIDATION: usize = 5000;
/// Alphabets of Omniglot's evaluation part in the validation split. The others are the test split.
const VALIDATION_ALPHABETS: u32 = 5;

/// Counting of digits. The test file is the test split, the training file the other splits.
pub fn mnist_counting(data: &DataFolder) -> Result<Counting> {
    let (mut pixels, mut labels) = read_digits(data, DataSet::Mnist, "train")?;
    let test_start = labels.len();
    let (test_pixels, test_labels) = read_digits(data, DataSet::Mnist, "t10k")?;
    pixels.extend(test_pixels);
    labels.extend(test_labels);
    let validation_start = test_start.saturating_sub(MNIST_VALIDATION);
    let classes = |range: std::ops::Range<usize>| Classes::group(&labels[range.clone()], range.start as u32);
    let splits =
        [classes(0..validation_start), classes(validation_start..test_start), classes(test_start..labels.len())];
    Ok(Counting::new(Arc::new(Items::bytes(MNIST_SIDE * MNIST_SIDE, pixels)), splits))
}

/// Counting of characters in drawings of `side` × `side` pixels.
///
/// The background part is the training split. The alphabets of the evaluation part are the other splits.
pub fn omniglot_counting(data: &DataFolder, side: usize) -> Result<Counting> {
    let [background, evaluation] = read_omniglot(data)?;
    let splits = omniglot_splits(&background, &evaluation, 0);
    let items = if side == OMNIGLOT_SIDE {
        Items::bits(side * side, [background.bits, evaluation.bits].concat())
    } else {
        let drawings = |o: &Omniglot| -> Vec<u8> {
            let small: Vec<Vec<u8>> =
                (0..o.len()).into_par_iter().map(|i| o.image(i).resized(side, side).pixels).collect();
            small.concat()
        };
        Items::bytes(side * side, [drawings(&background), drawings(&evaluation)].concat())
    };
    Ok(Counting::new(Arc::new(items), splits))
}

/// Images of several data sets, all 32 × 32 pixels with three channels. Each class is in one split only.
///
/// Grey images of 28 × 28 pixels are centred in a black frame.
pub fn mixed_images(data: &DataFolder, sets: &[DataSet]) -> Result<SameClass> {
    let mut pixels = Vec::new();
    let mut classes_of_sets = Vec::new();
    const WIDTH: usize = MIXED_SIDE * MIXED_SIDE * MIXED_CHANNELS;
    for &set in sets {
        let first = (pixels.len() / WIDTH) as u32;
        match set {
            DataSet::Mnist | DataSet::FashionMnist | DataSet::NotMnist => {
                let (digits, labels) = read_digits(data, set, "t10k")?;
                digits.chunks_exact(MNIST_SIDE * MNIST_SIDE).for_each(|d| framed(d, &mut pixels));
                classes_of_sets.push(Classes::group(&labels, first).split(set.folder()));
            }
            DataSet::Omniglot => {
                let [background, evaluation] = read_omniglot(data)?;
                for part in [&background, &evaluation] {
                    let small: Vec<Image> = (0..part.len())
                        .into_par_iter()
                        .map(|i| part.image(i).resized(MNIST_SIDE, MNIST_SIDE))
                        .collect();
                    small.iter().for_each(|p| framed(&p.pixels, &mut pixels));
                }
                classes_of_sets.push(omniglot_splits(&background, &evaluation, first));
            }
            DataSet::Cifar10 | DataSet::Gtsrb | DataSet::Dtd10 | DataSet::Flowers5 | DataSet::TinyImagenet200 => {
                let (name, images, labels) = read_packed(data, set)?;
                pixels.extend(images);
                classes_of_sets.push(Classes::group(&labels, first).split(&name));
            }
            DataSet::MetaDataset => {
                for (name, classes) in read_meta_dataset(&data.of(set)?, set)? {
                    let first = (pixels.len() / WIDTH) as u32;
                    let labels: Vec<u32> = classes.iter().map(|c| c.0).collect();
                    classes.into_iter().for_each(|c| pixels.extend(c.1));
                    classes_of_sets.push(Classes::group(&labels, first).split(&name));
                }
            }
            other => return Err(bad(Path::new(other.folder()), "is not a data set of images with classes".to_owned())),
        }
    }
    Ok(SameClass::new(Arc::new(Items::bytes(WIDTH, pixels)), classes_of_sets))
}

/// Images and labels of a pair of IDX files; `part` is `train` or `t10k`.
fn read_digits(data: &DataFolder, set: DataSet, part: &str) -> Result<(Vec<u8>, Vec<u32>)> {
    let file = |kind: &str| {
        let name = format!("{part}-{kind}-ubyte");
        data.file(set, &[&format!("{name}.gz"), &name])
    };
    let (image_file, label_file) = (file("images-idx3")?, file("labels-idx1")?);
    let (images, labels) = (read_idx(&image_file)?, read_idx(&label_file)?);
    let [n, MNIST_SIDE, MNIST_SIDE] = images.shape[..] else {
        return Err(bad(&image_file, format!("has shape {:?}, not [images, 28, 28]", images.shape)));
    };
    match labels.labels().filter(|_| labels.shape == [n] && n > 0) {
        Some(labels) => Ok((images.into_bytes().expect("IDX files of bytes"), labels)),
        None => Err(bad(&label_file, format!("has shape {:?}, {} has {n} images", labels.shape, image_file.display()))),
    }
}

/// Both parts of Omniglot, in packed form or as folders of images.
fn read_omniglot(data: &DataFolder) -> Result<[Omniglot; 2]> {
    let set = DataSet::Omniglot;
    let path = data.file(set, &["omniglot_105_bits.npz", "images_background"])?;
    if path.is_dir() {
        return Ok([Omniglot::read_folder(&path)?, Omniglot::read_folder(&data.file(set, &["images_evaluation"])?)?]);
    }
    Ok([Omniglot::read_packed(&path, "background")?, Omniglot::read_packed(&path, "evaluation")?])
}

/// Characters by split. The first drawing of the background part has index `first`.
fn omniglot_splits(background: &Omniglot, evaluation: &Omniglot, first: u32) -> [Classes; 3] {
    let start = first + background.len() as u32;
    let mut splits = [Classes::group(&background.characters, first), Classes::default(), Classes::default()];
    for class in Classes::group(&evaluation.characters, start).0 {
        let alphabet = evaluation.alphabets[(class[0] - start) as usize];
        splits[if alphabet < VALIDATION_ALPHABETS { 1 } else { 2 }].0.push(class);
    }
    splits
}

/// Appends a grey image of 28 × 28 pixels, centred in 32 × 32 pixels of three equal channels.
fn framed(grey: &[u8], out: &mut Vec<u8>) {
    let edge = (MIXED_SIDE - MNIST_SIDE) / 2;
    let first = out.len();
    out.resize(first + MIXED_SIDE * MIXED_SIDE * MIXED_CHANNELS, 0);
    for (y, line) in grey.chunks_exact(MNIST_SIDE).enumerate() {
        let at = first + ((y + edge) * MIXED_SIDE + edge) * MIXED_CHANNELS;
        for (pixel, &value) in out[at..].chunks_exact_mut(MIXED_CHANNELS).zip(line) {
            pixel.fill(value);
        }
    }
}

/// Name, pixels and labels of an NPZ file with `images` [n, 32, 32, 3] and `labels` [n].
fn read_packed(data: &DataFolder, set: DataSet) -> Result<(String, Vec<u8>, Vec<u32>)> {
    let name = match set {
        DataSet::Cifar10 => "cifar10",
        DataSet::Gtsrb => "gtsrb",
        DataSet::Dtd10 => "dtd10",
        DataSet::Flowers5 => "flowers5",
        DataSet::TinyImagenet200 => "tiny_imagenet200",
        other => return Err(bad(Path::new(other.folder()), "has no packed images".to_owned())),
    };
    let path = data.file(set, &[&format!("{name}.npz")])?;
    let mut arrays = read_arrays(&path)?;
    let mut take = |name: &str| arrays.remove(name).ok_or_else(|| bad(&path, format!("has no array {name:?}")));
    let (images, labels) = (take("images")?, take("labels")?);
    let shape = images.shape.clone();
    let pixels =
        images.into_bytes().filter(|_| shape.len() == 4 && shape[1..] == [MIXED_SIDE, MIXED_SIDE, MIXED_CHANNELS]);
    let pixels =
        pixels.ok_or_else(|| bad(&path, format!("\"images\" has shape {shape:?}, expected bytes [n, 32, 32, 3]")))?;
    let labelled = labels.labels().filter(|l| labels.shape.len() == 1 && l.len() == shape[0] && !l.is_empty());
    let labels =
        labelled.ok_or_else(|| bad(&path, format!("\"labels\" has no class for each of {} images", shape[0])))?;
    Ok((name.to_owned(), pixels, labels))
}

/// Folders of Meta-Dataset: the name, and class and pixels of each image.
type Folders = Vec<(String, Vec<(u32, Vec<u8>)>)>;

fn read_meta_dataset(folder: &Path, set: DataSet) -> Result<Folders> {
    let list = |path: &Path| -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(Error::io(path))? {
            found.push(entry.map_err(Error::io(path))?.path());
        }
        found.sort();
        Ok(found)
    };
    let mut folders = Vec::new();
    let entries = if folder.is_dir() { list(folder)? } else { Vec::new() };
    for path in entries.into_iter().filter(|p| p.is_dir()) {
        let files = list(&path)?.into_iter().filter(|p| p.extension().is_some_and(|e| e == "tfrecords"));
        let files: Vec<(u32, PathBuf)> = files.enumerate().map(|(class, file)| (class as u32, file)).collect();
        let classes: Vec<Vec<(u32, Vec<u8>)>> =
            files.par_iter().map(|(class, file)| read_class(*class, file)).collect::<Result<_>>()?;
        if !files.is_empty() {
            let name = path.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
            folders.push((name, classes.concat()));
        }
    }
    if folders.is_empty() {
        return Err(bad(folder, format!("has no DATASET/CLASS.tfrecords. {}", set.origin())));
    }
    Ok(folders)
}

/// The images of a class: centre squares, resized to 32 × 32 pixels.
fn read_class(class: u32, file: &Path) -> Result<Vec<(u32, Vec<u8>)>> {
    let images = read_records(file)?.into_iter().enumerate().map(|(i, record)| {
        let name = file.join(format!("record {i}"));
        let image = Image::parse(&name, &record.image, MIXED_CHANNELS)?;
        Ok((class, image.centre_square().resized(MIXED_SIDE, MIXED_SIDE).pixels))
    });
    images.collect()
}

#[cfg(test)]
mod tests {
    use super::super::classes::tests::assert_no_leak;
    use super::super::readers::synthetic;
    use super::*;
    use crate::datasets::Picker;
    use crate::datasets::real_data;
    use crate::samplers::Split;

    fn write_digits(folder: &Path, part: &str, labels: &[u8]) {
        std::fs::create_dir_all(folder).unwrap();
        let n = (labels.len() as u32).to_be_bytes();
        let images =
            [&[0, 0, 8, 3][..], &n, &[0, 0, 0, 28, 0, 0, 0, 28], &vec![labels[0]; 784 * labels.len()]].concat();
        std::fs::write(folder.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        std::fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), [&[0, 0, 8, 1][..], &n, labels].concat())
            .unwrap();
    }

    #[test]
    fn digits_of_the_test_file_are_the_test_split() {
        let dir = tempfile::tempdir().unwrap();
        let labels: Vec<u8> = (0..5100u32).map(|i| (i % 10) as u8).collect();
        write_digits(&dir.path().join("mnist"), "train", &labels);
        let data = DataFolder::at(dir.path());
        let error = mnist_counting(&data).unwrap_err().to_string();
        assert!(error.contains("t10k-images-idx3-ubyte") && error.contains("ossci-datasets"), "{error}");
        write_digits(&dir.path().join("mnist"), "t10k", &[3, 1, 3]);
        let counting = mnist_counting(&data).unwrap();
        assert_no_leak(Split::ALL.map(|s| (s, counting.classes(s))));
        assert_eq!(counting.classes(Split::Test), &Classes(vec![vec![5101], vec![5100, 5102]]));
        assert_eq!(counting.classes(Split::Training).0.iter().flatten().count(), 100);
        std::fs::write(dir.path().join("mnist/t10k-labels-idx1-ubyte"), [0, 0, 8, 1, 0, 0, 0, 1, 3]).unwrap();
        assert!(mnist_counting(&data).unwrap_err().to_string().contains("has 3 images"));
    }

    #[test]
    fn alphabets_of_drawings_are_in_one_split_only_whatever_form_they_come_in() {
        let dir = tempfile::tempdir().unwrap();
        synthetic::omniglot_folder(&dir.path().join("omniglot/images_background"), [2, 2, 2]);
        synthetic::omniglot_folder(&dir.path().join("omniglot/images_evaluation"), [7, 2, 2]);
        let data = DataFolder::at(dir.path());
        for side in [OMNIGLOT_SIDE, 15] {
            let counting = omniglot_counting(&data, side).unwrap();
            assert_eq!(counting.items()[0].width(), side * side);
            assert_no_leak(Split::ALL.map(|s| (s, counting.classes(s))));
            assert_eq!(Split::ALL.map(|s| counting.classes(s).0.len()), [4, 10, 4]);
        }
    }

    #[test]
    fn images_of_several_data_sets_are_resized_to_one_size() {
        let dir = tempfile::tempdir().unwrap();
        let labels: Vec<u8> = (0..40).map(|i| i % 10).collect();
        write_digits(&dir.path().join("mnist"), "t10k", &labels);
        let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (6, 32, 32, 3), }\n";
        let npy = |header: &str, data: &[u8]| {
            [b"\x93NUMPY\x01\x00", (header.len() as u16).to_le_bytes().as_slice(), header.as_bytes(), data].concat()
        };
        let images = npy(header, &[9; 6 * 3072]);
        let classes = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (6,), }\n", &[0, 0, 1, 1, 2, 2]);
        std::fs::create_dir(dir.path().join("multiset_images32")).unwrap();
        let archive = synthetic::zip(&[("images.npy", &images), ("labels.npy", &classes)]);
        std::fs::write(dir.path().join("multiset_images32/gtsrb.npz"), archive).unwrap();
        let birds = dir.path().join("meta-dataset/birds");
        std::fs::create_dir_all(&birds).unwrap();
        let bright = synthetic::png(40, 50, &[200; 2000]);
        for class in 0..3 {
            let file = synthetic::record_file(&[(&bright, class), (&bright, class)]);
            std::fs::write(birds.join(format!("{class}.tfrecords")), file).unwrap();
        }
        let sets = [DataSet::Mnist, DataSet::Gtsrb, DataSet::MetaDataset];
        let same = mixed_images(&DataFolder::at(dir.path()), &sets).unwrap();
        let items = &same.items()[0];
        assert_eq!((items.width(), items.len()), (3072, 52));
        let row = |i: usize| {
            let mut row = Vec::new();
            items.append(i, &mut row);
            row
        };
        assert_eq!((row(40)[0], row(51)[7]), (9.0 / 255.0, 200.0 / 255.0));
        assert_eq!(row(0)[..6], [0.0; 6]);
        assert_no_leak(Split::ALL.iter().flat_map(|&s| same.sets(s).iter().map(move |c| (s, c))));
        assert_eq!(same.shortage(), None);
    }

    #[test]
    fn classes_of_the_real_data_sets_are_in_one_split_only() {
        let Some(data) = real_data() else { return };
        let counting = omniglot_counting(&data, OMNIGLOT_SIDE).unwrap();
        assert_no_leak(Split::ALL.map(|s| (s, counting.classes(s))));
        assert_eq!(counting.classes(Split::Training).0.len(), 964);
        assert_eq!(counting.shortage(10), None);
        let digits = mnist_counting(&data).unwrap();
        assert_no_leak(Split::ALL.map(|s| (s, digits.classes(s))));
        assert_eq!((digits.items()[0].len(), digits.shortage(30)), (70_000, None));
        let sets = [
            DataSet::FashionMnist,
            DataSet::NotMnist,
            DataSet::Cifar10,
            DataSet::Gtsrb,
            DataSet::Dtd10,
            DataSet::Flowers5,
        ];
        let mixed = mixed_images(&data, &sets).unwrap();
        assert_no_leak(Split::ALL.iter().flat_map(|&s| mixed.sets(s).iter().map(move |c| (s, c))));
        assert!(Split::ALL.iter().all(|&s| mixed.sets(s).len() == 6) && mixed.shortage().is_none());
    }
}
