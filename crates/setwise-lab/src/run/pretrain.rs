//! Pretraining of image encoders as classifiers.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use setwise::train::{BatchLimits, Trainer};
use setwise::{Device, Loss, Model, ModelConfig};

use super::train::{Event, RunOptions};
use crate::experiment::{Pretraining, ValidExperiment};
use crate::prefetch::Prefetcher;
use crate::{Error, Result};

/// A cache of pretrained classifiers. Models of one task, image encoder and seed share a classifier.
///
/// Runs that share a cache must read their data from one folder.
#[derive(Clone, Default)]
pub struct Encoders {
    classifiers: Arc<Mutex<BTreeMap<String, Slot>>>,
}

impl std::fmt::Debug for Encoders {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Encoders").finish_non_exhaustive()
    }
}

/// The slot of a classifier: empty before its training, locked during it.
type Slot = Arc<Mutex<Option<Model>>>;

impl Encoders {
    fn slot(&self, experiment: &ValidExperiment, device: &Device) -> Slot {
        let (task, images) = (&experiment.task, experiment.model().images);
        let key = format!("{task:?} {:?} {images:?} {} {device:?}", experiment.pretraining, experiment.seed);
        self.classifiers.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone()
    }
}

/// Copies a pretrained image encoder into the model, if the experiment has pretraining.
///
/// The classifier is trained on the training images, or taken from the cache. Returns false if the run was stopped;
/// then the model is unchanged.
pub(super) fn pretrain(
    model: &mut Model,
    experiment: &ValidExperiment,
    options: &RunOptions,
    observe: &mut dyn FnMut(Event),
) -> Result<bool> {
    let Some(pretraining) = experiment.pretraining else { return Ok(true) };
    let slot = options.encoders.slot(experiment, &options.device);
    let mut classifiers = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if classifiers.is_none() {
        *classifiers = classifier(experiment, pretraining, options, observe)?;
    }
    match &*classifiers {
        Some(classifier) => Ok(model.copy_encoder(classifier).map(|()| true)?),
        None => Ok(false),
    }
}

/// Trains a classifier of the training images. None if the run was stopped.
fn classifier(
    experiment: &ValidExperiment,
    Pretraining { steps, batch_size: batch, learning_rate }: Pretraining,
    options: &RunOptions,
    observe: &mut dyn FnMut(Event),
) -> Result<Option<Model>> {
    let (Some(images), Some(classes)) = (experiment.model().images, experiment.classes()) else {
        let reason = "needs an image encoder and images with classes".to_owned();
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
            check_loss(outcome.loss, done, batch.seed, observe)?;
        }
    }
    while let Some(outcome) = trainer.outcome(true)? {
        done += 1;
        check_loss(outcome.loss, done, 0, observe)?;
    }
    trainer.sync()?;
    let mut classifier = trainer.into_model();
    // The cache keeps the classifier in host memory.
    classifier.use_device(&Device::Cpu)?;
    Ok(Some(classifier))
}

fn check_loss(loss: f64, step: u64, batch_seed: u64, observe: &mut dyn FnMut(Event)) -> Result<()> {
    if !loss.is_finite() {
        let last = "there is no checkpoint".to_owned();
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
    fn a_run_starts_from_the_encoder_of_a_trained_classifier() {
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
        let fresh = RunOptions { encoders: Encoders::default(), ..options.clone() };
        crate::run::run(&experiment, &fresh, &mut observe).unwrap();
        // A run with the same seed shares the classifier, another seed trains its own.
        let mut same = Model::new(experiment.model().clone(), 0);
        assert!(pretrain(&mut same, &experiment, &options, &mut |_| panic!("it is in the cache")).unwrap());
        assert_eq!(same.params(), model.params());
        let other = Experiment { seed: 5, ..(*experiment).clone() }.validate().unwrap();
        let other = other.with_data(&DataFolder::at(dir.path())).unwrap();
        assert!(pretrain(&mut same, &other, &options, &mut |_| ()).unwrap());
        assert!(same.params() != model.params());
        assert_eq!(losses.len(), 60);
        assert_eq!(losses[..30], losses[30..], "the run repeats the pretraining");
        assert!(losses[29] < 0.7 * losses[0], "{losses:?}");
        assert!(RunFolder::new(&options.folder).model().exists());
        // A run stopped in pretraining leaves no checkpoint.
        stop.store(true, Ordering::Relaxed);
        let options = RunOptions { folder: dir.path().join("stopped"), encoders: Encoders::default(), ..options };
        let outcome = crate::run::run(&experiment, &options, &mut |_| {}).unwrap();
        assert!(!outcome.finished && !RunFolder::new(&options.folder).checkpoint().exists());
    }
}
