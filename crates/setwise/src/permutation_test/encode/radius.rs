//! Rows in units of their covariance, and the distance of each from the mean.

use rayon::prelude::*;

use super::Stored;
use super::ranks::{Ranks, cosines};
use crate::linalg::{cholesky, moments, solve_lower};

/// Standardised rows multiplied by the inverse factor of their covariance.
pub fn whitened(data: &[f64], dim: usize) -> Vec<f64> {
    /// Added to the covariance, whose diagonal is one.
    const RIDGE: f64 = 1e-4;
    let (_, mut factor) = moments(data, dim, 0);
    (0..dim).for_each(|c| factor[c * dim + c] += RIDGE);
    let mut rows = data.to_vec();
    // Rounding cannot outweigh the ridge.
    if cholesky(&mut factor, dim).is_ok() {
        rows.par_chunks_exact_mut(dim).for_each(|row| solve_lower(&factor, dim, row));
    }
    rows
}

/// Cosines of the rank of each row's distance from zero.
pub fn radius_cosines(rows: &[f64], dim: usize, orders: usize) -> Stored {
    let squared_norm = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>();
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
            (0..300).flat_map(|i| [f64::from(i % 17) - 8.0, f64::from(i % 17) + f64::from(i % 5)]).collect();
        let standardised = super::super::super::standardised::Standardised::new(data, 2);
        let (_, covariance) = moments(&whitened(&standardised.data, 2), 2, 0);
        for (x, y) in covariance.iter().zip([1.0, 0.0, 0.0, 1.0]) {
            assert!((x - y).abs() < 1e-2, "{covariance:?}");
        }
    }
}
