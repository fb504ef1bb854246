//! Row fusion: operations on single rows run together, one block of rows at a time.
//!
//! Between two attentions of a model lie a projection, a residual with its norm, a feed-forward network and a merge.
//! All of them work on one row at a time. Fused, a block of rows passes all of them while it is in cache. Only values
//! that other operations read are written to the arena. The backward pass recomputes the others from the block's
//! inputs (rematerialisation).

use std::ops::Range;

use super::linear::LinearPlan;
use super::packed_weights::PackedWeights;
use super::row_buffers::slot_len;
use super::worker::{Run, Worker};
use crate::flow::Users;
use crate::program::{Activation, AddNorm, Linear, Norm, Op, Program, Slice, Space, Value};
use crate::real::Real;

/// Elements that the values and gradients of a row block may have.
const BLOCK_ELEMENTS: usize = 1 << 18;
/// Row blocks are a multiple of this: enough rows to pay for reading the weights, and full tiles of the product.
const ROW_STEP: usize = 96;

/// Neighbouring operations that run fused.
pub struct RowFusion {
    /// Their indices in the program.
    pub ops: Range<usize>,
    /// One for each set.
    sets: Vec<FusedSet>,
}

/// The work on the rows of one set.
struct FusedSet {
    space: Space,
    steps: Vec<Step>,
    written: Vec<Written>,
    /// Rows of a block.
    rows: usize,
}

/// The work of one operation on the rows of one set.
struct Step {
    op: usize,
    work: Work,
    /// Whether the backward pass reads its result, and so recomputes it.
    recompute: bool,
}

enum Work {
    Linear(Linear, LinearPlan),
    AddNorm(AddNorm),
}

/// A value that fused operations write. An internal value has no other reader: it and its gradient exist for one block
/// at a time. The others lie in the arena. By the backward pass the arena may have reused their memory, so they are
/// recomputed in row buffers.
struct Written {
    slice: Slice,
    internal: bool,
    /// Whether the gradient has a row buffer too.
    grad: bool,
}

impl RowFusion {
    /// The longest fusible run that begins with operation `first`, if it has two operations at least.
    pub fn find(program: &Program, users: &Users, first: usize) -> Option<Self> {
        let mut last = first;
        while last < program.ops.len() && is_row_wise(program, &program.ops[last]) && !feeds_attention(program, last) {
            last += 1;
        }
        let ops = first..last;
        // A value that other operations write in part would lack their columns when it is recomputed.
        let shared = |v: &Value| users.written_elsewhere(*v, &ops);
        if ops.len() < 2 || ops.clone().any(|i| program.ops[i].uses().writes.iter().any(shared)) {
            return None;
        }
        let mut spaces: Vec<Space> = Vec::new();
        for v in ops.clone().flat_map(|i| program.ops[i].uses().writes) {
            let space = program.values[v.0].space;
            if !spaces.contains(&space) {
                spaces.push(space);
            }
        }
        let sets: Vec<FusedSet> = spaces.iter().map(|&s| FusedSet::new(program, users, &ops, s)).collect();
        sets.iter().all(|s| s.rows > 0).then_some(RowFusion { ops, sets })
    }

    /// Elements that its row buffers take at once.
    pub fn workspace(&self) -> usize {
        self.sets.iter().map(FusedSet::workspace).max().unwrap_or(0)
    }

    /// The values that no other operation reads.
    pub fn internal(&self) -> impl Iterator<Item = Value> + '_ {
        self.sets.iter().flat_map(|s| &s.written).filter(|w| w.internal).map(|w| w.slice.value)
    }

    /// The values of other operations that it reads.
    pub fn inputs(&self, program: &Program) -> Vec<Value> {
        let uses: Vec<_> = self.ops.clone().map(|i| program.ops[i].uses()).collect();
        let written: Vec<Value> = uses.iter().flat_map(|u| u.writes.iter().copied()).collect();
        uses.iter().flat_map(|u| u.reads.iter().copied()).filter(|v| !written.contains(v)).collect()
    }
}

impl FusedSet {
    fn new(program: &Program, users: &Users, ops: &Range<usize>, space: Space) -> Self {
        let here = |v: Value| program.values[v.0].space == space;
        let read: Vec<Value> = ops.clone().flat_map(|i| program.ops[i].uses().reads).collect();
        let mut steps = Vec::new();
        for op in ops.clone() {
            match &program.ops[op] {
                Op::Linear(l) => {
                    let maps: Vec<_> = l.maps.iter().filter(|m| here(m.y.value)).cloned().collect();
                    let recompute = l.activation != Activation::None
                        || maps.iter().any(|m| m.norm.is_some() || read.contains(&m.y.value));
                    if !maps.is_empty() {
                        let linear = Linear { maps, activation: l.activation };
                        let plan = LinearPlan::new(program, &linear);
                        steps.push(Step { op, work: Work::Linear(linear, plan), recompute });
                    }
                }
                Op::AddNorm(a) if here(a.y.value) => {
                    let recompute = a.norm.is_some() || read.contains(&a.y.value);
                    steps.push(Step { op, work: Work::AddNorm(a.clone()), recompute });
                }
                _ => {}
            }
        }
        let mut written: Vec<Written> = Vec::new();
        for v in ops.clone().flat_map(|i| program.ops[i].uses().writes).filter(|&v| here(v)) {
            if written.iter().any(|w| w.slice.value == v) {
                continue;
            }
            let internal = users.of_value(v).iter().all(|i| ops.contains(i)) && !program.outputs.contains(&v);
            let spec = &program.values[v.0];
            let grad = internal && spec.grad && program.training();
            written.push(Written { slice: Slice { value: v, col: 0, cols: spec.cols }, internal, grad });
        }
        let elements: usize = written.iter().map(|w| w.buffers() * w.slice.cols).sum();
        FusedSet { space, steps, written, rows: BLOCK_ELEMENTS / elements.max(1) / ROW_STEP * ROW_STEP }
    }

    /// Elements that its row buffers take at once.
    fn workspace(&self) -> usize {
        self.written.iter().map(|w| w.buffers() * slot_len(self.rows, w.slice.cols)).sum()
    }
}

impl Written {
    /// Row buffers: one, or two with that of the gradient.
    fn buffers(&self) -> usize {
        1 + usize::from(self.grad)
    }
}

/// Whether an operation works on the rows of sets one by one.
fn is_row_wise(program: &Program, op: &Op) -> bool {
    // Rows of different spaces do not match, nor do elements and their dimensions in dimension-equivariant programs.
    let same_rows = |slices: &mut dyn Iterator<Item = Slice>, norm: Option<Norm>| {
        let mut specs = slices.map(|s| s.value).chain(norm.map(|n| n.normalised)).map(|v| &program.values[v.0]);
        let space = specs.next().map(|s| (s.space, s.per_dim));
        matches!(space, Some((Space::Set(_), per_dim)) if per_dim == program.any_dim)
            && specs.all(|s| space == Some((s.space, s.per_dim)))
    };
    match op {
        Op::Linear(l) => l.maps.iter().all(|m| same_rows(&mut [m.x, m.y].into_iter().chain(m.residual), m.norm)),
        Op::AddNorm(a) => same_rows(&mut a.inputs.iter().copied().chain([a.y]), a.norm),
        _ => false,
    }
}

/// Whether an operation projects for the attention that follows it (see `projected_attention`).
fn feeds_attention(program: &Program, op: usize) -> bool {
    matches!((&program.ops[op], program.ops.get(op + 1)), (Op::Linear(_), Some(Op::Attention(_))))
}

impl<T: Real> Worker<T> {
    /// Calls `f` for every block of rows of a set, with row buffers for the values written.
    fn for_row_blocks(&mut self, set: &FusedSet, backward: bool, mut f: impl FnMut(&mut Self)) {
        let rows = self.rows_of(set.written[0].slice.value);
        for first in (0..rows).step_by(set.rows) {
            let block = first..rows.min(first + set.rows);
            self.row_buffers.clear();
            for w in set.written.iter().filter(|w| backward || w.internal) {
                self.row_buffers.add(w.slice, first, block.len(), backward && w.grad);
            }
            self.row_block = Some(block);
            f(self);
        }
        self.row_block = None;
        self.row_buffers.clear();
    }

    fn step_forward(&mut self, params: &[T], packed: &PackedWeights<T>, work: &Work) {
        match work {
            Work::Linear(l, plan) => self.linear_forward(params, packed, l, plan),
            Work::AddNorm(a) => self.add_norm_forward(params, a),
        }
    }

    pub(super) fn row_fusion_forward(&mut self, params: &[T], packed: &PackedWeights<T>, fusion: &RowFusion) {
        self.saves_norms = false;
        for set in &fusion.sets {
            self.for_row_blocks(set, false, |this| {
                for step in &set.steps {
                    let started = this.clock();
                    this.step_forward(params, packed, &step.work);
                    this.record(step.op, 0, started);
                }
            });
        }
        self.saves_norms = true;
    }

    pub(super) fn row_fusion_backward(&mut self, run: &mut Run<T>, fusion: &RowFusion) {
        let mut before = std::mem::take(&mut self.written_before);
        for set in &fusion.sets {
            before.copy_from_slice(&self.written);
            self.for_row_blocks(set, true, |this| {
                // Every block finds the gradients of its rows as the first block did.
                this.written.copy_from_slice(&before);
                for step in set.steps.iter().filter(|s| s.recompute) {
                    let started = this.clock();
                    this.step_forward(run.params, run.packed, &step.work);
                    this.record(step.op, 1, started);
                }
                for step in set.steps.iter().rev() {
                    let started = this.clock();
                    this.clear_gradients(step.op, Some(set.space));
                    match &step.work {
                        Work::Linear(l, plan) => this.linear_backward(run, l, plan),
                        Work::AddNorm(a) => this.add_norm_backward(run, a),
                    }
                    this.record(step.op, 1, started);
                }
            });
        }
        self.written_before = before;
    }
}
