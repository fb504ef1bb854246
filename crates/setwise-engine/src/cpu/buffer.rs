//! Memory that begins at a cache line and that tasks share by address.

use super::tasks::{Ptr, align_offset};
use crate::real::Real;

/// Elements that alignment may skip: one cache line of the smallest type.
const SLACK: usize = 16;

/// Zeroed memory whose first element lies at a multiple of 64 bytes.
///
/// [`AlignedBuffer::at`] gives addresses to write through while the buffer itself is shared. They stay valid until the
/// next [`AlignedBuffer::allocate`].
pub struct AlignedBuffer<T> {
    data: Vec<T>,
    /// The first aligned element, from `Vec::as_mut_ptr`.
    start: Ptr<T>,
}

impl<T: Real> AlignedBuffer<T> {
    pub fn new() -> Self {
        AlignedBuffer { data: Vec::new(), start: Ptr(std::ptr::NonNull::dangling().as_ptr()) }
    }

    /// Elements from the aligned start on that the buffer is sure to have.
    pub fn capacity(&self) -> usize {
        self.data.len().saturating_sub(SLACK)
    }

    /// Elements of memory held, those before the aligned start included.
    pub fn allocated(&self) -> usize {
        self.data.len()
    }

    /// Replaces the memory by zeros with this capacity. Fails, and holds nothing, if there is no such memory.
    pub fn allocate(&mut self, capacity: usize) -> bool {
        self.data = Vec::new();
        let wanted = capacity.saturating_add(SLACK);
        let available = Vec::<T>::new().try_reserve_exact(wanted).is_ok();
        if available {
            self.data = vec![T::ZERO; wanted];
        }
        let p = self.data.as_mut_ptr();
        self.start = Ptr(p.wrapping_add(align_offset(p)));
        available
    }

    /// Address of an element.
    #[inline]
    pub fn at(&self, offset: usize) -> Ptr<T> {
        debug_assert!(offset <= self.capacity(), "offset {offset} of {} elements", self.capacity());
        Ptr(self.start.at(offset))
    }

    /// Some elements. Nobody writes to them while the slice lives.
    pub fn slice(&self, offset: usize, len: usize) -> &[T] {
        &self.data[align_offset(self.data.as_ptr()) + offset..][..len]
    }
}
