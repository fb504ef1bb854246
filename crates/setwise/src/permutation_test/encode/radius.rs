//! Rows in units of their covariance, and the distance of each from the mean.

use rayon::prelude::*;

use super::Stored;
use super::ranks::{Ranks, cosines};
use crate::linalg::{cholesky, moments, solve_lower};

/// Standardised rows multiplied by the inverse factor of their covariance, plus a ridge for directions that few rows
/// determine.
pub fn whitened(data: &[f64], dim: usize) -> Vec<f32> {
    /// The least ridge; the diagonal of the covariance is one.
    const RIDGE: f64 = 1e-4;
    let (_, mut factor) = moments(data, dim, 0);
    let ridge = RIDGE.max((dim * dim) as f64 / data.len() as f64);
    (0..dim).for_each(|c| factor[c * dim + c] += ridge);
    // Rounding cannot outweigh the ridge.
    let has_factor = cholesky(&mut factor, dim).is_ok();
    let mut rows = vec![0.0; data.len()];
    rows.par_chunks_exact_mut(dim).zip(data.par_chunks_exact(dim)).for_each(|(out, row)| {
        let mut row = row.to_vec();
        if has_factor {
            solve_lower(&factor, dim, &mut row);
        }
        out.iter_mut().zip(row).for_each(|(out, x)| *out = x as f32);
    });
    rows
}

/// Cosines of the rank of each row's distance from zero.
pub fn radius_cosines(rows: &[f32], dim: usize, orders: usize) -> Stored {
    let squared_norm = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    let distances: Vec<f64> = rows.par_chunks_exact(dim).map(squared_norm).collect();
    let ranks = Ranks::new(&distances, 1);
    let mut values = vec![0.0; orders * distances.len()];
    values.chunks_exact_mut(orders).zip(&ranks.shares).for_each(|(out, share)| cosines(*share, out));
    Stored { values, width: orders }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitened_rows_have_the_covariance_one() {
        let data: Vec<f64> =
            (0..300).flat_map(|i| [f64::from(i % 17) - 8.0, f64::from(i % 17) + f64::from(3 * (i % 5))]).collect();
        let standardised = super::super::super::standardised::Standardised::new(data, 2);
        let rows: Vec<f64> = whitened(&standardised.data, 2).into_iter().map(f64::from).collect();
        let (_, covariance) = moments(&rows, 2, 0);
        for (x, y) in covariance.iter().zip([1.0, 0.0, 0.0, 1.0]) {
            assert!((x - y).abs() < 0.1, "{covariance:?}");
        }
    }
}
