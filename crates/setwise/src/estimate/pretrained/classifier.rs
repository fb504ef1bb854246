//! What classifiers of "from P or from Q" say of the divergence: one that is right for Gaussians, and one for other shapes too.

use super::super::Points;
use super::super::exponential::exp_all;
use super::super::logistic::products;
use super::super::regression::{Design, Fit};
use super::evidence::shuffled;

/// Rows of each sample a classifier is trained on.
const ROWS: usize = 1024;
/// The length of a step, relative to the coefficients', that ends a fit.
const ENOUGH: f64 = 1e-3;
/// Above this many columns only the columns themselves are bent.
const FEW: usize = 8;

/// What a classifier says.
#[derive(Clone, Copy, Default)]
pub struct Verdict {
    /// The mean log ratio of P's rows, which fitting them makes too large.
    pub fitted: f64,
    /// The same with every row left out of the fit that judges it, which makes it too small.
    pub left_out: f64,
    /// The bound of Donsker and Varadhan for the log ratio of rows left out.
    pub bound: f64,
    /// The deviation of the log ratios left out over the root of their number.
    pub noise: f64,
}

/// Most axes that are looked at: the time of a fit grows with the third power of their number.
const AXES: usize = 128;

/// The verdicts of both classifiers: features are columns, squares and products; and beside these bent columns and bumps around some rows.
/// Equations can always be solved in whitened coordinates; where rounding says otherwise the verdict is nothing.
pub fn verdicts(x: Points, y: Points) -> [Verdict; 2] {
    let some = |points: Points, seed: u64| match points.len() > ROWS {
        true => points.select(&shuffled(points.data(), points.dim(), seed)[..ROWS]),
        false => points.data().to_vec(),
    };
    let (a, b) = (some(x, 1), some(y, 2));
    let (a, b) = (Points::new(&a, x.dim()), Points::new(&b, y.dim()));
    // The first axes are those in which the samples differ most.
    let first: Vec<usize> = (0..x.dim().min(AXES)).collect();
    let (c, d) = (a.columns(&first), b.columns(&first));
    let (a, b) = (Points::new(&c, first.len()), Points::new(&d, first.len()));
    let (rows, columns) = products(a, b);
    let design = Design::standardised(&rows, columns, a.len());
    let Ok(plain) = design.fit(&vec![0.0; columns + 1], ENOUGH) else { return [Verdict::default(); 2] };
    let first = verdict(&design, &plain, a.len());
    let (rows, wide) = bent(a, b, &rows, columns);
    let design = Design::standardised(&rows, wide, a.len());
    // From the plain fit on.
    let mut start = vec![0.0; wide + 1];
    start[..columns].copy_from_slice(&plain.weights[..columns]);
    start[wide] = plain.weights[columns];
    let second = design.fit(&start, ENOUGH).map_or(first, |fit| verdict(&design, &fit, a.len()));
    [first, second]
}

fn verdict(design: &Design, fit: &Fit, n: usize) -> Verdict {
    let m = fit.odds.len() - n;
    let prior = (m as f64 / n as f64).ln();
    let left_out = design.odds_left_out(fit);
    let (p, q) = left_out.split_at(n);
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let of_p = mean(p);
    let variance = p.iter().map(|r| (r - of_p).powi(2)).sum::<f64>() / n as f64;
    // The mean of exp(r) over Q without overflow.
    let largest = q.iter().fold(f64::NEG_INFINITY, |a, &r| a.max(r));
    let log_mean = largest + (q.iter().map(|r| (r - largest).exp()).sum::<f64>() / m as f64).ln();
    Verdict {
        fitted: mean(&fit.odds[..n]) + prior,
        left_out: of_p + prior,
        bound: of_p - log_mean,
        noise: (variance / n as f64).sqrt(),
    }
}

/// Rows of products with more beside them.
fn bent(p: Points, q: Points, rows: &[f64], columns: usize) -> (Vec<f64>, usize) {
    let d = p.dim();
    let centres = match d {
        1..=3 => 16,
        4..=FEW => 12,
        _ => 0,
    };
    let centre = |points: Points, seed: u64| -> Vec<f64> {
        points.select(&shuffled(points.data(), d, seed)[..centres.min(points.len())])
    };
    let centres = [centre(p, 3), centre(q, 4)].concat();
    let count = centres.len() / d;
    let wide = columns + if d > FEW { d } else { 2 * d } + count;
    // Bumps are about as wide as a tenth to a third of the samples.
    let fall = if d <= 3 { -0.5 / (0.15 * d as f64) } else { -0.5 / (0.3 * d as f64) };
    let points = || p.data().chunks_exact(d).chain(q.data().chunks_exact(d));
    // Column by column, so that the distances of a point to all centres are taken at once.
    let axes: Vec<f64> = (0..d).flat_map(|c| centres.iter().skip(c).step_by(d)).copied().collect();
    let mut bumps = vec![0.0; rows.len() / columns * count];
    for (point, bumps) in points().zip(bumps.chunks_exact_mut(count.max(1))) {
        for (x, axis) in point.iter().zip(axes.chunks_exact(count.max(1))) {
            bumps.iter_mut().zip(axis).for_each(|(bump, c)| *bump += (x - c) * (x - c));
        }
        bumps.iter_mut().for_each(|bump| *bump *= fall);
    }
    exp_all(&mut bumps);
    let mut out = Vec::with_capacity(rows.len() / columns * wide);
    for (i, (row, point)) in rows.chunks_exact(columns).zip(points()).enumerate() {
        out.extend_from_slice(row);
        // Steps and corners, smooth; x/√(1 + x²) and √(1 + x²) differ from these by little and are quick.
        out.extend(point.iter().map(|x| 2.0 * x / (1.0 + 4.0 * x * x).sqrt()));
        if d <= FEW {
            out.extend(point.iter().map(|x| (0.25 + x * x).sqrt()));
        }
        out.extend_from_slice(&bumps[i * count..(i + 1) * count]);
    }
    (out, wide)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributions::Mixture;
    use crate::random::Generator;
    use rand::SeedableRng;

    fn judged(p: &Mixture, q: &Mixture, n: usize) -> [Verdict; 2] {
        let mut rng = Generator::seed_from_u64(7);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        p.sample(n, &mut rng, &mut x);
        q.sample(n, &mut rng, &mut y);
        verdicts(Points::new(&x, 2), Points::new(&y, 2))
    }

    #[test]
    fn fitted_and_left_out_ratios_lie_on_both_sides_of_the_divergence_of_gaussians() {
        let p = Mixture::new(2, &[1.0], &[0.0, 0.0], &[1.0, 0.0, 0.4, 0.9]);
        let q = Mixture::new(2, &[1.0], &[0.7, 0.0], &[1.3, 0.0, 0.0, 1.0]);
        let exact = p.exact_kl(&q).unwrap();
        for v in judged(&p, &q, 1000) {
            assert!(v.left_out < v.fitted && v.bound < v.fitted);
            assert!(
                (0.5 * (v.left_out + v.fitted) - exact).abs() < 4.0 * v.noise,
                "{} {}: {exact}",
                v.left_out,
                v.fitted
            );
        }
    }

    #[test]
    fn shapes_without_a_difference_in_moments_are_seen_by_the_second_alone() {
        // Two bumps on each axis, against one normal with the same moments.
        let p = Mixture::new(
            2,
            &[1.0; 4],
            &[0.9, 0.9, -0.9, 0.9, 0.9, -0.9, -0.9, -0.9],
            &[0.43, 0.0, 0.0, 0.43].repeat(4),
        );
        let q = Mixture::new(2, &[1.0], &[0.0, 0.0], &[1.0, 0.0, 0.0, 1.0]);
        let [plain, wide] = judged(&p, &q, 800);
        assert!(plain.fitted < 0.05 && wide.left_out > 0.3, "{} and {}", plain.fitted, wide.left_out);
    }
}
