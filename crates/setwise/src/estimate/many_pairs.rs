//! Estimates of all pairs of a list, with a device that opens in the background.

use std::thread::JoinHandle;

use super::{Estimate, Estimator, FeatureBatch, KlMethod, KlOptions, Pair, PairList, Pretrained, file_warnings};
use crate::{Device, Error, Result};

/// Pairs in a batch: enough for estimators that gain from batches, and few enough to show progress.
const BATCH: usize = 256;
/// Pairs in a batch on a GPU, which opens while the CPU computes features of the first batch.
const BATCH_GPU: usize = 1024;

/// An estimator of KL(P‖Q) for lists of pairs. Its device opens on a separate thread.
///
/// Reading a list and computing features of its first pairs need no device and run meanwhile.
pub struct ManyPairs {
    seed: u64,
    batch: usize,
    estimator: Deferred,
}

enum Deferred {
    Pretrained { opening: Option<JoinHandle<Result<Pretrained>>>, opened: Option<Box<Pretrained>> },
    Classical(Box<dyn Estimator>),
}

impl ManyPairs {
    /// Starts to open a device with `open`, in place of the options' device; `gpu` is whether it is a GPU.
    pub fn open(
        options: &KlOptions,
        gpu: bool,
        open: impl FnOnce() -> Result<Device> + Send + 'static,
    ) -> Result<Self> {
        let estimator = match options.method {
            KlMethod::Pretrained => {
                let opening = std::thread::spawn(move || Pretrained::built_in()?.on_device(&open()?));
                Deferred::Pretrained { opening: Some(opening), opened: None }
            }
            _ => Deferred::Classical(options.clone().with_device(open()?).estimator()?),
        };
        Ok(ManyPairs { seed: options.seed, batch: if gpu { BATCH_GPU } else { BATCH }, estimator })
    }

    /// The estimates of all pairs, in the order of the list; a pair that cannot be estimated fails alone.
    ///
    /// `progress` is called with the number of pairs of every finished batch. An error of the device fails all pairs.
    pub fn estimates(mut self, list: &PairList, mut progress: impl FnMut(usize)) -> Result<Vec<Result<Estimate>>> {
        let mut estimates: Vec<Result<Estimate>> = Vec::with_capacity(list.pairs().len());
        for pairs in list.pairs().chunks(self.batch) {
            let points = pairs.iter().map(|pair| list.points(pair)).collect::<Result<Vec<Pair>>>()?;
            let mut batch = self.estimator.estimates(&points, self.seed)?;
            for (pair, estimate) in pairs.iter().zip(&mut batch) {
                let [p, q] = list.samples(pair);
                if let Ok(estimate) = estimate {
                    estimate.warnings.extend(file_warnings(p, q));
                }
            }
            progress(pairs.len());
            estimates.extend(batch);
        }
        Ok(estimates)
    }
}

impl Deferred {
    fn estimates(&mut self, pairs: &[Pair], seed: u64) -> Result<Vec<Result<Estimate>>> {
        let (opening, opened) = match self {
            Deferred::Classical(estimator) => return Ok(estimator.estimates(pairs, seed)),
            Deferred::Pretrained { opening, opened } => (opening, opened),
        };
        // An error that opening has met by this time is returned before features are computed.
        finish(opening, opened, false)?;
        let features = FeatureBatch::compute(pairs);
        finish(opening, opened, true)?;
        let estimator = opened.as_ref().ok_or_else(|| Error::Device("the device was not opened".to_owned()))?;
        Ok(estimator.estimates_from_features(pairs, features, seed))
    }
}

/// Moves the estimator from the thread to `opened`, if the thread has finished or `wait` is set.
fn finish(
    opening: &mut Option<JoinHandle<Result<Pretrained>>>,
    opened: &mut Option<Box<Pretrained>>,
    wait: bool,
) -> Result<()> {
    if let Some(thread) = opening.take_if(|thread| wait || thread.is_finished()) {
        *opened = Some(Box::new(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?));
    }
    Ok(())
}
