//! The CUDA backend: the same programs on a GPU.
//!
//! * `driver`: driver objects, checked and released; `compile`: the kernels of `kernels/`, compiled at start and
//!   cached.
//! * `lower`: from a program to task tables and a fixed list of launches; `kernel_tasks`: the task structs.
//! * [`Cuda`]: forward and backward passes, one call at a time.
//! * [`CudaTrainer`]: full training steps as one captured graph, batches copied during the preceding step.
//! * [`PermutedSums`]: sums of a kernel over pairs of rows, for many permutations.
//!
//! Sums have fixed orders and no floating-point number is added atomically, so the same seed gives the same bits on the
//! same GPU.

mod compile;
mod driver;
mod kernel_tasks;
mod lower;
mod muon;
mod permuted_sums;
mod trainer;

pub use driver::Device;
pub use lower::Capacity;
pub use permuted_sums::{PairKernel, PermutedSums};
pub use trainer::{CudaTrainer, Outcome, StepControls};

use std::sync::Arc;

use crate::batch::BatchView;
use crate::error::Error;
use crate::grad_alias::grad_aliases;
use crate::plan::{Lifetimes, Plan, Shape};
use crate::program::{Mode, Program};
use compile::Kernels;
use driver::{Memory, Stream};
use lower::{Buffers, Command, Lowering};

/// Precision of matrix products. Accumulators and everything else are f32; Muon's orthogonalisation multiplies in bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Single precision.
    F32 = 0,
    /// Operands rounded to 11 bits, as matrix units do.
    Tf32 = 1,
    /// Operands rounded to 8 bits.
    Bf16 = 2,
}

/// Bytes of the task table.
const TASK_TABLE_BYTES: usize = 8 << 20;

/// A lowered program with all its buffers, for batches up to a capacity.
struct BoundProgram {
    capacity: Capacity,
    plan: Plan,
    forward: Vec<Command>,
    backward: Vec<Command>,
    arena: Memory,
    /// Controls, then the shape, then targets.
    io: Memory,
    params: Memory,
    grads: Memory,
    step_tasks_at: u64,
    // Kept alive for the launches.
    transposed: Memory,
    workspace: Memory,
    task_table: Memory,
    kernels: Kernels,
}

impl BoundProgram {
    fn new(device: &Arc<Device>, program: &Program, precision: Precision, capacity: Capacity) -> Result<Self, Error> {
        let head_depths = lower::head_depths(program, &capacity)?;
        let row_kernels = if Kernels::supports_sm90(device, precision) {
            lower::row_kernels(program, device.shared_memory)
        } else {
            Vec::new()
        };
        let texts: Vec<&str> = row_kernels.iter().flat_map(|c| c.texts()).collect();
        let kernels = Kernels::new(device, precision, &head_depths, &program.ops, &texts)?;
        let mut plan = Plan::default();
        let mut lives = Lifetimes::in_groups(program, lower::launch_groups(program, &row_kernels));
        let defers_weight_grads = kernels.sm90 && lower::defers_weight_grads(program, &capacity);
        if defers_weight_grads {
            lives.keep_for_weights(program);
        }
        let grad_aliases = grad_aliases(program, defers_weight_grads, |op| lower::in_row_kernel(&row_kernels, op));
        lives.alias_gradients(program, &grad_aliases);
        plan.make(program, &lives, &full_shape(&capacity))?;
        let params = Memory::new(device, 4 * program.params.len(), "the parameters")?;
        let grads = Memory::new(device, 4 * program.params.len(), "the gradients")?;
        let training = if program.mode == Mode::Train { 4 * program.params.len() } else { 0 };
        let transposed = Memory::new(device, training, "transposed weights")?;
        let arena = Memory::new(device, 4 * plan.total, "the working memory")?;
        let io = Memory::new(device, io_layout(program, &capacity).end, "a batch's shape and targets")?;
        let task_table = Memory::new(device, TASK_TABLE_BYTES, "the task table")?;
        let mut buffers = Buffers {
            arena: arena.ptr,
            params: params.ptr,
            grads: grads.ptr,
            transposed: transposed.ptr,
            workspace: 0,
            controls: io.ptr,
            task_table: task_table.ptr,
        };
        let lower = |buffers: Buffers| -> Result<_, Error> {
            let mut b = Lowering::new(program, &plan, &grad_aliases, &row_kernels, &capacity, &kernels, buffers);
            b.forward()?;
            let forward = std::mem::take(&mut b.commands);
            if program.mode == Mode::Train {
                b.backward()?;
            }
            Ok((forward, b.commands, b.task_table, b.workspace_bytes))
        };
        // A first pass measures the workspace, a second one uses it.
        let (.., bytes) = lower(buffers)?;
        let workspace = Memory::new(device, bytes, "partial sums")?;
        buffers.workspace = workspace.ptr;
        let (forward, backward, table, _) = lower(buffers)?;
        if table.bytes().len() > TASK_TABLE_BYTES {
            return Err(Error::Device(format!(
                "the program needs {} bytes of task tables, {TASK_TABLE_BYTES} are reserved; use fewer layers",
                table.bytes().len()
            )));
        }
        task_table.write(0, table.bytes())?;
        let step_tasks_at = task_table.ptr + table.bytes().len().next_multiple_of(256) as u64;
        Ok(BoundProgram {
            capacity,
            plan,
            forward,
            backward,
            arena,
            io,
            params,
            grads,
            step_tasks_at,
            transposed,
            workspace,
            task_table,
            kernels,
        })
    }

    /// Bytes of device memory held.
    fn bytes(&self) -> usize {
        [&self.arena, &self.io, &self.params, &self.grads, &self.workspace, &self.transposed, &self.task_table]
            .iter()
            .map(|m| m.bytes)
            .sum()
    }
}

/// Byte offsets in the buffer of controls, shape and targets.
struct IoLayout {
    shape: usize,
    targets: usize,
    end: usize,
}

fn io_layout(program: &Program, capacity: &Capacity) -> IoLayout {
    let shape = size_of::<kernel_tasks::Controls>().next_multiple_of(16);
    let targets = (shape + 4 * capacity.shape_len()).next_multiple_of(16);
    let numbers = output_numbers(program, capacity);
    IoLayout { shape, targets, end: (targets + 4 * numbers).next_multiple_of(16) }
}

/// Numbers of all outputs for a batch that fills a capacity.
fn output_numbers(program: &Program, capacity: &Capacity) -> usize {
    program.outputs.iter().map(|v| capacity.rows(program.values[v.0].space) * program.values[v.0].cols).sum()
}

/// A shape as large as a capacity.
fn full_shape(capacity: &Capacity) -> Shape {
    let offsets = |rows: usize| {
        let mut offsets = vec![0; capacity.examples + 1];
        offsets[capacity.examples] = rows;
        offsets
    };
    Shape {
        examples: capacity.examples,
        dims: capacity.dims,
        set_offsets: capacity.rows.iter().map(|&r| offsets(r)).collect(),
        union_offsets: offsets(capacity.rows.iter().sum()),
    }
}

/// The minimal capacity that holds a batch.
pub(crate) fn capacity_of(program: &Program, batch: &BatchView<f32>) -> Capacity {
    let examples = batch.examples();
    let cols = program.values[program.inputs[0].0].cols;
    Capacity {
        examples,
        rows: batch.sets.iter().map(|s| s.offsets[examples]).collect(),
        max_set_len: batch.sets.iter().map(|s| s.offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0)).collect(),
        dims: if program.any_dim { batch.sets[0].width / cols } else { 1 },
    }
}

/// The shape buffer of a batch.
fn shape_numbers(program: &Program, capacity: &Capacity, batch: &BatchView<f32>) -> Vec<i32> {
    let examples = batch.examples();
    let stride = capacity.examples + 1;
    let mut shape = vec![0; capacity.shape_len()];
    shape[0] = examples as i32;
    shape[1] = capacity_of(program, batch).dims as i32;
    for (k, s) in batch.sets.iter().enumerate() {
        for (e, &o) in s.offsets.iter().enumerate() {
            shape[2 + k * stride + e] = o as i32;
            shape[2 + batch.sets.len() * stride + e] += o as i32;
        }
    }
    shape
}

/// Runs one program on a GPU, forward and backward, one call at a time.
pub struct Cuda {
    device: Arc<Device>,
    program: Arc<Program>,
    precision: Precision,
    stream: Stream,
    bound: Option<BoundProgram>,
    /// Whether the parameters of the last call are on the device.
    loaded: bool,
    /// Shape of the last batch.
    shape: Shape,
    seed: u64,
}

impl Cuda {
    /// Prepares to run a program.
    pub fn new(device: &Arc<Device>, program: impl Into<Arc<Program>>, precision: Precision) -> Result<Self, Error> {
        let stream = Stream::new(device)?;
        let program = program.into();
        let (device, shape) = (device.clone(), Shape::default());
        Ok(Cuda { device, program, precision, stream, bound: None, loaded: false, shape, seed: 0 })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of device memory held.
    pub fn memory(&self) -> usize {
        self.bound.as_ref().map_or(0, BoundProgram::bytes)
    }

    /// Seeds the dropout masks of the next forward pass.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Allocates for batches of a capacity; existing buffers are kept if they suffice.
    pub fn reserve(&mut self, capacity: &Capacity) -> Result<(), Error> {
        let wanted = match &self.bound {
            Some(b) if b.capacity.holds(capacity) => return Ok(()),
            Some(b) => b.capacity.join(capacity),
            None => capacity.clone(),
        };
        // Frees the old memory first.
        self.bound = None;
        self.loaded = false;
        self.bound = Some(BoundProgram::new(&self.device, &self.program, self.precision, wanted)?);
        Ok(())
    }

    /// Fills all working memory with NaN, so that results that were never written show.
    pub fn poison(&mut self) -> Result<(), Error> {
        match &self.bound {
            Some(b) => [&b.arena, &b.grads, &b.workspace, &b.transposed].iter().try_for_each(|m| m.fill(0xff)),
            None => Ok(()),
        }
    }

    /// Computes all outputs for a batch and returns them, row-major; keeps everything for [`Cuda::backward`].
    pub fn forward(&mut self, params: &[f32], batch: &BatchView<f32>) -> Result<Vec<Vec<f32>>, Error> {
        self.params_changed();
        self.forward_loaded(params, batch)
    }

    /// The same, but parameters are copied only if they are not loaded.
    fn forward_loaded(&mut self, params: &[f32], batch: &BatchView<f32>) -> Result<Vec<Vec<f32>>, Error> {
        self.program.check(batch)?;
        let expected = self.program.params.len();
        if params.len() != expected {
            return Err(Error::Length { what: "the parameter buffer", expected, found: params.len() });
        }
        self.reserve(&capacity_of(&self.program, batch))?;
        let bound = self.bound.as_ref().expect("just reserved");
        let layout = io_layout(&self.program, &bound.capacity);
        bound.io.write(16, &[self.seed])?;
        bound.io.write(layout.shape, &shape_numbers(&self.program, &bound.capacity, batch))?;
        if !self.loaded {
            bound.params.write(0, params)?;
            self.loaded = true;
        }
        for (k, s) in batch.sets.iter().enumerate() {
            bound.arena.write(4 * bound.plan.offsets[self.program.inputs[k].0], s.data)?;
        }
        let shape = bound.io.ptr + layout.shape as u64;
        // SAFETY: `bound` outlives the wait below, and `shape` is that of this batch, for which it was reserved.
        bound.forward.iter().try_for_each(|c| unsafe { c.enqueue(&self.stream, shape) })?;
        self.stream.wait()?;
        let examples = batch.examples();
        self.shape = Shape {
            examples,
            dims: capacity_of(&self.program, batch).dims,
            set_offsets: batch.sets.iter().map(|s| s.offsets.to_vec()).collect(),
            union_offsets: (0..=examples).map(|e| batch.sets.iter().map(|s| s.offsets[e]).sum()).collect(),
        };
        (0..self.program.outputs.len()).map(|i| self.read(self.program.outputs[i].0, 0)).collect()
    }

    fn read(&self, value: usize, half: usize) -> Result<Vec<f32>, Error> {
        let bound = self.bound.as_ref().expect("a forward pass came before");
        let spec = &self.program.values[value];
        let dims = if spec.per_dim { self.shape.dims } else { 1 };
        let mut data = vec![0.0; self.shape.rows(spec.space) * dims * spec.cols];
        bound.arena.read(4 * bound.plan.offsets[half + value], &mut data)?;
        Ok(data)
    }

    /// Gradients of the parameters, given those of the outputs of the last forward pass of a training program.
    pub fn backward(&mut self, output_grads: &[Vec<f32>]) -> Result<Vec<f32>, Error> {
        assert_eq!(self.program.mode, Mode::Train, "backward needs a training program");
        let bound = self.bound.as_ref().expect("a forward pass came before");
        let values = self.program.values.len();
        for (v, g) in self.program.outputs.iter().zip(output_grads) {
            bound.arena.write(4 * bound.plan.offsets[values + v.0], g)?;
        }
        let shape = bound.io.ptr + io_layout(&self.program, &bound.capacity).shape as u64;
        // SAFETY: `bound` outlives the wait below; the shape buffer is that of the last forward pass.
        bound.backward.iter().try_for_each(|c| unsafe { c.enqueue(&self.stream, shape) })?;
        self.stream.wait()?;
        let mut grads = vec![0.0; self.program.params.len()];
        bound.grads.read(0, &mut grads)?;
        Ok(grads)
    }

    /// Gradient of input `k` after [`Cuda::backward`], if the program has input gradients.
    pub fn input_grad(&self, k: usize) -> Result<Option<Vec<f32>>, Error> {
        let v = self.program.inputs[k];
        match self.program.values[v.0].grad {
            true => self.read(v.0, self.program.values.len()).map(Some),
            false => Ok(None),
        }
    }

    /// Marks the loaded parameters as stale.
    pub fn params_changed(&mut self) {
        self.loaded = false;
    }

    /// All outputs for a batch, some examples at a time, which bounds memory. Parameters are copied to the device once,
    /// until [`Cuda::params_changed`].
    pub fn predict(&mut self, params: &[f32], batch: &BatchView<f32>) -> Result<Vec<Vec<f32>>, Error> {
        self.program.check(batch)?;
        /// Maximal elements of all sets per chunk, unless one example has more.
        const ELEMENTS: usize = 1 << 16;
        /// Maximal numbers of the widest value.
        const NUMBERS: usize = 1 << 28;
        /// Maximal examples per chunk, so that examples times heads fit a grid.
        const EXAMPLES: usize = 1 << 10;
        let widest = self.program.values.iter().map(|v| v.cols).max().unwrap_or(1);
        let max_elements = (NUMBERS / widest).clamp(1, ELEMENTS);
        let examples = batch.examples();
        let before = |e: usize| -> usize { batch.sets.iter().map(|s| s.offsets[e]).sum() };
        let mut outputs = vec![Vec::new(); self.program.outputs.len()];
        let mut first = 0;
        while first < examples {
            let mut last = first + 1;
            while last < examples.min(first + EXAMPLES) && before(last + 1) - before(first) <= max_elements {
                last += 1;
            }
            let offsets: Vec<Vec<usize>> = batch
                .sets
                .iter()
                .map(|s| s.offsets[first..=last].iter().map(|o| o - s.offsets[first]).collect())
                .collect();
            let sets = batch
                .sets
                .iter()
                .zip(&offsets)
                .map(|(s, offsets)| crate::batch::SetView {
                    data: &s.data[s.offsets[first] * s.width..s.offsets[last] * s.width],
                    width: s.width,
                    offsets,
                })
                .collect();
            for (all, chunk) in outputs.iter_mut().zip(self.forward_loaded(params, &BatchView { sets })?) {
                all.extend(chunk);
            }
            first = last;
        }
        Ok(outputs)
    }
}
