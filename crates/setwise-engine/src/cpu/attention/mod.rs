//! Multi-head attention over ragged sets, all relations at once.
//!
//! A kernel computes one example, relation and head. Queries lie in vector lanes: a block of two vectors of queries is
//! packed transposed (`[width][block]`). The scores of one key are then two vectors, and the softmax over keys needs
//! no reduction across lanes. Every product is the tile of `gemm`.
//!
//! Forward: scores `Sᵀ = K Qᵀ` (`[keys][block]`, in the first or second cache level), then `P = 2^(S − max)`, then
//! `Oᵀ = Vᵀ Pᵀ`. Where bounds on queries and keys show that no score is large, no maximum is needed. The exponential
//! is then taken while scores are in registers.
//!
//! Backward: one block of keys at a time, so that its intermediate results stay in the first cache level. `S` starts
//! at minus the saved maximum and `dPᵀ = V dOᵀ` at `−Σ dO·O`, with `dO` divided by the saved sum. `P = 2^S` and
//! `dS = P · dP` follow in registers. Then `dQᵀ = Kᵀ dSᵀ`; `P dO` and `dS Q`, with the width in lanes, are added to
//! the gradients of values and keys. Scale and log₂ e are multiplied into the packed queries.
//!
//! A head's vector may consist of chunks: in dimension-equivariant models it is the concatenation of `width / heads`
//! numbers for each input dimension. Only packing knows of chunks. It packs all heads at once, since they share cache
//! lines.
//!
//! Cost for n queries, m keys and vectors of e numbers: 4 n·m·e operations forward, 14 n·m·e backward, and n·m
//! exponentials in each. Scratch per thread: a block of m scores forward and two gradients of m keys backward; on AMX
//! 2 and 5 times the keys. Heads in chunks add the packed rows of one head, or of all heads where rows are few.

mod backward;
pub(super) mod forward;
pub(super) mod head;
pub(super) mod problem;

use std::ops::Range;

use super::amx;
use super::tasks::{Threads, locate};
use super::worker::Worker;
use crate::program::{Attention, Relation, Slice};
use crate::real::Real;
pub use backward::{Backward, backward_scratch};
pub use forward::Forward;
use forward::forward_scratch;
use head::{Head, Heads};
use problem::Problem;

/// Queries of a forward task: a multiple of every block.
const QUERIES_PER_TASK: usize = 256;

/// Queries or keys up to which all heads are packed together; above, one head after another is packed, in less memory.
const ROWS_PACKED_TOGETHER: usize = 4096;

/// The work of a task.
struct Part<'a> {
    relation: &'a Relation,
    example: usize,
    queries: Range<usize>,
    heads: Range<usize>,
}

impl<T: Real> Worker<T> {
    /// The columns of head `h` in the rows of an example, of the value or of its gradient.
    fn head(&self, slice: Slice, heads: usize, h: usize, first_row: usize, grad: bool) -> Head<T> {
        let spec = &self.program.values[slice.value.0];
        let chunks = if spec.per_dim { self.shape.dims } else { 1 };
        let (base, stride) = if grad { self.grad_slice(slice) } else { self.slice(slice) };
        let chunk_len = slice.cols / heads;
        Head {
            ptr: base.at(first_row * chunks * stride + h * chunk_len),
            row: chunks * stride,
            chunks,
            chunk_stride: stride,
            chunk_len,
        }
    }

    /// Rows of queries and of keys of an example.
    fn ranges(&self, r: &Relation, example: usize) -> [Range<usize>; 2] {
        [r.query, r.key].map(|s| self.shape.range(self.program.values[s.value.0].space, example))
    }

    /// Query blocks of a relation: the count of the largest example, for each example.
    fn query_blocks(&self, r: &Relation) -> usize {
        let space = self.program.values[r.query.value.0].space;
        let max_rows = (0..self.shape.examples).map(|e| self.shape.range(space, e).len()).max().unwrap_or(0);
        max_rows.div_ceil(QUERIES_PER_TASK)
    }

    pub(super) fn attention_forward(&mut self, on_amx: bool, op: &Attention) {
        let this = &*self;
        let counts = || op.relations.iter().map(|r| this.query_blocks(r) * this.shape.examples);
        self.threads.run(counts().sum(), |t| {
            let (r, i) = locate(t, counts());
            // SAFETY: `locate` gives each (relation, example, block of queries) to one task.
            unsafe { this.attention_block(on_amx, op, r, i % this.shape.examples, i / this.shape.examples) };
        });
    }

    /// Forward, one block of queries of one relation and example; does nothing beyond the last query.
    ///
    /// # Safety
    /// No other task runs this block.
    unsafe fn attention_block(&self, on_amx: bool, op: &Attention, relation: usize, example: usize, block: usize) {
        let relation = &op.relations[relation];
        let queries = self.ranges(relation, example)[0].len();
        let first = block * QUERIES_PER_TASK;
        if first < queries {
            let queries = first..queries.min(first + QUERIES_PER_TASK);
            // SAFETY: the caller's contract.
            unsafe { self.attention_part(on_amx, op, Part { relation, example, queries, heads: 0..op.heads }, false) };
        }
    }

    /// Forward, one relation of one example.
    ///
    /// # Safety
    /// No other task runs this relation of this example.
    pub(super) unsafe fn relation_forward(&self, on_amx: bool, op: &Attention, relation: usize, example: usize) {
        let queries = self.ranges(&op.relations[relation], example)[0].len();
        for block in 0..queries.div_ceil(QUERIES_PER_TASK) {
            // SAFETY: the caller's contract.
            unsafe { self.attention_block(on_amx, op, relation, example, block) };
        }
    }

    /// Backward, one relation of one example.
    ///
    /// # Safety
    /// As for [`Worker::relation_forward`].
    pub(super) unsafe fn relation_backward(&self, on_amx: bool, op: &Attention, relation: usize, example: usize) {
        let relation = &op.relations[relation];
        let queries = 0..self.ranges(relation, example)[0].len();
        // SAFETY: the caller's contract.
        unsafe { self.attention_part(on_amx, op, Part { relation, example, queries, heads: 0..op.heads }, true) };
    }

    pub(super) fn attention_backward(&mut self, on_amx: bool, op: &Attention) {
        let this = &*self;
        let pairs = op.relations.len() * this.shape.examples;
        // With few examples, heads are spread over the threads too.
        let together = if self.threads == Threads::One || pairs >= 64 { op.heads } else { 1 };
        let tasks_per_pair = op.heads / together;
        self.threads.run(pairs * tasks_per_pair, |t| {
            let (pair, first) = (t / tasks_per_pair, t % tasks_per_pair * together);
            let (relation, example) = (&op.relations[pair / this.shape.examples], pair % this.shape.examples);
            let queries = 0..this.ranges(relation, example)[0].len();
            let part = Part { relation, example, queries, heads: first..first + together };
            // SAFETY: `t` names one pair of relation and example and one range of heads.
            unsafe { this.attention_part(on_amx, op, part, true) };
        });
        for r in &op.relations {
            for s in [r.query, r.key, r.value] {
                self.mark_written(s.value);
            }
        }
    }

    /// Some queries and heads of one example and relation, forward or backward.
    ///
    /// # Safety
    /// No other task computes this part.
    unsafe fn attention_part(&self, on_amx: bool, op: &Attention, part: Part, backward: bool) {
        let Part { relation: r, example, queries, heads } = part;
        let [all, keys] = self.ranges(r, example);
        debug_assert!(queries.end <= all.len() && heads.end <= op.heads && r.query.cols.is_multiple_of(op.heads));
        let rows = all.start + queries.start;
        let width = self.head(r.query, op.heads, 0, 0, false).width();
        let chunked = self.head(r.query, op.heads, 0, 0, false).chunks > 1;
        // The last block of queries is padded to full size.
        let padded = queries.len().next_multiple_of(T::packed_width());
        let max_rows = padded.max(keys.len());
        let together = if max_rows <= ROWS_PACKED_TOGETHER { heads.len() } else { 1 };
        let use_amx = on_amx && amx::supports_attention(queries.len(), keys.len(), width, backward);
        let head_scratch = if use_amx {
            amx::attention_scratch(keys.len(), width, backward)
        } else if backward {
            backward_scratch::<T>(keys.len(), width)
        } else {
            forward_scratch::<T>(keys.len(), width)
        };
        // A multiple of 64 bytes, so that packed rows are aligned.
        let head_scratch = head_scratch.next_multiple_of(16);
        let packed = match (chunked, backward) {
            (false, _) => 0,
            (true, false) => 2 * padded + 2 * keys.len(),
            (true, true) => 4 * padded + 4 * keys.len(),
        };
        self.scratch.with(head_scratch + together * packed * width, |scratch| {
            for group in heads.step_by(together) {
                // Packed rows lie behind the scratch of one head.
                let mut free = scratch.wrapping_add(head_scratch);
                let mut heads = |s: Slice, first: usize, rows: usize, padded: usize, grad: bool| {
                    let first = self.head(s, op.heads, group, first, grad);
                    let heads = Heads { first, heads: together, rows, padded, packed: free };
                    free = free.wrapping_add(heads.len());
                    heads
                };
                let mut query_heads = |s: Slice, grad: bool| heads(s, rows, queries.len(), padded, grad);
                // SAFETY: `rows..` and `queries.len()` are rows of this example. `packed` counts two (forward) or four
                // (backward) buffers of `padded` and of `keys` rows for each head of the group, so `free` stays in the
                // scratch.
                let (query, out) = (unsafe { query_heads(r.query, false).pack() }, query_heads(r.out, false));
                let mut key_heads = |s: Slice, grad: bool| heads(s, keys.start, keys.len(), keys.len(), grad);
                // SAFETY: as for queries.
                let (key, value) = unsafe { (key_heads(r.key, false).pack(), key_heads(r.value, false).pack()) };
                let problem = |h: usize| {
                    // `[head][2][queries]` of each example.
                    let first = 2 * (all.start * op.heads + (group + h) * all.len()) + queries.start;
                    let stats = self.value(r.stats).at(first);
                    Problem {
                        queries: queries.len(),
                        keys: keys.len(),
                        scale: T::from_f64(op.scale),
                        scale_log2: T::from_f64(op.scale * std::f64::consts::LOG2_E),
                        query: query.rows(h),
                        key: key.rows(h),
                        value: value.rows(h),
                        out: out.rows(h),
                        padded: chunked,
                        coarse: on_amx,
                        max_score: stats,
                        inv_sum: stats.wrapping_add(all.len()),
                    }
                };
                if !backward {
                    for h in 0..together {
                        let forward = Forward { problem: problem(h), scratch };
                        // SAFETY: rows of this example and part, which the caller reserves for this task;
                        // `head_scratch` elements for the kernel in use. `PackedWeights` uses AMX for `f32` alone, so
                        // the cast is to the same type.
                        unsafe {
                            if use_amx {
                                amx::attention_forward(&*(&raw const forward).cast());
                            } else {
                                T::dispatch(forward);
                            }
                        }
                    }
                    // SAFETY: the outputs of this part belong to this task.
                    unsafe { out.unpack() };
                    continue;
                }
                // SAFETY: as for queries.
                unsafe { out.pack() };
                let mut query_heads = |s: Slice| heads(s, rows, queries.len(), padded, true);
                // SAFETY: as for queries.
                let (d_out, d_query) = (unsafe { query_heads(r.out).pack() }, query_heads(r.query));
                let mut key_heads = |s: Slice| heads(s, keys.start, keys.len(), keys.len(), true);
                let (d_key, d_value) = (key_heads(r.key), key_heads(r.value));
                for h in 0..together {
                    let [d_out, d_query, d_key, d_value] = [d_out, d_query, d_key, d_value].map(|d| d.rows(h));
                    let backward = Backward { problem: problem(h), d_out, d_query, d_key, d_value, scratch };
                    // SAFETY: as for the forward pass.
                    unsafe {
                        if use_amx {
                            amx::attention_backward(&*(&raw const backward).cast());
                        } else {
                            T::dispatch(backward);
                        }
                    }
                }
                // SAFETY: the gradients of this part belong to this task.
                [d_query, d_key, d_value].iter().for_each(|d| unsafe { d.unpack() });
            }
        });
    }
}
