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
            if duplicates > 0 {
                warnings.push(format!(
                    "{name}: {duplicates} of {} rows repeat an earlier row and are left out",
                    points.len()
                ));
            }
            if n < rows[0] {
                warnings.push(format!("{name}: has {n} rows; the estimator was trained for at least {}", rows[0]));
            }
            if let Some(column) = dequantised {
                let (percent, column) = (100.0 * points.repeated_share(column), points.column_label(column));
                warnings.push(format!(
                    "{name}: {percent:.0} % of the values of {column} repeat another; they are spread, as the \
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
        warnings.extend(answer.contradiction.clone());
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_estimates_are_lower_bounds_where_nothing_else_is_wrong() {
        let ranges = Ranges { dims: [1, 16], rows: [30, 256], max_divergence: 30.0 };
        let rows: Vec<f64> = (0..40).map(f64::from).collect();
        let warnings = |answer, dim| {
            let answer = PairAnswer {
                answer,
                dim,
                duplicates: [0; 2],
                dequantised: [None; 2],
                identical: false,
                contradiction: None,
            };
            ranges.warnings(Points::new(&rows, 1), Points::new(&rows, 1), &answer)
        };
        assert!(warnings((5.0, [4.0, 6.0]), 1).is_empty());
        let beyond = warnings((20.0, [15.0, 31.0]), 1);
        assert_eq!(beyond, ["the interval exceeds the 30 nats of the trained range; the divergence may be larger"]);
        let bound = warnings((26.0, [20.0, 40.0]), 1);
        assert!(bound.len() == 1 && bound[0].ends_with("30 nats; read it as at least 24"), "{bound:?}");
        let wide = warnings((26.0, [20.0, 40.0]), 20);
        assert!(wide.len() == 2 && wide[1].ends_with("with the other warnings, it may be far too large"), "{wide:?}");
    }
}
