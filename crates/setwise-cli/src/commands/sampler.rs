//! `setwise bench --sampler EXPERIMENT`

use std::time::Duration;

use setwise::sets::Axes;
use setwise_lab::datasets::DataFolder;
use setwise_lab::experiment::find;
use setwise_lab::speed::SamplerRate;

use super::print_line;
use crate::failure::Failure;

/// Measures how fast one thread, and all threads, draw and whiten batches of an experiment.
pub fn run(name: &str, data: &DataFolder, min_time: Duration, json: bool) -> Result<(), Failure> {
    let experiment = find(name)?.validate_named(name)?.with_data(data)?;
    let all = rayon::current_num_threads();
    let mut counts = vec![1, all];
    counts.dedup();
    let measure = |threads| SamplerRate::measure(&experiment, threads, min_time);
    let rates = counts.into_iter().map(measure).collect::<Result<Vec<_>, _>>()?;
    let (dim, batch, size) = (experiment.task.dim(), experiment.training.batch_size, experiment.task.set_size());
    let whitened = experiment.task.coordinates(experiment.model()).axes != Axes::Raw;
    if json {
        let rate = |r: &SamplerRate| {
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
