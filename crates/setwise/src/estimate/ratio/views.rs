//! Neighbours and classifiers in one system of coordinates.

use rayon::prelude::*;

use super::super::Points;
use super::classifiers::{CLASSIFIERS, ClassifierRatios, Classifiers, RowRatios};
use super::coordinates::PairCoordinates;
use super::discriminant::{Discriminant, DiscriminantRatios, Shares};
use super::nearest::{List, Local, NearestPoints, local_ratios};

/// Rows of both samples from which on neighbours are searched in one sample after the other, so that one tree alone is in
/// memory.
const MANY_ROWS: usize = 1 << 18;

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
    /// Evaluates neighbours among all rows, and classifiers, at the `evaluated` rows of P and Q and at other rows.
    pub fn fit(coordinates: &PairCoordinates, evaluated: [Points; 2], other: Points) -> Self {
        let dim = coordinates.dim;
        let [x, y] = evaluated;
        let all = [0, 1].map(|k| Points::new(&coordinates.rows[k], dim));
        let (local, (classifiers, discriminant)) = rayon::join(
            || {
                let queries = [(x, Some(0)), (y, Some(1)), (other, None)];
                let lists = |k: usize| -> [Vec<List>; 3] {
                    let near = NearestPoints::new(all[k]);
                    queries.map(|(points, member)| near.lists(points, member == Some(k)))
                };
                let one_by_one = all[0].len() + all[1].len() > MANY_ROWS;
                let [of_p, of_q] = match one_by_one {
                    true => [lists(0), lists(1)],
                    false => rayon::join(|| lists(0), || lists(1)).into(),
                };
                let rows = |member: Option<usize>| [0, 1].map(|k| all[k].len() - usize::from(member == Some(k)));
                std::array::from_fn(|i| local_ratios(&of_p[i], &of_q[i], rows(queries[i].1), dim))
            },
            || rayon::join(|| Classifiers::fit(x, y), || Discriminant::fit(x, y)),
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
