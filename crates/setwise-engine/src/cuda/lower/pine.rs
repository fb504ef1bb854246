//! PINE's sums of sigmoids.

use super::super::kernel_tasks::{self as t, DevicePtr};
use super::{GRID_STRIDE_BLOCKS, Lowering};
use crate::error::Error;
use crate::program::PineSum;

impl<'a> Lowering<'a> {
    pub(super) fn pine_task(&self, op: &PineSum) -> t::PineTask {
        let (y, ldy) = self.slice(op.y);
        let projections = self.program.values[op.x.0].cols;
        t::PineTask {
            x: self.value(op.x),
            spread: self.param(op.spread),
            shift: self.param(op.shift),
            y,
            dx: 0,
            partials: 0,
            dy: 0,
            ldy,
            projections: projections as i32,
            per_projection: (op.y.cols / projections) as i32,
            accumulate: i32::from(self.written[op.x.0]),
            space: self.space(op.x),
            pad: 0,
        }
    }

    pub(super) fn pine_forward(&mut self, op: &PineSum) -> Result<(), Error> {
        let task = self.pine_task(op);
        self.launch("pine_forward", &[task], [op.y.cols.div_ceil(128), self.capacity.examples, 1], 128, 0)
    }

    pub(super) fn pine_backward(&mut self, op: &PineSum) -> Result<(), Error> {
        let width = op.y.cols;
        let mut task = self.pine_task(op);
        task.dy = self.grad_slice(op.y).0;
        task.partials = self.alloc_workspace(self.capacity.examples * 2 * width);
        self.launch("pine_backward", &[task], [width.div_ceil(128), self.capacity.examples, 1], 128, 0)?;
        let sums: Vec<t::PartialSumTask> = [op.spread, op.shift]
            .into_iter()
            .enumerate()
            .map(|(half, p)| {
                self.example_sum(task.partials + 4 * (half * width) as u64, self.param_grad(p), 2 * width, width)
            })
            .collect();
        self.partial_sums.extend(sums);
        if self.wants_grad(op.x) {
            task.dx = self.grad(op.x);
            let numbers = self.len_of(op.x);
            self.launch("pine_input_grad", &[task], [numbers.div_ceil(256).min(GRID_STRIDE_BLOCKS), 1, 1], 256, 0)?;
            self.written[op.x.0] = true;
        }
        Ok(())
    }

    /// A sum of one partial sum per example.
    pub(super) fn example_sum(
        &self,
        partials: DevicePtr,
        out: DevicePtr,
        stride: usize,
        len: usize,
    ) -> t::PartialSumTask {
        t::PartialSumTask {
            partials,
            out,
            stride: stride as u64,
            count: self.capacity.examples as i32,
            len: len as i32,
            rows_per_partial: 1,
            vec: 0,
            space: t::Space { offsets: 0, per_example: 1, per_dim: 0 },
            overwrite: 0,
        }
    }
}
