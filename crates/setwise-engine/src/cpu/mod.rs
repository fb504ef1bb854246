//! The CPU backend.
//!
//! [`Cpu`] spreads a batch over threads in one of two ways. Small models run in *shards* of the batch. A thread takes
//! a few examples of its shard through the full program, forward and backward, while their values are in its cache.
//! Large models run operation by operation on all threads, with one gradient buffer. Sizes alone decide the way, the
//! shards and the chunks of examples, so results do not depend on the number of threads.
//!
//! * `worker` runs programs; `compiled` instantiates it once for each number type; `tasks` splits work.
//! * `row_fusion` and `projected_attention` fuse operations where a worker has one thread; `row_buffers` holds their
//!   values, `buffer` the memory.
//! * `gemm` has the register tile, `weight_product` the products of weight gradients, `packed_weights` the packed
//!   weights, `amx` the products on AMX.
//! * `linear`, `attention`, `norm`, `pair`, `pool`, `pine`, `rows`, `convolution`, `batch_norm` and `max_pool` each
//!   have one kind of operation, forward and backward.

mod amx;
mod attention;
mod batch_norm;
mod buffer;
mod compiled;
mod convolution;
pub(crate) mod gemm;
mod linear;
mod max_pool;
mod norm;
pub(crate) mod packed_product;
mod packed_weights;
mod pair;
mod pine;
mod pool;
mod projected_attention;
mod row_buffers;
mod row_fusion;
mod rows;
mod sums;
mod tasks;
mod weight_product;
mod worker;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use rayon::prelude::*;

use crate::batch::BatchView;
use crate::error::Error;
use crate::program::{Mode, Program, Space};
pub use compiled::Compiled;
use packed_weights::PackedWeights;
use tasks::Threads;
use worker::{Run, Worker};

/// The largest number of shards, and so of threads that work on one batch.
const MAX_SHARDS: usize = 16;
/// Elements that the gradients of all shards may have together.
const SHARD_GRADIENTS: usize = 1 << 25;
/// Elements that the values of a chunk of examples may have: with gradients and reuse about the size of the caches.
const CHUNK_ELEMENTS: usize = 1 << 22;

/// Runs one program on the threads of the current rayon pool. Holds all working memory; after the largest batch
/// nothing more is allocated.
///
/// ```
/// use rand::SeedableRng;
/// use setwise_engine::*;
///
/// // y = mean over the elements of one linear map.
/// let mut b = Program::builder(&[2], false, Mode::Infer, false);
/// let hidden = b.fresh(Space::Set(0), 3, false);
/// let map = b.map("layer", b.full(b.input(0)), b.full(hidden), true);
/// b.op(Op::Linear(Linear { maps: vec![map], activation: Activation::Relu }));
/// let out = b.fresh(Space::PerExample(1), 3, false);
/// b.op(Op::Pool(Pool { x: hidden, y: b.full(out), reduce: Reduce::Mean, segments: Segments::Examples }));
/// let mut cpu = Cpu::<f32>::new(b.finish(vec![out]));
///
/// let params: Vec<f32> = cpu.program().params().init(&mut rand_pcg::Pcg64Mcg::seed_from_u64(1));
/// let data = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; // two examples, of two rows and of one
/// let sets = vec![SetView { data: &data, width: 2, offsets: &[0, 2, 3] }];
/// cpu.forward(&params, &BatchView { sets }).unwrap();
/// assert_eq!(cpu.output(0).len(), 2 * 3);
/// ```
pub struct Cpu<T: Compiled> {
    program: Arc<Program>,
    packed: PackedWeights<T>,
    /// Uses all threads for each operation.
    shared: Worker<T>,
    /// One per thread; each works alone.
    workers: Vec<Mutex<Worker<T>>>,
    shards: Vec<Mutex<Shard<T>>>,
    /// Gradients of outputs, for the full batch.
    output_grads: Vec<Vec<T>>,
    outputs: Vec<Vec<T>>,
    seed: u64,
}

/// The state of a shard between its chunks.
struct Shard<T> {
    grads: Vec<T>,
    output_grads: Vec<Vec<T>>,
    loss: f64,
    error: Option<Error>,
}

impl Cpu<f32> {
    /// Whether AMX can be used: the processor has it and the system permits it. With the environment variable
    /// `SETWISE_AMX=emulated` a slow emulation stands in, on machines with AVX-512.
    pub fn has_amx() -> bool {
        amx::available()
    }

    /// Whether products run on AMX.
    pub fn uses_amx(&self) -> bool {
        self.packed.uses_amx()
    }

    /// Turns AMX on or off. AMX multiplies bf16: each f32 product becomes three bf16 products, with 16 bits of
    /// precision instead of 24.
    ///
    /// AMX is used only where it pays: linear maps whose sizes are multiples of 16; attention with head width ≥ 32, at
    /// least 16 queries and keys × width ≤ 2²²; the scores of backward passes with head width 8. Exponentials in
    /// attention have 18 bits. Everything else stays in f32.
    ///
    /// Fails on machines without AMX.
    pub fn use_amx(&mut self, enabled: bool) -> Result<(), Error> {
        if enabled && !Self::has_amx() {
            return Err(Error::NoAmx);
        }
        if enabled != self.uses_amx() {
            self.packed = PackedWeights::new(&self.program, enabled);
        }
        Ok(())
    }
}

/// The outputs of some examples, and the gradients a loss fills.
pub struct Outputs<'a, T> {
    /// Indices of the examples.
    pub examples: Range<usize>,
    /// One buffer per output of the program.
    pub values: &'a [&'a [T]],
    /// As long as the outputs; the loss overwrites them.
    pub grads: &'a mut [Vec<T>],
}

impl<T: Compiled> Cpu<T> {
    /// Prepares to run a program.
    pub fn new(program: impl Into<Arc<Program>>) -> Self {
        let program = program.into();
        Cpu {
            packed: PackedWeights::new(&program, false),
            shared: Worker::new(program.clone(), Threads::All),
            workers: Vec::new(),
            shards: Vec::new(),
            output_grads: vec![Vec::new(); program.outputs.len()],
            outputs: vec![Vec::new(); program.outputs.len()],
            seed: 0,
            program,
        }
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Seeds the dropout masks of the next step; every step needs its own seed.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Bytes of working memory held.
    pub fn memory(&self) -> usize {
        let shards: usize = self.shards.iter().map(|l| lock(l).grads.len()).sum();
        let workers: usize = self.workers.iter().map(|w| lock(w).memory()).sum();
        self.shared.memory() + workers + (shards + self.packed.len()) * size_of::<T>()
    }

    /// Starts to record how long each operation takes, from zero.
    pub fn record_timings(&mut self) {
        self.prepare_workers();
        self.shared.record_timings();
        self.workers.iter().for_each(|w| lock(w).record_timings());
    }

    /// Seconds of all threads spent forward and backward in each operation since recording began.
    pub fn timings(&self) -> Vec<[f64; 2]> {
        let mut sum = self.shared.timings().to_vec();
        let threads = rayon::current_num_threads() as f64;
        sum.iter_mut().for_each(|t| *t = t.map(|s| s * threads));
        for w in &self.workers {
            for (s, t) in sum.iter_mut().zip(lock(w).timings()) {
                *s = [s[0] + t[0], s[1] + t[1]];
            }
        }
        sum
    }

    /// Computes all outputs for a batch, with all threads in each operation, and keeps everything for
    /// [`Cpu::backward`].
    pub fn forward(&mut self, params: &[T], batch: &BatchView<T>) -> Result<(), Error> {
        self.check(params, batch)?;
        T::pack(&mut self.packed, &self.program, params, self.program.mode == Mode::Train);
        self.shared.seed = self.seed;
        T::forward(&mut self.shared, params, &self.packed, batch, 0..batch.examples())
    }

    /// An output of the last [`Cpu::forward`], row-major.
    pub fn output(&self, i: usize) -> &[T] {
        self.shared.output(i)
    }

    /// Gradient of input `k` after [`Cpu::backward`], if the program computes input gradients.
    pub fn input_grad(&self, k: usize) -> Option<&[T]> {
        self.shared.input_grad(k)
    }

    /// Gradients of the parameters, given those of the outputs; `grads` is overwritten. A [`Cpu::forward`] of a
    /// program in [`Mode::Train`] precedes.
    pub fn backward(&mut self, params: &[T], output_grads: &[&[T]], grads: &mut [T]) -> Result<(), Error> {
        assert_eq!(self.program.mode, Mode::Train, "backward needs a training program");
        self.check_length("the parameter buffer", self.program.params.len(), params.len())?;
        self.check_length("the gradient buffer", self.program.params.len(), grads.len())?;
        self.check_length("the list of output gradients", self.program.outputs.len(), output_grads.len())?;
        for (i, &g) in output_grads.iter().enumerate() {
            self.check_length("an output gradient", self.shared.output(i).len(), g.len())?;
            self.output_grads[i].clear();
            self.output_grads[i].extend_from_slice(g);
        }
        grads.fill(T::ZERO);
        T::backward(&mut self.shared, &mut Run { params, packed: &self.packed, grads }, &self.output_grads);
        Ok(())
    }

    /// Computes all outputs for a batch and nothing else: `predict(..)[i]` is output `i`, row-major. Working memory
    /// does not grow with the number of examples.
    pub fn predict(&mut self, params: &[T], batch: &BatchView<T>) -> Result<&[Vec<T>], Error> {
        self.check(params, batch)?;
        T::pack(&mut self.packed, &self.program, params, false);
        let examples = batch.examples();
        for i in 0..self.outputs.len() {
            let len = self.output_offset(i, batch, examples);
            self.outputs[i].resize(len, T::ZERO);
        }
        let chunk = self.chunk(batch);
        if examples < 2 * chunk || examples < 4 {
            T::forward(&mut self.shared, params, &self.packed, batch, 0..examples)?;
            for (i, out) in self.outputs.iter_mut().enumerate() {
                out.copy_from_slice(self.shared.output(i));
            }
            return Ok(&self.outputs);
        }
        self.prepare_workers();
        let mut outputs = std::mem::take(&mut self.outputs);
        let starts: Vec<tasks::Ptr<T>> = outputs.iter_mut().map(|o| tasks::Ptr(o.as_mut_ptr())).collect();
        let this = &*self;
        let result = (0..examples.div_ceil(chunk)).into_par_iter().try_for_each(|c| {
            let range = c * chunk..examples.min((c + 1) * chunk);
            let mut worker = this.worker();
            T::forward(&mut worker, params, &this.packed, batch, range.clone())?;
            for (i, start) in starts.iter().enumerate() {
                let rows = worker.output(i);
                // SAFETY: `output_offset` counts the rows of the examples before `range`, so the target has
                // `rows.len()` elements. Ranges of examples are disjoint, and each is copied by one task.
                unsafe {
                    let to = start.at(this.output_offset(i, batch, range.start));
                    std::ptr::copy_nonoverlapping(rows.as_ptr(), to, rows.len());
                }
            }
            Ok(())
        });
        self.outputs = outputs;
        result.map(|()| &self.outputs[..])
    }

    /// Forward, loss and backward for a batch. `loss` is called for some examples at a time, fills the gradients of
    /// their outputs and returns their share of the loss. Returns the sum of the shares; overwrites `grads`.
    pub fn step(
        &mut self,
        params: &[T],
        batch: &BatchView<T>,
        grads: &mut [T],
        loss: impl Fn(Outputs<T>) -> f64 + Sync,
    ) -> Result<f64, Error> {
        assert_eq!(self.program.mode, Mode::Train, "a step needs a training program");
        self.check(params, batch)?;
        self.check_length("the gradient buffer", self.program.params.len(), grads.len())?;
        T::pack(&mut self.packed, &self.program, params, true);
        let examples = batch.examples();
        let shards = self.shard_count(examples);
        if shards < 4 {
            self.shared.seed = self.seed;
            grads.fill(T::ZERO);
            let range = 0..examples;
            return chunk_step(
                &mut self.shared,
                &self.packed,
                params,
                batch,
                range,
                grads,
                &mut self.output_grads,
                &loss,
            );
        }
        self.prepare_workers();
        while self.shards.len() < shards {
            let output_grads = vec![Vec::new(); self.program.outputs.len()];
            self.shards.push(Mutex::new(Shard {
                grads: vec![T::ZERO; grads.len()],
                output_grads,
                loss: 0.0,
                error: None,
            }));
        }
        let chunk = self.chunk(batch);
        let this = &*self;
        (0..shards).into_par_iter().with_max_len(1).for_each(|l| {
            let mut shard = lock(&this.shards[l]);
            let Shard { grads, output_grads, loss: sum, error } = &mut *shard;
            grads.fill(T::ZERO);
            (*sum, *error) = (0.0, None);
            let mut worker = this.worker();
            let last = examples * (l + 1) / shards;
            let mut first = examples * l / shards;
            while first < last && error.is_none() {
                let range = first..last.min(first + chunk);
                first = range.end;
                worker.seed = this.seed.wrapping_add((range.start as u64) << 40);
                match chunk_step(&mut worker, &this.packed, params, batch, range, grads, output_grads, &loss) {
                    Ok(part) => *sum += part,
                    Err(e) => *error = Some(e),
                }
            }
        });
        let mut parts: [Option<MutexGuard<Shard<T>>>; MAX_SHARDS] = [const { None }; MAX_SHARDS];
        let mut sum = 0.0;
        for (part, shard) in parts.iter_mut().zip(&self.shards[..shards]) {
            let mut shard = lock(shard);
            if let Some(error) = shard.error.take() {
                return Err(error);
            }
            sum += shard.loss;
            *part = Some(shard);
        }
        let parts: [&[T]; MAX_SHARDS] = std::array::from_fn(|i| parts[i].as_ref().map_or(&[][..], |l| &l.grads));
        grads.par_chunks_mut(4096).enumerate().for_each(|(c, out)| {
            let first = c * 4096;
            out.copy_from_slice(&parts[0][first..first + out.len()]);
            for part in &parts[1..shards] {
                for (o, p) in out.iter_mut().zip(&part[first..]) {
                    *o += *p;
                }
            }
        });
        Ok(sum)
    }

    /// Offset of the rows of `example` in output `i`.
    fn output_offset(&self, i: usize, batch: &BatchView<T>, example: usize) -> usize {
        let spec = &self.program.values[self.program.outputs[i].0];
        let rows = match spec.space {
            Space::Set(k) => batch.sets[k].offsets[example],
            Space::Union => batch.sets.iter().map(|s| s.offsets[example]).sum(),
            Space::PerExample(n) => n * example,
            Space::Batch => 0,
        };
        rows * spec.cols
    }

    /// The worker of this thread. No thread runs two chunks at once, so the worker is free.
    fn worker(&self) -> MutexGuard<'_, Worker<T>> {
        lock(&self.workers[rayon::current_thread_index().map_or(0, |i| i + 1).min(self.workers.len() - 1)])
    }

    fn prepare_workers(&mut self) {
        while self.workers.len() < rayon::current_num_threads() + 1 {
            self.workers.push(Mutex::new(Worker::new(self.program.clone(), Threads::One)));
        }
    }

    /// Shards of a batch: a power of two, for an even spread, limited by examples and by memory for gradients. One
    /// where examples depend on each other.
    fn shard_count(&self, examples: usize) -> usize {
        if self.program.couples_examples() {
            return 1;
        }
        let max = MAX_SHARDS.min(examples).min(SHARD_GRADIENTS / self.program.params.len().max(1));
        if max == 0 { 1 } else { 1 << max.ilog2() }
    }

    /// Examples of a chunk: their values fill the caches, and they are enough to pay for reading all weights.
    fn chunk(&self, batch: &BatchView<T>) -> usize {
        let examples = batch.examples();
        let dims = if self.program.any_dim { batch.sets[0].width } else { 1 };
        let elements: usize = self
            .program
            .values
            .iter()
            .map(|v| {
                let rows = match v.space {
                    Space::Set(k) => batch.sets[k].offsets[examples] / examples,
                    Space::Union => batch.sets.iter().map(|s| s.offsets[examples] / examples).sum(),
                    Space::PerExample(n) => n,
                    Space::Batch => 1,
                };
                rows.saturating_mul(v.cols).saturating_mul(if v.per_dim { dims } else { 1 })
            })
            .fold(0, usize::saturating_add);
        let max = CHUNK_ELEMENTS.max(6 * self.program.params.len());
        (max / elements.max(1)).clamp(1, examples)
    }

    fn check_length(&self, what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
        if found == expected { Ok(()) } else { Err(Error::Length { what, expected, found }) }
    }

    /// Checks that parameters and batch have the program's sizes.
    fn check(&self, params: &[T], batch: &BatchView<T>) -> Result<(), Error> {
        self.check_length("the parameter buffer", self.program.params.len(), params.len())?;
        self.program.check(batch)
    }
}

/// Runs some examples forward, through the loss and backward.
#[allow(clippy::too_many_arguments)]
fn chunk_step<T: Compiled>(
    worker: &mut Worker<T>,
    packed: &PackedWeights<T>,
    params: &[T],
    batch: &BatchView<T>,
    examples: Range<usize>,
    grads: &mut [T],
    output_grads: &mut [Vec<T>],
    loss: &(impl Fn(Outputs<T>) -> f64 + Sync),
) -> Result<f64, Error> {
    T::forward(worker, params, packed, batch, examples.clone())?;
    let values: [&[T]; 64] = std::array::from_fn(|i| if i < output_grads.len() { worker.output(i) } else { &[] });
    for (g, v) in output_grads.iter_mut().zip(values) {
        g.resize(v.len(), T::ZERO);
    }
    let part = loss(Outputs { examples, values: &values[..output_grads.len()], grads: output_grads });
    T::backward(worker, &mut Run { params, packed, grads }, output_grads);
    Ok(part)
}

/// Locks. A poisoned lock is fine: the next run overwrites everything a panicked thread has left.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}
