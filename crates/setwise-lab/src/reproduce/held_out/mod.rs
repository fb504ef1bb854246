//! Families of distributions that the pretrained estimator is not trained on, with known divergences.

mod development;
mod smooth;
mod structured;

use setwise::random::Generator;

use crate::samplers::{Density, Precision, divergence, log_uniform};

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
            Family::Laplace => smooth::laplace(dim, s, rng),
            Family::Gumbel => smooth::gumbel(dim, s, rng),
            Family::LogNormal => smooth::log_normal(dim, s, rng),
            Family::BetaCopula => smooth::copulas(dim, s, rng),
            Family::Moons => smooth::moons(dim, s * (dim as f64).sqrt(), rng),
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
