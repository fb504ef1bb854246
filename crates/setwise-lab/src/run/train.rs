//! A whole run of an experiment.
//!
//! Every batch follows from the seed and the step alone, every step from the state before it. A checkpoint holds that state, so
//! a run that goes on from one ends with the same bits as one that never stopped.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use setwise::data::Batch;
use setwise::files::atomic::write_atomically;
use setwise::train::{BatchLimits, StepOutcome, Trainer};
use setwise::{Device, Model};

use super::checkpoint::{Checkpoint, CheckpointWriter};
use super::evaluation::{Evaluation, HeldOut};
use super::folder::{RunFolder, RunLock};
use super::metrics::{Log, Record, Window};
use super::pretrain::{Encoders, pretrain};
use crate::experiment::ValidExperiment;
use crate::prefetch::Prefetcher;
use crate::samplers::Split;
use crate::{Error, Result};

/// How a run is carried out; nothing here changes its result.
#[derive(Clone, Debug)]
pub struct RunOptions<'a> {
    /// Where everything is written.
    pub folder: PathBuf,
    /// Go on from the last checkpoint.
    pub resume: bool,
    /// Threads that draw batches.
    pub loader_threads: usize,
    /// Where steps are made. Different devices round differently, so a run's bits belong to its device.
    pub device: Device,
    /// Image encoders that runs with these options have pretrained.
    pub encoders: Encoders,
    /// Set from elsewhere to save and stop.
    pub stop: &'a AtomicBool,
}

/// What happens in a run, as it happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// The image encoder has made a step as a classifier.
    Pretrained {
        /// Steps done.
        step: u64,
        /// Its loss.
        loss: f64,
    },
    /// Going on after this many steps.
    Resumed(u64),
    /// A step was done.
    Step {
        /// Steps done.
        step: u64,
        /// Its loss.
        loss: f64,
    },
    /// Held-out examples were measured.
    Validated {
        /// Steps done.
        step: u64,
        /// The error.
        error: Evaluation,
    },
    /// A checkpoint was written.
    Saved(u64),
    /// Something the user should know.
    Warning(&'a str),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Steps done.
    pub steps: u64,
    /// Whether these are all; if not, it was stopped and can be resumed.
    pub finished: bool,
    /// The error on held-out examples at the end of a finished run.
    pub validation: Option<Evaluation>,
    /// The model of a finished run.
    pub model: PathBuf,
}

/// Runs an experiment to its end, or until it is stopped.
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
    // Memory for validation is found missing now rather than after a thousand steps.
    validation.try_first(run.trainer.model(), experiment)?;
    let source = experiment.clone();
    let mut batches = Prefetcher::new(options.loader_threads, run.step, move |step| source.training_batch(step));
    let training = &experiment.training;
    let mut warned = false;
    let mut last_validation = None;
    while run.started < training.steps {
        if options.stop.load(Ordering::Relaxed) {
            run.finish_steps(true, observe)?;
            // What is saved now makes up for a checkpoint that could not be written.
            if let Err(error) = run.settle(observe) {
                observe(Event::Warning(&error.to_string()));
            }
            run.save(observe)?;
            run.settle(observe)?;
            return Ok(Outcome { steps: run.step, finished: false, validation: None, model: folder.model() });
        }
        let batch = batches.next().ok_or(Error::Prefetch)??;
        if batch.deficient > 0 && !std::mem::replace(&mut warned, true) {
            observe(Event::Warning(&format!(
                "step {}: {} of {} examples have points in fewer dimensions than coordinates; they are whitened with a ridge",
                run.started,
                batch.deficient,
                batch.labels.len()
            )));
        }
        run.start_step(&batch)?;
        if run.writer.is_done() {
            run.settle(observe)?;
        }
        let done = run.started == training.steps;
        let validate = done || run.started.is_multiple_of(experiment.run.validate_every);
        let save = done || run.started.is_multiple_of(experiment.run.checkpoint_every);
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
    run.settle(observe)?;
    let mut model = run.trainer.into_model();
    experiment.describe(&mut model);
    model.save(folder.model())?;
    Ok(Outcome { steps: training.steps, finished: true, validation: Some(validation), model: folder.model() })
}

/// A run under way.
struct Run<'a> {
    experiment: &'a ValidExperiment,
    folder: &'a RunFolder,
    trainer: Trainer,
    log: Log,
    window: Window,
    /// Steps done, and steps started.
    step: u64,
    started: u64,
    /// Batch seeds and learning rates of the steps under way.
    under_way: VecDeque<(u64, f64)>,
    /// Batch seed of the last step done.
    last_seed: u64,
    saved: Option<u64>,
    writer: CheckpointWriter,
    start: Instant,
}

impl<'a> Run<'a> {
    /// From the last checkpoint, or from fresh parameters, pretrained where the experiment has it; with what is wrong with a newer
    /// checkpoint that could not be used. None if it was stopped before the first step.
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
        let mut trainer = Trainer::of(model, &experiment.training, experiment.seed);
        let (mut step, mut window, mut saved) = (0, Window::default(), None);
        let mut damage = None;
        if let Some(mut checkpoint) = checkpoint {
            damage = checkpoint.newer_damaged.take();
            if damage.is_some() {
                // Left where it is, it would take the place of the good one at the next save.
                let path = folder.checkpoint();
                std::fs::rename(&path, folder.damaged_checkpoint()).map_err(Error::io(&path))?;
            }
            (step, window, saved) = (checkpoint.step, checkpoint.window, Some(checkpoint.step));
            checkpoint.restore(&mut trainer, &folder.checkpoint())?;
        }
        trainer.use_device(&options.device, limits(experiment))?;
        let log = Log::open(folder.metrics(), step)?;
        let (under_way, start) = (VecDeque::new(), Instant::now());
        Ok(Some((
            Run {
                experiment,
                folder,
                trainer,
                log,
                window,
                step,
                started: step,
                under_way,
                last_seed: 0,
                saved,
                writer: CheckpointWriter::new(folder.clone()),
                start,
            },
            damage,
        )))
    }

    /// Starts a step.
    fn start_step(&mut self, batch: &Batch) -> Result<()> {
        let training = &self.experiment.training;
        let rate = training.rate(self.started);
        self.trainer.submit(&batch.sets, &batch.targets, rate, training.clip_norm)?;
        self.under_way.push_back((batch.seed, rate));
        self.started += 1;
        Ok(())
    }

    /// Takes up the outcomes of steps under way: all of them, or those that must be before another can start.
    fn finish_steps(&mut self, all: bool, observe: &mut dyn FnMut(Event)) -> Result<()> {
        while let Some(outcome) = self.trainer.outcome(all)? {
            let Some((seed, rate)) = self.under_way.pop_front() else { break };
            self.last_seed = seed;
            self.check("loss", self.step + 1, outcome.loss, seed, observe)?;
            self.check("gradient", self.step + 1, outcome.gradient, seed, observe)?;
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
        self.window.gradient += outcome.gradient;
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
        let last = match (self.settle(observe), self.saved) {
            (Err(error), _) => error.to_string(),
            (Ok(()), Some(step)) => format!("the last good checkpoint is {} of step {step}", path.display()),
            (Ok(()), None) => "no checkpoint had been written yet".to_owned(),
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

    /// Starts to write a checkpoint of the steps done, which goes on beside the next ones.
    fn save(&mut self, observe: &mut dyn FnMut(Event)) -> Result<()> {
        self.settle(observe)?;
        if self.saved != Some(self.step) {
            // Squares of a finite gradient may have left the numbers; a checkpoint of them could not be used.
            let state = Checkpoint::of(&mut self.trainer, self.step, self.window, self.writer.buffers());
            if let Some(value) = state.unusable() {
                self.check("state at the end", self.step, f64::from(value), self.last_seed, observe)?;
            }
            self.writer.start(state);
        }
        Ok(())
    }

    /// Waits for the checkpoint that is being written.
    fn settle(&mut self, observe: &mut dyn FnMut(Event)) -> Result<()> {
        if let Some(step) = self.writer.wait()? {
            self.saved = Some(step);
            observe(Event::Saved(step));
        }
        Ok(())
    }
}

/// The largest batches an experiment draws.
fn limits(experiment: &ValidExperiment) -> BatchLimits {
    BatchLimits {
        examples: experiment.training.batch_size,
        set_size: experiment.largest_set(),
        dims: experiment.task.equivariant_dims().map_or(1, |d| d.max.max(experiment.task.dim())),
    }
}

/// Makes the folder, or checks that it holds this very experiment, and takes it.
fn prepare_folder(folder: &RunFolder, experiment: &ValidExperiment, resume: bool) -> Result<RunLock> {
    // Before anything is made in it.
    check_folder(folder, experiment, resume)?;
    std::fs::create_dir_all(folder.path()).map_err(Error::io(folder.path()))?;
    let lock = folder.lock()?;
    // Another run may have begun and ended meanwhile.
    check_folder(folder, experiment, resume)?;
    let path = folder.experiment_file();
    if !path.exists() {
        write_atomically(&path, experiment.to_toml().as_bytes()).map_err(Error::io(&path))?;
    }
    Ok(lock)
}

/// Whether a folder is free, or holds this very experiment to go on with.
fn check_folder(folder: &RunFolder, experiment: &ValidExperiment, resume: bool) -> Result<()> {
    let problem = |reason: String| Error::Run { path: folder.path().to_owned(), reason };
    if folder.begun() && !resume {
        return Err(problem("already holds a run; --resume goes on with it, --out chooses another folder".to_owned()));
    }
    let path = folder.experiment_file();
    if folder.begun() && !path.exists() {
        return Err(problem("holds a run, but its experiment.toml is gone; --out chooses another folder".to_owned()));
    }
    if folder.path().exists() && !folder.path().is_dir() {
        return Err(problem("is a file; --out chooses a folder".to_owned()));
    }
    if path.exists() {
        let old = serde_json::to_value(folder.experiment()?).expect("plain data");
        let new = serde_json::to_value(&**experiment).expect("plain data");
        if let Some(difference) = difference("", &old, &new) {
            return Err(problem(format!("holds a run with other settings: {difference}")));
        }
    }
    Ok(())
}

/// The first key in which two settings differ.
fn difference(key: &str, old: &serde_json::Value, new: &serde_json::Value) -> Option<String> {
    use serde_json::Value;
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k)));
            keys.into_iter().find_map(|k| {
                let name = if key.is_empty() { k.clone() } else { format!("{key}.{k}") };
                difference(&name, a.get(k).unwrap_or(&Value::Null), b.get(k).unwrap_or(&Value::Null))
            })
        }
        _ if old == new => None,
        _ => Some(format!("{key} was {old}, is now {new}")),
    }
}
