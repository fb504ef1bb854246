//! Row kernels at run time: weights packed once per step, launches forward and backward.

use super::super::kernel_tasks as t;
use super::Lowering;
use super::linear::WeightUse;
use super::row_kernel_source::{Layout, Operand, ROW_KERNEL_ROWS, ROW_KERNEL_THREADS, Source, WARP_ROWS};
use super::row_kernels::{Component, Step};
use crate::error::Error;
use crate::flow::group_by;
use crate::program::Value;

/// Maximal blocks of a row kernel per multiprocessor.
const MAX_BLOCKS_PER_SM: usize = 2;
/// Bytes of shared memory that the system reserves per block.
const RESERVED_BYTES: usize = 1024;

impl Lowering<'_> {
    /// The row kernel that begins with an operation.
    pub(super) fn row_kernel_at(&self, op: usize) -> Option<usize> {
        self.row_kernels.iter().position(|c| c.ops.start == op)
    }

    /// Packs the weights of all row kernels, before everything else.
    pub(super) fn pack_row_weights(&mut self) -> Result<(), Error> {
        let row_kernels = self.row_kernels;
        let mut tasks = Vec::new();
        let mut max_numbers = 0;
        for row_kernel in row_kernels {
            let mut components = Vec::new();
            for component in &row_kernel.components {
                let kernels = [Some(&component.forward), component.backward.as_ref()];
                components.push(
                    kernels.map(|source| source.map_or(0, |s| self.pack_weights(s, &mut tasks, &mut max_numbers))),
                );
            }
            self.packed_weights.push(components);
        }
        self.launch("pack_row_weights", &tasks, [max_numbers.div_ceil(1024), tasks.len(), 1], 256, 0)?;
        // Row kernels load weights before their grid dependency wait.
        self.serialize_next = !tasks.is_empty();
        Ok(())
    }

    /// Allocates the packed weights of a kernel and appends the tasks that fill them.
    fn pack_weights(
        &mut self,
        source: &Source,
        tasks: &mut Vec<t::PackWeightsTask>,
        max_numbers: &mut usize,
    ) -> t::DevicePtr {
        let operand = self.alloc_workspace(source.shared / 4);
        for w in &source.weights {
            let (stride, kind) = match w.layout {
                Layout::RowMajor => (0, 0),
                Layout::Interleaved4 { stride } => (stride, 1),
                Layout::Vector => (0, 2),
            };
            let (from, to) = (self.param_at(w.param), operand + 4 * w.at as u64);
            let [rows, cols, stride] = [w.rows, w.cols, stride].map(|n| n as i32);
            tasks.push(t::PackWeightsTask { from, to, rows, cols, stride, kind });
            *max_numbers = (*max_numbers).max(w.rows * w.cols);
        }
        operand
    }

    pub(super) fn row_kernel_forward(&mut self, index: usize) -> Result<(), Error> {
        let row_kernel = &self.row_kernels[index];
        self.repeats(row_kernel.ops.clone(), false)?;
        let kernels = row_kernel.components.iter().enumerate();
        self.launch_row_kernels(
            kernels.map(|(i, l)| (&l.component, &l.forward, self.packed_weights[index][i][0])).collect(),
        )
    }

    pub(super) fn row_kernel_backward(&mut self, index: usize) -> Result<(), Error> {
        let row_kernel = &self.row_kernels[index];
        let kernels = row_kernel.components.iter().enumerate();
        let kernels =
            kernels.filter_map(|(i, l)| Some((&l.component, l.backward.as_ref()?, self.packed_weights[index][i][1])));
        self.launch_row_kernels(kernels.collect())?;
        for step in row_kernel.components.iter().flat_map(|l| &l.component.steps) {
            step.reads().iter().for_each(|s| self.written[s.value.0] = true);
            if let Step::Map { map, .. } = step {
                self.pending_weight_grads.push(WeightUse { weight: map.weight, bias: map.bias, x: map.x, dy: map.y });
            }
        }
        if !self.grad_aliases.keeps_output_grads {
            self.flush_weight_grads()?;
        }
        self.repeats(row_kernel.ops.clone(), true)
    }

    /// One launch for all components of the same kernel: components, kernels, addresses of packed weights.
    fn launch_row_kernels(&mut self, kernels: Vec<(&Component, &Source, t::DevicePtr)>) -> Result<(), Error> {
        for (name, members) in group_by(kernels.iter().map(|k| &k.1.name)) {
            let Source { shared, block_bytes, .. } = kernels[members[0]].1;
            let mut tasks = Vec::new();
            let mut rows = 0;
            for &m in &members {
                let (component, source, weights) = kernels[m];
                let y = component.steps[0].y().value;
                rows = rows.max(self.rows(y));
                let slices = component.steps.iter().flat_map(|s| s.reads().into_iter().chain([s.y()]));
                self.check_index_range(slices.map(|s| self.len_of(s.value)).max().unwrap_or(0))?;
                let addresses: Vec<t::DevicePtr> = source.operands.iter().map(|p| self.operand_address(p, y)).collect();
                tasks.push(t::RowKernelTask {
                    addresses: self.task_table.push(&addresses),
                    weights,
                    space: self.space(y),
                    pad: 0,
                });
            }
            // Weights are loaded once per block, so no more blocks exist than run at once.
            let at_once = ((self.kernels.shared_memory + RESERVED_BYTES) / (block_bytes + RESERVED_BYTES))
                .clamp(1, MAX_BLOCKS_PER_SM);
            let blocks =
                (at_once * self.kernels.multiprocessors).div_ceil(tasks.len()).min(rows.div_ceil(ROW_KERNEL_ROWS));
            self.launch(name, &tasks, [blocks, tasks.len(), 1], ROW_KERNEL_THREADS, *shared)?;
        }
        Ok(())
    }

    /// The address of an operand whose rows are those of `y`. Partial gradients of a norm are summed at the end.
    fn operand_address(&mut self, operand: &Operand, y: Value) -> t::DevicePtr {
        match *operand {
            Operand::Value(v) => self.value(v),
            Operand::Gradient(v) => self.grad(v),
            Operand::NormPartials { norm, cols } => {
                let count = self.rows(y).div_ceil(WARP_ROWS);
                let partials = self.alloc_workspace(count * 2 * cols);
                let sums = self.norm_sums(norm, cols, partials, count, WARP_ROWS, self.space(y));
                self.partial_sums.extend(sums);
                partials
            }
        }
    }
}
