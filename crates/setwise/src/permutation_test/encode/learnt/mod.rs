//! Columns by a network that was trained to see changes.
//!
//! The network sees the pooled sample, without labels. It was trained on random pairs of samples: the sums of its
//! columns over P should differ more from zero than those of permuted labels. It does not know the labels of the pair
//! that is tested, so the test stays exact.
//!
//! * `inputs`: what the network sees of rows and entries.
//! * `network`: its layers, with the trained weights. `dense`: affine maps of many rows.

mod dense;
mod inputs;
mod network;

pub use inputs::{Inputs, PooledRows};
pub use network::{ENTRY_COLUMNS, ROW_COLUMNS};

use super::Encode;
use network::Network;

/// Most columns of samples that the network sees; it was trained on up to 32.
pub const MAX_DIM: usize = 64;
/// Most rows that are encoded, and most entries of them.
const MAX_ROWS: usize = 65_536;
const MAX_ENTRIES: usize = 524_288;

/// Columns of the rows of the pooled sample, with mean zero; zero for rows of large samples that are not encoded.
pub struct Learnt {
    /// The place of each row in `values`; none is [`u32::MAX`].
    places: Vec<u32>,
    values: Vec<f32>,
    /// Rows of each place.
    counts: Vec<u32>,
    width: usize,
}

impl Learnt {
    /// Encodes a pooled sample of at most [`MAX_DIM`] columns. Of large ones, some rows, if possible `kept` ones among
    /// them.
    pub fn new(pooled: &PooledRows, kept: &[u32], seed: u64) -> Self {
        let dim = pooled.ranks.dim;
        let count = pooled.order.len();
        let most = MAX_ROWS.min(MAX_ENTRIES / dim);
        let (rows, places) = match count <= most {
            true => ((0..count as u32).collect(), (0..count as u32).collect()),
            false => some_rows(pooled, most, kept),
        };
        let mut counts = vec![0; rows.len()];
        places.iter().filter(|place| **place != u32::MAX).for_each(|place| counts[*place as usize] += 1);
        let values = Network::trained().columns(&Inputs::new(pooled, &rows, seed));
        let mut learnt = Learnt { places, values, counts, width: ROW_COLUMNS + dim * ENTRY_COLUMNS };
        // Rows that are not encoded are zero, the mean.
        let means = learnt.means(|x| x);
        for row in learnt.values.chunks_exact_mut(learnt.width) {
            row.iter_mut().zip(&means).for_each(|(x, mean)| *x = (f64::from(*x) - mean) as f32);
        }
        learnt
    }

    /// Number of rows that are encoded.
    pub fn encoded(&self) -> usize {
        self.counts.iter().map(|count| *count as usize).sum()
    }

    /// The variance of each column over the encoded rows.
    pub fn variances(&self) -> Vec<f64> {
        self.means(|x| x * x)
    }

    /// Means of a function of each column over the encoded rows.
    fn means(&self, of: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; self.width];
        for (row, count) in self.values.chunks_exact(self.width).zip(&self.counts) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*count) * of(f64::from(*x)));
        }
        let rows = self.encoded() as f64;
        sums.iter().map(|sum| sum / rows).collect()
    }
}

/// At most so many different rows, spread over the order, and the place among them of each row; none is [`u32::MAX`].
///
/// Equal rows share a place. Which of them come first in the order tells of their samples, so a choice among them would
/// not be blind to labels.
fn some_rows(pooled: &PooledRows, most: usize, kept: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let dim = pooled.ranks.dim;
    let count = pooled.order.len();
    let shares = |row: u32| &pooled.ranks.shares[row as usize * dim..][..dim];
    // The first row, in the order, of those that are equal.
    let mut first = vec![0u32; count];
    for equal in pooled.order.chunk_by(|&a, &b| shares(a) == shares(b)) {
        equal.iter().for_each(|&row| first[row as usize] = equal[0]);
    }
    let kept = if 2 * kept.len() <= most { kept } else { &[] };
    let others = most - kept.len();
    let spread = (0..others).map(|i| pooled.order[(i as u64 * count as u64 / others as u64) as usize]);
    let mut places = vec![u32::MAX; count];
    let mut rows = Vec::with_capacity(most);
    for row in spread.chain(kept.iter().copied()).map(|row| first[row as usize]) {
        if places[row as usize] == u32::MAX {
            places[row as usize] = rows.len() as u32;
            rows.push(row);
        }
    }
    let place_of_first: Vec<u32> = first.iter().map(|&row| places[row as usize]).collect();
    (rows, place_of_first)
}

impl Encode for Learnt {
    fn width(&self) -> usize {
        self.width
    }

    fn encode(&self, row: usize, out: &mut [f32]) {
        match self.places[row] {
            u32::MAX => out.fill(0.0),
            place => out.copy_from_slice(&self.values[place as usize * self.width..][..self.width]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(data: &[f64], dim: usize, kept: &[u32]) -> Learnt {
        PooledRows::with(data, dim, |pooled| Learnt::new(pooled, kept, 1))
    }

    fn row(learnt: &Learnt, row: usize) -> Vec<f32> {
        let mut out = vec![1.0; learnt.width()];
        learnt.encode(row, &mut out);
        out
    }

    #[test]
    fn some_rows_of_large_samples_are_encoded_kept_ones_among_them() {
        let (count, dim) = (20_000, 40);
        let data: Vec<f64> = (0..count * dim).map(|i| (i * 7919 % 100_003) as f64).collect();
        let kept: Vec<u32> = (0..count as u32).step_by(7).collect();
        let learnt = encoded(&data, dim, &kept);
        let most = MAX_ENTRIES / dim;
        assert!((most * 8 / 10..=most).contains(&learnt.encoded()), "{}", learnt.encoded());
        assert!(kept.iter().all(|&row| learnt.places[row as usize] != u32::MAX));
        let absent = (0..count).find(|&i| learnt.places[i] == u32::MAX).unwrap();
        assert!(row(&learnt, absent).iter().all(|x| *x == 0.0));
        // Zero is the mean of those that are encoded.
        assert!(learnt.means(|x| x).iter().all(|mean| mean.abs() < 1e-4));
        assert!(learnt.variances().iter().sum::<f64>() > 0.1);
    }

    #[test]
    fn equal_rows_have_equal_columns_whatever_their_order() {
        // Each number twice, in order: one in each half.
        let half = MAX_ROWS;
        let data: Vec<f64> = (0..2 * half).map(|i| (i % half) as f64).collect();
        let learnt = encoded(&data, 1, &[]);
        assert!(learnt.values.len() / learnt.width <= MAX_ROWS);
        assert!((0..half).all(|i| learnt.places[i] == learnt.places[half + i]));
        assert_eq!(learnt.encoded() % 2, 0);
    }
}
