//! `setwise train EXPERIMENT…`

mod progress;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use setwise_lab::grid::{Grid, Queue, QueueEvent};
use setwise_lab::run::{Encoders, Outcome, RunOptions, RunPlan};

use self::progress::{CombinerProgress, Progress};
use super::{DataArgs, DeviceArgs, log, print_line};
use crate::failure::Failure;

/// Arguments of `train`.
#[derive(clap::Args)]
pub struct Args {
    /// Experiments: TOML files, or names such as paper/kl-d2.
    #[arg(required = true, value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// Presets in place of the experiment's, separated by commas.
    #[arg(long, value_name = "PRESET", value_delimiter = ',')]
    model: Vec<String>,
    /// Folder of the run; several runs get subfolders [default: runs/EXPERIMENT-MODEL-sSEED].
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue from the last checkpoint.
    #[arg(long)]
    resume: bool,
    /// Number of steps in place of the experiment's.
    #[arg(long)]
    steps: Option<u64>,
    /// Seeds in place of the experiment's, separated by commas.
    #[arg(long, value_delimiter = ',')]
    seed: Vec<u64>,
    /// Number of simultaneous runs.
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Threads that draw batches, shared by all runs [default: 1; with a GPU all cores but one].
    #[arg(long, value_name = "N")]
    loader_threads: Option<usize>,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print the outcome as JSON, a line for each run.
    #[arg(long)]
    json: bool,
}

/// Set by Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

/// The exit code of a program that an interrupt ends, as shells report it.
const INTERRUPTED: u8 = 130;

/// Runs it.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    for (name, n) in [("--loader-threads", args.loader_threads), ("--jobs", Some(args.jobs))] {
        if let Some(n) = n.filter(|n| !(1..=1024).contains(n)) {
            return Err(Failure::usage(format!("{name} {n}: must be between 1 and 1024")));
        }
    }
    let grid = Grid {
        experiments: args.experiments,
        presets: args.model,
        seeds: args.seed,
        steps: args.steps,
        folder: args.out,
    };
    let plans = grid.plan(&args.data.find()?)?;
    let device = args.device.open()?;
    // An interrupt saves a checkpoint and stops. Further interrupts do the same; only a kill ends at once.
    ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed))
        .map_err(|e| Failure::other(format!("cannot install the interrupt handler: {e}")))?;
    let options = RunOptions {
        folder: PathBuf::new(),
        resume: args.resume,
        loader_threads: args.loader_threads.unwrap_or_else(|| RunOptions::default_loader_threads(&device)),
        device,
        encoders: Encoders::default(),
        stop: &STOP,
    };
    let queue = Queue::new(plans, args.resume)?;
    let runs = queue.runs();
    let progress = Progress::new(runs.iter().map(|p| (label(p), p.experiment.training.steps)));
    let combiner_progress = CombinerProgress::default();
    let errors = queue.train(args.jobs, &options, &|event| match event {
        QueueEvent::Run(i, event) => progress.show(i, event),
        QueueEvent::Ended(i, outcome) => {
            progress.ended(i);
            match outcome {
                Ok(outcome) => progress.suspend(|| print_outcome(args.json, &runs[i], outcome)),
                Err(e) if runs.len() > 1 => progress.suspend(|| log(error_text(&runs[i], e))),
                Err(_) => {}
            }
        }
        QueueEvent::Combiner(plan, event) => combiner_progress.show(&plan.folder, event),
    });
    let mut failed: Vec<Failure> = errors.into_iter().map(Failure::from).collect();
    match (failed.pop(), queue.len()) {
        (None, _) if STOP.load(Ordering::Relaxed) => Ok(ExitCode::from(INTERRUPTED)),
        (None, _) => Ok(ExitCode::SUCCESS),
        (Some(only), 1) => Err(only),
        (Some(last), total) => Err(last.with_message(format!("{} of {total} runs failed", failed.len() + 1))),
    }
}

/// The name of a run's progress bar.
fn label(plan: &RunPlan) -> String {
    plan.folder.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned())
}

/// The message about one of several runs. It begins with the run's folder, which some errors name themselves.
fn error_text(plan: &RunPlan, error: &setwise_lab::Error) -> String {
    let (folder, error) = (plan.folder.display().to_string(), error.to_string());
    if error.starts_with(&folder) { error } else { format!("{folder}: {error}") }
}

fn print_outcome(json: bool, plan: &RunPlan, outcome: &Outcome) {
    let (experiment, path) = (&plan.experiment, plan.folder.display());
    // The run is done. A closed standard output does not make it fail.
    let _ = match outcome.validation {
        _ if json => print_line(serde_json::json!({
            "experiment": plan.name, "model": experiment.preset(), "seed": experiment.seed, "run": plan.folder,
            "steps": outcome.steps, "finished": outcome.finished, "validation": outcome.validation,
        })),
        Some(e) if outcome.finished => print_line(format!(
            "{path}: {} steps, {e} on held-out examples; model written to {}",
            outcome.steps,
            outcome.model.display()
        )),
        _ => print_line(format!("{path}: stopped after {} steps; --resume continues", outcome.steps)),
    };
}
