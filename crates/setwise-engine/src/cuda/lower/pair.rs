//! Networks on pairs.

use super::super::driver;
use super::super::kernel_tasks as t;
use super::linear::{LinearProduct, WeightUse, empty_task};
use super::{Command, Lowering};
use crate::error::Error;
use crate::program::{Op, Pair, Pairs, Reduce, Slice, Value};

/// Elements of a block of the max and of the left gradient; partners of a block of the right gradient.
const BLOCK_ELEMENTS: usize = 32;
/// Warps of a block.
const WARPS: usize = 8;
/// Target number of blocks for the partial sums of the second layer's gradient.
const WEIGHT_BLOCKS: usize = 1056;

/// Outputs of a warp of the weight gradient; hidden columns and warps of a block with rows in shared memory.
const OUTPUTS_OF_WARP: usize = 16;
const CACHED_COLUMNS: usize = 64;
const CACHED_WARPS: usize = 16;
/// Elements between two barriers where left gradients are computed too, and bytes of their double-buffered sums.
const CACHED_ELEMENTS: usize = 8;
const LEFT_GRAD_BYTES: usize = 2 * CACHED_ELEMENTS * CACHED_WARPS * CACHED_COLUMNS * 4;

/// `pair_max_slabs`: outputs of a block, elements of a warp, and bytes of shared memory. These hold eight slabs of 32
/// hidden columns, and for every warp three stages of elements and partners and its argmax.
const SLAB_OUTPUTS: usize = 128;
const SLAB_ELEMENTS: usize = 8;
const SLAB_BYTES: usize = 1024 + 4 * (8 * SLAB_OUTPUTS * 32 + WARPS * (3 * 512 + SLAB_OUTPUTS * SLAB_ELEMENTS));

/// Hidden columns of an f16 slab.
const F16_SLAB_COLUMNS: usize = 64;
/// Blocks that convert each operand to f16 and find its maximum.
const F16_BLOCKS: usize = 96;

/// Shared memory of a max: the second layer for some outputs, two elements for every warp, and tiles of partners.
#[derive(Debug, PartialEq)]
struct MaxTiling {
    outputs: usize,
    tile: usize,
    stages: usize,
    bytes: usize,
}

impl MaxTiling {
    /// As many outputs as exist, or as fit with at least 16 partners. All partners are resident where they fit;
    /// otherwise two tiles alternate. None if not even 16 outputs fit.
    fn new(hidden: usize, outputs: usize, partners: usize, sm90: bool, max_bytes: usize) -> Option<MaxTiling> {
        let (columns, all) = (hidden.next_multiple_of(32), partners.max(1).next_multiple_of(16));
        let (widest, padding) = if sm90 { (128, 0) } else { (64, 16) };
        let width = outputs.next_power_of_two().clamp(16, widest);
        std::iter::successors(Some(width), |n| (*n > 16).then_some(n / 2)).find_map(|outputs| {
            let fixed = 4 * (outputs * (columns + padding) + 2 * WARPS * columns) + 1024;
            let row = 4 * (columns + 16);
            let bytes = |tile: usize, stages: usize| fixed + stages * tile * row;
            // Two blocks per multiprocessor, unless registers forbid it or partners would get too little.
            let half = max_bytes / 2 - 1024;
            let limit = if outputs <= 64 && bytes(32, 2) <= half { half } else { max_bytes };
            let tiles = |stages: usize| limit.saturating_sub(fixed) / (stages * row) / 16 * 16;
            let (tile, stages) = match (tiles(1), tiles(2)) {
                (one, _) if one >= all => (all, 1),
                (_, two) if two >= 16 => (two, 2),
                (one, _) => (one.min(16), 1),
            };
            (tile > 0).then(|| MaxTiling { outputs, tile, stages, bytes: bytes(tile, stages) })
        })
    }
}

impl<'a> Lowering<'a> {
    fn pair_tasks(&self, op: &Pairs, backward: bool) -> Vec<t::PairTask> {
        let vectorisable =
            op.nets.iter().all(|n| self.aligned(n.left) && self.aligned(n.right) && self.aligned_param(n.weight));
        op.nets
            .iter()
            .map(|n| {
                let ((left, ld_left), (right, ld_right), (y, ldy)) =
                    (self.slice(n.left), self.slice(n.right), self.slice(n.y));
                let grad = |s: Slice| if backward { self.grad_slice(s).0 } else { 0 };
                t::PairTask {
                    left,
                    right,
                    w: self.param(n.weight),
                    bias: self.param(n.bias),
                    y,
                    saved: self.value(n.saved),
                    dy: grad(n.y),
                    d_left: grad(n.left),
                    d_right: grad(n.right),
                    d_saved: 0,
                    partials: 0,
                    w_map: 0,
                    w_f16: 0,
                    w_f16_map: 0,
                    left_f16: 0,
                    right_f16: 0,
                    max_abs: 0,
                    left_entries: 0,
                    right_entries: 0,
                    right_starts: 0,
                    ld_left,
                    ld_right,
                    ldy,
                    hidden: n.left.cols as i32,
                    outputs: n.y.cols as i32,
                    splits: 0,
                    vec: i32::from(vectorisable),
                    vec_y: i32::from(self.aligned(n.y)),
                    tile: 0,
                    stages: 0,
                    row_bytes: 0,
                    grad_sides: 0,
                    space: self.space(n.left.value),
                    right_space: self.space(n.right.value),
                }
            })
            .collect()
    }

    fn max_len_of(&self, values: impl Iterator<Item = Value>) -> usize {
        values.map(|v| self.max_set_len(v)).max().unwrap_or(0)
    }

    pub(super) fn pairs_forward(&mut self, op: &Pairs) -> Result<(), Error> {
        let mut tasks = self.pair_tasks(op, false);
        let net = &op.nets[0];
        let rows = op.nets.iter().map(|n| self.rows(n.left.value)).max().unwrap_or(0);
        let max_set_len = self.max_len_of(op.nets.iter().map(|n| n.left.value));
        if net.reduce == Reduce::Max {
            let (outputs, sm90) = (net.y.cols, self.kernels.sm90);
            if self.uses_slabs(op) {
                return self.pair_max_slabs(op, tasks);
            }
            let partners = self.max_len_of(op.nets.iter().map(|n| n.right.value));
            let Some(tiling) = MaxTiling::new(net.left.cols, outputs, partners, sm90, self.kernels.shared_memory)
            else {
                return self.launch("pair_max", &tasks, [rows, outputs.div_ceil(64), tasks.len()], 128, 0);
            };
            for task in &mut tasks {
                (task.tile, task.stages) = (tiling.tile as i32, tiling.stages as i32);
            }
            let name = format!("pair_max{}_n{}", if sm90 { "_sm90" } else { "" }, tiling.outputs);
            let blocks = outputs.div_ceil(tiling.outputs) * max_set_len.div_ceil(BLOCK_ELEMENTS);
            return self.launch(&name, &tasks, [blocks, self.capacity.examples, tasks.len()], 256, tiling.bytes);
        }
        let grid = [max_set_len.div_ceil(8).min(64), self.capacity.examples, tasks.len()];
        self.launch("pair_relu_sum", &tasks, grid, 128, 0)?;
        let mut products = Vec::new();
        for n in &op.nets {
            let (y, ldy) = self.slice(n.y);
            let k = n.left.cols as i32;
            let vec = i32::from(n.left.cols.is_multiple_of(4));
            let vec_b = i32::from(vec == 1 && self.aligned_param(n.weight));
            let term = t::LinearTerm {
                a: self.value(n.saved),
                b: self.param(n.weight),
                lda: k,
                ldb: k,
                maps: 0,
                k,
                vec_a: vec,
                vec_b,
                pad: 0,
            };
            let task = t::LinearTask { y, ldy, n: n.y.cols as i32, ..empty_task(self.space(n.left.value)) };
            products.push(LinearProduct { task, terms: vec![term], rows: self.rows(n.left.value) });
        }
        self.linear_product(&products, rows)?;
        self.launch_grid_stride("pair_sum_bias", &tasks, rows * net.y.cols)
    }

    /// Whether `pair_max_slabs` computes a max: outputs fill more than half a block, and TMA can load W.
    fn uses_slabs(&self, op: &Pairs) -> bool {
        let (hidden, outputs) = (op.nets[0].left.cols, op.nets[0].y.cols);
        self.kernels.sm90
            && 2 * outputs > SLAB_OUTPUTS
            && hidden.is_multiple_of(4)
            && op.nets.iter().all(|n| self.aligned_param(n.weight))
            && self.kernels.has_shared_memory(SLAB_BYTES)
    }

    /// Whether its products may use f16: rows allow sixteen-byte reads. The range of the numbers decides at run time.
    fn uses_f16(&self, op: &Pairs) -> bool {
        self.uses_slabs(op) && op.nets.iter().all(|n| self.aligned(n.left) && self.aligned(n.right))
    }

    /// 32-bit words for the rows of a value in f16.
    fn f16_numbers(&self, v: Value, hidden: usize) -> usize {
        (self.rows(v) * hidden.next_multiple_of(F16_SLAB_COLUMNS) / 2).next_multiple_of(64)
    }

    /// f16 rows serve one operation at a time, so all operations share the largest buffer.
    fn alloc_f16_rows(&mut self) -> t::DevicePtr {
        if let Some(at) = self.f16_rows {
            return at;
        }
        let of = |n: &Pair| [n.left, n.right].iter().map(|s| self.f16_numbers(s.value, s.cols)).sum::<usize>();
        let all = self.program.ops.iter().filter_map(|op| match op {
            Op::Pairs(p) if p.nets[0].reduce == Reduce::Max && self.uses_f16(p) => Some(p.nets.iter().map(of).sum()),
            _ => None,
        });
        let numbers = all.max().unwrap_or(0);
        let at = self.alloc_workspace(numbers);
        self.f16_rows = Some(at);
        at
    }

    fn pair_max_slabs(&mut self, op: &Pairs, mut tasks: Vec<t::PairTask>) -> Result<(), Error> {
        let (hidden, outputs) = (op.nets[0].left.cols, op.nets[0].y.cols);
        // Both kernels are launched; the maxima of u, v and W decide on the device which one works.
        let f16 = self.uses_f16(op);
        let padded = hidden.next_multiple_of(F16_SLAB_COLUMNS);
        let mut rows_at = if f16 { self.alloc_f16_rows() } else { 0 };
        let max_abs = self.alloc_workspace(3 * tasks.len());
        for (i, task) in tasks.iter_mut().enumerate() {
            let map = driver::tensor_map(task.w, outputs, hidden, hidden, SLAB_OUTPUTS)?;
            task.w_map = self.task_table.push(&[map]);
            if f16 {
                task.w_f16 = self.alloc_workspace((outputs * padded).div_ceil(2));
                task.max_abs = max_abs + 12 * i as u64;
                let map = driver::f16_tensor_map(task.w_f16, outputs, padded, SLAB_OUTPUTS)?;
                task.w_f16_map = self.task_table.push(&[map]);
                let mut alloc = |v: Value| {
                    let at = rows_at;
                    rows_at += 4 * self.f16_numbers(v, hidden) as u64;
                    at
                };
                (task.left_f16, task.right_f16) = (alloc(op.nets[i].left.value), alloc(op.nets[i].right.value));
            }
        }
        if f16 {
            self.commands.push(Command::Memset { at: max_abs, bytes: 12 * tasks.len() });
            self.launch("pair_to_f16", &tasks, [3 * F16_BLOCKS, tasks.len(), 1], 256, 0)?;
        }
        // Elements of an example form groups; only the last has gaps.
        let examples = self.capacity.examples;
        let groups = op.nets.iter().map(|n| {
            let (rows, max_set_len) = (self.rows(n.left.value), self.max_set_len(n.left.value));
            let gaps = examples * (SLAB_ELEMENTS - 1);
            ((rows + gaps) / SLAB_ELEMENTS).min(examples * max_set_len.div_ceil(SLAB_ELEMENTS))
        });
        let blocks = groups.max().unwrap_or(0).div_ceil(WARPS) * outputs.div_ceil(SLAB_OUTPUTS);
        let names: &[&str] = if f16 { &["pair_max_slabs_f16", "pair_max_slabs"] } else { &["pair_max_slabs"] };
        names.iter().try_for_each(|name| {
            self.launch(name, &tasks, [blocks, tasks.len(), 1], 32 * WARPS as u32 + 128, SLAB_BYTES)
        })
    }

    /// Left and right gradients of a max by gathering, without sorted entries.
    fn pair_argmax_grads(&mut self, op: &Pairs, tasks: &[t::PairTask]) -> Result<(), Error> {
        let (hidden, examples) = (op.nets[0].left.cols, self.capacity.examples);
        let of = |b: &Self, value: fn(&Pair) -> Value, width: usize| {
            let max_set_len = b.max_len_of(op.nets.iter().map(value));
            [max_set_len.div_ceil(BLOCK_ELEMENTS), examples, tasks.len() * hidden.div_ceil(width)]
        };
        self.launch("pair_max_left_grad", tasks, of(self, |n| n.left.value, 32), 256, 0)?;
        let (name, width) =
            if hidden <= 128 { ("pair_max_right_grad_128", 128) } else { ("pair_max_right_grad_256", 256) };
        self.launch(name, tasks, of(self, |n| n.right.value, width), 256, 0)
    }

    /// Rows of both sides for the weight gradient from shared memory, and their bytes.
    fn cached_rows(&self, op: &Pairs) -> (usize, usize) {
        let rows =
            op.nets.iter().map(|n| self.max_set_len(n.left.value).saturating_add(self.max_set_len(n.right.value)));
        let rows = rows.max().unwrap_or(0);
        (rows, rows.saturating_mul(2 * 4 * CACHED_COLUMNS))
    }

    /// Whether rows of both sides fit shared memory for the weight gradient and allow sixteen-byte reads.
    fn caches_rows(&self, op: &Pairs) -> bool {
        let vectorisable = |n: &Pair| {
            self.aligned(n.left) && self.aligned(n.right) && self.aligned(n.y) && self.aligned_param(n.weight)
        };
        op.nets.iter().all(vectorisable) && self.kernels.has_shared_memory(self.cached_rows(op).1)
    }

    /// Whether left gradients are computed by the same kernel: a block has all outputs.
    pub(super) fn left_grad_with_weights(&self, op: &Pairs) -> bool {
        let all = op.nets[0].y.cols <= OUTPUTS_OF_WARP * CACHED_WARPS;
        all && self.caches_rows(op)
            && self.kernels.has_shared_memory(self.cached_rows(op).1.saturating_add(LEFT_GRAD_BYTES))
    }

    /// The weight gradient through a max; with the left gradient if `left_grad` allows it and the kernel computes it.
    fn pair_weight_grads(&mut self, op: &Pairs, tasks: &mut [t::PairTask], left_grad: bool) -> Result<(), Error> {
        let (hidden, outputs) = (op.nets[0].left.cols, op.nets[0].y.cols);
        let slabs = outputs.div_ceil(OUTPUTS_OF_WARP);
        let (rows, bytes) = self.cached_rows(op);
        let (cached, left_grad) = (self.caches_rows(op), left_grad && self.left_grad_with_weights(op));
        let bytes = bytes + if left_grad { LEFT_GRAD_BYTES } else { 0 };
        let (name, blocks, groups, max_bytes) = if cached {
            let blocks = hidden.div_ceil(CACHED_COLUMNS) * slabs.div_ceil(CACHED_WARPS);
            let name = if left_grad { "pair_max_weight_left_grad_cached" } else { "pair_max_weight_grad_cached" };
            (name, blocks, (CACHED_WARPS / slabs).max(1), self.kernels.multiprocessors)
        } else {
            ("pair_max_weight_grad", (slabs * hidden.div_ceil(32)).div_ceil(WARPS), 1, WEIGHT_BLOCKS)
        };
        let splits = (max_bytes / (blocks * tasks.len())).clamp(1, if cached { self.capacity.examples } else { 64 });
        for (task, n) in tasks.iter_mut().zip(&op.nets) {
            task.splits = splits as i32;
            task.tile = rows as i32;
            task.partials = self.alloc_workspace(splits * groups * outputs * hidden);
            self.partial_sums.push(t::PartialSumTask {
                partials: task.partials,
                out: self.param_grad(n.weight),
                stride: (outputs * hidden) as u64,
                count: (splits * groups) as i32,
                len: (outputs * hidden) as i32,
                rows_per_partial: 0,
                vec: 0,
                space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
                overwrite: 0,
            });
        }
        let (threads, shared) = if cached { (32 * CACHED_WARPS as u32, bytes) } else { (256, 0) };
        self.launch(name, tasks, [blocks, splits, tasks.len()], threads, shared)
    }

    pub(super) fn pairs_backward(&mut self, op: &Pairs) -> Result<(), Error> {
        let mut tasks = self.pair_tasks(op, true);
        let (examples, net) = (self.capacity.examples, &op.nets[0]);
        let (hidden, outputs) = (net.left.cols, net.y.cols);
        let max = net.reduce == Reduce::Max;
        let rows = op.nets.iter().map(|n| self.rows(n.left.value)).max().unwrap_or(0);
        // Bias: one partial sum per example and net.
        let mut sums = Vec::new();
        for (task, n) in tasks.iter_mut().zip(&op.nets) {
            task.partials = self.alloc_workspace(examples * outputs);
            // Not null for sums, whose bias counts once per partner.
            task.d_saved = u64::from(!max);
            sums.push(self.example_sum(task.partials, self.param_grad(n.bias), outputs, outputs));
        }
        self.launch("pair_bias_grad", &tasks, [outputs.div_ceil(128), examples, tasks.len()], 128, 0)?;
        self.partial_sums.extend(sums);
        if max {
            let sorted = self.sorted_grad(op);
            self.pair_weight_grads(op, &mut tasks, sorted.is_some())?;
            match sorted {
                Some(sorted) => self.pair_sorted_grads(op, &sorted, tasks)?,
                None => self.pair_argmax_grads(op, &tasks)?,
            }
        } else {
            // dh = dy W, then through the sums; dW = dyᵀ h.
            let mut inputs = Vec::new();
            let mut uses = Vec::new();
            for (task, n) in tasks.iter_mut().zip(&op.nets) {
                task.d_saved = self.alloc_workspace(self.rows(n.left.value) * hidden);
                let weight = self.program.params.spec(n.weight).offset;
                let terms = vec![self.gradient_term(n.y, weight)];
                let space = self.space(n.left.value);
                let cols = hidden as i32;
                let task = t::LinearTask { y: task.d_saved, ldy: cols, n: cols, ..empty_task(space) };
                inputs.push(LinearProduct { task, terms, rows: self.rows(n.left.value) });
                uses.push(WeightUse { weight, bias: None, x: Slice { value: n.saved, col: 0, cols: hidden }, dy: n.y });
            }
            self.linear_product(&inputs, rows)?;
            let max_set_len =
                op.nets.iter().map(|n| self.max_set_len(n.left.value).max(self.max_set_len(n.right.value)));
            let grid = [max_set_len.max().unwrap_or(0).div_ceil(8).min(64), examples, tasks.len()];
            self.launch("pair_sum_left_grad", &tasks, grid, 128, 0)?;
            self.launch("pair_sum_right_grad", &tasks, grid, 128, 0)?;
            self.linear_weight_grads(&uses)?;
        }
        for n in &op.nets {
            self.written[n.left.value.0] = true;
            self.written[n.right.value.0] = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes a block may have on compute capability 9.
    const MAX_BYTES: usize = 227 << 10;

    #[test]
    fn the_kernel_with_rows_in_shared_memory_has_the_same_sizes() {
        let kernel = include_str!("../kernels/pair_weight_grad.cu");
        for (name, value) in
            [("CACHED_COLUMNS", CACHED_COLUMNS), ("CACHED_WARPS", CACHED_WARPS), ("CACHED_ELEMENTS", CACHED_ELEMENTS)]
        {
            assert!(kernel.contains(&format!("#define {name} {value}\n")), "{name}");
        }
    }

    #[test]
    fn every_tiling_of_a_max_fits_and_holds_multiples_of_16_partners() {
        for sm90 in [false, true] {
            for hidden in [1, 7, 24, 64, 128, 256, 512, 1024] {
                for outputs in [1, 6, 16, 33, 64, 128, 256, 512] {
                    for partners in [1, 2, 17, 150, 3000] {
                        let Some(tiling) = MaxTiling::new(hidden, outputs, partners, sm90, MAX_BYTES) else {
                            panic!("no tiling for {hidden} by {outputs}, {partners} partners");
                        };
                        assert!(
                            tiling.bytes <= MAX_BYTES && tiling.tile >= 16 && tiling.tile.is_multiple_of(16),
                            "{tiling:?}"
                        );
                        assert!(tiling.stages == 1 || tiling.tile < partners, "{tiling:?}");
                        assert!(tiling.outputs <= if sm90 { 128 } else { 64 }, "{tiling:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_widths_of_the_paper_keep_their_second_layer_resident_up_to_eight_dimensions() {
        for dim in [2, 4, 8] {
            let tiling = MaxTiling::new(32 * dim, 16 * dim, 150, true, MAX_BYTES).unwrap();
            assert_eq!(tiling.outputs, 16 * dim, "{tiling:?}");
        }
        assert_eq!(MaxTiling::new(512, 256, 150, true, MAX_BYTES).unwrap().outputs, 64);
        assert_eq!(MaxTiling::new(8192, 64, 150, true, MAX_BYTES), None);
    }
}
