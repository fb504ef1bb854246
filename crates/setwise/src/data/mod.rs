//! Random examples to learn from: samplers, the batches they draw, and threads that draw ahead.
//!
//! * [`Sampler`]: draws one example; [`Divergence`], [`Dependence`] and [`SameMixture`] are those of the paper.
//! * [`Broad`]: pairs of very different distributions with known divergence, for the estimator that is built in.
//! * [`Mixture`], [`Lkj`]: Gaussian mixtures, and correlation matrices.
//! * [`readers`], [`DataFolder`], [`Items`]: recorded data, where it is, and its rows in memory.
//! * [`Picker`]: draws one example of recorded data by picking items: [`Alignment`], [`Counting`], [`SameClass`].
//! * [`Drawn`], [`Picked`]: a batch as drawn or picked; [`Batch`]: as a model sees it, with labels as [`Targets`].
//! * [`Examples`], [`Epochs`]: examples that are handed in, and the order a data set is gone through.
//! * [`Feed`]: draws batches on threads, in an order of their own.

mod alignment;
mod batch;
mod broad;
mod classes;
mod corpora;
mod counting;
mod dependence;
mod distinguish;
mod divergence;
mod epochs;
mod examples;
mod feed;
pub(crate) mod folder;
mod items;
mod lkj;
mod mixture;
mod pick;
mod pictures;
mod range;
pub mod readers;
mod same_class;
mod targets;

pub(crate) use alignment::scale;
pub use alignment::{Alignment, Entry, Scale};
pub use batch::{Batch, Drawn, DrawnSet, Stream, batch_seed};
pub use broad::{Broad, Law, Pair, Precision, Truth, divergence};
pub use classes::Classes;
pub use corpora::{CaptionFeatures, caption_alignment, word_alignment};
pub use counting::Counting;
pub use dependence::Dependence;
pub use distinguish::SameMixture;
pub use divergence::{Divergence, Label};
pub use epochs::Epochs;
pub use examples::Examples;
pub use feed::Feed;
pub use folder::{DATA_VARIABLE, DataFolder, DataSet};
pub use items::Items;
pub use lkj::Lkj;
pub(crate) use mixture::ln_gamma;
pub use mixture::{Mixture, MixtureChange, MixtureLaw, gaussian_kl};
pub use pick::{Picked, Picker};
pub use pictures::{MIXED_SIDE, MNIST_SIDE, mixed_pictures, mnist_counting, omniglot_counting};
pub use range::Span;
pub use same_class::SameClass;
pub use targets::{Reading, Targets, compress, expand};

/// The generator everything random is drawn from, always seeded explicitly.
pub type Generator = rand_pcg::Pcg64Mcg;

/// Draws examples of a task.
pub trait Sampler: Send + Sync {
    /// Number of sets of an example.
    fn sets(&self) -> usize;

    /// Draws one example with sets of `size` rows in `dim` dimensions, appends the rows of set k to `rows[k]`, and returns the label.
    fn draw(&self, dim: usize, size: Span, rng: &mut Generator, rows: &mut [Vec<f64>]) -> f64;

    /// Draws the same example, and appends a label for every element of set k to `elements[k]`: the mean of the first set's is the example's.
    /// Nothing is appended where elements have none.
    fn draw_with_elements(
        &self,
        dim: usize,
        size: Span,
        rng: &mut Generator,
        rows: &mut [Vec<f64>],
        _elements: &mut [Vec<f64>],
    ) -> f64 {
        self.draw(dim, size, rng, rows)
    }
}
