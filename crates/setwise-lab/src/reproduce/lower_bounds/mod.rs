//! Bounds of the smallest possible error in Table 1: the error of the posterior median under the prior of mixtures.
//!
//! No estimate has a smaller mean absolute error than the posterior median of the label given both samples.
//!
//! * Lower bound: the true mixtures are a draw of the posterior. So all labels along a Markov chain that starts there
//!   are draws too. A median minimises the mean distance from the draws. On average over examples, the mean distance
//!   of the draws from their own median is therefore at most the error of the best estimate. Short chains and slow
//!   mixing only lower this bound.
//! * Upper bound: the median of a chain that starts at a draw of the prior is an estimate, so its error is a bound.
//!
//! The excess of any other estimate is its mean distance from the draws, less that of their median. It has little
//! noise.

mod posterior_draws;
mod presentation;

use std::ops::RangeInclusive;
use std::path::PathBuf;

use rand::SeedableRng;
use rayon::prelude::*;
use serde_json::{Value, json};

use setwise::data::{RawBatch, RawSet};
use setwise::distributions::{IntRange, Mixture};
use setwise::estimate::{Estimator, GaussianKl, Knn};
use setwise::random::Generator;
use setwise::{Device, Model};

use super::paper::{KL_DIMS, KL_ERRORS};
use super::runs::{self, Run};
use super::{Reproduction, checked_dims, points};
use crate::Result;
use crate::experiment::{Experiment, KlTask, Task, find};
use crate::samplers::{Divergence, Split, batch_seed};
use posterior_draws::{DIVISORS, MIN_STEPS, PosteriorDraws, median};
use presentation::{CLASSICAL, figure, table};

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Options {
    /// Columns of the table.
    pub dims: Vec<usize>,
    /// Fresh examples for each number.
    pub examples: usize,
    /// Steps of each chain.
    pub steps: usize,
    /// Points of both sets; default the paper's sizes.
    pub size: Option<usize>,
    /// Seed of examples and chains.
    pub seed: u64,
    /// The folder of finished runs.
    pub runs: PathBuf,
    /// The device of their models.
    pub device: Device,
}

/// Examples of a batch.
const BATCH: usize = 64;
/// Index of the full chain among its prefixes.
const FULL: usize = DIVISORS.len() - 1;

/// Largest number of draws of all chains. They are kept in memory.
const MAX_DRAWS: usize = 1 << 28;

/// Measures the table. `progress` receives the name of each measurement.
pub fn reproduce(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Reproduction> {
    let dims = checked_dims(&options.dims, &KL_DIMS)?;
    if options.steps < MIN_STEPS {
        return Err(setwise::Error::Sets(format!("{} steps: chains need at least {MIN_STEPS}", options.steps)).into());
    }
    if options.examples.saturating_mul(options.steps) > MAX_DRAWS {
        let (examples, steps) = (options.examples, options.steps);
        let reason = format!("{examples} examples of {steps} steps: at most {MAX_DRAWS} draws fit in memory");
        return Err(setwise::Error::Sets(reason).into());
    }
    if let Some(size) = options.size.filter(|n| !(20..=100_000).contains(n)) {
        return Err(setwise::Error::Sets(format!("sets of {size} points: must be between 20 and 100000")).into());
    }
    let (mut columns, mut notes) = (Vec::new(), Vec::new());
    for dim in dims {
        let (column, trained) = Dimension::of(dim, options, progress)?;
        columns.push(column);
        notes.extend(trained);
    }
    let sizes = options.size.map_or("100 to 150".to_owned(), |n| n.to_string());
    notes.push(format!(
        "{} examples with sets of {sizes} points, seed {}, chains of {} steps; ± one standard error. \
         All rows use the same examples.",
        options.examples, options.seed, options.steps
    ));
    Ok(Reproduction {
        name: "lower-bounds",
        table: table(&columns),
        json: columns.iter().map(|c| c.json(options)).collect(),
        figures: vec![("lower-bounds".to_owned(), figure(&columns, options.steps))],
        notes,
    })
}

/// Groups of examples by the number of components of q.
const COMPONENTS: [RangeInclusive<usize>; 4] = [1..=1, 2..=3, 4..=6, 7..=10];

/// The measurements in one dimension: a column of the table.
struct Dimension {
    dim: usize,
    posteriors: Vec<PosteriorDraws>,
    /// Number of components of q, by example.
    components: Vec<usize>,
    methods: Vec<Method>,
}

/// Absolute errors of a method, by example.
struct Method {
    name: String,
    /// Distance of its estimate from the label.
    errors: Vec<f64>,
    /// Mean distance of its estimate from the draws of the posterior.
    expected: Vec<f64>,
}

impl Dimension {
    /// Measures one dimension. Also returns descriptions of the models.
    fn of(dim: usize, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<(Self, Vec<String>)> {
        let experiment: Experiment = find(&format!("paper/kl-d{dim}"))?;
        let Task::Kl(task) = &experiment.task else { unreachable!("the experiments kl-d* have this kind") };
        let runs = runs::finished(&options.runs, &experiment.task)?;
        let several = |run: &Run| runs.iter().filter(|r| r.experiment.preset() == run.experiment.preset()).count() > 1;
        let name = |run: &Run| match several(run) {
            true => run.folder.path().display().to_string(),
            false => run.experiment.preset().to_owned(),
        };
        let names = CLASSICAL.map(str::to_owned).into_iter().chain(runs.iter().map(name));
        let mut methods: Vec<Method> =
            names.map(|name| Method { name, errors: Vec::new(), expected: Vec::new() }).collect();
        let mut models = runs.iter().map(|r| r.model(&options.device)).collect::<Result<Vec<_>>>()?;
        let describe = |(r, m): (&Run, &Model)| format!("d = {dim}, {}: {}", r.experiment.preset(), r.describe(m));
        let described = runs.iter().zip(&models).map(describe).collect();
        let (mut posteriors, mut components) = (Vec::new(), Vec::new());
        for index in 0..options.examples.div_ceil(BATCH) {
            let done = index * BATCH;
            progress(&format!("d = {dim}: from example {done} of {}", options.examples));
            let batch = Examples::draw(task, options, index as u64, BATCH.min(options.examples - done));
            let draws = batch.sample_posteriors(task, options, done as u64);
            let mut answers = vec![draws.iter().map(|o| o.from_prior[FULL]).collect()];
            answers.extend(batch.estimate_classical()?);
            for (run, model) in runs.iter().zip(&mut models) {
                answers.push(batch.predict(&run.experiment, model)?);
            }
            for (method, answers) in methods.iter_mut().zip(answers) {
                method.errors.extend(answers.iter().zip(&batch.raw.labels).map(|(a, label)| (a - label).abs()));
                method.expected.extend(answers.iter().zip(&draws).map(|(a, posterior)| posterior.expected_error(*a)));
            }
            posteriors.extend(draws);
            components.extend(batch.truths.iter().map(|[_, q]| q.weights().count()));
        }
        Ok((Dimension { dim, posteriors, components, methods }, described))
    }

    /// Mean and standard error over the examples.
    fn mean(&self, of: impl Fn(&PosteriorDraws) -> f64) -> (f64, f64) {
        mean(self.posteriors.iter().map(of))
    }

    /// The lower bound from a prefix of the chains.
    fn lower_bound(&self, part: usize) -> (f64, f64) {
        self.mean(|o| o.spread[part])
    }

    /// The excess of a method over the lower bound.
    fn excess(&self, method: &Method) -> (f64, f64) {
        self.excess_among(method, &(0..=usize::MAX))
    }

    /// Number of examples whose q has a number of components in the range.
    fn count(&self, components: &RangeInclusive<usize>) -> usize {
        self.components.iter().filter(|c| components.contains(c)).count()
    }

    /// The excess of a method on these examples.
    fn excess_among(&self, method: &Method, components: &RangeInclusive<usize>) -> (f64, f64) {
        let excess = method.expected.iter().zip(&self.posteriors).map(|(e, o)| e - o.spread[FULL]);
        mean(excess.zip(&self.components).filter(|(_, k)| components.contains(k)).map(|(excess, _)| excess))
    }

    fn effective_size(&self) -> f64 {
        median(&self.posteriors.iter().map(|o| o.effective_size).collect::<Vec<_>>())
    }

    fn paper_best(&self) -> f64 {
        let index = KL_DIMS.iter().position(|d| *d == self.dim).expect("a checked dimension");
        KL_ERRORS.iter().map(|row| row.errors[index]).fold(f64::INFINITY, f64::min)
    }

    fn json(&self, options: &Options) -> Value {
        let pair = |(mean, error): (f64, f64)| json!({"mean": mean, "standard_error": error});
        let by_part = |of: &dyn Fn(&PosteriorDraws, usize) -> f64| -> Value {
            let part = |k: usize| {
                let (mean, error) = self.mean(|o| of(o, k));
                json!({"steps": options.steps / DIVISORS[k], "mean": mean, "standard_error": error})
            };
            (0..DIVISORS.len()).map(part).collect()
        };
        let method_json = |m: &Method| {
            let (errors, expected) = (mean(m.errors.iter().copied()), mean(m.expected.iter().copied()));
            let among = |k: &RangeInclusive<usize>| {
                let excess = (self.count(k) > 1).then(|| pair(self.excess_among(m, k)));
                json!({"from": k.start(), "to": k.end(), "examples": self.count(k), "excess": excess})
            };
            json!({
                "name": m.name, "mean_absolute_error": pair(errors), "expected_error": pair(expected),
                "excess": pair(self.excess(m)),
                "by_components_of_q": COMPONENTS.iter().map(among).collect::<Vec<_>>(),
            })
        };
        json!({
            "dim": self.dim, "examples": options.examples, "steps": options.steps, "size": options.size,
            "paper_best": self.paper_best(), "lower_bound": by_part(&|o, k| o.spread[k]),
            "median_from_truth": by_part(&|o, k| o.error[k]),
            "median_from_prior": by_part(&|o, k| o.expected_error(o.from_prior[k])),
            "effective_sample_size": self.effective_size(),
            "methods": self.methods.iter().map(method_json).collect::<Vec<_>>(),
        })
    }
}

/// Mean and standard error.
fn mean(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values: Vec<f64> = values.collect();
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, (variance / n).sqrt())
}

/// A batch of the test examples of [`super::divergence`], with their mixtures.
struct Examples {
    raw: RawBatch,
    truths: Vec<[Mixture; 2]>,
}

impl Examples {
    fn draw(task: &KlTask, options: &Options, index: u64, examples: usize) -> Self {
        let sampler = Divergence { mixture: task.mixture.clone(), label: task.label };
        let size = options.size.map_or(task.set_size, |n| IntRange::new(n, n));
        let seed = batch_seed(options.seed, Split::Test, index);
        let mut rng = Generator::seed_from_u64(seed);
        let mut rows = vec![Vec::new(); 2];
        let mut offsets = vec![vec![0]; 2];
        let (mut truths, mut labels) = (Vec::new(), Vec::new());
        for _ in 0..examples {
            let (truth, label) = sampler.draw_with_truth(task.dim, size, &mut rng, &mut rows);
            truths.push(truth);
            labels.push(label);
            offsets.iter_mut().zip(&rows).for_each(|(offsets, rows)| offsets.push(rows.len() / task.dim));
        }
        let sets = rows.into_iter().zip(offsets).map(|(rows, offsets)| RawSet { rows, offsets }).collect();
        Examples { raw: RawBatch { sets, widths: vec![task.dim; 2], labels, element_labels: Vec::new(), seed }, truths }
    }

    fn predict(&self, experiment: &Experiment, model: &mut Model) -> Result<Vec<f64>> {
        let targets = experiment.training.loss.targets();
        let batch = self.raw.prepare(experiment.task.coordinates(model.config()), &targets)?;
        let answers = model.predict(&batch.sets)?;
        Ok((0..self.truths.len()).map(|i| targets.decode_example(&answers, i).value).collect())
    }

    /// The Gaussian fit, and nearest neighbours as in the published code.
    fn estimate_classical(&self) -> Result<[Vec<f64>; 2]> {
        let knn = Knn::new(1).with_offset(1e-5);
        let both = |i: usize| {
            let (x, y) = (points(&self.raw, 0, i), points(&self.raw, 1, i));
            Ok((GaussianKl::plug_in().value(x, y)?, knn.value(x, y)?))
        };
        let answers = (0..self.truths.len()).into_par_iter().map(both).collect::<Result<Vec<(f64, f64)>>>()?;
        let (gaussian, knn) = answers.into_iter().unzip();
        Ok([gaussian, knn])
    }

    /// Samples the posterior of each example. `first` is the index of the first example.
    ///
    /// Each example has its own generator, so the number of threads changes nothing.
    fn sample_posteriors(&self, task: &KlTask, options: &Options, first: u64) -> Vec<PosteriorDraws> {
        let sample = |i: usize| {
            // These seeds differ from those of the examples.
            let mut rng = Generator::seed_from_u64(batch_seed(!options.seed, Split::Test, first + i as u64));
            let samples = [self.raw.rows(0, i), self.raw.rows(1, i)];
            PosteriorDraws::sample(&task.mixture, samples, self.truths[i].clone(), options.steps, &mut rng)
        };
        (0..self.truths.len()).into_par_iter().map(sample).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::labels;

    fn options(seed: u64) -> Options {
        Options {
            dims: vec![2],
            examples: 3,
            steps: MIN_STEPS,
            size: None,
            seed,
            runs: PathBuf::from("none"),
            device: Device::Cpu,
        }
    }

    #[test]
    fn the_examples_are_the_test_examples_of_table_1() {
        let experiment = Experiment { seed: 4, ..find("paper/kl-d2").unwrap() }.validate().unwrap();
        let Task::Kl(task) = &experiment.task else { panic!("another task") };
        let examples = Examples::draw(task, &options(4), 0, BATCH);
        assert_eq!(examples.raw.labels, labels(&experiment, Split::Test, BATCH).unwrap());
    }

    #[test]
    fn the_excesses_of_groups_by_components_average_to_the_total() {
        let method = Dimension::of(2, &Options { examples: 40, ..options(5) }, &mut |_| ()).unwrap().0;
        let gaussian = method.methods.iter().find(|m| m.name == "gaussian").unwrap();
        let parts = COMPONENTS.map(|k| (method.count(&k) as f64, method.excess_among(gaussian, &k).0));
        assert_eq!(parts.iter().map(|p| p.0).sum::<f64>(), 40.0);
        let sum: f64 = parts.iter().filter(|p| p.0 > 0.0).map(|(n, excess)| n * excess / 40.0).sum();
        assert!((sum - method.excess(gaussian).0).abs() < 1e-12);
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers_for_any_number_of_threads() {
        let found = |threads: usize, seed: u64| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| reproduce(&options(seed), &mut |_| ()).unwrap().json)
        };
        assert_eq!(found(1, 7), found(3, 7));
        assert_ne!(found(1, 7), found(1, 8));
    }

    #[test]
    fn short_chains_and_small_sets_are_errors() {
        let message = |options: Options| reproduce(&options, &mut |_| ()).err().expect("an error").to_string();
        assert!(message(Options { steps: 31, ..options(0) }).contains("31 steps"));
        assert!(message(Options { size: Some(3), ..options(0) }).contains("sets of 3 points"));
        assert!(message(Options { dims: vec![3], ..options(0) }).contains("3 dimensions"));
    }
}
