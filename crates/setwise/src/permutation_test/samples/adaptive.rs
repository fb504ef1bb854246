//! A test that adapts to the difference: many statistics of label-blind columns, fused within every permutation.
//!
//! Every statistic is quadratic in sums of columns over the samples. The columns see the pooled sample only, so
//! that a permutation of labels costs one matrix product. Some permutations calibrate the statistics: −ln of a smooth
//! p-value puts them on one scale. The others are compared with the observed labels by the fused evidence of all
//! statistics. Observed labels and permutations are treated alike, so the test is exact.

use rayon::prelude::*;
use setwise_engine::splitmix64;

use super::super::product::{STRIP, product};
use super::super::result::Aspect;
use super::super::sequential::{Compared, Comparison, strongest};
use super::super::standardised::{Standardised, sorted_rows};
use super::design::Design;
use super::features::{Features, Groups};
use super::labels::Labels;
use super::quadratic::Sums;
use super::statistics::{Component, Pooled, Statistics};
use super::witness::{FOLDS, Separation, add_scores, folds, separation, training_strip};
use crate::estimate::Progress;

/// Most groups of rows that labels are given to.
const MAX_GROUPS: usize = 8192;

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
    statistics: Statistics,
    seed: u64,
}

impl Adaptive {
    /// Most subjects of paired samples; more share their group of rows.
    pub fn max_subjects(samples: usize) -> usize {
        MAX_GROUPS / samples
    }

    /// Encodes the pooled sample: rows as they are and standardised, and the sample of each. Labels are exchanged
    /// within blocks.
    pub fn new(raw: &[f64], pooled: &Standardised, sample: &[u8], design: &Design, blocks: &[u32], seed: u64) -> Self {
        let dim = pooled.dim;
        let groups = Groups::new(sample, blocks, MAX_GROUPS, matches!(design, Design::Paired), splitmix64(seed ^ 1));
        let labels = Labels::new(groups.sample.clone(), &groups.block, splitmix64(seed ^ 2));
        let order = sorted_rows(raw, dim);
        let mut sizes = vec![0; sample.iter().max().map_or(0, |last| usize::from(*last) + 1)];
        sample.iter().for_each(|s| sizes[usize::from(*s)] += 1);
        let single = groups.single_rows(&order);
        let is_independent = matches!(design, Design::Independent);
        let statistics = Statistics::new(&Pooled {
            raw,
            standardised: pooled,
            order: &order,
            groups: &groups,
            blocks: labels.blocks(),
            single: &single,
            has_witness: is_independent && sizes.len() == 2,
            seed,
        });
        Adaptive { labels, sizes, is_independent, single, statistics, seed }
    }

    /// Compares the observed labels with permutations.
    pub fn run(&self, comparison: Comparison, progress: &Progress) -> Compared {
        let weights: Vec<f64> = self.statistics.components.iter().map(|c| c.weight).collect();
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
        // Sums over the first sample with the variance of those over all rows.
        let scale = |[k, l]: [usize; 2]| ((k * l) as f64 / (k + l) as f64 * (n * m / (n + m))).sqrt();
        let strip = training_strip(&first, &folds, scale);
        let of_features = |f: &Features| Sums::new(product(f.single(), &strip, first.len(), false), STRIP, 1);
        let sums: Vec<Sums> = self.statistics.features.iter().map(of_features).collect();
        let score = |fold: usize| {
            let mut scores = vec![0.0; first.len()];
            for (component, compared) in self.statistics.components.iter().zip(&compared.statistics) {
                let (sums, panels) = (&sums[component.features], self.statistics.features[component.features].single());
                let value = component.quadratic.value(sums, fold);
                let direction = component.witness.as_ref().unwrap_or(&component.quadratic).direction(sums, fold);
                let weight = compared.calibration.evidence(value).powi(2);
                add_scores(panels, &component.quadratic.columns, &direction, weight, &mut scores);
            }
            scores
        };
        let scores: Vec<Vec<f64>> = (0..FOLDS).into_par_iter().map(score).collect();
        separation(&first, &folds, &scores)
    }

    /// What the statistics found, by p-value.
    pub fn found(&self, compared: &Compared) -> Vec<Found> {
        let strips = self.labels.strips(0, 1);
        let sums: Vec<Sums> = self.statistics.features.iter().map(|f| self.sums(f, &strips)).collect();
        let columns = |component: &Component| {
            let group = component.quadratic.largest_of(&sums[component.features], 0);
            group.and_then(|g| component.of_group.get(g).cloned()).unwrap_or_default()
        };
        let found = |component: &Component| match (component.aspect, columns(component)) {
            // Of a statistic of all columns and of each.
            (Aspect::Shape, columns) if !columns.is_empty() => (Aspect::Column, columns),
            found => found,
        };
        strongest(compared, self.statistics.components.iter().map(found))
    }

    /// Values of all statistics for a range of permutations.
    fn values(&self, from: usize, count: usize) -> Vec<Vec<f64>> {
        let strips = self.labels.strips(from, count);
        let mut values = vec![Vec::new(); self.statistics.components.len()];
        for (f, features) in self.statistics.features.iter().enumerate() {
            let sums = self.sums(features, &strips);
            for (values, component) in values.iter_mut().zip(&self.statistics.components) {
                if component.features == f {
                    *values = component.quadratic.values(&sums);
                    values.truncate(count);
                }
            }
        }
        values
    }

    /// Sums over the samples. Squares of sums over three or more samples are divided by their rows (Kruskal and
    /// Wallis).
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
