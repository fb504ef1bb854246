//! The Mahalanobis distance of each row from the mean.

use rayon::prelude::*;

use super::Stored;
use super::ranks::{Ranks, cosines};
use crate::linalg::{cholesky, moments, solve_lower};

/// Cosines of the rank of each row's distance from the mean, in units of the covariance if `whiten` is set, of standard
/// deviations otherwise.
pub fn radius_cosines(data: &[f64], dim: usize, orders: usize, whiten: bool) -> Stored {
    /// Added to the covariance, whose diagonal is one.
    const RIDGE: f64 = 1e-4;
    let factor = whiten.then(|| {
        let (_, mut factor) = moments(data, dim, 0);
        (0..dim).for_each(|c| factor[c * dim + c] += RIDGE);
        // Rounding cannot outweigh the ridge.
        cholesky(&mut factor, dim).ok().map(|()| factor)
    });
    let squared_distance = |row: &[f64]| {
        let mut x = row.to_vec();
        if let Some(Some(factor)) = &factor {
            solve_lower(factor, dim, &mut x);
        }
        x.iter().map(|x| x * x).sum::<f64>()
    };
    let distances: Vec<f64> = data.par_chunks_exact(dim).map(squared_distance).collect();
    let ranks = Ranks::new(&distances, 1);
    let mut values = vec![0.0; orders * distances.len()];
    values.chunks_exact_mut(orders).zip(&ranks.shares).for_each(|(out, share)| cosines(*share, out));
    Stored { values, width: orders }
}
