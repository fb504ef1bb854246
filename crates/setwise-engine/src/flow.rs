//! How gradients flow through a program, whoever runs it.

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

/// The operations that read or write a value, in order.
pub(crate) fn users(program: &Program, v: Value) -> impl Iterator<Item = usize> + '_ {
    let uses = move |op: &Op| {
        let uses = op.uses();
        uses.reads.contains(&v) || uses.writes.contains(&v)
    };
    program.ops.iter().enumerate().filter(move |(_, op)| uses(op)).map(|(i, _)| i)
}

/// Operations that are the first to add to a gradient but touch only some of its columns need it zeroed.
pub(crate) fn gradients_to_clear(program: &Program) -> Vec<Vec<Value>> {
    let mut seen = vec![false; program.values.len()];
    program.outputs.iter().for_each(|v| seen[v.0] = true);
    let mut clear = vec![Vec::new(); program.ops.len()];
    for (i, op) in program.ops.iter().enumerate().rev() {
        let mut slices: Vec<Slice> = Vec::new();
        let mut whole: Vec<Value> = Vec::new();
        match op {
            Op::Linear(l) => {
                // Residuals are added before inputs, so where a value is both, the residuals alone must cover it.
                slices.extend(l.maps.iter().filter_map(|m| m.residual));
                let first = slices.clone();
                let later = l.maps.iter().map(|m| m.x);
                slices.extend(later.filter(|x| first.iter().all(|s| s.value != x.value)));
            }
            Op::Attention(a) => slices.extend(a.relations.iter().flat_map(|r| [r.query, r.key, r.value])),
            Op::AddNorm(a) => slices.extend(&a.inputs),
            Op::Pairs(p) => slices.extend(p.nets.iter().flat_map(|n| [n.own, n.partner])),
            Op::Dropout(d) => slices.push(d.x),
            Op::Pool(p) => whole.push(p.x),
            Op::ToUnion(t) => whole.extend(&t.sets),
            Op::FromUnion(f) => whole.push(f.x),
            Op::Concat(c) => whole.extend(&c.inputs),
            Op::PineSum(p) => whole.push(p.x),
            Op::Convolution(c) => whole.extend(&c.xs),
            Op::BatchNorm(b) => whole.extend(&b.xs),
            Op::MaxPool(p) => whole.extend(&p.xs),
            Op::Repeat(_) => {}
        }
        for v in slices.iter().map(|s| s.value).chain(whole.iter().copied()) {
            if seen[v.0] || !program.values[v.0].grad {
                continue;
            }
            seen[v.0] = true;
            let mut covered = vec![whole.contains(&v); program.values[v.0].cols];
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
