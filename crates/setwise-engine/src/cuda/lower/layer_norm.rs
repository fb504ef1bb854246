//! Sums of rows and LayerNorm.

use std::ops::Range;

use super::super::kernel_tasks as t;
use super::batch_norm::is_pooled;
use super::{GRID_STRIDE_BLOCKS, Lowering, RowKernel};
use crate::error::Error;
use crate::flow::group_by;
use crate::program::{Activation, AddNorm, Norm, Op, Program, Slice};

/// Minimal rows of a block of the backward pass where rows are many, and the maximal number of blocks: each writes a
/// partial sum.
const MIN_NORM_ROWS: usize = 64;

const MAX_NORM_BLOCKS: usize = 264;

/// Residual gradients that the backward pass writes besides dx.
const MAX_RESIDUALS: usize = 2;

/// Kernels for rows of up to some columns: (columns, lanes per row).
fn row_shape(cols: usize) -> Option<(usize, usize)> {
    [(16, 4), (32, 8), (64, 16), (128, 32), (256, 32), (512, 32)]
        .into_iter()
        .find(|&(max_blocks, _)| cols <= max_blocks)
}

/// Operations that share a launch: row kernels, independent neighbouring sums, repeated parameters, a batch norm with
/// its max pooling. Every other operation stands alone.
pub(in super::super) fn launch_groups(program: &Program, row_kernels: &[RowKernel]) -> Vec<Range<usize>> {
    let ops = &program.ops;
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        if let Some(row_kernel) = row_kernels.iter().find(|c| c.ops.contains(&i)) {
            if row_kernel.ops.start == i {
                groups.push(row_kernel.ops.clone());
            }
            continue;
        }
        if i > 0 && is_pooled(program, i - 1) {
            groups.last_mut().expect("the batch norm's").end = i + 1;
            continue;
        }
        let free = |group: &Range<usize>| row_kernels.iter().all(|c| c.ops != *group);
        if let (Op::Repeat(_), Some(last)) = (op, groups.last_mut())
            && free(last)
            && ops[last.clone()].iter().all(|o| matches!(o, Op::Repeat(_)))
        {
            last.end = i + 1;
            continue;
        }
        if let (Op::AddNorm(a), Some(last)) = (op, groups.last_mut()) {
            let unfused = |o: &Op| match o {
                // Neither reads the other's output, and no two add to one gradient.
                Op::AddNorm(b) => {
                    let same = |s: &Slice| b.inputs.iter().any(|o| o.value == s.value);
                    b.y.value != a.y.value && a.inputs.iter().all(|s| s.value != b.y.value && !same(s))
                }
                _ => false,
            };
            if free(last) && ops[last.clone()].iter().all(unfused) {
                last.end = i + 1;
                continue;
            }
        }
        groups.push(i..i + 1);
    }
    groups
}

impl<'a> Lowering<'a> {
    pub(super) fn norm_task(&self, inputs: &[Slice], y: Slice, norm: Option<Norm>) -> t::AddNormTask {
        let mut task = t::AddNormTask {
            inputs: [0; 8],
            ld: [0; 8],
            y: self.slice(y).0,
            gain: 0,
            shift: 0,
            normalised: 0,
            inv_std: 0,
            count: inputs.len() as i32,
            ldy: self.slice(y).1,
            cols: y.cols as i32,
            pad: 0,
            space: self.space(y.value),
            pad2: 0,
        };
        for (i, &input) in inputs.iter().enumerate() {
            (task.inputs[i], task.ld[i]) = self.slice(input);
        }
        if let Some(n) = norm {
            task.gain = self.param(n.gain);
            task.shift = self.param(n.shift);
            task.normalised = self.value(n.normalised);
            task.inv_std = self.value(n.inv_std);
        }
        task
    }

    pub(super) fn norms(&mut self, tasks: &[t::AddNormTask], rows: usize) -> Result<(), Error> {
        let widest = tasks.iter().map(|t| t.cols as usize).max().unwrap_or(0);
        let vectorisable = |t: &t::AddNormTask| {
            let addresses = [t.y, t.gain, t.shift, t.normalised].into_iter().chain(t.inputs);
            let lengths = [t.cols, t.ldy].into_iter().chain(t.ld);
            addresses.into_iter().all(|p| p.is_multiple_of(16)) && lengths.into_iter().all(|n| n % 4 == 0)
        };
        let shape = row_shape(widest).filter(|_| tasks.iter().all(vectorisable));
        let (name, lanes) =
            shape.map_or(("add_layer_norm".to_owned(), 32), |(c, lanes)| (format!("add_layer_norm_{c}"), lanes));
        let grid = [rows.div_ceil(256 / lanes).min(2 * GRID_STRIDE_BLOCKS), tasks.len(), 1];
        self.launch(&name, tasks, grid, 256, 0)
    }

    /// The sums of a group.
    pub(super) fn add_norms(&self, group: Range<usize>) -> impl Iterator<Item = &'a AddNorm> {
        self.program.ops[group].iter().map(|op| match op {
            Op::AddNorm(a) => a,
            _ => unreachable!("a group of sums"),
        })
    }

    pub(super) fn add_norms_forward(&mut self, group: Range<usize>) -> Result<(), Error> {
        let mut tasks = Vec::new();
        let mut rows = 0;
        for op in self.add_norms(group) {
            if op.inputs.len() > 8 {
                return Err(Error::Device(format!(
                    "a sum of {} values; at most 8 are supported; add them in two steps",
                    op.inputs.len()
                )));
            }
            tasks.push(self.norm_task(&op.inputs, op.y, op.norm));
            rows = rows.max(self.rows(op.y.value));
        }
        self.norms(&tasks, rows)
    }

    pub(super) fn add_norms_backward(&mut self, group: Range<usize>) -> Result<(), Error> {
        let ops: Vec<&AddNorm> = self.add_norms(group).collect();
        let (mut norms, mut adds) = (Vec::new(), Vec::new());
        for op in &ops {
            let terms: Vec<(Slice, Slice)> = op.inputs.iter().map(|&s| (s, op.y)).collect();
            let max_blocks = if op.norm.is_some() { MAX_RESIDUALS } else { 0 };
            let residual_grads = op.inputs.iter().filter(|&&s| self.writes_first(&terms, s, op.y)).take(max_blocks);
            let residual_grads: Vec<Slice> = residual_grads.copied().collect();
            adds.extend(terms.into_iter().filter(|t| !residual_grads.contains(&t.0)));
            norms.extend(op.norm.map(|n| (op.y, n, residual_grads)));
        }
        self.norms_backward(&norms)?;
        self.add_gradients(adds)?;
        ops.iter().flat_map(|op| &op.inputs).for_each(|s| self.written[s.value.0] = true);
        Ok(())
    }

    /// Whether the backward pass of the norm writes the gradient of a term first: it is used once, not yet written and
    /// not aliased. `terms` are all (term, sum) pairs of an operation.
    pub(super) fn writes_first(&self, terms: &[(Slice, Slice)], term: Slice, sum: Slice) -> bool {
        let once = terms.iter().filter(|t| t.0 == term).count() == 1;
        once && self.wants_grad(term.value) && !self.written[term.value.0] && !self.is_aliased(term, sum)
    }

    /// Whether the gradient of a term aliases that of the sum.
    fn is_aliased(&self, term: Slice, sum: Slice) -> bool {
        self.grad_aliases.aliases.contains(&(sum.value, term.value)) && self.grad_slice(term) == self.grad_slice(sum)
    }

    /// Whether a value is the output of a ReLU and read by this operation alone, in full.
    fn is_relu_output(&self, s: Slice) -> bool {
        let v = s.value;
        let relu = |op: &Op| match op {
            Op::Linear(l) => l.activation == Activation::Relu && l.maps.iter().any(|m| m.y.value == v),
            _ => false,
        };
        s.cols == self.program.values[v.0].cols
            && self.program.ops.iter().any(relu)
            && self.program.ops.iter().filter(|op| op.uses().reads.contains(&v)).count() == 1
            && !self.program.outputs.contains(&v)
    }

    /// The backward pass of norms: in place on the gradients of sums, and to the residual gradients given with them.
    pub(super) fn norms_backward(&mut self, norms: &[(Slice, Norm, Vec<Slice>)]) -> Result<(), Error> {
        if norms.is_empty() {
            return Ok(());
        }
        let (mut tasks, mut sums) = (Vec::new(), Vec::new());
        let (mut max_blocks, mut widest) = (0, 0);
        let total: usize = norms.iter().map(|n| self.rows(n.0.value)).sum();
        let residual_grads = norms.iter().any(|n| !n.2.is_empty());
        for &(y, n, ref terms) in norms {
            let rows_each = self
                .rows(y.value)
                .div_ceil(MAX_NORM_BLOCKS)
                .max(self.norm_block_rows(total, y.cols, residual_grads))
                .next_multiple_of(8);
            let blocks = self.rows(y.value).div_ceil(rows_each);
            let partials = self.alloc_workspace(blocks * 2 * y.cols);
            let (dy, ld) = self.grad_slice(y);
            let space = self.space(y.value);
            let (gain, normalised, inv_std) = (self.param(n.gain), self.value(n.normalised), self.value(n.inv_std));
            let cols = y.cols as i32;
            let each = rows_each as i32;
            let (mut residual_grads, mut residual_gates, mut ld_residual_grads) =
                ([0; MAX_RESIDUALS], [0; MAX_RESIDUALS], [0; MAX_RESIDUALS]);
            for (i, &term) in terms.iter().enumerate() {
                (residual_grads[i], ld_residual_grads[i]) = self.grad_slice(term);
                if self.is_relu_output(term) {
                    residual_gates[i] = self.slice(term).0;
                    self.gated[term.value.0] = true;
                }
            }
            tasks.push(t::NormBackwardTask {
                dy,
                gain,
                normalised,
                inv_std,
                partials,
                residual_grads,
                residual_gates,
                ld_residual_grads,
                ld,
                cols,
                space,
                rows: each,
            });
            sums.extend(self.norm_sums(n, y.cols, partials, blocks, rows_each, space));
            max_blocks = max_blocks.max(blocks);
            widest = widest.max(y.cols);
        }
        let grid = [max_blocks, tasks.len(), 1];
        let vectorisable = |t: &t::NormBackwardTask| {
            let addresses = [t.dy, t.gain, t.normalised].into_iter().chain(t.residual_grads).chain(t.residual_gates);
            let lengths = [t.ld, t.cols].into_iter().chain(t.ld_residual_grads);
            { addresses }.all(|p| p.is_multiple_of(16)) && { lengths }.all(|n| n % 4 == 0)
        };
        let shape = row_shape(widest).filter(|_| tasks.iter().all(vectorisable));
        let kind = if residual_grads { "layer_norm_residuals_backward" } else { "layer_norm_backward" };
        let (name, lanes) =
            shape.map_or(("layer_norm_backward".to_owned(), 32), |(c, lanes)| (format!("{kind}_{c}"), lanes));
        self.launch(&name, &tasks, grid, 256, 256 / lanes * 2 * widest * 4)?;
        self.partial_sums.extend(sums);
        Ok(())
    }

    /// Sums of the partial gradients of gain and shift, [partials][2 · cols], each over `rows` rows.
    pub(super) fn norm_sums(
        &self,
        norm: Norm,
        cols: usize,
        partials: t::DevicePtr,
        count: usize,
        rows: usize,
        space: t::Space,
    ) -> [t::PartialSumTask; 2] {
        [(norm.gain, 0), (norm.shift, cols)].map(|(p, first)| t::PartialSumTask {
            partials: partials + 4 * first as u64,
            out: self.param_grad(p),
            stride: 2 * cols as u64,
            count: count as i32,
            len: cols as i32,
            rows_per_partial: rows as i32,
            vec: 0,
            space,
            overwrite: 0,
        })
    }

    /// Rows of a block of the backward pass. Blocks of long rows run all at once: three per multiprocessor, or two with
    /// residual gradients. Few rows are spread over all multiprocessors.
    fn norm_block_rows(&self, total: usize, cols: usize, residual_grads: bool) -> usize {
        let multiprocessors = self.kernels.multiprocessors;
        match cols {
            _ if total <= MIN_NORM_ROWS * multiprocessors / 8 => MIN_NORM_ROWS / 8,
            129.. => total.div_ceil(if residual_grads { 2 } else { 3 } * multiprocessors).max(MIN_NORM_ROWS),
            _ => MIN_NORM_ROWS,
        }
    }

    /// Adds gradients: each pair is (to, from). One launch adds up to eight sources per target.
    pub(super) fn add_gradients(&mut self, pairs: Vec<(Slice, Slice)>) -> Result<(), Error> {
        let (aliased, pairs): (Vec<_>, Vec<_>) =
            pairs.into_iter().filter(|p| self.wants_grad(p.0.value)).partition(|p| self.is_aliased(p.0, p.1));
        aliased.iter().for_each(|p| self.written[p.0.value.0] = true);
        let targets = group_by(pairs.iter().map(|p| p.0));
        let rounds = targets.iter().map(|t| t.1.len().div_ceil(8)).max().unwrap_or(0);
        for round in 0..rounds {
            let mut tasks = Vec::new();
            let mut max_blocks = 0;
            for (to, members) in &targets {
                let Some(part) = members.chunks(8).nth(round) else { continue };
                let (y, ldy) = self.grad_slice(*to);
                let mut task = t::AddTask {
                    inputs: [0; 8],
                    ld: [0; 8],
                    y,
                    count: part.len() as i32,
                    ldy,
                    cols: to.cols as i32,
                    accumulate: i32::from(round > 0 || self.written[to.value.0]),
                    space: self.space(to.value),
                    vec: i32::from(self.aligned(*to) && part.iter().all(|&m| self.aligned(pairs[m].1))),
                };
                for (i, &m) in part.iter().enumerate() {
                    (task.inputs[i], task.ld[i]) = self.grad_slice(pairs[m].1);
                }
                tasks.push(task);
                max_blocks = max_blocks.max(self.rows(to.value) * to.cols);
            }
            self.launch_grid_stride("add_rows", &tasks, max_blocks)?;
        }
        // Other columns count as written too: they were cleared if nothing else fills them.
        targets.iter().for_each(|(to, _)| self.written[to.value.0] = true);
        Ok(())
    }
}
