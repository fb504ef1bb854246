//! The columns in which two samples differ.
//!
//! Columns in which the samples do not differ hide differences in the others: neighbours in all columns are far away.
//! A subset of columns is judged by its *separation*, the mean log ratio over P minus that over Q. The log ratios are
//! those of the shares of both samples among the nearest rows, so that a larger separation is no artefact of distances.
//! Candidates lie on two paths:
//!
//! - Backward: from all columns, the one whose removal leaves the largest separation is removed.
//! - Forward: from the best pair of columns, the one that adds most is added.

use rayon::prelude::*;

use super::super::Points;
use super::nearest::{brute_force_lists, pooled_log_ratio};

/// Rows of each sample among which neighbours are searched, with few and with many columns.
const MAX_ROWS: [usize; 2] = [4096, 2048];
/// Rows of each sample whose neighbours are searched.
const MAX_QUERIES: [usize; 2] = [256, 160];
/// Columns that are few: with more of them there are many candidates.
const FEW_COLUMNS: usize = 5;
/// Varying columns among which a subset is chosen. The number of candidates grows with their square.
const MAX_COLUMNS: usize = 16;
/// A subset replaces all columns where its separation is larger by this many standard errors.
const MIN_GAIN: f64 = 2.5;
/// The forward path ends after this many columns in a row that lower the separation.
const PATIENCE: usize = 2;

/// A subset of columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Columns in ascending order; `None` for all.
    pub columns: Option<Vec<usize>>,
    /// The separation by neighbours in all columns.
    pub separation: f64,
    /// By how much the separation of the best subset exceeds it.
    pub gain: f64,
    /// The standard error of the separation in the best subset.
    pub standard_error: f64,
}

/// A separation with its standard error, and the columns it belongs to.
#[derive(Clone, Debug)]
struct Candidate {
    columns: Vec<usize>,
    separation: f64,
    standard_error: f64,
}

/// Standardised rows of one sample, column by column.
struct Columns {
    rows: usize,
    columns: Vec<Vec<f32>>,
}

impl Columns {
    /// Row-major numbers of some columns.
    fn gather(&self, columns: &[usize]) -> Vec<f32> {
        let mut rows = vec![0.0; self.rows * columns.len()];
        for (k, &c) in columns.iter().enumerate() {
            rows.iter_mut().skip(k).step_by(columns.len()).zip(&self.columns[c]).for_each(|(x, v)| *x = *v);
        }
        rows
    }
}

impl Selection {
    /// Selects columns of two samples, whose rows are in random order.
    pub fn of(p: Points, q: Points) -> Self {
        let varying: Vec<usize> =
            (0..p.dim()).filter(|&c| p.constant(c).is_none() || p.constant(c) != q.constant(c)).collect();
        if varying.len() < 2 || varying.len() > MAX_COLUMNS {
            return Selection { columns: None, separation: 0.0, gain: 0.0, standard_error: 1.0 };
        }
        let search = Search::new(p, q, &varying);
        let all = search.candidate((0..varying.len()).collect());
        let (backward, forward) = rayon::join(|| search.backward(&all), || search.forward());
        let best = backward
            .into_iter()
            .chain(forward)
            .fold(all.clone(), |best, c| if c.separation > best.separation { c } else { best });
        let gain = best.separation - all.separation;
        let chosen = gain > MIN_GAIN * best.standard_error;
        Selection {
            columns: chosen.then(|| best.columns.iter().map(|&c| varying[c]).collect()),
            separation: all.separation,
            gain,
            standard_error: best.standard_error,
        }
    }
}

struct Search {
    samples: [Columns; 2],
    /// Standardised columns.
    width: usize,
    /// The largest number of queries of a sample.
    max_queries: usize,
}

impl Search {
    fn new(p: Points, q: Points, varying: &[usize]) -> Self {
        let many = usize::from(varying.len() > FEW_COLUMNS);
        let rows = [p, q].map(|points| points.len().min(MAX_ROWS[many]));
        let column = |points: Points, rows: usize, c: usize| -> Vec<f64> {
            points.data().iter().skip(c).step_by(points.dim()).take(rows).copied().collect()
        };
        let standardised: Vec<[Vec<f32>; 2]> = varying
            .par_iter()
            .map(|&c| {
                let [x, y] = [column(p, rows[0], c), column(q, rows[1], c)];
                let mut sorted = [&x[..], &y[..]].concat();
                sorted.sort_unstable_by(f64::total_cmp);
                let at = |place: usize| [sorted[place], sorted[sorted.len() - 1 - place]];
                let ([low, high], [first, last]) = (at((sorted.len() - 1) / 5), at(0));
                let centre = at((sorted.len() - 1) / 2).iter().sum::<f64>() / 2.0;
                let unit = if high > low { high - low } else { (last - first).max(f64::MIN_POSITIVE) };
                // asinh keeps tails from growing the distances of all rows.
                [x, y].map(|column| column.iter().map(|v| ((v - centre) / unit).asinh() as f32).collect())
            })
            .collect();
        let (of_p, of_q) = standardised.into_iter().map(|[x, y]| (x, y)).unzip();
        let samples = [Columns { rows: rows[0], columns: of_p }, Columns { rows: rows[1], columns: of_q }];
        Search { samples, width: varying.len(), max_queries: MAX_QUERIES[many] }
    }

    fn candidate(&self, mut columns: Vec<usize>) -> Candidate {
        columns.sort_unstable();
        let dim = columns.len();
        let points = [self.samples[0].gather(&columns), self.samples[1].gather(&columns)];
        let of_sample = |k: usize| {
            let queries = &points[k][..self.samples[k].rows.min(self.max_queries) * dim];
            let lists = [0, 1].map(|j| brute_force_lists(&points[j], queries, dim, j == k));
            let ratios = || lists[0].iter().zip(&lists[1]).map(|(p, q)| pooled_log_ratio(p, q));
            let n = lists[0].len() as f64;
            let mean = ratios().sum::<f64>() / n;
            (mean, ratios().map(|r| (r - mean) * (r - mean)).sum::<f64>() / n / n)
        };
        let ((mean_p, variance_p), (mean_q, variance_q)) = (of_sample(0), of_sample(1));
        Candidate { columns, separation: mean_p - mean_q, standard_error: (variance_p + variance_q).sqrt() }
    }

    /// The best of candidates, which are evaluated on all threads.
    fn best(&self, candidates: Vec<Vec<usize>>) -> Option<Candidate> {
        let candidates: Vec<Candidate> = candidates.into_par_iter().map(|c| self.candidate(c)).collect();
        candidates.into_iter().reduce(|best, c| if c.separation > best.separation { c } else { best })
    }

    fn backward(&self, all: &Candidate) -> Vec<Candidate> {
        let mut path: Vec<Candidate> = Vec::new();
        let mut columns = all.columns.clone();
        while columns.len() > 2 {
            let without = |c: &usize| columns.iter().copied().filter(|x| x != c).collect();
            let Some(best) = self.best(columns.iter().map(without).collect()) else { break };
            columns.clone_from(&best.columns);
            path.push(best);
        }
        path
    }

    fn forward(&self) -> Vec<Candidate> {
        let mut path: Vec<Candidate> = self.best((0..self.width).map(|c| vec![c]).collect()).into_iter().collect();
        let pairs = (0..self.width).flat_map(|i| (0..i).map(move |j| vec![j, i])).collect();
        let Some(mut current) = self.best(pairs) else { return path };
        path.push(current.clone());
        let (mut highest, mut lower) = (current.separation, 0);
        while current.columns.len() < self.width && lower < PATIENCE {
            let with = |c| [&current.columns[..], &[c]].concat();
            let others = (0..self.width).filter(|c| !current.columns.contains(c));
            let Some(best) = self.best(others.map(with).collect()) else { break };
            (highest, lower) = if best.separation > highest { (best.separation, 0) } else { (highest, lower + 1) };
            current = best;
            path.push(current.clone());
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Generator;
    use rand::{RngExt, SeedableRng};
    use rand_distr::{Distribution, StandardNormal};

    /// Rows of six columns. Columns 1 and 4 have equal signs with this probability.
    fn rows(n: usize, equal: f64, seed: u64) -> Vec<f64> {
        let mut rng = Generator::seed_from_u64(seed);
        let mut rows: Vec<f64> = (0..6 * n).map(|_| StandardNormal.sample(&mut rng)).collect();
        for row in rows.chunks_exact_mut(6) {
            row[4] = row[4].abs().copysign(if rng.random_bool(equal) { row[1] } else { -row[1] });
        }
        rows
    }

    #[test]
    fn columns_that_differ_jointly_are_found_among_noise() {
        let (p, q) = (rows(600, 0.95, 1), rows(600, 0.5, 2));
        let selection = Selection::of(Points::new(&p, 6), Points::new(&q, 6));
        assert_eq!(selection.columns, Some(vec![1, 4]));
        assert!(selection.gain > 0.6, "{selection:?}");
    }

    #[test]
    fn equal_distributions_gain_little_from_any_subset() {
        for seed in 1..11 {
            let (p, q) = (rows(300, 0.5, 10 * seed), rows(300, 0.5, 10 * seed + 1));
            let selection = Selection::of(Points::new(&p, 6), Points::new(&q, 6));
            assert!(selection.separation.abs() < 0.2 && selection.gain < 0.3, "{selection:?}");
        }
    }

    #[test]
    fn constant_columns_and_one_column_are_no_trouble() {
        let (p, q) = (rows(40, 0.5, 1), rows(40, 0.5, 2));
        let one = Selection::of(Points::new(&p, 1), Points::new(&q, 1));
        assert_eq!(one.columns, None);
        let constant: Vec<f64> = p.chunks(2).flat_map(|r| [r[0], 1.0, r[1]]).collect();
        let selection = Selection::of(Points::new(&constant, 3), Points::new(&constant, 3));
        assert!(selection.separation.is_finite() && selection.columns.is_none_or(|c| !c.contains(&1)));
    }
}
