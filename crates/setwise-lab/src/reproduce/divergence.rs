//! Table 1: mean absolute errors of estimates of KL divergence.

use std::path::PathBuf;

use serde_json::json;

use setwise::Device;
use setwise::data::RawBatch;
use setwise::estimate::{Estimator, GaussianKl, Knn};
use setwise_report::{Cell, Goal, Table};

use super::paper::{KL_DIMS, KL_ERRORS};
use super::runs::{self, Schedule};
use super::{Reproduction, check_models, checked_dims, labels, points};
use crate::Result;
use crate::experiment::{Experiment, ValidExperiment, find};
use crate::run::{Evaluation, evaluate, for_held_out};
use crate::samplers::Split;

/// Methods that need no training.
const CLASSICAL: [&str; 3] = ["knn", "gaussian", "median"];

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rows of the table; empty for all.
    pub models: Vec<String>,
    /// Columns of the table.
    pub dims: Vec<usize>,
    /// Fresh examples for each number.
    pub examples: usize,
    /// Their seed.
    pub seed: u64,
    /// The folder of finished runs.
    pub runs: PathBuf,
    /// The device of their models.
    pub device: Device,
}

/// All rows: the paper's, the Gaussian fit and the median label.
pub fn known_models() -> impl Iterator<Item = &'static str> {
    KL_ERRORS.iter().map(|row| row.model).chain(["gaussian", "median"])
}

/// Measures the table. `progress` receives the name of each measurement.
pub fn reproduce(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Reproduction> {
    check_models(&options.models, known_models())?;
    let dims = checked_dims(&options.dims, &KL_DIMS)?;
    let selected = |model: &str| options.models.is_empty() || options.models.iter().any(|m| m == model);
    let models: Vec<&str> = known_models().filter(|m| selected(m)).collect();
    let (classical, trained): (Vec<&str>, Vec<&str>) = models.iter().partition(|m| CLASSICAL.contains(m));
    let mut measured: Vec<MethodErrors> = Vec::new();
    let mut notes = Vec::new();
    for &dim in &dims {
        let paper = find(&format!("paper/kl-d{dim}"))?;
        let experiment = Experiment { seed: options.seed, ..paper.clone() }.validate()?;
        if !classical.is_empty() {
            progress(&format!("d = {dim}: {}", classical.join(", ")));
        }
        measured.extend(measure_classical(&experiment, &classical, options.examples)?);
        let runs = if trained.is_empty() { Vec::new() } else { runs::finished(&options.runs, &experiment.task)? };
        for run in runs {
            let Some(model) = trained.iter().find(|m| **m == run.experiment.preset()) else { continue };
            let schedule = Schedule::of(&run.experiment, &paper);
            progress(&format!("d = {dim}: {}", run.folder.path().display()));
            let mut network = run.model(&options.device)?;
            let trained = run.describe(&network);
            notes.push(format!("d = {dim}, {model}: {trained}"));
            let error = evaluate(&mut network, &run.with_seed(options.seed)?, options.examples)?;
            let (errors, trained) = (vec![error], vec![trained]);
            let errors_of_run =
                MethodErrors { model: (*model).to_owned(), dim, schedule: Some(schedule), errors, trained };
            match measured.iter_mut().find(|f| f.key() == errors_of_run.key()) {
                Some(others) => others.extend(errors_of_run),
                None => measured.push(errors_of_run),
            }
        }
    }
    let rows = models.iter().flat_map(|&model| match CLASSICAL.contains(&model) {
        true => vec![(model, None)],
        false => Schedule::ALL.map(|s| (model, Some(s))).to_vec(),
    });
    let (table, json) = tabulate(rows, &dims, &measured);
    Ok(Reproduction { name: "kl", table, json, figures: Vec::new(), notes })
}

/// The table and its JSON. Every model has a row for the paper's schedule, and rows for other schedules with runs.
fn tabulate<'a>(
    rows: impl Iterator<Item = (&'a str, Option<Schedule>)>,
    dims: &[usize],
    measured: &[MethodErrors],
) -> (Table, serde_json::Value) {
    let columns = dims.iter().flat_map(|d| [format!("d = {d}, paper"), format!("d = {d}")]);
    let columns = ["model", "schedule"].map(str::to_owned).into_iter().chain(columns);
    let mut table = Table::new("Mean absolute error of KL divergence", columns);
    for dim in dims {
        table = table.with_best(&format!("d = {dim}"), Goal::Lowest);
    }
    let mut json = Vec::new();
    for (model, schedule) in rows {
        let of_row: Vec<Option<&MethodErrors>> =
            dims.iter().map(|&dim| measured.iter().find(|f| f.key() == (model, dim, schedule))).collect();
        if !matches!(schedule, None | Some(Schedule::Paper)) && of_row.iter().all(Option::is_none) {
            continue;
        }
        let published = KL_ERRORS.iter().find(|row| row.model == model);
        let name = schedule.map_or("", Schedule::name);
        let mut row: Vec<Cell> = vec![model.into(), name.into()];
        for (dim, measured) in dims.iter().zip(of_row) {
            let column = KL_DIMS.iter().position(|d| d == dim).expect("a checked dimension");
            let paper = published.map(|p| p.errors[column]);
            row.push(paper.map_or("".into(), |p| Cell::number(p, 4)));
            row.push(measured.map_or(Cell::NotRun, MethodErrors::cell));
            json.push(json!({
                "model": model, "schedule": name, "dim": dim, "paper": paper,
                "mean_absolute_error": measured.map(MethodErrors::mean),
                "standard_error": measured.map(MethodErrors::standard_error),
                "runs": measured.map_or(&[][..], |f| &f.errors), "trained": measured.map_or(&[][..], |f| &f.trained),
            }));
        }
        table.push(row);
    }
    (table, json.into())
}

/// Errors of one model in one dimension, one for each run.
struct MethodErrors {
    model: String,
    dim: usize,
    /// The training schedule; none for methods without training.
    schedule: Option<Schedule>,
    errors: Vec<Evaluation>,
    /// Descriptions of the runs.
    trained: Vec<String>,
}

impl MethodErrors {
    /// The cell of the table.
    fn key(&self) -> (&str, usize, Option<Schedule>) {
        (&self.model, self.dim, self.schedule)
    }

    fn extend(&mut self, other: MethodErrors) {
        self.errors.extend(other.errors);
        self.trained.extend(other.trained);
    }

    fn mean(&self) -> f64 {
        self.errors.iter().map(|e| e.mean_absolute_error).sum::<f64>() / self.errors.len() as f64
    }

    /// The standard error over examples, and over runs if there are several.
    fn standard_error(&self) -> f64 {
        let (mean, n) = (self.mean(), self.errors.len() as f64);
        let within = self.errors.iter().map(|e| e.standard_error.powi(2)).sum::<f64>() / n;
        let between = self.errors.iter().map(|e| (e.mean_absolute_error - mean).powi(2)).sum::<f64>();
        let between = if n > 1.0 { between / (n - 1.0) / n } else { 0.0 };
        (within + between).sqrt()
    }

    fn cell(&self) -> Cell {
        Cell::estimate(self.mean(), self.standard_error(), 4)
    }
}

/// Errors of the classical estimators. Threads work on different examples.
fn measure_classical(experiment: &ValidExperiment, models: &[&str], examples: usize) -> Result<Vec<MethodErrors>> {
    if models.is_empty() {
        return Ok(Vec::new());
    }
    let median = match models.contains(&"median") {
        true => median_label(experiment, examples)?,
        false => 0.0,
    };
    let names: Vec<String> = models.iter().map(|m| (*m).to_owned()).collect();
    let methods = names.clone();
    let mut pairs = vec![Vec::new(); names.len()];
    for_held_out(
        experiment,
        Split::Test,
        examples,
        move |raw| estimate_all(&methods, median, &raw),
        |batch| {
            for (all, pairs_of_batch) in pairs.iter_mut().zip(batch?) {
                all.extend(pairs_of_batch);
            }
            Ok(())
        },
    )?;
    let dim = experiment.task.dim();
    let measured =
        |(model, p)| MethodErrors { model, dim, schedule: None, errors: vec![Evaluation::of(p)], trained: Vec::new() };
    Ok(names.into_iter().zip(pairs).map(measured).collect())
}

/// Estimates and labels of a batch, by method.
fn estimate_all(methods: &[String], median: f64, raw: &RawBatch) -> Result<Vec<Vec<(f64, f64)>>> {
    // As in the published code: k = 1, and 1e-5 added to each distance.
    let knn = Knn::new(1).with_offset(1e-5);
    let estimate = |method: &str, i: usize| {
        let (x, y) = (points(raw, 0, i), points(raw, 1, i));
        match method {
            "knn" => knn.value(x, y),
            "gaussian" => GaussianKl::plug_in().value(x, y),
            _ => Ok(median),
        }
    };
    let pairs = |method: &String| {
        raw.labels.iter().enumerate().map(|(i, &label)| Ok((estimate(method, i)?, label))).collect::<Result<Vec<_>>>()
    };
    methods.iter().map(pairs).collect()
}

/// The median label of the validation examples.
fn median_label(experiment: &ValidExperiment, examples: usize) -> Result<f64> {
    let mut labels = labels(experiment, Split::Validation, examples)?;
    labels.sort_by(f64::total_cmp);
    Ok(labels[labels.len() / 2])
}
