//! Training of the pretrained KL estimator: a set model by [`run`](crate::run), then its combiner here.
//!
//! * [`fit`]: the combiner of a trained set model, in memory.
//! * [`train_combiner`]: the same in the folder of a run, where it can be stopped and goes on.

mod examples;
mod fit;

pub use fit::{FitProgress, fit};

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use setwise::Model;
use setwise::estimate::COMBINER_FILE;

use crate::run::{RunFolder, RunOptions, RunPlan};
use crate::{Error, Result};

/// Whether the set model of an estimator is trained, so that its combiner alone is left to train.
pub fn lacks_combiner_only(plan: &RunPlan) -> Result<bool> {
    Ok(plan.experiment.combiner.is_some() && RunFolder::new(&plan.folder).finished(&plan.experiment)?)
}

/// Trains the combiner of an estimator whose set model is in the folder of a run.
///
/// Returns the combiner's file, or none if the training was stopped.
///
/// Features that were computed before a stop are kept in the folder and read when training goes on.
pub fn train_combiner(
    plan: &RunPlan,
    options: &RunOptions,
    observe: &mut dyn FnMut(FitProgress),
) -> Result<Option<PathBuf>> {
    let folder = RunFolder::new(&plan.folder);
    let _lock = folder.lock()?;
    let mut set_model = Model::load(folder.model())?;
    set_model.use_device(&options.device)?;
    let features = folder.path().join("features");
    let mut watch = |progress| match options.stop.load(Ordering::Relaxed) {
        true => Err(Error::Stopped),
        false => {
            observe(progress);
            Ok(())
        }
    };
    let combiner = match fit(&plan.experiment, &mut set_model, options.loader_threads, Some(&features), &mut watch) {
        Err(Error::Stopped) => return Ok(None),
        combiner => combiner?,
    };
    // The set model's metadata tells what both were trained for.
    plan.experiment.describe(&mut set_model);
    set_model.save(folder.model())?;
    let path = folder.path().join(COMBINER_FILE);
    combiner.save(&path)?;
    Ok(Some(path))
}
