//! Checks of estimates against others: of those that know moments only against nearest neighbours, and of nearest
//! neighbours against moments.

use super::pretrained::canonical_neighbours;
use super::{Estimate, Estimator, GaussianMi, Points};

/// Columns for which neighbours have little bias.
const MAX_COLUMNS: usize = 4;
/// Rows of each sample that are compared.
const ROWS: [usize; 2] = [100, 5000];
/// Smaller differences get no warning, in nats.
const MIN_DIFFERENCE: f64 = 0.1;

/// A warning where the interval of nearest neighbours lies above that of an estimate of KL(P‖Q). Neighbours saturate at
/// large divergences, so that smaller ones mean nothing.
pub(super) fn disagreement(estimate: &Estimate, p: Points, q: Points, seed: u64) -> Option<String> {
    if p.dim() > MAX_COLUMNS || p.len().min(q.len()) < ROWS[0] {
        return None;
    }
    let [x, y] = [p, q].map(|points| points.select(&points.subsample(ROWS[1], seed)));
    let other = canonical_neighbours(Points::new(&x, p.dim()), Points::new(&y, q.dim()), seed)?;
    let ([_, high], [other_low, other_high]) = (estimate.interval?, other.interval?);
    (other_low > high && other.value - estimate.value > MIN_DIFFERENCE).then(|| {
        format!(
            "nearest neighbours say {:.2} nats, interval {other_low:.2} to {other_high:.2}: the samples differ in \
             other ways than this method knows",
            other.value
        )
    })
}

/// Extends the interval of an estimate of I(X; Y) by neighbours to that of the Gaussian copula where that lies above
/// the estimate, with a warning.
pub(super) fn reach_copula(estimate: &mut Estimate, x: Points, y: Points, seed: u64) {
    if x.len() < ROWS[0] {
        return;
    }
    // It has none where a column is a function of the others.
    let Ok(other) = GaussianMi::copula().estimate(x, y, seed) else { return };
    let (Some([low, high]), Some([other_low, other_high])) = (estimate.interval, other.interval) else { return };
    if other_low - estimate.value > MIN_DIFFERENCE {
        estimate.interval = Some([low, high.max(other_high)]);
        estimate.warnings.push(format!(
            "the Gaussian copula says {:.2} nats, interval {other_low:.2} to {other_high:.2}; nearest neighbours \
             saturate or follow outliers, so the interval reaches there: try --method copula",
            other.value
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GaussianKl, Ksg, Logistic};
    use super::*;
    use crate::distributions::Mixture;
    use crate::random::Generator;
    use rand::SeedableRng;
    use rand_distr::{Distribution, StandardNormal};

    fn warnings(p: &Mixture, q: &Mixture) -> Vec<Vec<String>> {
        let mut rng = Generator::seed_from_u64(1);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        p.sample(2000, &mut rng, &mut x);
        q.sample(2000, &mut rng, &mut y);
        let (x, y) = (Points::new(&x, 1), Points::new(&y, 1));
        let methods: [&dyn Estimator; 2] = [&GaussianKl::default(), &Logistic];
        methods.map(|method| method.estimate(x, y, 0).unwrap().warnings).into()
    }

    /// Pairs of columns with a correlation.
    fn pairs(n: usize, d: usize, rho: f64) -> [Vec<f64>; 2] {
        let mut rng = Generator::seed_from_u64(2);
        let mut draw = || -> Vec<f64> { (0..n * d).map(|_| StandardNormal.sample(&mut rng)).collect() };
        let (x, noise) = (draw(), draw());
        let y = x.iter().zip(noise).map(|(x, e)| rho * x + (1.0 - rho * rho).sqrt() * e).collect();
        [x, y]
    }

    #[test]
    fn intervals_of_neighbours_reach_strong_dependence_of_many_columns() {
        let [x, y] = pairs(200, 10, 0.9);
        let exact = -5.0 * (1.0f64 - 0.81).ln();
        let estimate = Ksg::default().estimate(Points::new(&x, 10), Points::new(&y, 10), 0).unwrap();
        let [low, high] = estimate.interval.unwrap();
        assert!(low < exact && exact < high && estimate.value < 0.5 * exact, "{estimate:?}");
        assert!(estimate.warnings.iter().any(|w| w.starts_with("the Gaussian copula says")));
        // One row that is no number of the others.
        let [mut x, y] = pairs(200, 1, 0.86);
        x[7] = -9999.0;
        let (x, y) = (Points::new(&x, 1), Points::new(&y, 1));
        let exact = -0.5 * (1.0f64 - 0.86 * 0.86).ln();
        let [low, high] = Ksg::default().estimate(x, y, 0).unwrap().interval.unwrap();
        assert!(low < exact && exact < high, "{low} {high}");
        assert!((GaussianMi::copula().value(x, y).unwrap() - exact).abs() < 0.15);
        let [x, y] = pairs(500, 2, 0.5);
        let estimate = Ksg::default().estimate(Points::new(&x, 2), Points::new(&y, 2), 0).unwrap();
        assert!(estimate.warnings.is_empty(), "{:?}", estimate.warnings);
    }

    #[test]
    fn two_clusters_with_the_moments_of_one_are_noticed() {
        let clusters = Mixture::new(1, &[1.0, 1.0], &[5.0, -5.0], &[0.3, 0.3]);
        let wide = Mixture::new(1, &[1.0], &[0.0], &[5.0]);
        for warnings in warnings(&clusters, &wide) {
            assert!(warnings.iter().any(|w| w.starts_with("nearest neighbours say 2.")), "{warnings:?}");
        }
        let one = Mixture::new(1, &[1.0], &[0.0], &[1.0]);
        for (mean, deviation) in [(0.5, 1.2), (5.0, 1.0)] {
            let other = Mixture::new(1, &[1.0], &[mean], &[deviation]);
            let warnings = warnings(&one, &other);
            assert!(warnings.iter().flatten().all(|w| !w.contains("neighbours")), "{warnings:?}");
        }
    }
}
