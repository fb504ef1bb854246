//! Penalised logistic regression by Newton's method.
//!
//! Rows are padded to whole vectors and stand one after another. A step costs one pass for the curvature, `n·w²/2` products in tiles of 8 rows by one
//! vector that stay in registers, and a few passes of `n·w`. Curvature and leverages are taken in single precision, which is twice as fast: where the steps
//! lead is decided by the slope alone, which is not, and odds left out need no more.

use setwise_engine::Real;
use setwise_engine::simd::{Isa, Kernel, Vector, isa};

use super::exponential::exp;
use crate::{Error, Result};

/// Newton steps at most.
const STEPS: usize = 30;
/// Numbers that rows are padded to a multiple of: no vector has more.
const PAD: usize = 16;
/// Rows of a tile.
const TALL: usize = 8;
/// Rows whose products are summed while they are in the cache, in single precision.
const CHUNK: usize = 64;
/// Vectors of rows that go through a triangular solve side by side.
const SIDE: usize = 4;
/// Doubles that loops take together.
const LANES: usize = 8;

/// Rows of features, those of the first class before those of the second. A one for the intercept stands at the end of each.
pub(super) struct Design {
    /// Features and intercept.
    width: usize,
    stride: usize,
    positive: usize,
    rows: Vec<f64>,
    /// The same rounded.
    single: Vec<f32>,
}

/// A fitted regression.
pub(super) struct Fit {
    /// One for each feature, then the intercept.
    pub weights: Vec<f64>,
    /// Log odds of the first class, row by row.
    pub odds: Vec<f64>,
    /// Probabilities of the first class, row by row.
    chances: Vec<f64>,
    /// Cholesky factor of the curvature.
    factor: Vec<f64>,
}

impl Design {
    /// Features of all rows, `positive` of them of the first class, scaled to mean zero and deviation one; those that do not vary become
    /// zero.
    pub fn standardised(features: &[f64], columns: usize, positive: usize) -> Self {
        let n = features.len() / columns;
        let (width, stride) = (columns + 1, (columns + 1).next_multiple_of(PAD));
        let (mut mean, mut scale) = (vec![0.0; columns], vec![0.0; columns]);
        for row in features.chunks_exact(columns) {
            mean.iter_mut().zip(row).for_each(|(m, x)| *m += x);
        }
        mean.iter_mut().for_each(|m| *m /= n as f64);
        for row in features.chunks_exact(columns) {
            scale.iter_mut().zip(row.iter().zip(&mean)).for_each(|(s, (x, m))| *s += (x - m) * (x - m));
        }
        scale.iter_mut().zip(&mean).for_each(|(s, m)| *s = inverse_deviation(*s, *m, n as f64));
        let mut rows = vec![0.0; n * stride];
        for (out, row) in rows.chunks_exact_mut(stride).zip(features.chunks_exact(columns)) {
            for (o, (x, (m, s))) in out.iter_mut().zip(row.iter().zip(mean.iter().zip(&scale))) {
                *o = (x - m) * s;
            }
            out[columns] = 1.0;
        }
        Self::of(width, stride, positive, rows)
    }

    fn of(width: usize, stride: usize, positive: usize, rows: Vec<f64>) -> Self {
        let single = rows.iter().map(|&x| x as f32).collect();
        Design { width, stride, positive, rows, single }
    }

    fn len(&self) -> usize {
        self.rows.len() / self.stride
    }

    /// Coefficients that maximise the likelihood less half their squares (the intercept is free), by Newton steps that are shortened until
    /// the likelihood rises, from `start` on, until a step is shorter than `enough`, relatively.
    pub fn fit(&self, start: &[f64], enough: f64) -> Result<Fit> {
        // SAFETY: `isa` has found the instructions each entry point enables.
        let found = unsafe {
            match isa() {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => newton_avx512(self, start, enough),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => newton_avx2(self, start, enough),
                _ => newton::<false>(self, start, enough),
            }
        };
        found.ok_or_else(|| {
            Error::Estimate("the classifier's equations cannot be solved; rescale the columns".to_owned())
        })
    }

    /// The log odds each row would have if it had been left out of the fit: a Newton step away from it,
    /// η − h·e / (1 − c·h) with h = xᵀH⁻¹x, error e and curvature c of the row.
    pub fn odds_left_out(&self, fit: &Fit) -> Vec<f64> {
        let factor: Vec<f32> = fit.factor.iter().map(|&x| x as f32).collect();
        let leverages = f32::dispatch(Leverages { design: self, factor: &factor });
        let left_out = |i: usize| {
            let (p, h) = (fit.chances[i], leverages[i]);
            let error = f64::from(u8::from(i < self.positive)) - p;
            fit.odds[i] - h * error / (1.0 - (p * (1.0 - p) * h).min(0.95))
        };
        (0..self.len()).map(left_out).collect()
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,fma")]
unsafe fn newton_avx512(design: &Design, start: &[f64], enough: f64) -> Option<Fit> {
    newton::<true>(design, start, enough)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn newton_avx2(design: &Design, start: &[f64], enough: f64) -> Option<Fit> {
    newton::<true>(design, start, enough)
}

#[inline(always)]
fn newton<const FUSED: bool>(design: &Design, start: &[f64], enough: f64) -> Option<Fit> {
    let (width, stride, n) = (design.width, design.stride, design.len());
    let mut weights = vec![0.0; stride];
    weights[..width].copy_from_slice(start);
    let mut odds = vec![0.0; n];
    odds_of(design, &weights, &mut odds);
    // Exponentials of the odds' sizes, less than one: likelihoods and probabilities are made of them.
    let mut falls = vec![0.0; n];
    let mut current = objective::<FUSED>(design, &weights, &odds, &mut falls);
    let (mut next, mut next_odds, mut next_falls) = (weights.clone(), odds.clone(), falls.clone());
    let (mut hessian, mut curves, mut chances) = (vec![0.0; stride * stride], vec![0.0; n], vec![0.0; n]);
    for _ in 0..STEPS {
        let mut step: Vec<f64> = weights.iter().map(|w| -w).collect();
        step[width - 1] = 0.0;
        chances_of(&odds, &falls, &mut chances);
        for (curve, p) in curves.iter_mut().zip(&chances) {
            *curve = (p * (1.0 - p)).max(1e-12);
        }
        add_slope::<FUSED>(design, &chances, &mut step);
        let penalise = |hessian: &mut [f64]| {
            for a in 0..stride {
                hessian[a * stride + a] += if a + 1 == width { 1e-9 } else { 1.0 };
            }
        };
        hessian.fill(0.0);
        add_weighted_squares(design, &curves, &mut hessian);
        penalise(&mut hessian);
        if !factorise(&mut hessian, stride) {
            // Rounding may have taken what little is left of the intercept's curvature.
            hessian.fill(0.0);
            add_exact_squares(design, &curves, &mut hessian);
            penalise(&mut hessian);
            if !factorise(&mut hessian, stride) {
                return None;
            }
        }
        solve(&hessian, stride, &mut step);
        let mut share = 1.0;
        let value = loop {
            next.iter_mut().zip(weights.iter().zip(&step)).for_each(|(n, (w, s))| *n = w + share * s);
            odds_of(design, &next, &mut next_odds);
            let value = objective::<FUSED>(design, &next, &next_odds, &mut next_falls);
            if value >= current || share < 1e-6 {
                break value;
            }
            share *= 0.5;
        };
        std::mem::swap(&mut weights, &mut next);
        std::mem::swap(&mut odds, &mut next_odds);
        std::mem::swap(&mut falls, &mut next_falls);
        current = value;
        let length = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
        if length(&step) * share < enough * (1.0 + length(&weights)) {
            break;
        }
    }
    weights.truncate(width);
    chances_of(&odds, &falls, &mut chances);
    Some(Fit { weights, odds, chances, factor: hessian })
}

/// Probabilities of the first class.
#[inline(always)]
fn chances_of(odds: &[f64], falls: &[f64], chances: &mut [f64]) {
    for (p, (s, fall)) in chances.iter_mut().zip(odds.iter().zip(falls)) {
        *p = if *s < 0.0 { *fall } else { 1.0 } / (1.0 + fall);
    }
}

#[inline(always)]
fn odds_of(design: &Design, weights: &[f64], odds: &mut [f64]) {
    for (out, row) in odds.iter_mut().zip(design.rows.chunks_exact(design.stride)) {
        let mut sums = [0.0; PAD];
        for (x, w) in row.as_chunks::<PAD>().0.iter().zip(weights.as_chunks::<PAD>().0) {
            for k in 0..PAD {
                sums[k] += x[k] * w[k];
            }
        }
        let mut half = PAD / 2;
        while half > 0 {
            for k in 0..half {
                sums[k] += sums[k + half];
            }
            half /= 2;
        }
        *out = sums[0];
    }
}

/// Adds the slope of the likelihood, Σᵢ eᵢ·xᵢ with the rows' errors.
#[inline(always)]
fn add_slope<const FUSED: bool>(design: &Design, chances: &[f64], slope: &mut [f64]) {
    const TOGETHER: usize = 4;
    let stride = design.stride;
    for (block, (rows, chances)) in design.rows.chunks(TOGETHER * stride).zip(chances.chunks(TOGETHER)).enumerate() {
        let error = |i: usize| f64::from(u8::from(block * TOGETHER + i < design.positive)) - chances[i];
        let errors: [f64; TOGETHER] = std::array::from_fn(|i| if i < chances.len() { error(i) } else { 0.0 });
        for (k, slope) in slope.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut sum = *slope;
            for (row, error) in rows.chunks_exact(stride).zip(errors) {
                for (s, x) in sum.iter_mut().zip(&row.as_chunks::<LANES>().0[k]) {
                    *s = if FUSED { error.mul_add(*x, *s) } else { *s + error * x };
                }
            }
            *slope = sum;
        }
    }
}

/// Rows whose factors 1 + e^−s, none above two, have a product that is no larger than numbers can be.
const FACTORS: usize = 512 * LANES;

/// The penalised log likelihood; `falls` becomes the exponentials of the odds' sizes, negative.
#[inline(always)]
fn objective<const FUSED: bool>(design: &Design, weights: &[f64], odds: &[f64], falls: &mut [f64]) -> f64 {
    falls.iter_mut().zip(odds).for_each(|(fall, s)| *fall = exp::<FUSED>(-s.abs()));
    // Σ −log(1 + e^−s) without overflow, and with few logarithms: those of products.
    let mut likelihood = 0.0;
    for (i, s) in odds.iter().enumerate() {
        likelihood += if i < design.positive { *s } else { -s }.min(0.0);
    }
    for falls in falls.chunks(FACTORS) {
        let mut products = [1.0; LANES];
        let (whole, rest) = falls.as_chunks::<LANES>();
        for falls in whole {
            products.iter_mut().zip(falls).for_each(|(product, fall)| *product *= 1.0 + fall);
        }
        products.iter_mut().zip(rest).for_each(|(product, fall)| *product *= 1.0 + fall);
        likelihood -= products.iter().map(|product| product.ln()).sum::<f64>();
    }
    likelihood - 0.5 * weights[..design.width - 1].iter().map(|w| w * w).sum::<f64>()
}

/// Adds Σᵢ cᵢ·xᵢ·xᵢᵀ to the lower half of a matrix (and some of the upper).
fn add_weighted_squares(design: &Design, curves: &[f64], out: &mut [f64]) {
    let stride = design.stride;
    let mut scaled = vec![0.0; CHUNK * stride];
    for (rows, curves) in design.single.chunks(CHUNK * stride).zip(curves.chunks(CHUNK)) {
        for (out, (row, c)) in scaled.chunks_exact_mut(stride).zip(rows.chunks_exact(stride).zip(curves)) {
            let c = *c as f32;
            out.iter_mut().zip(row).for_each(|(o, x)| *o = c * x);
        }
        f32::dispatch(Squares { scaled: &scaled[..rows.len()], rows, stride, out });
    }
}

/// The same in double precision, and slowly.
fn add_exact_squares(design: &Design, curves: &[f64], out: &mut [f64]) {
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

/// The Cholesky factor in place of a matrix's lower half, column by column, each taken off the rest at once.
#[inline(always)]
fn factorise(a: &mut [f64], n: usize) -> bool {
    let mut column = vec![0.0; n];
    for j in 0..n {
        let pivot = a[j * n + j];
        if pivot.is_nan() || pivot <= 1e-12 {
            return false;
        }
        let scale = pivot.sqrt().recip();
        for i in j..n {
            column[i] = a[i * n + j] * scale;
            a[i * n + j] = column[i];
        }
        for i in j + 1..n {
            let c = column[i];
            a[i * n + j + 1..i * n + i + 1].iter_mut().zip(&column[j + 1..]).for_each(|(x, y)| *x -= c * y);
        }
    }
    true
}

/// Solves L·Lᵀ·x = b in place of b.
#[inline(always)]
fn solve(factor: &[f64], n: usize, b: &mut [f64]) {
    crate::linalg::solve_lower(factor, n, b);
    crate::linalg::solve_lower_transposed(factor, n, b);
}

/// One over the standard deviation of a column of `n` numbers, from their mean and the sum of squares about it; nothing for a column of one
/// value, which varies by rounding alone.
pub(super) fn inverse_deviation(squares: f64, mean: f64, n: f64) -> f64 {
    if squares > 1e-20 * n * mean * mean { (squares / n).sqrt().recip() } else { 0.0 }
}

/// xᵀH⁻¹x of every row.
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
    use super::*;

    fn features() -> Vec<f64> {
        (0..120).map(|i| f64::from(i * 37 % 101) / 50.0 + f64::from(u8::from(i < 60)) * 0.7).collect()
    }

    #[test]
    fn the_coefficients_have_no_slope_left() {
        let design = Design::standardised(&features(), 3, 20);
        let fit = design.fit(&[0.0; 4], 1e-8).unwrap();
        for a in 0..4 {
            let one = |(i, r): (usize, &[f64])| {
                let p = 1.0 / (1.0 + (-fit.odds[i]).exp());
                (f64::from(u8::from(i < 20)) - p) * r[a]
            };
            let slope = design.rows.chunks_exact(design.stride).enumerate().map(one).sum::<f64>();
            let penalty = if a < 3 { fit.weights[a] } else { 0.0 };
            assert!((slope - penalty).abs() < 1e-6, "{a}: {slope} and {penalty}");
        }
    }

    #[test]
    fn odds_left_out_are_nearly_those_of_fits_without_the_row() {
        let (features, columns) = (features(), 3);
        let design = Design::standardised(&features, columns, 20);
        let fit = design.fit(&[0.0; 4], 1e-9).unwrap();
        let quick = design.odds_left_out(&fit);
        for i in [3, 30] {
            // The same scaling, without the row.
            let mut rows = design.rows.clone();
            rows.drain(i * design.stride..(i + 1) * design.stride);
            let positive = if i < 20 { 19 } else { 20 };
            let without = Design::of(4, design.stride, positive, rows);
            let other = without.fit(&[0.0; 4], 1e-9).unwrap();
            let row = &design.rows[i * design.stride..][..4];
            let exact: f64 = row.iter().zip(&other.weights).map(|(x, w)| x * w).sum();
            let moved = (exact - fit.odds[i]).abs();
            assert!((quick[i] - exact).abs() < 0.15 * moved + 1e-6, "{i}: {} {exact} {}", quick[i], fit.odds[i]);
        }
    }

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
        let factor: Vec<f32> = h.iter().map(|&x| x as f32).collect();
        let found = f32::dispatch(Leverages { design: &design, factor: &factor });
        assert_eq!(found.len(), n);
        for (row, found) in design.rows.chunks_exact(s).zip(found) {
            let mut solved = row.to_vec();
            solve(&h, s, &mut solved);
            let exact: f64 = row.iter().zip(&solved).map(|(x, z)| x * z).sum();
            assert!((found - exact).abs() < 1e-4 * exact, "{found}, not {exact}");
        }
    }

    #[test]
    fn samples_that_a_line_separates_have_finite_odds() {
        let rows: Vec<f64> =
            (0..400).flat_map(|i| [f64::from(i % 7), f64::from(i) * 1e3, f64::from(i * i % 11)]).collect();
        let design = Design::standardised(&rows, 3, 150);
        let fit = design.fit(&[0.0; 4], 1e-6).unwrap();
        assert!(fit.odds[..150].iter().all(|o| *o > -1.0) && fit.odds[0] > 5.0 && fit.odds[399] < -5.0);
        assert!(design.odds_left_out(&fit).iter().all(|o| o.is_finite()));
    }
}
