//! Locations of data sets, and their sources.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::readers::bad;
use crate::Result;

/// A data set by its key. The how-to page on data sets says where each is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataSet {
    /// Handwritten digits.
    Mnist,
    /// Grey images of clothes.
    FashionMnist,
    /// Letters in many fonts.
    #[serde(rename = "notmnist")]
    NotMnist,
    /// Handwritten characters of fifty alphabets.
    Omniglot,
    /// Photographs of ten kinds of objects.
    Cifar10,
    /// German traffic signs.
    Gtsrb,
    /// Ten classes of describable textures.
    Dtd10,
    /// Photographs of five kinds of flowers.
    Flowers5,
    /// Photographs of 200 classes of ImageNet.
    #[serde(rename = "tiny-imagenet200")]
    TinyImagenet200,
    /// English and French word vectors with a dictionary.
    EnglishFrench,
    /// Photographs with five captions each.
    Flickr8k,
    /// As `flickr8k`, larger.
    Flickr30k,
    /// Photographs of Microsoft COCO with captions.
    Coco,
    /// All data sets of Meta-Dataset.
    MetaDataset,
}

impl DataSet {
    /// Its folder in the data folder.
    pub fn folder(self) -> &'static str {
        match self {
            DataSet::Mnist => "mnist",
            DataSet::FashionMnist => "fashion-mnist",
            DataSet::NotMnist => "notmnist",
            DataSet::Omniglot => "omniglot",
            DataSet::Cifar10 | DataSet::Gtsrb | DataSet::Dtd10 | DataSet::Flowers5 | DataSet::TinyImagenet200 => {
                "multiset_images32"
            }
            DataSet::EnglishFrench => "wordvec_en_fr",
            DataSet::Flickr8k => "flickr8k",
            DataSet::Flickr30k => "flickr30k",
            DataSet::Coco => "coco",
            DataSet::MetaDataset => "meta-dataset",
        }
    }

    /// Its source and the format that is read.
    pub fn origin(self) -> &'static str {
        match self {
            DataSet::Mnist => {
                "MNIST's four IDX files, compressed or not, are at https://ossci-datasets.s3.amazonaws.com/mnist/"
            }
            DataSet::FashionMnist => {
                "Fashion-MNIST's IDX files are at https://github.com/zalandoresearch/fashion-mnist"
            }
            DataSet::NotMnist => {
                "notMNIST is at http://yaroslavvb.com/upload/notMNIST/; write its images as IDX files like MNIST's"
            }
            DataSet::Omniglot => {
                "Omniglot is at https://github.com/brendenlake/omniglot; unpack images_background.zip and \
                 images_evaluation.zip there"
            }
            DataSet::Cifar10 => {
                "CIFAR-10 is at https://www.cs.toronto.edu/~kriz/cifar.html; write it as a NPZ file with \"images\" \
                 [n, 32, 32, 3] of bytes and \"labels\" [n]"
            }
            DataSet::Gtsrb => {
                "GTSRB is at https://benchmark.ini.rub.de; write it as a NPZ file with \"images\" [n, 32, 32, 3] of \
                 bytes and \"labels\" [n]"
            }
            DataSet::Dtd10 => {
                "the textures DTD are at https://www.robots.ox.ac.uk/~vgg/data/dtd/; write ten classes as a NPZ \
                 file with \"images\" [n, 32, 32, 3] of bytes and \"labels\" [n]"
            }
            DataSet::Flowers5 => {
                "the five flowers are at https://www.tensorflow.org/datasets/catalog/tf_flowers; write them as a \
                 NPZ file with \"images\" [n, 32, 32, 3] of bytes and \"labels\" [n]"
            }
            DataSet::TinyImagenet200 => {
                "Tiny ImageNet is at http://cs231n.stanford.edu/tiny-imagenet-200.zip; write it as a NPZ file with \
                 \"images\" [n, 32, 32, 3] of bytes and \"labels\" [n]"
            }
            DataSet::EnglishFrench => {
                "fastText's cc.en.300.vec.gz and cc.fr.300.vec.gz are at \
                 https://fasttext.cc/docs/en/crawl-vectors.html, and en-fr.txt with en-fr.5000-6500.txt at \
                 https://github.com/facebookresearch/MUSE"
            }
            DataSet::Flickr8k => {
                "Flickr8k is at https://github.com/jbrownlee/Datasets/releases/tag/Flickr8k; `setwise embed` makes \
                 features of its images, and any sentence encoder those of its captions"
            }
            DataSet::Flickr30k => {
                "Flickr30k is at https://shannon.cs.illinois.edu/DenotationGraph/; `setwise embed` makes features \
                 of its images, and any sentence encoder those of its captions"
            }
            DataSet::Coco => {
                "train2017.zip, val2017.zip and annotations_trainval2017.zip are at \
                 https://cocodataset.org/#download; `setwise embed` makes features of the images, and any sentence \
                 encoder those of the captions"
            }
            DataSet::MetaDataset => {
                "https://github.com/google-research/meta-dataset describes how to create its records; a folder per \
                 data set has CLASS.tfrecords files"
            }
        }
    }
}

/// The folder that has a folder for each data set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataFolder {
    path: Option<PathBuf>,
}

/// The environment variable that names the data folder.
pub const DATA_VARIABLE: &str = "SETWISE_DATA";

impl DataFolder {
    /// The given folder, else the folder in SETWISE_DATA, else none.
    pub fn find(given: Option<PathBuf>) -> Self {
        let named = || std::env::var_os(DATA_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
        DataFolder { path: given.or_else(named) }
    }

    /// The data folder at a path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        DataFolder { path: Some(path.into()) }
    }

    /// The folder of a data set, whether or not it exists.
    pub fn of(&self, set: DataSet) -> Result<PathBuf> {
        match &self.path {
            Some(path) => Ok(path.join(set.folder())),
            None => Err(bad(
                Path::new(set.folder()),
                format!("the data folder is not set; set --data DIR or {DATA_VARIABLE}. {}", set.origin()),
            )),
        }
    }

    /// The first of several files of a data set that exists. The error names the source of the data set.
    pub fn file(&self, set: DataSet, names: &[&str]) -> Result<PathBuf> {
        let folder = self.of(set)?;
        let found = names.iter().map(|name| folder.join(name)).find(|path| path.exists());
        found.ok_or_else(|| {
            bad(
                &folder,
                format!(
                    "there is no {} (--data DIR or {DATA_VARIABLE} sets the folder above). {}",
                    names.join(" or "),
                    set.origin()
                ),
            )
        })
    }
}

/// The folder of real data beside the repository. Tests that need it are skipped elsewhere.
#[cfg(test)]
pub(crate) fn real_data() -> Option<DataFolder> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    path.is_dir().then(|| DataFolder::at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_missing_files_name_the_source_of_the_data_set() {
        let error = DataFolder::default().file(DataSet::Mnist, &["x"]).unwrap_err().to_string();
        assert!(error.contains("--data DIR or SETWISE_DATA") && error.contains("ossci-datasets"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let error = DataFolder::at(dir.path()).file(DataSet::Coco, &["annotations", "b"]).unwrap_err().to_string();
        assert!(error.contains("no annotations or b") && error.contains("cocodataset.org"), "{error}");
    }
}
