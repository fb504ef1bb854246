//! The random generator of the crate.

/// The generator that everything random draws from. It is always seeded explicitly.
pub type Generator = rand_pcg::Pcg64Mcg;
