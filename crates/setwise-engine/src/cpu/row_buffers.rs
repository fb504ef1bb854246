//! Slots for values that exist for a few rows at a time, in a buffer small enough to stay in cache.

use super::buffer::AlignedBuffer;
use super::tasks::Ptr;
use crate::program::{Program, Slice, Value};
use crate::real::Real;

/// Some columns of a value, in rows without gaps.
struct Slot<T> {
    col: usize,
    cols: usize,
    /// The address row zero would have; only the rows the slot was allocated for exist.
    value: Ptr<T>,
    /// The same for the gradient, where it has a slot too.
    grad: Option<Ptr<T>>,
}

/// Elements of a slot for `rows` rows of `cols` columns: full cache lines.
pub fn slot_len(rows: usize, cols: usize) -> usize {
    rows.saturating_mul(cols).saturating_add(15) / 16 * 16
}

/// The slots in use.
pub struct RowBuffers<T> {
    /// For each value its slots; empty for values that lie in the arena.
    slots: Vec<Vec<Slot<T>>>,
    /// Values that have slots.
    held: Vec<Value>,
    buffer: AlignedBuffer<T>,
    used: usize,
}

impl<T: Real> RowBuffers<T> {
    pub fn new(program: &Program) -> Self {
        let slots = program.values.iter().map(|_| Vec::new()).collect();
        RowBuffers { slots, held: Vec::new(), buffer: AlignedBuffer::new(), used: 0 }
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

    /// Frees all slots.
    pub fn clear(&mut self) {
        for v in self.held.drain(..) {
            self.slots[v.0].clear();
        }
        self.used = 0;
    }

    /// Allocates a slot for `rows` rows of a slice, from row `first` on, and with `grad` another for their gradients.
    pub fn add(&mut self, slice: Slice, first: usize, rows: usize, grad: bool) {
        let mut next = || {
            let offset = self.used;
            self.used += slot_len(rows, slice.cols);
            assert!(self.used <= self.buffer.capacity(), "slots exceed the capacity of the row buffers");
            // Row zero may lie outside of the buffer; nobody dereferences it.
            Ptr(self.buffer.at(offset).0.wrapping_sub(first * slice.cols))
        };
        let slot = Slot { col: slice.col, cols: slice.cols, value: next(), grad: grad.then(next) };
        self.slots[slice.value.0].push(slot);
        self.held.push(slice.value);
    }

    /// Address and row stride of some columns of a value or of its gradient, if they have a slot.
    #[inline]
    pub fn slice(&self, s: Slice, grad: bool) -> Option<(Ptr<T>, usize)> {
        let slots = &self.slots[s.value.0];
        let slot = slots.iter().find(|l| l.col <= s.col && s.col + s.cols <= l.col + l.cols)?;
        let start = if grad { slot.grad? } else { slot.value };
        Some((Ptr(start.0.wrapping_add(s.col - slot.col)), slot.cols))
    }

    /// Address of a value, if it has a slot; then the slot holds all its columns.
    #[inline]
    pub fn value(&self, v: Value) -> Option<Ptr<T>> {
        self.slots[v.0].first().map(|l| l.value)
    }

    /// Address of the gradient, likewise.
    #[inline]
    pub fn grad(&self, v: Value) -> Option<Ptr<T>> {
        self.slots[v.0].first()?.grad
    }
}
