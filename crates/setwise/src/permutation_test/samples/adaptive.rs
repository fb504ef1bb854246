//! A test that adapts to the difference: many statistics of label-blind columns, fused within every permutation.
//!
//! Every statistic is quadratic in sums of columns over the samples. The columns see the pooled sample only, so
//! that a permutation of labels costs one matrix product. Some permutations calibrate the statistics: −ln of a smooth
//! p-value puts them on one scale. The others are compared with the observed labels by the fused evidence of all
//! statistics. Observed labels and permutations are treated alike, so the test is exact.

use rayon::prelude::*;
use setwise_engine::splitmix64;

use super::super::encode::{
    Bumps, Encode, RankCosines, Ranks, RepeatedValues, Shape, Stored, bandwidths, radius_cosines,
};
use super::super::product::{STRIP, product};
use super::super::result::Aspect;
use super::super::sequential::{Compared, Comparison, strongest};
use super::super::standardised::{Standardised, sorted_rows};
use super::design::Design;
use super::features::{Features, Groups};
use super::labels::Labels;
use super::quadratic::{Quadratic, Sums};
use super::witness::{FOLDS, Separation, add_scores, folds, separation, training_counts, training_strip};
use crate::estimate::Progress;

/// Most groups of rows that labels are given to.
const MAX_GROUPS: usize = 8192;
/// Most columns that are whitened; of more each is standardised by itself.
const MAX_WHITENED: usize = 512;

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

/// What a statistic found: its aspect, the columns from zero, empty if it looks at all of them, and its p-value.
pub(super) type Found = (Aspect, Vec<usize>, f64);

/// The statistics of a pooled sample.
pub(super) struct Adaptive {
    labels: Labels,
    /// Rows of each sample.
    sizes: Vec<usize>,
    is_independent: bool,
    /// The rows whose columns are kept one by one.
    single: Vec<u32>,
    features: Vec<Features>,
    components: Vec<Component>,
    seed: u64,
}

impl Adaptive {
    /// Most subjects of paired samples; more share their group of rows.
    pub fn max_subjects(samples: usize) -> usize {
        MAX_GROUPS / samples
    }

    /// Encodes the pooled sample: rows as they are and standardised, and the sample of each. Labels are exchanged within
    /// blocks.
    pub fn new(raw: &[f64], pooled: &Standardised, sample: &[u8], design: &Design, blocks: &[u32], seed: u64) -> Self {
        let dim = pooled.dim;
        let groups = Groups::new(sample, blocks, MAX_GROUPS, matches!(design, Design::Paired), splitmix64(seed ^ 1));
        let labels = Labels::new(groups.sample.clone(), &groups.exchangeable, splitmix64(seed ^ 2));
        let order = sorted_rows(raw, dim);
        let mut sizes = vec![0; sample.iter().max().map_or(0, |last| usize::from(*last) + 1)];
        sample.iter().for_each(|s| sizes[usize::from(*s)] += 1);
        let single = groups.single_rows(&order);
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
            let features = test.features(&repeated, &groups, false);
            test.add(features, |f| Quadratic::largest(f, 0..width), (Aspect::RepeatedValues, 1.0), of_group);
        }
        let whiten = dim <= MAX_WHITENED;
        let features = test.features(&Stored { values: points, width: dim }, &groups, whiten);
        let means = |f: &Features| match whiten {
            true => Quadratic::whitened(f, (0..dim).collect(), 0.01),
            false => Quadratic::sum(f, (0..dim).collect()),
        };
        test.add(features, means, (Aspect::Means, 0.5), Vec::new());
        let features = test.features(&radius_cosines(&pooled.data, dim, 4, whiten), &groups, true);
        test.add(features, |f| Quadratic::whitened(f, (0..4).collect(), 0.01), (Aspect::Radius, 0.5), Vec::new());
        test
    }

    fn features(&mut self, encoder: &dyn Encode, groups: &Groups, whiten: bool) -> usize {
        self.features.push(Features::new(encoder, groups, self.labels.blocks(), &self.single, whiten));
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
        let features = self.features(&bumps, groups, true);
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
        let features = self.features(&bumps, groups, true);
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
        let features = self.features(&cosines, groups, false);
        let low: Vec<f64> = (1..=orders).map(|k| (k as f64).powi(-2)).collect();
        let even = vec![1.0; orders];
        self.add(features, |_| Quadratic::largest_group(0..width, &even), (Aspect::Column, 0.3), of_group.clone());
        self.add(features, |_| Quadratic::largest_group(0..width, &low), (Aspect::Column, 1.0), of_group);
    }

    /// Squares and products of normal scores.
    fn add_scores(&mut self, scores: &[f32], dim: usize, groups: &Groups, seed: u64) {
        let encoder = Products::new(scores, dim, splitmix64(seed ^ 7));
        let (width, pairs) = (encoder.width(), encoder.pairs.clone());
        let features = self.features(&encoder, groups, false);
        let of_group = (0..dim).map(|c| vec![c]).collect();
        self.add(features, |f| Quadratic::largest(f, 0..dim), (Aspect::Spread, 0.5), of_group);
        if !pairs.is_empty() {
            let of_group = pairs.iter().map(|&(a, b)| vec![a, b]).collect();
            self.add(features, |f| Quadratic::largest(f, dim..width), (Aspect::Dependence, 1.0), of_group);
            self.add(features, |f| Quadratic::sum(f, (dim..width).collect()), (Aspect::Dependence, 0.3), Vec::new());
        }
    }

    /// Compares the observed labels with permutations.
    pub fn run(&self, comparison: Comparison, progress: &Progress) -> Compared {
        let weights: Vec<f64> = self.components.iter().map(|c| c.weight).collect();
        comparison.run(&weights, |from, count| self.values(from, count), progress)
    }

    /// The number of assignments of labels; `None` if there are many.
    pub fn assignments(&self) -> Option<f64> {
        self.labels.assignments()
    }

    /// The AUC of cross-fitted witnesses of two independent samples. Rows of a pair or a block know of each other.
    pub fn separation(&self, compared: &Compared) -> Option<Separation> {
        let [n, m] = *self.sizes.as_slice() else { return None };
        if !self.is_independent {
            return None;
        }
        let first: Vec<bool> = self.single.iter().map(|row| (*row as usize) < n).collect();
        let [n, m] = [n, m].map(|rows| rows as f64);
        let folds = folds(&self.single, &first, self.seed);
        let strip = training_strip(&first, &folds);
        let of_features = |f: &Features| Sums::new(product(f.single(), &strip, first.len(), false), STRIP, 1);
        let sums: Vec<Sums> = self.features.iter().map(of_features).collect();
        let score = |fold: usize| {
            // A difference of means as a sum over the first sample with the variance of one over all rows.
            let [k, l] = training_counts(&first, &folds, fold).map(|rows| rows as f64);
            let scale = (k * l / (k + l) * (n * m / (n + m))).sqrt();
            let mut scores = vec![0.0; first.len()];
            for (component, compared) in self.components.iter().zip(&compared.statistics) {
                let (sums, panels) = (&sums[component.features], self.features[component.features].single());
                let value = component.quadratic.value(sums, fold) * scale * scale;
                let direction = component.quadratic.direction(sums, fold);
                let weight = compared.calibration.evidence(value).powi(2);
                add_scores(panels, &component.quadratic.columns, &direction, weight, &mut scores);
            }
            scores
        };
        let scores: Vec<Vec<f64>> = (0..FOLDS).into_par_iter().map(score).collect();
        separation(&first, &folds, &scores)
    }

    /// What the statistics found, the strongest first.
    pub fn found(&self, compared: &Compared) -> Vec<Found> {
        let strips = self.labels.strips(0, 1);
        let sums: Vec<Sums> = self.features.iter().map(|f| self.sums(f, &strips)).collect();
        let columns = |component: &Component| {
            let group = component.quadratic.largest_of(&sums[component.features], 0);
            group.and_then(|g| component.of_group.get(g).cloned()).unwrap_or_default()
        };
        strongest(compared, self.components.iter().map(|c| (c.aspect, columns(c))))
    }

    /// Values of all statistics for a range of permutations.
    fn values(&self, from: usize, count: usize) -> Vec<Vec<f64>> {
        let strips = self.labels.strips(from, count);
        let mut values = vec![Vec::new(); self.components.len()];
        for (f, features) in self.features.iter().enumerate() {
            let sums = self.sums(features, &strips);
            for (values, component) in values.iter_mut().zip(&self.components) {
                if component.features == f {
                    *values = component.quadratic.values(&sums);
                    values.truncate(count);
                }
            }
        }
        values
    }

    /// Sums over the samples. Squares of sums over three or more samples are divided by their rows (Kruskal and Wallis).
    fn sums(&self, features: &Features, strips: &[f32]) -> Sums {
        let samples = self.labels.summed_samples();
        let sums = features.sums(strips, samples);
        if samples == 1 {
            return sums;
        }
        let rows: usize = self.sizes.iter().sum();
        let weights: Vec<f64> = self.sizes.iter().map(|n| rows as f64 / (samples * n) as f64).collect();
        sums.weighted(&weights)
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
