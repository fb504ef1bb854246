//! Slice sampling (Neal, 2003): Markov steps without tuning that leave a density invariant.

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Exp1};

/// A slice sampling step from `t` that leaves exp(`log_density`) on the line invariant.
///
/// Draws a level below the density at `t` and a random interval of the given width around `t`. Uniform draws from the
/// interval shrink it towards `t` until one lies above the level.
pub fn slice_sample(t: f64, width: f64, rng: &mut impl Rng, log_density: impl Fn(f64) -> f64) -> f64 {
    let level = log_density(t) - Distribution::<f64>::sample(&Exp1, rng);
    let mut low = t - width * rng.random::<f64>();
    let mut high = low + width;
    // An interval of length zero contains only `t`.
    while high - low > width * 1e-14 {
        let candidate = low + (high - low) * rng.random::<f64>();
        if log_density(candidate) > level {
            return candidate;
        }
        if candidate < t { low = candidate } else { high = candidate }
    }
    t
}

/// Elliptical slice sampling (Murray, Adams, MacKay, 2010) for a Gaussian times exp(`log_factor`).
///
/// The ellipse has the current point at angle 0 and an independent draw of the Gaussian at a right angle. Returns the
/// angle of the next point.
pub fn elliptical_slice_sample(rng: &mut impl Rng, log_factor: impl Fn(f64) -> f64) -> f64 {
    slice_sample(0.0, std::f64::consts::TAU, rng, log_factor)
}

/// A step from `t` that leaves the standard normal truncated to [`low`, `high`] invariant. Its slices are intervals.
pub fn truncated_normal_step(t: f64, low: f64, high: f64, rng: &mut impl Rng) -> f64 {
    let reach = (t * t + 2.0 * Distribution::<f64>::sample(&Exp1, rng)).sqrt();
    // Rounding may move `t` just outside.
    let (low, high) = (low.min(t).max(-reach), high.max(t).min(reach));
    low + (high - low) * rng.random::<f64>()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use setwise::random::Generator;

    use super::*;

    /// Mean and mean square along a chain.
    fn moments(mut step: impl FnMut(f64) -> f64) -> (f64, f64) {
        const STEPS: usize = 60_000;
        let (mut t, mut first, mut second) = (0.3, 0.0, 0.0);
        for _ in 0..STEPS {
            t = step(t);
            first += t / STEPS as f64;
            second += t * t / STEPS as f64;
        }
        (first, second)
    }

    #[test]
    fn slice_samples_have_the_moments_of_the_density() {
        let mut rng = Generator::seed_from_u64(1);
        // Beta(2, 3): mean 2/5, mean square 1/5.
        let log = |t: f64| if (0.0..1.0).contains(&t) { t.ln() + 2.0 * (1.0 - t).ln() } else { f64::NEG_INFINITY };
        for width in [0.2, 5.0] {
            let (first, second) = moments(|t| slice_sample(t, width, &mut rng, log));
            assert!((first - 0.4).abs() < 0.01 && (second - 0.2).abs() < 0.01, "{first} {second}");
        }
    }

    #[test]
    fn elliptical_slice_samples_have_the_moments_of_the_product() {
        let mut rng = Generator::seed_from_u64(2);
        // N(0, 1) times exp(−t²/2 + 2t) is N(1, ½).
        let (first, second) = moments(|t| {
            let other: f64 = rand_distr::StandardNormal.sample(&mut rng);
            let at = |angle: f64| t * angle.cos() + other * angle.sin();
            at(elliptical_slice_sample(&mut rng, |angle| 2.0 * at(angle) - 0.5 * at(angle).powi(2)))
        });
        assert!((first - 1.0).abs() < 0.02 && (second - 1.5).abs() < 0.04, "{first} {second}");
    }

    #[test]
    fn truncated_normal_steps_have_the_moments_of_the_truncated_normal() {
        let mut rng = Generator::seed_from_u64(3);
        let (first, second) = moments(|t| truncated_normal_step(t, 0.0, f64::INFINITY, &mut rng));
        // Half of a normal distribution: mean √(2/π), mean square 1.
        assert!((first - 0.797_88).abs() < 0.015 && (second - 1.0).abs() < 0.03, "{first} {second}");
        let (first, _) = moments(|t| truncated_normal_step(t, 0.25, 0.35, &mut rng));
        assert!((first - 0.299_75).abs() < 1e-3, "{first}");
    }
}
