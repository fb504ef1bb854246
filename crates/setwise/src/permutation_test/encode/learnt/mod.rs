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

pub use inputs::{Encoded, Inputs};
pub use network::{ENTRY_COLUMNS, ROW_COLUMNS};

use super::Encode;
use network::Network;

/// Most columns of samples that the network sees; it was trained on up to 32.
pub const MAX_DIM: usize = 64;
/// Most rows that are encoded, and most entries of them.
const MAX_ROWS: usize = 65_536;
const MAX_ENTRIES: usize = 524_288;

/// Columns of the rows of the pooled sample; zero for rows that are not encoded, of large samples.
pub struct Learnt {
    /// The place of each row in `values`; none is [`u32::MAX`].
    places: Vec<u32>,
    values: Vec<f32>,
    width: usize,
}

impl Learnt {
    /// Encodes a pooled sample of at most [`MAX_DIM`] columns. Of large ones, `kept` rows and some others.
    pub fn new(encoded: &Encoded, kept: &[u32], seed: u64) -> Self {
        let dim = encoded.ranks.dim;
        let count = encoded.order.len();
        let most = MAX_ROWS.min(MAX_ENTRIES / dim);
        let mut places = vec![u32::MAX; count];
        if count <= most {
            places.fill(0);
        } else {
            let some = encoded.order.iter().step_by(count.div_ceil(most - kept.len().min(most / 2)));
            some.chain(kept).for_each(|&row| places[row as usize] = 0);
        }
        let rows: Vec<u32> = (0..count as u32).filter(|&row| places[row as usize] == 0).collect();
        rows.iter().zip(0..).for_each(|(&row, place)| places[row as usize] = place);
        let values = Network::trained().columns(&Inputs::new(encoded, &rows, seed));
        Learnt { places, values, width: ROW_COLUMNS + dim * ENTRY_COLUMNS }
    }

    /// Number of rows that are encoded.
    pub fn encoded(&self) -> usize {
        self.values.len() / self.width
    }

    /// The variance of each column over the encoded rows.
    pub fn variances(&self) -> Vec<f64> {
        let rows = self.encoded() as f64;
        let sums = |of: &dyn Fn(usize, f64) -> f64| {
            let mut sums = vec![0.0; self.width];
            for row in self.values.chunks_exact(self.width) {
                sums.iter_mut().zip(row).enumerate().for_each(|(c, (sum, x))| *sum += of(c, f64::from(*x)));
            }
            sums
        };
        let means: Vec<f64> = sums(&|_, x| x).iter().map(|sum| sum / rows).collect();
        sums(&|c, x| (x - means[c]).powi(2)).iter().map(|sum| sum / rows).collect()
    }
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
    use super::super::{Ranks, Stored};
    use super::*;

    #[test]
    fn large_samples_have_some_rows_encoded_those_that_are_kept_among_them() {
        let (count, dim) = (20_000, 40);
        let ranks = Ranks { shares: vec![0.5; count * dim], dim };
        let zeros = vec![0.0; count * dim];
        let order: Vec<u32> = (0..count as u32).collect();
        let encoded = Encoded {
            standardised: &vec![0.0; count * dim],
            ranks: &ranks,
            scores: &zeros,
            white: &zeros,
            radius: &Stored { values: vec![0.0; count], width: 1 },
            order: &order,
        };
        let kept: Vec<u32> = (0..count as u32).step_by(7).collect();
        let learnt = Learnt::new(&encoded, &kept, 1);
        assert!((kept.len()..=MAX_ENTRIES / dim).contains(&learnt.encoded()), "{}", learnt.encoded());
        assert!(kept.iter().all(|&row| learnt.places[row as usize] != u32::MAX));
        // All rows are equal, so are their columns.
        assert!(learnt.variances().iter().all(|v| *v < 1e-6));
        let mut out = vec![1.0; learnt.width()];
        let absent = (0..count).find(|&row| learnt.places[row] == u32::MAX).unwrap();
        learnt.encode(absent, &mut out);
        assert!(out.iter().all(|x| *x == 0.0));
    }
}
