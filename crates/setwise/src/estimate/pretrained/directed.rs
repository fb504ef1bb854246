//! Estimates of KL(P‖Q) in one direction from log density ratios and moments, and what their errors depend on.

use super::super::Points;
use super::super::ratio::{RatioFit, SampleRatios, ViewRatios};
use super::super::softplus;
use super::moments::{Moments, gaussian_divergence, gaussian_standard_error};
use super::score_bins::ScoreBins;

/// Classical estimates of KL(P‖Q).
pub const ESTIMATES: usize = 41;
/// Places of some estimates.
pub mod estimate_index {
    /// Second nearest neighbour.
    pub const K2: usize = 1;
    /// Fourth nearest neighbour.
    pub const K4: usize = 2;
    /// Eighth nearest neighbour.
    pub const K8: usize = 3;
    /// Second nearest neighbour in the selected columns.
    pub const SELECTED_K2: usize = 9;
    /// Eighth nearest neighbour in the selected columns.
    pub const SELECTED_K8: usize = 11;
    /// Debiased Gaussian closed form.
    pub const DEBIASED_GAUSSIAN: usize = 17;
    /// Extended classifier, fitted; the leave-one-out divergence follows.
    pub const EXTENDED: usize = 24;
    /// Boosted ratio, mean over the first sample; the Donsker–Varadhan bound follows.
    pub const BOOSTED: usize = 32;
    /// Boosted ratio in 32 bins.
    pub const BINNED: usize = 35;
}

/// Other features of a direction.
pub const CONTEXT: usize = 67;

/// Numbers that shrink with the rows are clamped at the size they have in training.
const MIN_STANDARD_ERROR: f64 = 3e-3;
const MAX_CONTEXT_ROWS: f64 = 2e4;
/// Log ratios are clamped to this size before their exponential is averaged.
const MAX_RATIO: f64 = 30.0;

/// Estimates of one direction, in nats, and what their errors depend on.
#[derive(Clone, Debug)]
pub struct Directed {
    /// Estimates of the divergence.
    pub estimates: [f64; ESTIMATES],
    /// Sizes, standard errors, losses of classifiers, tails, tests of normality.
    pub context: [f64; CONTEXT],
    /// The standard error of the mean log ratio over the first sample.
    pub standard_error: f64,
    /// The cross-fitted classifier's loss, ln 2 for equal distributions.
    pub held_out_loss: f64,
    /// The relative standard error of the mean weight of the second sample.
    pub weight_error: f64,
    /// The effective sample size of these weights.
    pub effective_rows: f64,
    /// Rows of the smaller sample.
    pub rows: f64,
    /// Directions of variation.
    pub dim: f64,
}

/// Moments of one sample, and its tails.
pub struct SampleMoments {
    moments: Moments,
    shrunk: Moments,
    normality: [f64; 4],
    /// Share of compressed rows and the largest distance.
    pub tails: [f64; 2],
}

impl SampleMoments {
    /// Moments of a sample in whitened coordinates that are not compressed.
    pub fn new(points: Points) -> Self {
        let moments = Moments::of(points);
        let (shrunk, normality) = (moments.shrunk_covariance(points.dim()), moments.non_gaussianity(points));
        SampleMoments { moments, shrunk, normality, tails: [0.0; 2] }
    }
}

/// One direction: the divergence of the first sample's distribution from the second's.
pub struct Direction<'a> {
    pub first: &'a SampleRatios,
    pub second: &'a SampleRatios,
    /// The sign of log ratios in this direction.
    pub sign: f64,
    /// Rows of both samples.
    pub rows: [usize; 2],
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for x in values {
        sum += x;
        count += 1.0;
    }
    sum / count
}

/// The standard error of a mean.
fn standard_error(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let (mut square, mut count) = (0.0, 0.0);
    let centre = mean(values.clone());
    for x in values {
        square += (x - centre) * (x - centre);
        count += 1.0;
    }
    (square / count / count).sqrt()
}

impl<'a> Direction<'a> {
    /// Log ratios of both samples by one estimator, in this direction.
    fn ratios<'b>(
        &'b self,
        of: impl Fn(&'a SampleRatios, usize) -> f64 + Copy + 'b,
    ) -> [impl Iterator<Item = f64> + Clone + 'b; 2] {
        let (first, second, sign) = (self.first, self.second, self.sign);
        let one = move |sample: &'a SampleRatios| (0..sample.stacked.len()).map(move |i| sign * of(sample, i));
        [one(first), one(second)]
    }

    /// The mean over the first sample.
    fn mean(&self, of: impl Fn(&'a SampleRatios, usize) -> f64 + Copy) -> f64 {
        let [first, _] = self.ratios(of);
        mean(first)
    }

    /// The Donsker–Varadhan bound.
    fn donsker_varadhan(&self, of: impl Fn(&'a SampleRatios, usize) -> f64 + Copy) -> f64 {
        let [first, second] = self.ratios(of);
        mean(first) - mean(second.map(|r| r.min(MAX_RATIO).exp())).max(1e-12).ln()
    }

    /// Estimates by neighbours in a view: for each k, pooled, and extrapolated to zero distance.
    fn neighbours(&self, view: impl Fn(&'a SampleRatios) -> &'a ViewRatios + Copy, dim: usize) -> [f64; 8] {
        let mut out = [0.0; 8];
        for (k, o) in out[..6].iter_mut().enumerate() {
            *o = self.mean(|s, i| f64::from(view(s).local[i][k]));
        }
        let (near, far) = (out[1], out[3]);
        for (o, power) in out[6..].iter_mut().zip([1.0, 2.0]) {
            *o = near + ((near - far) / (4f64.powf(power / dim as f64) - 1.0)).clamp(-3.0, 3.0);
        }
        out
    }

    /// All estimates with their context.
    ///
    /// `fitted` holds means of the classifiers' log ratios over the first sample, with all and with the selected
    /// columns. `whitened` are the rows of the first sample in affine coordinates.
    pub fn features(
        &self,
        fit: &RatioFit,
        fitted: [[f64; 3]; 2],
        whitened: Points,
        moments: [&SampleMoments; 2],
    ) -> Directed {
        let [n, m] = self.rows.map(|rows| rows as f64);
        let [d, chosen] = fit.dims.map(|dim| dim as f64);
        let classifier = |k: usize| move |s: &SampleRatios, i: usize| s.all.classifiers[i][k];
        let selected = |s: &SampleRatios, i: usize| s.selected().classifiers[i][2];
        let left_out = |k: usize| self.mean(classifier(k));
        let discriminant = |s: &SampleRatios, i: usize| s.all.discriminant[i];
        let trees = |s: &SampleRatios, i: usize| s.trees[i];
        let stacked = |s: &SampleRatios, i: usize| s.stacked[i];
        let boosted = |s: &SampleRatios, i: usize| s.boosted[i];
        let scores = self.ratios(boosted).map(|r| r.collect::<Vec<f64>>());
        let binned = |bins: usize| ScoreBins::new(&scores, bins).kl();
        let [a, b] = moments;
        let gaussian = |p: &Moments, q: &Moments, debiased| gaussian_divergence(p, q, whitened.dim(), debiased);
        let mut estimates = [0.0; ESTIMATES];
        let lists = [
            &self.neighbours(|s| &s.all, fit.dims[0])[..],
            &self.neighbours(SampleRatios::selected, fit.dims[1]),
            &[
                gaussian(&a.moments, &b.moments, false),
                gaussian(&a.moments, &b.moments, true),
                gaussian(&b.moments, &a.moments, true),
                gaussian(&a.shrunk, &b.shrunk, false),
            ],
            &[left_out(0), self.sign * fitted[0][1], left_out(1), self.donsker_varadhan(classifier(1))],
            &[self.sign * fitted[0][2], left_out(2), self.donsker_varadhan(classifier(2))],
            &[self.sign * fitted[1][2], self.mean(selected), self.donsker_varadhan(selected)],
            &[self.mean(stacked), self.donsker_varadhan(stacked)],
            &[self.mean(boosted), self.donsker_varadhan(boosted)],
            &[binned(8), binned(32)],
            &[self.mean(discriminant), self.mean(|s, i| s.selected().discriminant[i])],
            &[self.donsker_varadhan(discriminant)],
            &[self.mean(trees), self.donsker_varadhan(trees)],
        ];
        fill(&mut estimates, &lists);
        let shift: f64 = a.moments.mean.iter().zip(&b.moments.mean).map(|(x, y)| (x - y) * (x - y)).sum();
        let first_error = |of: &dyn Fn(&SampleRatios, usize) -> f64| {
            standard_error((0..self.first.stacked.len()).map(|i| of(self.first, i)))
        };
        let boosted_error = first_error(&boosted);
        let relative = |error: f64| (error.max(1e-6) / boosted_error.max(1e-6)).ln().clamp(-5.0, 5.0);
        // Weights of the second sample: relative standard error of their mean, and effective sample size.
        let weights = || self.second.boosted.iter().map(|r| (self.sign * r).min(MAX_RATIO).exp());
        let (total, squares) = (weights().sum::<f64>(), weights().map(|w| w * w).sum::<f64>());
        let weighted = self.second.boosted.len() as f64;
        let effective = (total * total / squares / weighted).max(1e-6);
        let weight_error = ((1.0 / effective - 1.0).max(0.0) / weighted).sqrt();
        let loss = |of: &dyn Fn(&SampleRatios, usize) -> f64| {
            let one = |r: f64| softplus(-r);
            0.5 * mean((0..self.first.stacked.len()).map(|i| one(self.sign * of(self.first, i))))
                + 0.5 * mean((0..self.second.stacked.len()).map(|i| one(-self.sign * of(self.second, i))))
        };
        let extremes =
            |sample: &SampleRatios, sign: f64| mean(sample.boosted.iter().map(|r| f64::from(u8::from(sign * r > 3.0))));
        let values = [
            boosted_error.max(MIN_STANDARD_ERROR).ln(),
            n.min(MAX_CONTEXT_ROWS).ln(),
            m.min(MAX_CONTEXT_ROWS).ln(),
            d.ln(),
            (d / n).sqrt(),
            (d / m).sqrt(),
            1.0 / d,
            shift.max(0.0).ln_1p(),
            relative(first_error(&|s, i| f64::from(s.all.local[i][0]))),
            relative(first_error(&|s, i| f64::from(s.all.local[i][3]))),
            relative(first_error(&|s, i| s.all.classifiers[i][1])),
            relative(first_error(&|s, i| s.all.classifiers[i][2])),
            relative(weight_error),
            relative(gaussian_standard_error(&a.moments, &b.moments, whitened)),
            effective.ln(),
            (total / weighted).clamp(1e-3, 1e3).ln(),
            (fit.rounds[0] as f64).ln_1p(),
            (fit.rounds[1] as f64).ln_1p(),
            (fit.penalties[1] / fit.penalties[2]).ln(),
            fit.penalties[2].ln(),
            fit.shares.common,
            fit.shares.round,
            1e2 * (loss(&|s, i| s.all.classifiers[i][1]) - loss(&|s, i| s.all.classifiers[i][2])).clamp(-0.1, 0.1),
            1e2 * (loss(&|s, i| s.all.classifiers[i][2]) - loss(&stacked)).clamp(-0.1, 0.1),
            1e2 * (loss(&stacked) - loss(&boosted)).clamp(-0.1, 0.1),
            1e2 * (loss(&discriminant) - loss(&stacked)).clamp(-0.1, 0.1),
            1e2 * (loss(&trees) - loss(&stacked)).clamp(-0.1, 0.1),
            relative(first_error(&trees)),
            loss(&boosted),
            extremes(self.first, self.sign),
            extremes(self.first, -self.sign),
            extremes(self.second, self.sign),
            extremes(self.second, -self.sign),
            a.tails[0],
            b.tails[0],
            a.tails[1].max(1.0).ln(),
            b.tails[1].max(1.0).ln(),
        ];
        let selection = [
            chosen.ln(),
            chosen / d,
            fit.selection.separation,
            fit.selection.gain,
            fit.selection.gain / fit.selection.standard_error.max(1e-6),
            relative(first_error(&|s, i| f64::from(s.selected().local[i][0]))),
            1e2 * (loss(&|s, i| s.all.classifiers[i][2]) - loss(&selected)).clamp(-0.1, 0.1),
        ];
        let mut context = [0.0; CONTEXT];
        fill(&mut context, &[&values, &selection, &a.normality, &b.normality, &fit.weights]);
        context.iter_mut().for_each(|x| *x = if x.is_finite() { x.clamp(-50.0, 50.0) } else { 0.0 });
        let estimates = estimates.map(|x| if x.is_finite() { x.clamp(-3.0, 200.0) } else { 0.0 });
        Directed {
            estimates,
            context,
            standard_error: boosted_error,
            held_out_loss: loss(&boosted),
            weight_error,
            effective_rows: effective * weighted,
            rows: n.min(m),
            dim: d,
        }
    }
}

/// Writes lists one after the other into an array of their total length.
fn fill(out: &mut [f64], lists: &[&[f64]]) {
    let mut at = 0;
    for list in lists {
        out[at..at + list.len()].copy_from_slice(list);
        at += list.len();
    }
    debug_assert_eq!(at, out.len());
}
