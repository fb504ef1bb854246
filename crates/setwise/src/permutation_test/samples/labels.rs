//! Random labels: which sample each row of the pooled sample is in.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rayon::prelude::*;
use setwise_engine::splitmix64;

use super::super::product::STRIP;
use crate::random::Generator;

/// The labels of rows, and the blocks of rows within which they may be exchanged.
pub(super) struct Labels {
    /// The sample of each row.
    sample: Vec<u8>,
    /// The rows of each block.
    blocks: Vec<Vec<u32>>,
    samples: usize,
    seed: u64,
}

impl Labels {
    /// Most samples.
    pub const MAX_SAMPLES: usize = 20;

    /// Labels that are exchanged within blocks; `block` has the number of each row's block.
    pub fn new(sample: Vec<u8>, block: &[u32], seed: u64) -> Self {
        let mut blocks = vec![Vec::new(); block.iter().max().map_or(0, |last| *last as usize + 1)];
        block.iter().enumerate().for_each(|(row, b)| blocks[*b as usize].push(row as u32));
        let samples = sample.iter().max().map_or(0, |last| usize::from(*last) + 1);
        Labels { sample, blocks, samples, seed }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.sample.len()
    }

    /// Rows of each block.
    pub fn blocks(&self) -> &[Vec<u32>] {
        &self.blocks
    }

    /// The samples that columns are summed over. Centred sums over the second of two samples follow from the first.
    pub fn summed_samples(&self) -> usize {
        if self.samples == 2 { 1 } else { self.samples }
    }

    /// The number of assignments of labels; `None` if there are many.
    pub fn assignments(&self) -> Option<f64> {
        const MANY: f64 = 1e6;
        let of_block = |block: &Vec<u32>| {
            let (mut product, mut rest): (f64, usize) = (1.0, block.len());
            for sample in 0..self.samples {
                let count = block.iter().filter(|row| usize::from(self.sample[**row as usize]) == sample).count();
                let smaller = count.min(rest - count);
                // Factors of at least two end the product early.
                let factors = (0..smaller).map(|i| (rest - i) as f64 / (i + 1) as f64);
                product = factors.fold(product, |product, factor| (product * factor).min(MANY * MANY));
                rest -= count;
            }
            product
        };
        let all = self.blocks.iter().map(of_block).fold(1.0, |product: f64, of| (product * of).min(MANY * MANY));
        (all < MANY).then(|| all.round())
    }

    /// The sample of every row in a permutation. Permutation zero is the observed one; every other has a separate seed.
    pub fn permuted(&self, permutation: usize, mut put: impl FnMut(usize, u8)) {
        if permutation == 0 {
            return self.sample.iter().enumerate().for_each(|(row, label)| put(row, *label));
        }
        let mut rng = Generator::seed_from_u64(splitmix64(splitmix64(self.seed) ^ permutation as u64));
        let mut labels: Vec<u8> = Vec::new();
        for block in &self.blocks {
            labels.clear();
            labels.extend(block.iter().map(|row| self.sample[*row as usize]));
            labels.shuffle(&mut rng);
            block.iter().zip(&labels).for_each(|(row, label)| put(*row as usize, *label));
        }
    }

    /// Labels as strips of numbers, `[permutations / STRIP][summed sample][row][STRIP]`: one in the sample, zero in the
    /// others.
    pub fn strips(&self, from: usize, count: usize) -> Vec<f32> {
        let (rows, samples) = (self.rows(), self.summed_samples());
        let mut strips = vec![0.0; count.div_ceil(STRIP) * samples * STRIP * rows];
        strips.par_chunks_mut(samples * STRIP * rows).enumerate().for_each(|(s, strip)| {
            for k in 0..STRIP.min(count - s * STRIP) {
                self.permuted(from + s * STRIP + k, |row, label| {
                    if usize::from(label) < samples {
                        strip[(usize::from(label) * rows + row) * STRIP + k] = 1.0;
                    }
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
        let count = |sample: &[u8], blocks: &[u32]| Labels::new(sample.to_vec(), blocks, 0).assignments();
        let four: Vec<u8> = (0..8).map(|i| u8::from(i >= 4)).collect();
        assert_eq!(count(&four, &[0; 8]), Some(70.0));
        // Four pairs.
        assert_eq!(count(&four, &[0, 1, 2, 3, 0, 1, 2, 3]), Some(16.0));
        assert_eq!(count(&[0, 0, 1, 1, 2, 2], &[0; 6]), Some(90.0));
        let many: Vec<u8> = (0..400).map(|i| u8::from(i >= 200)).collect();
        assert_eq!(count(&many, &[0; 400]), None);
    }

    #[test]
    fn labels_are_exchanged_within_blocks_only() {
        let sample: Vec<u8> = (0..50).map(|i| u8::from(i % 3 != 0)).collect();
        let block: Vec<u32> = (0..50).map(|i| u32::from(i >= 20)).collect();
        let labels = Labels::new(sample.clone(), &block, 7);
        let strips = labels.strips(0, 40);
        let label = |k: usize, i: usize| strips[k / STRIP * STRIP * 50 + i * STRIP + k % STRIP];
        assert!((0..50).all(|i| (label(0, i) == 1.0) == (sample[i] == 0)));
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

    #[test]
    fn every_row_is_in_one_of_three_samples() {
        let sample: Vec<u8> = (0..30).map(|i| [0, 1, 1, 2, 2, 2][i % 6]).collect();
        let strips = Labels::new(sample, &[0; 30], 7).strips(0, STRIP);
        let label = |s: usize, k: usize, i: usize| strips[(s * 30 + i) * STRIP + k];
        for k in 0..STRIP {
            assert!((0..30).all(|i| (0..3).map(|s| label(s, k, i)).sum::<f32>() == 1.0));
            assert_eq!([0, 1, 2].map(|s| (0..30).map(|i| label(s, k, i)).sum::<f32>()), [5.0, 10.0, 15.0]);
        }
    }
}
