//! Distributions with known densities, for training models and testing estimators.
//!
//! * [`Mixture`]: a mixture of Gaussians or Student's t; [`MixtureLaw`]: a distribution over mixtures.
//! * [`Lkj`]: random correlation matrices; [`IntRange`]: uniform integers; [`normal_tail`]: tails of the normal.

mod lkj;
mod mixture;
pub(crate) mod normal;
mod range;

pub use lkj::Lkj;
pub use mixture::{Mixture, MixtureLaw, MixtureLawOverrides, ln_gamma};
pub(crate) use mixture::{gaussian_kl, trace_and_shift};
pub use normal::normal_tail;
pub use range::IntRange;
