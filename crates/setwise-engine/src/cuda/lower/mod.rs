//! Lowering: from a program to task tables in device memory and a fixed list of launches, forward and backward.
//!
//! All offsets are for a capacity, the maximal size of a batch. Kernels read the actual rows from the shape buffer and
//! return early without work. So launches never change, and one captured graph serves every batch.
//!
//! * `capacity`: the maximal size of a batch.
//! * `param_grads`: partial sums of parameter gradients.
//! * `row_kernels`, `row_kernel_source`, `row_kernel_launch`: row-wise operations as one generated kernel.
//! * `linear`, with `fused_linear` (which maps are one product) and `tiling` (blocks and split-K).
//! * `layer_norm`, `attention`, `row_ops`, `pair` with `pair_input_grad`, `pine`, `convolution` with
//!   `convolution_small_c`, `batch_norm` with max pooling: one kind of operation each, forward and backward.

mod attention;
mod batch_norm;
mod capacity;
mod convolution;
mod convolution_small_c;
mod fused_linear;
mod layer_norm;
mod linear;
mod pair;
mod pair_input_grad;
mod param_grads;
mod pine;
mod row_kernel_launch;
mod row_kernel_source;
mod row_kernels;
mod row_ops;
mod tiling;

pub(super) use attention::{head_depths, key_tile, single_block_macros, single_block_shapes, sm90_depth};
pub use capacity::Capacity;
pub(super) use convolution::has_images;
pub(super) use layer_norm::launch_groups;
pub(super) use linear::defers_weight_grads;
pub(super) use row_kernels::{RowKernel, in_row_kernel, row_kernels};

use std::collections::BTreeSet;

use super::compile::Kernels;
use super::driver::{self, Blocks, Function, Stream};
use super::kernel_tasks::{self as t, DevicePtr, TaskTable};
use crate::error::Error;
use crate::flow::{gated_values, gradients_to_clear};
use crate::grad_alias::GradAliases;
use crate::params::ParamId;
use crate::plan::Plan;
use crate::program::{Op, Program, Slice, Space, Value};
use param_grads::ParamGrads;

/// One command of a stream.
pub(super) enum Command {
    Launch { name: String, f: Function, blocks: Blocks, tasks: DevicePtr },
    Memset { at: DevicePtr, bytes: usize },
}

impl Command {
    /// Puts the command into a stream.
    ///
    /// # Safety
    /// The buffers and kernels that the command was lowered for must live until the stream has been waited for. `shape`
    /// must point to the shape buffer of a batch within the capacity.
    pub unsafe fn enqueue(&self, stream: &Stream, shape: DevicePtr) -> Result<(), Error> {
        match *self {
            // SAFETY: lowering wrote tasks of this kernel for this grid; the caller guarantees buffers and shape.
            Command::Launch { f, blocks, tasks, .. } => unsafe { driver::launch(stream, f, blocks, tasks, shape) },
            // SAFETY: lowering took the range from a buffer that the caller keeps alive.
            Command::Memset { at, bytes } => unsafe { driver::zero(stream, at, bytes) },
        }
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        match self {
            Command::Launch { name, .. } => name,
            Command::Memset { .. } => "memset",
        }
    }
}

/// Addresses of the device's buffers.
#[derive(Clone, Copy, Default)]
pub(super) struct Buffers {
    pub arena: DevicePtr,
    pub params: DevicePtr,
    pub grads: DevicePtr,
    pub transposed: DevicePtr,
    pub workspace: DevicePtr,
    pub controls: DevicePtr,
    pub task_table: DevicePtr,
}

/// Maximal blocks of grid-stride kernels.
const GRID_STRIDE_BLOCKS: usize = 1024;

/// Lowers a program to commands.
pub(super) struct Lowering<'a> {
    pub program: &'a Program,
    pub plan: &'a Plan,
    pub grad_aliases: &'a GradAliases,
    pub row_kernels: &'a [RowKernel],
    pub capacity: &'a Capacity,
    pub kernels: &'a Kernels,
    pub buffers: Buffers,
    pub task_table: TaskTable,
    pub commands: Vec<Command>,
    written: Vec<bool>,
    /// Values whose gradient is gated by the kernel that writes it: zero where the value is not positive.
    gated: Vec<bool>,
    /// Weights of maps that are not fused with others.
    unfused: BTreeSet<ParamId>,
    /// Whether the next kernel must wait for its predecessor to end; nothing behind it can start earlier either.
    serialize_next: bool,
    /// Addresses of the packed weights of every row kernel and component, forward and backward.
    packed_weights: Vec<Vec<[DevicePtr; 2]>>,
    /// Address of the sorted argmax entries.
    argmax_entries: Option<DevicePtr>,
    /// Address of f16 rows of pair networks.
    f16_rows: Option<DevicePtr>,
    /// Partial sums of gradients, added at the end.
    partial_sums: Vec<t::PartialSumTask>,
    /// Moments that the last convolution computes for the batch norm after it.
    moments: Option<batch_norm::Moments>,
    param_grads: ParamGrads,
    /// Deferred weight gradients.
    pending_weight_grads: Vec<linear::WeightUse>,
    workspace_used: usize,
    /// Bytes of workspace needed.
    pub workspace_bytes: usize,
}

impl<'a> Lowering<'a> {
    pub fn new(
        program: &'a Program,
        plan: &'a Plan,
        grad_aliases: &'a GradAliases,
        row_kernels: &'a [RowKernel],
        capacity: &'a Capacity,
        kernels: &'a Kernels,
        buffers: Buffers,
    ) -> Self {
        let written = vec![false; program.values.len()];
        Lowering {
            program,
            plan,
            grad_aliases,
            row_kernels,
            capacity,
            kernels,
            buffers,
            task_table: TaskTable::new(buffers.task_table),
            commands: Vec::new(),
            written,
            gated: gated_values(program),
            unfused: fused_linear::unfusable_weights(program),
            partial_sums: Vec::new(),
            moments: None,
            param_grads: ParamGrads::new(program),
            serialize_next: false,
            packed_weights: Vec::new(),
            argmax_entries: None,
            f16_rows: None,
            pending_weight_grads: Vec::new(),
            workspace_used: 0,
            workspace_bytes: 0,
        }
    }

    /// Lowers all operations in order.
    pub fn forward(&mut self) -> Result<(), Error> {
        self.pack_row_weights()?;
        for group in launch_groups(self.program, self.row_kernels) {
            if let Some(index) = self.row_kernel_at(group.start) {
                self.row_kernel_forward(index)?;
                continue;
            }
            if let Op::AddNorm(_) = &self.program.ops[group.start] {
                self.add_norms_forward(group)?;
                continue;
            }
            match &self.program.ops[group.start] {
                Op::Linear(l) => self.linear_forward(l)?,
                Op::Attention(a) => self.attention(a, &["attention_forward"])?,
                Op::AddNorm(_) => unreachable!("lowered as a group above"),
                Op::Pool(p) => self.pool_forward(p)?,
                Op::Pairs(p) => self.pairs_forward(p)?,
                Op::ToUnion(u) => self.join_union(u)?,
                Op::FromUnion(u) => self.split_union(u)?,
                Op::Repeat(_) => self.repeats(group, false)?,
                Op::Concat(c) => self.concat(c, false)?,
                Op::PineSum(p) => self.pine_forward(p)?,
                Op::Dropout(d) => self.dropout(d, false)?,
                Op::Convolution(c) => self.convolution_forward(c, self.wants_moments(group.end, &c.ys))?,
                Op::BatchNorm(b) => self.batch_norm_forward(b, self.pooling(group))?,
                Op::MaxPool(p) => self.max_pool(p, false)?,
            }
        }
        Ok(())
    }

    /// Lowers all operations in reverse. Output gradients are inputs; parameter gradients are overwritten.
    pub fn backward(&mut self) -> Result<(), Error> {
        let clear = gradients_to_clear(self.program);
        self.program.outputs.iter().for_each(|v| self.written[v.0] = true);
        self.transpose_weights()?;
        for group in launch_groups(self.program, self.row_kernels).into_iter().rev() {
            for &v in clear[group.clone()].iter().flatten() {
                let bytes = self.len_of(v) * 4;
                self.commands.push(Command::Memset { at: self.grad(v), bytes });
                self.written[v.0] = true;
            }
            if let Some(index) = self.row_kernel_at(group.start) {
                self.row_kernel_backward(index)?;
                continue;
            }
            if let Op::AddNorm(_) = &self.program.ops[group.start] {
                self.add_norms_backward(group)?;
                continue;
            }
            match &self.program.ops[group.start] {
                Op::Linear(l) => self.linear_backward(group.start, l)?,
                Op::Attention(a) => {
                    self.attention(a, &["attention_backward_queries", "attention_backward_keys"])?;
                    for r in &a.relations {
                        [r.query, r.key, r.value].iter().for_each(|s| self.written[s.value.0] = true);
                    }
                }
                Op::AddNorm(_) => unreachable!("lowered as a group above"),
                Op::Pool(p) => self.pool_backward(p)?,
                Op::Pairs(p) => self.pairs_backward(p)?,
                Op::ToUnion(u) => self.union_backward(u)?,
                Op::FromUnion(u) => self.split_union_backward(u)?,
                Op::Repeat(_) => self.repeats(group, true)?,
                Op::Concat(c) => self.concat(c, true)?,
                Op::PineSum(p) => self.pine_backward(p)?,
                Op::Dropout(d) => self.dropout(d, true)?,
                Op::Convolution(c) => self.convolution_backward(c)?,
                Op::BatchNorm(b) => self.batch_norm_backward(b, self.pooling(group))?,
                Op::MaxPool(p) => self.max_pool(p, true)?,
            }
        }
        self.flush_weight_grads()?;
        self.sum_partials()
    }

    /// A launch over a table of tasks.
    pub fn launch<T: t::PlainData>(
        &mut self,
        name: &str,
        tasks: &[T],
        grid: [usize; 3],
        threads: u32,
        shared: usize,
    ) -> Result<(), Error> {
        self.launch_clusters(name, tasks, grid, threads, shared, [1, 1])
    }

    /// The same with clusters of `cluster` blocks along the grid's first two dimensions.
    fn launch_clusters<T: t::PlainData>(
        &mut self,
        name: &str,
        tasks: &[T],
        grid: [usize; 3],
        threads: u32,
        shared: usize,
        cluster: [usize; 2],
    ) -> Result<(), Error> {
        if tasks.is_empty() {
            return Ok(());
        }
        // The hardware limit of the second and third grid dimension.
        if grid[1].max(grid[2]) > 65_535 {
            let examples = self.capacity.examples;
            return Err(Error::Device(format!("a batch of {examples} examples is too large; lower the batch size")));
        }
        let mut f = self.kernels.function(name, shared)?;
        f.programmatic_launch &= !std::mem::take(&mut self.serialize_next);
        let tasks = self.task_table.push(tasks);
        let grid = grid.map(|n| n.max(1) as u32);
        let blocks = Blocks { grid, threads, shared: shared as u32, cluster: cluster.map(|n| n as u32) };
        self.commands.push(Command::Launch { name: name.to_owned(), f, blocks, tasks });
        Ok(())
    }

    /// A launch of a grid-stride kernel over `numbers` numbers of each task.
    fn launch_grid_stride<T: t::PlainData>(&mut self, name: &str, tasks: &[T], numbers: usize) -> Result<(), Error> {
        self.check_index_range(numbers)?;
        self.launch(name, tasks, [numbers.div_ceil(256).min(GRID_STRIDE_BLOCKS), tasks.len(), 1], 256, 0)
    }

    /// Kernels index numbers of a value with 32 bits.
    fn check_index_range(&self, numbers: usize) -> Result<(), Error> {
        let too_many = |_| {
            Error::Device(format!(
                "one value has {numbers} numbers, more than 32-bit indices allow; lower the batch or set size"
            ))
        };
        u32::try_from(numbers).map(drop).map_err(too_many)
    }

    fn value(&self, v: Value) -> DevicePtr {
        self.buffers.arena + 4 * self.plan.offsets[v.0] as u64
    }

    fn grad(&self, v: Value) -> DevicePtr {
        self.buffers.arena + 4 * self.plan.offsets[self.program.values.len() + v.0] as u64
    }

    /// Address and leading dimension of some columns.
    fn slice(&self, s: Slice) -> (DevicePtr, i32) {
        (self.value(s.value) + 4 * s.col as u64, self.program.values[s.value.0].cols as i32)
    }

    fn grad_slice(&self, s: Slice) -> (DevicePtr, i32) {
        (self.grad(s.value) + 4 * s.col as u64, self.program.values[s.value.0].cols as i32)
    }

    fn param(&self, p: ParamId) -> DevicePtr {
        self.buffers.params + 4 * self.program.params.spec(p).offset as u64
    }

    /// Address of a parameter offset.
    fn param_at(&self, offset: usize) -> DevicePtr {
        self.buffers.params + 4 * offset as u64
    }

    fn param_grad(&self, p: ParamId) -> DevicePtr {
        self.buffers.grads + 4 * self.program.params.spec(p).offset as u64
    }

    pub fn space(&self, v: Value) -> t::Space {
        space_of(self.program, self.capacity, v)
    }

    /// Maximal rows of a value, input dimensions counted.
    pub fn rows(&self, v: Value) -> usize {
        self.capacity.rows_of(&self.program.values[v.0])
    }

    fn len_of(&self, v: Value) -> usize {
        self.rows(v) * self.program.values[v.0].cols
    }

    fn max_set_len(&self, v: Value) -> usize {
        self.capacity.max_set_len(self.program.values[v.0].space)
    }

    fn wants_grad(&self, v: Value) -> bool {
        self.program.values[v.0].grad
    }

    /// Allocates workspace.
    fn alloc_workspace(&mut self, numbers: usize) -> DevicePtr {
        let at = self.buffers.workspace + 4 * self.workspace_used as u64;
        self.workspace_used += numbers.next_multiple_of(64);
        self.workspace_bytes = self.workspace_bytes.max(4 * self.workspace_used);
        at
    }

    /// Whether rows of a slice allow sixteen-byte reads.
    fn aligned(&self, s: Slice) -> bool {
        s.col.is_multiple_of(4) && s.cols.is_multiple_of(4) && self.program.values[s.value.0].cols.is_multiple_of(4)
    }

    fn aligned_param(&self, p: ParamId) -> bool {
        self.program.params.spec(p).offset.is_multiple_of(4)
    }
}

/// The rows of a value, as kernels find them in the shape buffer.
pub(super) fn space_of(program: &Program, capacity: &Capacity, v: Value) -> t::Space {
    let spec = &program.values[v.0];
    let stride = capacity.examples + 1;
    let (offsets, per_example) = match spec.space {
        Space::Set(k) => (2 + k * stride, 0),
        Space::Union => (2 + capacity.rows.len() * stride, 0),
        Space::PerExample(n) => (0, n),
        Space::Batch => unreachable!("kernels find what belongs to no example by its address"),
    };
    t::Space { offsets: offsets as i32, per_example: per_example as i32, per_dim: i32::from(spec.per_dim) }
}
