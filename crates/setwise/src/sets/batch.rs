//! Packed ragged batches.

use setwise_engine::{BatchView, SetView};

use crate::{Error, Result};

/// A batch of examples with the same number of sets; set sizes are ragged.
///
/// Each set holds the rows of all examples one after another, with offsets and without padding.
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
    /// A packed set of rows of `width` numbers, with `offsets` by example.
    pub fn new(data: Vec<f32>, width: usize, offsets: Vec<usize>) -> Self {
        PackedSet { data, width, offsets }
    }

    /// All rows, row-major.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// Width of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// `offsets()[i]..offsets()[i + 1]` are the rows of example `i`.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Appends the rows of one example.
    ///
    /// # Panics
    /// If the length of `rows` is not a multiple of the width.
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
    /// A batch of packed sets. Fails if offsets do not match the data or a set is empty.
    pub fn new(sets: Vec<PackedSet>) -> Result<Self> {
        let batch = SetBatch { sets };
        batch.view().check()?;
        Ok(batch)
    }

    /// A batch of examples with row-major sets, all of row width `width`.
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

    /// A batch of examples with row-major sets; set `k` has row width `widths[k]`.
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

    /// A borrowed view for the engine.
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
    fn an_empty_set_is_refused_by_its_indices() {
        let error = SetBatch::from_examples(1, &[vec![&[1.0], &[2.0]], vec![&[1.0], &[]]]).unwrap_err();
        assert_eq!(error.to_string(), "set 1 of example 1 is empty");
    }

    #[test]
    fn offsets_that_do_not_match_the_data_are_refused() {
        for offsets in [vec![0, 2], vec![1, 3], vec![0, 4], vec![0, 2, 1, 3]] {
            assert!(SetBatch::new(vec![PackedSet::new(vec![0.0; 3], 1, offsets)]).is_err());
        }
        assert!(SetBatch::new(Vec::new()).is_err());
    }
}
