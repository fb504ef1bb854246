//! One set of several examples, an example in each lane of a vector. As `mixture`, only for kernels.

use setwise_engine::simd::Vector;

use super::{LANES, TILE};
use setwise_engine::SetView;

/// The numbers of a vector.
#[inline(always)]
pub(super) unsafe fn numbers<V: Vector<f32>>(v: V) -> [f32; LANES] {
    let mut numbers = [0.0; LANES];
    unsafe { v.store(numbers.as_mut_ptr()) };
    numbers
}

/// One set of several examples.
pub(super) struct Points<V> {
    /// `[len, width]`, zero where an example has no such point or coordinate.
    pub coordinates: Vec<V>,
    /// One where an example has the point, zero elsewhere.
    pub live: Vec<V>,
    /// Points of every example.
    pub counts: [usize; LANES],
    /// Their mean.
    pub middle: Vec<V>,
    /// Points of the largest, and coordinates, both in whole tiles.
    pub len: usize,
    pub width: usize,
    /// Coordinates that are not padding.
    pub own_width: usize,
}

impl<V: Vector<f32>> Points<V> {
    #[inline(always)]
    pub unsafe fn of(set: SetView<f64>, examples: std::ops::Range<usize>) -> Self {
        let own_width = set.width;
        let width = own_width.next_multiple_of(TILE);
        let mut counts = [0; LANES];
        for (count, i) in counts.iter_mut().zip(examples.clone()) {
            *count = set.offsets[i + 1] - set.offsets[i];
        }
        let len = counts.iter().max().map_or(0, |n| n.next_multiple_of(TILE));
        let mut coordinates = Vec::with_capacity(len * width);
        let mut live = Vec::with_capacity(len);
        for i in 0..len {
            for j in 0..width {
                let mut lanes = [0.0; LANES];
                for (lane, example) in examples.clone().enumerate() {
                    if i < counts[lane] && j < own_width {
                        lanes[lane] = set.data[(set.offsets[example] + i) * own_width + j] as f32;
                    }
                }
                coordinates.push(unsafe { V::load(lanes.as_ptr()) });
            }
            let lanes = counts.map(|n| if i < n { 1.0 } else { 0.0 });
            live.push(unsafe { V::load(lanes.as_ptr()) });
        }
        let shares = counts.map(|n| 1.0 / n.max(1) as f32);
        let share = unsafe { V::load(shares.as_ptr()) };
        let mut middle = vec![unsafe { V::zero() }; width];
        for point in coordinates.chunks_exact(width) {
            for (m, x) in middle.iter_mut().zip(point) {
                *m = unsafe { share.mul_add(*x, *m) };
            }
        }
        Points { coordinates, live, counts, middle, len, width, own_width }
    }

    /// What starts order points by: their places along the first axis and the last, and their squared distances from the middle.
    #[inline(always)]
    pub unsafe fn key(&self, start: Start, i: usize) -> V {
        let point = &self.coordinates[i * self.width..(i + 1) * self.width];
        match start {
            Start::First => point[0],
            Start::Last => point[self.own_width - 1],
            Start::Radius => {
                let mut square = unsafe { V::zero() };
                for (x, m) in point.iter().zip(&self.middle) {
                    let apart = unsafe { x.sub(*m) };
                    square = unsafe { apart.mul_add(apart, square) };
                }
                square
            }
        }
    }
}

/// What points are ordered by, to be cut into groups of one size.
#[derive(Clone, Copy)]
pub(super) enum Start {
    First,
    Radius,
    Last,
}
