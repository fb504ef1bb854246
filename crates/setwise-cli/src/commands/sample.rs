//! `setwise sample EXPERIMENT -o DIR`

use std::path::PathBuf;

use setwise::data::RawSet;
use setwise::files::write_npy;
use setwise_lab::prefetch::Prefetcher;
use setwise_lab::samplers::Split;

use super::{DataArgs, make_folder, print_line, valid};
use crate::failure::Failure;

/// Arguments of `sample`.
#[derive(clap::Args)]
pub struct Args {
    /// An experiment: a TOML file, or a name such as paper/kl-d2.
    experiment: String,
    /// Examples to draw.
    #[arg(long, default_value_t = 1000)]
    examples: usize,
    /// Seed [default: the experiment's].
    #[arg(long)]
    seed: Option<u64>,
    /// Folder for x.npy, x_offsets.npy, y.npy, y_offsets.npy and label.npy.
    ///
    /// Where examples have different dimensions, dims.npy holds them and zeros fill the rows.
    #[arg(short, long, alias = "output", value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    data: DataArgs,
}

/// Most numbers that are drawn into memory at once.
const MOST: usize = 1 << 31;

/// Runs it. The examples are the very ones training with this seed sees, before whitening (where sets of other sizes or dimensions
/// take turns in training, all are of the task's own).
pub fn run(args: Args) -> Result<(), Failure> {
    let mut experiment = setwise_lab::experiment::find(&args.experiment)?;
    experiment.seed = args.seed.unwrap_or(experiment.seed);
    let (widths, size, batch) = (experiment.task.widths(), experiment.task.set_size(), experiment.training.batch_size);
    let dims = experiment.task.held_out_dims();
    let experiment = valid(&args.experiment, experiment)?.with_data(&args.data.find()?)?;
    let numbers = args.examples.checked_mul(size.max).and_then(|n| n.checked_mul(*widths.iter().max().unwrap_or(&1)));
    if args.examples == 0 || numbers.is_none_or(|n| n > MOST) {
        let reason = format!("must be at least 1, and sets of {} points must fit in memory", size.max);
        return Err(Failure::usage(format!("--examples {}: {reason}", args.examples)));
    }
    make_folder(&args.out)?;
    let examples = args.examples;
    let mut batches = Prefetcher::new(rayon::current_num_threads(), 0, move |i| {
        let count = batch.min(examples.saturating_sub(i as usize * batch));
        experiment.held_out(Split::Training, i, count)
    });
    let mut sets = vec![RawSet { rows: Vec::new(), offsets: vec![0] }; 2];
    let (mut labels, mut own_dims) = (Vec::new(), Vec::new());
    while labels.len() < examples {
        let drawn = batches.next().ok_or(setwise_lab::Error::Prefetch)??.into_raw();
        own_dims.extend(std::iter::repeat_n(drawn.widths[0] as i64, drawn.labels.len()));
        for (((all, set), own), &width) in sets.iter_mut().zip(drawn.sets).zip(&drawn.widths).zip(&widths) {
            let first = all.rows.len() / width;
            all.offsets.extend(set.offsets[1..].iter().map(|o| first + o));
            for row in set.rows.chunks_exact(*own) {
                all.rows.extend(row);
                all.rows.resize(all.rows.len() + width - own, 0.0);
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
            write_npy(file("dims.npy"), &[own_dims.len()], &own_dims)?;
            format!("{} to {}", dims.min, dims.max)
        }
    };
    print_line(format!("{}: {examples} examples in {in_dims} dimensions, as drawn", args.out.display()))
}
