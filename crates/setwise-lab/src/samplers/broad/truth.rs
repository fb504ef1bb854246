//! KL(p‖q) of distributions with known densities.

use setwise::random::Generator;

use super::Law;

/// A divergence, and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Truth {
    /// In nats.
    pub value: f64,
    /// Standard error; zero for closed forms.
    pub error: f64,
}

impl Truth {
    /// From a closed form.
    pub fn exact(value: f64) -> Self {
        Truth { value, error: 0.0 }
    }
}

/// How well a divergence is to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// For answers from thousands of points.
    Fine,
    /// For answers from a few hundred points, whose errors are ten times larger: a label costs a fifth.
    Coarse,
}

impl Precision {
    /// Fresh points drawn at a time, and at most.
    fn points(self) -> (usize, usize) {
        match self {
            Precision::Fine => (512, 4096),
            Precision::Coarse => (256, 1024),
        }
    }

    /// The standard error that is good enough.
    fn enough(self, value: f64) -> f64 {
        let fine = 0.008 + 0.015 * value.abs();
        if self == Precision::Fine { fine } else { 3.0 * fine }
    }
}

/// KL(p‖q) as the mean of f = log p − log q over fresh points of p, as many as bring the standard error below 0.008 + 0.015·KL (coarse
/// ones: three times that), at most 4096 (1024).
///
/// Where both distributions have all space as their support, the mean of w = q/p is known to be one, and f is freed of what it
/// shares with w (a control variate with the fitted coefficient): for small divergences, where f ≈ −log w, little noise remains. It is
/// not done where the points miss much of q, so that their mean of w is not near one: then w says nothing of f.
pub fn divergence(p: &dyn Law, q: &dyn Law, everywhere: bool, precision: Precision, rng: &mut Generator) -> Truth {
    let (points, most) = precision.points();
    let mut ratios: Vec<f64> = Vec::with_capacity(most);
    loop {
        let mut rows = Vec::new();
        p.sample(points, rng, &mut rows);
        let (log_p, log_q) = (p.log_density(&rows), q.log_density(&rows));
        ratios.extend(log_p.iter().zip(&log_q).map(|(p, q)| p - q));
        let truth = mean(&ratios, everywhere);
        if ratios.len() >= most || truth.error < precision.enough(truth.value) {
            return truth;
        }
    }
}

fn mean(ratios: &[f64], everywhere: bool) -> Truth {
    let n = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / n;
    let (mut ww, mut fw, mut ff, mut w_mean) = (0.0, 0.0, 0.0, 0.0);
    if everywhere {
        w_mean = ratios.iter().map(|f| (-f).exp()).sum::<f64>() / n;
    }
    for f in ratios {
        let w = if everywhere { (-f).exp() - w_mean } else { 0.0 };
        ww += w * w;
        fw += (f - mean) * w;
        ff += (f - mean) * (f - mean);
    }
    let seen = ww.is_finite() && (w_mean - 1.0).abs() <= 3.0 * ww.sqrt() / n;
    let slope = if everywhere && seen && ww > 0.0 && mean < 1.0 { (fw / ww).clamp(-1.5, 0.0) } else { 0.0 };
    let value = if slope < 0.0 { mean - slope * (w_mean - 1.0) } else { mean };
    let left = (ff - 2.0 * slope * fw + slope * slope * if slope < 0.0 { ww } else { 0.0 }).max(0.0);
    Truth { value, error: (left / (n - 1.0) / n).sqrt() }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use setwise::distributions::Mixture;

    use super::*;

    #[test]
    fn the_control_variate_leaves_the_mean_and_takes_noise_away() {
        let p = Mixture::new(1, &[1.0], &[0.0], &[1.0]);
        let q = Mixture::new(1, &[1.0], &[0.2], &[1.1]);
        let exact = p.exact_kl(&q).unwrap();
        let errors = |everywhere| -> f64 {
            let one = |seed| {
                divergence(&p, &q, everywhere, Precision::Fine, &mut Generator::seed_from_u64(seed)).value - exact
            };
            ((0..200).map(|s| one(s).powi(2)).sum::<f64>() / 200.0).sqrt()
        };
        let (with, without) = (errors(true), errors(false));
        assert!(with < 0.5 * without && with < 0.004, "{with} and {without}");
    }

    #[test]
    fn a_part_of_q_that_no_point_sees_does_not_mislead() {
        let p = Mixture::new(1, &[1.0], &[0.0], &[1.0]);
        let q = Mixture::new(1, &[0.7, 0.3], &[0.05, 60.0], &[1.0, 1.0]);
        let truth = divergence(&p, &q, true, Precision::Fine, &mut Generator::seed_from_u64(3));
        assert!((truth.value - (1.0f64 / 0.7).ln()).abs() < 0.02, "{truth:?}");
    }
}
