//! Networks on pairs, reduced over partners, without the tensor of all pairs.
//!
//! `y_i = reduce_j (W relu(u_i + v_j) + b)`. For a sum the second layer moves outside:
//! `W (Σ_j relu(u_i + v_j)) + m b`, so a pair costs three vector operations. For a maximum the second layer is
//! computed for a tile of partners, `[PARTNERS][hidden]` in cache, and only the maximum and its index are saved.
//! Backward then touches one partner per element and output column.

use super::gemm::Strided;
use super::linear::WeightUse;
use super::packed_product::PackedProduct;
use super::packed_weights::PackedWeights;
use super::sums::ColumnSums;
use super::tasks::{Ptr, locate};
use super::worker::{Run, Worker};
use crate::flow::group_by;
use crate::program::{Pair, Pairs, Program, Reduce, Slice, Value};
use crate::real::Real;
use crate::simd::{Kernel, Vector, columns, load_lanes, store_lanes};

/// Partners of a tile.
const PARTNERS: usize = 48;
/// Elements of a forward task.
const ELEMENTS: usize = 64;
/// Columns of the second layer that one task of its gradient owns.
const OUTPUTS: usize = 16;

/// The batch-independent plan of [`Pairs`]: for each distinct weight the nets that use it.
pub struct PairsPlan {
    weights: Vec<Vec<usize>>,
    uses: Vec<Vec<WeightUse>>,
}

impl PairsPlan {
    pub fn new(program: &Program, op: &Pairs) -> Self {
        let weights: Vec<Vec<usize>> = group_by(op.nets.iter().map(|n| n.weight)).into_iter().map(|g| g.1).collect();
        // For sums, where the hidden layer is saved, the weight gradient is that of a linear map of it.
        let uses = weights
            .iter()
            .map(|w| {
                w.iter()
                    .map(|&i| {
                        let net = &op.nets[i];
                        let cols = program.values[net.saved.0].cols;
                        let x = Slice { value: net.saved, col: 0, cols };
                        WeightUse { weight: net.weight, bias: None, x, dy: net.y }
                    })
                    .collect()
            })
            .collect();
        PairsPlan { weights, uses }
    }
}

/// Rows of one example's elements (left, u) and of their partners (right, v): `left [elements, hidden]` and
/// `right [partners, hidden]` with row strides `left_row` and `right_row`. Gradients of both have the same strides.
#[derive(Clone, Copy)]
struct Problem<T> {
    elements: usize,
    partners: usize,
    hidden: usize,
    left: *mut T,
    left_row: usize,
    right: *mut T,
    right_row: usize,
}

/// `out[i] = Σ_j relu(u_i + v_j)`, written; four elements at a time share the loads of a partner.
struct HiddenSums<T> {
    p: Problem<T>,
    /// `[elements, hidden]`.
    out: *mut T,
}

impl<T: Real> Kernel<T> for HiddenSums<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let p = self.p;
        // SAFETY: the contract of `Kernel::run`: rows of both sides and `elements × hidden` outputs are valid.
        unsafe {
            columns!(V, p.hidden, |c, n| {
                let mut i = 0;
                while i < p.elements {
                    let block = (p.elements - i).min(4);
                    let mut left = [V::zero(); 4];
                    let mut sums = [V::zero(); 4];
                    for (b, v) in left.iter_mut().enumerate().take(block) {
                        *v = load_lanes(p.left.add((i + b) * p.left_row + c), n);
                    }
                    for j in 0..p.partners {
                        let v = load_lanes::<T, V>(p.right.add(j * p.right_row + c), n);
                        for b in 0..4 {
                            sums[b] = sums[b].add(left[b].add(v).max(V::zero()));
                        }
                    }
                    for (b, s) in sums.into_iter().enumerate().take(block) {
                        store_lanes(s, self.out.add((i + b) * p.hidden + c), n);
                    }
                    i += block;
                }
            });
        }
    }
}

/// Backward pass of [`HiddenSums`], from its gradient `dh`: `du_i = dh_i · #{j : u_i + v_j > 0}` and
/// `dv_j = Σ_i dh_i [u_i + v_j > 0]`. Overwrites both.
struct HiddenSumsBackward<T> {
    p: Problem<T>,
    /// `dh [elements, hidden]`.
    d_hidden: *const T,
    d_left: *mut T,
    d_right: *mut T,
}

impl<T: Real> Kernel<T> for HiddenSumsBackward<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let p = self.p;
        // SAFETY: the contract of `Kernel::run`: rows of both sides and their gradients are valid.
        unsafe {
            columns!(V, p.hidden, |c, n| {
                for j in 0..p.partners {
                    store_lanes(V::zero(), self.d_right.add(j * p.right_row + c), n);
                }
                for i in 0..p.elements {
                    let u = load_lanes::<T, V>(p.left.add(i * p.left_row + c), n);
                    let d = load_lanes::<T, V>(self.d_hidden.add(i * p.hidden + c), n);
                    let mut sum = V::zero();
                    for j in 0..p.partners {
                        let active = u.add(load_lanes(p.right.add(j * p.right_row + c), n));
                        let d = active.where_positive(d);
                        let at = self.d_right.add(j * p.right_row + c);
                        store_lanes(d.add(load_lanes(at, n)), at, n);
                        sum = sum.add(d);
                    }
                    store_lanes(sum, self.d_left.add(i * p.left_row + c), n);
                }
            });
        }
    }
}

/// `out[i][c] = max_j (W relu(u_i + v_j) + b)[c]`, with its argmax (the first of equals). Writes both.
struct PairMax<T> {
    p: Problem<T>,
    outputs: usize,
    /// `Wᵀ [hidden, outputs]`, packed.
    packed: *const T,
    /// `[outputs]`.
    bias: *const T,
    /// `[elements, outputs]` with row stride `out_row`.
    out: *mut T,
    out_row: usize,
    /// `[elements, outputs]`, indices of partners within the example.
    argmax: *mut T,
    /// `PARTNERS · (hidden + outputs)` elements: the hidden layer of a tile, then its results.
    scratch: *mut T,
}

impl<T: Real> Kernel<T> for PairMax<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let p = self.p;
        // SAFETY: the contract of `Kernel::run`: rows of both sides, outputs and scratch are valid. A tile has `m ≤
        // PARTNERS` rows, and the scratch holds PARTNERS rows of `hidden` and of `outputs` numbers.
        unsafe {
            let hidden = self.scratch;
            let results = hidden.add(PARTNERS * p.hidden);
            for i in 0..p.elements {
                let best = std::slice::from_raw_parts_mut(self.out.add(i * self.out_row), self.outputs);
                let argmax = std::slice::from_raw_parts_mut(self.argmax.add(i * self.outputs), self.outputs);
                best.fill(T::LOWEST);
                argmax.fill(T::ZERO);
                let mut first = 0;
                while first < p.partners {
                    let m = PARTNERS.min(p.partners - first);
                    for j in 0..m {
                        let v = p.right.add((first + j) * p.right_row);
                        let u = p.left.add(i * p.left_row);
                        columns!(V, p.hidden, |c, n| {
                            let s = load_lanes::<T, V>(u.add(c), n).add(load_lanes(v.add(c), n)).max(V::zero());
                            store_lanes(s, hidden.add(j * p.hidden + c), n);
                        });
                    }
                    PackedProduct {
                        bias: self.bias,
                        ..PackedProduct::plain([m, p.hidden, self.outputs], hidden, self.packed, results)
                    }
                    .run::<V>();
                    for j in 0..m {
                        let row = std::slice::from_raw_parts(results.add(j * self.outputs), self.outputs);
                        let index = T::from_usize(first + j);
                        for ((best, argmax), &x) in best.iter_mut().zip(argmax.iter_mut()).zip(row) {
                            // NaN wins, so that it propagates.
                            let larger = x > *best || x.partial_cmp(&x).is_none();
                            *best = if larger { x } else { *best };
                            *argmax = if larger { index } else { *argmax };
                        }
                    }
                    first += m;
                }
            }
        }
    }
}

/// Gradients of both sides of the first layer, through one partner `j = argmax(i, c)` per element and output column:
/// `du_i += dy_i[c] · W[c] [u_i + v_j > 0]`, and the same for `dv_j`. Overwrites both.
struct PairMaxBackward<T> {
    p: Problem<T>,
    outputs: usize,
    /// `W [outputs, hidden]`.
    weight: *const T,
    /// `[elements, outputs]`.
    argmax: *const T,
    /// `[elements, outputs]` with row stride `dy_row`.
    dy: *const T,
    dy_row: usize,
    d_left: *mut T,
    d_right: *mut T,
}

impl<T: Real> Kernel<T> for PairMaxBackward<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let p = self.p;
        // SAFETY: the contract of `Kernel::run`: rows are valid. The forward pass wrote indices of partners or, had
        // nothing exceeded the initial maximum, 0; sets are not empty (`BatchView::check`), so all lie below
        // `partners`.
        unsafe {
            for j in 0..p.partners {
                std::slice::from_raw_parts_mut(self.d_right.add(j * p.right_row), p.hidden).fill(T::ZERO);
            }
            for i in 0..p.elements {
                let (u, du) = (p.left.add(i * p.left_row), self.d_left.add(i * p.left_row));
                std::slice::from_raw_parts_mut(du, p.hidden).fill(T::ZERO);
                for c in 0..self.outputs {
                    let j = (*self.argmax.add(i * self.outputs + c)).to_f64() as usize;
                    debug_assert!(j < p.partners);
                    let g = V::splat(*self.dy.add(i * self.dy_row + c));
                    let (v, dv) = (p.right.add(j * p.right_row), self.d_right.add(j * p.right_row));
                    let w = self.weight.add(c * p.hidden);
                    columns!(V, p.hidden, |h, n| {
                        let active = load_lanes::<T, V>(u.add(h), n).add(load_lanes(v.add(h), n));
                        let d = active.where_positive(load_lanes::<T, V>(w.add(h), n).mul(g));
                        store_lanes(d.add(load_lanes(du.add(h), n)), du.add(h), n);
                        store_lanes(d.add(load_lanes(dv.add(h), n)), dv.add(h), n);
                    });
                }
            }
        }
    }
}

/// Rows `first..last` of the second layer's gradient: `dW[c] += Σ_i dy_i[c] · relu(u_i + v_argmax(i, c))`. Fields are
/// those of [`PairMaxBackward`]; `d_weight` is `[outputs, hidden]`.
struct PairMaxWeight<T> {
    p: Problem<T>,
    outputs: usize,
    first: usize,
    last: usize,
    argmax: *const T,
    dy: *const T,
    dy_row: usize,
    d_weight: *mut T,
}

impl<T: Real> Kernel<T> for PairMaxWeight<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let p = self.p;
        // SAFETY: the contract of `Kernel::run`: rows are valid. The forward pass wrote indices of partners or, had
        // nothing exceeded the initial maximum, 0; sets are not empty (`BatchView::check`), so all lie below
        // `partners`.
        unsafe {
            for i in 0..p.elements {
                let u = p.left.add(i * p.left_row);
                for c in self.first..self.last {
                    let j = (*self.argmax.add(i * self.outputs + c)).to_f64() as usize;
                    debug_assert!(j < p.partners);
                    let g = V::splat(*self.dy.add(i * self.dy_row + c));
                    let (v, dw) = (p.right.add(j * p.right_row), self.d_weight.add(c * p.hidden));
                    columns!(V, p.hidden, |h, n| {
                        let active = load_lanes::<T, V>(u.add(h), n).add(load_lanes(v.add(h), n)).max(V::zero());
                        store_lanes(active.mul_add(g, load_lanes(dw.add(h), n)), dw.add(h), n);
                    });
                }
            }
        }
    }
}

impl<T: Real> Worker<T> {
    /// The rows of an example, and its first element's row in the batch.
    fn pair_problem(&self, net: &Pair, example: usize) -> (Problem<T>, usize) {
        let space = |v: Value| self.program.values[v.0].space;
        let left = self.shape.range(space(net.left.value), example);
        let right = self.shape.range(space(net.right.value), example);
        let ((u, left_row), (v, right_row)) = (self.slice(net.left), self.slice(net.right));
        let (left_ptr, right_ptr) = (u.at(left.start * left_row), v.at(right.start * right_row));
        let problem = Problem {
            elements: left.len(),
            partners: right.len(),
            hidden: net.left.cols,
            left: left_ptr,
            left_row,
            right: right_ptr,
            right_row,
        };
        (problem, left.start)
    }

    pub(super) fn pairs_forward(&mut self, params: &[T], packed: &PackedWeights<T>, op: &Pairs) {
        let this = &*self;
        let examples = this.shape.examples;
        let max_elements = (0..examples)
            .flat_map(|e| op.nets.iter().map(move |n| (n, e)))
            .map(|(n, e)| this.pair_problem(n, e).0.elements)
            .max()
            .unwrap_or(0);
        let blocks = max_elements.div_ceil(ELEMENTS);
        self.threads.run(op.nets.len() * examples * blocks, |t| {
            let (n, example, block) = (t / (examples * blocks), t / blocks % examples, t % blocks);
            let net = &op.nets[n];
            let (mut p, start) = this.pair_problem(net, example);
            let first = block * ELEMENTS;
            if first >= p.elements {
                return;
            }
            p.elements = ELEMENTS.min(p.elements - first);
            let outputs = net.y.cols;
            let (y, y_row) = this.slice(net.y);
            // SAFETY: elements `first..first + p.elements` of this example and net belong to this task alone. It writes
            // their rows of `y` and `saved`, which only this net writes. Inputs are only read. The scratch has the
            // length that the kernel documents.
            unsafe {
                p.left = p.left.add(first * p.left_row);
                let y = y.at((start + first) * y_row);
                let saved = |cols: usize| this.value(net.saved).at((start + first) * cols);
                let bias = this.param(params, net.bias);
                let packed = packed.forward(net.weight);
                match net.reduce {
                    Reduce::Max => this.scratch.with(PARTNERS * (p.hidden + outputs), |scratch| {
                        T::dispatch(PairMax {
                            p,
                            outputs,
                            packed,
                            bias,
                            out: y,
                            out_row: y_row,
                            argmax: saved(outputs),
                            scratch,
                        });
                    }),
                    Reduce::Sum | Reduce::Mean => this.scratch.with(outputs, |scaled| {
                        let hidden = saved(p.hidden);
                        T::dispatch(HiddenSums { p, out: hidden });
                        let count = T::from_usize(p.partners);
                        for c in 0..outputs {
                            *scaled.add(c) = *bias.add(c) * count;
                        }
                        T::dispatch(PackedProduct {
                            c_row: y_row,
                            bias: scaled,
                            ..PackedProduct::plain([p.elements, p.hidden, outputs], hidden, packed, y)
                        });
                    }),
                }
            }
        });
    }

    pub(super) fn pairs_backward(&mut self, run: &mut Run<T>, op: &Pairs, plan: &PairsPlan) {
        let packed = run.packed;
        let this = &*self;
        let examples = this.shape.examples;
        let params = run.params;
        self.threads.run(op.nets.len() * examples, |t| {
            let (n, example) = (t / examples, t % examples);
            let net = &op.nets[n];
            let (p, start) = this.pair_problem(net, example);
            let ((dy, dy_row), (du, _), (dv, _)) =
                (this.grad_slice(net.y), this.grad_slice(net.left), this.grad_slice(net.right));
            let space = this.program.values[net.right.value.0].space;
            let right_start = this.shape.range(space, example).start;
            let outputs = net.y.cols;
            // SAFETY: (net, example) is this task's alone, and nets have disjoint slices (`Pairs`); it writes the
            // rows of the example in `d_left` and `d_right`. The scratch holds `elements × hidden` numbers.
            unsafe {
                let dy = dy.at(start * dy_row);
                let (d_left, d_right) = (du.at(start * p.left_row), dv.at(right_start * p.right_row));
                match net.reduce {
                    Reduce::Max => T::dispatch(PairMaxBackward {
                        p,
                        outputs,
                        weight: this.param(params, net.weight),
                        argmax: this.value(net.saved).at(start * outputs),
                        dy,
                        dy_row,
                        d_left,
                        d_right,
                    }),
                    Reduce::Sum | Reduce::Mean => this.scratch.with(p.elements * p.hidden, |d_hidden| {
                        T::dispatch(PackedProduct {
                            a: Strided { ptr: dy, row: dy_row, col: 1 },
                            ..PackedProduct::plain(
                                [p.elements, outputs, p.hidden],
                                dy,
                                packed.backward(net.weight),
                                d_hidden,
                            )
                        });
                        T::dispatch(HiddenSumsBackward { p, d_hidden, d_left, d_right });
                    }),
                }
            }
        });
        for net in &op.nets {
            self.mark_written(net.left.value);
            self.mark_written(net.right.value);
        }
        if op.nets[0].reduce == Reduce::Max {
            self.pair_max_weights(run, op, plan);
        } else {
            self.weights_backward(run, &plan.uses);
        }
        self.pair_biases(run, op);
    }

    fn pair_max_weights(&mut self, run: &mut Run<T>, op: &Pairs, plan: &PairsPlan) {
        let grads = Ptr(run.grads.as_mut_ptr());
        let this = &*self;
        let counts = || plan.weights.iter().map(|w| op.nets[w[0]].y.cols.div_ceil(OUTPUTS));
        self.threads.run(counts().sum(), |t| {
            let (w, block) = locate(t, counts());
            let first = block * OUTPUTS;
            for &n in &plan.weights[w] {
                let net = &op.nets[n];
                let outputs = net.y.cols;
                for example in 0..this.shape.examples {
                    let (p, start) = this.pair_problem(net, example);
                    let (dy, dy_row) = this.grad_slice(net.y);
                    // SAFETY: rows `first..last` of this weight's gradient belong to this task: `locate` gives each
                    // block of each distinct weight to one task. `run` borrows the gradients exclusively.
                    unsafe {
                        T::dispatch(PairMaxWeight {
                            p,
                            outputs,
                            first,
                            last: outputs.min(first + OUTPUTS),
                            argmax: this.value(net.saved).at(start * outputs),
                            dy: dy.at(start * dy_row),
                            dy_row,
                            d_weight: grads.at(this.program.params.spec(net.weight).offset),
                        });
                    }
                }
            }
        });
    }

    /// Gradient of the second layer's bias: added once under a maximum, once per partner under a sum.
    fn pair_biases(&mut self, run: &mut Run<T>, op: &Pairs) {
        for net in &op.nets {
            let sums = run.grads[self.program.params.spec(net.bias).range()].as_mut_ptr();
            let (dy, dy_row) = self.grad_slice(net.y);
            for example in 0..self.shape.examples {
                let (p, start) = self.pair_problem(net, example);
                let weight = if net.reduce == Reduce::Max { T::ONE } else { T::from_usize(p.partners) };
                // SAFETY: `dy` has rows `start..start + elements`; `sums` is the bias's range of the gradients, which
                // `run` borrows exclusively, and one thread adds to it.
                unsafe {
                    let x = dy.at(start * dy_row);
                    T::dispatch(ColumnSums { rows: p.elements, cols: net.y.cols, x, x_row: dy_row, sums, weight });
                }
            }
        }
    }
}
