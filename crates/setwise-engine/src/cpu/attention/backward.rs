//! Backward pass of one example, relation and head.

use super::super::gemm::{Strided, multiply_rows, multiply_rows_paired, tile};
use super::head::Rows;
use super::problem::{AccumulateRows, Problem, key_block, lanes_of, scale};
use crate::real::Real;
use crate::simd::{Kernel, Vector, columns, load_lanes, store_lanes};

/// Keys of a block: keys, values, weights and score gradients of about this many fit the first cache level.
const KEYS: usize = 64;

/// Gradients of one example, relation and head. Overwrites `d_query`, `d_key` and `d_value`.
#[derive(Clone, Copy)]
pub struct Backward<T> {
    pub problem: Problem<T>,
    pub d_out: Rows<T>,
    pub d_query: Rows<T>,
    pub d_key: Rows<T>,
    pub d_value: Rows<T>,
    pub scratch: *mut T,
}

/// Scratch elements of a backward task, in the order of [`Workspace`]; a block has two vectors of queries.
pub fn backward_scratch<T: Real>(keys: usize, width: usize) -> usize {
    let block = T::packed_width();
    let padded = width.next_multiple_of(block);
    3 * key_block(keys, KEYS) * block + (3 * width + 2 * padded) * block + 2 * keys * padded
}

/// The parts of the scratch.
#[derive(Clone, Copy)]
struct Workspace<T> {
    /// `P` of a block of keys, `[keys][lanes]`, or pairs `(P, dS)`.
    weights: *mut T,
    /// `dS` of the block of keys.
    d_scores: *mut T,
    /// `Qᵀ`, `dOᵀ` and `dQᵀ` of a block of queries, `[width][lanes]`.
    queries: *mut T,
    d_outs: *mut T,
    d_queries: *mut T,
    /// `dO` and `Q` of each query of the block, side by side or interleaved.
    rows: *mut T,
    /// Gradients of each key's value and of the key, likewise.
    sums: *mut T,
    /// Row stride of `rows` and of `sums`, a multiple of the lanes.
    row: usize,
}

impl<T: Real> Kernel<T> for Backward<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        // If a head's row fits a vector, the gradients of values and keys are computed together: values in even
        // columns, keys in odd ones.
        if V::TUNED && self.problem.query.width <= V::LANES {
            // SAFETY: the contract of `Kernel::run`.
            unsafe { self.all::<V, true>() }
        } else {
            // SAFETY: as for the paired variant.
            unsafe { self.all::<V, false>() }
        }
    }
}

impl<T: Real> Backward<T> {
    /// # Safety
    /// As for [`Kernel::run`].
    #[inline(always)]
    unsafe fn all<V: Vector<T>, const PAIRED: bool>(&self) {
        let p = self.problem;
        let (block, width) = (2 * V::LANES, p.query.width);
        let row = if PAIRED { (2 * width).next_multiple_of(V::LANES) } else { 2 * width.next_multiple_of(block) };
        let mut free = self.scratch;
        let mut alloc = |n: usize| {
            let start = free;
            free = free.wrapping_add(n);
            start
        };
        let step = key_block(p.keys, KEYS);
        let at = Workspace {
            weights: alloc(2 * step * block),
            d_scores: alloc(step * block),
            queries: alloc(width * block),
            d_outs: alloc(width * block),
            d_queries: alloc(width * block),
            rows: alloc(row * block),
            sums: alloc(row * p.keys),
            row,
        };
        // SAFETY: the caller's contract. `backward_scratch` counts `3 · step` rows of weights and score gradients, `3 ·
        // width` rows of queries. It counts `row ≤ 2 · padded` elements for each query of a block and for each key.
        // `first + n ≤ queries`, and rows `j < keys` of `d_value` and `d_key` exist. Every row of `sums` is written by
        // the first block of queries.
        unsafe {
            let mut first = 0;
            while first < p.queries {
                let n = (p.queries - first).min(block);
                if n > V::LANES {
                    self.block::<V, 2, PAIRED>(at, first, n);
                } else {
                    self.block::<V, 1, PAIRED>(at, first, n);
                }
                first += n;
            }
            for j in 0..p.keys {
                let (sums, d_value, d_key) = (at.sums.add(j * row), self.d_value.from(j).ptr, self.d_key.from(j).ptr);
                if PAIRED {
                    let more = if row > V::LANES { V::load(sums.add(V::LANES)) } else { V::zero() };
                    let [values, keys] = V::deinterleave(V::load(sums), more);
                    store_lanes(values, d_value, width);
                    store_lanes(keys, d_key, width);
                } else {
                    for (from, to) in [(sums, d_value), (sums.add(row / 2), d_key)] {
                        columns!(V, width, |j, n| store_lanes(V::load(from.add(j)), to.add(j), n));
                    }
                }
            }
        }
    }

    /// One block: `n` queries in `C` vectors.
    ///
    /// # Safety
    /// The caller runs in a kernel, `first + n` is at most the number of queries, and `at` points into the scratch.
    #[inline(always)]
    unsafe fn block<V: Vector<T>, const C: usize, const PAIRED: bool>(&self, at: Workspace<T>, first: usize, n: usize) {
        let p = self.problem;
        let (lanes, width, row) = (C * V::LANES, p.query.width, at.row);
        // SAFETY: the caller's contract: `n` queries from `first` on and all keys are valid. A block of keys has at
        // most `step` of them, for which `weights` and `d_scores` have rows; `sums` has a row for every key.
        unsafe {
            let starts = self.pack::<V, C, PAIRED>(at, first, n);
            let step = key_block(p.keys, KEYS);
            // A saved maximum of zero means unshifted, small scores. Where a true maximum happens to be zero, scores
            // far below it have powers that are negligible in either precision.
            let coarse = p.coarse && starts[0].iter().all(|s| s.mul(*s).sum() == T::ZERO);
            for from in (0..p.keys).step_by(step) {
                let keys = step.min(p.keys - from);
                // The compiler knows the usual width.
                match width {
                    8 if V::TUNED && !coarse => self.scores::<V, C, PAIRED, false>(at, from, keys, 8, starts),
                    _ if coarse => self.scores::<V, C, PAIRED, true>(at, from, keys, width, starts),
                    _ => self.scores::<V, C, PAIRED, false>(at, from, keys, width, starts),
                }
                let mut epilogue = AccumulateRows { sums: at.d_queries, row: lanes, overwrite: from == 0 };
                multiply_rows::<T, V, C>(width, keys, p.key.from(from).transposed(), at.d_scores, lanes, &mut epilogue);
                let (sums, overwrite) = (at.sums.add(from * row), first == 0);
                if PAIRED {
                    let pairs = Strided { ptr: at.weights.cast_const(), row: 2 * lanes, col: 2 };
                    let mut epilogue = AccumulateRows { sums, row, overwrite };
                    if row == V::LANES {
                        multiply_rows_paired::<T, V, 1, true, _>(keys, n, pairs, at.rows, row, &mut epilogue);
                    } else {
                        multiply_rows_paired::<T, V, 2, true, _>(keys, n, pairs, at.rows, row, &mut epilogue);
                    }
                } else {
                    for (factor, half) in [(at.weights, 0), (at.d_scores, row / 2)] {
                        let factor = Strided { ptr: factor.cast_const(), row: lanes, col: 1 };
                        for strip in (half..half + row / 2).step_by(2 * V::LANES) {
                            let mut epilogue = AccumulateRows { sums: sums.add(strip), row, overwrite };
                            multiply_rows::<T, V, 2>(keys, n, factor, at.rows.add(strip), row, &mut epilogue);
                        }
                    }
                }
            }
            scale(at.d_queries, width, [V::splat(p.scale); C]);
            let rows = p.block_rows(n, lanes);
            self.d_query.from(first).unpack_transposed::<V, C>(rows, at.d_queries);
        }
    }

    /// Packs a block of queries, their outputs and gradients. `dO` is divided by the sums of the softmax, so that
    /// `2^S` need not be. Returns what `S` and `dP` start from: minus the maximum score, and `−Σ dO·O`.
    ///
    /// # Safety
    /// As for [`Backward::block`].
    #[inline(always)]
    unsafe fn pack<V: Vector<T>, const C: usize, const PAIRED: bool>(
        &self,
        at: Workspace<T>,
        first: usize,
        n: usize,
    ) -> [[V; C]; 2] {
        let p = self.problem;
        let (lanes, width) = (C * V::LANES, p.query.width);
        // SAFETY: the caller's contract: rows and statistics of `n` queries are valid (of a full block where `padded`).
        // Each buffer of `at` has `width` rows of `lanes`, and `at.rows` a row for each query of the block.
        unsafe {
            let (query, d_out, rows) = (p.query.from(first), self.d_out.from(first), p.block_rows(n, lanes));
            query.pack_transposed::<V, C>(rows, at.queries, p.scale_log2);
            d_out.pack_transposed::<V, C>(rows, at.d_outs, T::ONE);
            let outs = at.d_queries; // where dQ will be
            p.out.from(first).pack_transposed::<V, C>(rows, outs, T::ONE);
            let (mut scores, mut d_weights) = ([V::zero(); C], [V::zero(); C]);
            for (c, (score, d_weight)) in scores.iter_mut().zip(&mut d_weights).enumerate() {
                let (query, valid) = (first + c * V::LANES, lanes_of::<T, V>(n, c));
                let inverse = load_lanes::<T, V>(p.inv_sum.add(query), valid);
                let mut dot = V::zero();
                for e in 0..width {
                    let at_lanes = (e * C + c) * V::LANES;
                    let d = V::load(at.d_outs.add(at_lanes)).mul(inverse);
                    d.store(at.d_outs.add(at_lanes));
                    dot = d.mul_add(V::load(outs.add(at_lanes)), dot);
                }
                *score = V::zero().sub(load_lanes(p.max_score.add(query), valid));
                *d_weight = V::zero().sub(dot);
            }
            let scale = V::splat(p.scale);
            for i in 0..n {
                let (query, d_out, row) = (query.from(i).ptr, d_out.from(i).ptr, at.rows.add(i * at.row));
                let inverse = V::splat(*p.inv_sum.add(first + i));
                if PAIRED {
                    let pairs = V::interleave(
                        load_lanes::<T, V>(d_out, width).mul(inverse),
                        load_lanes::<T, V>(query, width).mul(scale),
                    );
                    pairs[0].store(row);
                    if at.row > V::LANES {
                        pairs[1].store(row.add(V::LANES));
                    }
                } else {
                    for (from, to, factor) in [(d_out, row, inverse), (query, row.add(at.row / 2), scale)] {
                        columns!(V, width, |j, n| load_lanes::<T, V>(from.add(j), n).mul(factor).store(to.add(j)));
                        if width.next_multiple_of(V::LANES) < at.row / 2 {
                            V::zero().store(to.add(at.row / 2 - V::LANES));
                        }
                    }
                }
            }
            [scores, d_weights]
        }
    }

    /// `P = 2^S` and `dS = P · dP` of some keys; both products stay in registers until both are complete.
    ///
    /// # Safety
    /// As for [`Backward::block`], with `from + keys` at most the number of keys.
    #[inline(always)]
    unsafe fn scores<V: Vector<T>, const C: usize, const PAIRED: bool, const COARSE: bool>(
        &self,
        at: Workspace<T>,
        from: usize,
        keys: usize,
        width: usize,
        starts: [[V; C]; 2],
    ) {
        let p = self.problem;
        let lanes = C * V::LANES;
        let mut j = 0;
        macro_rules! row_tiles {
            ($r:expr) => {
                while keys - j >= $r {
                    // SAFETY: keys `from + j..` lie below `from + keys`; scratch rows `j..` lie below `keys`.
                    unsafe {
                        let (mut scores, mut d_weights) = ([starts[0]; $r], [starts[1]; $r]);
                        let (key, value) = (p.key.from(from + j).matrix(), p.value.from(from + j).matrix());
                        tile::<T, V, $r, C, false>(width, key, at.queries, lanes, &mut scores);
                        tile::<T, V, $r, C, false>(width, value, at.d_outs, lanes, &mut d_weights);
                        for r in 0..$r {
                            for c in 0..C {
                                let at_lanes = (j + r) * lanes + c * V::LANES;
                                let score = scores[r][c];
                                let weight = if COARSE { score.exp2_coarse() } else { score.exp2() };
                                let d_score = d_weights[r][c].mul(weight);
                                d_score.store(at.d_scores.add(at_lanes));
                                if PAIRED {
                                    let pairs = V::interleave(weight, d_score);
                                    pairs[0].store(at.weights.add(2 * at_lanes));
                                    pairs[1].store(at.weights.add(2 * at_lanes + V::LANES));
                                } else {
                                    weight.store(at.weights.add(at_lanes));
                                }
                            }
                        }
                    }
                    j += $r;
                }
            };
        }
        if V::REGISTERS_32 {
            row_tiles!(6);
        }
        row_tiles!(3);
        row_tiles!(1);
    }
}
