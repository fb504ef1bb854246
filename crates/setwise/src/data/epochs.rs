//! The order in which a data set is gone through.

use rand::SeedableRng;
use rand::seq::SliceRandom;

use super::Generator;

/// Deals the numbers of a data set's examples: each once, in a random order, before any comes again, then in another order.
///
/// ```
/// let mut epochs = setwise::data::Epochs::new(3, 1);
/// let mut first = epochs.deal(3);
/// first.sort();
/// assert_eq!(first, [0, 1, 2]);
/// assert_eq!(epochs.deal(7).len(), 7);
/// ```
#[derive(Clone, Debug)]
pub struct Epochs {
    order: Vec<usize>,
    dealt: usize,
    rng: Generator,
}

impl Epochs {
    /// For `examples` examples; the same seed gives the same order.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(examples: usize, seed: u64) -> Self {
        assert!(examples > 0, "at least one example");
        let order: Vec<usize> = (0..examples).collect();
        Epochs { dealt: order.len(), order, rng: Generator::seed_from_u64(seed) }
    }

    /// The next `count` examples.
    pub fn deal(&mut self, count: usize) -> Vec<usize> {
        let next = || {
            if self.dealt == self.order.len() {
                self.order.shuffle(&mut self.rng);
                self.dealt = 0;
            }
            self.dealt += 1;
            self.order[self.dealt - 1]
        };
        std::iter::repeat_with(next).take(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_comes_once_in_each_epoch_whatever_the_batches() {
        let mut epochs = Epochs::new(10, 7);
        let dealt: Vec<usize> = (0..10).flat_map(|_| epochs.deal(4)).collect();
        assert_ne!(dealt[..10], dealt[10..20]);
        for epoch in dealt.chunks(10) {
            let mut sorted = epoch.to_vec();
            sorted.sort();
            assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        }
        assert_eq!(Epochs::new(10, 7).deal(40), dealt);
    }
}
