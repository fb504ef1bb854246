//! One set of several examples, an example in each lane of a vector.
//!
//! As in `mixture`, functions are `unsafe` because the instructions of `V` must exist.

use setwise_engine::simd::Vector;

use super::{LANES, TILE};
use setwise_engine::SetView;

/// The lanes of a vector.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn lanes<V: Vector<f32>>(v: V) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    // SAFETY: the caller has the instructions of V, and no vector has more than LANES lanes.
    unsafe { v.store(lanes.as_mut_ptr()) };
    lanes
}

/// One set of several examples.
pub(super) struct Points<V> {
    /// `[len, width]`, zero where an example has no such point or coordinate.
    pub coordinates: Vec<V>,
    /// One where an example has the point, zero elsewhere.
    pub present: Vec<V>,
    /// The number of points of every example.
    pub counts: [usize; LANES],
    /// The mean of every example's points, `[width]`.
    pub mean: Vec<V>,
    /// The number of points of the largest example, padded to full tiles.
    pub len: usize,
    /// The number of coordinates, padded to full tiles.
    pub width: usize,
    /// The number of coordinates without padding.
    pub unpadded_width: usize,
}

impl<V: Vector<f32>> Points<V> {
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn of(set: SetView<f64>, examples: std::ops::Range<usize>) -> Self {
        let unpadded_width = set.width;
        let width = unpadded_width.next_multiple_of(TILE);
        let mut counts = [0; LANES];
        for (count, i) in counts.iter_mut().zip(examples.clone()) {
            *count = set.offsets[i + 1] - set.offsets[i];
        }
        let len = counts.iter().max().map_or(0, |n| n.next_multiple_of(TILE));
        let mut coordinates = Vec::with_capacity(len * width);
        let mut present = Vec::with_capacity(len);
        for i in 0..len {
            for j in 0..width {
                let mut lanes = [0.0; LANES];
                for (lane, example) in examples.clone().enumerate() {
                    if i < counts[lane] && j < unpadded_width {
                        lanes[lane] = set.data[(set.offsets[example] + i) * unpadded_width + j] as f32;
                    }
                }
                // SAFETY: the caller has the instructions of V, and no vector has more than LANES lanes.
                coordinates.push(unsafe { V::load(lanes.as_ptr()) });
            }
            let lanes = counts.map(|n| if i < n { 1.0 } else { 0.0 });
            // SAFETY: as above.
            present.push(unsafe { V::load(lanes.as_ptr()) });
        }
        let inverse_counts = counts.map(|n| 1.0 / n.max(1) as f32);
        // SAFETY: as above.
        let mean = unsafe {
            let inverse_count = V::load(inverse_counts.as_ptr());
            let mut mean = vec![V::zero(); width];
            for point in coordinates.chunks_exact(width) {
                for (m, x) in mean.iter_mut().zip(point) {
                    *m = inverse_count.mul_add(*x, *m);
                }
            }
            mean
        };
        Points { coordinates, present, counts, mean, len, width, unpadded_width }
    }

    /// The key of point `i`.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn key(&self, key: Key, i: usize) -> V {
        let point = &self.coordinates[i * self.width..(i + 1) * self.width];
        match key {
            Key::FirstAxis => point[0],
            Key::LastAxis => point[self.unpadded_width - 1],
            // SAFETY: the caller has the instructions of V.
            Key::Radius => unsafe {
                let mut square = V::zero();
                for (x, m) in point.iter().zip(&self.mean) {
                    let difference = x.sub(*m);
                    square = difference.mul_add(difference, square);
                }
                square
            },
        }
    }
}

/// The sort key of a start, which splits the sorted points into groups of equal size.
#[derive(Clone, Copy)]
pub(super) enum Key {
    /// The first coordinate.
    FirstAxis,
    /// The squared distance from the mean.
    Radius,
    /// The last coordinate.
    LastAxis,
}
