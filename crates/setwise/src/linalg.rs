//! Dense linear algebra on small symmetric matrices: row-major slices of `n` by `n` numbers.
//!
//! Samplers and estimators factor thousands of matrices as wide as one point. Factors and solutions are computed in
//! place.

/// Mean and covariance of rows of `width` numbers. The divisor of the covariance is n − `ddof`.
///
/// # Shapes
/// `rows` is `[n, width]`, the mean `[width]`, the covariance `[width, width]`.
pub(crate) fn moments(rows: &[f64], width: usize, ddof: usize) -> (Vec<f64>, Vec<f64>) {
    let n = rows.len() / width;
    let mut mean = vec![0.0; width];
    for row in rows.chunks_exact(width) {
        for (m, x) in mean.iter_mut().zip(row) {
            *m += x;
        }
    }
    mean.iter_mut().for_each(|m| *m /= n as f64);
    let mut cov = vec![0.0; width * width];
    let mut centred = vec![0.0; width];
    for row in rows.chunks_exact(width) {
        for (c, (x, m)) in centred.iter_mut().zip(row.iter().zip(&mean)) {
            *c = x - m;
        }
        for i in 0..width {
            let x = centred[i];
            for (c, y) in cov[i * width..i * width + i + 1].iter_mut().zip(&centred) {
                *c += x * y;
            }
        }
    }
    let scale = 1.0 / n.saturating_sub(ddof).max(1) as f64;
    for i in 0..width {
        for j in 0..=i {
            let c = cov[i * width + j] * scale;
            cov[i * width + j] = c;
            cov[j * width + i] = c;
        }
    }
    (mean, cov)
}

/// Σ aᵢ·bᵢ, in partial sums that vector instructions add at once.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (mut a, mut b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (a, b) in a.by_ref().zip(b.by_ref()) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (x, y))| *sum += x * y);
    }
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f64>() + rest
}

/// Cholesky factorisation in place: A becomes the lower triangular L with L·Lᵀ = A, with zeros above the diagonal.
///
/// Fails if A is not positive definite, with the index of the first pivot at or below 10⁻¹⁴ of the largest diagonal
/// entry.
pub fn cholesky(a: &mut [f64], n: usize) -> Result<(), usize> {
    let max_diagonal = (0..n).map(|i| a[i * n + i]).fold(0.0, f64::max);
    for j in 0..n {
        let (done, rest) = a.split_at_mut((j + 1) * n);
        let row = &mut done[j * n..];
        let pivot = row[j] - dot(&row[..j], &row[..j]);
        if pivot.is_nan() || pivot <= max_diagonal * 1e-14 {
            return Err(j);
        }
        let pivot = pivot.sqrt();
        row[j] = pivot;
        row[j + 1..].fill(0.0);
        for below in rest.chunks_exact_mut(n) {
            below[j] = (below[j] - dot(&below[..j], &row[..j])) / pivot;
        }
    }
    Ok(())
}

/// log det A from the Cholesky factor of A.
#[cfg(any(feature = "estimate", test))]
pub(crate) fn log_det(factor: &[f64], n: usize) -> f64 {
    2.0 * (0..n).map(|i| factor[i * n + i].ln()).sum::<f64>()
}

/// Solves L·x = b by forward substitution, in place of b.
pub fn solve_lower(factor: &[f64], n: usize, b: &mut [f64]) {
    for i in 0..n {
        let row = &factor[i * n..i * n + i];
        b[i] = (b[i] - dot(row, &b[..i])) / factor[i * n + i];
    }
}

/// Solves Lᵀ·x = b by back substitution, in place of b.
pub fn solve_lower_transposed(factor: &[f64], n: usize, b: &mut [f64]) {
    for i in (0..n).rev() {
        let (before, rest) = b.split_at_mut(i);
        rest[0] /= factor[i * n + i];
        for (x, l) in before.iter_mut().zip(&factor[i * n..i * n + i]) {
            *x -= l * rest[0];
        }
    }
}

/// Eigenvalues of a symmetric matrix, unsorted, and its eigenvectors as rows, by cyclic Jacobi rotations. A is
/// overwritten.
///
/// The eigenvectors are orthonormal to rounding error, even for eigenvalues that are zero or equal.
pub(crate) fn symmetric_eigen(a: &mut [f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut vectors = vec![0.0; n * n];
    for i in 0..n {
        vectors[i * n + i] = 1.0;
    }
    for _sweep in 0..60 {
        let (mut off, mut all) = (0.0, 0.0);
        for i in 0..n {
            for j in 0..n {
                let square = a[i * n + j] * a[i * n + j];
                all += square;
                off += if i == j { 0.0 } else { square };
            }
        }
        // A matrix with NaN never converges; its sweeps end here too.
        if off.is_nan() || off <= all * 1e-28 {
            break;
        }
        // If every entry is at most this large, the sum of squares is below the tolerance above.
        let threshold = (all * 1e-29).sqrt() / n as f64;
        for p in 0..n {
            for q in p + 1..n {
                rotate(a, &mut vectors, n, p, q, threshold);
            }
        }
    }
    ((0..n).map(|i| a[i * n + i]).collect(), vectors)
}

/// Applies the Jacobi rotation that zeroes a[p, q], unless its magnitude is at most `threshold`.
fn rotate(a: &mut [f64], vectors: &mut [f64], n: usize, p: usize, q: usize, threshold: f64) {
    let apq = a[p * n + q];
    if apq.abs() <= threshold {
        return;
    }
    let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * apq);
    let t =
        if theta.abs() > 1e150 { 0.5 / theta } else { theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt()) };
    let c = 1.0 / (t * t + 1.0).sqrt();
    let s = t * c;
    let (app, aqq) = (a[p * n + p] - t * apq, a[q * n + q] + t * apq);
    for m in [&mut *a, vectors] {
        let (upper, lower) = m.split_at_mut(q * n);
        for (x, y) in upper[p * n..(p + 1) * n].iter_mut().zip(&mut lower[..n]) {
            (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
        }
    }
    // A is symmetric: the loop above rotates contiguous rows, and columns p and q are copies of them.
    for k in 0..n {
        a[k * n + p] = a[p * n + k];
        a[k * n + q] = a[q * n + k];
    }
    (a[p * n + p], a[q * n + q]) = (app, aqq);
    (a[p * n + q], a[q * n + p]) = (0.0, 0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A·Aᵀ + shift·I for a fixed A.
    fn positive(n: usize, shift: f64) -> Vec<f64> {
        let a: Vec<f64> = (0..n * n).map(|i| ((i * 37 + 11) % 17) as f64 / 8.0 - 1.0).collect();
        let mut m = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..n {
                m[i * n + j] =
                    (0..n).map(|k| a[i * n + k] * a[j * n + k]).sum::<f64>() + if i == j { shift } else { 0.0 };
            }
        }
        m
    }

    #[test]
    fn the_cholesky_factor_times_its_transpose_is_the_matrix() {
        for n in [1, 2, 5, 16] {
            let m = positive(n, 0.5);
            let mut l = m.clone();
            cholesky(&mut l, n).unwrap();
            for i in 0..n {
                for j in 0..n {
                    let x: f64 = (0..n).map(|k| l[i * n + k] * l[j * n + k]).sum();
                    assert!((x - m[i * n + j]).abs() < 1e-12, "{i} {j}");
                }
            }
            let mut x = vec![1.0; n];
            solve_lower(&l, n, &mut x);
            for i in 0..n {
                let b: f64 = (0..n).map(|k| l[i * n + k] * x[k]).sum();
                assert!((b - 1.0).abs() < 1e-12);
            }
            solve_lower_transposed(&l, n, &mut x);
            for i in 0..n {
                let b: f64 = (0..n).map(|k| m[i * n + k] * x[k]).sum();
                assert!((b - 1.0).abs() < 1e-9, "both substitutions together solve A·x = b: {b}");
            }
        }
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_has_no_factor() {
        assert_eq!(cholesky(&mut [1.0, 2.0, 2.0, 4.0], 2), Err(1));
        assert_eq!(cholesky(&mut [0.0], 1), Err(0));
        assert_eq!(cholesky(&mut [f64::NAN], 1), Err(0));
    }

    #[test]
    fn eigenvectors_diagonalise_and_are_orthonormal_even_without_full_rank() {
        for n in [1, 2, 3, 8, 16] {
            let rank_one: Vec<f64> = (0..n * n).map(|i| ((i / n + 1) * (i % n + 1)) as f64).collect();
            for m in [rank_one, positive(n, 0.0)] {
                let (values, vectors) = symmetric_eigen(&mut m.clone(), n);
                let scale = values.iter().fold(0.0f64, |a, v| a.max(v.abs()));
                for i in 0..n {
                    for j in 0..n {
                        let dot: f64 = (0..n).map(|k| vectors[i * n + k] * vectors[j * n + k]).sum();
                        assert!((dot - if i == j { 1.0 } else { 0.0 }).abs() < 1e-13);
                        let x: f64 = (0..n).map(|k| values[k] * vectors[k * n + i] * vectors[k * n + j]).sum();
                        assert!((x - m[i * n + j]).abs() < 1e-12 * scale, "{n}: {i} {j}");
                    }
                }
            }
        }
    }

    #[test]
    fn moments_equal_their_definition() {
        let (mean, cov) = moments(&[1.0, 2.0, 3.0, 6.0, 5.0, 1.0], 2, 1);
        assert_eq!(mean, [3.0, 3.0]);
        assert_eq!(cov, [4.0, -1.0, -1.0, 7.0]);
    }
}
