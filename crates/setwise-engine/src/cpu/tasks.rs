//! Splits work into tasks independently of the number of threads, and gives each thread scratch memory.

use std::ops::Range;
use std::sync::Mutex;

use rayon::prelude::*;

use crate::real::Real;

/// Who runs the tasks of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread: the batch itself is spread over threads.
    One,
    /// All threads of the current pool.
    All,
}

impl Threads {
    /// Runs `f(0), …, f(n − 1)` in any order.
    #[inline]
    pub fn run(self, n: usize, f: impl Fn(usize) + Sync + Send) {
        if self == Threads::One || n == 1 {
            (0..n).for_each(f);
        } else {
            (0..n).into_par_iter().with_max_len(1).for_each(f);
        }
    }
}

/// Finds the group and the index within it of task `i`, where `counts` are the tasks of each group.
pub fn locate(mut i: usize, counts: impl IntoIterator<Item = usize>) -> (usize, usize) {
    for (group, count) in counts.into_iter().enumerate() {
        if i < count {
            return (group, i);
        }
        i -= count;
    }
    unreachable!("task index beyond the last group")
}

/// Chunk `i` of a range split into chunks of `step`.
pub fn chunk_range(range: Range<usize>, i: usize, step: usize) -> Range<usize> {
    let first = range.start + i * step;
    first..range.end.min(first + step)
}

/// A pointer that tasks may share. Whoever dereferences it makes sure that tasks write to disjoint addresses.
#[derive(Clone, Copy)]
pub struct Ptr<T>(pub *mut T);

// SAFETY: a plain address; each dereference has its own reason why tasks do not race.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Ptr<T> {}

impl<T> Ptr<T> {
    /// The address `n` elements on. (A method, so that closures capture the wrapper and not the bare pointer.) The
    /// pointer itself may lie outside of any buffer. Whoever dereferences the result makes sure that the result does
    /// not.
    #[inline(always)]
    pub fn at(self, n: usize) -> *mut T {
        self.0.wrapping_add(n)
    }
}

/// One growing buffer per thread, kept between steps. No thread ever waits for its lock.
pub struct Scratch<T> {
    slots: Vec<Mutex<Vec<T>>>,
    threads: Threads,
}

impl<T: Real> Scratch<T> {
    pub fn new(threads: Threads) -> Self {
        Scratch { slots: Vec::new(), threads }
    }

    /// Makes sure that every thread has a slot.
    pub fn prepare(&mut self) {
        let threads = if self.threads == Threads::One { 1 } else { rayon::current_num_threads() + 1 };
        if self.slots.len() < threads {
            self.slots.resize_with(threads, || Mutex::new(Vec::new()));
        }
    }

    /// Calls `f` with at least `len` elements, aligned to a cache line, with arbitrary contents.
    pub fn with<R>(&self, len: usize, f: impl FnOnce(*mut T) -> R) -> R {
        let last = self.slots.len() - 1;
        let slot = rayon::current_thread_index().unwrap_or(last).min(last);
        let mut buffer = match self.slots[slot].lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        if buffer.len() < len + 16 {
            buffer.resize(len + 16, T::ZERO);
        }
        let p = buffer.as_mut_ptr();
        let aligned = p.wrapping_add(align_offset(p));
        debug_assert!(aligned.addr().is_multiple_of(64) && align_offset(p) + len <= buffer.len());
        f(aligned)
    }
}

/// Elements to skip until the address is a multiple of 64.
pub fn align_offset<T>(p: *const T) -> usize {
    p.align_offset(64).min(16)
}
