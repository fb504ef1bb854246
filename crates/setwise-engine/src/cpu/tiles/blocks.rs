//! How rows of numbers become blocks of tiles.

use std::arch::x86_64::*;

use super::{BLOCK, SIDE, TILE};

/// Where the high and the low tile of a half of a block are, on the left and on the right.
pub const LEFT: [usize; 2] = [2 * TILE, 0];
pub const RIGHT: [usize; 2] = [0, 2 * TILE];

/// Both parts of 16 numbers, in the upper halves of 32 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub fn parts(x: __m512) -> (__m512i, __m512i) {
    // What is no number may have bits of which the next bf16 number is one.
    let none = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    let (high, low) = parts_of_sum(x);
    (_mm512_mask_mov_epi32(high, none, _mm512_set1_epi32(0x7fc0_0000)), low)
}

/// The same of numbers that were computed from others in parts: what is no number among them has not such bits.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub fn parts_of_sum(x: __m512) -> (__m512i, __m512i) {
    let half = _mm512_set1_epi32(0x8000);
    let high = _mm512_add_epi32(_mm512_castps_si512(x), half);
    let nearest = _mm512_castsi512_ps(_mm512_and_si512(high, _mm512_set1_epi32(0xffff_0000_u32 as i32)));
    (high, _mm512_add_epi32(_mm512_castps_si512(_mm512_sub_ps(x, nearest)), half))
}

/// The upper halves of `a`, then those of `b`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub fn side_by_side(a: __m512i, b: __m512i) -> __m512i {
    const UPPER: [i16; 32] = {
        let mut upper = [0; 32];
        let mut i = 0;
        while i < 32 {
            upper[i] = 2 * i as i16 + 1;
            i += 1;
        }
        upper
    };
    // SAFETY: as many numbers as are read.
    _mm512_permutex2var_epi16(a, unsafe { _mm512_loadu_si512(UPPER.as_ptr().cast()) }, b)
}

/// The upper halves of both in turn, one of `a` first.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub fn pairs(a: __m512i, b: __m512i) -> __m512i {
    _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32(a, 16), b)
}

/// Parts of a row of numbers along the sum, `count` times 32, as row `r` of the left tiles of as many blocks; zeros where there is no row.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn split_row(src: Option<*const f32>, count: usize, blocks: *mut u16, parts_at: [usize; 2], r: usize) {
    unsafe {
        for k in 0..count {
            let (mut high, mut low) = (_mm512_setzero_si512(), _mm512_setzero_si512());
            if let Some(src) = src {
                let from = src.add(k * SIDE);
                let (first, second) = (parts(_mm512_loadu_ps(from)), parts(_mm512_loadu_ps(from.add(16))));
                (high, low) = (side_by_side(first.0, second.0), side_by_side(first.1, second.1));
            }
            let tile = blocks.add(k * BLOCK + r / 16 * TILE + r % 16 * 32);
            _mm512_storeu_si512(tile.add(parts_at[0]).cast(), high);
            _mm512_storeu_si512(tile.add(parts_at[1]).cast(), low);
        }
    }
}

/// Parts of `rows` along which the sum goes, filled up with zeros to a multiple of 32, by `columns` as right tiles. Blocks of the same 32 columns follow each other, those of the next
/// begin `apart` blocks on. Rows are read from their beginning to their end, as memory likes it.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn split_rows(
    src: *const f32,
    row: usize,
    rows: usize,
    columns: usize,
    blocks: *mut u16,
    apart: usize,
    parts_at: [usize; 2],
) {
    unsafe {
        let nothing = (_mm512_setzero_si512(), _mm512_setzero_si512());
        for k in 0..rows.next_multiple_of(SIDE) / 2 {
            let (upper, lower) = (src.wrapping_add(2 * k * row), src.wrapping_add((2 * k + 1) * row));
            let (first_there, second_there) = (2 * k < rows, 2 * k + 1 < rows);
            let tiles = blocks.add(k / 16 * BLOCK + 32 * (k % 16));
            for column in (0..columns).step_by(16) {
                let first = if first_there { parts(_mm512_loadu_ps(upper.add(column))) } else { nothing };
                let second = if second_there { parts(_mm512_loadu_ps(lower.add(column))) } else { nothing };
                let tile = tiles.add(column / SIDE * apart * BLOCK + column % SIDE / 16 * TILE);
                _mm512_storeu_si512(tile.add(parts_at[0]).cast(), pairs(first.0, second.0));
                _mm512_storeu_si512(tile.add(parts_at[1]).cast(), pairs(first.1, second.1));
            }
        }
    }
}

/// Makes a left tile of a right one of the same numbers, and the other way round.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn transpose(tile: *mut u16) {
    unsafe {
        let zero = _mm512_setzero_si512();
        let (mut r, mut t) = ([zero; 16], [zero; 16]);
        for (i, row) in r.iter_mut().enumerate() {
            *row = _mm512_loadu_si512(tile.add(32 * i).cast());
        }
        for i in (0..16).step_by(2) {
            t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        }
        for i in (0..16).step_by(4) {
            r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
            r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
            r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
            r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
        }
        // Of quarters 0 to 3 of rows c, c + 4, c + 8 and c + 12 those with the same number make a row.
        for c in 0..4 {
            let even = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88);
            let odd = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xdd);
            let even_below = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88);
            let odd_below = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xdd);
            t[c] = _mm512_shuffle_i32x4(even, even_below, 0x88);
            t[c + 4] = _mm512_shuffle_i32x4(odd, odd_below, 0x88);
            t[c + 8] = _mm512_shuffle_i32x4(even, even_below, 0xdd);
            t[c + 12] = _mm512_shuffle_i32x4(odd, odd_below, 0xdd);
        }
        for (i, row) in t.iter().enumerate() {
            _mm512_storeu_si512(tile.add(32 * i).cast(), *row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::gemm::tests::numbers;
    use super::super::unit::vectors;
    use super::*;

    #[test]
    fn both_parts_together_are_the_number_in_sixteen_bits() {
        if !vectors() {
            return;
        }
        let x: Vec<f32> = numbers(16 * 32, 7).iter().map(|x| x * 1e-3).collect();
        let (mut high, mut low) = ([0; TILE], [0; TILE]);
        let number = |x: u16| f32::from_bits(u32::from(x) << 16);
        let mut block = [0; BLOCK];
        for r in 0..16 {
            unsafe { split_row(Some(x.as_ptr().add(32 * r)), 1, block.as_mut_ptr(), RIGHT, r) };
        }
        high.copy_from_slice(&block[..TILE]);
        low.copy_from_slice(&block[2 * TILE..3 * TILE]);
        for i in 0..TILE {
            assert!((number(high[i]) + number(low[i]) - x[i]).abs() <= x[i].abs() * 2f32.powi(-16));
        }
        let odd = [f32::NAN, f32::from_bits(0x7fff_ffff), f32::from_bits(0xffff_8000), -0.0, 0.0, f32::MIN_POSITIVE];
        let mut row = [1.0f32; 32];
        row[..odd.len()].copy_from_slice(&odd);
        let mut odd_block = [0; BLOCK];
        unsafe { split_row(Some(row.as_ptr()), 1, odd_block.as_mut_ptr(), RIGHT, 0) };
        for (i, x) in row.iter().enumerate() {
            let sum = number(odd_block[i]) + number(odd_block[2 * TILE + i]);
            assert!(if x.is_nan() { sum.is_nan() } else { sum == *x }, "{x} became {sum}");
        }
        let before = high;
        unsafe { transpose(high.as_mut_ptr()) };
        for (row, pair) in (0..16).flat_map(|r| (0..16).map(move |p| (r, p))) {
            assert_eq!(high[pair * 32 + 2 * row..][..2], before[row * 32 + 2 * pair..][..2]);
        }
        // The same numbers by rows of 16 columns are a right tile.
        let turned: Vec<f32> = (0..32 * 16).map(|i| x[i % 16 * 32 + i / 16]).collect();
        unsafe { split_rows(turned.as_ptr(), 16, 32, 16, block.as_mut_ptr(), 1, RIGHT) };
        assert_eq!(block[..TILE], high);
    }
}
