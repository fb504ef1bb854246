//! Packed ragged batches.

use setwise_engine::{BatchView, SetView};

use crate::{Error, Result};

/// A batch of examples, each of the same number of sets; every set of every example has its own size.
///
/// Stored set by set: the rows of all examples one after another, with offsets. There is no padding.
#[derive(Clone, Debug, PartialEq)]
pub struct SetBatch {
    sets: Vec<PackedSet>,
}

/// One set of every example.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedSet {
    data: Vec<f32>,
    width: usize,
    offsets: Vec<usize>,
}

impl PackedSet {
    /// Packs data that is already laid out, rows of `width` numbers with `offsets` by example.
    pub fn new(data: Vec<f32>, width: usize, offsets: Vec<usize>) -> Self {
        PackedSet { data, width, offsets }
    }

    /// All rows, row-major.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// Numbers in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// `offsets()[i]..offsets()[i + 1]` are the rows of example `i`.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Appends the rows of one more example.
    ///
    /// # Panics
    /// If they are not a whole number of rows.
    pub fn push(&mut self, rows: &[f32]) {
        assert!(self.width > 0 && rows.len().is_multiple_of(self.width), "{} numbers, {} wide", rows.len(), self.width);
        self.data.extend_from_slice(rows);
        self.offsets.push(self.data.len() / self.width);
    }

    /// The rows of one example.
    pub fn example(&self, i: usize) -> &[f32] {
        &self.data[self.offsets[i] * self.width..self.offsets[i + 1] * self.width]
    }
}

impl SetBatch {
    /// A batch of packed sets; fails where offsets do not fit the data or a set is empty.
    pub fn new(sets: Vec<PackedSet>) -> Result<Self> {
        let batch = SetBatch { sets };
        batch.view().check()?;
        Ok(batch)
    }

    /// A batch from examples of row-major sets that all have rows of `width` numbers.
    ///
    /// ```
    /// use setwise::SetBatch;
    /// let batch = SetBatch::from_examples(1, &[vec![&[1.0, 2.0], &[3.0]], vec![&[4.0], &[5.0, 6.0]]])?;
    /// assert_eq!(batch.examples(), 2);
    /// assert_eq!(batch.sets()[0].offsets(), [0, 2, 3]);
    /// # Ok::<(), setwise::Error>(())
    /// ```
    pub fn from_examples(width: usize, examples: &[Vec<&[f32]>]) -> Result<Self> {
        let count = examples.first().map_or(0, Vec::len);
        Self::from_widths(&vec![width; count], examples)
    }

    /// A batch from examples of row-major sets; set `k` has rows of `widths[k]` numbers.
    pub fn from_widths(widths: &[usize], examples: &[Vec<&[f32]>]) -> Result<Self> {
        let mut sets: Vec<PackedSet> = widths.iter().map(|&w| PackedSet::new(Vec::new(), w, vec![0])).collect();
        for (i, example) in examples.iter().enumerate() {
            if example.len() != widths.len() {
                return Err(Error::Sets(format!(
                    "example {i} has {} sets, others have {}",
                    example.len(),
                    widths.len()
                )));
            }
            for (k, (set, rows)) in sets.iter_mut().zip(example).enumerate() {
                if set.width == 0 || !rows.len().is_multiple_of(set.width) {
                    return Err(Error::Sets(format!(
                        "set {k} of example {i} has {} numbers, which are no rows of {}",
                        rows.len(),
                        set.width
                    )));
                }
                set.push(rows);
            }
        }
        Self::new(sets)
    }

    /// The sets.
    pub fn sets(&self) -> &[PackedSet] {
        &self.sets
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.sets[0].offsets.len() - 1
    }

    /// What the engine reads.
    pub fn view(&self) -> BatchView<'_, f32> {
        BatchView {
            sets: self.sets.iter().map(|s| SetView { data: &s.data, width: s.width, offsets: &s.offsets }).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_set_is_refused_with_its_place() {
        let error = SetBatch::from_examples(1, &[vec![&[1.0], &[2.0]], vec![&[1.0], &[]]]).unwrap_err();
        assert_eq!(error.to_string(), "set 1 of example 1 is empty");
    }

    #[test]
    fn offsets_that_do_not_fit_are_refused() {
        for offsets in [vec![0, 2], vec![1, 3], vec![0, 4], vec![0, 2, 1, 3]] {
            assert!(SetBatch::new(vec![PackedSet::new(vec![0.0; 3], 1, offsets)]).is_err());
        }
        assert!(SetBatch::new(Vec::new()).is_err());
    }
}
