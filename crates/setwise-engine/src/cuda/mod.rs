//! The CUDA backend: the same programs on a GPU.
//!
//! * `driver`: the driver's objects, checked and released; `compile`: the kernels of `kernels/`, compiled at start and cached.
//! * `build`: from a program to tables of tasks and a fixed list of launches; `tables`: the tasks as kernels read them.
//! * [`Cuda`]: forward and backward passes, one call at a time.
//! * [`CudaTrainer`]: whole training steps as one captured graph, batches copied while the step before runs.
//!
//! Sums have fixed orders and nothing is added atomically, so the same seed gives the same bits on the same card.

mod build;
mod compile;
mod driver;
mod muon;
mod tables;
mod trainer;

pub use build::Capacity;
pub use driver::Device;
pub use trainer::{CudaTrainer, Outcome, StepControls};

use std::sync::Arc;

use crate::batch::BatchView;
use crate::error::Error;
use crate::handed::handed_gradients;
use crate::plan::{Lifetimes, Plan, Shape};
use crate::program::{Mode, Program};
use build::{Builder, Places, Work};
use compile::Kernels;
use driver::{Memory, Stream};

/// How the matrix products of a program are computed; sums and everything else are single precision always, but for the products that Muon makes
/// matrices orthogonal with, which are of bf16 numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Single precision.
    F32 = 0,
    /// Operands rounded to 11 bits, as matrix units do.
    Tf32 = 1,
    /// Operands rounded to 8 bits.
    Bf16 = 2,
}

/// Bytes for tables of tasks.
const TABLES: usize = 8 << 20;

/// A program with everything it needs on the device, for batches up to a capacity.
struct Bound {
    capacity: Capacity,
    plan: Plan,
    forward: Vec<Work>,
    backward: Vec<Work>,
    arena: Memory,
    /// Controls, then the shape, then targets.
    io: Memory,
    params: Memory,
    grads: Memory,
    tables_at: u64,
    // Held for the launches.
    transposed: Memory,
    workspace: Memory,
    tables: Memory,
    module: Kernels,
}

impl Bound {
    fn new(device: &Arc<Device>, program: &Program, precision: Precision, capacity: Capacity) -> Result<Self, Error> {
        let depths = build::depths(program, &capacity)?;
        let chains = if Kernels::can_be_wide(device, precision) {
            build::chains(program, device.shared_memory)
        } else {
            Vec::new()
        };
        let texts: Vec<&str> = chains.iter().flat_map(|c| c.texts()).collect();
        let module = Kernels::new(device, precision, &depths, &program.ops, &texts)?;
        let mut plan = Plan::default();
        let mut lives = Lifetimes::in_groups(program, build::together(program, &chains));
        let gathers = module.wide && build::gathers_weights(program, &capacity);
        if gathers {
            lives.keep_for_weights(program);
        }
        let handed = handed_gradients(program, gathers, |op| build::in_chain(&chains, op));
        lives.alias_gradients(program, &handed);
        plan.make(program, &lives, &full_shape(&capacity))?;
        let params = Memory::new(device, 4 * program.params.len(), "the parameters")?;
        let grads = Memory::new(device, 4 * program.params.len(), "the gradients")?;
        let training = if program.mode == Mode::Train { 4 * program.params.len() } else { 0 };
        let transposed = Memory::new(device, training, "transposed weights")?;
        let arena = Memory::new(device, 4 * plan.total, "the working memory")?;
        let io = Memory::new(device, io_layout(program, &capacity).end, "a batch's shape and targets")?;
        let tables = Memory::new(device, TABLES, "the tables")?;
        let mut places = Places {
            arena: arena.ptr,
            params: params.ptr,
            grads: grads.ptr,
            transposed: transposed.ptr,
            workspace: 0,
            controls: io.ptr,
            tables: tables.ptr,
        };
        let build = |places: Places| -> Result<_, Error> {
            let mut b = Builder::new(program, &plan, &handed, &chains, &capacity, &module, places);
            b.forward()?;
            let forward = std::mem::take(&mut b.work);
            if program.mode == Mode::Train {
                b.backward()?;
            }
            Ok((forward, b.work, b.tables, b.workspace))
        };
        // Once to find out how much workspace is needed, and once with it.
        let (.., bytes) = build(places)?;
        let workspace = Memory::new(device, bytes, "partial sums")?;
        places.workspace = workspace.ptr;
        let (forward, backward, table, _) = build(places)?;
        if table.bytes().len() > TABLES {
            return Err(Error::Device(format!("the program needs {} bytes of tables", table.bytes().len())));
        }
        tables.write(0, table.bytes())?;
        let tables_at = tables.ptr + table.bytes().len().next_multiple_of(256) as u64;
        Ok(Bound {
            capacity,
            plan,
            forward,
            backward,
            arena,
            io,
            params,
            grads,
            tables_at,
            transposed,
            workspace,
            tables,
            module,
        })
    }

    /// Bytes of device memory held.
    fn bytes(&self) -> usize {
        [&self.arena, &self.io, &self.params, &self.grads, &self.workspace, &self.transposed, &self.tables]
            .iter()
            .map(|m| m.bytes)
            .sum()
    }
}

/// Byte offsets in the buffer that carries what a batch is besides its rows.
struct IoLayout {
    shape: usize,
    targets: usize,
    end: usize,
}

fn io_layout(program: &Program, capacity: &Capacity) -> IoLayout {
    let shape = size_of::<tables::Controls>().next_multiple_of(16);
    let targets = (shape + 4 * capacity.shape_len()).next_multiple_of(16);
    let numbers = output_numbers(program, capacity);
    IoLayout { shape, targets, end: (targets + 4 * numbers).next_multiple_of(16) }
}

/// Numbers in all outputs for a batch that fills a capacity.
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

/// The least capacity that holds a batch.
pub(crate) fn capacity_of(program: &Program, batch: &BatchView<f32>) -> Capacity {
    let examples = batch.examples();
    let cols = program.values[program.inputs[0].0].cols;
    Capacity {
        examples,
        rows: batch.sets.iter().map(|s| s.offsets[examples]).collect(),
        longest: batch.sets.iter().map(|s| s.offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0)).collect(),
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
    bound: Option<Bound>,
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
        self.bound.as_ref().map_or(0, Bound::bytes)
    }

    /// Seeds the dropout masks of the next forward pass.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Makes room for batches of a capacity, and keeps what there is if it suffices.
    pub fn reserve(&mut self, capacity: &Capacity) -> Result<(), Error> {
        let wanted = match &self.bound {
            Some(b) if b.capacity.holds(capacity) => return Ok(()),
            Some(b) => b.capacity.join(capacity),
            None => capacity.clone(),
        };
        // The old memory is given back first.
        self.bound = None;
        self.loaded = false;
        self.bound = Some(Bound::new(&self.device, &self.program, self.precision, wanted)?);
        Ok(())
    }

    /// Fills all working memory with bytes that are no numbers, so that a result nobody wrote shows.
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

    /// The same with parameters that go to the device only where they are not there yet.
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
        bound.forward.iter().try_for_each(|w| w.enqueue(&self.stream, shape))?;
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
        bound.backward.iter().try_for_each(|w| w.enqueue(&self.stream, shape))?;
        self.stream.wait()?;
        let mut grads = vec![0.0; self.program.params.len()];
        bound.grads.read(0, &mut grads)?;
        Ok(grads)
    }

    /// Gradient of input `k` after [`Cuda::backward`], if the program asked for input gradients.
    pub fn input_grad(&self, k: usize) -> Result<Option<Vec<f32>>, Error> {
        let v = self.program.inputs[k];
        match self.program.values[v.0].grad {
            true => self.read(v.0, self.program.values.len()).map(Some),
            false => Ok(None),
        }
    }

    /// The parameters of the next call are others than those of the last.
    pub fn params_changed(&mut self) {
        self.loaded = false;
    }

    /// All outputs for a batch, some examples at a time, so that memory does not grow with their number. Parameters are copied to the device once,
    /// until [`Cuda::params_changed`].
    pub fn predict(&mut self, params: &[f32], batch: &BatchView<f32>) -> Result<Vec<Vec<f32>>, Error> {
        self.program.check(batch)?;
        /// Elements of all sets that are taken at once, unless one example has more.
        const ELEMENTS: usize = 1 << 16;
        /// Numbers the widest of their values may have.
        const NUMBERS: usize = 1 << 28;
        /// Examples that are taken at once, so that examples times heads fit a grid.
        const EXAMPLES: usize = 1 << 10;
        let widest = self.program.values.iter().map(|v| v.cols).max().unwrap_or(1);
        let most = (NUMBERS / widest).clamp(1, ELEMENTS);
        let examples = batch.examples();
        let before = |e: usize| -> usize { batch.sets.iter().map(|s| s.offsets[e]).sum() };
        let mut outputs = vec![Vec::new(); self.program.outputs.len()];
        let mut first = 0;
        while first < examples {
            let mut last = first + 1;
            while last < examples.min(first + EXAMPLES) && before(last + 1) - before(first) <= most {
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
            for (all, some) in outputs.iter_mut().zip(self.forward_loaded(params, &BatchView { sets })?) {
                all.extend(some);
            }
            first = last;
        }
        Ok(outputs)
    }
}
