//! Gradient steps on batches that are handed in.

use std::collections::VecDeque;

use rayon::prelude::*;
use setwise_engine::{Adam, Cpu, Loss, Matrix, Mode, Muon, Outputs, ParamLayout};

use super::{Optimizer, Training};
use crate::models::{Model, OutputKind, program};
use crate::{Device, Error, Result, SetBatch};

/// Trains a model by gradient steps on batches it is handed.
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

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOutcome {
    /// Loss before the step.
    pub loss: f64,
    /// Length of the gradient before clipping.
    pub gradient: f64,
}

/// The largest batches a trainer will see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchLimits {
    /// Examples.
    pub examples: usize,
    /// Elements of a set.
    pub set_size: usize,
    /// Input dimensions, for dimension-equivariant models.
    pub dims: usize,
}

impl Trainer {
    /// Starts from a model's parameters with fresh moments.
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

    /// Starts from a model's parameters with the loss and the optimiser of a training; the seed is that of dropout. Steps are handed the
    /// learning rate that has become of the training's; that of matrices that move by Muon follows it.
    pub fn of(model: Model, training: &Training, seed: u64) -> Self {
        let mut trainer = Trainer::new(model, training.loss.loss()).with_seed(seed);
        match training.optimizer {
            Optimizer::Adam => {}
            Optimizer::Adamw { weight_decay } => trainer.adam.weight_decay = weight_decay,
            Optimizer::Muon { learning_rate: rate } => {
                let matrices = inner_matrices(trainer.model.layout());
                trainer.adam.muon = Some(Muon::new(matrices, rate / training.learning_rate));
            }
        }
        trainer
    }

    /// Lets a device make the steps started with [`Trainer::submit`] from now on, and answer for the model.
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

    /// Starts a step; [`Trainer::outcome`] tells what came of it. A loss or gradient that is no finite number changes nothing.
    pub fn submit(&mut self, batch: &SetBatch, targets: &[f32], learning_rate: f64, clip: Option<f64>) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &mut self.gpu {
            let seed = self.seed.wrapping_add(self.adam.steps);
            if gpu.in_flight() == 2
                && let Some(o) = gpu.outcome()?
            {
                self.outcomes.push_back(StepOutcome { loss: o.loss, gradient: o.gradient });
            }
            gpu.submit(&batch.view(), targets, setwise_engine::cuda::StepControls { learning_rate, clip, seed })?;
            self.adam.steps += 1;
            return Ok(());
        }
        let loss = self.gradient(batch, targets)?;
        let gradient = self.clip(clip);
        if loss.is_finite() && gradient.is_finite() {
            self.apply(learning_rate);
        }
        self.outcomes.push_back(StepOutcome { loss, gradient });
        Ok(())
    }

    /// The outcome of the oldest step that was started. A GPU works ahead: unless `wait`, there is none while it has room for more.
    pub fn outcome(&mut self, wait: bool) -> Result<Option<StepOutcome>> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = self.gpu.as_mut().filter(|_| self.outcomes.is_empty()) {
            if !wait && gpu.in_flight() < 2 {
                return Ok(None);
            }
            let outcome = gpu.outcome()?;
            return Ok(outcome.map(|o| StepOutcome { loss: o.loss, gradient: o.gradient }));
        }
        let _ = wait;
        Ok(self.outcomes.pop_front())
    }

    /// Brings the model and the optimiser up to date with the steps whose outcomes have been asked for.
    pub fn sync(&mut self) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &mut self.gpu {
            gpu.download(self.model.params_mut(), &mut self.adam)?;
        }
        Ok(())
    }

    /// Each kernel of a GPU's step on the last batch, with the number of its launches and their milliseconds, if a GPU makes them.
    pub fn kernel_times(&mut self) -> Result<Option<Vec<(String, usize, f64)>>> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &mut self.gpu {
            return Ok(Some(gpu.profile(20)?));
        }
        Ok(None)
    }

    /// Bytes of device memory held, if a GPU makes the steps.
    pub fn device_memory(&self) -> Option<usize> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &self.gpu {
            return Some(gpu.memory());
        }
        None
    }

    /// Seeds dropout; without dropout it changes nothing.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The model as it is now, or as it was at the last [`Trainer::sync`] where a GPU makes the steps.
    pub fn model(&mut self) -> &mut Model {
        &mut self.model
    }

    /// The optimiser.
    pub fn adam(&mut self) -> &mut Adam<f32> {
        &mut self.adam
    }

    /// Takes the model out.
    pub fn into_model(self) -> Model {
        self.model
    }

    /// Starts to record how long each operation takes.
    pub fn record_timings(&mut self) {
        self.cpu.record_timings();
    }

    /// Each kind of operation with the seconds all threads spent in it forward and backward since recording began.
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

    /// Bytes of working memory held for training.
    pub fn memory(&self) -> usize {
        self.cpu.memory()
    }

    /// One step: forward, loss, backward, Adam; running averages of batch norms follow the batch. Targets stand example by example for answers
    /// per example; for answers per element set by set, in each the elements of all examples one after another. Returns the loss before the step.
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

    /// Moves the parameters along the last gradient.
    pub fn apply(&mut self, learning_rate: f64) {
        self.adam.step(self.model.params_mut(), &self.grads, learning_rate);
    }

    /// Length of the last gradient, which is shortened to `most` if it is longer. Running averages are no part of it.
    pub fn clip(&mut self, most: Option<f64>) -> f64 {
        let grads = &mut self.grads[..self.adam.first.len()];
        // Parts of a fixed size, added up in their order: the same bits for any number of threads.
        let parts: Vec<f64> =
            grads.par_chunks(1 << 14).map(|c| c.iter().map(|&g| f64::from(g) * f64::from(g)).sum()).collect();
        let norm = parts.iter().sum::<f64>().sqrt();
        if let Some(most) = most.filter(|&most| norm > most) {
            let scale = (most / norm) as f32;
            grads.par_chunks_mut(1 << 14).for_each(|c| c.iter_mut().for_each(|g| *g *= scale));
        }
        norm
    }

    /// A loss over classes needs a logit for each, one over elements an answer for each.
    fn check_loss(&self) -> Result<()> {
        let width = self.model.config().output_width;
        match self.loss {
            Loss::Elements { .. } if self.model.config().output != OutputKind::Equivariant => {
                Err(Error::config("output", "is one vector per example, the loss is over elements"))
            }
            Loss::CrossEntropy { classes } if classes != width => {
                Err(Error::config("output-width", format!("is {width}, the loss is over {classes} classes")))
            }
            _ => Ok(()),
        }
    }

    /// The loss and its gradient ([`Trainer::grads`]), without a step.
    pub fn gradient(&mut self, batch: &SetBatch, targets: &[f32]) -> Result<f64> {
        self.check_loss()?;
        self.cpu.set_seed(self.seed.wrapping_add(self.adam.steps));
        let width = self.model.config().output_width;
        let view = batch.view();
        // Rows before an example in each output, and where the output's targets begin.
        let per_element = self.model.config().output == OutputKind::Equivariant;
        let rows =
            |output: usize, example: usize| if per_element { view.sets[output].offsets[example] } else { example };
        let outputs = self.cpu.program().outputs().len();
        let start = |output: usize| -> usize { (0..output).map(|o| rows(o, batch.examples())).sum() };
        let total = start(outputs) * width;
        let loss = self.loss;
        loss.check(total, targets)?;
        let loss = self.cpu.step(self.model.params(), &view, &mut self.grads, |part: Outputs<f32>| {
            let mut sum = 0.0;
            for (i, (values, grad)) in part.values.iter().zip(part.grads).enumerate() {
                let first = loss.targets((start(i) + rows(i, part.examples.start)) * width);
                let targets = &targets[first..first + loss.targets(values.len())];
                sum += loss.part(values, targets, grad, total);
                if i == 0 && per_element {
                    let at = |example: usize| (rows(0, example) - rows(0, part.examples.start)) * width;
                    let ranges = part.examples.clone().map(|e| at(e)..at(e + 1));
                    sum += loss.mean_term(values, targets, ranges, grad, batch.examples());
                }
            }
            sum
        })?;
        Ok(loss)
    }

    /// The gradient of the last step; in the places of running averages, what they follow.
    pub fn grads(&self) -> &[f32] {
        &self.grads
    }
}

/// Models without any cannot be trained by Muon.
pub fn check_matrices(layout: &ParamLayout) -> Result<()> {
    if inner_matrices(layout).is_empty() {
        let reason = "moves the weight matrices of blocks and poolings, of which this model has none".to_owned();
        return Err(Error::Setting { key: "training.optimizer.muon".to_owned(), reason });
    }
    Ok(())
}

/// The weight matrices of blocks and poolings; projections of inputs and maps to answers are none of them.
fn inner_matrices(layout: &ParamLayout) -> Vec<Matrix> {
    let inner = |name: &str| (name.starts_with("block.") || name.starts_with("pool.")) && name.ends_with(".weight");
    let specs = layout.specs().iter().filter(|s| s.trained && inner(&s.name));
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
    fn matrices_inside_a_model_are_all_but_its_first_and_last_ones() {
        let config = ModelConfig::preset("multi-set-transformer", 2).unwrap().with_blocks(3).validate().unwrap();
        let layout = Model::new(config, 1).layout().clone();
        // In each block four relations of six matrices and two merges; a pooling of each set.
        let found = inner_matrices(&layout);
        assert_eq!(found.len(), 3 * (4 * 6 + 2) + 2 * 6);
        assert!(found.iter().all(|m| m.rows >= 32 && m.cols >= 32));
    }

    #[test]
    fn steps_by_muon_learn_and_have_the_same_bits_for_any_number_of_threads() {
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
                let mut trainer = Trainer::of(Model::new(config.clone().validate().unwrap(), 3), &training, 0);
                let losses: Vec<f64> = (0..30).map(|_| trainer.step(&batch, &[1.0, 2.0], 1e-3).unwrap()).collect();
                (losses, trainer.into_model().params().to_vec())
            })
        };
        let (losses, params) = train(1);
        assert!(losses[29] < 0.2 * losses[0], "{losses:?}");
        assert_eq!((losses, params), train(3));
    }
}
