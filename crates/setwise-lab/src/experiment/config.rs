//! The configuration of an experiment: TOML, overrides and checks.

use serde::{Deserialize, Serialize};

use setwise::Model;
use setwise::data::{Preparation, Targets};
use setwise::estimate::Ranges;
use setwise::models::{ModelConfig, OutputKind, ValidConfig, program};
use setwise::sets::{Coordinates, mixture_features};
use setwise::train::{Optimizer, Training, check_muon};
use setwise_engine::Mode;

use super::{Combiner, Phase, Pretraining, RunSettings, Task, ValidExperiment};
use crate::samplers::Label;
use crate::{Error, Result};

/// Everything a run depends on. The same experiment gives the same model, bit for bit.
///
/// ```
/// use setwise_lab::experiment::Experiment;
/// let experiment = Experiment::parse("
///     [task]
///     kind = 'kl'
///     dim = 2
///     set-size = [100, 150]
///     [model]
///     preset = 'cross-only'
///     latent = 16
/// ")?;
/// assert_eq!(experiment.validate()?.model().latent, 16);
/// # Ok::<(), setwise_lab::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Experiment {
    /// The seed of all randomness.
    #[serde(default)]
    pub seed: u64,
    /// The examples.
    pub task: Task,
    /// The `preset`, and fields of the model config that override it.
    #[serde(default)]
    pub model: toml::Table,
    /// The training of the model.
    #[serde(default)]
    pub training: Training,
    /// Phases from the first step on, each with its own examples. After them the task's examples follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curriculum: Vec<Phase>,
    /// Pretraining of the image encoder, for models of images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretraining: Option<Pretraining>,
    /// Intervals of validation, checkpoints and the log.
    #[serde(default)]
    pub run: RunSettings,
    /// The second network of an estimator, if the experiment trains an estimator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combiner: Option<Combiner>,
}

/// The syntax of choices with options.
const WITH_OPTIONS: &str = "this choice has options, as in { cosine = { final-fraction = 0.01 } }, \
    { adamw = { weight-decay = 0.01 } }, { muon = { learning-rate = 0.01 } }, { huber = { delta = 1.0 } }, \
    { pinball = { level = 0.9 } }, { quantiles = { levels = [0.05, 0.5, 0.95], scale = 1.0 } } or \
    { true = { points = 1000 } }";

/// Largest number of values of a batch, or of all validation examples of a run. They are kept in memory.
const MAX_NUMBERS: usize = 1 << 31;

/// Metadata key of a model for its experiment, as TOML.
const METADATA_KEY: &str = "experiment";

/// An error about a key of an experiment.
pub(super) fn bad(key: impl Into<String>, reason: impl Into<String>) -> Error {
    Error::Experiment { key: key.into(), reason: reason.into() }
}

impl Experiment {
    /// Parses TOML. Errors about unknown keys and wrong types name the key and the allowed values.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|e: toml::de::Error| {
            let mut message = Task::error_in(text).unwrap_or(e).to_string();
            // The parser describes types in terms of Rust. Users know TOML.
            for (rust, plain) in [
                ("invalid type: unit variant, expected struct variant", WITH_OPTIONS),
                ("expected usize", "expected a non-negative integer"),
                ("expected u64", "expected a non-negative integer"),
            ] {
                message = message.replace(rust, plain);
            }
            Error::ExperimentText(message.trim_end().to_owned())
        })
    }

    /// The experiment as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("an experiment is plain data")
    }

    /// The experiment of a trained model, if its metadata has one.
    pub fn of(model: &Model) -> Result<Option<Self>> {
        model.metadata().get(METADATA_KEY).map(|text| Self::parse(text)).transpose()
    }

    /// The preparation of sets for a model of this experiment, and the interpretation of its outputs.
    pub fn preparation(&self, model: &ModelConfig) -> Preparation {
        let coordinates = self.task.coordinates(model);
        let dim = (!coordinates.append.is_empty()).then(|| self.task.dim());
        Preparation { coordinates, dim, scale: self.task.scale(), targets: self.training.loss.targets() }
    }

    /// Stores the experiment and the preparation in a model's metadata.
    pub fn describe(&self, model: &mut Model) {
        model.set_metadata(METADATA_KEY, self.to_toml());
        self.preparation(&model.config().clone()).store(model);
        if let Task::BroadKl(task) = &self.task {
            let combiner = self.combiner.clone().unwrap_or_default();
            let rows = combiner.set_size;
            let max_rows = combiner.many_rows.map_or(rows.max, |many| many.set_size.max.max(rows.max));
            let dims = [task.dims.min, task.dims.max];
            Ranges { dims, rows: [rows.min, max_rows], max_divergence: task.max_divergence }.store(model);
        }
    }

    /// Name of the model's preset.
    pub fn preset(&self) -> &str {
        self.model.get("preset").and_then(|p| p.as_str()).unwrap_or("multi-set-transformer")
    }

    /// Sets the preset. Other fields of the model are unchanged.
    pub fn set_preset(&mut self, name: &str) {
        self.model.insert("preset".to_owned(), name.into());
    }

    /// Width of the model's input for each set.
    fn input_widths_of(&self, model: &ModelConfig) -> Vec<usize> {
        let coordinates = self.task.coordinates(model);
        self.task.widths().into_iter().map(|width| coordinates.width(width)).collect()
    }

    /// The coordinates of the model's inputs.
    pub(crate) fn coordinates(&self) -> Result<Coordinates> {
        Ok(self.task.coordinates(&*self.model_config()?))
    }

    fn model_config(&self) -> Result<ValidConfig> {
        if let Some(other) = self.model.get("preset").filter(|p| !p.is_str()) {
            return Err(bad("model.preset", format!("is {other}, must be the name of a preset")));
        }
        let mut preset = ModelConfig::preset(self.preset(), self.task.preset_dim())?;
        preset.output_width = self.training.loss.targets().width();
        preset.output = self.training.loss.output();
        if !preset.dimension_equivariant {
            preset.input_widths = self.input_widths_of(&preset);
        }
        let mut table = toml::Table::try_from(&preset).expect("a config is plain data");
        for (key, value) in self.model.iter().filter(|(k, _)| *k != "preset") {
            table.insert(key.clone(), value.clone());
        }
        // The size of images defaults to the task's. `validate` refuses another size.
        if let (Some(toml::Value::Table(images)), Some(shape)) = (table.get_mut("images"), self.task.image_shape()) {
            for (key, size) in ["height", "width", "channels"].into_iter().zip(shape) {
                images.entry(key).or_insert(toml::Value::Integer(size as i64));
            }
        }
        let config: ModelConfig =
            table.try_into().map_err(|e: toml::de::Error| bad("model", e.to_string().trim().replace('\n', " ")))?;
        if config.dimension_equivariant && self.task.equivariant_dims().is_none() {
            let reason =
                "a dimension-equivariant model treats all coordinates alike, but this task's coordinates differ";
            return Err(bad("model.preset", format!("is {:?}: {reason}", self.preset())));
        }
        Ok(config.validate()?)
    }

    /// Size of the largest sets, in the phases of the curriculum and after them.
    pub(crate) fn largest_set(&self) -> usize {
        let phases = self.curriculum.iter().filter_map(|p| p.set_size).map(|size| size.max);
        phases.fold(self.task.set_size().max, usize::max)
    }

    /// Checks that batches fit in memory.
    fn check_memory(&self, model: &ModelConfig) -> Result<()> {
        let points = self.largest_set();
        let widest = self.input_widths_of(model).into_iter().max().unwrap_or(1);
        let dim = widest.max(self.task.equivariant_dims().map_or(0, |d| d.max));
        let counts = [
            ("training.batch-size", self.training.batch_size),
            ("run.validation-examples", self.run.validation_examples),
        ];
        for (key, n) in counts {
            if points.checked_mul(dim).and_then(|m| m.checked_mul(n)).is_none_or(|m| m > MAX_NUMBERS) {
                let reason = format!("is {n}: as many sets of {points} rows of {dim} numbers do not fit in memory");
                return Err(bad(key, format!("{reason}; the limit is {MAX_NUMBERS} numbers")));
            }
        }
        if self.task.coordinates(model).append.mixture_log_densities {
            mixture_features::check_memory(points, self.task.widths()[0])
                .map_err(|reason| bad("task.append", reason))?;
        }
        Ok(())
    }

    /// Checks every value.
    pub fn validate(self) -> Result<ValidExperiment> {
        self.task.check()?;
        self.training.check()?;
        self.curriculum.iter().try_for_each(Phase::check)?;
        self.pretraining.iter().try_for_each(Pretraining::check)?;
        self.run.check()?;
        if let Some(combiner) = &self.combiner {
            combiner.check()?;
            let quantiles = matches!(self.training.loss.targets(), Targets::Quantiles { .. });
            if !matches!(self.task, Task::BroadKl(_)) || !quantiles {
                return Err(bad("combiner", "needs a task of kind broad-kl and a loss of quantiles"));
            }
            if let (Task::BroadKl(task), Some(many)) = (&self.task, &combiner.many_rows)
                && (many.dims.min < task.dims.min || many.dims.max > task.dims.max)
            {
                return Err(bad("combiner.many-rows.dims", "must lie within task.dims"));
            }
        }
        let model = self.model_config()?;
        self.check_memory(&model)?;
        let widths = self.input_widths_of(&model);
        if model.sets != widths.len() {
            let reason = format!("is {}, the task's examples have {} sets", model.sets, widths.len());
            return Err(bad("model.sets", reason));
        }
        if !model.dimension_equivariant && model.input_widths != widths {
            let reason = format!("is {:?}, rows of this task have widths {widths:?}", model.input_widths);
            return Err(bad("model.input-widths", reason));
        }
        let width = self.training.loss.targets().width();
        if model.output != self.training.loss.output() || model.output_width != width {
            let each = if model.output == OutputKind::Invariant { "element" } else { "example" };
            return Err(bad("model.output", format!("the loss needs outputs of width {width}, one per {each}")));
        }
        if let Optimizer::Muon { .. } = self.training.optimizer {
            check_muon(program(&model, Mode::Train, false).params())?;
        }
        if !matches!(self.task, Task::Mi(_)) && self.curriculum.iter().any(|p| p.rho.is_some()) {
            return Err(bad("curriculum.rho", "needs a task of kind mi"));
        }
        if !matches!(self.task, Task::Kl(_)) && self.curriculum.iter().any(|p| p.mixture.is_some()) {
            return Err(bad("curriculum.mixture", "needs a task of kind kl"));
        }
        let labelled = matches!(&self.task, Task::Kl(task) if task.label == Label::Sample);
        if self.training.loss.targets() == Targets::ElementLabels && !labelled {
            let reason = "needs labels of elements; only tasks of kind kl with label = 'sample' have them";
            return Err(bad("training.loss", reason));
        }
        if let Some(images) = &model.images
            && self.task.image_shape() != Some([images.height, images.width, images.channels])
        {
            let size = [images.height, images.width, images.channels];
            let reason = match self.task.image_shape() {
                Some(shape) => format!("is of images of {size:?}, the task's are of {shape:?}"),
                None => "is set, but the task's elements are not images".to_owned(),
            };
            return Err(bad("model.images", reason));
        }
        if self.pretraining.is_some() && (model.images.is_none() || !matches!(self.task, Task::Count(_))) {
            let reason = "needs an image encoder (`model.images`) and a task of kind count";
            return Err(bad("pretraining", reason));
        }
        let source = self.task.source(None)?;
        Ok(ValidExperiment::new(self, model, source))
    }

    /// Checks every value. Errors begin with a name, for example that of the experiment's file.
    pub fn validate_named(self, name: &str) -> Result<ValidExperiment> {
        self.validate().map_err(|error| {
            Error::ExperimentText(match error {
                Error::Experiment { key, reason } | Error::Library(setwise::Error::Setting { key, reason }) => {
                    format!("{name}: {key}: {reason}")
                }
                other => format!("{name}: {other}"),
            })
        })
    }
}
