//! Runs a program forward and backward on some examples of a batch, with its own working memory.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::amx::TileConfig;
use super::buffer::AlignedBuffer;
use super::linear::LinearPlan;
use super::norm::NormBackward;
use super::packed_weights::PackedWeights;
use super::pair::PairsPlan;
use super::projected_attention::ProjectedAttention;
use super::row_buffers::RowBuffers;
use super::row_fusion::RowFusion;
use super::tasks::{Ptr, Scratch, Threads};
use crate::batch::{BatchView, SetView};
use crate::error::Error;
use crate::flow::{Users, gated_values, gradients_to_clear};
use crate::params::ParamId;
use crate::plan::{Lifetimes, NONE, Plan, Shape};
use crate::program::{Op, Program, Slice, Space, Value};
use crate::real::Real;

/// Parameters and their gradients, for one backward pass.
pub struct Run<'a, T> {
    pub params: &'a [T],
    pub packed: &'a PackedWeights<T>,
    pub grads: &'a mut [T],
}

/// The batch-independent plan of an operation.
enum OpPlan {
    Linear(LinearPlan),
    Pairs(PairsPlan),
    /// Projections fused with the attention that follows.
    ProjectedAttention(ProjectedAttention),
    /// This operation and those that follow, fused by rows.
    RowFusion(RowFusion),
    /// A preceding operation runs it too.
    Done,
    Other,
}

impl OpPlan {
    /// Whether running it records the time of each of its operations.
    fn records_itself(&self) -> bool {
        matches!(self, OpPlan::ProjectedAttention(_) | OpPlan::RowFusion(_) | OpPlan::Done)
    }
}

/// Runs one program. After the largest batch nothing more is allocated.
pub struct Worker<T: Real> {
    pub(super) threads: Threads,
    pub(super) program: Arc<Program>,
    plans: Vec<OpPlan>,
    /// For each operation the gradients to clear before its backward pass accumulates into some of their columns.
    pub(super) clear: Vec<Vec<Value>>,
    /// ReLU results whose gradient comes from one linear operation alone, which then applies the ReLU's backward step.
    pub(super) gated: Vec<bool>,
    lifetimes: Lifetimes,
    plan: Plan,
    pub(super) shape: Shape,
    arena: AlignedBuffer<T>,
    /// Values that exist for a few rows at a time.
    pub(super) row_buffers: RowBuffers<T>,
    /// The rows in work, while operations are fused by rows.
    pub(super) row_block: Option<Range<usize>>,
    /// Whether norms save their statistics for the backward pass.
    pub(super) saves_norms: bool,
    pub(super) written: Vec<bool>,
    /// `written` at the start of a fused backward pass.
    pub(super) written_before: Vec<bool>,
    pub(super) scratch: Scratch<T>,
    partials: Vec<T>,
    pub(super) sources: Vec<(Ptr<T>, usize)>,
    pub(super) norms: Vec<NormBackward<T>>,
    pub(super) seed: u64,
    /// Seconds forward and backward by operation, while timings are recorded.
    timings: Option<Vec<[f64; 2]>>,
}

impl<T: Real> Worker<T> {
    pub fn new(program: Arc<Program>, threads: Threads) -> Self {
        let plans = plans(&program, threads);
        Worker {
            clear: gradients_to_clear(&program),
            gated: gated_values(&program),
            lifetimes: lifetimes(&program, &plans),
            plans,
            plan: Plan::default(),
            shape: Shape::default(),
            arena: AlignedBuffer::new(),
            row_buffers: RowBuffers::new(&program),
            row_block: None,
            saves_norms: true,
            written: vec![false; program.values.len()],
            written_before: vec![false; program.values.len()],
            scratch: Scratch::new(threads),
            partials: Vec::new(),
            sources: Vec::new(),
            norms: Vec::new(),
            seed: 0,
            timings: None,
            threads,
            program,
        }
    }

    /// Starts to record how long each operation takes, from zero.
    pub fn record_timings(&mut self) {
        self.timings = Some(vec![[0.0; 2]; self.program.ops.len()]);
    }

    /// Seconds spent forward and backward in each operation since recording began; empty if it never did.
    pub fn timings(&self) -> &[[f64; 2]] {
        self.timings.as_deref().unwrap_or(&[])
    }

    /// The time, if timings are recorded.
    pub(super) fn clock(&self) -> Option<Instant> {
        self.timings.is_some().then(Instant::now)
    }

    pub(super) fn record(&mut self, op: usize, direction: usize, since: Option<Instant>) {
        if let (Some(t), Some(since)) = (&mut self.timings, since) {
            t[op][direction] += since.elapsed().as_secs_f64();
        }
    }

    /// Bytes of working memory held.
    pub fn memory(&self) -> usize {
        (self.arena.allocated() + self.partials.len() + self.row_buffers.allocated()) * size_of::<T>()
    }

    /// Computes all outputs for the examples `range` of a checked batch.
    pub fn forward(
        &mut self,
        params: &[T],
        packed: &PackedWeights<T>,
        batch: &BatchView<T>,
        range: Range<usize>,
    ) -> Result<(), Error> {
        self.bind(batch, &range)?;
        for (k, set) in batch.sets.iter().enumerate() {
            let data = &set.data[set.offsets[range.start] * set.width..set.offsets[range.end] * set.width];
            // SAFETY: `bind` planned the input for the rows of these examples, as many elements as `data` has; `self`
            // is borrowed exclusively.
            let input = unsafe { std::slice::from_raw_parts_mut(self.value(self.program.inputs[k]).at(0), data.len()) };
            input.copy_from_slice(data);
        }
        let program = self.program.clone();
        let _tile_config = self.tile_config(packed);
        for i in 0..program.ops.len() {
            let started = self.clock();
            let plan = std::mem::replace(&mut self.plans[i], OpPlan::Other);
            match (&program.ops[i], &plan) {
                (_, OpPlan::ProjectedAttention(p)) => self.projected_forward(params, packed, p),
                (_, OpPlan::RowFusion(c)) => self.row_fusion_forward(params, packed, c),
                (_, OpPlan::Done) => {}
                (Op::Linear(l), OpPlan::Linear(p)) => self.linear_forward(params, packed, l, p),
                (Op::Attention(a), _) => self.attention_forward(packed.uses_amx(), a),
                (Op::AddNorm(a), _) => self.add_norm_forward(params, a),
                (Op::Pool(p), _) => self.pool_forward(p),
                (Op::Pairs(p), _) => self.pairs_forward(params, packed, p),
                (Op::ToUnion(t), _) => self.join_forward(params, t),
                (Op::FromUnion(f), _) => self.split_forward(f),
                (Op::Repeat(r), _) => self.repeat_forward(params, r),
                (Op::Concat(c), _) => self.concat_forward(c),
                (Op::PineSum(p), _) => self.pine_forward(params, p),
                (Op::Dropout(d), _) => self.dropout_forward(d),
                (Op::Convolution(c), _) => self.convolution_forward(params, packed, c),
                (Op::BatchNorm(b), _) => self.batch_norm_forward(params, b),
                (Op::MaxPool(p), _) => self.max_pool_forward(p),
                (Op::Linear(_), _) => unreachable!("every linear operation has its plan"),
            }
            if !plan.records_itself() {
                self.record(i, 0, started);
            }
            self.plans[i] = plan;
        }
        Ok(())
    }

    /// An output of the last forward pass, row-major.
    pub fn output(&self, i: usize) -> &[T] {
        self.read(self.program.outputs[i], 0)
    }

    /// Gradient of input `k` after a backward pass, if the program computes input gradients.
    pub fn input_grad(&self, k: usize) -> Option<&[T]> {
        let v = self.program.inputs[k];
        self.program.values[v.0].grad.then(|| self.read(v, self.program.values.len()))
    }

    fn read(&self, v: Value, first: usize) -> &[T] {
        let i = first + v.0;
        if self.plan.lens.is_empty() || self.plan.offsets[i] == NONE {
            return &[];
        }
        self.arena.slice(self.plan.offsets[i], self.plan.lens[i])
    }

    /// The AMX tile configuration for a pass that one thread runs alone.
    fn tile_config(&self, packed: &PackedWeights<T>) -> Option<TileConfig> {
        (packed.uses_amx() && self.threads == Threads::One).then(TileConfig::load)
    }

    /// Adds to the gradients of the parameters, given those of the outputs. A forward pass of a training program
    /// precedes.
    pub fn backward(&mut self, run: &mut Run<T>, output_grads: &[Vec<T>]) {
        self.written.fill(false);
        for (i, g) in output_grads.iter().enumerate() {
            let v = self.program.outputs[i];
            assert_eq!(self.plan.lens[v.0], g.len(), "a gradient for every output");
            // SAFETY: the gradient has the output's length, which the assertion compares with `g`; `self` is borrowed
            // exclusively.
            unsafe { std::slice::from_raw_parts_mut(self.grad(v).at(0), g.len()) }.copy_from_slice(g);
            self.mark_written(v);
        }
        let program = self.program.clone();
        let _tile_config = self.tile_config(run.packed);
        for i in (0..program.ops.len()).rev() {
            let started = self.clock();
            if !matches!(self.plans[i], OpPlan::RowFusion(_) | OpPlan::Done) {
                self.clear_gradients(i, None);
            }
            let plan = std::mem::replace(&mut self.plans[i], OpPlan::Other);
            match (&program.ops[i], &plan) {
                (_, OpPlan::ProjectedAttention(p)) => self.projected_backward(run, p),
                (_, OpPlan::RowFusion(c)) => self.row_fusion_backward(run, c),
                (_, OpPlan::Done) => {}
                (Op::Linear(l), OpPlan::Linear(p)) => self.linear_backward(run, l, p),
                (Op::Attention(a), _) => self.attention_backward(run.packed.uses_amx(), a),
                (Op::AddNorm(a), _) => self.add_norm_backward(run, a),
                (Op::Pool(p), _) => self.pool_backward(run, p),
                (Op::Pairs(op), OpPlan::Pairs(p)) => self.pairs_backward(run, op, p),
                (Op::ToUnion(t), _) => self.join_backward(run, t),
                (Op::FromUnion(f), _) => self.split_backward(f),
                (Op::Repeat(r), _) => self.repeat_backward(run, r),
                (Op::Concat(c), _) => self.concat_backward(c),
                (Op::PineSum(p), _) => self.pine_backward(run, p),
                (Op::Dropout(d), _) => self.dropout_backward(d),
                (Op::Convolution(c), _) => self.convolution_backward(run, c),
                (Op::BatchNorm(b), _) => self.batch_norm_backward(run, b),
                (Op::MaxPool(p), _) => self.max_pool_backward(p),
                (Op::Linear(_) | Op::Pairs(_), _) => unreachable!("these operations have their plans"),
            }
            if !plan.records_itself() {
                self.record(i, 1, started);
            }
            self.plans[i] = plan;
        }
    }

    /// Clears the gradients that an operation accumulates into in part: those of values in one space, or all.
    pub(super) fn clear_gradients(&mut self, op: usize, space: Option<Space>) {
        for &v in &self.clear[op] {
            let spec = &self.program.values[v.0];
            if space.is_some_and(|s| s != spec.space) {
                continue;
            }
            let (rows, cols) = (self.rows(v), spec.cols);
            // SAFETY: the gradient has `rows` of `cols` numbers, in the arena or in a row buffer; `self` is borrowed
            // exclusively.
            let numbers =
                unsafe { std::slice::from_raw_parts_mut(self.grad(v).at(rows.start * cols), rows.len() * cols) };
            numbers.fill(T::ZERO);
            self.written[v.0] = true;
        }
    }

    /// Binds the shape of some examples: counts rows and plans memory.
    fn bind(&mut self, batch: &BatchView<T>, range: &Range<usize>) -> Result<(), Error> {
        let cols = self.program.values[self.program.inputs[0].0].cols;
        let dims = if self.program.any_dim { batch.sets[0].width / cols } else { 1 };
        let examples = range.len();
        let shape = &mut self.shape;
        let bound = |s: &SetView<T>, e: usize| s.offsets[range.start + e] - s.offsets[range.start];
        let same = shape.examples == examples
            && shape.dims == dims
            && shape.set_offsets.len() == batch.sets.len()
            && shape
                .set_offsets
                .iter()
                .zip(&batch.sets)
                .all(|(offsets, s)| (0..=examples).all(|e| offsets[e] == bound(s, e)));
        if !same {
            shape.examples = examples;
            shape.dims = dims;
            shape.set_offsets.resize_with(batch.sets.len(), Vec::new);
            for (offsets, s) in shape.set_offsets.iter_mut().zip(&batch.sets) {
                offsets.clear();
                offsets.extend((0..=examples).map(|e| bound(s, e)));
            }
            shape.union_offsets.clear();
            shape.union_offsets.extend((0..=examples).map(|e| batch.sets.iter().map(|s| bound(s, e)).sum::<usize>()));
            let planned = self.plan.make(&self.program, &self.lifetimes, &self.shape);
            if let Err(error) = planned.and_then(|()| self.reserve()) {
                // Nothing is bound, and no offset stays valid.
                self.shape.examples = 0;
                self.plan = Plan::default();
                return Err(error);
            }
        }
        self.scratch.prepare();
        Ok(())
    }

    /// Makes the arena large enough for the plan, and the row buffers for the largest fused operation.
    fn reserve(&mut self) -> Result<(), Error> {
        if self.arena.capacity() < self.plan.total {
            let bytes = (self.plan.total as u64).saturating_mul(size_of::<T>() as u64);
            if bytes > memory_limit() || !self.arena.allocate(self.plan.total) {
                return Err(Error::TooLarge { bytes });
            }
        }
        let workspace = |plan: &OpPlan| match plan {
            OpPlan::ProjectedAttention(p) => self.projected_workspace(p, &self.program),
            OpPlan::RowFusion(c) => c.workspace(),
            _ => 0,
        };
        let wanted = self.plans.iter().map(workspace).max().unwrap_or(0);
        if self.row_buffers.capacity() < wanted {
            let elements = wanted.saturating_add(self.arena.allocated());
            let bytes = (elements as u64).saturating_mul(size_of::<T>() as u64);
            if bytes > memory_limit() || !self.row_buffers.allocate(wanted) {
                return Err(Error::TooLarge { bytes });
            }
        }
        Ok(())
    }

    /// Address of a value.
    pub(super) fn value(&self, v: Value) -> Ptr<T> {
        if let Some(found) = self.row_buffers.value(v) {
            return found;
        }
        self.buffer(v.0)
    }

    /// Address of a value's gradient.
    pub(super) fn grad(&self, v: Value) -> Ptr<T> {
        if let Some(found) = self.row_buffers.grad(v) {
            return found;
        }
        self.buffer(self.program.values.len() + v.0)
    }

    /// Address of a buffer of the plan.
    fn buffer(&self, index: usize) -> Ptr<T> {
        let offset = self.plan.offsets[index];
        debug_assert_ne!(offset, NONE, "a buffer that the plan does not hold");
        debug_assert!(offset + self.plan.lens[index] <= self.arena.capacity(), "a buffer beyond the arena");
        self.arena.at(offset)
    }

    /// Address of some columns of a value, and the row stride.
    pub(super) fn slice(&self, s: Slice) -> (Ptr<T>, usize) {
        if let Some(found) = self.row_buffers.slice(s, false) {
            return found;
        }
        let cols = self.program.values[s.value.0].cols;
        debug_assert!(s.col + s.cols <= cols, "columns of the value");
        (Ptr(self.value(s.value).at(s.col)), cols)
    }

    /// The same for the gradient.
    pub(super) fn grad_slice(&self, s: Slice) -> (Ptr<T>, usize) {
        if let Some(found) = self.row_buffers.slice(s, true) {
            return found;
        }
        let cols = self.program.values[s.value.0].cols;
        debug_assert!(s.col + s.cols <= cols, "columns of the value");
        (Ptr(self.grad(s.value).at(s.col)), cols)
    }

    pub(super) fn param(&self, params: &[T], id: ParamId) -> *const T {
        params[self.program.params.spec(id).range()].as_ptr()
    }

    /// The rows of a value to work on, dimensions counted: all, or the current row block.
    pub(super) fn rows(&self, v: Value) -> Range<usize> {
        self.row_block.clone().unwrap_or(0..self.rows_of(v))
    }

    /// Rows of a value, dimensions counted.
    pub(super) fn rows_of(&self, v: Value) -> usize {
        let spec = &self.program.values[v.0];
        let dims = if spec.per_dim { self.shape.dims } else { 1 };
        self.shape.rows(spec.space) * dims
    }

    /// The rows of some examples (at least one) in a value, dimensions counted.
    pub(super) fn example_rows(&self, v: Value, examples: &Range<usize>) -> Range<usize> {
        let spec = &self.program.values[v.0];
        let dims = if spec.per_dim { self.shape.dims } else { 1 };
        let [first, last] = [examples.start, examples.end - 1].map(|e| self.shape.range(spec.space, e));
        first.start * dims..last.end * dims
    }

    /// Whether a value has all of these rows; for assertions.
    pub(super) fn has_rows(&self, v: Value, rows: &Range<usize>) -> bool {
        rows.start <= rows.end && rows.end <= self.rows_of(v)
    }

    pub(super) fn wants_grad(&self, v: Value) -> bool {
        self.program.values[v.0].grad
    }

    /// Whether the gradient of `v` holds a contribution.
    pub(super) fn grad_written(&self, v: Value) -> bool {
        self.written[v.0]
    }

    pub(super) fn mark_written(&mut self, v: Value) {
        self.written[v.0] = true;
    }

    /// Memory for the partial sums of all tasks.
    pub(super) fn partials(&mut self, len: usize) -> *mut T {
        if self.partials.len() < len {
            self.partials.resize(len, T::ZERO);
        }
        self.partials.as_mut_ptr()
    }
}

/// Decides how operations run. Only a worker with one thread fuses them.
fn plans(program: &Program, threads: Threads) -> Vec<OpPlan> {
    let users = Users::of(program);
    let mut plans: Vec<OpPlan> = Vec::new();
    while plans.len() < program.ops.len() {
        let i = plans.len();
        let fusible = (threads == Threads::One).then_some(i);
        if let Some(projected) = fusible.and_then(|i| ProjectedAttention::find(program, &users, i)) {
            plans.extend([OpPlan::ProjectedAttention(projected), OpPlan::Done]);
        } else if let Some(fusion) = fusible.and_then(|i| RowFusion::find(program, &users, i)) {
            let last = fusion.ops.end;
            plans.push(OpPlan::RowFusion(fusion));
            plans.resize_with(last, || OpPlan::Done);
        } else {
            plans.push(match &program.ops[i] {
                Op::Linear(l) => OpPlan::Linear(LinearPlan::new(program, l)),
                Op::Pairs(p) => OpPlan::Pairs(PairsPlan::new(program, p)),
                _ => OpPlan::Other,
            });
        }
    }
    plans
}

/// Lifetimes of buffers. Fused operations share one point in time, their internal values have no buffer, and
/// recomputation extends the lifetimes of their inputs.
fn lifetimes(program: &Program, plans: &[OpPlan]) -> Lifetimes {
    let together = |i: usize| match &plans[i] {
        OpPlan::ProjectedAttention(_) => Some(i..i + 2),
        OpPlan::RowFusion(c) => Some(c.ops.clone()),
        OpPlan::Done => None,
        _ => Some(i..i + 1),
    };
    let mut lifetimes = Lifetimes::in_groups(program, (0..plans.len()).filter_map(together));
    for plan in plans {
        match plan {
            OpPlan::ProjectedAttention(p) => p.internal(program).for_each(|v| lifetimes.exclude(program, v)),
            OpPlan::RowFusion(c) => {
                c.internal().for_each(|v| lifetimes.exclude(program, v));
                c.inputs(program).into_iter().for_each(|v| lifetimes.read_again(program, &c.ops, v));
            }
            _ => {}
        }
    }
    lifetimes
}

/// Bytes of memory this machine has, where the system tells.
fn memory_limit() -> u64 {
    let read = || -> Option<u64> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    read().unwrap_or(u64::MAX)
}
