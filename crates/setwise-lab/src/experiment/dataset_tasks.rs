//! Tasks on data sets.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use setwise::data::Scale;
use setwise::distributions::IntRange;

use super::config::bad;
use crate::datasets::{
    Alignment, CaptionFeatures, DataFolder, DataSet, MIXED_SIDE, MNIST_SIDE, Picker, caption_alignment, mixed_images,
    mnist_counting, omniglot_counting, readers::OMNIGLOT_SIDE, word_alignment,
};
use crate::samplers::Split;
use crate::{Error, Result};

/// See [`Task::AlignWords`](super::Task::AlignWords).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AlignWordsTask {
    /// Words of both sets.
    pub set_size: IntRange,
    /// Width of a word's vector.
    #[serde(default = "word_width")]
    pub width: usize,
    /// The scaling of vectors.
    #[serde(default = "unit")]
    pub scale: Scale,
}

/// See [`Task::AlignCaptions`](super::Task::AlignCaptions).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AlignCaptionsTask {
    /// `flickr8k`, `flickr30k` or `coco`.
    pub data: DataSet,
    /// File of image features in its folder.
    pub image_features: String,
    /// File of caption features in its folder.
    pub caption_features: String,
    /// Widths of both.
    pub widths: [usize; 2],
    /// Images, and captions, of an example.
    pub set_size: IntRange,
    /// The scaling of features.
    #[serde(default = "unit")]
    pub scale: Scale,
}

/// See [`Task::Count`](super::Task::Count).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CountTask {
    /// `mnist` or `omniglot`.
    pub data: DataSet,
    /// Side of an image in pixels; default the data set's. Only images of Omniglot can be resized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<usize>,
    /// Images of each set, drawn independently for each set.
    pub set_size: IntRange,
}

/// See [`Task::DistinguishImages`](super::Task::DistinguishImages).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DistinguishImagesTask {
    /// The data sets.
    pub data: Vec<DataSet>,
    /// Images of each set, drawn independently for each set.
    pub set_size: IntRange,
}

fn word_width() -> usize {
    300
}

fn unit() -> Scale {
    Scale::Unit
}

impl AlignWordsTask {
    pub(super) fn load(&self, data: &DataFolder) -> Result<Arc<dyn Picker>> {
        enough(word_alignment(data, self.width, self.scale)?, self.set_size)
    }
}

impl AlignCaptionsTask {
    pub(super) fn check(&self) -> Result<()> {
        if !matches!(self.data, DataSet::Flickr8k | DataSet::Flickr30k | DataSet::Coco) {
            return Err(bad("task.data", format!("is {:?}, must be flickr8k, flickr30k or coco", self.data)));
        }
        Ok(())
    }

    pub(super) fn load(&self, data: &DataFolder) -> Result<Arc<dyn Picker>> {
        let features = CaptionFeatures {
            set: self.data,
            images: &self.image_features,
            captions: &self.caption_features,
            widths: self.widths,
        };
        enough(caption_alignment(data, features, self.scale)?, self.set_size)
    }
}

impl CountTask {
    /// Height, width and channels of an image.
    pub(super) fn image_shape(&self) -> [usize; 3] {
        let side = self.side.unwrap_or(if self.data == DataSet::Omniglot { OMNIGLOT_SIDE } else { MNIST_SIDE });
        [side, side, 1]
    }

    pub(super) fn check(&self) -> Result<()> {
        let [side, ..] = self.image_shape();
        match self.data {
            DataSet::Mnist if side == MNIST_SIDE => Ok(()),
            DataSet::Mnist => Err(bad("task.side", format!("is {side}, must be {MNIST_SIDE} for mnist"))),
            DataSet::Omniglot if (1..=OMNIGLOT_SIDE).contains(&side) => Ok(()),
            DataSet::Omniglot => Err(bad("task.side", format!("is {side}, must be between 1 and {OMNIGLOT_SIDE}"))),
            other => Err(cannot_count(other)),
        }
    }

    pub(super) fn load(&self, data: &DataFolder) -> Result<Arc<dyn Picker>> {
        let counting = match self.data {
            DataSet::Mnist => mnist_counting(data)?,
            DataSet::Omniglot => omniglot_counting(data, self.image_shape()[0])?,
            other => return Err(cannot_count(other)),
        };
        match counting.shortage(self.set_size.max) {
            None => Ok(Arc::new(counting)),
            Some((split, classes)) => Err(too_few(self.set_size, split, format!("{classes} classes"))),
        }
    }
}

impl DistinguishImagesTask {
    /// Height, width and channels of an image.
    pub(super) fn image_shape(&self) -> [usize; 3] {
        [MIXED_SIDE, MIXED_SIDE, 3]
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.data.is_empty() || self.data.iter().enumerate().any(|(i, set)| self.data[..i].contains(set)) {
            return Err(bad("task.data", "must name at least one data set, and none twice"));
        }
        Ok(())
    }

    pub(super) fn load(&self, data: &DataFolder) -> Result<Arc<dyn Picker>> {
        let images = mixed_images(data, &self.data)?;
        match images.shortage() {
            None => Ok(Arc::new(images)),
            Some((split, classes)) => Err(too_few(self.set_size, split, format!("{classes} classes"))),
        }
    }
}

fn cannot_count(set: DataSet) -> Error {
    bad("task.data", format!("is {set:?}, must be mnist or omniglot"))
}

/// Checks that every split is large enough for the task's sets.
fn enough(alignment: Alignment, size: IntRange) -> Result<Arc<dyn Picker>> {
    match alignment.shortage(size.max) {
        None => Ok(Arc::new(alignment)),
        Some((split, available)) => Err(too_few(size, split, format!("{available} entries"))),
    }
}

/// The error about a split that is too small for sets of this size.
fn too_few(size: IntRange, split: Split, available: String) -> Error {
    let split = match split {
        Split::Training => "training",
        Split::Validation => "validation",
        Split::Test => "test",
    };
    let reason = format!("is up to {}, for which the {split} split is too small: it has {available}", size.max);
    bad("task.set-size", reason)
}
