//! Repeated values, which samples of the continuous distributions the networks were trained on do not have.
//!
//! Rows that repeat as a whole are copies (a file joined twice, rows drawn with replacement): each is taken once. Columns of few values
//! (counts, codes, rounded numbers) are spread: a value becomes a uniform draw from between the midpoints to the values beside it. The
//! draw tells the value, and given the value it is alike in both samples, so that the divergence stays what it is. Where all columns are
//! of few values, rows repeat by chance and stay.

use std::borrow::Cow;

use rand::{RngExt, SeedableRng};

use super::super::Points;
use crate::random::Generator;

/// Two samples as of continuous distributions: their rows, how many copies were left out of each, and the first column of several values
/// of each that was spread.
pub struct Continuous<'a> {
    pub rows: [Cow<'a, [f64]>; 2],
    pub copies: [usize; 2],
    pub spread: [Option<usize>; 2],
}

/// What is spread in a sample, and which of its rows are taken.
struct Plan {
    spread: Vec<bool>,
    /// In an order that depends on where rows lie and not on how they were listed.
    sorted: Vec<usize>,
    copies: usize,
}

impl<'a> Continuous<'a> {
    /// Of two samples of one width; borrows what has no repetitions.
    pub fn of(p: Points<'a>, q: Points<'a>) -> Self {
        let [mut of_p, mut of_q] = [Plan::of(p, q), Plan::of(q, p)];
        for c in 0..p.dim() {
            // A column of one value is of few values too, where the other sample's is.
            let [few_p, few_q] = [of_p.spread[c], of_q.spread[c]];
            of_p.spread[c] |= few_q && p.constant(c).is_some();
            of_q.spread[c] |= few_p && q.constant(c).is_some();
        }
        let cells: Vec<Vec<f64>> = (0..p.dim())
            .map(|c| {
                let values = [(p, &of_p), (q, &of_q)].into_iter().filter(|(_, plan)| plan.spread[c]);
                edges(values.flat_map(|(points, _)| column(points, c)).collect())
            })
            .collect();
        let copies = [of_p.copies, of_q.copies];
        let spread = [(p, &of_p), (q, &of_q)]
            .map(|(points, plan)| (0..points.dim()).find(|&c| plan.spread[c] && points.constant(c).is_none()));
        Continuous { spread, rows: [of_p.apply(p, &cells, 1), of_q.apply(q, &cells, 2)], copies }
    }
}

impl Plan {
    fn of(points: Points, other: Points) -> Self {
        let mut sorted = points.sorted();
        let mut distinct = sorted.clone();
        distinct.dedup_by(|a, b| points.row(*a) == points.row(*b));
        let varying: Vec<usize> = (0..points.dim()).filter(|&c| points.constant(c).is_none()).collect();
        let once = points.select(&distinct);
        let once = Points::new(&once, points.dim());
        let few = |c: usize| match varying.len() {
            // A single column has no other to tell chance from copies by; but copies are not in both samples, nor very many.
            1 => points.repeated(c) > if shared(points, other, c) > FEW { FEW } else { MANY },
            _ => once.repeated(c) > FEW,
        };
        let mut spread = vec![false; points.dim()];
        varying.iter().for_each(|&c| spread[c] = few(c));
        let copies = match varying.iter().all(|&c| spread[c]) {
            true => 0,
            false => {
                sorted = distinct;
                points.len() - sorted.len()
            }
        };
        Plan { spread, sorted, copies }
    }

    fn apply<'a>(&self, points: Points<'a>, cells: &[Vec<f64>], seed: u64) -> Cow<'a, [f64]> {
        if self.copies == 0 && !self.spread.contains(&true) {
            return Cow::Borrowed(points.data());
        }
        let mut rng = Generator::seed_from_u64(seed);
        let mut rows = points.select(&self.sorted);
        for row in rows.chunks_exact_mut(points.dim()) {
            for ((x, edges), _) in row.iter_mut().zip(cells).zip(&self.spread).filter(|(_, spread)| **spread) {
                // Where numbers are as close as numbers can be, midpoints are the numbers themselves.
                let above = edges.partition_point(|edge| edge <= x).clamp(1, edges.len() - 1);
                let [low, high] = [edges[above - 1], edges[above]];
                *x = low + (high - low) * rng.random::<f64>();
            }
        }
        Cow::Owned(rows)
    }
}

/// More of the values of a column than this equal another where it is of few values.
const FEW: f64 = 0.1;
/// The same where there may be copies: rows drawn with replacement repeat another in 37 of 100 cases, rows listed twice in 50.
const MANY: f64 = 0.7;

/// The share of a column's values that the other sample has too.
fn shared(points: Points, other: Points, c: usize) -> f64 {
    let mut known: Vec<f64> = column(other, c).collect();
    known.sort_unstable_by(f64::total_cmp);
    let found = column(points, c).filter(|x| known.binary_search_by(|k| k.total_cmp(x)).is_ok()).count();
    found as f64 / points.len() as f64
}

fn column(points: Points, c: usize) -> impl Iterator<Item = f64> {
    // Zeros of both signs are one value.
    points.data().iter().skip(c).step_by(points.dim()).map(|x| x + 0.0)
}

/// The midpoints between values, and as far beyond the outer ones as the next midpoint is on their other side.
fn edges(mut values: Vec<f64>) -> Vec<f64> {
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

    fn numbers(count: usize, seed: u64) -> Vec<f64> {
        let mut rng = Generator::seed_from_u64(seed);
        (0..count).map(|_| 20.0 * rng.random::<f64>()).collect()
    }

    fn treated(p: &[f64], q: &[f64], dim: usize) -> ([Vec<f64>; 2], [usize; 2]) {
        let Continuous { rows, copies, .. } = Continuous::of(Points::new(p, dim), Points::new(q, dim));
        (rows.map(Cow::into_owned), copies)
    }

    #[test]
    fn samples_without_repetitions_stay_as_they_are() {
        for dim in [1, 3] {
            let (p, q) = (numbers(60, 1), numbers(90, 2));
            assert_eq!(treated(&p, &q, dim), ([p, q], [0; 2]));
        }
    }

    #[test]
    fn copies_of_rows_are_taken_once() {
        for dim in [1, 2] {
            let (p, q) = (numbers(60, 1), numbers(60, 2));
            let ([mut x, _], copies) = treated(&[&p[..], &p[..20]].concat(), &q.repeat(2), dim);
            assert_eq!(copies, [20 / dim, 60 / dim]);
            let mut p = p;
            p.sort_by(f64::total_cmp);
            x.sort_by(f64::total_cmp);
            assert_eq!(x, p);
        }
    }

    #[test]
    fn values_can_be_told_from_what_they_are_spread_to_and_rows_that_repeat_by_chance_stay() {
        let whole = |count: usize, seed: u64| -> Vec<f64> { numbers(count, seed).iter().map(|x| x.round()).collect() };
        for dim in [1, 2] {
            let (p, q) = (whole(600, 1), whole(400, 2));
            let (rows, copies) = treated(&p, &q, dim);
            assert_eq!(copies, [0; 2]);
            for (spread, own) in rows.iter().zip([p, q]) {
                let mut back: Vec<f64> = spread.iter().map(|x| x.round()).collect();
                let mut own = own;
                back.sort_by(f64::total_cmp);
                own.sort_by(f64::total_cmp);
                assert_eq!(back, own);
                assert_eq!(Points::new(spread, dim).duplicates(), 0);
            }
        }
        // Beside a column that is continuous, rows that repeat are copies also where another column is not.
        let mixed: Vec<f64> = numbers(50, 3).iter().zip(whole(50, 4)).flat_map(|(x, y)| [*x, y]).collect();
        let ([x, _], copies) = treated(&mixed.repeat(2), &mixed, 2);
        assert_eq!((copies, x.len()), ([50, 0], 100));
        assert!(
            x.iter().step_by(2).all(|x| mixed.contains(x)) && x.iter().skip(1).step_by(2).all(|y| y.fract() != 0.0)
        );
    }

    #[test]
    fn neighbouring_numbers_can_be_spread_too() {
        let (a, b) = (1.0f64, 1.0f64.next_up());
        let ([x, y], _) = treated(&[a, b].repeat(20), &[a, a, b, b].repeat(10), 1);
        assert!(x.iter().chain(&y).all(|x| x.is_finite()));
    }
}
