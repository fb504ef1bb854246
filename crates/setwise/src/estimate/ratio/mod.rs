//! The log density ratio log p/q at every row, from two samples.
//!
//! Several estimators are combined:
//!
//! - local ones from nearest neighbours (`nearest`), which converge for any distribution;
//! - logistic regressions (`classifiers`) and Gaussians (`discriminant`), which are best for smooth differences;
//! - boosted trees (`trees`, `boosting`), which are best where single columns differ.
//!
//! The first two kinds are fitted in two systems of coordinates (`views`): those of all columns, and those of the
//! columns in which the samples differ (`selection`). A logistic regression on values at left-out rows weights all
//! estimators (`stacking`). Trees correct the result, cross-fitted.

pub mod boosting;
pub mod classifiers;
pub(super) mod coordinates;
mod discriminant;
mod log_ratio;
mod nearest;
mod robust;
mod selection;
mod stacking;
mod trees;
mod views;

use rand::SeedableRng;
use rand::seq::SliceRandom;

use super::{Points, Progress};
use crate::random::Generator;
use classifiers::CLASSIFIERS;
use coordinates::{AffineCoordinates, PairCoordinates};
use discriminant::Shares;
use selection::Selection;
use stacking::{Stack, Stacked};
use trees::{TreeData, TreeRows};
use views::View;

pub use log_ratio::{LogRatio, log_ratio, log_ratio_observed};
pub(super) use stacking::WIDTH as STACKED;
pub(super) use views::ViewRatios;

/// A random order of rows. Rows are sorted before they are shuffled, so that their order in the file has no influence.
fn shuffled(points: Points, seed: u64) -> Vec<usize> {
    let mut order = points.sorted_rows();
    order.shuffle(&mut Generator::seed_from_u64(seed));
    order
}

/// Random rows of P and Q at which log ratios are evaluated: at most `max` of each. Neither the order of rows nor the
/// units and signs of columns have an influence.
pub(super) fn evaluated_rows(coordinates: &AffineCoordinates, max: usize) -> [Vec<usize>; 2] {
    let [p, q] = [0, 1].map(|k| Points::new(&coordinates.rows[k], coordinates.dim));
    let (mut of_p, mut of_q) = rayon::join(|| shuffled(p, 1), || shuffled(q, 2));
    of_p.truncate(max);
    of_q.truncate(max);
    [of_p, of_q]
}

/// Estimates at rows of one sample, each without the influence of the row itself.
pub(super) struct SampleRatios {
    /// In the coordinates of all columns.
    pub all: ViewRatios,
    /// In those of the selected columns, if not all are selected.
    selected: Option<ViewRatios>,
    /// Boosted trees alone.
    pub trees: Vec<f64>,
    /// All of these, weighted.
    pub stacked: Vec<f64>,
    /// The stacked estimate, corrected by trees.
    pub boosted: Vec<f64>,
}

impl SampleRatios {
    /// What is stacked.
    fn inputs(&self) -> Stacked<'_> {
        Stacked { trees: &self.trees, views: [&self.all].into_iter().chain(&self.selected).collect() }
    }

    /// Estimates in the coordinates of the selected columns, which may be all.
    pub fn selected(&self) -> &ViewRatios {
        self.selected.as_ref().unwrap_or(&self.all)
    }
}

/// Log density ratios of two samples by several estimators.
pub(super) struct RatioFit {
    /// At the evaluated rows of P.
    pub p: SampleRatios,
    /// At those of Q.
    pub q: SampleRatios,
    /// At other rows.
    pub other: SampleRatios,
    /// Means over P and over Q of the classifiers' log ratios as fitted, with all and with the selected columns.
    pub fitted: [[[f64; CLASSIFIERS]; 2]; 2],
    /// The selected columns.
    pub selection: Selection,
    /// Directions of variation in all and in the selected columns.
    pub dims: [usize; 2],
    /// Rounds of boosting: of trees alone, and of those that correct the stacked estimate.
    pub rounds: [usize; 2],
    /// Weights of the stack: trees, estimates with all columns, then with the selected ones.
    pub weights: [f64; STACKED],
    /// Penalties of the classifiers with all columns.
    pub penalties: [f64; CLASSIFIERS],
    /// How covariances are regularised in discriminant analysis with all columns.
    pub shares: Shares,
}

/// A view with the selected columns of both samples, if they have any directions of variation.
fn selected_view(
    columns: &[usize],
    [p, q]: [Points; 2],
    evaluated: [&[usize]; 2],
    other: Points,
    progress: &Progress,
) -> Option<View> {
    let [x, y, z] = [p, q, other].map(|points| points.columns(columns));
    let [x, y, z] = [&x, &y, &z].map(|rows| Points::new(rows, columns.len()));
    let coordinates = AffineCoordinates::fit(x, y).ok()?.compress(evaluated);
    let [a, b] = coordinates.select(evaluated);
    let dim = coordinates.dim;
    let other = coordinates.apply(z);
    let evaluated = [Points::new(&a, dim), Points::new(&b, dim)];
    Some(View::fit(&coordinates, evaluated, Points::new(&other, dim), progress))
}

impl RatioFit {
    /// Units of work of [`RatioFit::new`], from the rows of both samples, the evaluated ones and the other ones.
    pub fn work(rows: [usize; 2], evaluated: [usize; 2], other: usize) -> usize {
        2 * View::work(rows, evaluated, other) + 2 * TreeData::work(evaluated)
    }

    /// Fits all estimators to P and Q, and evaluates them at rows of both and at other rows, of which there may be
    /// none.
    ///
    /// The evaluated rows are in random order. Neighbours are searched among all rows.
    pub fn new(
        coordinates: &PairCoordinates,
        [p, q]: [Points; 2],
        evaluated: [&[usize]; 2],
        other: Points,
        progress: &Progress,
    ) -> Self {
        let dim = coordinates.dim;
        let [a, b] = [p.select(evaluated[0]), q.select(evaluated[1])];
        let raw = [Points::new(&a, p.dim()), Points::new(&b, q.dim()), other];
        let [x, y] = coordinates.select(evaluated);
        let z = coordinates.apply(other);
        let canonical = [&x, &y, &z].map(|rows| Points::new(rows, dim));
        let tree_rows: [TreeRows; 3] = std::array::from_fn(|k| (raw[k], canonical[k]));
        let tree_data = TreeData::new([tree_rows[0], tree_rows[1]]);
        let evaluated_rows = evaluated.map(<[usize]>::len);
        let tree_work = TreeData::work(evaluated_rows);
        let ((all, selection), trees) = rayon::join(
            || {
                rayon::join(
                    || View::fit(coordinates, [canonical[0], canonical[1]], canonical[2], progress),
                    || Selection::of(raw[0], raw[1]),
                )
            },
            || {
                let trees = tree_data.alone();
                progress.advance(tree_work);
                trees
            },
        );
        let selected =
            selection.columns.as_deref().and_then(|columns| selected_view(columns, [p, q], evaluated, other, progress));
        if selected.is_none() {
            progress.advance(View::work([p.len(), q.len()], evaluated_rows, other.len()));
        }
        let fitted = [all.fitted, selected.as_ref().map_or(all.fitted, |view| view.fitted)];
        let dims = [dim, selected.as_ref().map_or(dim, |view| view.dim)];
        let View { samples: of_all, penalties, shares, .. } = all;
        let mut of_selected = selected.map(|view| view.samples.map(Some)).unwrap_or([None, None, None]).into_iter();
        let mut k = 0;
        let mut samples = of_all.map(|all| {
            let trees = trees.scores(k, tree_rows[k]);
            k += 1;
            let selected = of_selected.next().flatten();
            SampleRatios { all, selected, trees, stacked: Vec::new(), boosted: Vec::new() }
        });
        let stack = Stack::fit(&samples[0].inputs(), &samples[1].inputs());
        let mut weights = [0.0; STACKED];
        weights.iter_mut().zip(&stack.weights[..stack.weights.len() - 1]).for_each(|(w, x)| *w = *x);
        samples.iter_mut().for_each(|sample| sample.stacked = stack.at(&sample.inputs()));
        let correction = tree_data.correction([&samples[0].stacked, &samples[1].stacked]);
        for (k, sample) in samples.iter_mut().enumerate() {
            let scores = correction.scores(k, tree_rows[k]);
            sample.boosted = sample.stacked.iter().zip(scores).map(|(ratio, score)| ratio + score).collect();
        }
        progress.advance(tree_work);
        let rounds = [trees.rounds(), correction.rounds()];
        let [p, q, other] = samples;
        RatioFit { p, q, other, fitted, selection, dims, rounds, weights, penalties, shares }
    }
}
