//! Linear maps, several at once, with bias, activation, residual and LayerNorm in the same pass over the rows.
//!
//! Forward: a task takes some rows of one input through all maps that read it. It normalises the rows it has just
//! written while they are in cache.
//!
//! Backward runs four passes: norms and activations in place on the output gradient; residuals; input gradients;
//! weight gradients. A task of the last pass owns some rows of one weight and reads all rows of all maps that share
//! it. Nothing is summed across tasks.

use std::ops::Range;

use super::amx;
use super::gemm::Strided;
use super::norm::{NormBackward, ROWS};
use super::packed_product::PackedProduct;
use super::packed_weights::PackedWeights;
use super::sums::sum_rows;
use super::tasks::{Ptr, chunk_range, locate};
use super::weight_product::{WeightProduct, weight_scratch};
use super::worker::{Run, Worker};
use crate::flow::group_by;
use crate::params::ParamId;
use crate::program::{Activation, Linear, Map, Program, Slice};
use crate::real::Real;
use crate::simd::{Kernel, Vector, columns, load_lanes, store_lanes};

/// Rows of a weight that one gradient task owns, without AMX.
const WEIGHT_ROWS: usize = 96;

/// The batch-independent plan of a [`Linear`].
pub struct LinearPlan {
    /// Indices of the maps with the same input.
    inputs: Vec<Vec<usize>>,
    /// Residuals and the maps that add them.
    residuals: Vec<(Slice, Vec<usize>)>,
    /// The groups of `inputs` to which a gradient flows.
    wanted: Vec<usize>,
    /// Uses of each weight.
    uses: Vec<Vec<WeightUse>>,
}

impl LinearPlan {
    pub fn new(program: &Program, op: &Linear) -> Self {
        let inputs: Vec<Vec<usize>> = group_by(op.maps.iter().map(|m| m.x)).into_iter().map(|g| g.1).collect();
        let wanted = (0..inputs.len()).filter(|&g| program.values[op.maps[inputs[g][0]].x.value.0].grad).collect();
        let residuals = group_by(op.maps.iter().map(|m| m.residual))
            .into_iter()
            .filter_map(|(r, maps)| r.map(|r| (r, maps)))
            .collect();
        let weights = group_by(op.maps.iter().map(|m| m.weight));
        let uses = weights.iter().map(|(_, g)| g.iter().map(|&m| WeightUse::of(&op.maps[m])).collect()).collect();
        LinearPlan { inputs, residuals, wanted, uses }
    }

    /// Rows of a task: the input stays in the second cache level, since every task reads all weights. A multiple of
    /// the product's tile rows.
    fn rows_per_task<T: Real>(packed: &PackedWeights<T>, map: &Map) -> usize {
        let step = if packed.on_amx(map.weight) { 32 } else { 12 };
        (65_536 / map.x.cols).clamp(96, 2048) / step * step
    }
}

/// `dy *= act'(y)` in place: `dy` becomes the gradient before the activation with result `y`. Both are `[rows, cols]`
/// with row strides `y_row` and `dy_row`.
struct ActivationBackward<T> {
    rows: usize,
    cols: usize,
    activation: Activation,
    y: *const T,
    y_row: usize,
    dy: *mut T,
    dy_row: usize,
}

impl<T: Real> Kernel<T> for ActivationBackward<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        // SAFETY: the contract of `Kernel::run`: `y` and `dy` have `rows` rows of `cols` numbers.
        unsafe {
            for r in 0..self.rows {
                let (y, dy) = (self.y.add(r * self.y_row), self.dy.add(r * self.dy_row));
                columns!(V, self.cols, |j, n| {
                    let (v, d) = (load_lanes::<T, V>(y.add(j), n), load_lanes::<T, V>(dy.add(j), n));
                    let d = match self.activation {
                        Activation::None => d,
                        Activation::Relu => v.where_positive(d),
                        Activation::Sigmoid => d.mul(v.mul(V::splat(T::ONE).sub(v))),
                    };
                    store_lanes(d, dy.add(j), n);
                });
            }
        }
    }
}

impl<T: Real> Worker<T> {
    /// Products of the same rows with weights of equal sizes, on AMX or on vectors, as the weights are packed.
    ///
    /// # Safety
    /// The products' pointers are valid for their sizes, all read the same rows, and nothing else accesses their
    /// results.
    pub(super) unsafe fn products(&self, packed: &PackedWeights<T>, weight: ParamId, products: &[PackedProduct<T>]) {
        if !packed.on_amx(weight) {
            // SAFETY: the caller's contract.
            return products.iter().for_each(|&product| unsafe { T::dispatch(product) });
        }
        self.scratch.with(amx::product_scratch(products[0].k), |scratch| {
            // SAFETY: the caller's contract; `PackedWeights` uses AMX for `f32` alone.
            unsafe {
                let products = std::slice::from_raw_parts(products.as_ptr().cast(), products.len());
                amx::products(products, scratch.cast());
            }
        });
    }

    pub(super) fn linear_forward(&mut self, params: &[T], packed: &PackedWeights<T>, op: &Linear, plan: &LinearPlan) {
        let this = &*self;
        let step = |g: &Vec<usize>| LinearPlan::rows_per_task(packed, &op.maps[g[0]]);
        let counts = || plan.inputs.iter().map(|g| this.rows(op.maps[g[0]].x.value).len().div_ceil(step(g)));
        self.threads.run(counts().sum(), |t| {
            let (g, chunk) = locate(t, counts());
            let group = &plan.inputs[g];
            let rows = chunk_range(this.rows(op.maps[group[0]].x.value), chunk, step(group));
            for &m in group {
                // SAFETY: `locate` gives each chunk of rows of each input to one task. It writes these rows of the
                // outputs of the input's maps, which no other map writes.
                unsafe { this.map_forward(params, packed, &op.maps[m], op.activation, rows.clone()) };
            }
        });
    }

    /// The product of some rows of one map, without its norm.
    pub(super) fn map_product(
        &self,
        params: &[T],
        packed: &PackedWeights<T>,
        map: &Map,
        activation: Activation,
        rows: Range<usize>,
    ) -> PackedProduct<T> {
        debug_assert!(self.has_rows(map.x.value, &rows) && self.has_rows(map.y.value, &rows));
        let (first, rows) = (rows.start, rows.len());
        let (x, x_row) = self.slice(map.x);
        let (y, y_row) = self.slice(map.y);
        let (residual, residual_row) = self.rows_from(map.residual, first);
        let [x, y] = [x.at(first * x_row), y.at(first * y_row)];
        PackedProduct {
            a: Strided { ptr: x, row: x_row, col: 1 },
            c_row: y_row,
            bias: map.bias.map_or(std::ptr::null(), |b| self.param(params, b)),
            activation,
            residual,
            residual_row,
            ..PackedProduct::plain([rows, map.x.cols, map.y.cols], std::ptr::null(), packed.forward(map.weight), y)
        }
    }

    /// Runs some rows of one map.
    ///
    /// # Safety
    /// The value has these rows, and no other task writes them.
    pub(super) unsafe fn map_forward(
        &self,
        params: &[T],
        packed: &PackedWeights<T>,
        map: &Map,
        activation: Activation,
        rows: Range<usize>,
    ) {
        let product = self.map_product(params, packed, map, activation, rows.clone());
        // SAFETY: the caller's contract; a norm has the rows and columns of the product.
        unsafe {
            self.products(packed, map.weight, &[product]);
            if let Some(norm) = &map.norm {
                self.norm_rows(params, norm, product.c, product.c_row, rows.start, rows.len(), map.y.cols);
            }
        }
    }

    /// Address of row `first` of a slice, and its row stride; null if there is no slice.
    fn rows_from(&self, slice: Option<Slice>, first: usize) -> (*const T, usize) {
        let Some(slice) = slice else { return (std::ptr::null(), 0) };
        let (start, row) = self.slice(slice);
        (start.at(first * row), row)
    }

    pub(super) fn linear_backward(&mut self, run: &mut Run<T>, op: &Linear, plan: &LinearPlan) {
        self.outputs_backward(run, op);
        for (slice, maps) in &plan.residuals {
            if self.wants_grad(slice.value) {
                let rows = self.rows(slice.value);
                let mut sources = std::mem::take(&mut self.sources);
                sources.extend(maps.iter().map(|&m| self.grad_slice(op.maps[m].y)));
                let written = self.grad_written(slice.value);
                // SAFETY: a residual has the rows and columns of the outputs it is added to, and a gradient of its own.
                unsafe { sum_rows(self.threads, rows, slice.cols, self.grad_slice(*slice), written, &sources) };
                sources.clear();
                self.sources = sources;
            }
        }
        for (slice, _) in &plan.residuals {
            self.mark_written(slice.value);
        }
        self.inputs_backward(run, op, plan);
        self.weights_backward(run, &plan.uses);
    }

    /// Norms and activations, in place on the gradients of the outputs.
    fn outputs_backward(&mut self, run: &mut Run<T>, op: &Linear) {
        let mut norms = std::mem::take(&mut self.norms);
        norms.extend(op.maps.iter().filter_map(|m| {
            let (dy, dy_row) = self.grad_slice(m.y);
            m.norm.map(|norm| NormBackward { norm, dy, dy_row, rows: self.rows(m.y.value), cols: m.y.cols })
        }));
        if !norms.is_empty() {
            self.norms_backward(run, &norms);
        }
        norms.clear();
        self.norms = norms;
        if op.activation == Activation::None || op.maps.iter().all(|m| self.gated[m.y.value.0]) {
            return;
        }
        let this = &*self;
        let counts = || op.maps.iter().map(|m| this.rows(m.y.value).len().div_ceil(ROWS));
        self.threads.run(counts().sum(), |t| {
            let (m, chunk) = locate(t, counts());
            let slice = op.maps[m].y;
            let Range { start: first, end } = chunk_range(this.rows(slice.value), chunk, ROWS);
            let ((y, y_row), (dy, dy_row)) = (this.slice(slice), this.grad_slice(slice));
            // SAFETY: `locate` gives each chunk of rows of each map to one task; maps have disjoint outputs.
            unsafe {
                T::dispatch(ActivationBackward {
                    rows: end - first,
                    cols: slice.cols,
                    activation: op.activation,
                    y: y.at(first * y_row),
                    y_row,
                    dy: dy.at(first * dy_row),
                    dy_row,
                });
            }
        });
    }

    fn inputs_backward(&mut self, run: &mut Run<T>, op: &Linear, plan: &LinearPlan) {
        if plan.wanted.is_empty() {
            return;
        }
        let packed = run.packed;
        let this = &*self;
        let step = |g: &Vec<usize>| LinearPlan::rows_per_task(packed, &op.maps[g[0]]);
        let groups = || plan.wanted.iter().map(|&g| &plan.inputs[g]);
        let counts = || groups().map(|g| this.rows(op.maps[g[0]].x.value).len().div_ceil(step(g)));
        self.threads.run(counts().sum(), |t| {
            let (g, chunk) = locate(t, counts());
            let group = &plan.inputs[plan.wanted[g]];
            let x = op.maps[group[0]].x;
            let rows = chunk_range(this.rows(x.value), chunk, step(group));
            for (i, &m) in group.iter().enumerate() {
                let accumulate = i > 0 || this.grad_written(x.value);
                let last = i + 1 == group.len();
                // SAFETY: `locate` gives each chunk of rows of each input to one task; distinct inputs have disjoint
                // columns.
                unsafe { this.input_backward(packed, &op.maps[m], rows.clone(), accumulate, last) };
            }
        });
        for group in &plan.inputs {
            self.mark_written(op.maps[group[0]].x.value);
        }
    }

    /// Adds one map's contribution to the gradient of some rows of its input, or overwrites it. The last contribution
    /// applies the backward step of a gated ReLU.
    ///
    /// # Safety
    /// The value has these rows, and no other task writes their gradient.
    pub(super) unsafe fn input_backward(
        &self,
        packed: &PackedWeights<T>,
        map: &Map,
        rows: Range<usize>,
        accumulate: bool,
        last: bool,
    ) {
        debug_assert!(self.has_rows(map.x.value, &rows) && self.has_rows(map.y.value, &rows));
        let (first, rows) = (rows.start, rows.len());
        let ((dx, dx_row), (dy, dy_row)) = (self.grad_slice(map.x), self.grad_slice(map.y));
        let (gate, gate_row) = self.rows_from((last && self.gated[map.x.value.0]).then_some(map.x), first);
        // SAFETY: the caller's contract: the gradients of these rows.
        unsafe {
            self.products(
                packed,
                map.weight,
                &[PackedProduct {
                    a: Strided { ptr: dy.at(first * dy_row), row: dy_row, col: 1 },
                    c_row: dx_row,
                    accumulate,
                    gate,
                    gate_row,
                    ..PackedProduct::plain(
                        [rows, map.y.cols, map.x.cols],
                        std::ptr::null(),
                        packed.backward(map.weight),
                        dx.at(first * dx_row),
                    )
                }],
            );
        }
    }

    /// Adds weight and bias gradients. Each entry of `weights` lists all uses of one weight.
    pub(super) fn weights_backward(&mut self, run: &mut Run<T>, weights: &[Vec<WeightUse>]) {
        let grads = Ptr(run.grads.as_mut_ptr());
        let this = &*self;
        let packed = run.packed;
        let step = |uses: &[WeightUse]| weight_rows(packed, &uses[0]);
        let counts = || weights.iter().map(|uses| uses[0].dy.cols.div_ceil(step(uses)));
        self.threads.run(counts().sum(), |t| {
            let (w, block) = locate(t, counts());
            let first = block * step(&weights[w]);
            let outputs = first..weights[w][0].dy.cols.min(first + step(&weights[w]));
            for u in &weights[w] {
                // SAFETY: `locate` gives each block of outputs of each distinct weight to one task, and a bias belongs
                // to one weight. `run` borrows the gradients exclusively.
                unsafe { this.weight_backward(packed, grads, u, outputs.clone(), this.rows(u.dy.value)) };
            }
        });
    }

    /// Adds the contribution of some rows to the gradients of some outputs of a weight and its bias.
    ///
    /// # Safety
    /// `grads` is the gradient of all parameters. No other task adds to these outputs of the weight and its bias.
    unsafe fn weight_backward(
        &self,
        packed: &PackedWeights<T>,
        grads: Ptr<T>,
        WeightUse { weight, bias, x, dy }: &WeightUse,
        outputs: Range<usize>,
        rows: Range<usize>,
    ) {
        debug_assert!(self.has_rows(x.value, &rows) && self.has_rows(dy.value, &rows) && outputs.end <= dy.cols);
        let (first, inputs) = (outputs.start, x.cols);
        let on_amx = packed.gradient_on_amx(*weight);
        let numbers = match on_amx {
            true => amx::weight_scratch(outputs.len(), inputs),
            false => weight_scratch::<T>(outputs.len(), inputs),
        };
        let offset = |p: ParamId| self.program.params.spec(p).offset;
        self.scratch.with(numbers, |scratch| {
            let ((x, x_row), (dy, dy_row)) = (self.slice(*x), self.grad_slice(*dy));
            // SAFETY: the caller's contract; `x` and `dy` have these rows, and both are only read. The gradient of the
            // weight has rows `outputs` of `inputs` numbers. The scratch has the length of the kernel in use.
            // `PackedWeights` uses AMX for `f32` alone, so the cast is to the same type.
            unsafe {
                let product = WeightProduct {
                    m: outputs.len(),
                    n: inputs,
                    rows: rows.len(),
                    a: dy.at(rows.start * dy_row + first),
                    a_row: dy_row,
                    b: x.at(rows.start * x_row),
                    b_row: x_row,
                    c: grads.at(offset(*weight) + first * inputs),
                    c_row: inputs,
                    bias_grad: bias.map_or(std::ptr::null_mut(), |b| grads.at(offset(b) + first)),
                    scratch,
                };
                if on_amx {
                    amx::weight_product(&*(&raw const product).cast());
                } else {
                    T::dispatch(product);
                }
            }
        });
    }

    /// Adds the contribution of some rows to the gradients of a map's weight and bias, on the calling thread.
    pub(super) fn map_weight_backward(&self, run: &mut Run<T>, map: &Map, rows: Range<usize>) {
        let grads = Ptr(run.grads.as_mut_ptr());
        let u = WeightUse::of(map);
        let step = weight_rows(run.packed, &u);
        for first in (0..map.y.cols).step_by(step) {
            let outputs = first..map.y.cols.min(first + step);
            // SAFETY: `run` borrows the gradients exclusively, and this thread alone adds to them.
            unsafe { self.weight_backward(run.packed, grads, &u, outputs, rows.clone()) };
        }
    }
}

/// Rows of a weight that one gradient task owns.
fn weight_rows<T: Real>(packed: &PackedWeights<T>, u: &WeightUse) -> usize {
    if packed.gradient_on_amx(u.weight) { amx::WEIGHT_ROWS } else { WEIGHT_ROWS }
}

/// One use of a weight: its input and the gradient of its product.
pub struct WeightUse {
    pub weight: ParamId,
    pub bias: Option<ParamId>,
    pub x: Slice,
    pub dy: Slice,
}

impl WeightUse {
    fn of(map: &Map) -> Self {
        WeightUse { weight: map.weight, bias: map.bias, x: map.x, dy: map.y }
    }
}
