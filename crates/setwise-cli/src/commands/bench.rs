//! `setwise bench`

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use setwise::models::{ImageEncoder, Images};
use setwise::sets::PackedSet;
use setwise::train::BatchLimits;
use setwise::{Loss, Model, SetBatch, Trainer};
use setwise_lab::speed::{CallTime, benchmark_config};

use super::{DataArgs, DeviceArgs, print_line, sampler};
use crate::failure::Failure;

/// Arguments of `bench`.
#[derive(clap::Args)]
pub struct Args {
    /// Preset architecture; `setwise models` lists them.
    #[arg(long, default_value = "multi-set-transformer")]
    model: String,
    /// Columns of the sets; latent is 16 × dim and hidden 32 × dim by default.
    #[arg(long, default_value_t = 2)]
    dim: usize,
    /// Image encoder in front of the model: mnist, omniglot or meta.
    #[arg(long, value_name = "ENCODER", conflicts_with = "dim")]
    images: Option<String>,
    /// Examples in a batch.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Elements per set.
    #[arg(long, default_value_t = 125)]
    points: usize,
    /// Latent width.
    #[arg(long)]
    latent: Option<usize>,
    /// Hidden width.
    #[arg(long)]
    hidden: Option<usize>,
    /// Number of blocks.
    #[arg(long)]
    blocks: Option<usize>,
    /// Attention heads.
    #[arg(long)]
    heads: Option<usize>,
    /// Time the drawing of this experiment's batches instead of a model.
    #[arg(long, value_name = "EXPERIMENT", conflicts_with_all = [
        "model", "dim", "images", "batch", "points", "latent", "hidden", "blocks", "heads", "forward_only", "operations",
        "device", "precision",
    ])]
    sampler: Option<String>,
    /// Time the forward pass only.
    #[arg(long)]
    forward_only: bool,
    /// Minimum time of a measurement, in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Print the time of a training step by kind of operation.
    #[arg(long, conflicts_with_all = ["json", "forward_only"])]
    operations: bool,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Maximum number of values in a set of the batch.
const MAX_NUMBERS: usize = 1 << 28;

/// Runs it.
pub fn run(mut args: Args) -> Result<(), Failure> {
    let min_time = Duration::try_from_secs_f64(args.seconds)
        .map_err(|_| Failure::usage(format!("--seconds {}: must be a finite number of at least 0", args.seconds)))?;
    if let Some(experiment) = &args.sampler {
        return sampler::run(experiment, &args.data.find()?, min_time, args.json);
    }
    let images = args.images.as_deref().map(ImageEncoder::find).transpose()?.map(Images::new);
    args.dim = images.map_or(args.dim, |i| i.numbers());
    let mut config = benchmark_config(&args.model, args.dim, images)?;
    config.latent = args.latent.unwrap_or(config.latent);
    config.hidden = args.hidden.unwrap_or(config.hidden);
    config.blocks = args.blocks.unwrap_or(config.blocks);
    config.heads = args.heads.unwrap_or(config.heads);
    let config = config.validate()?;
    let numbers = args.batch.checked_mul(args.points).and_then(|n| n.checked_mul(args.dim));
    match numbers {
        Some(n) if n > 0 && n <= MAX_NUMBERS => {}
        _ => {
            let (b, p, d) = (args.batch, args.points, args.dim);
            return Err(Failure::usage(format!(
                "--batch {b} --points {p} --dim {d}: their product must be between 1 and {MAX_NUMBERS}"
            )));
        }
    }
    let batch = random_batch(&args, config.sets)?;
    let targets = vec![0.5; args.batch];
    let mut model = Model::new(config, 1);
    let parameters = model.params().len();

    let device = args.device.open()?;
    model.use_device(&device)?;
    let forward = CallTime::measure(min_time, || model.predict(&batch).map(drop))?;
    let mut trainer = Trainer::new(model, Loss::L1);
    if !args.forward_only {
        let limits = BatchLimits { examples: args.batch, set_size: args.points, dims: args.dim };
        trainer.use_device(&device, limits)?;
    }
    let step = match args.forward_only {
        true => None,
        // A GPU has two steps in flight, so a call takes as long as a step.
        false => Some(CallTime::measure(min_time, || {
            trainer.submit(&batch, &targets, 1e-4, None)?;
            trainer.outcome(false).map(drop)
        })?),
    };
    while trainer.outcome(true)?.is_some() {}
    let repetitions = step.unwrap_or(forward).repetitions;
    let step = step.map(|s| s.milliseconds);
    let peak = peak_memory();
    let c = trainer.model().config().clone();
    if args.json {
        return print_line(serde_json::json!({
            "model": args.model, "dim": args.dim, "images": c.images, "batch": args.batch, "points": args.points,
            "threads": rayon::current_num_threads(), "latent": c.latent, "hidden": c.hidden, "blocks": c.blocks,
            "heads": c.heads, "parameters": parameters, "forward_ms": forward.milliseconds, "train_step_ms": step,
            "peak_memory_bytes": peak, "device_memory_bytes": trainer.device_memory(), "repetitions": repetitions,
            "device": args.device.name(), "precision": args.device.precision(),
        }));
    }
    print_line(format!(
        "{}, {} sets of {} points in {} dimensions, batch {}, {} threads",
        args.model,
        c.sets,
        args.points,
        args.dim,
        args.batch,
        rayon::current_num_threads()
    ))?;
    print_line(format!(
        "latent {}, hidden {}, {} blocks, {} heads, {parameters} parameters",
        c.latent, c.hidden, c.blocks, c.heads
    ))?;
    print_line(format!("forward       {:9.2} ms", forward.milliseconds))?;
    if let Some(step) = step {
        print_line(format!("training step {step:9.2} ms   (forward, backward, Adam; median of {repetitions})"))?;
    }
    if let Some(bytes) = peak {
        print_line(format!("peak memory   {:9.1} MB", bytes as f64 / 1e6))?;
    }
    if let Some(bytes) = trainer.device_memory() {
        print_line(format!("device memory {:9.1} MB", bytes as f64 / 1e6))?;
    }
    if args.operations {
        if let Some(kernels) = trainer.kernel_times()? {
            return print_kernels(kernels);
        }
        print_operations(&mut trainer, &batch, &targets)?;
    }
    Ok(())
}

/// Prints the milliseconds of a training step by kind of operation, largest first.
fn print_operations(trainer: &mut Trainer, batch: &SetBatch, targets: &[f32]) -> Result<(), Failure> {
    const STEPS: usize = 10;
    trainer.record_timings();
    for _ in 0..STEPS {
        trainer.step(batch, targets, 1e-4)?;
    }
    let mut kinds = trainer.timings();
    kinds.sort_by(|a, b| (b.1[0] + b.1[1]).total_cmp(&(a.1[0] + a.1[1])));
    print_line("\n  forward  backward   ms per step, summed over threads")?;
    for (name, [forward, backward]) in kinds {
        let ms = 1e3 / STEPS as f64;
        print_line(format!("{:9.2} {:9.2}   {name}", forward * ms, backward * ms))?;
    }
    Ok(())
}

/// Prints the milliseconds of a step's kernels, largest first.
fn print_kernels(mut kernels: Vec<(String, usize, f64)>) -> Result<(), Failure> {
    kernels.sort_by(|a, b| b.2.total_cmp(&a.2));
    print_line("\n  ms   launches   kernel, timed alone")?;
    for (name, launches, ms) in &kernels {
        print_line(format!("{ms:7.4} {launches:5}   {name}"))?;
    }
    let (launches, ms) = kernels.iter().fold((0, 0.0), |(l, t), k| (l + k.1, t + k.2));
    print_line(format!("{ms:7.4} {launches:5}   all"))
}

fn random_batch(args: &Args, sets: usize) -> Result<SetBatch, Failure> {
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let sets = (0..sets)
        .map(|_| {
            let data = (0..args.batch * args.points * args.dim).map(|_| rng.random::<f32>() * 2.0 - 1.0).collect();
            PackedSet::new(data, args.dim, (0..=args.batch).map(|i| i * args.points).collect())
        })
        .collect();
    Ok(SetBatch::new(sets)?)
}

/// Peak resident memory of the process in bytes; none where there is no `/proc`.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}
