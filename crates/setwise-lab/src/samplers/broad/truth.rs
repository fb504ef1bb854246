//! KL(p‖q) of distributions with known densities.

use setwise::estimate::pretrained::combiner_training::{BoundedMeasure, MEASURES};
use setwise::random::Generator;

use super::Density;

/// A divergence and its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Truth {
    /// The divergence, in nats.
    pub value: f64,
    /// Standard error; zero for closed forms.
    pub error: f64,
}

impl Truth {
    /// The value of a closed form.
    pub fn exact(value: f64) -> Self {
        Truth { value, error: 0.0 }
    }
}

/// The tolerance for the standard error of a divergence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// For estimates from thousands of points.
    Fine,
    /// For estimates from a few hundred points, whose errors are ten times larger. A label costs a fifth.
    Coarse,
    /// For estimates from samples of this many rows: three tenths of the standard error of the mean log ratio.
    Rows(usize),
    /// For judging estimates from samples of this many rows: a quarter of the standard error of the mean log ratio.
    Reference(usize),
}

impl Precision {
    /// Fresh points of a batch, and their maximum in all.
    fn points(self) -> (usize, usize) {
        match self {
            Precision::Fine => (512, 4096),
            Precision::Coarse => (256, 1024),
            Precision::Rows(n) => (n.clamp(512, 8192), (12 * n).clamp(4096, 120_000)),
            Precision::Reference(n) => ((4 * n).clamp(4096, 16_384), (16 * n).max(8192)),
        }
    }

    /// The standard error at which sampling stops.
    fn tolerance(self, value: f64, ratios: &[f64]) -> f64 {
        let fine = 0.008 + 0.015 * value.abs();
        let of_mean = |rows: usize| {
            let variance = ratios.iter().map(|r| (r - value).powi(2)).sum::<f64>() / ratios.len() as f64;
            (variance / rows as f64).sqrt()
        };
        match self {
            Precision::Fine => fine,
            Precision::Coarse => 3.0 * fine,
            Precision::Rows(n) => (0.3 * of_mean(n)).min(fine),
            Precision::Reference(n) => 0.25 * of_mean(n),
        }
    }
}

/// KL(p‖q) as the mean of f = log p − log q over fresh points of p.
///
/// Sampling stops at a standard error of 0.008 + 0.015·KL or after 4096 points. Coarse precision triples the error
/// and stops after 1024 points.
///
/// With `full_support` both supports are the full space, so w = q/p has mean one under p. Then w is a control variate
/// with a fitted coefficient: for small divergences f ≈ −log w, so little noise remains.
/// The control variate is skipped where the mean of w is far from one. There the points miss much of q.
pub fn divergence(
    p: &dyn Density,
    q: &dyn Density,
    full_support: bool,
    precision: Precision,
    rng: &mut Generator,
) -> Truth {
    let (points, max_points) = precision.points();
    let mut ratios: Vec<f64> = Vec::with_capacity(max_points);
    loop {
        let mut rows = Vec::new();
        p.sample(points, rng, &mut rows);
        let (log_p, log_q) = (p.log_density(&rows), q.log_density(&rows));
        ratios.extend(log_p.iter().zip(&log_q).map(|(p, q)| p - q));
        let truth = mean(&ratios, full_support);
        if ratios.len() >= max_points || truth.error < precision.tolerance(truth.value, &ratios) {
            return truth;
        }
    }
}

/// Fewest and most points of each distribution that determine a bounded divergence.
const BOUNDED_POINTS: [usize; 2] = [2048, 40_000];

/// Bounded divergences for estimates from samples of `rows` rows, as means over fresh points of both distributions.
pub fn bounded_divergences(p: &dyn Density, q: &dyn Density, rows: usize, rng: &mut Generator) -> [f64; MEASURES] {
    let points = (2 * rows).clamp(BOUNDED_POINTS[0], BOUNDED_POINTS[1]);
    let mut sums = [0.0; MEASURES];
    for density in [p, q] {
        let mut rows = Vec::new();
        density.sample(points, rng, &mut rows);
        for (p, q) in p.log_density(&rows).into_iter().zip(q.log_density(&rows)) {
            for (sum, measure) in sums.iter_mut().zip(BoundedMeasure::ALL) {
                *sum += measure.integrand(p - q);
            }
        }
    }
    sums.map(|sum| sum / (2 * points) as f64)
}

fn mean(ratios: &[f64], full_support: bool) -> Truth {
    let n = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / n;
    let (mut ww, mut fw, mut ff, mut w_mean) = (0.0, 0.0, 0.0, 0.0);
    if full_support {
        w_mean = ratios.iter().map(|f| (-f).exp()).sum::<f64>() / n;
    }
    for f in ratios {
        let w = if full_support { (-f).exp() - w_mean } else { 0.0 };
        ww += w * w;
        fw += (f - mean) * w;
        ff += (f - mean) * (f - mean);
    }
    let covered = ww.is_finite() && (w_mean - 1.0).abs() <= 3.0 * ww.sqrt() / n;
    let coefficient = if full_support && covered && ww > 0.0 && mean < 1.0 { (fw / ww).clamp(-1.5, 0.0) } else { 0.0 };
    let value = if coefficient < 0.0 { mean - coefficient * (w_mean - 1.0) } else { mean };
    let residual =
        (ff - 2.0 * coefficient * fw + coefficient * coefficient * if coefficient < 0.0 { ww } else { 0.0 }).max(0.0);
    Truth { value, error: (residual / (n - 1.0) / n).sqrt() }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use setwise::distributions::Mixture;

    use super::*;

    #[test]
    fn the_control_variate_keeps_the_mean_and_reduces_the_noise() {
        let p = Mixture::new(1, &[1.0], &[0.0], &[1.0]);
        let q = Mixture::new(1, &[1.0], &[0.2], &[1.1]);
        let exact = p.exact_kl(&q).unwrap();
        let errors = |full_support| -> f64 {
            let one = |seed| {
                divergence(&p, &q, full_support, Precision::Fine, &mut Generator::seed_from_u64(seed)).value - exact
            };
            ((0..200).map(|s| one(s).powi(2)).sum::<f64>() / 200.0).sqrt()
        };
        let (with, without) = (errors(true), errors(false));
        assert!(with < 0.5 * without && with < 0.004, "{with} and {without}");
    }

    #[test]
    fn bounded_divergences_of_gaussians_are_the_closed_forms() {
        let p = Mixture::new(1, &[1.0], &[0.0], &[1.0]);
        let q = Mixture::new(1, &[1.0], &[1.0], &[1.0]);
        let found = bounded_divergences(&p, &q, 16_384, &mut Generator::seed_from_u64(5));
        // TV = 2Φ(½) − 1, H² = 1 − e^(−1/8).
        assert!((found[1] - 0.382_925).abs() < 0.01, "{found:?}");
        assert!((found[2] - (1.0 - (-0.125f64).exp())).abs() < 0.005, "{found:?}");
        assert!(found[0] > 0.5 * found[2] * found[2] && found[0] < found[1] * 2f64.ln());
    }

    #[test]
    fn mass_of_q_that_no_point_covers_does_not_bias_the_divergence() {
        let p = Mixture::new(1, &[1.0], &[0.0], &[1.0]);
        let q = Mixture::new(1, &[0.7, 0.3], &[0.05, 60.0], &[1.0, 1.0]);
        let truth = divergence(&p, &q, true, Precision::Fine, &mut Generator::seed_from_u64(3));
        assert!((truth.value - (1.0f64 / 0.7).ln()).abs() < 0.02, "{truth:?}");
    }
}
