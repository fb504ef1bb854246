//! `setwise train EXPERIMENT…`

mod progress;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use setwise_lab::estimator::{FitProgress, lacks_combiner_only, train_combiner};
use setwise_lab::experiment::{ValidExperiment, find};
use setwise_lab::run::{Encoders, Outcome, RunOptions, RunPlan, run_several};

use self::progress::{LINE_EVERY, Progress};
use super::{DataArgs, DeviceArgs, log, print_line, validate};
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

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    for (name, n) in [("--loader-threads", args.loader_threads), ("--jobs", Some(args.jobs))] {
        if let Some(n) = n.filter(|n| !(1..=1024).contains(n)) {
            return Err(Failure::usage(format!("{name} {n}: must be between 1 and 1024")));
        }
    }
    let all = plan(&args)?;
    let device = args.device.open()?;
    let loader_threads = args.loader_threads.unwrap_or_else(|| match device {
        setwise::Device::Cpu | setwise::Device::CpuAmx => 1,
        #[allow(unreachable_patterns)]
        _ => std::thread::available_parallelism().map_or(1, |n| n.get().saturating_sub(1).max(1)),
    });
    // An interrupt saves a checkpoint and stops. Further interrupts do the same; only a kill ends at once.
    ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed))
        .map_err(|e| Failure::other(format!("cannot install the interrupt handler: {e}")))?;
    let options = RunOptions {
        folder: PathBuf::new(),
        resume: args.resume,
        loader_threads,
        device,
        encoders: Encoders::default(),
        stop: &STOP,
    };
    // Estimators whose set model is trained lack the combiner alone.
    let (mut combiners, mut runs) = (Vec::new(), Vec::new());
    for (name, plan) in all {
        match args.resume && lacks_combiner_only(&plan)? {
            true => combiners.push(plan),
            false => runs.push((name, plan)),
        }
    }
    let (names, plans): (Vec<String>, Vec<RunPlan>) = runs.into_iter().unzip();
    let progress = Progress::new(plans.iter().map(|p| (label(p), p.experiment.training.steps)));
    let ended = |i: usize, outcome: &setwise_lab::Result<Outcome>| {
        progress.ended(i);
        match outcome {
            Ok(outcome) => progress.suspend(|| print_outcome(args.json, &names[i], &plans[i], outcome)),
            Err(e) if plans.len() > 1 => progress.suspend(|| log(error_text(&plans[i], e))),
            Err(_) => {}
        }
    };
    let outcomes = run_several(&plans, args.jobs, &options, &|i, event| progress.show(i, event), &ended);
    let total = plans.len() + combiners.len();
    let mut failed = Vec::new();
    for (i, outcome) in outcomes {
        match outcome {
            Ok(outcome) if outcome.finished && plans[i].experiment.combiner.is_some() => {
                combiners.push(plans[i].clone());
            }
            Ok(_) => {}
            Err(e) => failed.push(Failure::from(e)),
        }
    }
    for plan in combiners {
        if STOP.load(Ordering::Relaxed) {
            log(format!("{}: stopped before its combiner is trained; --resume continues", plan.folder.display()));
        } else if let Err(e) = combiner(&plan, &options) {
            failed.push(e);
        }
    }
    match (failed.pop(), total) {
        (None, _) => Ok(()),
        (Some(only), 1) => Err(only),
        (Some(last), _) => Err(last.with_message(format!("{} of {total} runs failed", failed.len() + 1))),
    }
}

/// All runs with the names of their experiments: every experiment with every preset and seed.
///
/// Recorded data is loaded once for each task.
fn plan(args: &Args) -> Result<Vec<(String, RunPlan)>, Failure> {
    let several = [args.experiments.len(), args.model.len(), args.seed.len()].iter().any(|&n| n > 1);
    let data = args.data.find()?;
    let mut plans: Vec<(String, RunPlan)> = Vec::new();
    for name in &args.experiments {
        let base = find(name)?;
        let models = if args.model.is_empty() { vec![base.preset().to_owned()] } else { args.model.clone() };
        let seeds = if args.seed.is_empty() { vec![base.seed] } else { args.seed.clone() };
        for (model, seed) in models.iter().flat_map(|m| seeds.iter().map(move |s| (m, *s))) {
            let mut experiment = base.clone();
            if !args.model.is_empty() {
                experiment.set_preset(model);
            }
            experiment.training.steps = args.steps.unwrap_or(experiment.training.steps);
            experiment.seed = seed;
            let experiment = validate(name, experiment)?;
            let experiment = match plans.iter().find_map(|(_, p)| experiment.clone().with_data_of(&p.experiment)) {
                Some(loaded) => loaded,
                None => experiment.with_data(&data)?,
            };
            let subfolder = folder_name(name, &experiment);
            let folder = match &args.out {
                Some(out) if several => out.join(subfolder),
                Some(out) => out.clone(),
                None => PathBuf::from("runs").join(subfolder),
            };
            if plans.iter().any(|(_, p)| p.folder == folder) {
                let reason = "is the folder of two runs; give each experiment, preset and seed once";
                return Err(Failure::usage(format!("{}: {reason}", folder.display())));
            }
            plans.push((name.clone(), RunPlan { experiment, folder }));
        }
    }
    Ok(plans)
}

/// Trains the combiner of an estimator whose set model is trained.
fn combiner(plan: &RunPlan, options: &RunOptions) -> Result<(), Failure> {
    log(format!("{}: training the combiner", plan.folder.display()));
    let mut last = Instant::now();
    let trained = train_combiner(plan, options, &mut |progress| {
        if last.elapsed().as_secs() >= LINE_EVERY / 3 {
            last = Instant::now();
            log(match progress {
                FitProgress::Examples(n, of) => format!("combiner: {n} of {of} examples"),
                FitProgress::Steps(n, of, loss) => format!("combiner: step {n}/{of}  loss {loss:.4}"),
            });
        }
    })?;
    match trained {
        Some(path) => log(format!("combiner: written to {}", path.display())),
        None => log("combiner: stopped; --resume continues"),
    }
    Ok(())
}

/// The name of a run's folder.
fn folder_name(name: &str, experiment: &ValidExperiment) -> String {
    // A leading dot would hide the folder, a leading slash would place it elsewhere.
    let name = name.trim_end_matches(".toml").trim_start_matches(['.', '/', '\\']).trim_start_matches("experiments/");
    let name = name.replace(['/', '\\'], "-");
    format!("{name}-{}-s{}", experiment.preset(), experiment.seed)
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

fn print_outcome(json: bool, name: &str, plan: &RunPlan, outcome: &Outcome) {
    let (experiment, path) = (&plan.experiment, plan.folder.display());
    // The run is done. A closed standard output does not make it fail.
    let _ = match outcome.validation {
        _ if json => print_line(serde_json::json!({
            "experiment": name, "model": experiment.preset(), "seed": experiment.seed, "run": plan.folder,
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
