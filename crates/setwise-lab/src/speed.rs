//! Measurements of speed: rates of samplers, times of repeated calls.

use std::time::{Duration, Instant};

use setwise::ModelConfig;
use setwise::models::Images;

use crate::experiment::ValidExperiment;
use crate::prefetch::Prefetcher;
use crate::{Error, Result};

/// Parts of a measurement of a rate. The result is their median.
const PARTS: u32 = 7;

/// Minimum number of repetitions of a timed call.
const MIN_REPETITIONS: usize = 5;

/// Batches per second that threads draw and whiten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerRate {
    /// Number of threads.
    pub threads: usize,
    /// Batches per second of all threads together.
    pub batches_per_second: f64,
}

impl SamplerRate {
    /// Measures how fast threads draw and whiten training batches of an experiment, over at least `min_time`.
    pub fn measure(experiment: &ValidExperiment, threads: usize, min_time: Duration) -> Result<Self> {
        let source = experiment.clone();
        let mut batches = Prefetcher::new(threads, 0, move |step| source.training_batch(step));
        let mut next = || batches.next().ok_or(Error::Prefetch)?;
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
        Ok(SamplerRate { threads, batches_per_second: median(rates) })
    }

    /// Milliseconds of a batch on the thread that draws it.
    pub fn milliseconds(&self) -> f64 {
        1e3 * self.threads as f64 / self.batches_per_second
    }
}

/// The time of a repeated call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallTime {
    /// Median time in milliseconds.
    pub milliseconds: f64,
    /// Number of timed calls.
    pub repetitions: usize,
}

impl CallTime {
    /// Times a call after two untimed ones: at least five repetitions, over at least `min_time`.
    ///
    /// ```
    /// use setwise_lab::speed::CallTime;
    ///
    /// let time = CallTime::measure(std::time::Duration::ZERO, || Ok::<(), ()>(()))?;
    /// assert_eq!(time.repetitions, 5);
    /// # Ok::<(), ()>(())
    /// ```
    pub fn measure<E>(min_time: Duration, mut call: impl FnMut() -> Result<(), E>) -> Result<Self, E> {
        call()?;
        call()?;
        let mut times = Vec::new();
        let start = Instant::now();
        while times.len() < MIN_REPETITIONS || start.elapsed() < min_time {
            let begin = Instant::now();
            call()?;
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        let repetitions = times.len();
        Ok(CallTime { milliseconds: median(times), repetitions })
    }
}

/// The middle value, the upper one of two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The config of a preset for sets of points, or for sets of images with the widths of the paper's counting task.
pub fn benchmark_config(preset: &str, dim: usize, images: Option<Images>) -> Result<ModelConfig> {
    let config = ModelConfig::preset(preset, dim)?;
    Ok(match images {
        None => config,
        Some(images) => {
            let mut config = config.with_images(images).with_latent(128).with_hidden(256);
            config.projection_size = ModelConfig::default().projection_size;
            config
        }
    })
}
