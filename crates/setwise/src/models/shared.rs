//! A model that several threads use at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use setwise_engine::BatchView;

use super::config::ValidConfig;
use super::model::{Model, Prediction};
use crate::{Device, Result};

/// A model that predicts on several threads at once; its parameters may be updated meanwhile.
///
/// Threads share the parameters, not the working memory, which is kept for later calls. A prediction uses the
/// parameters at the start of its call. Calls on a GPU are serialised.
///
/// ```
/// use setwise::models::SharedModel;
/// use setwise::{Model, ModelConfig, SetBatch};
///
/// let config = ModelConfig::preset("single-set-rff", 1)?.with_sets(1).with_latent(8).with_hidden(16);
/// let model = SharedModel::new(Model::new(config.validate()?, 1));
/// let batch = SetBatch::from_examples(1, &[vec![&[1.0, 2.0, 3.0]]])?;
/// let predictions: Vec<_> = std::thread::scope(|s| {
///     let threads: Vec<_> = (0..4).map(|_| s.spawn(|| model.predict(&batch.view()))).collect();
///     threads.into_iter().map(|t| t.join().unwrap()).collect::<Result<_, _>>()
/// })?;
/// assert!(predictions.iter().all(|p| *p == predictions[0]));
/// # Ok::<(), setwise::Error>(())
/// ```
pub struct SharedModel {
    config: ValidConfig,
    /// Holds the latest parameters; predicts only on a GPU.
    latest: Mutex<Model>,
    /// Clones that no call uses, with their working memory.
    idle: Mutex<Vec<Model>>,
}

impl SharedModel {
    /// Shares a model, on its device.
    pub fn new(model: Model) -> Self {
        SharedModel { config: model.config().clone(), latest: Mutex::new(model), idle: Mutex::default() }
    }

    /// The config.
    pub fn config(&self) -> &ValidConfig {
        &self.config
    }

    /// A model with the current parameters, on the CPU.
    pub fn snapshot(&self) -> Model {
        lock(&self.latest).clone()
    }

    /// Replaces parameters and metadata by those of another model.
    ///
    /// # Panics
    /// If its config differs.
    pub fn update(&self, model: &Model) {
        assert_eq!(*model.config(), self.config, "a model of the same config");
        let mut latest = lock(&self.latest);
        latest.share_params(model);
        latest.clear_metadata();
        model.metadata().iter().for_each(|(key, text)| latest.set_metadata(key, text));
    }

    /// Reads the model's metadata.
    pub fn with_metadata<T>(&self, read: impl FnOnce(&BTreeMap<String, String>) -> T) -> T {
        read(lock(&self.latest).metadata())
    }

    /// Sets the device of predictions.
    pub fn use_device(&self, device: &Device) -> Result<()> {
        lock(&self.latest).use_device(device)
    }

    /// Whether a GPU predicts.
    #[cfg(feature = "estimate")]
    pub(crate) fn on_gpu(&self) -> bool {
        lock(&self.latest).on_gpu()
    }

    /// Predicts every example of a batch.
    pub fn predict(&self, batch: &BatchView<f32>) -> Result<Prediction> {
        // A GPU prediction needs no thread of the pool, so holding the lock cannot deadlock.
        let mut latest = lock(&self.latest);
        if latest.on_gpu() {
            return latest.predict_view(batch);
        }
        drop(latest);
        let idle = lock(&self.idle).pop();
        let mut model = match idle {
            Some(mut model) => {
                let latest = lock(&self.latest);
                model.share_params(&latest);
                model.match_amx(&latest)?;
                model
            }
            None => self.snapshot(),
        };
        let prediction = model.predict_view(batch);
        lock(&self.idle).push(model);
        prediction
    }
}

/// Locks and ignores poisoning: a panic leaves no model half updated.
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
    fn concurrent_predictions_equal_those_of_one_model() {
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
    fn updates_apply_from_the_next_call_and_snapshots_keep_old_parameters() {
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
        assert_eq!(shared.predict(&batch.view()).unwrap(), new, "parameters are copied on write");
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
