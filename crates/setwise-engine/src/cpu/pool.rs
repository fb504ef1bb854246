//! Pooling: reduces the rows of a segment to one.

use super::worker::{Run, Worker};
use crate::program::{Pool, Reduce, Segments};
use crate::real::Real;

/// Segments of a task.
const SEGMENTS: usize = 16;

impl<T: Real> Worker<T> {
    /// Number of segments, and the rows of one of them.
    fn segments(&self, op: &Pool) -> (usize, impl Fn(usize) -> std::ops::Range<usize> + Sync + '_) {
        let spec = &self.program.values[op.x.0];
        let space = spec.space;
        let dims = if spec.per_dim { self.shape.dims } else { 1 };
        let by_example = op.segments == Segments::Examples;
        let count = if by_example { self.shape.examples } else { self.shape.rows(space) };
        (count, move |i| {
            if by_example {
                let r = self.shape.range(space, i);
                r.start * dims..r.end * dims
            } else {
                i * dims..(i + 1) * dims
            }
        })
    }

    /// `y[s] = reduce` of the rows of segment `s`, column by column; NaN propagates. Writes `y`.
    pub(super) fn pool_forward(&mut self, op: &Pool) {
        let cols = op.y.cols;
        let (x, (y, y_row)) = (self.value(op.x), self.slice(op.y));
        let (count, rows_of) = self.segments(op);
        self.threads.run(count.div_ceil(SEGMENTS), |t| {
            for i in t * SEGMENTS..count.min((t + 1) * SEGMENTS) {
                let rows = rows_of(i);
                // SAFETY: segments `t · SEGMENTS..` belong to this task. Each has its own row of `y` and at least one
                // row of `x`, whose row stride is `cols`.
                let (out, data) = unsafe {
                    let out = std::slice::from_raw_parts_mut(y.at(i * y_row), cols);
                    (out, std::slice::from_raw_parts(x.at(rows.start * cols), rows.len() * cols))
                };
                out.copy_from_slice(&data[..cols]);
                for row in data[cols..].chunks_exact(cols) {
                    match op.reduce {
                        Reduce::Max => {
                            for (o, &v) in out.iter_mut().zip(row) {
                                *o = if v > *o || v.partial_cmp(&v).is_none() { v } else { *o };
                            }
                        }
                        Reduce::Mean | Reduce::Sum => {
                            for (o, &v) in out.iter_mut().zip(row) {
                                *o += v;
                            }
                        }
                    }
                }
                if op.reduce == Reduce::Mean {
                    let inverse = T::ONE / T::from_usize(rows.len());
                    for o in out {
                        *o *= inverse;
                    }
                }
            }
        });
    }

    /// Adds to `dx`, or overwrites it: `dy` for a sum, `dy / rows` for a mean. The gradient of a maximum goes to the
    /// first row that has it.
    pub(super) fn pool_backward(&mut self, _run: &mut Run<T>, op: &Pool) {
        if !self.wants_grad(op.x) {
            return;
        }
        let cols = op.y.cols;
        let (x, dx) = (self.value(op.x), self.grad(op.x));
        let ((y, y_row), (dy, dy_row)) = (self.slice(op.y), self.grad_slice(op.y));
        let accumulate = self.grad_written(op.x);
        let (count, rows_of) = self.segments(op);
        self.threads.run(count.div_ceil(SEGMENTS), |t| {
            for i in t * SEGMENTS..count.min((t + 1) * SEGMENTS) {
                let rows = rows_of(i);
                // SAFETY: segments are disjoint ranges of rows, and this task alone has segment `i`: it writes these
                // rows of `dx`. Row `i` of `y` and `dy` exists.
                unsafe {
                    let d = std::slice::from_raw_parts(dy.at(i * dy_row), cols);
                    let into = std::slice::from_raw_parts_mut(dx.at(rows.start * cols), rows.len() * cols);
                    if !accumulate {
                        into.fill(T::ZERO);
                    }
                    let factor = match op.reduce {
                        Reduce::Max => None,
                        Reduce::Mean => Some(T::ONE / T::from_usize(rows.len())),
                        Reduce::Sum => Some(T::ONE),
                    };
                    if let Some(factor) = factor {
                        for row in into.chunks_exact_mut(cols) {
                            for (o, &g) in row.iter_mut().zip(d) {
                                *o += g * factor;
                            }
                        }
                    } else {
                        let best = std::slice::from_raw_parts(y.at(i * y_row), cols);
                        let data = std::slice::from_raw_parts(x.at(rows.start * cols), rows.len() * cols);
                        for c in 0..cols {
                            if let Some(r) = (0..rows.len()).find(|r| data[r * cols + c] == best[c]) {
                                into[r * cols + c] += d[c];
                            }
                        }
                    }
                }
            }
        });
        drop(rows_of);
        self.mark_written(op.x);
    }
}
