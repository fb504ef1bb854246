//! A run of an experiment from its first step to its last.
//!
//! A batch depends on the seed and the step alone, a step on the state before it. A checkpoint has that state, so a
//! resumed run ends with the same bits as an uninterrupted one.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use setwise::data::Batch;
use setwise::train::{BatchLimits, StepOutcome, Trainer};
use setwise::{Device, Model};

use super::checkpoint::{Checkpoint, CheckpointWriter};
use super::evaluation::{Evaluation, HeldOut};
use super::folder::RunFolder;
use super::metrics::{Log, Record, Window};
use super::prepare_folder::prepare_folder;
use super::pretrain::{Encoders, pretrain};
use crate::experiment::ValidExperiment;
use crate::prefetch::Prefetcher;
use crate::samplers::Split;
use crate::{Error, Result};

/// Options of the execution of a run. None of them changes the result, except for the device's rounding.
#[derive(Clone, Debug)]
pub struct RunOptions<'a> {
    /// The folder of the run.
    pub folder: PathBuf,
    /// Whether to resume from the last checkpoint.
    pub resume: bool,
    /// Threads that draw batches.
    pub loader_threads: usize,
    /// The device of the training steps. Devices round differently, so the bits of a run depend on its device.
    pub device: Device,
    /// Pretrained image encoders, shared by runs with these options.
    pub encoders: Encoders,
    /// A flag that makes the run save and stop.
    pub stop: &'a AtomicBool,
}

impl RunOptions<'_> {
    /// The default number of loader threads: one beside the CPU's training steps, all cores but one beside a GPU.
    pub fn default_loader_threads(device: &Device) -> usize {
        match device {
            Device::Cpu | Device::CpuAmx => 1,
            #[allow(unreachable_patterns)]
            _ => std::thread::available_parallelism().map_or(1, |n| n.get().saturating_sub(1).max(1)),
        }
    }
}

/// An event in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// A finished pretraining step of the image encoder.
    Pretrained {
        /// Number of finished steps.
        step: u64,
        /// Loss of the step.
        loss: f64,
    },
    /// The run resumes after this many steps.
    Resumed(u64),
    /// A finished training step.
    Step {
        /// Number of finished steps.
        step: u64,
        /// Loss of the step.
        loss: f64,
    },
    /// A finished validation.
    Validated {
        /// Number of finished steps.
        step: u64,
        /// Error on the validation examples.
        error: Evaluation,
    },
    /// A checkpoint of this step is on disk.
    Saved(u64),
    /// A warning for the user.
    Warning(&'a str),
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Number of finished steps.
    pub steps: u64,
    /// Whether all steps are finished. If not, the run was stopped and can be resumed.
    pub finished: bool,
    /// Error on the validation examples at the end of a finished run.
    pub validation: Option<Evaluation>,
    /// File of the model of a finished run.
    pub model: PathBuf,
}

/// Runs an experiment to its end or until it is stopped.
pub fn run(experiment: &ValidExperiment, options: &RunOptions, observe: &mut dyn FnMut(Event)) -> Result<Outcome> {
    let folder = RunFolder::new(&options.folder);
    let _lock = prepare_folder(&folder, experiment, options.resume)?;
    let Some((mut run, damage)) = Run::start(experiment, &folder, options, observe)? else {
        return Ok(Outcome { steps: 0, finished: false, validation: None, model: folder.model() });
    };
    if let Some(damage) = damage {
        observe(Event::Warning(&format!("{damage}; going back to the checkpoint before it")));
    }
    if run.step > 0 {
        observe(Event::Resumed(run.step));
    }
    let validation = HeldOut::draw(experiment, Split::Validation, experiment.run.validation_examples)?;
    // Missing memory for validation shows here rather than after a thousand steps.
    validation.try_first(run.trainer.model(), experiment)?;
    let source = experiment.clone();
    let mut batches = Prefetcher::new(options.loader_threads, run.step, move |step| source.training_batch(step));
    let training = &experiment.training;
    let mut warned = false;
    let mut last_validation = None;
    while run.submitted < training.steps {
        if options.stop.load(Ordering::Relaxed) {
            run.finish_steps(true, observe)?;
            // The checkpoint saved below replaces one that could not be written.
            if let Err(error) = run.wait_for_checkpoint(observe) {
                observe(Event::Warning(&error.to_string()));
            }
            run.save(observe)?;
            run.wait_for_checkpoint(observe)?;
            return Ok(Outcome { steps: run.step, finished: false, validation: None, model: folder.model() });
        }
        let batch = batches.next().ok_or(Error::Prefetch)??;
        if batch.deficient > 0 && !std::mem::replace(&mut warned, true) {
            observe(Event::Warning(&format!(
                "step {}: {} of {} examples have a singular covariance; they are whitened with a ridge",
                run.submitted,
                batch.deficient,
                batch.labels.len()
            )));
        }
        run.submit_step(&batch)?;
        if run.writer.is_done() {
            run.wait_for_checkpoint(observe)?;
        }
        let done = run.submitted == training.steps;
        let validate = done || run.submitted.is_multiple_of(experiment.run.validate_every);
        let save = done || run.submitted.is_multiple_of(experiment.run.checkpoint_every);
        run.finish_steps(validate || save, observe)?;
        if validate {
            let error = run.validate(&validation)?;
            last_validation = Some(error);
            observe(Event::Validated { step: run.step, error });
        }
        if save {
            run.save(observe)?;
        }
    }
    let validation = match last_validation {
        Some(error) => error,
        None => validation.measure(run.trainer.model(), experiment)?,
    };
    run.wait_for_checkpoint(observe)?;
    let mut model = run.trainer.into_model();
    experiment.describe(&mut model);
    model.save(folder.model())?;
    Ok(Outcome { steps: training.steps, finished: true, validation: Some(validation), model: folder.model() })
}

/// The state of a run.
struct Run<'a> {
    experiment: &'a ValidExperiment,
    folder: &'a RunFolder,
    trainer: Trainer,
    log: Log,
    window: Window,
    /// Number of finished steps.
    step: u64,
    /// Number of submitted steps.
    submitted: u64,
    /// Batch seeds and learning rates of the submitted, unfinished steps.
    pending: VecDeque<(u64, f64)>,
    /// Batch seed of the last finished step.
    last_seed: u64,
    /// Step of the last checkpoint on disk.
    saved: Option<u64>,
    writer: CheckpointWriter,
    start: Instant,
}

impl<'a> Run<'a> {
    /// Starts from the last checkpoint, or from initial parameters with the experiment's pretraining.
    ///
    /// Also returns the error of a newer checkpoint that is damaged. None if the run was stopped in pretraining.
    fn start(
        experiment: &'a ValidExperiment,
        folder: &'a RunFolder,
        options: &RunOptions,
        observe: &mut dyn FnMut(Event),
    ) -> Result<Option<(Self, Option<Error>)>> {
        let mut model = Model::new(experiment.model().clone(), experiment.seed);
        let checkpoint = Checkpoint::load(folder)?;
        if checkpoint.is_none() && !pretrain(&mut model, experiment, options, observe)? {
            return Ok(None);
        }
        let mut trainer = Trainer::with_training(model, &experiment.training, experiment.seed);
        let (mut step, mut window, mut saved) = (0, Window::default(), None);
        let mut damage = None;
        if let Some(mut checkpoint) = checkpoint {
            damage = checkpoint.newer_damaged.take();
            if damage.is_some() {
                // The next save would otherwise replace the good checkpoint by the damaged one.
                let path = folder.checkpoint();
                std::fs::rename(&path, folder.damaged_checkpoint()).map_err(Error::io(&path))?;
            }
            (step, window, saved) = (checkpoint.step, checkpoint.window, Some(checkpoint.step));
            checkpoint.restore(&mut trainer, &folder.checkpoint())?;
        }
        trainer.use_device(&options.device, limits(experiment))?;
        let log = Log::open(folder.metrics(), step)?;
        let (pending, start) = (VecDeque::new(), Instant::now());
        Ok(Some((
            Run {
                experiment,
                folder,
                trainer,
                log,
                window,
                step,
                submitted: step,
                pending,
                last_seed: 0,
                saved,
                writer: CheckpointWriter::new(folder.clone()),
                start,
            },
            damage,
        )))
    }

    /// Submits a step.
    fn submit_step(&mut self, batch: &Batch) -> Result<()> {
        let training = &self.experiment.training;
        let rate = training.learning_rate_at(self.submitted);
        self.trainer.submit(&batch.sets, &batch.targets, rate, training.clip_norm)?;
        self.pending.push_back((batch.seed, rate));
        self.submitted += 1;
        Ok(())
    }

    /// Collects outcomes of submitted steps: of all, or of those that block the next submission.
    fn finish_steps(&mut self, all: bool, observe: &mut dyn FnMut(Event)) -> Result<()> {
        while let Some(outcome) = self.trainer.outcome(all)? {
            let Some((seed, rate)) = self.pending.pop_front() else { break };
            self.last_seed = seed;
            self.check("loss", self.step + 1, outcome.loss, seed, observe)?;
            self.check("gradient", self.step + 1, outcome.gradient_norm, seed, observe)?;
            self.step += 1;
            self.log_step(outcome, rate)?;
            observe(Event::Step { step: self.step, loss: outcome.loss });
        }
        if all {
            self.trainer.sync()?;
        }
        Ok(())
    }

    fn log_step(&mut self, outcome: StepOutcome, rate: f64) -> Result<()> {
        let training = &self.experiment.training;
        self.window.steps += 1;
        self.window.loss += outcome.loss;
        self.window.gradient += outcome.gradient_norm;
        if self.step.is_multiple_of(self.experiment.run.log_every) || self.step == training.steps {
            let w = std::mem::take(&mut self.window);
            let record = Record {
                loss: Some(w.loss / w.steps as f64),
                gradient: Some(w.gradient / w.steps as f64),
                learning_rate: Some(rate),
                ..self.record()
            };
            self.log.write(&record)?;
        }
        Ok(())
    }

    fn check(
        &mut self,
        what: &'static str,
        step: u64,
        value: f64,
        batch_seed: u64,
        observe: &mut dyn FnMut(Event),
    ) -> Result<()> {
        if value.is_finite() {
            return Ok(());
        }
        let path = self.folder.checkpoint();
        let last = match (self.wait_for_checkpoint(observe), self.saved) {
            (Err(error), _) => error.to_string(),
            (Ok(()), Some(step)) => format!("the last good checkpoint is {} of step {step}", path.display()),
            (Ok(()), None) => "there is no checkpoint".to_owned(),
        };
        Err(Error::Diverged { what, step, value, batch_seed, last })
    }

    fn record(&self) -> Record {
        Record {
            step: self.step,
            loss: None,
            gradient: None,
            learning_rate: None,
            validation_error: None,
            standard_error: None,
            coverage: None,
            accuracy: None,
            seconds: self.start.elapsed().as_secs_f64(),
        }
    }

    fn validate(&mut self, examples: &HeldOut) -> Result<Evaluation> {
        let error = examples.measure(self.trainer.model(), self.experiment)?;
        let record = Record {
            validation_error: Some(error.mean_absolute_error),
            standard_error: Some(error.standard_error),
            coverage: error.coverage,
            accuracy: error.accuracy,
            ..self.record()
        };
        self.log.write(&record)?;
        Ok(error)
    }

    /// Starts to write a checkpoint of the finished steps, in parallel with the next steps.
    fn save(&mut self, observe: &mut dyn FnMut(Event)) -> Result<()> {
        self.wait_for_checkpoint(observe)?;
        if self.saved != Some(self.step) {
            // Squares of a finite gradient may overflow. A checkpoint with infinite moments is unusable.
            let state = Checkpoint::of(&mut self.trainer, self.step, self.window, self.writer.buffers());
            if let Some(value) = state.unusable() {
                self.check("state at the end", self.step, f64::from(value), self.last_seed, observe)?;
            }
            self.writer.start(state);
        }
        Ok(())
    }

    /// Waits until the current checkpoint is on disk.
    fn wait_for_checkpoint(&mut self, observe: &mut dyn FnMut(Event)) -> Result<()> {
        if let Some(step) = self.writer.wait()? {
            self.saved = Some(step);
            observe(Event::Saved(step));
        }
        Ok(())
    }
}

/// Limits of the batches of an experiment.
fn limits(experiment: &ValidExperiment) -> BatchLimits {
    BatchLimits {
        examples: experiment.training.batch_size,
        set_size: experiment.largest_set(),
        dims: experiment.task.equivariant_dims().map_or(1, |d| d.max.max(experiment.task.dim())),
    }
}
