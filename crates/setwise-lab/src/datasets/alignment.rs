//! Two sets whose elements match one to one, or do not match at all.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rand::RngExt;

use setwise::distributions::IntRange;
use setwise::random::Generator;

use super::{Items, Picker};
use crate::samplers::Split;

/// A left item and the right items that match it: an image and its captions, a word and its translations.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The left item.
    pub left: u32,
    /// The right items, at least one.
    pub right: Vec<u32>,
}

/// X has left items and Y as many right items. Labels 1 and 0 are equally likely.
///
/// With label 1 the elements of X and Y match one to one. With label 0 no element of Y matches any of X. Splits share
/// neither left nor right items.
#[derive(Clone, Debug)]
pub struct Alignment {
    items: [Arc<Items>; 2],
    entries: [Vec<Entry>; 3],
}

impl Alignment {
    /// A task from pairs of left and right items, each with the split of the left item.
    ///
    /// The split of a right item is the strictest of its pairs: test, then validation, then training. Pairs whose
    /// items have different splits are dropped.
    pub fn of(items: [Arc<Items>; 2], pairs: impl IntoIterator<Item = (u32, u32, Split)>) -> Self {
        let pairs: Vec<(u32, u32, Split)> = pairs.into_iter().collect();
        let mut split_of: HashMap<u32, Split> = HashMap::new();
        for &(_, right, split) in &pairs {
            let strictest = split_of.entry(right).or_insert(split);
            if split as usize > *strictest as usize {
                *strictest = split;
            }
        }
        let mut entries = [(); 3].map(|()| Vec::<Entry>::new());
        let mut indices: HashMap<u32, usize> = HashMap::new();
        for (left, right, split) in pairs.into_iter().filter(|(_, right, split)| split_of[right] == *split) {
            let list = &mut entries[split as usize];
            match indices.get(&left) {
                Some(&index) => list[index].right.push(right),
                None => {
                    indices.insert(left, list.len());
                    list.push(Entry { left, right: vec![right] });
                }
            }
        }
        Alignment { items, entries }
    }

    /// The entries of a split.
    pub fn entries(&self, split: Split) -> &[Entry] {
        &self.entries[split as usize]
    }

    /// The first split that is too small for sets of `max_size` elements, with its number of entries.
    pub fn shortage(&self, max_size: usize) -> Option<(Split, usize)> {
        Split::ALL.into_iter().find_map(|split| {
            let entries = self.entries(split);
            let right: HashSet<u32> = entries.iter().flat_map(|e| &e.right).copied().collect();
            let widest = entries.iter().map(|e| e.right.len()).max().unwrap_or(1);
            // For any X, as many right items must remain that match none of it.
            let enough = entries.len() > 2 * max_size && right.len() > max_size * (1 + widest);
            (!enough).then_some((split, entries.len()))
        })
    }
}

impl Picker for Alignment {
    fn items(&self) -> &[Arc<Items>] {
        &self.items
    }

    fn pick(&self, split: Split, size: IntRange, rng: &mut Generator, picked: &mut [Vec<u32>]) -> f64 {
        let entries = self.entries(split);
        let n = size.draw(rng);
        let aligned = rng.random_bool(0.5);
        let mut left: Vec<&Entry> = Vec::with_capacity(n);
        let mut right: Vec<u32> = Vec::with_capacity(n);
        let mut others: Vec<u32> = Vec::with_capacity(n);
        while left.len() < n {
            let entry = &entries[rng.random_range(0..entries.len())];
            let chosen = entry.right[rng.random_range(0..entry.right.len())];
            if left.iter().all(|e| e.left != entry.left) && !right.contains(&chosen) {
                left.push(entry);
                right.push(chosen);
            }
        }
        if !aligned {
            right.clear();
            while right.len() < n {
                let entry = &entries[rng.random_range(0..entries.len())];
                let chosen = entry.right[rng.random_range(0..entry.right.len())];
                let apart = !others.contains(&entry.left) && !right.contains(&chosen);
                if apart && left.iter().all(|e| e.left != entry.left && !e.right.contains(&chosen)) {
                    others.push(entry.left);
                    right.push(chosen);
                }
            }
        }
        picked[0].extend(left.iter().map(|e| e.left));
        picked[1].extend(right);
        f64::from(u8::from(aligned))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::datasets::Picked;

    /// Asserts that splits share no item.
    pub(crate) fn assert_no_leak(alignment: &Alignment) {
        let mut seen: [HashMap<u32, Split>; 2] = Default::default();
        for split in Split::ALL {
            for entry in alignment.entries(split) {
                assert!(!entry.right.is_empty());
                let items = std::iter::once((0, entry.left)).chain(entry.right.iter().map(|&r| (1, r)));
                for (kind, item) in items {
                    let first = *seen[kind].entry(item).or_insert(split);
                    assert_eq!(first, split, "item {item} of kind {kind} is in two splits");
                }
            }
        }
    }

    /// Asserts that each example has its label, by the pairs themselves.
    pub(crate) fn assert_labels(alignment: &Alignment, size: IntRange) {
        for split in Split::ALL {
            let belongs: HashSet<(u32, u32)> =
                alignment.entries(split).iter().flat_map(|e| e.right.iter().map(|&r| (e.left, r))).collect();
            let picked = Picked::draw(alignment, split, size, 200, 5);
            let mut aligned = 0;
            for (i, &label) in picked.labels.iter().enumerate() {
                let [x, y] = [0, 1].map(|k| &picked.sets[k][picked.offsets[k][i]..picked.offsets[k][i + 1]]);
                assert!(x.len() == y.len() && size.min <= x.len() && x.len() <= size.max);
                for set in [x, y] {
                    assert_eq!(set.iter().collect::<HashSet<_>>().len(), set.len(), "an element is there twice");
                }
                let matched = x.iter().zip(y).filter(|&(&a, &b)| belongs.contains(&(a, b))).count();
                let any = x.iter().any(|&a| y.iter().any(|&b| belongs.contains(&(a, b))));
                if label == 1.0 {
                    assert_eq!(matched, x.len());
                    aligned += 1;
                } else {
                    assert!(!any, "an element of an unaligned example has its partner");
                }
            }
            assert!((60..140).contains(&aligned), "{aligned} of 200 are aligned");
        }
    }

    /// A dictionary in which words share translations across splits.
    fn tangled() -> Alignment {
        let items = [Arc::new(Items::floats(1, vec![0.0; 300])), Arc::new(Items::floats(1, vec![0.0; 300]))];
        let split = |left: u32| Split::ALL[left as usize % 3];
        let pairs =
            (0..300u32).flat_map(|l| [(l, l), (l, (l + 3) % 300), (l, (l * 7) % 300)].map(|(l, r)| (l, r, split(l))));
        Alignment::of(items, pairs)
    }

    #[test]
    fn splits_share_no_item_even_where_words_share_translations() {
        let alignment = tangled();
        assert_no_leak(&alignment);
        assert!(Split::ALL.iter().all(|&s| alignment.entries(s).len() > 20));
    }

    #[test]
    fn examples_are_aligned_in_every_element_or_in_none() {
        assert_labels(&tangled(), IntRange::new(1, 6));
        assert!(tangled().shortage(6).is_none() && tangled().shortage(100).is_some());
    }
}
