//! The posterior of a mixture given its points: a Markov chain that is stationary under it.
//!
//! A Gibbs step draws each of these given the rest, without tuning:
//!
//! 1. the component of each point,
//! 2. mean and Cholesky factor of each component with points ([`gaussian`]),
//! 3. the number of components, their weights, and the components without points.
//!
//! In a simulation the true mixture is a draw of the posterior. So a chain that starts there is stationary from its
//! first step.

mod gaussian;
mod slice;

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Exp1, Gamma};

use setwise::distributions::{Mixture, MixtureLaw, ln_gamma};

use gaussian::Prior;

/// A Markov chain over mixtures, given points.
pub struct Chain<'a> {
    law: &'a MixtureLaw,
    rows: &'a [f64],
    mixture: Mixture,
}

impl<'a> Chain<'a> {
    /// A chain that starts at a mixture, given at least one row-major point.
    pub fn new(law: &'a MixtureLaw, rows: &'a [f64], start: Mixture) -> Self {
        Chain { law, rows, mixture: start }
    }

    /// The current mixture.
    pub fn mixture(&self) -> &Mixture {
        &self.mixture
    }

    /// Makes a Gibbs step.
    pub fn step(&mut self, rng: &mut impl Rng) {
        let dim = self.mixture.dim();
        let groups = self.assign_components(rng);
        let (mut means, mut factors) = (Vec::new(), Vec::new());
        let prior = Prior { law: self.law, dim };
        let gaussians: Vec<(&[f64], &[f64])> = self.mixture.gaussians().collect();
        for (k, points) in &groups {
            let (mut mean, mut factor) = (gaussians[*k].0.to_vec(), gaussians[*k].1.to_vec());
            gaussian::step(&prior, &mut mean, &mut factor, points, rng);
            means.extend(mean);
            factors.extend(factor);
        }
        let sizes: Vec<usize> = groups.iter().map(|(_, points)| points.len() / dim).collect();
        let count = draw_count(self.law, &sizes, rng);
        // Dirichlet(1 + size, …) as gamma variates, which `Mixture::new` divides by their sum.
        let occupied = sizes.iter().map(|&n| Gamma::new(1.0 + n as f64, 1.0).expect("a shape above zero").sample(rng));
        let mut weights: Vec<f64> = occupied.collect();
        for _ in sizes.len()..count {
            weights.push(Exp1.sample(rng));
            let one = MixtureLaw { components: setwise::distributions::IntRange::new(1, 1), ..self.law.clone() };
            let empty = Mixture::draw(&one, dim, rng);
            let (mean, factor) = empty.gaussians().next().expect("one component");
            means.extend(mean);
            factors.extend(factor);
        }
        self.mixture = Mixture::new(dim, &weights, &means, &factors);
    }

    /// Draws the component of each point. Returns the points of each component with points.
    fn assign_components(&self, rng: &mut impl Rng) -> Vec<(usize, Vec<f64>)> {
        let dim = self.mixture.dim();
        let count = self.mixture.weights().count();
        let mut groups: Vec<(usize, Vec<f64>)> = (0..count).map(|k| (k, Vec::new())).collect();
        let mut parts = self.mixture.component_log_densities(self.rows);
        for (point, logs) in self.rows.chunks_exact(dim).zip(parts.chunks_exact_mut(count)) {
            let largest = logs.iter().fold(f64::NEG_INFINITY, |a, &l| a.max(l));
            let mut total = 0.0;
            for log in logs.iter_mut() {
                total += (*log - largest).exp();
                *log = total;
            }
            let u = total * rng.random::<f64>();
            let k = logs.iter().position(|&cumulative| u < cumulative).unwrap_or(count - 1);
            groups[k].1.extend(point);
        }
        groups.retain(|(_, points)| !points.is_empty());
        groups
    }
}

/// Draws the number K of components given the partition of n points into k groups.
///
/// With a uniform prior of K and weights integrated out, P(K | partition) ∝ K!/(K − k)!·Γ(K)/Γ(K + n) (Miller and
/// Harrison, 2018).
fn draw_count(law: &MixtureLaw, sizes: &[usize], rng: &mut impl Rng) -> usize {
    let (k, n) = (sizes.len(), sizes.iter().sum::<usize>() as f64);
    let min = law.components.min.max(k);
    let log = |count: usize| {
        let c = count as f64;
        ln_gamma(c + 1.0) - ln_gamma(c - k as f64 + 1.0) + ln_gamma(c) - ln_gamma(c + n)
    };
    let highest = log(min);
    let shares: Vec<f64> = (min..=law.components.max).map(|count| (log(count) - highest).exp()).collect();
    let mut u = shares.iter().sum::<f64>() * rng.random::<f64>();
    for (i, share) in shares.iter().enumerate() {
        u -= share;
        if u < 0.0 {
            return min + i;
        }
    }
    law.components.max
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use setwise::distributions::{IntRange, Lkj};
    use setwise::random::Generator;

    use super::*;

    /// Statistics of a mixture with known means under the prior.
    ///
    /// All but the first two and the last are of one random component.
    fn numbers(m: &Mixture, rng: &mut Generator) -> Vec<f64> {
        let count = m.weights().count();
        let (mean, factor) = m.gaussians().nth(rng.random_range(0..count)).unwrap();
        let mut numbers = vec![count as f64, (count * count) as f64];
        numbers.extend(mean.iter().flat_map(|m| [*m, m * m]));
        for (i, row) in factor.chunks_exact(m.dim()).enumerate() {
            let square: f64 = row.iter().map(|l| l * l).sum();
            let before = square - row[i] * row[i];
            numbers.extend([0.5 * square.ln(), (0.5 * square.ln()).powi(2)]);
            if i > 0 {
                let y = before / square;
                numbers.extend([y, y * y, row[0] * row[0] / before, row[0] / before.sqrt()]);
            }
        }
        // With K weights of a flat Dirichlet the mean of Σ w² is 2/(K + 1).
        numbers.push(m.weights().map(|w| w * w).sum::<f64>() * (count + 1) as f64);
        numbers
    }

    /// The means of these statistics.
    fn expected(law: &MixtureLaw, dim: usize) -> Vec<f64> {
        let counts = law.components.min..=law.components.max;
        let share = 1.0 / counts.clone().count() as f64;
        let of_counts = |f: fn(f64) -> f64| counts.clone().map(|c| f(c as f64) * share).sum::<f64>();
        let mut expected = vec![of_counts(|c| c), of_counts(|c| c * c)];
        expected.extend([0.5 * law.spread, law.spread.powi(2) / 3.0].repeat(dim));
        for i in 0..dim {
            expected.extend([0.0, law.log_scale_sd.powi(2)]);
            if i > 0 {
                let (a, b) = law.lkj.beta_parameters(dim, law.concentration, i);
                expected.extend([a / (a + b), a * (a + 1.0) / (a + b) / (a + b + 1.0), 1.0 / i as f64, 0.0]);
            }
        }
        expected.push(2.0);
        expected
    }

    /// Geweke's test (2004): alternates steps with fresh points of the mixture, which must leave the prior invariant.
    ///
    /// Returns differences of means from those of the prior, in standard errors by batch means.
    fn distances(law: &MixtureLaw, dim: usize, points: usize, steps: usize) -> Vec<f64> {
        let mut rng = Generator::seed_from_u64(17);
        let expected = expected(law, dim);
        const BATCHES: usize = 40;
        let mut mixture = Mixture::draw(law, dim, &mut rng);
        let mut means = vec![vec![0.0; expected.len()]; BATCHES];
        for mean in &mut means {
            for _ in 0..steps / BATCHES {
                let mut rows = Vec::new();
                mixture.sample(points, &mut rng, &mut rows);
                let mut chain = Chain::new(law, &rows, mixture);
                chain.step(&mut rng);
                mixture = chain.mixture;
                for (mean, x) in mean.iter_mut().zip(numbers(&mixture, &mut rng)) {
                    *mean += x / (steps / BATCHES) as f64;
                }
            }
        }
        let n = BATCHES as f64;
        expected
            .iter()
            .enumerate()
            .map(|(k, expected)| {
                let mean = means.iter().map(|m| m[k]).sum::<f64>() / n;
                let variance = means.iter().map(|m| (m[k] - mean).powi(2)).sum::<f64>() / (n - 1.0);
                (mean - expected) / (variance / n).sqrt().max(1e-12)
            })
            .collect()
    }

    fn paper(min: usize, max: usize) -> MixtureLaw {
        MixtureLaw { components: IntRange::new(min, max), lkj: Lkj::Paper, ..Default::default() }
    }

    #[test]
    fn alternating_steps_and_fresh_points_leaves_the_prior_invariant() {
        for (law, dim, points) in [
            (paper(1, 3), 3, 7),
            (paper(1, 1), 4, 12),
            (MixtureLaw { components: IntRange::new(1, 2), spread: 2.5, ..Default::default() }, 3, 3),
        ] {
            let distances = distances(&law, dim, points, 40_000);
            let max = distances.iter().fold(0.0f64, |a, d| a.max(d.abs()));
            assert!(max < 4.2, "{law:?}: {distances:.1?}");
        }
    }

    #[test]
    fn quantiles_of_a_chain_agree_with_importance_sampling() {
        for (dim, points) in [(1, 5), (2, 8)] {
            let law = paper(1, 1);
            let mut rng = Generator::seed_from_u64(dim as u64);
            let truth = Mixture::draw(&law, dim, &mut rng);
            let (mut rows, mut elsewhere) = (Vec::new(), Vec::new());
            truth.sample(points, &mut rng, &mut rows);
            Mixture::draw(&law, dim, &mut rng).sample(50, &mut rng, &mut elsewhere);
            let value = |m: &Mixture| m.log_density(&elsewhere).iter().sum::<f64>() / 50.0;
            // The prior, weighted with the likelihood.
            let mut weighted: Vec<(f64, f64)> = (0..150_000)
                .map(|_| Mixture::draw(&law, dim, &mut rng))
                .map(|m| (value(&m), m.log_density(&rows).iter().sum::<f64>().exp()))
                .collect();
            weighted.sort_by(|a, b| a.0.total_cmp(&b.0));
            let total: f64 = weighted.iter().map(|w| w.1).sum();
            let quantile = |level: f64| {
                let mut sum = 0.0;
                let reached = |w: &&(f64, f64)| {
                    sum += w.1;
                    sum >= level * total
                };
                weighted.iter().find(reached).unwrap().0
            };
            let mut chain = Chain::new(&law, &rows, truth);
            let mut values: Vec<f64> = (0..20_000)
                .map(|_| {
                    chain.step(&mut rng);
                    value(chain.mixture())
                })
                .collect();
            values.sort_by(f64::total_cmp);
            let spread = quantile(0.75) - quantile(0.25);
            for level in [0.25, 0.5, 0.75] {
                let (exact, found) = (quantile(level), values[(level * 20_000.0) as usize]);
                assert!(
                    (exact - found).abs() < 0.04 * spread,
                    "d = {dim}, {level}: {exact} and {found}, spread {spread}"
                );
            }
        }
    }

    #[test]
    fn the_number_of_components_given_the_groups_has_its_posterior() {
        let law = paper(1, 4);
        let mut rng = Generator::seed_from_u64(5);
        let draws: Vec<usize> = (0..20_000).map(|_| draw_count(&law, &[1, 1], &mut rng)).collect();
        // Two points in two groups: K(K − 1)/(K(K + 1)) for K = 2, 3, 4.
        let shares = [1.0 / 3.0, 2.0 / 4.0, 3.0 / 5.0];
        let total: f64 = shares.iter().sum();
        for (count, share) in (2..=4).zip(shares) {
            let found = draws.iter().filter(|c| **c == count).count() as f64 / 20_000.0;
            assert!((found - share / total).abs() < 0.015, "{count}: {found}");
        }
        assert!(draws.iter().all(|c| *c >= 2));
    }
}
