//! Ranks of numbers, which units and strictly increasing maps leave as they are.

use rayon::prelude::*;

use crate::distributions::normal::normal_quantile;

/// Twice the mid-rank of each number of a column of row-major numbers, from 1 to 2n − 1. Equal numbers share the mean
/// of their ranks.
pub fn doubled_mid_ranks(data: &[f64], dim: usize, column: usize) -> Vec<u32> {
    let value = |i: u32| data[i as usize * dim + column];
    let rows = data.len() / dim;
    let mut order: Vec<u32> = (0..rows as u32).collect();
    order.sort_unstable_by(|&a, &b| value(a).total_cmp(&value(b)));
    let mut ranks = vec![0; rows];
    let mut first = 0;
    for equal in order.chunk_by(|&a, &b| value(a) == value(b)) {
        equal.iter().for_each(|&i| ranks[i as usize] = (2 * first + equal.len()) as u32);
        first += equal.len();
    }
    ranks
}

/// Normal scores of row-major numbers: the normal quantiles of the mid-ranks of each column.
pub fn normal_scores(data: &[f64], dim: usize) -> Vec<f64> {
    let rows = data.len() / dim;
    let of_column = |c: usize| {
        let ranks = doubled_mid_ranks(data, dim, c);
        ranks.into_iter().map(|rank| normal_quantile(f64::from(rank) / (2 * rows) as f64)).collect()
    };
    let columns: Vec<Vec<f64>> = (0..dim).into_par_iter().map(of_column).collect();
    (0..rows).flat_map(|i| columns.iter().map(move |column| column[i])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_share_the_mean_of_their_ranks() {
        let data = [3.0, 0.0, 1.0, 0.0, 3.0, 5.0, -0.0, 0.0];
        assert_eq!(doubled_mid_ranks(&data, 2, 0), [6, 3, 6, 1]);
        assert_eq!(doubled_mid_ranks(&data, 2, 1), [3, 3, 7, 3]);
    }

    #[test]
    fn scores_are_symmetric_and_do_not_change_under_increasing_maps() {
        let data: Vec<f64> = (0..51).map(|i| f64::from(i * 7919 % 101)).collect();
        let scores = normal_scores(&data, 1);
        assert!(scores.iter().sum::<f64>().abs() < 1e-9);
        let mapped: Vec<f64> = data.iter().map(|x| (0.3 * x).exp()).collect();
        assert_eq!(scores, normal_scores(&mapped, 1));
        assert!(normal_scores(&[7.0; 4], 1).iter().all(|x| x.abs() < 1e-9));
    }
}
