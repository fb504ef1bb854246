//! Random examples to learn from: samplers, the batches they draw, and threads that draw ahead.
//!
//! * [`Sampler`]: draws one example; [`Divergence`] and [`Dependence`] are those of the paper.
//! * [`Broad`]: pairs of very different distributions with known divergence, for the estimator that is built in.
//! * [`Mixture`], [`Lkj`]: Gaussian mixtures, and correlation matrices.
//! * [`Drawn`]: a batch as drawn; [`Batch`]: as a model sees it, with labels as [`Targets`].
//! * [`Feed`]: draws batches on threads, in an order of their own.

mod batch;
mod broad;
mod dependence;
mod divergence;
mod feed;
mod lkj;
mod mixture;
mod range;
mod targets;

pub use batch::{Batch, Drawn, DrawnSet, Stream, batch_seed};
pub use broad::{Broad, Law, Pair, Truth, divergence};
pub use dependence::Dependence;
pub use divergence::{Divergence, Label};
pub use feed::Feed;
pub use lkj::Lkj;
pub(crate) use mixture::ln_gamma;
pub use mixture::{Mixture, MixtureLaw, gaussian_kl};
pub use range::Span;
pub use targets::{Reading, Targets, compress, expand};

/// The generator everything random is drawn from, always seeded explicitly.
pub type Generator = rand_pcg::Pcg64Mcg;

/// Draws examples of a task.
pub trait Sampler: Send + Sync {
    /// Number of sets of an example.
    fn sets(&self) -> usize;

    /// Draws one example with sets of `size` rows in `dim` dimensions, appends the rows of set k to `rows[k]`, and returns the label.
    fn draw(&self, dim: usize, size: Span, rng: &mut Generator, rows: &mut [Vec<f64>]) -> f64;
}
