//! Two sets of images, labelled with the number of classes that are in both.

use std::sync::Arc;

use rand::RngExt;

use setwise::distributions::IntRange;
use setwise::random::Generator;

use super::classes::Classes;
use super::pick::distinct;
use super::{Items, Picker};
use crate::samplers::Split;

/// X and Y of images of as many random classes as the larger of them has elements, or of all if there are not as many; no image is
/// there twice. The label is the number of classes that are in X and in Y.
#[derive(Clone, Debug)]
pub struct Counting {
    items: [Arc<Items>; 2],
    streams: [Classes; 3],
}

impl Counting {
    /// From images, and their classes by stream.
    pub fn new(items: Arc<Items>, streams: [Classes; 3]) -> Self {
        Counting { items: [items.clone(), items], streams }
    }

    /// The classes of a stream.
    pub fn classes(&self, stream: Split) -> &Classes {
        &self.streams[stream as usize]
    }

    /// A stream from which sets of `most` elements cannot be drawn, with its number of classes.
    pub fn lacks(&self, most: usize) -> Option<(Split, usize)> {
        [Split::Training, Split::Validation, Split::Test].into_iter().find_map(|stream| {
            let classes = self.classes(stream);
            let (count, smallest) = (classes.0.len(), classes.smallest());
            let enough = smallest >= 2 && count.min(most).saturating_mul(smallest) >= 2 * most;
            (!enough).then_some((stream, count))
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

    fn pick(&self, stream: Split, size: IntRange, rng: &mut Generator, picked: &mut [Vec<u32>]) -> f64 {
        let classes = &self.classes(stream).0;
        let sizes = [size.draw(rng), size.draw(rng)];
        let palette = distinct(sizes[0].max(sizes[1]), classes.len(), rng);
        let mut there = vec![[false; 2]; palette.len()];
        let mut used: Vec<u32> = Vec::with_capacity(sizes[0] + sizes[1]);
        for (set, n) in sizes.into_iter().enumerate() {
            let mut left = n;
            while left > 0 {
                let place = rng.random_range(0..palette.len());
                let class = &classes[palette[place]];
                let item = class[rng.random_range(0..class.len())];
                if !used.contains(&item) {
                    used.push(item);
                    picked[set].push(item);
                    there[place][set] = true;
                    left -= 1;
                }
            }
        }
        there.iter().filter(|t| t[0] && t[1]).count() as f64
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
        assert_no_leak([Split::Training, Split::Validation, Split::Test].map(|s| (s, counting.classes(s))));
        for stream in [Split::Training, Split::Validation, Split::Test] {
            let picked = Picked::draw(&counting, stream, IntRange::new(6, 10), 300, 1);
            let allowed: HashSet<u32> = counting.classes(stream).0.iter().flatten().copied().collect();
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
    fn data_that_is_too_small_for_the_sets_is_found_out() {
        assert_eq!(counting().lacks(10), None);
        assert_eq!(counting().lacks(50), Some((Split::Validation, 4)));
    }
}
