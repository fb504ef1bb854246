//! Neighbours and classifiers in one system of coordinates.

use rayon::prelude::*;

use super::super::Points;
use super::classifiers::{CLASSIFIERS, ClassifierRatios, Classifiers, RowRatios};
use super::coordinates::PairCoordinates;
use super::discriminant::{Discriminant, DiscriminantRatios, Shares};
use super::nearest::{Local, NearestPoints, local_ratios};

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
        let [all_x, all_y] = [0, 1].map(|k| Points::new(&coordinates.rows[k], dim));
        let (local, (classifiers, discriminant)) = rayon::join(
            || {
                let (near_p, near_q) = rayon::join(|| NearestPoints::new(all_x), || NearestPoints::new(all_y));
                let local = |points: Points, [in_p, in_q]: [bool; 2]| {
                    let rows = [all_x.len() - usize::from(in_p), all_y.len() - usize::from(in_q)];
                    local_ratios(&near_p.lists(points, in_p), &near_q.lists(points, in_q), rows, dim)
                };
                [local(x, [true, false]), local(y, [false, true]), local(other, [false, false])]
            },
            || rayon::join(|| Classifiers::fit(x, y), || Discriminant::fit(x, y)),
        );
        let ClassifierRatios { classifiers, p, q, fitted } = classifiers;
        let penalties = classifiers.penalties;
        let DiscriminantRatios { discriminant, p: discriminant_p, q: discriminant_q } = discriminant;
        let discriminant_other = (0..other.len()).into_par_iter().map(|i| discriminant.at(other.row(i))).collect();
        let [local_p, local_q, local_other] = local;
        let samples = [
            ViewRatios { local: local_p, classifiers: p, discriminant: discriminant_p },
            ViewRatios { local: local_q, classifiers: q, discriminant: discriminant_q },
            ViewRatios { local: local_other, classifiers: classifiers.at(other), discriminant: discriminant_other },
        ];
        View { dim, samples, fitted, penalties, shares: discriminant.shares }
    }
}
