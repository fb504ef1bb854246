//! Pairs of a list in the JSON output.

use serde::Serialize;
use setwise::files::ListedPair;

/// A line of the output: a pair of samples with its result or its error.
#[derive(Serialize)]
pub struct PairLine<'a, T> {
    line: usize,
    p: &'a str,
    q: &'a str,
    #[serde(flatten)]
    result: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl<'a, T> PairLine<'a, T> {
    pub fn of(pair: &'a ListedPair, outcome: &'a Result<T, impl std::fmt::Display>) -> Self {
        let [p, q] = &pair.names;
        let error = outcome.as_ref().err().map(ToString::to_string);
        PairLine { line: pair.line, p, q, result: outcome.as_ref().ok(), error }
    }
}
