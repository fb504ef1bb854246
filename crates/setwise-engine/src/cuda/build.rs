//! From a program to the kernels that run it: tables of tasks in device memory, and a list of launches forward and backward.
//!
//! Everything is placed for a capacity, the most rows a batch may have; kernels read the rows a batch has from its shape in device memory
//! and leave when there is nothing to do. So launches never change, and a captured graph of them serves every batch.

use std::ops::Range;

use super::compile::Kernels;
use super::driver::{self, Function, Stream};
use super::tables::{self as t, Address, Tables};
use crate::error::Error;
use crate::flow::{gated_values, gradients_to_clear, group_by};
use crate::params::ParamId;
use crate::plan::Plan;
use crate::program::{
    Activation, AddNorm, Attention, Concat, Dropout, FromUnion, Linear, Norm, Op, Pairs, PineSum, Pool, Program,
    Reduce, Repeat, Segments, Slice, Space, ToUnion, Value,
};

/// The most a batch may have.
#[derive(Clone, Debug, PartialEq)]
pub struct Capacity {
    /// Examples.
    pub examples: usize,
    /// Elements of each set, all examples together.
    pub rows: Vec<usize>,
    /// Elements of each set in one example.
    pub longest: Vec<usize>,
    /// Input dimensions of dimension-equivariant programs, one otherwise.
    pub dims: usize,
}

impl Capacity {
    pub(super) fn rows(&self, space: Space) -> usize {
        match space {
            Space::Set(k) => self.rows[k],
            Space::Union => self.rows.iter().sum(),
            Space::PerExample(n) => n * self.examples,
        }
    }

    fn longest(&self, space: Space) -> usize {
        match space {
            Space::Set(k) => self.longest[k],
            Space::Union => self.longest.iter().sum(),
            Space::PerExample(n) => n,
        }
    }

    /// Whether a batch of another capacity fits.
    pub(super) fn holds(&self, other: &Capacity) -> bool {
        let all = |a: &[usize], b: &[usize]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a >= b);
        self.examples >= other.examples
            && self.dims >= other.dims
            && all(&self.rows, &other.rows)
            && all(&self.longest, &other.longest)
    }

    /// The least that holds both.
    pub(super) fn join(&self, other: &Capacity) -> Capacity {
        let most = |a: &[usize], b: &[usize]| a.iter().zip(b).map(|(a, b)| *a.max(b)).collect();
        Capacity {
            examples: self.examples.max(other.examples),
            rows: most(&self.rows, &other.rows),
            longest: most(&self.longest, &other.longest),
            dims: self.dims.max(other.dims),
        }
    }

    /// Numbers in the shape buffer.
    pub(super) fn shape_len(&self) -> usize {
        2 + (self.rows.len() + 1) * (self.examples + 1)
    }
}

/// One thing the device does.
pub(super) enum Work {
    Launch { name: String, f: Function, grid: [u32; 3], block: u32, shared: u32, tasks: Address },
    Zero { at: Address, bytes: usize },
}

impl Work {
    pub fn enqueue(&self, stream: &Stream, shape: Address) -> Result<(), Error> {
        match *self {
            Work::Launch { f, grid, block, shared, tasks, .. } => {
                driver::launch(stream, f, grid, block, shared, tasks, shape)
            }
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
}

/// Head widths attention is compiled for.
const DEPTHS: [usize; 7] = [8, 16, 32, 64, 80, 128, 256];

/// The compiled width for heads of a width.
pub(super) fn depth_for(width: usize) -> Result<usize, Error> {
    DEPTHS.into_iter().find(|&d| d >= width).ok_or_else(|| {
        Error::Device(format!("attention heads of {width} numbers are wider than {}, use more heads", DEPTHS[6]))
    })
}

/// Keys (or queries) in a tile of the inner loop.
pub(super) fn key_tile(depth: usize) -> usize {
    if depth <= 64 { 64 } else { 32 }
}

/// Widths of all heads of a program, as they are compiled.
pub(super) fn depths(program: &Program, capacity: &Capacity) -> Result<Vec<usize>, Error> {
    let mut depths = Vec::new();
    for op in &program.ops {
        if let Op::Attention(a) = op {
            for r in &a.relations {
                let dims = if program.values[r.query.value.0].per_dim { capacity.dims } else { 1 };
                depths.push(depth_for(r.query.cols / a.heads * dims)?);
            }
        }
    }
    depths.sort_unstable();
    depths.dedup();
    Ok(depths)
}

/// Parts a weight's gradient is summed from are spread over about this many blocks.
const WEIGHT_BLOCKS: usize = 264;
/// Least rows of a block of the norm's backward pass, and most blocks: each leaves a part to be summed.
const NORM_ROWS: usize = 64;
const NORM_BLOCKS: usize = 128;
/// Blocks of kernels that walk over all numbers.
const WALKERS: usize = 1024;

/// Builds the launches of a program.
pub(super) struct Builder<'a> {
    pub program: &'a Program,
    pub plan: &'a Plan,
    pub capacity: &'a Capacity,
    pub module: &'a Kernels,
    pub places: Places,
    pub tables: Tables,
    pub work: Vec<Work>,
    written: Vec<bool>,
    /// Parts of gradients, summed together at the end.
    sums: Vec<t::SumTask>,
    used: usize,
    /// Bytes of workspace that are needed.
    pub workspace: usize,
}

impl<'a> Builder<'a> {
    pub fn new(
        program: &'a Program,
        plan: &'a Plan,
        capacity: &'a Capacity,
        module: &'a Kernels,
        places: Places,
        tables: Tables,
    ) -> Self {
        let written = vec![false; program.values.len()];
        Builder {
            program,
            plan,
            capacity,
            module,
            places,
            tables,
            work: Vec::new(),
            written,
            sums: Vec::new(),
            used: 0,
            workspace: 0,
        }
    }

    /// All operations in order.
    pub fn forward(&mut self) -> Result<(), Error> {
        for group in together(&self.program.ops) {
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
                Op::ToUnion(u) => self.to_union(u)?,
                Op::FromUnion(u) => self.from_union(u)?,
                Op::Repeat(r) => self.repeat(r, false)?,
                Op::Concat(c) => self.concat(c, false)?,
                Op::PineSum(p) => self.pine_forward(p)?,
                Op::Dropout(d) => self.dropout(d, false)?,
            }
        }
        Ok(())
    }

    /// All operations in reverse; gradients of the outputs are in place, those of the parameters are added to.
    pub fn backward(&mut self) -> Result<(), Error> {
        let clear = gradients_to_clear(self.program);
        let gated = gated_values(self.program);
        self.program.outputs.iter().for_each(|v| self.written[v.0] = true);
        self.transpose_weights()?;
        for group in together(&self.program.ops).into_iter().rev() {
            for &v in clear[group.clone()].iter().flatten() {
                let bytes = self.len_of(v) * 4;
                self.work.push(Work::Zero { at: self.grad(v), bytes });
                self.written[v.0] = true;
            }
            if let Op::AddNorm(_) = &self.program.ops[group.start] {
                self.add_norms_backward(group)?;
                continue;
            }
            match &self.program.ops[group.start] {
                Op::Linear(l) => self.linear_backward(l, &gated)?,
                Op::Attention(a) => {
                    self.attention(a, &["attention_queries", "attention_keys"])?;
                    for r in &a.relations {
                        [r.query, r.key, r.value].iter().for_each(|s| self.written[s.value.0] = true);
                    }
                }
                Op::AddNorm(_) => unreachable!("taken together above"),
                Op::Pool(p) => self.pool_backward(p)?,
                Op::Pairs(p) => self.pairs_backward(p)?,
                Op::ToUnion(u) => self.to_union_backward(u)?,
                Op::FromUnion(u) => self.from_union_backward(u)?,
                Op::Repeat(r) => self.repeat(r, true)?,
                Op::Concat(c) => self.concat(c, true)?,
                Op::PineSum(p) => self.pine_backward(p)?,
                Op::Dropout(d) => self.dropout(d, true)?,
            }
        }
        self.sum_parts()
    }

    /// A launch over a table.
    pub fn launch<T: t::Plain>(
        &mut self,
        name: &str,
        tasks: &[T],
        grid: [usize; 3],
        block: u32,
        shared: usize,
    ) -> Result<(), Error> {
        if tasks.is_empty() {
            return Ok(());
        }
        let f = self.module.function(name, shared)?;
        let tasks = self.tables.push(tasks);
        let grid = grid.map(|n| n.max(1) as u32);
        self.work.push(Work::Launch { name: name.to_owned(), f, grid, block, shared: shared as u32, tasks });
        Ok(())
    }

    /// A launch of a kernel that walks over `most` numbers of each task.
    fn walk<T: t::Plain>(&mut self, name: &str, tasks: &[T], most: usize) -> Result<(), Error> {
        self.launch(name, tasks, [most.div_ceil(256).min(WALKERS), tasks.len(), 1], 256, 0)
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

    fn param_grad(&self, p: ParamId) -> Address {
        self.places.grads + 4 * self.program.params.spec(p).offset as u64
    }

    pub fn space(&self, v: Value) -> t::Space {
        let spec = &self.program.values[v.0];
        let stride = self.capacity.examples + 1;
        let (offsets, per_example) = match spec.space {
            Space::Set(k) => (2 + k * stride, 0),
            Space::Union => (2 + self.capacity.rows.len() * stride, 0),
            Space::PerExample(n) => (0, n),
        };
        t::Space { offsets: offsets as i32, per_example: per_example as i32, per_dim: i32::from(spec.per_dim) }
    }

    /// Most rows of a value, dimensions counted.
    pub fn rows(&self, v: Value) -> usize {
        let spec = &self.program.values[v.0];
        self.capacity.rows(spec.space) * if spec.per_dim { self.capacity.dims } else { 1 }
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

    fn linear_forward(&mut self, op: &Linear) -> Result<(), Error> {
        let mut tasks = Vec::new();
        for m in &op.maps {
            let ((x, ldx), (y, ldy)) = (self.slice(m.x), self.slice(m.y));
            let (residual, ldr) = m.residual.map_or((0, 0), |r| self.slice(r));
            let k = m.x.cols as i32;
            let vec_b = i32::from(m.x.cols.is_multiple_of(4) && self.aligned_param(m.weight));
            let term = t::Term {
                a: x,
                b: self.param(m.weight),
                lda: ldx,
                ldb: k,
                k,
                vec_a: i32::from(self.aligned(m.x)),
                vec_b,
                pad: 0,
            };
            let terms = self.tables.push(&[term]);
            tasks.push(t::ProductTask {
                terms,
                y,
                bias: m.bias.map_or(0, |b| self.param(b)),
                residual,
                ldr,
                ldy,
                n: m.y.cols as i32,
                activation: activation(op.activation),
                ..no_product(self.space(m.x.value))
            });
        }
        let rows = op.maps.iter().map(|m| self.rows(m.x.value)).max().unwrap_or(0);
        self.product(&tasks, rows)?;
        let norms: Vec<t::NormTask> =
            op.maps.iter().filter_map(|m| m.norm.map(|n| self.norm_task(&[m.y], m.y, Some(n)))).collect();
        self.norms(&norms, rows)
    }

    /// Tiled products in the shape that suits their width.
    fn product(&mut self, tasks: &[t::ProductTask], rows: usize) -> Result<(), Error> {
        let widest = tasks.iter().map(|t| t.n as usize).max().unwrap_or(0);
        let (name, bm, bn, block, stages) = match widest {
            128.. => ("product_large", 128, 128, 128, 3),
            64.. => ("product_medium", 128, 64, 256, 3),
            _ => ("product_small", 64, 32, 128, 2),
        };
        let grid = [rows.div_ceil(bm), widest.div_ceil(bn), tasks.len()];
        let even = |t: &t::ProductTask| t.y.is_multiple_of(8) && t.ldy % 2 == 0 && t.n % 2 == 0;
        let tasks: Vec<_> = tasks.iter().map(|t| t::ProductTask { pairs: i32::from(even(t)), ..*t }).collect();
        self.launch(name, &tasks, grid, block, stages * (bm + bn) * 36 * 4)
    }

    fn norm_task(&self, inputs: &[Slice], y: Slice, norm: Option<Norm>) -> t::NormTask {
        let mut task = t::NormTask {
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

    fn norms(&mut self, tasks: &[t::NormTask], rows: usize) -> Result<(), Error> {
        self.launch("add_norm", tasks, [rows.div_ceil(8).min(2 * WALKERS), tasks.len(), 1], 256, 0)
    }

    /// The sums among some operations.
    fn add_norms(&self, group: Range<usize>) -> impl Iterator<Item = &'a AddNorm> {
        self.program.ops[group].iter().map(|op| match op {
            Op::AddNorm(a) => a,
            _ => unreachable!("a group of sums"),
        })
    }

    fn add_norms_forward(&mut self, group: Range<usize>) -> Result<(), Error> {
        let mut tasks = Vec::new();
        let mut rows = 0;
        for op in self.add_norms(group) {
            if op.inputs.len() > 8 {
                return Err(Error::Device(format!("a sum of {} values; at most 8 are supported", op.inputs.len())));
            }
            tasks.push(self.norm_task(&op.inputs, op.y, op.norm));
            rows = rows.max(self.rows(op.y.value));
        }
        self.norms(&tasks, rows)
    }

    fn add_norms_backward(&mut self, group: Range<usize>) -> Result<(), Error> {
        let ops: Vec<&AddNorm> = self.add_norms(group).collect();
        let norms: Vec<_> = ops.iter().filter_map(|op| op.norm.map(|n| (op.y, n))).collect();
        self.norms_backward(&norms)?;
        let adds = ops.iter().flat_map(|op| op.inputs.iter().map(|&input| (input, op.y))).collect();
        self.add_gradients(adds)
    }

    /// Backward through norms, in place on the gradients of `ys`.
    fn norms_backward(&mut self, norms: &[(Slice, Norm)]) -> Result<(), Error> {
        if norms.is_empty() {
            return Ok(());
        }
        let (mut tasks, mut sums) = (Vec::new(), Vec::new());
        let (mut most, mut widest) = (0, 0);
        for &(y, n) in norms {
            let rows_each = self.rows(y.value).div_ceil(NORM_BLOCKS).next_multiple_of(8).max(NORM_ROWS);
            let blocks = self.rows(y.value).div_ceil(rows_each);
            let parts = self.room(blocks * 2 * y.cols);
            let (dy, ld) = self.grad_slice(y);
            let space = self.space(y.value);
            let (gain, normalised, inv_std) = (self.param(n.gain), self.value(n.normalised), self.value(n.inv_std));
            let cols = y.cols as i32;
            let each = rows_each as i32;
            tasks.push(t::NormBackwardTask { dy, gain, normalised, inv_std, parts, ld, cols, space, rows: each });
            for (half, p) in [n.gain, n.shift].into_iter().enumerate() {
                sums.push(t::SumTask {
                    parts: parts + 4 * (half * y.cols) as u64,
                    out: self.param_grad(p),
                    stride: 2 * y.cols as u64,
                    count: blocks as i32,
                    len: cols,
                    rows_per_part: each,
                    pad: 0,
                    space,
                    pad2: 0,
                });
            }
            most = most.max(blocks);
            widest = widest.max(y.cols);
        }
        let grid = [most, tasks.len(), 1];
        self.launch("norm_backward", &tasks, grid, 256, 8 * 2 * widest * 4)?;
        self.sums.extend(sums);
        Ok(())
    }

    /// Adds all parts to the gradients. Two sums into one gradient are put into two launches, one after the other.
    fn sum_parts(&mut self) -> Result<(), Error> {
        let mut rest = std::mem::take(&mut self.sums);
        while !rest.is_empty() {
            let mut now: Vec<t::SumTask> = Vec::new();
            let mut later = Vec::new();
            for s in rest {
                if now.iter().any(|o| o.out == s.out) { later.push(s) } else { now.push(s) }
            }
            let longest = now.iter().map(|s| s.len as usize).max().unwrap_or(0);
            self.launch("sum_parts", &now, [longest.div_ceil(256), now.len(), 1], 256, 0)?;
            rest = later;
        }
        Ok(())
    }

    /// Gradients take up others: each pair is (to, from). One launch for all, or several where one takes up more than eight.
    fn add_gradients(&mut self, pairs: Vec<(Slice, Slice)>) -> Result<(), Error> {
        let pairs: Vec<_> = pairs.into_iter().filter(|p| self.wants_grad(p.0.value)).collect();
        let targets = group_by(pairs.iter().map(|p| p.0));
        let rounds = targets.iter().map(|t| t.1.len().div_ceil(8)).max().unwrap_or(0);
        for round in 0..rounds {
            let mut tasks = Vec::new();
            let mut most = 0;
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
                    pad: 0,
                };
                for (i, &m) in part.iter().enumerate() {
                    (task.inputs[i], task.ld[i]) = self.grad_slice(pairs[m].1);
                }
                tasks.push(task);
                most = most.max(self.rows(to.value) * to.cols);
            }
            self.walk("add_rows", &tasks, most)?;
        }
        // Other columns of these values count as written too: they were cleared if nothing else fills them.
        targets.iter().for_each(|(to, _)| self.written[to.value.0] = true);
        Ok(())
    }

    fn linear_backward(&mut self, op: &Linear, gated: &[bool]) -> Result<(), Error> {
        let norms: Vec<_> = op.maps.iter().filter_map(|m| m.norm.map(|n| (m.y, n))).collect();
        self.norms_backward(&norms)?;
        if op.activation != Activation::None && !op.maps.iter().all(|m| gated[m.y.value.0]) {
            let tasks: Vec<t::ActivationTask> = op
                .maps
                .iter()
                .map(|m| {
                    let ((y, ld), (dy, _)) = (self.slice(m.y), self.grad_slice(m.y));
                    let (cols, activation, space) = (m.y.cols as i32, activation(op.activation), self.space(m.y.value));
                    t::ActivationTask { y, dy, ld, cols, activation, pad: 0, space, pad2: 0 }
                })
                .collect();
            let most = op.maps.iter().map(|m| self.rows(m.y.value) * m.y.cols).max().unwrap_or(0);
            self.walk("activation_backward", &tasks, most)?;
        }
        self.add_gradients(op.maps.iter().filter_map(|m| m.residual.map(|r| (r, m.y))).collect())?;
        self.linear_inputs(op, gated)?;
        let uses: Vec<Use> = op.maps.iter().map(|m| Use { weight: m.weight, bias: m.bias, x: m.x, dy: m.y }).collect();
        self.linear_weights(&uses)
    }

    fn linear_inputs(&mut self, op: &Linear, gated: &[bool]) -> Result<(), Error> {
        let groups = group_by(op.maps.iter().map(|m| m.x));
        let mut tasks = Vec::new();
        let mut rows = 0;
        for (x, maps) in &groups {
            if !self.wants_grad(x.value) {
                continue;
            }
            let terms: Vec<t::Term> =
                maps.iter().map(|&m| self.gradient_term(op.maps[m].y, op.maps[m].weight)).collect();
            let terms_at = self.tables.push(&terms);
            let (y, ldy) = self.grad_slice(*x);
            let (gate, ldg) = if gated[x.value.0] { self.slice(*x) } else { (0, 0) };
            tasks.push(t::ProductTask {
                terms: terms_at,
                y,
                gate,
                ldg,
                count: terms.len() as i32,
                ldy,
                n: x.cols as i32,
                accumulate: i32::from(self.written[x.value.0]),
                ..no_product(self.space(x.value))
            });
            rows = rows.max(self.rows(x.value));
        }
        self.product(&tasks, rows)?;
        for (x, _) in &groups {
            self.written[x.value.0] = true;
        }
        Ok(())
    }

    /// dy W as a product of rows, with the transposed weight.
    fn gradient_term(&self, dy: Slice, weight: ParamId) -> t::Term {
        let (a, lda) = self.grad_slice(dy);
        let spec = self.program.params.spec(weight);
        let k = dy.cols as i32;
        let vec_b = i32::from(dy.cols.is_multiple_of(4) && spec.offset.is_multiple_of(4));
        t::Term {
            a,
            b: self.places.transposed + 4 * spec.offset as u64,
            lda,
            ldb: k,
            k,
            vec_a: i32::from(self.aligned(dy)),
            vec_b,
            pad: 0,
        }
    }

    /// Transposes all weights that gradients of inputs go through.
    fn transpose_weights(&mut self) -> Result<(), Error> {
        let mut weights: Vec<ParamId> = Vec::new();
        for op in &self.program.ops {
            match op {
                Op::Linear(l) => weights.extend(l.maps.iter().filter(|m| self.wants_grad(m.x.value)).map(|m| m.weight)),
                Op::Pairs(p) => weights.extend(p.nets.iter().map(|n| n.weight)),
                _ => {}
            }
        }
        weights.sort_unstable();
        weights.dedup();
        let mut most = 0;
        let tasks: Vec<t::TransposeTask> = weights
            .iter()
            .map(|&w| {
                let spec = self.program.params.spec(w);
                let (rows, cols) = (spec.shape[0], spec.shape[1]);
                most = most.max(rows.div_ceil(32) * cols.div_ceil(32));
                let to = self.places.transposed + 4 * spec.offset as u64;
                t::TransposeTask { from: self.param(w), to, rows: rows as i32, cols: cols as i32 }
            })
            .collect();
        self.launch("transpose", &tasks, [most, tasks.len(), 1], 256, 0)
    }

    /// Gradients of weights and biases.
    fn linear_weights(&mut self, uses: &[Use]) -> Result<(), Error> {
        let groups = group_by(uses.iter().map(|u| u.weight));
        let narrowest = uses.iter().map(|u| u.dy.cols.min(u.x.cols)).min().unwrap_or(0);
        let (name, tile, block) = match narrowest {
            128.. => ("linear_weights_large", 128, 128),
            64.. => ("linear_weights_medium", 64, 128),
            _ => ("linear_weights_small", 32, 64),
        };
        let (bm, bn) = (tile, tile);
        let tiles = |u: &Use| u.dy.cols.div_ceil(bm) * u.x.cols.div_ceil(bn);
        let all: usize = uses.iter().map(tiles).sum();
        let longest = uses.iter().map(|u| self.rows(u.dy.value)).max().unwrap_or(0);
        let splits = (WEIGHT_BLOCKS / all.max(1)).clamp(1, longest.div_ceil(128).max(1));
        let (mut tasks, mut sums) = (Vec::new(), Vec::new());
        for (weight, members) in &groups {
            let u = &uses[members[0]];
            let (n, k) = (u.dy.cols, u.x.cols);
            let slot = n * k + n;
            let parts = self.room(members.len() * splits * slot);
            for (i, &m) in members.iter().enumerate() {
                let u = &uses[m];
                let ((x, ldx), (dy, ldy)) = (self.slice(u.x), self.grad_slice(u.dy));
                tasks.push(t::WeightTask {
                    dy,
                    x,
                    parts: parts + 4 * (i * splits * slot) as u64,
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
            let mut sum = |offset: usize, out: Address, len: usize| {
                sums.push(t::SumTask {
                    parts: parts + 4 * offset as u64,
                    out,
                    stride: slot as u64,
                    count: (members.len() * splits) as i32,
                    len: len as i32,
                    rows_per_part: 0,
                    pad: 0,
                    space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
                    pad2: 0,
                });
            };
            sum(0, self.places.grads + 4 * self.program.params.spec(*weight).offset as u64, n * k);
            if let Some(bias) = u.bias {
                sum(n * k, self.places.grads + 4 * self.program.params.spec(bias).offset as u64, n);
            }
        }
        let most = uses.iter().map(tiles).max().unwrap_or(0);
        self.launch(name, &tasks, [most, splits, tasks.len()], block, 3 * 32 * (bm + bn + 16) * 4)?;
        self.sums.extend(sums);
        Ok(())
    }

    fn attention(&mut self, op: &Attention, kernels: &[&str]) -> Result<(), Error> {
        let training = kernels[0] != "attention_forward";
        let head = |b: &Self, s: Slice, grad: bool| {
            let (data, ld) = if grad { b.grad_slice(s) } else { b.slice(s) };
            t::HeadSlice { data, ld, pad: 0, space: b.space(s.value), pad2: 0 }
        };
        let none = t::HeadSlice {
            data: 0,
            ld: 0,
            pad: 0,
            space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
            pad2: 0,
        };
        for kernel in kernels {
            // Relations whose heads are compiled alike run together.
            let width = |s: Slice| {
                s.cols / op.heads * if self.program.values[s.value.0].per_dim { self.capacity.dims } else { 1 }
            };
            for (depth, members) in group_by(op.relations.iter().map(|r| depth_for(width(r.query)))) {
                let depth = depth?;
                let tasks: Vec<t::AttentionTask> = members
                    .iter()
                    .map(|&i| {
                        let r = &op.relations[i];
                        let grad = |s: Slice| if training { head(self, s, true) } else { none };
                        t::AttentionTask {
                            query: head(self, r.query, false),
                            key: head(self, r.key, false),
                            value: head(self, r.value, false),
                            out: head(self, r.out, false),
                            d_query: grad(r.query),
                            d_key: grad(r.key),
                            d_value: grad(r.value),
                            d_out: grad(r.out),
                            stats: self.value(r.stats),
                            scale: op.scale as f32,
                            heads: op.heads as i32,
                            width: (r.query.cols / op.heads) as i32,
                            pad: 0,
                        }
                    })
                    .collect();
                let over = |r: &crate::program::Relation| if *kernel == "attention_keys" { r.key } else { r.query };
                let longest = members.iter().map(|&i| self.longest(over(&op.relations[i]).value)).max().unwrap_or(0);
                let tile = key_tile(depth);
                let rows = if training { 128 + 2 * tile } else { 64 + 2 * tile };
                let grid = [longest.div_ceil(64), self.capacity.examples * op.heads, tasks.len()];
                self.launch(&format!("{kernel}_{depth}"), &tasks, grid, 128, rows * (depth + 4) * 4)?;
            }
        }
        Ok(())
    }

    fn pool_task(&self, op: &Pool) -> t::PoolTask {
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

    fn pool_forward(&mut self, op: &Pool) -> Result<(), Error> {
        let task = self.pool_task(op);
        self.walk("pool_forward", &[task], self.len_of(op.y.value))
    }

    fn pool_backward(&mut self, op: &Pool) -> Result<(), Error> {
        if self.wants_grad(op.x) {
            let pool = self.pool_task(op);
            let task = t::PoolBackwardTask { pool, dx: self.grad(op.x), dy: self.grad_slice(op.y).0 };
            self.walk("pool_backward", &[task], self.len_of(op.y.value))?;
            self.written[op.x.0] = true;
        }
        Ok(())
    }

    fn union_task(&self, all: Address, of: Value, sets: &[Value], address: impl Fn(Value) -> Address) -> t::UnionTask {
        let mut task = t::UnionTask {
            sets: [0; 64],
            encodings: [0; 64],
            spaces: [t::Space { offsets: 0, per_example: 0, per_dim: 0 }; 64],
            add: [0; 64],
            all,
            count: sets.len() as i32,
            cols: self.program.values[of.0].cols as i32,
            space: self.space(of),
            pad: 0,
        };
        for (k, &v) in sets.iter().enumerate() {
            (task.sets[k], task.spaces[k], task.add[k]) = (address(v), self.space(v), i32::from(self.written[v.0]));
        }
        task
    }

    fn to_union(&mut self, op: &ToUnion) -> Result<(), Error> {
        let mut task = self.union_task(self.value(op.y), op.y, &op.sets, |v| self.value(v));
        for (k, &e) in op.encodings.iter().enumerate() {
            task.encodings[k] = self.param(e);
        }
        self.walk("to_union", &[task], self.len_of(op.y))
    }

    fn to_union_backward(&mut self, op: &ToUnion) -> Result<(), Error> {
        let address = |v: Value| if self.wants_grad(v) { self.grad(v) } else { 0 };
        let task = self.union_task(self.grad(op.y), op.y, &op.sets, address);
        self.walk("from_union", &[task], self.len_of(op.y))?;
        op.sets.iter().for_each(|v| self.written[v.0] = true);
        if !op.encodings.is_empty() {
            let mut sums = [0; 64];
            for (k, &e) in op.encodings.iter().enumerate() {
                sums[k] = self.param_grad(e);
            }
            let grid = [task.cols as usize, op.encodings.len(), 1];
            self.launch("encoding_gradient", &[t::EncodingTask { rows: task, sums }], grid, 128, 0)?;
        }
        Ok(())
    }

    fn from_union(&mut self, op: &FromUnion) -> Result<(), Error> {
        let task = self.union_task(self.value(op.x), op.x, &op.sets, |v| self.value(v));
        self.walk("from_union", &[task], self.len_of(op.x))
    }

    fn from_union_backward(&mut self, op: &FromUnion) -> Result<(), Error> {
        let mut task = self.union_task(self.grad(op.x), op.x, &op.sets, |v| self.grad(v));
        task.add[0] = i32::from(self.written[op.x.0]);
        self.walk("union_gradient", &[task], self.len_of(op.x))?;
        self.written[op.x.0] = true;
        Ok(())
    }

    fn repeat(&mut self, op: &Repeat, backward: bool) -> Result<(), Error> {
        let len = self.program.params.spec(op.param).len();
        let (param, y) = match backward {
            false => (self.param(op.param), self.value(op.y)),
            true => (self.param_grad(op.param), self.grad(op.y)),
        };
        let task = t::RepeatTask { param, y, len: len as i32, pad: 0 };
        match backward {
            false => self.walk("repeat_forward", &[task], len * self.capacity.examples),
            true => self.launch("repeat_backward", &[task], [len.div_ceil(64), 1, 1], 64, 0),
        }
    }

    fn concat(&mut self, op: &Concat, backward: bool) -> Result<(), Error> {
        let cols = self.program.values[op.y.0].cols;
        let mut at = 0;
        let mut tasks = Vec::new();
        for &x in &op.inputs {
            let spec = &self.program.values[x.0];
            let Space::PerExample(rows) = spec.space else {
                return Err(Error::Device("a concatenation of ragged rows".into()));
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
        self.walk(name, &tasks, cols * self.capacity.examples)
    }

    fn dropout(&mut self, op: &Dropout, backward: bool) -> Result<(), Error> {
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
            seed: self.places.controls + 16,
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
        self.walk("dropout", &[task], self.rows(op.x.value) * op.x.cols)
    }

    fn pine_task(&self, op: &PineSum) -> t::PineTask {
        let (y, ldy) = self.slice(op.y);
        let projections = self.program.values[op.x.0].cols;
        t::PineTask {
            x: self.value(op.x),
            spread: self.param(op.spread),
            shift: self.param(op.shift),
            y,
            dx: 0,
            parts: 0,
            dy: 0,
            ldy,
            projections: projections as i32,
            each: (op.y.cols / projections) as i32,
            accumulate: i32::from(self.written[op.x.0]),
            space: self.space(op.x),
            pad: 0,
        }
    }

    fn pine_forward(&mut self, op: &PineSum) -> Result<(), Error> {
        let task = self.pine_task(op);
        self.launch("pine_forward", &[task], [op.y.cols.div_ceil(128), self.capacity.examples, 1], 128, 0)
    }

    fn pine_backward(&mut self, op: &PineSum) -> Result<(), Error> {
        let width = op.y.cols;
        let mut task = self.pine_task(op);
        task.dy = self.grad_slice(op.y).0;
        task.parts = self.room(self.capacity.examples * 2 * width);
        self.launch("pine_backward", &[task], [width.div_ceil(128), self.capacity.examples, 1], 128, 0)?;
        let sums: Vec<t::SumTask> = [op.spread, op.shift]
            .into_iter()
            .enumerate()
            .map(|(half, p)| {
                self.example_sum(task.parts + 4 * (half * width) as u64, self.param_grad(p), 2 * width, width)
            })
            .collect();
        self.sums.extend(sums);
        if self.wants_grad(op.x) {
            task.dx = self.grad(op.x);
            let numbers = self.len_of(op.x);
            self.launch("pine_inputs", &[task], [numbers.div_ceil(256).min(WALKERS), 1, 1], 256, 0)?;
            self.written[op.x.0] = true;
        }
        Ok(())
    }

    /// A sum of one part per example.
    fn example_sum(&self, parts: Address, out: Address, stride: usize, len: usize) -> t::SumTask {
        t::SumTask {
            parts,
            out,
            stride: stride as u64,
            count: self.capacity.examples as i32,
            len: len as i32,
            rows_per_part: 1,
            pad: 0,
            space: t::Space { offsets: 0, per_example: 1, per_dim: 0 },
            pad2: 0,
        }
    }

    fn pair_tasks(&mut self, op: &Pairs, backward: bool) -> Vec<t::PairTask> {
        op.nets
            .iter()
            .map(|n| {
                let ((own, ld_own), (partner, ld_partner), (y, ldy)) =
                    (self.slice(n.own), self.slice(n.partner), self.slice(n.y));
                let grad = |s: Slice| if backward { self.grad_slice(s).0 } else { 0 };
                t::PairTask {
                    own,
                    partner,
                    w: self.param(n.weight),
                    bias: self.param(n.bias),
                    y,
                    kept: self.value(n.kept),
                    dy: grad(n.y),
                    d_own: grad(n.own),
                    d_partner: grad(n.partner),
                    d_kept: 0,
                    parts: 0,
                    ld_own,
                    ld_partner,
                    ldy,
                    hidden: n.own.cols as i32,
                    outputs: n.y.cols as i32,
                    splits: 0,
                    space: self.space(n.own.value),
                    partners: self.space(n.partner.value),
                }
            })
            .collect()
    }

    fn pairs_forward(&mut self, op: &Pairs) -> Result<(), Error> {
        let tasks = self.pair_tasks(op, false);
        let net = &op.nets[0];
        let rows = op.nets.iter().map(|n| self.rows(n.own.value)).max().unwrap_or(0);
        if net.reduce == Reduce::Max {
            return self.launch("pair_max", &tasks, [rows, net.y.cols.div_ceil(64), tasks.len()], 128, 0);
        }
        let longest = op.nets.iter().map(|n| self.longest(n.own.value)).max().unwrap_or(0);
        let grid = [longest.div_ceil(8).min(64), self.capacity.examples, tasks.len()];
        self.launch("pair_sums", &tasks, grid, 128, 0)?;
        let mut products = Vec::new();
        for n in &op.nets {
            let (y, ldy) = self.slice(n.y);
            let k = n.own.cols as i32;
            let vec = i32::from(n.own.cols.is_multiple_of(4));
            let vec_b = i32::from(vec == 1 && self.aligned_param(n.weight));
            let term = t::Term {
                a: self.value(n.kept),
                b: self.param(n.weight),
                lda: k,
                ldb: k,
                k,
                vec_a: vec,
                vec_b,
                pad: 0,
            };
            let terms = self.tables.push(&[term]);
            products.push(t::ProductTask { terms, y, ldy, n: n.y.cols as i32, ..no_product(self.space(n.own.value)) });
        }
        self.product(&products, rows)?;
        self.walk("pair_bias", &tasks, rows * net.y.cols)
    }

    fn pairs_backward(&mut self, op: &Pairs) -> Result<(), Error> {
        let mut tasks = self.pair_tasks(op, true);
        let (examples, net) = (self.capacity.examples, &op.nets[0]);
        let (hidden, outputs) = (net.own.cols, net.y.cols);
        let max = net.reduce == Reduce::Max;
        let rows = op.nets.iter().map(|n| self.rows(n.own.value)).max().unwrap_or(0);
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
            let splits = (WEIGHT_BLOCKS * 4 / (outputs * tasks.len())).clamp(1, 64);
            let mut sums = Vec::new();
            for (task, n) in tasks.iter_mut().zip(&op.nets) {
                task.splits = splits as i32;
                task.parts = self.room(splits * outputs * hidden);
                sums.push(t::SumTask {
                    parts: task.parts,
                    out: self.param_grad(n.weight),
                    stride: (outputs * hidden) as u64,
                    count: splits as i32,
                    len: (outputs * hidden) as i32,
                    rows_per_part: 0,
                    pad: 0,
                    space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
                    pad2: 0,
                });
            }
            self.launch("pair_max_weights", &tasks, [outputs, splits, tasks.len()], 128, 0)?;
            self.sums.extend(sums);
            self.launch("pair_max_inputs", &tasks, [hidden.div_ceil(32), examples, tasks.len()], 32, 0)?;
        } else {
            // dh = dy W, then through the sums; dW = dyᵀ h.
            let mut inputs = Vec::new();
            let mut uses = Vec::new();
            for (task, n) in tasks.iter_mut().zip(&op.nets) {
                task.d_kept = self.room(self.rows(n.own.value) * hidden);
                let term = self.gradient_term(n.y, n.weight);
                let terms = self.tables.push(&[term]);
                let space = self.space(n.own.value);
                let cols = hidden as i32;
                inputs.push(t::ProductTask { terms, y: task.d_kept, ldy: cols, n: cols, ..no_product(space) });
                uses.push(Use {
                    weight: n.weight,
                    bias: None,
                    x: Slice { value: n.kept, col: 0, cols: hidden },
                    dy: n.y,
                });
            }
            self.product(&inputs, rows)?;
            let longest = op.nets.iter().map(|n| self.longest(n.own.value).max(self.longest(n.partner.value)));
            let grid = [longest.max().unwrap_or(0).div_ceil(8).min(64), examples, tasks.len()];
            self.launch("pair_sums_own", &tasks, grid, 128, 0)?;
            self.launch("pair_sums_partner", &tasks, grid, 128, 0)?;
            self.linear_weights(&uses)?;
        }
        for n in &op.nets {
            self.written[n.own.value.0] = true;
            self.written[n.partner.value.0] = true;
        }
        Ok(())
    }
}

/// Operations that run together: neighbouring sums that do not build on each other, and every other operation alone.
pub(super) fn together(ops: &[Op]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        if let (Op::AddNorm(a), Some(last)) = (op, groups.last_mut()) {
            let apart = |o: &Op| match o {
                // Neither reads what the other writes, and no two add to one gradient.
                Op::AddNorm(b) => {
                    let same = |s: &Slice| b.inputs.iter().any(|o| o.value == s.value);
                    b.y.value != a.y.value && a.inputs.iter().all(|s| s.value != b.y.value && !same(s))
                }
                _ => false,
            };
            if ops[last.clone()].iter().all(apart) {
                last.end = i + 1;
                continue;
            }
        }
        groups.push(i..i + 1);
    }
    groups
}

/// One use of a weight.
struct Use {
    weight: ParamId,
    bias: Option<ParamId>,
    x: Slice,
    dy: Slice,
}

/// A product of one term and nothing else.
fn no_product(space: t::Space) -> t::ProductTask {
    t::ProductTask {
        terms: 0,
        y: 0,
        bias: 0,
        residual: 0,
        gate: 0,
        count: 1,
        ldy: 0,
        ldr: 0,
        ldg: 0,
        n: 0,
        activation: 0,
        accumulate: 0,
        pairs: 0,
        space,
        pad2: 0,
    }
}

fn activation(a: Activation) -> i32 {
    match a {
        Activation::None => 0,
        Activation::Relu => 1,
        Activation::Sigmoid => 2,
    }
}
