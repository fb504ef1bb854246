//! The folder of a run and its files.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use setwise::Model;

use super::metrics::{Record, read};
use crate::experiment::Experiment;
use crate::{Error, Result};

/// The folder of a run: the experiment, checkpoints, the log, and at the end the model.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFolder {
    path: PathBuf,
}

/// The lock of a folder for one run.
///
/// The lock file is never removed, because another process may be about to lock it. Its existence means nothing.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

impl RunFolder {
    /// The run in a folder, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        RunFolder { path: path.into() }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The trained model.
    pub fn model(&self) -> PathBuf {
        self.path.join("model.safetensors")
    }

    /// The experiment, with all options.
    pub fn experiment_file(&self) -> PathBuf {
        self.path.join("experiment.toml")
    }

    /// The log, a JSON object per line.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// The last checkpoint.
    pub fn checkpoint(&self) -> PathBuf {
        self.path.join("checkpoint.safetensors")
    }

    /// The checkpoint before the last one.
    pub fn previous_checkpoint(&self) -> PathBuf {
        self.path.join("checkpoint.previous.safetensors")
    }

    /// The path to which a corrupt checkpoint is moved.
    pub fn damaged_checkpoint(&self) -> PathBuf {
        self.path.join("checkpoint.damaged.safetensors")
    }

    /// Locks the folder until the lock is dropped or the process ends. Fails if another run has the lock.
    pub fn lock(&self) -> Result<RunLock> {
        let path = self.path.join("run.lock");
        let file = File::options().create(true).append(true).open(&path).map_err(Error::io(&path))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let reason = "a run is under way in this folder; --out chooses another".to_owned();
                Err(Error::Run { path: self.path.clone(), reason })
            }
            // Training also works on file systems without locks.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(RunLock { _file: file }),
        }
    }

    /// Reads the experiment.
    pub fn experiment(&self) -> Result<Experiment> {
        let path = self.experiment_file();
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        Experiment::parse(&text).map_err(|e| Error::ExperimentText(format!("{}: {e}", path.display())))
    }

    /// Reads the log.
    pub fn records(&self) -> Result<Vec<Record>> {
        read(&self.metrics())
    }

    /// Whether the folder has the trained model of an experiment. Settings of the combiner are ignored.
    pub fn finished(&self, experiment: &Experiment) -> Result<bool> {
        if !self.model().exists() {
            return Ok(false);
        }
        let model = Model::load(self.model())?;
        let Some(mut trained) = Experiment::of(&model)? else { return Ok(false) };
        trained.combiner.clone_from(&experiment.combiner);
        let plain = |e: &Experiment| serde_json::to_value(e).expect("plain data");
        Ok(plain(&trained) == plain(experiment))
    }

    /// Whether a run has started in the folder.
    pub fn has_run(&self) -> bool {
        [self.experiment_file(), self.checkpoint(), self.previous_checkpoint(), self.model()].iter().any(|p| p.exists())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_until_its_run_ends() {
        let dir = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(dir.path());
        let lock = folder.lock().unwrap();
        let error = folder.lock().unwrap_err().to_string();
        assert!(error.contains("a run is under way in this folder"), "{error}");
        drop(lock);
        folder.lock().unwrap();
        assert!(!folder.has_run());
    }
}
