//! Penalised logistic regression by Newton's method.
//!
//! Rows are padded to whole vectors and stand one after another. A step costs one pass for the curvature (`curvature`) and a few passes of
//! `n·w`.

use setwise_engine::simd::{Isa, isa};

use super::curvature::{add_exact_squares, add_weighted_squares, leverages};
use super::exponential::exp;
use crate::{Error, Result};

/// Newton steps at most.
const STEPS: usize = 30;
/// Numbers that rows are padded to a multiple of: no vector has more.
pub(super) const PAD: usize = 16;
/// Doubles that loops take together.
const LANES: usize = 8;

/// Rows of features, those of the first class before those of the second. A one for the intercept stands at the end of each.
pub(super) struct Design {
    /// Features and intercept.
    pub width: usize,
    /// Numbers from one row to the next.
    pub stride: usize,
    positive: usize,
    pub rows: Vec<f64>,
    /// The same rounded.
    pub single: Vec<f32>,
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

    pub fn len(&self) -> usize {
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
        let leverages = leverages(self, &fit.factor);
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

/// The Cholesky factor in place of a matrix's lower half, column by column, each taken off the rest at once.
#[inline(always)]
pub(super) fn factorise(a: &mut [f64], n: usize) -> bool {
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
pub(super) fn solve(factor: &[f64], n: usize, b: &mut [f64]) {
    crate::linalg::solve_lower(factor, n, b);
    crate::linalg::solve_lower_transposed(factor, n, b);
}

/// One over the standard deviation of a column of `n` numbers, from their mean and the sum of squares about it; nothing for a column of one
/// value, which varies by rounding alone.
pub(super) fn inverse_deviation(squares: f64, mean: f64, n: f64) -> f64 {
    if squares > 1e-20 * n * mean * mean { (squares / n).sqrt().recip() } else { 0.0 }
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
    fn samples_that_a_line_separates_have_finite_odds() {
        let rows: Vec<f64> =
            (0..400).flat_map(|i| [f64::from(i % 7), f64::from(i) * 1e3, f64::from(i * i % 11)]).collect();
        let design = Design::standardised(&rows, 3, 150);
        let fit = design.fit(&[0.0; 4], 1e-6).unwrap();
        assert!(fit.odds[..150].iter().all(|o| *o > -1.0) && fit.odds[0] > 5.0 && fit.odds[399] < -5.0);
        assert!(design.odds_left_out(&fit).iter().all(|o| o.is_finite()));
    }
}
