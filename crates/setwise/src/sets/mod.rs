//! Packed ragged batches of sets, and coordinates of their points.
//!
//! * [`SetBatch`], [`PackedSet`]: examples of several sets, without padding.
//! * [`Coordinates`]: raw, whitened ([`Whitening`]) or canonical ([`Canonical`]) axes, with appended columns.
//! * [`mixture_features`]: log densities of fitted Gaussian mixtures as columns of a point.

mod batch;
mod canonical;
mod coordinates;
pub mod mixture_features;
mod whiten;

pub use batch::{PackedSet, SetBatch};
pub use canonical::Canonical;
pub use coordinates::{Append, Axes, Coordinates};
pub use setwise_engine::{BatchView, SetView};
pub use whiten::Whitening;
