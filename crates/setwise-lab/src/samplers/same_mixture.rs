//! Two samples of one random mixture or of two random mixtures.

use rand::RngExt;

use setwise::distributions::{IntRange, Mixture, MixtureLaw};
use setwise::random::Generator;

use super::Sampler;

/// Labels 1 and 0 are equally likely. X and Y are samples of one random mixture (label 1) or of two (label 0).
#[derive(Clone, Debug, PartialEq)]
pub struct SameMixture {
    /// The prior of the mixtures.
    pub mixture: MixtureLaw,
}

impl Sampler for SameMixture {
    fn sets(&self) -> usize {
        2
    }

    fn draw(&self, dim: usize, size: IntRange, rng: &mut Generator, rows: &mut [Vec<f64>]) -> f64 {
        let same = rng.random_bool(0.5);
        let p = Mixture::draw(&self.mixture, dim, rng);
        let (n, m) = (size.draw(rng), size.draw(rng));
        p.sample(n, rng, &mut rows[0]);
        match same {
            true => p.sample(m, rng, &mut rows[1]),
            false => Mixture::draw(&self.mixture, dim, rng).sample(m, rng, &mut rows[1]),
        }
        f64::from(u8::from(same))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn samples_of_one_mixture_have_nearer_means_than_samples_of_two() {
        let mut distances = [Vec::new(), Vec::new()];
        for seed in 0..400 {
            let mut rows = vec![Vec::new(); 2];
            let sampler = SameMixture { mixture: MixtureLaw::default() };
            let label = sampler.draw(3, IntRange::new(60, 60), &mut Generator::seed_from_u64(seed), &mut rows);
            let mean = |rows: &[f64], i: usize| rows.iter().skip(i).step_by(3).sum::<f64>() / 60.0;
            let square: f64 = (0..3).map(|i| (mean(&rows[0], i) - mean(&rows[1], i)).powi(2)).sum();
            distances[label as usize].push(square);
        }
        let mean = |d: &[f64]| d.iter().sum::<f64>() / d.len() as f64;
        assert!(distances.iter().all(|d| d.len() > 150));
        assert!(mean(&distances[0]) > 1.5 * mean(&distances[1]), "{} and {}", mean(&distances[0]), mean(&distances[1]));
    }
}
