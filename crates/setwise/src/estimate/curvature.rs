//! Hessians and leverages of a penalised logistic regression.
//!
//! A Hessian of n rows of width w takes n·w²/2 products, in register tiles of 8 rows by one vector. Products are in
//! f32, which is twice as fast. The limit of Newton's method depends on the gradient only, which is in f64.
//! Leave-one-out log odds need no more than f32.

use setwise_engine::Real;
use setwise_engine::simd::{Kernel, Vector};

use super::regression::{Design, PAD};

/// Rows of a register tile.
const TILE_ROWS: usize = 8;
/// Rows whose products are summed in f32 while they are in the cache.
const CHUNK: usize = 64;
/// Vectors in a triangular solve; each lane holds one row of the design.
const VECTORS: usize = 4;

/// Adds the weighted Gram matrix Σᵢ cᵢ·xᵢ·xᵢᵀ to the lower triangle of `out`, `[stride, stride]`.
///
/// Tiles on the diagonal also add to some elements above it, which are never read.
pub(super) fn add_weighted_gram(design: &Design, curvatures: &[f64], out: &mut [f64]) {
    let stride = design.stride;
    let mut scaled = vec![0.0; CHUNK * stride];
    for (rows, curvatures) in design.rows_f32.chunks(CHUNK * stride).zip(curvatures.chunks(CHUNK)) {
        for (out, (row, c)) in scaled.chunks_exact_mut(stride).zip(rows.chunks_exact(stride).zip(curvatures)) {
            let c = *c as f32;
            out.iter_mut().zip(row).for_each(|(o, x)| *o = c * x);
        }
        // SAFETY: the kernel reads and writes slices, with their bounds checked.
        unsafe { f32::dispatch(Squares { scaled: &scaled[..rows.len()], rows, stride, out }) };
    }
}

/// The same in f64, without tiles.
pub(super) fn add_weighted_gram_f64(design: &Design, curvatures: &[f64], out: &mut [f64]) {
    let stride = design.stride;
    for (row, c) in design.rows.chunks_exact(stride).zip(curvatures) {
        for (a, x) in row.iter().enumerate() {
            out[a * stride..=a * stride + a].iter_mut().zip(row).for_each(|(o, y)| *o += c * x * y);
        }
    }
}

/// Adds Σᵢ sᵢ·xᵢᵀ to `out`, `[stride, stride]`, tile by tile up to the diagonal.
///
/// `scaled` (sᵢ) and `rows` (xᵢ) are `[n, stride]` with the same n. A tile of `TILE_ROWS` by one vector is summed over
/// all n rows in registers, in f32, and added to `out` in f64.
struct Squares<'a> {
    scaled: &'a [f32],
    rows: &'a [f32],
    stride: usize,
    out: &'a mut [f64],
}

impl Kernel<f32> for Squares<'_> {
    type Out = ();

    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn run<V: Vector<f32>>(self) {
        let stride = self.stride;
        for a in (0..stride).step_by(TILE_ROWS) {
            for b in (0..a + TILE_ROWS).step_by(V::LANES) {
                // SAFETY: the caller's contract: the machine has the instructions of `V`.
                let mut sums = [unsafe { V::zero() }; TILE_ROWS];
                for (x, y) in self.scaled.chunks_exact(stride).zip(self.rows.chunks_exact(stride)) {
                    let (x, y) = (&x[a..a + TILE_ROWS], &y[b..b + V::LANES]);
                    // SAFETY: the slice `y` has as many numbers as the vector has lanes.
                    let y = unsafe { V::load(y.as_ptr()) };
                    for (sum, &x) in sums.iter_mut().zip(x) {
                        // SAFETY: the caller's contract: the machine has the instructions of `V`.
                        *sum = unsafe { V::splat(x).mul_add(y, *sum) };
                    }
                }
                for (k, sum) in sums.into_iter().enumerate() {
                    let mut lanes = [0.0; PAD];
                    // SAFETY: `lanes` has `PAD` numbers, and no vector has more lanes.
                    unsafe { sum.store(lanes.as_mut_ptr()) };
                    let out = &mut self.out[(a + k) * stride + b..][..V::LANES];
                    out.iter_mut().zip(lanes).for_each(|(o, s)| *o += f64::from(s));
                }
            }
        }
    }
}

/// Leverages xᵀH⁻¹x = ‖L⁻¹x‖² of all rows, where L is the Cholesky factor of H.
pub(super) fn leverages(design: &Design, factor: &[f64]) -> Vec<f64> {
    let factor: Vec<f32> = factor.iter().map(|&x| x as f32).collect();
    // SAFETY: the kernel reads and writes slices, with their bounds checked.
    unsafe { f32::dispatch(Leverages { design, factor: &factor }) }
}

/// Solves L·z = x for `VECTORS` vectors of rows x at a time by forward substitution, in f32, and sums z².
///
/// `factor` is L, `[stride, stride]`. Returns one number for each row of the design.
struct Leverages<'a> {
    design: &'a Design,
    factor: &'a [f32],
}

impl Kernel<f32> for Leverages<'_> {
    type Out = Vec<f64>;

    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn run<V: Vector<f32>>(self) -> Vec<f64> {
        let Design { width, stride, ref rows_f32, .. } = *self.design;
        let block = VECTORS * V::LANES;
        let mut out = vec![0.0; self.design.len()];
        // z of a block, transposed: `[width, block]`. It starts as x.
        let mut solved = vec![0.0; width * block];
        for (rows, out) in rows_f32.chunks(block * stride).zip(out.chunks_mut(block)) {
            for (r, row) in rows.chunks_exact(stride).enumerate() {
                solved.chunks_exact_mut(block).zip(row).for_each(|(z, x)| z[r] = *x);
            }
            // SAFETY: the caller's contract: the machine has the instructions of `V`.
            let mut squares = [unsafe { V::zero() }; VECTORS];
            for i in 0..width {
                let (before, current) = solved.split_at_mut(i * block);
                let current = &mut current[..block];
                // SAFETY: `current` has `VECTORS` vectors, of which this is the k-th.
                let mut z: [V; VECTORS] = std::array::from_fn(|k| unsafe { V::load(current[k * V::LANES..].as_ptr()) });
                for (l, before) in self.factor[i * stride..i * stride + i].iter().zip(before.chunks_exact(block)) {
                    // SAFETY: the caller's contract: the machine has the instructions of `V`.
                    let l = unsafe { V::splat(-l) };
                    for (k, z) in z.iter_mut().enumerate() {
                        // SAFETY: `before` has `VECTORS` vectors, of which this is the k-th.
                        *z = unsafe { l.mul_add(V::load(before[k * V::LANES..].as_ptr()), *z) };
                    }
                }
                // SAFETY: the caller's contract: the machine has the instructions of `V`.
                let scale = unsafe { V::splat(self.factor[i * stride + i].recip()) };
                for (k, (z, square)) in z.into_iter().zip(&mut squares).enumerate() {
                    // SAFETY: `current` has `VECTORS` vectors, of which this is the k-th.
                    unsafe {
                        let z = z.mul(scale);
                        z.store(current[k * V::LANES..].as_mut_ptr());
                        *square = z.mul_add(z, *square);
                    }
                }
            }
            let mut lanes = [0.0; VECTORS * PAD];
            for (k, square) in squares.into_iter().enumerate() {
                // SAFETY: `lanes` holds `VECTORS` vectors of at most `PAD` lanes, of which this is the k-th.
                unsafe { square.store(lanes[k * V::LANES..].as_mut_ptr()) };
            }
            out.iter_mut().zip(lanes).for_each(|(out, square)| *out = f64::from(square));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::regression::{factorise, solve};
    use super::*;

    #[test]
    fn gram_matrices_factors_and_leverages_agree_with_sums_in_f64() {
        let n = 150;
        let rows: Vec<f64> = (0..n * 21).map(|i| f64::from((i * 7919 % 1009) as u32) / 500.0 - 1.0).collect();
        let design = Design::standardised(&rows, 21, 70);
        let curvatures: Vec<f64> = (0..n).map(|i| 0.1 + (i % 5) as f64 / 10.0).collect();
        let s = design.stride;
        let mut h = vec![0.0; s * s];
        add_weighted_gram(&design, &curvatures, &mut h);
        for a in 0..s {
            h[a * s + a] += 1.0;
            for b in 0..=a {
                let term = |(r, c): (&[f64], &f64)| c * r[a] * r[b];
                let sum: f64 = design.rows.chunks_exact(s).zip(&curvatures).map(term).sum();
                assert!((h[a * s + b] - sum - if a == b { 1.0 } else { 0.0 }).abs() < 1e-4);
            }
        }
        let mut exact = vec![0.0; s * s];
        add_weighted_gram_f64(&design, &curvatures, &mut exact);
        assert!(
            (0..s * s)
                .filter(|i| i % s <= i / s)
                .all(|i| (exact[i] + f64::from(u8::from(i % s == i / s)) - h[i]).abs() < 1e-4)
        );
        let kept = h.clone();
        assert!(factorise(&mut h, s));
        for a in 0..s {
            for b in 0..=a {
                let product: f64 = (0..=b).map(|k| h[a * s + k] * h[b * s + k]).sum();
                assert!((product - kept[a * s + b]).abs() < 1e-9);
            }
        }
        let leverages = leverages(&design, &h);
        assert_eq!(leverages.len(), n);
        for (row, leverage) in design.rows.chunks_exact(s).zip(leverages) {
            let mut solved = row.to_vec();
            solve(&h, s, &mut solved);
            let exact: f64 = row.iter().zip(&solved).map(|(x, z)| x * z).sum();
            assert!((leverage - exact).abs() < 1e-4 * exact, "{leverage}, not {exact}");
        }
    }

    /// Runs all tests of the estimators again with narrower vectors.
    #[test]
    fn narrower_vectors_pass_the_same_tests() {
        setwise_engine::simd::test_with_narrower_vectors("estimate::");
    }
}
