//! Samplers: random examples with known labels.
//!
//! * [`Sampler`]: draws one example. [`Divergence`], [`Dependence`] and [`SameMixture`] are the paper's.
//! * [`BroadPairs`]: pairs from many families of distributions with known divergence, for the pretrained estimator.
//! * [`ChangedPair`]: samples of a random distribution and of one that differs from it by a random change.
//! * [`draw_batch`]: a batch of examples; [`Split`]: its purpose; [`batch_seed`]: its seed.

mod broad;
mod changed;
mod dependence;
mod divergence;
mod same_mixture;
mod structured;

use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

use setwise::data::{RawBatch, RawSet, Targets};
use setwise::distributions::{IntRange, ln_gamma};
use setwise::random::Generator;
use setwise_engine::splitmix64;

pub use broad::{BroadPairs, Density, Pair, Precision, Truth, divergence};
pub use changed::ChangedPair;
pub use dependence::Dependence;
pub use divergence::{Divergence, Label};
pub use same_mixture::SameMixture;
pub use structured::Structure;

/// Draws a standard normal number.
pub(crate) fn normal(rng: &mut impl Rng) -> f64 {
    StandardNormal.sample(rng)
}

/// The log density of independent standard normal numbers.
pub(crate) fn normal_log_density(row: &[f64]) -> f64 {
    row.iter().map(|x| -0.5 * (x * x + std::f64::consts::TAU.ln())).sum()
}

/// The logarithm of the area of the unit sphere in `dim` dimensions.
pub(crate) fn log_sphere_area(dim: usize) -> f64 {
    let k = dim as f64;
    2f64.ln() + 0.5 * k * std::f64::consts::PI.ln() - ln_gamma(0.5 * k)
}

/// log Σ eˣ, which does not overflow.
pub(crate) fn log_sum_exp(terms: &[f64]) -> f64 {
    let max = terms.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
    max + terms.iter().map(|t| (t - max).exp()).sum::<f64>().ln()
}

/// Draws a number whose logarithm is uniform.
pub(crate) fn log_uniform(min: f64, max: f64, rng: &mut impl Rng) -> f64 {
    min * (max / min).powf(rng.random())
}

/// Draws examples of a task.
pub trait Sampler: Send + Sync {
    /// Number of sets of an example.
    fn sets(&self) -> usize;

    /// Draws one example with sets of `size` rows in `dim` dimensions.
    ///
    /// Appends the rows of set k to `rows[k]` and returns the label.
    fn draw(&self, dim: usize, size: IntRange, rng: &mut Generator, rows: &mut [Vec<f64>]) -> f64;

    /// Draws the same example and appends a label for every element of set k to `elements[k]`.
    ///
    /// The mean over the first set is the example's label. Samplers without labels of elements append nothing.
    fn draw_with_elements(
        &self,
        dim: usize,
        size: IntRange,
        rng: &mut Generator,
        rows: &mut [Vec<f64>],
        _elements: &mut [Vec<f64>],
    ) -> f64 {
        self.draw(dim, size, rng, rows)
    }
}

/// The purpose of a batch. Each split has its own seeds, so no example is in two splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Examples that models learn from.
    Training,
    /// Examples that measure progress during training.
    Validation,
    /// Examples that measure the trained model.
    Test,
}

impl Split {
    /// All splits, in the order of their numbers.
    pub const ALL: [Split; 3] = [Split::Training, Split::Validation, Split::Test];
}

/// The seed of batch `index` of a split.
pub fn batch_seed(seed: u64, split: Split, index: u64) -> u64 {
    let start = splitmix64(seed ^ splitmix64(split as u64 + 1));
    splitmix64(start.wrapping_add(index))
}

/// Draws examples. Elements have labels where `targets` are those of elements.
pub fn draw_batch(
    sampler: &dyn Sampler,
    targets: &Targets,
    dim: usize,
    size: IntRange,
    examples: usize,
    seed: u64,
) -> RawBatch {
    let mut rng = Generator::seed_from_u64(seed);
    let mut rows = vec![Vec::new(); sampler.sets()];
    let mut offsets = vec![vec![0]; sampler.sets()];
    let mut elements = vec![Vec::new(); if *targets == Targets::ElementLabels { sampler.sets() } else { 0 }];
    let mut labels = Vec::with_capacity(examples);
    for _ in 0..examples {
        labels.push(match elements.is_empty() {
            true => sampler.draw(dim, size, &mut rng, &mut rows),
            false => sampler.draw_with_elements(dim, size, &mut rng, &mut rows, &mut elements),
        });
        for (offsets, rows) in offsets.iter_mut().zip(&rows) {
            offsets.push(rows.len() / dim);
        }
    }
    let sets = rows.into_iter().zip(offsets).map(|(rows, offsets)| RawSet { rows, offsets }).collect();
    RawBatch { sets, widths: vec![dim; sampler.sets()], labels, element_labels: elements, seed }
}
