//! What a model is to answer for a label, and what its answer says of it.

use serde::{Deserialize, Serialize};

use crate::models::Prediction;

/// How labels become targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Targets {
    /// The label itself.
    Label,
    /// Quantiles of log(1 + label/scale), one number for each level. A quantile goes through a rising map unchanged, so they are
    /// quantiles of the label too; the logarithm only keeps large labels from drowning small ones.
    Quantiles {
        /// Rising, in (0, 1).
        levels: Vec<f64>,
        /// Labels well below it are seen as they are, those well above by their logarithm.
        scale: f64,
    },
    /// The label of every element, of all sets. Their mean over the first set is the example's.
    Elements,
}

/// What an answer says of a label.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The label's estimate: its median, where there are quantiles.
    pub value: f64,
    /// Its lowest and highest quantile.
    pub interval: Option<[f64; 2]>,
}

impl Targets {
    /// Numbers in an answer.
    pub fn width(&self) -> usize {
        match self {
            Targets::Label | Targets::Elements => 1,
            Targets::Quantiles { levels, .. } => levels.len(),
        }
    }

    /// What each number of the answer is held against.
    pub fn target(&self, label: f64) -> f64 {
        match self {
            Targets::Label | Targets::Elements => label,
            Targets::Quantiles { scale, .. } => compress(label, *scale),
        }
    }

    /// The label of a target.
    pub fn label(&self, target: f64) -> f64 {
        match self {
            Targets::Label | Targets::Elements => target,
            Targets::Quantiles { scale, .. } => expand(target, *scale),
        }
    }

    /// Reads what a model answers for an example.
    pub fn read_example(&self, answers: &Prediction, example: usize) -> Reading {
        match self {
            Targets::Elements => self.read(answers.set(example, 0)),
            _ => self.read(answers.example(example)),
        }
    }

    /// Reads an answer: one vector, or the numbers of the first set's elements.
    ///
    /// ```
    /// use setwise::data::Targets;
    /// let targets = Targets::Quantiles { levels: vec![0.05, 0.5, 0.95], scale: 1.0 };
    /// let answer: Vec<f32> = [1.0, 2.0, 4.0].iter().map(|&kl| targets.target(kl) as f32).collect();
    /// let reading = targets.read(&answer);
    /// assert!((reading.value - 2.0).abs() < 1e-5 && (reading.interval.unwrap()[1] - 4.0).abs() < 1e-5);
    /// ```
    pub fn read(&self, answer: &[f32]) -> Reading {
        match self {
            Targets::Label => Reading { value: f64::from(answer[0]), interval: None },
            Targets::Elements => {
                let sum: f64 = answer.iter().map(|&x| f64::from(x)).sum();
                Reading { value: sum / answer.len() as f64, interval: None }
            }
            Targets::Quantiles { levels, scale } => {
                // Quantiles learnt one by one may cross; in order they are as good or better.
                let mut sorted: Vec<f64> = answer.iter().map(|&x| expand(f64::from(x), *scale)).collect();
                sorted.sort_by(f64::total_cmp);
                let distance = |i: usize| (levels[i] - 0.5).abs();
                let middle = (0..levels.len()).min_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap_or(0);
                Reading { value: sorted[middle], interval: Some([sorted[0], sorted[levels.len() - 1]]) }
            }
        }
    }
}

/// log(1 + label/scale). Below zero, where estimates may stray, it goes on in a straight line.
pub fn compress(label: f64, scale: f64) -> f64 {
    if label < 0.0 { label / scale } else { (label / scale).ln_1p() }
}

/// The label of a compressed one.
pub fn expand(target: f64, scale: f64) -> f64 {
    scale * if target < 0.0 { target } else { target.exp_m1() }
}
