//! Two sets of images, each of one class of one data set. The label is whether both classes are the same.

use std::sync::Arc;

use rand::RngExt;

use setwise::distributions::IntRange;
use setwise::random::Generator;

use super::classes::Classes;
use super::pick::distinct;
use super::{Items, Picker};
use crate::samplers::Split;

/// Labels 1 and 0 are equally likely. X and Y are disjoint sets of images of one class (label 1) or two (label 0).
///
/// A class is chosen by a random data set, then a random class of it. A set has at most half as many elements as the
/// smallest class of its data set. This bound does not depend on the label, so sizes do not reveal it.
#[derive(Clone, Debug)]
pub struct SameClass {
    items: [Arc<Items>; 2],
    /// By split, then by data set.
    splits: [Vec<Classes>; 3],
}

impl SameClass {
    /// A task on images, with the classes of each data set by split.
    pub fn new(items: Arc<Items>, sets: Vec<[Classes; 3]>) -> Self {
        let mut splits = [Vec::new(), Vec::new(), Vec::new()];
        for set in sets {
            for (split, classes) in splits.iter_mut().zip(set) {
                if !classes.0.is_empty() {
                    split.push(classes);
                }
            }
        }
        SameClass { items: [items.clone(), items], splits }
    }

    /// The classes of a split, by data set.
    pub fn sets(&self, split: Split) -> &[Classes] {
        &self.splits[split as usize]
    }

    /// The first split that is too small to draw examples, with its number of classes.
    pub fn shortage(&self) -> Option<(Split, usize)> {
        Split::ALL.into_iter().find_map(|split| {
            let classes: usize = self.sets(split).iter().map(|s| s.0.len()).sum();
            let enough = classes >= 2 && self.sets(split).iter().all(|s| s.smallest() >= 2);
            (!enough).then_some((split, classes))
        })
    }
}

impl Picker for SameClass {
    fn items(&self) -> &[Arc<Items>] {
        &self.items
    }

    fn pick(&self, split: Split, size: IntRange, rng: &mut Generator, picked: &mut [Vec<u32>]) -> f64 {
        let sets = self.sets(split);
        let class = |rng: &mut Generator| {
            let set = rng.random_range(0..sets.len());
            (set, rng.random_range(0..sets[set].0.len()))
        };
        let same = rng.random_bool(0.5);
        let first = class(rng);
        let second = match same {
            true => first,
            false => loop {
                let other = class(rng);
                if other != first {
                    break other;
                }
            },
        };
        let sizes = [first, second].map(|(set, _)| size.draw(rng).min(sets[set].smallest() / 2));
        let items = |(set, class): (usize, usize)| &sets[set].0[class];
        if same {
            let chosen = distinct(sizes[0] + sizes[1], items(first).len(), rng);
            let (x, y) = chosen.split_at(sizes[0]);
            picked[0].extend(x.iter().map(|&i| items(first)[i]));
            picked[1].extend(y.iter().map(|&i| items(first)[i]));
        } else {
            for (k, which) in [first, second].into_iter().enumerate() {
                let chosen = distinct(sizes[k], items(which).len(), rng);
                picked[k].extend(chosen.into_iter().map(|i| items(which)[i]));
            }
        }
        f64::from(u8::from(same))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::classes::tests::assert_no_leak;
    use super::*;
    use crate::datasets::Picked;

    #[test]
    fn sets_have_one_class_each_and_share_no_item() {
        // One data set has classes of 100 items, the other, from item 1000 on, classes of 20.
        let big: Vec<u32> = (0..1000).map(|i| i / 100).collect();
        let small: Vec<u32> = (0..400).map(|i| i / 20).collect();
        let items = Arc::new(Items::bytes(1, vec![0; 1400]));
        let same = SameClass::new(
            items,
            vec![Classes::group(&big, 0).split("big"), Classes::group(&small, 1000).split("small")],
        );
        assert_eq!(same.shortage(), None);
        let splits = Split::ALL;
        assert_no_leak(splits.iter().flat_map(|&s| same.sets(s).iter().map(move |c| (s, c))));
        let class = |i: u32| if i < 1000 { i / 100 } else { 10 + (i - 1000) / 20 };
        for split in splits {
            let picked = Picked::draw(&same, split, IntRange::new(10, 30), 300, 2);
            let mut sames = 0.0;
            for (i, &label) in picked.labels.iter().enumerate() {
                let [x, y] = [0, 1].map(|k| &picked.sets[k][picked.offsets[k][i]..picked.offsets[k][i + 1]]);
                assert!([x, y].iter().all(|s| s.iter().all(|&i| class(i) == class(s[0]))));
                assert_eq!(f64::from(u8::from(class(x[0]) == class(y[0]))), label);
                assert_eq!(x.iter().chain(y).collect::<HashSet<_>>().len(), x.len() + y.len());
                for s in [x, y] {
                    assert!(if s[0] < 1000 { (10..=30).contains(&s.len()) } else { s.len() == 10 });
                }
                sames += label;
            }
            assert!((110.0..190.0).contains(&sames), "{sames} of 300");
        }
    }
}
