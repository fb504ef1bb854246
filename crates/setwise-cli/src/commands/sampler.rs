//! `setwise bench --sampler EXPERIMENT`

use std::time::{Duration, Instant};

use setwise::sets::Axes;
use setwise_lab::datasets::DataFolder;
use setwise_lab::experiment::{ValidExperiment, find};
use setwise_lab::prefetch::Prefetcher;

use super::{print_line, validate};
use crate::failure::Failure;

/// Parts of a measurement. The result is their median.
const PARTS: u32 = 7;

/// Batches per second that threads draw.
struct Rate {
    threads: usize,
    batches_per_second: f64,
}

impl Rate {
    /// Milliseconds of a batch on the thread that draws it.
    fn milliseconds(&self) -> f64 {
        1e3 * self.threads as f64 / self.batches_per_second
    }
}

/// Measures how fast one thread, and all threads, draw and whiten batches of an experiment.
pub fn run(name: &str, data: &DataFolder, min_time: Duration, json: bool) -> Result<(), Failure> {
    let experiment = validate(name, find(name)?)?.with_data(data)?;
    let all = rayon::current_num_threads();
    let mut counts = vec![1, all];
    counts.dedup();
    let rates = counts.into_iter().map(|n| measure(&experiment, n, min_time)).collect::<Result<Vec<_>, _>>()?;
    let (dim, batch, size) = (experiment.task.dim(), experiment.training.batch_size, experiment.task.set_size());
    let whitened = experiment.task.coordinates(experiment.model()).axes != Axes::Raw;
    if json {
        let rate = |r: &Rate| {
            serde_json::json!({
                "threads": r.threads, "batches_per_second": r.batches_per_second,
                "ms_per_batch_per_thread": r.milliseconds(),
            })
        };
        return print_line(serde_json::json!({
            "experiment": name, "dim": dim, "batch": batch, "set_size": [size.min, size.max],
            "whitened": whitened, "sampler": rates.iter().map(rate).collect::<Vec<_>>(),
        }));
    }
    let whitened = if whitened { ", whitened" } else { "" };
    print_line(format!(
        "{name}: batches of {batch}, sets of {} to {} points in {dim} dimensions{whitened}",
        size.min, size.max
    ))?;
    rates.iter().try_for_each(|r| {
        let threads = if r.threads == 1 { "thread" } else { "threads" };
        let (rate, ms) = (r.batches_per_second, r.milliseconds());
        print_line(format!(
            "{:4} {threads:7} {rate:9.1} batches per second, {ms:7.2} ms per batch and thread",
            r.threads
        ))
    })
}

fn measure(experiment: &ValidExperiment, threads: usize, min_time: Duration) -> Result<Rate, Failure> {
    let source = experiment.clone();
    let mut batches = Prefetcher::new(threads, 0, move |step| source.training_batch(step));
    let mut next = || batches.next().ok_or(setwise_lab::Error::Prefetch)?;
    // Batches that were drawn ahead would count as fast.
    for _ in 0..4 * threads + 4 {
        next()?;
    }
    let part = min_time / PARTS;
    let mut rates = Vec::new();
    for _ in 0..PARTS {
        let (start, mut batches) = (Instant::now(), 0);
        // Every thread draws several batches, or the slowest one would determine the rate.
        while batches < 4 * threads || start.elapsed() < part {
            next()?;
            batches += 1;
        }
        rates.push(batches as f64 / start.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    Ok(Rate { threads, batches_per_second: rates[rates.len() / 2] })
}
