//! Density ratios from classifiers of P against Q, on canonical coordinates.
//!
//! Both are logistic regressions. The *quadratic* classifier has columns, squares and products as features, which is
//! right for Gaussians. The *extended* classifier adds sigmoids, soft absolute values and radial basis functions (RBF)
//! for other shapes.

use super::super::Points;
use super::super::exponential::exp_all;
use super::super::logistic::quadratic_features;
use super::super::regression::{Design, Fit};
use super::coordinates::shuffled;

/// Rows of each sample that a classifier is trained on.
const MAX_ROWS: usize = 1024;
/// Axes that enter the features: the time of a fit grows with the third power of their number.
const MAX_AXES: usize = 128;
/// Columns with RBFs and soft absolute values; samples of more columns get sigmoids only.
const MAX_RBF_COLUMNS: usize = 8;
/// A fit ends after a step of this length, relative to the length of the coefficients.
const TOLERANCE: f64 = 1e-3;

/// Estimates of KL(P‖Q) from the log density ratio of one classifier.
#[derive(Clone, Copy, Default)]
pub struct ClassifierDivergence {
    /// The mean log ratio over the rows of P. Rows that are fitted to bias it upwards.
    pub fitted: f64,
    /// The mean with each row left out of the fit that is evaluated at it. The bias is downwards.
    pub leave_one_out: f64,
    /// The Donsker–Varadhan bound of the leave-one-out log ratio.
    pub donsker_varadhan: f64,
    /// The standard error of the leave-one-out mean.
    pub standard_error: f64,
}

/// Divergences of the quadratic and the extended classifier.
///
/// The equations of a fit have a solution in canonical coordinates. Where rounding prevents it, the quadratic
/// classifier gives zeros and the extended one repeats the quadratic one.
pub fn classifier_divergences(x: Points, y: Points) -> [ClassifierDivergence; 2] {
    let subsampled = |points: Points, seed: u64| match points.len() > MAX_ROWS {
        true => points.select(&shuffled(points.data(), points.dim(), seed)[..MAX_ROWS]),
        false => points.data().to_vec(),
    };
    let (a, b) = (subsampled(x, 1), subsampled(y, 2));
    let (a, b) = (Points::new(&a, x.dim()), Points::new(&b, y.dim()));
    // Canonical axes are sorted: the samples differ most along the first.
    let axes: Vec<usize> = (0..x.dim().min(MAX_AXES)).collect();
    let (c, d) = (a.columns(&axes), b.columns(&axes));
    let (a, b) = (Points::new(&c, axes.len()), Points::new(&d, axes.len()));
    let (features, width) = quadratic_features(a, b);
    let design = Design::standardised(&features, width, a.len());
    let Ok(fit) = design.fit(&vec![0.0; width + 1], TOLERANCE) else {
        return [ClassifierDivergence::default(); 2];
    };
    let quadratic = divergence_of(&design, &fit, a.len());
    let (features, extended_width) = extended_features(a, b, &features, width);
    let design = Design::standardised(&features, extended_width, a.len());
    // Newton's method starts from the quadratic fit.
    let mut start = vec![0.0; extended_width + 1];
    start[..width].copy_from_slice(&fit.weights[..width]);
    start[extended_width] = fit.weights[width];
    let extended = design.fit(&start, TOLERANCE).map_or(quadratic, |fit| divergence_of(&design, &fit, a.len()));
    [quadratic, extended]
}

fn divergence_of(design: &Design, fit: &Fit, n: usize) -> ClassifierDivergence {
    let m = fit.log_odds.len() - n;
    let log_prior = (m as f64 / n as f64).ln();
    let leave_one_out = design.leave_one_out_log_odds(fit);
    let (p, q) = leave_one_out.split_at(n);
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let mean_p = mean(p);
    let variance = p.iter().map(|r| (r - mean_p).powi(2)).sum::<f64>() / n as f64;
    // Log-sum-exp over Q.
    let max = q.iter().fold(f64::NEG_INFINITY, |a, &r| a.max(r));
    let log_mean_exp = max + (q.iter().map(|r| (r - max).exp()).sum::<f64>() / m as f64).ln();
    ClassifierDivergence {
        fitted: mean(&fit.log_odds[..n]) + log_prior,
        leave_one_out: mean_p + log_prior,
        donsker_varadhan: mean_p - log_mean_exp,
        standard_error: (variance / n as f64).sqrt(),
    }
}

/// Features of the extended classifier, and their number: `quadratic` rows of `width` numbers, then sigmoids, soft
/// absolute values and RBFs.
fn extended_features(p: Points, q: Points, quadratic: &[f64], width: usize) -> (Vec<f64>, usize) {
    let d = p.dim();
    let centres_per_sample = match d {
        1..=3 => 16,
        4..=MAX_RBF_COLUMNS => 12,
        _ => 0,
    };
    let centres_of = |points: Points, seed: u64| -> Vec<f64> {
        points.select(&shuffled(points.data(), d, seed)[..centres_per_sample.min(points.len())])
    };
    let centres = [centres_of(p, 3), centres_of(q, 4)].concat();
    let count = centres.len() / d;
    let extended_width = width + if d > MAX_RBF_COLUMNS { d } else { 2 * d } + count;
    // exp(rate·‖x − c‖²): the squared bandwidth is 0.15·d or 0.3·d, where a sample has a variance of about d.
    let rate = if d <= 3 { -0.5 / (0.15 * d as f64) } else { -0.5 / (0.3 * d as f64) };
    let points = || p.data().chunks_exact(d).chain(q.data().chunks_exact(d));
    // Centres are transposed, so that the distances of a point to all centres are vector operations.
    let transposed: Vec<f64> = (0..d).flat_map(|c| centres.iter().skip(c).step_by(d)).copied().collect();
    let mut rbfs = vec![0.0; quadratic.len() / width * count];
    for (point, rbfs) in points().zip(rbfs.chunks_exact_mut(count.max(1))) {
        for (x, centres) in point.iter().zip(transposed.chunks_exact(count.max(1))) {
            rbfs.iter_mut().zip(centres).for_each(|(rbf, c)| *rbf += (x - c) * (x - c));
        }
        rbfs.iter_mut().for_each(|rbf| *rbf *= rate);
    }
    exp_all(&mut rbfs);
    let mut out = Vec::with_capacity(quadratic.len() / width * extended_width);
    for (i, (row, point)) in quadratic.chunks_exact(width).zip(points()).enumerate() {
        out.extend_from_slice(row);
        // Algebraic functions cost less than tanh and log cosh and have nearly the same shape.
        out.extend(point.iter().map(|x| 2.0 * x / (1.0 + 4.0 * x * x).sqrt()));
        if d <= MAX_RBF_COLUMNS {
            out.extend(point.iter().map(|x| (0.25 + x * x).sqrt()));
        }
        out.extend_from_slice(&rbfs[i * count..(i + 1) * count]);
    }
    (out, extended_width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributions::Mixture;
    use crate::random::Generator;
    use rand::SeedableRng;

    fn divergences(p: &Mixture, q: &Mixture, n: usize) -> [ClassifierDivergence; 2] {
        let mut rng = Generator::seed_from_u64(7);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        p.sample(n, &mut rng, &mut x);
        q.sample(n, &mut rng, &mut y);
        classifier_divergences(Points::new(&x, 2), Points::new(&y, 2))
    }

    #[test]
    fn fitted_and_leave_one_out_means_bracket_the_divergence_of_gaussians() {
        let p = Mixture::new(2, &[1.0], &[0.0, 0.0], &[1.0, 0.0, 0.4, 0.9]);
        let q = Mixture::new(2, &[1.0], &[0.7, 0.0], &[1.3, 0.0, 0.0, 1.0]);
        let exact = p.exact_kl(&q).unwrap();
        for v in divergences(&p, &q, 1000) {
            assert!(v.leave_one_out < v.fitted && v.donsker_varadhan < v.fitted);
            assert!(
                (0.5 * (v.leave_one_out + v.fitted) - exact).abs() < 4.0 * v.standard_error,
                "{} {}: {exact}",
                v.leave_one_out,
                v.fitted
            );
        }
    }

    #[test]
    fn only_the_extended_classifier_tells_distributions_of_equal_moments_apart() {
        // Two modes on each axis, against one normal with the same moments.
        let p = Mixture::new(
            2,
            &[1.0; 4],
            &[0.9, 0.9, -0.9, 0.9, 0.9, -0.9, -0.9, -0.9],
            &[0.43, 0.0, 0.0, 0.43].repeat(4),
        );
        let q = Mixture::new(2, &[1.0], &[0.0, 0.0], &[1.0, 0.0, 0.0, 1.0]);
        let [quadratic, extended] = divergences(&p, &q, 800);
        assert!(
            quadratic.fitted < 0.05 && extended.leave_one_out > 0.3,
            "{} and {}",
            quadratic.fitted,
            extended.leave_one_out
        );
    }
}
