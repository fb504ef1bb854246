//! The random number generator of the crate.

/// The generator of all random draws; always seeded explicitly.
pub type Generator = rand_pcg::Pcg64Mcg;
