//! A test that adapts to the difference: many statistics of label-blind columns, fused within every permutation.
//!
//! Every statistic is quadratic in sums of columns over the first sample. The columns see the pooled sample only, so
//! that a permutation of labels costs one matrix product. Some permutations calibrate the statistics: −ln of a smooth
//! p-value puts them on one scale. The others are compared with the observed labels by the fused evidence of all
//! statistics. Observed labels and permutations are treated alike, so the test is exact.

use rayon::prelude::*;
use setwise_engine::splitmix64;

use super::calibrate::{Calibration, fused};
use super::design::Design;
use super::encode::{Bumps, Encode, RankCosines, Ranks, RepeatedValues, Shape, Stored, bandwidths, radius_cosines};
use super::features::{Features, Groups};
use super::kernel::Standardised;
use super::labels::Labels;
use super::product::{STRIP, product};
use super::quadratic::Quadratic;
use super::witness::{FOLDS, Separation, add_scores, folds, separation, training_counts, training_strip};
use crate::estimate::Progress;

/// Most groups of rows that labels are given to.
const MAX_GROUPS: usize = 8192;
/// Permutations that are computed at once; the first such number calibrates, with the observed labels.
const CHUNK: usize = 8 * STRIP;

/// What a statistic looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aspect {
    /// Means of the columns.
    Means,
    /// The distribution of one column.
    Column,
    /// The spread of one column.
    Spread,
    /// Values of one column that many rows share.
    RepeatedValues,
    /// The dependence of two columns.
    Dependence,
    /// Distances from the centre.
    Radius,
    /// The joint distribution, at scales up to the distance of typical rows.
    Shape,
    /// The joint distribution, at the scale of near neighbours.
    FineStructure,
}

/// A statistic of the test.
struct Component {
    /// The features it is of.
    features: usize,
    quadratic: Quadratic,
    aspect: Aspect,
    /// Its p-value counts as if divided by this weight, chosen on development settings.
    weight: f64,
    /// Columns of the sample that each of its groups of features is of.
    of_group: Vec<Vec<usize>>,
}

/// The outcome of an adaptive test.
pub(super) struct Outcome {
    /// Permutations that were compared, and those at least as extreme as the observed labels.
    pub permutations: usize,
    pub as_large: usize,
    pub p_value: f64,
    /// The fused evidence, −ln of a p-value that several looks make too small.
    pub evidence: f64,
    /// What each statistic found, the strongest first.
    pub found: Vec<Found>,
    /// How well rows of both samples are told apart.
    pub separation: Option<Separation>,
}

/// What a statistic found.
pub(super) struct Found {
    /// What it looks at.
    pub aspect: Aspect,
    /// The columns it found, from zero; empty if it looks at all of them.
    pub columns: Vec<usize>,
    /// The share of permutations with at least its value.
    pub p_value: f64,
}

/// The statistics of a pooled sample.
pub(super) struct Adaptive {
    labels: Labels,
    /// Rows of both samples.
    sizes: [usize; 2],
    is_independent: bool,
    /// The rows whose columns are kept one by one.
    single: Vec<u32>,
    features: Vec<Features>,
    components: Vec<Component>,
    seed: u64,
}

impl Adaptive {
    /// Most blocks of pairs; a group of rows is as large as a block of more pairs.
    pub const MAX_PAIRS: usize = MAX_GROUPS / 2;

    /// Encodes the pooled sample: `n` rows of P, then those of Q, as they are and standardised. Labels are exchanged
    /// within blocks.
    pub fn new(raw: &[f64], pooled: &Standardised, n: usize, design: &Design, blocks: &[u32], seed: u64) -> Self {
        let (rows, dim) = (pooled.data.len() / pooled.dim, pooled.dim);
        let first: Vec<bool> = (0..rows).map(|row| row < n).collect();
        let groups = Groups::new(&first, blocks, MAX_GROUPS, matches!(design, Design::Paired), splitmix64(seed ^ 1));
        let labels = Labels::new(groups.first.clone(), &groups.exchangeable, splitmix64(seed ^ 2));
        let order = pooled.sorted_rows();
        let (sizes, single) = ([n, rows - n], groups.single_rows(&order));
        let is_independent = matches!(design, Design::Independent);
        let mut test =
            Adaptive { labels, sizes, is_independent, single, features: Vec::new(), components: Vec::new(), seed };
        // Standardising may round the values of a column to few ones, next to an extreme one.
        let ranks = Ranks::new(raw, dim);
        let points: Vec<f32> = pooled.data.iter().map(|x| *x as f32).collect();
        test.add_bumps(&points, dim, &order, &groups, seed);
        let scores = ranks.normal_scores();
        test.add_score_bumps(&scores, dim, &order, &groups, seed);
        test.add_columns(&ranks, &groups);
        test.add_scores(&scores, dim, &groups, seed);
        let repeated = RepeatedValues::new(raw, dim);
        if repeated.width() > 0 {
            let width = repeated.width();
            let of_group = (0..width).map(|value| vec![repeated.column(value)]).collect();
            let features = test.features(&repeated, &groups);
            test.add(features, |f| Quadratic::largest(f, 0..width), (Aspect::RepeatedValues, 1.0), of_group);
        }
        let features = test.features(&Stored { values: points, width: dim }, &groups);
        test.add(features, |f| Quadratic::whitened(f, (0..dim).collect(), 0.01), (Aspect::Means, 0.5), Vec::new());
        let features = test.features(&radius_cosines(&pooled.data, dim, 4), &groups);
        test.add(features, |f| Quadratic::whitened(f, (0..4).collect(), 0.01), (Aspect::Radius, 0.5), Vec::new());
        test
    }

    fn features(&mut self, encoder: &dyn Encode, groups: &Groups) -> usize {
        self.features.push(Features::new(encoder, groups, self.labels.blocks(), &self.single));
        self.features.len() - 1
    }

    fn add(
        &mut self,
        features: usize,
        quadratic: impl FnOnce(&Features) -> Quadratic,
        (aspect, weight): (Aspect, f64),
        of_group: Vec<Vec<usize>>,
    ) {
        let quadratic = quadratic(&self.features[features]);
        self.components.push(Component { features, quadratic, aspect, weight, of_group });
    }

    /// Bumps of five widths around random rows.
    fn add_bumps(&mut self, points: &[f32], dim: usize, order: &[u32], groups: &Groups, seed: u64) {
        /// Centres of every width, and of those that are looked at alone.
        const CENTRES: [usize; 2] = [128, 256];
        let h = bandwidths::<5>(points, dim, order, splitmix64(seed ^ 3));
        let kinds: Vec<_> = (0..5)
            .map(|i| (Shape::Gaussian, h[i], CENTRES[usize::from(i == 1 || i == 2)]))
            .chain([(Shape::Laplace, h[1], CENTRES[0])])
            .collect();
        let bumps = Bumps::new(points, dim, order, &kinds, splitmix64(seed ^ 4));
        let of_all: Vec<usize> = (0..5).flat_map(|i| bumps.columns(i).take(CENTRES[0])).collect();
        let [one, two] = [1, 2].map(|i| bumps.columns(i).collect::<Vec<usize>>());
        let laplace = bumps.columns(5);
        let features = self.features(&bumps, groups);
        self.add(features, |f| Quadratic::whitened(f, of_all, 0.3), (Aspect::Shape, 3.0), Vec::new());
        self.add(features, |f| Quadratic::whitened(f, one.clone(), 0.03), (Aspect::FineStructure, 3.0), Vec::new());
        self.add(features, |f| Quadratic::whitened(f, one, 0.003), (Aspect::FineStructure, 2.0), Vec::new());
        self.add(features, |f| Quadratic::whitened(f, two, 0.003), (Aspect::FineStructure, 1.0), Vec::new());
        self.add(features, |_| Quadratic::plain_sum(laplace), (Aspect::Shape, 2.0), Vec::new());
    }

    /// Wide bumps on normal scores, which have no outliers.
    fn add_score_bumps(&mut self, scores: &[f32], dim: usize, order: &[u32], groups: &Groups, seed: u64) {
        const CENTRES: usize = 128;
        let h = bandwidths::<5>(scores, dim, order, splitmix64(seed ^ 5));
        let kinds = [(Shape::Laplace, h[2], CENTRES), (Shape::Gaussian, h[4], CENTRES)];
        let bumps = Bumps::new(scores, dim, order, &kinds, splitmix64(seed ^ 6));
        let [laplace, gaussian] = [0, 1].map(|i| bumps.columns(i).collect::<Vec<usize>>());
        let features = self.features(&bumps, groups);
        self.add(features, |f| Quadratic::whitened(f, laplace, 3.0), (Aspect::Shape, 1.0), Vec::new());
        self.add(features, |f| Quadratic::whitened(f, gaussian, 0.03), (Aspect::Shape, 1.0), Vec::new());
    }

    /// Each column by itself: a smooth test of sixteen frequencies, and one of mostly low ones (Cramér–von Mises).
    fn add_columns(&mut self, ranks: &Ranks, groups: &Groups) {
        /// Frequencies of a column, fewer where there are many columns.
        const ORDERS: usize = 16;
        const MAX_WIDTH: usize = 1024;
        let orders = ORDERS.min(MAX_WIDTH / ranks.dim).max(2);
        let cosines = RankCosines { ranks, orders };
        let width = cosines.width();
        let of_group: Vec<Vec<usize>> = (0..ranks.dim).map(|c| vec![c]).collect();
        let features = self.features(&cosines, groups);
        let low: Vec<f64> = (1..=orders).map(|k| (k as f64).powi(-2)).collect();
        let even = vec![1.0; orders];
        self.add(features, |_| Quadratic::largest_group(0..width, &even), (Aspect::Column, 0.3), of_group.clone());
        self.add(features, |_| Quadratic::largest_group(0..width, &low), (Aspect::Column, 1.0), of_group);
    }

    /// Squares and products of normal scores.
    fn add_scores(&mut self, scores: &[f32], dim: usize, groups: &Groups, seed: u64) {
        let encoder = Products::new(scores, dim, splitmix64(seed ^ 7));
        let (width, pairs) = (encoder.width(), encoder.pairs.clone());
        let features = self.features(&encoder, groups);
        let of_group = (0..dim).map(|c| vec![c]).collect();
        self.add(features, |f| Quadratic::largest(f, 0..dim), (Aspect::Spread, 0.5), of_group);
        if !pairs.is_empty() {
            let of_group = pairs.iter().map(|&(a, b)| vec![a, b]).collect();
            self.add(features, |f| Quadratic::largest(f, dim..width), (Aspect::Dependence, 1.0), of_group);
            self.add(features, |f| Quadratic::sum(f, (dim..width).collect()), (Aspect::Dependence, 0.3), Vec::new());
        }
    }

    /// Compares the observed labels with permutations.
    ///
    /// It stops where so many permutations are at least as extreme that p is above `alpha` in any case; p is then the
    /// estimate of Besag and Clifford (1991).
    pub fn run(&self, permutations: usize, alpha: f64, progress: &Progress) -> Outcome {
        let chunks = permutations.div_ceil(CHUNK) + 1;
        progress.plan(chunks);
        let first = self.values(0, CHUNK);
        let calibrations: Vec<Calibration> = first.iter().map(|values| Calibration::new(&values[1..])).collect();
        let evidence_of = |values: &[Vec<f64>], i: usize| {
            fused(
                self.components
                    .iter()
                    .zip(&calibrations)
                    .zip(values)
                    .map(|((c, fit), values)| fit.evidence(values[i]) + c.weight.ln()),
            )
        };
        let evidence = evidence_of(&first, 0);
        // Equal splits of the rows differ by rounding errors.
        let least = evidence - 1e-4 * (1.0 + evidence);
        let observed: Vec<f64> = first.iter().map(|values| values[0]).collect();
        let stop = (alpha * (permutations + 1) as f64).floor() as usize + 1;
        progress.advance(1);
        let (mut compared, mut as_large, mut done) = (0, 0, 1);
        let mut reached = vec![0usize; observed.len()];
        'all: while compared < permutations {
            let count = CHUNK.min(permutations - compared);
            let values = self.values(CHUNK + compared, count);
            for i in 0..count {
                compared += 1;
                as_large += usize::from(evidence_of(&values, i) >= least);
                for ((reached, values), observed) in reached.iter_mut().zip(&values).zip(&observed) {
                    *reached += usize::from(values[i] >= observed * (1.0 - 1e-5));
                }
                if as_large >= stop {
                    break 'all;
                }
            }
            progress.advance(1);
            done += 1;
        }
        let p_value = match as_large >= stop {
            true => as_large as f64 / compared as f64,
            false => (1 + as_large) as f64 / (1 + compared) as f64,
        };
        // Also where it stops early.
        progress.advance(chunks - done);
        let found = self.found(&calibrations, &observed, &reached, compared);
        let separation = self.separation(&calibrations);
        Outcome { permutations: compared, as_large, p_value, evidence, found, separation }
    }

    /// The number of assignments of labels; `None` if there are many.
    pub fn assignments(&self) -> Option<f64> {
        self.labels.assignments()
    }

    /// The AUC of cross-fitted witnesses of independent samples. Rows of a pair or a block know of each other.
    fn separation(&self, calibrations: &[Calibration]) -> Option<Separation> {
        if !self.is_independent {
            return None;
        }
        let [n, m] = self.sizes.map(|rows| rows as f64);
        let first: Vec<bool> = self.single.iter().map(|row| (*row as usize) < self.sizes[0]).collect();
        let folds = folds(&self.single, &first, self.seed);
        let strip = training_strip(&first, &folds);
        let sums: Vec<Vec<f32>> =
            self.features.iter().map(|f| product(f.single(), &strip, first.len(), false)).collect();
        let score = |fold: usize| {
            // A difference of means as a sum over the first sample with the variance of one over all rows.
            let [k, l] = training_counts(&first, &folds, fold).map(|rows| rows as f64);
            let scale = (k * l / (k + l) * (n * m / (n + m))).sqrt();
            let mut scores = vec![0.0; first.len()];
            for (component, calibration) in self.components.iter().zip(calibrations) {
                let (sums, panels) = (&sums[component.features], self.features[component.features].single());
                let value = component.quadratic.value(sums, STRIP, fold) * scale * scale;
                let direction = component.quadratic.direction(sums, STRIP, fold);
                let weight = calibration.evidence(value).powi(2);
                add_scores(panels, &component.quadratic.columns, &direction, weight, &mut scores);
            }
            scores
        };
        let scores: Vec<Vec<f64>> = (0..FOLDS).into_par_iter().map(score).collect();
        separation(&first, &folds, &scores)
    }

    /// What the statistics found, the strongest first; of equal aspects and columns the strongest alone.
    fn found(&self, calibrations: &[Calibration], observed: &[f64], reached: &[usize], compared: usize) -> Vec<Found> {
        let strips = self.labels.strips(0, 1);
        let sums: Vec<_> = self.features.iter().map(|f| f.sums(&strips)).collect();
        let mut all: Vec<(f64, Found)> = Vec::new();
        for (k, component) in self.components.iter().enumerate() {
            let (sums, permutations) = &sums[component.features];
            let group = component.quadratic.largest_of(sums, *permutations, 0);
            let columns = group.and_then(|g| component.of_group.get(g).cloned()).unwrap_or_default();
            let p_value = (1 + reached[k]) as f64 / (1 + compared) as f64;
            all.push((calibrations[k].evidence(observed[k]), Found { aspect: component.aspect, columns, p_value }));
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut strongest: Vec<Found> = Vec::new();
        for (_, found) in all {
            if !strongest.iter().any(|f| f.aspect == found.aspect && f.columns == found.columns) {
                strongest.push(found);
            }
        }
        strongest
    }

    /// Values of all statistics for a range of permutations.
    fn values(&self, from: usize, count: usize) -> Vec<Vec<f64>> {
        let strips = self.labels.strips(from, count);
        let mut values = vec![Vec::new(); self.components.len()];
        for (f, features) in self.features.iter().enumerate() {
            let (sums, permutations) = features.sums(&strips);
            for (values, component) in values.iter_mut().zip(&self.components) {
                if component.features == f {
                    *values = component.quadratic.values(&sums, permutations);
                    values.truncate(count);
                }
            }
        }
        values
    }
}

/// Squares of normal scores, then products of pairs of columns.
struct Products<'a> {
    scores: &'a [f32],
    dim: usize,
    pairs: Vec<(usize, usize)>,
}

impl<'a> Products<'a> {
    /// Most pairs; of more columns random pairs are drawn.
    const MAX_PAIRS: usize = 1225;

    fn new(scores: &'a [f32], dim: usize, seed: u64) -> Self {
        use rand::SeedableRng;
        let all = dim * (dim - 1) / 2;
        let pair = |index: usize| {
            // Pairs (a, b) with a < b in the order of b.
            let b = ((1.0 + (1.0 + 8.0 * index as f64).sqrt()) / 2.0) as usize;
            let b = if b * (b - 1) / 2 > index { b - 1 } else { b };
            (index - b * (b - 1) / 2, b)
        };
        let pairs = match all <= Self::MAX_PAIRS {
            true => (0..all).map(pair).collect(),
            false => {
                let mut rng = crate::random::Generator::seed_from_u64(seed);
                let mut chosen = rand::seq::index::sample(&mut rng, all, Self::MAX_PAIRS).into_vec();
                chosen.sort_unstable();
                chosen.into_iter().map(pair).collect()
            }
        };
        Products { scores, dim, pairs }
    }
}

impl Encode for Products<'_> {
    fn width(&self) -> usize {
        self.dim + self.pairs.len()
    }

    fn encode(&self, row: usize, out: &mut [f32]) {
        let row = &self.scores[row * self.dim..(row + 1) * self.dim];
        let (squares, products) = out.split_at_mut(self.dim);
        squares.iter_mut().zip(row).for_each(|(out, x)| *out = x * x);
        products.iter_mut().zip(&self.pairs).for_each(|(out, &(a, b))| *out = row[a] * row[b]);
    }
}
