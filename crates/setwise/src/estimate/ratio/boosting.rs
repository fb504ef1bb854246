//! Gradient boosting of a classifier with histogram trees, cross-fitted.
//!
//! Columns are binned at their quantiles, so that monotone maps of a column have no influence. All folds grow one tree
//! a round. Scores of rows outside of a fold's training rows are out-of-fold, and boosting stops where their loss stops
//! to fall.

use rayon::prelude::*;

use super::super::exponential::exp_all;

/// Bins of a column.
const BINS: usize = 64;
/// The share of a tree's step that is taken.
const LEARNING_RATE: f64 = 0.25;
/// The penalty on squared leaf values.
const PENALTY: f64 = 2.0;
/// The smallest sum of curvatures of a leaf.
const MIN_CURVATURE: f64 = 2.0;
/// Trees that lower the out-of-fold loss of all rows by less, in nats, are left out.
const MIN_GAIN: f64 = 1.5;
/// Rounds without a smaller loss after which boosting stops.
const PATIENCE: usize = 6;
/// Rounds.
const MAX_ROUNDS: usize = 100;
/// Folds of the cross-fit.
pub const FOLDS: usize = 4;

/// Rows as bins, column by column, with the edges of the bins.
pub struct Binned {
    rows: usize,
    /// Upper edges of all bins but the last, by column.
    edges: Vec<Vec<f64>>,
    /// `[columns, rows]`.
    bins: Vec<u8>,
}

impl Binned {
    /// Bins columns of equal length at their quantiles.
    pub fn new(columns: &[Vec<f64>]) -> Self {
        let rows = columns.first().map_or(0, Vec::len);
        let binned: Vec<(Vec<f64>, Vec<u8>)> = columns
            .par_iter()
            .map(|column| {
                let edges = quantile_edges(column);
                let bins = column.iter().map(|x| bin(&edges, *x)).collect();
                (edges, bins)
            })
            .collect();
        let (edges, bins): (Vec<_>, Vec<_>) = binned.into_iter().unzip();
        Binned { rows, edges, bins: bins.concat() }
    }

    fn column(&self, c: usize) -> &[u8] {
        &self.bins[c * self.rows..(c + 1) * self.rows]
    }
}

fn bin(edges: &[f64], x: f64) -> u8 {
    edges.partition_point(|e| *e < x) as u8
}

/// At most `BINS − 1` numbers between which a column is split: midpoints of values next to its quantiles.
///
/// A column with all signs changed has the same splits.
fn quantile_edges(column: &[f64]) -> Vec<f64> {
    // A systematic sample is enough for quantiles.
    let step = (column.len() / 16_384).max(1);
    let mut sorted: Vec<f64> = column.iter().copied().step_by(step).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = sorted.len();
    // Places in the upper half are those of the lower half, counted from the end.
    let place = |k: usize| match 2 * k <= BINS {
        true => (k * n + BINS / 2) / BINS,
        false => n - ((BINS - k) * n + BINS / 2) / BINS,
    };
    let middle = |i: usize| sorted[i - 1] + 0.5 * (sorted[i] - sorted[i - 1]);
    // A split among equal values moves to the nearer end of their run.
    let split = |i: usize| {
        let value = *sorted.get(i)?;
        let (first, end) = (sorted.partition_point(|x| *x < value), sorted.partition_point(|x| *x <= value));
        let ends = if i - first <= end - i { [first, end] } else { [end, first] };
        ends.into_iter().find(|&i| i > 0 && i < n)
    };
    let mut edges: Vec<f64> = (1..BINS).map(place).filter_map(split).map(middle).collect();
    edges.sort_unstable_by(f64::total_cmp);
    edges.dedup();
    edges
}

/// A complete binary tree. The children of node i are 2i + 1 and 2i + 2.
struct Tree {
    /// Column and last bin of the left side, for each inner node.
    splits: Vec<(u32, u8)>,
    leaves: Vec<f64>,
}

impl Tree {
    /// The value of the leaf of a row, whose bins `bin_of` gives.
    fn value(&self, bin_of: impl Fn(usize) -> u8) -> f64 {
        let mut node = 0;
        while node < self.splits.len() {
            let (column, bin) = self.splits[node];
            node = 2 * node + 1 + usize::from(bin_of(column as usize) > bin);
        }
        self.leaves[node - self.splits.len()]
    }
}

/// A boosted classifier, with one ensemble for each fold.
pub struct Boosting {
    edges: Vec<Vec<f64>>,
    folds: Vec<Vec<Tree>>,
    /// Out-of-fold scores without the offsets.
    pub scores: Vec<f64>,
    /// The out-of-fold loss of all rows, with the offsets.
    pub loss: f64,
}

/// Rows of the first class before those of the second, with offsets of their log odds.
pub struct Task<'a> {
    /// Binned columns of all rows.
    pub columns: &'a Binned,
    /// Rows of the first class.
    pub positive: usize,
    /// Log odds to which trees add.
    pub offsets: &'a [f64],
    /// The fold of every row.
    pub folds: &'a [u8],
    /// Splits from the root to a leaf.
    pub depth: usize,
}

impl Task<'_> {
    /// Grows trees in all folds until the out-of-fold loss stops to fall.
    pub fn fit(&self) -> Boosting {
        let mut folds: Vec<FoldState> = (0..FOLDS).map(|k| FoldState::new(self, k as u8)).collect();
        let total = |folds: &[FoldState]| -> f64 { folds.iter().map(|fold| fold.loss(self)).sum() };
        let untrained = total(&folds);
        let mut best = (untrained, 0);
        for round in 1..=MAX_ROUNDS {
            folds.par_iter_mut().for_each(|fold| fold.grow(self));
            let current = total(&folds);
            if current < best.0 {
                best = (current, round);
            }
            if round >= best.1 + PATIENCE {
                break;
            }
        }
        // The smallest of many losses is a little below that without trees, by chance.
        if best.0 > untrained - MIN_GAIN {
            best = (untrained, 0);
        }
        folds.iter_mut().for_each(|fold| fold.trees.truncate(best.1));
        let score = |i: usize| -> f64 {
            folds[self.folds[i] as usize].trees.iter().map(|t| t.value(|c| self.columns.column(c)[i])).sum()
        };
        let scores = (0..self.columns.rows).into_par_iter().map(score).collect();
        let folds = folds.into_iter().map(|f| f.trees).collect();
        Boosting { edges: self.columns.edges.clone(), folds, scores, loss: best.0 }
    }
}

impl Boosting {
    /// The mean score of all folds at a new row.
    pub fn score(&self, row: &[f64]) -> f64 {
        let bins: Vec<u8> = row.iter().zip(&self.edges).map(|(x, edges)| bin(edges, *x)).collect();
        let sum: f64 = self.folds.iter().flatten().map(|t| t.value(|c| bins[c])).sum();
        sum / self.folds.len() as f64
    }

    /// Trees of each fold.
    pub fn rounds(&self) -> usize {
        self.folds.first().map_or(0, Vec::len)
    }
}

/// Gradient and curvature of the log-likelihood: of a row, or summed over rows.
type Slope = [f32; 2];

/// Sums of the rows of a node for every bin of every column: `[columns, BINS]`.
type Histogram = Vec<Slope>;

/// Rows of a node in a list that is ordered by nodes, with their histogram.
struct Node {
    rows: std::ops::Range<usize>,
    histogram: Histogram,
}

struct FoldState {
    /// Scores of all rows by the trees of this fold, with the offsets.
    scores: Vec<f64>,
    trees: Vec<Tree>,
    /// Rows outside of the fold, and rows of the fold.
    training: Vec<u32>,
    held_out: Vec<u32>,
}

impl FoldState {
    fn new(task: &Task, k: u8) -> Self {
        let (held_out, training) = (0..task.folds.len() as u32).partition(|i| task.folds[*i as usize] == k);
        FoldState { scores: task.offsets.to_vec(), trees: Vec::new(), training, held_out }
    }

    /// exp(−|score|) of some rows.
    fn exponentials(&self, rows: &[u32]) -> Vec<f64> {
        let mut exponentials: Vec<f64> = rows.iter().map(|&i| -self.scores[i as usize].abs()).collect();
        exp_all(&mut exponentials);
        exponentials
    }

    /// The loss of the rows of the fold.
    fn loss(&self, task: &Task) -> f64 {
        let margin = |&i: &u32| {
            let score = self.scores[i as usize];
            if (i as usize) < task.positive { score } else { -score }
        };
        let linear: f64 = self.held_out.iter().map(|i| (-margin(i)).max(0.0)).sum();
        // One logarithm for many factors 1 + e^−|score|, each at most two.
        let product = |chunk: &[f64]| chunk.iter().map(|e| 1.0 + e).product::<f64>().ln();
        linear + self.exponentials(&self.held_out).chunks(512).map(product).sum::<f64>()
    }

    /// Gradients and curvatures of the training rows.
    fn slopes(&self, task: &Task) -> Vec<Slope> {
        let one = |(&i, e): (&u32, f64)| {
            let p = if self.scores[i as usize] < 0.0 { e } else { 1.0 } / (1.0 + e);
            let y = f64::from(u8::from((i as usize) < task.positive));
            [(y - p) as f32, (p * (1.0 - p)) as f32]
        };
        self.training.iter().zip(self.exponentials(&self.training)).map(one).collect()
    }

    /// Grows a tree on the training rows and adds it to all scores.
    ///
    /// Rows are ordered by nodes. Of two siblings the one with fewer rows gets a histogram of its rows, and the other
    /// what remains of their parent's.
    fn grow(&mut self, task: &Task) {
        let columns = task.columns.edges.len();
        let mut rows: Vec<(u32, Slope)> = self.training.iter().copied().zip(self.slopes(task)).collect();
        let histogram = |rows: &[(u32, Slope)]| -> Histogram {
            let mut histogram = vec![[0.0; 2]; columns * BINS];
            for (c, bins) in histogram.chunks_exact_mut(BINS).enumerate() {
                let column = task.columns.column(c);
                for (i, [gradient, curvature]) in rows {
                    let cell = &mut bins[usize::from(column[*i as usize])];
                    cell[0] += gradient;
                    cell[1] += curvature;
                }
            }
            histogram
        };
        let mut nodes = vec![Node { rows: 0..rows.len(), histogram: histogram(&rows) }];
        let mut splits = Vec::with_capacity((1 << task.depth) - 1);
        for level in 0..task.depth {
            let mut children = Vec::with_capacity(2 * nodes.len());
            for Node { rows: range, histogram: of_parent } in nodes {
                // Without a gain all rows go left.
                let (mut best, mut column, mut last) = (0.0, 0, u8::MAX);
                for (c, bins) in of_parent.chunks_exact(BINS).enumerate() {
                    if let Some((gain, bin)) = best_split(bins)
                        && gain > best
                    {
                        (best, column, last) = (gain, c, bin);
                    }
                }
                splits.push((column as u32, last));
                let bins = task.columns.column(column);
                let left = partition(&mut rows[range.clone()], |i| bins[i as usize] <= last);
                let middle = range.start + left;
                let (left, right) = (range.start..middle, middle..range.end);
                if level + 1 == task.depth {
                    children.extend([left, right].map(|rows| Node { rows, histogram: Vec::new() }));
                    continue;
                }
                let left_is_smaller = left.len() <= right.len();
                let smaller = histogram(&rows[if left_is_smaller { left.clone() } else { right.clone() }]);
                let mut larger = of_parent;
                for (cell, part) in larger.iter_mut().zip(&smaller) {
                    *cell = [cell[0] - part[0], cell[1] - part[1]];
                }
                let histograms = if left_is_smaller { [smaller, larger] } else { [larger, smaller] };
                let both = [left, right].into_iter().zip(histograms);
                children.extend(both.map(|(rows, histogram)| Node { rows, histogram }));
            }
            nodes = children;
        }
        let leaf = |node: &Node| {
            let [gradient, curvature] = sum(rows[node.rows.clone()].iter().map(|(_, slope)| slope));
            LEARNING_RATE * gradient / (curvature + PENALTY)
        };
        let leaves: Vec<f64> = nodes.iter().map(leaf).collect();
        for (node, value) in nodes.iter().zip(&leaves) {
            rows[node.rows.clone()].iter().for_each(|(i, _)| self.scores[*i as usize] += value);
        }
        let tree = Tree { splits, leaves };
        for &i in &self.held_out {
            self.scores[i as usize] += tree.value(|c| task.columns.column(c)[i as usize]);
        }
        self.trees.push(tree);
    }
}

/// Moves the rows that go left before the others, and returns their number. Both keep their order.
fn partition(rows: &mut [(u32, Slope)], goes_left: impl Fn(u32) -> bool) -> usize {
    let mut right = Vec::with_capacity(rows.len());
    let mut left = 0;
    for i in 0..rows.len() {
        let row = rows[i];
        if goes_left(row.0) {
            rows[left] = row;
            left += 1;
        } else {
            right.push(row);
        }
    }
    rows[left..].copy_from_slice(&right);
    left
}

fn sum<'a>(slopes: impl Iterator<Item = &'a Slope>) -> [f64; 2] {
    slopes.fold([0.0; 2], |[g, h], slope| [g + f64::from(slope[0]), h + f64::from(slope[1])])
}

/// The gain of the best split of a histogram, and its last left bin.
fn best_split(bins: &[[f32; 2]]) -> Option<(f64, u8)> {
    let sum = sum(bins.iter());
    if sum[1] < 2.0 * MIN_CURVATURE {
        return None;
    }
    let value = |g: f64, h: f64| g * g / (h + PENALTY);
    let parent = value(sum[0], sum[1]);
    let mut left = [0f64; 2];
    let mut best: Option<(f64, u8)> = None;
    for (bin, b) in bins.iter().enumerate().take(BINS - 1) {
        left = [left[0] + f64::from(b[0]), left[1] + f64::from(b[1])];
        if left[1] < MIN_CURVATURE {
            continue;
        }
        if sum[1] - left[1] < MIN_CURVATURE {
            break;
        }
        let gain = value(left[0], left[1]) + value(sum[0] - left[0], sum[1] - left[1]) - parent;
        if best.is_none_or(|(g, _)| gain > g) {
            best = Some((gain, bin as u8));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Generator;
    use rand::{RngExt, SeedableRng};

    fn columns(n: usize, seed: u64) -> Vec<Vec<f64>> {
        let mut rng = Generator::seed_from_u64(seed);
        (0..3).map(|_| (0..n).map(|_| rng.random()).collect()).collect()
    }

    fn fit(columns: &[Vec<f64>], positive: usize) -> Boosting {
        let n = columns[0].len();
        let folds: Vec<u8> = (0..n).map(|i| (i / 7 % FOLDS) as u8).collect();
        let offsets = vec![0.0; n];
        Task { columns: &Binned::new(columns), positive, offsets: &offsets, folds: &folds, depth: 3 }.fit()
    }

    #[test]
    fn equal_distributions_grow_hardly_any_tree() {
        let boosting = fit(&columns(2000, 1), 1000);
        assert!(boosting.rounds() < 4, "{}", boosting.rounds());
        assert!(boosting.scores.iter().all(|s| s.abs() < 0.3));
    }

    #[test]
    fn leaves_are_newton_steps_on_the_training_rows_of_their_node() {
        let columns = columns(400, 3);
        let folds: Vec<u8> = (0..400).map(|i| (i % FOLDS) as u8).collect();
        let offsets: Vec<f64> = columns[2].iter().map(|x| 2.0 * x - 1.0).collect();
        let binned = Binned::new(&columns);
        let task = Task { columns: &binned, positive: 150, offsets: &offsets, folds: &folds, depth: 3 };
        let mut fold = FoldState::new(&task, 1);
        fold.grow(&task);
        let tree = &fold.trees[0];
        let mut sums = [[0.0; 2]; 8];
        for i in (0..400).filter(|i| folds[*i] != 1) {
            let p = 1.0 / (1.0 + (-offsets[i]).exp());
            let mut node = 0;
            while node < 7 {
                let (column, bin) = tree.splits[node];
                node = 2 * node + 1 + usize::from(binned.column(column as usize)[i] > bin);
            }
            sums[node - 7][0] += f64::from(u8::from(i < 150)) - p;
            sums[node - 7][1] += p * (1.0 - p);
        }
        for (leaf, [gradient, curvature]) in tree.leaves.iter().zip(sums) {
            let expected = LEARNING_RATE * gradient / (curvature + PENALTY);
            assert!((leaf - expected).abs() < 1e-5, "{leaf}, not {expected}");
        }
        for (i, (score, offset)) in fold.scores.iter().zip(&offsets).enumerate() {
            let expected = offset + tree.value(|c| binned.column(c)[i]);
            assert!((score - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn scores_approach_the_log_ratio_of_a_step() {
        // The first class has three quarters of its second column below one half, the second class has half.
        let mut data = columns(8000, 2);
        for (i, x) in data[1][..4000].iter_mut().enumerate() {
            *x = if i % 4 == 0 { 0.5 + 0.5 * *x } else { 0.5 * *x };
        }
        let boosting = fit(&data, 4000);
        let (low, high) = (boosting.score(&[0.5, 0.2, 0.5]), boosting.score(&[0.5, 0.8, 0.5]));
        assert!((low - 1.5f64.ln()).abs() < 0.15 && (high - 0.5f64.ln()).abs() < 0.15, "{low} and {high}");
        let out_of_fold: f64 = boosting.scores[..4000].iter().sum::<f64>() / 4000.0;
        let exact = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((out_of_fold - exact).abs() < 0.05, "{out_of_fold}, not {exact}");
    }

    #[test]
    fn splits_separate_all_values_of_a_discrete_column_and_ignore_signs() {
        let discrete: Vec<f64> = (0..500).map(|i| f64::from(i % 7 / 3)).collect();
        assert_eq!(quantile_edges(&discrete), [0.5, 1.5]);
        let column = &columns(320, 5)[0];
        let negated: Vec<f64> = column.iter().map(|x| -x).collect();
        let edges = quantile_edges(column);
        let mirrored: Vec<f64> = quantile_edges(&negated).iter().rev().map(|x| -x).collect();
        assert_eq!(edges.len(), BINS - 1);
        assert!(edges.iter().zip(&mirrored).all(|(a, b)| (a - b).abs() < 1e-12));
    }

    #[test]
    fn constant_columns_and_ties_are_no_trouble() {
        let boosting = fit(&[vec![1.0; 100], (0..100).map(|i| f64::from(i % 3)).collect()], 50);
        assert!(boosting.scores.iter().all(|s| s.is_finite()));
    }
}
