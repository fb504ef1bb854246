//! Finished runs of an experiment's task.

use std::path::Path;

use setwise::data::Targets;
use setwise::{Device, Model};

use crate::experiment::{Experiment, Task, ValidExperiment};
use crate::run::RunFolder;
use crate::{Error, Result};

/// The training schedule of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// The paper's schedule.
    Paper,
    /// Another schedule.
    Ours {
        /// Trained on labels of elements. The paper's models learn from their mean.
        elements: bool,
        /// Log densities of fitted mixtures are appended to every point.
        mixture_features: bool,
    },
}

impl Schedule {
    /// Another schedule with the paper's labels and inputs.
    pub const OURS: Self = Schedule::Ours { elements: false, mixture_features: false };
    /// All schedules.
    pub const ALL: [Self; 5] = [
        Schedule::Paper,
        Self::OURS,
        Schedule::Ours { elements: true, mixture_features: false },
        Schedule::Ours { elements: false, mixture_features: true },
        Schedule::Ours { elements: true, mixture_features: true },
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Schedule::Paper => "paper",
            Schedule::Ours { elements: false, mixture_features: false } => "ours",
            Schedule::Ours { elements: true, mixture_features: false } => "ours, elements",
            Schedule::Ours { elements: false, mixture_features: true } => "ours, mixture features",
            Schedule::Ours { elements: true, mixture_features: true } => "ours, elements, mixture features",
        }
    }

    /// The schedule of an experiment. The paper's may differ in seed and preset.
    pub fn of(run: &Experiment, paper: &Experiment) -> Self {
        let mut same = Experiment { seed: paper.seed, ..run.clone() };
        same.set_preset(paper.preset());
        match same == *paper {
            true => Schedule::Paper,
            false => Schedule::Ours {
                elements: run.training.loss.targets() == Targets::ElementLabels,
                mixture_features: run.coordinates().is_ok_and(|c| c.append.mixture_log_densities),
            },
        }
    }
}

/// A finished run.
pub(super) struct Run {
    pub folder: RunFolder,
    pub experiment: Experiment,
}

impl Run {
    /// Its experiment with another seed.
    pub fn with_seed(&self, seed: u64) -> Result<ValidExperiment> {
        Experiment { seed, ..self.experiment.clone() }.validate()
    }

    /// Loads the model onto a device. Dozens of models do not fit in memory, so each is loaded for its measurement.
    pub fn model(&self, device: &Device) -> Result<Model> {
        let mut model = Model::load(self.folder.model())?;
        model.use_device(device)?;
        Ok(model)
    }

    /// A short description of the training.
    pub fn describe(&self, model: &Model) -> String {
        let t = &self.experiment.training;
        let (steps, batch, size) = (t.steps, t.batch_size, model.params().len());
        format!("{}: {steps} steps of {batch}, {size} parameters", self.folder.path().display())
    }
}

/// Finished runs in a folder whose tasks have the same test examples as `task`, sorted by name.
pub(super) fn finished(under: &Path, task: &Task) -> Result<Vec<Run>> {
    finished_where(under, |other| other.same_examples(task))
}

/// Finished runs in a folder whose tasks satisfy `accept`, sorted by name.
pub(super) fn finished_where(under: &Path, accept: impl Fn(&Task) -> bool) -> Result<Vec<Run>> {
    if !under.is_dir() {
        return Ok(Vec::new());
    }
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(under).map_err(Error::io(under))? {
        folders.push(entry.map_err(Error::io(under))?.path());
    }
    folders.sort();
    let mut runs = Vec::new();
    for folder in folders.into_iter().map(RunFolder::new) {
        if !folder.model().exists() || !folder.experiment_file().exists() {
            continue;
        }
        let experiment = folder.experiment()?;
        if accept(&experiment.task) {
            runs.push(Run { folder, experiment });
        }
    }
    Ok(runs)
}
