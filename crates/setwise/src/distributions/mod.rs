//! Distributions with known densities: what estimators are tested on and models learn from.
//!
//! * [`Mixture`]: a Gaussian mixture; [`MixtureLaw`]: a distribution over mixtures; [`gaussian_kl`]: a closed form.
//! * [`Lkj`]: random correlation matrices; [`IntRange`]: whole numbers drawn uniformly.

mod lkj;
mod mixture;
mod range;

pub use lkj::Lkj;
pub use mixture::{Mixture, MixtureChange, MixtureLaw, gaussian_kl, ln_gamma};
pub use range::IntRange;
