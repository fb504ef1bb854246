//! Draws of the posterior of a label given both samples, by Markov chains.

use rand::Rng;

use setwise::distributions::{IntRange, Mixture, MixtureLaw};

use crate::reproduce::posterior::Chain;

/// Steps between recorded labels.
const THINNING: usize = 2;

/// Prefixes of a chain: its first sixteenth, eighth, and so on up to the full chain.
pub const DIVISORS: [usize; 5] = [16, 8, 4, 2, 1];

/// Smallest number of steps of a chain, for which every prefix has a label.
pub const MIN_STEPS: usize = DIVISORS[0] * THINNING;

/// Summaries of the chains of one example.
pub struct PosteriorDraws {
    /// Labels along a chain that starts at the true mixtures: draws of the posterior.
    draws: Vec<f64>,
    /// Mean distance of the draws from their median, by prefix of the chain.
    pub spread: [f64; DIVISORS.len()],
    /// Distance of the label from that median, by prefix of the chain.
    pub error: [f64; DIVISORS.len()],
    /// Median of a chain that starts at a draw of the prior, by prefix. The first half of a prefix is burn-in.
    pub from_prior: [f64; DIVISORS.len()],
    /// Effective sample size of the draws.
    pub effective_size: f64,
}

impl PosteriorDraws {
    /// Runs one chain from the true mixtures and one from a draw of the prior.
    pub fn sample(
        law: &MixtureLaw,
        samples: [&[f64]; 2],
        truth: [Mixture; 2],
        steps: usize,
        rng: &mut impl Rng,
    ) -> Self {
        let dim = truth[0].dim();
        let label = truth[0].mean_log_ratio(&truth[1], samples[0]);
        let draws = labels(law, samples, truth, steps, rng);
        // Chains remove surplus components faster than they add missing ones.
        let max_components =
            MixtureLaw { components: IntRange::new(law.components.max, law.components.max), ..law.clone() };
        let start = [0, 1].map(|_| Mixture::draw(&max_components, dim, rng));
        let from_prior = labels(law, samples, start, steps, rng);
        let part = |part: usize| &draws[..draws.len() / part];
        let second_half = |part: usize| &from_prior[from_prior.len() / part / 2..from_prior.len() / part];
        PosteriorDraws {
            spread: DIVISORS.map(|p| mean_distance(part(p), median(part(p)))),
            error: DIVISORS.map(|p| (median(part(p)) - label).abs()),
            from_prior: DIVISORS.map(|p| median(second_half(p))),
            effective_size: effective_sample_size(&draws),
            draws,
        }
    }

    /// The expected absolute error of an estimate under the posterior.
    ///
    /// Its mean over examples equals the mean error from the labels, but has less noise.
    pub fn expected_error(&self, estimate: f64) -> f64 {
        mean_distance(&self.draws, estimate)
    }
}

fn mean_distance(values: &[f64], from: f64) -> f64 {
    values.iter().map(|v| (v - from).abs()).sum::<f64>() / values.len() as f64
}

/// Labels along a chain over both mixtures, without the start.
fn labels(law: &MixtureLaw, samples: [&[f64]; 2], start: [Mixture; 2], steps: usize, rng: &mut impl Rng) -> Vec<f64> {
    let [p, q] = start;
    let (mut p, mut q) = (Chain::new(law, samples[0], p), Chain::new(law, samples[1], q));
    let mut labels = Vec::with_capacity(steps / THINNING);
    for _ in 0..steps / THINNING {
        for _ in 0..THINNING {
            p.step(rng);
            q.step(rng);
        }
        labels.push(p.mixture().mean_log_ratio(q.mixture(), samples[0]));
    }
    labels
}

/// The median. An even number of values has the mean of the middle two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    0.5 * (sorted[(n - 1) / 2] + sorted[n / 2])
}

/// Effective sample size: n / (1 + 2 Σ_k ρ_k), with autocorrelations ρ_k.
///
/// The sum runs over pairs of neighbours while they are positive (Geyer, 1992).
fn effective_sample_size(series: &[f64]) -> f64 {
    let n = series.len();
    let mean = series.iter().sum::<f64>() / n as f64;
    let centred: Vec<f64> = series.iter().map(|x| x - mean).collect();
    let product = |lag: usize| centred[lag..].iter().zip(&centred).map(|(a, b)| a * b).sum::<f64>();
    let variance = product(0);
    if variance <= 0.0 {
        return 1.0;
    }
    let pairs = (0..n / 2).map(|k| product(2 * k) + product(2 * k + 1)).take_while(|p| *p > 0.0);
    let time = 2.0 * pairs.sum::<f64>() / variance - 1.0;
    (n as f64 / time.max(1.0 / n as f64)).clamp(1.0, n as f64)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_distr::{Distribution, StandardNormal};

    use setwise::random::Generator;

    use super::*;

    #[test]
    fn a_series_with_strong_autocorrelation_has_a_small_effective_size() {
        let mut rng = Generator::seed_from_u64(1);
        for (correlation, share) in [(0.0, 1.0), (0.8, 1.0 / 9.0)] {
            let mut x = 0.0;
            let series: Vec<f64> = (0..20_000)
                .map(|_| {
                    let z: f64 = StandardNormal.sample(&mut rng);
                    x = correlation * x + z;
                    x
                })
                .collect();
            let found = effective_sample_size(&series) / 20_000.0;
            assert!((found / share - 1.0).abs() < 0.2, "{correlation}: {found}");
        }
        assert_eq!(effective_sample_size(&[2.0; 9]), 1.0);
    }

    #[test]
    fn with_many_points_chains_from_truth_and_prior_find_the_label() {
        let law = MixtureLaw { components: IntRange::new(1, 2), ..Default::default() };
        let mut rng = Generator::seed_from_u64(2);
        let mut errors = [0.0; 4];
        const EXAMPLES: usize = 6;
        for _ in 0..EXAMPLES {
            let truth = [0, 1].map(|_| Mixture::draw(&law, 1, &mut rng));
            let (mut x, mut y) = (Vec::new(), Vec::new());
            truth[0].sample(1000, &mut rng, &mut x);
            truth[1].sample(1000, &mut rng, &mut y);
            let label = truth[0].mean_log_ratio(&truth[1], &x);
            let oracle = PosteriorDraws::sample(&law, [&x, &y], truth, 100, &mut rng);
            let full = DIVISORS.len() - 1;
            let from_prior = oracle.from_prior[full];
            let found = [
                oracle.spread[full],
                oracle.error[full],
                (from_prior - label).abs(),
                oracle.expected_error(from_prior),
            ];
            errors.iter_mut().zip(found).for_each(|(e, f)| *e += f / EXAMPLES as f64);
        }
        assert!(errors.iter().all(|e| *e > 0.0 && *e < 0.03), "{errors:?}");
    }
}
