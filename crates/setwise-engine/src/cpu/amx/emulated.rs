//! Block products without AMX: the same products one by one.
//!
//! The order of sums differs, and denormal numbers count, which AMX flushes to zero. The emulation tests the code
//! around AMX on machines without AMX.

use super::blocks::{LEFT, RIGHT};
use super::multiply::{BlockMultiply, InitialSum, Pending};
use super::{BLOCK_LEN, BLOCK_SIDE, TILE_LEN, TILE_SIDE};

/// The emulation.
pub struct Emulated;

impl BlockMultiply for Emulated {
    unsafe fn load_left(pending: &mut Pending, left: [*const u16; 2]) {
        pending.left = Some(left);
    }

    unsafe fn issue<const J: usize>(pending: &mut Pending, right: *const u16, to: *mut f32) {
        if let Some([left, right]) = pending.products[J] {
            for (i, j) in (0..TILE_SIDE).flat_map(|i| (0..TILE_SIDE).map(move |j| (i, j))) {
                // SAFETY: elements of the two tiles, which stay valid by the caller's contract.
                let product = |k: usize| unsafe {
                    number(left, i * BLOCK_SIDE + k) * number(right, k / 2 * BLOCK_SIDE + 2 * j + k % 2)
                };
                // SAFETY: the caller's contract: a square of 32 × 32 results.
                unsafe {
                    *to.add((J / 2 * TILE_SIDE + i) * BLOCK_SIDE + J % 2 * TILE_SIDE + j) =
                        (0..BLOCK_SIDE).map(product).sum()
                };
            }
        }
        pending.products[J] = pending.left.map(|left| [left[J / 2], right]);
    }

    unsafe fn multiply(a: *const u16, b: *const u16, count: usize, c: *mut f32, c_row: usize, start: InitialSum) {
        let (start, start_row) = start.rows(c, c_row);
        let mut sums = [[0.0f32; BLOCK_SIDE]; BLOCK_SIDE];
        for block in 0..count {
            let (a, b) = (a.wrapping_add(block * BLOCK_LEN), b.wrapping_add(block * BLOCK_LEN));
            for k in 0..BLOCK_SIDE {
                let right = RIGHT.map(|part| {
                    std::array::from_fn::<f32, BLOCK_SIDE, _>(|j| {
                        // SAFETY: an element of block `block`, below `count`.
                        unsafe { number(b, part + j / 16 * TILE_LEN + k / 2 * 32 + j % 16 * 2 + k % 2) }
                    })
                });
                for (i, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: an element of block `block`, below `count`.
                    let left = LEFT.map(|part| unsafe { number(a, part + i / 16 * TILE_LEN + i % 16 * 32 + k) });
                    for (j, sum) in sums.iter_mut().enumerate() {
                        *sum += left[1] * right[0][j] + left[0] * right[0][j] + left[0] * right[1][j];
                    }
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                // SAFETY: the caller's contract: 32 rows of `c`, and of `start` where it is not null.
                unsafe {
                    let out = c.add(i * c_row + j);
                    *out = sum + if start.is_null() { 0.0 } else { *start.add(i * start_row + j) };
                }
            }
        }
    }

    unsafe fn multiply_narrow(a: *const u16, b: *const u16, count: usize, c: *mut f32) {
        for (i, j) in (0..BLOCK_SIDE).flat_map(|i| (0..TILE_SIDE).map(move |j| (i, j))) {
            let mut sum = 0.0f32;
            for (pair, k) in (0..count).flat_map(|p| (0..BLOCK_SIDE).map(move |k| (2 * p, k))) {
                // SAFETY: elements of tiles below `2 * count`.
                let left = unsafe { number(a, (pair + i / TILE_SIDE) * TILE_LEN + i % TILE_SIDE * BLOCK_SIDE + k) };
                for part in [pair, pair + 1] {
                    // SAFETY: as for the left tile.
                    sum += left * unsafe { number(b, part * TILE_LEN + k / 2 * BLOCK_SIDE + 2 * j + k % 2) };
                }
            }
            // SAFETY: the caller's contract: 32 rows of `c`, 32 numbers apart.
            unsafe { *c.add(i * BLOCK_SIDE + j) = sum };
        }
    }
}

/// A bf16 number of a tile.
///
/// # Safety
/// `at` lies in the blocks at `block`.
unsafe fn number(block: *const u16, at: usize) -> f32 {
    // SAFETY: the caller's contract.
    f32::from_bits(u32::from(unsafe { *block.add(at) }) << 16)
}
