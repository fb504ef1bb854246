//! Coordinates of two sets that no invertible affine map of the data changes.

use super::Whitening;
use crate::linalg::{moments, symmetric_eigen};

/// Whitening of the union of two sets, then a turn to axes that the sets themselves give.
///
/// After whitening, an affine map of the data is left as a rotation or reflection. It goes when points are written along the
/// eigenvectors of Σp − Σq + δδᵀ (covariances and difference of the means of the whitened sets), largest eigenvalue first: the directions in
/// which the sets differ most. Each axis points to where the means, and the third moments of the union, say. Sets of one
/// distribution have axes too, by chance; they are just as much their own.
///
/// ```
/// use setwise::sets::Canonical;
/// let (p, q) = ([0.0, 0.0, 2.0, 1.0, 3.0, 5.0], [1.0, 4.0, 7.0, 2.0, 0.5, 1.0]);
/// let mapped = |rows: &[f64]| -> Vec<f64> { rows.chunks(2).flat_map(|r| [3.0 - r[1], r[0] + 2.0 * r[1]]).collect() };
/// let (p2, q2) = (mapped(&p), mapped(&q));
/// let (mut a, mut b) = ([0.0; 6], [0.0; 6]);
/// Canonical::of(&p, &q, 2).apply(&p, &mut a);
/// Canonical::of(&p2, &q2, 2).apply(&p2, &mut b);
/// assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-9));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Canonical {
    whitening: Whitening,
    /// Axes as rows, signs included.
    axes: Vec<f64>,
}

impl Canonical {
    /// From two row-major sets with rows of `width` numbers.
    pub fn of(p: &[f64], q: &[f64], width: usize) -> Self {
        let whitening = Whitening::of(&[p, q], width);
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
            let points = along(&shift) + (third(&x) + third(&y)) / ((x.len() + y.len()) / width) as f64;
            axes.extend(axis.iter().map(|a| if points < 0.0 { -a } else { *a }));
        }
        Canonical { whitening, axes }
    }

    /// Directions in which the union varies.
    pub fn rank(&self) -> usize {
        self.whitening.rank()
    }

    /// Writes row-major rows in these coordinates into `out`, which is as long.
    pub fn apply(&self, rows: &[f64], out: &mut [f64]) {
        self.whitening.apply(rows, out);
        let width = self.axes.len().isqrt();
        let mut turned = vec![0.0; width];
        for row in out.chunks_exact_mut(width) {
            for (t, axis) in turned.iter_mut().zip(self.axes.chunks_exact(width)) {
                *t = axis.iter().zip(&*row).map(|(a, x)| a * x).sum();
            }
            row.copy_from_slice(&turned);
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
    fn affine_maps_of_the_data_change_nothing_also_where_both_sets_are_alike() {
        let mut rng = Generator::seed_from_u64(6);
        for width in [1, 2, 5, 16] {
            for alike in [true, false] {
                let p = Mixture::draw(&MixtureLaw::default(), width, &mut rng);
                let q = if alike { p.clone() } else { Mixture::draw(&MixtureLaw::default(), width, &mut rng) };
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
                    Canonical::of(x, y, width).apply(x, &mut out);
                    out
                };
                let (a, b) = (canonical(&x, &y), canonical(&map(&x), &map(&y)));
                let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(worst < 1e-7, "width {width}, alike {alike}: {worst}");
            }
        }
    }
}
