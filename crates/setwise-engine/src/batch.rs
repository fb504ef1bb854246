//! Packed ragged batches: the rows of all examples of a set one after another, with offsets.

use crate::error::Error;

/// A borrowed batch: for each set its data `[rows, width]` and offsets `[examples + 1]`.
#[derive(Clone, Debug)]
pub struct BatchView<'a, T> {
    /// One entry per set.
    pub sets: Vec<SetView<'a, T>>,
}

/// One set of every example, packed.
#[derive(Clone, Copy, Debug)]
pub struct SetView<'a, T> {
    /// Row-major `[rows, width]`.
    pub data: &'a [T],
    /// Numbers in a row.
    pub width: usize,
    /// `offsets[i]..offsets[i + 1]` are the rows of example `i`.
    pub offsets: &'a [usize],
}

impl<T> BatchView<'_, T> {
    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.sets.first().map_or(0, |s| s.offsets.len().saturating_sub(1))
    }

    /// Checks that offsets rise strictly from zero to the number of rows, with the same number of examples in all
    /// sets.
    pub fn check(&self) -> Result<(), Error> {
        let examples = self.examples();
        if examples == 0 {
            return Err(Error::EmptyBatch);
        }
        for (set, s) in self.sets.iter().enumerate() {
            let rows = s.data.len().checked_div(s.width).unwrap_or(0);
            let bad = |reason| Err(Error::Offsets { set, rows, reason });
            if s.offsets.len() != examples + 1 {
                return bad("the number of examples differs from set 0");
            }
            if s.offsets[0] != 0 {
                return bad("they do not start at zero");
            }
            if s.width == 0 || s.data.len() != rows * s.width {
                return bad("the data is no multiple of the row width");
            }
            if let Some(example) = s.offsets.windows(2).position(|w| w[1] <= w[0]) {
                return if s.offsets[example + 1] < s.offsets[example] {
                    bad("they decrease")
                } else {
                    Err(Error::EmptySet { set, example })
                };
            }
            if s.offsets[examples] != rows {
                return bad("they do not end at the number of rows");
            }
        }
        Ok(())
    }
}
