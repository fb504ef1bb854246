//! What someone who knows the law of the mixtures can say of a label, given the two samples.

use rand::Rng;

use setwise::distributions::{IntRange, Mixture, MixtureLaw};

use crate::reproduce::posterior::Chain;

/// Steps from one label that is kept to the next.
const EVERY: usize = 2;

/// Parts of a chain that are looked at: its first sixteenth, eighth and so on up to the whole.
pub const PARTS: [usize; 5] = [16, 8, 4, 2, 1];

/// Fewest steps of a chain: each part holds a label.
pub const FEWEST: usize = PARTS[0] * EVERY;

/// What chains say of one example.
pub struct Oracle {
    /// Labels along a chain from the truth: draws of the posterior.
    draws: Vec<f64>,
    /// Mean distance of these from their median, by part of the chain.
    pub spread: [f64; PARTS.len()],
    /// Distance of the label from that median.
    pub error: [f64; PARTS.len()],
    /// Median of a chain that was not told the truth, by part of the chain, of which the second half counts.
    pub untold: [f64; PARTS.len()],
    /// What the draws are worth, in independent ones.
    pub effective: f64,
}

impl Oracle {
    /// Runs one chain from the mixtures that made the samples and one from a draw of the prior.
    pub fn ask(law: &MixtureLaw, samples: [&[f64]; 2], truth: [Mixture; 2], steps: usize, rng: &mut impl Rng) -> Self {
        let dim = truth[0].dim();
        let label = truth[0].mean_log_ratio(&truth[1], samples[0]);
        let draws = labels(law, samples, truth, steps, rng);
        // Components that are too many lose their points sooner than those that lack come up.
        let most = MixtureLaw { components: IntRange::new(law.components.max, law.components.max), ..law.clone() };
        let start = [0, 1].map(|_| Mixture::draw(&most, dim, rng));
        let untold = labels(law, samples, start, steps, rng);
        let part = |part: usize| &draws[..draws.len() / part];
        let second_half = |part: usize| &untold[untold.len() / part / 2..untold.len() / part];
        Oracle {
            spread: PARTS.map(|p| mean_distance(part(p), median(part(p)))),
            error: PARTS.map(|p| (median(part(p)) - label).abs()),
            untold: PARTS.map(|p| median(second_half(p))),
            effective: effective_draws(&draws),
            draws,
        }
    }

    /// The absolute error an answer has on average over the labels that are possible given the samples. On average over examples it
    /// is that of the answers to their labels, but with less noise.
    pub fn expected_error(&self, answer: f64) -> f64 {
        mean_distance(&self.draws, answer)
    }
}

fn mean_distance(values: &[f64], from: f64) -> f64 {
    values.iter().map(|v| (v - from).abs()).sum::<f64>() / values.len() as f64
}

/// Labels along a chain over both mixtures, the start left out.
fn labels(law: &MixtureLaw, samples: [&[f64]; 2], start: [Mixture; 2], steps: usize, rng: &mut impl Rng) -> Vec<f64> {
    let [p, q] = start;
    let (mut p, mut q) = (Chain::new(law, samples[0], p), Chain::new(law, samples[1], q));
    let mut labels = Vec::with_capacity(steps / EVERY);
    for _ in 0..steps / EVERY {
        for _ in 0..EVERY {
            p.step(rng);
            q.step(rng);
        }
        labels.push(p.mixture().mean_log_ratio(q.mixture(), samples[0]));
    }
    labels
}

/// The median; the mean of the middle two where there are two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    0.5 * (sorted[(n - 1) / 2] + sorted[n / 2])
}

/// Length of a series over 1 + 2 Σ of its autocorrelations, summed in pairs of neighbours while they are positive (Geyer, 1992).
fn effective_draws(series: &[f64]) -> f64 {
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
    fn a_series_that_forgets_slowly_is_worth_few_draws() {
        let mut rng = Generator::seed_from_u64(1);
        for (keep, share) in [(0.0, 1.0), (0.8, 1.0 / 9.0)] {
            let mut x = 0.0;
            let series: Vec<f64> = (0..20_000)
                .map(|_| {
                    let z: f64 = StandardNormal.sample(&mut rng);
                    x = keep * x + z;
                    x
                })
                .collect();
            let found = effective_draws(&series) / 20_000.0;
            assert!((found / share - 1.0).abs() < 0.2, "{keep}: {found}");
        }
        assert_eq!(effective_draws(&[2.0; 9]), 1.0);
    }

    #[test]
    fn with_many_points_chains_find_the_label_whether_told_or_not() {
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
            let oracle = Oracle::ask(&law, [&x, &y], truth, 100, &mut rng);
            let whole = PARTS.len() - 1;
            let untold = oracle.untold[whole];
            let found =
                [oracle.spread[whole], oracle.error[whole], (untold - label).abs(), oracle.expected_error(untold)];
            errors.iter_mut().zip(found).for_each(|(e, f)| *e += f / EXAMPLES as f64);
        }
        assert!(errors.iter().all(|e| *e > 0.0 && *e < 0.03), "{errors:?}");
    }
}
