//! Log density ratios from logistic regressions of P against Q, in canonical coordinates.
//!
//! Three classifiers are nested. The *linear* one has the columns as features. The *quadratic* one adds squares and
//! products, which is right for Gaussians. The *extended* one adds sigmoids, soft absolute values and radial basis
//! functions (RBF). The number of RBFs grows with the rows, and their bandwidth shrinks.

use rayon::prelude::*;

use super::super::Points;
use super::super::exponential::exp_all;
use super::super::regression::Design;

/// Rows of each sample that a classifier is trained on.
const MAX_ROWS: usize = 4096;
/// Axes that enter the features: the time of a fit grows with the third power of their number.
const MAX_AXES: usize = 128;
/// Axes with products.
const MAX_PRODUCT_AXES: usize = 32;
/// Columns with RBFs and soft absolute values; samples of more columns get sigmoids only.
const MAX_RBF_COLUMNS: usize = 8;
/// A fit ends after a step of this length, relative to the length of the coefficients.
const TOLERANCE: f64 = 1e-3;
/// Penalties on half the squared coefficients of standardised features.
const PENALTIES: [f64; 5] = [1.0, 5.0, 25.0, 125.0, 625.0];
/// Nested classifiers.
pub const CLASSIFIERS: usize = 3;

/// At most `count` rows from the first on.
fn first_rows(points: Points, count: usize) -> Points {
    Points::new(&points.data()[..count.min(points.len()) * points.dim()], points.dim())
}

/// Functions of a row. The first features are linear, then come quadratic ones, then the others.
struct Basis {
    dim: usize,
    axes: usize,
    /// RBF centres, transposed: `[axes, centres]`.
    centres: Vec<f64>,
    count: usize,
    /// exp(rate·‖x − c‖²).
    rate: f64,
}

impl Basis {
    fn new(p: Points, q: Points) -> Self {
        let dim = p.dim();
        let axes = dim.min(MAX_AXES);
        let n = p.len().min(q.len());
        let per_sample = match dim {
            1..=3 => 16.max((1.3 * (n as f64).sqrt()) as usize).min(64),
            4..=MAX_RBF_COLUMNS => 12.max((0.8 * (n as f64).sqrt()) as usize).min(48),
            _ => 0,
        };
        let centres = [p, q].map(|points| first_rows(points, per_sample).data()).concat();
        let count = centres.len() / dim;
        let transposed = (0..dim).flat_map(|c| centres.iter().skip(c).step_by(dim)).copied().collect();
        // The squared bandwidth of 200 rows is 0.15·d or 0.3·d, where a sample has a variance of about d.
        let shrink = (n as f64 / 200.0).max(1.0).powf(-2.0 / (4.0 + dim as f64));
        let rate = -0.5 / (if dim <= 3 { 0.15 } else { 0.3 } * dim as f64 * shrink);
        Basis { dim, axes, centres: transposed, count, rate }
    }

    /// Numbers of features of the nested classifiers.
    fn widths(&self) -> [usize; CLASSIFIERS] {
        let a = self.axes;
        let quadratic = if a <= MAX_PRODUCT_AXES { a + a * (a + 1) / 2 } else { 2 * a };
        [a, quadratic, quadratic + if self.dim > MAX_RBF_COLUMNS { a } else { 2 * a } + self.count]
    }

    /// Features of rows: `[rows, widths[2]]`.
    fn features(&self, rows: &[f64]) -> Vec<f64> {
        let [_, quadratic, width] = self.widths();
        let (n, a) = (rows.len() / self.dim, self.axes);
        let mut out = vec![0.0; n * width];
        let products = a <= MAX_PRODUCT_AXES;
        out.par_chunks_mut(64 * width).zip(rows.par_chunks(64 * self.dim)).for_each(|(out, rows)| {
            let mut rbfs = vec![0.0; rows.len() / self.dim * self.count];
            for (i, (out, row)) in out.chunks_exact_mut(width).zip(rows.chunks_exact(self.dim)).enumerate() {
                out[..a].copy_from_slice(&row[..a]);
                let mut at = a;
                for i in 0..a {
                    for &y in &row[i..if products { a } else { i + 1 }] {
                        out[at] = row[i] * y;
                        at += 1;
                    }
                }
                debug_assert_eq!(at, quadratic);
                // Algebraic functions cost less than tanh and log cosh and have nearly the same shape.
                for x in &row[..a] {
                    out[at] = 2.0 * x / (1.0 + 4.0 * x * x).sqrt();
                    at += 1;
                }
                if self.dim <= MAX_RBF_COLUMNS {
                    for x in row {
                        out[at] = (0.25 + x * x).sqrt();
                        at += 1;
                    }
                    let rbfs = &mut rbfs[i * self.count..(i + 1) * self.count];
                    for (x, centres) in row.iter().zip(self.centres.chunks_exact(self.count)) {
                        rbfs.iter_mut().zip(centres).for_each(|(rbf, c)| *rbf += (x - c) * (x - c));
                    }
                    rbfs.iter_mut().for_each(|rbf| *rbf *= self.rate);
                }
            }
            exp_all(&mut rbfs);
            for (out, rbfs) in out.chunks_exact_mut(width).zip(rbfs.chunks_exact(self.count.max(1))) {
                out[width - self.count..].copy_from_slice(rbfs);
            }
        });
        out
    }
}

/// The fitted classifiers.
pub struct Classifiers {
    basis: Basis,
    /// Coefficients and intercept of each, for log density ratios.
    weights: [Vec<f64>; CLASSIFIERS],
    /// Penalties of the fits.
    pub penalties: [f64; CLASSIFIERS],
}

/// Log density ratios at one row by each classifier.
pub type RowRatios = [f64; CLASSIFIERS];

/// Log density ratios of classifiers at the rows of P and of Q, with each row left out of the fit.
pub struct ClassifierRatios {
    /// The fits.
    pub classifiers: Classifiers,
    /// At the rows of P.
    pub p: Vec<RowRatios>,
    /// At the rows of Q.
    pub q: Vec<RowRatios>,
    /// Means over P and over Q of log ratios as fitted.
    pub fitted: [[f64; CLASSIFIERS]; 2],
}

impl Classifiers {
    /// Fits the classifiers to at most 4096 rows of each sample and evaluates them at all rows, which are in random
    /// order.
    pub fn fit(x: Points, y: Points) -> ClassifierRatios {
        let (a, b) = (first_rows(x, MAX_ROWS), first_rows(y, MAX_ROWS));
        let basis = Basis::new(a, b);
        let (n, m) = (a.len(), b.len());
        let prior = (m as f64 / n as f64).ln();
        let features = basis.features(&[a.data(), b.data()].concat());
        let widths = basis.widths();
        let total = widths[CLASSIFIERS - 1];
        let mut weights: [Vec<f64>; CLASSIFIERS] = std::array::from_fn(|_| vec![0.0; total + 1]);
        let mut left_out = vec![[0.0; CLASSIFIERS]; n + m];
        let mut fitted = [[0.0; CLASSIFIERS]; 2];
        let fit_one = |k: usize| {
            let width = widths[k];
            let part: Vec<f64> = features.chunks_exact(total).flat_map(|row| &row[..width]).copied().collect();
            let (design, fit, left_out) = Design::standardised(&part, width, n).fit_best(&PENALTIES, 0.0, TOLERANCE)?;
            let (of_p, of_q) = fit.log_odds.split_at(n);
            let means = [of_p, of_q].map(|odds| odds.iter().sum::<f64>() / odds.len() as f64 + prior);
            Some((design.raw_weights(&fit), left_out, means, design.penalty))
        };
        let mut penalties = [PENALTIES[0]; CLASSIFIERS];
        let (extended, (linear, quadratic)) = rayon::join(|| fit_one(2), || (fit_one(0), fit_one(1)));
        for (k, result) in [linear, quadratic, extended].into_iter().enumerate() {
            // Where rounding prevents a solution, the classifier repeats the simpler one.
            match result {
                Some((raw, scores, means, penalty)) => {
                    penalties[k] = penalty;
                    weights[k][..widths[k]].copy_from_slice(&raw[..widths[k]]);
                    weights[k][total] = raw[widths[k]] + prior;
                    left_out.iter_mut().zip(scores).for_each(|(out, s)| out[k] = s + prior);
                    (fitted[0][k], fitted[1][k]) = (means[0], means[1]);
                }
                None if k > 0 => {
                    weights[k] = weights[k - 1].clone();
                    left_out.iter_mut().for_each(|out| out[k] = out[k - 1]);
                    (fitted[0][k], fitted[1][k]) = (fitted[0][k - 1], fitted[1][k - 1]);
                }
                None => {}
            }
        }
        let classifiers = Classifiers { basis, weights, penalties };
        let with_others = |points: Points, left_out: &[RowRatios]| {
            let others = Points::new(&points.data()[left_out.len() * points.dim()..], points.dim());
            [left_out, &classifiers.at(others)].concat()
        };
        let (p, q) = (with_others(x, &left_out[..n]), with_others(y, &left_out[n..]));
        ClassifierRatios { classifiers, p, q, fitted }
    }

    /// Log density ratios at any rows.
    pub fn at(&self, points: Points) -> Vec<RowRatios> {
        let width = self.basis.widths()[CLASSIFIERS - 1];
        let of_chunk = |rows: &[f64]| -> Vec<RowRatios> {
            let features = self.basis.features(rows);
            let ratio = |row: &[f64], weights: &[f64]| {
                weights[width] + row.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>()
            };
            features.chunks_exact(width).map(|row| std::array::from_fn(|k| ratio(row, &self.weights[k]))).collect()
        };
        points.data().par_chunks(1024 * points.dim()).flat_map_iter(of_chunk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributions::Mixture;
    use crate::random::Generator;
    use rand::SeedableRng;

    fn samples(p: &Mixture, q: &Mixture, n: usize) -> [Vec<f64>; 2] {
        let mut rng = Generator::seed_from_u64(7);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        p.sample(n, &mut rng, &mut x);
        q.sample(n, &mut rng, &mut y);
        [x, y]
    }

    fn mean(ratios: &[RowRatios], k: usize) -> f64 {
        ratios.iter().map(|r| r[k]).sum::<f64>() / ratios.len() as f64
    }

    #[test]
    fn fitted_and_leave_one_out_means_bracket_the_divergence_of_gaussians() {
        let p = Mixture::new(2, &[1.0], &[0.0, 0.0], &[1.0, 0.0, 0.4, 0.9]);
        let q = Mixture::new(2, &[1.0], &[0.7, 0.0], &[1.3, 0.0, 0.0, 1.0]);
        let exact = p.exact_kl(&q).unwrap();
        let [x, y] = samples(&p, &q, 1000);
        let ratios = Classifiers::fit(Points::new(&x, 2), Points::new(&y, 2));
        for k in [1, 2] {
            let (left_out, fitted) = (mean(&ratios.p, k), ratios.fitted[0][k]);
            assert!(
                left_out < fitted && (0.5 * (left_out + fitted) - exact).abs() < 0.08,
                "{left_out} {fitted}: {exact}"
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
        let [x, y] = samples(&p, &q, 800);
        let ratios = Classifiers::fit(Points::new(&x, 2), Points::new(&y, 2));
        let (quadratic, extended) = (ratios.fitted[0][1], mean(&ratios.p, 2));
        assert!(quadratic < 0.05 && extended > 0.3, "{quadratic} and {extended}");
    }

    #[test]
    fn rows_outside_of_the_fit_get_the_log_ratio_of_the_classifier() {
        let p = Mixture::new(1, &[1.0], &[0.0], &[1.0]);
        let q = Mixture::new(1, &[1.0], &[1.0], &[1.0]);
        let [x, y] = samples(&p, &q, MAX_ROWS + 500);
        let ratios = Classifiers::fit(Points::new(&x, 1), Points::new(&y, 1));
        assert_eq!(ratios.p.len(), MAX_ROWS + 500);
        // log p/q = ½ − x.
        for (x, r) in x.iter().zip(&ratios.p) {
            assert!((r[0] - (0.5 - x)).abs() < 0.25, "{x}: {r:?}");
        }
    }
}
