//! Finished runs of an experiment's task.

use std::path::Path;

use crate::experiment::{Experiment, Task};
use crate::train::RunFolder;
use crate::{Error, Model, Result};

/// A finished run.
pub(super) struct Run {
    pub folder: RunFolder,
    pub experiment: Experiment,
    pub model: Model,
}

impl Run {
    /// What it took, in a few words.
    pub fn describe(&self) -> String {
        let t = &self.experiment.training;
        let (steps, batch, size) = (t.steps, t.batch, self.model.params().len());
        format!("{}: {steps} steps of {batch}, {size} parameters", self.folder.path().display())
    }
}

/// All finished runs under a folder whose task is this one, in the order of their names.
pub(super) fn finished(under: &Path, task: &Task) -> Result<Vec<Run>> {
    finished_where(under, |other| other == task)
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
            let model = Model::load(folder.model())?;
            runs.push(Run { folder, experiment, model });
        }
    }
    Ok(runs)
}
