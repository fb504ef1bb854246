//! Coordinates of two sets that are invariant to invertible affine maps of the data.

use super::Whitening;
use crate::linalg::{moments, symmetric_eigen};

/// Whitening of the union of two sets, followed by a rotation to canonical axes.
///
/// Whitening reduces an affine map of the data to an orthogonal one. The rotation removes that: the axes are the
/// eigenvectors of Σp − Σq + δδᵀ, largest eigenvalue first. Σp, Σq are the covariances of the whitened sets and δ is
/// the difference of their means. The sign of each axis is that of δ plus the third moment of the union along it.
///
/// ```
/// use setwise::sets::Canonical;
/// let (p, q) = ([0.0, 0.0, 2.0, 1.0, 3.0, 5.0], [1.0, 4.0, 7.0, 2.0, 0.5, 1.0]);
/// let mapped = |rows: &[f64]| -> Vec<f64> { rows.chunks(2).flat_map(|r| [3.0 - r[1], r[0] + 2.0 * r[1]]).collect() };
/// let (p2, q2) = (mapped(&p), mapped(&q));
/// let (mut a, mut b) = ([0.0; 6], [0.0; 6]);
/// Canonical::fit(&p, &q, 2).apply(&p, &mut a);
/// Canonical::fit(&p2, &q2, 2).apply(&p2, &mut b);
/// assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-9));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Canonical {
    whitening: Whitening,
    /// Axes as rows, with signs.
    axes: Vec<f64>,
}

impl Canonical {
    /// Fits the map to two row-major sets of row width `width`.
    pub fn fit(p: &[f64], q: &[f64], width: usize) -> Self {
        let whitening = Whitening::fit(&[p, q], width);
        let (mut x, mut y) = (vec![0.0; p.len()], vec![0.0; q.len()]);
        whitening.apply(p, &mut x);
        whitening.apply(q, &mut y);
        let ((mean_x, mut contrast), (mean_y, cov_y)) = (moments(&x, width, 0), moments(&y, width, 0));
        let shift: Vec<f64> = mean_x.iter().zip(&mean_y).map(|(a, b)| a - b).collect();
        for i in 0..width {
            for j in 0..width {
                contrast[i * width + j] += shift[i] * shift[j] - cov_y[i * width + j];
            }
        }
        let (values, vectors) = symmetric_eigen(&mut contrast, width);
        let mut order: Vec<usize> = (0..width).collect();
        order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        let mut axes = Vec::with_capacity(width * width);
        for k in order {
            let axis = &vectors[k * width..(k + 1) * width];
            let along = |row: &[f64]| row.iter().zip(axis).map(|(x, a)| x * a).sum::<f64>();
            let third = |rows: &[f64]| rows.chunks_exact(width).map(|r| along(r).powi(3)).sum::<f64>();
            let sign = along(&shift) + (third(&x) + third(&y)) / ((x.len() + y.len()) / width) as f64;
            axes.extend(axis.iter().map(|a| if sign < 0.0 { -a } else { *a }));
        }
        Canonical { whitening, axes }
    }

    /// Rank of the covariance of the union.
    pub fn rank(&self) -> usize {
        self.whitening.rank()
    }

    /// Maps row-major rows to canonical coordinates, into `out` of the same length.
    pub fn apply(&self, rows: &[f64], out: &mut [f64]) {
        self.whitening.apply(rows, out);
        let width = self.axes.len().isqrt();
        let mut rotated = vec![0.0; width];
        for row in out.chunks_exact_mut(width) {
            for (t, axis) in rotated.iter_mut().zip(self.axes.chunks_exact(width)) {
                *t = axis.iter().zip(&*row).map(|(a, x)| a * x).sum();
            }
            row.copy_from_slice(&rotated);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributions::{Mixture, MixtureLaw};
    use crate::random::Generator;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn canonical_coordinates_are_invariant_to_affine_maps_even_for_equal_distributions() {
        let mut rng = Generator::seed_from_u64(6);
        for width in [1, 2, 5, 16] {
            for equal in [true, false] {
                let p = Mixture::draw(&MixtureLaw::default(), width, &mut rng);
                let q = if equal { p.clone() } else { Mixture::draw(&MixtureLaw::default(), width, &mut rng) };
                let (mut x, mut y) = (Vec::new(), Vec::new());
                p.sample(80, &mut rng, &mut x);
                q.sample(60, &mut rng, &mut y);
                let matrix: Vec<f64> = (0..width * width).map(|_| rng.random::<f64>() - 0.5).collect();
                let map = |rows: &[f64]| -> Vec<f64> {
                    let image = |r: &[f64], i: usize| {
                        7.0 + r.iter().zip(&matrix[i * width..]).map(|(x, m)| x * m).sum::<f64>() + 2.0 * r[i]
                    };
                    rows.chunks_exact(width).flat_map(|r| (0..width).map(|i| image(r, i)).collect::<Vec<_>>()).collect()
                };
                let canonical = |x: &[f64], y: &[f64]| {
                    let mut out = vec![0.0; x.len()];
                    Canonical::fit(x, y, width).apply(x, &mut out);
                    out
                };
                let (a, b) = (canonical(&x, &y), canonical(&map(&x), &map(&y)));
                let error = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(error < 1e-7, "width {width}, equal distributions {equal}: {error}");
            }
        }
    }
}
