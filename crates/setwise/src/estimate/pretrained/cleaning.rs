//! Cleaning: duplicate rows and discrete columns, which samples of continuous distributions do not have.
//!
//! - Duplicate rows come from joining a file twice or from drawing with replacement. One of each is kept.
//! - Discrete columns (counts, codes, rounded numbers) are dequantised. Each value becomes a uniform draw from its
//!   cell, between the midpoints to the values beside it. Cells are the same in both samples and determine the value,
//!   so the divergence is unchanged.
//! - Where all columns are discrete, rows repeat by chance and are kept.

use std::borrow::Cow;

use rand::{RngExt, SeedableRng};

use super::super::Points;
use crate::random::Generator;

/// P and Q without duplicate rows and discrete columns.
pub struct Cleaned<'a> {
    /// Row-major rows of P and of Q.
    pub rows: [Cow<'a, [f64]>; 2],
    /// Duplicate rows that were removed from each sample.
    pub duplicates: [usize; 2],
    /// The first dequantised column of each sample that holds several values, but few. Columns of many different values
    /// are continuous numbers with limited digits.
    pub dequantised: [Option<usize>; 2],
}

/// How one sample is cleaned.
struct CleaningPlan {
    /// For each column, whether it is dequantised.
    dequantised: Vec<bool>,
    /// Rows that are kept, sorted by value: the order in the file has no influence.
    kept: Vec<usize>,
    duplicates: usize,
}

impl<'a> Cleaned<'a> {
    /// Cleans two samples of one width. A sample without duplicates and discrete columns is borrowed.
    pub fn clean(p: Points<'a>, q: Points<'a>) -> Self {
        let [mut of_p, mut of_q] = [CleaningPlan::of(p, q), CleaningPlan::of(q, p)];
        for c in 0..p.dim() {
            // A constant column counts as discrete where the other sample's column is discrete.
            let [discrete_p, discrete_q] = [of_p.dequantised[c], of_q.dequantised[c]];
            of_p.dequantised[c] |= discrete_q && p.constant(c).is_some();
            of_q.dequantised[c] |= discrete_p && q.constant(c).is_some();
        }
        let cells: Vec<Vec<f64>> = (0..p.dim())
            .map(|c| {
                let values = [(p, &of_p), (q, &of_q)].into_iter().filter(|(_, plan)| plan.dequantised[c]);
                cell_edges(values.flat_map(|(points, _)| column(points, c)).collect())
            })
            .collect();
        let duplicates = [of_p.duplicates, of_q.duplicates];
        let coarse = |c: usize| cells[c].len() <= MAX_COARSE_VALUES;
        let dequantised = [(p, &of_p), (q, &of_q)].map(|(points, plan)| {
            (0..points.dim()).find(|&c| plan.dequantised[c] && coarse(c) && points.constant(c).is_none())
        });
        Cleaned { dequantised, rows: [of_p.apply(p, &cells, 1), of_q.apply(q, &cells, 2)], duplicates }
    }
}

impl CleaningPlan {
    fn of(points: Points, other: Points) -> Self {
        let mut kept = points.sorted_rows();
        let mut distinct = kept.clone();
        distinct.dedup_by(|a, b| points.row(*a) == points.row(*b));
        let varying: Vec<usize> = (0..points.dim()).filter(|&c| points.constant(c).is_none()).collect();
        let unique = points.select(&distinct);
        let unique = Points::new(&unique, points.dim());
        let discrete = |c: usize| match varying.len() {
            // A single column has no other column that separates chance from duplicates. Duplicates of rows are neither
            // values of both samples nor a large share.
            1 => {
                points.repeated_share(c)
                    > if shared_share(points, other, c) > DISCRETE_SHARE {
                        DISCRETE_SHARE
                    } else {
                        SINGLE_COLUMN_DISCRETE_SHARE
                    }
            }
            _ => unique.repeated_share(c) > DISCRETE_SHARE,
        };
        let mut dequantised = vec![false; points.dim()];
        varying.iter().for_each(|&c| dequantised[c] = discrete(c));
        let duplicates = match varying.iter().all(|&c| dequantised[c]) {
            true => 0,
            false => {
                kept = distinct;
                points.len() - kept.len()
            }
        };
        CleaningPlan { dequantised, kept, duplicates }
    }

    fn apply<'a>(&self, points: Points<'a>, cells: &[Vec<f64>], seed: u64) -> Cow<'a, [f64]> {
        if self.duplicates == 0 && !self.dequantised.contains(&true) {
            return Cow::Borrowed(points.data());
        }
        let mut rng = Generator::seed_from_u64(seed);
        let mut rows = points.select(&self.kept);
        for row in rows.chunks_exact_mut(points.dim()) {
            for ((x, edges), _) in
                row.iter_mut().zip(cells).zip(&self.dequantised).filter(|(_, dequantised)| **dequantised)
            {
                // The midpoint of adjacent floating-point numbers is one of them, so the index is clamped.
                let above = edges.partition_point(|edge| edge <= x).clamp(1, edges.len() - 1);
                let [low, high] = [edges[above - 1], edges[above]];
                *x = low + (high - low) * rng.random::<f64>();
            }
        }
        Cow::Owned(rows)
    }
}

/// Cells between the different values of a column that is named as discrete.
const MAX_COARSE_VALUES: usize = 2000;
/// A column is discrete where more than this share of its values equal another.
const DISCRETE_SHARE: f64 = 0.1;
/// The same share where rows may be duplicates: 37 % of rows drawn with replacement repeat another, 50 % of rows listed
/// twice.
const SINGLE_COLUMN_DISCRETE_SHARE: f64 = 0.7;

/// The share of a column's values that occur in the other sample.
fn shared_share(points: Points, other: Points, c: usize) -> f64 {
    let mut known: Vec<f64> = column(other, c).collect();
    known.sort_unstable_by(f64::total_cmp);
    let count = column(points, c).filter(|x| known.binary_search_by(|k| k.total_cmp(x)).is_ok()).count();
    count as f64 / points.len() as f64
}

fn column(points: Points, c: usize) -> impl Iterator<Item = f64> {
    // Adding zero turns −0 into 0.
    points.data().iter().skip(c).step_by(points.dim()).map(|x| x + 0.0)
}

/// Edges of the cells of values: midpoints between neighbours. The outer cells are symmetric about their values.
fn cell_edges(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.dedup();
    let mut edges: Vec<f64> = values.windows(2).map(|w| w[0] + 0.5 * (w[1] - w[0])).collect();
    if let ([first, .., last], [low, .., high] | [low @ high]) = (&values[..], &edges[..]) {
        let (below, above) = (2.0 * first - low, 2.0 * last - high);
        edges.insert(0, below);
        edges.push(above);
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uniform(count: usize, seed: u64) -> Vec<f64> {
        let mut rng = Generator::seed_from_u64(seed);
        (0..count).map(|_| 20.0 * rng.random::<f64>()).collect()
    }

    fn cleaned(p: &[f64], q: &[f64], dim: usize) -> ([Vec<f64>; 2], [usize; 2]) {
        let Cleaned { rows, duplicates, .. } = Cleaned::clean(Points::new(p, dim), Points::new(q, dim));
        (rows.map(Cow::into_owned), duplicates)
    }

    #[test]
    fn samples_without_repeated_values_are_unchanged() {
        for dim in [1, 3] {
            let (p, q) = (uniform(60, 1), uniform(90, 2));
            assert_eq!(cleaned(&p, &q, dim), ([p, q], [0; 2]));
        }
    }

    #[test]
    fn one_of_duplicate_rows_is_kept() {
        for dim in [1, 2] {
            let (p, q) = (uniform(60, 1), uniform(60, 2));
            let ([mut x, _], duplicates) = cleaned(&[&p[..], &p[..20]].concat(), &q.repeat(2), dim);
            assert_eq!(duplicates, [20 / dim, 60 / dim]);
            let mut p = p;
            p.sort_by(f64::total_cmp);
            x.sort_by(f64::total_cmp);
            assert_eq!(x, p);
        }
    }

    #[test]
    fn dequantised_values_round_to_the_original_and_rows_repeated_by_chance_are_kept() {
        let rounded_uniform =
            |count: usize, seed: u64| -> Vec<f64> { uniform(count, seed).iter().map(|x| x.round()).collect() };
        for dim in [1, 2] {
            let (p, q) = (rounded_uniform(600, 1), rounded_uniform(400, 2));
            let (rows, duplicates) = cleaned(&p, &q, dim);
            assert_eq!(duplicates, [0; 2]);
            for (dequantised, mut original) in rows.iter().zip([p, q]) {
                let mut rounded: Vec<f64> = dequantised.iter().map(|x| x.round()).collect();
                rounded.sort_by(f64::total_cmp);
                original.sort_by(f64::total_cmp);
                assert_eq!(rounded, original);
                assert_eq!(Points::new(dequantised, dim).duplicates(), 0);
            }
        }
        // With one continuous column, repeated rows are duplicates even if another column is discrete.
        let mixed: Vec<f64> = uniform(50, 3).iter().zip(rounded_uniform(50, 4)).flat_map(|(x, y)| [*x, y]).collect();
        let ([x, _], duplicates) = cleaned(&mixed.repeat(2), &mixed, 2);
        assert_eq!((duplicates, x.len()), ([50, 0], 100));
        assert!(
            x.iter().step_by(2).all(|x| mixed.contains(x)) && x.iter().skip(1).step_by(2).all(|y| y.fract() != 0.0)
        );
    }

    #[test]
    fn columns_of_many_different_values_are_spread_but_not_named() {
        let digits = |digits: i32, seed: u64| -> Vec<f64> {
            let unit = 10f64.powi(digits);
            uniform(40_000, seed).iter().map(|x| (x * unit).round() / unit).collect()
        };
        let dequantised = |digits_of_values: i32| {
            let (p, q) = (digits(digits_of_values, 1), digits(digits_of_values, 2));
            Cleaned::clean(Points::new(&p, 1), Points::new(&q, 1)).dequantised
        };
        assert_eq!(dequantised(4), [None, None]);
        assert_eq!(dequantised(1), [Some(0), Some(0)]);
    }

    #[test]
    fn adjacent_floating_point_numbers_can_be_dequantised() {
        let (a, b) = (1.0f64, 1.0f64.next_up());
        let ([x, y], _) = cleaned(&[a, b].repeat(20), &[a, a, b, b].repeat(10), 1);
        assert!(x.iter().chain(&y).all(|x| x.is_finite()));
    }
}
