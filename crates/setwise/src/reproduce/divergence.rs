//! Table 1: mean absolute errors of estimates of KL divergence.

use std::path::PathBuf;

use serde_json::json;

use super::paper::{KL_DIMS, KL_ERRORS};
use super::{Reproduction, check_models, checked_dims, labels, points, runs};
use crate::Result;
use crate::data::{Drawn, Stream};
use crate::estimate::{Estimator, GaussianKl, Knn};
use crate::experiment::{ValidExperiment, find};
use crate::report::{Cell, Goal, Table};
use crate::train::{Evaluation, evaluate, for_held_out};

/// Methods that need no training.
const CLASSICAL: [&str; 3] = ["knn", "gaussian", "median"];

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Rows of the table; none means all.
    pub models: Vec<String>,
    /// Columns of the table.
    pub dims: Vec<usize>,
    /// Fresh examples for each number.
    pub examples: usize,
    /// Their seed.
    pub seed: u64,
    /// Where finished runs are.
    pub runs: PathBuf,
}

/// All rows: those of the paper, and two that belong beside them.
pub fn known_models() -> impl Iterator<Item = &'static str> {
    KL_ERRORS.iter().map(|row| row.model).chain(["gaussian", "median"])
}

/// Measures the table. `progress` hears what is being measured.
pub fn reproduce(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Reproduction> {
    check_models(&options.models, known_models())?;
    let dims = checked_dims(&options.dims, &KL_DIMS)?;
    let wanted = |model: &str| options.models.is_empty() || options.models.iter().any(|m| m == model);
    let models: Vec<&str> = known_models().filter(|m| wanted(m)).collect();
    let columns = dims.iter().flat_map(|d| [format!("d = {d}, paper"), format!("d = {d}")]);
    let mut table = Table::new("Mean absolute error of KL divergence", ["model".to_owned()].into_iter().chain(columns));
    for dim in &dims {
        table = table.with_best(&format!("d = {dim}"), Goal::Lowest);
    }
    let mut cells: Vec<Vec<Found>> = Vec::new();
    let mut notes = Vec::new();
    for &dim in &dims {
        let mut experiment = find(&format!("paper/kl-d{dim}"))?;
        experiment.seed = options.seed;
        let experiment = experiment.validate()?;
        let classical: Vec<&str> = models.iter().copied().filter(|m| CLASSICAL.contains(m)).collect();
        if !classical.is_empty() {
            progress(&format!("d = {dim}: {}", classical.join(", ")));
        }
        let mut found = measure_classical(&experiment, &classical, options.examples)?;
        let trained: Vec<&str> = models.iter().copied().filter(|m| !CLASSICAL.contains(m)).collect();
        let mut finished = match trained.is_empty() {
            true => Vec::new(),
            false => runs::finished(&options.runs, &experiment.task)?,
        };
        for model in &trained {
            let mut of_model = Found { model: (*model).to_owned(), errors: Vec::new(), trained: Vec::new() };
            for run in finished.iter_mut().filter(|r| r.experiment.preset() == *model) {
                progress(&format!("d = {dim}: {}", run.folder.path().display()));
                notes.push(format!("d = {dim}, {model}: {}", run.describe()));
                of_model.trained.push(run.describe());
                of_model.errors.push(evaluate(&mut run.model, &experiment, options.examples)?);
            }
            found.push(of_model);
        }
        cells.push(found);
    }
    let mut json = Vec::new();
    for model in &models {
        let paper = KL_ERRORS.iter().find(|row| row.model == *model);
        let mut row: Vec<Cell> = vec![(*model).into()];
        for (dim, found) in dims.iter().zip(&cells) {
            let place = KL_DIMS.iter().position(|d| d == dim).expect("a checked dimension");
            let paper = paper.map(|p| p.errors[place]);
            let found = found.iter().find(|f| f.model == *model).expect("every model was looked for");
            row.push(paper.map_or("".into(), |p| Cell::number(p, 4)));
            row.push(found.cell());
            json.push(json!({
                "model": model, "dim": dim, "paper": paper, "mean_absolute_error": found.mean(),
                "standard_error": found.standard_error(), "runs": found.errors, "trained": found.trained,
            }));
        }
        table.push(row);
    }
    Ok(Reproduction { name: "kl", table, json: json.into(), figures: Vec::new(), notes })
}

/// Errors of one model in one dimension, one for each run.
struct Found {
    model: String,
    errors: Vec<Evaluation>,
    /// What each run took.
    trained: Vec<String>,
}

impl Found {
    fn mean(&self) -> Option<f64> {
        let n = self.errors.len();
        (n > 0).then(|| self.errors.iter().map(|e| e.mean_absolute_error).sum::<f64>() / n as f64)
    }

    /// From the examples, and from the differences between runs where there are several.
    fn standard_error(&self) -> Option<f64> {
        let (mean, n) = (self.mean()?, self.errors.len() as f64);
        let within = self.errors.iter().map(|e| e.standard_error.powi(2)).sum::<f64>() / n;
        let between = self.errors.iter().map(|e| (e.mean_absolute_error - mean).powi(2)).sum::<f64>();
        let between = if n > 1.0 { between / (n - 1.0) / n } else { 0.0 };
        Some((within + between).sqrt())
    }

    fn cell(&self) -> Cell {
        match (self.mean(), self.standard_error()) {
            (Some(mean), Some(error)) => Cell::estimate(mean, error, 4),
            _ => Cell::NotRun,
        }
    }
}

/// The classical estimators on one set of examples, each thread working on examples of its own.
fn measure_classical(experiment: &ValidExperiment, models: &[&str], examples: usize) -> Result<Vec<Found>> {
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
        Stream::Test,
        examples,
        move |drawn| estimate_all(&methods, median, &drawn),
        |batch| {
            for (all, some) in pairs.iter_mut().zip(batch?) {
                all.extend(some);
            }
            Ok(())
        },
    )?;
    let found = |(model, p)| Found { model, errors: vec![Evaluation::of(p)], trained: Vec::new() };
    Ok(names.into_iter().zip(pairs).map(found).collect())
}

/// Estimates and labels of a batch, by method.
fn estimate_all(methods: &[String], median: f64, drawn: &Drawn) -> Result<Vec<Vec<(f64, f64)>>> {
    // As in the published code: the nearest neighbour alone, and 1e-5 added to each distance.
    let knn = Knn::new(1).with_offset(1e-5);
    let estimate = |method: &str, i: usize| {
        let (x, y) = (points(drawn, 0, i), points(drawn, 1, i));
        match method {
            "knn" => knn.value(x, y),
            "gaussian" => GaussianKl.value(x, y),
            _ => Ok(median),
        }
    };
    let pairs = |method: &String| {
        drawn.labels.iter().enumerate().map(|(i, &label)| Ok((estimate(method, i)?, label))).collect::<Result<Vec<_>>>()
    };
    methods.iter().map(pairs).collect()
}

/// The median label of examples that are not those it is judged by.
fn median_label(experiment: &ValidExperiment, examples: usize) -> Result<f64> {
    let mut labels = labels(experiment, Stream::Validation, examples)?;
    labels.sort_by(f64::total_cmp);
    Ok(labels[labels.len() / 2])
}
