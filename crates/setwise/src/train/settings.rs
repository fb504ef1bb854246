//! The settings of a training: steps, loss, optimiser, learning-rate schedule.

use serde::{Deserialize, Serialize};
use setwise_engine::{Loss, MAX_QUANTILE_LEVELS, QuantileLevels};

use crate::data::Targets;
use crate::models::OutputKind;
use crate::{Error, Result};

/// A loss, as experiment files name it: `"l1"`, `"mse"`, `{ huber = { delta = 1.0 } }`, `"bce"`, `{ pinball = { level = 0.9 } }`,
/// `{ quantiles = { levels = [0.05, 0.5, 0.95], scale = 1.0 } }` (of log(1 + label/scale), a number of the answer for each),
/// `{ elements = { weight = 1.0 } }` (answers per element, whose mean over the first set is the label; the error of that mean, and `weight`
/// times the mean error of all elements).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum LossConfig {
    L1,
    Mse,
    Huber { delta: f64 },
    Bce,
    Pinball { level: f64 },
    Quantiles { levels: Vec<f64>, scale: f64 },
    Elements { weight: f64 },
}

/// An error about a key of the settings.
fn bad(key: impl AsRef<str>, reason: impl Into<String>) -> Error {
    Error::Setting { key: format!("training.{}", key.as_ref()), reason: reason.into() }
}

impl LossConfig {
    /// The loss itself.
    pub fn loss(&self) -> Loss {
        match *self {
            LossConfig::L1 => Loss::L1,
            LossConfig::Mse => Loss::Mse,
            LossConfig::Huber { delta } => Loss::Huber { delta },
            LossConfig::Bce => Loss::Bce,
            LossConfig::Pinball { level } => Loss::Pinball { level },
            LossConfig::Elements { weight } => Loss::Elements { weight },
            LossConfig::Quantiles { ref levels, .. } => {
                Loss::Quantiles(QuantileLevels::new(levels).expect("levels that have been checked"))
            }
        }
    }

    /// What it holds answers against.
    pub fn targets(&self) -> Targets {
        match self {
            LossConfig::Quantiles { levels, scale } => Targets::Quantiles { levels: levels.clone(), scale: *scale },
            LossConfig::Elements { .. } => Targets::Elements,
            _ => Targets::Label,
        }
    }

    /// What models answer with that it judges.
    pub fn output(&self) -> OutputKind {
        match self {
            LossConfig::Elements { .. } => OutputKind::Equivariant,
            _ => OutputKind::Invariant,
        }
    }
}

/// What makes steps of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Adam.
    Adam,
    /// Adam with decoupled weight decay.
    Adamw {
        /// Share of a parameter taken off per step and learning rate.
        #[serde(rename = "weight-decay")]
        weight_decay: f64,
    },
    /// Muon for the weight matrices of blocks and poolings, Adam for all else.
    Muon {
        /// Learning rate of the matrices; all else has `training.learning-rate`. Both warm up and decay alike.
        #[serde(rename = "learning-rate")]
        learning_rate: f64,
    },
}

/// How the learning rate goes after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// It stays.
    Constant,
    /// Half a cosine wave from the learning rate down to `final-fraction` of it.
    Cosine {
        /// The fraction of the learning rate that is left at the end.
        #[serde(rename = "final-fraction")]
        final_fraction: f64,
    },
}

/// How a model learns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Training {
    /// Batches to learn from.
    pub steps: u64,
    /// Examples in each.
    pub batch_size: usize,
    /// The loss.
    pub loss: LossConfig,
    /// The optimiser.
    pub optimizer: Optimizer,
    /// Largest learning rate.
    pub learning_rate: f64,
    /// Steps in which the learning rate rises from zero.
    pub warmup_steps: u64,
    /// How it goes on.
    pub schedule: Schedule,
    /// Gradients longer than this are shortened to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
}

impl Default for Training {
    fn default() -> Self {
        Training {
            steps: 10_000,
            batch_size: 64,
            loss: LossConfig::L1,
            optimizer: Optimizer::Adam,
            learning_rate: 1e-3,
            warmup_steps: 0,
            schedule: Schedule::Constant,
            clip_norm: None,
        }
    }
}

impl Training {
    /// The learning rate of a step, counted from zero.
    ///
    /// ```
    /// use setwise::train::{Schedule, Training};
    /// let t = Training { steps: 110, warmup_steps: 10, learning_rate: 1.0, schedule: Schedule::Cosine { final_fraction: 0.0 }, ..Default::default() };
    /// assert_eq!(t.rate(4), 0.5);
    /// assert_eq!(t.rate(10), 1.0);
    /// assert!((t.rate(60) - 0.5).abs() < 1e-12 && t.rate(109) < 1e-3);
    /// ```
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.learning_rate * (step + 1) as f64 / self.warmup_steps as f64;
        }
        match self.schedule {
            Schedule::Constant => self.learning_rate,
            Schedule::Cosine { final_fraction } => {
                let rest = self.steps.saturating_sub(self.warmup_steps).max(1);
                let part = (step - self.warmup_steps) as f64 / rest as f64;
                let wave = 0.5 + 0.5 * (std::f64::consts::PI * part.min(1.0)).cos();
                self.learning_rate * (final_fraction + (1.0 - final_fraction) * wave)
            }
        }
    }

    /// Checks every value; the error names the key.
    pub fn check(&self) -> Result<()> {
        let counts = [("steps", self.steps), ("batch-size", self.batch_size as u64)];
        for (key, n) in counts {
            if n == 0 || n > 1 << 31 {
                return Err(bad(key, format!("is {n}, must be between 1 and 2147483648")));
            }
        }
        if self.batch_size > 1 << 16 {
            return Err(bad("batch-size", format!("is {}, must be at most 65536", self.batch_size)));
        }
        let positive = |key: &str, x: f64, max: f64| {
            if x > 0.0 && x <= max {
                return Ok(());
            }
            let limit = if max < f64::MAX { format!(" and at most {max}") } else { " and finite".to_owned() };
            Err(bad(key, format!("is {x}, must be above 0{limit}")))
        };
        positive("learning-rate", self.learning_rate, 10.0)?;
        if let Some(clip) = self.clip_norm {
            positive("clip-norm", clip, f64::MAX)?;
        }
        if let Optimizer::Adamw { weight_decay: w } = self.optimizer
            && !(0.0..=100.0).contains(&w)
        {
            return Err(bad("optimizer.adamw.weight-decay", format!("is {w}, must be between 0 and 100")));
        }
        if let Optimizer::Muon { learning_rate } = self.optimizer {
            positive("optimizer.muon.learning-rate", learning_rate, 1.0)?;
        }
        if let Schedule::Cosine { final_fraction: f } = self.schedule
            && !(0.0..=1.0).contains(&f)
        {
            return Err(bad("schedule.cosine.final-fraction", format!("is {f}, must be between 0 and 1")));
        }
        match self.loss {
            LossConfig::Huber { delta } => positive("loss.huber.delta", delta, f64::MAX)?,
            LossConfig::Elements { weight } => positive("loss.elements.weight", weight, 1e3)?,
            LossConfig::Quantiles { ref levels, scale } => {
                positive("loss.quantiles.scale", scale, f64::MAX)?;
                let rising = levels.windows(2).all(|w| w[0] < w[1]);
                if QuantileLevels::new(levels).is_none() || !rising {
                    let reason =
                        format!("is {levels:?}, must be 1 to {MAX_QUANTILE_LEVELS} rising numbers between 0 and 1");
                    return Err(bad("loss.quantiles.levels", reason));
                }
            }
            LossConfig::Pinball { level } if !(level > 0.0 && level < 1.0) => {
                return Err(bad("loss.pinball.level", format!("is {level}, must be between 0 and 1")));
            }
            _ => {}
        }
        Ok(())
    }
}
