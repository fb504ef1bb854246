//! The KL estimator that was trained once and answers for any two samples.
//!
//! Two networks. A dimension-equivariant set model reads parts of at most 256 rows of both samples, in coordinates that no affine map
//! of the data changes, and answers with quantiles of the divergence. A small network then reads these answers averaged over at
//! most four disjoint parts, how far they differ, the sizes of the samples and classical estimates on all rows (neighbours,
//! Gaussians, a classifier), and gives the quantiles for the whole: it was trained on samples of 30 to thousands of rows, so it takes away the bias of
//! averages over parts and trusts neighbours where they are good. The interval is widened or narrowed to cover 90 % of
//! held-out examples. Samples far larger than that are dealt to chunks, whose answers are averaged; `repeats` says what becomes of repeated
//! values, of which the networks know nothing. `fit` trains the second network.

mod classifier;
mod combine;
mod evidence;
mod examples;
mod fit;
mod near;
mod repeats;
mod shape;

use std::path::Path;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread;

use rayon::prelude::*;

use super::points::constant_columns;
use super::{Dim, Estimate, Estimator, Fallback, Knn, Pair, Points, Quantity};
use crate::data::Targets;
use crate::experiment::{Combiner, Experiment, Task};
use crate::models::SharedModel;
use crate::{Device, Error, Model, Result};
use combine::{Relative, ask, batch_of, numbers, width};
use evidence::{Evidence, Seen};
pub use fit::{FitProgress, fit};

/// File of the second network in the folder of a run, beside the set model's.
pub const COMBINER_FILE: &str = "combiner.safetensors";

/// Pairs that are looked at before a GPU answers for them, at least and at most: every turn has its own start and end, but with one turn
/// alone neither works while the other does.
const AHEAD: [usize; 2] = [96, 500];

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
            if of_moments > FAR * self.ranges.largest {
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
        let Ranges { dims, rows, largest } = self.ranges;
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

    fn answer(estimator: &Pretrained, p: Points, q: Points) -> Result<Answer> {
        estimator.answers(&[(p, q)]).remove(0)
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
            let (a, ia) = answer(&estimator, Points::new(&p, dim), Points::new(&q, dim)).unwrap();
            let (b, ib) = answer(&estimator, Points::new(&p2, dim), Points::new(&q2, dim)).unwrap();
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
    fn repeated_rows_change_the_answer_no_more_than_the_rows_they_take_away() {
        let estimator = Pretrained::built_in().unwrap();
        let mut rng = Generator::seed_from_u64(2);
        for dim in [1, 3, 8] {
            let (p, q) = samples(dim, 300, 300, 10 + dim as u64);
            let value = |p: &[f64], q: &[f64]| answer(&estimator, Points::new(p, dim), Points::new(q, dim)).unwrap();
            let (plain, [low, high]) = value(&p, &q);
            let (few, _) = value(&[&p[..], &p[..15 * dim]].concat(), &[&q[..], &q[..15 * dim]].concat());
            let (twice, _) = value(&p.repeat(2), &q.repeat(2));
            for found in [few, twice] {
                assert!((found - plain).abs() < 1e-3 * (1.0 + plain), "d = {dim}: {found}, not {plain}");
            }
            let mut drawn = |rows: &[f64]| -> Vec<f64> {
                (0..300).flat_map(|_| rows[rng.random_range(0..300) * dim..][..dim].to_vec()).collect()
            };
            let (found, _) = value(&drawn(&p), &drawn(&q));
            assert!(low - 0.3 < found && found < 1.5 * high + 0.3, "d = {dim}: {found}, not {plain}");
            assert!(value(&p.repeat(2), &p.repeat(2)).0 < 0.1);
        }
    }

    #[test]
    fn whole_numbers_have_the_divergence_of_their_frequencies() {
        let estimator = Pretrained::built_in().unwrap();
        let mut rng = Generator::seed_from_u64(3);
        // Sums of coins: of four fair ones, and of four that fall on one side in three of four cases.
        let mut coins = |chance: f64| -> Vec<f64> {
            (0..2 * 400).map(|_| (0..4).filter(|_| rng.random_bool(chance)).count() as f64).collect()
        };
        let (p, q) = (coins(0.5), coins(0.75));
        // A coin has ½ ln(½/¾) + ½ ln(½/¼), and there are eight.
        let exact = 4.0 * (0.5f64 / 0.75).ln() + 4.0 * 2.0f64.ln();
        let (found, [low, high]) = answer(&estimator, Points::new(&p, 2), Points::new(&q, 2)).unwrap();
        assert!(low < exact && exact < high, "{found} in {low} to {high}, not {exact}");
    }

    #[test]
    fn large_samples_are_estimated_in_chunks_whatever_the_order_of_rows() {
        let estimator = Pretrained::built_in().unwrap();
        let mut rng = Generator::seed_from_u64(4);
        let (n, m) = (20_000, 9_000);
        let law = |shift: f64, n: usize, rng: &mut Generator| -> Vec<f64> {
            (0..n).map(|_| (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0 + shift).collect()
        };
        let (mut p, q) = (law(0.0, n, &mut rng), law(1.0, m, &mut rng));
        assert_eq!(Seen::of(Points::new(&p, 1), Points::new(&q, 1)).unwrap().chunks.len(), 3);
        let (a, [low, high]) = answer(&estimator, Points::new(&p, 1), Points::new(&q, 1)).unwrap();
        assert!(low < 0.5 && 0.5 < high && high - low < 0.2, "{a} in {low} to {high}");
        p.shuffle(&mut rng);
        let b = estimator.value(Points::new(&p, 1), Points::new(&q, 1)).unwrap();
        assert!((a - b).abs() < 1e-4, "{a} and {b}");
        let same = law(0.0, n, &mut rng);
        let (_, [low, _]) = answer(&estimator, Points::new(&p, 1), Points::new(&same, 1)).unwrap();
        assert_eq!(low, 0.0);
    }

    #[test]
    fn samples_with_too_many_columns_are_left_to_neighbours_and_large_estimates_are_bounds_in_trained_ranges_only() {
        let estimator = Pretrained::built_in().unwrap();
        let said = |dim: usize, rows: usize| {
            let (p, q) = samples(dim, rows, 100, 5);
            let (p, q) = (Points::new(&p, dim).named("p.csv"), Points::new(&q, dim).named("q.csv"));
            let (e, other) = (estimator.estimate(p, q, 3).unwrap(), Knn::default().estimate(p, q, 3).unwrap());
            assert_eq!((&e.method, e.value, e.interval), (&other.method, other.value, other.interval));
            assert_eq!(estimator.value(p, q).unwrap(), other.value);
            e.warnings[0].clone()
        };
        assert!(
            said(33, 100)
                .starts_with("p.csv and q.csv have 33 columns that vary; the pretrained estimator takes at most 32")
        );
        let text = said(20, 29);
        assert!(text.starts_with("p.csv: has 29 different rows") && text.contains("at least 30"), "{text}");
        let far = |dim: usize| {
            let (p, q) = samples(dim, 200, 200, 5);
            let q: Vec<f64> = q.iter().map(|x| x + 1e3).collect();
            estimator.estimate(Points::new(&p, dim), Points::new(&q, dim), 0).unwrap().warnings.join("; ")
        };
        assert!(far(3).contains("take it as at least 24"), "{}", far(3));
        assert!(far(20).contains("nats") && !far(20).contains("at least 24"), "{}", far(20));
        // Columns of one value are none.
        let (p, q) = samples(16, 100, 100, 6);
        let wide = |rows: &[f64]| -> Vec<f64> { rows.chunks(16).flat_map(|r| [r, &[5.0]].concat()).collect() };
        let e = estimator.estimate(Points::new(&wide(&p), 17), Points::new(&wide(&q), 17), 0).unwrap();
        assert_eq!(e.warnings, ["column 17 holds one value only and says nothing"]);
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
