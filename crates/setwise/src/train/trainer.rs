//! Gradient steps on batches.

use std::collections::VecDeque;
use std::ops::Range;

use rayon::prelude::*;
use setwise_engine::{Adam, Cpu, Loss, Matrix, Mode, Muon, Outputs, ParamLayout};

use super::{Optimizer, Training};
use crate::models::{Model, OutputKind, program};
use crate::{Device, Error, Result, SetBatch};

/// Trains a model by gradient steps on batches.
///
/// ```
/// use setwise::{Loss, Model, ModelConfig, SetBatch, Trainer};
///
/// let config = ModelConfig::preset("single-set-rff", 1)?.with_sets(1).with_latent(8).with_hidden(16);
/// let mut trainer = Trainer::new(Model::new(config.validate()?, 1), Loss::Mse);
/// let batch = SetBatch::from_examples(1, &[vec![&[1.0, 2.0, 3.0]], vec![&[4.0]]])?;
/// let first = trainer.step(&batch, &[6.0, 4.0], 1e-3)?;
/// let second = trainer.step(&batch, &[6.0, 4.0], 1e-3)?;
/// assert!(second < first);
/// # Ok::<(), setwise::Error>(())
/// ```
pub struct Trainer {
    model: Model,
    loss: Loss,
    cpu: Cpu<f32>,
    adam: Adam<f32>,
    grads: Vec<f32>,
    seed: u64,
    outcomes: VecDeque<StepOutcome>,
    #[cfg(feature = "cuda")]
    gpu: Option<setwise_engine::cuda::CudaTrainer>,
}

/// Loss and gradient norm of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOutcome {
    /// Loss on the batch before the step.
    pub loss: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
}

/// Maximum sizes of a batch, for which a GPU allocates memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchLimits {
    /// Examples of a batch.
    pub examples: usize,
    /// Elements of a set.
    pub set_size: usize,
    /// Input dimensions, for dimension-equivariant models.
    pub dims: usize,
}

impl Trainer {
    /// Starts from a model's parameters, with zero moments of Adam.
    pub fn new(model: Model, loss: Loss) -> Self {
        let cpu = Cpu::new(program(model.config(), Mode::Train, false));
        let (len, trained) = (model.params().len(), model.layout().trained());
        Trainer {
            model,
            loss,
            cpu,
            adam: Adam::new(trained),
            grads: vec![0.0; len],
            seed: 0,
            outcomes: VecDeque::new(),
            #[cfg(feature = "cuda")]
            gpu: None,
        }
    }

    /// Starts from a model's parameters, with the loss and the optimiser of a training; `seed` is that of dropout.
    ///
    /// Pass the scheduled learning rate to each step; Muon's rate is scaled with it.
    pub fn with_training(model: Model, training: &Training, seed: u64) -> Self {
        let mut trainer = Trainer::new(model, training.loss.loss()).with_seed(seed);
        match training.optimizer {
            Optimizer::Adam => {}
            Optimizer::Adamw { weight_decay } => trainer.adam.weight_decay = weight_decay,
            Optimizer::Muon { learning_rate: rate } => {
                let matrices = muon_matrices(trainer.model.layout());
                trainer.adam.muon = Some(Muon::new(matrices, rate / training.learning_rate));
            }
        }
        trainer
    }

    /// Sets the device of steps and predictions.
    pub fn use_device(&mut self, device: &Device, limits: BatchLimits) -> Result<()> {
        self.check_loss()?;
        self.sync()?;
        self.model.use_device(device)?;
        #[cfg(feature = "cuda")]
        {
            self.gpu = match device {
                Device::Cpu | Device::CpuAmx => None,
                Device::Cuda { device, precision } => {
                    let program = program(self.model.config(), Mode::Train, false);
                    let sets = self.model.config().sets;
                    let capacity = setwise_engine::cuda::Capacity {
                        examples: limits.examples,
                        rows: vec![limits.examples * limits.set_size; sets],
                        max_set_len: vec![limits.set_size; sets],
                        dims: if self.model.config().dimension_equivariant { limits.dims } else { 1 },
                    };
                    let (params, adam) = (self.model.params(), &self.adam);
                    let program = std::sync::Arc::new(program);
                    Some(setwise_engine::cuda::CudaTrainer::new(
                        device, program, *precision, capacity, self.loss, params, adam,
                    )?)
                }
            };
        }
        let _ = limits;
        Ok(self.cpu.use_amx(matches!(device, Device::CpuAmx))?)
    }

    /// Submits a step, whose outcome [`Trainer::outcome`] returns.
    ///
    /// The step is not applied if its loss or gradient is not finite.
    pub fn submit(&mut self, batch: &SetBatch, targets: &[f32], learning_rate: f64, clip: Option<f64>) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &mut self.gpu {
            let seed = self.seed.wrapping_add(self.adam.steps);
            if gpu.in_flight() == 2
                && let Some(o) = gpu.outcome()?
            {
                self.outcomes.push_back(StepOutcome { loss: o.loss, gradient_norm: o.gradient });
            }
            gpu.submit(&batch.view(), targets, setwise_engine::cuda::StepControls { learning_rate, clip, seed })?;
            self.adam.steps += 1;
            return Ok(());
        }
        let loss = self.gradient(batch, targets)?;
        let gradient_norm = self.clip_gradient(clip);
        if loss.is_finite() && gradient_norm.is_finite() {
            self.apply(learning_rate);
        }
        self.outcomes.push_back(StepOutcome { loss, gradient_norm });
        Ok(())
    }

    /// The outcome of the oldest submitted step.
    ///
    /// A GPU queues two steps: without `wait`, there is no outcome until the queue is full.
    pub fn outcome(&mut self, wait: bool) -> Result<Option<StepOutcome>> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = self.gpu.as_mut().filter(|_| self.outcomes.is_empty()) {
            if !wait && gpu.in_flight() < 2 {
                return Ok(None);
            }
            let outcome = gpu.outcome()?;
            return Ok(outcome.map(|o| StepOutcome { loss: o.loss, gradient_norm: o.gradient }));
        }
        let _ = wait;
        Ok(self.outcomes.pop_front())
    }

    /// Downloads parameters and optimiser state from the GPU, after the steps whose outcomes were returned.
    pub fn sync(&mut self) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &mut self.gpu {
            gpu.download(self.model.params_mut(), &mut self.adam)?;
        }
        Ok(())
    }

    /// Name, number of launches and milliseconds of each kernel of a step on the last batch; none without a GPU.
    pub fn kernel_times(&mut self) -> Result<Option<Vec<(String, usize, f64)>>> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &mut self.gpu {
            return Ok(Some(gpu.profile(20)?));
        }
        Ok(None)
    }

    /// Bytes of allocated GPU memory; none without a GPU.
    pub fn device_memory(&self) -> Option<usize> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &self.gpu {
            return Some(gpu.memory());
        }
        None
    }

    /// Sets the seed of dropout.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The model; on a GPU, that of the last [`Trainer::sync`].
    pub fn model(&mut self) -> &mut Model {
        &mut self.model
    }

    /// The optimiser.
    pub fn adam(&mut self) -> &mut Adam<f32> {
        &mut self.adam
    }

    /// Returns the model.
    pub fn into_model(self) -> Model {
        self.model
    }

    /// Starts recording the time of each operation, on the CPU.
    pub fn record_timings(&mut self) {
        self.cpu.record_timings();
    }

    /// Each kind of operation with its recorded seconds in the forward and the backward pass, summed over threads.
    pub fn timings(&self) -> Vec<(String, [f64; 2])> {
        let mut kinds: Vec<(String, [f64; 2])> = Vec::new();
        for (op, t) in self.cpu.program().ops().iter().zip(self.cpu.timings()) {
            let name = op.describe();
            match kinds.iter_mut().find(|k| k.0 == name) {
                Some(k) => k.1 = [k.1[0] + t[0], k.1[1] + t[1]],
                None => kinds.push((name, t)),
            }
        }
        kinds
    }

    /// Bytes of working memory on the CPU.
    pub fn memory(&self) -> usize {
        self.cpu.memory()
    }

    /// Makes one step and returns the loss before it: forward pass, loss, backward pass, optimiser, running averages.
    ///
    /// Targets are ordered as outputs: by example, or by set and then by element for outputs per element.
    pub fn step(&mut self, batch: &SetBatch, targets: &[f32], learning_rate: f64) -> Result<f64> {
        #[cfg(feature = "cuda")]
        if self.gpu.is_some() {
            while self.outcome(true)?.is_some() {}
            self.submit(batch, targets, learning_rate, None)?;
            let loss = self.outcome(true)?.map_or(f64::NAN, |o| o.loss);
            self.sync()?;
            return Ok(loss);
        }
        let loss = self.gradient(batch, targets)?;
        self.apply(learning_rate);
        Ok(loss)
    }

    /// Makes one step on the CPU with a loss of the outputs that no [`Loss`] describes, and returns the loss before it.
    ///
    /// `loss` receives a range of examples, their outputs, and the buffer for the gradient of these outputs. It returns
    /// the examples' share of the loss. A gradient longer than `clip` is scaled down.
    pub fn step_with(
        &mut self,
        batch: &SetBatch,
        learning_rate: f64,
        clip: Option<f64>,
        loss: impl Fn(Range<usize>, &[f32], &mut [f32]) -> f64 + Sync,
    ) -> Result<f64> {
        self.cpu.set_seed(self.seed.wrapping_add(self.adam.steps));
        let of_part = |part: Outputs<f32>| loss(part.examples.clone(), part.values[0], &mut part.grads[0]);
        let loss = self.cpu.step(self.model.params(), &batch.view(), &mut self.grads, of_part)?;
        self.clip_gradient(clip);
        self.apply(learning_rate);
        Ok(loss)
    }

    /// Applies the last gradient with the optimiser.
    fn apply(&mut self, learning_rate: f64) {
        self.adam.step(self.model.params_mut(), &self.grads, learning_rate);
    }

    /// Scales the last gradient down to `max_norm` if it is longer, and returns its norm before.
    ///
    /// The slots of running averages are excluded.
    fn clip_gradient(&mut self, max_norm: Option<f64>) -> f64 {
        let grads = &mut self.grads[..self.adam.first.len()];
        // Partial sums of fixed-size chunks, added in order: the same bits for any number of threads.
        let partial_sums: Vec<f64> =
            grads.par_chunks(1 << 14).map(|c| c.iter().map(|&g| f64::from(g) * f64::from(g)).sum()).collect();
        let norm = partial_sums.iter().sum::<f64>().sqrt();
        if let Some(max_norm) = max_norm.filter(|&max| norm > max) {
            let scale = (max_norm / norm) as f32;
            grads.par_chunks_mut(1 << 14).for_each(|c| c.iter_mut().for_each(|g| *g *= scale));
        }
        norm
    }

    /// Cross-entropy needs one logit per class, set-mean L1 outputs per element.
    fn check_loss(&self) -> Result<()> {
        let width = self.model.config().output_width;
        match self.loss {
            Loss::SetMeanL1 { .. } if self.model.config().output != OutputKind::Equivariant => {
                Err(Error::config("output", "is one vector per example, the loss is over elements"))
            }
            Loss::CrossEntropy { classes } if classes != width => {
                Err(Error::config("output-width", format!("is {width}, the loss is over {classes} classes")))
            }
            _ => Ok(()),
        }
    }

    /// Computes the loss and its gradient ([`Trainer::grads`]) on the CPU, without a step.
    pub fn gradient(&mut self, batch: &SetBatch, targets: &[f32]) -> Result<f64> {
        self.check_loss()?;
        self.cpu.set_seed(self.seed.wrapping_add(self.adam.steps));
        let width = self.model.config().output_width;
        let view = batch.view();
        let per_element = self.model.config().output == OutputKind::Equivariant;
        // First row of an example in an output.
        let first_row =
            |output: usize, example: usize| if per_element { view.sets[output].offsets[example] } else { example };
        let outputs = self.cpu.program().outputs().len();
        // Rows of all outputs before this one.
        let rows_before = |output: usize| -> usize { (0..output).map(|o| first_row(o, batch.examples())).sum() };
        let total = rows_before(outputs) * width;
        let loss = self.loss;
        loss.check(total, targets)?;
        let loss = self.cpu.step(self.model.params(), &view, &mut self.grads, |part: Outputs<f32>| {
            let mut sum = 0.0;
            for (i, (values, grad)) in part.values.iter().zip(part.grads).enumerate() {
                let first = loss.targets((rows_before(i) + first_row(i, part.examples.start)) * width);
                let targets = &targets[first..first + loss.targets(values.len())];
                sum += loss.part(values, targets, grad, total);
                if i == 0 && per_element {
                    let offset = |example: usize| (first_row(0, example) - first_row(0, part.examples.start)) * width;
                    let ranges = part.examples.clone().map(|e| offset(e)..offset(e + 1));
                    sum += loss.mean_term(values, targets, ranges, grad, batch.examples());
                }
            }
            sum
        })?;
        Ok(loss)
    }

    /// The last gradient. The slots of running averages hold the statistics of the batch.
    pub fn grads(&self) -> &[f32] {
        &self.grads
    }
}

/// Fails if the layout has no matrix that Muon updates.
pub fn check_muon(layout: &ParamLayout) -> Result<()> {
    if muon_matrices(layout).is_empty() {
        let reason = "moves the weight matrices of blocks and poolings, of which this model has none".to_owned();
        return Err(Error::Setting { key: "training.optimizer.muon".to_owned(), reason });
    }
    Ok(())
}

/// The weight matrices that Muon updates: those of blocks and poolings, not of input projections and the decoder.
fn muon_matrices(layout: &ParamLayout) -> Vec<Matrix> {
    let in_block = |name: &str| (name.starts_with("block.") || name.starts_with("pool.")) && name.ends_with(".weight");
    let specs = layout.specs().iter().filter(|s| s.trained && in_block(&s.name));
    specs
        .filter_map(|s| match s.shape[..] {
            [rows, cols] => Some(Matrix { offset: s.offset, rows, cols }),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;
    use crate::train::LossConfig;

    #[test]
    fn muon_updates_all_matrices_but_input_projections_and_the_decoder() {
        let config = ModelConfig::preset("multi-set-transformer", 2).unwrap().with_blocks(3).validate().unwrap();
        let layout = Model::new(config, 1).layout().clone();
        // Each block has four relations of six matrices and two merges; each of two sets has a pooling of six.
        let matrices = muon_matrices(&layout);
        assert_eq!(matrices.len(), 3 * (4 * 6 + 2) + 2 * 6);
        assert!(matrices.iter().all(|m| m.rows >= 32 && m.cols >= 32));
    }

    #[test]
    fn muon_steps_reduce_the_loss_with_the_same_bits_for_any_number_of_threads() {
        let training = Training {
            optimizer: Optimizer::Muon { learning_rate: 0.02 },
            loss: LossConfig::Mse,
            ..Training::default()
        };
        let config = ModelConfig::preset("sum-merge", 1).unwrap().with_latent(8).with_hidden(20).with_blocks(1);
        let batch = SetBatch::from_examples(1, &[vec![&[1.0, 2.0], &[0.5]], vec![&[3.0], &[1.0, 1.5]]]).unwrap();
        let train = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut trainer =
                    Trainer::with_training(Model::new(config.clone().validate().unwrap(), 3), &training, 0);
                let losses: Vec<f64> = (0..30).map(|_| trainer.step(&batch, &[1.0, 2.0], 1e-3).unwrap()).collect();
                (losses, trainer.into_model().params().to_vec())
            })
        };
        let (losses, params) = train(1);
        assert!(losses[29] < 0.2 * losses[0], "{losses:?}");
        assert_eq!((losses, params), train(3));
    }
}
