//! A trainer with the learning rates and the clipping of a [`Training`].

use super::trainer::{StepOutcome, Trainer, check_muon};
use super::{Optimizer, Training};
use crate::{Error, Model, Result, SetBatch};

/// A trainer that follows the loss, optimiser, learning-rate schedule and clipping of a [`Training`].
///
/// The caller provides batches, validation and checkpoints.
///
/// ```
/// use setwise::train::{LossConfig, ScheduledTrainer, Training};
/// use setwise::{Model, ModelConfig, SetBatch};
///
/// let config = ModelConfig::preset("single-set-rff", 1)?.with_sets(1).with_latent(8).with_hidden(16);
/// let training = Training { steps: 20, loss: LossConfig::Mse, ..Default::default() };
/// let mut trainer = ScheduledTrainer::new(Model::new(config.validate()?, 1), training, 0)?;
/// let batch = SetBatch::from_examples(1, &[vec![&[1.0, 2.0, 3.0]], vec![&[4.0]]])?;
/// let losses: Vec<f64> =
///     (0..20).map(|_| Ok(trainer.step(&batch, &[6.0, 4.0])?.loss)).collect::<setwise::Result<_>>()?;
/// assert!(losses[19] < losses[0]);
/// let model = trainer.into_model();
/// # Ok::<(), setwise::Error>(())
/// ```
pub struct ScheduledTrainer {
    trainer: Trainer,
    training: Training,
    step: u64,
}

impl ScheduledTrainer {
    /// Starts from a model's parameters; `seed` is that of dropout.
    ///
    /// The model learns from unprepared sets, so its metadata, which holds a preparation, is cleared.
    pub fn new(mut model: Model, training: Training, seed: u64) -> Result<Self> {
        training.check()?;
        if let Optimizer::Muon { .. } = training.optimizer {
            check_muon(model.layout())?;
        }
        model.clear_metadata();
        Ok(ScheduledTrainer { trainer: Trainer::with_training(model, &training, seed), training, step: 0 })
    }

    /// The settings.
    pub fn training(&self) -> &Training {
        &self.training
    }

    /// Number of steps done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        self.training.learning_rate_at(self.step)
    }

    /// Makes one step, with targets in the order of [`Trainer::step`].
    ///
    /// Fails and leaves the model unchanged if the loss or the gradient is not finite.
    pub fn step(&mut self, batch: &SetBatch, targets: &[f32]) -> Result<StepOutcome> {
        self.trainer.submit(batch, targets, self.learning_rate(), self.training.clip_norm)?;
        let outcome = self.trainer.outcome(true)?.expect("the outcome of the step just started");
        for (what, value) in [("loss", outcome.loss), ("gradient", outcome.gradient_norm)] {
            if !value.is_finite() {
                return Err(Error::NotFinite { what, step: self.step + 1, value });
            }
        }
        self.step += 1;
        Ok(outcome)
    }

    /// The model after the steps done.
    pub fn model(&mut self) -> &mut Model {
        self.trainer.model()
    }

    /// Returns the model.
    pub fn into_model(self) -> Model {
        self.trainer.into_model()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;
    use crate::train::Schedule;

    fn trainer(training: Training) -> Result<ScheduledTrainer> {
        let config = ModelConfig::preset("sum-merge", 1)?.with_latent(8).with_hidden(8).with_blocks(1);
        ScheduledTrainer::new(Model::new(config.validate()?, 3), training, 0)
    }

    fn batch() -> SetBatch {
        SetBatch::from_examples(1, &[vec![&[1.0, 2.0], &[0.5]], vec![&[3.0], &[1.0, 1.5]]]).unwrap()
    }

    #[test]
    fn steps_follow_the_schedule_and_the_optimiser_of_the_settings() {
        let training = Training { steps: 4, schedule: Schedule::Cosine { final_fraction: 0.0 }, ..Default::default() };
        let decay = Training { optimizer: Optimizer::Adamw { weight_decay: 10.0 }, ..training.clone() };
        let (mut plain, mut decayed) = (trainer(training).unwrap(), trainer(decay).unwrap());
        let mut rates = Vec::new();
        for _ in 0..4 {
            rates.push(plain.learning_rate());
            plain.step(&batch(), &[1.0, 2.0]).unwrap();
            decayed.step(&batch(), &[1.0, 2.0]).unwrap();
        }
        assert!(rates.windows(2).all(|w| w[1] < w[0]) && rates[0] == 1e-3, "{rates:?}");
        assert_eq!(plain.steps(), 4);
        let norm = |t: &mut ScheduledTrainer| t.model().params().iter().map(|x| x * x).sum::<f32>();
        assert!(norm(&mut decayed) < norm(&mut plain));
    }

    #[test]
    fn a_loss_that_is_not_finite_leaves_the_model_unchanged() {
        let mut trainer = trainer(Training::default()).unwrap();
        trainer.step(&batch(), &[1.0, 2.0]).unwrap();
        let before = trainer.model().params().to_vec();
        let error = trainer.step(&batch(), &[f32::NAN, 2.0]).unwrap_err().to_string();
        assert_eq!(error, "the loss of step 2 is NaN; the model is as it was before this step");
        assert_eq!(trainer.model().params(), before);
    }

    #[test]
    fn invalid_settings_are_refused() {
        let error = trainer(Training { learning_rate: 0.0, ..Default::default() }).err().unwrap().to_string();
        assert!(error.contains("learning-rate"), "{error}");
    }
}
