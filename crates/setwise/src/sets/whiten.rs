//! Whitening: the sets of an example moved and scaled together until their union has mean zero and covariance one.

use crate::linalg::{moments, symmetric_eigen};

/// Eigenvalues below this share of the largest count as zero.
const RANK_TOLERANCE: f64 = 1e-10;
/// What is added to every eigenvalue of a covariance without full rank, as a share of the largest.
const RIDGE: f64 = 1e-6;

/// x ↦ Σ^(−1/2)·(x − μ), with mean μ and covariance Σ (divided by n − 1) of the union of several sets, and the symmetric root.
///
/// Data without full rank has a defined answer: a millionth of the largest eigenvalue is added to all of them, so that
/// directions in which nothing varies stay at zero and the others are scaled as always ([`Whitening::rank`] tells). Data that does
/// not vary at all is only centred.
///
/// ```
/// use setwise::sets::Whitening;
/// let w = Whitening::of(&[&[0.0, 0.0, 2.0, 0.0], &[0.0, 4.0, 2.0, 4.0]], 2);
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
    /// From the union of row-major sets with rows of `width` numbers.
    pub fn of(sets: &[&[f64]], width: usize) -> Self {
        let union = sets.concat();
        let (mean, mut cov) = moments(&union, width, 1);
        let (values, vectors) = symmetric_eigen(&mut cov, width);
        let largest = values.iter().fold(0.0, |a: f64, &v| a.max(v));
        let rank = values.iter().filter(|&&v| v > largest * RANK_TOLERANCE && v > 0.0).count();
        let ridge = if rank < width { largest * RIDGE } else { 0.0 };
        let mut matrix = vec![0.0; width * width];
        for (k, value) in values.iter().enumerate() {
            let scale = if largest > 0.0 { (value.max(0.0) + ridge).sqrt().recip() } else { 1.0 };
            let v = &vectors[k * width..(k + 1) * width];
            for (row, x) in matrix.chunks_exact_mut(width).zip(v) {
                for (m, y) in row.iter_mut().zip(v) {
                    *m += scale * x * y;
                }
            }
        }
        Whitening { mean, matrix, rank }
    }

    /// Directions in which the union varies; the data has full rank if it is the width.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Whitens row-major rows into `out`, which is as long.
    pub fn apply(&self, rows: &[f64], out: &mut [f64]) {
        let width = self.mean.len();
        let mut centred = vec![0.0; width];
        for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            for (c, (x, m)) in centred.iter_mut().zip(row.iter().zip(&self.mean)) {
                *c = x - m;
            }
            out.fill(0.0);
            // The matrix is symmetric: its rows serve as columns, and the inner loop runs over neighbours.
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
        let w = Whitening::of(&[rows], width);
        let mut out = vec![0.0; rows.len()];
        w.apply(rows, &mut out);
        (out, w.rank())
    }

    #[test]
    fn the_union_has_mean_zero_and_covariance_one_afterwards() {
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
    fn a_column_that_repeats_another_leaves_a_defined_answer() {
        let rows: Vec<f64> =
            (0..40).flat_map(|i| [(i * i % 23) as f64, 3.0 * (i * i % 23) as f64, (i % 7) as f64]).collect();
        let (out, rank) = whitened(&rows, 3);
        assert_eq!(rank, 2);
        assert!(out.iter().all(|x| x.is_finite() && x.abs() < 10.0));
        // The variance that is there is scaled to one in each direction: two in all.
        let (_, cov) = moments(&out, 3, 1);
        assert!((cov[0] + cov[4] + cov[8] - 2.0).abs() < 1e-4);
    }

    #[test]
    fn data_that_does_not_vary_becomes_zero() {
        assert_eq!(whitened(&[5.0, 1.0, 5.0, 1.0], 2), (vec![0.0; 4], 0));
        assert_eq!(whitened(&[5.0, 1.0], 2), (vec![0.0; 2], 0));
    }
}
