//! Products on the tile unit of x86 processors (AMX), of single-precision numbers in two bf16 parts each.
//!
//! A number is its *high* part, the nearest bf16 number, and its *low* part, what is left, likewise rounded: 16 bits of 24 (what PyTorch calls the precision "high"). Of the four products
//! of parts the one of two low parts, 2⁻¹⁶ of the whole or less, is left out. Sums are in single precision, and their order depends on sizes alone. What is no number stays none;
//! what is infinite, or rounds to it, becomes none.
//!
//! A tile is 16 rows of 64 bytes. On the left a row has 32 numbers along the sum; on the right each of 16 rows has two numbers along the sum for each of 16 columns, so that a
//! left tile and a right one of the same numbers are each other's transposes, two numbers at a time. Of 32 numbers along the sum
//! a tile has 0, 16, 1, 17 and so on, on both sides, as is easiest to write. A *block* is two tiles of each part: 32 rows or columns by 32 along the sum. The unit
//! multiplies blocks, which take a third as long to load as to multiply.
//!
//! Weights whose sizes are multiples of 16, but not both of 32, are *narrow*: both parts of 16 numbers fill a row on the left, high and low in turn, and on the right a tile has the high part twice and
//! another one the low part and zero. That is two products of tiles for 16 numbers instead of three for 32, and nothing is filled up.
//!
//! `multiply` multiplies blocks, `blocks` makes them, `linear` and `attention` are what is made of that; `narrow_attention`, for heads of eight numbers, has tiles of its own.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod attention;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod blocks;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod linear;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod multiply;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod narrow_attention;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod unsupported;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use {
    attention::{attention_backward, attention_forward, attention_scratch},
    linear::{pack_backward, pack_forward, products, weight_product},
    multiply::{TileConfig, available},
};

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub use unsupported::*;

/// Rows and columns of a block, and its numbers along the sum.
const BLOCK_SIDE: usize = 32;
/// Rows or columns of a tile.
const TILE_SIDE: usize = 16;
/// Numbers of a tile, and of a block.
const TILE_LEN: usize = 512;
const BLOCK_LEN: usize = 4 * TILE_LEN;
/// Rows that a gradient of weights takes at a time.
const CHUNK: usize = 128;
/// Numbers of a head whose gradients have their scores alone from the unit.
const NARROW_HEAD: usize = 8;

/// Rows of a weight that one gradient task owns: many, since each packs all inputs.
pub const WEIGHT_ROWS: usize = 256;

/// Whether a weight of these sizes is multiplied in tiles, forward and backward.
pub fn supports(outputs: usize, inputs: usize) -> bool {
    outputs.is_multiple_of(TILE_SIDE) && inputs.is_multiple_of(TILE_SIDE) && outputs * inputs > 0
}

/// Whether its gradient is too: of narrow ones splitting both sides takes as long as vectors take for all.
pub fn supports_gradient(outputs: usize, inputs: usize) -> bool {
    supports(outputs, inputs) && !narrow(outputs, inputs)
}

/// Whether a weight of these sizes, that fits, is narrow.
fn narrow(outputs: usize, inputs: usize) -> bool {
    outputs % BLOCK_SIDE + inputs % BLOCK_SIDE > 0
}

/// Length of a weight's blocks, for one direction; of a narrow weight's tiles.
pub fn blocks_len(k: usize, n: usize) -> usize {
    if narrow(k, n) {
        k / TILE_SIDE * (n / TILE_SIDE) * 2 * TILE_LEN
    } else {
        k / BLOCK_SIDE * (n / BLOCK_SIDE) * BLOCK_LEN
    }
}

/// Scratch of a product of rows of `k` numbers, in single-precision numbers: the results of 32 rows, and two times 32 rows that are split.
pub fn product_scratch(k: usize) -> usize {
    BLOCK_SIDE * BLOCK_SIDE + 2 * (k / TILE_SIDE * TILE_LEN)
}

/// Scratch of the gradient of `m` rows of a weight with `n` inputs, likewise.
pub fn weight_scratch(m: usize, n: usize) -> usize {
    (m + n) / BLOCK_SIDE * (CHUNK / BLOCK_SIDE) * BLOCK_LEN / 2
}

/// Whether attention with heads of this width has its products in tiles, or its gradients have scores from there. Blocks of other narrow heads are mostly zeros, and where the width is small making powers
/// of the scores takes longer than making scores; few queries are not worth splitting all keys for; and what is split of many wide keys would not fit a thread's memory.
pub fn supports_attention(queries: usize, keys: usize, width: usize, backward: bool) -> bool {
    let fits = width >= BLOCK_SIDE || backward && width == NARROW_HEAD;
    fits && queries >= 16 && keys.saturating_mul(width) <= 1 << 22
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_go_to_the_unit_by_their_width() {
        let fits = |width| [false, true].map(|backward| supports_attention(125, 125, width, backward));
        assert_eq!(fits(8), [false, true]);
        assert_eq!(fits(16), [false, false]);
        assert_eq!(fits(32), [true, true]);
        assert!(!supports_attention(15, 125, 32, true) && !supports_attention(125, 1 << 18, 32, true));
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn one_use_of_the_unit_within_another_leaves_it_set_up() {
        use super::multiply::{Amx, BlockMultiply, InitialSum, emulated};
        // The stand-in needs no setting up.
        if !available() || emulated() {
            return;
        }
        let _outer = TileConfig::load();
        drop(TileConfig::load());
        let (ones, mut sums) = (vec![0x3f80; BLOCK_LEN], vec![f32::NAN; BLOCK_SIDE * BLOCK_SIDE]);
        let (a, c) = (ones.as_ptr(), sums.as_mut_ptr());
        // SAFETY: a block on either side and one of results; the unit is in use.
        unsafe { Amx::multiply(a, a, 1, c, BLOCK_SIDE, InitialSum::Zero) };
        // Both parts of every number are one, and the product of two low ones is left out.
        assert!(sums.iter().all(|&x| x == 96.0), "{sums:?}");
    }
}
