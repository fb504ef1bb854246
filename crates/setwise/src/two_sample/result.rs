//! The outcome of a test.

use serde::{Serialize, Serializer};

use super::Aspect;

/// The outcome of a test; serialises to the JSON the command line prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestResult {
    /// Always `test`.
    #[serde(serialize_with = "test")]
    pub quantity: (),
    /// The probability, if P and Q are the same, of a statistic at least as large.
    pub p_value: f64,
    /// The level of significance.
    pub alpha: f64,
    /// Whether the p-value is at most the level.
    pub different: bool,
    /// The statistic; see [`Statistic`](super::Statistic).
    pub statistic: f64,
    /// The effect size of an adaptive test: the probability that a witness, trained on other rows, scores a row of P
    /// higher than one of Q. It is 0.5 if P and Q are the same, and 1 if they are separate. `None` for single kernels,
    /// pairs and blocks.
    pub auc: Option<f64>,
    /// Its 90 % interval.
    pub interval: Option<[f64; 2]>,
    /// Random permutations.
    pub permutations: usize,
    /// Permutations whose statistic is at least the observed one.
    pub as_large: usize,
    /// Rows of P and Q.
    pub n: [usize; 2],
    /// Width of a row.
    pub dim: usize,
    /// What was compared.
    pub method: String,
    /// What each part of an adaptive test found, the strongest first.
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

impl Finding {
    /// What it found, in words.
    pub fn text(&self) -> String {
        let columns = match self.columns.as_slice() {
            [a, b] => format!("{a} and {b}"),
            [] => "columns".to_owned(),
            all => all.join(", "),
        };
        match self.aspect {
            Aspect::Means => "means".to_owned(),
            Aspect::Column => format!("distribution of {columns}"),
            Aspect::Spread => format!("spread of {columns}"),
            Aspect::RepeatedValues => format!("repeated values of {columns}"),
            Aspect::Dependence => format!("dependence of {columns}"),
            Aspect::Radius => "distance from the centre".to_owned(),
            Aspect::Shape => "joint distribution".to_owned(),
            Aspect::FineStructure => "joint distribution, fine structure".to_owned(),
        }
    }
}

fn test<S: Serializer>(_: &(), s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_str("test")
}
