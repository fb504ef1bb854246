//! A checked experiment: its model and the examples it draws.

use std::sync::Arc;

use rand::SeedableRng;

use setwise::data::{Batch, RawBatch};
use setwise::distributions::IntRange;
use setwise::models::ValidConfig;
use setwise::random::Generator;
use setwise::sets::Coordinates;

use super::config::bad;
use super::task::Source;
use super::{Experiment, phase_of};
use crate::Result;
use crate::datasets::{DATA_VARIABLE, DataFolder, Picked};
use crate::samplers::{Sampler, Split, batch_seed, draw_batch};

/// An experiment whose values have been checked.
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
    pub(super) fn new(experiment: Experiment, model: ValidConfig, source: Source) -> Self {
        ValidExperiment { experiment, model, source }
    }

    /// The config of its model.
    pub fn model(&self) -> &ValidConfig {
        &self.model
    }

    /// Loads the task's data set, if it has one, from a folder.
    pub fn with_data(mut self, data: &DataFolder) -> Result<Self> {
        self.source = self.task.source(Some(data))?;
        Ok(self)
    }

    /// Shares the loaded data set of another experiment on the same task.
    pub fn with_data_of(mut self, other: &ValidExperiment) -> Option<Self> {
        (self.task == other.task).then(|| {
            self.source = other.source.clone();
            self
        })
    }

    /// Replaces the sampler, for example by one with a fixed correlation.
    pub fn with_sampler(&self, sampler: Arc<dyn Sampler>) -> Self {
        ValidExperiment { source: Source::Generated(sampler), ..self.clone() }
    }

    /// Draws the batch of a training step.
    pub fn training_draw(&self, step: u64) -> Result<Draw> {
        let seed = batch_seed(self.seed, Split::Training, step);
        // The dimension has its own generator, so a task of one dimension draws the same examples for all models.
        let dim = match self.task.equivariant_dims() {
            Some(dims) if self.model.dimension_equivariant => dims.draw(&mut Generator::seed_from_u64(!seed)),
            _ => self.task.dim(),
        };
        let phase = phase_of(&self.curriculum, step);
        let size = phase.and_then(|p| p.set_size).unwrap_or(self.task.set_size());
        let phase_source = phase.and_then(|p| self.task.phase_source(p));
        let source = phase_source.as_ref().unwrap_or(&self.source);
        self.draw(source, dim, size, Split::Training, self.training.batch_size, seed)
    }

    /// Draws the batch of a training step and prepares it for the model.
    pub fn training_batch(&self, step: u64) -> Result<Batch> {
        self.prepare(&self.training_draw(step)?)
    }

    /// Prepares a batch for the model.
    pub fn prepare(&self, draw: &Draw) -> Result<Batch> {
        self.prepare_in(self.task.coordinates(&self.model), draw)
    }

    /// Prepares a batch for a model with other coordinates.
    pub(crate) fn prepare_in(&self, coordinates: Coordinates, draw: &Draw) -> Result<Batch> {
        match draw {
            Draw::Raw(raw) => Ok(raw.prepare(coordinates, &self.training.loss.targets())?),
            Draw::Picked(picked) => picked.gather(),
        }
    }

    /// Draws batch `index` of held-out examples.
    pub fn held_out(&self, split: Split, index: u64, examples: usize) -> Result<Draw> {
        let seed = batch_seed(self.seed, split, index);
        let dim = match self.model.dimension_equivariant {
            true => self.task.held_out_dims().draw(&mut Generator::seed_from_u64(!seed)),
            false => self.task.dim(),
        };
        self.draw(&self.source, dim, self.task.set_size(), split, examples, seed)
    }

    /// Number of classes of the training items, if the loaded data set has classes.
    pub fn classes(&self) -> Option<usize> {
        match &self.source {
            Source::DataSet(picker) => picker.training_classes().map(|c| c.0.len()),
            _ => None,
        }
    }

    /// Draws batch `step` for classification: examples of one set with one training item, labelled with its class.
    pub fn classified(&self, step: u64, examples: usize) -> Result<Batch> {
        // These seeds differ from those of the training examples.
        let seed = batch_seed(!self.seed, Split::Training, step);
        let picked = match &self.source {
            Source::DataSet(picker) => Picked::classify(&**picker, examples, seed),
            _ => None,
        };
        picked.ok_or_else(|| bad("task.kind", "has no classes"))?.gather()
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
            Source::DataSet(picker) => Ok(Draw::Picked(Picked::draw(&**picker, split, size, examples, seed))),
            Source::Absent => {
                let reason = format!("needs a data set; set its folder by --data DIR or {DATA_VARIABLE}");
                Err(bad("task.kind", reason))
            }
        }
    }
}

/// Examples before their preparation for a model.
#[derive(Clone)]
pub enum Draw {
    /// Rows drawn from random distributions.
    Raw(RawBatch),
    /// Indices of items of a data set.
    Picked(Picked),
}

impl Draw {
    /// Gathers rows in double precision.
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
    fn phases_change_the_prior_of_mixtures_and_only_in_tasks_of_kind_kl() {
        let text = "[task]\nkind = 'kl'\ndim = 2\nset-size = 40\naxes = 'raw'\n\
            [training]\nbatch-size = 8\n[[curriculum]]\nsteps = 1\nmixture = { components = [2, 2], spread = 1e4 }";
        let experiment = Experiment::parse(text).unwrap().validate().unwrap();
        let farthest = |step| {
            let batch = experiment.training_batch(step).unwrap();
            batch.sets.sets()[0].data().iter().fold(0f32, |max, x| max.max(x.abs()))
        };
        assert!(farthest(0) > 1e3 && farthest(1) < 1e2);
        // Keys that a phase omits are the task's.
        let few = text.replace("components = [2, 2], spread = 1e4", "spread = 1.0");
        let same = |text: &str| Experiment::parse(text).unwrap().validate().unwrap().training_batch(0).unwrap();
        let law = "[task.mixture]\nconcentration = 50.0\nlkj = 'paper'\n[training]";
        let (phased, plain) =
            (few.replace("[training]", law), text.split("[[curriculum]]").next().unwrap().replace("[training]", law));
        assert_eq!(same(&phased), same(&plain));
        let other = text.replace("kind = 'kl'", "kind = 'distinguish'").replace("axes = 'raw'\n", "");
        let message = Experiment::parse(&other).unwrap().validate().err().expect("an error").to_string();
        assert!(message.contains("curriculum.mixture") && message.contains("kind kl"), "{message}");
    }

    #[test]
    fn phases_follow_each_other_and_keys_that_they_omit_are_the_tasks() {
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
        let Draw::Raw(raw) = experiment.held_out(Split::Validation, 0, 8).unwrap() else { panic!("not raw") };
        assert!(raw.labels[0] != raw.labels[1] && raw.sets[0].offsets[1] == 20);
    }
}
