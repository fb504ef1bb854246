//! The config all architectures share, and its validation.

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
    /// What a block does with a pair of sets.
    Encoder {
        /// Attention and feed-forward.
        Transformer,
        /// A network on pairs, pooled over partners, and feed-forward.
        RelationNetwork,
        /// A feed-forward network on each element alone (Deep Sets).
        FeedForward,
        /// The PINE model: no blocks, one sum of sigmoids per set.
        Pine,
    }
}
choice! {
    /// How a block joins what the relations of a set found.
    Merge {
        /// A linear layer on their concatenation.
        Concat,
        /// The same with ReLU, as the paper's text has it.
        ConcatRelu,
        /// Their sum.
        Sum,
    }
}
choice! {
    /// Which pairs of sets (a, b) a block relates.
    Relations {
        /// All, also (a, a).
        All,
        /// Only different sets.
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
        /// None: each has its own.
        None,
        /// All between different sets.
        Cross,
        /// All between different sets, and all of sets with themselves; merges and outer norms too.
        Sym,
    }
}
choice! {
    /// How the elements of a set become one vector.
    Pooling {
        /// Attention of learned seeds.
        Pma,
        /// Largest of each coordinate.
        Max,
        /// Average.
        Mean,
        /// Sum.
        Sum,
    }
}
choice! {
    /// How relation networks reduce over partners.
    RelationPool {
        /// Largest.
        Max,
        /// Sum.
        Sum,
    }
}
choice! {
    /// What scores are divided by.
    AttentionScale {
        /// The root of a head's width, as usual.
        Head,
        /// The root of the latent width, as the published code has it.
        Latent,
    }
}
choice! {
    /// What the model answers with.
    OutputKind {
        /// One vector per example, unchanged when elements change places.
        Invariant,
        /// One vector per element, which moves along with it.
        Equivariant,
    }
}

/// Everything that makes a model but its parameters. Reads and writes as TOML and JSON; unknown keys are errors.
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
    /// Width of the rows of each set; they may differ. Empty for dimension-equivariant models, which take any.
    pub input_widths: Vec<usize>,
    /// Width of an element's representation (per dimension, if dimension-equivariant).
    pub latent: usize,
    /// Width inside feed-forward networks.
    pub hidden: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Attention heads; they divide `latent`.
    pub heads: usize,
    /// How relations are joined.
    pub merge: Merge,
    /// Which relations there are.
    pub relations: Relations,
    /// Which share weights.
    pub sharing: Sharing,
    /// Treat all input dimensions alike, whatever their number.
    pub dimension_equivariant: bool,
    /// How a set becomes one vector.
    pub pooling: Pooling,
    /// Seeds of the attention pooling.
    pub seeds: usize,
    /// How relation networks reduce over partners.
    pub relation_pool: RelationPool,
    /// Hidden layers of the decoder; 0 is a single projection.
    pub decoder_layers: usize,
    /// LayerNorm inside the blocks' transformer, relation or feed-forward networks.
    pub inner_norm: bool,
    /// LayerNorm after each block.
    pub outer_norm: bool,
    /// LayerNorm inside attention pooling.
    pub pool_norm: bool,
    /// Add the block's input to the feed-forward encoder's output.
    pub inner_residual: bool,
    /// Add the block's input to the merged relations.
    pub outer_residual: bool,
    /// What scores are divided by.
    pub attention_scale: AttentionScale,
    /// Probability of dropping a number of a sublayer's output in training.
    pub dropout: f64,
    /// Numbers in an answer.
    pub output_width: usize,
    /// Per example or per element.
    pub output: OutputKind,
    /// Project inputs to the latent width even where it is theirs already.
    pub always_project: bool,
    /// One input projection for all sets.
    pub share_projection: bool,
    /// One pooling for all sets.
    pub share_pooling: bool,
    /// Union models only: add a learned vector to the elements of each set.
    pub set_encoding: bool,
    /// Hidden layers of the feed-forward encoder's blocks.
    pub feed_forward_layers: usize,
    /// PINE only: number of projections.
    pub projections: usize,
    /// PINE only: sigmoids per projection.
    pub projection_size: usize,
    /// What the elements of the sets are, where they are images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<Images>,
}

impl Default for ModelConfig {
    /// The multi-set transformer on two sets of points in the plane.
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

/// No size of a model may be larger than this: enough for any real one, and no product of three overflows.
const LARGEST: usize = 1 << 16;
/// A model may not have more parameters than this.
const MOST_PARAMETERS: usize = 1 << 30;

/// A config that has been checked. Everything that builds models takes this, so it cannot fail.
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
        /// Sets how relations are joined.
        with_merge merge: Merge,
        /// Sets which relations share weights.
        with_sharing sharing: Sharing,
        /// Sets the pooling.
        with_pooling pooling: Pooling,
        /// Sets the number of pooling seeds.
        with_seeds seeds: usize,
        /// Sets the number of numbers in an answer.
        with_output_width output_width: usize,
        /// Sets whether answers are per example or per element.
        with_output output: OutputKind,
        /// Sets the dropout rate.
        with_dropout dropout: f64,
        /// Sets the decoder's hidden layers.
        with_decoder_layers decoder_layers: usize,
    }

    /// Sets the number of sets, all with rows as wide as those of the first.
    pub fn with_sets(mut self, sets: usize) -> Self {
        self.sets = sets;
        if let Some(&width) = self.input_widths.first() {
            self.input_widths = vec![width; sets.min(LARGEST)];
        }
        self
    }

    /// Checks every field; the error names the first that cannot be and says what could.
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
            if n == 0 || n > LARGEST {
                return Err(Error::config(field, format!("is {n}, must be between 1 and {LARGEST}")));
            }
        }
        if c.sets == 0 || c.sets > 64 {
            return Err(Error::config("sets", format!("is {}, must be between 1 and 64", c.sets)));
        }
        let pine = c.encoder == Encoder::Pine;
        // A classifier of images has no blocks.
        let least = usize::from(!(c.images.is_some() && c.output == OutputKind::Equivariant));
        if !pine && !(least..=256).contains(&c.blocks) {
            return Err(Error::config("blocks", format!("is {}, must be between {least} and 256", c.blocks)));
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
            return Err(Error::config("dimension-equivariant", "is not made for relation networks"));
        }
        if pine && (c.dimension_equivariant || c.output == OutputKind::Equivariant) {
            let field = if c.dimension_equivariant { "dimension-equivariant" } else { "output" };
            return Err(Error::config(field, "PINE sums over each set at once: it answers per example, for one width"));
        }
        let parameters = super::build::parameter_bound(c);
        if parameters > MOST_PARAMETERS as u128 {
            let reason =
                format!("a model of this size has about {parameters} parameters; {MOST_PARAMETERS} is the most");
            return Err(Error::config("latent", reason));
        }
        Ok(ValidConfig(self))
    }

    fn validate_inputs(&self) -> Result<()> {
        let c = self;
        if c.dimension_equivariant && c.images.is_some() {
            return Err(Error::config("dimension-equivariant", "is not made for images: their pixels are not alike"));
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
            let wanted = images.numbers();
            if let Some(w) = c.input_widths.iter().find(|&&w| w != wanted) {
                let reason = format!("holds {w}, an image of the size under `images` has {wanted} numbers");
                return Err(Error::config("input-widths", reason));
            }
            return Ok(());
        }
        if let Some(w) = c.input_widths.iter().find(|&&w| w == 0 || w > LARGEST) {
            return Err(Error::config("input-widths", format!("holds {w}, each must be between 1 and {LARGEST}")));
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

    fn reason(change: impl FnOnce(&mut ModelConfig)) -> String {
        let mut c = ModelConfig::default();
        change(&mut c);
        c.validate().unwrap_err().to_string()
    }

    #[test]
    fn every_impossible_value_is_named() {
        assert!(reason(|c| c.sets = 0).contains("sets: is 0"));
        assert!(reason(|c| c.heads = 5).contains("heads: is 5, which does not divide the latent width 32"));
        assert!(reason(|c| c.heads = 0).contains("heads"));
        assert!(reason(|c| c.latent = usize::MAX).contains("latent"));
        assert!(reason(|c| c.blocks = 0).contains("blocks"));
        assert!(reason(|c| c.input_widths = vec![2]).contains("input-widths: has 1 entries for 2 sets"));
        assert!(reason(|c| c.input_widths = vec![2, 0]).contains("input-widths"));
        assert!(reason(|c| c.dropout = 1.0).contains("dropout"));
        assert!(reason(|c| c.dropout = f64::NAN).contains("dropout"));
        assert!(reason(|c| c.decoder_layers = 1000).contains("decoder-layers"));
        assert!(reason(|c| c.encoder = Encoder::FeedForward).contains("relations"));
        assert!(reason(|c| c.set_encoding = true).contains("set-encoding"));
        assert!(reason(|c| c.dimension_equivariant = true).contains("input-widths"));
        assert!(
            reason(|c| {
                (c.sets, c.input_widths, c.relations) = (1, vec![2], Relations::Cross);
            })
            .contains("relations")
        );
        assert!(
            reason(|c| {
                (c.encoder, c.output) = (Encoder::Pine, OutputKind::Equivariant);
            })
            .contains("output")
        );
        assert!(reason(|c| (c.latent, c.hidden, c.blocks) = (65536, 65536, 256)).contains("parameters"));
    }

    #[test]
    fn unknown_keys_and_values_are_refused_by_name() {
        let error = serde_json::from_str::<ModelConfig>(r#"{"latnet": 3}"#).unwrap_err().to_string();
        assert!(error.contains("latnet") && error.contains("latent"), "{error}");
        let error = toml::from_str::<ModelConfig>("merge = 'average'").unwrap_err().to_string();
        assert!(error.contains("average") && error.contains("concat-relu"), "{error}");
    }

    #[test]
    fn configs_survive_toml_and_json() {
        let config = ModelConfig { merge: Merge::Sum, relations: Relations::SelfOnly, ..Default::default() };
        assert_eq!(toml::from_str::<ModelConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
        assert_eq!(serde_json::from_str::<ModelConfig>(&serde_json::to_string(&config).unwrap()).unwrap(), config);
    }
}
