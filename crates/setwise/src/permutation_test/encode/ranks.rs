//! Ranks of columns, which units and monotone maps leave as they are.

use std::f32::consts::PI;

use rayon::prelude::*;

use super::Encode;
use crate::distributions::normal::normal_quantile;
use crate::ranks::doubled_mid_ranks;

/// Mid-ranks of the columns of the pooled sample as shares of the rows, row-major.
pub struct Ranks {
    pub shares: Vec<f32>,
    pub dim: usize,
}

impl Ranks {
    /// Ranks of the columns of row-major numbers.
    pub fn new(data: &[f64], dim: usize) -> Self {
        let rows = data.len() / dim;
        let share = |doubled: u32| (f64::from(doubled) / (2 * rows) as f64) as f32;
        let of_column = |c| doubled_mid_ranks(data, dim, c).into_iter().map(share).collect();
        let columns: Vec<Vec<f32>> = (0..dim).into_par_iter().map(of_column).collect();
        let shares = (0..rows).flat_map(|i| columns.iter().map(move |column| column[i])).collect();
        Ranks { shares, dim }
    }

    /// How many rows have the value with each mid-rank, in half rows.
    pub fn repeats(&self, column: usize) -> Vec<u32> {
        let doubled = 2.0 * (self.shares.len() / self.dim) as f64;
        let mut repeats = vec![0; doubled as usize + 1];
        let ranks = self.shares.iter().skip(column).step_by(self.dim);
        ranks.for_each(|share| repeats[(f64::from(*share) * doubled).round() as usize] += 1);
        repeats
    }

    /// Normal scores: the normal quantiles of the ranks.
    pub fn normal_scores(&self) -> Vec<f32> {
        let rows = self.shares.len() / self.dim;
        // Mid-ranks are multiples of half a row.
        let quantile = |half: usize| normal_quantile(half as f64 / (2 * rows) as f64) as f32;
        let below: Vec<f32> =
            (0..=rows).into_par_iter().map(|half| if half == 0 { 0.0 } else { quantile(half) }).collect();
        let score = |share: &f32| {
            let half = ((f64::from(*share) * (2 * rows) as f64).round() as usize).min(2 * rows);
            if half <= rows { below[half] } else { -below[2 * rows - half] }
        };
        self.shares.par_iter().map(score).collect()
    }
}

/// Cosines cos(πkr) of the ranks r of each column, k from 1 to `orders`, side by side.
pub struct RankCosines<'a> {
    pub ranks: &'a Ranks,
    pub orders: usize,
}

impl Encode for RankCosines<'_> {
    fn width(&self) -> usize {
        self.ranks.dim * self.orders
    }

    fn encode(&self, row: usize, out: &mut [f32]) {
        let shares = &self.ranks.shares[row * self.ranks.dim..(row + 1) * self.ranks.dim];
        shares.iter().zip(out.chunks_exact_mut(self.orders)).for_each(|(share, out)| cosines(*share, out));
    }
}

/// cos(πkr) for k from one.
pub fn cosines(share: f32, out: &mut [f32]) {
    let one = (PI * share).cos();
    let (mut before, mut last) = (1.0, one);
    for x in out {
        *x = last;
        (before, last) = (last, 2.0 * one * last - before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_their_mean_rank() {
        let ranks = Ranks::new(&[3.0, 1.0, 1.0, 2.0, 9.0, 2.0, 1.0, 2.0], 2);
        let column = |c: usize| ranks.shares.iter().skip(c).step_by(2).copied().collect::<Vec<_>>();
        assert_eq!(column(0), [0.625, 0.25, 0.875, 0.25]);
        assert_eq!(column(1), [0.125, 0.625, 0.625, 0.625]);
        let scores = ranks.normal_scores();
        assert!((scores[0] - normal_quantile(0.625) as f32).abs() < 1e-6, "{scores:?}");
        assert!((scores[4] - normal_quantile(0.875) as f32).abs() < 1e-6);
    }

    #[test]
    fn cosines_follow_the_recurrence() {
        let mut out = [0.0; 16];
        cosines(0.3, &mut out);
        for (k, x) in out.iter().enumerate() {
            assert!((x - (PI * (k + 1) as f32 * 0.3).cos()).abs() < 1e-5);
        }
    }
}
