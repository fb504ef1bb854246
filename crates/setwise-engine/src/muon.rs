//! Muon (Jordan and others, 2024): weight matrices move along the orthogonal matrix nearest to their momentum.
//! Directions with small gradients are then learnt as fast as those with large gradients.

use crate::cpu::Compiled;
use crate::cpu::packed_product::{PackedProduct, pack_matrix, packed_len};
use crate::real::Real;

/// Decay of the momentum.
pub(crate) const MOMENTUM: f64 = 0.95;
/// Newton–Schulz iterations.
pub(crate) const NEWTON_SCHULZ_STEPS: usize = 5;
/// Coefficients of x, x³ and x⁵ of the Newton–Schulz polynomial, which moves singular values near one. It is inexact
/// but needs few iterations.
pub(crate) const POLYNOMIAL: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// Factor of the norm, so that rounding leaves no singular value above one at the start.
pub(crate) const NORM_MARGIN: f64 = 1.02;
/// Added to the norm before division.
pub(crate) const NORM_EPSILON: f64 = 1e-7;

/// A weight matrix in the flat buffer, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Index of its first element.
    pub offset: usize,
    /// Outputs of the layer.
    pub rows: usize,
    /// Inputs of the layer.
    pub cols: usize,
}

impl Matrix {
    /// Its elements.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.rows * self.cols
    }

    /// Factor of the orthogonal matrix: layers with more outputs than inputs then move their outputs as much as
    /// others.
    pub(crate) fn gain(&self) -> f64 {
        (self.rows as f64 / self.cols as f64).max(1.0).sqrt()
    }
}

/// The matrices that Muon updates, and their learning rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Muon {
    matrices: Vec<Matrix>,
    /// Their learning rate as a multiple of that of the other parameters.
    pub ratio: f64,
}

impl Muon {
    /// Matrices that do not overlap, in any order.
    ///
    /// # Panics
    /// If two overlap or one is empty.
    pub fn new(mut matrices: Vec<Matrix>, ratio: f64) -> Self {
        matrices.sort_unstable_by_key(|m| m.offset);
        assert!(matrices.iter().all(|m| !m.range().is_empty()), "matrices must not be empty");
        assert!(matrices.windows(2).all(|m| m[0].range().end <= m[1].offset), "matrices must not overlap");
        Muon { matrices, ratio }
    }

    /// The matrices in order of their offsets.
    pub fn matrices(&self) -> &[Matrix] {
        &self.matrices
    }
}

/// Updates one matrix with Nesterov momentum: `p −= rate · gain · orthogonalise(g + μ m)` with `m = μ m + g`.
pub(crate) fn step<T: Compiled>(matrix: &Matrix, params: &mut [T], grads: &[T], momentum: &mut [T], rate: f64) {
    let decay = T::from_f64(MOMENTUM);
    let mut nesterov = Vec::with_capacity(params.len());
    for (m, &g) in momentum.iter_mut().zip(grads) {
        *m = *m * decay + g;
        nesterov.push(g + decay * *m);
    }
    T::orthogonalise(&mut nesterov, matrix.rows, matrix.cols);
    let rate = T::from_f64(rate * matrix.gain());
    params.iter_mut().zip(&nesterov).for_each(|(p, &x)| *p += -rate * x);
}

/// Replaces a row-major matrix by approximately the nearest orthogonal one. X is scaled to norm below one; then
/// [`NEWTON_SCHULZ_STEPS`] times X ← aX + (bA + cA²)X with A = XXᵀ.
pub(crate) fn orthogonalise<T: Real>(x: &mut [T], rows: usize, cols: usize) {
    let norm = x.iter().map(|x| x.to_f64().powi(2)).sum::<f64>().sqrt();
    let scale = T::from_f64(1.0 / (NORM_MARGIN * norm + NORM_EPSILON));
    x.iter_mut().for_each(|x| *x *= scale);
    // A has the size of the shorter side.
    let transposed = rows > cols;
    if transposed {
        let given = x.to_vec();
        transpose(&given, rows, cols, x);
    }
    let (short, long) = (rows.min(cols), rows.max(cols));
    let [a, b, c] = POLYNOMIAL.map(T::from_f64);
    let mut packed = vec![T::ZERO; packed_len::<T>(long, short).max(packed_len::<T>(short, long))];
    let (mut gram, mut square, mut next) = (vec![T::ZERO; short * short], vec![T::ZERO; short * short], x.to_vec());
    for _ in 0..NEWTON_SCHULZ_STEPS {
        // SAFETY: `packed` holds the larger of both operands, and every product writes a buffer of its size.
        unsafe {
            pack_matrix(packed.as_mut_ptr(), x.as_ptr(), 1, long, long, short);
            let sides = [short, long, short];
            T::dispatch(PackedProduct::plain(sides, x.as_ptr(), packed.as_ptr(), gram.as_mut_ptr()));
            pack_matrix(packed.as_mut_ptr(), gram.as_ptr(), short, 1, short, short);
            let sides = [short, short, short];
            T::dispatch(PackedProduct::plain(sides, gram.as_ptr(), packed.as_ptr(), square.as_mut_ptr()));
            square.iter_mut().zip(&gram).for_each(|(s, &g)| *s = b * g + c * *s);
            pack_matrix(packed.as_mut_ptr(), x.as_ptr(), long, 1, short, long);
            next.iter_mut().zip(&*x).for_each(|(n, &x)| *n = a * x);
            let sides = [short, short, long];
            let product = PackedProduct::plain(sides, square.as_ptr(), packed.as_ptr(), next.as_mut_ptr());
            T::dispatch(PackedProduct { accumulate: true, ..product });
        }
        x.copy_from_slice(&next);
    }
    if transposed {
        transpose(&next, short, long, x);
    }
}

/// Transposes a row-major matrix.
fn transpose<T: Copy>(from: &[T], rows: usize, cols: usize, to: &mut [T]) {
    for (c, column) in to.chunks_exact_mut(rows).enumerate() {
        column.iter_mut().enumerate().for_each(|(r, x)| *x = from[r * cols + c]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::gemm::tests::numbers;

    /// Singular values of the result are near one wherever those of the matrix are not tiny, and the singular
    /// directions stay.
    #[test]
    fn matrices_become_nearly_orthogonal_and_keep_their_directions() {
        for (rows, cols) in [(1, 1), (1, 7), (8, 8), (5, 40), (40, 5), (33, 70), (64, 32)] {
            let given: Vec<f64> = numbers(rows * cols, 3).into_iter().map(f64::from).collect();
            let mut x = given.clone();
            orthogonalise(&mut x, rows, cols);
            let short = rows.min(cols);
            let at = |m: &[f64], i: usize, j: usize| if rows <= cols { m[i * cols + j] } else { m[j * cols + i] };
            let product = |a: &[f64], b: &[f64], i: usize, j: usize| -> f64 {
                (0..rows.max(cols)).map(|k| at(a, i, k) * at(b, j, k)).sum()
            };
            // The means of the squares and of the fourth powers of the singular values bound their mean distance from
            // one.
            let gram = |i, j| product(&x, &x, i, j);
            let squares = (0..short).map(|i| gram(i, i)).sum::<f64>() / short as f64;
            let fourths = (0..short * short).map(|k| gram(k / short, k % short).powi(2)).sum::<f64>() / short as f64;
            let off = fourths - 2.0 * squares + 1.0;
            assert!(off < 0.25, "{rows} × {cols}: {squares}, {fourths}");
            // X is a polynomial of the given matrix, so X·Gᵀ is symmetric, with a positive diagonal.
            for i in 0..short {
                assert!(product(&x, &given, i, i) > 0.0);
                for j in 0..i {
                    let (a, b) = (product(&x, &given, i, j), product(&x, &given, j, i));
                    assert!((a - b).abs() < 1e-9, "{rows} × {cols}: {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn the_norm_of_a_gradient_does_not_matter_and_zero_gradients_give_zero_steps() {
        let matrix = Matrix { offset: 0, rows: 6, cols: 4 };
        let grads = numbers(24, 9);
        let moved = |scale: f32| {
            let (mut params, mut momentum) = (vec![0.0f32; 24], vec![0.0; 24]);
            step(&matrix, &mut params, &grads.iter().map(|g| g * scale).collect::<Vec<_>>(), &mut momentum, 0.1);
            params
        };
        let (small, large) = (moved(1e-2), moved(1e3));
        assert!(small.iter().zip(&large).all(|(a, b)| (a - b).abs() < 1e-4), "{small:?} and {large:?}");
        assert!(moved(0.0).iter().all(|x| *x == 0.0));
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn overlapping_matrices_are_refused() {
        Muon::new(vec![Matrix { offset: 5, rows: 2, cols: 2 }, Matrix { offset: 0, rows: 2, cols: 3 }], 1.0);
    }
}
