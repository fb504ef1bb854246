//! Neighbours and classifiers in one system of coordinates.

use rayon::prelude::*;

use super::super::{Points, Progress};
use super::classifiers::{CLASSIFIERS, ClassifierRatios, Classifiers, RowRatios};
use super::coordinates::PairCoordinates;
use super::discriminant::{Discriminant, DiscriminantRatios, Shares};
use super::nearest::{List, Local, NearestPoints, local_ratios};

/// Rows of both samples from which on neighbours are searched in one sample after the other, so that one tree alone is
/// in memory.
const MANY_ROWS: usize = 1 << 18;

/// Units of work: for each row of a tree, for each query, for each row of the classifiers.
const TREE_WORK: usize = 1;
const QUERY_WORK: usize = 8;
const CLASSIFIER_WORK: usize = 8;

/// Log ratios at rows of one sample, each without the influence of the row itself.
pub struct ViewRatios {
    /// Local estimates from nearest neighbours.
    pub local: Vec<Local>,
    /// Classifiers.
    pub classifiers: Vec<RowRatios>,
    /// Discriminant analysis.
    pub discriminant: Vec<f64>,
}

/// Estimates in one system of coordinates.
pub struct View {
    /// Directions of variation.
    pub dim: usize,
    /// At rows of P, of Q, and at other rows.
    pub samples: [ViewRatios; 3],
    /// Means over P and over Q of the classifiers' log ratios as fitted.
    pub fitted: [[f64; CLASSIFIERS]; 2],
    /// Penalties of the classifiers.
    pub penalties: [f64; CLASSIFIERS],
    /// How covariances are regularised in discriminant analysis.
    pub shares: Shares,
}

impl View {
    /// Units of work of [`View::fit`].
    pub fn work(rows: [usize; 2], evaluated: [usize; 2], other: usize) -> usize {
        let queries = evaluated[0] + evaluated[1] + other;
        TREE_WORK * (rows[0] + rows[1]) + 2 * QUERY_WORK * queries + Self::classifier_work(evaluated)
    }

    fn classifier_work(evaluated: [usize; 2]) -> usize {
        CLASSIFIER_WORK * (evaluated[0] + evaluated[1])
    }

    /// Evaluates neighbours among all rows, and classifiers, at the `evaluated` rows of P and Q and at other rows.
    pub fn fit(coordinates: &PairCoordinates, evaluated: [Points; 2], other: Points, progress: &Progress) -> Self {
        let dim = coordinates.dim;
        let [x, y] = evaluated;
        let all = [0, 1].map(|k| Points::new(&coordinates.rows[k], dim));
        let (local, (classifiers, discriminant)) = rayon::join(
            || {
                let queries = [(x, Some(0)), (y, Some(1)), (other, None)];
                let lists = |k: usize| -> [Vec<List>; 3] {
                    let near = NearestPoints::new(all[k]);
                    progress.advance(TREE_WORK * all[k].len());
                    let observe = |queries: usize| progress.advance(QUERY_WORK * queries);
                    queries.map(|(points, member)| near.lists(points, member == Some(k), observe))
                };
                let one_by_one = all[0].len() + all[1].len() > MANY_ROWS;
                let [of_p, of_q] = match one_by_one {
                    true => [lists(0), lists(1)],
                    false => rayon::join(|| lists(0), || lists(1)).into(),
                };
                let rows = |member: Option<usize>| [0, 1].map(|k| all[k].len() - usize::from(member == Some(k)));
                std::array::from_fn(|i| local_ratios(&of_p[i], &of_q[i], rows(queries[i].1), dim))
            },
            || {
                let fitted = rayon::join(|| Classifiers::fit(x, y), || Discriminant::fit(x, y));
                progress.advance(Self::classifier_work([x.len(), y.len()]));
                fitted
            },
        );
        let ClassifierRatios { classifiers, p, q, fitted } = classifiers;
        let penalties = classifiers.penalties;
        let DiscriminantRatios { discriminant, p: discriminant_p, q: discriminant_q } = discriminant;
        let discriminant_other = (0..other.len()).into_par_iter().map(|i| discriminant.at(other.row(i))).collect();
        let [local_p, local_q, local_other]: [Vec<Local>; 3] = local;
        let samples = [
            ViewRatios { local: local_p, classifiers: p, discriminant: discriminant_p },
            ViewRatios { local: local_q, classifiers: q, discriminant: discriminant_q },
            ViewRatios { local: local_other, classifiers: classifiers.at(other), discriminant: discriminant_other },
        ];
        View { dim, samples, fitted, penalties, shares: discriminant.shares }
    }
}
