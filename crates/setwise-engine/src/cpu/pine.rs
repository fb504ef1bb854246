//! PINE's element network, summed over each set: `y[p, j] = Σ_i sigmoid(x_i[p] · U[p, j] + V[p, j])`.
//!
//! The `[rows, P · J]` activations are never stored; the backward pass recomputes them.

use super::gemm::sigmoid;
use super::tasks::Ptr;
use super::worker::{Run, Worker};
use crate::program::PineSum;
use crate::real::Real;
use crate::simd::{Kernel, Vector, columns, load_lanes, store_lanes};

/// One example: `P = projections`, `J = spread_len`.
#[derive(Clone, Copy)]
struct Example<T> {
    rows: usize,
    projections: usize,
    spread_len: usize,
    /// `[rows, P]`.
    x: *const T,
    /// `U` and `V`, `[P, J]`.
    spread: *const T,
    shift: *const T,
}

/// `y[p, j] = Σ_i sigmoid(x_i[p] · U[p, j] + V[p, j])`, written.
struct Forward<T> {
    e: Example<T>,
    /// `[P, J]`.
    y: *mut T,
}

impl<T: Real> Kernel<T> for Forward<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let e = self.e;
        // SAFETY: the contract of `Kernel::run`: rows of the example and of both parameters are valid.
        unsafe {
            for p in 0..e.projections {
                let at = p * e.spread_len;
                columns!(V, e.spread_len, |j, n| {
                    let (u, v) =
                        (load_lanes::<T, V>(e.spread.add(at + j), n), load_lanes::<T, V>(e.shift.add(at + j), n));
                    let mut sum = V::zero();
                    for i in 0..e.rows {
                        let x = V::splat(*e.x.add(i * e.projections + p));
                        sum = sum.add(sigmoid::<T, V>(x.mul_add(u, v)));
                    }
                    store_lanes(sum, self.y.add(at + j), n);
                });
            }
        }
    }
}

/// With `d = dy[p, j] · s (1 − s)` for element i: `dU[p, j] = Σ_i d · x_i[p]`, `dV[p, j] = Σ_i d` and
/// `dx_i[p] = Σ_j d · U[p, j]`. Writes `dU` and `dV`; writes `dx` or, where `accumulate`, adds to it.
struct Backward<T> {
    e: Example<T>,
    dy: *const T,
    /// `[rows, P]`, or null.
    dx: *mut T,
    accumulate: bool,
    d_spread: *mut T,
    d_shift: *mut T,
}

impl<T: Real> Kernel<T> for Backward<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let e = self.e;
        // SAFETY: the contract of `Kernel::run`: rows of the example, its gradients and both parameters are valid;
        // `dx` may be null.
        unsafe {
            for p in 0..e.projections {
                let at = p * e.spread_len;
                columns!(V, e.spread_len, |j, n| {
                    let first = j == 0 && !self.accumulate;
                    let (u, v) =
                        (load_lanes::<T, V>(e.spread.add(at + j), n), load_lanes::<T, V>(e.shift.add(at + j), n));
                    let g = load_lanes::<T, V>(self.dy.add(at + j), n);
                    let (mut du, mut dv) = (V::zero(), V::zero());
                    for i in 0..e.rows {
                        let x = V::splat(*e.x.add(i * e.projections + p));
                        let s = sigmoid::<T, V>(x.mul_add(u, v));
                        let d = g.mul(s.mul(V::splat(T::ONE).sub(s)));
                        du = d.mul_add(x, du);
                        dv = dv.add(d);
                        if !self.dx.is_null() {
                            let dx = self.dx.add(i * e.projections + p);
                            let sum = d.mul(u).sum();
                            *dx = if first { sum } else { *dx + sum };
                        }
                    }
                    store_lanes(du, self.d_spread.add(at + j), n);
                    store_lanes(dv, self.d_shift.add(at + j), n);
                });
            }
        }
    }
}

impl<T: Real> Worker<T> {
    fn pine_example(&self, params: &[T], op: &PineSum, example: usize) -> Example<T> {
        let spec = &self.program.values[op.x.0];
        let rows = self.shape.range(spec.space, example);
        let projections = spec.cols;
        Example {
            rows: rows.len(),
            projections,
            spread_len: op.y.cols / projections,
            x: self.value(op.x).at(rows.start * projections),
            spread: self.param(params, op.spread),
            shift: self.param(params, op.shift),
        }
    }

    pub(super) fn pine_forward(&mut self, params: &[T], op: &PineSum) {
        let (y, y_row) = self.slice(op.y);
        self.threads.run(self.shape.examples, |example| {
            let e = self.pine_example(params, op, example);
            // SAFETY: `y` has a row of `P · J` elements for each example, and a task has its own example.
            unsafe { T::dispatch(Forward { e, y: y.at(example * y_row) }) };
        });
    }

    pub(super) fn pine_backward(&mut self, run: &mut Run<T>, op: &PineSum) {
        let (dy, dy_row) = self.grad_slice(op.y);
        let width = op.y.cols;
        let partials = Ptr(self.partials(self.shape.examples * 2 * width));
        let params = run.params;
        let accumulate = self.grad_written(op.x);
        let this = &*self;
        self.threads.run(this.shape.examples, |example| {
            let e = this.pine_example(params, op, example);
            let first = this.shape.range(this.program.values[op.x.0].space, example).start;
            // SAFETY: a task has its own example: its rows of `dx`, and slot `example` of the partial sums. These have
            // `examples` slots of `2 · width` and are not resized while tasks run.
            unsafe {
                let dx = if this.wants_grad(op.x) {
                    this.grad(op.x).at(first * e.projections)
                } else {
                    std::ptr::null_mut()
                };
                T::dispatch(Backward {
                    e,
                    dy: dy.at(example * dy_row),
                    dx,
                    accumulate,
                    d_spread: partials.at(example * 2 * width),
                    d_shift: partials.at(example * 2 * width + width),
                });
            }
        });
        self.mark_written(op.x);
        for example in 0..self.shape.examples {
            for (half, param) in [op.spread, op.shift].into_iter().enumerate() {
                // SAFETY: `threads.run` has returned, so all slots are written.
                let sums = unsafe { std::slice::from_raw_parts(partials.at((example * 2 + half) * width), width) };
                for (g, s) in run.grads[self.program.params.spec(param).range()].iter_mut().zip(sums) {
                    *g += *s;
                }
            }
        }
    }
}
