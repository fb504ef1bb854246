//! CUDA source of row kernels: shapes are compile-time constants, so that rows stay in registers. The device functions
//! are in `kernels/row_kernel.cu`.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use super::fused_linear::FusedLinear;
use super::row_kernels::{Component, Step};
use crate::flow::Users;
use crate::program::{Mode, Norm, Program, Slice, Value};

/// Threads of a block, rows of a warp, and rows of a block.
pub(super) const ROW_KERNEL_THREADS: u32 = 256;
pub(super) const WARP_ROWS: usize = 16;
pub(super) const ROW_KERNEL_ROWS: usize = ROW_KERNEL_THREADS as usize / 32 * WARP_ROWS;
/// Maximal columns of a step whose reads are issued before the preceding step.
const MAX_PREFETCH_COLUMNS: usize = 64;

/// Waits for the weights; reads issued earlier overlap with it.
const WAIT_FOR_WEIGHTS: &str = "mbarrier_wait(&arrived, 0);";

/// An operand of a row kernel.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    Value(Value),
    Gradient(Value),
    /// Partial gradients of a norm's gain and shift.
    NormPartials {
        norm: Norm,
        cols: usize,
    },
}

/// Layout of a weight in shared memory.
#[derive(Clone, Copy)]
pub(super) enum Layout {
    /// Row-major. If rows start at the same bank, odd rows swap neighbouring groups of sixteen columns.
    RowMajor,
    /// Four rows interleaved, `stride` numbers between groups of four.
    Interleaved4 { stride: usize },
    /// One row, not rounded.
    Vector,
}

/// A weight or vector: its parameter offset, and its offset in shared memory.
pub(super) struct Weight {
    pub param: usize,
    pub rows: usize,
    pub cols: usize,
    pub layout: Layout,
    pub at: usize,
}

/// A kernel: its name with a hash of its text, the operands its text numbers, and bytes of dynamic and of all shared
/// memory.
pub(super) struct Source {
    pub name: String,
    pub text: String,
    pub operands: Vec<Operand>,
    pub weights: Vec<Weight>,
    pub shared: usize,
    pub block_bytes: usize,
}

/// Writes the kernel of a component.
struct Writer<'a> {
    program: &'a Program,
    users: &'a Users,
    ops: &'a Range<usize>,
    /// Values in the order in which they are named.
    values: Vec<Value>,
    operands: Vec<Operand>,
    /// Contents of shared memory.
    weights: Vec<Weight>,
    body: String,
    /// Numbers of shared memory in use.
    used: usize,
}

impl<'a> Writer<'a> {
    fn new(program: &'a Program, users: &'a Users, ops: &'a Range<usize>) -> Self {
        let (values, operands, weights, body) = (Vec::new(), Vec::new(), Vec::new(), String::new());
        Writer { program, users, ops, values, operands, weights, body, used: 0 }
    }

    fn line(&mut self, text: &str) {
        writeln!(self.body, "        {text}").expect("writing to a string cannot fail");
    }

    /// The address of an operand, as source.
    fn operand(&mut self, operand: Operand) -> String {
        self.operands.push(operand);
        format!("at[{}]", self.operands.len() - 1)
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

    /// A weight in shared memory, as source.
    fn weight(&mut self, param: usize, rows: usize, cols: usize, layout: Layout) -> String {
        let at = self.used;
        self.weights.push(Weight { param, rows, cols, layout, at });
        self.used += match layout {
            Layout::RowMajor => rows * cols,
            Layout::Interleaved4 { stride } => rows / 4 * stride,
            Layout::Vector => cols,
        };
        format!("shared + {at}")
    }

    fn weight_of(&mut self, map: &FusedLinear, layout: Layout) -> String {
        self.weight(map.weight, map.y.cols, map.x.cols, layout)
    }

    fn vector(&mut self, param: usize, n: usize) -> String {
        self.weight(param, 1, n, Layout::Vector)
    }

    /// Whether operations after the row kernel, or the loss, add to a gradient.
    fn grad_started(&self, v: Value) -> bool {
        self.users.grad_started(self.program, v, self.ops.end)
    }

    fn finish(self, kind: &str) -> Source {
        let mut hasher = DefaultHasher::new();
        (kind, &self.body).hash(&mut hasher);
        let name = format!("row_kernel_{kind}_{:016x}", hasher.finish());
        let (count, shared, body) = (self.operands.len(), 4 * self.used, &self.body);
        let fetch = match shared {
            0 => String::new(),
            _ => format!("bulk_load(shared, task.weights, {shared}, &arrived);"),
        };
        let text = format!(
            "extern \"C\" __global__ void __launch_bounds__({ROW_KERNEL_THREADS}, 1) {name}(const RowKernelTask* tasks, const int* shape) {{
    launch_dependents();
    const RowKernelTask task = tasks[blockIdx.y];
    int count = row_count(task.space, shape);
    if (blockIdx.x * {ROW_KERNEL_ROWS} >= count) {{
        grid_dependency_wait();
        return;
    }}
    __shared__ u64 at[{count}], arrived;
    float* shared = packed_weights();
    if (threadIdx.x == 0) {{
        mbarrier_init(&arrived, 1);
        asm volatile(\"fence.mbarrier_init.release.cluster;\" ::: \"memory\");
        // The weights were packed before any kernel that follows could start.
        mbarrier_expect_bytes(&arrived, {shared});
        {fetch}
    }}
    for (int i = threadIdx.x; i < {count}; i += {ROW_KERNEL_THREADS}) at[i] = task.addresses[i];
    __syncthreads();
    grid_dependency_wait();
    for (int tile = blockIdx.x * ROW_KERNEL_WARPS + threadIdx.x / 32; tile * 16 < count; tile += gridDim.x * ROW_KERNEL_WARPS) {{
        const WarpRows rows(tile, count);
{body}    }}
}}
"
        );
        // Addresses and the mbarrier are in shared memory, too.
        Source {
            name,
            text,
            operands: self.operands,
            weights: self.weights,
            shared,
            block_bytes: shared + 8 * count + 8,
        }
    }
}

/// Columns of values that a component reads but does not write, as contiguous runs.
pub(super) fn inputs(program: &Program, component: &Component) -> Vec<Slice> {
    let mut covered: Vec<(Value, Vec<bool>)> = Vec::new();
    for s in component.steps.iter().flat_map(Step::reads).filter(|s| !component.writes(s.value)) {
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

/// Stride of four interleaved rows, free of bank conflicts for the transposed product.
fn backward_stride(k: usize) -> usize {
    4 * k + 8
}

/// Columns of a streamed result that are computed at a time.
fn streamed(n: usize) -> usize {
    [32, 16].into_iter().find(|c| n.is_multiple_of(*c)).expect("results are in sixteens")
}

pub(super) fn forward_source(program: &Program, users: &Users, ops: &Range<usize>, component: &Component) -> Source {
    let mut w = Writer::new(program, users, ops);
    let training = program.mode == Mode::Train;
    let held: Vec<Slice> = component.steps.iter().filter(|s| component.holds(s)).map(Step::y).collect();
    let inputs = inputs(program, component);
    w.declare("v", &[inputs.clone(), held].concat());
    for s in inputs {
        let (to, from, ld) = (w.rows("v", s), w.operand(Operand::Value(s.value)), w.ld(s.value));
        w.line(&format!("load_rows<{}, {ld}>({to}, {from}, {}, rows);", s.cols, s.col));
    }
    w.line(WAIT_FOR_WEIGHTS);
    for step in &component.steps {
        let (y, n) = (step.y(), step.y().cols);
        let ld = w.ld(y.value);
        if let (Step::Map { map, relu }, false) = (step, component.holds(step)) {
            let (k, c) = (map.x.cols, streamed(n));
            let (x, weight) = (w.rows("v", map.x), w.weight_of(map, Layout::RowMajor));
            let bias = map.bias.map_or("nullptr".to_owned(), |b| w.vector(b, n));
            let (to, biased) = (w.operand(Operand::Value(y.value)), map.bias.is_some());
            w.line(&format!(
                "stream_matmul<{n}, {k}, {ld}, {c}, {biased}, {relu}>({to}, {}, {x}, {weight}, {bias}, rows);",
                y.col
            ));
            continue;
        }
        let to = w.rows("v", y);
        match step {
            Step::Map { map, relu } => {
                if let Some(b) = map.bias {
                    let bias = w.vector(b, n);
                    w.line(&format!("broadcast<{n}>({to}, {bias});"));
                }
                let (x, weight) = (w.rows("v", map.x), w.weight_of(map, Layout::RowMajor));
                w.line(&format!("matmul<{n}, {}>({to}, {x}, {weight});", map.x.cols));
                if *relu {
                    w.line(&format!("relu<{n}>({to});"));
                }
                if let Some(r) = map.residual {
                    let from = w.rows("v", r);
                    w.line(&format!("add<{n}>({to}, {from});"));
                }
            }
            Step::Sum { inputs, .. } => {
                for &s in inputs {
                    let from = w.rows("v", s);
                    w.line(&format!("add<{n}>({to}, {from});"));
                }
            }
        }
        if let Some(norm) = step.norm() {
            let [gain, shift] = [norm.gain, norm.shift].map(|p| w.vector(program.params.spec(p).offset, n));
            let [hat, inverse] = [norm.normalised, norm.inv_std].map(|v| w.operand(Operand::Value(v)));
            w.line(&format!("layer_norm<{n}, {training}>({to}, {gain}, {shift}, {hat}, {inverse}, rows);"));
        }
        let outside = users.readers[y.value.0].iter().any(|i| !ops.contains(i));
        if training || outside || program.outputs.contains(&y.value) {
            let operand = w.operand(Operand::Value(y.value));
            w.line(&format!("store_rows<{n}, {ld}>({operand}, {}, {to}, rows);", y.col));
        }
    }
    w.finish("forward")
}

pub(super) fn backward_source(program: &Program, users: &Users, ops: &Range<usize>, component: &Component) -> Source {
    let mut w = Writer::new(program, users, ops);
    let wants = |s: Slice| program.values[s.value.0].grad;
    let held: Vec<Slice> = component.steps.iter().filter(|s| component.holds(s)).map(Step::y).collect();
    let inputs: Vec<Slice> = inputs(program, component).into_iter().filter(|&s| wants(s)).collect();
    w.declare("d", &[held, inputs.clone()].concat());
    let declared = std::mem::take(&mut w.body);
    // The reads of each step, and its work.
    let mut steps = Vec::new();
    for (i, step) in component.steps.iter().enumerate().rev() {
        let (y, n) = (step.y(), step.y().cols);
        let ld = w.ld(y.value);
        if let (Step::Map { map, .. }, false) = (step, component.holds(step)) {
            // The writer of this gradient applied the ReLU gate: no step of the row kernel reads the value.
            if wants(map.x) {
                let (k, stride, c) = (map.x.cols, backward_stride(map.x.cols), streamed(n));
                let (to, from) = (w.rows("d", map.x), w.operand(Operand::Gradient(y.value)));
                let weight = w.weight_of(map, Layout::Interleaved4 { stride });
                w.line(&format!(
                    "stream_matmul_transposed<{n}, {k}, {stride}, {ld}, {c}>({to}, {from}, {}, {weight}, rows);",
                    y.col
                ));
            }
            steps.push((String::new(), std::mem::take(&mut w.body)));
            continue;
        }
        let d = w.rows("d", y);
        if w.grad_started(y.value) {
            let from = w.operand(Operand::Gradient(y.value));
            w.line(&format!("float g{i}[{}][4];", n / 8));
            w.line(&format!("load_rows_or_zero<{n}, {ld}>(g{i}, {from}, {}, rows);", y.col));
        }
        if let Some(norm) = step.norm() {
            let [hat, inverse] = [norm.normalised, norm.inv_std].map(|v| w.operand(Operand::Value(v)));
            w.line(&format!("float h{i}[{}][4], i{i}[2];", n / 8));
            w.line(&format!("load_rows<{n}, {n}>(h{i}, {hat}, 0, rows);"));
            w.line(&format!("load_inv_std(i{i}, {inverse}, rows);"));
        }
        let relu = matches!(step, Step::Map { relu: true, .. });
        if relu {
            let from = w.operand(Operand::Value(y.value));
            w.line(&format!("float y{i}[{}][4];", n / 8));
            w.line(&format!("load_rows<{n}, {ld}>(y{i}, {from}, {}, rows);", y.col));
        }
        let mut loads = std::mem::take(&mut w.body);
        if w.grad_started(y.value) {
            w.line(&format!("add<{n}>({d}, g{i});"));
        }
        if let Some(norm) = step.norm() {
            let gain = w.vector(program.params.spec(norm.gain).offset, n);
            let partials = w.operand(Operand::NormPartials { norm, cols: n });
            w.line(&format!("layer_norm_backward<{n}>({d}, h{i}, i{i}, {gain}, {partials}, rows);"));
        }
        if relu {
            w.line(&format!("relu_backward<{n}>({d}, y{i});"));
        }
        match step {
            Step::Map { map, .. } => {
                let to = w.operand(Operand::Gradient(y.value));
                w.line(&format!("store_rows<{n}, {ld}>({to}, {}, {d}, rows);", y.col));
                if let Some(r) = map.residual.filter(|&r| wants(r)) {
                    let to = w.rows("d", r);
                    w.line(&format!("add<{n}>({to}, {d});"));
                }
                if wants(map.x) {
                    let (k, stride) = (map.x.cols, backward_stride(map.x.cols));
                    let (to, weight) = (w.rows("d", map.x), w.weight_of(map, Layout::Interleaved4 { stride }));
                    w.line(&format!("matmul_transposed<{n}, {k}, {stride}>({to}, {d}, {weight});"));
                }
            }
            Step::Sum { inputs, .. } => {
                for &s in inputs.iter().filter(|&&s| wants(s)) {
                    let to = w.rows("d", s);
                    w.line(&format!("add<{n}>({to}, {d});"));
                }
            }
        }
        let mut work = std::mem::take(&mut w.body);
        if n > MAX_PREFETCH_COLUMNS {
            work = std::mem::take(&mut loads) + &work;
        }
        steps.push((loads, work));
    }
    // The reads of each step overlap with the work of the preceding one.
    w.body = declared;
    for i in 0..=steps.len() {
        w.body += steps.get(i).map_or("", |s| &s.0);
        if i == 0 {
            w.line(WAIT_FOR_WEIGHTS);
        }
        w.body += i.checked_sub(1).map_or("", |before| &steps[before].1);
    }
    for s in inputs {
        let (from, to, ld) = (w.rows("d", s), w.operand(Operand::Gradient(s.value)), w.ld(s.value));
        if w.grad_started(s.value) {
            w.line("{");
            w.line(&format!("float before[{}][4];", s.cols / 8));
            w.line(&format!("load_rows_or_zero<{}, {ld}>(before, {to}, {}, rows);", s.cols, s.col));
            w.line(&format!("add<{}>({from}, before);", s.cols));
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
    fn lanes_read_weights_without_bank_conflicts() {
        for k in (16..=256_usize).step_by(16) {
            // Eight lanes read sixteen bytes each at a time: two rows, or columns, and all t.
            let unfused = |operand: &dyn Fn(usize, usize) -> usize| {
                for first in [0, 2, 4, 6] {
                    let components = (0..8).map(|component| operand(first + component / 4, component % 4));
                    let mut banks: Vec<usize> = components.flat_map(|at| (at..at + 4).map(|n| n % 32)).collect();
                    banks.sort_unstable();
                    banks.dedup();
                    assert_eq!(banks.len(), 32, "{k} columns");
                }
            };
            let lane_column = |g: usize| g / 2 * 4 + g % 2;
            let swizzle = |g: usize| if k.is_multiple_of(32) { g % 2 * 16 } else { 0 };
            unfused(&|g, t| lane_column(g) * k + ((4 * t) ^ swizzle(g)));
            unfused(&|g, t| t * backward_stride(k) + lane_column(g) * 4);
        }
    }

    #[test]
    fn the_kernel_has_the_same_block_size() {
        let kernel = include_str!("../kernels/row_kernel.cu");
        assert!(kernel.contains(&format!("#define ROW_KERNEL_WARPS {}\n", ROW_KERNEL_THREADS / 32)));
        assert!(kernel.contains(&format!("tile * {WARP_ROWS} + h * 8")));
    }
}
