//! `setwise train EXPERIMENT…`

mod progress;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use setwise_lab::estimator::{FitProgress, lacks_combiner_only, train_combiner};
use setwise_lab::experiment::{ValidExperiment, find};
use setwise_lab::run::{Encoders, Outcome, RunOptions, RunPlan, run_several};

use self::progress::{LINE_EVERY, Progress};
use super::{DataArgs, DeviceArgs, log, print_line, valid};
use crate::failure::Failure;

/// Arguments of `train`.
#[derive(clap::Args)]
pub struct Args {
    /// Experiments: TOML files, or names such as paper/kl-d2.
    #[arg(required = true, value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// Presets instead of the experiments', separated by commas.
    #[arg(long, value_name = "PRESET", value_delimiter = ',')]
    model: Vec<String>,
    /// Folder of the run, or of the folders of several runs [default: runs/EXPERIMENT-MODEL-sSEED].
    #[arg(short, long, alias = "output", value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue from the last checkpoint.
    #[arg(long)]
    resume: bool,
    /// Steps instead of the experiments'.
    #[arg(long)]
    steps: Option<u64>,
    /// Seeds instead of the experiments', separated by commas.
    #[arg(long, value_delimiter = ',')]
    seed: Vec<u64>,
    /// Number of runs at a time.
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Threads that draw batches, for all runs together [default: 1; all cores but one with a GPU].
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
    let device = args.device.find()?;
    let loader_threads = args.loader_threads.unwrap_or_else(|| match device {
        setwise::Device::Cpu | setwise::Device::CpuAmx => 1,
        #[allow(unreachable_patterns)]
        _ => std::thread::available_parallelism().map_or(1, |n| n.get().saturating_sub(1).max(1)),
    });
    // The first interrupt saves and stops; the default action comes back for a second one only by killing.
    ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed))
        .map_err(|e| Failure::other(format!("interrupts cannot be caught: {e}")))?;
    let options = RunOptions {
        folder: PathBuf::new(),
        resume: args.resume,
        loader_threads,
        device,
        encoders: Encoders::default(),
        stop: &STOP,
    };
    // Of an estimator whose set model is trained, the combiner alone is left.
    let (mut ready, mut left) = (Vec::new(), Vec::new());
    for (name, plan) in all {
        match args.resume && lacks_combiner_only(&plan)? {
            true => ready.push(plan),
            false => left.push((name, plan)),
        }
    }
    let (names, plans): (Vec<String>, Vec<RunPlan>) = left.into_iter().unzip();
    let progress = Progress::new(plans.iter().map(|p| (label(p), p.experiment.training.steps)));
    let ended = |i: usize, outcome: &setwise_lab::Result<Outcome>| {
        progress.ended(i);
        match outcome {
            Ok(outcome) => progress.aside(|| report(args.json, &names[i], &plans[i], outcome)),
            Err(e) if plans.len() > 1 => progress.aside(|| log(error_text(&plans[i], e))),
            Err(_) => {}
        }
    };
    let outcomes = run_several(&plans, args.jobs, &options, &|i, event| progress.show(i, event), &ended);
    let total = plans.len() + ready.len();
    let mut failed = Vec::new();
    for (i, outcome) in outcomes {
        match outcome {
            Ok(outcome) if outcome.finished && plans[i].experiment.combiner.is_some() => ready.push(plans[i].clone()),
            Ok(_) => {}
            Err(e) => failed.push(Failure::from(e)),
        }
    }
    for plan in ready {
        if STOP.load(Ordering::Relaxed) {
            log(format!("{}: its combiner is not trained; --resume goes on", plan.folder.display()));
        } else if let Err(e) = combiner(&plan, &options) {
            failed.push(e);
        }
    }
    match (failed.pop(), total) {
        (None, _) => Ok(()),
        (Some(only), 1) => Err(only),
        (Some(last), _) => Err(last.instead(format!("{} of {total} runs failed", failed.len() + 1))),
    }
}

/// All runs that are asked for, with the names of their experiments: every experiment with every preset and seed. Recorded data is loaded once for each task.
fn plan(args: &Args) -> Result<Vec<(String, RunPlan)>, Failure> {
    let several = [args.experiments.len(), args.model.len(), args.seed.len()].iter().any(|&n| n > 1);
    let data = args.data.find()?;
    let mut plans: Vec<(String, RunPlan)> = Vec::new();
    for name in &args.experiments {
        let stated = find(name)?;
        let models = if args.model.is_empty() { vec![stated.preset().to_owned()] } else { args.model.clone() };
        let seeds = if args.seed.is_empty() { vec![stated.seed] } else { args.seed.clone() };
        for (model, seed) in models.iter().flat_map(|m| seeds.iter().map(move |s| (m, *s))) {
            let mut experiment = stated.clone();
            if !args.model.is_empty() {
                experiment.set_preset(model);
            }
            experiment.training.steps = args.steps.unwrap_or(experiment.training.steps);
            experiment.seed = seed;
            let experiment = valid(name, experiment)?;
            let experiment = match plans.iter().find_map(|(_, p)| experiment.clone().with_data_of(&p.experiment)) {
                Some(loaded) => loaded,
                None => experiment.with_data(&data)?,
            };
            let own = own_folder(name, &experiment);
            let folder = match &args.out {
                Some(out) if several => out.join(own),
                Some(out) => out.clone(),
                None => PathBuf::from("runs").join(own),
            };
            if plans.iter().any(|(_, p)| p.folder == folder) {
                return Err(Failure::usage(format!("{}: two of the runs have this folder", folder.display())));
            }
            plans.push((name.clone(), RunPlan { experiment, folder }));
        }
    }
    Ok(plans)
}

/// Trains the combiner of an estimator beside the set model that is now there.
fn combiner(plan: &RunPlan, options: &RunOptions) -> Result<(), Failure> {
    log(format!("{}: the set model is trained; its combiner follows", plan.folder.display()));
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
        Some(path) => log(format!("the combiner is {}", path.display())),
        None => log("stopped; --resume goes on with the combiner"),
    }
    Ok(())
}

/// The name of a run's folder.
fn own_folder(name: &str, experiment: &ValidExperiment) -> String {
    // No folder that hides or looks like an option.
    let name = name.trim_end_matches(".toml").trim_start_matches(['.', '/', '\\']).trim_start_matches("experiments/");
    let name = name.replace(['/', '\\'], "-");
    format!("{name}-{}-s{}", experiment.preset(), experiment.seed)
}

/// What a run's bar is called.
fn label(plan: &RunPlan) -> String {
    plan.folder.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned())
}

/// What went wrong in one of several runs. Errors about its folder name it already.
fn error_text(plan: &RunPlan, error: &setwise_lab::Error) -> String {
    let (folder, error) = (plan.folder.display().to_string(), error.to_string());
    if error.starts_with(&folder) { error } else { format!("{folder}: {error}") }
}

fn report(json: bool, name: &str, plan: &RunPlan, outcome: &Outcome) {
    let (experiment, path) = (&plan.experiment, plan.folder.display());
    // Nobody reads on where standard output is closed; the run itself is done.
    let _ = match outcome.validation {
        _ if json => print_line(serde_json::json!({
            "experiment": name, "model": experiment.preset(), "seed": experiment.seed, "run": plan.folder,
            "steps": outcome.steps, "finished": outcome.finished, "validation": outcome.validation,
        })),
        Some(e) if outcome.finished => print_line(format!(
            "{path}: {} steps, {e} on held-out examples; the model is {}",
            outcome.steps,
            outcome.model.display()
        )),
        _ => print_line(format!("{path}: stopped after {} steps; --resume goes on", outcome.steps)),
    };
}
