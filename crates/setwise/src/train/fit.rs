//! Training on batches that are handed in, with the learning rates and limits of a [`Training`].

use super::trainer::{StepOutcome, Trainer, check_matrices};
use super::{Optimizer, Training};
use crate::{Error, Model, Result, SetBatch};

/// A training under way, one batch at a time.
///
/// Of a [`Training`] it takes loss, optimiser, learning rate with warm-up and schedule over its steps, and clipping; batches, validation
/// and checkpoints are the caller's.
///
/// ```
/// use setwise::train::{LossConfig, Training};
/// use setwise::train::Fit;
/// use setwise::{Model, ModelConfig, SetBatch};
///
/// let config = ModelConfig::preset("single-set-rff", 1)?.with_sets(1).with_latent(8).with_hidden(16);
/// let training = Training { steps: 20, loss: LossConfig::Mse, ..Default::default() };
/// let mut fit = Fit::new(Model::new(config.validate()?, 1), training, 0)?;
/// let batch = SetBatch::from_examples(1, &[vec![&[1.0, 2.0, 3.0]], vec![&[4.0]]])?;
/// let losses: Vec<f64> =
///     (0..20).map(|_| Ok(fit.step(&batch, &[6.0, 4.0])?.loss)).collect::<setwise::Result<_>>()?;
/// assert!(losses[19] < losses[0]);
/// let model = fit.into_model();
/// # Ok::<(), setwise::Error>(())
/// ```
pub struct Fit {
    trainer: Trainer,
    training: Training,
    step: u64,
}

impl Fit {
    /// Starts from a model's parameters; `seed` is that of dropout. The model learns from sets as they are: its metadata, which says
    /// how sets are prepared for it, is cleared.
    pub fn new(mut model: Model, training: Training, seed: u64) -> Result<Self> {
        training.check()?;
        if let Optimizer::Muon { .. } = training.optimizer {
            check_matrices(model.layout())?;
        }
        model.clear_metadata();
        Ok(Fit { trainer: Trainer::of(model, &training, seed), training, step: 0 })
    }

    /// What it goes by.
    pub fn training(&self) -> &Training {
        &self.training
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// The learning rate of the next step.
    pub fn rate(&self) -> f64 {
        self.training.rate(self.step)
    }

    /// One step; targets stand as for [`Trainer::step`]. Where the loss or the gradient is no finite number the model stays as it was,
    /// and that is the error.
    pub fn step(&mut self, batch: &SetBatch, targets: &[f32]) -> Result<StepOutcome> {
        let rate = self.rate();
        self.trainer.submit(batch, targets, rate, self.training.clip_norm)?;
        let outcome = self.trainer.outcome(true)?.expect("the outcome of the step just started");
        for (what, value) in [("loss", outcome.loss), ("gradient", outcome.gradient)] {
            if !value.is_finite() {
                return Err(Error::NotFinite { what, step: self.step + 1, value });
            }
        }
        self.step += 1;
        Ok(outcome)
    }

    /// The model as it is now.
    pub fn model(&mut self) -> &mut Model {
        self.trainer.model()
    }

    /// Takes the model out.
    pub fn into_model(self) -> Model {
        self.trainer.into_model()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;
    use crate::train::Schedule;

    fn fit(training: Training) -> Result<Fit> {
        let config = ModelConfig::preset("sum-merge", 1)?.with_latent(8).with_hidden(8).with_blocks(1);
        Fit::new(Model::new(config.validate()?, 3), training, 0)
    }

    fn batch() -> SetBatch {
        SetBatch::from_examples(1, &[vec![&[1.0, 2.0], &[0.5]], vec![&[3.0], &[1.0, 1.5]]]).unwrap()
    }

    #[test]
    fn steps_follow_the_schedule_and_the_optimiser_is_the_one_asked_for() {
        let training = Training { steps: 4, schedule: Schedule::Cosine { final_fraction: 0.0 }, ..Default::default() };
        let decay = Training { optimizer: Optimizer::Adamw { weight_decay: 10.0 }, ..training.clone() };
        let (mut plain, mut decayed) = (fit(training).unwrap(), fit(decay).unwrap());
        let mut rates = Vec::new();
        for _ in 0..4 {
            rates.push(plain.rate());
            plain.step(&batch(), &[1.0, 2.0]).unwrap();
            decayed.step(&batch(), &[1.0, 2.0]).unwrap();
        }
        assert!(rates.windows(2).all(|w| w[1] < w[0]) && rates[0] == 1e-3, "{rates:?}");
        assert_eq!(plain.steps(), 4);
        let size = |f: &mut Fit| f.model().params().iter().map(|x| x * x).sum::<f32>();
        assert!(size(&mut decayed) < size(&mut plain));
    }

    #[test]
    fn a_loss_that_is_no_number_leaves_the_model_as_it_was() {
        let mut fit = fit(Training::default()).unwrap();
        fit.step(&batch(), &[1.0, 2.0]).unwrap();
        let before = fit.model().params().to_vec();
        let error = fit.step(&batch(), &[f32::NAN, 2.0]).unwrap_err().to_string();
        assert_eq!(error, "the loss of step 2 is NaN; the model is as it was before this step");
        assert_eq!(fit.model().params(), before);
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let error = fit(Training { learning_rate: 0.0, ..Default::default() }).err().unwrap().to_string();
        assert!(error.contains("learning-rate"), "{error}");
    }
}
