//! The pretrained estimator of KL(P‖Q), for any two samples.
//!
//! A pair of samples passes five stages.
//!
//! 1. Cleaning removes duplicate rows and dequantises discrete columns (`cleaning`).
//! 2. Log density ratios are fitted at all rows ([`ratio`](super::ratio)), in canonical coordinates that outliers
//!    hardly change. Estimates from these ratios and from moments (`moments`) are features (`features`). Subsamples of
//!    at most 256 rows are for the set model.
//! 3. The set model, which is dimension-equivariant, predicts quantiles of the divergence from each subsample.
//! 4. The combiner weights all estimates and predicts calibrated quantiles (`combiner`, `answers`).
//! 5. Warnings name what the networks were not trained for (`ranges`).

mod answers;
mod bounded;
mod cleaning;
mod combiner;
mod directed;
mod features;
mod moments;
mod ranges;
mod score_bins;

use std::cell::LazyCell;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread;

use rayon::prelude::*;

use super::ratio::coordinates::AffineCoordinates;
use super::supports::support_warnings;
use super::{Dim, Estimate, Estimator, Fallback, Knn, Pair, Points, Progress, Quantity};
use crate::data::Targets;
use crate::models::SharedModel;
use crate::{Device, Error, Model, Result};
use answers::{PairAnswer, PairAnswers};
use cleaning::Cleaned;
use combiner::{HEADS, input_width, output_width};
use features::PairFeatures;

pub use ranges::Ranges;

/// The features of training examples, for training a combiner.
pub mod combiner_training {
    pub use super::bounded::{Bounded, BoundedMeasure, MEASURES};
    pub use super::combiner::{
        CombinerInput, DirectedSubsamples, HEADS, HeadInput, Standardisation, decode, decode_gradient,
        directed_subsamples, ensemble_quantiles, feature_row, feature_width, head_outputs, input_width, output_width,
        set_model_quantiles, single_element_sets, weighted_estimates, widen,
    };
    pub use super::directed::Directed;
    pub use super::features::{PairFeatures, Subsample};
}

/// The combiner's file in the folder of a run, beside the set model's.
pub const COMBINER_FILE: &str = "combiner.safetensors";

/// The key of the combiner's metadata that holds the shares by which calibration widens the intervals of its heads, as
/// a JSON array.
pub const WIDENING: &str = "widening";

/// The key of the combiner's metadata that holds the version of its inputs, and the current version. Another definition
/// of features or of their standardisation has another version.
pub const INPUT_VERSION: [&str; 2] = ["inputs", "2"];

/// The smallest and the largest number of pairs in a batch of the CPU–GPU pipeline. Large batches amortise launches;
/// with one batch alone neither device works while the other does.
const PIPELINE_BATCH: [usize; 2] = [96, 500];

/// The built-in weights: set model and combiner.
const BUILT_IN: [&[u8]; 2] = [
    include_bytes!("../../../weights/kl-estimator/model.safetensors"),
    include_bytes!("../../../weights/kl-estimator/combiner.safetensors"),
];

/// The pretrained estimator of KL(P‖Q).
///
/// ```
/// use setwise::estimate::{Estimator, Points, Pretrained};
/// let p: Vec<f64> = (0..200).map(|i| f64::from(i * 37 % 101) / 101.0).collect();
/// let q: Vec<f64> = p.iter().map(|x| 2.0 * x).collect();
/// let kl = Pretrained::built_in()?.estimate(Points::new(&p, 1), Points::new(&q, 1), 0)?;
/// assert!(kl.value > 0.0 && kl.interval.unwrap()[1] > kl.value);
/// # Ok::<(), setwise::Error>(())
/// ```
pub struct Pretrained {
    set_model: SharedModel,
    combiner: SharedModel,
    targets: Targets,
    ranges: Ranges,
    /// The shares by which calibration widens intervals.
    widening: [f64; HEADS],
}

/// A value with its interval.
pub type Answer = (f64, [f64; 2]);

/// Features of pairs of samples, or why a pair has no estimate.
///
/// Features are computed on the CPU, also while a GPU starts. [`Pretrained::estimates_from_features`] does the rest.
///
/// ```
/// use setwise::estimate::{Estimator, FeatureBatch, Points, Pretrained};
/// let p: Vec<f64> = (0..200).map(|i| f64::from(i * 37 % 101) / 101.0).collect();
/// let q: Vec<f64> = p.iter().map(|x| 2.0 * x).collect();
/// let pairs = [(Points::new(&p, 1), Points::new(&q, 1))];
/// let estimator = Pretrained::built_in()?;
/// let estimates = estimator.estimates_from_features(&pairs, FeatureBatch::compute(&pairs), 0);
/// assert_eq!(estimates[0].as_ref().unwrap().value, estimator.values(&pairs).remove(0)?);
/// # Ok::<(), setwise::Error>(())
/// ```
pub struct FeatureBatch(Vec<Result<PairFeatures>>);

impl FeatureBatch {
    /// Computes the features of pairs of samples, on all threads.
    pub fn compute(pairs: &[Pair]) -> Self {
        FeatureBatch(pairs.par_iter().map(|&(p, q)| PairFeatures::of_samples(p, q, &Progress::default())).collect())
    }
}

impl Pretrained {
    /// The built-in estimator on the CPU; read at the first call and kept.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<Pretrained> = OnceLock::new();
        if let Some(known) = SHARED.get() {
            return Ok(known);
        }
        let read = Self::built_in()?;
        Ok(SHARED.get_or_init(|| read))
    }

    /// The built-in estimator.
    pub fn built_in() -> Result<Self> {
        let [set_model, combiner] = BUILT_IN.map(|bytes| Model::from_bytes("the built-in estimator", bytes));
        Self::new(set_model?, combiner?)
    }

    /// The estimator of a finished run, from its folder.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::new(Model::load(folder.join("model.safetensors"))?, Model::load(folder.join(COMBINER_FILE))?)
    }

    /// An estimator of a set model and a combiner.
    pub fn new(set_model: Model, combiner: Model) -> Result<Self> {
        let (targets, ranges) = Ranges::load(&set_model)?;
        let expected = input_width(targets.width());
        let compatible = set_model.config().dimension_equivariant
            && set_model.config().output_width == targets.width()
            && combiner.config().input_widths.iter().all(|w| *w == expected)
            && combiner.config().output_width == output_width(targets.width()) * combiner.config().sets;
        if !compatible {
            return Err(Error::Estimate(
                "set model and combiner do not fit each other; use two files of one run".to_owned(),
            ));
        }
        let [key, version] = INPUT_VERSION;
        if combiner.metadata().get(key).is_none_or(|known| known != version) {
            return Err(Error::Estimate(
                "the combiner was trained for another version of setwise; train it again".to_owned(),
            ));
        }
        let widening = combiner.metadata().get(WIDENING).map(|text| serde_json::from_str(text));
        let Some(Ok(widening)) = widening else {
            return Err(Error::Estimate(format!("the combiner's metadata has no valid {WIDENING:?}")));
        };
        let (set_model, combiner) = (SharedModel::new(set_model), SharedModel::new(combiner));
        Ok(Pretrained { set_model, combiner, targets, ranges, widening })
    }

    /// The same estimator with its set model on a device.
    pub fn on_device(self, device: &Device) -> Result<Self> {
        self.set_model.use_device(device)?;
        Ok(self)
    }

    /// The ranges the estimator was trained for.
    pub fn ranges(&self) -> Ranges {
        self.ranges
    }

    /// Bytes of the built-in weights.
    pub fn built_in_size() -> usize {
        BUILT_IN.iter().map(|b| b.len()).sum()
    }

    /// Values with intervals for many pairs of samples. A pair that cannot be estimated fails alone.
    ///
    /// Pairs of one width share batches of the set model, which does not change their answers.
    pub fn answers(&self, pairs: &[Pair]) -> Vec<Result<Answer>> {
        self.pipelined(pairs, |_, features| self.pair_answers(features).into_iter().map(|a| Ok(a?.answer)).collect())
    }

    /// Computes features of pairs and applies `finish` to them.
    ///
    /// With a GPU, pairs pass in batches: the CPU computes features of the next batch while the GPU runs `finish`. Not
    /// on a thread of the pool, which would wait for other threads of the pool.
    fn pipelined<T>(&self, pairs: &[Pair], finish: impl Fn(&[Pair], FeatureBatch) -> Vec<T>) -> Vec<T> {
        let batch = pairs.len().div_ceil(2).clamp(PIPELINE_BATCH[0], PIPELINE_BATCH[1]);
        if !self.set_model.on_gpu() || pairs.len() <= batch || rayon::current_thread_index().is_some() {
            return finish(pairs, FeatureBatch::compute(pairs));
        }
        let (sender, receiver) = sync_channel(2);
        thread::scope(|scope| {
            scope.spawn(move || pairs.chunks(batch).try_for_each(|batch| sender.send(FeatureBatch::compute(batch))));
            pairs.chunks(batch).zip(receiver).flat_map(|(batch, features)| finish(batch, features)).collect()
        })
    }

    /// Estimates for pairs of samples from their features; `seed` is that of the intervals of fallback estimates.
    ///
    /// # Panics
    /// If the features are those of another number of pairs.
    pub fn estimates_from_features(&self, pairs: &[Pair], features: FeatureBatch, seed: u64) -> Vec<Result<Estimate>> {
        assert_eq!(pairs.len(), features.0.len(), "every pair has features");
        let answers = self.pair_answers(features);
        let estimate =
            |(&(p, q), answer): (&Pair, _)| self.with_warnings(p, q, answer, || support_warnings(p, q), seed);
        pairs.par_iter().zip(answers).map(estimate).collect()
    }

    /// Divergences of two samples, in the order of `measures`.
    ///
    /// Bounded divergences stay within their bounds and do not depend on the order of the samples. Fails for
    /// [`Quantity::Mi`], and for bounded divergences of samples that the networks do not support.
    ///
    /// ```
    /// use setwise::estimate::{Points, Pretrained, Quantity};
    /// let p: Vec<f64> = (0..200).map(|i| f64::from(i * 37 % 101) / 101.0).collect();
    /// let q: Vec<f64> = p.iter().map(|x| 2.0 * x).collect();
    /// // Half of Q lies where P is uniform.
    /// let found = Pretrained::built_in()?.divergences(Points::new(&p, 1), Points::new(&q, 1), &[Quantity::Tv], 0)?;
    /// assert!((found[0].value - 0.5).abs() < 0.15);
    /// # Ok::<(), setwise::Error>(())
    /// ```
    pub fn divergences(&self, p: Points, q: Points, measures: &[Quantity], seed: u64) -> Result<Vec<Estimate>> {
        self.divergences_observed(p, q, measures, seed, &Progress::default())
    }

    /// [`Pretrained::divergences`], which tells `progress` how far it is.
    pub fn divergences_observed(
        &self,
        p: Points,
        q: Points,
        measures: &[Quantity],
        seed: u64,
        progress: &Progress,
    ) -> Result<Vec<Estimate>> {
        let answers = self.supported_answers(p, q, progress)?;
        let support = LazyCell::new(|| support_warnings(p, q));
        let one = |&measure: &Quantity| -> Result<Estimate> {
            let place = match measure {
                Quantity::Kl => return self.with_warnings(p, q, answers.kl(false), || support.clone(), seed),
                Quantity::ReverseKl => {
                    let estimate = self.with_warnings(q, p, answers.kl(true), || support_warnings(q, p), seed)?;
                    return Ok(Estimate { quantity: Quantity::ReverseKl, ..estimate }.reversed());
                }
                Quantity::Js => 0,
                Quantity::Tv => 1,
                Quantity::Hellinger => 2,
                Quantity::Mi => {
                    return Err(Error::Estimate("mutual information is no divergence of two samples".to_owned()));
                }
            };
            let (pair, values) = answers.known()?.bounded()?;
            let (value, interval) = values[place];
            let warnings = self.ranges.warnings(p, q, &pair).into_iter().chain(support.iter().cloned());
            let mut estimate = Estimate::new(measure, value, "pretrained".to_owned(), warnings);
            (estimate.n, estimate.dim) = (vec![p.len(), q.len()], Dim::One(p.dim()));
            Ok(estimate.with_interval(Some(interval), "calibrated quantiles"))
        };
        measures.iter().map(one).collect()
    }

    /// Answers of a pair, or why the networks do not support it.
    fn supported_answers(&self, p: Points, q: Points, progress: &Progress) -> Result<SupportedAnswers<'_>> {
        match PairFeatures::of_samples(p, q, progress) {
            Err(Error::UnsupportedSamples(reason)) => Ok(SupportedAnswers(Err(reason))),
            features => Ok(SupportedAnswers(Ok(PairAnswers::new(self, features?)))),
        }
    }

    /// An answer with its warnings, of which `support` are those about the supports of the samples.
    ///
    /// An answer with warnings has a fallback estimate beside it. Where the networks do not support a pair, that
    /// estimate replaces the answer.
    fn with_warnings(
        &self,
        p: Points,
        q: Points,
        answer: Result<PairAnswer>,
        support: impl FnOnce() -> Vec<String>,
        seed: u64,
    ) -> Result<Estimate> {
        let answer = match answer {
            Err(Error::UnsupportedSamples(reason)) => {
                let mut other = Knn::default().estimate(p, q, seed)?;
                other.substituted = true;
                other.warnings.insert(0, format!("{reason}; this is the knn estimate instead"));
                return Ok(other);
            }
            answer => answer?,
        };
        let (value, interval) = answer.answer;
        let warnings: Vec<String> = self.ranges.warnings(p, q, &answer).into_iter().chain(support()).collect();
        let mut estimate = Estimate::new(Quantity::Kl, value, "pretrained".to_owned(), warnings.iter().cloned());
        (estimate.n, estimate.dim) = (vec![p.len(), q.len()], Dim::One(p.dim()));
        if !warnings.is_empty() && !answer.identical {
            estimate.fallback = canonical_neighbours(p, q, seed);
        }
        Ok(estimate.with_interval(Some(interval), "calibrated quantiles"))
    }
}

/// Answers of a pair, or why the networks do not support it.
struct SupportedAnswers<'a>(Result<PairAnswers<'a>, String>);

impl<'a> SupportedAnswers<'a> {
    fn known(&self) -> Result<&PairAnswers<'a>> {
        self.0.as_ref().map_err(|reason| Error::UnsupportedSamples(reason.clone()))
    }

    /// KL(P‖Q), or KL(Q‖P) if `backward`.
    fn kl(&self, backward: bool) -> Result<PairAnswer> {
        self.known()?.kl(backward)
    }
}

/// The estimate of neighbours in canonical coordinates of cleaned samples. Units, constant columns and duplicate rows
/// have no influence.
pub(super) fn canonical_neighbours(p: Points, q: Points, seed: u64) -> Option<Fallback> {
    let Cleaned { rows: [x, y], .. } = Cleaned::clean(p, q);
    let coordinates = AffineCoordinates::fit(Points::new(&x, p.dim()), Points::new(&y, q.dim())).ok()?;
    let [x, y] = [0, 1].map(|k| Points::new(&coordinates.rows[k], coordinates.dim));
    let Estimate { method, value, interval, .. } = Knn::default().estimate(x, y, seed).ok()?;
    Some(Fallback { method: format!("{method}, canonical axes"), value, interval })
}

impl Estimator for Pretrained {
    fn value(&self, p: Points, q: Points) -> Result<f64> {
        self.values(&[(p, q)]).pop().expect("a value for every pair")
    }

    fn estimate(&self, p: Points, q: Points, seed: u64) -> Result<Estimate> {
        self.estimate_observed(p, q, seed, &Progress::default())
    }

    fn estimate_observed(&self, p: Points, q: Points, seed: u64, progress: &Progress) -> Result<Estimate> {
        let answers = self.supported_answers(p, q, progress)?;
        self.with_warnings(p, q, answers.kl(false), || support_warnings(p, q), seed)
    }

    /// Both directions share the features of the pair.
    fn both_directions(&self, p: Points, q: Points, seed: u64, progress: &Progress) -> Result<[Estimate; 2]> {
        let answers = self.supported_answers(p, q, progress)?;
        let forward = self.with_warnings(p, q, answers.kl(false), || support_warnings(p, q), seed)?;
        let backward = self.with_warnings(q, p, answers.kl(true), || support_warnings(q, p), seed)?;
        Ok([forward, backward])
    }

    fn values(&self, pairs: &[Pair]) -> Vec<Result<f64>> {
        let value = |(answer, &(p, q)): (Result<Answer>, &Pair)| match answer {
            Err(Error::UnsupportedSamples(_)) => Knn::default().value(p, q),
            answer => Ok(answer?.0),
        };
        self.answers(pairs).into_iter().zip(pairs).map(value).collect()
    }

    fn estimates(&self, pairs: &[Pair], seed: u64) -> Vec<Result<Estimate>> {
        self.pipelined(pairs, |batch, features| self.estimates_from_features(batch, features, seed))
    }
}
