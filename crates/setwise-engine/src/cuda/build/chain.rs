//! Chains: neighbouring operations that go row by row, as one launch. Output projections, networks of elements, merge, norms and the projections of the next block lie between two attentions.

use std::ops::Range;

use super::super::tables as t;
use super::Builder;
use super::chain_source::{CHAIN_ROWS, CHAIN_THREADS, Lie, Place, Source, backward_source, forward_source, inputs};
use super::joined::{Joined, joined, kept_apart};
use super::linear::Use;
use crate::error::Error;
use crate::flow::{gated_values, group_by};
use crate::program::{Activation, Linear, Mode, Norm, Op, Program, Slice, Space, Value};

/// Rows are in registers, which limits their columns: of the input of a product, of a result that is held, of one with a norm or residual and of a sum, of all that a lane reads from memory, and
/// of a value whose columns are held one after another.
const MOST_INPUTS: usize = 128;
const MOST_HELD: usize = 128;
const MOST_NORMED: usize = 64;
const MOST_READ: usize = 192;
const MOST_TOGETHER: usize = 256;

/// Blocks of a chain that a processor holds at once, at most.
const MOST_BLOCKS: usize = 2;

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
}

/// What is done with the rows of values that have to do with each other, in an order in which few rows are held at a time.
pub(super) struct Lane {
    pub steps: Vec<Step>,
}

/// Operations that are one launch, or as many as lanes differ. Parameters that are laid out to every example may be among them.
pub(in super::super) struct Chain {
    pub ops: Range<usize>,
    pub(super) lanes: Vec<Lane>,
}

/// All chains of a program whose blocks may have this many bytes of shared memory.
pub(in super::super) fn chains(program: &Program, most: usize) -> Vec<Chain> {
    let apart = kept_apart(program);
    let gated = gated_values(program);
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
    let mut chains = Vec::new();
    let mut at = 0;
    while at < steps.len() {
        // The longest that fits, ends with something to do, and is more than sums, which run together anyway.
        let end = (at..steps.len()).find(|&i| steps[i].is_none()).unwrap_or(steps.len());
        let found = (at + 2..=end).rev().find_map(|end| {
            let busy = |i: usize| steps[i].as_ref().is_some_and(|s| !s.is_empty());
            let all: Vec<Step> = steps[at..end].iter().flatten().flatten().cloned().collect();
            let products = all.iter().any(|s| matches!(s, Step::Map { .. }));
            if !busy(at) || !busy(end - 1) || (at..end).filter(|&i| busy(i)).count() < 2 || !products {
                return None;
            }
            let chain = Chain { ops: at..end, lanes: lanes(&all) };
            chain.fits(program, &gated, most).then_some(chain)
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
    let in_eights = |s: &Slice| [s.col, s.cols, spec(*s).cols].iter().all(|n| n.is_multiple_of(8));
    let alike = |s: &Slice| rows(*s) == rows(y) && in_eights(s);
    let in_fours = |at: usize| at.is_multiple_of(4);
    let vectors = step.norm().into_iter().flat_map(|n| [n.gain, n.shift]);
    let params = vectors.map(|p| program.params.spec(p).offset).all(in_fours);
    let own = match step {
        Step::Map { map, relu } => {
            let plain = map.norm.is_none() && map.residual.is_none();
            map.x.cols <= MOST_INPUTS
                && (plain || (!relu && y.cols <= MOST_NORMED))
                && in_fours(map.weight)
                && map.bias.is_none_or(in_fours)
        }
        Step::Sum { inputs, .. } => inputs.iter().all(|s| s.cols == y.cols) && y.cols <= MOST_NORMED,
    };
    own && params && rows(y).0 != Space::Batch && in_eights(&y) && step.reads().iter().all(alike)
}

fn overlap(a: Slice, b: Slice) -> bool {
    a.value == b.value && a.col < b.col + b.cols && b.col < a.col + a.cols
}

/// Steps by the values they have to do with; each follows what it needs as soon as it can.
fn lanes(steps: &[Step]) -> Vec<Lane> {
    let needs = |s: usize| -> Vec<usize> {
        let reads = steps[s].reads();
        (0..s).filter(|&o| reads.iter().any(|&r| overlap(r, steps[o].y()))).collect()
    };
    let mut lane_of: Vec<usize> = (0..steps.len()).collect();
    let touched =
        |s: usize| steps[s].reads().into_iter().chain([steps[s].y()]).map(|s| s.value).collect::<Vec<Value>>();
    for a in 0..steps.len() {
        for b in 0..a {
            if touched(a).iter().any(|v| touched(b).contains(v)) {
                let (from, to) = (lane_of[a], lane_of[b]);
                lane_of.iter_mut().filter(|l| **l == from).for_each(|l| *l = to);
            }
        }
    }
    fn visit(s: usize, needs: &dyn Fn(usize) -> Vec<usize>, order: &mut Vec<usize>) {
        if !order.contains(&s) {
            needs(s).into_iter().for_each(|n| visit(n, needs, order));
            order.push(s);
        }
    }
    let mut order = Vec::new();
    let needed: Vec<usize> = (0..steps.len()).flat_map(needs).collect();
    (0..steps.len()).filter(|s| !needed.contains(s)).for_each(|s| visit(s, &needs, &mut order));
    let mut firsts = lane_of.clone();
    firsts.sort_unstable();
    firsts.dedup();
    let of = |lane: usize| order.iter().filter(|&&s| lane_of[s] == lane).map(|&s| steps[s].clone()).collect();
    firsts.into_iter().map(|lane| Lane { steps: of(lane) }).collect()
}

impl Lane {
    /// Whether a value is a result of this lane.
    pub fn writes(&self, v: Value) -> bool {
        self.steps.iter().any(|s| s.y().value == v)
    }

    /// Whether rows of a result are held: others read them, or a norm or residual needs them.
    pub fn holds(&self, step: &Step) -> bool {
        let plain = match step {
            Step::Map { map, .. } => map.norm.is_none() && map.residual.is_none(),
            Step::Sum { .. } => false,
        };
        !plain || self.steps.iter().any(|s| s.reads().iter().any(|r| overlap(*r, step.y())))
    }
}

impl Chain {
    /// Whether all blocks have room, nothing is written here and elsewhere, and no gradient has to be gated for somebody else.
    fn fits(&self, program: &Program, gated: &[bool], most: usize) -> bool {
        let outside = |v: Value| {
            let elsewhere = |(i, op): (usize, &Op)| !self.ops.contains(&i) && op.uses().writes.contains(&v);
            program.ops.iter().enumerate().any(elsewhere)
        };
        self.lanes.iter().all(|lane| {
            let held: Vec<Slice> = lane.steps.iter().filter(|s| lane.holds(s)).map(Step::y).collect();
            let narrow = |s: &Slice| s.cols <= MOST_HELD && program.values[s.value.0].cols <= MOST_TOGETHER;
            let read: usize = inputs(program, lane).iter().map(|s| s.cols).sum();
            let sources = self.sources(program, lane);
            // What a ReLU leaves in memory has to be gated by whoever writes its gradient.
            let left = |s: &Step| matches!(s, Step::Map { relu: true, .. }) && !lane.holds(s);
            held.iter().all(narrow)
                && read <= MOST_READ
                && lane.steps.iter().all(|s| !left(s) || gated[s.y().value.0])
                && sources.iter().all(|s| s.room <= most)
                && lane.steps.iter().all(|s| !outside(s.y().value))
                && lane.steps.iter().flat_map(Step::reads).all(|s| lane.writes(s.value) || !gated[s.value.0])
        })
    }

    /// The source of a lane forward and, in training, backward.
    fn sources(&self, program: &Program, lane: &Lane) -> Vec<Source> {
        let mut sources = vec![forward_source(program, &self.ops, lane)];
        if program.mode == Mode::Train {
            sources.push(backward_source(program, &self.ops, lane));
        }
        sources
    }

    /// The text of all kernels.
    pub fn texts<'a>(&'a self, program: &'a Program) -> impl Iterator<Item = String> + 'a {
        self.lanes.iter().flat_map(|lane| self.sources(program, lane)).map(|s| s.text)
    }
}

impl Builder<'_> {
    /// The chain that begins with an operation.
    pub(super) fn chain_at(&self, op: usize) -> Option<usize> {
        self.chains.iter().position(|c| c.ops.start == op)
    }

    /// Lays the weights of all chains out as their kernels want them, before everything else.
    pub(super) fn lay_out_chain_weights(&mut self) -> Result<(), Error> {
        let (program, chains) = (self.program, self.chains);
        let mut tasks = Vec::new();
        let mut most = 0;
        for chain in chains {
            let mut lanes = Vec::new();
            for lane in &chain.lanes {
                let mut places = [0; 2];
                for (source, place) in chain.sources(program, lane).iter().zip(&mut places) {
                    *place = self.room(source.shared / 4);
                    for w in &source.weights {
                        let (stride, kind) = match w.lie {
                            Lie::Rows { stride } => (stride, 0),
                            Lie::Pairs { stride } => (stride, 1),
                            Lie::Plain => (w.cols, 2),
                        };
                        let (from, to) = (self.param_at(w.param), *place + 4 * w.at as u64);
                        let [rows, cols, stride] = [w.rows, w.cols, stride].map(|n| n as i32);
                        tasks.push(t::ChainWeightTask { from, to, rows, cols, stride, kind });
                        most = most.max(w.rows * w.cols);
                    }
                }
                lanes.push(places);
            }
            self.chain_weights.push(lanes);
        }
        self.launch("chain_weights", &tasks, [most.div_ceil(1024), tasks.len(), 1], 256, 0)?;
        // Chains fetch their weights before they wait for what they follow.
        self.in_order = !tasks.is_empty();
        Ok(())
    }

    pub(super) fn chain_forward(&mut self, index: usize) -> Result<(), Error> {
        let (program, chain) = (self.program, &self.chains[index]);
        self.repeats(chain.ops.clone(), false)?;
        let sources: Vec<Source> = chain.lanes.iter().map(|l| forward_source(program, &chain.ops, l)).collect();
        self.launch_chain(index, sources, 0)
    }

    pub(super) fn chain_backward(&mut self, index: usize) -> Result<(), Error> {
        let (program, chain) = (self.program, &self.chains[index]);
        let sources: Vec<Source> = chain.lanes.iter().map(|l| backward_source(program, &chain.ops, l)).collect();
        self.launch_chain(index, sources, 1)?;
        for step in chain.lanes.iter().flat_map(|l| &l.steps) {
            step.reads().iter().for_each(|s| self.written[s.value.0] = true);
            if let Step::Map { map, .. } = step {
                self.gathered.push(Use { weight: map.weight, bias: map.bias, x: map.x, dy: map.y });
            }
        }
        if !self.handed.kept {
            self.gathered_weights()?;
        }
        self.repeats(chain.ops.clone(), true)
    }

    /// One launch for all lanes of the same source, forward (0) or back (1).
    fn launch_chain(&mut self, index: usize, sources: Vec<Source>, way: usize) -> Result<(), Error> {
        let lanes = &self.chains[index].lanes;
        for (_, members) in group_by(sources.iter().map(|s| &s.name)) {
            let Source { name, shared, room, .. } = &sources[members[0]];
            let mut tasks = Vec::new();
            let mut rows = 0;
            for &lane in &members {
                let y = lanes[lane].steps[0].y().value;
                rows = rows.max(self.rows(y));
                self.check_chain(&lanes[lane])?;
                let places: Vec<t::Address> = sources[lane].places.iter().map(|p| self.chain_place(p, y)).collect();
                let (places, weights) = (self.tables.push(&places), self.chain_weights[index][lane][way]);
                tasks.push(t::ChainTask { places, weights, space: self.space(y), pad: 0 });
            }
            // Weights are fetched once for a block, so there are no more blocks than the card may hold at once.
            let blocks = (self.module.shared_memory / room).clamp(1, MOST_BLOCKS) * self.module.processors;
            let blocks = rows.div_ceil(CHAIN_ROWS).min(blocks.div_ceil(tasks.len()));
            self.launch(name, &tasks, [blocks, tasks.len(), 1], CHAIN_THREADS, *shared)?;
        }
        Ok(())
    }

    /// Numbers of a value are counted in 32 bits.
    fn check_chain(&self, lane: &Lane) -> Result<(), Error> {
        let slices = lane.steps.iter().flat_map(|s| s.reads().into_iter().chain([s.y()]));
        let most = slices.map(|s| self.len_of(s.value)).max().unwrap_or(0);
        if u32::try_from(most).is_err() {
            return Err(Error::Device(format!(
                "{most} numbers of one value are too many; lower the batch or set size"
            )));
        }
        Ok(())
    }

    /// Where something lies; rows are those of `y`. Parts of a norm's gradients are summed at the end.
    fn chain_place(&mut self, place: &Place, y: Value) -> t::Address {
        match *place {
            Place::Value(v) => self.value(v),
            Place::Gradient(v) => self.grad(v),
            Place::Parts { norm, cols } => {
                let count = self.rows(y).div_ceil(16);
                let parts = self.room(count * 2 * cols);
                for (half, p) in [norm.gain, norm.shift].into_iter().enumerate() {
                    self.sums.push(t::SumTask {
                        parts: parts + 4 * (half * cols) as u64,
                        out: self.param_grad(p),
                        stride: 2 * cols as u64,
                        count: count as i32,
                        len: cols as i32,
                        rows_per_part: 16,
                        vec: 0,
                        space: self.space(y),
                        fresh: 0,
                    });
                }
                parts
            }
        }
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
        let program = networks(16, 32);
        let chains = chains(&program, MOST);
        assert_eq!((chains.len(), &chains[0].ops, chains[0].lanes.len()), (1, &(0..4), 2));
        let texts: Vec<String> = chains[0].texts(&program).collect();
        // Forward and backward of one set, then of the other.
        assert_eq!((texts.len(), &texts[0], &texts[1]), (4, &texts[2], &texts[3]));
        assert_ne!(texts[0], texts[1]);
    }

    #[test]
    fn each_step_follows_what_it_needs_as_soon_as_it_can() {
        let program = networks(16, 32);
        let lane = &chains(&program, MOST)[0].lanes[0];
        let widths: Vec<usize> = lane.steps.iter().map(|s| s.y().cols).collect();
        // One network after the other: both hidden layers are never held together.
        assert_eq!(widths, [32, 16, 32, 16, 16]);
        assert!(lane.steps.iter().all(|s| lane.holds(s)));
    }

    #[test]
    fn a_chain_ends_where_weights_have_no_room() {
        let program = networks(64, 128);
        let whole = chains(&program, MOST)[0].sources(&program, &chains(&program, MOST)[0].lanes[0]);
        let room = whole.iter().map(|s| s.room).max().unwrap();
        assert_eq!(chains(&program, room)[0].ops, 0..4);
        // What is left of it is shorter, and still made of everything that reads what it holds.
        let shorter = chains(&program, room - 1);
        assert!(shorter.iter().all(|c| c.ops.len() < 4) && shorter.iter().all(|c| c.ops.start > 0 || c.ops.end < 4));
        assert!(chains(&program, 1000).is_empty());
    }

    #[test]
    fn rows_that_cannot_be_held_in_eights_or_in_registers_are_left_alone() {
        assert!(chains(&networks(12, 32), MOST).is_empty());
        assert!(chains(&networks(128, 128), MOST).is_empty());
        assert!(chains(&networks(16, 256), MOST).is_empty());
    }

    #[test]
    fn sums_alone_are_no_chain() {
        let mut b = Program::builder(&[16, 16], false, Mode::Train, true);
        let outputs = [0, 1].map(|set| {
            let (x, y) = (b.input(set), b.fresh(Space::Set(set), 16, false));
            b.op(Op::AddNorm(AddNorm { inputs: vec![b.whole(x)], y: b.whole(y), norm: None }));
            y
        });
        assert!(chains(&b.finish(outputs.to_vec()), MOST).is_empty());
    }
}
