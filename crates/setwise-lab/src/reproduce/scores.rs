//! Tables 2, 3 and 4: accuracies of counting, alignment and distinguishing.

use std::path::PathBuf;

use serde_json::json;

use setwise::Device;
use setwise_report::{Cell, Goal, Table};

use super::paper::{PaperScores, SCORES};
use super::runs::{self, Schedule};
use super::{Reproduction, check_models, labels};
use crate::Result;
use crate::datasets::DataFolder;
use crate::experiment::{Experiment, ValidExperiment, find};
use crate::run::{Evaluation, evaluate};
use crate::samplers::Split;

/// One of the paper's tables of accuracies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Table 2: the number of characters common to two sets.
    Counting,
    /// Table 3: images and captions, words and translations.
    Alignment,
    /// Table 4: samples of mixtures, and images, distinguished.
    Distinguish,
}

/// A column of a table: an experiment and the paper's numbers.
struct Column {
    title: &'static str,
    experiment: &'static str,
    /// Accuracy, and mean absolute error if the table has it.
    paper: fn(&PaperScores) -> (f64, Option<f64>),
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Which::Counting => "counting",
            Which::Alignment => "alignment",
            Which::Distinguish => "distinguish",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Which::Counting => "Accuracy and mean absolute error of counts",
            Which::Alignment => "Accuracy of alignment",
            Which::Distinguish => "Accuracy of distinguishing",
        }
    }

    fn columns(self) -> [Column; 2] {
        let column = |title, experiment, paper| Column { title, experiment, paper };
        match self {
            Which::Counting => [
                column("Omniglot", "paper/counting-omniglot", |s| (s.counting[0][0], Some(s.counting[0][1]))),
                column("MNIST", "paper/counting-mnist", |s| (s.counting[1][0], Some(s.counting[1][1]))),
            ],
            Which::Alignment => [
                column("captions", "paper/align-captions", |s| (s.alignment[0], None)),
                column("words", "paper/align-words", |s| (s.alignment[1], None)),
            ],
            Which::Distinguish => [
                column("mixtures", "paper/distinguish-synthetic", |s| (s.distinguishing[0], None)),
                column("images", "paper/distinguish-images", |s| (s.distinguishing[1], None)),
            ],
        }
    }

    /// The difference of our data from the paper's.
    fn remark(self) -> Option<&'static str> {
        match self {
            Which::Counting => None,
            Which::Alignment => Some(
                "captions: the paper uses MS-COCO with ResNet-101 and BERT, we use Flickr8k with EfficientNet-Lite0 \
                 and MiniLM; words: no English or French word of the test split is in the training split",
            ),
            Which::Distinguish => {
                Some("images: the paper uses Meta-Dataset, we use nine data sets with classes in the test split only")
            }
        }
    }
}

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rows of the table; empty for all.
    pub models: Vec<String>,
    /// Fresh examples for each number.
    pub examples: usize,
    /// Their seed.
    pub seed: u64,
    /// The folder of finished runs.
    pub runs: PathBuf,
    /// The folder of data sets.
    pub data: DataFolder,
    /// The device of the models.
    pub device: Device,
}

/// An additional row: the mean label as a constant prediction.
const CONSTANT: &str = "constant";

/// All rows of a table.
pub fn known_models(which: Which) -> impl Iterator<Item = &'static str> {
    SCORES.iter().map(|s| s.model).chain((which == Which::Counting).then_some(CONSTANT))
}

/// The runs of one model and schedule in one column.
#[derive(Default)]
struct RunScores {
    scores: Vec<Evaluation>,
    trained: Vec<String>,
}

/// Measures a table. `progress` receives the name of each measurement.
pub fn reproduce(which: Which, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Reproduction> {
    check_models(&options.models, known_models(which))?;
    let selected = |model: &str| options.models.is_empty() || options.models.iter().any(|m| m == model);
    let rows: Vec<(&str, Schedule)> = known_models(which)
        .filter(|m| selected(m))
        .flat_map(|m| [(m, Schedule::Paper), (m, Schedule::OURS)])
        .filter(|row| *row != (CONSTANT, Schedule::Paper))
        .collect();
    let mut notes: Vec<String> = which.remark().map(str::to_owned).into_iter().collect();
    let mut measured: Vec<[RunScores; 2]> = rows.iter().map(|_| Default::default()).collect();
    for (column_index, column) in which.columns().iter().enumerate() {
        let paper = find(column.experiment)?;
        let mut tasks: Vec<ValidExperiment> = Vec::new();
        for run in runs::finished_where(&options.runs, |task| task.same_examples(&paper.task))? {
            let row = (run.experiment.preset().to_owned(), Schedule::of(&run.experiment, &paper));
            let Some(row) = rows.iter().position(|r| (r.0, r.1) == (row.0.as_str(), row.1)) else { continue };
            progress(&format!("{}: {}", column.title, run.folder.path().display()));
            let experiment = test_of(&run.experiment, options, &mut tasks)?;
            let mut model = run.model(&options.device)?;
            let trained = run.describe(&model);
            measured[row][column_index].scores.push(evaluate(&mut model, experiment, options.examples)?);
            notes.push(format!("{}, {} ({}): {trained}", column.title, rows[row].0, rows[row].1.name()));
            measured[row][column_index].trained.push(trained);
        }
        if let Some(row) = rows.iter().position(|r| r.0 == CONSTANT) {
            progress(&format!("{}: {CONSTANT}", column.title));
            measured[row][column_index].scores.push(constant(test_of(&paper, options, &mut tasks)?, options.examples)?);
        }
    }
    // Every model has a row for the paper's schedule, and a row for ours if it has runs.
    let shown = |i: &usize| rows[*i].1 == Schedule::Paper || measured[*i].iter().any(|f| !f.scores.is_empty());
    let shown: Vec<usize> = (0..rows.len()).filter(shown).collect();
    let (table, json) = tabulate(which, &rows, &measured, &shown);
    notes.push("± is the standard deviation over runs with different seeds".to_owned());
    Ok(Reproduction { name: which.name(), table, json, figures: Vec::new(), notes })
}

/// The experiment with the test examples of a run. Runs of one task share it and its data set.
fn test_of<'a>(
    run: &Experiment,
    options: &Options,
    tasks: &'a mut Vec<ValidExperiment>,
) -> Result<&'a ValidExperiment> {
    let index = match tasks.iter().position(|t: &ValidExperiment| t.task == run.task) {
        Some(index) => index,
        None => {
            let experiment = Experiment { seed: options.seed, ..run.clone() };
            tasks.push(experiment.validate()?.with_data(&options.data)?);
            tasks.len() - 1
        }
    };
    Ok(&tasks[index])
}

/// The error of a constant prediction: the mean label of the validation examples.
fn constant(experiment: &ValidExperiment, examples: usize) -> Result<Evaluation> {
    let mean = labels(experiment, Split::Validation, examples)?.iter().sum::<f64>() / examples as f64;
    let test_labels = labels(experiment, Split::Test, examples)?;
    Ok(Evaluation::judged(experiment.task.metric(), test_labels.into_iter().map(|l| (mean, l))))
}

/// Mean and standard deviation of a number over runs.
fn over_runs(scores: &[Evaluation], number: impl Fn(&Evaluation) -> Option<f64>) -> Option<(f64, Option<f64>)> {
    let values: Vec<f64> = scores.iter().filter_map(number).collect();
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let spread = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (n > 0.0).then(|| (mean, (n > 1.0).then(|| spread.sqrt())))
}

fn cell(measured: Option<(f64, Option<f64>)>) -> Cell {
    match measured {
        None => Cell::NotRun,
        Some((mean, None)) => Cell::number(mean, 4),
        Some((mean, Some(sd))) => Cell::estimate(mean, sd, 4),
    }
}

fn tabulate(
    which: Which,
    rows: &[(&str, Schedule)],
    measured: &[[RunScores; 2]],
    shown: &[usize],
) -> (Table, serde_json::Value) {
    let counts = which == Which::Counting;
    let columns = which.columns();
    let mut names = vec!["model".to_owned(), "schedule".to_owned()];
    for c in &columns {
        names.extend([format!("{}, paper", c.title), c.title.to_owned()]);
        if counts {
            names.extend([
                format!("{} strict", c.title),
                format!("{} error, paper", c.title),
                format!("{} error", c.title),
            ]);
        }
    }
    let mut table = Table::new(which.title(), names);
    for c in &columns {
        table = table.with_best(c.title, Goal::Highest);
        if counts {
            table = table
                .with_best(&format!("{} strict", c.title), Goal::Highest)
                .with_best(&format!("{} error", c.title), Goal::Lowest);
        }
    }
    let mut json = Vec::new();
    for &row in shown {
        let (model, schedule) = rows[row];
        let published = SCORES.iter().find(|s| s.model == model);
        let mut cells: Vec<Cell> = vec![model.into(), schedule.name().into()];
        for (column, measured) in columns.iter().zip(&measured[row]) {
            let paper = published.map(column.paper);
            let number = |value: Option<f64>| value.map_or("".into(), |v| Cell::number(v, 4));
            let accuracy = over_runs(&measured.scores, |e| e.accuracy);
            let strict = over_runs(&measured.scores, |e| e.strict_accuracy);
            let error = over_runs(&measured.scores, |e| Some(e.mean_absolute_error));
            cells.extend([number(paper.map(|p| p.0)), cell(accuracy)]);
            if counts {
                cells.extend([cell(strict), number(paper.and_then(|p| p.1)), cell(error)]);
            }
            let sd = |measured: Option<(f64, Option<f64>)>| measured.and_then(|f| f.1);
            let mean = |measured: Option<(f64, Option<f64>)>| measured.map(|f| f.0);
            json.push(json!({
                "model": model, "schedule": schedule.name(), "column": column.title,
                "paper": { "accuracy": paper.map(|p| p.0), "mean_absolute_error": paper.and_then(|p| p.1) },
                "accuracy": mean(accuracy), "accuracy_sd": sd(accuracy),
                "strict_accuracy": mean(strict),
                "mean_absolute_error": mean(error), "mean_absolute_error_sd": sd(error),
                "runs": measured.scores, "trained": measured.trained,
            }));
        }
        table.push(cells);
    }
    (table, json.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Metric;

    #[test]
    fn every_column_has_an_experiment_with_its_metric() {
        for which in [Which::Counting, Which::Alignment, Which::Distinguish] {
            for column in which.columns() {
                let metric = find(column.experiment).unwrap().task.metric();
                assert_eq!(metric == Metric::Count, which == Which::Counting, "{}", column.title);
                let ours = find(&column.experiment.replace("paper/", "ours/")).unwrap();
                assert!(ours.task.same_examples(&find(column.experiment).unwrap().task), "{}", column.experiment);
            }
        }
    }

    #[test]
    fn the_papers_schedule_allows_any_seed_and_preset_but_no_other_steps() {
        let paper = find("paper/align-words").unwrap();
        let mut run = paper.clone();
        (run.seed, _) = (7, run.set_preset("pine"));
        assert_eq!(Schedule::of(&run, &paper), Schedule::Paper);
        run.training.steps += 1;
        assert_eq!(Schedule::of(&run, &paper), Schedule::OURS);
        let of = |name: &str, preset: &str| {
            let mut run = find(name).unwrap();
            run.set_preset(preset);
            Schedule::of(&run, &find("paper/kl-d2").unwrap())
        };
        let elements = Schedule::Ours { elements: true, mixture_features: false };
        assert_eq!(of("ours/kl-elements-d2", "multi-set-transformer"), elements);
        assert_eq!(
            of("ours/kl-mixture-features-d2", "multi-set-transformer"),
            Schedule::Ours { elements: true, mixture_features: true }
        );
        // Dimension-equivariant models ignore appended columns.
        assert_eq!(of("ours/kl-mixture-features-d2", "multi-set-transformer-equi"), elements);
    }

    #[test]
    fn several_runs_have_a_mean_and_a_standard_deviation() {
        let run = |accuracy| Evaluation { accuracy: Some(accuracy), ..Evaluation::of([(0.0, 0.0)]) };
        let measured = over_runs(&[run(0.5), run(0.7), run(0.9)], |e| e.accuracy).unwrap();
        assert!((measured.0 - 0.7).abs() < 1e-12 && (measured.1.unwrap() - 0.2).abs() < 1e-12);
        assert_eq!(over_runs(&[run(0.5)], |e| e.accuracy), Some((0.5, None)));
        assert_eq!(over_runs(&[], |e| e.accuracy), None);
    }
}
