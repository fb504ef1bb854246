//! Items grouped by class, and classes grouped by split.

use crate::samplers::Split;

/// Indices of items by class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Classes(pub Vec<Vec<u32>>);

impl Classes {
    /// Groups items by class. Item `first + i` has class `of[i]`. Classes without items are dropped.
    pub fn group(of: &[u32], first: u32) -> Self {
        let count = of.iter().max().map_or(0, |&c| c as usize + 1);
        // Sorting handles labels far above the number of items without as many empty classes.
        let mut sorted: Vec<(u32, u32)> = of.iter().enumerate().map(|(i, &c)| (c, first + i as u32)).collect();
        sorted.sort_unstable();
        let mut classes: Vec<Vec<u32>> = Vec::with_capacity(count.min(of.len()));
        let mut last = None;
        for (class, item) in sorted {
            if last != Some(class) {
                classes.push(Vec::new());
                last = Some(class);
            }
            classes.last_mut().expect("just begun").push(item);
        }
        Classes(classes)
    }

    /// Size of the smallest class.
    pub fn smallest(&self) -> usize {
        self.0.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// Splits classes by a hash of `name` and the index of the class.
    ///
    /// Three tenths are for tests and a tenth for validation, at least one each.
    pub fn split(self, name: &str) -> [Classes; 3] {
        let n = self.0.len();
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|c| crc32fast::hash(format!("{name}/{c}").as_bytes()));
        let (tests, validation) = ((3 * n / 10).max(1), (n / 10).max(1));
        let mut splits = [Classes::default(), Classes::default(), Classes::default()];
        let mut classes = self.0;
        for (rank, class) in order.into_iter().enumerate() {
            let split = match rank {
                r if r < tests => Split::Test,
                r if r < tests + validation => Split::Validation,
                _ => Split::Training,
            };
            splits[split as usize].0.push(std::mem::take(&mut classes[class]));
        }
        splits
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Asserts that no item is in two splits.
    pub(crate) fn assert_no_leak<'a>(splits: impl IntoIterator<Item = (Split, &'a Classes)>) {
        let mut seen: HashMap<u32, Split> = HashMap::new();
        for (split, classes) in splits {
            for &item in classes.0.iter().flatten() {
                assert_eq!(*seen.entry(item).or_insert(split), split, "item {item} is in two splits");
            }
        }
    }

    #[test]
    fn every_class_is_in_one_split_and_the_splits_are_deterministic() {
        let labels: Vec<u32> = (0..430).map(|i| i % 43).collect();
        let split_classes = || Classes::group(&labels, 100).split("signs");
        let splits = split_classes();
        assert_eq!(splits, split_classes());
        assert_eq!(splits.each_ref().map(|s| s.0.len()), [27, 4, 12]);
        assert_no_leak(Split::ALL.into_iter().zip(&splits));
        assert!(splits.iter().all(|s| s.smallest() == 10));
        // Even few classes give each split one.
        assert_eq!(Classes::group(&[0, 1, 2, 3, 4], 0).split("few").map(|s| s.0.len()), [3, 1, 1]);
    }

    #[test]
    fn labels_may_be_any_numbers() {
        assert_eq!(Classes::group(&[u32::MAX, 3, u32::MAX], 10), Classes(vec![vec![11], vec![10, 12]]));
    }
}
