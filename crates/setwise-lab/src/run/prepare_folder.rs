//! The folder of a run before its first step: created, checked and locked.

use setwise::files::atomic::write_atomically;

use super::folder::{RunFolder, RunLock};
use crate::experiment::ValidExperiment;
use crate::{Error, Result};

/// Creates the folder, or checks that it has this experiment, and locks it.
pub(super) fn prepare_folder(folder: &RunFolder, experiment: &ValidExperiment, resume: bool) -> Result<RunLock> {
    // Checks before the folder is created.
    check_folder(folder, experiment, resume)?;
    std::fs::create_dir_all(folder.path()).map_err(Error::io(folder.path()))?;
    let lock = folder.lock()?;
    // Checks again, because another run may have finished before the lock.
    check_folder(folder, experiment, resume)?;
    let path = folder.experiment_file();
    if !path.exists() {
        write_atomically(&path, experiment.to_toml().as_bytes()).map_err(Error::io(&path))?;
    }
    Ok(lock)
}

/// Checks that a folder is free, or has this experiment to resume.
fn check_folder(folder: &RunFolder, experiment: &ValidExperiment, resume: bool) -> Result<()> {
    let problem = |reason: String| Error::Run { path: folder.path().to_owned(), reason };
    if folder.has_run() && !resume {
        return Err(problem("already holds a run; --resume continues it, --out chooses another folder".to_owned()));
    }
    let path = folder.experiment_file();
    if folder.has_run() && !path.exists() {
        return Err(problem("has a run, but its experiment.toml is gone; --out chooses another folder".to_owned()));
    }
    if folder.path().exists() && !folder.path().is_dir() {
        return Err(problem("is a file; --out chooses a folder".to_owned()));
    }
    if path.exists() {
        let old = serde_json::to_value(folder.experiment()?).expect("plain data");
        let new = serde_json::to_value(&**experiment).expect("plain data");
        if let Some(difference) = difference("", &old, &new) {
            return Err(problem(format!("has a run with other settings: {difference}")));
        }
    }
    Ok(())
}

/// The first key in which two experiments differ.
fn difference(key: &str, old: &serde_json::Value, new: &serde_json::Value) -> Option<String> {
    use serde_json::Value;
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k)));
            keys.into_iter().find_map(|k| {
                let name = if key.is_empty() { k.clone() } else { format!("{key}.{k}") };
                difference(&name, a.get(k).unwrap_or(&Value::Null), b.get(k).unwrap_or(&Value::Null))
            })
        }
        _ if old == new => None,
        _ => Some(format!("{key} was {old}, is now {new}")),
    }
}
