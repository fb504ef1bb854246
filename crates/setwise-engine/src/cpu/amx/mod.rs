//! Products on AMX, the matrix unit of x86 processors: f32 numbers as two bf16 parts each (bf16x3).
//!
//! A number is split into its *high* part, the nearest bf16 number, and its *low* part, the rounded remainder.
//! Together they have 16 bits of 24 (PyTorch's float32 matmul precision "high"). Of the four products of parts, low ×
//! low is left out: it is at most 2⁻¹⁶ of the result. Sums are in f32, and their order depends on sizes alone. NaN
//! stays NaN; infinity, or what rounds to it, becomes NaN.
//!
//! A *tile* is 16 rows of 64 bytes. A left tile has 32 numbers along the sum in each row. A right tile has, in each of
//! 16 rows, two numbers along the sum for each of 16 columns. Left and right tiles of the same numbers are thus
//! transposes of each other, in units of two numbers. Along the sum, both hold numbers in the order 0, 16, 1, 17 and
//! so on, which is cheapest to write.
//!
//! A *block* is two tiles of each part: 32 rows or columns by 32 numbers along the sum. Loading blocks takes a third
//! of the time of multiplying them.
//!
//! A *narrow* weight has sizes that are multiples of 16, but not both of 32. In its products a left row holds both
//! parts of 16 numbers, alternating. On the right, one tile has the high part twice, another has the low part and
//! zero. That is two tile products for 16 numbers instead of three for 32, without padding.
//!
//! * `multiply` multiplies blocks, `emulated` does so without AMX; `blocks` splits rows into blocks.
//! * `linear` and `attention` are built on both; `narrow_attention`, for heads of eight numbers, has its own tiles.
//! * `unsupported` is the stub for other targets.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod attention;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod blocks;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod emulated;
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
/// Elements of a tile, and of a block.
const TILE_LEN: usize = 512;
const BLOCK_LEN: usize = 4 * TILE_LEN;
/// Rows of a chunk of a weight gradient's sum.
const CHUNK: usize = 128;
/// Head width whose backward pass computes only scores on AMX.
const NARROW_HEAD: usize = 8;

/// Rows of a weight that one gradient task owns: many, since every task packs all inputs.
pub const WEIGHT_ROWS: usize = 256;

/// Whether the forward and backward products of a weight of these sizes run on AMX.
pub fn supports(outputs: usize, inputs: usize) -> bool {
    outputs.is_multiple_of(TILE_SIDE) && inputs.is_multiple_of(TILE_SIDE) && outputs * inputs > 0
}

/// Whether the gradient of the weight runs on AMX too. For narrow weights, splitting both operands takes as long as
/// the full product on vectors.
pub fn supports_gradient(outputs: usize, inputs: usize) -> bool {
    supports(outputs, inputs) && !narrow(outputs, inputs)
}

/// Whether a supported weight of these sizes is narrow.
fn narrow(outputs: usize, inputs: usize) -> bool {
    outputs % BLOCK_SIDE + inputs % BLOCK_SIDE > 0
}

/// Elements of a packed weight, for one direction.
pub fn blocks_len(k: usize, n: usize) -> usize {
    if narrow(k, n) {
        k / TILE_SIDE * (n / TILE_SIDE) * 2 * TILE_LEN
    } else {
        k / BLOCK_SIDE * (n / BLOCK_SIDE) * BLOCK_LEN
    }
}

/// Scratch of a product of rows of `k` numbers, in f32 elements: 32 × 32 results, and two times 32 split rows.
pub fn product_scratch(k: usize) -> usize {
    BLOCK_SIDE * BLOCK_SIDE + 2 * (k / TILE_SIDE * TILE_LEN)
}

/// Scratch of the gradient of `m` rows of a weight with `n` inputs, in f32 elements.
pub fn weight_scratch(m: usize, n: usize) -> usize {
    (m + n) / BLOCK_SIDE * (CHUNK / BLOCK_SIDE) * BLOCK_LEN / 2
}

/// Whether attention with this head width runs on AMX, or its backward pass takes scores from there.
///
/// Blocks of other narrow heads are mostly zeros, and exponentials take longer than scores there. Few queries do not
/// pay for splitting all keys. The split parts of many wide keys exceed a thread's scratch.
pub fn supports_attention(queries: usize, keys: usize, width: usize, backward: bool) -> bool {
    let fits = width >= BLOCK_SIDE || backward && width == NARROW_HEAD;
    fits && queries >= 16 && keys.saturating_mul(width) <= 1 << 22
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_width_decides_whether_attention_uses_amx() {
        let fits = |width| [false, true].map(|backward| supports_attention(125, 125, width, backward));
        assert_eq!(fits(8), [false, true]);
        assert_eq!(fits(16), [false, false]);
        assert_eq!(fits(32), [true, true]);
        assert!(!supports_attention(15, 125, 32, true) && !supports_attention(125, 1 << 18, 32, true));
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn a_nested_tile_configuration_leaves_tiles_configured() {
        use super::multiply::{Amx, BlockMultiply, InitialSum, emulated};
        // The emulation needs no configuration.
        if !available() || emulated() {
            return;
        }
        let _outer = TileConfig::load();
        drop(TileConfig::load());
        let (ones, mut sums) = (vec![0x3f80; BLOCK_LEN], vec![f32::NAN; BLOCK_SIDE * BLOCK_SIDE]);
        let (a, c) = (ones.as_ptr(), sums.as_mut_ptr());
        // SAFETY: a block on either side and one of results; tiles are configured.
        unsafe { Amx::multiply(a, a, 1, c, BLOCK_SIDE, InitialSum::Zero) };
        // Both parts of every number are one, and low × low is left out.
        assert!(sums.iter().all(|&x| x == 96.0), "{sums:?}");
    }
}
