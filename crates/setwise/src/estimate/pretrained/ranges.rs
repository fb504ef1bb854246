//! The ranges an estimator was trained for, and warnings about samples outside of them.

use serde::{Deserialize, Serialize};

use super::super::Points;
use super::answers::PairAnswer;
use crate::data::{Preparation, Targets};
use crate::{Error, Model, Result};

/// Estimates above this share of the largest trained divergence get a warning.
const LARGE_SHARE: f64 = 0.8;

/// The ranges an estimator was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Ranges {
    /// The smallest and the largest number of columns.
    pub dims: [usize; 2],
    /// The smallest and the largest number of rows of each sample.
    pub rows: [usize; 2],
    /// The largest divergence, in nats.
    pub max_divergence: f64,
}

impl Ranges {
    /// The key of the set model's metadata that holds the ranges as JSON.
    const METADATA: &str = "trained-range";

    /// Stores the ranges in the metadata of an estimator's set model.
    pub fn store(&self, set_model: &mut Model) {
        set_model.set_metadata(Self::METADATA, serde_json::to_string(self).expect("ranges are plain data"));
    }

    /// The quantiles a set model predicts and the ranges it was trained for, from its metadata.
    pub(super) fn load(set_model: &Model) -> Result<(Targets, Self)> {
        let bad = |reason: &str| Error::Estimate(format!("the set model cannot serve an estimator: {reason}"));
        let text = set_model.metadata().get(Self::METADATA).ok_or_else(|| bad("its metadata has no trained range"))?;
        let ranges = serde_json::from_str(text).map_err(|e| bad(&e.to_string()))?;
        let targets = Preparation::of(set_model)?.targets;
        match targets {
            Targets::Quantiles { .. } => Ok((targets, ranges)),
            _ => Err(bad("its outputs are not quantiles")),
        }
    }

    /// Warnings about samples and estimates outside of the ranges, and about rows that cleaning has changed.
    pub(super) fn warnings(&self, p: Points, q: Points, answer: &PairAnswer) -> Vec<String> {
        let Ranges { dims, rows, max_divergence } = *self;
        let mut warnings = Vec::new();
        if answer.dim > dims[1] {
            warnings.push(format!(
                "there are {} columns that vary; the estimator was trained for at most {}",
                answer.dim, dims[1]
            ));
        }
        for ((points, duplicates), dequantised) in [p, q].into_iter().zip(answer.duplicates).zip(answer.dequantised) {
            let (n, name) = (points.len() - duplicates, points.name());
            match duplicates {
                0 => warnings.extend(points.repeated_rows_warning()),
                _ => warnings.push(format!(
                    "{name}: {duplicates} of {} rows repeat an earlier row and are left out",
                    points.len()
                )),
            }
            if n < rows[0] {
                warnings.push(format!("{name}: has {n} rows; the estimator was trained for at least {}", rows[0]));
            }
            if let Some(column) = dequantised {
                let (percent, column) = (100.0 * points.repeated_share(column), column + 1);
                warnings.push(format!(
                    "{name}: {percent:.0} % of the values of column {column} repeat another; they are spread, as the \
                     estimator was trained on continuous distributions"
                ));
            }
        }
        let (value, [_, high]) = answer.answer;
        let large = LARGE_SHARE * max_divergence;
        if value <= large && high > max_divergence {
            warnings.push(format!(
                "the interval exceeds the {max_divergence:.0} nats of the trained range; the divergence may be larger"
            ));
        }
        if value > large {
            // The error outside of the trained ranges is unknown, so that the estimate is no lower bound there.
            let bound = match warnings.is_empty() {
                true => format!("read it as at least {:.0}", value.min(large)),
                false => "with the other warnings, it may be far too large".to_owned(),
            };
            warnings.push(format!(
                "the estimate of {value:.1} nats is near or above the trained {max_divergence:.0} nats; {bound}"
            ));
        }
        warnings
    }
}
