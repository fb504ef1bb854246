//! Where every buffer of a step lies in the arena.
//!
//! A step is a line of time: operation `i` of `n` runs at time `i` forward and at `2n − 1 − i` backward. A value lives from
//! the operation that writes it to the last one that reads it, its gradient from the first backward operation that adds to
//! it to the one that consumes it. Buffers whose lives overlap get disjoint places; the others may share.

use crate::error::Error;
use crate::program::{Mode, Program, Space};

/// Elements between the starts of buffers: one cache line of `f32`.
const ALIGN: usize = 16;

/// Absent gradient.
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
        }
    }

    /// The rows of one example in a space.
    #[inline]
    pub fn range(&self, space: Space, example: usize) -> std::ops::Range<usize> {
        match space {
            Space::Set(k) => self.set_offsets[k][example]..self.set_offsets[k][example + 1],
            Space::Union => self.union_offsets[example]..self.union_offsets[example + 1],
            Space::PerExample(n) => n * example..n * (example + 1),
        }
    }
}

/// Lives of all buffers; independent of batch shapes.
pub(crate) struct Lives {
    /// (first, last) time of value `v` at `v`, of its gradient at `values + v`; an empty life if `first > last`.
    spans: Vec<(usize, usize)>,
}

impl Lives {
    pub fn of(program: &Program) -> Self {
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
            for v in uses.reads.iter().chain(&uses.writes) {
                touch(&mut spans, v.0, i);
            }
            if program.mode == Mode::Train {
                let back = 2 * n - 1 - i;
                for v in &uses.kept {
                    touch(&mut spans, v.0, back);
                }
                for v in uses.reads.iter().chain(&uses.writes) {
                    if program.values[v.0].grad {
                        touch(&mut spans, values + v.0, back);
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
        Lives { spans }
    }
}

/// Places of all buffers for one batch shape.
#[derive(Default)]
pub(crate) struct Plan {
    /// Start of value `v` at `v`, of its gradient at `values + v`; [`NONE`] if it does not exist.
    pub offsets: Vec<usize>,
    /// Length of each.
    pub lens: Vec<usize>,
    /// Length of the arena.
    pub total: usize,
    order: Vec<usize>,
    placed: Vec<usize>,
}

impl Plan {
    /// Places all buffers, the largest first, each at the lowest place that is free for its whole life.
    pub fn make(&mut self, program: &Program, lives: &Lives, shape: &Shape) -> Result<(), Error> {
        let values = program.values.len();
        let too_large = || Error::TooLarge { bytes: u64::MAX };
        self.lens.clear();
        for i in 0..2 * values {
            let spec = &program.values[i % values];
            let rows = shape.rows(spec.space);
            let dims = if spec.per_dim { shape.dims } else { 1 };
            let len = rows.checked_mul(dims).and_then(|r| r.checked_mul(spec.cols)).ok_or_else(too_large)?;
            let alive = lives.spans[i].0 <= lives.spans[i].1;
            self.lens.push(if alive { len } else { 0 });
        }
        self.offsets.clear();
        self.offsets.resize(2 * values, NONE);
        self.order.clear();
        self.order.extend((0..2 * values).filter(|&i| self.lens[i] > 0));
        let lens = &self.lens;
        self.order.sort_unstable_by_key(|&i| (usize::MAX - lens[i], i));
        self.placed.clear();
        self.total = 0;
        for o in 0..self.order.len() {
            let i = self.order[o];
            let (first, last) = lives.spans[i];
            let size = self.lens[i].next_multiple_of(ALIGN);
            let mut at = 0usize;
            // `placed` is sorted by place, so one pass finds the lowest gap.
            for &j in &self.placed {
                let (f, l) = lives.spans[j];
                if f > last || l < first {
                    continue;
                }
                if at + size <= self.offsets[j] {
                    break;
                }
                at = at.max(self.offsets[j] + self.lens[j].next_multiple_of(ALIGN));
            }
            self.offsets[i] = at;
            self.total = self.total.max(at.checked_add(size).ok_or_else(too_large)?);
            let offsets = &self.offsets;
            let pos = self.placed.partition_point(|&j| offsets[j] <= at);
            self.placed.insert(pos, i);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AddNorm, Op};

    #[test]
    fn buffers_that_live_together_never_overlap() {
        let mut b = Program::builder(&[3], false, Mode::Train, true);
        let mut x = b.input(0);
        for cols in [3usize; 6] {
            let y = b.fresh(Space::Set(0), cols, false);
            let norm = b.norm(&format!("n{}", y.0), y, cols);
            b.op(Op::AddNorm(AddNorm { inputs: vec![b.whole(x), b.whole(x)], y: b.whole(y), norm: Some(norm) }));
            x = y;
        }
        let program = b.finish(vec![x]);
        let lives = Lives::of(&program);
        let shape = Shape { examples: 2, dims: 1, set_offsets: vec![vec![0, 5, 9]], union_offsets: vec![0, 5, 9] };
        let mut plan = Plan::default();
        plan.make(&program, &lives, &shape).unwrap();
        let n = plan.lens.len();
        let mut shared = false;
        for i in (0..n).filter(|&i| plan.lens[i] > 0) {
            for j in (0..i).filter(|&j| plan.lens[j] > 0) {
                let (a, b) = (lives.spans[i], lives.spans[j]);
                let together = a.0 <= b.1 && b.0 <= a.1;
                let apart = plan.offsets[i] + plan.lens[i] <= plan.offsets[j]
                    || plan.offsets[j] + plan.lens[j] <= plan.offsets[i];
                assert!(!together || apart, "buffers {i} and {j} overlap");
                shared |= !apart;
            }
        }
        assert!(shared, "nothing was reused");
    }
}
