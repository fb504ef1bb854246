//! What a classifier sees: differences of all columns at once.
//!
//! Boosted trees learn on half of the rows which table a row is from, and score the other half, in both directions.
//! Scores of rows that were not learnt from have one distribution in both tables if the rows have. The test of each
//! half is that of Mann and Whitney; twice the smaller p-value is valid whatever the dependence of the halves.
//!
//! The scores are log density ratios. Their mean loss bounds the Jensen–Shannon divergence from below.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rayon::prelude::*;

use super::bins::{Binned, MISSING};
use super::draws::drawn_rows;
use crate::distributions::normal::normal_tail;
use crate::estimate::ratio::boosting::{Binned as Features, FOLDS, Task};
use crate::estimate::special::softplus;
use crate::random::Generator;

/// Rows of each table that are drawn of larger ones.
const MAX_ROWS: usize = 20_000;
/// Fewer rows teach nothing.
const MIN_ROWS: usize = 40;
/// Splits of a tree from its root to a leaf.
const DEPTH: usize = 3;
/// Levels of a category that have an indicator.
const MAX_LEVELS: usize = 6;

/// What the classifier found.
pub(super) struct Separation {
    pub p_value: f64,
    /// A lower bound of the Jensen–Shannon divergence in expectation, in nats.
    pub divergence: f64,
    /// Its standard error.
    pub error: f64,
    /// Scores of the rows of both tables.
    pub scores: [Vec<f64>; 2],
}

/// Classifies the rows of two tables; `None` where they are too few.
pub(super) fn separate(columns: &[&Binned], rows: [usize; 2], seed: u64) -> Option<Separation> {
    if rows.iter().any(|n| *n < MIN_ROWS) || columns.is_empty() {
        return None;
    }
    let mut rng = Generator::seed_from_u64(seed);
    let drawn = rows.map(|n| drawn_rows(n, MAX_ROWS, &mut rng));
    let sizes = drawn.each_ref().map(Vec::len);
    let features: Vec<Vec<f64>> = columns.par_iter().flat_map_iter(|binned| features(binned, &drawn)).collect();
    // Halves of each table, drawn at random.
    let halves: Vec<[Vec<usize>; 2]> = (0..2)
        .map(|t| {
            let start = if t == 0 { 0 } else { sizes[0] };
            let mut order: Vec<usize> = (start..start + sizes[t]).collect();
            order.shuffle(&mut rng);
            let second = order.split_off(sizes[t] / 2);
            [order, second]
        })
        .collect();
    let mut scores = vec![0.0; sizes[0] + sizes[1]];
    let mut p_value = 1.0f64;
    for held_out in 0..2 {
        let learnt = [0, 1].map(|t: usize| halves[t][1 - held_out].as_slice());
        let scored: Vec<usize> = halves.iter().flat_map(|half| half[held_out].iter().copied()).collect();
        let found = score(&features, learnt, &scored, seed ^ held_out as u64);
        scored.iter().zip(&found).for_each(|(&i, s)| scores[i] = *s);
        let (a, b) = found.split_at(halves[0][held_out].len());
        p_value = p_value.min(2.0 * mann_whitney(a, b));
    }
    let second = scores.split_off(sizes[0]);
    let (divergence, error) = jensen_shannon(&scores, &second);
    Some(Separation { p_value: p_value.min(1.0), divergence, error, scores: [scores, second] })
}

/// A column as features of trees: its bin, and indicators of common levels of a category.
fn features(binned: &Binned, drawn: &[Vec<u32>; 2]) -> Vec<Vec<f64>> {
    let codes: Vec<u16> = (0..2).flat_map(|t| drawn[t].iter().map(move |&i| binned.codes[t][i as usize])).collect();
    let bin = codes.iter().map(|c| if *c == MISSING { -1.0 } else { f64::from(*c) }).collect();
    let levels = if binned.ordered || binned.bins.len() < 4 { 0 } else { binned.bins.len().min(MAX_LEVELS) };
    let indicator = |level: usize| codes.iter().map(|c| f64::from(u8::from(*c as usize == level))).collect();
    std::iter::once(bin).chain((0..levels).map(indicator)).collect()
}

/// Learns from rows of both tables, and gives the log density ratio of the second to the first at other rows.
fn score(features: &[Vec<f64>], learnt: [&[usize]; 2], scored: &[usize], seed: u64) -> Vec<f64> {
    let rows: Vec<usize> = learnt[1].iter().chain(learnt[0]).copied().collect();
    let columns: Vec<Vec<f64>> = features.par_iter().map(|f| rows.iter().map(|&i| f[i]).collect()).collect();
    let prior = (learnt[1].len() as f64 / learnt[0].len() as f64).ln();
    let mut folds: Vec<u8> = (0..rows.len()).map(|i| (i % FOLDS) as u8).collect();
    // Rows of a half are in random order already; their folds are so by place.
    folds.rotate_left(seed as usize % FOLDS);
    let offsets = vec![prior; rows.len()];
    let binned = Features::new(&columns);
    let task = Task { columns: &binned, positive: learnt[1].len(), offsets: &offsets, folds: &folds, depth: DEPTH };
    let boosting = task.fit();
    if boosting.rounds() == 0 {
        return vec![0.0; scored.len()];
    }
    let row = |&i: &usize| boosting.score(&features.iter().map(|f| f[i]).collect::<Vec<f64>>());
    scored.par_iter().map(row).collect()
}

/// The two-sided p-value of the rank sum, with ties.
fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> = a.iter().map(|x| (*x, true)).chain(b.iter().map(|x| (*x, false))).collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (n, m, total) = (a.len() as f64, b.len() as f64, all.len() as f64);
    let (mut below, mut rank_sum, mut ties) = (0.0, 0.0, 0.0);
    for run in all.chunk_by(|x, y| x.0 == y.0) {
        let t = run.len() as f64;
        rank_sum += run.iter().filter(|x| x.1).count() as f64 * (below + 0.5 * (t + 1.0));
        ties += t * (t * t - 1.0);
        below += t;
    }
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance < 1e-9 {
        return 1.0;
    }
    let deviation = (rank_sum - 0.5 * n * (total + 1.0)).abs() - 0.5;
    (2.0 * normal_tail(deviation.max(0.0) / variance.sqrt())).min(1.0)
}

/// ln 2 less the mean loss of log density ratios of the second table to the first, with its standard error.
fn jensen_shannon(first: &[f64], second: &[f64]) -> (f64, f64) {
    let moments = |losses: Vec<f64>| {
        let n = losses.len() as f64;
        let mean = losses.iter().sum::<f64>() / n;
        let variance = losses.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (mean, variance / n)
    };
    let (a, b) = (
        moments(first.iter().map(|s| softplus(*s)).collect()),
        moments(second.iter().map(|s| softplus(-*s)).collect()),
    );
    (2f64.ln() - 0.5 * (a.0 + b.0), 0.5 * (a.1 + b.1).sqrt())
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;

    #[test]
    fn rank_sums_of_equal_samples_have_large_p_values() {
        assert_eq!(mann_whitney(&[1.0, 1.0], &[1.0, 1.0]), 1.0);
        assert!(mann_whitney(&[1.0, 4.0, 6.0], &[2.0, 3.0, 7.0]) > 0.5);
        // The normal approximation of 0 of 20·20 pairs.
        let (a, b): (Vec<f64>, Vec<f64>) = (0..20).map(|i| (f64::from(i), f64::from(i) + 20.0)).unzip();
        let p = mann_whitney(&a, &b);
        assert!((p / 6.8e-8 - 1.0).abs() < 0.05, "{p}");
    }

    #[test]
    fn a_difference_that_no_column_shows_is_seen() {
        let mut rng = Generator::seed_from_u64(4);
        let mut table = |same: bool| -> [Vec<f64>; 2] {
            let rows = (0..2000).map(|_| {
                let (x, y): (f64, f64) = (rng.random(), rng.random());
                // The second column has the sign of the first, or has not.
                (x - 0.5, if same { y * (x - 0.5).signum() } else { y * if rng.random() { 1.0 } else { -1.0 } })
            });
            let (x, y) = rows.unzip();
            [x, y]
        };
        let binned = |a: &[Vec<f64>; 2], b: &[Vec<f64>; 2]| [0, 1].map(|c: usize| Binned::ordered([&a[c], &b[c]]));
        let (a, b, c) = (table(true), table(false), table(true));
        let changed = binned(&a, &b);
        let found = separate(&changed.each_ref(), [2000, 2000], 0).unwrap();
        assert!(found.p_value < 1e-20 && found.divergence > 0.15, "{} {}", found.p_value, found.divergence);
        let same = binned(&a, &c);
        let found = separate(&same.each_ref(), [2000, 2000], 0).unwrap();
        assert!(found.p_value > 0.001 && found.divergence < 0.01);
        assert!(separate(&same.each_ref(), [20, 2000], 0).is_none());
        // Rows of two kinds take turns; the tables differ in their number of rows alone.
        let turns = |n: usize| (0..n).map(|i| (i % 2) as f64).collect::<Vec<f64>>();
        let binned = Binned::ordered([&turns(30_000), &turns(15_000)]);
        let found = separate(&[&binned], [30_000, 15_000], 0).unwrap();
        assert!(found.p_value > 0.001 && found.divergence < 0.01, "{} {}", found.p_value, found.divergence);
    }
}
