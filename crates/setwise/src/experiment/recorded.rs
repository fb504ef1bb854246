//! Tasks on recorded data.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::settings::bad;
use crate::data::{
    Alignment, CaptionFeatures, DataFolder, DataSet, Picker, Scale, Span, Stream, caption_alignment, word_alignment,
};
use crate::{Error, Result};

/// See [`Task::AlignWords`](super::Task::AlignWords).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AlignWordsTask {
    /// Words of both sets.
    pub set_size: Span,
    /// Numbers of a word's vector.
    #[serde(default = "word_width")]
    pub width: usize,
    /// How vectors are scaled.
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
    pub set_size: Span,
    /// How features are scaled.
    #[serde(default = "unit")]
    pub scale: Scale,
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
            return Err(bad("task.data", format!("is {:?}, which has no captions; flickr8k, flickr30k and coco have", self.data)));
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

/// Sets of the size asked for must be there in every stream.
fn enough(alignment: Alignment, size: Span) -> Result<Arc<dyn Picker>> {
    match alignment.lacks(size.most) {
        None => Ok(Arc::new(alignment)),
        Some((stream, there)) => Err(too_few(size, stream, format!("{there} entries"))),
    }
}

/// The data is too small for sets of this size.
fn too_few(size: Span, stream: Stream, there: String) -> Error {
    let stream = match stream {
        Stream::Training => "training",
        Stream::Validation => "validation",
        Stream::Test => "tests",
    };
    bad("task.set-size", format!("is up to {}, for which the data is too small: it has {there} for {stream}", size.most))
}
