//! Settings of a run beside its training: validation, checkpoints, the log, pretraining of an image encoder.

use serde::{Deserialize, Serialize};

use super::config::bad;
use crate::Result;

/// Intervals of validation, checkpoints and the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RunSettings {
    /// Steps between validations.
    pub validate_every: u64,
    /// Held-out examples of a validation.
    pub validation_examples: usize,
    /// Steps between checkpoints.
    pub checkpoint_every: u64,
    /// Steps between lines of the log.
    pub log_every: u64,
}

impl Default for RunSettings {
    fn default() -> Self {
        RunSettings { validate_every: 1000, validation_examples: 1024, checkpoint_every: 500, log_every: 50 }
    }
}

impl RunSettings {
    pub(super) fn check(&self) -> Result<()> {
        let counts = [
            ("validate-every", self.validate_every),
            ("validation-examples", self.validation_examples as u64),
            ("checkpoint-every", self.checkpoint_every),
            ("log-every", self.log_every),
        ];
        counts.into_iter().try_for_each(|(key, n)| check_count("run", key, n))
    }
}

/// Pretraining of the image encoder as a classifier, before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Pretraining {
    /// The number of batches.
    pub steps: u64,
    /// Images of a batch.
    pub batch_size: usize,
    /// Adam's learning rate.
    pub learning_rate: f64,
}

impl Pretraining {
    pub(super) fn check(&self) -> Result<()> {
        check_count("pretraining", "steps", self.steps)?;
        check_count("pretraining", "batch-size", self.batch_size as u64)?;
        let rate = self.learning_rate;
        if !(rate > 0.0 && rate <= 1.0) {
            return Err(bad("pretraining.learning-rate", format!("is {rate}, must be above 0 and at most 1")));
        }
        Ok(())
    }
}

fn check_count(table: &str, key: &str, n: u64) -> Result<()> {
    match n {
        1..=0x8000_0000 => Ok(()),
        _ => Err(bad(format!("{table}.{key}"), format!("is {n}, must be between 1 and 2147483648"))),
    }
}
