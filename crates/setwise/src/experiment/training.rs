//! How a model learns: steps, loss, optimiser, learning rate.

use serde::{Deserialize, Serialize};
use setwise_engine::{Loss, MAX_QUANTILE_LEVELS, QuantileLevels};

use super::settings::bad;
use super::task::{check_mixture, check_rho, check_size};
use crate::Result;
use crate::data::{MixtureChange, MixtureLaw, Span, Targets};
use crate::models::OutputKind;

/// A loss, as experiment files name it: `"l1"`, `"mse"`, `{ huber = { delta = 1.0 } }`, `"bce"`, `{ pinball = { level = 0.9 } }`,
/// `{ quantiles = { levels = [0.05, 0.5, 0.95], scale = 1.0 } }` (of log(1 + label/scale), a number of the answer for each),
/// `{ elements = { weight = 1.0 } }` (answers per element, whose mean over the first set is the label; the error of that mean, and `weight`
/// times the mean error of all elements).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum LossName {
    L1,
    Mse,
    Huber { delta: f64 },
    Bce,
    Pinball { level: f64 },
    Quantiles { levels: Vec<f64>, scale: f64 },
    Elements { weight: f64 },
}

impl LossName {
    /// The loss itself.
    pub fn loss(&self) -> Loss {
        match *self {
            LossName::L1 => Loss::L1,
            LossName::Mse => Loss::Mse,
            LossName::Huber { delta } => Loss::Huber { delta },
            LossName::Bce => Loss::Bce,
            LossName::Pinball { level } => Loss::Pinball { level },
            LossName::Elements { weight } => Loss::Elements { weight },
            LossName::Quantiles { ref levels, .. } => {
                Loss::Quantiles(QuantileLevels::new(levels).expect("levels that have been checked"))
            }
        }
    }

    /// What it holds answers against.
    pub fn targets(&self) -> Targets {
        match self {
            LossName::Quantiles { levels, scale } => Targets::Quantiles { levels: levels.clone(), scale: *scale },
            LossName::Elements { .. } => Targets::Elements,
            _ => Targets::Label,
        }
    }

    /// What models answer with that it judges.
    pub(super) fn output(&self) -> OutputKind {
        match self {
            LossName::Elements { .. } => OutputKind::Equivariant,
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
        /// Learning rate of the matrices; that of all else is `learning-rate`. Both warm up and decay alike.
        rate: f64,
    },
}

/// How the learning rate goes after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// It stays.
    Constant,
    /// Half a cosine wave from the learning rate down to `last` times it.
    Cosine {
        /// What is left at the end.
        last: f64,
    },
}

/// Other examples for some steps, which are easier to learn from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Phase {
    /// How many.
    pub steps: u64,
    /// Points of a set, if not the task's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Span>,
    /// Range of the correlation of a task of kind mi, if not the task's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rho: Option<[f64; 2]>,
    /// Where the law of mixtures of a task of kind kl differs from the task's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixture: Option<MixtureChange>,
}

/// How the encoder of images learns to tell classes apart before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Pretraining {
    /// Batches.
    pub steps: u64,
    /// Images in each.
    pub batch: usize,
    /// Adam's learning rate.
    pub learning_rate: f64,
}

/// How a model learns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Training {
    /// Batches to learn from.
    pub steps: u64,
    /// Examples in each.
    pub batch: usize,
    /// The loss.
    pub loss: LossName,
    /// The optimiser.
    pub optimizer: Optimizer,
    /// Largest learning rate.
    pub learning_rate: f64,
    /// Steps in which the learning rate rises from zero.
    pub warm_up: u64,
    /// How it goes on.
    pub schedule: Schedule,
    /// Gradients longer than this are shortened to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// Phases of other examples, one after another from the first step; after them come the task's own. Once named `set-sizes`.
    #[serde(alias = "set-sizes", skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// For models with an encoder of images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pretrain: Option<Pretraining>,
    /// Steps between measurements on held-out examples.
    pub validate_every: u64,
    /// Held-out examples.
    pub validation_examples: usize,
    /// Steps between checkpoints.
    pub checkpoint_every: u64,
    /// Steps a line of the log stands for.
    pub log_every: u64,
}

impl Default for Training {
    fn default() -> Self {
        Training {
            steps: 10_000,
            batch: 64,
            loss: LossName::L1,
            optimizer: Optimizer::Adam,
            learning_rate: 1e-3,
            warm_up: 0,
            schedule: Schedule::Constant,
            clip: None,
            phases: Vec::new(),
            pretrain: None,
            validate_every: 1000,
            validation_examples: 1024,
            checkpoint_every: 500,
            log_every: 50,
        }
    }
}

impl Training {
    /// The learning rate of a step, counted from zero.
    ///
    /// ```
    /// use setwise::experiment::{Schedule, Training};
    /// let t = Training { steps: 110, warm_up: 10, learning_rate: 1.0, schedule: Schedule::Cosine { last: 0.0 }, ..Default::default() };
    /// assert_eq!(t.rate(4), 0.5);
    /// assert_eq!(t.rate(10), 1.0);
    /// assert!((t.rate(60) - 0.5).abs() < 1e-12 && t.rate(109) < 1e-3);
    /// ```
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warm_up {
            return self.learning_rate * (step + 1) as f64 / self.warm_up as f64;
        }
        match self.schedule {
            Schedule::Constant => self.learning_rate,
            Schedule::Cosine { last } => {
                let rest = self.steps.saturating_sub(self.warm_up).max(1);
                let part = (step - self.warm_up) as f64 / rest as f64;
                let wave = 0.5 + 0.5 * (std::f64::consts::PI * part.min(1.0)).cos();
                self.learning_rate * (last + (1.0 - last) * wave)
            }
        }
    }

    /// The phase of a step, while there is one.
    pub fn phase(&self, step: u64) -> Option<&Phase> {
        let mut end = 0;
        self.phases.iter().find(|p| {
            end = p.steps.saturating_add(end);
            step < end
        })
    }

    pub(crate) fn check(&self) -> Result<()> {
        let counts = [
            ("steps", self.steps),
            ("batch", self.batch as u64),
            ("validate-every", self.validate_every),
            ("validation-examples", self.validation_examples as u64),
            ("checkpoint-every", self.checkpoint_every),
            ("log-every", self.log_every),
        ];
        let pretraining = self.pretrain.map(|p| [("pretrain.steps", p.steps), ("pretrain.batch", p.batch as u64)]);
        for (key, n) in counts.into_iter().chain(pretraining.into_iter().flatten()) {
            if n == 0 || n > 1 << 31 {
                return Err(bad(format!("training.{key}"), format!("is {n}, must be between 1 and 2147483648")));
            }
        }
        if self.batch > 1 << 16 {
            return Err(bad("training.batch", format!("is {}, must be at most 65536", self.batch)));
        }
        let positive = |key: &str, x: f64, most: f64| {
            if x > 0.0 && x <= most {
                return Ok(());
            }
            let limit = if most < f64::MAX { format!(" and at most {most}") } else { " and finite".to_owned() };
            Err(bad(format!("training.{key}"), format!("is {x}, must be above 0{limit}")))
        };
        positive("learning-rate", self.learning_rate, 10.0)?;
        if let Some(p) = self.pretrain {
            positive("pretrain.learning-rate", p.learning_rate, 1.0)?;
        }
        if let Some(clip) = self.clip {
            positive("clip", clip, f64::MAX)?;
        }
        if let Optimizer::Adamw { weight_decay: w } = self.optimizer
            && !(0.0..=100.0).contains(&w)
        {
            return Err(bad("training.optimizer.adamw.weight-decay", format!("is {w}, must be between 0 and 100")));
        }
        if let Optimizer::Muon { rate } = self.optimizer {
            positive("optimizer.muon.rate", rate, 1.0)?;
        }
        if let Schedule::Cosine { last } = self.schedule
            && !(0.0..=1.0).contains(&last)
        {
            return Err(bad("training.schedule.cosine.last", format!("is {last}, must be between 0 and 1")));
        }
        match self.loss {
            LossName::Huber { delta } => positive("loss.huber.delta", delta, f64::MAX)?,
            LossName::Elements { weight } => positive("loss.elements.weight", weight, 1e3)?,
            LossName::Quantiles { ref levels, scale } => {
                positive("loss.quantiles.scale", scale, f64::MAX)?;
                let rising = levels.windows(2).all(|w| w[0] < w[1]);
                if QuantileLevels::new(levels).is_none() || !rising {
                    let reason =
                        format!("is {levels:?}, must be 1 to {MAX_QUANTILE_LEVELS} rising numbers between 0 and 1");
                    return Err(bad("training.loss.quantiles.levels", reason));
                }
            }
            LossName::Pinball { level } if !(level > 0.0 && level < 1.0) => {
                return Err(bad("training.loss.pinball.level", format!("is {level}, must be between 0 and 1")));
            }
            _ => {}
        }
        for phase in &self.phases {
            if let Phase { size: None, rho: None, mixture: None, .. } = phase {
                return Err(bad("training.phases", "has one without a size, rho or mixture"));
            }
            if let Some(size) = phase.size {
                check_size("training.phases.size", size)?;
            }
            if let Some(rho) = phase.rho {
                check_rho("training.phases.rho", rho)?;
            }
            if let Some(mixture) = &phase.mixture {
                check_mixture("training.phases.mixture", &mixture.of(&MixtureLaw::default()))?;
            }
        }
        Ok(())
    }
}
