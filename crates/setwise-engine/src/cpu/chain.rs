//! Operations on rows that follow each other, taken through a few rows at a time.
//!
//! What lies between two attentions of a block (projection, residual and norm, feed-forward network, merging) concerns one row at a time. Run operation by operation,
//! each reads what the one before has written from a cache too small for it, and the way back reads all of it again. Here a stretch of rows goes through all of them while what it becomes is in cache,
//! and only what others read is written. The way back makes it again from what the stretch began with.

use std::ops::Range;

use super::linear::LinearPlan;
use super::local::place_size;
use super::panels::Panels;
use super::worker::{Run, Worker};
use crate::flow::Users;
use crate::program::{Activation, AddNorm, Linear, Norm, Op, Program, Slice, Space, Value};
use crate::real::Real;

/// Numbers that a stretch's values and gradients may have.
const STRETCH: usize = 1 << 18;
/// Rows of a stretch are a multiple of this: enough that reading weights for them pays, and whole steps of what multiplies.
const ROW_STEP: usize = 96;

/// Operations that run together.
pub struct Chain {
    /// Which.
    pub ops: Range<usize>,
    parts: Vec<Part>,
}

/// What a chain does to the rows of one set.
struct Part {
    space: Space,
    steps: Vec<Step>,
    written: Vec<Written>,
    /// Rows of a stretch.
    rows: usize,
}

/// What an operation does to the rows of one set.
struct Step {
    op: usize,
    work: Work,
    /// Whether the way back needs what it makes.
    again: bool,
}

enum Work {
    Linear(Linear, LinearPlan),
    AddNorm(AddNorm),
}

/// A value that a chain writes. One that nobody else reads is inner: it and its gradient exist for a stretch at a time only. What others read has its own place, but on the way
/// back, where that may be taken, it is made again beside it.
struct Written {
    whole: Slice,
    inner: bool,
    /// Whether its gradient has a place here too.
    grad: bool,
}

impl Chain {
    /// The longest chain that begins with operation `first`, if there is one.
    pub fn find(program: &Program, users: &Users, first: usize) -> Option<Self> {
        let mut last = first;
        while last < program.ops.len() && on_rows(program, &program.ops[last]) && !feeds_attention(program, last) {
            last += 1;
        }
        let ops = first..last;
        // A value that others write in part would lack their part when it is made again.
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
        let parts: Vec<Part> = spaces.iter().map(|&s| Part::of(program, users, &ops, s)).collect();
        parts.iter().all(|p| p.rows > 0).then_some(Chain { ops, parts })
    }

    /// Numbers that its local values take at once.
    pub fn room(&self) -> usize {
        self.parts.iter().map(Part::room).max().unwrap_or(0)
    }

    /// The values that nobody else reads.
    pub fn inner(&self) -> impl Iterator<Item = Value> + '_ {
        self.parts.iter().flat_map(|p| &p.written).filter(|w| w.inner).map(|w| w.whole.value)
    }

    /// The values of others that it reads.
    pub fn inputs(&self, program: &Program) -> Vec<Value> {
        let uses: Vec<_> = self.ops.clone().map(|i| program.ops[i].uses()).collect();
        let written: Vec<Value> = uses.iter().flat_map(|u| u.writes.iter().copied()).collect();
        uses.iter().flat_map(|u| u.reads.iter().copied()).filter(|v| !written.contains(v)).collect()
    }
}

impl Part {
    fn of(program: &Program, users: &Users, ops: &Range<usize>, space: Space) -> Self {
        let here = |v: Value| program.values[v.0].space == space;
        let read: Vec<Value> = ops.clone().flat_map(|i| program.ops[i].uses().reads).collect();
        let mut steps = Vec::new();
        for op in ops.clone() {
            match &program.ops[op] {
                Op::Linear(l) => {
                    let maps: Vec<_> = l.maps.iter().filter(|m| here(m.y.value)).cloned().collect();
                    let again = l.activation != Activation::None
                        || maps.iter().any(|m| m.norm.is_some() || read.contains(&m.y.value));
                    if !maps.is_empty() {
                        let linear = Linear { maps, activation: l.activation };
                        let plan = LinearPlan::new(program, &linear);
                        steps.push(Step { op, work: Work::Linear(linear, plan), again });
                    }
                }
                Op::AddNorm(a) if here(a.y.value) => {
                    let again = a.norm.is_some() || read.contains(&a.y.value);
                    steps.push(Step { op, work: Work::AddNorm(a.clone()), again });
                }
                _ => {}
            }
        }
        let mut written: Vec<Written> = Vec::new();
        for v in ops.clone().flat_map(|i| program.ops[i].uses().writes).filter(|&v| here(v)) {
            if written.iter().any(|w| w.whole.value == v) {
                continue;
            }
            let inner = users.of_value(v).iter().all(|i| ops.contains(i)) && !program.outputs.contains(&v);
            let spec = &program.values[v.0];
            let grad = inner && spec.grad && program.training();
            written.push(Written { whole: Slice { value: v, col: 0, cols: spec.cols }, inner, grad });
        }
        let numbers: usize = written.iter().map(|w| w.places() * w.whole.cols).sum();
        Part { space, steps, written, rows: STRETCH / numbers.max(1) / ROW_STEP * ROW_STEP }
    }

    /// Numbers that its local values take at once.
    fn room(&self) -> usize {
        self.written.iter().map(|w| w.places() * place_size(self.rows, w.whole.cols)).sum()
    }
}

impl Written {
    /// One, or two with its gradient's.
    fn places(&self) -> usize {
        1 + usize::from(self.grad)
    }
}

/// Whether an operation works on rows of sets one by one.
fn on_rows(program: &Program, op: &Op) -> bool {
    // Rows of different spaces are other rows; in dimension-equivariant programs so are elements and their dimensions.
    let alike = |slices: &mut dyn Iterator<Item = Slice>, norm: Option<Norm>| {
        let mut specs = slices.map(|s| s.value).chain(norm.map(|n| n.normalised)).map(|v| &program.values[v.0]);
        let space = specs.next().map(|s| (s.space, s.per_dim));
        matches!(space, Some((Space::Set(_), per_dim)) if per_dim == program.any_dim)
            && specs.all(|s| space == Some((s.space, s.per_dim)))
    };
    match op {
        Op::Linear(l) => l.maps.iter().all(|m| alike(&mut [m.x, m.y].into_iter().chain(m.residual), m.norm)),
        Op::AddNorm(a) => alike(&mut a.inputs.iter().copied().chain([a.y]), a.norm),
        _ => false,
    }
}

/// Whether an operation makes what an attention right behind it reads.
fn feeds_attention(program: &Program, op: usize) -> bool {
    matches!((&program.ops[op], program.ops.get(op + 1)), (Op::Linear(_), Some(Op::Attention(_))))
}

impl<T: Real> Worker<T> {
    /// Calls `f` for every stretch of a part, with places for its local values.
    fn stretches(&mut self, part: &Part, back: bool, mut f: impl FnMut(&mut Self)) {
        let rows = self.rows_of(part.written[0].whole.value);
        for first in (0..rows).step_by(part.rows) {
            let stretch = first..rows.min(first + part.rows);
            self.local.clear();
            for w in part.written.iter().filter(|w| back || w.inner) {
                self.local.place(w.whole, first, stretch.len(), back && w.grad);
            }
            self.stretch = Some(stretch);
            f(self);
        }
        self.stretch = None;
        self.local.clear();
    }

    fn step_forward(&mut self, params: &[T], panels: &Panels<T>, work: &Work) {
        match work {
            Work::Linear(l, plan) => self.linear_forward(params, panels, l, plan),
            Work::AddNorm(a) => self.add_norm_forward(params, a),
        }
    }

    pub(super) fn chain_forward(&mut self, params: &[T], panels: &Panels<T>, chain: &Chain) {
        self.keeps_norms = false;
        for part in &chain.parts {
            self.stretches(part, false, |this| {
                for step in &part.steps {
                    let begin = this.clock();
                    this.step_forward(params, panels, &step.work);
                    this.record(step.op, 0, begin);
                }
            });
        }
        self.keeps_norms = true;
    }

    pub(super) fn chain_backward(&mut self, run: &mut Run<T>, chain: &Chain) {
        let mut before = std::mem::take(&mut self.written_before);
        for part in &chain.parts {
            before.copy_from_slice(&self.written);
            self.stretches(part, true, |this| {
                // Every stretch finds the gradients of its rows as the first one did.
                this.written.copy_from_slice(&before);
                for step in part.steps.iter().filter(|s| s.again) {
                    let begin = this.clock();
                    this.step_forward(run.params, run.panels, &step.work);
                    this.record(step.op, 1, begin);
                }
                for step in part.steps.iter().rev() {
                    let begin = this.clock();
                    this.clear_gradients(step.op, Some(part.space));
                    match &step.work {
                        Work::Linear(l, plan) => this.linear_backward(run, l, plan),
                        Work::AddNorm(a) => this.add_norm_backward(run, a),
                    }
                    this.record(step.op, 1, begin);
                }
            });
        }
        self.written_before = before;
    }
}
