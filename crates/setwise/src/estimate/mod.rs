//! Estimators of KL divergence and mutual information, in nats: one pretrained, the others classical.
//!
//! | estimator | quantity | method |
//! | --- | --- | --- |
//! | [`Pretrained`] | KL | two built-in networks |
//! | [`Knn`] | KL | nearest neighbours, which [`neighbours`] finds |
//! | [`GaussianKl`], [`GaussianMi`] | KL, MI | closed forms at the moments of the samples, or of normal scores |
//! | [`Logistic`] | KL | a classifier of P against Q |
//! | [`Ksg`] | MI | nearest neighbours |
//! | [`Mine`] | MI | a network that is trained on the samples |
//!
//! Each is an [`Estimator`]. [`Estimator::value`] is the number alone, [`Estimator::estimate`] adds a 90 % interval
//! (`interval`) and warnings. [`kl`] and [`mi`] choose an estimator by name or by default, [`kl_batch`] and
//! [`mi_batch`] do so for many pairs. [`explain`] attributes an estimate to columns. [`log_ratio`] estimates log p/q at
//! every row.

mod cross_check;
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
mod progress;
pub mod ratio;
mod regression;
mod shared_rows;
pub(crate) mod special;
mod supports;

pub use explain::{Contribution, DrawnRows, Explanation, Noise, draw_rows, explain, explain_observed};
pub use gaussian::{GaussianKl, GaussianMi};
pub use interval::LEVEL;
pub use knn::Knn;
pub use ksg::{Ksg, Variant};
pub use logistic::Logistic;
pub use many_pairs::ManyPairs;
pub use method::{KlMethod, KlOptions, MiMethod, MiOptions, kl, kl_batch, mi, mi_batch};
pub use mine::{Mine, donsker_varadhan};
pub use neighbours::Norm;
pub use pair_list::PairList;
pub use points::{Points, file_warnings, index_column_warning};
pub(crate) use points::{check_rows, check_widths};
pub use pretrained::{Answer, COMBINER_FILE, FeatureBatch, Pretrained, Ranges};
pub use progress::Progress;
pub use ratio::{LogRatio, log_ratio, log_ratio_observed};
pub(crate) use special::{digamma, softplus};

use std::sync::LazyLock;

use rayon::prelude::*;
use serde::Serialize;

use crate::{Error, Result};

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

    /// [`Estimator::estimate`], which tells `progress` how far it is. Estimators that are fast tell nothing.
    fn estimate_observed(&self, first: Points, second: Points, seed: u64, progress: &Progress) -> Result<Estimate> {
        let _ = progress;
        self.estimate(first, second, seed)
    }

    /// Estimates of a pair and of the reversed pair.
    fn both_directions(&self, first: Points, second: Points, seed: u64, progress: &Progress) -> Result<[Estimate; 2]> {
        let forward = self.estimate_observed(first, second, seed, progress)?;
        Ok([forward, self.estimate_observed(second, first, seed, progress)?])
    }

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

    fn estimate_observed(&self, first: Points, second: Points, seed: u64, progress: &Progress) -> Result<Estimate> {
        (**self).estimate_observed(first, second, seed, progress)
    }

    fn both_directions(&self, first: Points, second: Points, seed: u64, progress: &Progress) -> Result<[Estimate; 2]> {
        (**self).both_directions(first, second, seed, progress)
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
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// KL(P‖Q).
    Kl,
    /// KL(Q‖P).
    ReverseKl,
    /// The Jensen–Shannon divergence, from 0 to ln 2.
    Js,
    /// The total variation distance, from 0 to 1.
    Tv,
    /// The Hellinger distance √(1 − ∫√(pq)), from 0 to 1.
    Hellinger,
    /// I(X; Y).
    Mi,
}

impl Quantity {
    /// Divergences of two distributions.
    pub const DIVERGENCES: [Quantity; 5] =
        [Quantity::Kl, Quantity::ReverseKl, Quantity::Js, Quantity::Tv, Quantity::Hellinger];

    /// The name in options, JSON and Python.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Kl => "kl",
            Quantity::ReverseKl => "reverse-kl",
            Quantity::Js => "js",
            Quantity::Tv => "tv",
            Quantity::Hellinger => "hellinger",
            Quantity::Mi => "mi",
        }
    }

    /// The symbol in print.
    pub fn symbol(self) -> &'static str {
        match self {
            Quantity::Kl => "KL(P‖Q)",
            Quantity::ReverseKl => "KL(Q‖P)",
            Quantity::Js => "JS(P, Q)",
            Quantity::Tv => "TV(P, Q)",
            Quantity::Hellinger => "H(P, Q)",
            Quantity::Mi => "I(X; Y)",
        }
    }

    /// The unit, unless it is a pure number.
    pub fn unit(self) -> Option<&'static str> {
        match self {
            Quantity::Tv | Quantity::Hellinger => None,
            _ => Some("nats"),
        }
    }

    /// The divergence of a name.
    pub fn divergence(name: &str) -> Result<Self> {
        Self::DIVERGENCES.into_iter().find(|d| d.name() == name).ok_or_else(|| {
            let names = Self::DIVERGENCES.map(Quantity::name).join(", ");
            Error::Estimate(format!("there is no measure {name:?}; there are {names}"))
        })
    }
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

/// An estimate; serialises to the JSON the command line prints.
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
    /// The unit, unless it is a pure number.
    pub unit: Option<&'static str>,
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
            unit: quantity.unit(),
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

    /// The estimate with both samples exchanged.
    fn reversed(mut self) -> Self {
        self.n.reverse();
        self
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
