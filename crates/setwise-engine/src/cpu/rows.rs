//! Operations that copy rows: into and out of the union, repetition, concatenation and dropout.

use super::worker::{Run, Worker};
use crate::program::{Concat, Dropout, FromUnion, Repeat, Space, ToUnion, Value};
use crate::real::Real;
use crate::splitmix::splitmix64;

/// Rows of a dropout task.
const ROWS: usize = 256;

impl<T: Real> Worker<T> {
    /// Calls `f(set, row in the set, row in the union, rows)` for each set of each example, examples in parallel.
    fn for_union_ranges(&self, per_dim: bool, f: impl Fn(usize, usize, usize, usize) + Sync + Send) {
        let dims = if per_dim { self.shape.dims } else { 1 };
        self.threads.run(self.shape.examples, |e| {
            let mut at = self.shape.range(Space::Union, e).start;
            for k in 0..self.shape.set_offsets.len() {
                let r = self.shape.range(Space::Set(k), e);
                f(k, r.start * dims, at * dims, r.len() * dims);
                at += r.len();
            }
        });
    }

    pub(super) fn join_forward(&mut self, params: &[T], op: &ToUnion) {
        let spec = &self.program.values[op.y.0];
        let cols = spec.cols;
        let y = self.value(op.y);
        self.for_union_ranges(spec.per_dim, |k, from, to, rows| {
            // SAFETY: ranges of the union are disjoint, and each is written by the task of its example; sets are only
            // read.
            unsafe {
                let x = std::slice::from_raw_parts(self.value(op.sets[k]).at(from * cols), rows * cols);
                let y = std::slice::from_raw_parts_mut(y.at(to * cols), rows * cols);
                y.copy_from_slice(x);
                if let Some(&encoding) = op.encodings.get(k) {
                    let encoding = &params[self.program.params.spec(encoding).range()];
                    for row in y.chunks_exact_mut(cols) {
                        for (y, e) in row.iter_mut().zip(encoding) {
                            *y += *e;
                        }
                    }
                }
            }
        });
    }

    pub(super) fn join_backward(&mut self, run: &mut Run<T>, op: &ToUnion) {
        let spec = &self.program.values[op.y.0];
        let (cols, per_dim) = (spec.cols, spec.per_dim);
        let dy = self.grad(op.y);
        self.for_union_ranges(per_dim, |k, to, from, rows| {
            if self.wants_grad(op.sets[k]) {
                // SAFETY: the rows of set `k` of one example belong to the task of that example, and sets of a union
                // are distinct values; `dy` is only read.
                unsafe {
                    let from = std::slice::from_raw_parts(dy.at(from * cols), rows * cols);
                    let to = std::slice::from_raw_parts_mut(self.grad(op.sets[k]).at(to * cols), rows * cols);
                    add_or_copy(to, from, self.grad_written(op.sets[k]));
                }
            }
        });
        op.sets.iter().for_each(|&s| self.mark_written(s));
        let dims = if per_dim { self.shape.dims } else { 1 };
        for (k, &encoding) in op.encodings.iter().enumerate() {
            let range = self.program.params.spec(encoding).range();
            let sums = &mut run.grads[range];
            for e in 0..self.shape.examples {
                let before: usize = (0..k).map(|j| self.shape.range(Space::Set(j), e).len()).sum();
                let first = (self.shape.range(Space::Union, e).start + before) * dims;
                let rows = self.shape.range(Space::Set(k), e).len() * dims;
                // SAFETY: `first..first + rows` are rows of the union, which nobody writes here.
                let rows = unsafe { std::slice::from_raw_parts(dy.at(first * cols), rows * cols) };
                for row in rows.chunks_exact(cols) {
                    for (s, d) in sums.iter_mut().zip(row) {
                        *s += *d;
                    }
                }
            }
        }
    }

    pub(super) fn split_forward(&mut self, op: &FromUnion) {
        let spec = &self.program.values[op.x.0];
        let cols = spec.cols;
        let x = self.value(op.x);
        self.for_union_ranges(spec.per_dim, |k, to, from, rows| {
            // SAFETY: the rows of set `k` of one example belong to the task of that example; `x` is only read.
            unsafe {
                let y = std::slice::from_raw_parts_mut(self.value(op.sets[k]).at(to * cols), rows * cols);
                y.copy_from_slice(std::slice::from_raw_parts(x.at(from * cols), rows * cols));
            }
        });
    }

    pub(super) fn split_backward(&mut self, op: &FromUnion) {
        let spec = &self.program.values[op.x.0];
        let cols = spec.cols;
        let (dx, written) = (self.grad(op.x), self.grad_written(op.x));
        self.for_union_ranges(spec.per_dim, |k, from, to, rows| {
            // SAFETY: ranges of the union are disjoint, and each is written by the task of its example; the sets'
            // gradients are only read.
            unsafe {
                let from = std::slice::from_raw_parts(self.grad(op.sets[k]).at(from * cols), rows * cols);
                add_or_copy(std::slice::from_raw_parts_mut(dx.at(to * cols), rows * cols), from, written);
            }
        });
        self.mark_written(op.x);
    }

    pub(super) fn repeat_forward(&mut self, params: &[T], op: &Repeat) {
        let param = &params[self.program.params.spec(op.param).range()];
        for e in 0..self.shape.examples {
            // SAFETY: `y` has `param.len()` elements for every example; one thread.
            let rows = unsafe { std::slice::from_raw_parts_mut(self.value(op.y).at(e * param.len()), param.len()) };
            rows.copy_from_slice(param);
        }
    }

    pub(super) fn repeat_backward(&mut self, run: &mut Run<T>, op: &Repeat) {
        let range = self.program.params.spec(op.param).range();
        let sums = &mut run.grads[range];
        for e in 0..self.shape.examples {
            // SAFETY: `dy` has `sums.len()` elements for every example and is only read.
            let rows = unsafe { std::slice::from_raw_parts(self.grad(op.y).at(e * sums.len()), sums.len()) };
            for (s, d) in sums.iter_mut().zip(rows) {
                *s += *d;
            }
        }
    }

    /// Calls `f(example, input, elements of the example in it, their offset in the output)`.
    fn concat_parts(&self, op: &Concat, mut f: impl FnMut(usize, Value, usize, usize)) {
        for e in 0..self.shape.examples {
            let mut at = e * self.program.values[op.y.0].cols;
            for &x in &op.inputs {
                let spec = &self.program.values[x.0];
                let len = self.shape.range(spec.space, e).len() * spec.cols;
                f(e, x, len, at);
                at += len;
            }
        }
    }

    pub(super) fn concat_forward(&mut self, op: &Concat) {
        self.concat_parts(op, |e, x, len, at| {
            // SAFETY: one thread; `x` has `len` elements for every example, `y` has all inputs side by side; distinct
            // values have distinct buffers.
            unsafe { std::ptr::copy_nonoverlapping(self.value(x).at(e * len), self.value(op.y).at(at), len) };
        });
    }

    pub(super) fn concat_backward(&mut self, op: &Concat) {
        self.concat_parts(op, |e, x, len, at| {
            if self.wants_grad(x) {
                // SAFETY: as for the forward pass, with the gradients of both.
                unsafe {
                    let from = std::slice::from_raw_parts(self.grad(op.y).at(at), len);
                    let to = std::slice::from_raw_parts_mut(self.grad(x).at(e * len), len);
                    add_or_copy(to, from, self.grad_written(x));
                }
            }
        });
        op.inputs.iter().for_each(|&x| self.mark_written(x));
    }

    pub(super) fn dropout_forward(&mut self, op: &Dropout) {
        let seed = mask_seed(self.seed, op.stream);
        let ((x, x_row), (y, y_row)) = (self.slice(op.x), self.slice(op.y));
        self.masked_rows(
            op,
            |row, keep| {
                for (c, factor) in keep.enumerate() {
                    // SAFETY: `row < rows_of(x)` and `c < cols`, for both values; each task writes its own rows.
                    unsafe { *y.at(row * y_row + c) = *x.at(row * x_row + c) * factor };
                }
            },
            seed,
        );
    }

    pub(super) fn dropout_backward(&mut self, op: &Dropout) {
        if !self.wants_grad(op.x.value) {
            return;
        }
        let seed = mask_seed(self.seed, op.stream);
        let ((dx, dx_row), (dy, dy_row)) = (self.grad_slice(op.x), self.grad_slice(op.y));
        let written = self.grad_written(op.x.value);
        self.masked_rows(
            op,
            |row, keep| {
                for (c, factor) in keep.enumerate() {
                    // SAFETY: as for the forward pass, with the gradients of both.
                    unsafe {
                        let d = *dy.at(row * dy_row + c) * factor;
                        let at = dx.at(row * dx_row + c);
                        *at = if written { *at + d } else { d };
                    }
                }
            },
            seed,
        );
        self.mark_written(op.x.value);
    }

    /// Calls `f(row, factors)` for every row. A factor is zero or 1 / (1 − rate), a function of seed and position
    /// alone.
    fn masked_rows(&self, op: &Dropout, f: impl Fn(usize, &mut dyn Iterator<Item = T>) + Sync + Send, seed: u64) {
        let rows = self.rows_of(op.x.value);
        let scale = T::from_f64(1.0 / (1.0 - op.rate));
        let threshold = (op.rate * 2f64.powi(32)) as u64;
        self.threads.run(rows.div_ceil(ROWS), |t| {
            for row in t * ROWS..rows.min((t + 1) * ROWS) {
                let first = (row * op.x.cols) as u64;
                let mut factors = (0..op.x.cols as u64).map(|c| {
                    let dropped = splitmix64(seed.wrapping_add(first + c)) >> 32 < threshold;
                    if dropped { T::ZERO } else { scale }
                });
                f(row, &mut factors);
            }
        });
    }
}

fn add_or_copy<T: Real>(to: &mut [T], from: &[T], add: bool) {
    if add {
        for (t, f) in to.iter_mut().zip(from) {
            *t += *f;
        }
    } else {
        to.copy_from_slice(from);
    }
}

fn mask_seed(seed: u64, stream: u64) -> u64 {
    splitmix64(seed ^ splitmix64(stream.wrapping_add(0x9e37_79b9_7f4a_7c15)))
}
