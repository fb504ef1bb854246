//! Row kernels: neighbouring row-wise operations as one launch. Between two attentions these are output projections,
//! element networks, merges, norms and the projections of the next block.
//!
//! This file finds them; `row_kernel_source` writes their source, `row_kernel_launch` launches them. (Row fusion on the
//! CPU, in `cpu/`, is separate.)

use std::collections::BTreeMap;
use std::ops::Range;

use super::fused_linear::{FusedLinear, fuse_linears, unfusable_weights};
use super::row_kernel_source::{Source, backward_source, forward_source, inputs};
use crate::flow::{Users, gated_values};
use crate::program::{Activation, Linear, Mode, Norm, Op, Program, Slice, Space, Value};

/// Rows are in registers, which limits their columns: inputs of a product; held results; results with a norm or
/// residual, and sums; all columns that a component reads; values held in full.
const MAX_INPUT_COLUMNS: usize = 128;
const MAX_HELD_COLUMNS: usize = 128;
const MAX_NORMED_COLUMNS: usize = 64;
const MAX_READ_COLUMNS: usize = 192;
const MAX_VALUE_COLUMNS: usize = 256;

/// Maximal operations of a row kernel and steps of a component: every step is unrolled.
const MAX_OPS: usize = 24;
/// Maximal steps of all components.
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

    /// Whether it is a product with at most a ReLU.
    fn is_plain(&self) -> bool {
        matches!(self, Step::Map { map, .. } if map.norm.is_none() && map.residual.is_none())
    }
}

/// A connected component of steps, in an order that holds few rows at a time.
pub(super) struct Component {
    pub steps: Vec<Step>,
}

/// A component and its kernels; the backward kernel is absent if it has no work.
pub(super) struct ComponentKernels {
    pub component: Component,
    pub forward: Source,
    pub backward: Option<Source>,
}

/// Operations that become one launch per distinct component. Repeated parameters may be among them.
pub(in super::super) struct RowKernel {
    pub ops: Range<usize>,
    pub(super) components: Vec<ComponentKernels>,
}

impl RowKernel {
    /// The source of all kernels.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.components.iter().flat_map(|l| std::iter::once(&l.forward).chain(&l.backward)).map(|s| s.text.as_str())
    }
}

/// Whether an operation belongs to a row kernel.
pub(in super::super) fn in_row_kernel(row_kernels: &[RowKernel], op: usize) -> bool {
    row_kernels.iter().any(|c| c.ops.contains(&op))
}

/// All row kernels of a program, for blocks of up to `max_bytes` bytes of shared memory.
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
        // The longest range that fits, ends with work, and is more than sums, which share a launch anyway.
        let found = (at + 2..=last).rev().find_map(|end| {
            let all: Vec<Step> = steps[at..end].iter().flatten().flatten().cloned().collect();
            let products = all.iter().any(|s| matches!(s, Step::Map { .. }));
            let several = (at..end).filter(|&i| busy(i)).count() > 1;
            let wanted = busy(at) && busy(end - 1) && several && products && all.len() <= MAX_STEPS;
            wanted.then(|| context.row_kernel(at..end, &all)).flatten()
        });
        at = found.as_ref().map_or(at + 1, |c| c.ops.end);
        row_kernels.extend(found);
    }
    row_kernels
}

/// The products of a linear operation, if a row kernel can hold the rows of all of them.
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

/// Connected components of steps by the values they share. Each step follows its inputs as soon as possible.
fn components(steps: &[Step]) -> Vec<Component> {
    let mut writers: BTreeMap<Value, Vec<usize>> = BTreeMap::new();
    let mut needs: Vec<Vec<usize>> = Vec::new();
    // The first step of each value's component, or of one merged into it.
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
    /// Whether a component writes a value.
    pub fn writes(&self, v: Value) -> bool {
        self.steps.iter().any(|s| s.y().value == v)
    }

    /// Whether a result's rows are held: other steps read them, or a norm or residual needs them.
    pub fn holds(&self, step: &Step) -> bool {
        !step.is_plain() || self.steps.iter().any(|s| s.reads().iter().any(|r| overlap(*r, step.y())))
    }
}

/// The program around a row kernel.
struct Context<'a> {
    program: &'a Program,
    users: Users,
    gated: Vec<bool>,
    /// Maximal bytes of shared memory of a block.
    max_bytes: usize,
}

impl Context<'_> {
    /// Operations as a row kernel, if every component fits.
    fn row_kernel(&self, ops: Range<usize>, steps: &[Step]) -> Option<RowKernel> {
        let components: Vec<Component> = components(steps);
        if !components.iter().all(|component| self.can_hold(&ops, component)) {
            return None;
        }
        let kernels = components.into_iter().map(|component| {
            let forward = forward_source(self.program, &self.users, &ops, &component);
            let back = (self.program.mode == Mode::Train)
                .then(|| backward_source(self.program, &self.users, &ops, &component));
            let backward = back.filter(|s| !s.operands.is_empty());
            let fits_block = std::iter::once(&forward).chain(&backward).all(|s| s.block_bytes <= self.max_bytes);
            fits_block.then_some(ComponentKernels { component, forward, backward })
        });
        let components = kernels.collect::<Option<_>>()?;
        Some(RowKernel { ops, components })
    }

    /// Whether a component's rows can be held, its results are written nowhere else, and no gradient needs a gate for
    /// others.
    fn can_hold(&self, ops: &Range<usize>, component: &Component) -> bool {
        let narrow = |s: Slice| s.cols <= MAX_HELD_COLUMNS && self.program.values[s.value.0].cols <= MAX_VALUE_COLUMNS;
        // The gradient of a ReLU's result in memory is gated by its writer.
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

    /// For each of two sets: two parallel networks of one hidden layer, and the norm of their sum with the input.
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
    fn each_set_is_a_component_of_the_same_kernels() {
        let row_kernels = row_kernels(&networks(16, 32), MAX_BYTES);
        assert_eq!((row_kernels.len(), &row_kernels[0].ops, row_kernels[0].components.len()), (1, &(0..4), 2));
        let texts: Vec<&str> = row_kernels[0].texts().collect();
        // Forward and backward of one set, then of the other.
        assert_eq!((texts.len(), texts[0], texts[1]), (4, texts[2], texts[3]));
        assert_ne!(texts[0], texts[1]);
    }

    #[test]
    fn row_kernels_launch_dependents_and_wait_before_they_touch_rows() {
        for text in row_kernels(&networks(16, 32), MAX_BYTES)[0].texts() {
            let (begins, rest) =
                text.split_once("grid_dependency_wait();\n        return;").expect("blocks without rows wait too");
            assert!(begins.contains("{\n    launch_dependents();\n"));
            let (before, after) = rest.split_once("grid_dependency_wait();").expect("all other blocks wait");
            let touches =
                |text: &str| ["load_rows", "load_rows_or_zero", "store_rows"].iter().any(|f| text.contains(f));
            assert!(!touches(begins) && !touches(before) && touches(after), "{text}");
        }
    }

    #[test]
    fn each_step_follows_its_inputs_as_soon_as_possible() {
        let row_kernels = row_kernels(&networks(16, 32), MAX_BYTES);
        let component = &row_kernels[0].components[0].component;
        let widths: Vec<usize> = component.steps.iter().map(|s| s.y().cols).collect();
        // One network after the other: both hidden layers are never held together.
        assert_eq!(widths, [32, 16, 32, 16, 16]);
        assert!(component.steps.iter().all(|s| component.holds(s)));
    }

    #[test]
    fn a_row_kernel_ends_where_weights_do_not_fit() {
        let program = networks(64, 128);
        let full = row_kernels(&program, MAX_BYTES);
        let block_bytes =
            |l: &ComponentKernels| l.forward.block_bytes.max(l.backward.as_ref().map_or(0, |s| s.block_bytes));
        let block_bytes = full[0].components.iter().map(block_bytes).max().unwrap();
        assert_eq!(row_kernels(&program, block_bytes)[0].ops, 0..4);
        // The rest is shorter.
        assert!(row_kernels(&program, block_bytes - 1).iter().all(|c| c.ops.len() < 4));
        assert!(row_kernels(&program, 1000).is_empty());
    }

    #[test]
    fn rows_that_registers_cannot_hold_in_multiples_of_16_are_not_fused() {
        assert!(row_kernels(&networks(24, 32), MAX_BYTES).is_empty());
        assert!(row_kernels(&networks(128, 128), MAX_BYTES).is_empty());
        assert!(row_kernels(&networks(16, 256), MAX_BYTES).is_empty());
    }

    #[test]
    fn sums_alone_are_no_row_kernel() {
        let mut b = Program::builder(&[16, 16], false, Mode::Train, true);
        let outputs = [0, 1].map(|set| {
            let (x, y) = (b.input(set), b.fresh(Space::Set(set), 16, false));
            b.op(Op::AddNorm(AddNorm { inputs: vec![b.full(x)], y: b.full(y), norm: None }));
            y
        });
        assert!(row_kernels(&b.finish(outputs.to_vec()), MAX_BYTES).is_empty());
    }

    #[test]
    fn a_component_without_backward_work_has_no_backward_kernel() {
        // One set is mapped twice, the other once and from an input that wants no gradient.
        let mut b = Program::builder(&[16, 32], false, Mode::Train, false);
        let values = [(1, 16), (0, 32), (1, 32)].map(|(set, cols)| b.fresh(Space::Set(set), cols, false));
        let full = values.map(|v| b.full(v));
        let inputs = [0, 1].map(|set| b.full(b.input(set)));
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
    fn long_stacks_are_several_row_kernels() {
        let mut b = Program::builder(&[16], false, Mode::Train, true);
        let mut x = b.input(0);
        for i in 0..300 {
            let y = b.fresh(Space::Set(0), 16, false);
            let map = b.map(&format!("{i}"), b.full(x), b.full(y), true);
            linear(&mut b, vec![map], Activation::None);
            x = y;
        }
        let found = row_kernels(&b.finish(vec![x]), MAX_BYTES);
        assert!(found.iter().all(|c| c.ops.len() <= MAX_OPS));
        assert_eq!(found.iter().map(|c| c.ops.len()).sum::<usize>(), 300);
    }
}
