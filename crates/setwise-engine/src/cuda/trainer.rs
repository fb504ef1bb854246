//! Training steps as captured graphs: copy in, forward, loss, backward, gradient norm, Adam, and Muon if configured.
//!
//! A batch is written to pinned memory and copied to one of two slots on the device during the preceding step; each
//! slot has its graph. Results come back one step late, so the device never waits for the host.

use std::collections::VecDeque;
use std::sync::Arc;

use super::driver::{self, Blocks, Device, Event, Graph, Memory, Pinned, Stream};
use super::kernel_tasks as t;
use super::lower::{Command, space_of};
use super::muon::{MuonStep, Parameters};
use super::{BoundProgram, Capacity, Precision, capacity_of, io_layout, output_numbers, shape_numbers};
use crate::adam::{Adam, RUNNING_AVERAGE_MOMENTUM};
use crate::batch::BatchView;
use crate::error::Error;
use crate::loss::{Loss, MAX_QUANTILE_LEVELS};
use crate::muon::{MOMENTUM, Muon};
use crate::program::{Mode, Program};

/// Partial sums of the gradient norm, as in the kernel.
const NORM_BLOCKS: usize = 128;
/// Batches in flight.
const SLOTS: usize = 2;

/// Controls of a step besides the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepControls {
    /// Learning rate.
    pub learning_rate: f64,
    /// Maximal gradient norm.
    pub clip: Option<f64>,
    /// Seed of dropout.
    pub seed: u64,
}

/// Results of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Loss before the step.
    pub loss: f64,
    /// Gradient norm before clipping.
    pub gradient: f64,
}

/// Trains on a GPU.
pub struct CudaTrainer {
    // Dropped first: both wait for work on everything below.
    stream: Stream,
    copies: Stream,
    program: Arc<Program>,
    bound: BoundProgram,
    first: Memory,
    second: Memory,
    results: Memory,
    _norm_partials: Memory,
    slots: Vec<Slot>,
    /// Parameters and moments on their way to the host.
    state: Pinned,
    in_flight: VecDeque<usize>,
    next: usize,
    /// Without its moments, which are on the device.
    adam: Adam<f32>,
    steps: u64,
    loss: Loss,
    step: StepCommands,
    device: Arc<Device>,
}

/// Staging of one batch.
struct Slot {
    host: Pinned,
    staged: Memory,
    results: Pinned,
    copied: Event,
    done: Event,
    graph: Graph,
}

impl CudaTrainer {
    /// Copies parameters and Adam's state to the device and captures the step, for batches up to a capacity.
    pub fn new(
        device: &Arc<Device>,
        program: Arc<Program>,
        precision: Precision,
        capacity: Capacity,
        loss: Loss,
        params: &[f32],
        adam: &Adam<f32>,
    ) -> Result<Self, Error> {
        assert_eq!(program.mode, Mode::Train, "training needs a training program");
        let bound = BoundProgram::new(device, &program, precision, capacity)?;
        let len = program.params.trained();
        let first = Memory::new(device, 4 * len, "Adam's moments")?;
        let second = Memory::new(device, 4 * len, "Adam's moments")?;
        let results = Memory::new(device, 256, "results")?;
        let norm_partials = Memory::new(device, 8 * NORM_BLOCKS, "partial sums")?;
        let (stream, copies) = (Stream::new(device)?, Stream::new(device)?);
        let step =
            StepCommands::write(device, &program, &bound, [&first, &second, &results, &norm_partials], loss, adam)?;
        let layout = staging(&program, &bound.capacity);
        let mut slots = Vec::new();
        for _ in 0..SLOTS {
            let staged = Memory::new(device, layout.end, "a batch")?;
            let graph = stream.capture(|| step.enqueue(&program, &bound, &staged, &stream))?;
            // Bytes that no batch has filled must be numbers too.
            let host = Pinned::new(device, layout.end)?;
            // SAFETY: both have `layout.end` bytes and move into a slot, which is dropped after the stream. No batch
            // changes `host` before the copy: `copies` runs in order.
            unsafe { driver::upload(&copies, staged.ptr, &host, 0..layout.end) }?;
            slots.push(Slot {
                host,
                staged,
                results: Pinned::new(device, 64)?,
                copied: Event::new(device)?,
                done: Event::new(device)?,
                graph,
            });
        }
        let mut this = CudaTrainer {
            program,
            bound,
            first,
            second,
            results,
            _norm_partials: norm_partials,
            slots,
            state: Pinned::new(device, 4 * (params.len() + 2 * len))?,
            stream,
            copies,
            in_flight: VecDeque::new(),
            next: 0,
            adam: Adam { first: Vec::new(), second: Vec::new(), ..adam.clone() },
            steps: adam.steps,
            loss,
            step,
            device: device.clone(),
        };
        this.upload(params, adam)?;
        Ok(this)
    }

    /// Replaces parameters and moments.
    pub fn upload(&mut self, params: &[f32], adam: &Adam<f32>) -> Result<(), Error> {
        self.stream.wait()?;
        self.bound.params.write(0, params)?;
        self.first.write(0, &adam.first)?;
        self.second.write(0, &adam.second)?;
        self.steps = adam.steps;
        Ok(())
    }

    /// Copies parameters and moments back; all steps must have been waited for with [`CudaTrainer::outcome`].
    pub fn download(&mut self, params: &mut [f32], adam: &mut Adam<f32>) -> Result<(), Error> {
        self.device.bind()?;
        // Through pinned memory, which the GPU fills asynchronously and all threads read.
        let sources = [&self.bound.params, &self.first, &self.second];
        let numbers: [&mut [f32]; 3] = [params, &mut adam.first, &mut adam.second];
        let mut begin = 0;
        for (data, from) in numbers.iter().zip(sources) {
            let bytes = size_of_val(*data);
            assert!(bytes <= from.bytes, "a copy beyond the allocation");
            // SAFETY: the assertion bounds the source; `state` is read after the wait below.
            unsafe { driver::download(&self.stream, &mut self.state, begin..begin + bytes, from.ptr) }?;
            begin += bytes;
        }
        self.stream.wait()?;
        begin = 0;
        for data in numbers {
            self.state.read_parallel(begin, data);
            begin += size_of_val(data);
        }
        adam.steps = self.steps;
        Ok(())
    }

    /// Bytes of device memory held.
    pub fn memory(&self) -> usize {
        self.bound.bytes()
            + self.first.bytes
            + self.second.bytes
            + self.step.muon.as_ref().map_or(0, MuonStep::bytes)
            + self.slots.iter().map(|s| s.staged.bytes).sum::<usize>()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Steps whose outcome has not been read.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Starts a step on a batch; two can be in flight.
    pub fn submit(&mut self, batch: &BatchView<f32>, targets: &[f32], controls: StepControls) -> Result<(), Error> {
        assert!(self.in_flight.len() < SLOTS, "outcomes are read before a third step starts");
        self.device.bind()?;
        self.program.check(batch)?;
        let batch_capacity = capacity_of(&self.program, batch);
        self.loss.check(output_numbers(&self.program, &batch_capacity), targets)?;
        let capacity = &self.bound.capacity;
        if !capacity.holds(&batch_capacity) {
            return Err(Error::Device(format!(
                "a batch of {batch_capacity:?} is larger than the {capacity:?} that the trainer was created for; create it with larger limits"
            )));
        }
        let layout = staging(&self.program, &self.bound.capacity);
        let slot = &mut self.slots[self.next];
        self.steps += 1;
        let t = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let rate = controls.learning_rate;
        let c = t::Controls {
            rate: (rate / (1.0 - self.adam.beta1.powi(t))) as f32,
            inv_sqrt_bias2: (1.0 / (1.0 - self.adam.beta2.powi(t)).sqrt()) as f32,
            decay: (1.0 - rate * self.adam.weight_decay) as f32,
            clip: controls.clip.unwrap_or(0.0) as f32,
            seed: controls.seed,
            muon_rate: (rate * self.adam.muon.as_ref().map_or(0.0, |m: &Muon| m.ratio)) as f32,
            pad: 0.0,
        };
        slot.host.write(0, &[c]);
        slot.host.write(layout.shape, &shape_numbers(&self.program, &self.bound.capacity, batch));
        slot.host.write(layout.targets, targets);
        // SAFETY: `staged` and `host` have the same layout. Both stay in the slot, which is reused only after its step.
        unsafe { driver::upload(&self.copies, slot.staged.ptr, &slot.host, 0..layout.io) }?;
        for (s, &at) in batch.sets.iter().zip(&layout.sets) {
            slot.host.write_parallel(at, s.data);
            // SAFETY: as above; the batch is within the capacity, so the range is within the layout.
            unsafe { driver::upload(&self.copies, slot.staged.ptr, &slot.host, at..at + size_of_val(s.data)) }?;
        }
        slot.copied.record(&self.copies)?;
        self.stream.wait_for(&slot.copied)?;
        // SAFETY: the graph uses `bound`, the moments and this slot, all dropped after the stream.
        unsafe { slot.graph.launch(&self.stream) }?;
        // SAFETY: `results` has 256 bytes on the device and 64 here; `outcome` reads them after the `done` event.
        unsafe { driver::download(&self.stream, &mut slot.results, 0..size_of::<t::Results>(), self.results.ptr) }?;
        slot.done.record(&self.stream)?;
        self.in_flight.push_back(self.next);
        self.next = (self.next + 1) % SLOTS;
        Ok(())
    }

    /// Milliseconds of every kernel of a step on the staged batch, by name with the number of launches. Each kernel
    /// runs alone; the parameters change.
    pub fn profile(&mut self, repetitions: usize) -> Result<Vec<(String, usize, f64)>, Error> {
        self.stream.wait()?;
        let shape = self.bound.io.ptr + io_layout(&self.program, &self.bound.capacity).shape as u64;
        let (start, end) = (Event::new(&self.device)?, Event::new(&self.device)?);
        let mut kernels: Vec<(String, usize, f64)> = Vec::new();
        let step = [&self.step.loss, &self.step.squares, &self.step.adam];
        let muon = self.step.muon.iter().flat_map(|m| &m.commands);
        for command in self.bound.forward.iter().chain(&self.bound.backward).chain(step).chain(muon) {
            start.record(&self.stream)?;
            for _ in 0..repetitions {
                // SAFETY: all buffers belong to `self`, and `end` is waited for below.
                unsafe { command.enqueue(&self.stream, shape) }?;
            }
            end.record(&self.stream)?;
            end.wait()?;
            let time = end.since(&start)? / repetitions as f64;
            match kernels.iter_mut().find(|k| k.0 == command.name()) {
                Some(k) => (k.1, k.2) = (k.1 + 1, k.2 + time),
                None => kernels.push((command.name().to_owned(), 1, time)),
            }
        }
        Ok(kernels)
    }

    /// Waits for the oldest step in flight.
    pub fn outcome(&mut self) -> Result<Option<Outcome>, Error> {
        let Some(slot) = self.in_flight.pop_front() else { return Ok(None) };
        let slot = &self.slots[slot];
        slot.done.wait()?;
        let r: t::Results = slot.results.read(0);
        Ok(Some(Outcome { loss: f64::from(r.loss), gradient: f64::from(r.grad_norm) }))
    }
}

/// Byte offsets of a staged batch.
struct Staging {
    shape: usize,
    targets: usize,
    sets: Vec<usize>,
    io: usize,
    end: usize,
}

fn staging(program: &Program, capacity: &Capacity) -> Staging {
    let io = io_layout(program, capacity);
    let mut end = io.end;
    let sets = (0..program.inputs.len())
        .map(|k| {
            let at = end;
            end +=
                (4 * capacity.rows[k] * program.values[program.inputs[k].0].cols * capacity.dims).next_multiple_of(16);
            at
        })
        .collect();
    Staging { shape: io.shape, targets: io.targets, sets, io: io.end, end }
}

/// The commands of a step around those of the program.
struct StepCommands {
    loss: Command,
    squares: Command,
    adam: Command,
    muon: Option<MuonStep>,
}

impl StepCommands {
    fn write(
        device: &Arc<Device>,
        program: &Program,
        bound: &BoundProgram,
        [first, second, results, norm_partials]: [&Memory; 4],
        loss: Loss,
        adam: &Adam<f32>,
    ) -> Result<Self, Error> {
        let layout = io_layout(program, &bound.capacity);
        let mut task_table = t::TaskTable::new(bound.step_tasks_at);
        let mut parameters = [0.0; MAX_QUANTILE_LEVELS];
        let kind = match loss {
            Loss::L1 => 0,
            Loss::Mse => 1,
            Loss::Huber { delta } => {
                parameters[0] = delta as f32;
                2
            }
            Loss::Bce => 3,
            Loss::Pinball { level } => {
                parameters[0] = level as f32;
                4
            }
            Loss::Quantiles(levels) => {
                parameters.iter_mut().zip(levels.as_slice()).for_each(|(p, l)| *p = *l as f32);
                5
            }
            Loss::CrossEntropy { .. } => 6,
            Loss::SetMeanL1 { element_weight } => {
                parameters[0] = element_weight as f32;
                7
            }
        };
        let values = program.values.len();
        let outputs: Vec<t::LossTask> = program
            .outputs
            .iter()
            .map(|v| t::LossTask {
                values: bound.arena.ptr + 4 * bound.plan.offsets[v.0] as u64,
                targets: bound.io.ptr + layout.targets as u64,
                grads: bound.arena.ptr + 4 * bound.plan.offsets[values + v.0] as u64,
                width: program.values[v.0].cols as i32,
                pad2: 0,
                space: space_of(program, &bound.capacity, *v),
                pad: 0,
            })
            .collect();
        let outputs_at = task_table.push(&outputs);
        let count = outputs.len() as i32;
        let task = t::LossTasks { outputs: outputs_at, results: results.ptr, count, kind, parameters };
        let loss_at = task_table.push(&[task]);
        let at = Parameters {
            params: bound.params.ptr,
            first: first.ptr,
            grads: bound.grads.ptr,
            controls: bound.io.ptr,
            results: results.ptr,
            len: program.params.trained(),
        };
        let muon = adam.muon.as_ref().filter(|m| !m.matrices().is_empty());
        let muon = muon.map(|m| MuonStep::new(device, &bound.kernels, m, &at)).transpose()?;
        let update_at = task_table.push(&[t::UpdateTask {
            params: bound.params.ptr,
            first: first.ptr,
            second: second.ptr,
            grads: bound.grads.ptr,
            partials: norm_partials.ptr,
            controls: bound.io.ptr,
            results: results.ptr,
            trained: program.params.trained() as u64,
            all: program.params.len() as u64,
            muon_mask: muon.as_ref().map_or(0, |m| m.mask.ptr),
            beta1: adam.beta1 as f32,
            beta2: adam.beta2 as f32,
            epsilon: adam.epsilon as f32,
            average_rate: RUNNING_AVERAGE_MOMENTUM as f32,
            momentum: MOMENTUM as f32,
            pad: 0.0,
        }]);
        bound.task_table.write((bound.step_tasks_at - bound.task_table.ptr) as usize, task_table.bytes())?;
        let launch = |name: &str, grid: usize, tasks: u64| -> Result<_, Error> {
            let f = bound.kernels.function(name, 0)?;
            Ok(Command::Launch { name: name.to_owned(), f, blocks: Blocks::plain([grid as u32, 1, 1], 256), tasks })
        };
        Ok(StepCommands {
            loss: launch("loss", 1, loss_at)?,
            squares: launch("grad_norm_partials", NORM_BLOCKS, update_at)?,
            adam: launch("adam", program.params.len().div_ceil(1024).clamp(1, 1024), update_at)?,
            muon,
        })
    }

    /// Enqueues a full step on a staged batch.
    fn enqueue(&self, program: &Program, bound: &BoundProgram, staged: &Memory, stream: &Stream) -> Result<(), Error> {
        let layout = staging(program, &bound.capacity);
        // SAFETY: `io` and `staged` begin with the same layout and are dropped after the stream.
        unsafe { driver::copy(stream, bound.io.ptr, staged.ptr, layout.io) }?;
        for (k, &at) in layout.sets.iter().enumerate() {
            let end = layout.sets.get(k + 1).copied().unwrap_or(layout.end);
            let to = bound.arena.ptr + 4 * bound.plan.offsets[program.inputs[k].0] as u64;
            // SAFETY: the plan has an input of the capacity at `to`, padded like the staged set.
            unsafe { driver::copy(stream, to, staged.ptr + at as u64, end - at) }?;
        }
        let shape = bound.io.ptr + layout.shape as u64;
        let muon = self.muon.iter().flat_map(|m| &m.commands);
        let update = [&self.squares, &self.adam].into_iter().chain(muon);
        let commands = bound.forward.iter().chain([&self.loss]).chain(&bound.backward).chain(update);
        // SAFETY: buffers and kernels are dropped after the stream; the shape buffer is filled by the copy above.
        commands.into_iter().try_for_each(|c| unsafe { c.enqueue(stream, shape) })
    }
}
