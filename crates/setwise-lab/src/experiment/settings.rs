//! An experiment as a whole: read, changed by options, checked.

use std::sync::Arc;

use rand::SeedableRng;
use serde::{Deserialize, Serialize};

use setwise::Model;
use setwise::data::{Batch, Preparation, RawBatch, Targets};
use setwise::distributions::IntRange;
use setwise::estimate::Ranges;
use setwise::models::{ModelConfig, OutputKind, ValidConfig, program};
use setwise::random::Generator;
use setwise::sets::{Coordinates, mixture_features};
use setwise::train::{Optimizer, Training, check_matrices};
use setwise_engine::Mode;

use super::task::Source;
use super::{Combiner, Phase, Pretraining, RunSettings, Task, phase_of};
use crate::datasets::{DATA_VARIABLE, DataFolder, Picked};
use crate::samplers::{Label, Sampler, Split, batch_seed, draw_batch};
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
    /// What all randomness follows from.
    #[serde(default)]
    pub seed: u64,
    /// The examples.
    pub task: Task,
    /// `preset`, and any field of a model config that is to differ from it.
    #[serde(default)]
    pub model: toml::Table,
    /// How the model learns.
    #[serde(default)]
    pub training: Training,
    /// Phases of easier examples, one after another from the first step; after them come the task's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curriculum: Vec<Phase>,
    /// Pretraining of the encoder, for models of images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretraining: Option<Pretraining>,
    /// How often a run validates, saves and logs.
    #[serde(default)]
    pub run: RunSettings,
    /// The second network of an estimator, where the experiment makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combiner: Option<Combiner>,
}

/// How choices that have options are written.
const WITH_OPTIONS: &str = "this choice has options, as in { cosine = { final-fraction = 0.01 } }, { adamw = { weight-decay = 0.01 } }, { muon = { learning-rate = 0.01 } }, \
    { huber = { delta = 1.0 } }, { pinball = { level = 0.9 } }, { quantiles = { levels = [0.05, 0.5, 0.95], scale = 1.0 } } or { true = { points = 1000 } }";

/// Most numbers a batch, or all held-out examples of a run, may have: they are kept in memory.
const MAX_NUMBERS: usize = 1 << 31;

/// Key of a model's metadata that holds the experiment it was trained in, as TOML.
const METADATA: &str = "experiment";

/// An error about a key of an experiment.
pub(super) fn bad(key: impl Into<String>, reason: impl Into<String>) -> Error {
    Error::Experiment { key: key.into(), reason: reason.into() }
}

impl Experiment {
    /// Reads TOML; unknown keys and wrong types are errors that name the key and what is allowed.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|e: toml::de::Error| {
            let mut said = Task::error_in(text).unwrap_or(e).to_string();
            // What the parser says of types, and of a name without its options, speaks of Rust, not of TOML.
            for (rust, plain) in [
                ("invalid type: unit variant, expected struct variant", WITH_OPTIONS),
                ("expected usize", "expected a whole number that is not negative"),
                ("expected u64", "expected a whole number that is not negative"),
            ] {
                said = said.replace(rust, plain);
            }
            Error::ExperimentText(said.trim_end().to_owned())
        })
    }

    /// The experiment as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("an experiment is plain data")
    }

    /// The experiment a model was trained in, if its metadata names one.
    pub fn of(model: &Model) -> Result<Option<Self>> {
        model.metadata().get(METADATA).map(|text| Self::parse(text)).transpose()
    }

    /// How sets are prepared for a model of this experiment, and its outputs read.
    pub fn preparation(&self, model: &ModelConfig) -> Preparation {
        let coordinates = self.task.coordinates(model);
        let dim = (!coordinates.append.is_empty()).then(|| self.task.dim());
        Preparation { coordinates, dim, scale: self.task.scale(), targets: self.training.loss.targets() }
    }

    /// Keeps in a model's metadata what it was trained in and how it is used.
    pub fn describe(&self, model: &mut Model) {
        model.set_metadata(METADATA, self.to_toml());
        self.preparation(&model.config().clone()).store(model);
        if let Task::BroadKl(task) = &self.task {
            let rows = self.combiner.as_ref().map_or(Combiner::default().set_size, |c| c.set_size);
            let dims = [task.dims.min, task.dims.max];
            Ranges { dims, rows: [rows.min, rows.max], max_divergence: task.max_divergence }.store(model);
        }
    }

    /// Name of the preset the model is made from.
    pub fn preset(&self) -> &str {
        self.model.get("preset").and_then(|p| p.as_str()).unwrap_or("multi-set-transformer")
    }

    /// Chooses another preset; other fields of the model stay as they are.
    pub fn set_preset(&mut self, name: &str) {
        self.model.insert("preset".to_owned(), name.into());
    }

    /// Numbers of a row of each set as a model sees it.
    fn input_widths_of(&self, model: &ModelConfig) -> Vec<usize> {
        let coordinates = self.task.coordinates(model);
        self.task.widths().into_iter().map(|width| coordinates.width(width)).collect()
    }

    /// The coordinates the model sees the sets of an example in.
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
        // Images have the size the task says, unless another is given, which is refused below.
        if let (Some(toml::Value::Table(images)), Some(shape)) = (table.get_mut("images"), self.task.image_shape()) {
            for (key, size) in ["height", "width", "channels"].into_iter().zip(shape) {
                images.entry(key).or_insert(toml::Value::Integer(size as i64));
            }
        }
        let config: ModelConfig =
            table.try_into().map_err(|e: toml::de::Error| bad("model", e.to_string().trim().replace('\n', " ")))?;
        if config.dimension_equivariant && self.task.equivariant_dims().is_none() {
            let reason = "a dimension-equivariant model treats all coordinates alike, which those of this task's records are not";
            return Err(bad("model.preset", format!("is {:?}: {reason}", self.preset())));
        }
        Ok(config.validate()?)
    }

    /// Points of the largest sets that are drawn, in phases of training and after them.
    pub(crate) fn largest_set(&self) -> usize {
        let phases = self.curriculum.iter().filter_map(|p| p.set_size).map(|size| size.max);
        phases.fold(self.task.set_size().max, usize::max)
    }

    /// What is drawn must fit in memory.
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
                let reason = format!("is {n}: sets of {points} rows of {dim} numbers do not fit in memory");
                return Err(bad(key, format!("{reason} so often, at most {MAX_NUMBERS} numbers do")));
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
                return Err(bad("combiner", "belongs to a task of kind broad-kl with a loss of quantiles"));
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
            let reason = format!("is {:?}, models see rows of {widths:?} numbers in this task", model.input_widths);
            return Err(bad("model.input-widths", reason));
        }
        let width = self.training.loss.targets().width();
        if model.output != self.training.loss.output() || model.output_width != width {
            let each = if model.output == OutputKind::Invariant { "element" } else { "example" };
            return Err(bad("model.output", format!("the loss asks for answers of {width} numbers, one per {each}")));
        }
        if let Optimizer::Muon { .. } = self.training.optimizer {
            check_matrices(program(&model, Mode::Train, false).params())?;
        }
        if !matches!(self.task, Task::Mi(_)) && self.curriculum.iter().any(|p| p.rho.is_some()) {
            return Err(bad("curriculum.rho", "belongs to a task of kind mi"));
        }
        if !matches!(self.task, Task::Kl(_)) && self.curriculum.iter().any(|p| p.mixture.is_some()) {
            return Err(bad("curriculum.mixture", "belongs to a task of kind kl"));
        }
        let labelled = matches!(&self.task, Task::Kl(task) if task.label == Label::Sample);
        if self.training.loss.targets() == Targets::Elements && !labelled {
            let reason = "is of labels of elements, which tasks of kind kl have whose label is that of the sample";
            return Err(bad("training.loss", reason));
        }
        if let Some(images) = &model.images
            && self.task.image_shape() != Some([images.height, images.width, images.channels])
        {
            let size = [images.height, images.width, images.channels];
            let reason = match self.task.image_shape() {
                Some(shape) => format!("is of images of {size:?}, the task's are of {shape:?}"),
                None => "is there, but the task's elements are no images".to_owned(),
            };
            return Err(bad("model.images", reason));
        }
        if self.pretraining.is_some() && (model.images.is_none() || !matches!(self.task, Task::Count(_))) {
            let reason = "needs an encoder (`model.images`) and a task on images of classes to count";
            return Err(bad("pretraining", reason));
        }
        let source = self.task.source(None)?;
        Ok(ValidExperiment { experiment: self, model, source })
    }
}

/// An experiment that can be run.
#[derive(Clone)]
pub struct ValidExperiment {
    experiment: Experiment,
    model: ValidConfig,
    source: Source,
}

impl std::ops::Deref for ValidExperiment {
    type Target = Experiment;
    fn deref(&self) -> &Experiment {
        &self.experiment
    }
}

impl ValidExperiment {
    /// The config of its model.
    pub fn model(&self) -> &ValidConfig {
        &self.model
    }

    /// The same with its recorded data, if it needs any, loaded from a folder.
    pub fn with_data(mut self, data: &DataFolder) -> Result<Self> {
        self.source = self.task.source(Some(data))?;
        Ok(self)
    }

    /// The same with the recorded data another experiment on the same task has loaded.
    pub fn with_data_of(mut self, other: &ValidExperiment) -> Option<Self> {
        (self.task == other.task).then(|| {
            self.source = other.source.clone();
            self
        })
    }

    /// The same task with another sampler, such as one with a fixed correlation.
    pub fn with_sampler(&self, sampler: Arc<dyn Sampler>) -> Self {
        ValidExperiment { source: Source::Generated(sampler), ..self.clone() }
    }

    /// The batch of a training step, as drawn.
    pub fn training_draw(&self, step: u64) -> Result<Draw> {
        let seed = batch_seed(self.seed, Split::Training, step);
        // The dimension of a batch has a generator of its own, so that a task of one dimension draws the same for all models.
        let dim = match self.task.equivariant_dims() {
            Some(dims) if self.model.dimension_equivariant => dims.draw(&mut Generator::seed_from_u64(!seed)),
            _ => self.task.dim(),
        };
        let phase = phase_of(&self.curriculum, step);
        let size = phase.and_then(|p| p.set_size).unwrap_or(self.task.set_size());
        let easier = phase.and_then(|p| self.task.easier(p));
        let source = easier.as_ref().unwrap_or(&self.source);
        self.draw(source, dim, size, Split::Training, self.training.batch_size, seed)
    }

    /// The batch of a training step, as the model sees it.
    pub fn training_batch(&self, step: u64) -> Result<Batch> {
        self.prepare(&self.training_draw(step)?)
    }

    /// A batch as the model sees it.
    pub fn prepare(&self, draw: &Draw) -> Result<Batch> {
        self.prepare_in(self.task.coordinates(&self.model), draw)
    }

    /// A batch as a model sees it that was trained in other coordinates.
    pub(crate) fn prepare_in(&self, coordinates: Coordinates, draw: &Draw) -> Result<Batch> {
        match draw {
            Draw::Raw(raw) => Ok(raw.prepare(coordinates, &self.training.loss.targets())?),
            Draw::Picked(picked) => picked.gather(),
        }
    }

    /// Batch `index` of held-out examples, as drawn.
    pub fn held_out(&self, split: Split, index: u64, examples: usize) -> Result<Draw> {
        let seed = batch_seed(self.seed, split, index);
        let dim = match self.model.dimension_equivariant {
            true => self.task.held_out_dims().draw(&mut Generator::seed_from_u64(!seed)),
            false => self.task.dim(),
        };
        self.draw(&self.source, dim, self.task.set_size(), split, examples, seed)
    }

    /// Number of classes the items for training are of, where the task's data is loaded and has any.
    pub fn classes(&self) -> Option<usize> {
        match &self.source {
            Source::Recorded(picker) => picker.training_classes().map(|c| c.0.len()),
            _ => None,
        }
    }

    /// Batch `step` of single items for training, labelled with their classes: examples of one set with one element.
    pub fn classified(&self, step: u64, examples: usize) -> Result<Batch> {
        // Seeds of their own, beside those of the training examples.
        let seed = batch_seed(!self.seed, Split::Training, step);
        let picked = match &self.source {
            Source::Recorded(picker) => Picked::classify(&**picker, examples, seed),
            _ => None,
        };
        picked.ok_or_else(|| bad("task.kind", "has no classes to learn to tell apart"))?.gather()
    }

    fn draw(
        &self,
        source: &Source,
        dim: usize,
        size: IntRange,
        split: Split,
        examples: usize,
        seed: u64,
    ) -> Result<Draw> {
        match source {
            Source::Generated(sampler) => {
                Ok(Draw::Raw(draw_batch(&**sampler, &self.training.loss.targets(), dim, size, examples, seed)))
            }
            Source::Recorded(picker) => Ok(Draw::Picked(Picked::draw(&**picker, split, size, examples, seed))),
            Source::Absent => {
                let reason = format!(
                    "works on recorded data, which has not been loaded; --data DIR or {DATA_VARIABLE} names its folder"
                );
                Err(bad("task.kind", reason))
            }
        }
    }
}

/// Examples as drawn, before they are prepared for a model.
#[derive(Clone)]
pub enum Draw {
    /// Rows drawn from random distributions.
    Raw(RawBatch),
    /// Indices of recorded items.
    Picked(Picked),
}

impl Draw {
    /// With rows in double precision.
    pub fn into_raw(self) -> RawBatch {
        match self {
            Draw::Raw(raw) => raw,
            Draw::Picked(picked) => picked.to_raw(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samplers::Dependence;

    #[test]
    fn phases_of_mixtures_have_their_law_and_no_other_task_has_them() {
        let text = "[task]\nkind = 'kl'\ndim = 2\nset-size = 40\naxes = 'raw'\n\
            [training]\nbatch-size = 8\n[[curriculum]]\nsteps = 1\nmixture = { components = [2, 2], spread = 1e4 }";
        let experiment = Experiment::parse(text).unwrap().validate().unwrap();
        let farthest = |step| {
            let batch = experiment.training_batch(step).unwrap();
            batch.sets.sets()[0].data().iter().fold(0f32, |most, x| most.max(x.abs()))
        };
        assert!(farthest(0) > 1e3 && farthest(1) < 1e2);
        // What a phase does not name is the task's.
        let few = text.replace("components = [2, 2], spread = 1e4", "spread = 1.0");
        let same = |text: &str| Experiment::parse(text).unwrap().validate().unwrap().training_batch(0).unwrap();
        let law = "[task.mixture]\nconcentration = 50.0\nlkj = 'paper'\n[training]";
        let (phased, plain) =
            (few.replace("[training]", law), text.split("[[curriculum]]").next().unwrap().replace("[training]", law));
        assert_eq!(same(&phased), same(&plain));
        let other = text.replace("kind = 'kl'", "kind = 'distinguish'").replace("axes = 'raw'\n", "");
        let said = Experiment::parse(&other).unwrap().validate().err().expect("an error").to_string();
        assert!(said.contains("curriculum.mixture") && said.contains("kind kl"), "{said}");
    }

    #[test]
    fn phases_come_one_after_another_and_leave_what_they_do_not_name_to_the_task() {
        let text = "curriculum = [{ steps = 2, set-size = 4, rho = [0.5, 0.5] }, { steps = 1, set-size = 7 }, \
            { steps = 1, rho = [0.6, 0.6] }]\n[task]\nkind = 'mi'\ndim = 3\nset-size = 20\nrho = [-0.9, 0.9]\n\
            [training]\nbatch-size = 8\n";
        let experiment = Experiment::parse(text).unwrap().validate().unwrap();
        let seen = |step| {
            let batch = experiment.training_batch(step).unwrap();
            let same = batch.labels.iter().all(|l| *l == batch.labels[0]).then_some(batch.labels[0]);
            (batch.sets.sets()[1].offsets()[1], same)
        };
        let fixed = |rho| Some(Dependence::information(3, rho));
        let found: Vec<_> = (0..5).map(seen).collect();
        assert_eq!(found, [(4, fixed(0.5)), (4, fixed(0.5)), (7, None), (20, fixed(0.6)), (20, None)]);
        // Held-out examples are always the task's.
        let Draw::Raw(drawn) = experiment.held_out(Split::Validation, 0, 8).unwrap() else { panic!("drawn") };
        assert!(drawn.labels[0] != drawn.labels[1] && drawn.sets[0].offsets[1] == 20);
    }
}
