//! The curvature of a penalised logistic regression and what it says of single rows.
//!
//! `n·w²/2` products for `n` rows of `w` numbers, in tiles of 8 rows by one vector that stay in registers. They are taken in single precision, which is twice
//! as fast: where Newton's steps lead is decided by the slope alone, which is not, and odds left out need no more.

use setwise_engine::Real;
use setwise_engine::simd::{Kernel, Vector};

use super::regression::{Design, PAD};

/// Rows of a tile.
const TALL: usize = 8;
/// Rows whose products are summed while they are in the cache, in single precision.
const CHUNK: usize = 64;
/// Vectors of rows that go through a triangular solve side by side.
const SIDE: usize = 4;

/// Adds Σᵢ cᵢ·xᵢ·xᵢᵀ to the lower half of a matrix (and some of the upper).
pub(super) fn add_weighted_squares(design: &Design, curves: &[f64], out: &mut [f64]) {
    let stride = design.stride;
    let mut scaled = vec![0.0; CHUNK * stride];
    for (rows, curves) in design.single.chunks(CHUNK * stride).zip(curves.chunks(CHUNK)) {
        for (out, (row, c)) in scaled.chunks_exact_mut(stride).zip(rows.chunks_exact(stride).zip(curves)) {
            let c = *c as f32;
            out.iter_mut().zip(row).for_each(|(o, x)| *o = c * x);
        }
        // SAFETY: the kernel reads and writes slices, with their bounds checked.
        unsafe { f32::dispatch(Squares { scaled: &scaled[..rows.len()], rows, stride, out }) };
    }
}

/// The same in double precision, and slowly.
pub(super) fn add_exact_squares(design: &Design, curves: &[f64], out: &mut [f64]) {
    let stride = design.stride;
    for (row, c) in design.rows.chunks_exact(stride).zip(curves) {
        for (a, x) in row.iter().enumerate() {
            out[a * stride..=a * stride + a].iter_mut().zip(row).for_each(|(o, y)| *o += c * x * y);
        }
    }
}

/// Adds Σᵢ sᵢ·xᵢᵀ, tile by tile up to the diagonal.
struct Squares<'a> {
    scaled: &'a [f32],
    rows: &'a [f32],
    stride: usize,
    out: &'a mut [f64],
}

impl Kernel<f32> for Squares<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<f32>>(self) {
        let stride = self.stride;
        for a in (0..stride).step_by(TALL) {
            for b in (0..a + TALL).step_by(V::LANES) {
                // SAFETY: entered through `dispatch`.
                let mut sums = [unsafe { V::zero() }; TALL];
                for (x, y) in self.scaled.chunks_exact(stride).zip(self.rows.chunks_exact(stride)) {
                    let (x, y) = (&x[a..a + TALL], &y[b..b + V::LANES]);
                    // SAFETY: the slices hold what is read.
                    let y = unsafe { V::load(y.as_ptr()) };
                    for (sum, &x) in sums.iter_mut().zip(x) {
                        *sum = unsafe { V::splat(x).mul_add(y, *sum) };
                    }
                }
                for (k, sum) in sums.into_iter().enumerate() {
                    let mut found = [0.0; PAD];
                    // SAFETY: no vector has more lanes than that.
                    unsafe { sum.store(found.as_mut_ptr()) };
                    let out = &mut self.out[(a + k) * stride + b..][..V::LANES];
                    out.iter_mut().zip(found).for_each(|(o, s)| *o += f64::from(s));
                }
            }
        }
    }
}

/// xᵀH⁻¹x of every row, given the Cholesky factor of H.
pub(super) fn leverages(design: &Design, factor: &[f64]) -> Vec<f64> {
    let factor: Vec<f32> = factor.iter().map(|&x| x as f32).collect();
    // SAFETY: the kernel reads and writes slices, with their bounds checked.
    unsafe { f32::dispatch(Leverages { design, factor: &factor }) }
}

struct Leverages<'a> {
    design: &'a Design,
    factor: &'a [f32],
}

impl Kernel<f32> for Leverages<'_> {
    type Out = Vec<f64>;

    #[inline(always)]
    unsafe fn run<V: Vector<f32>>(self) -> Vec<f64> {
        let Design { width, stride, ref single, .. } = *self.design;
        let together = SIDE * V::LANES;
        let mut out = vec![0.0; self.design.len()];
        // Column by column the rows that are solved for together.
        let mut solved = vec![0.0; width * together];
        for (rows, out) in single.chunks(together * stride).zip(out.chunks_mut(together)) {
            for (r, row) in rows.chunks_exact(stride).enumerate() {
                solved.chunks_exact_mut(together).zip(row).for_each(|(z, x)| z[r] = *x);
            }
            // SAFETY, here and below: entered through `dispatch`, and every slice read or written holds `SIDE` vectors.
            let mut squares = [unsafe { V::zero() }; SIDE];
            for i in 0..width {
                let (before, own) = solved.split_at_mut(i * together);
                let own = &mut own[..together];
                let mut z: [V; SIDE] = std::array::from_fn(|k| unsafe { V::load(own[k * V::LANES..].as_ptr()) });
                for (l, before) in self.factor[i * stride..i * stride + i].iter().zip(before.chunks_exact(together)) {
                    let l = unsafe { V::splat(-l) };
                    for (k, z) in z.iter_mut().enumerate() {
                        *z = unsafe { l.mul_add(V::load(before[k * V::LANES..].as_ptr()), *z) };
                    }
                }
                let scale = unsafe { V::splat(self.factor[i * stride + i].recip()) };
                for (k, (z, square)) in z.into_iter().zip(&mut squares).enumerate() {
                    unsafe {
                        let z = z.mul(scale);
                        z.store(own[k * V::LANES..].as_mut_ptr());
                        *square = z.mul_add(z, *square);
                    }
                }
            }
            let mut found = [0.0; SIDE * PAD];
            for (k, square) in squares.into_iter().enumerate() {
                unsafe { square.store(found[k * V::LANES..].as_mut_ptr()) };
            }
            out.iter_mut().zip(found).for_each(|(out, square)| *out = f64::from(square));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::regression::{factorise, solve};
    use super::*;

    #[test]
    fn many_columns_and_rows_beyond_a_chunk_have_the_factor_of_their_curvature() {
        let n = 150;
        let rows: Vec<f64> = (0..n * 21).map(|i| f64::from((i * 7919 % 1009) as u32) / 500.0 - 1.0).collect();
        let design = Design::standardised(&rows, 21, 70);
        let curves: Vec<f64> = (0..n).map(|i| 0.1 + (i % 5) as f64 / 10.0).collect();
        let s = design.stride;
        let mut h = vec![0.0; s * s];
        add_weighted_squares(&design, &curves, &mut h);
        for a in 0..s {
            h[a * s + a] += 1.0;
            for b in 0..=a {
                let one = |(r, c): (&[f64], &f64)| c * r[a] * r[b];
                let sum: f64 = design.rows.chunks_exact(s).zip(&curves).map(one).sum();
                assert!((h[a * s + b] - sum - if a == b { 1.0 } else { 0.0 }).abs() < 1e-4);
            }
        }
        let mut exact = vec![0.0; s * s];
        add_exact_squares(&design, &curves, &mut exact);
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
        let found = leverages(&design, &h);
        assert_eq!(found.len(), n);
        for (row, found) in design.rows.chunks_exact(s).zip(found) {
            let mut solved = row.to_vec();
            solve(&h, s, &mut solved);
            let exact: f64 = row.iter().zip(&solved).map(|(x, z)| x * z).sum();
            assert!((found - exact).abs() < 1e-4 * exact, "{found}, not {exact}");
        }
    }

    /// All tests of the estimators.
    #[test]
    fn narrower_vectors_pass_the_same_tests() {
        setwise_engine::simd::test_with_narrower_vectors("estimate::");
    }
}
