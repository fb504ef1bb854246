//! The order in which training visits a data set.

use rand::SeedableRng;
use rand::seq::SliceRandom;

use crate::random::Generator;

/// Visits each example of a data set once per epoch, in a new random permutation each time.
///
/// ```
/// let mut epochs = setwise::data::Epochs::new(3, 1);
/// let mut first = epochs.next_indices(3);
/// first.sort();
/// assert_eq!(first, [0, 1, 2]);
/// assert_eq!(epochs.next_indices(7).len(), 7);
/// ```
#[derive(Clone, Debug)]
pub struct Epochs {
    order: Vec<usize>,
    position: usize,
    rng: Generator,
}

impl Epochs {
    /// Epochs over `examples` examples, in an order determined by `seed`.
    ///
    /// # Panics
    /// If `examples` is zero.
    pub fn new(examples: usize, seed: u64) -> Self {
        assert!(examples > 0, "at least one example");
        let order: Vec<usize> = (0..examples).collect();
        Epochs { position: order.len(), order, rng: Generator::seed_from_u64(seed) }
    }

    /// The indices of the next `count` examples.
    pub fn next_indices(&mut self, count: usize) -> Vec<usize> {
        let next = || {
            if self.position == self.order.len() {
                self.order.shuffle(&mut self.rng);
                self.position = 0;
            }
            self.position += 1;
            self.order[self.position - 1]
        };
        std::iter::repeat_with(next).take(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_visits_each_example_once_for_any_batch_size() {
        let mut epochs = Epochs::new(10, 7);
        let position: Vec<usize> = (0..10).flat_map(|_| epochs.next_indices(4)).collect();
        assert_ne!(position[..10], position[10..20]);
        for epoch in position.chunks(10) {
            let mut sorted = epoch.to_vec();
            sorted.sort();
            assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        }
        assert_eq!(Epochs::new(10, 7).next_indices(40), position);
    }
}
