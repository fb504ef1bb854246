//! The paper's ten architectures as presets of one config.

use super::config::{Encoder, Merge, ModelConfig, Pooling, RelationPool, Relations};
use crate::{Error, Result};

/// An architecture of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name in the paper.
    pub name: &'static str,
    /// A description in one line.
    pub summary: &'static str,
    /// Operations as a function of set sizes n, m and width d.
    pub complexity: &'static str,
    /// Sets what differs from the default config.
    configure: fn(&mut ModelConfig),
}

/// All presets, in the order of the paper's tables.
pub const PRESETS: [Preset; 10] = [
    Preset {
        name: "multi-set-transformer",
        summary: "transformer blocks on all pairs of sets, merged by concatenation",
        complexity: "(n+m)d² + (n+m)²d",
        configure: |_| {},
    },
    Preset {
        name: "multi-set-rn",
        summary: "relation networks on all pairs of sets",
        complexity: "(n+m)²d²",
        configure: |c| {
            c.encoder = Encoder::RelationNetwork;
            c.pooling = Pooling::Max;
        },
    },
    Preset {
        name: "cross-only",
        summary: "transformer blocks on pairs of different sets only",
        complexity: "(n+m)d² + nmd",
        configure: |c| c.relations = Relations::Cross,
    },
    Preset {
        name: "sum-merge",
        summary: "transformer blocks on all pairs of sets, merged by a sum",
        complexity: "(n+m)d² + (n+m)²d",
        configure: |c| c.merge = Merge::Sum,
    },
    Preset {
        name: "multi-set-transformer-equi",
        summary: "the same for every input dimension: takes sets of any width",
        complexity: "(n+m)d² + (n+m)²d",
        configure: |c| {
            c.dimension_equivariant = true;
            c.input_widths.clear();
        },
    },
    Preset {
        name: "pine",
        summary: "sums of sigmoids of projections of each set (Gui et al., 2021)",
        complexity: "(n+m)d²",
        configure: |c| c.encoder = Encoder::Pine,
    },
    Preset {
        name: "single-set-rff",
        summary: "each element alone, pooled per set (Deep Sets; Zaheer et al., 2017)",
        complexity: "(n+m)d²",
        configure: |c| {
            single_set(c);
            c.encoder = Encoder::FeedForward;
        },
    },
    Preset {
        name: "single-set-rn",
        summary: "relation networks inside each set (Santoro et al., 2017)",
        complexity: "(n²+m²)d²",
        configure: |c| {
            single_set(c);
            c.encoder = Encoder::RelationNetwork;
            c.relation_pool = RelationPool::Max;
            c.pooling = Pooling::Max;
        },
    },
    Preset {
        name: "single-set-transformer",
        summary: "a Set Transformer on each set (Lee et al., 2019)",
        complexity: "(n+m)d² + (n²+m²)d",
        configure: single_set,
    },
    Preset {
        name: "union-transformer",
        summary: "one Set Transformer on the union of all sets",
        complexity: "(n+m)d² + (n+m)²d",
        configure: |c| {
            single_set(c);
            c.relations = Relations::Union;
        },
    },
];

/// Blocks of self relations without merge, outer residual and outer norm.
fn single_set(c: &mut ModelConfig) {
    c.relations = Relations::SelfOnly;
    c.merge = Merge::Sum;
    c.outer_residual = false;
    c.outer_norm = false;
}

impl ModelConfig {
    /// A preset for two sets of rows of width `dim`, with the paper's sizes for divergences: four blocks and four
    /// heads.
    ///
    /// The latent width is 16·`dim` and the hidden width 32·`dim`; 16 and 32 if dimension-equivariant.
    pub fn preset(name: &str, dim: usize) -> Result<Self> {
        let Some(preset) = PRESETS.iter().find(|p| p.name == name) else {
            let known = PRESETS.map(|p| p.name).join(", ");
            return Err(Error::UnknownPreset { name: name.to_owned(), known });
        };
        let mut config = ModelConfig {
            input_widths: vec![dim; 2],
            latent: dim.saturating_mul(16),
            hidden: dim.saturating_mul(32),
            projection_size: dim.saturating_mul(4),
            ..Default::default()
        };
        (preset.configure)(&mut config);
        if config.dimension_equivariant {
            (config.latent, config.hidden) = (16, 32);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_valid_for_one_to_three_sets() {
        for preset in PRESETS {
            for sets in 1..=3 {
                let config = ModelConfig::preset(preset.name, 3).unwrap().with_sets(sets);
                let valid = config.validate();
                assert_eq!(valid.is_ok(), preset.name != "cross-only" || sets > 1, "{} on {sets} sets", preset.name);
            }
        }
    }

    #[test]
    fn the_error_of_an_unknown_preset_lists_the_known_ones() {
        let error = ModelConfig::preset("transformer", 2).unwrap_err().to_string();
        assert!(error.contains("\"transformer\"") && error.contains("multi-set-rn"), "{error}");
    }
}
