//! Whitening: an affine map of the sets of an example, after which their union has mean zero and covariance one.

use crate::linalg::{moments, symmetric_eigen};

/// Eigenvalues at or below this fraction of the largest count as zero.
const RANK_TOLERANCE: f64 = 1e-10;
/// Ridge on the eigenvalues of a rank-deficient covariance, as a fraction of the largest.
const RIDGE: f64 = 1e-6;

/// x ↦ Σ^(−1/2)·(x − μ), with mean μ and covariance Σ of the union of several sets, and the symmetric root (ZCA).
///
/// The divisor of the covariance is n − 1. If Σ is rank-deficient, 10⁻⁶ of the largest eigenvalue is added to all:
/// constant directions stay zero. Data without variance is only centred.
///
/// ```
/// use setwise::sets::Whitening;
/// let w = Whitening::fit(&[&[0.0, 0.0, 2.0, 0.0], &[0.0, 4.0, 2.0, 4.0]], 2);
/// assert_eq!(w.rank(), 2);
/// let mut out = [0.0; 2];
/// w.apply(&[1.0, 2.0], &mut out);
/// assert!(out.iter().all(|x| x.abs() < 1e-12));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Whitening {
    mean: Vec<f64>,
    matrix: Vec<f64>,
    rank: usize,
}

impl Whitening {
    /// Fits the map to the union of row-major sets of row width `width`.
    pub fn fit(sets: &[&[f64]], width: usize) -> Self {
        let union = sets.concat();
        let (mean, mut cov) = moments(&union, width, 1);
        let (values, vectors) = symmetric_eigen(&mut cov, width);
        let max = values.iter().fold(0.0, |a: f64, &v| a.max(v));
        let rank = values.iter().filter(|&&v| v > max * RANK_TOLERANCE && v > 0.0).count();
        let ridge = if rank < width { max * RIDGE } else { 0.0 };
        let mut matrix = vec![0.0; width * width];
        for (k, value) in values.iter().enumerate() {
            let scale = if max > 0.0 { (value.max(0.0) + ridge).sqrt().recip() } else { 1.0 };
            let v = &vectors[k * width..(k + 1) * width];
            for (row, x) in matrix.chunks_exact_mut(width).zip(v) {
                for (m, y) in row.iter_mut().zip(v) {
                    *m += scale * x * y;
                }
            }
        }
        Whitening { mean, matrix, rank }
    }

    /// Rank of the covariance of the union; at most the width.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Whitens row-major rows into `out` of the same length.
    pub fn apply(&self, rows: &[f64], out: &mut [f64]) {
        let width = self.mean.len();
        let mut centred = vec![0.0; width];
        for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            for (c, (x, m)) in centred.iter_mut().zip(row.iter().zip(&self.mean)) {
                *c = x - m;
            }
            out.fill(0.0);
            // The matrix is symmetric: its rows serve as columns, so the inner loop is contiguous.
            for (c, column) in centred.iter().zip(self.matrix.chunks_exact(width)) {
                for (o, m) in out.iter_mut().zip(column) {
                    *o += c * m;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whitened(rows: &[f64], width: usize) -> (Vec<f64>, usize) {
        let w = Whitening::fit(&[rows], width);
        let mut out = vec![0.0; rows.len()];
        w.apply(rows, &mut out);
        (out, w.rank())
    }

    #[test]
    fn the_whitened_union_has_mean_zero_and_covariance_one() {
        let rows: Vec<f64> = (0..60).map(|i| ((i * 7919 + 13) % 101) as f64 * (1 + i % 3) as f64).collect();
        let (out, rank) = whitened(&rows, 3);
        let (mean, cov) = moments(&out, 3, 1);
        assert_eq!(rank, 3);
        for i in 0..3 {
            assert!(mean[i].abs() < 1e-12);
            for j in 0..3 {
                assert!((cov[i * 3 + j] - if i == j { 1.0 } else { 0.0 }).abs() < 1e-10);
            }
        }
    }

    #[test]
    fn a_repeated_column_is_whitened_with_a_ridge() {
        let rows: Vec<f64> =
            (0..40).flat_map(|i| [(i * i % 23) as f64, 3.0 * (i * i % 23) as f64, (i % 7) as f64]).collect();
        let (out, rank) = whitened(&rows, 3);
        assert_eq!(rank, 2);
        assert!(out.iter().all(|x| x.is_finite() && x.abs() < 10.0));
        // Two directions of variance one: the trace of the covariance is two.
        let (_, cov) = moments(&out, 3, 1);
        assert!((cov[0] + cov[4] + cov[8] - 2.0).abs() < 1e-4);
    }

    #[test]
    fn data_without_variance_becomes_zero() {
        assert_eq!(whitened(&[5.0, 1.0, 5.0, 1.0], 2), (vec![0.0; 4], 0));
        assert_eq!(whitened(&[5.0, 1.0], 2), (vec![0.0; 2], 0));
    }
}
