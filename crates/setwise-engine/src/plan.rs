//! Plans the offset of every buffer of a step in the arena.
//!
//! Time runs over a step: operation `i` of `n` runs at time `i` forward and at `2n − 1 − i` backward. A value lives
//! from the operation that writes it to the last one that reads it. A gradient lives from the first backward operation
//! that adds to it to the one that consumes it. Buffers whose lifetimes overlap get disjoint memory; others may share
//! it.

use std::ops::Range;

use crate::error::Error;
#[cfg(any(feature = "cuda", test))]
use crate::grad_alias::GradAliases;
#[cfg(feature = "cuda")]
use crate::program::Op;
use crate::program::{Mode, Program, Space, Value};

/// Elements between the starts of buffers: one cache line of `f32`.
const ALIGN: usize = 16;

/// Offset of a buffer that does not exist.
pub(crate) const NONE: usize = usize::MAX;

/// Row counts and offsets of a bound batch.
#[derive(Default, Debug)]
pub struct Shape {
    /// Examples.
    pub examples: usize,
    /// Width of the input rows in dimension-equivariant programs, one otherwise.
    pub dims: usize,
    /// `set_offsets[k]` are the offsets of set `k`.
    pub set_offsets: Vec<Vec<usize>>,
    /// Offsets of the union of all sets.
    pub union_offsets: Vec<usize>,
}

impl Shape {
    /// Rows of a space.
    pub fn rows(&self, space: Space) -> usize {
        match space {
            Space::Set(k) => self.set_offsets[k][self.examples],
            Space::Union => self.union_offsets[self.examples],
            Space::PerExample(n) => n * self.examples,
            Space::Batch => 1,
        }
    }

    /// The rows of one example in a space.
    #[inline]
    pub fn range(&self, space: Space, example: usize) -> std::ops::Range<usize> {
        match space {
            Space::Set(k) => self.set_offsets[k][example]..self.set_offsets[k][example + 1],
            Space::Union => self.union_offsets[example]..self.union_offsets[example + 1],
            Space::PerExample(n) => n * example..n * (example + 1),
            Space::Batch => 0..1,
        }
    }
}

/// Lifetimes of all buffers, independent of batch shapes.
pub(crate) struct Lifetimes {
    /// (first, last) time of value `v` at `v`, of its gradient at `values + v`; empty if `first > last`.
    spans: Vec<(usize, usize)>,
    /// The buffer whose memory each buffer uses: its own, or that of an alias.
    alias_of: Vec<usize>,
}

impl Lifetimes {
    /// For operations that run one after another.
    #[cfg(test)]
    pub fn of(program: &Program) -> Self {
        Self::in_groups(program, (0..program.ops.len()).map(|i| i..i + 1))
    }

    /// For groups of neighbouring operations that run fused: a buffer that one of them uses lives while the group
    /// runs.
    pub fn in_groups(program: &Program, groups: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut group_of = vec![0..0; program.ops.len()];
        for group in groups {
            group_of[group.clone()].fill(group);
        }
        let n = program.ops.len();
        let values = program.values.len();
        let end = 2 * n;
        let mut spans = vec![(usize::MAX, 0); 2 * values];
        let touch = |spans: &mut Vec<(usize, usize)>, i: usize, t: usize| {
            spans[i].0 = spans[i].0.min(t);
            spans[i].1 = spans[i].1.max(t);
        };
        for v in &program.inputs {
            touch(&mut spans, v.0, 0);
        }
        for (i, op) in program.ops.iter().enumerate() {
            let uses = op.uses();
            for i in [group_of[i].start, group_of[i].end - 1] {
                for v in uses.reads.iter().chain(&uses.writes) {
                    touch(&mut spans, v.0, i);
                }
                if program.mode == Mode::Train {
                    let back = 2 * n - 1 - i;
                    for v in &uses.saved {
                        touch(&mut spans, v.0, back);
                    }
                    for v in uses.reads.iter().chain(&uses.writes) {
                        if program.values[v.0].grad {
                            touch(&mut spans, values + v.0, back);
                        }
                    }
                }
            }
        }
        for v in &program.outputs {
            touch(&mut spans, v.0, end);
            if program.mode == Mode::Train {
                touch(&mut spans, values + v.0, n);
            }
        }
        if program.mode == Mode::Train {
            for v in program.inputs.iter().filter(|v| program.values[v.0].grad) {
                touch(&mut spans, values + v.0, end);
            }
        }
        let alias_of = (0..spans.len()).collect();
        Lifetimes { spans, alias_of }
    }

    /// Extends the lifetime of a value that a fused group reads again in its backward pass.
    pub fn read_again(&mut self, program: &Program, group: &Range<usize>, v: Value) {
        if program.mode == Mode::Train {
            self.spans[v.0].1 = self.spans[v.0].1.max(2 * program.ops.len() - 1 - group.start);
        }
    }

    /// Removes a value and its gradient, which lie outside of the arena.
    pub fn exclude(&mut self, program: &Program, v: Value) {
        for i in [v.0, program.values.len() + v.0] {
            self.spans[i] = (usize::MAX, 0);
        }
    }

    /// Extends the lifetimes of linear maps' inputs and output gradients to the end, where all weight gradients are
    /// computed together.
    #[cfg(feature = "cuda")]
    pub fn keep_for_weights(&mut self, program: &Program) {
        let (end, values) = (2 * program.ops.len() - 1, program.values.len());
        for op in &program.ops {
            let Op::Linear(l) = op else { continue };
            for i in l.maps.iter().flat_map(|m| [m.x.value.0, values + m.y.value.0]) {
                self.spans[i].1 = self.spans[i].1.max(end);
            }
        }
    }

    /// Merges the lifetimes of aliased gradients, and extends those of deferred residuals.
    #[cfg(any(feature = "cuda", test))]
    pub fn alias_gradients(&mut self, program: &Program, grad_aliases: &GradAliases) {
        let (n, values) = (program.ops.len(), program.values.len());
        for l in &grad_aliases.deferred {
            let last = &mut self.spans[values + l.y.value.0].1;
            *last = (*last).max(2 * n - 1 - l.to);
        }
        // In order of time: an alias of an alias finds the root.
        for &(from, to) in &grad_aliases.aliases {
            self.alias_of[values + to.0] = self.alias_of[values + from.0];
        }
        for i in 0..self.spans.len() {
            let (root, (first, last)) = (self.alias_of[i], self.spans[i]);
            self.spans[root] = (self.spans[root].0.min(first), self.spans[root].1.max(last));
        }
    }
}

/// Row counts the buffers are allocated for. They only grow, so that offsets settle after a few batches of varying
/// sizes.
#[derive(Default)]
struct Capacity {
    examples: usize,
    dims: usize,
    sets: Vec<usize>,
    union: usize,
}

impl Capacity {
    /// Grows to hold `shape`; returns whether it had to.
    fn grow(&mut self, shape: &Shape) -> bool {
        let mut grown = false;
        let mut at_least = |have: &mut usize, want: usize| {
            grown |= want > *have;
            *have = want.max(*have);
        };
        self.sets.resize(shape.set_offsets.len(), 0);
        for (k, have) in self.sets.iter_mut().enumerate() {
            at_least(have, shape.rows(Space::Set(k)));
        }
        at_least(&mut self.examples, shape.examples);
        at_least(&mut self.dims, shape.dims);
        at_least(&mut self.union, shape.rows(Space::Union));
        grown
    }

    fn rows(&self, space: Space) -> usize {
        match space {
            Space::Set(k) => self.sets[k],
            Space::Union => self.union,
            Space::PerExample(n) => n * self.examples,
            Space::Batch => 1,
        }
    }
}

/// Offsets of all buffers.
#[derive(Default)]
pub(crate) struct Plan {
    /// Offset of value `v` at `v`, of its gradient at `values + v`; [`NONE`] if it does not exist.
    pub offsets: Vec<usize>,
    /// Length of each for the bound batch.
    pub lens: Vec<usize>,
    /// Length of the arena.
    pub total: usize,
    capacity: Capacity,
    sizes: Vec<usize>,
    order: Vec<usize>,
    placed: Vec<usize>,
}

impl Plan {
    /// Computes lengths for a batch, and new offsets if the capacity is too small for it.
    pub fn make(&mut self, program: &Program, lifetimes: &Lifetimes, shape: &Shape) -> Result<(), Error> {
        let values = program.values.len();
        let alive = |i: usize| lifetimes.spans[i].0 <= lifetimes.spans[i].1;
        let len = |i: usize, rows: usize, dims: usize| {
            let spec = &program.values[i % values];
            let dims = if spec.per_dim { dims } else { 1 };
            let len = rows.checked_mul(dims).and_then(|r| r.checked_mul(spec.cols));
            len.map(|n| if alive(i) { n } else { 0 }).ok_or(Error::TooLarge { bytes: u64::MAX })
        };
        self.lens.clear();
        for i in 0..2 * values {
            self.lens.push(len(i, shape.rows(program.values[i % values].space), shape.dims)?);
        }
        if self.capacity.grow(shape) {
            self.sizes.clear();
            for i in 0..2 * values {
                let size = len(i, self.capacity.rows(program.values[i % values].space), self.capacity.dims)?;
                self.sizes.push(size.checked_next_multiple_of(ALIGN).ok_or(Error::TooLarge { bytes: u64::MAX })?);
            }
            self.assign_offsets(lifetimes)?;
        }
        Ok(())
    }

    /// Assigns offsets, largest buffer first, each at the lowest offset that is free for its full lifetime.
    fn assign_offsets(&mut self, lifetimes: &Lifetimes) -> Result<(), Error> {
        let sizes = &self.sizes;
        self.offsets.clear();
        self.offsets.resize(sizes.len(), NONE);
        self.order.clear();
        self.order.extend((0..sizes.len()).filter(|&i| sizes[i] > 0 && lifetimes.alias_of[i] == i));
        self.order.sort_unstable_by_key(|&i| (usize::MAX - sizes[i], i));
        self.placed.clear();
        self.total = 0;
        for &i in &self.order {
            let (first, last) = lifetimes.spans[i];
            let mut at = 0usize;
            // `placed` is sorted by offset, so one pass finds the lowest gap.
            for &j in &self.placed {
                let (f, l) = lifetimes.spans[j];
                if f > last || l < first {
                    continue;
                }
                if at + sizes[i] <= self.offsets[j] {
                    break;
                }
                at = at.max(self.offsets[j] + sizes[j]);
            }
            self.offsets[i] = at;
            self.total = self.total.max(at.checked_add(sizes[i]).ok_or(Error::TooLarge { bytes: u64::MAX })?);
            let offsets = &self.offsets;
            let pos = self.placed.partition_point(|&j| offsets[j] <= at);
            self.placed.insert(pos, i);
        }
        for (i, &root) in lifetimes.alias_of.iter().enumerate() {
            self.offsets[i] = self.offsets[root];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AddNorm, Op};

    #[test]
    fn buffers_with_overlapping_lifetimes_never_overlap() {
        let mut b = Program::builder(&[3], false, Mode::Train, true);
        let mut x = b.input(0);
        for cols in [3usize; 6] {
            let y = b.fresh(Space::Set(0), cols, false);
            let norm = b.norm(&format!("n{}", y.0), y, cols);
            b.op(Op::AddNorm(AddNorm { inputs: vec![b.full(x), b.full(x)], y: b.full(y), norm: Some(norm) }));
            x = y;
        }
        let program = b.finish(vec![x]);
        let lifetimes = Lifetimes::of(&program);
        let shape = Shape { examples: 2, dims: 1, set_offsets: vec![vec![0, 5, 9]], union_offsets: vec![0, 5, 9] };
        let mut plan = Plan::default();
        plan.make(&program, &lifetimes, &shape).unwrap();
        let n = plan.lens.len();
        let mut shared = false;
        for i in (0..n).filter(|&i| plan.lens[i] > 0) {
            for j in (0..i).filter(|&j| plan.lens[j] > 0) {
                let (a, b) = (lifetimes.spans[i], lifetimes.spans[j]);
                let together = a.0 <= b.1 && b.0 <= a.1;
                let apart = plan.offsets[i] + plan.lens[i] <= plan.offsets[j]
                    || plan.offsets[j] + plan.lens[j] <= plan.offsets[i];
                assert!(!together || apart, "buffers {i} and {j} overlap");
                shared |= !apart;
            }
        }
        assert!(shared, "nothing was reused");
    }

    #[test]
    fn buffers_of_fused_operations_never_overlap() {
        // Two independent sums, and two sums of their results: each pair runs fused.
        let mut b = Program::builder(&[3, 3], false, Mode::Train, true);
        let sum = |b: &mut crate::program::ProgramBuilder, x, space| {
            let y = b.fresh(space, 3, false);
            b.op(Op::AddNorm(AddNorm { inputs: vec![b.full(x)], y: b.full(y), norm: None }));
            y
        };
        let (x0, x1) = (b.input(0), b.input(1));
        let (a0, a1) = (sum(&mut b, x0, Space::Set(0)), sum(&mut b, x1, Space::Set(1)));
        let (b0, b1) = (sum(&mut b, a0, Space::Set(0)), sum(&mut b, a1, Space::Set(1)));
        let program = b.finish(vec![b0, b1]);
        let lifetimes = Lifetimes::in_groups(&program, [0..2, 2..4]);
        let offsets = vec![0, 7];
        let shape = Shape { examples: 1, dims: 1, set_offsets: vec![offsets.clone(); 2], union_offsets: vec![0, 14] };
        let mut plan = Plan::default();
        plan.make(&program, &lifetimes, &shape).unwrap();
        let values = program.values.len();
        // Backward, the group of b0 and b1 reads both their gradients while it writes those of a0 and a1.
        let touched = [b0, b1, a0, a1].map(|v| values + v.0);
        for (i, &p) in touched.iter().enumerate() {
            for &q in &touched[..i] {
                let apart = plan.offsets[p] + plan.lens[p] <= plan.offsets[q]
                    || plan.offsets[q] + plan.lens[q] <= plan.offsets[p];
                assert!(apart, "gradients {p} and {q} overlap");
            }
        }
    }

    #[test]
    fn an_alias_extends_the_lifetime_of_its_buffer() {
        let mut b = Program::builder(&[3], false, Mode::Train, true);
        let mut x = b.input(0);
        let mut all = vec![x];
        for _ in 0..3 {
            let (r, y) = (b.fresh(Space::Set(0), 3, false), b.fresh(Space::Set(0), 3, false));
            b.op(Op::AddNorm(AddNorm { inputs: vec![b.full(x), b.full(x)], y: b.full(r), norm: None }));
            b.op(Op::AddNorm(AddNorm { inputs: vec![b.full(x), b.full(r)], y: b.full(y), norm: None }));
            x = y;
            all.push(y);
        }
        let program = b.finish(vec![x]);
        let grad_aliases = crate::grad_alias::grad_aliases(&program, false, |_| false);
        assert_eq!(grad_aliases.aliases.len(), 3);
        let mut lifetimes = Lifetimes::of(&program);
        lifetimes.alias_gradients(&program, &grad_aliases);
        let shape = Shape { examples: 1, dims: 1, set_offsets: vec![vec![0, 5]], union_offsets: vec![0, 5] };
        let mut plan = Plan::default();
        plan.make(&program, &lifetimes, &shape).unwrap();
        let values = program.values.len();
        let offset = plan.offsets[values + all[0].0];
        assert!(all.iter().all(|v| plan.offsets[values + v.0] == offset));
        for i in (0..plan.lens.len()).filter(|&i| plan.lens[i] > 0 && !all.iter().any(|v| values + v.0 == i)) {
            let (a, b) = (lifetimes.spans[i], lifetimes.spans[values + all[3].0]);
            let together = a.0 <= b.1 && b.0 <= a.1;
            assert!(
                !together || plan.offsets[i] >= offset + 15 || plan.offsets[i] + plan.lens[i] <= offset,
                "buffer {i} overlaps the alias"
            );
        }
    }

    #[test]
    fn smaller_batches_keep_offsets_and_larger_ones_get_new_offsets() {
        let mut b = Program::builder(&[3], false, Mode::Train, true);
        let y = b.fresh(Space::Set(0), 3, false);
        b.op(Op::AddNorm(AddNorm { inputs: vec![b.full(b.input(0))], y: b.full(y), norm: None }));
        let program = b.finish(vec![y]);
        let lifetimes = Lifetimes::of(&program);
        let shape = |n| Shape { examples: 1, dims: 1, set_offsets: vec![vec![0, n]], union_offsets: vec![0, n] };
        let mut plan = Plan::default();
        plan.make(&program, &lifetimes, &shape(50)).unwrap();
        let before = plan.offsets.clone();
        plan.make(&program, &lifetimes, &shape(20)).unwrap();
        assert_eq!((plan.offsets.clone(), plan.lens[y.0]), (before.clone(), 60));
        plan.make(&program, &lifetimes, &shape(90)).unwrap();
        assert!(plan.offsets != before && plan.lens[y.0] == 270);
    }
}
