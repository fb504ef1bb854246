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
    /// Number of training examples. A pair of samples is an example in each direction.
    pub examples: usize,
    /// Number of examples that calibrate the interval.
    pub calibration_examples: usize,
    /// Fraction of these examples that calibrated 90 % intervals contain.
    ///
    /// Distributions unlike all training data are covered less often than these examples.
    pub calibration_level: f64,
    /// Rows of each sample, log-uniform.
    pub set_size: IntRange,
    /// Fraction of pairs of single Gaussians.
    ///
    /// Many real samples are nearly Gaussian, and the closed form is hard to beat there.
    pub gaussian_fraction: f64,
    /// Fraction of pairs with heavy tails, down to those of a Cauchy distribution.
    pub heavy_tail_fraction: f64,
    /// Fraction of pairs that differ in fine structure. All other pairs are those of the broad family.
    pub structured_fraction: f64,
    /// Fraction of pairs, of any kind, with a few rows far outside in one sample.
    pub contaminated_fraction: f64,
    /// Fraction of pairs, of any kind, in which both samples are drawn from the first distribution.
    pub equal_fraction: f64,
    /// Fraction of pairs, of any kind, with further columns that have the same distribution in both samples.
    pub padded_fraction: f64,
    /// Further pairs of large samples, which are drawn apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub many_rows: Option<ManyRows>,
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
    /// Fraction of inputs that are hidden from the network in each step.
    pub input_dropout: f64,
}

/// Further examples for the combiner: pairs of large samples with few columns.
///
/// There the errors of estimates are far smaller than elsewhere, and so is the share of pairs in the other examples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ManyRows {
    /// Number of training examples.
    pub examples: usize,
    /// Number of examples that calibrate the interval.
    pub calibration_examples: usize,
    /// Columns of the samples.
    pub dims: IntRange,
    /// Rows of each sample, log-uniform.
    pub set_size: IntRange,
}

impl Default for Combiner {
    fn default() -> Self {
        Combiner {
            examples: 32_000,
            calibration_examples: 6_000,
            calibration_level: 0.94,
            set_size: IntRange::new(30, 2000),
            gaussian_fraction: 0.07,
            heavy_tail_fraction: 0.08,
            structured_fraction: 0.5,
            contaminated_fraction: 0.06,
            equal_fraction: 0.05,
            padded_fraction: 0.2,
            many_rows: None,
            ensemble_size: 1,
            latent: 64,
            hidden: 128,
            blocks: 3,
            steps: 10_000,
            batch_size: 256,
            learning_rate: 1e-3,
            weight_decay: 0.3,
            input_dropout: 0.02,
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
        let of_many = self.many_rows.as_ref().map(|many| {
            [("many-rows.examples", many.examples), ("many-rows.calibration-examples", many.calibration_examples)]
        });
        for (key, n) in counts.into_iter().chain(of_many.into_iter().flatten()) {
            if n == 0 || n > 1 << 24 {
                return Err(bad(format!("combiner.{key}"), format!("is {n}, must be between 1 and {}", 1 << 24)));
            }
        }
        check_rows("combiner.set-size", self.set_size)?;
        if let Some(many) = &self.many_rows {
            check_rows("combiner.many-rows.set-size", many.set_size)?;
        }
        let fractions = [
            ("calibration-level", self.calibration_level),
            ("gaussian-fraction", self.gaussian_fraction),
            ("heavy-tail-fraction", self.heavy_tail_fraction),
            ("structured-fraction", self.structured_fraction),
            ("contaminated-fraction", self.contaminated_fraction),
            ("equal-fraction", self.equal_fraction),
            ("padded-fraction", self.padded_fraction),
            ("input-dropout", self.input_dropout),
        ];
        for (key, x) in fractions {
            if !(0.0..=1.0).contains(&x) {
                return Err(bad(format!("combiner.{key}"), format!("is {x}, must be between 0 and 1")));
            }
        }
        if self.gaussian_fraction + self.heavy_tail_fraction + self.structured_fraction > 1.0 {
            return Err(bad("combiner.structured-fraction", "and the fractions of Gaussians and heavy tails exceed 1"));
        }
        for (key, x) in [("learning-rate", self.learning_rate), ("weight-decay", self.weight_decay)] {
            if !(0.0..=10.0).contains(&x) {
                return Err(bad(format!("combiner.{key}"), format!("is {x}, must be between 0 and 10")));
            }
        }
        Ok(())
    }
}

fn check_rows(key: &str, rows: IntRange) -> Result<()> {
    check_size(key, rows)?;
    if rows.min < 10 {
        return Err(bad(key, format!("is from {}, must be from 10 or more", rows.min)));
    }
    Ok(())
}
