//! Weights of several estimates of the log density ratio, by logistic regression on their leave-one-out values.

use super::classifiers::CLASSIFIERS;
use super::nearest::LOCAL;
use super::views::ViewRatios;
use crate::estimate::regression::Design;
use crate::estimate::softplus;

/// Local estimates that are stacked: the fourth and the sixteenth neighbour and the pooled one.
const STACKED_LOCAL: [usize; 3] = [2, 4, LOCAL - 1];
/// Estimates of a view that are stacked: classifiers, local ones, discriminant analysis.
const OF_VIEW: usize = CLASSIFIERS + STACKED_LOCAL.len() + 1;
/// Views.
const MAX_VIEWS: usize = 2;
/// The largest number of stacked estimates: those of trees, of all columns, and of the selected columns.
pub const WIDTH: usize = 1 + MAX_VIEWS * OF_VIEW;
/// Rows of each sample that determine the weights.
const MAX_ROWS: usize = 20_000;
/// Estimates are clamped to this size.
const MAX_RATIO: f64 = 30.0;
/// A fit ends after a step of this length, relative to the length of the coefficients.
const TOLERANCE: f64 = 1e-4;

/// What is stacked at the rows of one sample.
pub struct Stacked<'a> {
    /// Log ratios of trees.
    pub trees: &'a [f64],
    /// Neighbours, classifiers and discriminant analysis with all columns, and with the selected ones.
    pub views: Vec<&'a ViewRatios>,
}

impl Stacked<'_> {
    fn width(&self) -> usize {
        1 + self.views.len() * OF_VIEW
    }

    /// All estimates at a row.
    fn row(&self, row: usize) -> impl Iterator<Item = f64> {
        let of_view = move |view: &&ViewRatios| {
            let local = STACKED_LOCAL.map(|k| f64::from(view.local[row][k]));
            view.classifiers[row].into_iter().chain(local).chain([view.discriminant[row]])
        };
        let all = [self.trees[row]].into_iter().chain(self.views.iter().flat_map(of_view));
        all.map(|x| x.clamp(-MAX_RATIO, MAX_RATIO))
    }
}

/// Penalties on half the squared changes of the first weights.
const PENALTIES: [f64; 5] = [1e4, 300.0, 100.0, 30.0, 10.0];
/// By how much a smaller penalty has to lower the loss of all left-out rows, in nats.
const MIN_GAIN: f64 = 1.5;

/// A weighted sum of estimates.
pub struct Stack {
    /// Weights of the estimates, then the intercept.
    pub weights: Vec<f64>,
}

impl Stack {
    /// Fits weights to estimates at rows of P and of Q.
    ///
    /// The first weights are the likelihoods of the estimates at left-out rows, so that they add up to one. A logistic
    /// regression changes them as far as the likelihood grows with smaller penalties. Of few rows, free weights would
    /// lose more than they gain.
    pub fn fit(p: &Stacked, q: &Stacked) -> Self {
        let width = p.width();
        let [of_p, of_q] = [p, q].map(|stacked| -> Vec<Vec<f64>> {
            (0..stacked.trees.len().min(MAX_ROWS)).map(|i| stacked.row(i).collect()).collect()
        });
        let (n, m) = (of_p.len() as f64, of_q.len() as f64);
        let prior = (n / m).ln();
        let loss = |k: usize| -> f64 {
            of_p.iter().map(|row| softplus(-row[k] - prior)).sum::<f64>()
                + of_q.iter().map(|row| softplus(row[k] + prior)).sum::<f64>()
        };
        let losses: Vec<f64> = (0..width).map(loss).collect();
        let least = losses.iter().fold(f64::INFINITY, |a, &b| a.min(b));
        let mut weights: Vec<f64> = losses.iter().map(|loss| (least - loss).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= total);
        let features: Vec<f64> = of_p.iter().chain(&of_q).flatten().copied().collect();
        let mut design = Design::plain(&features, width, of_p.len());
        let offset = |row: &[f64]| prior + row.iter().zip(&weights).map(|(x, w)| x * w).sum::<f64>();
        design.offsets = features.chunks_exact(width).map(offset).collect();
        let mut intercept = 0.0;
        if let Some((design, fit, _)) = design.fit_best(&PENALTIES, MIN_GAIN, TOLERANCE) {
            let changes = design.raw_weights(&fit);
            weights.iter_mut().zip(&changes).for_each(|(w, change)| *w += change);
            intercept = changes[width];
        }
        weights.push(intercept);
        Stack { weights }
    }

    /// Stacked log density ratios.
    pub fn at(&self, stacked: &Stacked) -> Vec<f64> {
        let (weights, intercept) = self.weights.split_at(self.weights.len() - 1);
        let one = |i: usize| intercept[0] + stacked.row(i).zip(weights).map(|(x, w)| x * w).sum::<f64>();
        (0..stacked.trees.len()).map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::classifiers::RowRatios;
    use super::*;

    #[test]
    fn the_right_estimate_gets_the_weight_and_a_reversed_one_none() {
        // P and Q are classes of points in (0, 1) whose log ratio is known.
        let place = |i: usize| (i as f64 * 0.618_034).fract();
        let (mut p, mut q): (Vec<RowRatios>, Vec<RowRatios>) = (Vec::new(), Vec::new());
        for i in 0..4000 {
            let truth = 4.0 * (place(i) - 0.5);
            let row = [truth, -0.5 * truth, 0.1 * place(7 * i)];
            let share = 1.0 / (1.0 + (-truth).exp());
            if place(31 * i + 1) < share { p.push(row) } else { q.push(row) }
        }
        let view = |rows: Vec<RowRatios>| {
            let n = rows.len();
            ViewRatios { local: vec![[0f32; LOCAL]; n], classifiers: rows, discriminant: vec![0.0; n] }
        };
        let (p, q) = (view(p), view(q));
        let zeros = vec![0.0; 4000];
        let (n, m) = (p.local.len(), q.local.len());
        let of_p = Stacked { trees: &zeros[..n], views: vec![&p] };
        let weights = Stack::fit(&of_p, &Stacked { trees: &zeros[..m], views: vec![&q] }).weights;
        assert!((weights[1] - 1.0).abs() < 0.2, "{weights:?}");
        assert!(weights[2..].iter().all(|w| w.abs() < 0.1), "{weights:?}");
    }
}
