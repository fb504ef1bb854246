//! Penalised logistic regression by Newton's method.
//!
//! Rows are padded to full vectors. A step on n rows of width w costs n·w²/2 multiplications for the Hessian
//! (`curvature`) and a few passes over the n·w numbers.

use setwise_engine::simd;

use super::curvature::{add_weighted_gram, add_weighted_gram_f64, leverages};
use super::exponential::exp;
use super::softplus;
use crate::{Error, Result};

/// Newton steps of a fit.
const MAX_STEPS: usize = 30;
/// Rows are padded to a multiple of this: no vector has more lanes.
pub(super) const PAD: usize = 16;
/// Numbers that a loop handles side by side, for the compiler to vectorise.
const LANES: usize = 8;

/// The design matrix: rows of features, those of the first class before those of the second. Each ends in a one for the
/// intercept.
pub(super) struct Design {
    /// Number of features, and one for the intercept.
    pub width: usize,
    /// Numbers from one row to the next: the width, padded.
    pub stride: usize,
    /// Rows of the first class.
    positive: usize,
    /// `[n, stride]`, zero beyond the width.
    pub rows: Vec<f64>,
    /// The same rows in f32.
    pub rows_f32: Vec<f32>,
    /// The penalty on half the sum of squared coefficients.
    pub penalty: f64,
    /// Log odds to which the features add, row by row.
    pub offsets: Vec<f64>,
    /// Means and inverse deviations of the features before they were standardised.
    standardisation: (Vec<f64>, Vec<f64>),
}

/// A fitted regression.
pub(super) struct Fit {
    /// Coefficients of the features, then the intercept.
    pub weights: Vec<f64>,
    /// Log log_odds of the first class, row by row.
    pub log_odds: Vec<f64>,
    /// Probabilities of the first class, row by row.
    probabilities: Vec<f64>,
    /// Cholesky factor of the Hessian of the penalised negative log-likelihood.
    factor: Vec<f64>,
}

impl Design {
    /// Standardises the features of all rows, the first `positive` of which are of the first class. Constant features
    /// become zero.
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
        Design { standardisation: (mean, scale), ..Self::of(width, stride, positive, rows) }
    }

    /// Features as they are; the first `positive` rows are of the first class.
    pub fn plain(features: &[f64], columns: usize, positive: usize) -> Self {
        let (width, stride) = (columns + 1, (columns + 1).next_multiple_of(PAD));
        let mut rows = vec![0.0; features.len() / columns * stride];
        for (out, row) in rows.chunks_exact_mut(stride).zip(features.chunks_exact(columns)) {
            out[..columns].copy_from_slice(row);
            out[columns] = 1.0;
        }
        Self::of(width, stride, positive, rows)
    }

    fn of(width: usize, stride: usize, positive: usize, rows: Vec<f64>) -> Self {
        let rows_f32 = rows.iter().map(|&x| x as f32).collect();
        let standardisation = (vec![0.0; width - 1], vec![1.0; width - 1]);
        let offsets = vec![0.0; rows.len() / stride];
        Design { width, stride, positive, rows, rows_f32, penalty: 1.0, offsets, standardisation }
    }

    /// Coefficients of a fit for features that are not standardised, then the intercept.
    pub fn raw_weights(&self, fit: &Fit) -> Vec<f64> {
        let (mean, scale) = &self.standardisation;
        let mut weights: Vec<f64> = fit.weights.iter().zip(scale).map(|(w, s)| w * s).collect();
        let moved: f64 = weights.iter().zip(mean).map(|(w, m)| w * m).sum();
        weights.push(fit.weights[self.width - 1] - moved);
        weights
    }

    pub fn len(&self) -> usize {
        self.rows.len() / self.stride
    }

    /// Maximises the log-likelihood minus half the penalised sum of squared coefficients, without the intercept.
    ///
    /// Newton's method with backtracking starts from `start`. It ends after a step shorter than `tolerance`, relative
    /// to the length of the coefficients.
    pub fn fit(&self, start: &[f64], tolerance: f64) -> Result<Fit> {
        let fit = match simd::isa() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `isa` has found all instructions that this function enables.
            simd::Isa::Avx512 => unsafe { newton_avx512(self, start, tolerance) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `isa` has found all instructions that this function enables.
            simd::Isa::Avx2 => unsafe { newton_avx2(self, start, tolerance) },
            _ => newton::<false>(self, start, tolerance),
        };
        fit.ok_or_else(|| {
            Error::Estimate("the classifier's equations cannot be solved; rescale the columns".to_owned())
        })
    }

    /// Fits with one penalty after the other as long as the loss at left-out rows falls by `min_gain`.
    ///
    /// Returns the design with the best penalty, its fit, and the leave-one-out log odds. There is none if the
    /// equations cannot be solved.
    pub fn fit_best(mut self, penalties: &[f64], min_gain: f64, tolerance: f64) -> Option<(Self, Fit, Vec<f64>)> {
        let mut start = vec![0.0; self.width];
        let mut best: Option<(f64, f64, Fit, Vec<f64>)> = None;
        for &penalty in penalties {
            self.penalty = penalty;
            let Ok(fit) = self.fit(&start, tolerance) else { continue };
            let left_out = self.leave_one_out_log_odds(&fit);
            let margin = |(i, &odds): (usize, &f64)| if i < self.positive { odds } else { -odds };
            let loss: f64 = left_out.iter().enumerate().map(|row| softplus(-margin(row))).sum();
            if best.as_ref().is_some_and(|(smallest, ..)| loss >= *smallest - min_gain) {
                break;
            }
            start.clone_from(&fit.weights);
            best = Some((loss, penalty, fit, left_out));
        }
        let (_, penalty, fit, left_out) = best?;
        self.penalty = penalty;
        Some((self, fit, left_out))
    }

    /// Approximate leave-one-out log odds of each row, by one Newton step away from the fit.
    ///
    /// η − h·e / (1 − c·h), with leverage h = xᵀH⁻¹x, error e and curvature c of the row.
    pub fn leave_one_out_log_odds(&self, fit: &Fit) -> Vec<f64> {
        let leverages = leverages(self, &fit.factor);
        let leave_one_out = |i: usize| {
            let (p, h) = (fit.probabilities[i], leverages[i]);
            let error = f64::from(u8::from(i < self.positive)) - p;
            fit.log_odds[i] - h * error / (1.0 - (p * (1.0 - p) * h).min(0.95))
        };
        (0..self.len()).map(leave_one_out).collect()
    }
}

/// # Safety
/// The machine has AVX-512 F, DQ and VL, and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,fma")]
unsafe fn newton_avx512(design: &Design, start: &[f64], tolerance: f64) -> Option<Fit> {
    newton::<true>(design, start, tolerance)
}

/// # Safety
/// The machine has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn newton_avx2(design: &Design, start: &[f64], tolerance: f64) -> Option<Fit> {
    newton::<true>(design, start, tolerance)
}

/// [`Design::fit`], inlined into each entry point. With `FUSED` it uses FMA instructions.
#[inline(always)]
fn newton<const FUSED: bool>(design: &Design, start: &[f64], tolerance: f64) -> Option<Fit> {
    let (width, stride, n) = (design.width, design.stride, design.len());
    let mut weights = vec![0.0; stride];
    weights[..width].copy_from_slice(start);
    let mut log_odds = vec![0.0; n];
    compute_log_odds(design, &weights, &mut log_odds);
    // exp(−|η|) does not overflow. Likelihoods and probabilities are computed from it.
    let mut exp_neg_abs = vec![0.0; n];
    let mut current = penalised_log_likelihood::<FUSED>(design, &weights, &log_odds, &mut exp_neg_abs);
    let (mut next, mut next_log_odds, mut next_exp_neg_abs) = (weights.clone(), log_odds.clone(), exp_neg_abs.clone());
    let (mut hessian, mut curvatures, mut probabilities) = (vec![0.0; stride * stride], vec![0.0; n], vec![0.0; n]);
    for _ in 0..MAX_STEPS {
        let mut step: Vec<f64> = weights.iter().map(|w| -design.penalty * w).collect();
        step[width - 1] = 0.0;
        compute_probabilities(&log_odds, &exp_neg_abs, &mut probabilities);
        for (curvature, p) in curvatures.iter_mut().zip(&probabilities) {
            *curvature = (p * (1.0 - p)).max(1e-12);
        }
        add_gradient::<FUSED>(design, &probabilities, &mut step);
        let penalise = |hessian: &mut [f64]| {
            for a in 0..stride {
                hessian[a * stride + a] += if a + 1 == width { 1e-9 } else { design.penalty };
            }
        };
        hessian.fill(0.0);
        add_weighted_gram(design, &curvatures, &mut hessian);
        penalise(&mut hessian);
        if !factorise(&mut hessian, stride) {
            // Rounding in f32 can exceed the intercept's curvature.
            hessian.fill(0.0);
            add_weighted_gram_f64(design, &curvatures, &mut hessian);
            penalise(&mut hessian);
            if !factorise(&mut hessian, stride) {
                return None;
            }
        }
        solve(&hessian, stride, &mut step);
        let mut step_size = 1.0;
        let value = loop {
            next.iter_mut().zip(weights.iter().zip(&step)).for_each(|(n, (w, s))| *n = w + step_size * s);
            compute_log_odds(design, &next, &mut next_log_odds);
            let value = penalised_log_likelihood::<FUSED>(design, &next, &next_log_odds, &mut next_exp_neg_abs);
            if value >= current || step_size < 1e-6 {
                break value;
            }
            step_size *= 0.5;
        };
        std::mem::swap(&mut weights, &mut next);
        std::mem::swap(&mut log_odds, &mut next_log_odds);
        std::mem::swap(&mut exp_neg_abs, &mut next_exp_neg_abs);
        current = value;
        let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
        if norm(&step) * step_size < tolerance * (1.0 + norm(&weights)) {
            break;
        }
    }
    weights.truncate(width);
    compute_probabilities(&log_odds, &exp_neg_abs, &mut probabilities);
    Some(Fit { weights, log_odds, probabilities, factor: hessian })
}

/// Probabilities of the first class, 1 / (1 + e^−η).
#[inline(always)]
fn compute_probabilities(log_odds: &[f64], exp_neg_abs: &[f64], probabilities: &mut [f64]) {
    for (p, (s, exp_neg)) in probabilities.iter_mut().zip(log_odds.iter().zip(exp_neg_abs)) {
        *p = if *s < 0.0 { *exp_neg } else { 1.0 } / (1.0 + exp_neg);
    }
}

/// Log odds η = xᵀw of all rows.
#[inline(always)]
fn compute_log_odds(design: &Design, weights: &[f64], log_odds: &mut [f64]) {
    for (i, (out, row)) in log_odds.iter_mut().zip(design.rows.chunks_exact(design.stride)).enumerate() {
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
        *out = design.offsets[i] + sums[0];
    }
}

/// Adds the gradient of the log-likelihood, Σᵢ eᵢ·xᵢ with errors eᵢ = yᵢ − pᵢ.
#[inline(always)]
fn add_gradient<const FUSED: bool>(design: &Design, probabilities: &[f64], gradient: &mut [f64]) {
    const ROWS_PER_STEP: usize = 4;
    let stride = design.stride;
    for (block, (rows, probabilities)) in
        design.rows.chunks(ROWS_PER_STEP * stride).zip(probabilities.chunks(ROWS_PER_STEP)).enumerate()
    {
        let error = |i: usize| f64::from(u8::from(block * ROWS_PER_STEP + i < design.positive)) - probabilities[i];
        let errors: [f64; ROWS_PER_STEP] =
            std::array::from_fn(|i| if i < probabilities.len() { error(i) } else { 0.0 });
        for (k, gradient) in gradient.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut sum = *gradient;
            for (row, error) in rows.chunks_exact(stride).zip(errors) {
                for (s, x) in sum.iter_mut().zip(&row.as_chunks::<LANES>().0[k]) {
                    *s = if FUSED { error.mul_add(*x, *s) } else { *s + error * x };
                }
            }
            *gradient = sum;
        }
    }
}

/// Rows whose factors 1 + e^−|η| are multiplied before a logarithm: factors are at most two, a product at most 2⁵¹².
const MAX_FACTORS: usize = 512 * LANES;

/// The penalised log-likelihood; writes e^−|η| of every row to `exp_neg_abs`.
#[inline(always)]
fn penalised_log_likelihood<const FUSED: bool>(
    design: &Design,
    weights: &[f64],
    log_odds: &[f64],
    exp_neg_abs: &mut [f64],
) -> f64 {
    exp_neg_abs.iter_mut().zip(log_odds).for_each(|(exp_neg, s)| *exp_neg = exp::<FUSED>(-s.abs()));
    // Σ −log(1 + e^−s) = Σ min(s, 0) − log(1 + e^−|s|), with one logarithm for many factors.
    let mut likelihood = 0.0;
    for (i, s) in log_odds.iter().enumerate() {
        likelihood += if i < design.positive { *s } else { -s }.min(0.0);
    }
    for exp_neg_abs in exp_neg_abs.chunks(MAX_FACTORS) {
        let mut products = [1.0; LANES];
        let (chunks, rest) = exp_neg_abs.as_chunks::<LANES>();
        for exp_neg_abs in chunks {
            products.iter_mut().zip(exp_neg_abs).for_each(|(product, exp_neg)| *product *= 1.0 + exp_neg);
        }
        products.iter_mut().zip(rest).for_each(|(product, exp_neg)| *product *= 1.0 + exp_neg);
        likelihood -= products.iter().map(|product| product.ln()).sum::<f64>();
    }
    likelihood - 0.5 * design.penalty * weights[..design.width - 1].iter().map(|w| w * w).sum::<f64>()
}

/// Replaces the lower triangle of a matrix by its Cholesky factor (right-looking); false unless positive definite.
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

/// One over the standard deviation of a column of `n` numbers, from their mean and the sum of squares about it. Zero
/// for a constant column, which varies by rounding only.
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
    fn the_gradient_is_zero_at_the_fitted_coefficients() {
        let design = Design::standardised(&features(), 3, 20);
        let fit = design.fit(&[0.0; 4], 1e-8).unwrap();
        for a in 0..4 {
            let term = |(i, r): (usize, &[f64])| {
                let p = 1.0 / (1.0 + (-fit.log_odds[i]).exp());
                (f64::from(u8::from(i < 20)) - p) * r[a]
            };
            let gradient = design.rows.chunks_exact(design.stride).enumerate().map(term).sum::<f64>();
            let penalty = if a < 3 { fit.weights[a] } else { 0.0 };
            assert!((gradient - penalty).abs() < 1e-6, "{a}: {gradient} and {penalty}");
        }
    }

    #[test]
    fn approximate_leave_one_out_log_odds_are_near_those_of_fits_without_the_row() {
        let (features, columns) = (features(), 3);
        let design = Design::standardised(&features, columns, 20);
        let fit = design.fit(&[0.0; 4], 1e-9).unwrap();
        let approximate = design.leave_one_out_log_odds(&fit);
        for i in [3, 30] {
            // The same standardisation, without the row.
            let mut rows = design.rows.clone();
            rows.drain(i * design.stride..(i + 1) * design.stride);
            let positive = if i < 20 { 19 } else { 20 };
            let without = Design::of(4, design.stride, positive, rows);
            let refitted = without.fit(&[0.0; 4], 1e-9).unwrap();
            let row = &design.rows[i * design.stride..][..4];
            let exact: f64 = row.iter().zip(&refitted.weights).map(|(x, w)| x * w).sum();
            let moved = (exact - fit.log_odds[i]).abs();
            assert!(
                (approximate[i] - exact).abs() < 0.15 * moved + 1e-6,
                "{i}: {} {exact} {}",
                approximate[i],
                fit.log_odds[i]
            );
        }
    }

    #[test]
    fn offsets_and_penalties_enter_fits_and_left_out_rows() {
        let features = features();
        let design = |features: &[f64], offsets: &[f64], positive: usize| {
            let mut design = Design::plain(features, 3, positive);
            design.penalty = 7.0;
            design.offsets = offsets.to_vec();
            design
        };
        let offsets: Vec<f64> = (0..40).map(|i| f64::from(i * 7 % 5) - 2.0).collect();
        let all = design(&features, &offsets, 20);
        let fit = all.fit(&[0.0; 4], 1e-9).unwrap();
        // The gradient of the log-likelihood is that of the penalty.
        for a in 0..3 {
            let error = |i: usize| f64::from(u8::from(i < 20)) - 1.0 / (1.0 + (-fit.log_odds[i]).exp());
            let gradient: f64 = (0..40).map(|i| error(i) * features[i * 3 + a]).sum();
            assert!((gradient - 7.0 * fit.weights[a]).abs() < 1e-6, "{a}: {gradient}");
        }
        let left_out = all.leave_one_out_log_odds(&fit);
        for i in [4, 31] {
            let without = [&features[..3 * i], &features[3 * (i + 1)..]].concat();
            let other_offsets = [&offsets[..i], &offsets[i + 1..]].concat();
            let refitted = design(&without, &other_offsets, if i < 20 { 19 } else { 20 }).fit(&[0.0; 4], 1e-9).unwrap();
            let row = features[3 * i..3 * (i + 1)].iter().chain(&[1.0]);
            let exact = offsets[i] + row.zip(&refitted.weights).map(|(x, w)| x * w).sum::<f64>();
            let moved = (exact - fit.log_odds[i]).abs();
            assert!((left_out[i] - exact).abs() < 0.15 * moved + 1e-6, "{i}: {} and {exact}", left_out[i]);
        }
    }

    #[test]
    fn the_penalty_with_the_smallest_loss_at_left_out_rows_is_chosen() {
        // Features without any relation to the class want a large penalty.
        let noise: Vec<f64> = (0..600).map(|i| f64::from(i * i % 97) / 97.0).collect();
        let (design, _, left_out) = Design::standardised(&noise, 10, 30).fit_best(&[1.0, 100.0], 0.0, 1e-6).unwrap();
        assert_eq!((design.penalty, left_out.len()), (100.0, 60));
        let (design, ..) = Design::standardised(&noise, 10, 30).fit_best(&[1.0, 100.0], 1e3, 1e-6).unwrap();
        assert_eq!(design.penalty, 1.0);
    }

    #[test]
    fn linearly_separable_samples_have_finite_log_odds() {
        let rows: Vec<f64> =
            (0..400).flat_map(|i| [f64::from(i % 7), f64::from(i) * 1e3, f64::from(i * i % 11)]).collect();
        let design = Design::standardised(&rows, 3, 150);
        let fit = design.fit(&[0.0; 4], 1e-6).unwrap();
        assert!(fit.log_odds[..150].iter().all(|o| *o > -1.0) && fit.log_odds[0] > 5.0 && fit.log_odds[399] < -5.0);
        assert!(design.leave_one_out_log_odds(&fit).iter().all(|o| o.is_finite()));
    }
}
