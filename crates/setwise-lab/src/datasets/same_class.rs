//! Two sets of images, each of one class of one data set: the same class or not.

use std::sync::Arc;

use rand::RngExt;

use setwise::distributions::IntRange;
use setwise::random::Generator;

use super::classes::Classes;
use super::pick::distinct;
use super::{Items, Picker};
use crate::samplers::Split;

/// With probability one half (label 1) X and Y are images of one class, none of them in both; otherwise (label 0) of two classes, each
/// chosen by a data set and then a class of it. A set has no more elements than half of the smallest class of its data set, whatever the
/// label, so that sizes tell nothing.
#[derive(Clone, Debug)]
pub struct SameClass {
    items: [Arc<Items>; 2],
    /// By stream, then by data set.
    streams: [Vec<Classes>; 3],
}

impl SameClass {
    /// From images, and the classes of each data set by stream.
    pub fn new(items: Arc<Items>, sets: Vec<[Classes; 3]>) -> Self {
        let mut streams = [Vec::new(), Vec::new(), Vec::new()];
        for set in sets {
            for (stream, classes) in streams.iter_mut().zip(set) {
                if !classes.0.is_empty() {
                    stream.push(classes);
                }
            }
        }
        SameClass { items: [items.clone(), items], streams }
    }

    /// The classes of each data set of a stream.
    pub fn sets(&self, stream: Split) -> &[Classes] {
        &self.streams[stream as usize]
    }

    /// A stream from which no examples can be drawn, with its number of classes.
    pub fn lacks(&self) -> Option<(Split, usize)> {
        [Split::Training, Split::Validation, Split::Test].into_iter().find_map(|stream| {
            let classes: usize = self.sets(stream).iter().map(|s| s.0.len()).sum();
            let enough = classes >= 2 && self.sets(stream).iter().all(|s| s.smallest() >= 2);
            (!enough).then_some((stream, classes))
        })
    }
}

impl Picker for SameClass {
    fn items(&self) -> &[Arc<Items>] {
        &self.items
    }

    fn pick(&self, stream: Split, size: IntRange, rng: &mut Generator, picked: &mut [Vec<u32>]) -> f64 {
        let sets = self.sets(stream);
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
    fn sets_are_of_one_class_each_and_share_nothing() {
        // Classes of 100 items in one data set and of 20 in another; the class of item i is i / 100, or i / 20 from 1000 on.
        let big: Vec<u32> = (0..1000).map(|i| i / 100).collect();
        let small: Vec<u32> = (0..400).map(|i| i / 20).collect();
        let items = Arc::new(Items::bytes(1, vec![0; 1400]));
        let same = SameClass::new(
            items,
            vec![Classes::group(&big, 0).split("big"), Classes::group(&small, 1000).split("small")],
        );
        assert_eq!(same.lacks(), None);
        let streams = [Split::Training, Split::Validation, Split::Test];
        assert_no_leak(streams.iter().flat_map(|&s| same.sets(s).iter().map(move |c| (s, c))));
        let class = |i: u32| if i < 1000 { i / 100 } else { 10 + (i - 1000) / 20 };
        for stream in streams {
            let picked = Picked::draw(&same, stream, IntRange::new(10, 30), 300, 2);
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
