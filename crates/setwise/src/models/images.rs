//! Models of sets of images: the encoder, and the classifier that pretrains it.

use serde::{Deserialize, Serialize};
use setwise_engine::Image;

use super::config::{Encoder, ModelConfig, OutputKind, Pooling, Relations};
use super::model::Model;
use crate::nn::{ENCODER, Layer};
use crate::{Error, Result};

/// Convolutional encoders of the paper. Batch norm and ReLU follow each convolution; a linear map to the features is
/// last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageEncoder {
    /// Two 3×3 convolutions of 32 and 64 filters, each followed by max pooling. By default for 28×28 grey images.
    Mnist,
    /// A 7×7 convolution of 32 filters and stride 2, then three pairs of 3×3 convolutions. The pairs have 32, 64 and
    /// 128 filters, each followed by max pooling. By default for 105×105 grey images.
    Omniglot,
    /// The layers of `omniglot`. By default for 32×32 images with three channels.
    Meta,
}

const MNIST: [Layer; 2] =
    [Layer { filters: 32, kernel: 3, stride: 1, pool: true }, Layer { filters: 64, kernel: 3, stride: 1, pool: true }];

const OMNIGLOT: [Layer; 7] = [
    Layer { filters: 32, kernel: 7, stride: 2, pool: false },
    Layer { filters: 32, kernel: 3, stride: 1, pool: false },
    Layer { filters: 32, kernel: 3, stride: 1, pool: true },
    Layer { filters: 64, kernel: 3, stride: 1, pool: false },
    Layer { filters: 64, kernel: 3, stride: 1, pool: true },
    Layer { filters: 128, kernel: 3, stride: 1, pool: false },
    Layer { filters: 128, kernel: 3, stride: 1, pool: true },
];

impl ImageEncoder {
    /// All encoders with their names.
    pub const ALL: [(&str, ImageEncoder); 3] =
        [("mnist", ImageEncoder::Mnist), ("omniglot", ImageEncoder::Omniglot), ("meta", ImageEncoder::Meta)];

    /// Finds an encoder by name.
    pub fn find(name: &str) -> Result<Self> {
        let entry = Self::ALL.iter().find(|e| e.0 == name);
        entry.map(|e| e.1).ok_or_else(|| {
            let known = Self::ALL.map(|e| e.0).join(", ");
            Error::config("images.encoder", format!("is {name:?}, there are {known}"))
        })
    }

    /// A description in one line.
    pub fn summary(self) -> &'static str {
        match self {
            ImageEncoder::Mnist => "3×3 convolutions of 32 and 64 filters, a 2×2 max pooling after each, linear",
            ImageEncoder::Omniglot => {
                "a 7×7 convolution of stride 2, three pairs of 3×3 of 32, 64 and 128 filters with a max pooling after \
                 each, linear"
            }
            ImageEncoder::Meta => "the layers of omniglot for colour images",
        }
    }

    pub(super) fn layers(self) -> &'static [Layer] {
        match self {
            ImageEncoder::Mnist => &MNIST,
            ImageEncoder::Omniglot | ImageEncoder::Meta => &OMNIGLOT,
        }
    }

    /// The shortest valid side of an image.
    fn min_side(self) -> usize {
        let output_side = |n: usize| self.layers().iter().fold(n, |n, layer| layer.side(n));
        (1..).find(|&n| output_side(n) > 0).unwrap_or(1)
    }
}

/// Encoder and size of the images that are the elements of all sets. A row holds the pixels of one image as numbers from
/// 0 to 1: `[height, width, channels]`, row-major from the top left.
///
/// ```
/// use setwise::models::{ImageEncoder, Images, ModelConfig};
/// let config: ModelConfig = toml::from_str("
///     input-widths = [784, 784]
///     latent = 128
///     [images]
///     encoder = 'mnist'
/// ").unwrap();
/// assert_eq!(config.images, Some(Images::new(ImageEncoder::Mnist)));
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PartialImages")]
pub struct Images {
    /// The encoder.
    pub encoder: ImageEncoder,
    /// Lines of an image.
    pub height: usize,
    /// Pixels of a line.
    pub width: usize,
    /// Channels of a pixel.
    pub channels: usize,
    /// Width of an encoded image.
    pub features: usize,
}

/// [`Images`] in TOML and JSON; sizes default to those of the encoder.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartialImages {
    encoder: ImageEncoder,
    height: Option<usize>,
    width: Option<usize>,
    channels: Option<usize>,
    features: Option<usize>,
}

impl From<PartialImages> for Images {
    fn from(partial: PartialImages) -> Self {
        let default = Images::new(partial.encoder);
        Images {
            encoder: partial.encoder,
            height: partial.height.unwrap_or(default.height),
            width: partial.width.unwrap_or(default.width),
            channels: partial.channels.unwrap_or(default.channels),
            features: partial.features.unwrap_or(default.features),
        }
    }
}

/// Upper limits of the side of an image, its channels and its features.
const MAX_SIDE: usize = 1 << 10;
const MAX_CHANNELS: usize = 64;
const MAX_FEATURES: usize = 1 << 14;

impl Images {
    /// Images of the encoder's default size, with 128 features.
    pub fn new(encoder: ImageEncoder) -> Self {
        let (side, channels) = match encoder {
            ImageEncoder::Mnist => (28, 1),
            ImageEncoder::Omniglot => (105, 1),
            ImageEncoder::Meta => (32, 3),
        };
        Images { encoder, height: side, width: side, channels, features: 128 }
    }

    /// Sets the size of images.
    pub fn with_size(self, height: usize, width: usize, channels: usize) -> Self {
        Images { height, width, channels, ..self }
    }

    /// Numbers of an image, height · width · channels: the width of a row.
    pub fn numbers(&self) -> usize {
        self.image().numbers()
    }

    pub(super) fn image(&self) -> Image {
        Image { height: self.height, width: self.width, channels: self.channels }
    }

    /// Checks every size.
    pub(super) fn check(&self) -> Result<()> {
        let min_side = self.encoder.min_side();
        for (field, n, min, max) in [
            ("images.height", self.height, min_side, MAX_SIDE),
            ("images.width", self.width, min_side, MAX_SIDE),
            ("images.channels", self.channels, 1, MAX_CHANNELS),
            ("images.features", self.features, 1, MAX_FEATURES),
        ] {
            if n < min || n > max {
                let reason = format!("is {n}, must be between {min} and {max} for this encoder");
                return Err(Error::config(field, reason));
            }
        }
        Ok(())
    }

    /// Number of parameters of the encoder, including running averages.
    pub(super) fn parameters(&self) -> u128 {
        let n = |x: usize| x as u128;
        let (mut height, mut width, mut channels, mut sum) = (self.height, self.width, self.channels, 0);
        for layer in self.encoder.layers() {
            sum += n(layer.filters) * (n(layer.kernel * layer.kernel) * n(channels) + 4);
            (height, width, channels) = (layer.side(height), layer.side(width), layer.filters);
        }
        sum + n(self.features) * (n(height) * n(width) * n(channels) + 1)
    }
}

impl ModelConfig {
    /// Sets the encoder and size of images, and all input widths to match.
    pub fn with_images(mut self, images: Images) -> Self {
        self.input_widths = vec![images.numbers(); self.input_widths.len()];
        self.images = Some(images);
        self
    }

    /// A classifier of images: the encoder and a linear map to one logit per class.
    ///
    /// An example is one set of images, its output one row of logits for each image. The loss is
    /// [`Loss::CrossEntropy`](crate::Loss::CrossEntropy).
    ///
    /// ```
    /// use setwise::models::{ImageEncoder, Images, ModelConfig};
    /// use setwise::{Loss, Model, SetBatch, Trainer};
    ///
    /// let images = Images::new(ImageEncoder::Mnist).with_size(8, 8, 1);
    /// let classifier = Model::new(ModelConfig::classifier(images, 3).validate()?, 1);
    /// let mut trainer = Trainer::new(classifier, Loss::CrossEntropy { classes: 3 });
    /// let pixels: Vec<f32> = (0..4 * 64).map(|i| (i % 7) as f32 / 7.0).collect();
    /// let batch = SetBatch::from_examples(64, &[vec![&pixels]])?;
    /// trainer.step(&batch, &[0.0, 1.0, 2.0, 1.0], 1e-3)?;
    ///
    /// // A model of two sets of such images starts from the classifier's encoder.
    /// let config = ModelConfig::preset("multi-set-transformer", 64)?.with_images(images);
    /// let mut model = Model::new(config.with_latent(16).with_hidden(16).validate()?, 2);
    /// model.copy_encoder(trainer.model())?;
    /// # Ok::<(), setwise::Error>(())
    /// ```
    pub fn classifier(images: Images, classes: usize) -> Self {
        ModelConfig {
            encoder: Encoder::FeedForward,
            relations: Relations::SelfOnly,
            pooling: Pooling::Max,
            sets: 1,
            input_widths: vec![images.numbers()],
            latent: images.features,
            hidden: images.features,
            blocks: 0,
            decoder_layers: 0,
            output: OutputKind::Equivariant,
            output_width: classes,
            images: Some(images),
            ..Default::default()
        }
    }
}

impl Model {
    /// Copies weights and running averages of the image encoder from another model, such as a pretrained classifier.
    pub fn copy_encoder(&mut self, from: &Model) -> Result<()> {
        let (to, other) = (self.config().images, from.config().images);
        if to.is_none() || to != other {
            let describe = |i: Option<Images>| i.map_or("none".to_owned(), |i| format!("{i:?}"));
            let reason = format!("is {}, the other model's is {}", describe(to), describe(other));
            return Err(Error::config("images", reason));
        }
        let ranges: Vec<_> = self
            .layout()
            .specs()
            .iter()
            .filter(|s| s.name.starts_with(ENCODER))
            .map(|s| (s.range(), from.layout().find(&s.name).expect("equal images have equal encoders").range()))
            .collect();
        for (to, source) in ranges {
            self.params_mut()[to].copy_from_slice(&from.params()[source]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::program;
    use setwise_engine::Mode;

    fn config(images: Images) -> ModelConfig {
        ModelConfig::preset("sum-merge", 2).unwrap().with_images(images).with_latent(8).with_hidden(8)
    }

    #[test]
    fn encoders_have_the_sizes_of_the_paper() {
        for (encoder, flat) in [
            (ImageEncoder::Mnist, 7 * 7 * 64),
            (ImageEncoder::Omniglot, 6 * 6 * 128),
            (ImageEncoder::Meta, 2 * 2 * 128),
        ] {
            let images = Images::new(encoder);
            let program = program(&config(images).validate().unwrap(), Mode::Infer, false);
            let layout = program.params();
            assert_eq!(layout.find("images.project.weight").unwrap().shape, [128, flat], "{encoder:?}");
            let count: usize = layout.specs().iter().filter(|s| s.name.starts_with(ENCODER)).map(|s| s.len()).sum();
            assert_eq!(count as u128, images.parameters(), "{encoder:?}");
            let averages: usize = images.encoder.layers().iter().map(|l| 2 * l.filters).sum();
            assert_eq!(layout.len() - layout.trained(), averages, "{encoder:?}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused_by_name_and_the_shortest_side_is_valid() {
        let error = |images: Images| config(images).validate().unwrap_err().to_string();
        for (encoder, min_side) in [(ImageEncoder::Mnist, 4), (ImageEncoder::Omniglot, 15), (ImageEncoder::Meta, 15)] {
            let images = Images::new(encoder);
            assert!(config(images.with_size(min_side, min_side, 1)).validate().is_ok());
            let short = error(images.with_size(min_side - 1, 40, 1));
            assert!(short.contains("images.height") && short.contains(&min_side.to_string()), "{short}");
            assert!(error(images.with_size(40, 0, 1)).contains("images.width"));
            assert!(error(images.with_size(40, 2000, 1)).contains("images.width"));
            assert!(error(images.with_size(40, 40, 0)).contains("images.channels"));
            assert!(error(Images { features: 0, ..images }).contains("images.features"));
        }
        let images = Images::new(ImageEncoder::Mnist);
        let mut other = config(images);
        other.input_widths[1] = 780;
        let error = other.validate().unwrap_err().to_string();
        assert!(error.contains("input-widths") && error.contains("784"), "{error}");
        assert!(ImageEncoder::find("resnet").unwrap_err().to_string().contains("omniglot"));
        let mut any = config(images);
        (any.dimension_equivariant, any.input_widths) = (true, Vec::new());
        assert!(any.validate().unwrap_err().to_string().contains("dimension-equivariant"));
    }

    #[test]
    fn sizes_default_to_those_of_the_encoder() {
        let read = |text: &str| toml::from_str::<Images>(text);
        assert_eq!(read("encoder = 'meta'").unwrap(), Images::new(ImageEncoder::Meta));
        let images = read("encoder = 'omniglot'\nheight = 28\nwidth = 28").unwrap();
        assert_eq!(images, Images::new(ImageEncoder::Omniglot).with_size(28, 28, 1));
        assert!(read("encoder = 'mnist'\nheigth = 28").unwrap_err().to_string().contains("heigth"));
        let config = config(images);
        assert_eq!(toml::from_str::<ModelConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
        assert_eq!(serde_json::from_str::<ModelConfig>(&serde_json::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn copying_the_encoder_copies_all_of_it_and_nothing_else() {
        let images = Images::new(ImageEncoder::Mnist).with_size(8, 8, 1);
        let mut classifier = Model::new(ModelConfig::classifier(images, 5).validate().unwrap(), 1);
        classifier.params_mut().iter_mut().for_each(|p| *p += 2.0);
        let mut model = Model::new(config(images).validate().unwrap(), 2);
        let before = model.params().to_vec();
        model.copy_encoder(&classifier).unwrap();
        for spec in model.layout().specs() {
            let copied = &model.params()[spec.range()];
            match spec.name.starts_with(ENCODER) {
                true => assert_eq!(copied, &classifier.params()[classifier.layout().find(&spec.name).unwrap().range()]),
                false => assert_eq!(copied, &before[spec.range()], "{}", spec.name),
            }
        }
        let mut other = Model::new(config(images.with_size(9, 8, 1)).validate().unwrap(), 2);
        assert!(other.copy_encoder(&classifier).unwrap_err().to_string().contains("images"));
    }
}
