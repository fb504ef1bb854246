//! Log density ratios of two Gaussians: regularised discriminant analysis (Friedman, 1989).
//!
//! The covariance of each sample is drawn toward that of both about their means, and toward a multiple of the identity,
//! by the shares that separate left-out rows best. Among the results are quadratic and linear discriminant analysis,
//! and Gaussians that differ by a scale.

use rayon::prelude::*;

use super::super::Points;
use super::super::softplus;
use crate::linalg::{moments, symmetric_eigen};

/// Shares of the common covariance that are tried.
const COMMON_SHARES: [f64; 6] = [0.0, 0.3, 0.6, 0.85, 0.95, 1.0];
/// Shares of the identity that are tried with each of them.
const ROUND_SHARES: [f64; 3] = [0.0, 0.5, 1.0];
/// Rows of each sample that determine the shares.
const MAX_ROWS: usize = 2048;
/// Axes of the Gaussians, from the first one on: the time of a fit grows with the third power of their number.
const MAX_AXES: usize = 64;
/// The smallest variance, relative to the mean one: Gaussians of a constant direction stay finite.
const MIN_VARIANCE: f64 = 1e-6;
/// The largest part of a row in a covariance, of which a left-out row leaves the rest.
const MAX_LEVERAGE: f64 = 1.0 - 1e-6;

/// One sample's moments.
struct Sample {
    rows: f64,
    mean: Vec<f64>,
    /// Sums of squares and products about the mean.
    scatter: Vec<f64>,
}

impl Sample {
    fn new(points: Points) -> Self {
        let axes: Vec<usize> = (0..points.dim().min(MAX_AXES)).collect();
        let (mean, mut scatter) = moments(&points.columns(&axes), axes.len(), 1);
        let rows = points.len() as f64;
        scatter.iter_mut().for_each(|s| *s *= rows - 1.0);
        Sample { rows, mean, scatter }
    }
}

fn finite(ratio: f64) -> f64 {
    if ratio.is_finite() { ratio } else { 0.0 }
}

/// How covariances are regularised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// The share of the common covariance.
    pub common: f64,
    /// The share of a multiple of the identity.
    pub round: f64,
}

/// A Gaussian without the constant of its log density, in the axes of its covariance.
struct Gaussian {
    /// Unit vectors, `[axes, columns]`.
    axes: Vec<f64>,
    /// Variances along the axes before they are drawn toward their mean.
    variances: Vec<f64>,
    round: f64,
    /// The weight of a row of either sample in the covariance.
    weights: [f64; 2],
}

impl Gaussian {
    /// The Gaussian of `samples[own]`. With `left_out`, weights are those without one row of that sample.
    fn new(samples: &[Sample; 2], own: usize, shares: Shares, left_out: Option<usize>) -> Self {
        let d = samples[0].mean.len();
        let rows = |k: usize| samples[k].rows - f64::from(u8::from(left_out == Some(k)));
        let common = shares.common / (rows(0) + rows(1) - 2.0).max(1.0);
        let mut weights = [common; 2];
        weights[own] += (1.0 - shares.common) / (rows(own) - 1.0).max(1.0);
        let mut cov: Vec<f64> =
            (0..d * d).map(|i| weights[0] * samples[0].scatter[i] + weights[1] * samples[1].scatter[i]).collect();
        let (variances, axes) = symmetric_eigen(&mut cov, d);
        Gaussian { axes, variances, round: shares.round, weights }
    }

    /// row − mean in the axes.
    fn rotate(&self, row: &[f64], mean: &[f64], out: &mut [f64]) {
        for (o, axis) in out.iter_mut().zip(self.axes.chunks_exact(mean.len())) {
            *o = axis.iter().zip(row.iter().zip(mean)).map(|(a, (x, m))| a * (x - m)).sum();
        }
    }

    /// Regularised variances along the axes. `trace` is the sum of the variances.
    fn regularised(&self, trace: f64) -> impl Iterator<Item = f64> + '_ {
        let mean = trace / self.variances.len() as f64;
        self.variances.iter().map(move |v| {
            ((1.0 - self.round) * v.max(0.0) + self.round * mean).max(MIN_VARIANCE * mean).max(f64::MIN_POSITIVE)
        })
    }

    fn trace(&self) -> f64 {
        self.variances.iter().sum()
    }
}

/// The fitted discriminant.
pub struct Discriminant {
    means: [Vec<f64>; 2],
    rows: [f64; 2],
    gaussians: [Gaussian; 2],
    /// Gaussians whose weights are those without a row of P, and without one of Q.
    left_out: [[Gaussian; 2]; 2],
    /// How covariances are regularised.
    pub shares: Shares,
}

/// A discriminant with its log density ratios at the rows of P and Q, each without that row.
pub struct DiscriminantRatios {
    pub discriminant: Discriminant,
    pub p: Vec<f64>,
    pub q: Vec<f64>,
}

impl Discriminant {
    fn new(samples: &[Sample; 2], shares: Shares) -> Self {
        let both = |left_out| [0, 1].map(|own| Gaussian::new(samples, own, shares, left_out));
        Discriminant {
            means: [0, 1].map(|k| samples[k].mean.clone()),
            rows: [0, 1].map(|k| samples[k].rows),
            gaussians: both(None),
            left_out: [both(Some(0)), both(Some(1))],
            shares,
        }
    }

    /// Fits the discriminant to two samples in random order.
    pub fn fit(p: Points, q: Points) -> DiscriminantRatios {
        let loss = |discriminant: &Discriminant| -> f64 {
            let (n, m) = (p.len().min(MAX_ROWS), q.len().min(MAX_ROWS));
            let of_p: f64 = (0..n).map(|i| softplus(-discriminant.left_out_ratio(0, p.row(i)))).sum();
            let of_q: f64 = (0..m).map(|i| softplus(discriminant.left_out_ratio(1, q.row(i)))).sum();
            of_p / n as f64 + of_q / m as f64
        };
        let samples = [p, q].map(Sample::new);
        let rounds: &[f64] = if p.dim() > 1 { &ROUND_SHARES } else { &ROUND_SHARES[..1] };
        let candidates: Vec<Shares> = COMMON_SHARES
            .into_iter()
            .flat_map(|common| rounds.iter().map(move |&round| Shares { common, round }))
            .collect();
        let losses: Vec<(f64, Shares)> =
            candidates.into_par_iter().map(|shares| (loss(&Self::new(&samples, shares)), shares)).collect();
        let best = losses.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let (_, shares) = best.expect("there are several candidates");
        let discriminant = Self::new(&samples, shares);
        let ratios = |k: usize, points: Points| -> Vec<f64> {
            let one = |i: usize| discriminant.left_out_ratio(k, points.row(i));
            (0..points.len()).into_par_iter().with_min_len(1024).map(one).collect()
        };
        let (of_p, of_q) = (ratios(0, p), ratios(1, q));
        DiscriminantRatios { discriminant, p: of_p, q: of_q }
    }

    /// log p/q at a row of neither sample.
    pub fn at(&self, row: &[f64]) -> f64 {
        let row = &row[..self.means[0].len()];
        let mut z = vec![0.0; row.len()];
        let [of_p, of_q] = [0, 1].map(|k| {
            let gaussian = &self.gaussians[k];
            gaussian.rotate(row, &self.means[k], &mut z);
            let terms = z.iter().zip(gaussian.regularised(gaussian.trace()));
            -0.5 * terms.map(|(z, v)| z * z / v + v.ln()).sum::<f64>()
        });
        finite(of_p - of_q)
    }

    /// log p/q at a row of sample `own` from the other rows.
    ///
    /// Without the row, a covariance loses w·n/(n − 1)·u·uᵀ, where u is the row minus the mean of its sample and w its
    /// weight. The Sherman–Morrison formula gives distances and determinants.
    fn left_out_ratio(&self, own: usize, row: &[f64]) -> f64 {
        let (row, n) = (&row[..self.means[0].len()], self.rows[own]);
        let stretch = n / (n - 1.0);
        let (mut u, mut v) = (vec![0.0; row.len()], vec![0.0; row.len()]);
        let log_density = |k: usize, u: &mut [f64], v: &mut [f64]| {
            let gaussian = &self.left_out[own][k];
            gaussian.rotate(row, &self.means[own], u);
            match k == own {
                // The row minus the mean without it.
                true => v.iter_mut().zip(u.iter()).for_each(|(v, u)| *v = stretch * u),
                false => gaussian.rotate(row, &self.means[k], v),
            }
            let weight = gaussian.weights[own] * stretch;
            let trace = (gaussian.trace() - weight * u.iter().map(|u| u * u).sum::<f64>()).max(0.0);
            let (mut length, mut along, mut sum) = (0.0, 0.0, 0.0);
            for ((u, v), variance) in u.iter().zip(v.iter()).zip(gaussian.regularised(trace)) {
                length += u * u / variance;
                along += u * v / variance;
                sum += v * v / variance + variance.ln();
            }
            let weight = (1.0 - gaussian.round) * weight;
            let rest = 1.0 - (weight * length).min(MAX_LEVERAGE);
            -0.5 * (sum + weight * along * along / rest + rest.ln())
        };
        finite(log_density(0, &mut u, &mut v) - log_density(1, &mut u, &mut v))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributions::Mixture;
    use crate::random::Generator;
    use rand::SeedableRng;

    fn samples(n: usize, dim: usize, scale: f64, shift: f64) -> [Vec<f64>; 2] {
        let mut rng = Generator::seed_from_u64(5);
        [(0.0, 1.0), (shift, scale)].map(|(mean, scale)| {
            let factor: Vec<f64> = (0..dim * dim).map(|i| if i % (dim + 1) == 0 { scale } else { 0.0 }).collect();
            let mut rows = Vec::new();
            Mixture::new(dim, &[1.0], &vec![mean; dim], &factor).sample(n, &mut rng, &mut rows);
            rows
        })
    }

    #[test]
    fn left_out_ratios_are_those_of_fits_without_the_row() {
        let dim = 3;
        let [x, y] = samples(15, dim, 1.4, 0.5);
        for (common, round) in [(0.0, 0.0), (0.6, 0.0), (0.6, 0.5), (1.0, 0.5), (0.0, 1.0)] {
            let shares = Shares { common, round };
            let fit = |x: &[f64], y: &[f64]| {
                Discriminant::new(&[x, y].map(|rows| Sample::new(Points::new(rows, dim))), shares)
            };
            let all = fit(&x, &y);
            for i in [0, 7] {
                let without = |rows: &[f64]| [&rows[..i * dim], &rows[(i + 1) * dim..]].concat();
                let row = |rows: &[f64]| rows[i * dim..(i + 1) * dim].to_vec();
                for (own, fit, row) in [(0, fit(&without(&x), &y), row(&x)), (1, fit(&x, &without(&y)), row(&y))] {
                    let (expected, found) = (fit.at(&row), all.left_out_ratio(own, &row));
                    assert!(
                        (expected - found).abs() < 1e-9 * (1.0 + expected.abs()),
                        "{shares:?}: {expected} and {found}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_common_covariance_is_chosen_where_samples_differ_by_a_shift_alone() {
        let dim = 6;
        let shares = [1.0, 2.0].map(|scale| {
            let [x, y] = samples(80, dim, scale, 0.5);
            Discriminant::fit(Points::new(&x, dim), Points::new(&y, dim)).discriminant.shares
        });
        assert!(shares[0].common > 0.9 && shares[1].common < 0.5 && shares[1].round > 0.4, "{shares:?}");
    }

    #[test]
    fn samples_without_variance_in_a_direction_have_finite_ratios() {
        let x: Vec<f64> = (0..40).flat_map(|i| [f64::from(i * 7 % 11), 1.0]).collect();
        let fit = Discriminant::fit(Points::new(&x, 2), Points::new(&x, 2));
        assert!(fit.p.iter().chain(&fit.q).all(|r| r.is_finite()));
    }
}
