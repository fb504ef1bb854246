//! `setwise train EXPERIMENT`

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use setwise::estimate::{COMBINER_FILE, FitProgress, fit};
use setwise::experiment::{ValidExperiment, find};
use setwise::train::{Event, Outcome, RunFolder, RunOptions};

use super::{DataArgs, DeviceArgs, note, say};
use crate::failure::Failure;

/// Arguments of `train`.
#[derive(clap::Args)]
pub struct Args {
    /// An experiment: a TOML file, or a name such as paper/kl-d2.
    experiment: String,
    /// Train this preset instead of the experiment's.
    #[arg(long, value_name = "PRESET")]
    model: Option<String>,
    /// Folder of the run; runs/EXPERIMENT-MODEL-sSEED if not given.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on from the last checkpoint; starts if there is none.
    #[arg(long)]
    resume: bool,
    /// Steps instead of the experiment's.
    #[arg(long)]
    steps: Option<u64>,
    /// Seed instead of the experiment's.
    #[arg(long)]
    seed: Option<u64>,
    /// Threads that draw batches, beside those that compute; if not given 1, or all cores but one where a GPU computes.
    #[arg(long, value_name = "N")]
    feed_threads: Option<usize>,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print the outcome as JSON.
    #[arg(long)]
    json: bool,
}

/// Set by Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let mut experiment = find(&args.experiment)?;
    if let Some(model) = &args.model {
        experiment.set_preset(model);
    }
    experiment.training.steps = args.steps.unwrap_or(experiment.training.steps);
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    let experiment = experiment.validate()?.with_data(&args.data.find()?)?;
    if let Some(n) = args.feed_threads.filter(|n| !(1..=1024).contains(n)) {
        return Err(Failure::usage(format!("--feed-threads {n}: must be between 1 and 1024")));
    }
    let device = args.device.find()?;
    let feed_threads = args.feed_threads.unwrap_or_else(|| match device {
        setwise::Device::Cpu => 1,
        #[allow(unreachable_patterns)]
        _ => std::thread::available_parallelism().map_or(1, |n| n.get().saturating_sub(1).max(1)),
    });
    let folder = args.out.clone().unwrap_or_else(|| default_folder(&args.experiment, &experiment));
    // The first interrupt saves and stops; the default action comes back for a second one only by killing.
    ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed))
        .map_err(|e| Failure::other(format!("interrupts cannot be caught: {e}")))?;
    let options = RunOptions { folder, resume: args.resume, feed_threads, device, stop: &STOP };
    let folder = RunFolder::new(&options.folder);
    if args.resume && experiment.combiner.is_some() && folder.finished(&experiment)? {
        note(format!("{} is trained; its second network follows", folder.model().display()));
        return fit_combiner(&experiment, &options, &folder);
    }
    let mut progress = Progress::new(&experiment);
    let outcome = setwise::train::run(&experiment, &options, &mut |event| progress.show(event));
    progress.bar.finish_and_clear();
    let outcome = outcome?;
    report(&args, &experiment, &folder, &outcome)?;
    match outcome.finished && experiment.combiner.is_some() {
        true => fit_combiner(&experiment, &options, &folder),
        false => Ok(()),
    }
}

/// Trains the second network of an estimator beside the set model that is now there.
fn fit_combiner(experiment: &ValidExperiment, options: &RunOptions, folder: &RunFolder) -> Result<(), Failure> {
    let mut parts = setwise::Model::load(folder.model())?;
    parts.use_device(&options.device)?;
    let mut last = Instant::now();
    let evidence = folder.path().join("evidence");
    let combiner = fit(experiment, &mut parts, options.feed_threads, Some(&evidence), &mut |progress| {
        let text = match progress {
            FitProgress::Examples(n, of) => format!("combiner: {n} of {of} examples"),
            FitProgress::Steps(n, of, loss) => format!("combiner: step {n}/{of}  loss {loss:.4}"),
        };
        if last.elapsed().as_secs() >= LINE_EVERY / 3 {
            last = Instant::now();
            note(text);
        }
    })?;
    // The set model tells what both were trained for.
    parts.set_experiment(Some(experiment.to_toml()));
    parts.save(folder.model())?;
    let path = folder.path().join(COMBINER_FILE);
    combiner.save(&path)?;
    note(format!("the combining network is {}", path.display()));
    Ok(())
}

fn default_folder(name: &str, experiment: &ValidExperiment) -> PathBuf {
    // No folder that hides or looks like an option.
    let name = name.trim_end_matches(".toml").trim_start_matches(['.', '/', '\\']).trim_start_matches("experiments/");
    let name = name.replace(['/', '\\'], "-");
    PathBuf::from("runs").join(format!("{name}-{}-s{}", experiment.preset(), experiment.seed))
}

fn report(args: &Args, experiment: &ValidExperiment, folder: &RunFolder, outcome: &Outcome) -> Result<(), Failure> {
    if args.json {
        return say(serde_json::json!({
            "experiment": args.experiment, "model": experiment.preset(), "seed": experiment.seed, "run": folder.path(),
            "steps": outcome.steps, "finished": outcome.finished, "validation": outcome.validation,
        }));
    }
    let path = folder.path().display();
    match outcome.validation {
        Some(e) if outcome.finished => say(format!(
            "{path}: {} steps, {e} on held-out examples; the model is {}",
            outcome.steps,
            outcome.model.display()
        )),
        _ => say(format!("{path}: stopped after {} steps; --resume goes on", outcome.steps)),
    }
}

/// The bar: step, loss, validation error, steps per second, time left; a line now and then where there is no terminal.
struct Progress {
    bar: ProgressBar,
    loss: Option<f64>,
    error: String,
    quiet: bool,
    last_line: Instant,
    first_step: Option<(u64, Instant)>,
    total: u64,
}

/// Seconds between lines where there is no terminal.
const LINE_EVERY: u64 = 30;

impl Progress {
    fn new(experiment: &ValidExperiment) -> Self {
        let bar = ProgressBar::with_draw_target(Some(experiment.training.steps), ProgressDrawTarget::stderr_with_hz(5));
        let style = "{bar:24} {pos}/{len}  {msg}  {per_sec}  {eta} left";
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        let quiet = bar.is_hidden();
        let total = experiment.training.steps;
        Progress { bar, loss: None, error: String::new(), quiet, last_line: Instant::now(), first_step: None, total }
    }

    fn show(&mut self, event: Event) {
        match event {
            Event::Resumed(step) => {
                self.bar.set_position(step);
                self.bar.reset_eta();
                self.line(&format!("going on after {step} steps"));
            }
            Event::Pretrained { step, loss } => {
                self.bar.set_message(format!("classifying: step {step}, loss {loss:.4}"));
                if self.quiet && self.last_line.elapsed().as_secs() >= LINE_EVERY {
                    self.last_line = Instant::now();
                    note(format!("classifying: step {step}  loss {loss:.4}"));
                }
            }
            Event::Step { step, loss } => {
                // A running mean over about fifty steps reads better than single losses.
                let smooth = self.loss.map_or(loss, |old| old + (loss - old) / 50.0);
                self.loss = Some(smooth);
                self.bar.set_position(step);
                self.bar.set_message(format!("loss {smooth:.4}{}", self.error));
                let (first, start) = *self.first_step.get_or_insert_with(|| (step, Instant::now()));
                if self.quiet && self.last_line.elapsed().as_secs() >= LINE_EVERY {
                    self.last_line = Instant::now();
                    let rate = (step - first) as f64 / start.elapsed().as_secs_f64().max(1e-9);
                    let (error, left) = (&self.error, (self.total - step) as f64 / rate.max(1e-9));
                    note(format!("step {step}/{}  loss {smooth:.4}{error}  {rate:.1}/s  {left:.0} s left", self.total));
                }
            }
            Event::Validated { error, .. } => {
                let covered =
                    error.coverage.map_or(String::new(), |c| format!(", {:.0} % within the interval", 100.0 * c));
                self.error = match error.accuracy {
                    Some(accuracy) => format!("  accuracy {accuracy:.4}"),
                    None => format!("  error {:.4}{covered}", error.mean_absolute_error),
                }
            }
            Event::Saved(_) => {}
            Event::Warning(text) => self.line(&format!("warning: {text}")),
        }
    }

    fn line(&self, text: &str) {
        if self.quiet {
            note(text);
        } else {
            self.bar.println(text);
        }
    }
}
