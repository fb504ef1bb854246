//! Estimators of KL divergence and mutual information, in nats: one pretrained, the others classical.
//!
//! | estimator | quantity | method |
//! | --- | --- | --- |
//! | [`Pretrained`] | KL | two built-in networks |
//! | [`Knn`] | KL | nearest neighbours, which [`neighbours`] finds |
//! | [`GaussianKl`], [`GaussianMi`] | KL, MI | closed forms at the moments of the samples |
//! | [`Logistic`] | KL | a classifier of P against Q |
//! | [`Ksg`] | MI | nearest neighbours |
//! | [`Mine`] | MI | a network that is trained on the samples |
//!
//! Each is an [`Estimator`]. [`Estimator::value`] is the number alone, [`Estimator::estimate`] adds a 90 % interval
//! (`interval`) and warnings. [`kl`] and [`mi`] choose an estimator by name or by default, [`kl_batch`] and
//! [`mi_batch`] do so for many pairs. [`explain`] attributes an estimate to columns.

mod curvature;
mod explain;
mod exponential;
mod gaussian;
mod interval;
mod knn;
mod ksg;
mod logistic;
mod many_pairs;
mod method;
mod mine;
pub mod neighbours;
mod pair_list;
mod points;
pub mod pretrained;
mod regression;
mod special;

pub use explain::{Contribution, Explanation, explain};
pub use gaussian::{GaussianKl, GaussianMi};
pub use interval::LEVEL;
pub use knn::Knn;
pub use ksg::{Ksg, Variant};
pub use logistic::Logistic;
pub use many_pairs::ManyPairs;
pub use method::{KlMethod, KlOptions, MiMethod, MiOptions, kl, kl_batch, mi, mi_batch};
pub use mine::{Mine, donsker_varadhan};
pub use neighbours::Norm;
pub use pair_list::{ListedPair, PairList};
pub use points::{Points, file_warnings, index_column_warning};
pub(crate) use points::{check_rows, check_widths};
pub use pretrained::{Answer, COMBINER_FILE, FeatureBatch, Pretrained, Ranges};
pub(crate) use special::digamma;

use std::sync::LazyLock;

use rayon::prelude::*;
use serde::{Serialize, Serializer};

use crate::Result;

/// Two samples.
pub type Pair<'a> = (Points<'a>, Points<'a>);

/// An estimator of KL(P‖Q) from independent samples, or of the mutual information of paired rows.
///
/// [`Estimator::values`] and [`Estimator::estimates`] estimate many pairs, one by one on all cores. An estimator that
/// gains from batches overrides both. Results are in the order of the pairs and equal those of each pair by itself. A
/// pair that cannot be estimated fails alone.
pub trait Estimator: Sync {
    /// The number alone, in nats.
    fn value(&self, first: Points, second: Points) -> Result<f64>;
    /// The number with its interval and warnings; the interval depends on the seed.
    fn estimate(&self, first: Points, second: Points, seed: u64) -> Result<Estimate>;

    /// [`Estimator::value`] of many pairs.
    fn values(&self, pairs: &[Pair]) -> Vec<Result<f64>> {
        pairs.par_iter().map(|&(first, second)| self.value(first, second)).collect()
    }

    /// [`Estimator::estimate`] of many pairs, each with the same seed.
    fn estimates(&self, pairs: &[Pair], seed: u64) -> Vec<Result<Estimate>> {
        pairs.par_iter().map(|&(first, second)| self.estimate(first, second, seed)).collect()
    }
}

impl<E: Estimator + ?Sized> Estimator for &E {
    fn value(&self, first: Points, second: Points) -> Result<f64> {
        (**self).value(first, second)
    }

    fn estimate(&self, first: Points, second: Points, seed: u64) -> Result<Estimate> {
        (**self).estimate(first, second, seed)
    }

    fn values(&self, pairs: &[Pair]) -> Vec<Result<f64>> {
        (**self).values(pairs)
    }

    fn estimates(&self, pairs: &[Pair], seed: u64) -> Vec<Result<Estimate>> {
        (**self).estimates(pairs, seed)
    }
}

/// The quantity that is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantity {
    /// KL(P‖Q).
    Kl,
    /// I(X; Y).
    Mi,
}

/// The number of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Dim {
    /// Of both samples.
    One(usize),
    /// Of X and of Y.
    Two([usize; 2]),
}

/// An estimate in nats; serialises to the JSON the command line prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The quantity that is estimated.
    pub quantity: Quantity,
    /// The number, which may be negative.
    #[serde(rename = "estimate")]
    pub value: f64,
    /// The interval that covers the true value with probability [`Estimate::level`], apart from bias; `None` with too
    /// few rows.
    pub interval: Option<[f64; 2]>,
    /// Nominal coverage of the interval.
    pub level: f64,
    /// Always `nats`.
    #[serde(serialize_with = "nats")]
    pub unit: (),
    /// Rows of P and Q, or number of pairs.
    pub n: Vec<usize>,
    /// The number of columns.
    pub dim: Dim,
    /// The method of the estimate.
    pub method: String,
    /// The method of the interval.
    pub interval_method: &'static str,
    /// Reasons for which the estimate may be wrong.
    pub warnings: Vec<String>,
    /// Whether [`Knn`] replaced the pretrained estimator.
    #[serde(skip)]
    pub substituted: bool,
    /// Another estimate for comparison, if there are warnings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

/// A classical estimate beside one that may be far off.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fallback {
    /// The method of the estimate.
    pub method: String,
    /// The number, in nats.
    #[serde(rename = "estimate")]
    pub value: f64,
    /// Its interval.
    pub interval: Option<[f64; 2]>,
}

fn nats<S: Serializer>(_: &(), s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_str("nats")
}

impl Estimate {
    fn new(quantity: Quantity, value: f64, method: String, warnings: impl IntoIterator<Item = String>) -> Self {
        let mut warnings = points::unique_sorted(warnings);
        if value < 0.0 {
            warnings.push(
                "the estimate is negative, the true value is not: read it as noise around a small value".to_owned(),
            );
        }
        Estimate {
            quantity,
            value,
            interval: None,
            level: LEVEL,
            unit: (),
            n: Vec::new(),
            dim: Dim::One(0),
            method,
            interval_method: "none",
            warnings,
            substituted: false,
            fallback: None,
        }
    }

    /// The estimator of this estimate: the one that was `requested`, or its substitute [`Knn`].
    pub fn made_by<'a>(&self, requested: &'a dyn Estimator) -> &'a dyn Estimator {
        static KNN: LazyLock<Knn> = LazyLock::new(Knn::default);
        if self.substituted { &*KNN } else { requested }
    }

    fn with_interval(mut self, interval: Option<[f64; 2]>, method: &'static str) -> Self {
        self.interval = interval;
        self.interval_method = method;
        if interval.is_none() {
            self.warnings.push("there are too few rows for an interval".to_owned());
        }
        self
    }
}
