//! Random pairs of samples that differ by one random change: what the weights of two-sample tests are trained on.
//!
//! A base distribution is drawn first, then a change of random kind and size. P is a sample of the base; Q is one of
//! the changed base. Sizes of changes are such that tests detect some of them.
//!
//! * `base`: the distributions. `change`: what differs.

mod base;
mod change;

use rand::RngExt;
use setwise::random::Generator;

use super::log_uniform;
use base::Base;
use change::{Change, Reference};

/// A pair of samples.
#[derive(Clone, Debug)]
pub struct ChangedPair {
    /// Number of columns.
    pub dim: usize,
    /// The rows of P and Q, row-major.
    pub samples: [Vec<f64>; 2],
    /// What the base distribution is.
    pub base: &'static str,
    /// What differs.
    pub change: &'static str,
}

impl ChangedPair {
    /// Draws a pair.
    pub fn draw(rng: &mut Generator) -> Self {
        let dim = width(rng);
        let n = log_uniform(30.0, 1000.0, rng) as usize;
        let m = if rng.random::<f64>() < 0.4 { (n as f64 * log_uniform(0.15, 1.0, rng)) as usize } else { n };
        let [n, m] = if rng.random() { [n, m.max(20)] } else { [m.max(20), n] };
        let base = Base::draw(dim, rng);
        let reference = Reference::new(base.rows(1000, rng), dim);
        // The size of a change that is barely detected falls with the root of the rows.
        let rows = (n * m) as f64 / (n + m) as f64;
        let strength = log_uniform(0.6, 3.0, rng) / rows.sqrt();
        let change = Change::draw(&base, &reference, strength, rng);
        let p = base.rows(n, rng);
        let q = change.rows(&base, &reference, m, rng);
        ChangedPair { dim, samples: [p, q], base: base.name(), change: change.name() }
    }
}

/// Most pairs have few columns.
fn width(rng: &mut Generator) -> usize {
    match rng.random_range(0..100) {
        0..15 => 1,
        15..40 => 2,
        40..60 => rng.random_range(3..=5),
        60..80 => rng.random_range(6..=12),
        80..93 => rng.random_range(13..=30),
        _ => rng.random_range(31..=60),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;

    use super::*;

    #[test]
    fn pairs_are_finite_and_of_every_kind() {
        let (mut bases, mut changes) = (BTreeSet::new(), BTreeSet::new());
        for seed in 0..400 {
            let pair = ChangedPair::draw(&mut Generator::seed_from_u64(seed));
            assert!(pair.samples.iter().all(|s| s.len() % pair.dim == 0 && s.len() >= 20 * pair.dim));
            assert!(pair.samples.iter().flatten().all(|x| x.is_finite()), "{seed}: {} {}", pair.base, pair.change);
            bases.insert(pair.base);
            changes.insert(pair.change);
        }
        assert_eq!((bases.len(), changes.len()), (5, 16));
    }

    #[test]
    fn one_seed_gives_one_pair() {
        let draw = || ChangedPair::draw(&mut Generator::seed_from_u64(5)).samples;
        assert_eq!(draw(), draw());
    }
}
