//! Chains: neighbouring operations that go row by row, as one launch. Output projections, networks of elements, merge, norms and the projections of the next block lie between two attentions.
//!
//! This file finds them; `chain_source` writes their kernels, `chain_launch` launches them. (The chains of a CPU, in `cpu/`, are another way to the same end.)

use std::collections::BTreeMap;
use std::ops::Range;

use super::chain_source::{Source, backward_source, forward_source, inputs};
use super::joined::{Joined, joined, kept_apart};
use crate::flow::{Users, gated_values};
use crate::program::{Activation, Linear, Mode, Norm, Op, Program, Slice, Space, Value};

/// Rows are in registers, which limits their columns: of the input of a product, of a result that is held, of one with a norm or residual and of a sum, of all that a lane reads from memory, and
/// of a value whose columns are held one after another.
const WIDEST_INPUT: usize = 128;
const WIDEST_HELD: usize = 128;
const WIDEST_NORMED: usize = 64;
const WIDEST_READ: usize = 192;
const WIDEST_VALUE: usize = 256;

/// Operations of a chain, and steps of a lane, at most: kernels are compiled with every step written out.
const LONGEST: usize = 24;
/// Steps of all lanes up to which a chain is looked for.
const MOST_STEPS: usize = 256;

/// One product or sum.
#[derive(Clone)]
pub(super) enum Step {
    Map { map: Joined, relu: bool },
    Sum { inputs: Vec<Slice>, y: Slice, norm: Option<Norm> },
}

impl Step {
    pub fn y(&self) -> Slice {
        match self {
            Step::Map { map, .. } => map.y,
            Step::Sum { y, .. } => *y,
        }
    }

    pub fn norm(&self) -> Option<Norm> {
        match self {
            Step::Map { map, .. } => map.norm,
            Step::Sum { norm, .. } => *norm,
        }
    }

    pub fn reads(&self) -> Vec<Slice> {
        match self {
            Step::Map { map, .. } => std::iter::once(map.x).chain(map.residual).collect(),
            Step::Sum { inputs, .. } => inputs.clone(),
        }
    }

    /// Whether it is a product and nothing else but perhaps a ReLU.
    fn is_plain(&self) -> bool {
        matches!(self, Step::Map { map, .. } if map.norm.is_none() && map.residual.is_none())
    }
}

/// What is done with the rows of values that have to do with each other, in an order in which few rows are held at a time.
pub(super) struct Lane {
    pub steps: Vec<Step>,
}

/// A lane and its kernels; there is none for the way back where nothing is to be done there.
pub(super) struct Written {
    pub lane: Lane,
    pub forward: Source,
    pub backward: Option<Source>,
}

/// Operations that are one launch, or as many as lanes differ. Parameters that are laid out to every example may be among them.
pub(in super::super) struct Chain {
    pub ops: Range<usize>,
    pub(super) lanes: Vec<Written>,
}

impl Chain {
    /// The text of all kernels.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.lanes.iter().flat_map(|l| std::iter::once(&l.forward).chain(&l.backward)).map(|s| s.text.as_str())
    }
}

/// Whether an operation belongs to a chain.
pub(in super::super) fn in_chain(chains: &[Chain], op: usize) -> bool {
    chains.iter().any(|c| c.ops.contains(&op))
}

/// All chains of a program whose blocks may have this many bytes of shared memory.
pub(in super::super) fn chains(program: &Program, most: usize) -> Vec<Chain> {
    let apart = kept_apart(program);
    let steps: Vec<Option<Vec<Step>>> = program
        .ops
        .iter()
        .map(|op| match op {
            Op::Linear(l) => map_steps(program, l, joined(program, l, &apart)),
            Op::AddNorm(a) => {
                let step = Step::Sum { inputs: a.inputs.clone(), y: a.y, norm: a.norm };
                suits(program, &step).then(|| vec![step])
            }
            Op::Repeat(_) => Some(Vec::new()),
            _ => None,
        })
        .collect();
    let surroundings = Surroundings { program, users: Users::of(program), gated: gated_values(program), most };
    let busy = |i: usize| steps[i].as_ref().is_some_and(|s| !s.is_empty());
    let mut chains = Vec::new();
    let mut at = 0;
    while at < steps.len() {
        let last = (at..steps.len()).find(|&i| steps[i].is_none()).unwrap_or(steps.len()).min(at + LONGEST);
        // The longest that fits, ends with something to do, and is more than sums, which run together anyway.
        let found = (at + 2..=last).rev().find_map(|end| {
            let all: Vec<Step> = steps[at..end].iter().flatten().flatten().cloned().collect();
            let products = all.iter().any(|s| matches!(s, Step::Map { .. }));
            let several = (at..end).filter(|&i| busy(i)).count() > 1;
            let wanted = busy(at) && busy(end - 1) && several && products && all.len() <= MOST_STEPS;
            wanted.then(|| surroundings.chain(at..end, &all)).flatten()
        });
        at = found.as_ref().map_or(at + 1, |c| c.ops.end);
        chains.extend(found);
    }
    chains
}

/// The products of a linear operation, if rows of all of them can be held as chains hold them.
fn map_steps(program: &Program, op: &Linear, maps: Vec<Joined>) -> Option<Vec<Step>> {
    let relu = op.activation == Activation::Relu;
    let steps: Vec<Step> = maps.into_iter().map(|map| Step::Map { map, relu }).collect();
    (op.activation != Activation::Sigmoid && steps.iter().all(|s| suits(program, s))).then_some(steps)
}

fn suits(program: &Program, step: &Step) -> bool {
    let y = step.y();
    let spec = |s: Slice| &program.values[s.value.0];
    let rows = |s: Slice| (spec(s).space, spec(s).per_dim);
    let in_sixteens = |s: &Slice| [s.col, s.cols, spec(*s).cols].iter().all(|n| n.is_multiple_of(16));
    let alike = |s: &Slice| rows(*s) == rows(y) && in_sixteens(s);
    let narrow = match step {
        Step::Map { map, relu } => {
            map.x.cols <= WIDEST_INPUT && (step.is_plain() || (!relu && y.cols <= WIDEST_NORMED))
        }
        Step::Sum { inputs, .. } => inputs.iter().all(|s| s.cols == y.cols) && y.cols <= WIDEST_NORMED,
    };
    narrow && rows(y).0 != Space::Batch && in_sixteens(&y) && step.reads().iter().all(alike)
}

fn overlap(a: Slice, b: Slice) -> bool {
    a.value == b.value && a.col < b.col + b.cols && b.col < a.col + a.cols
}

/// Steps by the values they have to do with; each follows what it needs as soon as it can.
fn lanes(steps: &[Step]) -> Vec<Lane> {
    let mut writers: BTreeMap<Value, Vec<usize>> = BTreeMap::new();
    let mut needs: Vec<Vec<usize>> = Vec::new();
    // The first step of the lane that each value belongs to, or of one that was taken up into it.
    let mut lane_of: BTreeMap<Value, usize> = BTreeMap::new();
    let mut taken_up: Vec<usize> = (0..steps.len()).collect();
    let first = |taken_up: &[usize], mut lane: usize| {
        while taken_up[lane] != lane {
            lane = taken_up[lane];
        }
        lane
    };
    for (i, step) in steps.iter().enumerate() {
        let reads = step.reads();
        let earlier = |r: &Slice| writers.get(&r.value).map_or(&[][..], Vec::as_slice);
        let needed = |r: &Slice| earlier(r).iter().copied().filter(|&o| overlap(*r, steps[o].y())).collect::<Vec<_>>();
        needs.push(reads.iter().flat_map(needed).collect());
        for v in reads.iter().map(|s| s.value).chain([step.y().value]) {
            let (a, b) = (first(&taken_up, i), first(&taken_up, *lane_of.entry(v).or_insert(i)));
            taken_up[a.max(b)] = a.min(b);
        }
        writers.entry(step.y().value).or_default().push(i);
    }
    fn visit(step: usize, needs: &[Vec<usize>], order: &mut Vec<usize>) {
        if !order.contains(&step) {
            needs[step].iter().for_each(|&n| visit(n, needs, order));
            order.push(step);
        }
    }
    let mut order = Vec::new();
    let needed: Vec<usize> = needs.iter().flatten().copied().collect();
    (0..steps.len()).filter(|s| !needed.contains(s)).for_each(|s| visit(s, &needs, &mut order));
    let mut found: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
    for s in order {
        found.entry(first(&taken_up, s)).or_default().push(steps[s].clone());
    }
    found.into_values().map(|steps| Lane { steps }).collect()
}

impl Lane {
    /// Whether a value is a result of this lane.
    pub fn writes(&self, v: Value) -> bool {
        self.steps.iter().any(|s| s.y().value == v)
    }

    /// Whether rows of a result are held: others read them, or a norm or residual needs them.
    pub fn holds(&self, step: &Step) -> bool {
        !step.is_plain() || self.steps.iter().any(|s| s.reads().iter().any(|r| overlap(*r, step.y())))
    }
}

/// What a chain is part of.
struct Surroundings<'a> {
    program: &'a Program,
    users: Users,
    gated: Vec<bool>,
    /// Bytes a block may have.
    most: usize,
}

impl Surroundings<'_> {
    /// Operations as a chain, if it has room everywhere.
    fn chain(&self, ops: Range<usize>, steps: &[Step]) -> Option<Chain> {
        let lanes: Vec<Lane> = lanes(steps);
        if !lanes.iter().all(|lane| self.fits(&ops, lane)) {
            return None;
        }
        let written = lanes.into_iter().map(|lane| {
            let forward = forward_source(self.program, &self.users, &ops, &lane);
            let back =
                (self.program.mode == Mode::Train).then(|| backward_source(self.program, &self.users, &ops, &lane));
            let backward = back.filter(|s| !s.places.is_empty());
            let has_room = std::iter::once(&forward).chain(&backward).all(|s| s.room <= self.most);
            has_room.then_some(Written { lane, forward, backward })
        });
        let lanes = written.collect::<Option<_>>()?;
        Some(Chain { ops, lanes })
    }

    /// Whether a lane's rows can be held, nothing is written here and elsewhere, and no gradient has to be gated for somebody else.
    fn fits(&self, ops: &Range<usize>, lane: &Lane) -> bool {
        let narrow = |s: Slice| s.cols <= WIDEST_HELD && self.program.values[s.value.0].cols <= WIDEST_VALUE;
        // What a ReLU leaves in memory has to be gated by whoever writes its gradient.
        let gated = |s: &Step| !matches!(s, Step::Map { relu: true, .. }) || self.gated[s.y().value.0];
        lane.steps.len() <= LONGEST
            && lane.steps.iter().all(|s| if lane.holds(s) { narrow(s.y()) } else { gated(s) })
            && lane.steps.iter().all(|s| !self.users.written_elsewhere(s.y().value, ops))
            && lane.steps.iter().flat_map(Step::reads).all(|s| lane.writes(s.value) || !self.gated[s.value.0])
            && inputs(self.program, lane).iter().map(|s| s.cols).sum::<usize>() <= WIDEST_READ
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AddNorm, Map, ProgramBuilder};

    /// Bytes a block may have on compute capability 9.
    const MOST: usize = 227 << 10;

    fn linear(b: &mut ProgramBuilder, maps: Vec<Map>, activation: Activation) {
        b.op(Op::Linear(Linear { maps, activation }));
    }

    /// For each of two sets two networks of one hidden layer side by side, and the norm of their sum with the input.
    fn networks(width: usize, hidden: usize) -> Program {
        let mut b = Program::builder(&[width, width], false, Mode::Train, true);
        let (mut first, mut second, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        for set in 0..2 {
            let x = b.full(b.input(set));
            let (h, y) = (b.fresh(Space::Set(set), 2 * hidden, false), b.fresh(Space::Set(set), 2 * width, false));
            let part = |value, i, cols| Slice { value, col: i * cols, cols };
            for i in 0..2 {
                let (inner, outer) = (part(h, i, hidden), part(y, i, width));
                first.push(b.map(&format!("{set}.{i}.first"), x, inner, true));
                let map = b.map(&format!("{set}.{i}.second"), inner, outer, true);
                second.push(Map { residual: Some(x), ..map });
            }
            let z = b.fresh(Space::Set(set), width, false);
            let norm = Some(b.norm(&format!("{set}.norm"), z, width));
            let inputs = vec![x, part(y, 0, width), part(y, 1, width)];
            sums.push(AddNorm { inputs, y: b.full(z), norm });
        }
        linear(&mut b, first, Activation::Relu);
        linear(&mut b, second, Activation::None);
        let outputs = sums.iter().map(|s| s.y.value).collect();
        sums.into_iter().for_each(|s| b.op(Op::AddNorm(s)));
        b.finish(outputs)
    }

    #[test]
    fn rows_of_each_set_are_a_lane_of_the_same_kernels() {
        let chains = chains(&networks(16, 32), MOST);
        assert_eq!((chains.len(), &chains[0].ops, chains[0].lanes.len()), (1, &(0..4), 2));
        let texts: Vec<&str> = chains[0].texts().collect();
        // Forward and backward of one set, then of the other.
        assert_eq!((texts.len(), texts[0], texts[1]), (4, texts[2], texts[3]));
        assert_ne!(texts[0], texts[1]);
    }

    #[test]
    fn kernels_of_chains_wait_for_the_one_before_and_let_the_next_one_start() {
        for text in chains(&networks(16, 32), MOST)[0].texts() {
            let (begins, rest) =
                text.split_once("wait_for_last();\n        return;").expect("who has no rows waits too");
            assert!(begins.contains("{\n    next_may_start();\n"));
            let (before, after) = rest.split_once("wait_for_last();").expect("and everybody else");
            let touches = |text: &str| ["load_rows", "load_gradients", "store_rows"].iter().any(|f| text.contains(f));
            assert!(!touches(begins) && !touches(before) && touches(after), "{text}");
        }
    }

    #[test]
    fn each_step_follows_what_it_needs_as_soon_as_it_can() {
        let chains = chains(&networks(16, 32), MOST);
        let lane = &chains[0].lanes[0].lane;
        let widths: Vec<usize> = lane.steps.iter().map(|s| s.y().cols).collect();
        // One network after the other: both hidden layers are never held together.
        assert_eq!(widths, [32, 16, 32, 16, 16]);
        assert!(lane.steps.iter().all(|s| lane.holds(s)));
    }

    #[test]
    fn a_chain_ends_where_weights_have_no_room() {
        let program = networks(64, 128);
        let whole = chains(&program, MOST);
        let room = |l: &Written| l.forward.room.max(l.backward.as_ref().map_or(0, |s| s.room));
        let room = whole[0].lanes.iter().map(room).max().unwrap();
        assert_eq!(chains(&program, room)[0].ops, 0..4);
        // What is left of it is shorter.
        assert!(chains(&program, room - 1).iter().all(|c| c.ops.len() < 4));
        assert!(chains(&program, 1000).is_empty());
    }

    #[test]
    fn rows_that_cannot_be_held_in_sixteens_or_in_registers_are_left_alone() {
        assert!(chains(&networks(24, 32), MOST).is_empty());
        assert!(chains(&networks(128, 128), MOST).is_empty());
        assert!(chains(&networks(16, 256), MOST).is_empty());
    }

    #[test]
    fn sums_alone_are_no_chain() {
        let mut b = Program::builder(&[16, 16], false, Mode::Train, true);
        let outputs = [0, 1].map(|set| {
            let (x, y) = (b.input(set), b.fresh(Space::Set(set), 16, false));
            b.op(Op::AddNorm(AddNorm { inputs: vec![b.full(x)], y: b.full(y), norm: None }));
            y
        });
        assert!(chains(&b.finish(outputs.to_vec()), MOST).is_empty());
    }

    #[test]
    fn a_lane_with_nothing_to_do_on_the_way_back_has_no_kernel_for_it() {
        // One set is mapped twice, the other once and from an input that wants no gradient.
        let mut b = Program::builder(&[16, 32], false, Mode::Train, false);
        let values = [(1, 16), (0, 32), (1, 32)].map(|(set, cols)| b.fresh(Space::Set(set), cols, false));
        let whole = values.map(|v| b.full(v));
        let inputs = [0, 1].map(|set| b.full(b.input(set)));
        let first = vec![b.map("a", inputs[1], whole[0], true)];
        linear(&mut b, first, Activation::None);
        let second = vec![b.map("b", inputs[0], whole[1], true), b.map("c", whole[0], whole[2], true)];
        linear(&mut b, second, Activation::None);
        let found = chains(&b.finish(values[1..].to_vec()), MOST);
        assert_eq!(found[0].ops, 0..2);
        let ways: Vec<bool> = found[0].lanes.iter().map(|l| l.backward.is_some()).collect();
        assert_eq!(ways, [true, false]);
    }

    #[test]
    fn long_stacks_are_several_chains() {
        let mut b = Program::builder(&[16], false, Mode::Train, true);
        let mut x = b.input(0);
        for i in 0..300 {
            let y = b.fresh(Space::Set(0), 16, false);
            let map = b.map(&format!("{i}"), b.full(x), b.full(y), true);
            linear(&mut b, vec![map], Activation::None);
            x = y;
        }
        let found = chains(&b.finish(vec![x]), MOST);
        assert!(found.iter().all(|c| c.ops.len() <= LONGEST));
        assert_eq!(found.iter().map(|c| c.ops.len()).sum::<usize>(), 300);
    }
}
