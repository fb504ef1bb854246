//! Random examples to learn from: samplers, the batches they draw, and threads that draw ahead.
//!
//! * [`Sampler`]: draws one example; [`Divergence`] and [`Dependence`] are those of the paper.
//! * [`Broad`]: pairs of very different distributions with known divergence, for the estimator that is built in.
//! * [`Mixture`], [`Lkj`]: Gaussian mixtures, and correlation matrices.
//! * [`Drawn`]: a batch as drawn; [`Batch`]: as a model sees it, with labels as [`Targets`].
//! * [`Examples`], [`Epochs`]: examples that are handed in, and the order a data set is gone through.
//! * [`Feed`]: draws batches on threads, in an order of their own.

mod batch;
mod broad;
mod dependence;
mod divergence;
mod epochs;
mod examples;
mod feed;
mod lkj;
mod mixture;
mod range;
mod targets;

pub use batch::{Batch, Drawn, DrawnSet, Stream, batch_seed};
pub use broad::{Broad, Law, Pair, Truth, divergence};
pub use dependence::Dependence;
pub use divergence::{Divergence, Label};
pub use epochs::Epochs;
pub use examples::Examples;
pub use feed::Feed;
pub use lkj::Lkj;
pub use mixture::{Mixture, MixtureLaw, gaussian_kl};
pub use range::Span;
pub use targets::Targets;

/// The generator everything random is drawn from, always seeded explicitly.
pub type Generator = rand_pcg::Pcg64Mcg;

/// Draws examples of a task.
pub trait Sampler: Send + Sync {
    /// Number of sets of an example.
    fn sets(&self) -> usize;

    /// Draws one example with sets of `size` rows in `dim` dimensions, appends the rows of set k to `rows[k]`, and returns the label.
    fn draw(&self, dim: usize, size: Span, rng: &mut Generator, rows: &mut [Vec<f64>]) -> f64;
}
