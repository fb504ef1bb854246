//! The KL estimator that was trained once and answers for any two samples.
//!
//! Two networks. A dimension-equivariant set model reads parts of at most 256 rows of both samples, in coordinates that no affine map
//! of the data changes, and answers with quantiles of the divergence. A small network then reads these answers averaged over at
//! most four disjoint parts, how far they differ, the sizes of the samples and classical estimates on all rows (neighbours,
//! Gaussians, a classifier), and gives the quantiles for the whole: it was trained on samples of 30 to thousands of rows, so it takes away the bias of
//! averages over parts and trusts neighbours where they are good. The interval is widened or narrowed to cover 90 % of
//! held-out examples. Samples far larger than that are dealt to chunks, whose answers are averaged; `repeats` says what becomes of repeated
//! values, of which the networks know nothing.

mod classifier;
mod combine;
mod evidence;
mod near;
mod repeats;
mod shape;

use std::path::Path;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::points::constant_columns;
use super::{Dim, Estimate, Estimator, Fallback, Knn, Pair, Points, Quantity};
use crate::data::{Preparation, Targets};
use crate::models::SharedModel;
use crate::{Device, Error, Model, Result};
use combine::{Relative, ask, batch_of, numbers, width};
use evidence::{Evidence, Seen};

/// The inputs of the combining network, for those who train one.
pub mod inputs {
    pub use super::combine::{NUMBERS, Relative, Units, ask, batch_of, numbers, width};
    pub use super::evidence::{Evidence, Part};
}

/// File of the second network in the folder of a run, beside the set model's.
pub const COMBINER_FILE: &str = "combiner.safetensors";

/// Pairs that are looked at before a GPU answers for them, at least and at most: every turn has its own start and end, but with one turn
/// alone neither works while the other does.
const AHEAD: [usize; 2] = [96, 500];

/// Moments that say so many times the largest trained divergence are believed to be beyond it.
const FAR: f64 = 4.0;

/// The weights that are built in.
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
    parts: SharedModel,
    combiner: SharedModel,
    targets: Targets,
    ranges: Ranges,
}

/// A value with its interval.
pub type Answer = (f64, [f64; 2]);

/// An answer, and of what.
struct Found {
    answer: Answer,
    /// Directions in which the samples vary.
    dim: usize,
    /// Rows of each sample that were left out.
    copies: [usize; 2],
    /// A column of each whose values were spread.
    spread: [Option<usize>; 2],
}

/// What is seen of pairs of samples before the set model is asked: neighbours, classifiers and moments of each, or why it has no
/// estimate. Made on the CPU, so it may be made while a GPU starts; [`Pretrained::conclude`] does the rest.
///
/// ```
/// use setwise::estimate::{Estimator, Observed, Points, Pretrained};
/// let p: Vec<f64> = (0..200).map(|i| f64::from(i * 37 % 101) / 101.0).collect();
/// let q: Vec<f64> = p.iter().map(|x| 2.0 * x).collect();
/// let pairs = [(Points::new(&p, 1), Points::new(&q, 1))];
/// let estimator = Pretrained::built_in()?;
/// let observed = Observed::of(&pairs);
/// assert_eq!(estimator.conclude(&pairs, observed, 0)[0].as_ref().unwrap().value, estimator.values(&pairs).remove(0)?);
/// # Ok::<(), setwise::Error>(())
/// ```
pub struct Observed(Vec<Result<Seen>>);

impl Observed {
    /// Looks at pairs of samples, on all threads.
    pub fn of(pairs: &[Pair]) -> Self {
        Observed(pairs.par_iter().map(|&(p, q)| Seen::of(p, q)).collect())
    }
}

/// The ranges an estimator was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Ranges {
    /// Columns, from and to.
    pub dims: [usize; 2],
    /// Rows of each sample, from and to.
    pub rows: [usize; 2],
    /// The largest divergence, in nats.
    pub max_divergence: f64,
}

impl Ranges {
    /// Key of the set model's metadata that holds them, as JSON.
    const METADATA: &str = "trained-range";

    /// Keeps the ranges in the metadata of an estimator's set model.
    pub fn store(&self, set_model: &mut Model) {
        set_model.set_metadata(Self::METADATA, serde_json::to_string(self).expect("ranges are plain data"));
    }
}

impl Pretrained {
    /// The one that is built in, on the CPU; read at the first call and kept.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<Pretrained> = OnceLock::new();
        if let Some(known) = SHARED.get() {
            return Ok(known);
        }
        let read = Self::built_in()?;
        Ok(SHARED.get_or_init(|| read))
    }

    /// The one that is built in.
    pub fn built_in() -> Result<Self> {
        let [parts, combiner] = BUILT_IN.map(|bytes| Model::from_bytes("the built-in estimator", bytes));
        Self::new(parts?, combiner?)
    }

    /// The one of a finished run, from its folder.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::new(Model::load(folder.join("model.safetensors"))?, Model::load(folder.join(COMBINER_FILE))?)
    }

    /// From a set model and the network that combines its answers.
    pub fn new(parts: Model, combiner: Model) -> Result<Self> {
        let (targets, ranges) = description(&parts)?;
        let expected = width(targets.width());
        let fits = parts.config().dimension_equivariant
            && parts.config().output_width == targets.width()
            && combiner.config().input_widths.iter().all(|w| *w == expected)
            && combiner.config().output_width == targets.width();
        if !fits {
            return Err(Error::Estimate("the two networks of the estimator do not fit each other".to_owned()));
        }
        Ok(Pretrained { parts: SharedModel::new(parts), combiner: SharedModel::new(combiner), targets, ranges })
    }

    /// The same with its set model on a device.
    pub fn on_device(self, device: &Device) -> Result<Self> {
        self.parts.use_device(device)?;
        Ok(self)
    }

    /// What it was trained for.
    pub fn ranges(&self) -> Ranges {
        self.ranges
    }

    /// Bytes of the weights that are built in.
    pub fn built_in_size() -> usize {
        BUILT_IN.iter().map(|b| b.len()).sum()
    }

    /// Values with intervals for many pairs of samples, each with its own answer or error. Pairs of one width go through the set
    /// model together; the answers are those each pair would get alone.
    pub fn answers(&self, pairs: &[(Points, Points)]) -> Vec<Result<Answer>> {
        self.in_turns(pairs, |_, observed| self.found_in(observed).into_iter().map(|found| Ok(found?.answer)).collect())
    }

    /// Looks at pairs and concludes something of them. With a GPU the CPU looks at the next pairs while that answers for those before them; not
    /// on a thread of the pool, which would wait here for threads of the pool.
    fn in_turns<T>(&self, pairs: &[Pair], conclude: impl Fn(&[Pair], Observed) -> Vec<T>) -> Vec<T> {
        let turn = pairs.len().div_ceil(2).clamp(AHEAD[0], AHEAD[1]);
        if !self.parts.on_gpu() || pairs.len() <= turn || rayon::current_thread_index().is_some() {
            return conclude(pairs, Observed::of(pairs));
        }
        let (ahead, seen) = sync_channel(2);
        thread::scope(|scope| {
            scope.spawn(move || pairs.chunks(turn).try_for_each(|some| ahead.send(Observed::of(some))));
            pairs.chunks(turn).zip(seen).flat_map(|(some, observed)| conclude(some, observed)).collect()
        })
    }

    fn found_in(&self, Observed(seen): Observed) -> Vec<Result<Found>> {
        let good: Vec<&Evidence> = seen.iter().filter_map(|s| s.as_ref().ok()).flat_map(|s| &s.chunks).collect();
        let mut answers = match self.combine(&good) {
            Ok(answers) => answers.into_iter(),
            Err(e) => {
                let reason = e.to_string();
                return seen.iter().map(|_| Err(Error::Estimate(reason.clone()))).collect();
            }
        };
        let found = |seen: Result<Seen>| {
            let Seen { dim, copies, spread, chunks } = seen?;
            // All of the pair's own, so that one that failed leaves none to the next pair.
            let own: Vec<Result<Answer>> = answers.by_ref().take(chunks.len()).collect();
            let own = own.into_iter().collect::<Result<Vec<Answer>>>()?;
            Ok(Found { answer: mean(&own), dim, copies, spread })
        };
        seen.into_iter().map(found).collect()
    }

    /// Values and intervals as they are, also below zero.
    fn combine(&self, evidence: &[&Evidence]) -> Result<Vec<Result<Answer>>> {
        if evidence.is_empty() {
            return Ok(Vec::new());
        }
        let answers = ask(|batch| self.parts.predict(&batch.view()), evidence)?;
        let seen: Vec<Result<Relative>> = evidence
            .iter()
            .zip(&answers)
            .map(|(e, a)| numbers(e, a, &self.targets).map(|numbers| Relative::of(&numbers, &self.targets)))
            .collect();
        let flat: Vec<f32> = seen.iter().filter_map(|r| r.as_ref().ok()).flat_map(|r| &r.row).copied().collect();
        let found = match flat.is_empty() {
            true => None,
            false => Some(self.combiner.predict(&batch_of(&flat, &self.combiner.config().input_widths)?.view())?),
        };
        let mut at = 0;
        let read = |seen: Result<Relative>| {
            let Relative { units, of_moments, .. } = seen?;
            let found = found.as_ref().expect("a row was asked for");
            let answer: Vec<f32> = found.example(at).iter().map(|&x| units.back(f64::from(x)) as f32).collect();
            let reading = self.targets.read(&answer);
            at += 1;
            let [low, mut high] = reading.interval.unwrap_or([reading.value; 2]);
            // Samples so far apart that whitening leaves each a point: only their moments tell.
            let of_moments = self.targets.label(of_moments);
            if of_moments > FAR * self.ranges.max_divergence {
                high = high.max(of_moments);
            }
            Ok((reading.value, [low, high]))
        };
        Ok(seen.into_iter().map(read).collect())
    }

    /// Estimates for many pairs of samples; `seed` is that of fallback estimates' intervals.
    pub fn estimate_all(&self, pairs: &[(Points, Points)], seed: u64) -> Vec<Result<Estimate>> {
        self.in_turns(pairs, |some, observed| self.conclude(some, observed, seed))
    }

    /// Estimates for pairs of samples from what was seen of them.
    ///
    /// # Panics
    /// If it was seen of another number of pairs.
    pub fn conclude(&self, pairs: &[(Points, Points)], observed: Observed, seed: u64) -> Vec<Result<Estimate>> {
        assert_eq!(pairs.len(), observed.0.len(), "every pair was looked at");
        let found = self.found_in(observed);
        pairs.par_iter().zip(found).map(|(&(p, q), found)| self.describe(p, q, found, seed)).collect()
    }

    /// An answer with its warnings; where it lies outside of what was trained, with a classical estimate beside it, and where it would mean
    /// nothing that one instead.
    fn describe(&self, p: Points, q: Points, found: Result<Found>, seed: u64) -> Result<Estimate> {
        let found = match found {
            Err(Error::Unfit(reason)) => {
                let mut other = Knn::default().estimate(p, q, seed)?;
                other.substituted = true;
                other.warnings.insert(0, format!("{reason}; this is the estimate of neighbours instead"));
                return Ok(other);
            }
            found => found?,
        };
        let (value, interval) = found.answer;
        let warnings: Vec<String> = self.outside(p, q, &found).into_iter().chain(constant_columns(p, q)).collect();
        let mut estimate = Estimate::new(Quantity::Kl, value, "pretrained".to_owned(), warnings.iter().cloned());
        (estimate.n, estimate.dim) = (vec![p.len(), q.len()], Dim::One(p.dim()));
        if !warnings.is_empty()
            && let Ok(other) = Knn::default().estimate(p, q, seed)
        {
            estimate.fallback = Some(Fallback { method: other.method, value: other.value, interval: other.interval });
        }
        Ok(estimate.with_interval(Some(interval), "calibrated quantiles"))
    }

    /// In what the samples lie outside of what was trained.
    fn outside(&self, p: Points, q: Points, found: &Found) -> Vec<String> {
        let Ranges { dims, rows, max_divergence: largest } = self.ranges;
        let mut out = Vec::new();
        if found.dim > dims[1] {
            out.push(format!("there are {} columns; the estimator was trained for at most {}", found.dim, dims[1]));
        }
        for ((points, copies), spread) in [p, q].into_iter().zip(found.copies).zip(found.spread) {
            let (n, name) = (points.len() - copies, points.name());
            match copies {
                0 => out.extend(points.repetition()),
                _ => out.push(format!(
                    "{name}: {copies} of {} rows repeat an earlier row and are left out; the estimator is made for continuous distributions",
                    points.len()
                )),
            }
            if n < rows[0] {
                out.push(format!("{name}: has {n} rows; the estimator was trained for {} and more", rows[0]));
            }
            if let Some(column) = spread {
                let (percent, column) = (100.0 * points.repeated(column), column + 1);
                out.push(format!(
                    "{name}: {percent:.0} % of the values of column {column} repeat another and are spread between their neighbours; the \
                     estimator was trained on continuous distributions"
                ));
            }
        }
        let (value, [_, high]) = found.answer;
        if value <= 0.8 * largest && high > largest {
            out.push(format!(
                "the interval reaches beyond the {largest:.0} nats that were trained for; the divergence may be larger than it says"
            ));
        }
        if value > 0.8 * largest {
            // How far off an answer is outside of what was trained is not known, so that it is no bound there.
            let bound = match out.is_empty() {
                true => format!("take it as at least {:.0}", value.min(0.8 * largest)),
                false => "with what else is noted, it may be far too large".to_owned(),
            };
            out.push(format!(
                "the estimate of {value:.1} nats is close to or beyond the {largest:.0} nats that were trained for; {bound}"
            ));
        }
        out
    }
}

/// The mean of answers of equal weight. A divergence is never negative, but its noise is: zeros come last.
fn mean(answers: &[Answer]) -> Answer {
    let of =
        |number: &dyn Fn(&Answer) -> f64| (answers.iter().map(number).sum::<f64>() / answers.len() as f64).max(0.0);
    (of(&|a| a.0), [of(&|a| a.1[0]), of(&|a| a.1[1])])
}

impl Estimator for Pretrained {
    fn value(&self, p: Points, q: Points) -> Result<f64> {
        self.values(&[(p, q)]).pop().expect("a value for every pair")
    }

    fn estimate(&self, p: Points, q: Points, seed: u64) -> Result<Estimate> {
        self.estimate_all(&[(p, q)], seed).pop().expect("an estimate for every pair")
    }

    fn values(&self, pairs: &[Pair]) -> Vec<Result<f64>> {
        let value = |(answer, &(p, q)): (Result<Answer>, &Pair)| match answer {
            Err(Error::Unfit(_)) => Knn::default().value(p, q),
            answer => Ok(answer?.0),
        };
        self.answers(pairs).into_iter().zip(pairs).map(value).collect()
    }

    fn estimates(&self, pairs: &[Pair], seed: u64) -> Vec<Result<Estimate>> {
        self.estimate_all(pairs, seed)
    }
}

/// The targets of a set model and the ranges it was trained for, from its metadata.
fn description(parts: &Model) -> Result<(Targets, Ranges)> {
    let bad = |reason: &str| Error::Estimate(format!("the set model cannot serve an estimator: {reason}"));
    let text = parts.metadata().get(Ranges::METADATA).ok_or_else(|| bad("its metadata has no trained range"))?;
    let ranges: Ranges = serde_json::from_str(text).map_err(|e| bad(&e.to_string()))?;
    let targets = Preparation::of(parts)?.targets;
    match targets {
        Targets::Quantiles { .. } => Ok((targets, ranges)),
        _ => Err(bad("its outputs are no quantiles")),
    }
}
