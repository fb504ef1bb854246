//! The maximal size of a batch.

use crate::program::{Space, ValueSpec};

/// The maximal size of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity {
    /// Examples.
    pub examples: usize,
    /// Elements of each set, all examples together.
    pub rows: Vec<usize>,
    /// Elements of each set in one example.
    pub max_set_len: Vec<usize>,
    /// Input dimensions of dimension-equivariant programs, one otherwise.
    pub dims: usize,
}

impl Capacity {
    pub(in super::super) fn rows(&self, space: Space) -> usize {
        match space {
            Space::Set(k) => self.rows[k],
            Space::Union => self.rows.iter().sum(),
            Space::PerExample(n) => n * self.examples,
            Space::Batch => 1,
        }
    }

    /// Maximal rows of a value, input dimensions counted.
    pub(super) fn rows_of(&self, value: &ValueSpec) -> usize {
        self.rows(value.space) * if value.per_dim { self.dims } else { 1 }
    }

    pub(super) fn max_set_len(&self, space: Space) -> usize {
        match space {
            Space::Set(k) => self.max_set_len[k],
            Space::Union => self.max_set_len.iter().sum(),
            Space::PerExample(n) => n,
            Space::Batch => 1,
        }
    }

    /// Whether a batch of another capacity fits.
    pub(in super::super) fn holds(&self, other: &Capacity) -> bool {
        let all = |a: &[usize], b: &[usize]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a >= b);
        self.examples >= other.examples
            && self.dims >= other.dims
            && all(&self.rows, &other.rows)
            && all(&self.max_set_len, &other.max_set_len)
    }

    /// The minimal capacity that holds both.
    pub(in super::super) fn join(&self, other: &Capacity) -> Capacity {
        let max_of = |a: &[usize], b: &[usize]| a.iter().zip(b).map(|(a, b)| *a.max(b)).collect();
        Capacity {
            examples: self.examples.max(other.examples),
            rows: max_of(&self.rows, &other.rows),
            max_set_len: max_of(&self.max_set_len, &other.max_set_len),
            dims: self.dims.max(other.dims),
        }
    }

    /// Numbers in the shape buffer.
    pub(in super::super) fn shape_len(&self) -> usize {
        2 + (self.rows.len() + 1) * (self.examples + 1)
    }
}
