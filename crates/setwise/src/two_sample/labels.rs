//! Random labels: which rows of the pooled sample are in the first sample.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rayon::prelude::*;
use setwise_engine::splitmix64;

use super::product::STRIP;
use crate::random::Generator;

/// The labels of rows, and the blocks of rows within which they may be exchanged.
pub(super) struct Labels {
    /// Whether each row is in the first sample.
    first: Vec<bool>,
    /// The rows of each block.
    blocks: Vec<Vec<u32>>,
    seed: u64,
}

impl Labels {
    /// Labels that are exchanged within blocks; `block` has the number of each row's block.
    pub fn new(first: Vec<bool>, block: &[u32], seed: u64) -> Self {
        let mut blocks = vec![Vec::new(); block.iter().max().map_or(0, |last| *last as usize + 1)];
        block.iter().enumerate().for_each(|(row, b)| blocks[*b as usize].push(row as u32));
        Labels { first, blocks, seed }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.first.len()
    }

    /// Rows of each block.
    pub fn blocks(&self) -> &[Vec<u32>] {
        &self.blocks
    }

    /// The number of assignments of labels; `None` if there are many.
    pub fn assignments(&self) -> Option<f64> {
        const MANY: f64 = 1e6;
        let of_block = |block: &Vec<u32>| {
            let first = block.iter().filter(|row| self.first[**row as usize]).count();
            let smaller = first.min(block.len() - first);
            // Factors of at least two end the product early.
            let factors = (0..smaller).map(|i| (block.len() - i) as f64 / (i + 1) as f64);
            factors.fold(1.0, |product: f64, factor| (product * factor).min(MANY * MANY))
        };
        let all = self.blocks.iter().map(of_block).fold(1.0, |product: f64, of| (product * of).min(MANY * MANY));
        (all < MANY).then(|| all.round())
    }

    /// The label of every row in a permutation. Permutation zero is the observed one; every other has a separate seed.
    pub fn permuted(&self, permutation: usize, mut put: impl FnMut(usize, bool)) {
        if permutation == 0 {
            return self.first.iter().enumerate().for_each(|(row, label)| put(row, *label));
        }
        let mut rng = Generator::seed_from_u64(splitmix64(splitmix64(self.seed) ^ permutation as u64));
        let mut labels: Vec<bool> = Vec::new();
        for block in &self.blocks {
            labels.clear();
            labels.extend(block.iter().map(|row| self.first[*row as usize]));
            labels.shuffle(&mut rng);
            block.iter().zip(&labels).for_each(|(row, label)| put(*row as usize, *label));
        }
    }

    /// Labels as strips of numbers: one in the first sample, zero in the second.
    pub fn strips(&self, from: usize, count: usize) -> Vec<f32> {
        let rows = self.rows();
        let mut strips = vec![0.0; count.div_ceil(STRIP) * STRIP * rows];
        strips.par_chunks_mut(STRIP * rows).enumerate().for_each(|(s, strip)| {
            for k in 0..STRIP.min(count - s * STRIP) {
                self.permuted(from + s * STRIP + k, |row, label| {
                    strip[row * STRIP + k] = if label { 1.0 } else { 0.0 };
                });
            }
        });
        strips
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_are_counted() {
        let count = |first: &[bool], blocks: &[u32]| Labels::new(first.to_vec(), blocks, 0).assignments();
        let four: Vec<bool> = (0..8).map(|i| i < 4).collect();
        assert_eq!(count(&four, &[0; 8]), Some(70.0));
        // Four pairs.
        assert_eq!(count(&four, &[0, 1, 2, 3, 0, 1, 2, 3]), Some(16.0));
        let many: Vec<bool> = (0..400).map(|i| i < 200).collect();
        assert_eq!(count(&many, &[0; 400]), None);
    }

    #[test]
    fn labels_are_exchanged_within_blocks_only() {
        let first: Vec<bool> = (0..50).map(|i| i % 3 == 0).collect();
        let block: Vec<u32> = (0..50).map(|i| u32::from(i >= 20)).collect();
        let labels = Labels::new(first.clone(), &block, 7);
        let strips = labels.strips(0, 40);
        let label = |k: usize, i: usize| strips[k / STRIP * STRIP * 50 + i * STRIP + k % STRIP];
        assert!((0..50).all(|i| (label(0, i) == 1.0) == first[i]));
        let mut moved = [0; 50];
        for k in 1..40 {
            let count = |range: std::ops::Range<usize>| range.filter(|&i| label(k, i) == 1.0).count();
            assert_eq!((count(0..20), count(20..50)), (7, 10));
            (0..50).for_each(|i| moved[i] += usize::from(label(k, i) == 1.0));
        }
        assert!(moved.iter().all(|&count| (3..30).contains(&count)), "{moved:?}");
        // Later permutations do not depend on where the counting begins.
        let later = labels.strips(32, 8);
        assert!((0..50).all(|i| (0..8).all(|k| later[i * STRIP + k] == label(32 + k, i))));
    }
}
