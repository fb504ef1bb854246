//! Backward pass of attention with heads of eight numbers: scores and `dP` on AMX, all else on vectors.
//!
//! Both parts of eight numbers fit a row of a tile, `[high high low]` on the left against `[high low high]` on the
//! right. The scores of 16 keys and 16 queries are then one product. The number subtracted from all `dP` of a query is
//! part of the product: ones on the left, its three parts on the right. Weights stay on vectors: splitting them takes
//! as long as multiplying them there.
//!
//! Results are laid out as in `cpu::attention`: keys in rows, queries in lanes. An *item* is 16 keys × 32 queries, in
//! four products: one tile of keys and one of values with two tiles of queries and two of `dO`. AMX works on an item
//! while vectors work on the item two before it. Each issued product stores the pending result of its accumulator, so
//! that no store waits for the product before it.
//!
//! A *key tile* of 16 keys passes all queries, up to 128, before the next key tile. The gradients of its keys and
//! values are then summed over those queries in registers.

use std::arch::x86_64::*;

use super::super::attention::head::Rows;
use super::super::attention::{Backward, backward_scratch};
use super::attention::{Bump, power};
use super::blocks::{interleave_upper, split_bf16};
use super::multiply::{BlockMultiply, Pending};
use super::{BLOCK_SIDE, NARROW_HEAD as WIDTH, TILE_LEN, TILE_SIDE};
use crate::real::Real;
use crate::simd::Vector;
use crate::simd::avx512::{F32x16, transpose_halves};

/// Blocks of 32 queries in a pass.
const BLOCKS: usize = 4;
/// Elements of an item, and of a block of queries.
const ITEM_LEN: usize = 2 * TILE_SIDE * BLOCK_SIDE;
const QUERY_BLOCK_LEN: usize = WIDTH * BLOCK_SIDE;
/// f32 elements in the memory of a tile.
const TILE_F32: usize = TILE_LEN / 2;

/// Stride between the pairs of two keys.
const PAIR_STRIDE: usize = BLOCKS * 2 * BLOCK_SIDE;

/// Scratch of a head with so many keys, in f32 elements.
pub fn scratch(keys: usize) -> usize {
    let len = 2 * keys.div_ceil(TILE_SIDE) * TILE_F32
        + BLOCKS * (4 * TILE_F32 + 3 * QUERY_BLOCK_LEN)
        + 2 * ITEM_LEN
        + TILE_SIDE * PAIR_STRIDE;
    len.max(backward_scratch::<f32>(keys, WIDTH))
}

/// The order in which items are issued: all query blocks of a key tile, then the next key tile. After the last item it
/// starts again, with items whose results nobody reads.
struct Order {
    key_tile: usize,
    key_tiles: usize,
    block: usize,
    blocks: usize,
}

impl Order {
    /// Key tile and query block of the next item.
    #[inline(always)]
    fn next(&mut self) -> (usize, usize) {
        let item = (self.key_tile, self.block);
        self.block += 1;
        if self.block == self.blocks {
            self.block = 0;
            self.key_tile = (self.key_tile + 1) % self.key_tiles;
        }
        item
    }
}

/// Left tiles of rows of eight numbers, 16 rows each, followed by ones. Rows from `n` on are not written.
///
/// # Safety
/// `n` rows, a tile for every 16 of them, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn split_left(rows: Rows<f32>, n: usize, tiles: *mut u16) {
    // SAFETY: the caller's contract: rows below `n`.
    unsafe {
        // Permutation of words that alternate high and low parts: the high parts of eight numbers twice, then their
        // low parts; then three ones.
        let order = |first: u16| {
            let at: [u16; 32] = std::array::from_fn(|i| first + 2 * (i as u16 % 8) + u16::from(i / 8 == 2));
            _mm512_loadu_si512(at.as_ptr().cast())
        };
        let orders = [order(0), order(16)];
        const ONE: i16 = 0x3f80;
        let ones = _mm512_inserti32x4::<3>(_mm512_setzero_si512(), _mm_setr_epi16(ONE, ONE, ONE, 0, 0, 0, 0, 0));
        const NUMBERS: __mmask32 = 0x00ff_ffff;
        for first in (0..n).step_by(2) {
            let second = first + 1 < n;
            let (high, low) = split_bf16(two_rows(rows.from(first), second));
            let (both, to) = (interleave_upper(high, low), tiles.add(first * BLOCK_SIDE));
            _mm512_storeu_si512(to.cast(), _mm512_mask_permutexvar_epi16(ones, NUMBERS, orders[0], both));
            if second {
                _mm512_storeu_si512(
                    to.add(BLOCK_SIDE).cast(),
                    _mm512_mask_permutexvar_epi16(ones, NUMBERS, orders[1], both),
                );
            }
        }
    }
}

/// A right tile of 16 rows whose numbers lie in lanes, and of the numbers their products start from.
///
/// # Safety
/// A tile, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn split_right(numbers: &[__m512; WIDTH], start: __m512, tile: *mut u16) {
    // SAFETY: the caller's contract: a tile has 16 rows of 32 elements.
    unsafe {
        let store = |row: usize, x: __m512i| _mm512_storeu_si512(tile.add(row * BLOCK_SIDE).cast(), x);
        for i in 0..4 {
            let (a, b) = (split_bf16(numbers[2 * i]), split_bf16(numbers[2 * i + 1]));
            let high = interleave_upper(a.0, b.0);
            store(i, high);
            store(i + 4, interleave_upper(a.1, b.1));
            store(i + 8, high);
        }
        // Three parts of eight bits hold all bits. The last remainder is exact in its upper half.
        let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        let first = _mm512_and_si512(_mm512_castps_si512(start), upper);
        let rest = _mm512_sub_ps(start, _mm512_castsi512_ps(first));
        let second = _mm512_and_si512(_mm512_castps_si512(rest), upper);
        let third = _mm512_castps_si512(_mm512_sub_ps(rest, _mm512_castsi512_ps(second)));
        store(12, interleave_upper(first, second));
        store(13, _mm512_srli_epi32(third, 16));
        store(14, _mm512_setzero_si512());
        store(15, _mm512_setzero_si512());
    }
}

/// Loads up to 16 rows transposed, with zeros for missing rows.
///
/// # Safety
/// `n` rows, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn load_transposed(rows: Rows<f32>, n: usize) -> [__m512; WIDTH] {
    let mut eights = [_mm512_setzero_ps(); 8];
    // SAFETY: the caller's contract: rows below `n`, eight numbers each.
    unsafe {
        for (r, both) in eights.iter_mut().enumerate().take(n) {
            let upper = _mm256_loadu_ps(rows.from(r).ptr);
            let lower = if r + 8 < n { _mm256_loadu_ps(rows.from(r + 8).ptr) } else { _mm256_setzero_ps() };
            *both = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(upper), lower);
        }
        transpose_halves(eights)
    }
}

/// The inverse: stores up to 16 rows.
///
/// # Safety
/// As of [`load_transposed`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn store_transposed(lanes: [__m512; WIDTH], rows: Rows<f32>, n: usize) {
    // SAFETY: the caller's contract: rows below `n`, eight numbers each.
    unsafe {
        for (r, both) in transpose_halves(lanes).into_iter().enumerate().take(n) {
            _mm256_storeu_ps(rows.from(r).ptr, _mm512_castps512_ps256(both));
            if r + 8 < n {
                _mm256_storeu_ps(rows.from(r + 8).ptr, _mm512_extractf32x8_ps::<1>(both));
            }
        }
    }
}

/// The parts of the scratch.
struct Workspace {
    /// Left tiles of all keys, and of all values.
    keys: *mut u16,
    values: *mut u16,
    /// For each block of queries two right tiles of queries and two of `dO`.
    right: *mut u16,
    items: *mut f32,
    /// `(P, dS)` of 16 keys and all queries.
    pairs: *mut f32,
    /// For each two queries, eight times: `dO` and `Q` of the first and of the second.
    rows: *mut f32,
    /// `dQᵀ` of each block.
    d_queries: *mut f32,
}

/// # Safety
/// Pointers as of [`Backward`], [`scratch`] elements of scratch, head width eight, AVX-512, and tiles configured for
/// `U`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn backward_on<U: BlockMultiply>(b: &Backward<f32>) {
    let p = &b.problem;
    // Large scores, which the forward pass has shifted, would lose too many bits here.
    // SAFETY: the forward pass saved a maximum for every query.
    if unsafe { std::slice::from_raw_parts(p.max_score, p.queries) }.iter().any(|&largest| largest != 0.0) {
        // SAFETY: the caller's contract; the scratch is large enough for either kernel.
        return unsafe { f32::dispatch(*b) };
    }
    let key_tiles = p.keys.div_ceil(TILE_SIDE);
    let mut bump = Bump(b.scratch);
    let at = Workspace {
        keys: bump.alloc_bf16(key_tiles * TILE_F32),
        values: bump.alloc_bf16(key_tiles * TILE_F32),
        right: bump.alloc_bf16(BLOCKS * 4 * TILE_F32),
        items: bump.alloc_f32(2 * ITEM_LEN),
        pairs: bump.alloc_f32(TILE_SIDE * PAIR_STRIDE),
        rows: bump.alloc_f32(BLOCKS * 2 * QUERY_BLOCK_LEN),
        d_queries: bump.alloc_f32(BLOCKS * QUERY_BLOCK_LEN),
    };
    // SAFETY: the caller's contract. `scratch` counts the buffers allocated above: left tiles for `key_tiles`, two
    // items, pairs of one key tile. Right tiles, rows and `dQᵀ` are for BLOCKS query blocks. `blocks ≤ BLOCKS`, and
    // rows of keys from `p.keys` on and of queries from `p.queries` on are not accessed.
    unsafe {
        split_left(p.key, p.keys, at.keys);
        split_left(p.value, p.keys, at.values);
        for first in (0..p.queries).step_by(BLOCKS * BLOCK_SIDE) {
            let n = (p.queries - first).min(BLOCKS * BLOCK_SIDE);
            let blocks = n.div_ceil(BLOCK_SIDE);
            for block in 0..blocks {
                let (tiles, rows) = (at.right.add(4 * block * TILE_LEN), at.rows.add(2 * block * QUERY_BLOCK_LEN));
                pack(b, first + block * BLOCK_SIDE, (n - block * BLOCK_SIDE).min(BLOCK_SIDE), tiles, rows);
            }
            let mut order = Order { key_tile: 0, key_tiles, block: 0, blocks };
            let mut pending = Pending::default();
            macro_rules! issue {
                ($j:literal, $block:expr, $to:expr) => {
                    U::issue::<$j>(&mut pending, at.right.add((4 * $block + $j) * TILE_LEN), $to)
                };
            }
            macro_rules! load_next {
                () => {{
                    let (key_tile, block) = order.next();
                    if block == 0 {
                        U::load_left(
                            &mut pending,
                            [at.keys, at.values].map(|tiles| tiles.add(key_tile * TILE_LEN).cast_const()),
                        );
                    }
                    block
                }};
            }
            for _ in 0..2 {
                let block = load_next!();
                issue!(0, block, at.items);
                issue!(1, block, at.items);
                issue!(2, block, at.items);
                issue!(3, block, at.items);
            }
            let mut buffer = 0;
            for key_tile in 0..key_tiles {
                let keys = p.key.from(key_tile * TILE_SIDE);
                let valid = (p.keys - key_tile * TILE_SIDE).min(TILE_SIDE);
                for block in 0..blocks {
                    let next = load_next!();
                    let (item, to) = (at.items.add(buffer * ITEM_LEN), at.items.add((1 - buffer) * ITEM_LEN));
                    buffer = 1 - buffer;
                    let sums = at.d_queries.add(block * QUERY_BLOCK_LEN);
                    let mut d_query = [[_mm512_setzero_ps(); 2]; WIDTH];
                    if key_tile > 0 {
                        for (e, d) in d_query.iter_mut().enumerate() {
                            d[0] = _mm512_loadu_ps(sums.add(e * BLOCK_SIDE));
                            d[1] = _mm512_loadu_ps(sums.add(e * BLOCK_SIDE + TILE_SIDE));
                        }
                    }
                    macro_rules! keys {
                        ($from:literal, $to:literal) => {
                            for j in $from..valid.min($to) {
                                let (scores, d_weights) =
                                    (item.add(j * BLOCK_SIDE), item.add((TILE_SIDE + j) * BLOCK_SIDE));
                                let weights =
                                    [power(_mm512_loadu_ps(scores)), power(_mm512_loadu_ps(scores.add(TILE_SIDE)))];
                                let d_scores = [
                                    _mm512_mul_ps(weights[0], _mm512_loadu_ps(d_weights)),
                                    _mm512_mul_ps(weights[1], _mm512_loadu_ps(d_weights.add(TILE_SIDE))),
                                ];
                                let pairs = at.pairs.add(j * PAIR_STRIDE + block * 2 * BLOCK_SIDE);
                                for c in 0..2 {
                                    let [low, high] = F32x16::interleave(F32x16(weights[c]), F32x16(d_scores[c]));
                                    low.store(pairs.add(c * BLOCK_SIDE));
                                    high.store(pairs.add(c * BLOCK_SIDE + TILE_SIDE));
                                }
                                let key = keys.ptr.add(j * keys.row);
                                for e in 0..WIDTH {
                                    let x = _mm512_set1_ps(*key.add(e));
                                    d_query[e][0] = _mm512_fmadd_ps(x, d_scores[0], d_query[e][0]);
                                    d_query[e][1] = _mm512_fmadd_ps(x, d_scores[1], d_query[e][1]);
                                }
                            }
                        };
                    }
                    issue!(0, next, to);
                    keys!(0, 3);
                    issue!(1, next, to);
                    keys!(3, 6);
                    issue!(2, next, to);
                    keys!(6, 9);
                    issue!(3, next, to);
                    keys!(9, 16);
                    for (e, d) in d_query.iter().enumerate() {
                        _mm512_storeu_ps(sums.add(e * BLOCK_SIDE), d[0]);
                        _mm512_storeu_ps(sums.add(e * BLOCK_SIDE + TILE_SIDE), d[1]);
                    }
                }
                for j in (0..valid).step_by(8) {
                    sum_over_queries(b, &at, key_tile * TILE_SIDE, j, valid, n, first > 0);
                }
            }
            for block in 0..blocks {
                for c in 0..2 {
                    let row = first + block * BLOCK_SIDE + c * TILE_SIDE;
                    let mut d_query = [_mm512_setzero_ps(); WIDTH];
                    for (e, d) in d_query.iter_mut().enumerate() {
                        let sum =
                            _mm512_loadu_ps(at.d_queries.add(block * QUERY_BLOCK_LEN + e * BLOCK_SIDE + c * TILE_SIDE));
                        *d = _mm512_mul_ps(sum, _mm512_set1_ps(p.scale));
                    }
                    if row < p.queries {
                        store_transposed(d_query, b.d_query.from(row), (p.queries - row).min(TILE_SIDE));
                    }
                }
            }
        }
    }
}

/// Packs a block of queries of which `n` exist: right tiles of queries and of `dO`, and rows for the gradients of keys
/// and values. `dO` is divided by the sums of the softmax, so that `2^S` need not be.
///
/// # Safety
/// Scratch for one block, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn pack(b: &Backward<f32>, first: usize, n: usize, tiles: *mut u16, rows: *mut f32) {
    let p = &b.problem;
    // SAFETY: the caller's contract: `n` queries from `first` on, and scratch for one block.
    unsafe {
        let (query, d_out) = (p.query.from(first), b.d_out.from(first));
        let inverse = p.inv_sum.add(first);
        for c in 0..2 {
            let valid = n.saturating_sub(c * TILE_SIDE).min(TILE_SIDE);
            let at = if valid > 0 { c * TILE_SIDE } else { 0 };
            let tiles = tiles.add(c * TILE_LEN);
            let zero = _mm512_setzero_ps();
            let mut queries = load_transposed(query.from(at), valid);
            for x in &mut queries {
                *x = _mm512_mul_ps(*x, _mm512_set1_ps(p.scale_log2));
            }
            split_right(&queries, zero, tiles);
            let mut d_outs = load_transposed(d_out.from(at), valid);
            let outs = load_transposed(p.out.from(first + at), valid);
            let inverse = F32x16::load_first(inverse.add(at), valid).0;
            let mut dot = zero;
            for (d_out, out) in d_outs.iter_mut().zip(outs) {
                *d_out = _mm512_mul_ps(*d_out, inverse);
                dot = _mm512_fnmadd_ps(*d_out, out, dot);
            }
            split_right(&d_outs, dot, tiles.add(2 * TILE_LEN));
        }
        // Numbers 0 to 3 of both queries, then 4 to 7.
        let low = _mm512_setr_epi32(0, 16, 8, 24, 1, 17, 9, 25, 2, 18, 10, 26, 3, 19, 11, 27);
        let high = _mm512_setr_epi32(4, 20, 12, 28, 5, 21, 13, 29, 6, 22, 14, 30, 7, 23, 15, 31);
        for i in (0..n).step_by(2) {
            let second = i + 1 < n;
            let factors = [*inverse.add(i), if second { *inverse.add(i + 1) } else { 0.0 }];
            let factors = _mm512_insertf32x8::<1>(_mm512_set1_ps(factors[0]), _mm256_set1_ps(factors[1]));
            let [query, d_out] = [query, d_out].map(|rows| two_rows(rows.from(i), second));
            let d_out = _mm512_mul_ps(d_out, factors);
            let query = _mm512_mul_ps(query, _mm512_set1_ps(p.scale));
            let to = rows.add(i * 2 * WIDTH);
            _mm512_storeu_ps(to, _mm512_permutex2var_ps(d_out, low, query));
            _mm512_storeu_ps(to.add(TILE_SIDE), _mm512_permutex2var_ps(d_out, high, query));
        }
    }
}

/// Two consecutive rows; zeros in place of a missing second.
///
/// # Safety
/// The rows exist, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn two_rows(rows: Rows<f32>, second: bool) -> __m512 {
    // SAFETY: the caller's contract.
    unsafe {
        let upper = _mm512_castps256_ps512(_mm256_loadu_ps(rows.ptr));
        let lower = if second { _mm256_loadu_ps(rows.ptr.add(rows.row)) } else { _mm256_setzero_ps() };
        _mm512_insertf32x8::<1>(upper, lower)
    }
}

/// Gradients of up to eight values and keys from `first_key + j` on, of those that are `valid`, summed over `n`
/// queries. They overwrite or are added to the gradients.
///
/// # Safety
/// Pairs and rows of the key tile, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn sum_over_queries(
    b: &Backward<f32>,
    at: &Workspace,
    first_key: usize,
    j: usize,
    valid: usize,
    n: usize,
    add: bool,
) {
    // SAFETY: the caller's contract: pairs and rows of `n` queries, gradients of keys below `valid`.
    unsafe {
        let pairs = at.pairs.add(j * PAIR_STRIDE);
        let mut sums = [[_mm512_setzero_ps(); 2]; 8];
        for i in 0..n.div_ceil(2) {
            let rows = [
                _mm512_loadu_ps(at.rows.add(2 * i * TILE_SIDE)),
                _mm512_loadu_ps(at.rows.add((2 * i + 1) * TILE_SIDE)),
            ];
            // Results of missing keys are not read.
            for (r, sum) in sums.iter_mut().enumerate() {
                let factors = _mm512_broadcast_f32x4(_mm_loadu_ps(pairs.add(r * PAIR_STRIDE + 4 * i)));
                sum[0] = _mm512_fmadd_ps(factors, rows[0], sum[0]);
                sum[1] = _mm512_fmadd_ps(factors, rows[1], sum[1]);
            }
        }
        // Gradients of values and keys, of even queries and of odd ones.
        let even = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
        let odd = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
        for (r, [low, high]) in sums.iter().enumerate().take(valid - j) {
            let [d_value, d_key] = [b.d_value, b.d_key].map(|rows| rows.from(first_key + j + r).ptr);
            let even = _mm512_permutex2var_ps(*low, even, *high);
            let mut both = _mm512_add_ps(even, _mm512_permutex2var_ps(*low, odd, *high));
            if add {
                let before = _mm512_castps256_ps512(_mm256_loadu_ps(d_value));
                both = _mm512_add_ps(both, _mm512_insertf32x8::<1>(before, _mm256_loadu_ps(d_key)));
            }
            _mm256_storeu_ps(d_value, _mm512_castps512_ps256(both));
            _mm256_storeu_ps(d_key, _mm512_extractf32x8_ps::<1>(both));
        }
    }
}
