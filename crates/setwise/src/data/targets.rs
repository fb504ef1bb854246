//! Targets: from labels to the targets of outputs, and from outputs back to labels.

use serde::{Deserialize, Serialize};

use crate::models::Prediction;

/// The map from labels to targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Targets {
    /// The label itself.
    Label,
    /// Quantiles of log(1 + label/scale), one output for each level.
    ///
    /// The logarithm is increasing, so the outputs map to quantiles of the label. It limits the weight of large labels
    /// in the loss.
    Quantiles {
        /// Levels in (0, 1), increasing.
        levels: Vec<f64>,
        /// The map is nearly linear far below this label, and logarithmic far above.
        scale: f64,
    },
    /// The label of every element of all sets. Their mean over the first set is the label of the example.
    #[serde(rename = "elements")]
    ElementLabels,
}

/// The estimate of a label that a model's output encodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelEstimate {
    /// The estimate; the median, if outputs are quantiles.
    pub value: f64,
    /// The lowest and highest quantile, if outputs are quantiles.
    pub interval: Option<[f64; 2]>,
}

impl Targets {
    /// Width of an output vector.
    pub fn width(&self) -> usize {
        match self {
            Targets::Label | Targets::ElementLabels => 1,
            Targets::Quantiles { levels, .. } => levels.len(),
        }
    }

    /// The target of each output for a label.
    pub fn target(&self, label: f64) -> f64 {
        match self {
            Targets::Label | Targets::ElementLabels => label,
            Targets::Quantiles { scale, .. } => compress(label, *scale),
        }
    }

    /// The label of a target, the inverse of [`Targets::target`].
    pub fn label(&self, target: f64) -> f64 {
        match self {
            Targets::Label | Targets::ElementLabels => target,
            Targets::Quantiles { scale, .. } => expand(target, *scale),
        }
    }

    /// Decodes the output for one example.
    pub fn decode_example(&self, outputs: &Prediction, example: usize) -> LabelEstimate {
        match self {
            Targets::ElementLabels => self.decode(outputs.set(example, 0)),
            _ => self.decode(outputs.example(example)),
        }
    }

    /// Decodes one output vector, or the outputs of the first set's elements.
    ///
    /// ```
    /// use setwise::data::Targets;
    /// let targets = Targets::Quantiles { levels: vec![0.05, 0.5, 0.95], scale: 1.0 };
    /// let output: Vec<f32> = [1.0, 2.0, 4.0].iter().map(|&kl| targets.target(kl) as f32).collect();
    /// let estimate = targets.decode(&output);
    /// assert!((estimate.value - 2.0).abs() < 1e-5 && (estimate.interval.unwrap()[1] - 4.0).abs() < 1e-5);
    /// ```
    pub fn decode(&self, output: &[f32]) -> LabelEstimate {
        match self {
            Targets::Label => LabelEstimate { value: f64::from(output[0]), interval: None },
            Targets::ElementLabels => {
                let sum: f64 = output.iter().map(|&x| f64::from(x)).sum();
                LabelEstimate { value: sum / output.len() as f64, interval: None }
            }
            Targets::Quantiles { levels, scale } => {
                // Learned quantiles may cross; sorting never increases the quantile loss.
                let mut sorted: Vec<f64> = output.iter().map(|&x| expand(f64::from(x), *scale)).collect();
                sorted.sort_by(f64::total_cmp);
                let distance = |i: usize| (levels[i] - 0.5).abs();
                let median = (0..levels.len()).min_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap_or(0);
                LabelEstimate { value: sorted[median], interval: Some([sorted[0], sorted[levels.len() - 1]]) }
            }
        }
    }
}

/// log(1 + label/scale) for labels from zero, label/scale below: estimates may be negative.
pub fn compress(label: f64, scale: f64) -> f64 {
    if label < 0.0 { label / scale } else { (label / scale).ln_1p() }
}

/// The inverse of [`compress`].
fn expand(target: f64, scale: f64) -> f64 {
    scale * if target < 0.0 { target } else { target.exp_m1() }
}
