//! The config that all architectures share, and its validation.

use serde::{Deserialize, Serialize};

use super::images::Images;
use crate::{Error, Result};

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name { $($(#[$vdoc])* $variant),* }
    };
}

choice! {
    /// The kind of block.
    Encoder {
        /// Attention and a feed-forward network.
        Transformer,
        /// A network on pairs, reduced over partners, and a feed-forward network.
        RelationNetwork,
        /// A feed-forward network on each element alone (Deep Sets).
        FeedForward,
        /// PINE: no blocks, one sum of sigmoids for each set (Gui et al., 2021).
        Pine,
    }
}
choice! {
    /// How a block merges the relations of a set.
    Merge {
        /// A linear layer on their concatenation.
        Concat,
        /// The same followed by ReLU, as in the paper's text.
        ConcatRelu,
        /// Their sum.
        Sum,
    }
}
choice! {
    /// Which pairs of sets (a, b) a block relates.
    Relations {
        /// All pairs, including (a, a).
        All,
        /// Pairs of different sets.
        Cross,
        /// Each set only with itself.
        #[serde(rename = "self")]
        SelfOnly,
        /// One relation of the union of all sets with itself.
        Union,
    }
}
choice! {
    /// Which relations share weights.
    Sharing {
        /// None.
        None,
        /// All cross relations.
        Cross,
        /// All cross relations, all self relations, all merges and all outer norms.
        Sym,
    }
}
choice! {
    /// The pooling of a set's elements to one vector.
    Pooling {
        /// Pooling by multi-head attention from learned seeds.
        Pma,
        /// Maximum of each column.
        Max,
        /// Mean.
        Mean,
        /// Sum.
        Sum,
    }
}
choice! {
    /// How relation networks reduce over partners.
    RelationPool {
        /// Maximum.
        Max,
        /// Sum.
        Sum,
    }
}
choice! {
    /// The divisor of attention scores.
    AttentionScale {
        /// The square root of a head's width.
        Head,
        /// The square root of the latent width, as in the published code.
        Latent,
    }
}
choice! {
    /// The kind of output.
    OutputKind {
        /// One vector per example, invariant to permutations of elements.
        Invariant,
        /// One vector per element, equivariant to permutations of elements.
        Equivariant,
    }
}

/// The architecture of a model, without parameters. TOML and JSON are supported; unknown keys are errors.
///
/// ```
/// use setwise::ModelConfig;
/// let config: ModelConfig = toml::from_str("
///     encoder = 'transformer'
///     input-widths = [3, 5]
///     latent = 64
/// ").unwrap();
/// assert_eq!(config.hidden, 64);
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ModelConfig {
    /// Kind of block.
    pub encoder: Encoder,
    /// Number of sets K.
    pub sets: usize,
    /// Width of the rows of each set. Empty for dimension-equivariant models, which take any width.
    pub input_widths: Vec<usize>,
    /// Width of an element's representation; of each dimension's, if dimension-equivariant.
    pub latent: usize,
    /// Width of hidden layers.
    pub hidden: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Number of attention heads, a divisor of `latent`.
    pub heads: usize,
    /// How relations are merged.
    pub merge: Merge,
    /// Which pairs of sets are related.
    pub relations: Relations,
    /// Which relations share weights.
    pub sharing: Sharing,
    /// Whether the model treats all input dimensions alike and takes any number of them.
    pub dimension_equivariant: bool,
    /// How a set is pooled.
    pub pooling: Pooling,
    /// Number of seeds of the attention pooling.
    pub seeds: usize,
    /// How relation networks reduce over partners.
    pub relation_pool: RelationPool,
    /// Hidden layers of the decoder; 0 is a linear map.
    pub decoder_layers: usize,
    /// LayerNorm inside relations and feed-forward encoders.
    pub inner_norm: bool,
    /// LayerNorm after the merge of each block.
    pub outer_norm: bool,
    /// LayerNorm inside attention pooling.
    pub pool_norm: bool,
    /// Residual of the feed-forward encoder.
    pub inner_residual: bool,
    /// Residual from a block's input to its merged relations.
    pub outer_residual: bool,
    /// The divisor of attention scores.
    pub attention_scale: AttentionScale,
    /// Dropout rate of sublayer outputs in training.
    pub dropout: f64,
    /// Width of an output vector.
    pub output_width: usize,
    /// Whether outputs are per example or per element.
    pub output: OutputKind,
    /// Project inputs that already have the latent width.
    pub always_project: bool,
    /// One input projection for all sets.
    pub share_projection: bool,
    /// One pooling for all sets.
    pub share_pooling: bool,
    /// Union models: add a learned vector to the elements of each set.
    pub set_encoding: bool,
    /// Hidden layers of the feed-forward encoder's blocks.
    pub feed_forward_layers: usize,
    /// PINE: number of projections.
    pub projections: usize,
    /// PINE: number of sigmoids for each projection.
    pub projection_size: usize,
    /// The encoder and size of images, if elements are images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<Images>,
}

impl Default for ModelConfig {
    /// The multi-set transformer on two sets of rows of width 2.
    fn default() -> Self {
        ModelConfig {
            encoder: Encoder::Transformer,
            sets: 2,
            input_widths: vec![2, 2],
            latent: 32,
            hidden: 64,
            blocks: 4,
            heads: 4,
            merge: Merge::ConcatRelu,
            relations: Relations::All,
            sharing: Sharing::None,
            dimension_equivariant: false,
            pooling: Pooling::Pma,
            seeds: 1,
            relation_pool: RelationPool::Max,
            decoder_layers: 1,
            inner_norm: true,
            outer_norm: true,
            pool_norm: true,
            inner_residual: true,
            outer_residual: true,
            attention_scale: AttentionScale::Head,
            dropout: 0.0,
            output_width: 1,
            output: OutputKind::Invariant,
            always_project: false,
            share_projection: false,
            share_pooling: false,
            set_encoding: false,
            feed_forward_layers: 2,
            projections: 16,
            projection_size: 8,
            images: None,
        }
    }
}

/// Upper limit of every size. Products of three such sizes fit in 64 bits.
const MAX_SIZE: usize = 1 << 16;
/// Upper limit of the number of parameters.
const MAX_PARAMETERS: usize = 1 << 30;

/// A validated config. Programs and models are built from it, which cannot fail.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidConfig(ModelConfig);

impl std::ops::Deref for ValidConfig {
    type Target = ModelConfig;
    fn deref(&self) -> &ModelConfig {
        &self.0
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $with:ident $field:ident: $t:ty),* $(,)?) => {
        $($(#[$doc])* pub fn $with(mut self, $field: $t) -> Self { self.$field = $field; self })*
    };
}

impl ModelConfig {
    setters! {
        /// Sets the latent width.
        with_latent latent: usize,
        /// Sets the hidden width.
        with_hidden hidden: usize,
        /// Sets the number of blocks.
        with_blocks blocks: usize,
        /// Sets the number of heads.
        with_heads heads: usize,
        /// Sets the merge of relations.
        with_merge merge: Merge,
        /// Sets which relations share weights.
        with_sharing sharing: Sharing,
        /// Sets the pooling.
        with_pooling pooling: Pooling,
        /// Sets the number of pooling seeds.
        with_seeds seeds: usize,
        /// Sets the width of an output vector.
        with_output_width output_width: usize,
        /// Sets whether outputs are per example or per element.
        with_output output: OutputKind,
        /// Sets the dropout rate.
        with_dropout dropout: f64,
        /// Sets the decoder's hidden layers.
        with_decoder_layers decoder_layers: usize,
    }

    /// Sets the number of sets, all with the width of the first.
    pub fn with_sets(mut self, sets: usize) -> Self {
        self.sets = sets;
        if let Some(&width) = self.input_widths.first() {
            self.input_widths = vec![width; sets.min(MAX_SIZE)];
        }
        self
    }

    /// Checks every field. The error names the first invalid field and its allowed values.
    pub fn validate(self) -> Result<ValidConfig> {
        let c = &self;
        let sizes = [
            ("latent", c.latent),
            ("hidden", c.hidden),
            ("heads", c.heads),
            ("seeds", c.seeds),
            ("output-width", c.output_width),
            ("projections", c.projections),
            ("projection-size", c.projection_size),
        ];
        for (field, n) in sizes {
            if n == 0 || n > MAX_SIZE {
                return Err(Error::config(field, format!("is {n}, must be between 1 and {MAX_SIZE}")));
            }
        }
        if c.sets == 0 || c.sets > 64 {
            return Err(Error::config("sets", format!("is {}, must be between 1 and 64", c.sets)));
        }
        let pine = c.encoder == Encoder::Pine;
        // A classifier of images has no blocks.
        let min_blocks = usize::from(!(c.images.is_some() && c.output == OutputKind::Equivariant));
        if !pine && !(min_blocks..=256).contains(&c.blocks) {
            return Err(Error::config("blocks", format!("is {}, must be between {min_blocks} and 256", c.blocks)));
        }
        for (field, n) in [("decoder-layers", c.decoder_layers), ("feed-forward-layers", c.feed_forward_layers)] {
            if n > 256 {
                return Err(Error::config(field, format!("is {n}, must be at most 256")));
            }
        }
        self.validate_inputs()?;
        let attends = c.encoder == Encoder::Transformer || (c.pooling == Pooling::Pma && !pine);
        if attends && !c.latent.is_multiple_of(c.heads) {
            let reason = format!("is {}, which does not divide the latent width {}", c.heads, c.latent);
            return Err(Error::config("heads", reason));
        }
        if !(0.0..1.0).contains(&c.dropout) {
            return Err(Error::config("dropout", format!("is {}, must be at least 0 and below 1", c.dropout)));
        }
        if c.relations == Relations::Cross && c.sets < 2 {
            return Err(Error::config("relations", "\"cross\" needs at least two sets"));
        }
        if c.encoder == Encoder::FeedForward && !matches!(c.relations, Relations::SelfOnly) {
            return Err(Error::config(
                "relations",
                "the feed-forward encoder sees one element at a time; use \"self\"",
            ));
        }
        if c.set_encoding && c.relations != Relations::Union {
            return Err(Error::config("set-encoding", "belongs to relations = \"union\""));
        }
        if c.dimension_equivariant && c.encoder == Encoder::RelationNetwork {
            return Err(Error::config("dimension-equivariant", "is not supported by relation networks"));
        }
        if pine && (c.dimension_equivariant || c.output == OutputKind::Equivariant) {
            let field = if c.dimension_equivariant { "dimension-equivariant" } else { "output" };
            return Err(Error::config(field, "PINE sums over each set at once: it answers per example, for one width"));
        }
        let parameters = super::build::parameter_bound(c);
        if parameters > MAX_PARAMETERS as u128 {
            let reason =
                format!("a model of this size has about {parameters} parameters; {MAX_PARAMETERS} is the maximum");
            return Err(Error::config("latent", reason));
        }
        Ok(ValidConfig(self))
    }

    fn validate_inputs(&self) -> Result<()> {
        let c = self;
        if c.dimension_equivariant && c.images.is_some() {
            return Err(Error::config(
                "dimension-equivariant",
                "is not supported with images: their pixels are not interchangeable",
            ));
        }
        if c.dimension_equivariant {
            if !c.input_widths.is_empty() {
                return Err(Error::config(
                    "input-widths",
                    "must be empty: a dimension-equivariant model takes any width",
                ));
            }
            return Ok(());
        }
        if c.input_widths.len() != c.sets {
            let reason = format!("has {} entries for {} sets", c.input_widths.len(), c.sets);
            return Err(Error::config("input-widths", reason));
        }
        if let Some(images) = &c.images {
            images.check()?;
            let expected = images.numbers();
            if let Some(w) = c.input_widths.iter().find(|&&w| w != expected) {
                let reason = format!("holds {w}, an image of the size under `images` has {expected} numbers");
                return Err(Error::config("input-widths", reason));
            }
            return Ok(());
        }
        if let Some(w) = c.input_widths.iter().find(|&&w| w == 0 || w > MAX_SIZE) {
            return Err(Error::config("input-widths", format!("holds {w}, each must be between 1 and {MAX_SIZE}")));
        }
        if c.share_projection && c.input_widths.iter().any(|w| *w != c.input_widths[0]) {
            return Err(Error::config("share-projection", "needs sets of one width"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_after(change: impl FnOnce(&mut ModelConfig)) -> String {
        let mut c = ModelConfig::default();
        change(&mut c);
        c.validate().unwrap_err().to_string()
    }

    #[test]
    fn every_invalid_value_is_refused_by_name() {
        assert!(error_after(|c| c.sets = 0).contains("sets: is 0"));
        assert!(error_after(|c| c.heads = 5).contains("heads: is 5, which does not divide the latent width 32"));
        assert!(error_after(|c| c.heads = 0).contains("heads"));
        assert!(error_after(|c| c.latent = usize::MAX).contains("latent"));
        assert!(error_after(|c| c.blocks = 0).contains("blocks"));
        assert!(error_after(|c| c.input_widths = vec![2]).contains("input-widths: has 1 entries for 2 sets"));
        assert!(error_after(|c| c.input_widths = vec![2, 0]).contains("input-widths"));
        assert!(error_after(|c| c.dropout = 1.0).contains("dropout"));
        assert!(error_after(|c| c.dropout = f64::NAN).contains("dropout"));
        assert!(error_after(|c| c.decoder_layers = 1000).contains("decoder-layers"));
        assert!(error_after(|c| c.encoder = Encoder::FeedForward).contains("relations"));
        assert!(error_after(|c| c.set_encoding = true).contains("set-encoding"));
        assert!(error_after(|c| c.dimension_equivariant = true).contains("input-widths"));
        assert!(
            error_after(|c| {
                (c.sets, c.input_widths, c.relations) = (1, vec![2], Relations::Cross);
            })
            .contains("relations")
        );
        assert!(
            error_after(|c| {
                (c.encoder, c.output) = (Encoder::Pine, OutputKind::Equivariant);
            })
            .contains("output")
        );
        assert!(error_after(|c| (c.latent, c.hidden, c.blocks) = (65536, 65536, 256)).contains("parameters"));
    }

    #[test]
    fn unknown_keys_and_values_are_refused_by_name() {
        let error = serde_json::from_str::<ModelConfig>(r#"{"latnet": 3}"#).unwrap_err().to_string();
        assert!(error.contains("latnet") && error.contains("latent"), "{error}");
        let error = toml::from_str::<ModelConfig>("merge = 'average'").unwrap_err().to_string();
        assert!(error.contains("average") && error.contains("concat-relu"), "{error}");
    }

    #[test]
    fn configs_round_trip_through_toml_and_json() {
        let config = ModelConfig { merge: Merge::Sum, relations: Relations::SelfOnly, ..Default::default() };
        assert_eq!(toml::from_str::<ModelConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
        assert_eq!(serde_json::from_str::<ModelConfig>(&serde_json::to_string(&config).unwrap()).unwrap(), config);
    }
}
