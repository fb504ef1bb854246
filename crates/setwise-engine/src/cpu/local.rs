//! Places of values that exist for a few rows at a time, in a buffer small enough to stay in cache.

use super::buffer::AlignedBuffer;
use super::tasks::Ptr;
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
    buffer: AlignedBuffer<T>,
    used: usize,
}

impl<T: Real> Local<T> {
    pub fn new(program: &Program) -> Self {
        let slots = program.values.iter().map(|_| Vec::new()).collect();
        Local { slots, held: Vec::new(), buffer: AlignedBuffer::new(), used: 0 }
    }

    /// Elements of memory held.
    pub fn allocated(&self) -> usize {
        self.buffer.allocated()
    }

    /// Elements the slots may take at once.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Makes the capacity this large, if there is as much memory. All slots are freed.
    pub fn allocate(&mut self, capacity: usize) -> bool {
        self.clear();
        self.buffer.allocate(capacity)
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
        let mut next = || {
            let at = self.used;
            self.used += place_size(rows, slice.cols);
            assert!(self.used <= self.buffer.capacity(), "slots exceed the capacity of the row buffer");
            // Row zero may lie outside of the buffer; nobody dereferences it.
            Ptr(self.buffer.at(at).0.wrapping_sub(first * slice.cols))
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
