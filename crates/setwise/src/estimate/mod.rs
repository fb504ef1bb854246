//! Estimators of KL divergence and mutual information, all in nats: one that is trained already, and classical ones.
//!
//! [`Pretrained`] is two networks that are built in.
//! [`Knn`] and [`Ksg`] use nearest neighbours ([`neighbors`] finds them), [`GaussianKl`] and [`GaussianMi`] the closed forms at the samples'
//! moments, [`Logistic`] a classifier, [`Mine`] a trained network. Each is an [`Estimator`]: [`Estimator::value`] is the number alone and cheap on small samples,
//! [`Estimator::estimate`] adds a 90 % interval and warnings (`interval` says how). [`kl`] and [`mi`], with batches [`kl_batch`] and [`mi_batch`], choose one by
//! name or by default. [`explain`] says which columns an estimate comes from.

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
pub mod neighbors;
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
pub use neighbors::Norm;
pub use pair_list::{ListedPair, PairList};
pub use points::{Points, index_column, mismatches};
pub(crate) use points::{check_rows, check_widths};
pub use pretrained::{Answer, COMBINER_FILE, FeatureBatch, Pretrained, Ranges};
pub use special::digamma;

use std::sync::LazyLock;

use rayon::prelude::*;
use serde::{Serialize, Serializer};

use crate::Result;

/// Two samples.
pub type Pair<'a> = (Points<'a>, Points<'a>);

/// What estimates something of two samples: KL(P‖Q) of independent ones, or the mutual information of paired rows.
///
/// Many pairs are asked for at once: [`Estimator::values`] and [`Estimator::estimates`] take them one by one on all cores; an estimator
/// that answers a batch faster than its pairs overrides both. Answers stand in the order of the pairs, each is that of its pair alone,
/// and a pair that cannot be estimated fails alone.
pub trait Estimator: Sync {
    /// The number alone, in nats.
    fn value(&self, first: Points, second: Points) -> Result<f64>;
    /// The number with its interval and what should be known about it; the seed is that of the interval.
    fn estimate(&self, first: Points, second: Points, seed: u64) -> Result<Estimate>;

    /// [`Estimator::value`] of many pairs.
    fn values(&self, pairs: &[Pair]) -> Vec<Result<f64>> {
        pairs.par_iter().map(|&(first, second)| self.value(first, second)).collect()
    }

    /// [`Estimator::estimate`] of many pairs; each with the same seed, as if it were the only one.
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

/// What was estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantity {
    /// KL(P‖Q).
    Kl,
    /// I(X; Y).
    Mi,
}

/// Numbers in a row.
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
    /// What was estimated.
    pub quantity: Quantity,
    /// The number, reported as it is also where it is negative.
    #[serde(rename = "estimate")]
    pub value: f64,
    /// Where the true value lies with probability [`Estimate::level`], but for the estimator's bias; none if there are too few rows.
    pub interval: Option<[f64; 2]>,
    /// Nominal coverage of the interval.
    pub level: f64,
    /// Always `nats`.
    #[serde(serialize_with = "nats")]
    pub unit: (),
    /// Rows of P and Q, or number of pairs.
    pub n: Vec<usize>,
    /// Numbers in a row.
    pub dim: Dim,
    /// How it was estimated.
    pub method: String,
    /// How the interval was found.
    pub interval_method: &'static str,
    /// What should be known about it.
    pub warnings: Vec<String>,
    /// Whether nearest neighbours answered in place of the pretrained estimator.
    #[serde(skip)]
    pub substituted: bool,
    /// Another estimate to hold it against, where warnings say that it may be far off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

/// An estimate beside another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fallback {
    /// How it was made.
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
        let mut warnings = points::merged(warnings);
        if value < 0.0 {
            warnings.push(
                "the estimate is below zero, where the true value cannot be: that is noise around a small value"
                    .to_owned(),
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

    /// The estimator that made it, of those asked: `asked`, or the neighbours that answered in its place.
    pub fn made_by<'a>(&self, asked: &'a dyn Estimator) -> &'a dyn Estimator {
        static NEIGHBOURS: LazyLock<Knn> = LazyLock::new(Knn::default);
        if self.substituted { &*NEIGHBOURS } else { asked }
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
