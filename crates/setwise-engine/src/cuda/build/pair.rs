//! Networks on pairs.

use super::super::driver;
use super::super::tables as t;
use super::linear::{Product, Use, no_product};
use super::{Builder, Work};
use crate::error::Error;
use crate::program::{Op, Pair, Pairs, Reduce, Slice, Value};

/// Elements of a block of the maximum, and of the gradient of elements; partners of a block of the gradient of partners.
const ELEMENTS: usize = 32;
/// Its warps.
const WARPS: usize = 8;
/// Parts of the second layer's gradient are spread over about this many blocks.
const WEIGHT_BLOCKS: usize = 1056;

/// Outputs of a warp that makes such a part; hidden columns and warps of a block that has rows in shared memory for it.
const OUTPUTS_OF_WARP: usize = 16;
const HELD_COLUMNS: usize = 64;
const HELD_WARPS: usize = 16;
/// Elements between two meetings of its warps where it makes their gradients too, and bytes for what the warps have of those, twice.
const HELD_EACH: usize = 8;
const OWN_BYTES: usize = 2 * HELD_EACH * HELD_WARPS * HELD_COLUMNS * 4;

/// Outputs of a block of `pair_max_panels`, elements that one of its warps has, and bytes of shared memory: eight panels of 32 hidden columns, three steps
/// of elements and partners for every warp, and its winners.
const PANEL_OUTPUTS: usize = 128;
const PANEL_ELEMENTS: usize = 8;
const PANEL_BYTES: usize = 1024 + 4 * (8 * PANEL_OUTPUTS * 32 + WARPS * (3 * 512 + PANEL_OUTPUTS * PANEL_ELEMENTS));

/// Hidden columns of a panel of halves.
const HALVES: usize = 64;
/// Blocks that round each operand and look for its largest number.
const HALVES_BLOCKS: usize = 96;

/// How shared memory is used for a maximum: all of the second layer for some outputs, two elements for
/// every warp, and partners in tiles.
#[derive(Debug, PartialEq)]
struct Cut {
    outputs: usize,
    tile: usize,
    stages: usize,
    bytes: usize,
}

impl Cut {
    /// As many outputs as there are or as fit with at least 16 partners; all partners where they fit, otherwise two tiles of which one is loaded
    /// while the other is worked on. None where not even 16 outputs fit.
    fn new(hidden: usize, outputs: usize, partners: usize, wide: bool, most: usize) -> Option<Cut> {
        let (columns, all) = (hidden.next_multiple_of(32), partners.max(1).next_multiple_of(16));
        let (widest, apart) = if wide { (128, 0) } else { (64, 16) };
        let width = outputs.next_power_of_two().clamp(16, widest);
        std::iter::successors(Some(width), |n| (*n > 16).then_some(n / 2)).find_map(|outputs| {
            let fixed = 4 * (outputs * (columns + apart) + 2 * WARPS * columns) + 1024;
            let row = 4 * (columns + 16);
            let bytes = |tile: usize, stages: usize| fixed + stages * tile * row;
            // Two blocks side by side, unless their registers do not allow it or it would leave too little for partners.
            let half = most / 2 - 1024;
            let limit = if outputs <= 64 && bytes(32, 2) <= half { half } else { most };
            let tiles = |stages: usize| limit.saturating_sub(fixed) / (stages * row) / 16 * 16;
            let (tile, stages) = match (tiles(1), tiles(2)) {
                (one, _) if one >= all => (all, 1),
                (_, two) if two >= 16 => (two, 2),
                (one, _) => (one.min(16), 1),
            };
            (tile > 0).then(|| Cut { outputs, tile, stages, bytes: bytes(tile, stages) })
        })
    }
}

impl<'a> Builder<'a> {
    fn pair_tasks(&self, op: &Pairs, backward: bool) -> Vec<t::PairTask> {
        let in_chunks =
            op.nets.iter().all(|n| self.aligned(n.left) && self.aligned(n.right) && self.aligned_param(n.weight));
        op.nets
            .iter()
            .map(|n| {
                let ((own, ld_own), (partner, ld_partner), (y, ldy)) =
                    (self.slice(n.left), self.slice(n.right), self.slice(n.y));
                let grad = |s: Slice| if backward { self.grad_slice(s).0 } else { 0 };
                t::PairTask {
                    own,
                    partner,
                    w: self.param(n.weight),
                    bias: self.param(n.bias),
                    y,
                    kept: self.value(n.saved),
                    dy: grad(n.y),
                    d_own: grad(n.left),
                    d_partner: grad(n.right),
                    d_kept: 0,
                    parts: 0,
                    map: 0,
                    halves: 0,
                    halves_map: 0,
                    own_halves: 0,
                    partner_halves: 0,
                    largest: 0,
                    own_wins: 0,
                    partner_wins: 0,
                    starts: 0,
                    ld_own,
                    ld_partner,
                    ldy,
                    hidden: n.left.cols as i32,
                    outputs: n.y.cols as i32,
                    splits: 0,
                    vec: i32::from(in_chunks),
                    vec_y: i32::from(self.aligned(n.y)),
                    tile: 0,
                    stages: 0,
                    row_bytes: 0,
                    sides: 0,
                    space: self.space(n.left.value),
                    partners: self.space(n.right.value),
                }
            })
            .collect()
    }

    fn longest_of(&self, values: impl Iterator<Item = Value>) -> usize {
        values.map(|v| self.longest(v)).max().unwrap_or(0)
    }

    pub(super) fn pairs_forward(&mut self, op: &Pairs) -> Result<(), Error> {
        let mut tasks = self.pair_tasks(op, false);
        let net = &op.nets[0];
        let rows = op.nets.iter().map(|n| self.rows(n.left.value)).max().unwrap_or(0);
        let longest = self.longest_of(op.nets.iter().map(|n| n.left.value));
        if net.reduce == Reduce::Max {
            let (outputs, wide) = (net.y.cols, self.module.wide);
            if self.in_panels(op) {
                return self.pair_max_panels(op, tasks);
            }
            let partners = self.longest_of(op.nets.iter().map(|n| n.right.value));
            let Some(cut) = Cut::new(net.left.cols, outputs, partners, wide, self.module.shared_memory) else {
                return self.launch("pair_max", &tasks, [rows, outputs.div_ceil(64), tasks.len()], 128, 0);
            };
            for task in &mut tasks {
                (task.tile, task.stages) = (cut.tile as i32, cut.stages as i32);
            }
            let name = format!("pair_max{}_n{}", if wide { "_wide" } else { "" }, cut.outputs);
            let blocks = outputs.div_ceil(cut.outputs) * longest.div_ceil(ELEMENTS);
            return self.launch(&name, &tasks, [blocks, self.capacity.examples, tasks.len()], 256, cut.bytes);
        }
        let grid = [longest.div_ceil(8).min(64), self.capacity.examples, tasks.len()];
        self.launch("pair_sums", &tasks, grid, 128, 0)?;
        let mut products = Vec::new();
        for n in &op.nets {
            let (y, ldy) = self.slice(n.y);
            let k = n.left.cols as i32;
            let vec = i32::from(n.left.cols.is_multiple_of(4));
            let vec_b = i32::from(vec == 1 && self.aligned_param(n.weight));
            let term = t::Term {
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
            let task = t::ProductTask { y, ldy, n: n.y.cols as i32, ..no_product(self.space(n.left.value)) };
            products.push(Product { task, terms: vec![term], rows: self.rows(n.left.value) });
        }
        self.product(&products, rows)?;
        self.walk("pair_bias", &tasks, rows * net.y.cols)
    }

    /// Whether a maximum is taken by `pair_max_panels`: with more outputs than half of what its blocks have, and rows of W that the copy engine can read.
    fn in_panels(&self, op: &Pairs) -> bool {
        let (hidden, outputs) = (op.nets[0].left.cols, op.nets[0].y.cols);
        self.module.wide
            && 2 * outputs > PANEL_OUTPUTS
            && hidden.is_multiple_of(4)
            && op.nets.iter().all(|n| self.aligned_param(n.weight))
            && self.module.fits(PANEL_BYTES)
    }

    /// Whether its products are of halves, where no number is too large or small for them: rows can be read sixteen bytes at a time.
    fn in_halves(&self, op: &Pairs) -> bool {
        self.in_panels(op) && op.nets.iter().all(|n| self.aligned(n.left) && self.aligned(n.right))
    }

    /// Of four bytes, for the rows of a value in halves.
    fn numbers_for_halves(&self, v: Value, hidden: usize) -> usize {
        (self.rows(v) * hidden.next_multiple_of(HALVES) / 2).next_multiple_of(64)
    }

    /// Rows in halves serve one operation at a time, so all share the place of the longest.
    fn room_for_halves(&mut self) -> t::Address {
        if let Some(at) = self.halves {
            return at;
        }
        let of = |n: &Pair| [n.left, n.right].iter().map(|s| self.numbers_for_halves(s.value, s.cols)).sum::<usize>();
        let all = self.program.ops.iter().filter_map(|op| match op {
            Op::Pairs(p) if p.nets[0].reduce == Reduce::Max && self.in_halves(p) => Some(p.nets.iter().map(of).sum()),
            _ => None,
        });
        let numbers = all.max().unwrap_or(0);
        let at = self.room(numbers);
        self.halves = Some(at);
        at
    }

    fn pair_max_panels(&mut self, op: &Pairs, mut tasks: Vec<t::PairTask>) -> Result<(), Error> {
        let (hidden, outputs) = (op.nets[0].left.cols, op.nets[0].y.cols);
        // Halves where rows can be read sixteen bytes at a time; which of the two kernels has something to do is known once u and v are.
        let halves = self.in_halves(op);
        let padded = hidden.next_multiple_of(HALVES);
        let mut rows_at = if halves { self.room_for_halves() } else { 0 };
        let largest = self.room(3 * tasks.len());
        for (i, task) in tasks.iter_mut().enumerate() {
            let map = driver::tensor_map(task.w, outputs, hidden, hidden, PANEL_OUTPUTS)?;
            task.map = self.tables.push(&[map]);
            if halves {
                task.halves = self.room((outputs * padded).div_ceil(2));
                task.largest = largest + 12 * i as u64;
                let map = driver::half_tensor_map(task.halves, outputs, padded, PANEL_OUTPUTS)?;
                task.halves_map = self.tables.push(&[map]);
                let mut take = |v: Value| {
                    let at = rows_at;
                    rows_at += 4 * self.numbers_for_halves(v, hidden) as u64;
                    at
                };
                (task.own_halves, task.partner_halves) = (take(op.nets[i].left.value), take(op.nets[i].right.value));
            }
        }
        if halves {
            self.work.push(Work::Zero { at: largest, bytes: 12 * tasks.len() });
            self.launch("pair_halves", &tasks, [3 * HALVES_BLOCKS, tasks.len(), 1], 256, 0)?;
        }
        // Elements of an example are in groups of their own, of which none but the last has gaps.
        let examples = self.capacity.examples;
        let groups = op.nets.iter().map(|n| {
            let (rows, longest) = (self.rows(n.left.value), self.longest(n.left.value));
            let gaps = examples * (PANEL_ELEMENTS - 1);
            ((rows + gaps) / PANEL_ELEMENTS).min(examples * longest.div_ceil(PANEL_ELEMENTS))
        });
        let blocks = groups.max().unwrap_or(0).div_ceil(WARPS) * outputs.div_ceil(PANEL_OUTPUTS);
        let names: &[&str] = if halves { &["pair_max_halves", "pair_max_panels"] } else { &["pair_max_panels"] };
        names.iter().try_for_each(|name| {
            self.launch(name, &tasks, [blocks, tasks.len(), 1], 32 * WARPS as u32 + 128, PANEL_BYTES)
        })
    }

    /// Gradients of elements and partners of a maximum without lists of what was won.
    fn pair_gathers(&mut self, op: &Pairs, tasks: &[t::PairTask]) -> Result<(), Error> {
        let (hidden, examples) = (op.nets[0].left.cols, self.capacity.examples);
        let of = |b: &Self, value: fn(&Pair) -> Value, width: usize| {
            let longest = b.longest_of(op.nets.iter().map(value));
            [longest.div_ceil(ELEMENTS), examples, tasks.len() * hidden.div_ceil(width)]
        };
        self.launch("pair_max_own", tasks, of(self, |n| n.left.value, 32), 256, 0)?;
        let (name, width) = if hidden <= 128 { ("pair_max_partner_1", 128) } else { ("pair_max_partner_2", 256) };
        self.launch(name, tasks, of(self, |n| n.right.value, width), 256, 0)
    }

    /// Rows of both sides that have to have room for the gradient of the second layer to be made from shared memory, and the bytes they take.
    fn held_rows(&self, op: &Pairs) -> (usize, usize) {
        let rows = op.nets.iter().map(|n| self.longest(n.left.value).saturating_add(self.longest(n.right.value)));
        let rows = rows.max().unwrap_or(0);
        (rows, rows.saturating_mul(2 * 4 * HELD_COLUMNS))
    }

    /// Whether the gradient of the second layer is made from rows in shared memory: where they fit and can be read sixteen bytes at a time.
    fn rows_held(&self, op: &Pairs) -> bool {
        let in_chunks = |n: &Pair| {
            self.aligned(n.left) && self.aligned(n.right) && self.aligned(n.y) && self.aligned_param(n.weight)
        };
        op.nets.iter().all(in_chunks) && self.module.fits(self.held_rows(op).1)
    }

    /// Whether gradients of elements are made on the way: where a block has all outputs.
    pub(super) fn own_with_weights(&self, op: &Pairs) -> bool {
        let all = op.nets[0].y.cols <= OUTPUTS_OF_WARP * HELD_WARPS;
        all && self.rows_held(op) && self.module.fits(self.held_rows(op).1.saturating_add(OWN_BYTES))
    }

    /// The gradient of the second layer through a maximum, with those of elements where they are made on the way and `own` allows it.
    fn pair_weights(&mut self, op: &Pairs, tasks: &mut [t::PairTask], own: bool) -> Result<(), Error> {
        let (hidden, outputs) = (op.nets[0].left.cols, op.nets[0].y.cols);
        let slabs = outputs.div_ceil(OUTPUTS_OF_WARP);
        let (rows, bytes) = self.held_rows(op);
        let (held, own) = (self.rows_held(op), own && self.own_with_weights(op));
        let bytes = bytes + if own { OWN_BYTES } else { 0 };
        let (name, blocks, groups, most) = if held {
            let blocks = hidden.div_ceil(HELD_COLUMNS) * slabs.div_ceil(HELD_WARPS);
            let name = if own { "pair_max_weights_own" } else { "pair_max_weights_held" };
            (name, blocks, (HELD_WARPS / slabs).max(1), self.module.processors)
        } else {
            ("pair_max_weights", (slabs * hidden.div_ceil(32)).div_ceil(WARPS), 1, WEIGHT_BLOCKS)
        };
        let splits = (most / (blocks * tasks.len())).clamp(1, if held { self.capacity.examples } else { 64 });
        for (task, n) in tasks.iter_mut().zip(&op.nets) {
            task.splits = splits as i32;
            task.tile = rows as i32;
            task.parts = self.room(splits * groups * outputs * hidden);
            self.sums.push(t::SumTask {
                parts: task.parts,
                out: self.param_grad(n.weight),
                stride: (outputs * hidden) as u64,
                count: (splits * groups) as i32,
                len: (outputs * hidden) as i32,
                rows_per_part: 0,
                vec: 0,
                space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
                fresh: 0,
            });
        }
        let (threads, shared) = if held { (32 * HELD_WARPS as u32, bytes) } else { (256, 0) };
        self.launch(name, tasks, [blocks, splits, tasks.len()], threads, shared)
    }

    pub(super) fn pairs_backward(&mut self, op: &Pairs) -> Result<(), Error> {
        let mut tasks = self.pair_tasks(op, true);
        let (examples, net) = (self.capacity.examples, &op.nets[0]);
        let (hidden, outputs) = (net.left.cols, net.y.cols);
        let max = net.reduce == Reduce::Max;
        let rows = op.nets.iter().map(|n| self.rows(n.left.value)).max().unwrap_or(0);
        // Bias: one part per example and net.
        let mut sums = Vec::new();
        for (task, n) in tasks.iter_mut().zip(&op.nets) {
            task.parts = self.room(examples * outputs);
            // Tells sums, whose bias counts once per partner, from maxima.
            task.d_kept = u64::from(!max);
            sums.push(self.example_sum(task.parts, self.param_grad(n.bias), outputs, outputs));
        }
        self.launch("pair_bias_gradient", &tasks, [outputs.div_ceil(128), examples, tasks.len()], 128, 0)?;
        self.sums.extend(sums);
        if max {
            let sides = self.sides(op);
            self.pair_weights(op, &mut tasks, sides.is_some())?;
            match sides {
                Some(sides) => self.pair_sides(op, &sides, tasks)?,
                None => self.pair_gathers(op, &tasks)?,
            }
        } else {
            // dh = dy W, then through the sums; dW = dyᵀ h.
            let mut inputs = Vec::new();
            let mut uses = Vec::new();
            for (task, n) in tasks.iter_mut().zip(&op.nets) {
                task.d_kept = self.room(self.rows(n.left.value) * hidden);
                let weight = self.program.params.spec(n.weight).offset;
                let terms = vec![self.gradient_term(n.y, weight)];
                let space = self.space(n.left.value);
                let cols = hidden as i32;
                let task = t::ProductTask { y: task.d_kept, ldy: cols, n: cols, ..no_product(space) };
                inputs.push(Product { task, terms, rows: self.rows(n.left.value) });
                uses.push(Use { weight, bias: None, x: Slice { value: n.saved, col: 0, cols: hidden }, dy: n.y });
            }
            self.product(&inputs, rows)?;
            let longest = op.nets.iter().map(|n| self.longest(n.left.value).max(self.longest(n.right.value)));
            let grid = [longest.max().unwrap_or(0).div_ceil(8).min(64), examples, tasks.len()];
            self.launch("pair_sums_own", &tasks, grid, 128, 0)?;
            self.launch("pair_sums_partner", &tasks, grid, 128, 0)?;
            self.linear_weights(&uses)?;
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
    const MOST: usize = 227 << 10;

    #[test]
    fn the_kernel_that_has_rows_in_shared_memory_is_made_for_these_sizes() {
        let kernel = include_str!("../kernels/pair_weights.cu");
        for (name, value) in [("HELD_COLUMNS", HELD_COLUMNS), ("HELD_WARPS", HELD_WARPS), ("HELD_EACH", HELD_EACH)] {
            assert!(kernel.contains(&format!("#define {name} {value}\n")), "{name}");
        }
    }

    #[test]
    fn every_cut_fits_and_holds_whole_steps_of_partners() {
        for wide in [false, true] {
            for hidden in [1, 7, 24, 64, 128, 256, 512, 1024] {
                for outputs in [1, 6, 16, 33, 64, 128, 256, 512] {
                    for partners in [1, 2, 17, 150, 3000] {
                        let Some(cut) = Cut::new(hidden, outputs, partners, wide, MOST) else {
                            panic!("no cut for {hidden} by {outputs}, {partners} partners");
                        };
                        assert!(cut.bytes <= MOST && cut.tile >= 16 && cut.tile.is_multiple_of(16), "{cut:?}");
                        assert!(cut.stages == 1 || cut.tile < partners, "{cut:?}");
                        assert!(cut.outputs <= if wide { 128 } else { 64 }, "{cut:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_widths_of_the_paper_keep_their_second_layer_in_one_piece_up_to_eight_dimensions() {
        for dim in [2, 4, 8] {
            let cut = Cut::new(32 * dim, 16 * dim, 150, true, MOST).unwrap();
            assert_eq!(cut.outputs, 16 * dim, "{cut:?}");
        }
        assert_eq!(Cut::new(512, 256, 150, true, MOST).unwrap().outputs, 64);
        assert_eq!(Cut::new(8192, 64, 150, true, MOST), None);
    }
}
