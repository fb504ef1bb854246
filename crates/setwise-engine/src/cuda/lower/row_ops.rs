//! Operations that reduce or move rows.

use std::ops::Range;

use super::super::kernel_tasks::{self as t, DevicePtr};
use super::Lowering;
use super::param_grads::conflict_free_rounds;
use crate::error::Error;
use crate::program::{Concat, Dropout, FromUnion, Op, Pool, Reduce, Repeat, Segments, Space, ToUnion, Value};

impl<'a> Lowering<'a> {
    pub(super) fn pool_task(&self, op: &Pool) -> t::PoolTask {
        let (y, ldy) = self.slice(op.y);
        t::PoolTask {
            x: self.value(op.x),
            y,
            ldy,
            cols: op.y.cols as i32,
            reduce: match op.reduce {
                Reduce::Max => 0,
                Reduce::Mean => 1,
                Reduce::Sum => 2,
            },
            dimensions: i32::from(op.segments == Segments::Dimensions),
            accumulate: i32::from(self.written[op.x.0]),
            pad: 0,
            space: self.space(op.x),
            pad2: 0,
        }
    }

    pub(super) fn pool_forward(&mut self, op: &Pool) -> Result<(), Error> {
        let task = self.pool_task(op);
        self.launch_grid_stride("pool_forward", &[task], self.len_of(op.y.value))
    }

    pub(super) fn pool_backward(&mut self, op: &Pool) -> Result<(), Error> {
        if self.wants_grad(op.x) {
            let pool = self.pool_task(op);
            let task = t::PoolBackwardTask { pool, dx: self.grad(op.x), dy: self.grad_slice(op.y).0 };
            self.launch_grid_stride("pool_backward", &[task], self.len_of(op.y.value))?;
            self.written[op.x.0] = true;
        }
        Ok(())
    }

    pub(super) fn union_task(
        &self,
        all: DevicePtr,
        of: Value,
        sets: &[Value],
        address: impl Fn(Value) -> DevicePtr,
    ) -> t::UnionTask {
        let mut task = t::UnionTask {
            sets: [0; 64],
            encodings: [0; 64],
            spaces: [t::Space { offsets: 0, per_example: 0, per_dim: 0 }; 64],
            accumulate: [0; 64],
            all,
            count: sets.len() as i32,
            cols: self.program.values[of.0].cols as i32,
            space: self.space(of),
            pad: 0,
        };
        for (k, &v) in sets.iter().enumerate() {
            (task.sets[k], task.spaces[k], task.accumulate[k]) =
                (address(v), self.space(v), i32::from(self.written[v.0]));
        }
        task
    }

    pub(super) fn join_union(&mut self, op: &ToUnion) -> Result<(), Error> {
        let mut task = self.union_task(self.value(op.y), op.y, &op.sets, |v| self.value(v));
        for (k, &e) in op.encodings.iter().enumerate() {
            task.encodings[k] = self.param(e);
        }
        self.launch_grid_stride("to_union", &[task], self.len_of(op.y))
    }

    pub(super) fn union_backward(&mut self, op: &ToUnion) -> Result<(), Error> {
        let address = |v: Value| if self.wants_grad(v) { self.grad(v) } else { 0 };
        let task = self.union_task(self.grad(op.y), op.y, &op.sets, address);
        self.launch_grid_stride("from_union", &[task], self.len_of(op.y))?;
        op.sets.iter().for_each(|v| self.written[v.0] = true);
        if !op.encodings.is_empty() {
            let mut sums = [0; 64];
            for (k, &e) in op.encodings.iter().enumerate() {
                sums[k] = self.param_grad(e);
            }
            let grid = [task.cols as usize, op.encodings.len(), 1];
            self.launch("set_encoding_grad", &[t::EncodingTask { rows: task, sums }], grid, 128, 0)?;
        }
        Ok(())
    }

    pub(super) fn split_union(&mut self, op: &FromUnion) -> Result<(), Error> {
        let task = self.union_task(self.value(op.x), op.x, &op.sets, |v| self.value(v));
        self.launch_grid_stride("from_union", &[task], self.len_of(op.x))
    }

    pub(super) fn split_union_backward(&mut self, op: &FromUnion) -> Result<(), Error> {
        let mut task = self.union_task(self.grad(op.x), op.x, &op.sets, |v| self.grad(v));
        task.accumulate[0] = i32::from(self.written[op.x.0]);
        self.launch_grid_stride("from_union_backward", &[task], self.len_of(op.x))?;
        self.written[op.x.0] = true;
        Ok(())
    }

    /// Repeats parameters for every example, in one launch. Gradients of a parameter that is repeated twice are added
    /// in separate launches.
    pub(super) fn repeats(&mut self, ops: Range<usize>, backward: bool) -> Result<(), Error> {
        let program = self.program;
        let all = program.ops[ops].iter().filter_map(|op| match op {
            Op::Repeat(r) => Some(r),
            _ => None,
        });
        for round in conflict_free_rounds(all, |a, b| a.param == b.param) {
            let len = |r: &Repeat| program.params.spec(r.param).len();
            let max_len = round.iter().map(|r| len(r)).max().unwrap_or(0);
            let tasks: Vec<t::RepeatTask> = round
                .iter()
                .map(|r| {
                    let (param, y) = match backward {
                        false => (self.param(r.param), self.value(r.y)),
                        true => (self.param_grad(r.param), self.grad(r.y)),
                    };
                    t::RepeatTask { param, y, len: len(r) as i32, pad: 0 }
                })
                .collect();
            match backward {
                false => self.launch_grid_stride("repeat_forward", &tasks, max_len * self.capacity.examples)?,
                true => self.launch("repeat_backward", &tasks, [max_len.div_ceil(64), tasks.len(), 1], 64, 0)?,
            }
        }
        Ok(())
    }

    pub(super) fn concat(&mut self, op: &Concat, backward: bool) -> Result<(), Error> {
        let cols = self.program.values[op.y.0].cols;
        let mut at = 0;
        let mut tasks = Vec::new();
        for &x in &op.inputs {
            let spec = &self.program.values[x.0];
            let Space::PerExample(rows) = spec.space else {
                return Err(Error::Device(
                    "a concatenation of ragged rows is not supported; pool the sets first".into(),
                ));
            };
            let len = rows * spec.cols;
            if !backward || self.wants_grad(x) {
                let (x_at, y) =
                    if backward { (self.grad(x), self.grad(op.y)) } else { (self.value(x), self.value(op.y)) };
                let accumulate = i32::from(backward && self.written[x.0]);
                tasks.push(t::ConcatTask { x: x_at, y, len: len as i32, ldy: cols as i32, at: at as i32, accumulate });
            }
            at += len;
        }
        if backward {
            op.inputs.iter().for_each(|x| self.written[x.0] = true);
        }
        let name = if backward { "concat_backward" } else { "concat_forward" };
        self.launch_grid_stride(name, &tasks, cols * self.capacity.examples)
    }

    pub(super) fn dropout(&mut self, op: &Dropout, backward: bool) -> Result<(), Error> {
        let (from, to) = if backward { (op.y, op.x) } else { (op.x, op.y) };
        if backward && !self.wants_grad(to.value) {
            return Ok(());
        }
        let ((x, ldx), (y, ldy)) = match backward {
            false => (self.slice(from), self.slice(to)),
            true => (self.grad_slice(from), self.grad_slice(to)),
        };
        let task = t::DropoutTask {
            x,
            y,
            seed: self.buffers.controls + 16,
            stream: op.stream,
            threshold: (op.rate * 2f64.powi(32)) as u64,
            scale: (1.0 / (1.0 - op.rate)) as f32,
            ldx,
            ldy,
            cols: op.x.cols as i32,
            accumulate: i32::from(backward && self.written[to.value.0]),
            space: self.space(op.x.value),
        };
        if backward {
            self.written[to.value.0] = true;
        }
        self.launch_grid_stride("dropout", &[task], self.rows(op.x.value) * op.x.cols)
    }
}
