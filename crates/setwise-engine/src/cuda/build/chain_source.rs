//! Chains as CUDA source: shapes are written out, so that rows stay in registers. What it is made of is in `kernels/row_chain.cu`.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use super::chain::{Lane, Step};
use super::joined::Joined;
use crate::flow::Users;
use crate::program::{Mode, Norm, Program, Slice, Value};

/// Threads of a block, rows of a warp, and rows of a block.
pub(super) const CHAIN_THREADS: u32 = 256;
pub(super) const WARP_ROWS: usize = 16;
pub(super) const CHAIN_ROWS: usize = CHAIN_THREADS as usize / 32 * WARP_ROWS;
/// Columns up to which what a step reads from memory is fetched before the step ahead of it.
const MOST_AHEAD: usize = 64;

/// Waits for the weights; what is asked for before is on its way by then.
const ARRIVED: &str = "barrier_wait(&arrived, 0);";

/// Something a chain reads or writes.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Value(Value),
    Gradient(Value),
    /// Gradients of a norm's gain and shift, in parts.
    Parts {
        norm: Norm,
        cols: usize,
    },
}

/// How a weight lies in shared memory.
#[derive(Clone, Copy)]
pub(super) enum Layout {
    /// Row by row; where rows begin at the same bank, every second one has each sixteen numbers exchanged with the next sixteen.
    Rows,
    /// Four rows number by number, so many numbers from them to the next four.
    Fours { stride: usize },
    /// One row, not rounded.
    Vector,
}

/// A weight or vector among the parameters, and its first number in shared memory.
pub(super) struct Weight {
    pub param: usize,
    pub rows: usize,
    pub cols: usize,
    pub layout: Layout,
    pub at: usize,
}

/// A kernel: its name, which stands for all of its text, what its text numbers as places, and bytes of shared memory, those it is launched with and all.
pub(super) struct Source {
    pub name: String,
    pub text: String,
    pub places: Vec<Place>,
    pub weights: Vec<Weight>,
    pub shared: usize,
    pub room: usize,
}

/// The kernel of a lane, as it is being written.
struct Writer<'a> {
    program: &'a Program,
    users: &'a Users,
    ops: &'a Range<usize>,
    /// Values in the order in which they are named.
    values: Vec<Value>,
    places: Vec<Place>,
    /// What lies in shared memory.
    weights: Vec<Weight>,
    body: String,
    /// Numbers of shared memory.
    used: usize,
}

impl<'a> Writer<'a> {
    fn new(program: &'a Program, users: &'a Users, ops: &'a Range<usize>) -> Self {
        let (values, places, weights, body) = (Vec::new(), Vec::new(), Vec::new(), String::new());
        Writer { program, users, ops, values, places, weights, body, used: 0 }
    }

    fn line(&mut self, text: &str) {
        writeln!(self.body, "        {text}").expect("strings take everything");
    }

    /// The place as source.
    fn at(&mut self, place: Place) -> String {
        self.places.push(place);
        format!("at[{}]", self.places.len() - 1)
    }

    /// Rows of a slice as source, `v` for values and `d` for gradients.
    fn rows(&mut self, kind: &str, s: Slice) -> String {
        let known = self.values.iter().position(|&v| v == s.value);
        let id = known.unwrap_or_else(|| {
            self.values.push(s.value);
            self.values.len() - 1
        });
        format!("{kind}{id} + {}", s.col / 8)
    }

    /// Declares the rows of all values.
    fn declare(&mut self, kind: &str, slices: &[Slice]) {
        for s in slices {
            self.rows(kind, *s);
        }
        for id in 0..self.values.len() {
            let tiles = self.ld(self.values[id]) / 8;
            self.line(&format!("float {kind}{id}[{tiles}][4] = {{}};"));
        }
    }

    fn ld(&self, v: Value) -> usize {
        self.program.values[v.0].cols
    }

    /// Something in shared memory, as source.
    fn weight(&mut self, param: usize, rows: usize, cols: usize, layout: Layout) -> String {
        let at = self.used;
        self.weights.push(Weight { param, rows, cols, layout, at });
        self.used += match layout {
            Layout::Rows => rows * cols,
            Layout::Fours { stride } => rows / 4 * stride,
            Layout::Vector => cols,
        };
        format!("shared + {at}")
    }

    fn weight_of(&mut self, map: &Joined, layout: Layout) -> String {
        self.weight(map.weight, map.y.cols, map.x.cols, layout)
    }

    fn vector(&mut self, param: usize, n: usize) -> String {
        self.weight(param, 1, n, Layout::Vector)
    }

    /// Whether operations after the chain, or whoever asked for the outputs, add to a gradient.
    fn begun(&self, v: Value) -> bool {
        self.users.grad_started(self.program, v, self.ops.end)
    }

    fn finish(self, kind: &str) -> Source {
        let mut hasher = DefaultHasher::new();
        (kind, &self.body).hash(&mut hasher);
        let name = format!("chain_{kind}_{:016x}", hasher.finish());
        let (count, shared, body) = (self.places.len(), 4 * self.used, &self.body);
        let fetch = match shared {
            0 => String::new(),
            _ => format!("fetch_weights(shared, task.weights, {shared}, &arrived);"),
        };
        let text = format!(
            "extern \"C\" __global__ void __launch_bounds__({CHAIN_THREADS}, 1) {name}(const ChainTask* tasks, const int* shape) {{
    next_may_start();
    const ChainTask task = tasks[blockIdx.y];
    int count = rows_of(task.space, shape);
    if (blockIdx.x * {CHAIN_ROWS} >= count) {{
        wait_for_last();
        return;
    }}
    __shared__ u64 at[{count}], arrived;
    float* shared = chain_memory();
    if (threadIdx.x == 0) {{
        barrier_init(&arrived, 1);
        asm volatile(\"fence.mbarrier_init.release.cluster;\" ::: \"memory\");
        // Weights were laid out before anything that follows could start.
        barrier_expect(&arrived, {shared});
        {fetch}
    }}
    for (int i = threadIdx.x; i < {count}; i += {CHAIN_THREADS}) at[i] = task.places[i];
    __syncthreads();
    wait_for_last();
    for (int tile = blockIdx.x * CHAIN_WARPS + threadIdx.x / 32; tile * 16 < count; tile += gridDim.x * CHAIN_WARPS) {{
        const ChainRows rows(tile, count);
{body}    }}
}}
"
        );
        // Places and the barrier lie there, too.
        Source { name, text, places: self.places, weights: self.weights, shared, room: shared + 8 * count + 8 }
    }
}

/// Columns of values that a lane reads but does not write, in runs.
pub(super) fn inputs(program: &Program, lane: &Lane) -> Vec<Slice> {
    let mut covered: Vec<(Value, Vec<bool>)> = Vec::new();
    for s in lane.steps.iter().flat_map(Step::reads).filter(|s| !lane.writes(s.value)) {
        let at = covered.iter().position(|c| c.0 == s.value).unwrap_or_else(|| {
            covered.push((s.value, vec![false; program.values[s.value.0].cols / 8]));
            covered.len() - 1
        });
        covered[at].1[s.col / 8..(s.col + s.cols) / 8].fill(true);
    }
    let mut runs = Vec::new();
    for (value, tiles) in covered {
        let mut begin = 0;
        for run in tiles.chunk_by(|a, b| a == b) {
            if run[0] {
                runs.push(Slice { value, col: 8 * begin, cols: 8 * run.len() });
            }
            begin += run.len();
        }
    }
    runs
}

/// The length of four rows for lanes that multiply by columns of four such fours.
fn backward_stride(k: usize) -> usize {
    4 * k + 8
}

/// Columns of a result that is not held which are made at a time.
fn streamed(n: usize) -> usize {
    [32, 16].into_iter().find(|c| n.is_multiple_of(*c)).expect("results are in sixteens")
}

pub(super) fn forward_source(program: &Program, users: &Users, ops: &Range<usize>, lane: &Lane) -> Source {
    let mut w = Writer::new(program, users, ops);
    let training = program.mode == Mode::Train;
    let held: Vec<Slice> = lane.steps.iter().filter(|s| lane.holds(s)).map(Step::y).collect();
    let inputs = inputs(program, lane);
    w.declare("v", &[inputs.clone(), held].concat());
    for s in inputs {
        let (to, from, ld) = (w.rows("v", s), w.at(Place::Value(s.value)), w.ld(s.value));
        w.line(&format!("load_rows<{}, {ld}>({to}, {from}, {}, rows);", s.cols, s.col));
    }
    w.line(ARRIVED);
    for step in &lane.steps {
        let (y, n) = (step.y(), step.y().cols);
        let ld = w.ld(y.value);
        if let (Step::Map { map, relu }, false) = (step, lane.holds(step)) {
            let (k, c) = (map.x.cols, streamed(n));
            let (x, weight) = (w.rows("v", map.x), w.weight_of(map, Layout::Rows));
            let bias = map.bias.map_or("nullptr".to_owned(), |b| w.vector(b, n));
            let (to, biased) = (w.at(Place::Value(y.value)), map.bias.is_some());
            w.line(&format!(
                "stream_product<{n}, {k}, {ld}, {c}, {biased}, {relu}>({to}, {}, {x}, {weight}, {bias}, rows);",
                y.col
            ));
            continue;
        }
        let to = w.rows("v", y);
        match step {
            Step::Map { map, relu } => {
                if let Some(b) = map.bias {
                    let bias = w.vector(b, n);
                    w.line(&format!("spread<{n}>({to}, {bias});"));
                }
                let (x, weight) = (w.rows("v", map.x), w.weight_of(map, Layout::Rows));
                w.line(&format!("multiply<{n}, {}>({to}, {x}, {weight});", map.x.cols));
                if *relu {
                    w.line(&format!("keep_positive<{n}>({to});"));
                }
                if let Some(r) = map.residual {
                    let from = w.rows("v", r);
                    w.line(&format!("add_to<{n}>({to}, {from});"));
                }
            }
            Step::Sum { inputs, .. } => {
                for &s in inputs {
                    let from = w.rows("v", s);
                    w.line(&format!("add_to<{n}>({to}, {from});"));
                }
            }
        }
        if let Some(norm) = step.norm() {
            let [gain, shift] = [norm.gain, norm.shift].map(|p| w.vector(program.params.spec(p).offset, n));
            let [hat, inverse] = [norm.normalised, norm.inv_std].map(|v| w.at(Place::Value(v)));
            w.line(&format!("normalise<{n}, {training}>({to}, {gain}, {shift}, {hat}, {inverse}, rows);"));
        }
        let outside = users.readers[y.value.0].iter().any(|i| !ops.contains(i));
        if training || outside || program.outputs.contains(&y.value) {
            let place = w.at(Place::Value(y.value));
            w.line(&format!("store_rows<{n}, {ld}>({place}, {}, {to}, rows);", y.col));
        }
    }
    w.finish("forward")
}

pub(super) fn backward_source(program: &Program, users: &Users, ops: &Range<usize>, lane: &Lane) -> Source {
    let mut w = Writer::new(program, users, ops);
    let wants = |s: Slice| program.values[s.value.0].grad;
    let held: Vec<Slice> = lane.steps.iter().filter(|s| lane.holds(s)).map(Step::y).collect();
    let inputs: Vec<Slice> = inputs(program, lane).into_iter().filter(|&s| wants(s)).collect();
    w.declare("d", &[held, inputs.clone()].concat());
    let declared = std::mem::take(&mut w.body);
    // What each step reads from memory, and what it does.
    let mut steps = Vec::new();
    for (i, step) in lane.steps.iter().enumerate().rev() {
        let (y, n) = (step.y(), step.y().cols);
        let ld = w.ld(y.value);
        if let (Step::Map { map, .. }, false) = (step, lane.holds(step)) {
            // Whoever wrote this gradient has gated it: nobody of the chain reads the value.
            if wants(map.x) {
                let (k, stride, c) = (map.x.cols, backward_stride(map.x.cols), streamed(n));
                let (to, from) = (w.rows("d", map.x), w.at(Place::Gradient(y.value)));
                let weight = w.weight_of(map, Layout::Fours { stride });
                w.line(&format!(
                    "stream_back<{n}, {k}, {stride}, {ld}, {c}>({to}, {from}, {}, {weight}, rows);",
                    y.col
                ));
            }
            steps.push((String::new(), std::mem::take(&mut w.body)));
            continue;
        }
        let d = w.rows("d", y);
        if w.begun(y.value) {
            let from = w.at(Place::Gradient(y.value));
            w.line(&format!("float g{i}[{}][4];", n / 8));
            w.line(&format!("load_gradients<{n}, {ld}>(g{i}, {from}, {}, rows);", y.col));
        }
        if let Some(norm) = step.norm() {
            let [hat, inverse] = [norm.normalised, norm.inv_std].map(|v| w.at(Place::Value(v)));
            w.line(&format!("float h{i}[{}][4], i{i}[2];", n / 8));
            w.line(&format!("load_rows<{n}, {n}>(h{i}, {hat}, 0, rows);"));
            w.line(&format!("load_inverses(i{i}, {inverse}, rows);"));
        }
        let relu = matches!(step, Step::Map { relu: true, .. });
        if relu {
            let from = w.at(Place::Value(y.value));
            w.line(&format!("float y{i}[{}][4];", n / 8));
            w.line(&format!("load_rows<{n}, {ld}>(y{i}, {from}, {}, rows);", y.col));
        }
        let mut loads = std::mem::take(&mut w.body);
        if w.begun(y.value) {
            w.line(&format!("add_to<{n}>({d}, g{i});"));
        }
        if let Some(norm) = step.norm() {
            let gain = w.vector(program.params.spec(norm.gain).offset, n);
            let parts = w.at(Place::Parts { norm, cols: n });
            w.line(&format!("normalise_back<{n}>({d}, h{i}, i{i}, {gain}, {parts}, rows);"));
        }
        if relu {
            w.line(&format!("gate<{n}>({d}, y{i});"));
        }
        match step {
            Step::Map { map, .. } => {
                let to = w.at(Place::Gradient(y.value));
                w.line(&format!("store_rows<{n}, {ld}>({to}, {}, {d}, rows);", y.col));
                if let Some(r) = map.residual.filter(|&r| wants(r)) {
                    let to = w.rows("d", r);
                    w.line(&format!("add_to<{n}>({to}, {d});"));
                }
                if wants(map.x) {
                    let (k, stride) = (map.x.cols, backward_stride(map.x.cols));
                    let (to, weight) = (w.rows("d", map.x), w.weight_of(map, Layout::Fours { stride }));
                    w.line(&format!("multiply_back<{n}, {k}, {stride}>({to}, {d}, {weight});"));
                }
            }
            Step::Sum { inputs, .. } => {
                for &s in inputs.iter().filter(|&&s| wants(s)) {
                    let to = w.rows("d", s);
                    w.line(&format!("add_to<{n}>({to}, {d});"));
                }
            }
        }
        let mut work = std::mem::take(&mut w.body);
        if n > MOST_AHEAD {
            work = std::mem::take(&mut loads) + &work;
        }
        steps.push((loads, work));
    }
    // Each step's reads are on their way while the one before it works.
    w.body = declared;
    for i in 0..=steps.len() {
        w.body += steps.get(i).map_or("", |s| &s.0);
        if i == 0 {
            w.line(ARRIVED);
        }
        w.body += i.checked_sub(1).map_or("", |before| &steps[before].1);
    }
    for s in inputs {
        let (from, to, ld) = (w.rows("d", s), w.at(Place::Gradient(s.value)), w.ld(s.value));
        if w.begun(s.value) {
            w.line("{");
            w.line(&format!("float before[{}][4];", s.cols / 8));
            w.line(&format!("load_gradients<{}, {ld}>(before, {to}, {}, rows);", s.cols, s.col));
            w.line(&format!("add_to<{}>({from}, before);", s.cols));
            w.line("}");
        }
        w.line(&format!("store_rows<{}, {ld}>({to}, {}, {from}, rows);", s.cols, s.col));
    }
    w.finish("backward")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_read_weights_together_meet_no_bank_twice() {
        for k in (16..=256_usize).step_by(16) {
            // Eight lanes read sixteen bytes each at a time: two rows, or columns, and all t.
            let apart = |place: &dyn Fn(usize, usize) -> usize| {
                for first in [0, 2, 4, 6] {
                    let lanes = (0..8).map(|lane| place(first + lane / 4, lane % 4));
                    let mut banks: Vec<usize> = lanes.flat_map(|at| (at..at + 4).map(|n| n % 32)).collect();
                    banks.sort_unstable();
                    banks.dedup();
                    assert_eq!(banks.len(), 32, "{k} columns");
                }
            };
            let dealt = |g: usize| g / 2 * 4 + g % 2;
            let aside = |g: usize| if k.is_multiple_of(32) { g % 2 * 16 } else { 0 };
            apart(&|g, t| dealt(g) * k + ((4 * t) ^ aside(g)));
            apart(&|g, t| t * backward_stride(k) + dealt(g) * 4);
        }
    }

    #[test]
    fn blocks_are_those_of_the_kernel() {
        let kernel = include_str!("../kernels/row_chain.cu");
        assert!(kernel.contains(&format!("#define CHAIN_WARPS {}\n", CHAIN_THREADS / 32)));
        assert!(kernel.contains(&format!("tile * {WARP_ROWS} + h * 8")));
    }
}
