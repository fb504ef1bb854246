//! The paper's tables and figures, our numbers beside the paper's.
//!
//! * [`divergence`]: Table 1, errors of estimates of KL divergence.
//! * [`lower_bounds`]: bounds of the smallest possible error in Table 1.
//! * [`dependence`]: the figure of errors of mutual information against correlation.
//! * [`scores`]: Tables 2, 3 and 4, accuracies of counting, alignment and distinguishing.
//! * [`estimator`]: the pretrained estimator on held-out families of distributions.
//! * [`power`]: power and level of two-sample tests.
//! * [`scaling`]: Table 5, time against set size and width.
//!
//! Models come from the folders of finished runs. Cells without a run are marked `not run`.

pub mod dependence;
pub mod divergence;
pub mod estimator;
mod held_out;
pub mod lower_bounds;
mod paper;
mod posterior;
pub mod power;
mod runs;
pub mod scaling;
pub mod scores;

use setwise::data::RawBatch;
use setwise::estimate::Points;
use setwise_report::{Figure, Table};

use crate::Result;
use crate::experiment::ValidExperiment;
use crate::run::for_held_out;
use crate::samplers::Split;

pub use held_out::{Family, HeldOutPair};
pub use paper::{KL_DIMS, KL_ERRORS, PaperErrors, PaperScores, SCORES};

/// The result of a reproduction.
pub struct Reproduction {
    /// Stem of its file names.
    pub name: &'static str,
    /// The numbers.
    pub table: Table,
    /// Every number with its runs.
    pub json: serde_json::Value,
    /// Figures, each with the stem of its file names.
    pub figures: Vec<(String, Figure)>,
    /// Remarks on single numbers.
    pub notes: Vec<String>,
}

/// Checks the names of requested models. An empty list requests all.
fn check_models(requested: &[String], known: impl Iterator<Item = &'static str>) -> Result<()> {
    let known: Vec<&str> = known.collect();
    match requested.iter().find(|m| !known.contains(&m.as_str())) {
        Some(name) => Err(setwise::Error::UnknownPreset { name: name.clone(), known: known.join(", ") }.into()),
        None => Ok(()),
    }
}

/// The requested dimensions, each once and in the paper's order.
fn checked_dims(requested: &[usize], of_paper: &[usize]) -> Result<Vec<usize>> {
    match requested.iter().find(|d| !of_paper.contains(d)) {
        Some(dim) => {
            Err(setwise::Error::Sets(format!("the paper has nothing for {dim} dimensions; it has {of_paper:?}")).into())
        }
        None => Ok(of_paper.iter().copied().filter(|d| requested.contains(d)).collect()),
    }
}

/// The labels of the first examples of a split.
fn labels(experiment: &ValidExperiment, split: Split, examples: usize) -> Result<Vec<f64>> {
    let mut labels = Vec::with_capacity(examples);
    for_held_out(
        experiment,
        split,
        examples,
        |raw| raw.labels,
        |batch| {
            labels.extend(batch);
            Ok(())
        },
    )?;
    Ok(labels)
}

/// The points of one example's set.
fn points(raw: &RawBatch, set: usize, example: usize) -> Points<'_> {
    Points::new(raw.rows(set, example), raw.widths[set])
}
