//! Linear maps: products of rows, input gradients with transposed weights, and weight gradients as partial sums.

use std::ops::Range;

use super::super::driver;
use super::super::kernel_tasks::{self as t, DevicePtr};
use super::fused_linear::fuse_linears;
use super::tiling::{SplitK, Tiling};
use super::{Capacity, GRID_STRIDE_BLOCKS, Lowering, in_row_kernel};
use crate::error::Error;
use crate::flow::group_by;
use crate::program::{Activation, Linear, Map, Mode, Op, Program, Slice};

/// One use of a weight; `weight` and `bias` are parameter offsets.
#[derive(Clone, Copy)]
pub(super) struct WeightUse {
    pub weight: usize,
    pub bias: Option<usize>,
    pub x: Slice,
    pub dy: Slice,
}

impl WeightUse {
    fn has_few_inputs(&self) -> bool {
        self.x.cols <= MAX_FEW_INPUTS
    }
}

/// A product, its terms and its rows.
pub(super) struct LinearProduct {
    pub task: t::LinearTask,
    pub terms: Vec<t::LinearTerm>,
    /// Maximal rows.
    pub rows: usize,
}

impl LinearProduct {
    /// Whether all operands allow sixteen-byte accesses.
    fn vectorisable(&self) -> bool {
        let t = &self.task;
        let addresses = [t.y, t.bias, t.residual, t.residual2, t.gate, t.gain, t.shift, t.normalised];
        self.terms.iter().all(|t| t.vec_a != 0 && t.vec_b != 0)
            && addresses.iter().all(|p| p.is_multiple_of(16))
            && [t.n, t.ldy, t.ldr, t.ldr2, t.ldg].iter().all(|n| n % 4 == 0)
    }

    /// Steps of 32 along the sum.
    fn steps(&self) -> usize {
        self.terms.iter().map(|t| (t.k as usize).div_ceil(32)).sum()
    }
}

/// A task without operands and epilogue.
pub(super) fn empty_task(space: t::Space) -> t::LinearTask {
    t::LinearTask {
        terms: 0,
        y: 0,
        bias: 0,
        residual: 0,
        residual2: 0,
        gate: 0,
        gain: 0,
        shift: 0,
        normalised: 0,
        inv_std: 0,
        count: 1,
        ldy: 0,
        ldr: 0,
        ldr2: 0,
        ldg: 0,
        n: 0,
        activation: 0,
        accumulate: 0,
        pairs: 0,
        space,
        steps: 0,
        stages: 0,
    }
}

fn activation(a: Activation) -> i32 {
    match a {
        Activation::None => 0,
        Activation::Relu => 1,
        Activation::Sigmoid => 2,
    }
}

/// Maximal terms of a sum, and outputs of a row, for the kernels without tensor cores.
const MAX_FEW_INPUTS: usize = 4;
const MAX_FEW_OUTPUTS: usize = 8;

/// Target number of blocks for the partial sums of a weight gradient.
pub(super) const WEIGHT_BLOCKS: usize = 264;

/// Maximal output numbers of all linear maps for deferring weight gradients to the end of the backward pass. Few
/// launches then fill the GPU, but output gradients stay alive and cannot be aliased. Larger programs fill the GPU with
/// separate launches.
const MAX_DEFERRED_NUMBERS: usize = 3 << 27;

/// Whether all weight gradients are computed at the end of the backward pass.
pub(in super::super) fn defers_weight_grads(program: &Program, capacity: &Capacity) -> bool {
    let numbers = |m: &Map| capacity.rows_of(&program.values[m.y.value.0]) * m.y.cols;
    let maps = program.ops.iter().flat_map(|op| match op {
        Op::Linear(l) => l.maps.as_slice(),
        _ => &[],
    });
    program.mode == Mode::Train && maps.map(numbers).sum::<usize>() <= MAX_DEFERRED_NUMBERS
}

impl<'a> Lowering<'a> {
    pub(super) fn linear_forward(&mut self, op: &Linear) -> Result<(), Error> {
        let maps = fuse_linears(self.program, op, &self.unfused);
        let mut products = Vec::new();
        for m in &maps {
            let ((x, ldx), (y, ldy)) = (self.slice(m.x), self.slice(m.y));
            let (residual, ldr) = m.residual.map_or((0, 0), |r| self.slice(r));
            let k = m.x.cols as i32;
            let term = t::LinearTerm {
                a: x,
                b: self.param_at(m.weight),
                lda: ldx,
                ldb: k,
                maps: 0,
                k,
                vec_a: i32::from(self.aligned(m.x)),
                vec_b: i32::from(m.x.cols.is_multiple_of(4) && m.weight.is_multiple_of(4)),
                pad: 0,
            };
            let task = t::LinearTask {
                y,
                bias: m.bias.map_or(0, |b| self.param_at(b)),
                residual,
                ldr,
                ldy,
                n: m.y.cols as i32,
                activation: activation(op.activation),
                gain: m.norm.map_or(0, |n| self.param(n.gain)),
                shift: m.norm.map_or(0, |n| self.param(n.shift)),
                normalised: m.norm.map_or(0, |n| self.value(n.normalised)),
                inv_std: m.norm.map_or(0, |n| self.value(n.inv_std)),
                ..empty_task(self.space(m.x.value))
            };
            products.push(LinearProduct { task, terms: vec![term], rows: self.rows(m.x.value) });
        }
        let rows = maps.iter().map(|m| self.rows(m.x.value)).max().unwrap_or(0);
        if self.linear_product(&products, rows)? {
            return Ok(());
        }
        let norms: Vec<t::AddNormTask> =
            maps.iter().filter_map(|m| m.norm.map(|n| self.norm_task(&[m.y], m.y, Some(n)))).collect();
        self.norms(&norms, rows)
    }

    /// Lowers products to the kernel for their width; returns whether the norms were fused.
    pub(super) fn linear_product(&mut self, products: &[LinearProduct], rows: usize) -> Result<bool, Error> {
        let widest = products.iter().map(|p| p.task.n as usize).max().unwrap_or(0);
        let normed = products.iter().any(|p| p.task.gain != 0);
        let sm90 = self.kernels.sm90 && products.iter().all(LinearProduct::vectorisable);
        // Norms are fused where a block holds full rows. If long rows are few, narrower blocks and a separate norm are
        // faster.
        let few_rows = widest > 128 && 16 * products.len() * rows.div_ceil(128) <= self.kernels.multiprocessors;
        let full_rows = sm90 && normed && widest <= 256 && !few_rows;
        let few = |p: &LinearProduct| p.terms.iter().map(|t| t.k as usize).sum::<usize>() <= MAX_FEW_INPUTS;
        let few_inputs = products.iter().all(few) && u32::try_from(rows * widest).is_ok();
        let narrow = !full_rows && (few_inputs || widest <= MAX_FEW_OUTPUTS);
        if sm90 && !narrow {
            self.linear_product_sm90(products, rows, widest, full_rows)?;
            return Ok(full_rows || !normed);
        }
        let even = |t: &t::LinearTask| t.y.is_multiple_of(8) && t.ldy % 2 == 0 && t.n % 2 == 0;
        let tasks: Vec<t::LinearTask> = products
            .iter()
            .map(|p| t::LinearTask {
                terms: self.task_table.push(&p.terms),
                count: p.terms.len() as i32,
                pairs: i32::from(even(&p.task)),
                ..p.task
            })
            .collect();
        if narrow {
            if few_inputs {
                self.launch_grid_stride("linear_few_inputs", &tasks, rows * widest)?;
            } else {
                let grid = [rows.div_ceil(4).min(2 * GRID_STRIDE_BLOCKS), tasks.len(), 1];
                self.launch("linear_few_outputs", &tasks, grid, 128, 0)?;
            }
            return Ok(!normed);
        }
        let (name, bm, bn, block, stages) = match widest {
            128.. if self.kernels.has_shared_memory(3 * 256 * 36 * 4) => ("linear_large", 128, 128, 256, 3),
            64.. => ("linear_medium", 128, 64, 256, 3),
            _ => ("linear_small", 64, 32, 128, 2),
        };
        let grid = [rows.div_ceil(bm), widest.div_ceil(bn), tasks.len()];
        self.launch(name, &tasks, grid, block, stages * (bm + bn) * 36 * 4)?;
        Ok(false)
    }

    /// Products with wgmma and TMA; with fused norms if a block holds full rows.
    fn linear_product_sm90(
        &mut self,
        products: &[LinearProduct],
        rows: usize,
        widest: usize,
        norms: bool,
    ) -> Result<(), Error> {
        let steps = products.iter().map(LinearProduct::steps).max().unwrap_or(0);
        let tiles = Tiling::new(rows, widest, products.len(), steps, norms, self.kernels.multiprocessors);
        let (left_rows, right_rows) = tiles.operand_rows();
        let mut tasks = Vec::new();
        for p in products {
            let mut terms = p.terms.clone();
            for term in &mut terms {
                let k = term.k as usize;
                let left = driver::tensor_map(term.a, p.rows, k, term.lda as usize, left_rows)?;
                let right = driver::tensor_map(term.b, p.task.n as usize, k, term.ldb as usize, right_rows)?;
                term.maps = self.task_table.push(&[left, right]);
            }
            tasks.push(t::LinearTask {
                terms: self.task_table.push(&terms),
                count: terms.len() as i32,
                steps: p.steps() as i32,
                stages: tiles.stages as i32,
                gain: if norms { p.task.gain } else { 0 },
                ..p.task
            });
        }
        self.launch(&tiles.kernel(), &tasks, [tiles.blocks, 1, tasks.len()], 288, tiles.shared())
    }

    pub(super) fn linear_backward(&mut self, at: usize, op: &Linear) -> Result<(), Error> {
        // The norm writes residual gradients that begin here. Others are deferred to a product or added below.
        let residuals = op.maps.iter().filter_map(|m| m.residual.map(|r| (r, m.y)));
        let deferred =
            |p: &(Slice, Slice)| self.grad_aliases.deferred.iter().any(|l| l.from == at && (l.residual, l.y) == *p);
        let residuals: Vec<_> = residuals.filter(|p| !deferred(p)).collect();
        let norms: Vec<_> = op
            .maps
            .iter()
            .filter_map(|m| {
                m.norm.map(|n| {
                    (m.y, n, m.residual.filter(|&r| self.writes_first(&residuals, r, m.y)).into_iter().collect())
                })
            })
            .collect();
        self.norms_backward(&norms)?;
        if op.activation != Activation::None && !op.maps.iter().all(|m| self.gated[m.y.value.0]) {
            let tasks: Vec<t::ActivationTask> = op
                .maps
                .iter()
                .map(|m| {
                    let ((y, ld), (dy, _)) = (self.slice(m.y), self.grad_slice(m.y));
                    let (cols, activation, space) = (m.y.cols as i32, activation(op.activation), self.space(m.y.value));
                    t::ActivationTask { y, dy, ld, cols, activation, pad: 0, space, pad2: 0 }
                })
                .collect();
            let max_numbers = op.maps.iter().map(|m| self.rows(m.y.value) * m.y.cols).max().unwrap_or(0);
            self.launch_grid_stride("activation_backward", &tasks, max_numbers)?;
        }
        let written_by_norm =
            |p: &(Slice, Slice)| norms.iter().any(|n: &(_, _, Vec<Slice>)| n.0 == p.1 && n.2.contains(&p.0));
        let (written_by_norm, added): (Vec<_>, Vec<_>) = residuals.into_iter().partition(written_by_norm);
        self.add_gradients(added)?;
        written_by_norm.iter().for_each(|p| self.written[p.0.value.0] = true);
        self.linear_input_grads(at, op)?;
        let maps = fuse_linears(self.program, op, &self.unfused);
        let uses = maps.iter().map(|m| WeightUse { weight: m.weight, bias: m.bias, x: m.x, dy: m.y });
        self.pending_weight_grads.extend(uses);
        if self.grad_aliases.keeps_output_grads { Ok(()) } else { self.flush_weight_grads() }
    }

    /// Input gradients of operation `at`, plus the residual gradients deferred to it.
    fn linear_input_grads(&mut self, at: usize, op: &Linear) -> Result<(), Error> {
        let maps = fuse_linears(self.program, op, &self.unfused);
        let groups = group_by(maps.iter().map(|m| m.x));
        let mut products = Vec::new();
        let mut rows = 0;
        for (x, members) in &groups {
            if !self.wants_grad(x.value) {
                continue;
            }
            let terms = members.iter().map(|&m| self.gradient_term(maps[m].y, maps[m].weight)).collect();
            let (y, ldy) = self.grad_slice(*x);
            let (gate, ldg) = if self.gated[x.value.0] { self.slice(*x) } else { (0, 0) };
            let deferred_grads = self.grad_aliases.deferred.iter().filter(|l| l.to == at && l.residual == *x);
            let mut deferred_grads = deferred_grads.map(|l| self.grad_slice(l.y));
            let ((residual, ldr), (residual2, ldr2)) =
                (deferred_grads.next().unwrap_or((0, 0)), deferred_grads.next().unwrap_or((0, 0)));
            let task = t::LinearTask {
                y,
                residual,
                ldr,
                residual2,
                ldr2,
                gate,
                ldg,
                ldy,
                n: x.cols as i32,
                accumulate: i32::from(self.written[x.value.0]),
                ..empty_task(self.space(x.value))
            };
            products.push(LinearProduct { task, terms, rows: self.rows(x.value) });
            rows = rows.max(self.rows(x.value));
        }
        self.linear_product(&products, rows)?;
        for (x, _) in &groups {
            self.written[x.value.0] = true;
        }
        Ok(())
    }

    /// dy W as a product of rows, with the transposed weight.
    pub(super) fn gradient_term(&self, dy: Slice, weight: usize) -> t::LinearTerm {
        let (a, lda) = self.grad_slice(dy);
        let k = dy.cols as i32;
        t::LinearTerm {
            a,
            b: self.buffers.transposed + 4 * weight as u64,
            lda,
            ldb: k,
            maps: 0,
            k,
            vec_a: i32::from(self.aligned(dy)),
            vec_b: i32::from(dy.cols.is_multiple_of(4) && weight.is_multiple_of(4)),
            pad: 0,
        }
    }

    /// Transposes all weights that input gradients need.
    pub(super) fn transpose_weights(&mut self) -> Result<(), Error> {
        // Offset, rows and columns.
        let mut weights: Vec<(usize, usize, usize)> = Vec::new();
        for (_, op) in self.program.ops.iter().enumerate().filter(|(i, _)| !in_row_kernel(self.row_kernels, *i)) {
            match op {
                Op::Linear(l) => {
                    let maps = fuse_linears(self.program, l, &self.unfused);
                    let wanted = maps.iter().filter(|m| self.wants_grad(m.x.value));
                    weights.extend(wanted.map(|m| (m.weight, m.y.cols, m.x.cols)));
                }
                Op::Pairs(p) => weights.extend(p.nets.iter().map(|n| {
                    let spec = self.program.params.spec(n.weight);
                    (spec.offset, spec.shape[0], spec.shape[1])
                })),
                _ => {}
            }
        }
        weights.sort_unstable();
        weights.dedup();
        let max_numbers = weights.iter().map(|w| w.1.div_ceil(64) * w.2.div_ceil(64)).max().unwrap_or(0);
        let tasks: Vec<t::TransposeTask> = weights
            .iter()
            .map(|&(weight, rows, cols)| {
                let to = self.buffers.transposed + 4 * weight as u64;
                t::TransposeTask { from: self.param_at(weight), to, rows: rows as i32, cols: cols as i32 }
            })
            .collect();
        // Blocks loop over the tiles of large weights, so that those of small ones are not idle.
        self.launch("transpose", &tasks, [max_numbers.min(64), tasks.len(), 1], 256, 0)
    }

    /// The tile (outputs, inputs) of `linear_weight_grad_sm90` for some uses; none if TMA cannot load all operands.
    fn weight_grad_tile(&self, uses: &[WeightUse]) -> Option<(usize, usize)> {
        let smallest = |f: fn(&WeightUse) -> usize| uses.iter().map(f).min().unwrap_or(0);
        let (n, k) = (smallest(|u| u.dy.cols), smallest(|u| u.x.cols));
        let vectorisable = |u: &WeightUse| self.aligned(u.x) && self.aligned(u.dy);
        // Tiles that leave little padding.
        let suit = |bm: usize, bn: usize| {
            let fits = |cols: usize, tile: usize| cols.is_multiple_of(tile) || cols % tile > tile / 2;
            uses.iter().all(|u| fits(u.dy.cols, bm) && fits(u.x.cols, bn))
        };
        let sm90 = self.kernels.sm90 && uses.iter().all(vectorisable);
        let large = [(128, 256), (256, 128), (128, 128)].into_iter().find(|&(bm, bn)| suit(bm, bn));
        let narrow = || (if (1..=64).contains(&(n % 128)) { 64 } else { 128 }, if k <= 32 { 32 } else { 64 });
        sm90.then(|| large.unwrap_or_else(narrow))
    }

    /// Computes all deferred weight gradients; those of the same tile share a launch.
    pub(super) fn flush_weight_grads(&mut self) -> Result<(), Error> {
        let uses = std::mem::take(&mut self.pending_weight_grads);
        let kind = |u: &WeightUse| (self.weight_grad_tile(std::slice::from_ref(u)), u.has_few_inputs());
        for (_, members) in group_by(uses.iter().map(kind)) {
            let alike: Vec<WeightUse> = members.iter().map(|&m| uses[m]).collect();
            self.linear_weight_grads(&alike)?;
        }
        Ok(())
    }

    /// Gradients of weights and biases.
    pub(super) fn linear_weight_grads(&mut self, uses: &[WeightUse]) -> Result<(), Error> {
        let groups = group_by(uses.iter().map(|u| (u.weight, u.bias)));
        let sm90 = self.weight_grad_tile(uses);
        let (name, bm, bn, block, shared, blocks) = if let Some((bm, bn)) = sm90 {
            // Threads, stages and blocks per multiprocessor, as in the kernels.
            let (block, stages, each) = match (bm, bn) {
                (128, 256) | (256, 128) => (384, 4, 1),
                (128, 128) => (256, 3, 2),
                (128, _) => (160, 4, 2),
                (_, 64) => (160, 4, 3),
                _ => (160, 4, 4),
            };
            let shared = stages * 32 * (bm + bn) * 4 + 1024;
            (format!("linear_weight_grad_sm90_m{bm}_n{bn}"), bm, bn, block, shared, each * self.kernels.multiprocessors)
        } else if uses.iter().all(WeightUse::has_few_inputs) {
            let blocks = 4 * self.kernels.multiprocessors;
            ("linear_weight_grad_few_inputs".to_owned(), 32, MAX_FEW_INPUTS, 256, 0, blocks)
        } else {
            let narrowest = uses.iter().map(|u| u.dy.cols.min(u.x.cols)).min().unwrap_or(0);
            let (name, tile, block) = match narrowest {
                128.. if self.kernels.has_shared_memory(3 * 32 * 272 * 4) => ("linear_weight_grad_large", 128, 128),
                64.. => ("linear_weight_grad_medium", 64, 128),
                _ => ("linear_weight_grad_small", 32, 64),
            };
            (name.to_owned(), tile, tile, block, 3 * 32 * (2 * tile + 16) * 4, WEIGHT_BLOCKS)
        };
        let tiles = |u: &WeightUse| u.dy.cols.div_ceil(bm) * u.x.cols.div_ceil(bn);
        let all: usize = uses.iter().map(tiles).sum();
        let max_rows = uses.iter().map(|u| self.rows(u.dy.value)).max().unwrap_or(0);
        let f = self.kernels.function(&name, shared)?;
        let clusters = |size| if sm90.is_some() { driver::active_clusters(f, block, shared, size) } else { 0 };
        let SplitK { blocks: splits, cluster } = SplitK::new(all, max_rows, blocks, clusters);
        // A cluster adds its sums before it writes one partial sum.
        let partials_each = splits / cluster;
        let (mut tasks, mut sums) = (Vec::new(), Vec::new());
        for ((weight, _), members) in &groups {
            let u = &uses[members[0]];
            let (n, k) = (u.dy.cols, u.x.cols);
            let slot = n * k + n;
            let regions = [Some(*weight..*weight + n * k), u.bias.map(|b| b..b + n)];
            // A single partial sum is written to the gradient directly.
            let fits = |r: &Range<usize>| r.start.is_multiple_of(4) && self.param_grads.is_unwritten(r);
            let direct = members.len() * partials_each == 1 && regions.iter().flatten().all(fits);
            let (partials, bias) = if direct {
                let grads = self.buffers.grads;
                regions.into_iter().flatten().for_each(|r| _ = self.param_grads.begin(r));
                (grads + 4 * *weight as u64, u.bias.map_or_else(|| self.alloc_workspace(n), |b| grads + 4 * b as u64))
            } else {
                let partials = self.alloc_workspace(members.len() * partials_each * slot);
                (partials, partials + 4 * (n * k) as u64)
            };
            for (i, &m) in members.iter().enumerate() {
                let u = &uses[m];
                let ((x, ldx), (dy, ldy)) = (self.slice(u.x), self.grad_slice(u.dy));
                let maps = if sm90.is_some() {
                    let rows = self.rows(u.dy.value);
                    let left = driver::tensor_map(dy, rows, n, ldy as usize, 32)?;
                    let right = driver::tensor_map(x, rows, k, ldx as usize, 32)?;
                    self.task_table.push(&[left, right])
                } else {
                    0
                };
                let before = 4 * (i * partials_each * slot) as u64;
                tasks.push(t::WeightGradTask {
                    dy,
                    x,
                    partials: partials + before,
                    bias: bias + before,
                    maps,
                    ldy,
                    ldx,
                    n: n as i32,
                    k: k as i32,
                    splits: splits as i32,
                    vec: i32::from(self.aligned(u.x) && self.aligned(u.dy)),
                    space: self.space(u.dy.value),
                    pad: 0,
                });
            }
            if direct {
                continue;
            }
            let mut sum = |partials: DevicePtr, out: DevicePtr, len: usize| {
                sums.push(t::PartialSumTask {
                    partials,
                    out,
                    stride: slot as u64,
                    count: (members.len() * partials_each) as i32,
                    len: len as i32,
                    rows_per_partial: 0,
                    vec: 0,
                    space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
                    overwrite: 0,
                });
            };
            sum(partials, self.buffers.grads + 4 * *weight as u64, n * k);
            if let Some(b) = u.bias {
                sum(bias, self.buffers.grads + 4 * b as u64, n);
            }
        }
        let max_numbers = uses.iter().map(tiles).max().unwrap_or(0);
        self.launch_clusters(&name, &tasks, [max_numbers, splits, tasks.len()], block, shared, [1, cluster])?;
        self.partial_sums.extend(sums);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_FEW_INPUTS, MAX_FEW_OUTPUTS};

    #[test]
    fn the_kernels_of_few_outputs_and_few_inputs_have_the_same_limits() {
        let kernel = include_str!("../kernels/linear_narrow.cu");
        assert!(kernel.contains(&format!("#define MAX_FEW_OUTPUTS {MAX_FEW_OUTPUTS}\n")));
        assert!(kernel.contains(&format!("#define MAX_FEW_INPUTS {MAX_FEW_INPUTS}\n")));
    }
}
