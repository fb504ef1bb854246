//! Multi-head attention over ragged sets, all relations at once.
//!
//! One example, relation and head at a time. Queries lie in vector lanes: a block of two vectors of queries is packed
//! transposed (`[width][block]`), so that the scores of one key are two vectors, the softmax over keys runs down the lanes
//! without any reduction across them, and every product is the tile of `gemm`:
//!
//! * scores `Sᵀ = K Qᵀ` (`[keys][block]`, in first- or second-level cache), then `P = 2^(S − max)`, then `Oᵀ = Vᵀ Pᵀ`. Where sizes of
//!   queries and keys show that no score is large, the maximum is not needed and scores become powers before they leave the registers;
//! * backward recomputes `P` from the kept maximum and sum, `dPᵀ = V dOᵀ`, `dS = P (dP − Σ dO·O)`, `dQᵀ = Kᵀ dSᵀ`, and adds
//!   `P dO` and `dS Q` to the gradients of values and keys, with the width in lanes. Scale and log₂ e are multiplied into the packed
//!   queries, so scores come out ready for powers of two.
//!
//! A head's vector may be cut into chunks at a distance: in dimension-equivariant models it is the concatenation of
//! `width / heads` numbers for each input dimension. Only packing knows of that; forward it packs all heads at once, since they share
//! cache lines.
//!
//! Cost: 4 n·m·e operations forward, 14 n·m·e backward for n queries, m keys, vectors of e, and n·m exponentials each way;
//! memory per thread is two blocks of `m` scores, and forward, for heads in chunks, the keys and values of a head,
//! of all heads where they are few.

mod forward;
mod head;
mod kernels;

use super::tasks::locate;
use super::worker::{Run, Worker};
use crate::program::{Attention, Relation, Slice};
use crate::real::Real;
use forward::{Forward, forward_scratch};
use head::{Head, PackHeads};
use kernels::{Backward, Problem, backward_scratch};

/// Queries of a forward task, a multiple of every block.
const QUERIES_PER_TASK: usize = 256;

/// Keys up to which those of all heads are packed in one go; more are packed for each head in turn, in less memory.
const KEYS_PACKED_TOGETHER: usize = 4096;

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
            let problem = this.problem(op, relation, example, 0);
            let first = block * QUERIES_PER_TASK;
            if first >= problem.queries {
                return;
            }
            let last = problem.queries.min(first + QUERIES_PER_TASK);
            let (keys, width) = (problem.keys, problem.query.width());
            let chunked = problem.query.chunks > 1;
            let together = if keys <= KEYS_PACKED_TOGETHER { op.heads } else { 1 };
            // Up to a whole block of the last queries.
            let padded = (last - first).next_multiple_of(T::panel_width());
            let rows = if chunked { padded + 2 * keys } else { 0 };
            let own = forward_scratch::<T>(keys, width).next_multiple_of(16);
            this.scratch.with(own + together * rows * width, |scratch| {
                for group in (0..op.heads).step_by(together) {
                    let problem = this.problem(op, relation, example, group);
                    // SAFETY: the scratch has place for all that is packed behind what a head needs.
                    let mut free = unsafe { scratch.add(own) };
                    let packed = [
                        (problem.query.rows_from(first), last - first, padded),
                        (problem.key, keys, keys),
                        (problem.value, keys, keys),
                    ]
                    .map(|(head, rows, padded)| {
                        let heads = together.min(op.heads - group);
                        let all = PackHeads { first: head, heads, rows, padded, out: free };
                        if chunked {
                            T::dispatch(&all);
                            // SAFETY: as above.
                            free = unsafe { free.add(all.len()) };
                        }
                        all
                    });
                    for h in group..op.heads.min(group + together) {
                        let mut problem = this.problem(op, relation, example, h);
                        if chunked {
                            [problem.query, problem.key, problem.value] =
                                packed.each_ref().map(|all| all.packed(h - group));
                        } else {
                            problem.query = problem.query.rows_from(first);
                        }
                        T::dispatch(Forward { problem, first, last, padded: chunked, scratch });
                    }
                }
            });
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

#[cfg(test)]
mod tests {
    use super::super::gemm::tests::numbers;
    use crate::*;

    /// Attention of one example as the textbook has it, for rows of `dims` times `heads` chunks of four.
    fn textbook(q: &[f32], kv: &[f32], dims: usize, heads: usize, scale: f64) -> Vec<f64> {
        let cols = 4 * heads;
        let keys = kv.len() / (2 * dims * cols);
        let mut out = vec![0.0; q.len()];
        for (i, row) in q.chunks_exact(dims * cols).enumerate() {
            for h in 0..heads {
                let places = || (0..dims).flat_map(|c| (0..4).map(move |l| (c, h * 4 + l)));
                let at = |j: usize, c: usize, e: usize| f64::from(kv[(j * dims + c) * 2 * cols + e]);
                let score = |j| places().map(|(c, e)| f64::from(row[c * cols + e]) * at(j, c, e)).sum::<f64>() * scale;
                let scores: Vec<f64> = (0..keys).map(score).collect();
                let largest = scores.iter().fold(f64::MIN, |a, &s| a.max(s));
                let powers: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let total: f64 = powers.iter().sum();
                for (c, e) in places() {
                    let sum: f64 = powers.iter().enumerate().map(|(j, p)| p * at(j, c, cols + e)).sum();
                    out[(i * dims + c) * cols + e] = sum / total;
                }
            }
        }
        out
    }

    #[test]
    fn small_and_large_scores_of_any_number_of_queries_and_keys_are_weighed_as_in_the_textbook() {
        let heads = 2;
        let sizes = [(5, 3), (40, 130), (16, 300), (260, 1), (270, 30), (3, 4100)];
        for (dims, scale) in [(1, 0.5), (1, 200.0), (3, 0.5), (3, 100.0), (4, 1.0)] {
            let mut b = Program::builder(&[8, 16], true, Mode::Infer, false);
            let (q, kv) = (b.input(0), b.input(1));
            let out = b.fresh(Space::Set(0), 8, true);
            let stats = b.kept(Space::Set(0), 2 * heads, false);
            let slice = |value, col| Slice { value, col, cols: 8 };
            let relation =
                Relation { query: slice(q, 0), key: slice(kv, 0), value: slice(kv, 8), out: slice(out, 0), stats };
            b.op(Op::Attention(Attention { relations: vec![relation], heads, scale }));
            let mut cpu = Cpu::<f32>::new(b.finish(vec![out]));
            let offsets = |of: fn(&(usize, usize)) -> usize| -> Vec<usize> {
                (0..=sizes.len()).map(|n| sizes[..n].iter().map(of).sum()).collect()
            };
            let (queries, keys) = (offsets(|s| s.0), offsets(|s| s.1));
            let q = numbers(queries[sizes.len()] * dims * 8, 1);
            let kv = numbers(keys[sizes.len()] * dims * 16, 2);
            let sets = vec![
                SetView { data: &q, width: dims * 8, offsets: &queries },
                SetView { data: &kv, width: dims * 16, offsets: &keys },
            ];
            cpu.forward(&[], &BatchView { sets }).unwrap();
            let found = cpu.output(0);
            for e in 0..sizes.len() {
                let rows = queries[e] * dims * 8..queries[e + 1] * dims * 8;
                let kv = &kv[keys[e] * dims * 16..keys[e + 1] * dims * 16];
                let exact = textbook(&q[rows.clone()], kv, dims, heads, scale);
                for (x, y) in found[rows].iter().zip(&exact) {
                    assert!((f64::from(*x) - y).abs() < 2e-5, "{dims} dimensions, scale {scale}: {x} and {y}");
                }
            }
        }
    }
}
