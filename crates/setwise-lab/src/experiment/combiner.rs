//! The second network of an estimator: its examples, size and training.

use serde::{Deserialize, Serialize};

use setwise::distributions::IntRange;

use super::config::bad;
use super::task::check_size;
use crate::Result;

/// The network that combines the set model's predictions with classical estimates. It is trained after the set model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Combiner {
    /// Number of training pairs of samples.
    pub examples: usize,
    /// Number of pairs that calibrate the interval.
    pub calibration_examples: usize,
    /// Rows of each sample, log-uniform.
    pub set_size: IntRange,
    /// Fraction of pairs of single Gaussians, beside those of the broad family.
    ///
    /// Many real samples are nearly Gaussian, and the closed form is hard to beat there.
    pub gaussian_fraction: f64,
    /// Number of networks in the ensemble. They differ in their initial parameters, and their mean is the estimate.
    pub ensemble_size: usize,
    /// Width of a network's residual stream.
    pub latent: usize,
    /// Width inside its blocks.
    pub hidden: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Number of training steps.
    pub steps: u64,
    /// Examples of a batch.
    pub batch_size: usize,
    /// Initial learning rate. A cosine schedule reduces it to a hundredth.
    pub learning_rate: f64,
    /// AdamW's weight decay.
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
