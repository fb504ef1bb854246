//! Two sets that belong together element by element, or do not at all.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rand::RngExt;

use setwise::distributions::IntRange;
use setwise::random::Generator;

use super::{Items, Picker};
use crate::samplers::Split;

/// An item of the first kind with those of the second that belong to it: an image and its captions, a word and its translations.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The item of the first kind.
    pub left: u32,
    /// Those of the second, at least one.
    pub right: Vec<u32>,
}

/// X of items of one kind and Y, as large, of items of another. With probability one half (label 1) every element of Y belongs to one of X
/// and the other way round; otherwise (label 0) no element of Y belongs to any of X.
///
/// Nothing of one stream is seen in another: neither items of the first kind nor of the second.
#[derive(Clone, Debug)]
pub struct Alignment {
    items: [Arc<Items>; 2],
    entries: [Vec<Entry>; 3],
}

impl Alignment {
    /// From pairs of a left and a right item with what the left one is for. A right item belongs to the strictest use any of its pairs
    /// has (test before validation before training); pairs of a left item with right ones of another use are dropped.
    pub fn of(items: [Arc<Items>; 2], pairs: impl IntoIterator<Item = (u32, u32, Split)>) -> Self {
        let pairs: Vec<(u32, u32, Split)> = pairs.into_iter().collect();
        let mut use_of: HashMap<u32, Split> = HashMap::new();
        for &(_, right, stream) in &pairs {
            let strictest = use_of.entry(right).or_insert(stream);
            if stream as usize > *strictest as usize {
                *strictest = stream;
            }
        }
        let mut entries = [(); 3].map(|()| Vec::<Entry>::new());
        let mut places: HashMap<u32, usize> = HashMap::new();
        for (left, right, stream) in pairs.into_iter().filter(|(_, right, stream)| use_of[right] == *stream) {
            let list = &mut entries[stream as usize];
            match places.get(&left) {
                Some(&place) => list[place].right.push(right),
                None => {
                    places.insert(left, list.len());
                    list.push(Entry { left, right: vec![right] });
                }
            }
        }
        Alignment { items, entries }
    }

    /// The entries of a stream.
    pub fn entries(&self, stream: Split) -> &[Entry] {
        &self.entries[stream as usize]
    }

    /// Whether sets of `most` elements can be drawn from every stream; if not, from which they cannot.
    pub fn lacks(&self, most: usize) -> Option<(Split, usize)> {
        [Split::Training, Split::Validation, Split::Test].into_iter().find_map(|stream| {
            let entries = self.entries(stream);
            let right: HashSet<u32> = entries.iter().flat_map(|e| &e.right).copied().collect();
            let widest = entries.iter().map(|e| e.right.len()).max().unwrap_or(1);
            // Whatever X is, as many right items must be left that belong to none of it.
            let enough = entries.len() > 2 * most && right.len() > most * (1 + widest);
            (!enough).then_some((stream, entries.len()))
        })
    }
}

impl Picker for Alignment {
    fn items(&self) -> &[Arc<Items>] {
        &self.items
    }

    fn pick(&self, stream: Split, size: IntRange, rng: &mut Generator, picked: &mut [Vec<u32>]) -> f64 {
        let entries = self.entries(stream);
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

    const STREAMS: [Split; 3] = [Split::Training, Split::Validation, Split::Test];

    /// Proves that streams have nothing in common, whatever is drawn from them.
    pub(crate) fn assert_no_leak(alignment: &Alignment) {
        let mut seen: [HashMap<u32, Split>; 2] = Default::default();
        for stream in STREAMS {
            for entry in alignment.entries(stream) {
                assert!(!entry.right.is_empty());
                let items = std::iter::once((0, entry.left)).chain(entry.right.iter().map(|&r| (1, r)));
                for (kind, item) in items {
                    let first = *seen[kind].entry(item).or_insert(stream);
                    assert_eq!(first, stream, "item {item} of kind {kind} is in two streams");
                }
            }
        }
    }

    /// Each example is what its label says, by the pairs themselves.
    pub(crate) fn assert_labels(alignment: &Alignment, size: IntRange) {
        for stream in STREAMS {
            let belongs: HashSet<(u32, u32)> =
                alignment.entries(stream).iter().flat_map(|e| e.right.iter().map(|&r| (e.left, r))).collect();
            let picked = Picked::draw(alignment, stream, size, 200, 5);
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

    /// A dictionary in which translations are shared between words, also of different streams.
    fn tangled() -> Alignment {
        let items = [Arc::new(Items::floats(1, vec![0.0; 300])), Arc::new(Items::floats(1, vec![0.0; 300]))];
        let stream = |left: u32| STREAMS[left as usize % 3];
        let pairs =
            (0..300u32).flat_map(|l| [(l, l), (l, (l + 3) % 300), (l, (l * 7) % 300)].map(|(l, r)| (l, r, stream(l))));
        Alignment::of(items, pairs)
    }

    #[test]
    fn nothing_of_one_stream_is_in_another_even_where_translations_are_shared() {
        let alignment = tangled();
        assert_no_leak(&alignment);
        assert!(STREAMS.iter().all(|&s| alignment.entries(s).len() > 20));
    }

    #[test]
    fn examples_are_aligned_throughout_or_nowhere() {
        assert_labels(&tangled(), IntRange::new(1, 6));
        assert!(tangled().lacks(6).is_none() && tangled().lacks(100).is_some());
    }
}
