//! Attention of one example, relation and head, and its gradients.

use super::super::gemm::{Ends, Strided, rows_of_tiles, rows_of_tiles_paired};
use super::head::Head;
use crate::real::Real;
use crate::simd::{Kernel, Vector};

/// One example, relation and head.
#[derive(Clone, Copy)]
pub struct Problem<T> {
    pub queries: usize,
    pub keys: usize,
    /// Factor of the products in the scores.
    pub scale: T,
    /// The same times log₂ e: softmax is computed with powers of two.
    pub scale_log2: T,
    pub query: Head<T>,
    pub key: Head<T>,
    pub value: Head<T>,
    pub out: Head<T>,
    /// Largest score in powers of two, then one over the sum, for each query; two numbers at distance `stats_row`.
    pub stats: *mut T,
    pub stats_row: usize,
}

/// Rows of a block, times one factor per lane.
pub struct Scaled<T, V, const C: usize> {
    pub out: *mut T,
    pub factor: [V; C],
}

impl<T: Real, V: Vector<T>, const C: usize> Ends<T, V, C> for Scaled<T, V, C> {
    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, sums: [V; C]) {
        for (c, sum) in sums.into_iter().enumerate() {
            unsafe { sum.mul(self.factor[c]).store(self.out.add((row * C + c) * V::LANES)) };
        }
    }
}

/// Rows of a block as they are.
struct Stored<T> {
    out: *mut T,
}

impl<T: Real, V: Vector<T>> Ends<T, V, 2> for Stored<T> {
    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, sums: [V; 2]) {
        unsafe {
            let out = self.out.add(row * 2 * V::LANES);
            sums[0].store(out);
            sums[1].store(out.add(V::LANES));
        }
    }
}

/// Sums that go on from what is there, rows `row` apart.
pub struct Added<T> {
    pub sums: *mut T,
    pub row: usize,
}

impl<T: Real, V: Vector<T>, const C: usize> Ends<T, V, C> for Added<T> {
    #[inline(always)]
    unsafe fn start(&self, row: usize) -> [V; C] {
        unsafe {
            let mut start = [V::zero(); C];
            for (c, v) in start.iter_mut().enumerate() {
                *v = V::load(self.sums.add(row * self.row + c * V::LANES));
            }
            start
        }
    }

    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, sums: [V; C]) {
        unsafe {
            for (c, v) in sums.into_iter().enumerate() {
                v.store(self.sums.add(row * self.row + c * V::LANES));
            }
        }
    }
}

/// Gradients of one example, relation and head.
pub struct Backward<T> {
    pub problem: Problem<T>,
    pub d_out: Head<T>,
    pub d_query: Head<T>,
    pub d_key: Head<T>,
    pub d_value: Head<T>,
    pub scratch: *mut T,
}

/// Scratch elements of a backward task.
pub fn backward_scratch<T: Real>(keys: usize, width: usize) -> usize {
    let block = T::panel_width();
    let padded = width.next_multiple_of(block);
    3 * keys * block
        + (2 * width + width.max(block)) * block
        + 2 * block * padded
        + 4 * keys * padded
        + 2 * keys * width
        + 4 * block
}

impl<T: Real> Kernel<T> for Backward<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let block = 2 * V::LANES;
        let p = self.problem;
        let width = p.query.width();
        // Rows with the width in lanes: one vector if it fits, else whole panels. If it does, the gradients of values and keys are
        // computed as one, values in even and keys in odd columns.
        let paired = width <= V::LANES;
        let padded = if paired { V::LANES } else { width.next_multiple_of(block) };
        unsafe {
            let mut free = self.scratch;
            macro_rules! take {
                ($n:expr) => {{
                    let p = free;
                    free = free.add($n);
                    p
                }};
            }
            let weights = take!(2 * p.keys * block); // Pᵀ, paired with dSᵀ
            let d_scores = take!(p.keys * block); // dSᵀ
            let queries = take!(width.max(block) * block); // Qᵀ, later rows of pairs
            let d_outs = take!(width * block); // dOᵀ
            let d_queries = take!(width * block); // dQᵀ
            let query_rows = take!(block * padded);
            let d_out_rows = take!(block * padded);
            let d_key = take!(p.keys * padded);
            let d_value = take!(p.keys * padded);
            let both = take!(if paired { p.keys * 2 * V::LANES } else { 0 });
            let per_query = take!(2 * block); // largest, inverse sum
            let key = p.key.matrix::<V>(p.keys, take!(p.keys * width));
            let value = p.value.matrix::<V>(p.keys, free);
            let sums = if paired { both } else { d_key }; // keys and values lie one after another
            std::slice::from_raw_parts_mut(sums, 2 * p.keys * padded).fill(T::ZERO);

            let mut first = 0;
            while first < p.queries {
                let n = block.min(p.queries - first);
                p.query.pack_transposed::<V, 2>(first, n, queries, p.scale_log2);
                self.d_out.pack_transposed::<V, 2>(first, n, d_outs, T::ONE);
                p.query.pack_rows::<V>(first, n, padded, query_rows, p.scale);
                self.d_out.pack_rows::<V>(first, n, padded, d_out_rows, T::ONE);
                std::slice::from_raw_parts_mut(per_query, 2 * block).fill(T::ZERO);
                for i in 0..n {
                    let stats = p.stats.add((first + i) * p.stats_row);
                    *per_query.add(i) = *stats;
                    *per_query.add(block + i) = *stats.add(1);
                }
                // Σ dO·O down the lanes, with O where dQ will be.
                p.out.pack_transposed::<V, 2>(first, n, d_queries, T::ONE);
                let mut dot = [V::zero(); 2];
                for e in 0..width {
                    for (c, dot) in dot.iter_mut().enumerate() {
                        let at = e * block + c * V::LANES;
                        *dot = V::load(d_outs.add(at)).mul_add(V::load(d_queries.add(at)), *dot);
                    }
                }
                // Paired weights take the first half of their place while the scores are read from the second.
                let scores = if paired { weights.add(p.keys * block) } else { weights };
                rows_of_tiles::<T, V, 2>(p.keys, width, key, queries, block, &mut Stored { out: scores });
                rows_of_tiles::<T, V, 2>(p.keys, width, value, d_outs, block, &mut Stored { out: d_scores });
                let mut per = [[V::zero(); 2]; 2];
                for (k, v) in per.iter_mut().enumerate() {
                    *v = [V::load(per_query.add(k * block)), V::load(per_query.add(k * block + V::LANES))];
                }
                let [largest, inverse] = per;
                for j in 0..p.keys {
                    for c in 0..2 {
                        let at = j * block + c * V::LANES;
                        let w = V::load(scores.add(at)).sub(largest[c]).exp2().mul(inverse[c]);
                        let d = V::load(d_scores.add(at)).sub(dot[c]).mul(w);
                        d.store(d_scores.add(at));
                        if paired {
                            let pairs = V::interleave(w, d);
                            pairs[0].store(weights.add(2 * at));
                            pairs[1].store(weights.add(2 * at + V::LANES));
                        } else {
                            w.store(weights.add(at));
                        }
                    }
                }
                let transposed = Strided { ptr: key.ptr, row: 1, col: key.row };
                let mut ends = Scaled { out: d_queries, factor: [V::splat(p.scale); 2] };
                rows_of_tiles::<T, V, 2>(width, p.keys, transposed, d_scores, block, &mut ends);
                self.d_query.unpack_transposed::<V, 2>(first, n, d_queries);
                if paired {
                    let factor = Strided { ptr: weights.cast_const(), row: 2 * block, col: 2 };
                    let rows = queries; // not needed any more
                    for i in 0..n {
                        let pairs =
                            V::interleave(V::load(d_out_rows.add(i * padded)), V::load(query_rows.add(i * padded)));
                        pairs[0].store(rows.add(i * 2 * V::LANES));
                        pairs[1].store(rows.add(i * 2 * V::LANES + V::LANES));
                    }
                    let mut ends = Added { sums: both, row: 2 * V::LANES };
                    if 2 * width <= V::LANES {
                        rows_of_tiles_paired::<T, V, 1, true>(p.keys, n, factor, rows, 2 * V::LANES, &mut ends);
                    } else {
                        rows_of_tiles_paired::<T, V, 2, true>(p.keys, n, factor, rows, 2 * V::LANES, &mut ends);
                    }
                } else {
                    for (factor, rows, sums) in [(weights, d_out_rows, d_value), (d_scores, query_rows, d_key)] {
                        let factor = Strided { ptr: factor.cast_const(), row: block, col: 1 };
                        for panel in (0..padded).step_by(block) {
                            let mut ends = Added { sums: sums.add(panel), row: padded };
                            rows_of_tiles::<T, V, 2>(p.keys, n, factor, rows.add(panel), padded, &mut ends);
                        }
                    }
                }
                first += n;
            }
            if paired {
                for j in 0..p.keys {
                    let at = both.add(j * 2 * V::LANES);
                    let [values, keys] = V::deinterleave(V::load(at), V::load(at.add(V::LANES)));
                    values.store(d_value.add(j * V::LANES));
                    keys.store(d_key.add(j * V::LANES));
                }
            }
            self.d_key.unpack_rows::<V>(p.keys, padded, d_key);
            self.d_value.unpack_rows::<V>(p.keys, padded, d_value);
        }
    }
}
