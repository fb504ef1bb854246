//! Before a run's first step: the encoder of its images learns to tell their classes apart.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{BatchLimits, Trainer};
use crate::data::Feed;
use crate::experiment::{Pretraining, ValidExperiment};
use crate::models::ModelConfig;
use crate::{Device, Error, Loss, Model, Result};

/// Trains the encoder of a model's images as a classifier of the task's training items; nothing happens if `stop` is set meanwhile, as the run
/// then ends before its first step and begins anew.
pub(super) fn pretrain(
    model: &mut Model,
    experiment: &ValidExperiment,
    plan: &Pretraining,
    device: &Device,
    feed_threads: usize,
    stop: &AtomicBool,
) -> Result<()> {
    let missing = |what: &str| Error::config("training.pretrain", format!("the {what}"));
    let images = model.config().images.ok_or_else(|| missing("model has no encoder of images"))?;
    let classes = experiment.classes().ok_or_else(|| missing("task has no classes to learn from"))?;
    let classifier = Model::new(ModelConfig::classifier(images, classes).validate()?, experiment.seed);
    let mut trainer = Trainer::new(classifier, Loss::CrossEntropy { classes }).with_seed(experiment.seed);
    trainer.use_device(device, BatchLimits { examples: plan.batch, set_size: 1, dims: 1 })?;
    let (source, batch) = (experiment.clone(), plan.batch);
    let mut feed = Feed::new(feed_threads, 0, move |step| source.classified(step, batch));
    for step in 0..plan.steps {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let batch = feed.next().ok_or(Error::Feed)??;
        trainer.submit(&batch.sets, &batch.targets, plan.learning_rate, None)?;
        while let Some(outcome) = trainer.outcome(false)? {
            if !(outcome.loss.is_finite() && outcome.gradient.is_finite()) {
                let last = "the encoder was being pretrained".to_owned();
                return Err(Error::Diverged { what: "loss", step, value: outcome.loss, batch_seed: batch.seed, last });
            }
        }
    }
    trainer.sync()?;
    model.copy_encoder(trainer.model())
}
