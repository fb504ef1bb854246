//! Data sets for alignment: words of two languages, images and captions.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use setwise::data::{Scale, scale};

use super::alignment::Alignment;
use super::readers::{self, Captioned, WordVectors, bad, read_arrays};
use super::{DataFolder, DataSet, Items};
use crate::samplers::Split;
use crate::{Error, Result};

/// Files of the packed form: vectors, the words of their rows, and pairs.
const PACKED: [&str; 4] = ["vectors_f16.safetensors", "en.vocab.txt", "fr.vocab.txt", "pairs.tsv"];

/// English words and their French translations.
///
/// The files are packed vectors with `pairs.tsv`, or fastText's `.vec` files with MUSE's dictionaries. MUSE's test
/// words are the test split.
pub fn word_alignment(data: &DataFolder, width: usize, how: Scale) -> Result<Alignment> {
    let set = DataSet::EnglishFrench;
    let folder = data.of(set)?;
    let (mut words, pairs) = if folder.join(PACKED[0]).exists() {
        let vectors = folder.join(PACKED[0]);
        let words = [("en", PACKED[1]), ("fr", PACKED[2])]
            .map(|(tensor, list)| WordVectors::read_packed(&vectors, tensor, &data.file(set, &[list])?));
        let [en, fr] = words;
        let words = [en?, fr?];
        let pairs = readers::read_pairs(&data.file(set, &[PACKED[3]])?, words.each_ref().map(|w| w.words.len()))?;
        (words, pairs)
    } else {
        let all = readers::read_dictionary(&data.file(set, &["en-fr.txt"])?)?;
        let test = readers::read_dictionary(&data.file(set, &["en-fr.5000-6500.txt"])?)?;
        let vocabulary = |side: fn(&(String, String)) -> &String| -> HashSet<String> {
            all.iter().chain(&test).map(|p| side(p).clone()).collect()
        };
        let en = data.file(set, &["cc.en.300.vec", "cc.en.300.vec.gz", "wiki.en.vec"])?;
        let fr = data.file(set, &["cc.fr.300.vec", "cc.fr.300.vec.gz", "wiki.fr.vec"])?;
        let words =
            [WordVectors::read_text(&en, &vocabulary(|p| &p.0))?, WordVectors::read_text(&fr, &vocabulary(|p| &p.1))?];
        let pairs = readers::pairs_of(&all, &test, &words[0], &words[1]);
        (words, pairs)
    };
    if let Some(other) = words.iter().find(|w| w.width != width) {
        return Err(bad(&folder, format!("its vectors have {} numbers, the task's `width` is {width}", other.width)));
    }
    for (k, side) in words.iter_mut().enumerate() {
        let row = |p: &readers::Pair| if k == 0 { p.left } else { p.right };
        let training: HashSet<u32> = pairs.iter().filter(|p| p.split == Split::Training).map(row).collect();
        let mut training: Vec<u32> = training.into_iter().collect();
        training.sort_unstable();
        scale(&mut side.rows, width, how, training.into_iter());
    }
    let items = words.map(|w| Arc::new(Items::floats(w.width, w.rows)));
    Ok(Alignment::of(items, pairs.into_iter().map(|p| (p.left, p.right, p.split))))
}

/// Files of features of images and captions.
#[derive(Clone, Copy, Debug)]
pub struct CaptionFeatures<'a> {
    /// The data set.
    pub set: DataSet,
    /// File of image features `[images, width]`.
    pub images: &'a str,
    /// File of caption features `[captions, width]`, or `[images, captions of each, width]`.
    pub captions: &'a str,
    /// Widths of both.
    pub widths: [usize; 2],
}

/// Images and their captions as features of frozen encoders.
///
/// Rows are in the order of `images.txt`, if it exists, otherwise in the order of images in the file of captions.
pub fn caption_alignment(data: &DataFolder, features: CaptionFeatures, how: Scale) -> Result<Alignment> {
    let set = features.set;
    let (corpus, splits) = match set {
        DataSet::Coco => read_coco(data)?,
        _ => read_flickr(data, set)?,
    };
    let image_file = data.file(set, &[features.images])?;
    let (shape, mut images) = feature_array(&image_file)?;
    let n = corpus.images.len();
    if shape != [n, features.widths[0]] {
        let expected = [n, features.widths[0]];
        return Err(bad(
            &image_file,
            format!("has features of shape {shape:?}; {n} images of the task's width need {expected:?}"),
        ));
    }
    let caption_file = data.file(set, &[features.captions])?;
    let (shape, mut captions) = feature_array(&caption_file)?;
    let counts: Vec<usize> = match shape[..] {
        [rows, each, width] if rows == n && width == features.widths[1] => vec![each; n],
        [rows, width] if rows == corpus.captions.iter().map(Vec::len).sum::<usize>() && width == features.widths[1] => {
            corpus.captions.iter().map(Vec::len).collect()
        }
        _ => {
            let expected = format!("[{n}, captions of each, {0}] or [captions, {0}]", features.widths[1]);
            return Err(bad(&caption_file, format!("has features of shape {shape:?}; the task needs {expected}")));
        }
    };
    let mut pairs = Vec::new();
    let mut first = 0u32;
    for (image, count) in counts.into_iter().enumerate() {
        let rows = first..first + count as u32;
        first = rows.end;
        pairs.extend(rows.map(|row| (image as u32, row, splits[image])));
    }
    let training_pairs = || pairs.iter().filter(|p| p.2 == Split::Training);
    let training_images = (0..n as u32).filter(|&i| splits[i as usize] == Split::Training);
    scale(&mut images, features.widths[0], how, training_images);
    scale(&mut captions, features.widths[1], how, training_pairs().map(|p| p.1));
    let items = [(images, 0), (captions, 1)].map(|(rows, k)| Arc::new(Items::floats(features.widths[k], rows)));
    Ok(Alignment::of(items, pairs))
}

/// The only array of a file that has rows.
fn feature_array(path: &Path) -> Result<(Vec<usize>, Vec<f32>)> {
    let mut arrays = read_arrays(path)?;
    arrays.retain(|_, a| a.shape.len() >= 2);
    let names: Vec<String> = arrays.keys().cloned().collect();
    match <[_; 1]>::try_from(arrays.into_iter().collect::<Vec<_>>()) {
        Ok([(name, array)]) => Ok((array.shape.clone(), readers::finite(path, &name, &array)?)),
        Err(_) => Err(bad(path, format!("has {} arrays with rows ({names:?}), expected one", names.len()))),
    }
}

/// Images, captions and splits of Flickr8k or Flickr30k.
fn read_flickr(data: &DataFolder, set: DataSet) -> Result<(Captioned, Vec<Split>)> {
    let forms = [
        "captions.csv.gz",
        "captions.csv",
        "captions.txt",
        "Flickr8k.token.txt",
        "results_20130124.token",
        "results.csv",
    ];
    let path = data.file(set, &forms)?;
    let mut corpus = Captioned::read_flickr(&path)?;
    let folder = data.of(set)?;
    let list = folder.join("images.txt");
    if list.exists() {
        corpus = reorder(corpus, &list, &path)?;
    }
    let split_file = ["split.txt", "split_seed0.txt"].map(|name| folder.join(name)).into_iter().find(|p| p.exists());
    let splits = match split_file {
        Some(path) => read_split(&path, &corpus.images)?,
        None => corpus.images.iter().map(|name| split_of(name)).collect(),
    };
    Ok((corpus, splits))
}

/// Images and captions of MS-COCO. Its validation images are the test split, its training images the other splits.
fn read_coco(data: &DataFolder) -> Result<(Captioned, Vec<Split>)> {
    let set = DataSet::Coco;
    let mut corpus =
        Captioned::read_coco(&data.file(set, &["annotations/captions_train2017.json", "captions_train2017.json"])?)?;
    let train_images = corpus.images.len();
    corpus.extend(Captioned::read_coco(
        &data.file(set, &["annotations/captions_val2017.json", "captions_val2017.json"])?,
    )?);
    let split = |(i, name): (usize, &String)| match split_of(name) {
        _ if i >= train_images => Split::Test,
        Split::Validation => Split::Validation,
        _ => Split::Training,
    };
    let splits = corpus.images.iter().enumerate().map(split).collect();
    Ok((corpus, splits))
}

/// The split of an image by a hash of its name: a tenth for validation, a tenth for tests.
fn split_of(name: &str) -> Split {
    match crc32fast::hash(name.as_bytes()) % 10 {
        0 => Split::Validation,
        1 => Split::Test,
        _ => Split::Training,
    }
}

/// The corpus in the order of a list of image names.
fn reorder(corpus: Captioned, list: &Path, captions: &Path) -> Result<Captioned> {
    let mut by_name: HashMap<String, Vec<String>> = corpus.images.into_iter().zip(corpus.captions).collect();
    let mut ordered = Captioned::default();
    readers::lines(list, |number, name| {
        let missing = || bad(list, format!("line {number}: {} has no captions of {name:?}", captions.display()));
        ordered.captions.push(by_name.remove(name).ok_or_else(missing)?);
        ordered.images.push(name.to_owned());
        Ok(())
    })?;
    Ok(ordered)
}

/// Reads lines of an image and `train`, `dev` or `test`; every image must have one.
fn read_split(path: &Path, images: &[String]) -> Result<Vec<Split>> {
    let mut by_name = HashMap::new();
    readers::lines(path, |number, line| {
        let split = match line.split_once('\t').map(|(_, part)| part.trim()) {
            Some("train") => Split::Training,
            Some("dev" | "val" | "validation") => Split::Validation,
            Some("test") => Split::Test,
            _ => {
                return Err(bad(path, format!("line {number}: {line:?} is not an image, tab, and train, dev or test")));
            }
        };
        by_name.insert(line.split('\t').next().unwrap_or("").to_owned(), split);
        Ok(())
    })?;
    let split =
        |name: &String| by_name.get(name).copied().ok_or_else(|| bad(path, format!("has no line for {name:?}")));
    images.iter().map(split).collect::<Result<Vec<_>, Error>>()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use setwise::distributions::IntRange;

    use super::super::alignment::tests::{assert_labels, assert_no_leak};
    use super::*;
    use crate::datasets::real_data;

    #[test]
    fn words_of_fasttext_and_muse_are_aligned_and_splits_share_no_word() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("wordvec_en_fr");
        std::fs::create_dir(&folder).unwrap();
        let vectors: String = (0..60).map(|i| format!("w{i} {i} 1\n")).collect();
        std::fs::write(folder.join("cc.en.300.vec"), format!("60 2\n{vectors}")).unwrap();
        std::fs::write(folder.join("cc.fr.300.vec"), &vectors).unwrap();
        let pair = |i: usize| format!("w{i} w{i}\nw{i} w{}\n", (i + 1) % 60);
        std::fs::write(folder.join("en-fr.txt"), (0..60).map(pair).collect::<String>()).unwrap();
        std::fs::write(folder.join("en-fr.5000-6500.txt"), (40..60).map(pair).collect::<String>()).unwrap();
        let data = DataFolder::at(dir.path());
        let alignment = word_alignment(&data, 2, Scale::Unit).unwrap();
        assert_no_leak(&alignment);
        assert_eq!(alignment.entries(Split::Test).len(), 20);
        assert!(alignment.entries(Split::Training).len() > 20);
        let error = word_alignment(&data, 3, Scale::Unit).unwrap_err().to_string();
        assert!(error.contains("2 numbers") && error.contains("`width` is 3"), "{error}");
    }

    fn flickr(captions: &[f32], shape: Vec<usize>) -> (tempfile::TempDir, DataFolder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("flickr8k");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("captions.csv"), "image,caption\na.jpg,One\na.jpg,Two\nb.jpg,Three\n").unwrap();
        std::fs::write(folder.join("split.txt"), "a.jpg\ttrain\nb.jpg\ttest\n").unwrap();
        let write = |name: &str, shape: Vec<usize>, rows: &[f32]| {
            let bytes = setwise::files::tensors::to_bytes([("features", shape, rows)], &BTreeMap::new());
            std::fs::write(folder.join(name), bytes).unwrap();
        };
        write("i.safetensors", vec![2, 1], &[1.0, 2.0]);
        write("c.safetensors", shape, captions);
        (dir, DataFolder::at(folder.parent().unwrap().to_owned()))
    }

    #[test]
    fn captions_match_their_images_and_shapes_of_features_are_checked() {
        let features = CaptionFeatures {
            set: DataSet::Flickr8k,
            images: "i.safetensors",
            captions: "c.safetensors",
            widths: [1, 2],
        };
        let (_dir, data) = flickr(&[0.0; 6], vec![3, 2]);
        let alignment = caption_alignment(&data, features, Scale::None).unwrap();
        assert_eq!(
            (alignment.entries(Split::Training)[0].left, &alignment.entries(Split::Training)[0].right),
            (0, &vec![0, 1])
        );
        assert_eq!(alignment.entries(Split::Test)[0].right, [2]);
        let (_dir, data) = flickr(&[0.0; 8], vec![4, 2]);
        let error = caption_alignment(&data, features, Scale::None).unwrap_err().to_string();
        assert!(error.contains("c.safetensors") && error.contains("[4, 2]"), "{error}");
        let (_dir, data) = flickr(&[0.0, 0.0, 0.0, f32::NAN, 0.0, 0.0], vec![3, 2]);
        let error = caption_alignment(&data, features, Scale::None).unwrap_err().to_string();
        assert!(error.contains("row 2, column 2 is NaN"), "{error}");
    }

    #[test]
    fn the_validation_images_of_coco_are_the_test_split() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("coco/annotations");
        std::fs::create_dir_all(&folder).unwrap();
        let captions = |ids: std::ops::Range<usize>| {
            let images: Vec<_> =
                ids.clone().map(|i| serde_json::json!({"id": i, "file_name": format!("{i:012}.jpg")})).collect();
            let annotations: Vec<_> =
                ids.map(|i| serde_json::json!({"image_id": i, "caption": format!("Image {i}.")})).collect();
            serde_json::json!({"images": images, "annotations": annotations}).to_string()
        };
        std::fs::write(folder.join("captions_train2017.json"), captions(0..40)).unwrap();
        std::fs::write(folder.join("captions_val2017.json"), captions(40..50)).unwrap();
        for (name, width) in [("i.npy", 2), ("c.npy", 3)] {
            setwise::files::write_npy(dir.path().join("coco").join(name), &[50, width], &vec![0.5f32; 50 * width])
                .unwrap();
        }
        let features = CaptionFeatures { set: DataSet::Coco, images: "i.npy", captions: "c.npy", widths: [2, 3] };
        let alignment = caption_alignment(&DataFolder::at(dir.path()), features, Scale::Standard).unwrap();
        assert_no_leak(&alignment);
        let lefts: Vec<u32> = alignment.entries(Split::Test).iter().map(|e| e.left).collect();
        assert_eq!(lefts, (40..50).collect::<Vec<u32>>());
        assert!(!alignment.entries(Split::Validation).is_empty() && alignment.entries(Split::Training).len() > 20);
    }

    #[test]
    fn real_words_and_captions_are_aligned_and_splits_share_no_item() {
        let Some(data) = real_data() else { return };
        let words = word_alignment(&data, 300, Scale::Unit).unwrap();
        assert_no_leak(&words);
        assert_labels(&words, IntRange::new(10, 30));
        assert!(words.shortage(30).is_none());
        assert!(words.entries(Split::Training).len() > 8000 && words.entries(Split::Test).len() > 900);
        let features = CaptionFeatures {
            set: DataSet::Flickr8k,
            images: "image_efficientnet_lite0_f16.safetensors",
            captions: "caption_minilm_f16.safetensors",
            widths: [1280, 384],
        };
        let captions = caption_alignment(&data, features, Scale::None).unwrap();
        assert_no_leak(&captions);
        assert_labels(&captions, IntRange::new(8, 15));
        let counts = [Split::Training, Split::Validation, Split::Test].map(|s| captions.entries(s).len());
        assert_eq!(counts, [6091, 1000, 1000]);
    }
}
