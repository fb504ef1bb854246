//! From a program to the kernels that run it: tables of tasks in device memory, and a list of launches forward and backward.
//!
//! Everything is placed for a capacity, the most rows a batch may have; kernels read the rows a batch has from its shape in device memory
//! and leave when there is nothing to do. So launches never change, and a captured graph of them serves every batch.

//!
//! `gradients` holds the sums that gradients of parameters are made of; `chain` (with `chain_source`, their kernels' text, and `chain_launch`) operations that go row by row as one launch; `linear` (with `joined`, which maps are one product, and `tiles`, how products are cut into blocks), `norm`, `attention`, `rows`, `pair`, `pine`, `images` (with `few_channels`) and `batch_norm` (with the pooling of
//! images) hold one kind of operation each, forward and backward.

mod attention;
mod batch_norm;
mod capacity;
mod chain;
mod chain_launch;
mod chain_source;
mod few_channels;
mod gradients;
mod images;
mod joined;
mod linear;
mod norm;
mod pair;
mod pair_sides;
mod pine;
mod rows;
mod tiles;

pub(super) use attention::{depths, key_tile, whole_kinds, whole_sets, wide_depth};
pub use capacity::Capacity;
pub(super) use chain::{Chain, chains, in_chain};
pub(super) use images::has_images;
pub(super) use linear::gathers_weights;
pub(super) use norm::together;

use std::collections::BTreeSet;

use super::compile::Kernels;
use super::driver::{self, Blocks, Function, Stream};
use super::tables::{self as t, Address, Tables};
use crate::error::Error;
use crate::flow::{gated_values, gradients_to_clear};
use crate::handed::Handed;
use crate::params::ParamId;
use crate::plan::Plan;
use crate::program::{Op, Program, Slice, Space, Value};
use gradients::Gradients;

/// One thing the device does.
pub(super) enum Work {
    Launch { name: String, f: Function, blocks: Blocks, tasks: Address },
    Zero { at: Address, bytes: usize },
}

impl Work {
    pub fn enqueue(&self, stream: &Stream, shape: Address) -> Result<(), Error> {
        match *self {
            Work::Launch { f, blocks, tasks, .. } => driver::launch(stream, f, blocks, tasks, shape),
            Work::Zero { at, bytes } => driver::zero(stream, at, bytes),
        }
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        match self {
            Work::Launch { name, .. } => name,
            Work::Zero { .. } => "zero",
        }
    }
}

/// Where the device's buffers lie.
#[derive(Clone, Copy, Default)]
pub(super) struct Places {
    pub arena: Address,
    pub params: Address,
    pub grads: Address,
    pub transposed: Address,
    pub workspace: Address,
    pub controls: Address,
    pub tables: Address,
}

/// Blocks of kernels that walk over all numbers.
const WALKERS: usize = 1024;

/// Builds the launches of a program.
pub(super) struct Builder<'a> {
    pub program: &'a Program,
    pub plan: &'a Plan,
    pub handed: &'a Handed,
    pub chains: &'a [Chain],
    pub capacity: &'a Capacity,
    pub module: &'a Kernels,
    pub places: Places,
    pub tables: Tables,
    pub work: Vec<Work>,
    written: Vec<bool>,
    /// Values whose gradient is nothing where they are not positive, by the kernel that writes it.
    gated: Vec<bool>,
    /// Weights of maps that are not joined with others.
    apart: BTreeSet<ParamId>,
    /// Whether the next kernel may not start before the last one is done. Nothing after it can then start earlier either.
    in_order: bool,
    /// Where the weights of all lanes of all chains lie, those for the way forward and back.
    chain_weights: Vec<Vec<[Address; 2]>>,
    /// Where lists of what partners won lie.
    wins: Option<Address>,
    /// Where rows of both sides of pairs lie in halves.
    halves: Option<Address>,
    /// Parts of gradients, summed together at the end.
    sums: Vec<t::SumTask>,
    /// What the convolution just built leaves for the batch norm after it.
    moments: Option<batch_norm::Moments>,
    gradients: Gradients,
    /// Gradients of weights that are still to be made.
    gathered: Vec<linear::Use>,
    used: usize,
    /// Bytes of workspace that are needed.
    pub workspace: usize,
}

impl<'a> Builder<'a> {
    pub fn new(
        program: &'a Program,
        plan: &'a Plan,
        handed: &'a Handed,
        chains: &'a [Chain],
        capacity: &'a Capacity,
        module: &'a Kernels,
        places: Places,
    ) -> Self {
        let written = vec![false; program.values.len()];
        Builder {
            program,
            plan,
            handed,
            chains,
            capacity,
            module,
            places,
            tables: Tables::new(places.tables),
            work: Vec::new(),
            written,
            gated: gated_values(program),
            apart: joined::kept_apart(program),
            sums: Vec::new(),
            moments: None,
            gradients: Gradients::new(program),
            in_order: false,
            chain_weights: Vec::new(),
            wins: None,
            halves: None,
            gathered: Vec::new(),
            used: 0,
            workspace: 0,
        }
    }

    /// All operations in order.
    pub fn forward(&mut self) -> Result<(), Error> {
        self.lay_out_chain_weights()?;
        for group in together(self.program, self.chains) {
            if let Some(chain) = self.chain_at(group.start) {
                self.chain_forward(chain)?;
                continue;
            }
            if let Op::AddNorm(_) = &self.program.ops[group.start] {
                self.add_norms_forward(group)?;
                continue;
            }
            match &self.program.ops[group.start] {
                Op::Linear(l) => self.linear_forward(l)?,
                Op::Attention(a) => self.attention(a, &["attention_forward"])?,
                Op::AddNorm(_) => unreachable!("taken together above"),
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

    /// All operations in reverse; gradients of the outputs are in place, those of the parameters are made anew.
    pub fn backward(&mut self) -> Result<(), Error> {
        let clear = gradients_to_clear(self.program);
        self.program.outputs.iter().for_each(|v| self.written[v.0] = true);
        self.transpose_weights()?;
        for group in together(self.program, self.chains).into_iter().rev() {
            for &v in clear[group.clone()].iter().flatten() {
                let bytes = self.len_of(v) * 4;
                self.work.push(Work::Zero { at: self.grad(v), bytes });
                self.written[v.0] = true;
            }
            if let Some(chain) = self.chain_at(group.start) {
                self.chain_backward(chain)?;
                continue;
            }
            if let Op::AddNorm(_) = &self.program.ops[group.start] {
                self.add_norms_backward(group)?;
                continue;
            }
            match &self.program.ops[group.start] {
                Op::Linear(l) => self.linear_backward(group.start, l)?,
                Op::Attention(a) => {
                    self.attention(a, &["attention_queries", "attention_keys"])?;
                    for r in &a.relations {
                        [r.query, r.key, r.value].iter().for_each(|s| self.written[s.value.0] = true);
                    }
                }
                Op::AddNorm(_) => unreachable!("taken together above"),
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
        self.gathered_weights()?;
        self.sum_parts()
    }

    /// A launch over a table.
    pub fn launch<T: t::Plain>(
        &mut self,
        name: &str,
        tasks: &[T],
        grid: [usize; 3],
        threads: u32,
        shared: usize,
    ) -> Result<(), Error> {
        self.launch_clusters(name, tasks, grid, threads, shared, [1, 1])
    }

    /// The same in clusters of so many blocks along the grid's first two dimensions.
    fn launch_clusters<T: t::Plain>(
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
        // The second and third dimension of a grid end here.
        if grid[1].max(grid[2]) > 65_535 {
            let examples = self.capacity.examples;
            return Err(Error::Device(format!("a batch of {examples} examples is too large; lower the batch size")));
        }
        let mut f = self.module.function(name, shared)?;
        f.early &= !std::mem::take(&mut self.in_order);
        let tasks = self.tables.push(tasks);
        let grid = grid.map(|n| n.max(1) as u32);
        let blocks = Blocks { grid, threads, shared: shared as u32, cluster: cluster.map(|n| n as u32) };
        self.work.push(Work::Launch { name: name.to_owned(), f, blocks, tasks });
        Ok(())
    }

    /// A launch of a kernel that walks over `most` numbers of each task.
    fn walk<T: t::Plain>(&mut self, name: &str, tasks: &[T], most: usize) -> Result<(), Error> {
        self.check_count(most)?;
        self.launch(name, tasks, [most.div_ceil(256).min(WALKERS), tasks.len(), 1], 256, 0)
    }

    /// Numbers of a value are counted in 32 bits.
    fn check_count(&self, most: usize) -> Result<(), Error> {
        let too_many =
            |_| Error::Device(format!("{most} numbers of one value are too many; lower the batch or set size"));
        u32::try_from(most).map(drop).map_err(too_many)
    }

    fn value(&self, v: Value) -> Address {
        self.places.arena + 4 * self.plan.offsets[v.0] as u64
    }

    fn grad(&self, v: Value) -> Address {
        self.places.arena + 4 * self.plan.offsets[self.program.values.len() + v.0] as u64
    }

    /// Address and row length of some columns.
    fn slice(&self, s: Slice) -> (Address, i32) {
        (self.value(s.value) + 4 * s.col as u64, self.program.values[s.value.0].cols as i32)
    }

    fn grad_slice(&self, s: Slice) -> (Address, i32) {
        (self.grad(s.value) + 4 * s.col as u64, self.program.values[s.value.0].cols as i32)
    }

    fn param(&self, p: ParamId) -> Address {
        self.places.params + 4 * self.program.params.spec(p).offset as u64
    }

    /// A place among the parameters.
    fn param_at(&self, offset: usize) -> Address {
        self.places.params + 4 * offset as u64
    }

    fn param_grad(&self, p: ParamId) -> Address {
        self.places.grads + 4 * self.program.params.spec(p).offset as u64
    }

    pub fn space(&self, v: Value) -> t::Space {
        space_of(self.program, self.capacity, v)
    }

    /// Most rows of a value, dimensions counted.
    pub fn rows(&self, v: Value) -> usize {
        self.capacity.rows_of(&self.program.values[v.0])
    }

    fn len_of(&self, v: Value) -> usize {
        self.rows(v) * self.program.values[v.0].cols
    }

    fn longest(&self, v: Value) -> usize {
        self.capacity.longest(self.program.values[v.0].space)
    }

    fn wants_grad(&self, v: Value) -> bool {
        self.program.values[v.0].grad
    }

    /// Some workspace.
    fn room(&mut self, numbers: usize) -> Address {
        let at = self.places.workspace + 4 * self.used as u64;
        self.used += numbers.next_multiple_of(64);
        self.workspace = self.workspace.max(4 * self.used);
        at
    }

    /// Whether sixteen bytes at a time can be read of rows of a slice.
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
