//! `setwise sample EXPERIMENT -o DIR`

use std::path::PathBuf;

use setwise_lab::experiment::PackedExamples;
use setwise_lab::samplers::Split;

use super::{DataArgs, make_folder, print_line};
use crate::failure::Failure;

/// Arguments of `sample`.
#[derive(clap::Args)]
pub struct Args {
    /// Experiment: a TOML file, or a name such as paper/kl-d2.
    experiment: String,
    /// Number of examples.
    #[arg(long, default_value_t = 1000)]
    examples: usize,
    /// Seed [default: the experiment's].
    #[arg(long)]
    seed: Option<u64>,
    /// Folder for x.npy, x_offsets.npy, y.npy, y_offsets.npy and label.npy.
    ///
    /// If examples differ in dimensions, dims.npy holds them and zeros pad the rows.
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    data: DataArgs,
}

/// Runs it. The examples are those of training with this seed, before whitening.
pub fn run(args: Args) -> Result<(), Failure> {
    let mut experiment = setwise_lab::experiment::find(&args.experiment)?;
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    let experiment = experiment.validate_named(&args.experiment)?.with_data(&args.data.find()?)?;
    let max = PackedExamples::max_examples(&experiment);
    if args.examples == 0 || args.examples > max {
        return Err(Failure::usage(format!("--examples {}: must be between 1 and {max}", args.examples)));
    }
    make_folder(&args.out)?;
    let examples = PackedExamples::draw(&experiment, Split::Training, args.examples)?;
    examples.write(&args.out)?;
    let dims = experiment.task.held_out_dims();
    let dims = match dims.single() {
        Some(_) => examples.widths[0].to_string(),
        None => format!("{} to {}", dims.min, dims.max),
    };
    print_line(format!("{}: {} examples in {dims} dimensions, not whitened", args.out.display(), args.examples))
}
