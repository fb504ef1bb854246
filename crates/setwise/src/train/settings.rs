//! Settings of a training: steps, loss, optimiser, learning-rate schedule.

use serde::{Deserialize, Serialize};
use setwise_engine::{Loss, MAX_QUANTILE_LEVELS, QuantileLevels};

use crate::data::Targets;
use crate::models::OutputKind;
use crate::{Error, Result};

/// A loss as experiment files write it, such as `"l1"` or `{ huber = { delta = 1.0 } }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossConfig {
    /// Mean absolute error.
    L1,
    /// Mean squared error.
    Mse,
    /// Huber loss: `{ huber = { delta = 1.0 } }`.
    Huber {
        /// The loss is quadratic within `delta` and linear beyond.
        delta: f64,
    },
    /// Binary cross-entropy of a logit with a label from 0 to 1.
    Bce,
    /// Quantile loss: `{ pinball = { level = 0.9 } }`.
    Pinball {
        /// The level of the quantile, in (0, 1).
        level: f64,
    },
    /// Quantile losses, one output for each level: `{ quantiles = { levels = [0.05, 0.5, 0.95], scale = 1.0 } }`.
    /// Targets are log(1 + label/scale).
    Quantiles {
        /// Levels in (0, 1), increasing.
        levels: Vec<f64>,
        /// The scale of labels.
        scale: f64,
    },
    /// Absolute error of the mean output over the first set, plus `weight` times the mean absolute error of all
    /// elements: `{ elements = { weight = 1.0 } }`. Outputs and labels are per element.
    #[serde(rename = "elements")]
    SetMeanL1 {
        /// Weight of the error of elements.
        #[serde(rename = "weight")]
        element_weight: f64,
    },
}

/// An error about a key of the settings.
fn bad(key: impl AsRef<str>, reason: impl Into<String>) -> Error {
    Error::Setting { key: format!("training.{}", key.as_ref()), reason: reason.into() }
}

impl LossConfig {
    /// The loss of the engine.
    pub fn loss(&self) -> Loss {
        match *self {
            LossConfig::L1 => Loss::L1,
            LossConfig::Mse => Loss::Mse,
            LossConfig::Huber { delta } => Loss::Huber { delta },
            LossConfig::Bce => Loss::Bce,
            LossConfig::Pinball { level } => Loss::Pinball { level },
            LossConfig::SetMeanL1 { element_weight } => Loss::SetMeanL1 { element_weight },
            LossConfig::Quantiles { ref levels, .. } => {
                Loss::Quantiles(QuantileLevels::new(levels).expect("checked levels"))
            }
        }
    }

    /// The targets of the loss.
    pub fn targets(&self) -> Targets {
        match self {
            LossConfig::Quantiles { levels, scale } => Targets::Quantiles { levels: levels.clone(), scale: *scale },
            LossConfig::SetMeanL1 { .. } => Targets::ElementLabels,
            _ => Targets::Label,
        }
    }

    /// The kind of output that the loss needs.
    pub fn output(&self) -> OutputKind {
        match self {
            LossConfig::SetMeanL1 { .. } => OutputKind::Equivariant,
            _ => OutputKind::Invariant,
        }
    }
}

/// The optimiser.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Adam.
    Adam,
    /// Adam with decoupled weight decay.
    Adamw {
        /// Weight decay λ: each step subtracts learning rate · λ · parameter.
        #[serde(rename = "weight-decay")]
        weight_decay: f64,
    },
    /// Muon for the weight matrices of blocks and poolings, Adam for other parameters.
    Muon {
        /// Learning rate of the matrices; others have `training.learning-rate`. Both follow the same schedule.
        #[serde(rename = "learning-rate")]
        learning_rate: f64,
    },
}

/// The learning-rate schedule after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Constant.
    Constant,
    /// Cosine decay from the learning rate to `final-fraction` of it.
    Cosine {
        /// The fraction of the learning rate at the last step.
        #[serde(rename = "final-fraction")]
        final_fraction: f64,
    },
}

/// Settings of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Training {
    /// Number of steps, one batch each.
    pub steps: u64,
    /// Examples of a batch.
    pub batch_size: usize,
    /// The loss.
    pub loss: LossConfig,
    /// The optimiser.
    pub optimizer: Optimizer,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Steps of linear warm-up from zero.
    pub warmup_steps: u64,
    /// The schedule after the warm-up.
    pub schedule: Schedule,
    /// Maximum norm of the gradient; longer gradients are scaled down to it.
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
    /// let schedule = Schedule::Cosine { final_fraction: 0.0 };
    /// let t = Training { steps: 110, warmup_steps: 10, learning_rate: 1.0, schedule, ..Default::default() };
    /// assert_eq!(t.learning_rate_at(4), 0.5);
    /// assert_eq!(t.learning_rate_at(10), 1.0);
    /// assert!((t.learning_rate_at(60) - 0.5).abs() < 1e-12 && t.learning_rate_at(109) < 1e-3);
    /// ```
    pub fn learning_rate_at(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.learning_rate * (step + 1) as f64 / self.warmup_steps as f64;
        }
        match self.schedule {
            Schedule::Constant => self.learning_rate,
            Schedule::Cosine { final_fraction } => {
                let decay_steps = self.steps.saturating_sub(self.warmup_steps).max(1);
                let progress = (step - self.warmup_steps) as f64 / decay_steps as f64;
                let cosine = 0.5 + 0.5 * (std::f64::consts::PI * progress.min(1.0)).cos();
                self.learning_rate * (final_fraction + (1.0 - final_fraction) * cosine)
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
            LossConfig::SetMeanL1 { element_weight } => positive("loss.elements.weight", element_weight, 1e3)?,
            LossConfig::Quantiles { ref levels, scale } => {
                positive("loss.quantiles.scale", scale, f64::MAX)?;
                let increasing = levels.windows(2).all(|w| w[0] < w[1]);
                if QuantileLevels::new(levels).is_none() || !increasing {
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
