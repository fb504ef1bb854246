//! Distributions with known densities, for training models and testing estimators.
//!
//! * [`Mixture`]: a mixture of Gaussians or Student's t; [`MixtureLaw`]: a distribution over mixtures.
//! * [`Lkj`]: random correlation matrices; [`IntRange`]: uniform integers.

mod lkj;
mod mixture;
mod range;

pub use lkj::Lkj;
pub(crate) use mixture::gaussian_kl;
pub use mixture::{Mixture, MixtureLaw, MixtureLawOverrides, ln_gamma};
pub use range::IntRange;
