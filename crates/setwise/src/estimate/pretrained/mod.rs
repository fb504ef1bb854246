//! The KL estimator that was trained once and answers for any two samples.
//!
//! Two networks. A dimension-equivariant set model reads parts of at most 256 rows of both samples, in coordinates that no affine map
//! of the data changes, and answers with quantiles of the divergence. A small network then reads these answers averaged over at
//! most four disjoint parts, how far they differ, the sizes of the samples and classical estimates on all rows (neighbours,
//! Gaussians, a classifier), and gives the quantiles for the whole: it was trained on samples of 30 to thousands of rows, so it takes away the bias of
//! averages over parts and trusts neighbours where they are good. The interval is widened or narrowed to cover 90 % of
//! held-out examples. `fit` trains the second network.

mod classifier;
mod combine;
mod evidence;
mod examples;
mod fit;
mod near;
mod shape;

use std::path::Path;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread;

use rayon::prelude::*;

use super::{Dim, Estimate, Estimator, Fallback, Knn, Pair, Points, Quantity};
use crate::data::Targets;
use crate::experiment::{Combiner, Experiment, Task};
use crate::models::SharedModel;
use crate::{Device, Error, Model, Result};
use combine::{AT_ONCE, Relative, ask, batch_of, numbers, width};
use evidence::Evidence;
pub use fit::{FitProgress, fit};

/// File of the second network in the folder of a run, beside the set model's.
pub const COMBINER_FILE: &str = "combiner.safetensors";

/// Moments that say so many times the largest trained divergence are believed to be beyond it.
const FAR: f64 = 4.0;

/// The weights that are built in.
const BUILT_IN: [&[u8]; 2] = [
    include_bytes!("../../../../../weights/product/kl/model.safetensors"),
    include_bytes!("../../../../../weights/product/kl/combiner.safetensors"),
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
pub struct Observed(Vec<Result<Evidence>>);

impl Observed {
    /// Looks at pairs of samples, on all threads.
    pub fn of(pairs: &[Pair]) -> Self {
        Observed(pairs.par_iter().map(|&(p, q)| Evidence::of(p, q)).collect())
    }
}

/// What the estimator was trained for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranges {
    /// Columns.
    pub dims: [usize; 2],
    /// Rows of each sample.
    pub rows: [usize; 2],
    /// The largest divergence, in nats.
    pub largest: f64,
}

impl Pretrained {
    /// The one that is built in, read at the first call and kept.
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

    /// Lets a device run the set model.
    pub fn use_device(&self, device: &Device) -> Result<()> {
        self.parts.use_device(device)
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
        if !self.parts.on_gpu() {
            return self.answers_to(Observed::of(pairs));
        }
        // The CPU looks at the next pairs while the GPU answers for those before them.
        let (ahead, seen) = sync_channel(1);
        thread::scope(|scope| {
            scope.spawn(move || pairs.chunks(AT_ONCE).try_for_each(|some| ahead.send(Observed::of(some))));
            seen.into_iter().flat_map(|observed| self.answers_to(observed)).collect()
        })
    }

    fn answers_to(&self, Observed(evidence): Observed) -> Vec<Result<Answer>> {
        let good: Vec<&Evidence> = evidence.iter().filter_map(|e| e.as_ref().ok()).collect();
        let mut found = match self.combine(&good) {
            Ok(found) => found.into_iter(),
            Err(e) => {
                let reason = e.to_string();
                return evidence.iter().map(|_| Err(Error::Estimate(reason.clone()))).collect();
            }
        };
        let answer = |e: Result<Evidence>| match e {
            Ok(_) => found.next().unwrap_or_else(|| Err(Error::Estimate("an answer is missing".to_owned()))),
            Err(e) => Err(e),
        };
        evidence.into_iter().map(answer).collect()
    }

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
            if of_moments > FAR * self.ranges.largest {
                high = high.max(of_moments);
            }
            // A divergence is never negative.
            Ok((reading.value.max(0.0), [low.max(0.0), high.max(0.0)]))
        };
        Ok(seen.into_iter().map(read).collect())
    }

    /// Estimates for many pairs of samples; `seed` is that of fallback estimates' intervals.
    pub fn estimate_all(&self, pairs: &[(Points, Points)], seed: u64) -> Vec<Result<Estimate>> {
        self.describe_all(pairs, self.answers(pairs), seed)
    }

    /// Estimates for pairs of samples from what was seen of them.
    ///
    /// # Panics
    /// If it was seen of another number of pairs.
    pub fn conclude(&self, pairs: &[(Points, Points)], observed: Observed, seed: u64) -> Vec<Result<Estimate>> {
        assert_eq!(pairs.len(), observed.0.len(), "every pair was looked at");
        self.describe_all(pairs, self.answers_to(observed), seed)
    }

    fn describe_all(&self, pairs: &[Pair], answers: Vec<Result<Answer>>, seed: u64) -> Vec<Result<Estimate>> {
        pairs.par_iter().zip(answers).map(|(&(p, q), answer)| self.describe(p, q, answer?, seed)).collect()
    }

    /// An answer with its warnings; where it lies outside of what was trained, with a classical estimate beside it.
    fn describe(&self, p: Points, q: Points, (value, interval): Answer, seed: u64) -> Result<Estimate> {
        let outside = self.outside(p, q, value, interval[1]);
        let warnings = p.warnings().into_iter().chain(q.warnings());
        let warnings: Vec<String> = outside.iter().cloned().chain(warnings).collect();
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
    fn outside(&self, p: Points, q: Points, value: f64, high: f64) -> Vec<String> {
        let Ranges { dims, rows, largest } = self.ranges;
        let mut out = Vec::new();
        if p.dim() > dims[1] {
            out.push(format!("there are {} columns; the estimator was trained for at most {}", p.dim(), dims[1]));
        }
        for points in [p, q] {
            if points.len() < rows[0] {
                let (n, name) = (points.len(), points.name());
                out.push(format!("{name}: has {n} rows; the estimator was trained for {} and more", rows[0]));
            }
            if let Some((column, share)) = points.discrete_column() {
                let (name, percent) = (points.name(), 100.0 * share);
                out.push(format!(
                    "{name}: {percent:.0} % of the values of column {column} repeat another; the estimator was trained on \
                     continuous distributions"
                ));
            }
        }
        if value <= 0.8 * largest && high > largest {
            out.push(format!(
                "the interval reaches beyond the {largest:.0} nats that were trained for; the divergence may be larger than it says"
            ));
        }
        if value > 0.8 * largest {
            out.push(format!(
                "the estimate of {value:.1} nats is close to or beyond the {largest:.0} nats that were trained for; take it as at least {:.0}",
                value.min(0.8 * largest)
            ));
        }
        out
    }
}

impl Estimator for Pretrained {
    fn value(&self, p: Points, q: Points) -> Result<f64> {
        Ok(self.answer(p, q)?.0)
    }

    fn estimate(&self, p: Points, q: Points, seed: u64) -> Result<Estimate> {
        let answer = self.answer(p, q)?;
        self.describe(p, q, answer, seed)
    }

    fn values(&self, pairs: &[Pair]) -> Vec<Result<f64>> {
        self.answers(pairs).into_iter().map(|a| a.map(|(value, _)| value)).collect()
    }

    fn estimates(&self, pairs: &[Pair], seed: u64) -> Vec<Result<Estimate>> {
        self.estimate_all(pairs, seed)
    }
}

impl Pretrained {
    fn answer(&self, p: Points, q: Points) -> Result<Answer> {
        self.answers(&[(p, q)]).pop().expect("an answer for every pair")
    }
}

/// What a set model answers with and was trained for, from the experiment it carries.
fn description(parts: &Model) -> Result<(Targets, Ranges)> {
    let bad = || Error::Estimate("the set model does not say that it was trained for an estimator".to_owned());
    let experiment = Experiment::parse(parts.experiment().ok_or_else(bad)?)?;
    let targets = experiment.training.loss.targets();
    let (Task::BroadKl(task), Targets::Quantiles { .. }) = (&experiment.task, &targets) else { return Err(bad()) };
    let rows = experiment.combiner.as_ref().map_or(Combiner::default().set_size, |c| c.set_size);
    let ranges =
        Ranges { dims: [task.dims.least, task.dims.most], rows: [rows.least, rows.most], largest: task.largest };
    Ok((targets, ranges))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Broad, Generator};
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};

    fn samples(dim: usize, n: usize, m: usize, seed: u64) -> (Vec<f64>, Vec<f64>) {
        let mut rng = Generator::seed_from_u64(seed);
        let pair = Broad { largest: 10.0 }.pair(dim, &mut rng);
        let (mut p, mut q) = (Vec::new(), Vec::new());
        pair.sample_p(n, &mut rng, &mut p);
        pair.sample_q(m, &mut rng, &mut q);
        (p, q)
    }

    #[test]
    fn affine_maps_and_the_order_of_rows_do_not_change_the_answer() {
        let estimator = Pretrained::built_in().unwrap();
        let mut rng = Generator::seed_from_u64(1);
        for (dim, n, m) in [(1, 60, 90), (2, 200, 150), (3, 700, 300), (5, 120, 120), (16, 300, 80)] {
            let (p, q) = samples(dim, n, m, dim as u64);
            let matrix: Vec<f64> = (0..dim * dim).map(|_| rng.random::<f64>() - 0.5).collect();
            let shift: Vec<f64> = (0..dim).map(|_| 100.0 * rng.random::<f64>()).collect();
            let map = |rows: &[f64], order: &[usize]| -> Vec<f64> {
                let image = |r: &[f64], i: usize| {
                    let dot: f64 = r.iter().zip(&matrix[i * dim..]).map(|(x, m)| x * m).sum();
                    10.0 * (dot + 1.5 * r[i]) + shift[i]
                };
                order
                    .iter()
                    .flat_map(|&k| (0..dim).map(move |i| (k, i)))
                    .map(|(k, i)| image(&rows[k * dim..][..dim], i))
                    .collect()
            };
            let mut orders = [(0..n).collect::<Vec<_>>(), (0..m).collect()];
            orders.iter_mut().for_each(|o| o.shuffle(&mut rng));
            let (p2, q2) = (map(&p, &orders[0]), map(&q, &orders[1]));
            let (a, ia) = estimator.answer(Points::new(&p, dim), Points::new(&q, dim)).unwrap();
            let (b, ib) = estimator.answer(Points::new(&p2, dim), Points::new(&q2, dim)).unwrap();
            let near = |a: f64, b: f64| (a - b).abs() < 1e-3 * (1.0 + a);
            assert!(near(a, b) && near(ia[0], ib[0]) && near(ia[1], ib[1]), "d = {dim}: {a} {ia:?} and {b} {ib:?}");
        }
    }

    #[test]
    fn many_pairs_get_the_answers_each_gets_alone() {
        let estimator = Pretrained::built_in().unwrap();
        let data: Vec<_> = (0..9).map(|i| samples(1 + i % 3, 40 + 60 * i, 50 + 30 * i, i as u64)).collect();
        let mut pairs: Vec<(Points, Points)> = Vec::new();
        for (i, (p, q)) in data.iter().enumerate() {
            pairs.push((Points::new(p, 1 + i % 3), Points::new(q, 1 + i % 3)));
        }
        let few = [1.0, 2.0, 3.0];
        pairs.insert(4, (Points::new(&few, 1).named("few.csv"), Points::new(&few, 1)));
        let together = estimator.estimate_all(&pairs, 0);
        for (i, (answer, &(p, q))) in together.iter().zip(&pairs).enumerate() {
            match answer {
                Err(e) => assert!(i == 4 && e.to_string().starts_with("few.csv: has 3 rows"), "{e}"),
                Ok(e) => {
                    let alone = estimator.value(p, q).unwrap();
                    assert!((e.value - alone).abs() < 1e-5 * (1.0 + alone), "{} and {alone}", e.value);
                    let [low, high] = e.interval.unwrap();
                    assert!(0.0 <= low && low <= e.value && e.value <= high);
                }
            }
        }
    }

    #[test]
    fn what_was_not_trained_for_is_said_with_the_number_and_another_estimate() {
        let estimator = Pretrained::built_in().unwrap();
        let said = |p: &[f64], q: &[f64], dim: usize| {
            let e = estimator.estimate(Points::new(p, dim).named("p.csv"), Points::new(q, dim), 0).unwrap();
            (e.warnings.join("; "), e.fallback.is_some())
        };
        let (p, q) = samples(20, 120, 100, 3);
        let (text, fallback) = said(&p, &q, 20);
        assert!(text.contains("20 columns") && text.contains("at most 16") && fallback, "{text}");
        let (p, q) = samples(2, 12, 100, 3);
        let (text, fallback) = said(&p, &q, 2);
        assert!(text.contains("p.csv: has 12 rows") && fallback, "{text}");
        let (mut p, q) = samples(2, 100, 100, 4);
        p.iter_mut().skip(1).step_by(2).for_each(|x| *x = x.round());
        let (text, fallback) = said(&p, &q, 2);
        assert!(text.contains("of the values of column 2 repeat") && fallback, "{text}");
        p.iter_mut().skip(1).step_by(2).for_each(|x| *x = 7.0);
        let (text, _) = said(&p, &q, 2);
        assert!(text.contains("column 2 holds one value only"), "{text}");
        let (p, q) = samples(3, 100, 100, 5);
        assert_eq!(said(&p, &q, 3), (String::new(), false));
        let far: Vec<f64> = q.iter().map(|x| x + 1e4).collect();
        let (text, _) = said(&p, &far, 3);
        assert!(text.contains("nats"), "{text}");
    }
}
