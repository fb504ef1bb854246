//! Columns of pairs of columns: products of normal scores, products of cosines of ranks.

use rand::SeedableRng;

use super::Encode;
use super::ranks::{Ranks, cosines};
use crate::random::Generator;

/// The pair (a, b) with a < b at a place in the order of b.
fn pair(place: usize) -> [usize; 2] {
    let b = ((1.0 + (1.0 + 8.0 * place as f64).sqrt()) / 2.0) as usize;
    let b = if b * (b - 1) / 2 > place { b - 1 } else { b };
    [place - b * (b - 1) / 2, b]
}

/// Squares of normal scores, then products of pairs of columns.
pub struct Products<'a> {
    scores: &'a [f32],
    dim: usize,
    /// The pairs of columns.
    pub pairs: Vec<[usize; 2]>,
}

impl<'a> Products<'a> {
    /// Most pairs; of more columns random pairs are drawn.
    const MAX_PAIRS: usize = 1225;

    /// Products of row-major scores.
    pub fn new(scores: &'a [f32], dim: usize, seed: u64) -> Self {
        let all = dim * (dim - 1) / 2;
        let places = match all <= Self::MAX_PAIRS {
            true => (0..all).collect(),
            false => {
                let mut rng = Generator::seed_from_u64(seed);
                let mut chosen = rand::seq::index::sample(&mut rng, all, Self::MAX_PAIRS).into_vec();
                chosen.sort_unstable();
                chosen
            }
        };
        Products { scores, dim, pairs: places.into_iter().map(pair).collect() }
    }
}

impl Encode for Products<'_> {
    fn width(&self) -> usize {
        self.dim + self.pairs.len()
    }

    fn encode(&self, row: usize, out: &mut [f32]) {
        let row = &self.scores[row * self.dim..(row + 1) * self.dim];
        let (squares, products) = out.split_at_mut(self.dim);
        squares.iter_mut().zip(row).for_each(|(out, x)| *out = x * x);
        products.iter_mut().zip(&self.pairs).for_each(|(out, &[a, b])| *out = row[a] * row[b]);
    }
}

/// cos(πjr) · cos(πks) for the ranks r and s of each pair of columns, j and k from 1 to [`PairCosines::ORDERS`].
pub struct PairCosines<'a> {
    ranks: &'a Ranks,
    /// The pairs of columns; none where there are too many.
    pub pairs: Vec<[usize; 2]>,
}

impl<'a> PairCosines<'a> {
    /// Frequencies of each column.
    pub const ORDERS: usize = 3;
    /// Products of a pair.
    pub const OF_PAIR: usize = Self::ORDERS * Self::ORDERS;
    /// Most columns whose pairs are looked at.
    const MAX_COLUMNS: usize = 15;

    /// Products of these ranks.
    pub fn new(ranks: &'a Ranks) -> Self {
        let columns = if ranks.dim <= Self::MAX_COLUMNS { ranks.dim } else { 1 };
        PairCosines { ranks, pairs: (0..columns * (columns - 1) / 2).map(pair).collect() }
    }
}

impl Encode for PairCosines<'_> {
    fn width(&self) -> usize {
        self.pairs.len() * Self::OF_PAIR
    }

    fn encode(&self, row: usize, out: &mut [f32]) {
        let dim = self.ranks.dim;
        let shares = &self.ranks.shares[row * dim..(row + 1) * dim];
        let mut of_columns = [[0.0; Self::ORDERS]; Self::MAX_COLUMNS];
        shares.iter().zip(&mut of_columns).for_each(|(share, out)| cosines(*share, out));
        for (&[a, b], out) in self.pairs.iter().zip(out.chunks_exact_mut(Self::OF_PAIR)) {
            for (x, out) in of_columns[a].iter().zip(out.chunks_exact_mut(Self::ORDERS)) {
                out.iter_mut().zip(&of_columns[b]).for_each(|(out, y)| *out = x * y);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_there_once() {
        let scores = vec![0.0; 60];
        let all = Products::new(&scores, 5, 1).pairs;
        assert_eq!(all.len(), 10);
        assert!(all.iter().all(|[a, b]| a < b && *b < 5));
        assert!((1..10).all(|i| !all[..i].contains(&all[i])));
        assert_eq!(Products::new(&scores, 60, 1).pairs.len(), Products::MAX_PAIRS);
    }

    #[test]
    fn cosines_of_pairs_are_products_of_cosines_of_ranks() {
        let data: Vec<f64> = (0..30).map(|i| f64::from(i * 37 % 31)).collect();
        let ranks = Ranks::new(&data, 3);
        let encoder = PairCosines::new(&ranks);
        let mut out = vec![0.0; encoder.width()];
        encoder.encode(4, &mut out);
        let cosine = |c: usize, k: usize| (std::f32::consts::PI * k as f32 * ranks.shares[4 * 3 + c]).cos();
        let place = encoder.pairs.iter().position(|p| *p == [1, 2]).unwrap() * PairCosines::OF_PAIR;
        assert!((out[place + 5] - cosine(1, 2) * cosine(2, 3)).abs() < 1e-5);
        let many = Ranks::new(&vec![0.0; 64], 16);
        assert_eq!(PairCosines::new(&many).width(), 0);
    }
}
