//! The paper's tables and figures again, ours beside the paper's.
//!
//! * [`divergence`]: Table 1, errors of estimates of KL divergence.
//! * [`lower_bounds`]: how far Table 1 can be improved at all.
//! * [`dependence`]: the figure of errors against correlation for mutual information.
//! * [`scores`]: Tables 2, 3 and 4, accuracies of counting, aligning and telling apart.
//! * [`estimator`]: the pretrained estimator on families of distributions it never saw.
//! * [`scaling`]: Table 5, how time grows with the sizes of sets and their width.
//!
//! Models are taken from the folders of finished runs; what has not been run is said plainly.

pub mod dependence;
pub mod divergence;
pub mod estimator;
mod held_out;
pub mod lower_bounds;
mod paper;
mod posterior;
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

/// What a reproduction comes to.
pub struct Reproduction {
    /// A name for its files.
    pub name: &'static str,
    /// The numbers.
    pub table: Table,
    /// Every number with what it rests on.
    pub json: serde_json::Value,
    /// Pictures, each with a name for its files.
    pub figures: Vec<(String, Figure)>,
    /// What should be known about single numbers.
    pub notes: Vec<String>,
}

/// Checks the models that are asked for; none means all.
fn check_models(asked: &[String], known: impl Iterator<Item = &'static str>) -> Result<()> {
    let known: Vec<&str> = known.collect();
    match asked.iter().find(|m| !known.contains(&m.as_str())) {
        Some(name) => Err(setwise::Error::UnknownPreset { name: name.clone(), known: known.join(", ") }.into()),
        None => Ok(()),
    }
}

/// The dimensions that are asked for, each once and in the paper's order.
fn checked_dims(asked: &[usize], of_paper: &[usize]) -> Result<Vec<usize>> {
    match asked.iter().find(|d| !of_paper.contains(d)) {
        Some(dim) => {
            Err(setwise::Error::Sets(format!("the paper has nothing for {dim} dimensions; it has {of_paper:?}")).into())
        }
        None => Ok(of_paper.iter().copied().filter(|d| asked.contains(d)).collect()),
    }
}

/// The labels of a split's first examples.
fn labels(experiment: &ValidExperiment, split: Split, examples: usize) -> Result<Vec<f64>> {
    let mut labels = Vec::with_capacity(examples);
    for_held_out(
        experiment,
        split,
        examples,
        |drawn| drawn.labels,
        |some| {
            labels.extend(some);
            Ok(())
        },
    )?;
    Ok(labels)
}

/// The points of one example's set.
fn points(drawn: &RawBatch, set: usize, example: usize) -> Points<'_> {
    Points::new(drawn.rows(set, example), drawn.widths[set])
}
