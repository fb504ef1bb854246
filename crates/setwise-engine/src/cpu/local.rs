//! Places of values that exist for a few rows at a time, in a buffer small enough to stay in cache.

use super::tasks::{Ptr, align_offset};
use crate::program::{Program, Slice, Value};
use crate::real::Real;

/// Some columns of a local value, laid without gaps.
struct Slot<T> {
    col: usize,
    cols: usize,
    /// Where row zero would be, of the values and, if they are here too, of their gradients: only the rows at hand have a place.
    value: Ptr<T>,
    grad: Option<Ptr<T>>,
}

/// Numbers that a place for `rows` rows of `cols` columns takes: whole cache lines.
pub fn place_size(rows: usize, cols: usize) -> usize {
    rows.saturating_mul(cols).saturating_add(15) / 16 * 16
}

/// Where local values are at the moment.
pub struct Local<T> {
    /// For each value its slots; none if it is not local now.
    slots: Vec<Vec<Slot<T>>>,
    /// Values that have slots.
    held: Vec<Value>,
    numbers: Vec<T>,
    used: usize,
}

impl<T: Real> Local<T> {
    pub fn new(program: &Program) -> Self {
        let slots = program.values.iter().map(|_| Vec::new()).collect();
        Local { slots, held: Vec::new(), numbers: Vec::new(), used: 0 }
    }

    /// Numbers held.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there is room for `numbers`.
    pub fn has_room(&self, numbers: usize) -> bool {
        self.numbers.len() >= numbers.saturating_add(16)
    }

    /// Makes room for them, if there is as much memory.
    pub fn make_room(&mut self, numbers: usize) -> bool {
        self.clear();
        self.numbers = Vec::new();
        let there = self.numbers.try_reserve_exact(numbers + 16).is_ok();
        if there {
            self.numbers.resize(numbers + 16, T::ZERO);
        }
        there
    }

    /// Forgets all places.
    pub fn clear(&mut self) {
        for v in self.held.drain(..) {
            self.slots[v.0].clear();
        }
        self.used = 0;
    }

    /// Gives a place to `rows` rows of a slice, from row `first` on, and with `grad` another to their gradients.
    pub fn place(&mut self, slice: Slice, first: usize, rows: usize, grad: bool) {
        let start = self.numbers.as_mut_ptr();
        let room = self.numbers.len() - align_offset(start);
        let mut next = || {
            let at = self.used;
            self.used += place_size(rows, slice.cols);
            assert!(self.used <= room, "no room for local values");
            // Row zero may lie outside of the buffer; nobody looks there.
            Ptr(start.wrapping_add(align_offset(start) + at).wrapping_sub(first * slice.cols))
        };
        let slot = Slot { col: slice.col, cols: slice.cols, value: next(), grad: grad.then(next) };
        self.slots[slice.value.0].push(slot);
        self.held.push(slice.value);
    }

    /// Where some columns of a value or of its gradient begin and how far apart rows are, if they are local.
    #[inline]
    pub fn slice(&self, s: Slice, grad: bool) -> Option<(Ptr<T>, usize)> {
        let slots = &self.slots[s.value.0];
        let slot = slots.iter().find(|l| l.col <= s.col && s.col + s.cols <= l.col + l.cols)?;
        let start = if grad { slot.grad? } else { slot.value };
        Some((Ptr(start.0.wrapping_add(s.col - slot.col)), slot.cols))
    }

    /// Where a value begins, if it is local; then all its columns are.
    #[inline]
    pub fn value(&self, v: Value) -> Option<Ptr<T>> {
        self.slots[v.0].first().map(|l| l.value)
    }

    /// Where its gradient begins, likewise.
    #[inline]
    pub fn grad(&self, v: Value) -> Option<Ptr<T>> {
        self.slots[v.0].first()?.grad
    }
}
