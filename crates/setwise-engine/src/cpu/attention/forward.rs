//! Forward pass of one example, relation and head.

use super::super::gemm::{Epilogue, Strided, multiply_rows};
use super::problem::{AccumulateRows, Problem, key_block, lanes_of, scale};
use crate::real::Real;
use crate::simd::{Kernel, Vector, columns, load_lanes, store_lanes};

/// Scores whose bound lies below this (in powers of two) need no shift by their maximum: neither powers nor sums
/// overflow, and none underflows beside another.
const UNSHIFTED_SCORE_LIMIT: f64 = 48.0;

/// Keys of a block: keys, values and scores of about this many fit the first cache level.
const KEYS: usize = 108;

/// `out = softmax(scale · Q Kᵀ) V` for one example, relation and head, one block of at most two vectors of queries at a
/// time. Writes `out`, and the maximum and inverse sum of each query.
pub struct Forward<T> {
    pub problem: Problem<T>,
    pub scratch: *mut T,
}

/// Scratch elements of a forward task: scores `[keys][block]`, queries and sums `[width][block]` each, and the largest
/// absolute value of each column of the keys.
pub fn forward_scratch<T: Real>(keys: usize, width: usize) -> usize {
    let block = T::packed_width();
    (keys + 2 * width) * block + width
}

impl<T: Real> Kernel<T> for Forward<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let p = self.problem;
        let width = p.query.width;
        // SAFETY: the contract of `Kernel::run`: rows of all keys are valid. `key_abs_max` has `width` elements behind
        // those of a block, as `forward_scratch` counts with `2 · LANES` elements a block. `first + n ≤ queries`.
        unsafe {
            // The largest absolute value of each column of the keys.
            let key_abs_max = self.scratch.add((p.keys + 2 * width) * 2 * V::LANES);
            columns!(V, width, |j, n| {
                let mut peak = V::zero();
                for i in 0..p.keys {
                    peak = peak.max(abs::<T, V>(load_lanes(p.key.ptr.add(i * p.key.row + j), n)));
                }
                store_lanes(peak, key_abs_max.add(j), n);
            });
            let mut first = 0;
            while first < p.queries {
                let n = (p.queries - first).min(2 * V::LANES);
                if n > V::LANES {
                    self.block::<V, 2>(first, n, key_abs_max);
                } else {
                    self.block::<V, 1>(first, n, key_abs_max);
                }
                first += n;
            }
        }
    }
}

impl<T: Real> Forward<T> {
    /// One block: `n` queries in `C` vectors.
    ///
    /// # Safety
    /// The caller runs in a kernel. `first + n` is at most the number of queries. `key_abs_max` holds a number for
    /// each column.
    #[inline(always)]
    unsafe fn block<V: Vector<T>, const C: usize>(&self, first: usize, n: usize, key_abs_max: *const T) {
        let p = self.problem;
        let (lanes, width) = (C * V::LANES, p.query.width);
        // SAFETY: the caller's contract: `n` queries from `first` on and all keys are valid. `scores`, `queries` and
        // `sums` take `(keys + 2 · width) · lanes` elements with `lanes ≤ 2 · LANES`, and lie before `key_abs_max`.
        // Blocks of keys lie below `keys`. Lane `c · LANES + i` of statistics exists for `i < lanes_of(n, c)`.
        unsafe {
            let scores = self.scratch;
            let queries = scores.add(p.keys * lanes);
            let sums = queries.add(width * lanes);
            let rows = p.block_rows(n, lanes);
            p.query.from(first).pack_transposed::<V, C>(rows, queries, p.scale_log2);
            let (max_score, inv_sum);
            if scores_are_bounded::<T, V, C>(queries, width, key_abs_max) {
                let step = key_block(p.keys, KEYS);
                let mut total = [V::zero(); C];
                for first in (0..p.keys).step_by(step) {
                    let keys = step.min(p.keys - first);
                    let key = p.key.from(first).matrix();
                    total = if p.coarse {
                        exp2_scores::<T, V, C, true>([keys, width], key, queries, scores, total)
                    } else {
                        exp2_scores::<T, V, C, false>([keys, width], key, queries, scores, total)
                    };
                    let values = p.value.from(first).transposed();
                    let mut epilogue = AccumulateRows { sums, row: lanes, overwrite: first == 0 };
                    multiply_rows::<T, V, C>(width, keys, values, scores, lanes, &mut epilogue);
                }
                (max_score, inv_sum) = ([V::zero(); C], total.map(|t| V::splat(T::ONE).div(t)));
                scale(sums, width, inv_sum);
            } else {
                let mut epilogue = Scores { out: scores, max: [V::splat(T::LOWEST); C] };
                multiply_rows::<T, V, C>(p.keys, width, p.key.matrix(), queries, lanes, &mut epilogue);
                let mut total = [V::zero(); C];
                for j in 0..p.keys {
                    for (c, total) in total.iter_mut().enumerate() {
                        let at = scores.add(j * lanes + c * V::LANES);
                        let e = V::load(at).sub(epilogue.max[c]).exp2();
                        e.store(at);
                        *total = total.add(e);
                    }
                }
                (max_score, inv_sum) = (epilogue.max, total.map(|t| V::splat(T::ONE).div(t)));
                let mut epilogue = Scaled { out: sums, factor: inv_sum };
                multiply_rows::<T, V, C>(width, p.keys, p.value.transposed(), scores, lanes, &mut epilogue);
            }
            p.out.from(first).unpack_transposed::<V, C>(rows, sums);
            for c in 0..C {
                let (at, valid) = (first + c * V::LANES, lanes_of::<T, V>(n, c));
                store_lanes(max_score[c], p.max_score.add(at), valid);
                store_lanes(inv_sum[c], p.inv_sum.add(at), valid);
            }
        }
    }
}

/// # Safety
/// The caller runs in a kernel.
#[inline(always)]
unsafe fn abs<T: Real, V: Vector<T>>(x: V) -> V {
    // SAFETY: the caller runs in a kernel.
    unsafe { x.max(V::zero().sub(x)) }
}

/// Whether no score can exceed [`UNSHIFTED_SCORE_LIMIT`] in absolute value. The bound is `Σ_e |q_e| · max_j |k_je|`.
///
/// # Safety
/// The caller runs in a kernel; `queries` holds `width` rows of `C` vectors and `key_abs_max` `width` numbers.
#[inline(always)]
unsafe fn scores_are_bounded<T: Real, V: Vector<T>, const C: usize>(
    queries: *const T,
    width: usize,
    key_abs_max: *const T,
) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        let mut bound = [V::zero(); C];
        for e in 0..width {
            let peak = V::splat(*key_abs_max.add(e));
            for (c, bound) in bound.iter_mut().enumerate() {
                *bound = abs::<T, V>(V::load(queries.add((e * C + c) * V::LANES))).mul_add(peak, *bound);
            }
        }
        let mut beyond = V::zero();
        for bound in bound {
            beyond = beyond.add(bound.sub(V::splat(T::from_f64(UNSHIFTED_SCORE_LIMIT))).max(V::zero()));
        }
        beyond.sum() == T::ZERO
    }
}

/// `2^S` of some keys, and the running sum of each query.
///
/// # Safety
/// The caller runs in a kernel; `key` has `keys` rows, `queries` `width` and `out` `keys` rows of `C` vectors.
#[inline(always)]
unsafe fn exp2_scores<T: Real, V: Vector<T>, const C: usize, const COARSE: bool>(
    [keys, width]: [usize; 2],
    key: Strided<T>,
    queries: *const T,
    out: *mut T,
    total: [V; C],
) -> [V; C] {
    let mut epilogue = Exp2Rows::<T, V, C, COARSE> { out, total };
    // SAFETY: the caller's contract: `keys` rows of keys and of `out`.
    unsafe { multiply_rows::<T, V, C>(keys, width, key, queries, C * V::LANES, &mut epilogue) };
    epilogue.total
}

/// Writes `2^S` of scores without a shift, and sums them for each query.
struct Exp2Rows<T, V, const C: usize, const COARSE: bool> {
    out: *mut T,
    total: [V; C],
}

impl<T: Real, V: Vector<T>, const C: usize, const COARSE: bool> Epilogue<T, V, C> for Exp2Rows<T, V, C, COARSE> {
    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, sums: [V; C]) {
        for (c, sum) in sums.into_iter().enumerate() {
            // SAFETY: `exp2_scores` passes an `out` with `C` vectors for every key, and `row` is one of its keys.
            unsafe {
                let e = if COARSE { sum.exp2_coarse() } else { sum.exp2() };
                e.store(self.out.add((row * C + c) * V::LANES));
                self.total[c] = self.total[c].add(e);
            }
        }
    }
}

/// Writes scores, and takes the maximum for each query.
struct Scores<T, V, const C: usize> {
    out: *mut T,
    max: [V; C],
}

impl<T: Real, V: Vector<T>, const C: usize> Epilogue<T, V, C> for Scores<T, V, C> {
    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, sums: [V; C]) {
        for (c, sum) in sums.into_iter().enumerate() {
            // SAFETY: `out` has `C` vectors for every key, and `row` is a key.
            unsafe {
                sum.store(self.out.add((row * C + c) * V::LANES));
                self.max[c] = self.max[c].max(sum);
            }
        }
    }
}

/// Writes rows of a block, times one factor per lane.
struct Scaled<T, V, const C: usize> {
    out: *mut T,
    factor: [V; C],
}

impl<T: Real, V: Vector<T>, const C: usize> Epilogue<T, V, C> for Scaled<T, V, C> {
    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, sums: [V; C]) {
        for (c, sum) in sums.into_iter().enumerate() {
            // SAFETY: `out` has `width` rows of `C` vectors, and `row` is one of them.
            unsafe { sum.mul(self.factor[c]).store(self.out.add((row * C + c) * V::LANES)) };
        }
    }
}
