//! Data flow of a program, independent of the backend.

use std::ops::Range;

use crate::program::{Activation, Op, Program, Slice, Value};

/// Collects indices by key, in order of first appearance.
pub(crate) fn group_by<K: PartialEq>(keys: impl Iterator<Item = K>) -> Vec<(K, Vec<usize>)> {
    let mut groups: Vec<(K, Vec<usize>)> = Vec::new();
    for (i, key) in keys.enumerate() {
        match groups.iter_mut().find(|g| g.0 == key) {
            Some(g) => g.1.push(i),
            None => groups.push((key, vec![i])),
        }
    }
    groups
}

/// Readers and writers of each value, by operation, in order.
pub(crate) struct Users {
    pub readers: Vec<Vec<usize>>,
    pub writers: Vec<Vec<usize>>,
}

impl Users {
    pub fn of(program: &Program) -> Self {
        let none = vec![Vec::new(); program.values.len()];
        let mut users = Users { readers: none.clone(), writers: none };
        for (i, op) in program.ops.iter().enumerate() {
            let uses = op.uses();
            uses.reads.iter().for_each(|v| users.readers[v.0].push(i));
            uses.writes.iter().for_each(|v| users.writers[v.0].push(i));
        }
        users
    }

    /// The operations that read or write a value, in order.
    pub fn of_value(&self, v: Value) -> Vec<usize> {
        let mut all = [&self.readers[v.0][..], &self.writers[v.0]].concat();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether operations outside of `ops` write a value, perhaps in part.
    pub fn written_elsewhere(&self, v: Value, ops: &Range<usize>) -> bool {
        self.writers[v.0].iter().any(|i| !ops.contains(i))
    }

    /// Whether the gradient of a value holds a contribution before the backward pass reaches operations below `from`:
    /// from a reader at or above `from`, or from the loss.
    #[cfg(any(feature = "cuda", test))]
    pub fn grad_started(&self, program: &Program, v: Value, from: usize) -> bool {
        program.outputs.contains(&v) || self.readers[v.0].iter().any(|&r| r >= from)
    }
}

/// For each operation the gradients to clear before it: it is the first to add to them, but only to some columns.
pub(crate) fn gradients_to_clear(program: &Program) -> Vec<Vec<Value>> {
    let mut seen = vec![false; program.values.len()];
    program.outputs.iter().for_each(|v| seen[v.0] = true);
    let mut clear = vec![Vec::new(); program.ops.len()];
    for (i, op) in program.ops.iter().enumerate().rev() {
        let mut slices: Vec<Slice> = Vec::new();
        let mut full: Vec<Value> = Vec::new();
        match op {
            Op::Linear(l) => {
                // Residuals are added before inputs, so where a value is both, the residuals must cover all its
                // columns.
                slices.extend(l.maps.iter().filter_map(|m| m.residual));
                let first = slices.clone();
                let later = l.maps.iter().map(|m| m.x);
                slices.extend(later.filter(|x| first.iter().all(|s| s.value != x.value)));
            }
            Op::Attention(a) => slices.extend(a.relations.iter().flat_map(|r| [r.query, r.key, r.value])),
            Op::AddNorm(a) => slices.extend(&a.inputs),
            Op::Pairs(p) => slices.extend(p.nets.iter().flat_map(|n| [n.left, n.right])),
            Op::Dropout(d) => slices.push(d.x),
            Op::Pool(p) => full.push(p.x),
            Op::ToUnion(t) => full.extend(&t.sets),
            Op::FromUnion(f) => full.push(f.x),
            Op::Concat(c) => full.extend(&c.inputs),
            Op::PineSum(p) => full.push(p.x),
            Op::Convolution(c) => full.extend(&c.xs),
            Op::BatchNorm(b) => full.extend(&b.xs),
            Op::MaxPool(p) => full.extend(&p.xs),
            Op::Repeat(_) => {}
        }
        for v in slices.iter().map(|s| s.value).chain(full.iter().copied()) {
            if seen[v.0] || !program.values[v.0].grad {
                continue;
            }
            seen[v.0] = true;
            let mut covered = vec![full.contains(&v); program.values[v.0].cols];
            for s in slices.iter().filter(|s| s.value == v) {
                covered[s.col..s.col + s.cols].fill(true);
            }
            if covered.contains(&false) {
                clear[i].push(v);
            }
        }
    }
    clear
}

/// Values written by ReLU layers only and read as the input of exactly one linear operation.
pub(crate) fn gated_values(program: &Program) -> Vec<bool> {
    let mut readers = vec![0; program.values.len()];
    let mut gated = vec![false; program.values.len()];
    program.outputs.iter().for_each(|v| readers[v.0] += 2);
    for op in &program.ops {
        let uses = op.uses();
        let mut read = uses.reads;
        read.sort_unstable();
        read.dedup();
        for v in read {
            let as_input =
                matches!(op, Op::Linear(l) if l.maps.iter().all(|m| m.residual.is_none_or(|r| r.value != v)));
            readers[v.0] += if as_input { 1 } else { 2 };
        }
        for v in uses.writes {
            gated[v.0] = matches!(op, Op::Linear(l) if l.activation == Activation::Relu);
        }
    }
    gated.iter().zip(readers).map(|(&g, n)| g && n == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AddNorm, Mode, Space};

    #[test]
    fn readers_writers_and_started_gradients_are_found() {
        let mut b = Program::builder(&[4], false, Mode::Train, true);
        let (x, y, z) = (b.input(0), b.fresh(Space::Set(0), 4, false), b.fresh(Space::Set(0), 4, false));
        for (inputs, sum) in [(vec![x], y), (vec![x, y], z)] {
            let inputs = inputs.into_iter().map(|v| b.full(v)).collect();
            b.op(Op::AddNorm(AddNorm { inputs, y: b.full(sum), norm: None }));
        }
        let program = b.finish(vec![z]);
        let users = Users::of(&program);
        assert_eq!([x, y, z].map(|v| users.readers[v.0].clone()), [vec![0, 1], vec![1], vec![]]);
        assert_eq!([x, y, z].map(|v| users.writers[v.0].clone()), [vec![], vec![0], vec![1]]);
        assert_eq!([x, y, z].map(|v| users.of_value(v)), [vec![0, 1], vec![0, 1], vec![1]]);
        assert_eq!([x, y, z].map(|v| users.written_elsewhere(v, &(0..1))), [false, false, true]);
        assert_eq!([x, y, z].map(|v| users.grad_started(&program, v, 1)), [true, true, true]);
        assert_eq!([x, y, z].map(|v| users.grad_started(&program, v, 2)), [false, false, true]);
    }
}
