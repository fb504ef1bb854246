//! Examples whose elements are items in memory: their indices and the batches gathered from them.

use std::sync::Arc;

use rand::{Rng, RngExt, SeedableRng};

use setwise::SetBatch;
use setwise::data::{Batch, RawBatch, RawSet};
use setwise::distributions::IntRange;
use setwise::random::Generator;
use setwise::sets::PackedSet;

use super::{Classes, Items};
use crate::Result;
use crate::samplers::Split;

/// Draws examples of a task on a data set.
pub trait Picker: Send + Sync {
    /// The items of each set.
    fn items(&self) -> &[Arc<Items>];

    /// Draws one example: appends indices of items of set k to `picked[k]` and returns the label.
    ///
    /// Different splits have no item in common.
    fn pick(&self, split: Split, size: IntRange, rng: &mut Generator, picked: &mut [Vec<u32>]) -> f64;

    /// The classes of the training items, if there are classes. Encoders are pretrained to classify them.
    fn training_classes(&self) -> Option<&Classes> {
        None
    }
}

/// A batch of examples as indices of items.
#[derive(Clone)]
pub struct Picked {
    items: Vec<Arc<Items>>,
    /// Indices of items of each set, example after example.
    pub sets: Vec<Vec<u32>>,
    /// `offsets[k][i]..offsets[k][i + 1]` is example `i` in `sets[k]`.
    pub offsets: Vec<Vec<usize>>,
    /// A label per example.
    pub labels: Vec<f64>,
    /// The seed of the draw.
    pub seed: u64,
}

impl Picked {
    /// Draws examples.
    pub fn draw(picker: &dyn Picker, split: Split, size: IntRange, examples: usize, seed: u64) -> Self {
        let mut rng = Generator::seed_from_u64(seed);
        let items = picker.items().to_vec();
        let mut sets = vec![Vec::new(); items.len()];
        let mut offsets = vec![vec![0]; items.len()];
        let mut labels = Vec::with_capacity(examples);
        for _ in 0..examples {
            labels.push(picker.pick(split, size, &mut rng, &mut sets));
            for (offsets, set) in offsets.iter_mut().zip(&sets) {
                offsets.push(set.len());
            }
        }
        Picked { items, sets, offsets, labels, seed }
    }

    /// Draws examples for classification: one set with one item, labelled with its class.
    ///
    /// All classes are equally likely. None where items have no classes.
    pub fn classify(picker: &dyn Picker, examples: usize, seed: u64) -> Option<Self> {
        let classes = &picker.training_classes()?.0;
        let mut rng = Generator::seed_from_u64(seed);
        let (mut set, mut labels) = (Vec::with_capacity(examples), Vec::with_capacity(examples));
        for _ in 0..examples {
            let class = rng.random_range(0..classes.len());
            set.push(classes[class][rng.random_range(0..classes[class].len())]);
            labels.push(class as f64);
        }
        let (items, offsets) = (vec![picker.items()[0].clone()], vec![(0..=examples).collect()]);
        Some(Picked { items, sets: vec![set], offsets, labels, seed })
    }

    /// The rows of one set.
    fn rows(&self, set: usize) -> Vec<f32> {
        let (items, picked) = (&self.items[set], &self.sets[set]);
        // Rows of bits are appended by the byte, so up to 7 floats beyond the end need capacity.
        let mut rows = Vec::with_capacity(picked.len() * items.width() + 8);
        picked.iter().for_each(|&i| items.append(i as usize, &mut rows));
        rows
    }

    /// Gathers the rows into a batch for a model.
    pub fn gather(&self) -> Result<Batch> {
        let sets = (0..self.sets.len())
            .map(|k| PackedSet::new(self.rows(k), self.items[k].width(), self.offsets[k].clone()))
            .collect();
        let targets = self.labels.iter().map(|&l| l as f32).collect();
        let labels = self.labels.clone();
        Ok(Batch { sets: SetBatch::new(sets)?, labels, targets, seed: self.seed, deficient: 0 })
    }

    /// Gathers the rows in double precision, as samplers draw them.
    pub fn to_raw(&self) -> RawBatch {
        let sets = (0..self.sets.len())
            .map(|k| RawSet {
                rows: self.rows(k).into_iter().map(f64::from).collect(),
                offsets: self.offsets[k].clone(),
            })
            .collect();
        let widths = self.items.iter().map(|i| i.width()).collect();
        RawBatch { sets, widths, labels: self.labels.clone(), element_labels: Vec::new(), seed: self.seed }
    }
}

/// Draws min(`n`, `count`) distinct indices below `count`, in random order.
pub(super) fn distinct(n: usize, count: usize, rng: &mut impl Rng) -> Vec<usize> {
    let n = n.min(count);
    if 3 * n >= count {
        let mut all: Vec<usize> = (0..count).collect();
        for i in 0..n {
            all.swap(i, rng.random_range(i..count));
        }
        all.truncate(n);
        return all;
    }
    let mut chosen: Vec<usize> = Vec::with_capacity(n);
    while chosen.len() < n {
        let i = rng.random_range(0..count);
        if !chosen.contains(&i) {
            chosen.push(i);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_to_classify_have_the_class_of_their_label() {
        let labels: Vec<u32> = (0..60).map(|i| i % 6).collect();
        let items = Arc::new(Items::bytes(1, (0..60).collect()));
        let classes = Classes::group(&labels, 0);
        let counting = super::super::Counting::new(items, [classes, Classes::default(), Classes::default()]);
        let picked = Picked::classify(&counting, 200, 3).unwrap();
        assert!(picked.sets[0].iter().zip(&picked.labels).all(|(&i, &label)| f64::from(i % 6) == label));
        let batch = picked.gather().unwrap();
        assert_eq!((batch.sets.sets().len(), batch.sets.examples(), batch.targets.len()), (1, 200, 200));
        assert!((0..6).all(|c| batch.targets.contains(&(c as f32))));
    }

    #[test]
    fn distinct_indices_are_distinct_and_equally_likely() {
        let mut rng = Generator::seed_from_u64(3);
        for (n, count) in [(2, 20), (7, 9), (9, 9), (12, 9)] {
            let mut counts = vec![0; count];
            for _ in 0..4000 {
                let mut indices = distinct(n, count, &mut rng);
                indices.iter().for_each(|&i| counts[i] += 1);
                indices.sort_unstable();
                indices.dedup();
                assert_eq!(indices.len(), n.min(count));
            }
            let expected = 4000.0 * n.min(count) as f64 / count as f64;
            assert!(counts.iter().all(|&c| (c as f64 - expected).abs() < 6.0 * expected.sqrt() + 1.0), "{counts:?}");
        }
    }
}
