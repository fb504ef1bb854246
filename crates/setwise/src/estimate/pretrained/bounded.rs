//! Estimates of divergences that are bounded: Jensen–Shannon, total variation and Hellinger.
//!
//! Each is a mean over the mixture (p + q) / 2 of a function of the log ratio. The mean at estimated ratios is the
//! *plug-in* estimate, which noise of the ratios makes too large. Each is also the largest value of an expression in
//! any function of the rows. Its value at estimated ratios is the *variational* estimate, which noise makes too small.

use super::super::ratio::{RatioFit, SampleRatios};
use super::super::softplus;
use super::score_bins::ScoreBins;

/// Bounded divergences.
pub const MEASURES: usize = 3;
/// Estimates of each.
pub const BOUNDED_ESTIMATES: usize = 18;
/// Log ratios are clamped to this size before their exponential is averaged.
const MAX_RATIO: f64 = 6.0;

/// A divergence that is symmetric and has a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundedMeasure {
    /// Jensen–Shannon divergence, at most ln 2.
    JensenShannon,
    /// Total variation distance, at most one.
    TotalVariation,
    /// Squared Hellinger distance 1 − ∫√(pq), at most one.
    SquaredHellinger,
}

impl BoundedMeasure {
    /// All of them.
    pub const ALL: [BoundedMeasure; MEASURES] =
        [BoundedMeasure::JensenShannon, BoundedMeasure::TotalVariation, BoundedMeasure::SquaredHellinger];

    /// The largest value.
    pub fn bound(self) -> f64 {
        match self {
            BoundedMeasure::JensenShannon => std::f64::consts::LN_2,
            BoundedMeasure::TotalVariation | BoundedMeasure::SquaredHellinger => 1.0,
        }
    }

    /// The function of the log ratio whose mean over (p + q) / 2 is the divergence.
    pub fn integrand(self, r: f64) -> f64 {
        match self {
            // ln 2 minus the entropy of the class.
            BoundedMeasure::JensenShannon => {
                // Beyond this size the entropy rounds to zero; an infinite ratio has none either.
                let r = r.clamp(-100.0, 100.0);
                let share = 1.0 / (1.0 + (-r).exp());
                std::f64::consts::LN_2 - share * softplus(-r) - (1.0 - share) * softplus(r)
            }
            BoundedMeasure::TotalVariation => (0.5 * r).tanh().abs(),
            BoundedMeasure::SquaredHellinger => 1.0 - 1.0 / (0.5 * r).cosh(),
        }
    }

    /// The variational expression at a row of P with log ratio `r`, or at a row of Q with log ratio `−r`. Its mean over
    /// both samples with equal weights is at most the divergence, for any `r`.
    fn witness(self, r: f64) -> f64 {
        match self {
            BoundedMeasure::JensenShannon => std::f64::consts::LN_2 - softplus(-r),
            BoundedMeasure::TotalVariation => r.signum(),
            BoundedMeasure::SquaredHellinger => 1.0 - (-0.5 * r.clamp(-MAX_RATIO, MAX_RATIO)).exp(),
        }
    }
}

/// Estimates of the bounded divergences, with standard errors.
#[derive(Clone, Debug)]
pub struct Bounded {
    /// Estimates of each measure.
    pub estimates: [[f64; BOUNDED_ESTIMATES]; MEASURES],
    /// Standard errors of the variational estimates from boosted ratios.
    pub standard_errors: [f64; MEASURES],
}

/// A log ratio at a row.
type LogRatioOf<'a> = &'a dyn Fn(&SampleRatios, usize) -> f64;

/// The mean of a function of the row, and the square of its standard error.
fn mean_and_variance(rows: usize, of: impl Fn(usize) -> f64) -> (f64, f64) {
    let n = rows as f64;
    let mean = (0..rows).map(&of).sum::<f64>() / n;
    (mean, (0..rows).map(|i| (of(i) - mean).powi(2)).sum::<f64>() / n / n)
}

impl Bounded {
    /// Estimates from log ratios at rows of both samples.
    pub(super) fn of(fit: &RatioFit) -> Self {
        let sources: [LogRatioOf; 8] = [
            &|s, i| s.all.discriminant[i],
            &|s, i| s.trees[i],
            &|s, i| f64::from(s.all.local[i][5]),
            &|s, i| f64::from(s.selected().local[i][5]),
            &|s, i| s.all.classifiers[i][2],
            &|s, i| s.selected().classifiers[i][2],
            &|s, i| s.stacked[i],
            &|s, i| s.boosted[i],
        ];
        let [n, m] = [&fit.p, &fit.q].map(|s| s.boosted.len());
        let scores = [fit.p.boosted.clone(), fit.q.boosted.clone()];
        let bins = [8, 32].map(|bins| ScoreBins::new(&scores, bins));
        let mut out = Bounded { estimates: [[0.0; BOUNDED_ESTIMATES]; MEASURES], standard_errors: [0.0; MEASURES] };
        for (k, measure) in BoundedMeasure::ALL.into_iter().enumerate() {
            let places = out.estimates[k].chunks_exact_mut(2);
            for (place, source) in places.zip(sources) {
                let (plug_p, _) = mean_and_variance(n, |i| measure.integrand(source(&fit.p, i)));
                let (plug_q, _) = mean_and_variance(m, |i| measure.integrand(source(&fit.q, i)));
                let (of_p, variance_p) = mean_and_variance(n, |i| measure.witness(source(&fit.p, i)));
                let (of_q, variance_q) = mean_and_variance(m, |i| measure.witness(-source(&fit.q, i)));
                place.copy_from_slice(&[0.5 * (plug_p + plug_q), 0.5 * (of_p + of_q)]);
                // The last source is the boosted ratio.
                out.standard_errors[k] = 0.5 * (variance_p + variance_q).sqrt();
            }
            out.estimates[k][BOUNDED_ESTIMATES - 2..]
                .copy_from_slice(&[0, 1].map(|b: usize| bins[b].mean(|r| measure.integrand(r))));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plug_in_and_variational_expressions_agree_at_the_true_ratio() {
        // Two distributions on four points.
        let (p, q) = ([0.1, 0.2, 0.3, 0.4f64], [0.4, 0.1, 0.3, 0.2f64]);
        let exact = [
            p.iter()
                .zip(&q)
                .map(|(p, q)| 0.5 * p * (2.0 * p / (p + q)).ln() + 0.5 * q * (2.0 * q / (p + q)).ln())
                .sum(),
            p.iter().zip(&q).map(|(p, q)| 0.5 * (p - q).abs()).sum(),
            1.0 - p.iter().zip(&q).map(|(p, q)| (p * q).sqrt()).sum::<f64>(),
        ];
        for (measure, exact) in BoundedMeasure::ALL.into_iter().zip::<[f64; 3]>(exact) {
            let rows = || p.iter().zip(&q).map(|(p, q)| (*p, *q, (p / q).ln()));
            let plug_in: f64 = rows().map(|(p, q, r)| 0.5 * (p + q) * measure.integrand(r)).sum();
            // A row with a log ratio of zero counts for total variation on neither side.
            let sign = |r: f64| if r == 0.0 { 0.0 } else { 1.0 };
            let of = |r: f64| {
                if measure == BoundedMeasure::TotalVariation {
                    sign(r) * measure.witness(r)
                } else {
                    measure.witness(r)
                }
            };
            let variational: f64 = rows().map(|(p, q, r)| 0.5 * (p * of(r) + q * of(-r))).sum();
            assert!((plug_in - exact).abs() < 1e-12 && (variational - exact).abs() < 1e-12, "{measure:?}");
            assert!((0.0..=measure.bound()).contains(&plug_in) && measure.integrand(f64::INFINITY) <= measure.bound());
        }
    }
}
