//! Families of distributions that the pretrained estimator is not trained on, with known divergences.

mod development;
mod structured;

use std::sync::OnceLock;

use rand::RngExt;

use setwise::distributions::{Lkj, Mixture, ln_gamma};
use setwise::random::Generator;

use crate::samplers::{Density, Precision, divergence, log_uniform, normal};

/// A family of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Independent Laplace columns.
    Laplace,
    /// Independent Gumbel columns.
    Gumbel,
    /// Correlated log-normal columns, after the logarithm.
    LogNormal,
    /// Gaussian copulas with beta marginals.
    BetaCopula,
    /// Two interleaved half circles with noise, and further columns of noise.
    Moons,
    /// Two clusters against a Gaussian with the same moments.
    TwoClusters,
    /// A ring or sphere against a Gaussian.
    Ring,
    /// A checkerboard against the uniform distribution.
    Checkerboard,
    /// A sawtooth density against the uniform one.
    Sawtooth,
    /// Uniform distributions on cubes that overlap in part.
    Overlap,
    /// A spiral against a blurred one.
    Spiral,
    /// A folded sheet against a thicker one.
    Fold,
    /// Clusters at even corners of a cube against clusters at all corners.
    Parity,
    /// Cauchy columns against shifted ones.
    Cauchy,
    /// Gaussians with rows far outside in one sample.
    Contaminated,
    /// Waves of growing frequency against the uniform distribution.
    Chirp,
    /// Columns whose signs depend on each other against independent ones.
    Signs,
    /// Concentric rings against a disc.
    Rings,
    /// Clusters of Laplace columns against wider ones.
    Peaks,
    /// Spiral arms of a Gaussian against the Gaussian.
    Swirl,
    /// Columns of Student's t against moved and scaled ones.
    Heavy,
    /// Exponential columns that begin later.
    Delays,
    /// A waved sheet against a thicker one.
    Sheet,
}

/// A pair of distributions, with KL(p‖q).
pub struct HeldOutPair {
    /// The first distribution.
    pub p: Box<dyn Density>,
    /// The second distribution.
    pub q: Box<dyn Density>,
    /// KL(p‖q).
    pub kl: f64,
    /// Whether rows of P, or of Q, are replaced by rows far outside, and how far.
    outliers: Option<(bool, f64)>,
}

/// Two distributions before their divergence is known.
struct Distributions {
    p: Box<dyn Density>,
    q: Box<dyn Density>,
    /// KL(p‖q), if there is a closed form.
    kl: Option<f64>,
    outliers: Option<(bool, f64)>,
}

impl Distributions {
    fn new(p: impl Density + 'static, q: impl Density + 'static) -> Self {
        Distributions { p: Box::new(p), q: Box::new(q), kl: None, outliers: None }
    }

    fn with_kl(p: impl Density + 'static, q: impl Density + 'static, kl: f64) -> Self {
        Distributions { kl: Some(kl), ..Self::new(p, q) }
    }

    fn with_outliers(self, of_p: bool, far: f64) -> Self {
        Distributions { outliers: Some((of_p, far)), ..self }
    }

    /// The pair with its divergence, by Monte Carlo where there is no closed form.
    fn labelled(self, precision: Precision, rng: &mut Generator) -> HeldOutPair {
        let Distributions { p, q, kl, outliers } = self;
        let kl = kl.unwrap_or_else(|| divergence(&*p, &*q, true, precision, rng).value);
        HeldOutPair { p, q, kl, outliers }
    }
}

impl HeldOutPair {
    /// Draws `n` rows of both distributions.
    pub fn sample(&self, n: usize, rng: &mut Generator) -> [Vec<f64>; 2] {
        [(&self.p, true), (&self.q, false)].map(|(density, is_p)| {
            let mut rows = Vec::new();
            density.sample(n, rng, &mut rows);
            if let Some((_, far)) = self.outliers.filter(|(of_p, _)| *of_p == is_p) {
                let dim = rows.len() / n;
                structured::add_outliers(&mut rows, dim, far, rng);
            }
            rows
        })
    }
}

impl Family {
    /// Families that differ smoothly.
    pub const SMOOTH: [Family; 5] =
        [Family::Laplace, Family::Gumbel, Family::LogNormal, Family::BetaCopula, Family::Moons];
    /// Families that differ in fine structure, tails or supports.
    pub const STRUCTURED: [Family; 10] = [
        Family::TwoClusters,
        Family::Ring,
        Family::Checkerboard,
        Family::Sawtooth,
        Family::Overlap,
        Family::Spiral,
        Family::Fold,
        Family::Parity,
        Family::Cauchy,
        Family::Contaminated,
    ];
    /// Families on which the estimator is tried while it is made.
    pub const DEVELOPMENT: [Family; 8] = [
        Family::Chirp,
        Family::Signs,
        Family::Rings,
        Family::Peaks,
        Family::Swirl,
        Family::Heavy,
        Family::Delays,
        Family::Sheet,
    ];

    /// Whether the family has distributions in `dim` dimensions.
    pub fn exists(self, dim: usize) -> bool {
        match self {
            Family::Ring | Family::Spiral | Family::Fold | Family::Parity => dim > 1,
            Family::Signs | Family::Rings | Family::Swirl | Family::Sheet => dim > 1,
            _ => true,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Family::Laplace => "laplace",
            Family::Gumbel => "gumbel",
            Family::LogNormal => "log-normal",
            Family::BetaCopula => "beta-copula",
            Family::Moons => "two-moons",
            Family::TwoClusters => "two-clusters",
            Family::Ring => "ring",
            Family::Checkerboard => "checkerboard",
            Family::Sawtooth => "sawtooth",
            Family::Overlap => "overlap",
            Family::Spiral => "spiral",
            Family::Fold => "fold",
            Family::Parity => "parity",
            Family::Cauchy => "cauchy",
            Family::Contaminated => "contaminated",
            Family::Chirp => "chirp",
            Family::Signs => "signs",
            Family::Rings => "rings",
            Family::Peaks => "peaks",
            Family::Swirl => "swirl",
            Family::Heavy => "heavy",
            Family::Delays => "delays",
            Family::Sheet => "sheet",
        }
    }

    /// Draws a pair in `dim` dimensions, whose divergence is precise enough to judge estimates from `rows` rows.
    ///
    /// Pairs with a divergence above 5 nats are rejected. Parameters are perturbed so that most divergences lie between
    /// 0.02 and 5 nats in every dimension.
    pub fn draw(self, dim: usize, rows: usize, rng: &mut Generator) -> HeldOutPair {
        loop {
            let pair = self.draw_any(dim, rng).labelled(Precision::Reference(rows), rng);
            if pair.kl <= 5.0 {
                return pair;
            }
        }
    }

    fn draw_any(self, dim: usize, rng: &mut Generator) -> Distributions {
        // Perturbation of a column's parameters, in units of its scale.
        let s = (log_uniform(0.1, 4.0, rng) / dim as f64).sqrt();
        match self {
            Family::Laplace => columns(dim, s, Kind::Laplace, rng),
            Family::Gumbel => columns(dim, s, Kind::Gumbel, rng),
            Family::LogNormal => log_normal(dim, s, rng),
            Family::BetaCopula => copulas(dim, s, rng),
            Family::Moons => moons(dim, s * (dim as f64).sqrt(), rng),
            Family::TwoClusters => structured::two_clusters(dim, rng),
            Family::Ring => structured::ring(dim, rng),
            Family::Checkerboard => structured::checkerboard(dim, rng),
            Family::Sawtooth => structured::sawtooth(dim, rng),
            Family::Overlap => structured::overlap(dim, rng),
            Family::Spiral => structured::spiral(dim, rng),
            Family::Fold => structured::fold(dim, rng),
            Family::Parity => structured::parity(dim, rng),
            Family::Cauchy => structured::cauchy(dim, rng),
            Family::Contaminated => structured::contaminated(dim, rng),
            Family::Chirp => development::chirp(dim, rng),
            Family::Signs => development::signs(dim, rng),
            Family::Rings => development::rings(dim, rng),
            Family::Peaks => development::peaks(dim, rng),
            Family::Swirl => development::swirl(dim, rng),
            Family::Heavy => development::heavy(dim, rng),
            Family::Delays => development::delays(dim, rng),
            Family::Sheet => development::sheet(dim, rng),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Laplace,
    Gumbel,
}

/// Independent columns of one kind, with location and scale of each.
struct Columns {
    kind: Kind,
    parameters: Vec<(f64, f64)>,
}

fn columns(dim: usize, s: f64, kind: Kind, rng: &mut Generator) -> Distributions {
    let p: Vec<(f64, f64)> = (0..dim).map(|_| (normal(rng), log_uniform(0.5, 2.0, rng))).collect();
    let q: Vec<(f64, f64)> =
        p.iter().map(|&(l, b)| (l + s * b * normal(rng), b * (0.7 * s * normal(rng)).exp())).collect();
    let kl = p.iter().zip(&q).map(|(&p, &q)| kind.divergence(p, q)).sum();
    Distributions::with_kl(Columns { kind, parameters: p }, Columns { kind, parameters: q }, kl)
}

impl Kind {
    fn divergence(self, (m1, b1): (f64, f64), (m2, b2): (f64, f64)) -> f64 {
        match self {
            Kind::Laplace => {
                let shift = (m1 - m2).abs();
                (b2 / b1).ln() + (shift + b1 * (-shift / b1).exp()) / b2 - 1.0
            }
            Kind::Gumbel => {
                const EULER: f64 = 0.577_215_664_901_532_9;
                let last = ((m2 - m1) / b2 + ln_gamma(1.0 + b1 / b2)).exp();
                (b2 / b1).ln() - EULER - 1.0 + (m1 - m2 + EULER * b1) / b2 + last
            }
        }
    }
}

impl Density for Columns {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        for _ in 0..n {
            for &(location, scale) in &self.parameters {
                let u: f64 = rng.random::<f64>().clamp(1e-15, 1.0 - 1e-15);
                let x = match self.kind {
                    Kind::Laplace if u < 0.5 => (2.0 * u).ln(),
                    Kind::Laplace => -(2.0 * (1.0 - u)).ln(),
                    Kind::Gumbel => -(-u.ln()).ln(),
                };
                rows.push(location + scale * x);
            }
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let one = |x: f64, (location, scale): (f64, f64)| {
            let z = (x - location) / scale;
            -scale.ln()
                + match self.kind {
                    Kind::Laplace => -z.abs() - std::f64::consts::LN_2,
                    Kind::Gumbel => -z - (-z).exp(),
                }
        };
        rows.chunks_exact(self.parameters.len())
            .map(|row| row.iter().zip(&self.parameters).map(|(&x, &parameters)| one(x, parameters)).sum())
            .collect()
    }
}

/// The logarithm of log-normal points, a usual transformation of such data.
struct LogOfLogNormal(Mixture);

impl Density for LogOfLogNormal {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let first = rows.len();
        self.0.sample(n, rng, rows);
        rows[first..].iter_mut().for_each(|x| *x = x.exp().ln());
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        self.0.log_density(rows)
    }
}

fn log_normal(dim: usize, s: f64, rng: &mut Generator) -> Distributions {
    let mut factor = vec![0.0; dim * dim];
    Lkj::Correct.draw(dim, 2.0, rng, &mut factor);
    let mean: Vec<f64> = (0..dim).map(|_| normal(rng)).collect();
    let mut other = factor.clone();
    let shift: Vec<f64> = mean.iter().map(|m| m + s * normal(rng)).collect();
    for (i, row) in other.chunks_exact_mut(dim).enumerate() {
        let scale = (0.7 * s * normal(rng)).exp();
        row[..i].iter_mut().for_each(|x| *x += 0.3 * s * normal(rng) / (dim as f64).sqrt());
        row[..=i].iter_mut().for_each(|x| *x *= scale);
    }
    let (p, q) = (Mixture::new(dim, &[1.0], &mean, &factor), Mixture::new(dim, &[1.0], &shift, &other));
    let kl = p.exact_kl(&q).expect("single Gaussians");
    Distributions::with_kl(LogOfLogNormal(p), LogOfLogNormal(q), kl)
}

/// A distribution function on a grid, with linear interpolation, and its inverse.
struct PiecewiseCdf {
    start: f64,
    step: f64,
    values: Vec<f64>,
}

impl PiecewiseCdf {
    /// Integrates a density by Simpson's rule and normalises it.
    fn of(start: f64, end: f64, cells: usize, density: impl Fn(f64) -> f64) -> Self {
        let step = (end - start) / cells as f64;
        let mut values = vec![0.0];
        for i in 0..cells {
            let x = start + i as f64 * step;
            let area = step / 6.0 * (density(x) + 4.0 * density(x + 0.5 * step) + density(x + step));
            values.push(values[i] + area);
        }
        let total = values[cells];
        values.iter_mut().for_each(|v| *v /= total);
        PiecewiseCdf { start, step, values }
    }

    fn at(&self, x: f64) -> f64 {
        let position = ((x - self.start) / self.step).clamp(0.0, (self.values.len() - 1) as f64 - 1e-9);
        let (i, part) = (position as usize, position.fract());
        self.values[i] + part * (self.values[i + 1] - self.values[i])
    }

    fn inverse(&self, value: f64) -> f64 {
        let i = self.values.partition_point(|v| *v < value).clamp(1, self.values.len() - 1);
        let (a, b) = (self.values[i - 1], self.values[i]);
        let part = if b > a { (value - a) / (b - a) } else { 0.5 };
        self.start + self.step * (i as f64 - 1.0 + part.clamp(0.0, 1.0))
    }
}

/// The standard normal distribution function.
fn normal_cdf() -> &'static PiecewiseCdf {
    static CURVE: OnceLock<PiecewiseCdf> = OnceLock::new();
    CURVE.get_or_init(|| PiecewiseCdf::of(-7.0, 7.0, 1 << 14, |x| (-0.5 * x * x).exp()))
}

/// Columns with beta distributions, coupled by a Gaussian copula.
struct Copula {
    /// The copula's Gaussian, with unit variances.
    joint: Mixture,
    independent: Mixture,
    shapes: Vec<(f64, f64)>,
    cdfs: Vec<PiecewiseCdf>,
}

impl Copula {
    fn new(factor: &[f64], shapes: Vec<(f64, f64)>) -> Self {
        let dim = shapes.len();
        let identity: Vec<f64> = (0..dim * dim).map(|i| f64::from(u8::from(i % (dim + 1) == 0))).collect();
        let joint = Mixture::new(dim, &[1.0], &vec![0.0; dim], factor);
        let independent = Mixture::new(dim, &[1.0], &vec![0.0; dim], &identity);
        let cdfs = shapes
            .iter()
            .map(|&(a, b)| PiecewiseCdf::of(0.0, 1.0, 2048, |x| x.powf(a - 1.0) * (1.0 - x).max(0.0).powf(b - 1.0)))
            .collect();
        Copula { joint, independent, shapes, cdfs }
    }
}

impl Density for Copula {
    fn sample(&self, n: usize, rng: &mut Generator, rows: &mut Vec<f64>) {
        let first = rows.len();
        self.joint.sample(n, rng, rows);
        for row in rows[first..].chunks_exact_mut(self.shapes.len()) {
            row.iter_mut().zip(&self.cdfs).for_each(|(x, cdf)| *x = cdf.inverse(normal_cdf().at(*x)));
        }
    }

    fn log_density(&self, rows: &[f64]) -> Vec<f64> {
        let dim = self.shapes.len();
        let normal: Vec<f64> =
            rows.iter().enumerate().map(|(i, &x)| normal_cdf().inverse(self.cdfs[i % dim].at(x))).collect();
        let (joint, independent) = (self.joint.log_density(&normal), self.independent.log_density(&normal));
        let beta = |row: &[f64]| -> f64 {
            let one = |(&x, &(a, b)): (&f64, &(f64, f64))| {
                let x = x.clamp(1e-12, 1.0 - 1e-12);
                (a - 1.0) * x.ln() + (b - 1.0) * (1.0 - x).ln() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)
            };
            row.iter().zip(&self.shapes).map(one).sum()
        };
        rows.chunks_exact(dim).zip(joint.iter().zip(independent)).map(|(row, (j, a))| j - a + beta(row)).collect()
    }
}

fn copulas(dim: usize, s: f64, rng: &mut Generator) -> Distributions {
    let mut factor = vec![0.0; dim * dim];
    Lkj::Correct.draw(dim, 2.0, rng, &mut factor);
    let mut other = factor.clone();
    for (i, row) in other.chunks_exact_mut(dim).enumerate() {
        row[..i].iter_mut().for_each(|x| *x += 0.5 * s * normal(rng) / (dim as f64).sqrt());
        // Rows of unit length keep unit variances.
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        row.iter_mut().for_each(|x| *x /= length);
    }
    let shapes: Vec<(f64, f64)> = (0..dim).map(|_| (log_uniform(1.5, 5.0, rng), log_uniform(1.5, 5.0, rng))).collect();
    let mut near = |x: f64| (x * (0.7 * s * normal(rng)).exp()).clamp(1.1, 12.0);
    let others = shapes.iter().map(|&(a, b)| (near(a), near(b))).collect();
    let (p, q) = (Copula::new(&factor, shapes), Copula::new(&other, others));
    Distributions::new(p, q)
}

/// Parameters of a pair of moons.
#[derive(Clone, Copy)]
struct Moon {
    /// Shift of the lower half circle from its default position.
    shift: [f64; 2],
    /// Fraction of points on the upper half circle.
    share: f64,
    noise: f64,
}

impl Moon {
    /// Gaussians along both half circles. One dimension has the first coordinate only, more than two have noise.
    fn mixture(self, dim: usize, extra: &[(f64, f64)]) -> Mixture {
        const COMPONENTS: usize = 24;
        let (mut weights, mut means, mut factors) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..2 * COMPONENTS {
            let t = std::f64::consts::PI * ((i % COMPONENTS) as f64 + 0.5) / COMPONENTS as f64;
            let (point, weight) = match i < COMPONENTS {
                true => ([t.cos(), t.sin()], self.share),
                false => ([1.0 - t.cos() + self.shift[0], 0.5 - t.sin() + self.shift[1]], 1.0 - self.share),
            };
            weights.push(weight);
            means.extend((0..dim).map(|j| if j < 2 { point[j] } else { extra[j - 2].0 }));
            let scale = |j: usize| if j < 2 { self.noise } else { extra[j - 2].1 };
            factors.extend((0..dim * dim).map(|k| if k % (dim + 1) == 0 { scale(k / dim) } else { 0.0 }));
        }
        Mixture::new(dim, &weights, &means, &factors)
    }
}

/// Draws a pair of moons. `s` is the perturbation over all columns.
fn moons(dim: usize, s: f64, rng: &mut Generator) -> Distributions {
    let of_p = Moon { shift: [0.0; 2], share: 0.5, noise: log_uniform(0.1, 0.25, rng) };
    let of_q = Moon {
        shift: [0.25 * s * normal(rng), 0.25 * s * normal(rng)],
        share: (0.5 + 0.2 * s * normal(rng)).clamp(0.1, 0.9),
        noise: of_p.noise * (0.3 * s * normal(rng).abs()).exp(),
    };
    let extra: Vec<(f64, f64)> = (2..dim).map(|_| (0.0, 0.5)).collect();
    let each = s / (dim as f64).sqrt();
    let moved: Vec<(f64, f64)> =
        extra.iter().map(|&(m, b)| (m + 0.5 * each * b * normal(rng), b * (0.3 * each * normal(rng)).exp())).collect();
    let (p, q) = (of_p.mixture(dim, &extra), of_q.mixture(dim, &moved));
    Distributions::new(p, q)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// Rows of samples for which divergences are precise enough.
    const TEST_ROWS: usize = 5000;

    #[test]
    fn the_divergence_of_every_family_agrees_with_its_densities() {
        for family in Family::SMOOTH.into_iter().chain(Family::STRUCTURED).chain(Family::DEVELOPMENT) {
            for dim in [1, 3].into_iter().filter(|&d| family.exists(d)) {
                let mut rng = Generator::seed_from_u64(3 + dim as u64);
                for _ in 0..4 {
                    let pair = family.draw(dim, TEST_ROWS, &mut rng);
                    let mut rows = Vec::new();
                    pair.p.sample(100_000, &mut rng, &mut rows);
                    let (p, q) = (pair.p.log_density(&rows), pair.q.log_density(&rows));
                    let mean = p.iter().zip(&q).map(|(p, q)| p - q).sum::<f64>() / 1e5;
                    assert!(
                        (mean - pair.kl).abs() < 0.01 + 0.03 * pair.kl,
                        "{family:?}, d = {dim}: {} and {mean}",
                        pair.kl
                    );
                }
            }
        }
    }

    #[test]
    fn densities_are_those_of_the_points() {
        // The mean of p / ½(p + q) over points of both is one, and so is that of q.
        const POINTS: usize = 20_000;
        for family in Family::STRUCTURED.into_iter().chain(Family::DEVELOPMENT) {
            for dim in [1, 3].into_iter().filter(|&d| family.exists(d)) {
                let mut rng = Generator::seed_from_u64(7 + dim as u64);
                let pair = family.draw(dim, TEST_ROWS, &mut rng);
                let mut rows = Vec::new();
                pair.p.sample(POINTS, &mut rng, &mut rows);
                pair.q.sample(POINTS, &mut rng, &mut rows);
                let (log_p, log_q) = (pair.p.log_density(&rows), pair.q.log_density(&rows));
                let share = |(p, q): (&f64, &f64)| 2.0 / (1.0 + (q - p).exp());
                let mean = log_p.iter().zip(&log_q).map(share).sum::<f64>() / (2 * POINTS) as f64;
                assert!((mean - 1.0).abs() < 0.02, "{family:?}, d = {dim}: {mean}");
                // Points of p lie where p has its mass.
                let of_p = log_p[..POINTS].iter().zip(&log_q[..POINTS]).map(|(p, q)| p - q).sum::<f64>();
                assert!(of_p / POINTS as f64 >= -0.01, "{family:?}, d = {dim}");
            }
        }
    }

    #[test]
    fn densities_of_columns_and_copulas_integrate_to_one() {
        let mut rng = Generator::seed_from_u64(8);
        let grid: Vec<f64> = (0..100_000).map(|i| (f64::from(i) - 50_000.0 + 0.5) * 1e-3).collect();
        for family in [Family::Laplace, Family::Gumbel] {
            let total: f64 =
                family.draw(1, TEST_ROWS, &mut rng).p.log_density(&grid).iter().map(|l| l.exp() * 1e-3).sum();
            assert!((total - 1.0).abs() < 1e-3, "{family:?}: {total}");
        }
        let side: Vec<f64> = (0..300).map(|i| (f64::from(i) + 0.5) / 300.0).collect();
        let square: Vec<f64> = side.iter().flat_map(|x| side.iter().flat_map(move |y| [*x, *y])).collect();
        let total: f64 = Family::BetaCopula
            .draw(2, TEST_ROWS, &mut rng)
            .p
            .log_density(&square)
            .iter()
            .map(|l| l.exp() / 90_000.0)
            .sum();
        assert!((total - 1.0).abs() < 0.01, "{total}");
    }

    #[test]
    fn divergences_lie_in_the_compared_range() {
        for family in Family::SMOOTH {
            for dim in [1, 16] {
                let mut rng = Generator::seed_from_u64(5);
                let mut kls: Vec<f64> = (0..30).map(|_| family.draw(dim, TEST_ROWS, &mut rng).kl).collect();
                kls.sort_by(f64::total_cmp);
                assert!(kls[0] > -0.01 && (0.02..5.0).contains(&kls[15]), "{family:?}, d = {dim}: {kls:?}");
            }
        }
    }
}
