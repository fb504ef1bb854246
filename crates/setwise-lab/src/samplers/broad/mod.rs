//! A broad stream of pairs of distributions with known divergence, for an estimator that has to answer for any sample.
//!
//! * `clusters`: mixtures of Gaussians and of Student's t, of very different separation, anisotropy and weights.
//! * `marginals`: independent columns of different shapes, bounded and skewed ones too.
//! * `warp`: smooth invertible maps, shared by both samples (the divergence stays) or of each distribution's own.
//! * `truth`: the divergence itself, in closed form or from fresh points until it is known well.
//!
//! The second distribution of a pair is the first one perturbed, by a strength drawn so that the divergence spreads over the
//! range wanted in any dimension, or one of its own, or the same.

mod clusters;
mod marginals;
mod truth;
mod warp;

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Exp1};

use setwise::distributions::IntRange;
use setwise::random::Generator;

use super::Sampler;
use clusters::Clusters;
use marginals::Marginals;
use warp::{Shear, Warp};

pub use truth::{Precision, Truth, divergence};

/// A distribution that can be drawn from and whose density is known.
pub trait Law {
    /// Appends `n` points.
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>);
    /// The log density at row-major points.
    fn log_density(&self, rows: &[f64]) -> Vec<f64>;
}

/// Two samples of a pair of distributions from the broad stream, labelled with KL(p‖q).
#[derive(Clone, Debug, PartialEq)]
pub struct Broad {
    /// Pairs with a larger divergence are drawn again.
    pub max_divergence: f64,
}

/// What is drawn of a pair.
pub struct Pair {
    /// The first distribution.
    pub p: Box<dyn Law>,
    /// The second.
    pub q: Box<dyn Law>,
    /// KL(p‖q).
    pub truth: Truth,
    /// A map that both samples go through.
    warp: Option<Warp>,
}

impl Pair {
    /// Appends `n` points of the first distribution.
    pub fn sample_p(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        self.sample(&*self.p, n, rng, rows);
    }

    /// Appends `m` points of the second.
    pub fn sample_q(&self, m: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        self.sample(&*self.q, m, rng, rows);
    }

    fn sample(&self, law: &dyn Law, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let first = rows.len();
        law.sample(n, rng, rows);
        if let Some(warp) = &self.warp {
            warp.apply(&mut rows[first..]);
        }
    }
}

/// The divergence a perturbation aims at: often small, mostly below five, sometimes large.
fn aim(largest: f64, rng: &mut impl Rng) -> f64 {
    let t: f64 = match rng.random_bool(0.5) {
        true => log_uniform(0.02, 0.6 * largest, rng),
        false => 3.0 * Distribution::<f64>::sample(&Exp1, rng),
    };
    t.min(largest)
}

/// A number whose logarithm is uniform.
fn log_uniform(least: f64, most: f64, rng: &mut impl Rng) -> f64 {
    least * (most / least).powf(rng.random())
}

impl Broad {
    /// Draws a pair, its divergence as well known as estimates from thousands of points can be held against.
    pub fn pair(&self, dim: usize, rng: &mut Generator) -> Pair {
        self.known(dim, Precision::Fine, rng)
    }

    fn known(&self, dim: usize, precision: Precision, rng: &mut Generator) -> Pair {
        let mut strength = (aim(self.max_divergence, rng) / dim as f64).sqrt();
        if rng.random_bool(0.06) {
            strength = 0.0;
        }
        let warped = rng.random_bool(0.45);
        let columns = rng.random_bool(0.3);
        let mut independent = rng.random_bool(0.2);
        loop {
            let (p, q, truth) = match columns {
                true => Self::marginals(dim, strength, precision, rng),
                false => Self::clusters(dim, strength, independent, precision, rng),
            };
            if truth.value.is_finite() && truth.value <= self.max_divergence {
                let warp = warped.then(|| Warp::draw(dim, &*p, &*q, rng));
                return Pair { p, q, truth, warp };
            }
            // Too far apart: closer next time, so that this ends.
            independent = false;
            strength *= 0.6;
        }
    }

    /// Draws a pair of single Gaussians, as they are.
    pub fn gaussians(&self, dim: usize, rng: &mut Generator) -> Pair {
        let mut strength = (aim(self.max_divergence, rng) / dim as f64).sqrt();
        loop {
            let of_p = Clusters::draw(dim, rng).first();
            let (p, q) = (of_p.mixture(), of_p.perturbed(strength, rng).first().mixture());
            if let Some(value) = p.exact_kl(&q).filter(|value| *value <= self.max_divergence) {
                return Pair { p: Box::new(p), q: Box::new(q), truth: Truth::exact(value), warp: None };
            }
            strength *= 0.6;
        }
    }

    fn marginals(
        dim: usize,
        strength: f64,
        precision: Precision,
        rng: &mut Generator,
    ) -> (Box<dyn Law>, Box<dyn Law>, Truth) {
        let (p, q) = Marginals::pair(dim, strength, rng);
        let (of_p, of_q) = p.differing(&q);
        let truth = match of_p.is_empty() {
            true => Truth::exact(0.0),
            false => divergence(&of_p, &of_q, false, precision, rng),
        };
        (Box::new(p), Box::new(q), truth)
    }

    fn clusters(
        dim: usize,
        strength: f64,
        independent: bool,
        precision: Precision,
        rng: &mut Generator,
    ) -> (Box<dyn Law>, Box<dyn Law>, Truth) {
        let of_p = Clusters::draw(dim, rng);
        let of_q = match independent {
            true => Clusters::draw(dim, rng).with_tails_of(&of_p, rng),
            false => of_p.perturbed(strength, rng),
        };
        let (p, q) = (of_p.mixture(), of_q.mixture());
        // Curved clusters: the same curve leaves the divergence as it is, another one changes it.
        if dim > 1 && strength > 0.0 && rng.random_bool(0.15) {
            let shear = Shear::draw(dim, &p, rng);
            let other = shear.perturbed(strength * (dim as f64).sqrt(), rng);
            let (p, q) = (shear.of(p), other.of(q));
            let truth = divergence(&p, &q, true, precision, rng);
            return (Box::new(p), Box::new(q), truth);
        }
        let truth = match p.exact_kl(&q) {
            Some(value) => Truth::exact(value),
            None => divergence(&p, &q, true, precision, rng),
        };
        (Box::new(p), Box::new(q), truth)
    }
}

/// Set sizes with a uniform logarithm; every other time both are one.
fn sizes(size: IntRange, rng: &mut impl Rng) -> (usize, usize) {
    let mut one = || log_uniform(size.min as f64, size.max as f64 + 1.0, rng) as usize;
    let (n, m) = (one(), one());
    let n = n.clamp(size.min, size.max);
    (n, if rng.random_bool(0.5) { n } else { m.clamp(size.min, size.max) })
}

impl Sampler for Broad {
    fn sets(&self) -> usize {
        2
    }

    fn draw(&self, dim: usize, size: IntRange, rng: &mut Generator, rows: &mut [Vec<f64>]) -> f64 {
        let pair = self.known(dim, Precision::Coarse, rng);
        let (n, m) = sizes(size, rng);
        pair.sample_p(n, rng, &mut rows[0]);
        pair.sample_q(m, rng, &mut rows[1]);
        pair.truth.value
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn divergences_spread_over_the_range_in_every_dimension() {
        for dim in [1, 2, 5, 16] {
            let mut rng = Generator::seed_from_u64(dim as u64);
            let mut truths: Vec<f64> =
                (0..400).map(|_| Broad { max_divergence: 30.0 }.pair(dim, &mut rng).truth.value).collect();
            truths.sort_by(f64::total_cmp);
            let share = |a: f64, b: f64| truths.iter().filter(|t| **t >= a && **t < b).count() as f64 / 400.0;
            assert!(truths[0] >= -0.05 && truths[399] <= 30.0, "d = {dim}: {} to {}", truths[0], truths[399]);
            assert!(share(-1.0, 0.2) > 0.1 && share(0.2, 1.0) > 0.1 && share(1.0, 5.0) > 0.15, "d = {dim}");
            assert!(share(5.0, 31.0) > 0.02, "d = {dim}: {:?}", &truths[380..]);
        }
    }

    #[test]
    fn the_labels_agree_with_many_more_points() {
        // Neighbour by neighbour against a hundred thousand fresh points, in units of the label's own error.
        let mut rng = Generator::seed_from_u64(11);
        let mut worst = Vec::new();
        for i in 0..60 {
            let dim = [1, 2, 4][i % 3];
            let pair = Broad { max_divergence: 10.0 }.pair(dim, &mut rng);
            let mut rows = Vec::new();
            pair.p.sample(100_000, &mut rng, &mut rows);
            let (p, q) = (pair.p.log_density(&rows), pair.q.log_density(&rows));
            let ratios: Vec<f64> = p.iter().zip(&q).map(|(p, q)| p - q).collect();
            let mean = ratios.iter().sum::<f64>() / 1e5;
            let variance = ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / 1e5;
            let error = (variance / 1e5 + pair.truth.error.powi(2)).sqrt() + 1e-9;
            worst.push((mean - pair.truth.value).abs() / error);
        }
        worst.sort_by(f64::total_cmp);
        assert!(worst[54] < 3.0 && worst[30] < 1.2, "{worst:?}");
    }

    #[test]
    fn sizes_keep_to_their_range_and_often_differ() {
        let mut rng = Generator::seed_from_u64(1);
        let drawn: Vec<_> = (0..1000).map(|_| sizes(IntRange::new(30, 256), &mut rng)).collect();
        assert!(drawn.iter().all(|(n, m)| (30..=256).contains(n) && (30..=256).contains(m)));
        assert!(drawn.iter().filter(|(n, m)| n == m).count() > 400);
        assert!(drawn.iter().filter(|(n, _)| *n < 90).count() > 400);
    }
}
