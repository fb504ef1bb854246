//! Finished runs of an experiment's task.

use std::path::Path;

use setwise::data::Targets;
use setwise::{Device, Model};

use crate::experiment::{Experiment, Task, ValidExperiment};
use crate::run::RunFolder;
use crate::{Error, Result};

/// How a run was trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// As the paper says.
    Paper,
    /// Otherwise.
    Ours {
        /// With labels of elements, of which the paper's models know only the mean.
        elements: bool,
        /// With what mixtures fitted to the sets say of every point.
        mixture_features: bool,
    },
}

impl Schedule {
    /// Otherwise than the paper says, but from the same labels and points.
    pub const OURS: Self = Schedule::Ours { elements: false, mixture_features: false };
    /// All of them.
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

    /// Whether an experiment is the paper's but for the seed and the preset, and if not, what it has more.
    pub fn of(run: &Experiment, paper: &Experiment) -> Self {
        let mut same = Experiment { seed: paper.seed, ..run.clone() };
        same.set_preset(paper.preset());
        match same == *paper {
            true => Schedule::Paper,
            false => Schedule::Ours {
                elements: run.training.loss.targets() == Targets::Elements,
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
    /// What it was trained for, with the examples of another seed.
    pub fn with_seed(&self, seed: u64) -> Result<ValidExperiment> {
        Experiment { seed, ..self.experiment.clone() }.validate()
    }

    /// What was trained, to be answered by a device. Dozens of runs do not fit memory together, so each is read when it is measured.
    pub fn model(&self, device: &Device) -> Result<Model> {
        let mut model = Model::load(self.folder.model())?;
        model.use_device(device)?;
        Ok(model)
    }

    /// What it took, in a few words.
    pub fn describe(&self, model: &Model) -> String {
        let t = &self.experiment.training;
        let (steps, batch, size) = (t.steps, t.batch_size, model.params().len());
        format!("{}: {steps} steps of {batch}, {size} parameters", self.folder.path().display())
    }
}

/// All finished runs under a folder whose task has the examples of this one, in the order of their names.
pub(super) fn finished(under: &Path, task: &Task) -> Result<Vec<Run>> {
    finished_where(under, |other| other.same_examples(task))
}

/// All finished runs under a folder whose task is wanted, in the order of their names.
pub(super) fn finished_where(under: &Path, wanted: impl Fn(&Task) -> bool) -> Result<Vec<Run>> {
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
        if wanted(&experiment.task) {
            runs.push(Run { folder, experiment });
        }
    }
    Ok(runs)
}
