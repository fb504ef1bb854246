//! How gradients of sums reach their terms without additions: aliased buffers and deferred residuals.

use crate::flow::{Users, group_by};
use crate::program::{Mode, Op, Program, Slice, Value};

/// Aliases and deferred residuals of a program.
#[derive(Default)]
pub(crate) struct GradAliases {
    /// (sum, term): the gradient of the term reuses the buffer of the sum's gradient, which has no later reader.
    pub aliases: Vec<(Value, Value)>,
    /// Residuals whose gradient is added later.
    pub deferred: Vec<DeferredResidual>,
    /// Whether output gradients of linear maps stay alive to the end, where weight gradients are computed.
    pub keeps_output_grads: bool,
}

/// A residual whose gradient is added by operation `to`, a linear map that adds its input gradient to the same columns.
/// The gradient of `y` stays alive until then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeferredResidual {
    pub residual: Slice,
    pub y: Slice,
    pub from: usize,
    pub to: usize,
}

/// Residuals that a product can add besides accumulating.
const MAX_DEFERRED: usize = 2;

/// Finds aliases and deferred residuals. Operations inside row kernels are skipped: their kernels add in registers.
pub(crate) fn grad_aliases(
    program: &Program,
    keeps_output_grads: bool,
    in_row_kernel: impl Fn(usize) -> bool,
) -> GradAliases {
    let mut found = GradAliases { keeps_output_grads, ..GradAliases::default() };
    if program.mode != Mode::Train {
        return found;
    }
    let users = Users::of(program);
    // Whether a gradient has been added to before operation i runs backward.
    let grad_started = |v: Value, i: usize| users.grad_started(program, v, i + 1);
    for (i, op) in program.ops.iter().enumerate().rev().filter(|(i, _)| !in_row_kernel(*i)) {
        let (terms, written, inputs): (Vec<(Slice, Slice)>, Vec<Slice>, Vec<Value>) = match op {
            Op::AddNorm(a) => (a.inputs.iter().map(|&s| (s, a.y)).collect(), vec![a.y], Vec::new()),
            Op::Linear(l) => (
                l.maps.iter().filter_map(|m| m.residual.map(|r| (r, m.y))).collect(),
                l.maps.iter().map(|m| m.y).collect(),
                l.maps.iter().map(|m| m.x.value).collect(),
            ),
            _ => continue,
        };
        for (y, members) in group_by(written.iter().map(|s| s.value)) {
            let spec = &program.values[y.0];
            let covers_value = members.iter().map(|&m| written[m].cols).sum::<usize>() == spec.cols;
            let can_alias = |v: Value| {
                let of_value: Vec<_> = terms.iter().filter(|t| t.0.value == v).collect();
                let other = &program.values[v.0];
                let same_shape = other.space == spec.space && other.per_dim == spec.per_dim && other.cols == spec.cols;
                let in_place = |t: &&(Slice, Slice)| t.1.value == y && (t.0.col, t.0.cols) == (t.1.col, t.1.cols);
                same_shape
                    && other.grad
                    && of_value.len() == members.len()
                    && of_value.iter().all(in_place)
                    && !grad_started(v, i)
                    && !inputs.contains(&v)
            };
            if covers_value && spec.grad && !(keeps_output_grads && matches!(op, Op::Linear(_))) {
                found.aliases.extend(terms.iter().map(|t| t.0.value).find(|&v| can_alias(v)).map(|v| (y, v)));
            }
        }
        for &(residual, y) in &terms {
            let v = residual.value;
            let aliased = found.aliases.iter().any(|o| o.0 == y.value || *o == (y.value, v));
            let to = users.readers[v.0].iter().copied().filter(|&r| r < i).max();
            let Some(to) = to.filter(|&to| {
                !in_row_kernel(to) && !aliased && grad_started(v, i) && program.values[v.0].grad && !inputs.contains(&v)
            }) else {
                continue;
            };
            let Op::Linear(l) = &program.ops[to] else { continue };
            let alone = terms.iter().all(|t| t.0.value != v || t.0 == residual);
            let adds = l.maps.iter().any(|m| m.x == residual)
                && l.maps.iter().all(|m| m.residual.is_none_or(|r| r.value != v));
            let count = |o: &&(Slice, Slice)| o.0 == residual;
            let deferred_before =
                found.deferred.iter().filter(|o| o.to == to && o.residual == residual && o.from != i).count();
            if matches!(op, Op::Linear(_))
                && alone
                && adds
                && deferred_before + terms.iter().filter(count).count() <= MAX_DEFERRED
            {
                found.deferred.push(DeferredResidual { residual, y, from: i, to });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Activation, AddNorm, Linear, Map, Space};

    #[test]
    fn residual_gradients_are_aliased_or_deferred_to_the_next_product() {
        let mut b = Program::builder(&[4], false, Mode::Train, true);
        let linear =
            |b: &mut crate::program::ProgramBuilder, name: &str, x: Slice, ys: &[Slice], residual: Option<Slice>| {
                let maps =
                    ys.iter().enumerate().map(|(i, &y)| Map { residual, ..b.map(&format!("{name}{i}"), x, y, true) });
                let maps = maps.collect();
                b.op(Op::Linear(Linear { maps, activation: Activation::None }));
            };
        let x = b.input(0);
        let (p, q, r, z) = (
            b.fresh(Space::Set(0), 4, false),
            b.fresh(Space::Set(0), 8, false),
            b.fresh(Space::Set(0), 4, false),
            b.fresh(Space::Set(0), 4, false),
        );
        let slices = [x, p, q, r].map(|v| b.full(v));
        let columns = [0, 4].map(|col| Slice { value: q, col, cols: 4 });
        linear(&mut b, "p", slices[0], &[slices[1]], None);
        // Both column ranges of q have x added to them, r has not, and z is a sum of x and r.
        linear(&mut b, "q", slices[1], &columns, Some(slices[0]));
        linear(&mut b, "r", slices[2], &[slices[3]], None);
        let y = b.full(z);
        b.op(Op::AddNorm(AddNorm { inputs: vec![slices[0], slices[3]], y, norm: None }));
        let program = b.finish(vec![z]);
        let found = grad_aliases(&program, false, |_| false);
        assert_eq!(found.aliases, [(z, x)]);
        let deferred = columns.map(|y| DeferredResidual { residual: slices[0], y, from: 1, to: 0 });
        assert_eq!(found.deferred, deferred);
    }

    #[test]
    fn output_gradients_that_are_kept_are_never_aliased() {
        let mut b = Program::builder(&[4], false, Mode::Train, true);
        let (x, h, y) = (b.input(0), b.fresh(Space::Set(0), 4, false), b.fresh(Space::Set(0), 4, false));
        for (name, from, to, residual) in [("h", x, h, None), ("y", h, y, Some(x))] {
            let residual = residual.map(|v| b.full(v));
            let (from, to) = (b.full(from), b.full(to));
            let maps = vec![Map { residual, ..b.map(name, from, to, true) }];
            b.op(Op::Linear(Linear { maps, activation: Activation::None }));
        }
        let program = b.finish(vec![y]);
        assert_eq!(grad_aliases(&program, false, |_| false).aliases, [(y, x)]);
        let kept = grad_aliases(&program, true, |_| false);
        assert!(kept.keeps_output_grads && kept.aliases.is_empty() && kept.deferred.is_empty());
    }
}
