//! A model that many threads ask at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use setwise_engine::BatchView;

use super::config::ValidConfig;
use super::model::{Model, Prediction};
use crate::{Device, Result};

/// A model that answers many threads at once and may learn meanwhile.
///
/// Every call works in memory of its own, which is kept for the next one; the parameters are shared. An answer is that of
/// the parameters at the start of its call. On a GPU calls take turns.
///
/// ```
/// use setwise::models::SharedModel;
/// use setwise::{Model, ModelConfig, SetBatch};
///
/// let config = ModelConfig::preset("single-set-rff", 1)?.with_sets(1).with_latent(8).with_hidden(16);
/// let model = SharedModel::new(Model::new(config.validate()?, 1));
/// let batch = SetBatch::from_examples(1, &[vec![&[1.0, 2.0, 3.0]]])?;
/// let answers: Vec<_> = std::thread::scope(|s| {
///     let threads: Vec<_> = (0..4).map(|_| s.spawn(|| model.predict(&batch.view()))).collect();
///     threads.into_iter().map(|t| t.join().unwrap()).collect::<Result<_, _>>()
/// })?;
/// assert!(answers.iter().all(|a| *a == answers[0]));
/// # Ok::<(), setwise::Error>(())
/// ```
pub struct SharedModel {
    config: ValidConfig,
    /// Keeps the parameters; asked itself only where it has a device.
    latest: Mutex<Model>,
    /// Those that are not answering now.
    idle: Mutex<Vec<Model>>,
}

impl SharedModel {
    /// Shares a model, with the device it has.
    pub fn new(model: Model) -> Self {
        SharedModel { config: model.config().clone(), latest: Mutex::new(model), idle: Mutex::default() }
    }

    /// What it was made of.
    pub fn config(&self) -> &ValidConfig {
        &self.config
    }

    /// A model with the parameters of this moment.
    pub fn snapshot(&self) -> Model {
        lock(&self.latest).clone()
    }

    /// Takes over the parameters and the metadata of another model of the same config.
    ///
    /// # Panics
    /// If its config differs.
    pub fn update(&self, model: &Model) {
        assert_eq!(*model.config(), self.config, "a model of the same config");
        let mut latest = lock(&self.latest);
        latest.adopt(model);
        latest.clear_metadata();
        model.metadata().iter().for_each(|(key, text)| latest.set_metadata(key, text));
    }

    /// Reads the model's metadata.
    pub fn with_metadata<T>(&self, read: impl FnOnce(&BTreeMap<String, String>) -> T) -> T {
        read(lock(&self.latest).metadata())
    }

    /// Lets a GPU answer from now on, or the CPU in one way or the other.
    pub fn use_device(&self, device: &Device) -> Result<()> {
        lock(&self.latest).use_device(device)
    }

    /// Whether a GPU answers.
    pub fn on_gpu(&self) -> bool {
        lock(&self.latest).on_gpu()
    }

    /// Answers for every example of a batch.
    pub fn predict(&self, batch: &BatchView<f32>) -> Result<Prediction> {
        // No thread of the pool is needed while the GPU computes, so the lock may be held.
        let mut latest = lock(&self.latest);
        if latest.on_gpu() {
            return latest.predict_view(batch);
        }
        drop(latest);
        let free = lock(&self.idle).pop();
        let mut model = match free {
            Some(mut model) => {
                let latest = lock(&self.latest);
                model.adopt(&latest);
                model.compute_like(&latest)?;
                model
            }
            None => self.snapshot(),
        };
        let answer = model.predict_view(batch);
        lock(&self.idle).push(model);
        answer
    }
}

/// Locks; a thread that panicked has left whole models behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelConfig, SetBatch};

    fn model(seed: u64) -> Model {
        let config = ModelConfig::preset("sum-merge", 2).unwrap().with_latent(8).with_hidden(8).with_blocks(1);
        Model::new(config.validate().unwrap(), seed)
    }

    #[test]
    fn threads_that_ask_at_once_get_what_one_model_answers() {
        let batches: Vec<SetBatch> = (1..9usize)
            .map(|n| {
                let rows: Vec<f32> = (0..2 * n).map(|i| (i * n % 7) as f32).collect();
                SetBatch::from_examples(2, &[vec![&rows, &rows[..2]]]).unwrap()
            })
            .collect();
        let expected: Vec<Prediction> = batches.iter().map(|b| model(3).predict(b).unwrap()).collect();
        let shared = SharedModel::new(model(3));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for (batch, expected) in batches.iter().zip(&expected).cycle().take(40) {
                        assert_eq!(shared.predict(&batch.view()).unwrap(), *expected);
                    }
                });
            }
        });
        assert!(lock(&shared.idle).len() <= 4);
    }

    #[test]
    fn new_parameters_hold_from_the_next_call_and_snapshots_keep_the_old() {
        let shared = SharedModel::new(model(1));
        let batch = SetBatch::from_examples(2, &[vec![&[1.0, 2.0], &[3.0, 4.0]]]).unwrap();
        let old = shared.predict(&batch.view()).unwrap();
        let mut snapshot = shared.snapshot();
        let mut other = model(2);
        shared.update(&other);
        let new = shared.predict(&batch.view()).unwrap();
        assert_ne!(old, new);
        assert_eq!(snapshot.predict(&batch).unwrap(), old);
        other.params_mut().fill(0.0);
        assert_eq!(shared.predict(&batch.view()).unwrap(), new, "parameters are copied when one of two models changes");
    }

    #[test]
    fn metadata_is_that_of_the_latest_model() {
        let mut trained = model(1);
        trained.set_metadata("experiment", "some");
        let shared = SharedModel::new(model(1));
        assert!(shared.with_metadata(|m| m.is_empty()));
        shared.update(&trained);
        assert_eq!(shared.with_metadata(|m| m["experiment"].clone()), "some");
        shared.update(&model(2));
        assert!(shared.with_metadata(|m| m.is_empty()));
    }
}
