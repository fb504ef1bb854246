//! How gradients of sums reach their terms without additions of their own.

use crate::flow::{Users, group_by};
use crate::program::{Mode, Op, Program, Slice, Value};

/// What is handed on in a program.
#[derive(Default)]
pub(crate) struct Handed {
    /// (sum, term): the gradient of the term begins as that of the sum, which nobody needs any more, in its place.
    pub over: Vec<(Value, Value)>,
    /// Residuals whose gradient is added later.
    pub later: Vec<Later>,
    /// Whether gradients of linear maps' results stay as they are to the end, where those of the weights are made from them.
    pub kept: bool,
}

/// A residual whose gradient is added where operation `to`, a linear map, adds its own to the same columns. That of `y` stays until then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Later {
    pub residual: Slice,
    pub y: Slice,
    pub from: usize,
    pub to: usize,
}

/// Residuals a product can add besides what is there.
const MOST_LATER: usize = 2;

/// Finds what can be handed on, where gradients of linear maps' results are `kept` or not. Operations of chains see to theirs by themselves.
pub(crate) fn handed_gradients(program: &Program, kept: bool, chained: impl Fn(usize) -> bool) -> Handed {
    let mut handed = Handed { kept, ..Handed::default() };
    if program.mode != Mode::Train {
        return handed;
    }
    let users = Users::of(program);
    // Whether a gradient has been added to before an operation runs backward.
    let begun = |v: Value, i: usize| users.grad_started(program, v, i + 1);
    for (i, op) in program.ops.iter().enumerate().rev().filter(|(i, _)| !chained(*i)) {
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
            let whole = members.iter().map(|&m| written[m].cols).sum::<usize>() == spec.cols;
            let suits = |v: Value| {
                let own: Vec<_> = terms.iter().filter(|t| t.0.value == v).collect();
                let other = &program.values[v.0];
                let alike = other.space == spec.space && other.per_dim == spec.per_dim && other.cols == spec.cols;
                let in_place = |t: &&(Slice, Slice)| t.1.value == y && (t.0.col, t.0.cols) == (t.1.col, t.1.cols);
                alike
                    && other.grad
                    && own.len() == members.len()
                    && own.iter().all(in_place)
                    && !begun(v, i)
                    && !inputs.contains(&v)
            };
            if whole && spec.grad && !(kept && matches!(op, Op::Linear(_))) {
                handed.over.extend(terms.iter().map(|t| t.0.value).find(|&v| suits(v)).map(|v| (y, v)));
            }
        }
        for &(residual, y) in &terms {
            let v = residual.value;
            let taken = handed.over.iter().any(|o| o.0 == y.value || *o == (y.value, v));
            let to = users.readers[v.0].iter().copied().filter(|&r| r < i).max();
            let Some(to) = to.filter(|&to| {
                !chained(to) && !taken && begun(v, i) && program.values[v.0].grad && !inputs.contains(&v)
            }) else {
                continue;
            };
            let Op::Linear(l) = &program.ops[to] else { continue };
            let alone = terms.iter().all(|t| t.0.value != v || t.0 == residual);
            let adds = l.maps.iter().any(|m| m.x == residual)
                && l.maps.iter().all(|m| m.residual.is_none_or(|r| r.value != v));
            let count = |o: &&(Slice, Slice)| o.0 == residual;
            let known = handed.later.iter().filter(|o| o.to == to && o.residual == residual && o.from != i).count();
            if matches!(op, Op::Linear(_)) && alone && adds && known + terms.iter().filter(count).count() <= MOST_LATER
            {
                handed.later.push(Later { residual, y, from: i, to });
            }
        }
    }
    handed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Activation, AddNorm, Linear, Map, Space};

    #[test]
    fn gradients_of_residuals_take_over_places_or_are_added_by_the_product_that_follows() {
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
        let whole = [x, p, q, r].map(|v| b.full(v));
        let halves = [0, 4].map(|col| Slice { value: q, col, cols: 4 });
        linear(&mut b, "p", whole[0], &[whole[1]], None);
        // Both halves of q have x added to them, r has not, and z is a sum of x and r.
        linear(&mut b, "q", whole[1], &halves, Some(whole[0]));
        linear(&mut b, "r", whole[2], &[whole[3]], None);
        let y = b.full(z);
        b.op(Op::AddNorm(AddNorm { inputs: vec![whole[0], whole[3]], y, norm: None }));
        let program = b.finish(vec![z]);
        let handed = handed_gradients(&program, false, |_| false);
        assert_eq!(handed.over, [(z, x)]);
        let later = halves.map(|y| Later { residual: whole[0], y, from: 1, to: 0 });
        assert_eq!(handed.later, later);
    }

    #[test]
    fn gradients_that_are_kept_hand_their_places_to_nobody() {
        let mut b = Program::builder(&[4], false, Mode::Train, true);
        let (x, h, y) = (b.input(0), b.fresh(Space::Set(0), 4, false), b.fresh(Space::Set(0), 4, false));
        for (name, from, to, residual) in [("h", x, h, None), ("y", h, y, Some(x))] {
            let residual = residual.map(|v| b.full(v));
            let (from, to) = (b.full(from), b.full(to));
            let maps = vec![Map { residual, ..b.map(name, from, to, true) }];
            b.op(Op::Linear(Linear { maps, activation: Activation::None }));
        }
        let program = b.finish(vec![y]);
        assert_eq!(handed_gradients(&program, false, |_| false).over, [(y, x)]);
        let kept = handed_gradients(&program, true, |_| false);
        assert!(kept.kept && kept.over.is_empty() && kept.later.is_empty());
    }
}
