//! Attention of one example, relation and head, with its products on AMX.
//!
//! As in `cpu::attention`, queries are columns, so that no sum runs across a vector. Forward: `Sᵀ = K Qᵀ` and
//! `Oᵀ = Vᵀ Pᵀ`, with an online softmax over blocks of keys. Backward: `dPᵀ = V dOᵀ`, `dQᵀ = Kᵀ dSᵀ`, `dV = Pᵀ dO` and
//! `dK = dSᵀ Q`. A step takes 32 queries and 32 keys. `P` and `dS` are split while they are in registers. The last
//! blocks are padded with zeros.

use std::arch::x86_64::*;

use super::super::attention::head::Rows;
use super::super::attention::problem::scale;
use super::super::attention::{Backward, Forward};
use super::blocks::{
    LEFT, RIGHT, Source, SplitTo, canonical_nan, split, split_bf16_canonical, store_row, store_row_pair,
    transpose_tiles,
};
use super::emulated::Emulated;
use super::multiply::{Amx, BlockMultiply, InitialSum, on_amx};
use super::{BLOCK_LEN, BLOCK_SIDE, NARROW_HEAD, narrow_attention};
use crate::simd::Vector;
use crate::simd::avx512::F32x16;

/// Keys of a block of the online softmax.
const KEY_BLOCK: usize = 256;
/// Elements of a square of 32 × 32 results.
const SQUARE: usize = BLOCK_SIDE * BLOCK_SIDE;

/// Scratch of attention over `keys` of this width, in f32 elements. It has buffers with a row for each key, buffers
/// with a row for each of 32 queries, and squares.
pub fn attention_scratch(keys: usize, width: usize, backward: bool) -> usize {
    if backward && width == NARROW_HEAD {
        return narrow_attention::scratch(keys);
    }
    let (keys, width) = (keys.next_multiple_of(BLOCK_SIDE), width.next_multiple_of(BLOCK_SIDE));
    let (of_keys, of_queries, squares) =
        if backward { (5, 5, 6 + KEY_BLOCK / BLOCK_SIDE) } else { (2, 2, 2 * KEY_BLOCK / BLOCK_SIDE) };
    (of_keys * keys + of_queries * BLOCK_SIDE) * width + squares * BLOCK_SIDE * BLOCK_SIDE
}

/// `out = softmax(scale · Q Kᵀ) V`; writes `out`, `max_score` and `inv_sum`.
///
/// # Safety
/// Pointers as of [`Forward`], `attention_scratch` elements of scratch, `supports_attention`, and AMX is `available`.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn attention_forward(f: &Forward<f32>) {
    // SAFETY: the caller's contract; `on_amx` configures the tiles.
    unsafe { on_amx!(forward_on(f)) }
}

/// The gradients of queries, keys and values; writes all three.
///
/// # Safety
/// As of [`attention_forward`].
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
pub unsafe fn attention_backward(b: &Backward<f32>) {
    // SAFETY: the caller's contract; `on_amx` configures the tiles.
    unsafe { on_amx!(backward_on(b)) }
}

/// Sizes of a head, padded to full blocks.
#[derive(Clone, Copy)]
struct Sizes {
    /// Keys, without and with padding.
    keys: usize,
    padded: usize,
    /// Numbers of a padded row, and its blocks.
    width: usize,
    along: usize,
}

impl Sizes {
    fn new(keys: usize, width: usize) -> Self {
        let width = width.next_multiple_of(BLOCK_SIDE);
        Sizes { keys, padded: keys.next_multiple_of(BLOCK_SIDE), width, along: width / BLOCK_SIDE }
    }

    /// Keys of the key block that starts at `from`, and their blocks.
    fn key_block(self, from: usize) -> (usize, usize) {
        let keys = KEY_BLOCK.min(self.keys - from);
        (keys, keys.div_ceil(BLOCK_SIDE))
    }

    /// Offset of the blocks of a key, or of the key block it starts.
    fn at(self, key: usize) -> usize {
        2 * key * self.width
    }

    /// Offset of the blocks of columns of the 32 keys from `key` on, and the stride in blocks to the next columns. The
    /// blocks of one key block are contiguous.
    fn columns_at(self, key: usize) -> (usize, usize) {
        let from = key / KEY_BLOCK * KEY_BLOCK;
        (self.at(from) + (key - from) / BLOCK_SIDE * BLOCK_LEN, self.key_block(from).1)
    }
}

/// A bump allocator over the scratch.
pub struct Bump(pub *mut f32);

impl Bump {
    /// Memory for so many f32 numbers.
    pub fn alloc_f32(&mut self, numbers: usize) -> *mut f32 {
        let start = self.0;
        self.0 = start.wrapping_add(numbers);
        start
    }

    /// Memory for both parts of so many numbers.
    pub fn alloc_bf16(&mut self, numbers: usize) -> *mut u16 {
        self.alloc_f32(numbers).cast()
    }
}

/// Two to the power of each lane, with 18 bits.
///
/// # Safety
/// AVX-512.
#[inline(always)]
pub unsafe fn power(x: __m512) -> __m512 {
    // SAFETY: the caller's contract.
    unsafe { F32x16(x).exp2_coarse().0 }
}

/// Statistics of 32 queries, of which `n` exist, in two vectors.
///
/// # Safety
/// `n` numbers, and AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn load_query_stats(x: *const f32, n: usize) -> [__m512; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        let first = F32x16::load_first(x, n.min(16)).0;
        [canonical_nan(first), canonical_nan(F32x16::load_first(x.wrapping_add(16), n.saturating_sub(16)).0)]
    }
}

/// The rows of a head from `first` on.
fn rows_from(rows: Rows<f32>, first: usize) -> Source {
    Source { ptr: rows.ptr.wrapping_add(first * rows.row), row: rows.row, width: rows.width }
}

/// # Safety
/// As of [`attention_forward`], with tiles configured for `U`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn forward_on<U: BlockMultiply>(f: &Forward<f32>) {
    let p = &f.problem;
    let s = Sizes::new(p.keys, p.query.width);
    let mut bump = Bump(f.scratch);
    let [keys, values] = [(); 2].map(|()| bump.alloc_bf16(s.padded * s.width));
    let (queries, sums) = (bump.alloc_bf16(BLOCK_SIDE * s.width), bump.alloc_f32(BLOCK_SIDE * s.width));
    let (scores, weights) = (bump.alloc_f32(KEY_BLOCK * BLOCK_SIDE), bump.alloc_bf16(KEY_BLOCK * BLOCK_SIDE));
    // SAFETY: the caller's contract. `attention_scratch` counts two buffers of `padded` keys, two of 32 queries and `2
    // · KEY_BLOCK / 32` squares, which the allocations above divide. Blocks of `key` lie at `s.at(key)`, below
    // `padded`; a key block has at most KEY_BLOCK keys. Rows from `p.keys` and `p.queries` on are neither read nor
    // written.
    unsafe {
        for key in (0..p.keys).step_by(BLOCK_SIDE) {
            let n = p.keys - key;
            split(rows_from(p.key, key), n, SplitTo::rows(keys.add(s.at(key)), LEFT));
            let (at, apart) = s.columns_at(key);
            split(rows_from(p.value, key), n, SplitTo::columns(values.add(at), LEFT, apart));
            transpose_tiles(values.add(at), s.along, apart);
        }
        let factor = _mm512_set1_ps(p.scale_log2);
        for first in (0..p.queries).step_by(BLOCK_SIDE) {
            let n = BLOCK_SIDE.min(p.queries - first);
            split(rows_from(p.query, first), n, SplitTo::rows(queries, RIGHT));
            transpose_tiles(queries, s.along, 1);
            let (mut largest, mut total) = ([_mm512_set1_ps(f32::MIN); 2], [_mm512_setzero_ps(); 2]);
            for from in (0..p.keys).step_by(KEY_BLOCK) {
                let (valid, blocks) = s.key_block(from);
                for b in 0..blocks {
                    let keys = keys.add(s.at(from + b * BLOCK_SIDE));
                    U::multiply(keys, queries, s.along, scores.add(b * SQUARE), BLOCK_SIDE, InitialSum::Zero);
                }
                let previous = largest;
                let mut peak = [_mm512_set1_ps(f32::MIN); 2];
                for j in 0..valid {
                    for (c, peak) in peak.iter_mut().enumerate() {
                        *peak = _mm512_max_ps(*peak, _mm512_loadu_ps(scores.add(j * BLOCK_SIDE + 16 * c)));
                    }
                }
                for c in 0..2 {
                    largest[c] = _mm512_max_ps(largest[c], _mm512_mul_ps(peak[c], factor));
                }
                if from > 0 {
                    // In full precision, since the factors multiply up; most are one.
                    let factor = [0, 1].map(|c| F32x16(_mm512_sub_ps(previous[c], largest[c])).exp2());
                    scale(sums, s.width, factor);
                    for (total, factor) in total.iter_mut().zip(factor) {
                        *total = _mm512_mul_ps(*total, factor.0);
                    }
                }
                let zero = _mm512_setzero_si512();
                for pair in 0..blocks * BLOCK_SIDE / 2 {
                    let mut both = [[(zero, zero); 2]; 2];
                    for (r, row) in both.iter_mut().enumerate() {
                        let key = pair / 16 * BLOCK_SIDE + pair % 16 + 16 * r;
                        if key < valid {
                            for c in 0..2 {
                                let score = _mm512_loadu_ps(scores.add(key * BLOCK_SIDE + 16 * c));
                                let weight = power(_mm512_fmsub_ps(score, factor, largest[c]));
                                total[c] = _mm512_add_ps(total[c], weight);
                                row[c] = split_bf16_canonical(weight);
                            }
                        }
                    }
                    store_row_pair(both, weights.add(pair / 16 * BLOCK_LEN), RIGHT, pair % 16);
                }
                for column in 0..s.along {
                    let values = values.add(s.at(from) + column * blocks * BLOCK_LEN);
                    let sums = sums.add(column * SQUARE);
                    U::multiply(values, weights, blocks, sums, BLOCK_SIDE, InitialSum::output_if(from > 0));
                }
            }
            let inverse = total.map(|t| F32x16(_mm512_div_ps(_mm512_set1_ps(1.0), t)));
            scale(sums, p.query.width, inverse);
            p.out.from(first).unpack_transposed::<F32x16, 2>(p.block_rows(n, BLOCK_SIDE), sums);
            for c in 0..2 {
                let (at, valid) = (first + 16 * c, n.saturating_sub(16 * c).min(16));
                F32x16(largest[c]).store_first(p.max_score.wrapping_add(at), valid);
                inverse[c].store_first(p.inv_sum.wrapping_add(at), valid);
            }
        }
    }
}

/// # Safety
/// As of [`attention_forward`], with tiles configured for `U`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn backward_on<U: BlockMultiply>(b: &Backward<f32>) {
    let p = &b.problem;
    if p.query.width == NARROW_HEAD {
        // SAFETY: the caller's contract.
        return unsafe { narrow_attention::backward_on::<U>(b) };
    }
    let s = Sizes::new(p.keys, p.query.width);
    let mut bump = Bump(b.scratch);
    let [keys, keys_transposed, values] = [(); 3].map(|()| bump.alloc_bf16(s.padded * s.width));
    let [d_keys, d_values] = [(); 2].map(|()| bump.alloc_f32(s.padded * s.width));
    let [queries, query_rows, d_outs, d_out_rows] = [(); 4].map(|()| bump.alloc_bf16(BLOCK_SIDE * s.width));
    let d_queries = bump.alloc_f32(BLOCK_SIDE * s.width);
    // Double buffering: AMX computes one block while vectors work on the other.
    let [scores, d_weights] = [(); 2].map(|()| bump.alloc_f32(2 * SQUARE));
    let [weights, d_scores] = [(); 2].map(|()| bump.alloc_bf16(SQUARE));
    let d_scores_transposed = bump.alloc_bf16(KEY_BLOCK * BLOCK_SIDE);
    // SAFETY: as in `forward_on`, with five buffers of keys, five of queries, six squares and `KEY_BLOCK / 32` squares.
    // The gradients of keys and values are written in full on the first block of queries and added to on the others.
    unsafe {
        for key in (0..p.keys).step_by(BLOCK_SIDE) {
            let (at, apart) = s.columns_at(key);
            let both = SplitTo {
                rows: Some((keys.add(s.at(key)), LEFT)),
                columns: Some((keys_transposed.add(at), LEFT, apart)),
            };
            split(rows_from(p.key, key), p.keys - key, both);
            transpose_tiles(keys_transposed.add(at), s.along, apart);
            split(rows_from(p.value, key), p.keys - key, SplitTo::rows(values.add(s.at(key)), LEFT));
        }
        let factor = _mm512_set1_ps(p.scale_log2);
        for first in (0..p.queries).step_by(BLOCK_SIDE) {
            let n = BLOCK_SIDE.min(p.queries - first);
            for (src, rows, columns) in [(p.query, queries, query_rows), (b.d_out, d_outs, d_out_rows)] {
                let both = SplitTo { rows: Some((rows, RIGHT)), columns: Some((columns, RIGHT, 1)) };
                split(rows_from(src, first), n, both);
                transpose_tiles(rows, s.along, 1);
            }
            let mut dots = [0.0f32; BLOCK_SIDE];
            for (i, dot) in dots.iter_mut().enumerate().take(n) {
                let [out, d_out] = [p.out, b.d_out].map(|rows| rows.from(first + i).ptr);
                let mut sum = F32x16::zero();
                for at in (0..p.out.width).step_by(16) {
                    let [out, d_out] = [out, d_out].map(|x| F32x16::load_first(x.add(at), (p.out.width - at).min(16)));
                    sum = out.mul_add(d_out, sum);
                }
                *dot = sum.sum();
            }
            let dot = load_query_stats(dots.as_ptr(), BLOCK_SIDE);
            let (largest, inverse) =
                (load_query_stats(p.max_score.add(first), n), load_query_stats(p.inv_sum.add(first), n));
            let squares = |key: usize| {
                let buffer = key / BLOCK_SIDE % 2 * SQUARE;
                (scores.add(buffer), d_weights.add(buffer))
            };
            let products = |key: usize| {
                let (scores, d_weights) = squares(key);
                U::multiply(keys.add(s.at(key)), queries, s.along, scores, BLOCK_SIDE, InitialSum::Zero);
                U::multiply(values.add(s.at(key)), d_outs, s.along, d_weights, BLOCK_SIDE, InitialSum::Zero);
            };
            products(0);
            for from in (0..p.keys).step_by(KEY_BLOCK) {
                let blocks = s.key_block(from).1;
                for block in 0..blocks {
                    let key = from + block * BLOCK_SIDE;
                    if key + BLOCK_SIDE < p.keys {
                        products(key + BLOCK_SIDE);
                    }
                    let (scores, d_weights) = squares(key);
                    let zeros = (_mm512_setzero_si512(), _mm512_setzero_si512());
                    for pair in 0..BLOCK_SIDE / 2 {
                        let mut both = [[zeros; 2]; 2];
                        for (r, d_row) in both.iter_mut().enumerate() {
                            let j = pair + 16 * r;
                            let mut row = [zeros; 2];
                            if key + j < p.keys {
                                for c in 0..2 {
                                    let at = j * BLOCK_SIDE + 16 * c;
                                    let score = _mm512_fmsub_ps(_mm512_loadu_ps(scores.add(at)), factor, largest[c]);
                                    let weight = _mm512_mul_ps(power(score), inverse[c]);
                                    let d_weight = _mm512_sub_ps(_mm512_loadu_ps(d_weights.add(at)), dot[c]);
                                    row[c] = split_bf16_canonical(weight);
                                    d_row[c] = split_bf16_canonical(_mm512_mul_ps(weight, d_weight));
                                }
                            }
                            store_row(row, weights, LEFT, j);
                            store_row(*d_row, d_scores, LEFT, j);
                        }
                        store_row_pair(both, d_scores_transposed.add(block * BLOCK_LEN), RIGHT, pair);
                    }
                    for column in 0..s.along {
                        let (at, start) = (key * s.width + column * BLOCK_SIDE, InitialSum::output_if(first > 0));
                        let (d_value, d_key) = (d_values.add(at), d_keys.add(at));
                        U::multiply(weights, d_out_rows.add(column * BLOCK_LEN), 1, d_value, s.width, start);
                        U::multiply(d_scores, query_rows.add(column * BLOCK_LEN), 1, d_key, s.width, start);
                    }
                }
                for column in 0..s.along {
                    let transposed = keys_transposed.add(s.at(from) + column * blocks * BLOCK_LEN);
                    let d_query = d_queries.add(column * SQUARE);
                    U::multiply(
                        transposed,
                        d_scores_transposed,
                        blocks,
                        d_query,
                        BLOCK_SIDE,
                        InitialSum::output_if(from > 0),
                    );
                }
            }
            scale(d_queries, p.query.width, [F32x16::splat(p.scale); 2]);
            b.d_query.from(first).unpack_transposed::<F32x16, 2>(p.block_rows(n, BLOCK_SIDE), d_queries);
        }
        for j in 0..p.keys {
            for (sums, to, factor) in [(d_values, b.d_value, 1.0), (d_keys, b.d_key, p.scale)] {
                for at in (0..to.width).step_by(16) {
                    let sum = F32x16::load(sums.add(j * s.width + at)).mul(F32x16::splat(factor));
                    sum.store_first(to.from(j).ptr.add(at), (to.width - at).min(16));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::attention::forward::forward_scratch;
    use super::super::super::attention::problem::Problem;
    use super::super::super::gemm::tests::numbers;
    use super::super::multiply::{TileConfig, available, emulated, has_avx512};
    use super::*;
    use crate::real::Real;

    /// Textbook attention and its gradients in f64: outputs, then gradients of queries, keys and values.
    fn textbook(scale: f64, [q, k, v, d]: [&[Vec<f64>]; 4]) -> [Vec<Vec<f64>>; 4] {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let width = q[0].len();
        let zeros = |n: usize| vec![vec![0.0; width]; n];
        let (mut out, mut dq, mut dk, mut dv) = (zeros(q.len()), zeros(q.len()), zeros(k.len()), zeros(k.len()));
        for i in 0..q.len() {
            let scores: Vec<f64> = k.iter().map(|k| scale * dot(&q[i], k)).collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
            let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp() / total).collect();
            for (weight, v) in weights.iter().zip(v) {
                out[i].iter_mut().zip(v).for_each(|(out, v)| *out += weight * v);
            }
            let mean = dot(&d[i], &out[i]);
            for (j, weight) in weights.iter().enumerate() {
                let d_score = weight * (dot(&d[i], &v[j]) - mean) * scale;
                for e in 0..width {
                    dq[i][e] += d_score * k[j][e];
                    dk[j][e] += d_score * q[i][e];
                    dv[j][e] += weight * d[i][e];
                }
            }
        }
        [out, dq, dk, dv]
    }

    /// Guard value behind the scratch.
    const GUARD: f32 = 7.0;

    /// Outputs, then gradients of queries, keys and values. The forward pass runs on vectors where `vectors_forward`,
    /// as for narrow heads.
    fn results<U: BlockMultiply>(
        inputs: &mut [Vec<f32>; 4],
        width: usize,
        row: usize,
        vectors_forward: bool,
    ) -> [Vec<f32>; 4] {
        let at = |x: &mut Vec<f32>| Rows { ptr: x.as_mut_ptr(), row, width };
        let [queries, keys] = [inputs[0].len() / row, inputs[1].len() / row];
        let mut results = [queries, queries, keys, keys].map(|n| vec![f32::NAN; n * row]);
        let mut stats = vec![f32::NAN; 2 * queries];
        let mut scratches = [false, true].map(|backward| {
            let mut scratch = vec![f32::NAN; attention_scratch(keys, width, backward)];
            scratch.extend([GUARD; 64]);
            scratch
        });
        let [query, key, value, d_out] = inputs.each_mut().map(at);
        let [out, d_query, d_key, d_value] = results.each_mut().map(at);
        let problem = Problem {
            queries,
            keys,
            scale: 0.25,
            scale_log2: 0.25 * std::f32::consts::LOG2_E,
            query,
            key,
            value,
            out,
            padded: false,
            coarse: true,
            max_score: stats.as_mut_ptr(),
            inv_sum: stats.as_mut_ptr().wrapping_add(queries),
        };
        let forward = Forward { problem, scratch: scratches[0].as_mut_ptr() };
        let backward = Backward { problem, d_out, d_query, d_key, d_value, scratch: scratches[1].as_mut_ptr() };
        // SAFETY: rows and scratch have their documented lengths; `U` runs on this machine.
        unsafe {
            if vectors_forward {
                let mut scratch = vec![0.0; forward_scratch::<f32>(keys, width)];
                f32::dispatch(Forward { problem, scratch: scratch.as_mut_ptr() });
            } else {
                forward_on::<U>(&forward);
            }
            backward_on::<U>(&backward);
        }
        for scratch in scratches {
            assert_eq!(scratch[scratch.len() - 64..], [GUARD; 64], "{keys} keys, width {width}: scratch too small");
        }
        results
    }

    fn check<U: BlockMultiply>() {
        for (queries, keys, width, size) in [
            (1, 1, 16, 1.0),
            (5, 33, 20, 4.0),
            (40, 64, 32, 4.0),
            (33, 300, 16, 30.0),
            (64, 31, 48, 4.0),
            (20, 530, 64, 2.0),
            (1, 1, 8, 1.0),
            (17, 5, 8, 4.0),
            (125, 125, 8, 1.0),
            (300, 47, 8, 4.0),
            (32, 48, 8, 1.0),
            (33, 300, 8, 30.0),
            (131, 33, 8, 200.0),
        ] {
            let row = width + 3;
            let mut seed = 0;
            let mut inputs = [queries, keys, keys, queries].map(|n| {
                seed += 1;
                numbers(n * row, seed)
            });
            inputs[0].iter_mut().for_each(|x| *x *= size);
            let to_f64 = |x: &Vec<f32>| -> Vec<Vec<f64>> {
                x.chunks(row).map(|r| r[..width].iter().map(|&x| f64::from(x)).collect()).collect()
            };
            let exact = inputs.each_ref().map(to_f64);
            let exact = textbook(0.25, exact.each_ref().map(|x| x.as_slice()));
            for vectors_forward in [false, true] {
                let results = results::<U>(&mut inputs, width, row, vectors_forward);
                for (what, (exact, result)) in
                    ["outputs", "queries", "keys", "values"].iter().zip(exact.iter().zip(&results))
                {
                    let norm = exact.iter().flatten().map(|x| x * x).sum::<f64>().sqrt();
                    let found = to_f64(result);
                    let off = exact.iter().flatten().zip(found.iter().flatten()).map(|(a, b)| (a - b).powi(2));
                    let error = off.sum::<f64>().sqrt() / norm.max(0.1);
                    assert!(error < 1e-4, "{queries} queries, {keys} keys, width {width}: {what} off by {error}");
                    assert!(
                        result.chunks(row).all(|r| r[width..].iter().all(|x| x.is_nan())),
                        "{what} were written beside their columns"
                    );
                }
            }
        }
    }

    /// A NaN in a value, whatever its bits, reaches every output and all gradients of queries and keys.
    fn check_nan_values<U: BlockMultiply>() {
        let n = 40;
        for (bits, width) in
            [0x7fc0_0000, 0x7fff_ffff, 0xffff_ffff_u32].into_iter().flat_map(|bits| [(bits, 16), (bits, 8)])
        {
            let mut inputs = [1, 2, 3, 4].map(|seed| numbers(n * width, seed));
            inputs[2][7 * width] = f32::from_bits(bits);
            for vectors_forward in [false, true] {
                let [out, d_query, d_key, _] = results::<U>(&mut inputs, width, width, vectors_forward);
                assert!(out.chunks(width).all(|r| r[0].is_nan()), "{bits:x}: an output is a number");
                for gradients in [d_query, d_key] {
                    assert!(gradients.iter().all(|x| x.is_nan()), "{bits:x}: a gradient is a number");
                }
            }
        }
    }

    /// A NaN in the gradient of one output reaches the gradient of its query and of no other.
    fn check_nan_gradient<U: BlockMultiply>() {
        let (n, nan_query) = (70, 37);
        for width in [8, 16, 32] {
            let mut inputs = [1, 2, 3, 4].map(|seed| numbers(n * width, seed));
            inputs[3][nan_query * width] = f32::NAN;
            let [_, d_query, d_key, d_value] = results::<U>(&mut inputs, width, width, true);
            for (i, row) in d_query.chunks(width).enumerate() {
                assert!(row.iter().all(|x| x.is_nan() == (i == nan_query)), "width {width}, query {i}: {row:?}");
            }
            // Every query contributes to keys and values.
            assert!(d_key.iter().all(|x| x.is_nan()), "width {width}");
            let column = |r: &[f32]| r[0].is_nan() && r[1..].iter().all(|x| x.is_finite());
            assert!(d_value.chunks(width).all(column), "width {width}: {d_value:?}");
        }
    }

    #[test]
    fn emulated_attention_matches_the_textbook_with_sixteen_bits_and_propagates_nan() {
        if has_avx512() {
            check::<Emulated>();
            check_nan_values::<Emulated>();
            check_nan_gradient::<Emulated>();
        }
    }

    #[test]
    fn amx_matches_the_textbook_where_available() {
        if available() && !emulated() {
            let _in_use = TileConfig::load();
            check::<Amx>();
            check_nan_values::<Amx>();
            check_nan_gradient::<Amx>();
        }
    }
}
