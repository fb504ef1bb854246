//! The outcome of a test.

use serde::Serialize;

use crate::estimate::Dim;

/// What is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Question {
    /// Whether samples have one distribution.
    #[serde(rename = "test")]
    Samples,
    /// Whether X and Y are independent.
    #[serde(rename = "independence")]
    Independence,
}

/// The outcome of a test; serialises to the JSON the command line prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestResult {
    /// What is tested.
    pub quantity: Question,
    /// The probability of a statistic at least as large, if the samples are the same, or X and Y independent.
    pub p_value: f64,
    /// The level of significance.
    pub alpha: f64,
    /// Whether the p-value is at most the level: the samples differ, or X and Y depend on each other.
    pub significant: bool,
    /// The statistic; see [`Statistic`](super::Statistic).
    pub statistic: f64,
    /// The effect size of an adaptive test of two samples: the probability that a witness, trained on other rows,
    /// scores a row of P higher than one of Q. It is 0.5 if P and Q are the same, and 1 if they are separate. `None`
    /// for single kernels, pairs and blocks.
    pub auc: Option<f64>,
    /// Its 90 % interval.
    pub interval: Option<[f64; 2]>,
    /// Random permutations.
    pub permutations: usize,
    /// Permutations whose statistic is at least the observed one.
    pub as_large: usize,
    /// Rows of each sample, or of X and Y.
    pub n: Vec<usize>,
    /// Columns.
    pub dim: Dim,
    /// What was compared.
    pub method: String,
    /// What each part of an adaptive test found, by p-value; of equal ones those that name columns first.
    pub findings: Vec<Finding>,
    /// Tests of each two of three or more samples.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairResult>,
    /// What should be known about it.
    pub warnings: Vec<String>,
}

/// The test of two of several samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairResult {
    /// The places of the samples, from zero.
    pub samples: [usize; 2],
    /// The p-value of these two alone.
    pub p_value: f64,
    /// The p-value among all pairs (Holm 1979), at least that of all samples together.
    pub adjusted: f64,
    /// Whether the adjusted p-value is at most the level.
    pub significant: bool,
    /// The effect size; see [`TestResult::auc`].
    pub auc: Option<f64>,
    /// Its 90 % interval.
    pub interval: Option<[f64; 2]>,
    /// What the test found, in the same order.
    pub findings: Vec<Finding>,
    /// What should be known about it.
    pub warnings: Vec<String>,
}

/// What a part of an adaptive test found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What it looks at.
    pub aspect: Aspect,
    /// Names or numbers of the columns it found; empty if it looks at all of them.
    pub columns: Vec<String>,
    /// The p-value of this part alone.
    pub p_value: f64,
}

/// What a statistic looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aspect {
    /// Where the rows lie, by the energy distance.
    Location,
    /// The distribution of one column.
    Column,
    /// The spread of one column.
    Spread,
    /// Values of one column that many rows share.
    RepeatedValues,
    /// The dependence of two columns.
    Dependence,
    /// The correlation of two columns.
    Correlation,
    /// Correlations of all columns.
    Correlations,
    /// Distances from the centre.
    Radius,
    /// The joint distribution, at scales up to the distance of typical rows.
    Shape,
    /// The joint distribution, at the scale of near neighbours.
    FineStructure,
}

impl Finding {
    /// What it found, in words.
    pub fn text(&self) -> String {
        let columns = match self.columns.as_slice() {
            [a, b] => format!("{a} and {b}"),
            [] => "all columns".to_owned(),
            all => all.join(", "),
        };
        match self.aspect {
            Aspect::Location => "location".to_owned(),
            Aspect::Column => format!("distribution of {columns}"),
            Aspect::Spread => format!("spread of {columns}"),
            Aspect::RepeatedValues => format!("repeated values of {columns}"),
            Aspect::Dependence => format!("dependence of {columns}"),
            Aspect::Correlation => format!("correlation of {columns}"),
            Aspect::Correlations => "correlations of all columns".to_owned(),
            Aspect::Radius => "distance from the centre".to_owned(),
            Aspect::Shape => "joint distribution".to_owned(),
            Aspect::FineStructure => "joint distribution, fine structure".to_owned(),
        }
    }
}
