//! Two sets of images. The label is the number of classes that are in both.

use std::sync::Arc;

use rand::RngExt;

use setwise::distributions::IntRange;
use setwise::random::Generator;

use super::classes::Classes;
use super::pick::distinct;
use super::{Items, Picker};
use crate::samplers::Split;

/// Draws images of X and Y from a random subset of classes. The label is the number of classes in both sets.
///
/// The subset has max(|X|, |Y|) classes, or all classes if there are fewer. No image occurs twice.
#[derive(Clone, Debug)]
pub struct Counting {
    items: [Arc<Items>; 2],
    splits: [Classes; 3],
}

impl Counting {
    /// A task on images, with their classes by split.
    pub fn new(items: Arc<Items>, splits: [Classes; 3]) -> Self {
        Counting { items: [items.clone(), items], splits }
    }

    /// The classes of a split.
    pub fn classes(&self, split: Split) -> &Classes {
        &self.splits[split as usize]
    }

    /// The first split that is too small for sets of `max_size` elements, with its number of classes.
    pub fn shortage(&self, max_size: usize) -> Option<(Split, usize)> {
        Split::ALL.into_iter().find_map(|split| {
            let classes = self.classes(split);
            let (count, smallest) = (classes.0.len(), classes.smallest());
            let enough = smallest >= 2 && count.min(max_size).saturating_mul(smallest) >= 2 * max_size;
            (!enough).then_some((split, count))
        })
    }
}

impl Picker for Counting {
    fn items(&self) -> &[Arc<Items>] {
        &self.items
    }

    fn training_classes(&self) -> Option<&Classes> {
        Some(self.classes(Split::Training))
    }

    fn pick(&self, split: Split, size: IntRange, rng: &mut Generator, picked: &mut [Vec<u32>]) -> f64 {
        let classes = &self.classes(split).0;
        let sizes = [size.draw(rng), size.draw(rng)];
        let palette = distinct(sizes[0].max(sizes[1]), classes.len(), rng);
        let mut present = vec![[false; 2]; palette.len()];
        let mut used: Vec<u32> = Vec::with_capacity(sizes[0] + sizes[1]);
        for (set, n) in sizes.into_iter().enumerate() {
            let mut left = n;
            while left > 0 {
                let choice = rng.random_range(0..palette.len());
                let class = &classes[palette[choice]];
                let item = class[rng.random_range(0..class.len())];
                if !used.contains(&item) {
                    used.push(item);
                    picked[set].push(item);
                    present[choice][set] = true;
                    left -= 1;
                }
            }
        }
        present.iter().filter(|p| p[0] && p[1]).count() as f64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::classes::tests::assert_no_leak;
    use super::*;
    use crate::datasets::Picked;

    fn counting() -> Counting {
        let labels: Vec<u32> = (0..400).map(|i| i % 40).collect();
        Counting::new(Arc::new(Items::bytes(1, vec![0; 400])), Classes::group(&labels, 0).split("synthetic"))
    }

    #[test]
    fn the_label_is_the_number_of_classes_in_both_sets() {
        let counting = counting();
        assert_no_leak(Split::ALL.map(|s| (s, counting.classes(s))));
        for split in Split::ALL {
            let picked = Picked::draw(&counting, split, IntRange::new(6, 10), 300, 1);
            let allowed: HashSet<u32> = counting.classes(split).0.iter().flatten().copied().collect();
            let mut labels = HashSet::new();
            for (i, &label) in picked.labels.iter().enumerate() {
                let [x, y] = [0, 1].map(|k| &picked.sets[k][picked.offsets[k][i]..picked.offsets[k][i + 1]]);
                let classes = |set: &[u32]| set.iter().map(|i| i % 40).collect::<HashSet<u32>>();
                assert_eq!(classes(x).intersection(&classes(y)).count() as f64, label);
                assert!(classes(x).union(&classes(y)).count() <= x.len().max(y.len()));
                let all: HashSet<u32> = x.iter().chain(y).copied().collect();
                assert!(all.len() == x.len() + y.len() && all.is_subset(&allowed));
                labels.insert(label as u64);
            }
            assert!(labels.len() > 2, "{labels:?}");
        }
    }

    #[test]
    fn a_split_that_is_too_small_for_the_sets_is_reported() {
        assert_eq!(counting().shortage(10), None);
        assert_eq!(counting().shortage(50), Some((Split::Validation, 4)));
    }
}
