//! Items by class, and which classes are for what.

use crate::samplers::Split;

/// Items of classes: `classes[c]` are those of class c.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Classes(pub Vec<Vec<u32>>);

impl Classes {
    /// Groups items by class; item `i` of class `of[i]` has the number `first + i`. Classes without items are left out.
    pub fn group(of: &[u32], first: u32) -> Self {
        let count = of.iter().max().map_or(0, |&c| c as usize + 1);
        // A label far beyond the number of items would ask for that many empty classes.
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

    /// Items of the smallest class.
    pub fn smallest(&self) -> usize {
        self.0.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// Three tenths of the classes for tests and a tenth for validation, at least one each, chosen by `name` and the number of the class;
    /// by stream.
    pub fn split(self, name: &str) -> [Classes; 3] {
        let n = self.0.len();
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|c| crc32fast::hash(format!("{name}/{c}").as_bytes()));
        let (tests, validation) = ((3 * n / 10).max(1), (n / 10).max(1));
        let mut streams = [Classes::default(), Classes::default(), Classes::default()];
        let mut classes = self.0;
        for (place, class) in order.into_iter().enumerate() {
            let stream = match place {
                p if p < tests => Split::Test,
                p if p < tests + validation => Split::Validation,
                _ => Split::Training,
            };
            streams[stream as usize].0.push(std::mem::take(&mut classes[class]));
        }
        streams
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Proves that no item is in two streams.
    pub(crate) fn assert_no_leak<'a>(streams: impl IntoIterator<Item = (Split, &'a Classes)>) {
        let mut seen: HashMap<u32, Split> = HashMap::new();
        for (stream, classes) in streams {
            for &item in classes.0.iter().flatten() {
                assert_eq!(*seen.entry(item).or_insert(stream), stream, "item {item} is in two streams");
            }
        }
    }

    #[test]
    fn every_class_is_in_one_stream_only_and_the_same_one_every_time() {
        let labels: Vec<u32> = (0..430).map(|i| i % 43).collect();
        let split = || Classes::group(&labels, 100).split("signs");
        let streams = split();
        assert_eq!(streams, split());
        assert_eq!(streams.each_ref().map(|s| s.0.len()), [27, 4, 12]);
        assert_no_leak([Split::Training, Split::Validation, Split::Test].into_iter().zip(&streams));
        assert!(streams.iter().all(|s| s.smallest() == 10));
        // Few classes still leave one for each stream.
        assert_eq!(Classes::group(&[0, 1, 2, 3, 4], 0).split("few").map(|s| s.0.len()), [3, 1, 1]);
    }

    #[test]
    fn labels_may_be_any_numbers() {
        assert_eq!(Classes::group(&[u32::MAX, 3, u32::MAX], 10), Classes(vec![vec![11], vec![10, 12]]));
    }
}
