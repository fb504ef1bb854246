//! Models of sets of images: the encoder in front, and the classifier it is pretrained as.

use serde::{Deserialize, Serialize};
use setwise_engine::Image;

use super::config::{Encoder, ModelConfig, OutputKind, Pooling, Relations};
use super::model::Model;
use crate::nn::{ENCODER, Layer};
use crate::{Error, Result};

/// Convolutional encoders of the paper. Every convolution is followed by batch norm and ReLU; a linear map to the features is last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageEncoder {
    /// Two 3×3 convolutions, of 32 and 64 filters, with a max pooling after each. Images of 28×28 grey pixels unless said otherwise.
    Mnist,
    /// A 7×7 convolution of 32 filters and stride 2, then three pairs of 3×3 convolutions, of 32, 64 and 128 filters, with a max pooling
    /// after each pair. Images of 105×105 grey pixels unless said otherwise.
    Omniglot,
    /// The same layers as `omniglot`, for images of 32×32 pixels of three colours unless said otherwise.
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
    /// All of them, with their names.
    pub const ALL: [(&str, ImageEncoder); 3] =
        [("mnist", ImageEncoder::Mnist), ("omniglot", ImageEncoder::Omniglot), ("meta", ImageEncoder::Meta)];

    /// Finds one by its name.
    pub fn find(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|e| e.0 == name);
        found.map(|e| e.1).ok_or_else(|| {
            let known = Self::ALL.map(|e| e.0).join(", ");
            Error::config("images.encoder", format!("is {name:?}, there are {known}"))
        })
    }

    /// What it is, in one line.
    pub fn summary(self) -> &'static str {
        match self {
            ImageEncoder::Mnist => "3×3 convolutions of 32 and 64 filters, a 2×2 max pooling after each, linear",
            ImageEncoder::Omniglot => {
                "a 7×7 convolution of stride 2, three pairs of 3×3 of 32, 64 and 128 filters with a max pooling after each, linear"
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

    /// The shortest side an image may have.
    fn least_side(self) -> usize {
        let left = |n: usize| self.layers().iter().fold(n, |n, layer| layer.side(n));
        (1..).find(|&n| left(n) > 0).unwrap_or(1)
    }
}

/// What the elements of all sets are, where they are images: every row holds the pixels of one, line by line from the top left, the
/// channels of a pixel side by side, as numbers from 0 to 1.
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
#[serde(from = "Given")]
pub struct Images {
    /// What turns them into vectors.
    pub encoder: ImageEncoder,
    /// Lines.
    pub height: usize,
    /// Pixels of a line.
    pub width: usize,
    /// Numbers of a pixel.
    pub channels: usize,
    /// Numbers of the vector an image becomes.
    pub features: usize,
}

/// What is written of [`Images`]: sizes that are left out are those the encoder was made for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    encoder: ImageEncoder,
    height: Option<usize>,
    width: Option<usize>,
    channels: Option<usize>,
    features: Option<usize>,
}

impl From<Given> for Images {
    fn from(given: Given) -> Self {
        let usual = Images::new(given.encoder);
        Images {
            encoder: given.encoder,
            height: given.height.unwrap_or(usual.height),
            width: given.width.unwrap_or(usual.width),
            channels: given.channels.unwrap_or(usual.channels),
            features: given.features.unwrap_or(usual.features),
        }
    }
}

/// No side of an image may be longer, no pixel have more channels, no vector more features.
const LONGEST_SIDE: usize = 1 << 10;
const MOST_CHANNELS: usize = 64;
const MOST_FEATURES: usize = 1 << 14;

impl Images {
    /// Images of the size an encoder was made for, and 128 features.
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

    /// Numbers of an image: the width of the sets' rows.
    pub fn numbers(&self) -> usize {
        self.image().numbers()
    }

    pub(super) fn image(&self) -> Image {
        Image { height: self.height, width: self.width, channels: self.channels }
    }

    /// Checks every size.
    pub(super) fn check(&self) -> Result<()> {
        let least = self.encoder.least_side();
        for (field, n, least, most) in [
            ("images.height", self.height, least, LONGEST_SIDE),
            ("images.width", self.width, least, LONGEST_SIDE),
            ("images.channels", self.channels, 1, MOST_CHANNELS),
            ("images.features", self.features, 1, MOST_FEATURES),
        ] {
            if n < least || n > most {
                let reason = format!("is {n}, must be between {least} and {most} for this encoder");
                return Err(Error::config(field, reason));
            }
        }
        Ok(())
    }

    /// Number of parameters, running averages counted.
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
    /// The same model on sets of images.
    pub fn with_images(mut self, images: Images) -> Self {
        self.input_widths = vec![images.numbers(); self.input_widths.len()];
        self.images = Some(images);
        self
    }

    /// A plain classifier of images: the encoder and a linear map to a logit for each class. An example is one set of any number of images,
    /// the answer a row of logits for each; it learns with [`Loss::CrossEntropy`](crate::Loss::CrossEntropy).
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
    /// // A model of two sets of such images begins with what the classifier has learnt.
    /// let config = ModelConfig::preset("multi-set-transformer", 64)?.with_images(images).with_latent(16).with_hidden(16);
    /// let mut model = Model::new(config.validate()?, 2);
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
    /// Takes the image encoder of another model, such as a classifier it was pretrained as: weights and running averages.
    pub fn copy_encoder(&mut self, from: &Model) -> Result<()> {
        let (own, other) = (self.config().images, from.config().images);
        if own.is_none() || own != other {
            let say = |i: Option<Images>| i.map_or("none".to_owned(), |i| format!("{i:?}"));
            return Err(Error::config("images", format!("is {}, the other model's is {}", say(own), say(other))));
        }
        let places: Vec<_> = self
            .layout()
            .specs()
            .iter()
            .filter(|s| s.name.starts_with(ENCODER))
            .map(|s| (s.range(), from.layout().find(&s.name).expect("encoders of one config are alike").range()))
            .collect();
        for (to, at) in places {
            self.params_mut()[to].copy_from_slice(&from.params()[at]);
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
            let held: usize = layout.specs().iter().filter(|s| s.name.starts_with(ENCODER)).map(|s| s.len()).sum();
            assert_eq!(held as u128, images.parameters(), "{encoder:?}");
            let averages: usize = images.encoder.layers().iter().map(|l| 2 * l.filters).sum();
            assert_eq!(layout.len() - layout.trained(), averages, "{encoder:?}");
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_named_and_the_shortest_side_works() {
        let said = |images: Images| config(images).validate().unwrap_err().to_string();
        for (encoder, least) in [(ImageEncoder::Mnist, 4), (ImageEncoder::Omniglot, 15), (ImageEncoder::Meta, 15)] {
            let images = Images::new(encoder);
            assert!(config(images.with_size(least, least, 1)).validate().is_ok());
            let short = said(images.with_size(least - 1, 40, 1));
            assert!(short.contains("images.height") && short.contains(&least.to_string()), "{short}");
            assert!(said(images.with_size(40, 0, 1)).contains("images.width"));
            assert!(said(images.with_size(40, 2000, 1)).contains("images.width"));
            assert!(said(images.with_size(40, 40, 0)).contains("images.channels"));
            assert!(said(Images { features: 0, ..images }).contains("images.features"));
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
    fn sizes_that_are_left_out_are_those_of_the_encoder() {
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
    fn only_the_encoder_is_copied_and_all_of_it() {
        let images = Images::new(ImageEncoder::Mnist).with_size(8, 8, 1);
        let mut classifier = Model::new(ModelConfig::classifier(images, 5).validate().unwrap(), 1);
        classifier.params_mut().iter_mut().for_each(|p| *p += 2.0);
        let mut model = Model::new(config(images).validate().unwrap(), 2);
        let before = model.params().to_vec();
        model.copy_encoder(&classifier).unwrap();
        for spec in model.layout().specs() {
            let now = &model.params()[spec.range()];
            match spec.name.starts_with(ENCODER) {
                true => assert_eq!(now, &classifier.params()[classifier.layout().find(&spec.name).unwrap().range()]),
                false => assert_eq!(now, &before[spec.range()], "{}", spec.name),
            }
        }
        let mut other = Model::new(config(images.with_size(9, 8, 1)).validate().unwrap(), 2);
        assert!(other.copy_encoder(&classifier).unwrap_err().to_string().contains("images"));
    }
}
