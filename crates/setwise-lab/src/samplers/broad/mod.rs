//! Pairs from many families of distributions with known divergence, for an estimator of arbitrary samples.
//!
//! * `clusters`: mixtures of Gaussians and of Student's t that vary in separation, anisotropy and weights.
//! * `marginals`: independent columns of different shapes, some of them bounded or skewed.
//! * `warp`: smooth invertible maps. A map shared by both samples preserves the divergence.
//! * `padding`: further columns in which both distributions agree.
//! * `truth`: the divergence, in closed form or by Monte Carlo up to a tolerance.
//!
//! The second distribution of a pair equals the first, perturbs it, or is independent of it. The strength of the
//! perturbation spreads divergences over the full range in every dimension.

mod clusters;
mod marginals;
mod padding;
mod truth;
mod warp;

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Exp1};

use setwise::distributions::IntRange;
use setwise::estimate::pretrained::combiner_training::MEASURES;
use setwise::random::Generator;

use super::structured::Structure;
use super::{Sampler, log_uniform};
use clusters::Clusters;
use marginals::Marginals;
use padding::Padding;
use warp::{Shear, Warp};

use truth::bounded_divergences;
pub use truth::{Precision, Truth, divergence};

/// A distribution with a sampler and a density in closed form.
pub trait Density: Send + Sync {
    /// Appends `n` points.
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>);
    /// Returns the log density at row-major points.
    fn log_density(&self, rows: &[f64]) -> Vec<f64>;
}

/// Draws pairs of distributions. As a sampler it draws two samples and labels them with KL(p‖q).
#[derive(Clone, Debug, PartialEq)]
pub struct BroadPairs {
    /// The largest divergence. Pairs above it are rejected.
    pub max_divergence: f64,
}

/// Two distributions.
pub type DensityPair = (Box<dyn Density>, Box<dyn Density>);

/// Two distributions with known divergence.
pub struct Pair {
    /// The first distribution.
    pub p: Box<dyn Density>,
    /// The second distribution.
    pub q: Box<dyn Density>,
    /// KL(p‖q).
    pub truth: Truth,
    /// Whether both densities are positive everywhere.
    full_support: bool,
    /// A map applied to both samples.
    warp: Option<Warp>,
    /// Further columns with the same distribution in both samples.
    padding: Option<Padding>,
    /// Rows far outside, which do not belong to the distributions.
    contamination: Option<Contamination>,
}

/// A few rows of one sample that are replaced by rows far outside.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Contamination {
    of_p: bool,
    rows: usize,
    /// The distance of the rows from the others, in multiples of the range of a column.
    distance: f64,
    /// Whether all columns of such a row are far outside, or one only.
    all_columns: bool,
}

impl Contamination {
    fn draw(rng: &mut impl Rng) -> Self {
        Contamination {
            of_p: rng.random_bool(0.5),
            rows: rng.random_range(1..=5),
            distance: log_uniform(3.0, 3000.0, rng),
            all_columns: rng.random_bool(0.5),
        }
    }

    fn apply(&self, rows: &mut [f64], dim: usize, rng: &mut Generator) {
        let n = rows.len() / dim;
        let range = |c: usize| {
            let column = || rows.iter().skip(c).step_by(dim);
            column().fold(f64::NEG_INFINITY, |a: f64, &b| a.max(b))
                - column().fold(f64::INFINITY, |a: f64, &b| a.min(b))
        };
        let ranges: Vec<f64> = (0..dim).map(range).collect();
        let only = rng.random_range(0..dim);
        for _ in 0..self.rows.min(n / 15) {
            let row = rng.random_range(0..n);
            let sign = if rng.random_bool(0.5) { 1.0 } else { -1.0 };
            let far = (0..dim).filter(|&c| self.all_columns || c == only);
            far.for_each(|c| rows[row * dim + c] += sign * ranges[c] * self.distance * log_uniform(0.5, 2.0, rng));
        }
    }
}

impl Pair {
    /// A pair as the samples show it, without a warp, further columns or outliers.
    fn new(p: Box<dyn Density>, q: Box<dyn Density>, truth: Truth, full_support: bool) -> Self {
        Pair { p, q, truth, full_support, warp: None, padding: None, contamination: None }
    }

    /// Draws `n` points of the first distribution, and `m` of the second or, for `equal` samples, of the first.
    ///
    /// Rows far outside are in one sample, whatever its distribution.
    pub fn samples(&self, [n, m]: [usize; 2], equal: bool, rng: &mut Generator) -> [Vec<f64>; 2] {
        let (mut p, mut q) = (Vec::new(), Vec::new());
        self.sample(&*self.p, true, n, rng, &mut p);
        self.sample(if equal { &*self.p } else { &*self.q }, false, m, rng, &mut q);
        [p, q]
    }

    /// Appends `n` points of the first distribution.
    pub fn sample_p(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        self.sample(&*self.p, true, n, rng, rows);
    }

    /// Appends `m` points of the second distribution.
    pub fn sample_q(&self, m: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        self.sample(&*self.q, false, m, rng, rows);
    }

    fn sample(&self, density: &dyn Density, of_p: bool, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let first = rows.len();
        density.sample(n, rng, rows);
        if let Some(warp) = &self.warp {
            warp.apply(&mut rows[first..]);
        }
        if let Some(padding) = &self.padding {
            let padded = padding.apply(&rows[first..], rng);
            rows.truncate(first);
            rows.extend(padded);
        }
        let rows = &mut rows[first..];
        if let Some(contamination) = self.contamination.filter(|c| c.of_p == of_p) {
            contamination.apply(rows, rows.len() / n, rng);
        }
    }

    /// KL(q‖p), which may be infinite.
    pub fn reverse_truth(&self, precision: Precision, rng: &mut Generator) -> Truth {
        divergence(&*self.q, &*self.p, self.full_support, precision, rng)
    }

    /// Jensen–Shannon divergence, total variation and squared Hellinger distance, precise enough to judge estimates
    /// from samples of `rows` rows.
    pub fn bounded_divergences(&self, rows: usize, rng: &mut Generator) -> [f64; MEASURES] {
        bounded_divergences(&*self.p, &*self.q, rows, rng)
    }

    /// The same pair, which has `differing` columns, with further columns up to `dim`.
    pub fn padded(self, differing: usize, dim: usize, rng: &mut Generator) -> Self {
        Pair { padding: Some(Padding::draw(differing, dim, rng)), ..self }
    }

    /// The same pair with a few rows of one sample far outside.
    pub fn contaminated(self, rng: &mut Generator) -> Self {
        Pair { contamination: Some(Contamination::draw(rng)), ..self }
    }
}

/// Draws the divergence that a perturbation aims at: often small, mostly below five, sometimes large.
fn target_divergence(max: f64, rng: &mut impl Rng) -> f64 {
    let t: f64 = match rng.random_bool(0.5) {
        true => log_uniform(0.02, 0.6 * max, rng),
        false => 3.0 * Distribution::<f64>::sample(&Exp1, rng),
    };
    t.min(max)
}

/// Draws degrees of freedom of heavy tails, down to those of a Cauchy distribution and below.
fn heavy_tailed_freedom(rng: &mut impl Rng) -> f64 {
    log_uniform(0.8, 2.5, rng)
}

impl BroadPairs {
    /// Draws a pair. Its divergence is precise enough to judge estimates from thousands of points.
    pub fn pair(&self, dim: usize, rng: &mut Generator) -> Pair {
        self.pair_with(dim, Precision::Fine, rng)
    }

    /// Draws a pair with a divergence of this precision.
    pub fn pair_with(&self, dim: usize, precision: Precision, rng: &mut Generator) -> Pair {
        let mut strength = (target_divergence(self.max_divergence, rng) / dim as f64).sqrt();
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
                return Pair { warp, ..Pair::new(p, q, truth, !columns) };
            }
            // A weaker perturbation after each rejection makes the loop end.
            independent = false;
            strength *= 0.6;
        }
    }

    /// Draws a pair that differs in fine structure.
    pub fn structured(&self, dim: usize, precision: Precision, rng: &mut Generator) -> Pair {
        let kind = Structure::random(dim, rng);
        self.structured_of(kind, dim, precision, rng)
    }

    /// Draws a pair of one kind of structure.
    pub fn structured_of(&self, kind: Structure, dim: usize, precision: Precision, rng: &mut Generator) -> Pair {
        loop {
            let (p, q, truth) = kind.draw(dim, precision, rng);
            if truth.value.is_finite() && truth.value <= self.max_divergence {
                let warp = rng.random_bool(0.45).then(|| Warp::draw(dim, &*p, &*q, rng));
                return Pair { warp, ..Pair::new(p, q, truth, kind != Structure::Cells) };
            }
        }
    }

    /// Draws clusters or independent columns with heavy tails, down to those of a Cauchy distribution and below.
    pub fn heavy_tails(&self, dim: usize, precision: Precision, rng: &mut Generator) -> Pair {
        let mut strength = (target_divergence(0.3 * self.max_divergence, rng) / dim as f64).sqrt();
        let columns = rng.random_bool(0.5);
        loop {
            let (p, q): DensityPair = match columns {
                true => {
                    let (p, q) = Marginals::heavy_tailed_pair(dim, strength, rng);
                    (Box::new(p), Box::new(q))
                }
                false => {
                    let of_p = Clusters::draw(dim, rng).with_freedom(heavy_tailed_freedom(rng));
                    let of_q = of_p.perturbed(strength, rng).with_freedom_near(&of_p, rng);
                    (Box::new(of_p.mixture()), Box::new(of_q.mixture()))
                }
            };
            let truth = divergence(&*p, &*q, true, precision, rng);
            if truth.value.is_finite() && truth.value <= self.max_divergence {
                return Pair::new(p, q, truth, true);
            }
            strength *= 0.6;
        }
    }

    /// Draws a pair of single Gaussians without a map.
    pub fn gaussians(&self, dim: usize, rng: &mut Generator) -> Pair {
        let mut strength = (target_divergence(self.max_divergence, rng) / dim as f64).sqrt();
        loop {
            let of_p = Clusters::draw(dim, rng).first();
            let (p, q) = (of_p.mixture(), of_p.perturbed(strength, rng).first().mixture());
            if let Some(value) = p.exact_kl(&q).filter(|value| *value <= self.max_divergence) {
                return Pair::new(Box::new(p), Box::new(q), Truth::exact(value), true);
            }
            strength *= 0.6;
        }
    }

    fn marginals(
        dim: usize,
        strength: f64,
        precision: Precision,
        rng: &mut Generator,
    ) -> (Box<dyn Density>, Box<dyn Density>, Truth) {
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
    ) -> (Box<dyn Density>, Box<dyn Density>, Truth) {
        let of_p = Clusters::draw(dim, rng);
        let of_q = match independent {
            true => Clusters::draw(dim, rng).with_tails_of(&of_p, rng),
            false => of_p.perturbed(strength, rng),
        };
        let (p, q) = (of_p.mixture(), of_q.mixture());
        // Sheared clusters: the same shear preserves the divergence, a different one changes it.
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

/// Draws set sizes with a uniform logarithm. Both are equal with probability one half.
fn sizes(size: IntRange, rng: &mut impl Rng) -> (usize, usize) {
    let mut one = || log_uniform(size.min as f64, size.max as f64 + 1.0, rng) as usize;
    let (n, m) = (one(), one());
    let n = n.clamp(size.min, size.max);
    (n, if rng.random_bool(0.5) { n } else { m.clamp(size.min, size.max) })
}

impl Sampler for BroadPairs {
    fn sets(&self) -> usize {
        2
    }

    fn draw(&self, dim: usize, size: IntRange, rng: &mut Generator, rows: &mut [Vec<f64>]) -> f64 {
        let pair = self.pair_with(dim, Precision::Coarse, rng);
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
                (0..400).map(|_| BroadPairs { max_divergence: 30.0 }.pair(dim, &mut rng).truth.value).collect();
            truths.sort_by(f64::total_cmp);
            let share = |a: f64, b: f64| truths.iter().filter(|t| **t >= a && **t < b).count() as f64 / 400.0;
            assert!(truths[0] >= -0.05 && truths[399] <= 30.0, "d = {dim}: {} to {}", truths[0], truths[399]);
            assert!(share(-1.0, 0.2) > 0.1 && share(0.2, 1.0) > 0.1 && share(1.0, 5.0) > 0.15, "d = {dim}");
            assert!(share(5.0, 31.0) > 0.02, "d = {dim}: {:?}", &truths[380..]);
        }
    }

    #[test]
    fn rows_far_outside_are_in_one_of_two_equal_samples() {
        let mut rng = Generator::seed_from_u64(8);
        let mut of_p = 0;
        for _ in 0..50 {
            let pair = BroadPairs { max_divergence: 5.0 }.gaussians(1, &mut rng).contaminated(&mut rng);
            let spread = |rows: &[f64]| {
                let median = {
                    let mut sorted = rows.to_vec();
                    sorted.sort_by(f64::total_cmp);
                    sorted[rows.len() / 2]
                };
                rows.iter().map(|x| (x - median).abs()).fold(0.0, f64::max)
            };
            let [p, q] = pair.samples([300, 300], true, &mut rng).map(|rows| spread(&rows));
            assert!(p > 2.0 * q || q > 2.0 * p, "{p} and {q}");
            of_p += usize::from(p > q);
        }
        assert!((10..40).contains(&of_p), "{of_p} of 50");
    }

    #[test]
    fn labels_agree_with_monte_carlo_on_many_more_points() {
        // Differences to the mean over a hundred thousand fresh points, in standard errors.
        let mut rng = Generator::seed_from_u64(11);
        let mut differences = Vec::new();
        for i in 0..60 {
            let dim = [1, 2, 4][i % 3];
            let pair = BroadPairs { max_divergence: 10.0 }.pair(dim, &mut rng);
            let mut rows = Vec::new();
            pair.p.sample(100_000, &mut rng, &mut rows);
            let (p, q) = (pair.p.log_density(&rows), pair.q.log_density(&rows));
            let ratios: Vec<f64> = p.iter().zip(&q).map(|(p, q)| p - q).collect();
            let mean = ratios.iter().sum::<f64>() / 1e5;
            let variance = ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / 1e5;
            let error = (variance / 1e5 + pair.truth.error.powi(2)).sqrt() + 1e-9;
            differences.push((mean - pair.truth.value).abs() / error);
        }
        differences.sort_by(f64::total_cmp);
        assert!(differences[54] < 3.0 && differences[30] < 1.2, "{differences:?}");
    }

    #[test]
    fn set_sizes_stay_in_their_range_and_often_differ() {
        let mut rng = Generator::seed_from_u64(1);
        let pairs: Vec<_> = (0..1000).map(|_| sizes(IntRange::new(30, 256), &mut rng)).collect();
        assert!(pairs.iter().all(|(n, m)| (30..=256).contains(n) && (30..=256).contains(m)));
        assert!(pairs.iter().filter(|(n, m)| n == m).count() > 400);
        assert!(pairs.iter().filter(|(n, _)| *n < 90).count() > 400);
    }
}
