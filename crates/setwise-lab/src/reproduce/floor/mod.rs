//! How far Table 1 can be improved at all: the error of someone who knows the law of the mixtures and computes with it.
//!
//! No estimate has a smaller mean absolute error than the posterior median of the label given the samples. In a simulation the
//! true mixtures are a draw of that posterior, so that all labels along a chain started there are draws of it as well. Their mean
//! distance from their own median is then, on average over examples, at most that of the best estimate: a median is nearer to the
//! draws than any other number. A chain that is short or moves slowly only makes it smaller. This is the bound from below. A chain that starts
//! anywhere else is an estimate that needs no truth: its error is a bound from above.
//!
//! The same draws tell how far any other answer is above the bound with little noise: by its mean distance from all of them, less
//! that of their median.

mod oracle;

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
use setwise_report::{Axis, Cell, Figure, Panel, Series, Style, Table};

use super::paper::{KL_DIMS, KL_ERRORS};
use super::runs::{self, Run};
use super::{Reproduction, checked_dims, points};
use crate::Result;
use crate::experiment::{Experiment, KlTask, Task, find};
use crate::samplers::{Divergence, Split, batch_seed};
use oracle::{FEWEST, Oracle, PARTS, median};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Columns of the table.
    pub dims: Vec<usize>,
    /// Fresh examples for each number.
    pub examples: usize,
    /// Steps of each chain.
    pub steps: usize,
    /// Points of both sets, if not as in the paper.
    pub size: Option<usize>,
    /// Seed of examples and chains.
    pub seed: u64,
    /// Where finished runs are.
    pub runs: PathBuf,
    /// What computes their answers.
    pub device: Device,
}

/// Examples drawn at once.
const BATCH: usize = 64;
/// Index of the whole chain among its parts.
const WHOLE: usize = PARTS.len() - 1;

/// Most draws of all chains together, which are kept until the end.
const MOST_DRAWS: usize = 1 << 28;

/// Measures the table. `progress` hears what is being measured.
pub fn reproduce(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Reproduction> {
    let dims = checked_dims(&options.dims, &KL_DIMS)?;
    if options.steps < FEWEST {
        return Err(setwise::Error::Sets(format!("{} steps: chains need at least {FEWEST}", options.steps)).into());
    }
    if options.examples.saturating_mul(options.steps) > MOST_DRAWS {
        let (examples, steps) = (options.examples, options.steps);
        let reason = format!("{examples} examples of {steps} steps: draws are kept, at most {MOST_DRAWS} in all");
        return Err(setwise::Error::Sets(reason).into());
    }
    if let Some(size) = options.size.filter(|n| !(20..=100_000).contains(n)) {
        return Err(setwise::Error::Sets(format!("sets of {size} points: must be between 20 and 100000")).into());
    }
    let (mut columns, mut notes) = (Vec::new(), Vec::new());
    for dim in dims {
        let (column, trained) = Measured::of(dim, options, progress)?;
        columns.push(column);
        notes.extend(trained);
    }
    let sizes = options.size.map_or("100 to 150".to_owned(), |n| n.to_string());
    notes.push(format!(
        "{} examples with sets of {sizes} points, seed {}, chains of {} steps; ± one standard error. All rows are of the same examples.",
        options.examples, options.seed, options.steps
    ));
    Ok(Reproduction {
        name: "floor",
        table: table(&columns),
        json: columns.iter().map(|c| c.json(options)).collect(),
        figures: vec![("floor".to_owned(), figure(&columns, options.steps))],
        notes,
    })
}

/// Groups of examples by the number of components of q.
const COMPONENTS: [RangeInclusive<usize>; 4] = [1..=1, 2..=3, 4..=6, 7..=10];

/// Everything in one dimension.
struct Measured {
    dim: usize,
    oracles: Vec<Oracle>,
    /// Of q, example by example.
    components: Vec<usize>,
    others: Vec<Method>,
}

/// Absolute errors of a method, example by example.
struct Method {
    name: String,
    /// Of its answer to the label.
    errors: Vec<f64>,
    /// Of its answer to the labels that are possible given the samples.
    expected: Vec<f64>,
}

impl Measured {
    /// Measures one dimension; also says what the models took.
    fn of(dim: usize, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<(Self, Vec<String>)> {
        let experiment: Experiment = find(&format!("paper/kl-d{dim}"))?;
        let Task::Kl(task) = &experiment.task else { unreachable!("the paper's experiments kl-d* are of that kind") };
        let runs = runs::finished(&options.runs, &experiment.task)?;
        let several = |run: &Run| runs.iter().filter(|r| r.experiment.preset() == run.experiment.preset()).count() > 1;
        let name = |run: &Run| match several(run) {
            true => run.folder.path().display().to_string(),
            false => run.experiment.preset().to_owned(),
        };
        let names = CLASSICAL.map(str::to_owned).into_iter().chain(runs.iter().map(name));
        let mut others: Vec<Method> =
            names.map(|name| Method { name, errors: Vec::new(), expected: Vec::new() }).collect();
        let mut models = runs.iter().map(|r| r.model(&options.device)).collect::<Result<Vec<_>>>()?;
        let describe = |(r, m): (&Run, &Model)| format!("d = {dim}, {}: {}", r.experiment.preset(), r.describe(m));
        let described = runs.iter().zip(&models).map(describe).collect();
        let (mut oracles, mut components) = (Vec::new(), Vec::new());
        for index in 0..options.examples.div_ceil(BATCH) {
            let done = index * BATCH;
            progress(&format!("d = {dim}: from example {done} of {}", options.examples));
            let batch = Examples::draw(task, options, index as u64, BATCH.min(options.examples - done));
            let asked = batch.ask_oracle(task, options, done as u64);
            let mut answers = vec![asked.iter().map(|o| o.untold[WHOLE]).collect()];
            answers.extend(batch.ask_classical()?);
            for (run, model) in runs.iter().zip(&mut models) {
                answers.push(batch.ask_model(&run.experiment, model)?);
            }
            for (method, answers) in others.iter_mut().zip(answers) {
                method.errors.extend(answers.iter().zip(&batch.drawn.labels).map(|(a, label)| (a - label).abs()));
                method.expected.extend(answers.iter().zip(&asked).map(|(a, oracle)| oracle.expected_error(*a)));
            }
            oracles.extend(asked);
            components.extend(batch.truths.iter().map(|[_, q]| q.weights().count()));
        }
        Ok((Measured { dim, oracles, components, others }, described))
    }

    /// Mean and standard error over the examples.
    fn mean(&self, of: impl Fn(&Oracle) -> f64) -> (f64, f64) {
        mean(self.oracles.iter().map(of))
    }

    /// The bound from below, of a part of the chain.
    fn floor(&self, part: usize) -> (f64, f64) {
        self.mean(|o| o.spread[part])
    }

    /// By how much a method is above the bound.
    fn above(&self, method: &Method) -> (f64, f64) {
        self.above_among(method, &(0..=usize::MAX))
    }

    /// Examples whose q has so many components.
    fn count(&self, components: &RangeInclusive<usize>) -> usize {
        self.components.iter().filter(|c| components.contains(c)).count()
    }

    /// By how much a method is above the bound where q has so many components.
    fn above_among(&self, method: &Method, components: &RangeInclusive<usize>) -> (f64, f64) {
        let above = method.expected.iter().zip(&self.oracles).map(|(e, o)| e - o.spread[WHOLE]);
        mean(above.zip(&self.components).filter(|(_, k)| components.contains(k)).map(|(above, _)| above))
    }

    fn effective(&self) -> f64 {
        median(&self.oracles.iter().map(|o| o.effective).collect::<Vec<_>>())
    }

    fn papers_best(&self) -> f64 {
        let place = KL_DIMS.iter().position(|d| *d == self.dim).expect("a checked dimension");
        KL_ERRORS.iter().map(|row| row.errors[place]).fold(f64::INFINITY, f64::min)
    }

    fn json(&self, options: &Options) -> Value {
        let pair = |(mean, error): (f64, f64)| json!({"mean": mean, "standard_error": error});
        let by_part = |of: &dyn Fn(&Oracle, usize) -> f64| -> Value {
            let part = |k: usize| {
                let (mean, error) = self.mean(|o| of(o, k));
                json!({"steps": options.steps / PARTS[k], "mean": mean, "standard_error": error})
            };
            (0..PARTS.len()).map(part).collect()
        };
        let other = |m: &Method| {
            let (errors, expected) = (mean(m.errors.iter().copied()), mean(m.expected.iter().copied()));
            let among = |k: &RangeInclusive<usize>| {
                let above = (self.count(k) > 1).then(|| pair(self.above_among(m, k)));
                json!({"from": k.start(), "to": k.end(), "examples": self.count(k), "above_floor": above})
            };
            json!({
                "name": m.name, "mean_absolute_error": pair(errors), "expected_error": pair(expected),
                "above_floor": pair(self.above(m)), "by_components_of_q": COMPONENTS.iter().map(among).collect::<Vec<_>>(),
            })
        };
        json!({
            "dim": self.dim, "examples": options.examples, "steps": options.steps, "size": options.size,
            "papers_best": self.papers_best(), "floor": by_part(&|o, k| o.spread[k]),
            "median_from_truth": by_part(&|o, k| o.error[k]),
            "median_from_prior": by_part(&|o, k| o.expected_error(o.untold[k])),
            "effective_draws": self.effective(), "others": self.others.iter().map(other).collect::<Vec<_>>(),
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

/// A batch of the examples [`super::divergence`] judges by, with the mixtures they are of.
struct Examples {
    drawn: RawBatch,
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
        Examples { drawn: RawBatch { sets, widths: vec![task.dim; 2], labels, elements: Vec::new(), seed }, truths }
    }

    fn ask_model(&self, experiment: &Experiment, model: &mut Model) -> Result<Vec<f64>> {
        let targets = experiment.training.loss.targets();
        let batch = self.drawn.prepare(experiment.task.coordinates(model.config()), &targets)?;
        let answers = model.predict(&batch.sets)?;
        Ok((0..self.truths.len()).map(|i| targets.read_example(&answers, i).value).collect())
    }

    /// The Gaussian fit, and nearest neighbours as in the published code.
    fn ask_classical(&self) -> Result<[Vec<f64>; 2]> {
        let knn = Knn::new(1).with_offset(1e-5);
        let both = |i: usize| {
            let (x, y) = (points(&self.drawn, 0, i), points(&self.drawn, 1, i));
            Ok((GaussianKl.value(x, y)?, knn.value(x, y)?))
        };
        let answers = (0..self.truths.len()).into_par_iter().map(both).collect::<Result<Vec<(f64, f64)>>>()?;
        let (gaussian, knn) = answers.into_iter().unzip();
        Ok([gaussian, knn])
    }

    /// Each example has a generator of its own, so that threads change nothing; `first` is the number of the first.
    fn ask_oracle(&self, task: &KlTask, options: &Options, first: u64) -> Vec<Oracle> {
        let ask = |i: usize| {
            // Seeds of their own, beside those of the examples.
            let mut rng = Generator::seed_from_u64(batch_seed(!options.seed, Split::Test, first + i as u64));
            let samples = [self.drawn.rows(0, i), self.drawn.rows(1, i)];
            Oracle::ask(&task.mixture, samples, self.truths[i].clone(), options.steps, &mut rng)
        };
        (0..self.truths.len()).into_par_iter().map(ask).collect()
    }
}

/// Names in the table and in the figure.
const FLOOR: &str = "floor, from below";
const FROM_PRIOR: &str = "posterior median, computed";
/// What needs no training.
const CLASSICAL: [&str; 3] = [FROM_PRIOR, "gaussian", "knn"];

fn table(columns: &[Measured]) -> Table {
    let names = columns.iter().map(|c| format!("d = {}", c.dim));
    let mut table = Table::new(
        "Mean absolute error of KL divergence, and the least there can be",
        std::iter::once("estimate".to_owned()).chain(names),
    );
    let mut row = |name: &str, cell: &dyn Fn(&Measured) -> Cell| {
        table.push(std::iter::once(name.into()).chain(columns.iter().map(cell)));
    };
    let estimate = |(mean, error): (f64, f64)| Cell::estimate(mean, error, 4);
    row(FLOOR, &|c| estimate(c.floor(WHOLE)));
    row("the same, half of the steps", &|c| estimate(c.floor(WHOLE - 1)));
    row("the same, a quarter", &|c| estimate(c.floor(WHOLE - 2)));
    row("median of the chain from the truth", &|c| estimate(c.mean(|o| o.error[WHOLE])));
    let mut others: Vec<&str> = Vec::new();
    for method in columns.iter().flat_map(|c| &c.others) {
        if !others.contains(&method.name.as_str()) {
            others.push(&method.name);
        }
    }
    let of = |c: &Measured, name: &str, number: &dyn Fn(&Method) -> (f64, f64)| {
        c.others.iter().find(|m| m.name == name).map_or(Cell::NotRun, |m| estimate(number(m)))
    };
    for name in &others {
        row(name, &|c| of(c, name, &|m| mean(m.errors.iter().copied())));
    }
    row("the paper's best", &|c| Cell::number(c.papers_best(), 4));
    for name in &others {
        row(&format!("{name}, above the floor"), &|c| of(c, name, &|m| c.above(m)));
    }
    for name in others.iter().filter(|name| !CLASSICAL.contains(name)) {
        for k in COMPONENTS {
            let among =
                if k.start() == k.end() { k.start().to_string() } else { format!("{} to {}", k.start(), k.end()) };
            row(&format!("{name}, above the floor, q of {among} components"), &|c| {
                if c.count(&k) < 2 { Cell::Empty } else { of(c, name, &|m| c.above_among(m, &k)) }
            });
        }
    }
    row("effective draws of a chain", &|c| Cell::number(c.effective(), 0));
    table
}

/// Errors against the length of the chains, a panel for each dimension.
fn figure(columns: &[Measured], steps: usize) -> Figure {
    let mut figure = Figure::new("How far is the floor").with_columns(2);
    for c in columns {
        let mut panel =
            Panel::new(format!("d = {}", c.dim), Axis::log("steps of the chain"), Axis::linear("mean absolute error"));
        let at = |part: usize| (steps / PARTS[part]) as f64;
        let points = |of: &dyn Fn(&Oracle, usize) -> f64| -> Vec<(f64, f64)> {
            (0..PARTS.len()).map(|k| (at(k), c.mean(|o| of(o, k)).0)).collect()
        };
        panel = panel
            .with_series(Series::new(FLOOR, points(&|o, k| o.spread[k])))
            .with_series(Series::new(FROM_PRIOR, points(&|o, k| o.expected_error(o.untold[k]))));
        // The classical estimates would leave no room for the others.
        let models = c.others.iter().filter(|m| !CLASSICAL.contains(&m.name.as_str()));
        for m in models {
            let level = mean(m.expected.iter().copied()).0;
            let line = Series::new(&m.name, [(at(0), level), (at(WHOLE), level)]).with_style(Style::Dashed);
            panel = panel.with_series(line);
        }
        figure = figure.with_panel(panel);
    }
    figure
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::labels;

    fn options(seed: u64) -> Options {
        Options {
            dims: vec![2],
            examples: 3,
            steps: FEWEST,
            size: None,
            seed,
            runs: PathBuf::from("none"),
            device: Device::Cpu,
        }
    }

    #[test]
    fn the_examples_are_those_that_the_table_of_divergences_judges_by() {
        let experiment = Experiment { seed: 4, ..find("paper/kl-d2").unwrap() }.validate().unwrap();
        let Task::Kl(task) = &experiment.task else { panic!("not of divergences") };
        let own = Examples::draw(task, &options(4), 0, BATCH);
        assert_eq!(own.drawn.labels, labels(&experiment, Split::Test, BATCH).unwrap());
    }

    #[test]
    fn groups_by_components_make_up_the_whole() {
        let method = Measured::of(2, &Options { examples: 40, ..options(5) }, &mut |_| ()).unwrap().0;
        let gaussian = method.others.iter().find(|m| m.name == "gaussian").unwrap();
        let parts = COMPONENTS.map(|k| (method.count(&k) as f64, method.above_among(gaussian, &k).0));
        assert_eq!(parts.iter().map(|p| p.0).sum::<f64>(), 40.0);
        let sum: f64 = parts.iter().filter(|p| p.0 > 0.0).map(|(n, above)| n * above / 40.0).sum();
        assert!((sum - method.above(gaussian).0).abs() < 1e-12);
    }

    #[test]
    fn the_same_seed_gives_the_same_whatever_the_number_of_threads() {
        let found = |threads: usize, seed: u64| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| reproduce(&options(seed), &mut |_| ()).unwrap().json)
        };
        assert_eq!(found(1, 7), found(3, 7));
        assert_ne!(found(1, 7), found(1, 8));
    }

    #[test]
    fn chains_too_short_and_sets_too_small_are_refused() {
        let said = |options: Options| reproduce(&options, &mut |_| ()).err().expect("an error").to_string();
        assert!(said(Options { steps: 31, ..options(0) }).contains("31 steps"));
        assert!(said(Options { size: Some(3), ..options(0) }).contains("sets of 3 points"));
        assert!(said(Options { dims: vec![3], ..options(0) }).contains("3 dimensions"));
    }
}
