//! The second network of an estimator: what it learns from and how.

use serde::{Deserialize, Serialize};

use setwise::distributions::IntRange;

use super::config::bad;
use super::task::check_size;
use crate::Result;

/// The network that combines the set model's answers with classical estimates, trained when the set model is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Combiner {
    /// Pairs of samples to learn from.
    pub examples: usize,
    /// Further pairs the interval is calibrated on.
    pub calibration_examples: usize,
    /// Rows of each sample; logarithms are uniform.
    pub set_size: IntRange,
    /// Share of pairs that are single Gaussians, beside those in the stream: many real samples are nearly that, and there the closed
    /// form is hard to beat.
    pub gaussian_fraction: f64,
    /// Networks whose mean answers, alike but for where they set out from.
    pub ensemble_size: usize,
    /// Width of a network's residual stream.
    pub latent: usize,
    /// Width inside its blocks.
    pub hidden: usize,
    /// Its blocks.
    pub blocks: usize,
    /// Batches to learn from.
    pub steps: u64,
    /// Examples in each.
    pub batch_size: usize,
    /// Largest learning rate; half a cosine wave brings it down to a hundredth.
    pub learning_rate: f64,
    /// Share of a parameter taken off per step and learning rate.
    pub weight_decay: f64,
}

impl Default for Combiner {
    fn default() -> Self {
        Combiner {
            examples: 32_000,
            calibration_examples: 6_000,
            set_size: IntRange::new(30, 2000),
            gaussian_fraction: 0.1,
            ensemble_size: 1,
            latent: 64,
            hidden: 128,
            blocks: 3,
            steps: 10_000,
            batch_size: 256,
            learning_rate: 1e-3,
            weight_decay: 0.01,
        }
    }
}

impl Combiner {
    pub(super) fn check(&self) -> Result<()> {
        let counts = [
            ("examples", self.examples),
            ("calibration-examples", self.calibration_examples),
            ("ensemble-size", self.ensemble_size),
            ("latent", self.latent),
            ("hidden", self.hidden),
            ("blocks", self.blocks),
            ("steps", self.steps as usize),
            ("batch-size", self.batch_size),
        ];
        for (key, n) in counts {
            if n == 0 || n > 1 << 24 {
                return Err(bad(format!("combiner.{key}"), format!("is {n}, must be between 1 and {}", 1 << 24)));
            }
        }
        check_size("combiner.set-size", self.set_size)?;
        if self.set_size.min < 10 {
            return Err(bad("combiner.set-size", format!("is from {}, must be from 10 or more", self.set_size.min)));
        }
        if !(0.0..=1.0).contains(&self.gaussian_fraction) {
            return Err(bad(
                "combiner.gaussian-fraction",
                format!("is {}, must be between 0 and 1", self.gaussian_fraction),
            ));
        }
        for (key, x) in [("learning-rate", self.learning_rate), ("weight-decay", self.weight_decay)] {
            if !(0.0..=10.0).contains(&x) {
                return Err(bad(format!("combiner.{key}"), format!("is {x}, must be between 0 and 10")));
            }
        }
        Ok(())
    }
}
