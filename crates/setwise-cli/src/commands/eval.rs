//! `setwise eval RUN_OR_MODEL`

use std::path::PathBuf;

use setwise::Model;
use setwise_lab::experiment::{Experiment, find};
use setwise_lab::run::{RunFolder, evaluate};

use super::{DataArgs, DeviceArgs, print_line};
use crate::failure::Failure;

/// Arguments of `eval`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of a run, or a model file.
    run: PathBuf,
    /// Number of fresh examples.
    #[arg(long, default_value_t = 10_000)]
    examples: usize,
    /// Seed of the fresh examples [default: the run's].
    #[arg(long)]
    seed: Option<u64>,
    /// Draw examples of this experiment instead of the model's.
    #[arg(long, value_name = "EXPERIMENT")]
    on: Option<String>,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let file = match args.run.is_dir() {
        true => RunFolder::new(&args.run).model(),
        false => args.run.clone(),
    };
    if args.run.is_dir() && !file.exists() {
        let reason = "has no model yet; `setwise train … --resume` finishes the run";
        return Err(Failure::usage(format!("{}: {reason}", args.run.display())));
    }
    if args.examples == 0 {
        return Err(Failure::usage("--examples 0: must be at least 1"));
    }
    let mut model = Model::load(&file)?;
    model.use_device(&args.device.open()?)?;
    let trained_in = Experiment::of(&model).transpose();
    let preset = trained_in.as_ref().and_then(|e| e.as_ref().ok()).map(|e| e.preset().to_owned());
    let name = args.on.clone().unwrap_or_else(|| file.display().to_string());
    let mut experiment = match (&args.on, trained_in) {
        (Some(name), _) => find(name)?,
        (None, Some(experiment)) => experiment?,
        (None, None) => {
            let reason = "does not name the experiment it was trained in; choose one with --on EXPERIMENT";
            return Err(Failure::usage(format!("{}: {reason}", file.display())));
        }
    };
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    let experiment = experiment.validate_named(&name)?.with_data(&args.data.find()?)?;
    let e = evaluate(&mut model, &experiment, args.examples)?;
    if args.json {
        return print_line(serde_json::json!({
            "model": file, "preset": preset, "dim": experiment.task.dim(), "seed": experiment.seed, "evaluation": e,
        }));
    }
    if let (Some(accuracy), Some(error)) = (e.accuracy, e.accuracy_error()) {
        print_line(format!("accuracy             {accuracy:.4} ± {error:.4}"))?;
    }
    if let Some(strict) = e.strict_accuracy {
        print_line(format!("strict accuracy      {strict:.4} (rounded predictions)"))?;
    }
    // One example has no standard error.
    let error = if e.examples > 1 { format!(" ± {:.4}", e.standard_error) } else { String::new() };
    print_line(format!("mean absolute error  {:.4}{error}", e.mean_absolute_error))?;
    print_line(format!("root mean square     {:.4}", e.root_mean_square_error))?;
    print_line(format!("bias                 {:+.4}", e.bias))?;
    if let Some(coverage) = e.coverage {
        print_line(format!("interval coverage    {:.1} %", 100.0 * coverage))?;
    }
    let widths: Vec<String> = experiment.task.widths().iter().map(usize::to_string).collect();
    let widths = if widths.iter().all(|w| *w == widths[0]) { widths[0].clone() } else { widths.join(" and ") };
    print_line(format!("{} fresh examples in {widths} dimensions", e.examples))?;
    if e.deficient > 0 {
        let reason = "have a singular covariance and are whitened with a ridge";
        print_line(format!("warning: {} of {} examples {reason}", e.deficient, e.examples))?;
    }
    Ok(())
}
