//! Chains: neighbouring operations that go row by row, as one launch. Output projections, networks of elements, merge, norms and the projections of the next block lie between two attentions.
//!
//! This file finds them; `chain_source` writes their kernels, `chain_launch` launches them. (The chains of a CPU, in `cpu/`, are another way to the same end.)

use std::collections::BTreeMap;
use std::ops::Range;

use super::fused_linear::{FusedLinear, fuse_linears, unfusable_weights};
use super::row_kernel_source::{Source, backward_source, forward_source, inputs};
use crate::flow::{Users, gated_values};
use crate::program::{Activation, Linear, Mode, Norm, Op, Program, Slice, Space, Value};

/// Rows are in registers, which limits their columns: of the input of a product, of a result that is held, of one with a norm or residual and of a sum, of all that a lane reads from memory, and
/// of a value whose columns are held one after another.
const MAX_INPUT_COLUMNS: usize = 128;
const MAX_HELD_COLUMNS: usize = 128;
const MAX_NORMED_COLUMNS: usize = 64;
const MAX_READ_COLUMNS: usize = 192;
const MAX_VALUE_COLUMNS: usize = 256;

/// Operations of a chain, and steps of a lane, at most: kernels are compiled with every step written out.
const MAX_OPS: usize = 24;
/// Steps of all lanes up to which a chain is looked for.
const MAX_STEPS: usize = 256;

/// One product or sum.
#[derive(Clone)]
pub(super) enum Step {
    Map { map: FusedLinear, relu: bool },
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
pub(super) struct Component {
    pub steps: Vec<Step>,
}

/// A lane and its kernels; there is none for the way back where nothing is to be done there.
pub(super) struct ComponentKernels {
    pub component: Component,
    pub forward: Source,
    pub backward: Option<Source>,
}

/// Operations that are one launch, or as many as lanes differ. Parameters that are laid out to every example may be among them.
pub(in super::super) struct RowKernel {
    pub ops: Range<usize>,
    pub(super) components: Vec<ComponentKernels>,
}

impl RowKernel {
    /// The text of all kernels.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.components.iter().flat_map(|l| std::iter::once(&l.forward).chain(&l.backward)).map(|s| s.text.as_str())
    }
}

/// Whether an operation belongs to a chain.
pub(in super::super) fn in_row_kernel(row_kernels: &[RowKernel], op: usize) -> bool {
    row_kernels.iter().any(|c| c.ops.contains(&op))
}

/// All chains of a program whose blocks may have this many bytes of shared memory.
pub(in super::super) fn row_kernels(program: &Program, max_bytes: usize) -> Vec<RowKernel> {
    let unfused = unfusable_weights(program);
    let steps: Vec<Option<Vec<Step>>> = program
        .ops
        .iter()
        .map(|op| match op {
            Op::Linear(l) => map_steps(program, l, fuse_linears(program, l, &unfused)),
            Op::AddNorm(a) => {
                let step = Step::Sum { inputs: a.inputs.clone(), y: a.y, norm: a.norm };
                is_supported(program, &step).then(|| vec![step])
            }
            Op::Repeat(_) => Some(Vec::new()),
            _ => None,
        })
        .collect();
    let context = Context { program, users: Users::of(program), gated: gated_values(program), max_bytes };
    let busy = |i: usize| steps[i].as_ref().is_some_and(|s| !s.is_empty());
    let mut row_kernels = Vec::new();
    let mut at = 0;
    while at < steps.len() {
        let last = (at..steps.len()).find(|&i| steps[i].is_none()).unwrap_or(steps.len()).min(at + MAX_OPS);
        // The longest that fits, ends with something to do, and is more than sums, which run together anyway.
        let found = (at + 2..=last).rev().find_map(|end| {
            let all: Vec<Step> = steps[at..end].iter().flatten().flatten().cloned().collect();
            let products = all.iter().any(|s| matches!(s, Step::Map { .. }));
            let several = (at..end).filter(|&i| busy(i)).count() > 1;
            let wanted = busy(at) && busy(end - 1) && several && products && all.len() <= MAX_STEPS;
            wanted.then(|| context.chain(at..end, &all)).flatten()
        });
        at = found.as_ref().map_or(at + 1, |c| c.ops.end);
        row_kernels.extend(found);
    }
    row_kernels
}

/// The products of a linear operation, if rows of all of them can be held as chains hold them.
fn map_steps(program: &Program, op: &Linear, maps: Vec<FusedLinear>) -> Option<Vec<Step>> {
    let relu = op.activation == Activation::Relu;
    let steps: Vec<Step> = maps.into_iter().map(|map| Step::Map { map, relu }).collect();
    (op.activation != Activation::Sigmoid && steps.iter().all(|s| is_supported(program, s))).then_some(steps)
}

fn is_supported(program: &Program, step: &Step) -> bool {
    let y = step.y();
    let spec = |s: Slice| &program.values[s.value.0];
    let rows = |s: Slice| (spec(s).space, spec(s).per_dim);
    let in_sixteens = |s: &Slice| [s.col, s.cols, spec(*s).cols].iter().all(|n| n.is_multiple_of(16));
    let same_rows = |s: &Slice| rows(*s) == rows(y) && in_sixteens(s);
    let narrow = match step {
        Step::Map { map, relu } => {
            map.x.cols <= MAX_INPUT_COLUMNS && (step.is_plain() || (!relu && y.cols <= MAX_NORMED_COLUMNS))
        }
        Step::Sum { inputs, .. } => inputs.iter().all(|s| s.cols == y.cols) && y.cols <= MAX_NORMED_COLUMNS,
    };
    narrow && rows(y).0 != Space::Batch && in_sixteens(&y) && step.reads().iter().all(same_rows)
}

fn overlap(a: Slice, b: Slice) -> bool {
    a.value == b.value && a.col < b.col + b.cols && b.col < a.col + a.cols
}

/// Steps by the values they have to do with; each follows what it needs as soon as it can.
fn components(steps: &[Step]) -> Vec<Component> {
    let mut writers: BTreeMap<Value, Vec<usize>> = BTreeMap::new();
    let mut needs: Vec<Vec<usize>> = Vec::new();
    // The first step of the lane that each value belongs to, or of one that was taken up into it.
    let mut component_of: BTreeMap<Value, usize> = BTreeMap::new();
    let mut merged_into: Vec<usize> = (0..steps.len()).collect();
    let first = |merged_into: &[usize], mut component: usize| {
        while merged_into[component] != component {
            component = merged_into[component];
        }
        component
    };
    for (i, step) in steps.iter().enumerate() {
        let reads = step.reads();
        let earlier = |r: &Slice| writers.get(&r.value).map_or(&[][..], Vec::as_slice);
        let needed = |r: &Slice| earlier(r).iter().copied().filter(|&o| overlap(*r, steps[o].y())).collect::<Vec<_>>();
        needs.push(reads.iter().flat_map(needed).collect());
        for v in reads.iter().map(|s| s.value).chain([step.y().value]) {
            let (a, b) = (first(&merged_into, i), first(&merged_into, *component_of.entry(v).or_insert(i)));
            merged_into[a.max(b)] = a.min(b);
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
        found.entry(first(&merged_into, s)).or_default().push(steps[s].clone());
    }
    found.into_values().map(|steps| Component { steps }).collect()
}

impl Component {
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
struct Context<'a> {
    program: &'a Program,
    users: Users,
    gated: Vec<bool>,
    /// Bytes a block may have.
    max_bytes: usize,
}

impl Context<'_> {
    /// Operations as a chain, if it has room everywhere.
    fn chain(&self, ops: Range<usize>, steps: &[Step]) -> Option<RowKernel> {
        let components: Vec<Component> = components(steps);
        if !components.iter().all(|component| self.can_hold(&ops, component)) {
            return None;
        }
        let written = components.into_iter().map(|component| {
            let forward = forward_source(self.program, &self.users, &ops, &component);
            let back = (self.program.mode == Mode::Train)
                .then(|| backward_source(self.program, &self.users, &ops, &component));
            let backward = back.filter(|s| !s.operands.is_empty());
            let fits_block = std::iter::once(&forward).chain(&backward).all(|s| s.block_bytes <= self.max_bytes);
            fits_block.then_some(ComponentKernels { component, forward, backward })
        });
        let components = written.collect::<Option<_>>()?;
        Some(RowKernel { ops, components })
    }

    /// Whether a lane's rows can be held, nothing is written here and elsewhere, and no gradient has to be gated for somebody else.
    fn can_hold(&self, ops: &Range<usize>, component: &Component) -> bool {
        let narrow = |s: Slice| s.cols <= MAX_HELD_COLUMNS && self.program.values[s.value.0].cols <= MAX_VALUE_COLUMNS;
        // What a ReLU leaves in memory has to be gated by whoever writes its gradient.
        let gated = |s: &Step| !matches!(s, Step::Map { relu: true, .. }) || self.gated[s.y().value.0];
        component.steps.len() <= MAX_OPS
            && component.steps.iter().all(|s| if component.holds(s) { narrow(s.y()) } else { gated(s) })
            && component.steps.iter().all(|s| !self.users.written_elsewhere(s.y().value, ops))
            && component.steps.iter().flat_map(Step::reads).all(|s| component.writes(s.value) || !self.gated[s.value.0])
            && inputs(self.program, component).iter().map(|s| s.cols).sum::<usize>() <= MAX_READ_COLUMNS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AddNorm, Map, ProgramBuilder};

    /// Bytes a block may have on compute capability 9.
    const MAX_BYTES: usize = 227 << 10;

    fn linear(b: &mut ProgramBuilder, maps: Vec<Map>, activation: Activation) {
        b.op(Op::Linear(Linear { maps, activation }));
    }

    /// For each of two sets two networks of one hidden layer side by side, and the norm of their sum with the input.
    fn networks(width: usize, hidden: usize) -> Program {
        let mut b = Program::builder(&[width, width], false, Mode::Train, true);
        let (mut first, mut second, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        for set in 0..2 {
            let x = b.whole(b.input(set));
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
            sums.push(AddNorm { inputs, y: b.whole(z), norm });
        }
        linear(&mut b, first, Activation::Relu);
        linear(&mut b, second, Activation::None);
        let outputs = sums.iter().map(|s| s.y.value).collect();
        sums.into_iter().for_each(|s| b.op(Op::AddNorm(s)));
        b.finish(outputs)
    }

    #[test]
    fn rows_of_each_set_are_a_lane_of_the_same_kernels() {
        let row_kernels = row_kernels(&networks(16, 32), MAX_BYTES);
        assert_eq!((row_kernels.len(), &row_kernels[0].ops, row_kernels[0].components.len()), (1, &(0..4), 2));
        let texts: Vec<&str> = row_kernels[0].texts().collect();
        // Forward and backward of one set, then of the other.
        assert_eq!((texts.len(), texts[0], texts[1]), (4, texts[2], texts[3]));
        assert_ne!(texts[0], texts[1]);
    }

    #[test]
    fn kernels_of_chains_wait_for_the_one_before_and_let_the_next_one_start() {
        for text in row_kernels(&networks(16, 32), MAX_BYTES)[0].texts() {
            let (begins, rest) =
                text.split_once("grid_dependency_wait();\n        return;").expect("who has no rows waits too");
            assert!(begins.contains("{\n    launch_dependents();\n"));
            let (before, after) = rest.split_once("grid_dependency_wait();").expect("and everybody else");
            let touches =
                |text: &str| ["load_rows", "load_rows_or_zero", "store_rows"].iter().any(|f| text.contains(f));
            assert!(!touches(begins) && !touches(before) && touches(after), "{text}");
        }
    }

    #[test]
    fn each_step_follows_what_it_needs_as_soon_as_it_can() {
        let row_kernels = row_kernels(&networks(16, 32), MAX_BYTES);
        let component = &row_kernels[0].components[0].component;
        let widths: Vec<usize> = component.steps.iter().map(|s| s.y().cols).collect();
        // One network after the other: both hidden layers are never held together.
        assert_eq!(widths, [32, 16, 32, 16, 16]);
        assert!(component.steps.iter().all(|s| component.holds(s)));
    }

    #[test]
    fn a_chain_ends_where_weights_have_no_room() {
        let program = networks(64, 128);
        let full = row_kernels(&program, MAX_BYTES);
        let block_bytes =
            |l: &ComponentKernels| l.forward.block_bytes.max(l.backward.as_ref().map_or(0, |s| s.block_bytes));
        let block_bytes = full[0].components.iter().map(block_bytes).max().unwrap();
        assert_eq!(row_kernels(&program, block_bytes)[0].ops, 0..4);
        // What is left of it is shorter.
        assert!(row_kernels(&program, block_bytes - 1).iter().all(|c| c.ops.len() < 4));
        assert!(row_kernels(&program, 1000).is_empty());
    }

    #[test]
    fn rows_that_cannot_be_held_in_sixteens_or_in_registers_are_left_alone() {
        assert!(row_kernels(&networks(24, 32), MAX_BYTES).is_empty());
        assert!(row_kernels(&networks(128, 128), MAX_BYTES).is_empty());
        assert!(row_kernels(&networks(16, 256), MAX_BYTES).is_empty());
    }

    #[test]
    fn sums_alone_are_no_chain() {
        let mut b = Program::builder(&[16, 16], false, Mode::Train, true);
        let outputs = [0, 1].map(|set| {
            let (x, y) = (b.input(set), b.fresh(Space::Set(set), 16, false));
            b.op(Op::AddNorm(AddNorm { inputs: vec![b.whole(x)], y: b.whole(y), norm: None }));
            y
        });
        assert!(row_kernels(&b.finish(outputs.to_vec()), MAX_BYTES).is_empty());
    }

    #[test]
    fn a_lane_with_nothing_to_do_on_the_way_back_has_no_kernel_for_it() {
        // One set is mapped twice, the other once and from an input that wants no gradient.
        let mut b = Program::builder(&[16, 32], false, Mode::Train, false);
        let values = [(1, 16), (0, 32), (1, 32)].map(|(set, cols)| b.fresh(Space::Set(set), cols, false));
        let full = values.map(|v| b.whole(v));
        let inputs = [0, 1].map(|set| b.whole(b.input(set)));
        let first = vec![b.map("a", inputs[1], full[0], true)];
        linear(&mut b, first, Activation::None);
        let second = vec![b.map("b", inputs[0], full[1], true), b.map("c", full[0], full[2], true)];
        linear(&mut b, second, Activation::None);
        let found = row_kernels(&b.finish(values[1..].to_vec()), MAX_BYTES);
        assert_eq!(found[0].ops, 0..2);
        let ways: Vec<bool> = found[0].components.iter().map(|l| l.backward.is_some()).collect();
        assert_eq!(ways, [true, false]);
    }

    #[test]
    fn long_stacks_are_several_chains() {
        let mut b = Program::builder(&[16], false, Mode::Train, true);
        let mut x = b.input(0);
        for i in 0..300 {
            let y = b.fresh(Space::Set(0), 16, false);
            let map = b.map(&format!("{i}"), b.whole(x), b.whole(y), true);
            linear(&mut b, vec![map], Activation::None);
            x = y;
        }
        let found = row_kernels(&b.finish(vec![x]), MAX_BYTES);
        assert!(found.iter().all(|c| c.ops.len() <= MAX_OPS));
        assert_eq!(found.iter().map(|c| c.ops.len()).sum::<usize>(), 300);
    }
}
