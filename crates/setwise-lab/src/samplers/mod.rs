//! Samplers: random examples with known labels.
//!
//! * [`Sampler`]: draws one example; [`Divergence`], [`Dependence`] and [`SameMixture`] are those of the paper.
//! * [`Broad`]: pairs of very different distributions with known divergence, for the pretrained estimator.
//! * [`draw_batch`]: a batch of examples; [`Split`]: what it is for; [`batch_seed`]: its seed.

mod broad;
mod dependence;
mod divergence;
mod same_mixture;

use rand::SeedableRng;

use setwise::data::{RawBatch, RawSet, Targets};
use setwise::distributions::IntRange;
use setwise::random::Generator;
use setwise_engine::mix;

pub use broad::{Broad, Law, Pair, Precision, Truth, divergence};
pub use dependence::Dependence;
pub use divergence::{Divergence, Label};
pub use same_mixture::SameMixture;

/// Draws examples of a task.
pub trait Sampler: Send + Sync {
    /// Number of sets of an example.
    fn sets(&self) -> usize;

    /// Draws one example with sets of `size` rows in `dim` dimensions, appends the rows of set k to `rows[k]`, and returns the label.
    fn draw(&self, dim: usize, size: IntRange, rng: &mut Generator, rows: &mut [Vec<f64>]) -> f64;

    /// Draws the same example, and appends a label for every element of set k to `elements[k]`: the mean of the first set's is the example's.
    /// Nothing is appended where elements have none.
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

/// What a batch is for; each use has seeds of its own, so that no example is seen in two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// To learn from.
    Training,
    /// To watch progress by.
    Validation,
    /// To judge the result by.
    Test,
}

/// The seed of batch `index` of a split.
pub fn batch_seed(seed: u64, split: Split, index: u64) -> u64 {
    let start = mix(seed ^ mix(split as u64 + 1));
    mix(start.wrapping_add(index))
}

/// Draws examples, with labels of their elements if targets ask for these.
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
    let mut elements = vec![Vec::new(); if *targets == Targets::Elements { sampler.sets() } else { 0 }];
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
    RawBatch { sets, widths: vec![dim; sampler.sets()], labels, elements, seed }
}
