//! `setwise sample EXPERIMENT -o DIR`

use std::path::PathBuf;

use setwise::data::RawSet;
use setwise::files::write_npy;
use setwise_lab::prefetch::Prefetcher;
use setwise_lab::samplers::Split;

use super::{DataArgs, make_folder, print_line, validate};
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

/// Maximum number of values of a set in memory.
const MAX_NUMBERS: usize = 1 << 31;

/// Runs it. The examples are those of training with this seed, before whitening.
///
/// A curriculum and the training's alternating dimensions have no influence: sizes and dimensions are the task's.
pub fn run(args: Args) -> Result<(), Failure> {
    let mut experiment = setwise_lab::experiment::find(&args.experiment)?;
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    let (widths, size, batch) = (experiment.task.widths(), experiment.task.set_size(), experiment.training.batch_size);
    let dims = experiment.task.held_out_dims();
    let experiment = validate(&args.experiment, experiment)?.with_data(&args.data.find()?)?;
    let max_width = *widths.iter().max().unwrap_or(&1);
    let numbers = args.examples.checked_mul(size.max).and_then(|n| n.checked_mul(max_width));
    if args.examples == 0 || numbers.is_none_or(|n| n > MAX_NUMBERS) {
        let max = MAX_NUMBERS / size.max.saturating_mul(max_width).max(1);
        return Err(Failure::usage(format!("--examples {}: must be between 1 and {max}", args.examples)));
    }
    make_folder(&args.out)?;
    let examples = args.examples;
    let mut batches = Prefetcher::new(rayon::current_num_threads(), 0, move |i| {
        let count = batch.min(examples.saturating_sub(i as usize * batch));
        experiment.held_out(Split::Training, i, count)
    });
    let mut sets = vec![RawSet { rows: Vec::new(), offsets: vec![0] }; 2];
    let (mut labels, mut example_dims) = (Vec::new(), Vec::new());
    while labels.len() < examples {
        let drawn = batches.next().ok_or(setwise_lab::Error::Prefetch)??.into_raw();
        example_dims.extend(std::iter::repeat_n(drawn.widths[0] as i64, drawn.labels.len()));
        for (((all, set), drawn_width), &width) in sets.iter_mut().zip(drawn.sets).zip(&drawn.widths).zip(&widths) {
            let first = all.rows.len() / width;
            all.offsets.extend(set.offsets[1..].iter().map(|o| first + o));
            for row in set.rows.chunks_exact(*drawn_width) {
                all.rows.extend(row);
                all.rows.resize(all.rows.len() + width - drawn_width, 0.0);
            }
        }
        labels.extend(drawn.labels);
    }
    let file = |name: &str| args.out.join(name);
    for ((name, set), &dim) in ["x", "y"].iter().zip(&sets).zip(&widths) {
        write_npy(file(&format!("{name}.npy")), &[set.rows.len() / dim, dim], &set.rows)?;
        let offsets: Vec<i64> = set.offsets.iter().map(|&o| o as i64).collect();
        write_npy(file(&format!("{name}_offsets.npy")), &[offsets.len()], &offsets)?;
    }
    write_npy(file("label.npy"), &[labels.len()], &labels)?;
    let in_dims = match dims.single() {
        Some(_) => widths[0].to_string(),
        None => {
            write_npy(file("dims.npy"), &[example_dims.len()], &example_dims)?;
            format!("{} to {}", dims.min, dims.max)
        }
    };
    print_line(format!("{}: {examples} examples in {in_dims} dimensions, not whitened", args.out.display()))
}
