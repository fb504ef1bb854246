//! Splits rows of f32 numbers into blocks of bf16 tiles.

use std::arch::x86_64::*;

use super::{BLOCK_LEN, BLOCK_SIDE, TILE_LEN, TILE_SIDE};
use crate::simd::Vector;
use crate::simd::avx512::F32x16;

/// Offsets of the high and the low tiles in a block, on the left and on the right.
pub const LEFT: [usize; 2] = [2 * TILE_LEN, 0];
pub const RIGHT: [usize; 2] = [0, 2 * TILE_LEN];

/// High and low bf16 parts of 16 numbers, each in the upper half of 32 bits. NaNs become canonical first: rounding may
/// turn the bits of others into numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub fn split_bf16(x: __m512) -> (__m512i, __m512i) {
    split_bf16_canonical(canonical_nan(x))
}

/// The same for numbers whose NaNs are canonical ([`canonical_nan`]).
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub fn split_bf16_canonical(x: __m512) -> (__m512i, __m512i) {
    let half = _mm512_set1_epi32(0x8000);
    let high = _mm512_add_epi32(_mm512_castps_si512(x), half);
    let nearest = _mm512_castsi512_ps(_mm512_and_si512(high, _mm512_set1_epi32(0xffff_0000_u32 as i32)));
    (high, _mm512_add_epi32(_mm512_castps_si512(_mm512_sub_ps(x, nearest)), half))
}

/// The same numbers, with every NaN replaced by the one that arithmetic produces.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub fn canonical_nan(x: __m512) -> __m512 {
    // Quiet and signalling NaNs become the default NaN; all else stays.
    _mm512_fixupimm_ps::<0>(x, x, _mm512_set1_epi32(0x33))
}

/// The upper halves of the lanes of both, interleaved, `a` first.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub fn interleave_upper(a: __m512i, b: __m512i) -> __m512i {
    // x | (y & z)
    const OR_AND: i32 = 0xf8;
    _mm512_ternarylogic_epi32::<OR_AND>(_mm512_srli_epi32(a, 16), b, _mm512_set1_epi32(0xffff_0000_u32 as i32))
}

/// Writes a row of 32 numbers, in two vectors, as row `r` of a block, in the order 0, 16, 1, 17 and so on.
///
/// # Safety
/// `block` has `BLOCK_LEN` elements, `r < 32`, `parts_at` is [`LEFT`] or [`RIGHT`], and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn store_row(row: [(__m512i, __m512i); 2], block: *mut u16, parts_at: [usize; 2], r: usize) {
    // SAFETY: `r < 32`: row `r % 16` of tile `r / 16` of two, 32 elements, for each part at its offset.
    unsafe {
        let tile = block.add(r / 16 * TILE_LEN + r % 16 * BLOCK_SIDE);
        _mm512_storeu_si512(tile.add(parts_at[0]).cast(), interleave_upper(row[0].0, row[1].0));
        _mm512_storeu_si512(tile.add(parts_at[1]).cast(), interleave_upper(row[0].1, row[1].1));
    }
}

/// Writes two rows of 32 numbers, rows `pair` and `pair + 16` of 32, as pairs along the sum for 32 columns of a block.
///
/// # Safety
/// As of [`store_row`], with `pair < 16`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn store_row_pair(rows: [[(__m512i, __m512i); 2]; 2], block: *mut u16, parts_at: [usize; 2], pair: usize) {
    let [upper, lower] = rows;
    for (c, (upper, lower)) in upper.into_iter().zip(lower).enumerate() {
        // SAFETY: `pair < 16` is a row of tile `c` of two, 32 elements, for each part at its offset.
        unsafe {
            let tile = block.add(c * TILE_LEN + pair * BLOCK_SIDE);
            _mm512_storeu_si512(tile.add(parts_at[0]).cast(), interleave_upper(upper.0, lower.0));
            _mm512_storeu_si512(tile.add(parts_at[1]).cast(), interleave_upper(upper.1, lower.1));
        }
    }
}

/// Rows of numbers with a stride.
#[derive(Clone, Copy)]
pub struct Source {
    pub ptr: *const f32,
    pub row: usize,
    pub width: usize,
}

/// The blocks that 32 rows are split into.
#[derive(Clone, Copy)]
pub struct SplitTo {
    /// Blocks whose sum runs along the rows, and the offsets of their parts.
    pub rows: Option<(*mut u16, [usize; 2])>,
    /// Blocks whose sum runs over the rows, the offsets of their parts, and the stride in blocks to the next 32
    /// columns.
    pub columns: Option<(*mut u16, [usize; 2], usize)>,
}

impl SplitTo {
    pub fn rows(blocks: *mut u16, parts_at: [usize; 2]) -> Self {
        SplitTo { rows: Some((blocks, parts_at)), columns: None }
    }

    pub fn columns(blocks: *mut u16, parts_at: [usize; 2], apart: usize) -> Self {
        SplitTo { rows: None, columns: Some((blocks, parts_at, apart)) }
    }

    /// Writes 32 numbers, from column `at` on, of rows `pair` and `pair + 16`.
    ///
    /// # Safety
    /// As for [`split`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
    unsafe fn store(self, rows: [[(__m512i, __m512i); 2]; 2], at: usize, pair: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            if let Some((blocks, parts_at)) = self.rows {
                let block = blocks.add(at / BLOCK_SIDE * BLOCK_LEN);
                store_row(rows[0], block, parts_at, pair);
                store_row(rows[1], block, parts_at, pair + 16);
            }
            if let Some((blocks, parts_at, apart)) = self.columns {
                store_row_pair(rows, blocks.add(at / BLOCK_SIDE * apart * BLOCK_LEN), parts_at, pair);
            }
        }
    }
}

/// Splits 32 rows into left tiles of rows and right tiles of columns, padded with zeros to full blocks. Only the first
/// `n` rows exist; the others are zeros. Callers transpose tiles that belong on the other side. Rows are read from
/// start to end, which suits the prefetcher.
///
/// # Safety
/// `n` rows, the blocks of `to`, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn split(src: Source, n: usize, to: SplitTo) {
    // SAFETY: the caller's contract. Row `pair` is read only if `pair < n`, row `pair + 16` only if that is below `n`,
    // and `rest` numbers where a row ends. `to` has blocks for `width` columns, rounded up to 32.
    unsafe {
        let (full, rest) = (src.width / BLOCK_SIDE * BLOCK_SIDE, src.width % BLOCK_SIDE);
        for pair in 0..BLOCK_SIDE / 2 {
            let upper = src.ptr.wrapping_add(pair * src.row);
            let lower = upper.wrapping_add(16 * src.row);
            let valid = [pair < n, pair + 16 < n];
            if valid[1] {
                for at in (0..full).step_by(BLOCK_SIDE) {
                    to.store([split_row(upper.add(at)), split_row(lower.add(at))], at, pair);
                }
            } else {
                for at in (0..full).step_by(BLOCK_SIDE) {
                    to.store([if valid[0] { split_row(upper.add(at)) } else { zeros() }, zeros()], at, pair);
                }
            }
            if rest > 0 {
                let numbers = valid.map(|valid| if valid { rest } else { 0 });
                let rows = [
                    split_row_start(upper.wrapping_add(full), numbers[0]),
                    split_row_start(lower.wrapping_add(full), numbers[1]),
                ];
                to.store(rows, full, pair);
            }
        }
    }
}

/// Splits the first `n` of 32 rows into narrow left tiles: both parts of 16 numbers in a row, of the upper 16 rows,
/// then of the lower. Rows from `n` on are not written.
///
/// # Safety
/// `n` rows, two tiles for every 16 numbers of a row, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn split_narrow(src: Source, n: usize, tiles: *mut u16) {
    for (at, half) in (0..src.width / TILE_SIDE).flat_map(|at| [(at, 0), (at, 1)]) {
        let rows = n.saturating_sub(half * TILE_SIDE).min(TILE_SIDE);
        let from = src.ptr.wrapping_add(half * TILE_SIDE * src.row + at * TILE_SIDE);
        let to = tiles.wrapping_add((2 * at + half) * TILE_LEN);
        // SAFETY: the caller's contract: rows below `n` are read, and two tiles for every 16 columns are written.
        unsafe {
            for r in (0..rows / 4 * 4).step_by(4) {
                for r in [r, r + 1, r + 2, r + 3] {
                    store_both_parts(from.add(r * src.row), to.add(r * BLOCK_SIDE));
                }
            }
            for r in rows / 4 * 4..rows {
                store_both_parts(from.add(r * src.row), to.add(r * BLOCK_SIDE));
            }
        }
    }
}

/// Writes high and low parts of 16 numbers, alternating.
///
/// # Safety
/// 16 numbers at `from`, 32 elements at `to`, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn store_both_parts(from: *const f32, to: *mut u16) {
    // SAFETY: the caller's contract.
    unsafe {
        let (high, low) = split_bf16(_mm512_loadu_ps(from));
        _mm512_storeu_si512(to.cast(), interleave_upper(high, low));
    }
}

/// Writes 16 numbers, one for each column, as row `r` of two narrow right tiles.
///
/// # Safety
/// `tiles` is valid for two tiles, `r` < 16, and the machine has AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn store_narrow_row(numbers: __m512, tiles: *mut u16, r: usize) {
    // SAFETY: row `r` < 16 of each tile is one vector of 32 numbers of 16 bits.
    unsafe {
        let (high, low) = split_bf16(numbers);
        _mm512_storeu_si512(tiles.add(r * BLOCK_SIDE).cast(), interleave_upper(high, high));
        _mm512_storeu_si512(tiles.add(TILE_LEN + r * BLOCK_SIDE).cast(), _mm512_srli_epi32(low, 16));
    }
}

/// Parts of 32 numbers of a row.
///
/// # Safety
/// 32 numbers, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn split_row(from: *const f32) -> [(__m512i, __m512i); 2] {
    // SAFETY: the caller's contract.
    unsafe { [split_bf16(_mm512_loadu_ps(from)), split_bf16(_mm512_loadu_ps(from.add(16)))] }
}

/// The same for the first `numbers` of them; the others are zero.
///
/// # Safety
/// As many numbers, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn split_row_start(from: *const f32, numbers: usize) -> [(__m512i, __m512i); 2] {
    // SAFETY: the caller's contract; masked lanes are not read.
    unsafe {
        let second = F32x16::load_first(from.wrapping_add(16), numbers.saturating_sub(16));
        [split_bf16(F32x16::load_first(from, numbers).0), split_bf16(second.0)]
    }
}

/// The same for a row of zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
fn zeros() -> [(__m512i, __m512i); 2] {
    [(_mm512_setzero_si512(), _mm512_setzero_si512()); 2]
}

/// Transposes the tiles of `count` blocks, `apart` blocks from each other.
///
/// # Safety
/// `blocks` is valid for (`count` − 1) · `apart` + 1 blocks if `count` > 0, and the machine has AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn transpose_tiles(blocks: *mut u16, count: usize, apart: usize) {
    for tile in 0..4 * count {
        // SAFETY: block `tile / 4` < `count` begins `tile / 4 · apart` blocks after `blocks`, and has four tiles.
        unsafe { transpose_tile(blocks.add(tile / 4 * apart * BLOCK_LEN + tile % 4 * TILE_LEN)) }
    }
}

/// Transposes a tile in place, in units of two numbers: a left tile becomes a right one and the reverse.
///
/// # Safety
/// A tile, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn transpose_tile(tile: *mut u16) {
    // SAFETY: the caller's contract: a tile is 16 rows of 32 elements.
    unsafe {
        let mut transposed = [_mm512_setzero_si512(); 16];
        for (quarter, transposed) in transposed.chunks_mut(4).enumerate() {
            // A quarter of rows i, i + 4, i + 8 and i + 12: broadcasting loads place them without shuffles.
            let quarter_of = |row: usize| _mm_loadu_si128(tile.add(32 * row + 8 * quarter).cast());
            let rows: [__m512i; 4] = std::array::from_fn(|i| {
                let first = _mm512_castsi128_si512(quarter_of(i));
                let two = _mm512_mask_broadcast_i32x4(first, 0x00f0, quarter_of(i + 4));
                let three = _mm512_mask_broadcast_i32x4(two, 0x0f00, quarter_of(i + 8));
                _mm512_mask_broadcast_i32x4(three, 0xf000, quarter_of(i + 12))
            });
            let low = [_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpacklo_epi32(rows[2], rows[3])];
            let high = [_mm512_unpackhi_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[2], rows[3])];
            transposed[0] = _mm512_unpacklo_epi64(low[0], low[1]);
            transposed[1] = _mm512_unpackhi_epi64(low[0], low[1]);
            transposed[2] = _mm512_unpacklo_epi64(high[0], high[1]);
            transposed[3] = _mm512_unpackhi_epi64(high[0], high[1]);
        }
        for (i, row) in transposed.iter().enumerate() {
            _mm512_storeu_si512(tile.add(32 * i).cast(), *row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::gemm::tests::numbers;
    use super::super::multiply::has_avx512;
    use super::*;

    #[test]
    fn high_and_low_parts_sum_to_the_number_in_sixteen_bits() {
        if !has_avx512() {
            return;
        }
        let x: Vec<f32> = numbers(16 * 32, 7).iter().map(|x| x * 1e-3).collect();
        let (mut high, mut low) = ([0; TILE_LEN], [0; TILE_LEN]);
        let number = |x: u16| f32::from_bits(u32::from(x) << 16);
        let mut block = [0; BLOCK_LEN];
        let source = |x: &[f32], width: usize| Source { ptr: x.as_ptr(), row: width, width };
        // SAFETY: 16 rows of 32 numbers and one block; the machine has AVX-512.
        unsafe { split(source(&x, 32), 16, SplitTo::rows(block.as_mut_ptr(), RIGHT)) };
        high.copy_from_slice(&block[..TILE_LEN]);
        low.copy_from_slice(&block[2 * TILE_LEN..3 * TILE_LEN]);
        // Numbers 0, 16, 1, 17 and so on of a row.
        let index = |i: usize| i / 2 + i % 2 * 16;
        for i in 0..TILE_LEN {
            let x = x[i / 32 * 32 + index(i % 32)];
            assert!((number(high[i]) + number(low[i]) - x).abs() <= x.abs() * 2f32.powi(-16));
        }
        // Quiet and signalling NaNs, zeros and the smallest normal number.
        let none = [0x7fc0_0000, 0x7fff_ffff, 0xffff_8000, 0x7f80_0001, 0xff80_0001, 0x7fbf_ffff].map(f32::from_bits);
        let odd = [none.as_slice(), &[-0.0, 0.0, f32::MIN_POSITIVE]].concat();
        let mut row = [1.0f32; 32];
        row[..odd.len()].copy_from_slice(&odd);
        let mut odd_block = [0; BLOCK_LEN];
        // SAFETY: one row of 32 numbers and one block.
        unsafe { split(source(&row, 32), 1, SplitTo::rows(odd_block.as_mut_ptr(), RIGHT)) };
        for i in 0..32 {
            let x = &row[index(i)];
            let sum = number(odd_block[i]) + number(odd_block[2 * TILE_LEN + i]);
            assert!(if x.is_nan() { sum.is_nan() } else { sum == *x }, "{x} became {sum}");
        }
        let before = high;
        // SAFETY: one tile.
        unsafe { transpose_tile(high.as_mut_ptr()) };
        for (row, pair) in (0..16).flat_map(|r| (0..16).map(move |p| (r, p))) {
            assert_eq!(high[pair * 32 + 2 * row..][..2], before[row * 32 + 2 * pair..][..2]);
        }
        // The same numbers by rows of 16 columns are a right tile.
        let transposed: Vec<f32> = (0..32 * 16).map(|i| x[i % 16 * 32 + i / 16]).collect();
        // SAFETY: 32 rows of 16 numbers and one block.
        unsafe { split(source(&transposed, 16), 32, SplitTo::columns(block.as_mut_ptr(), RIGHT, 1)) };
        assert_eq!(block[..TILE_LEN], high);
    }
}
