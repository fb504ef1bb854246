//! The figure of absolute errors against correlation, for estimates of mutual information.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use setwise::Device;
use setwise::data::RawBatch;
use setwise::estimate::{Estimator, GaussianMi, Ksg, Mine, Norm};
use setwise::models::PRESETS;
use setwise_report::{Axis, Cell, Figure, Panel, Series, Style, Table};

use super::{Reproduction, check_models, checked_dims, points, runs};
use crate::Result;
use crate::experiment::{ValidExperiment, find};
use crate::run::{Evaluation, evaluate, for_held_out};
use crate::samplers::{Dependence, Split};

/// Correlations at which errors are measured.
pub const RHO: [f64; 13] = [-0.99, -0.9, -0.7, -0.5, -0.3, -0.1, 0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99];
/// Dimensions of the paper's figure.
pub const DIMS: [usize; 3] = [2, 10, 20];
/// Methods without training ahead.
const CLASSICAL: [&str; 3] = ["ksg", "gaussian", "mine"];

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Options {
    /// Lines of the figure; empty for all.
    pub models: Vec<String>,
    /// Panels of the figure.
    pub dims: Vec<usize>,
    /// Fresh examples for each number.
    pub examples: usize,
    /// Fresh examples for MINE, which trains a network on each.
    pub mine_examples: usize,
    /// Their seed.
    pub seed: u64,
    /// The folder of finished runs.
    pub runs: PathBuf,
    /// The device of their models.
    pub device: Device,
}

/// All possible lines: the baselines, the constant zero, and every preset.
pub fn known_models() -> impl Iterator<Item = &'static str> {
    CLASSICAL.into_iter().chain(["zero"]).chain(PRESETS.iter().map(|p| p.name))
}

/// Measures the figure. `progress` receives the name of each measurement.
pub fn reproduce(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Reproduction> {
    check_models(&options.models, known_models())?;
    let dims = checked_dims(&options.dims, &DIMS)?;
    let selected = |model: &str| options.models.is_empty() || options.models.iter().any(|m| m == model);
    let columns = ["model", "d"].map(str::to_owned).into_iter().chain(RHO.map(|r| format!("ρ = {r}")));
    let mut table = Table::new("Mean absolute error of mutual information", columns);
    let mut figure = Figure::new("Mutual information of correlated Gaussians");
    let (mut notes, mut json) = (Vec::new(), Vec::new());
    for &dim in &dims {
        let mut experiment = find(&format!("paper/mi-d{dim}"))?;
        experiment.seed = options.seed;
        let experiment = experiment.validate()?;
        let mut panel = Panel::new(format!("d = {dim}"), Axis::linear("ρ"), Axis::linear("mean absolute error"));
        let mut lines = Vec::new();
        let is_preset = |model: &str| PRESETS.iter().any(|p| p.name == model);
        let finished = match known_models().any(|m| selected(m) && is_preset(m)) {
            true => runs::finished(&options.runs, &experiment.task)?,
            false => Vec::new(),
        };
        for model in known_models().filter(|m| selected(m)) {
            if is_preset(model) {
                let (mut errors, mut described) = (Vec::new(), Vec::new());
                for run in finished.iter().filter(|r| r.experiment.preset() == model) {
                    progress(&format!("d = {dim}: {}", run.folder.path().display()));
                    let mut network = run.model(&options.device)?;
                    let trained = run.describe(&network);
                    notes.push(format!("d = {dim}, {model}: {trained}"));
                    described.push(trained);
                    let at = |rho| evaluate(&mut network, &fixed(&experiment, rho), options.examples);
                    errors.push(RHO.into_iter().map(at).collect::<Result<Vec<_>>>()?);
                }
                lines.push(Line { model, runs: errors, trained: described });
            } else {
                progress(&format!("d = {dim}: {model}"));
                let examples = if model == "mine" { options.mine_examples } else { options.examples };
                let at = |rho| measure(&fixed(&experiment, rho), model, examples);
                let errors = vec![RHO.into_iter().map(at).collect::<Result<Vec<_>>>()?];
                lines.push(Line { model, runs: errors, trained: Vec::new() });
            }
        }
        for Line { model, runs, trained } in lines {
            let mean = |i: usize| {
                let n = runs.len() as f64;
                (n > 0.0).then(|| runs.iter().map(|r| r[i].mean_absolute_error).sum::<f64>() / n)
            };
            let means: Vec<Option<f64>> = (0..RHO.len()).map(mean).collect();
            table.push(
                [model.into(), Cell::number(dim as f64, 0)]
                    .into_iter()
                    .chain(means.iter().map(|m| m.map_or(Cell::NotRun, |m| Cell::number(m, 3)))),
            );
            json.push(json!({
                "model": model, "dim": dim, "rho": RHO, "mean_absolute_error": means, "runs": runs, "trained": trained,
            }));
            let points: Vec<(f64, f64)> = RHO.into_iter().zip(means.iter().flatten().copied()).collect();
            // The errors of the constant zero would dominate the scale.
            if !points.is_empty() && model != "zero" {
                let classical = CLASSICAL.contains(&model);
                let style = if classical { Style::Dashed } else { Style::LineMarkers };
                panel = panel.with_series(Series::new(model, points).with_style(style));
            }
        }
        figure = figure.with_panel(panel);
    }
    let figures = vec![("mi".to_owned(), figure)];
    Ok(Reproduction { name: "mi", table, json: json.into(), figures, notes })
}

/// A line of a panel.
struct Line {
    model: &'static str,
    /// Errors at each correlation, by run.
    runs: Vec<Vec<Evaluation>>,
    /// Descriptions of the runs.
    trained: Vec<String>,
}

/// The experiment with a fixed correlation.
fn fixed(experiment: &ValidExperiment, rho: f64) -> ValidExperiment {
    experiment.with_sampler(Arc::new(Dependence { rho: [rho, rho] }))
}

/// The error of a method without training ahead.
fn measure(experiment: &ValidExperiment, method: &'static str, examples: usize) -> Result<Evaluation> {
    let mut all = Vec::new();
    for_held_out(
        experiment,
        Split::Test,
        examples,
        move |raw| estimate_all(method, &raw),
        |pairs| {
            all.extend(pairs?);
            Ok(())
        },
    )?;
    Ok(Evaluation::of(all))
}

/// Estimates and labels of a batch.
fn estimate_all(method: &str, raw: &RawBatch) -> Result<Vec<(f64, f64)>> {
    let estimate = |i: usize| {
        let (x, y) = (points(raw, 0, i), points(raw, 1, i));
        match method {
            // As in the published code: k = 1, Euclidean norms within X and Y, unscaled columns.
            "ksg" => Ksg::new(1).with_norm(Norm::Euclidean).unscaled().value(x, y),
            "gaussian" => GaussianMi::default().value(x, y),
            "mine" => Mine::default().value(x, y),
            _ => Ok(0.0),
        }
    };
    raw.labels.iter().enumerate().map(|(i, &label)| Ok((estimate(i)?, label))).collect()
}
