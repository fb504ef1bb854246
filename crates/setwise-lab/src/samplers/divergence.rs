//! Two samples of random mixtures, labelled with their divergence.

use serde::{Deserialize, Serialize};

use setwise::distributions::{IntRange, Mixture, MixtureLaw};
use setwise::random::Generator;

use super::Sampler;

/// The label of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Label {
    /// The mean of log p − log q over the points of X, as in the paper.
    Sample,
    /// KL(p‖q): the closed form where it exists, otherwise the mean of log p − log q over fresh points of p.
    True {
        /// Number of fresh points.
        points: usize,
    },
}

/// X is a sample of a random mixture p, Y of another, q. The label is KL(p‖q).
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// The prior of p and q.
    pub mixture: MixtureLaw,
    /// The label.
    pub label: Label,
}

impl Divergence {
    /// Draws the example of [`Sampler::draw`], and also returns both mixtures.
    pub fn draw_with_truth(
        &self,
        dim: usize,
        size: IntRange,
        rng: &mut Generator,
        rows: &mut [Vec<f64>],
    ) -> ([Mixture; 2], f64) {
        let first = rows[0].len();
        let truth = self.draw_sets(dim, size, rng, rows);
        let label = self.label_of(&truth, rng, |[p, q]| p.mean_log_ratio(q, &rows[0][first..]));
        (truth, label)
    }

    /// Draws two mixtures and a set from each.
    fn draw_sets(&self, dim: usize, size: IntRange, rng: &mut Generator, rows: &mut [Vec<f64>]) -> [Mixture; 2] {
        let p = Mixture::draw(&self.mixture, dim, rng);
        let q = Mixture::draw(&self.mixture, dim, rng);
        let (n, m) = (size.draw(rng), size.draw(rng));
        p.sample(n, rng, &mut rows[0]);
        q.sample(m, rng, &mut rows[1]);
        [p, q]
    }

    /// The label of two mixtures. `on_sample` computes the label on the sample.
    fn label_of(&self, truth: &[Mixture; 2], rng: &mut Generator, on_sample: impl FnOnce(&[Mixture; 2]) -> f64) -> f64 {
        let [p, q] = truth;
        match self.label {
            Label::Sample => on_sample(truth),
            Label::True { points } => p.exact_kl(q).unwrap_or_else(|| {
                let mut fresh = Vec::new();
                p.sample(points, rng, &mut fresh);
                p.mean_log_ratio(q, &fresh)
            }),
        }
    }
}

impl Sampler for Divergence {
    fn sets(&self) -> usize {
        2
    }

    fn draw(&self, dim: usize, size: IntRange, rng: &mut Generator, rows: &mut [Vec<f64>]) -> f64 {
        self.draw_with_truth(dim, size, rng, rows).1
    }

    /// The label of an element is log p − log q at its point.
    fn draw_with_elements(
        &self,
        dim: usize,
        size: IntRange,
        rng: &mut Generator,
        rows: &mut [Vec<f64>],
        elements: &mut [Vec<f64>],
    ) -> f64 {
        let first: Vec<usize> = rows.iter().map(Vec::len).collect();
        let first_label = elements[0].len();
        let truth = self.draw_sets(dim, size, rng, rows);
        for ((elements, rows), first) in elements.iter_mut().zip(rows).zip(first) {
            elements.extend(truth[0].log_ratios(&truth[1], &rows[first..]));
        }
        let ratios = &elements[0][first_label..];
        self.label_of(&truth, rng, |_| ratios.iter().sum::<f64>() / ratios.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn labels_of_elements_are_log_ratios_whose_mean_is_the_label() {
        let sampler = Divergence { mixture: MixtureLaw::default(), label: Label::Sample };
        let (size, draws) = (IntRange::new(5, 9), || Generator::seed_from_u64(3));
        let (mut rows, mut same, mut elements) = (vec![Vec::new(); 2], vec![Vec::new(); 2], vec![Vec::new(); 2]);
        let label = sampler.draw_with_elements(3, size, &mut draws(), &mut rows, &mut elements);
        assert_eq!(sampler.draw(3, size, &mut draws(), &mut same), label);
        assert_eq!(rows, same);
        assert_eq!(
            elements.iter().map(|e| 3 * e.len()).collect::<Vec<_>>(),
            rows.iter().map(Vec::len).collect::<Vec<_>>()
        );
        assert!((elements[0].iter().sum::<f64>() / elements[0].len() as f64 - label).abs() < 1e-12);
        assert!(elements[1].iter().sum::<f64>() / (elements[1].len() as f64) < label);
    }

    #[test]
    fn labels_on_the_sample_scatter_around_the_true_ones() {
        let mut differences = Vec::new();
        for seed in 0..300 {
            let draw = |label| {
                let sampler = Divergence { mixture: MixtureLaw::default(), label };
                let mut rows = vec![Vec::new(); 2];
                sampler.draw(2, IntRange::new(100, 150), &mut Generator::seed_from_u64(seed), &mut rows)
            };
            differences.push(draw(Label::Sample) - draw(Label::True { points: 4000 }));
        }
        let n = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / n;
        let sd = (differences.iter().map(|d| d * d).sum::<f64>() / n).sqrt();
        assert!(sd > 0.01 && mean.abs() < 4.0 * sd / n.sqrt(), "mean {mean}, sd {sd}");
    }
}
