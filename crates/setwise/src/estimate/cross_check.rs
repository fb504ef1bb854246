//! A check of estimates that know moments only, against nearest neighbours.

use super::pretrained::canonical_neighbours;
use super::{Estimate, Points};

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

#[cfg(test)]
mod tests {
    use super::super::{Estimator, GaussianKl, Logistic};
    use super::*;
    use crate::distributions::Mixture;
    use crate::random::Generator;
    use rand::SeedableRng;

    fn warnings(p: &Mixture, q: &Mixture) -> Vec<Vec<String>> {
        let mut rng = Generator::seed_from_u64(1);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        p.sample(2000, &mut rng, &mut x);
        q.sample(2000, &mut rng, &mut y);
        let (x, y) = (Points::new(&x, 1), Points::new(&y, 1));
        let methods: [&dyn Estimator; 2] = [&GaussianKl::default(), &Logistic];
        methods.map(|method| method.estimate(x, y, 0).unwrap().warnings).into()
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
