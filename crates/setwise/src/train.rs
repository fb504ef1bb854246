//! Gradient steps.

use setwise_engine::{Adam, Cpu, Loss, Mode};

use crate::models::{Model, program};
use crate::{Error, Result, SetBatch};

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
    output_grad: Vec<Vec<f32>>,
    seed: u64,
}

impl Trainer {
    /// Starts from a model's parameters with fresh moments.
    pub fn new(model: Model, loss: Loss) -> Self {
        let cpu = Cpu::new(program(model.config(), Mode::Train, false));
        let len = model.params().len();
        Trainer { model, loss, cpu, adam: Adam::new(len), grads: vec![0.0; len], output_grad: Vec::new(), seed: 0 }
    }

    /// Seeds dropout; without dropout it changes nothing.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The model as it is now.
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

    /// Each kind of operation with the seconds spent in it forward and backward since recording began.
    pub fn timings(&self) -> Vec<(String, [f64; 2])> {
        let mut kinds: Vec<(String, [f64; 2])> = Vec::new();
        for (op, t) in self.cpu.program().ops().iter().zip(self.cpu.timings()) {
            let name = op.describe();
            match kinds.iter_mut().find(|k| k.0 == name) {
                Some(k) => k.1 = [k.1[0] + t[0], k.1[1] + t[1]],
                None => kinds.push((name, *t)),
            }
        }
        kinds
    }

    /// Bytes of working memory held for training.
    pub fn memory(&self) -> usize {
        self.cpu.memory()
    }

    /// One step: forward, loss, backward, Adam. Targets are laid out like the model's prediction: example by example for answers
    /// per example, set by set and element by element otherwise. Returns the loss before the step.
    pub fn step(&mut self, batch: &SetBatch, targets: &[f32], learning_rate: f64) -> Result<f64> {
        let loss = self.gradient(batch, targets)?;
        self.adam.step(self.model.params_mut(), &self.grads, learning_rate);
        Ok(loss)
    }

    /// The loss and its gradient ([`Trainer::grads`]), without a step.
    pub fn gradient(&mut self, batch: &SetBatch, targets: &[f32]) -> Result<f64> {
        self.cpu.set_seed(self.seed.wrapping_add(self.adam.steps));
        self.cpu.forward(self.model.params(), &batch.view())?;
        let outputs = self.cpu.program().outputs().len();
        let total: usize = (0..outputs).map(|i| self.cpu.output(i).len()).sum();
        if targets.len() != total {
            return Err(Error::Sets(format!("{} targets for {total} predicted numbers", targets.len())));
        }
        self.output_grad.resize_with(outputs, Vec::new);
        let mut loss = 0.0;
        let mut first = 0;
        for i in 0..outputs {
            let predicted = self.cpu.output(i);
            let grad = &mut self.output_grad[i];
            grad.resize(predicted.len(), 0.0);
            let share = predicted.len() as f64 / total as f64;
            loss += share * self.loss.evaluate(predicted, &targets[first..first + predicted.len()], grad)?;
            if outputs > 1 {
                grad.iter_mut().for_each(|g| *g *= share as f32);
            }
            first += predicted.len();
        }
        let grads: [&[f32]; 64] = std::array::from_fn(|i| self.output_grad.get(i).map_or(&[][..], Vec::as_slice));
        self.cpu.backward(self.model.params(), &grads[..outputs], &mut self.grads)?;
        Ok(loss)
    }

    /// The gradient of the last step.
    pub fn grads(&self) -> &[f32] {
        &self.grads
    }
}
