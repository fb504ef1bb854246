//! Multi-head attention over ragged sets, all relations at once.
//!
//! One example, relation and head at a time. Queries lie in vector lanes: a block of two vectors of queries is packed
//! transposed (`[width][block]`), so that the scores of one key are two vectors, the softmax over keys runs down the lanes
//! without any reduction across them, and every product is the tile of `gemm`:
//!
//! * scores `Sᵀ = K Qᵀ` (`[keys][block]`, in first- or second-level cache), then `P = 2^(S − max)`, then `Oᵀ = Vᵀ Pᵀ`;
//! * backward recomputes `P` from the kept maximum and sum, `dPᵀ = V dOᵀ`, `dS = P (dP − Σ dO·O)`, `dQᵀ = Kᵀ dSᵀ`, and adds
//!   `P dO` and `dS Q` to the gradients of values and keys, with the width in lanes. Scale and log₂ e are multiplied into the packed
//!   queries, so scores come out ready for powers of two.
//!
//! A head's vector may be cut into chunks at a distance: in dimension-equivariant models it is the concatenation of
//! `width / heads` numbers for each input dimension. Only packing knows of that.
//!
//! Cost: 4 n·m·e operations forward, 14 n·m·e backward for n queries, m keys, vectors of e, and n·m exponentials each way;
//! memory per thread is two blocks of `m` scores.

use super::gemm::{Ends, Strided, rows_of_tiles, rows_of_tiles_paired};
use super::norm::{get, put};
use super::tasks::locate;
use super::worker::{Run, Worker};
use crate::program::{Attention, Relation, Slice};
use crate::real::Real;
use crate::simd::{Kernel, Vector};

/// Queries of a forward task, a multiple of every block.
const QUERIES_PER_TASK: usize = 256;

/// Eight numbers for each query of a block, whatever the machine's vectors.
const EIGHTS: usize = 8 * 32;

/// Rows of one head: element `(i, c · len + l)` is at `ptr[i * row + c * chunk_stride + l]`.
#[derive(Clone, Copy)]
struct Head<T> {
    ptr: *mut T,
    row: usize,
    chunks: usize,
    chunk_stride: usize,
    chunk_len: usize,
}

impl<T: Real> Head<T> {
    #[inline(always)]
    fn width(&self) -> usize {
        self.chunks * self.chunk_len
    }

    /// Packs rows `first..first + n` transposed into `[width][lanes]`, times `factor`; `lanes` is two vectors. Lanes beyond `n` hold
    /// anything finite: nobody reads what becomes of them.
    #[inline(always)]
    unsafe fn pack_transposed<V: Vector<T>>(self, first: usize, n: usize, out: *mut T, factor: T) {
        let lanes = 2 * V::LANES;
        let width = self.width();
        let mut rows = [T::ZERO; EIGHTS];
        unsafe {
            let mut e = 0;
            while e + 8 <= width {
                let (src, row) = if self.chunk_len.is_multiple_of(8) && n == lanes {
                    (self.place(first, e).cast_const(), self.row)
                } else {
                    for i in 0..n {
                        self.copy_eight(first + i, e, rows.as_mut_ptr().add(8 * i), true);
                    }
                    (rows.as_ptr(), 8)
                };
                V::columns_of_eight(src, row, out.add(e * lanes), lanes, factor);
                V::columns_of_eight(src.add(V::LANES * row), row, out.add(e * lanes + V::LANES), lanes, factor);
                e += 8;
            }
            for e in e..width {
                for i in 0..n {
                    *out.add(e * lanes + i) = *self.place(first + i, e) * factor;
                }
                for i in n..lanes {
                    *out.add(e * lanes + i) = T::ZERO;
                }
            }
        }
    }

    /// Address of number `e` of a row.
    #[inline(always)]
    unsafe fn place(self, row: usize, e: usize) -> *mut T {
        unsafe { self.ptr.add(row * self.row + e / self.chunk_len * self.chunk_stride + e % self.chunk_len) }
    }

    /// Copies numbers `e..e + 8` of a row out to `eight`, or in from there.
    #[inline(always)]
    unsafe fn copy_eight(self, row: usize, e: usize, eight: *mut T, out: bool) {
        unsafe {
            if self.chunk_len.is_multiple_of(8) {
                let at = self.place(row, e).cast::<[T; 8]>();
                let eight = eight.cast::<[T; 8]>();
                if out {
                    eight.write_unaligned(at.read_unaligned())
                } else {
                    at.write_unaligned(eight.read_unaligned())
                }
            } else if self.chunk_len.is_multiple_of(4) {
                for half in [0, 4] {
                    let at = self.place(row, e + half).cast::<[T; 4]>();
                    let eight = eight.add(half).cast::<[T; 4]>();
                    if out {
                        eight.write_unaligned(at.read_unaligned())
                    } else {
                        at.write_unaligned(eight.read_unaligned())
                    }
                }
            } else {
                for j in 0..8 {
                    let (at, eight) = (self.place(row, e + j), eight.add(j));
                    if out { *eight = *at } else { *at = *eight }
                }
            }
        }
    }

    /// Packs rows `first..first + n` one after another, `stride` apart, times `factor`, zero beyond the width.
    #[inline(always)]
    unsafe fn pack_rows<V: Vector<T>>(self, first: usize, n: usize, stride: usize, out: *mut T, factor: T) {
        unsafe {
            for i in 0..n {
                let dst = out.add(i * stride);
                for j in (self.width()..stride).step_by(V::LANES) {
                    V::zero().store_first(dst.add(j), V::LANES.min(stride - j));
                }
                for c in 0..self.chunks {
                    let src = self.ptr.add((first + i) * self.row + c * self.chunk_stride);
                    copy::<T, V>(src, dst.add(c * self.chunk_len), self.chunk_len, factor);
                }
            }
        }
    }

    /// The rows as a matrix: as they lie, or packed into `out` where they lie in chunks.
    #[inline(always)]
    unsafe fn matrix<V: Vector<T>>(self, n: usize, out: *mut T) -> Strided<T> {
        if self.chunks == 1 {
            return Strided { ptr: self.ptr, row: self.row, col: 1 };
        }
        unsafe { self.pack_rows::<V>(0, n, self.width(), out, T::ONE) };
        Strided { ptr: out, row: self.width(), col: 1 }
    }

    /// Writes `rows[i][..width]`, `stride` apart, to the head's place.
    #[inline(always)]
    unsafe fn unpack_rows<V: Vector<T>>(self, n: usize, stride: usize, rows: *const T) {
        unsafe {
            for i in 0..n {
                for c in 0..self.chunks {
                    let dst = self.ptr.add(i * self.row + c * self.chunk_stride);
                    copy::<T, V>(rows.add(i * stride + c * self.chunk_len), dst, self.chunk_len, T::ONE);
                }
            }
        }
    }

    /// Writes a transposed block `[width][lanes]` to rows `first..first + n`; `lanes` is two vectors.
    #[inline(always)]
    unsafe fn unpack_transposed<V: Vector<T>>(self, first: usize, n: usize, block: *const T) {
        let lanes = 2 * V::LANES;
        let width = self.width();
        let mut rows = [T::ZERO; EIGHTS];
        unsafe {
            let mut e = 0;
            while e + 8 <= width {
                let src = block.add(e * lanes);
                let direct = self.chunk_len.is_multiple_of(8) && n == lanes;
                let (dst, row) = if direct { (self.place(first, e), self.row) } else { (rows.as_mut_ptr(), 8) };
                V::rows_of_eight(src, lanes, dst, row);
                V::rows_of_eight(src.add(V::LANES), lanes, dst.add(V::LANES * row), row);
                if !direct {
                    for i in 0..n {
                        self.copy_eight(first + i, e, rows.as_mut_ptr().add(8 * i), false);
                    }
                }
                e += 8;
            }
            for e in e..width {
                for i in 0..n {
                    *self.place(first + i, e) = *block.add(e * lanes + i);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn copy<T: Real, V: Vector<T>>(src: *const T, dst: *mut T, n: usize, factor: T) {
    unsafe {
        if n == 4 {
            // The usual chunk of dimension-equivariant heads.
            let four = src.cast::<[T; 4]>().read_unaligned();
            dst.cast::<[T; 4]>().write_unaligned(four.map(|x| x * factor));
            return;
        }
        let mut j = 0;
        while j < n {
            let lanes = (n - j).min(V::LANES);
            put(get::<T, V>(src.add(j), lanes).mul(V::splat(factor)), dst.add(j), lanes);
            j += V::LANES;
        }
    }
}

/// One example, relation and head.
#[derive(Clone, Copy)]
struct Problem<T> {
    queries: usize,
    keys: usize,
    /// Factor of the products in the scores.
    scale: T,
    /// The same times log₂ e: softmax is computed with powers of two.
    scale_log2: T,
    query: Head<T>,
    key: Head<T>,
    value: Head<T>,
    out: Head<T>,
    /// Largest score in powers of two, then one over the sum, for each query; two numbers at distance `stats_row`.
    stats: *mut T,
    stats_row: usize,
}

/// Attention for queries `first..last`.
struct Forward<T> {
    problem: Problem<T>,
    first: usize,
    last: usize,
    scratch: *mut T,
}

/// Scratch elements of a forward task.
fn forward_scratch<T: Real>(keys: usize, width: usize) -> usize {
    let block = T::panel_width();
    keys * block + 2 * width * block + 2 * keys * width + 4 * block
}

impl<T: Real> Kernel<T> for Forward<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let block = 2 * V::LANES;
        let p = self.problem;
        let width = p.query.width();
        unsafe {
            let scores = self.scratch;
            let queries = scores.add(p.keys * block);
            let sums = queries.add(width * block);
            let key = p.key.matrix::<V>(p.keys, sums.add(width * block));
            let value = p.value.matrix::<V>(p.keys, sums.add(width * block + p.keys * width));
            let mut first = self.first;
            while first < self.last {
                let n = block.min(self.last - first);
                p.query.pack_transposed::<V>(first, n, queries, p.scale_log2);
                let mut ends = Scores { out: scores, largest: [V::splat(T::LOWEST); 2] };
                rows_of_tiles::<T, V, 2>(p.keys, width, key, queries, block, &mut ends);
                let largest = ends.largest;
                let mut total = [V::zero(); 2];
                for j in 0..p.keys {
                    for c in 0..2 {
                        let at = scores.add(j * block + c * V::LANES);
                        let e = V::load(at).sub(largest[c]).exp2();
                        e.store(at);
                        total[c] = total[c].add(e);
                    }
                }
                let inverse = [V::splat(T::ONE).div(total[0]), V::splat(T::ONE).div(total[1])];
                let transposed = Strided { ptr: value.ptr, row: 1, col: value.row };
                let mut ends = Scaled { out: sums, factor: inverse };
                rows_of_tiles::<T, V, 2>(width, p.keys, transposed, scores, block, &mut ends);
                p.out.unpack_transposed::<V>(first, n, sums);
                let stats = queries; // the queries are not needed any more
                for c in 0..2 {
                    largest[c].store(stats.add(c * V::LANES));
                    inverse[c].store(sums.add(c * V::LANES));
                }
                for i in 0..n {
                    let at = p.stats.add((first + i) * p.stats_row);
                    *at = *stats.add(i);
                    *at.add(1) = *sums.add(i);
                }
                first += n;
            }
        }
    }
}

/// Rows of a block, times one factor per lane.
struct Scaled<T, V> {
    out: *mut T,
    factor: [V; 2],
}

impl<T: Real, V: Vector<T>> Ends<T, V, 2> for Scaled<T, V> {
    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, sums: [V; 2]) {
        unsafe {
            let out = self.out.add(row * 2 * V::LANES);
            sums[0].mul(self.factor[0]).store(out);
            sums[1].mul(self.factor[1]).store(out.add(V::LANES));
        }
    }
}

/// Scores, and the largest of each query.
struct Scores<T, V> {
    out: *mut T,
    largest: [V; 2],
}

impl<T: Real, V: Vector<T>> Ends<T, V, 2> for Scores<T, V> {
    #[inline(always)]
    unsafe fn finish(&mut self, row: usize, sums: [V; 2]) {
        unsafe {
            let out = self.out.add(row * 2 * V::LANES);
            sums[0].store(out);
            sums[1].store(out.add(V::LANES));
            self.largest = [self.largest[0].max(sums[0]), self.largest[1].max(sums[1])];
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
struct Added<T> {
    sums: *mut T,
    row: usize,
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
struct Backward<T> {
    problem: Problem<T>,
    d_out: Head<T>,
    d_query: Head<T>,
    d_key: Head<T>,
    d_value: Head<T>,
    scratch: *mut T,
}

/// Scratch elements of a backward task.
fn backward_scratch<T: Real>(keys: usize, width: usize) -> usize {
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
                p.query.pack_transposed::<V>(first, n, queries, p.scale_log2);
                self.d_out.pack_transposed::<V>(first, n, d_outs, T::ONE);
                p.query.pack_rows::<V>(first, n, padded, query_rows, p.scale);
                self.d_out.pack_rows::<V>(first, n, padded, d_out_rows, T::ONE);
                std::slice::from_raw_parts_mut(per_query, 2 * block).fill(T::ZERO);
                for i in 0..n {
                    let stats = p.stats.add((first + i) * p.stats_row);
                    *per_query.add(i) = *stats;
                    *per_query.add(block + i) = *stats.add(1);
                }
                // Σ dO·O down the lanes, with O where dQ will be.
                p.out.pack_transposed::<V>(first, n, d_queries, T::ONE);
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
                self.d_query.unpack_transposed::<V>(first, n, d_queries);
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

impl<T: Real> Worker<T> {
    /// The columns of head `h` in the rows of an example, in the values or in their gradients.
    fn head(&self, slice: Slice, heads: usize, h: usize, first_row: usize, grad: bool) -> Head<T> {
        let spec = &self.program.values[slice.value.0];
        let chunks = if spec.per_dim { self.shape.dims } else { 1 };
        let (base, stride) = if grad { self.grad_slice(slice) } else { self.slice(slice) };
        let chunk_len = slice.cols / heads;
        Head {
            // SAFETY: within the value.
            ptr: unsafe { base.at(first_row * chunks * stride + h * chunk_len) },
            row: chunks * stride,
            chunks,
            chunk_stride: stride,
            chunk_len,
        }
    }

    fn problem(&self, op: &Attention, r: &Relation, example: usize, h: usize) -> Problem<T> {
        let space = |s: Slice| self.program.values[s.value.0].space;
        let queries = self.shape.range(space(r.query), example);
        let keys = self.shape.range(space(r.key), example);
        let head = |s: Slice, first| self.head(s, op.heads, h, first, false);
        Problem {
            queries: queries.len(),
            keys: keys.len(),
            scale: T::from_f64(op.scale),
            scale_log2: T::from_f64(op.scale * std::f64::consts::LOG2_E),
            query: head(r.query, queries.start),
            key: head(r.key, keys.start),
            value: head(r.value, keys.start),
            out: head(r.out, queries.start),
            // SAFETY: two numbers per query and head.
            stats: unsafe { self.value(r.stats).at((queries.start * op.heads + h) * 2) },
            stats_row: 2 * op.heads,
        }
    }

    /// Tasks of a relation: blocks of queries of every example, as many for each as the largest needs.
    fn query_blocks(&self, r: &Relation) -> usize {
        let space = self.program.values[r.query.value.0].space;
        let most = (0..self.shape.examples).map(|e| self.shape.range(space, e).len()).max().unwrap_or(0);
        most.div_ceil(QUERIES_PER_TASK)
    }

    pub(super) fn attention_forward(&mut self, op: &Attention) {
        let this = &*self;
        let counts = || op.relations.iter().map(|r| this.query_blocks(r) * this.shape.examples);
        self.threads.run(counts().sum(), |t| {
            let (r, i) = locate(t, counts());
            let relation = &op.relations[r];
            let (example, block) = (i % this.shape.examples, i / this.shape.examples);
            for h in 0..op.heads {
                let problem = this.problem(op, relation, example, h);
                let first = block * QUERIES_PER_TASK;
                if first >= problem.queries {
                    return;
                }
                let last = problem.queries.min(first + QUERIES_PER_TASK);
                this.scratch.with(forward_scratch::<T>(problem.keys, problem.query.width()), |scratch| {
                    T::dispatch(Forward { problem, first, last, scratch });
                });
            }
        });
    }

    pub(super) fn attention_backward(&mut self, _run: &mut Run<T>, op: &Attention) {
        let this = &*self;
        let pairs = op.relations.len() * this.shape.examples;
        // Few examples: spread the heads over the threads as well.
        let heads_per_task = if pairs >= 64 { op.heads } else { 1 };
        let tasks_per_pair = op.heads / heads_per_task;
        self.threads.run(pairs * tasks_per_pair, |t| {
            let (pair, part) = (t / tasks_per_pair, t % tasks_per_pair);
            let (r, example) = (&op.relations[pair / this.shape.examples], pair % this.shape.examples);
            for h in part * heads_per_task..(part + 1) * heads_per_task {
                let problem = this.problem(op, r, example, h);
                let space = |s: Slice| this.program.values[s.value.0].space;
                let queries = this.shape.range(space(r.query), example).start;
                let keys = this.shape.range(space(r.key), example).start;
                let grad = |s: Slice, first| this.head(s, op.heads, h, first, true);
                this.scratch.with(backward_scratch::<T>(problem.keys, problem.query.width()), |scratch| {
                    T::dispatch(Backward {
                        problem,
                        d_out: grad(r.out, queries),
                        d_query: grad(r.query, queries),
                        d_key: grad(r.key, keys),
                        d_value: grad(r.value, keys),
                        scratch,
                    });
                });
            }
        });
        for r in &op.relations {
            for s in [r.query, r.key, r.value] {
                self.mark(s.value);
            }
        }
    }
}
