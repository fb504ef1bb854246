//! Image encoders that learn to tell classes apart before they learn with the model behind them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use setwise::train::{BatchLimits, Trainer};
use setwise::{Device, Loss, Model, ModelConfig};

use super::train::{Event, RunOptions};
use crate::experiment::{Pretraining, ValidExperiment};
use crate::prefetch::Prefetcher;
use crate::{Error, Result};

/// Classifiers whose encoders have been pretrained. What begins with the same encoder, such as all models of one task and seed, makes it once. Runs
/// that share it read their data from one folder.
#[derive(Clone, Default)]
pub struct Encoders {
    made: Arc<Mutex<BTreeMap<String, Place>>>,
}

impl std::fmt::Debug for Encoders {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Encoders").finish_non_exhaustive()
    }
}

/// Empty until the classifier has been trained; locked while it is.
type Place = Arc<Mutex<Option<Model>>>;

impl Encoders {
    fn place(&self, experiment: &ValidExperiment, device: &Device) -> Place {
        let (task, images) = (&experiment.task, experiment.model().images);
        let key = format!("{task:?} {:?} {images:?} {} {device:?}", experiment.pretraining, experiment.seed);
        self.made.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone()
    }
}

/// Trains the model's image encoder as a classifier of the images for training, as the experiment has it, or takes it from a run that did. Whether
/// it came to its end; if not it was stopped, and the model is as it was.
pub(super) fn pretrain(
    model: &mut Model,
    experiment: &ValidExperiment,
    options: &RunOptions,
    observe: &mut dyn FnMut(Event),
) -> Result<bool> {
    let Some(pretraining) = experiment.pretraining else { return Ok(true) };
    let place = options.encoders.place(experiment, &options.device);
    let mut made = place.lock().unwrap_or_else(PoisonError::into_inner);
    if made.is_none() {
        *made = classifier(experiment, pretraining, options, observe)?;
    }
    match &*made {
        Some(classifier) => Ok(model.copy_encoder(classifier).map(|()| true)?),
        None => Ok(false),
    }
}

/// A classifier of the images for training; none if it was stopped.
fn classifier(
    experiment: &ValidExperiment,
    Pretraining { steps, batch_size: batch, learning_rate }: Pretraining,
    options: &RunOptions,
    observe: &mut dyn FnMut(Event),
) -> Result<Option<Model>> {
    let (Some(images), Some(classes)) = (experiment.model().images, experiment.classes()) else {
        let reason = "needs an encoder and images of known classes".to_owned();
        return Err(Error::Experiment { key: "pretraining".to_owned(), reason });
    };
    let classifier = Model::new(ModelConfig::classifier(images, classes).validate()?, experiment.seed);
    let mut trainer = Trainer::new(classifier, Loss::CrossEntropy { classes }).with_seed(experiment.seed);
    trainer.use_device(&options.device, BatchLimits { examples: batch, set_size: 1, dims: 1 })?;
    let source = experiment.clone();
    let mut batches = Prefetcher::new(options.loader_threads, 0, move |step| source.classified(step, batch));
    let mut done = 0;
    for _ in 0..steps {
        if options.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let batch = batches.next().ok_or(Error::Prefetch)??;
        trainer.submit(&batch.sets, &batch.targets, learning_rate, None)?;
        while let Some(outcome) = trainer.outcome(false)? {
            done += 1;
            told(outcome.loss, done, batch.seed, observe)?;
        }
    }
    while let Some(outcome) = trainer.outcome(true)? {
        done += 1;
        told(outcome.loss, done, 0, observe)?;
    }
    trainer.sync()?;
    let mut classifier = trainer.into_model();
    // It only waits for others to take its encoder.
    classifier.use_device(&Device::Cpu)?;
    Ok(Some(classifier))
}

fn told(loss: f64, step: u64, batch_seed: u64, observe: &mut dyn FnMut(Event)) -> Result<()> {
    if !loss.is_finite() {
        let last = "no checkpoint had been written yet".to_owned();
        return Err(Error::Diverged { what: "loss of pretraining", step, value: loss, batch_seed, last });
    }
    observe(Event::Pretrained { step, loss });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::datasets::{DataFolder, readers::synthetic};
    use crate::experiment::Experiment;
    use crate::run::RunFolder;

    #[test]
    fn an_encoder_learns_to_classify_and_the_run_begins_with_it() {
        let dir = tempfile::tempdir().unwrap();
        synthetic::omniglot_folder(&dir.path().join("omniglot/images_background"), [2, 2, 6]);
        synthetic::omniglot_folder(&dir.path().join("omniglot/images_evaluation"), [7, 2, 3]);
        let text = "[task]\nkind = 'count'\ndata = 'omniglot'\nside = 15\nset-size = [1, 2]
            [model]\nlatent = 8\nhidden = 8\nblocks = 1
            [model.images]\nencoder = 'mnist'\nfeatures = 8
            [training]\nsteps = 2\nbatch-size = 4\nloss = 'mse'
            [pretraining]\nsteps = 30\nbatch-size = 16\nlearning-rate = 3e-3
            [run]\nvalidation-examples = 8";
        let experiment = Experiment::parse(text).unwrap().validate().unwrap();
        let experiment = experiment.with_data(&DataFolder::at(dir.path())).unwrap();
        let stop = AtomicBool::new(false);
        let options = RunOptions {
            folder: dir.path().join("run"),
            resume: false,
            loader_threads: 1,
            device: Device::Cpu,
            encoders: Encoders::default(),
            stop: &stop,
        };
        let mut losses = Vec::new();
        let mut observe = |event: Event| {
            if let Event::Pretrained { loss, .. } = event {
                losses.push(loss);
            }
        };
        let mut model = Model::new(experiment.model().clone(), 0);
        let before = model.params().to_vec();
        assert!(pretrain(&mut model, &experiment, &options, &mut observe).unwrap());
        assert!(model.params() != before, "nothing was copied");
        let afresh = RunOptions { encoders: Encoders::default(), ..options.clone() };
        crate::run::run(&experiment, &afresh, &mut observe).unwrap();
        // What begins with the same encoder takes it, and another seed has its own.
        let mut same = Model::new(experiment.model().clone(), 0);
        assert!(pretrain(&mut same, &experiment, &options, &mut |_| panic!("it is there")).unwrap());
        assert_eq!(same.params(), model.params());
        let other = Experiment { seed: 5, ..(*experiment).clone() }.validate().unwrap();
        let other = other.with_data(&DataFolder::at(dir.path())).unwrap();
        assert!(pretrain(&mut same, &other, &options, &mut |_| ()).unwrap());
        assert!(same.params() != model.params());
        assert_eq!(losses.len(), 60);
        assert_eq!(losses[..30], losses[30..], "the run pretrains just so");
        assert!(losses[29] < 0.7 * losses[0], "{losses:?}");
        assert!(RunFolder::new(&options.folder).model().exists());
        // Stopped, it leaves nothing behind but what it needs to begin again.
        stop.store(true, Ordering::Relaxed);
        let options = RunOptions { folder: dir.path().join("stopped"), encoders: Encoders::default(), ..options };
        let outcome = crate::run::run(&experiment, &options, &mut |_| {}).unwrap();
        assert!(!outcome.finished && !RunFolder::new(&options.folder).checkpoint().exists());
    }
}
