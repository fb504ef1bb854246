//! Table 5: time of every architecture against set size and width.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use serde_json::json;

use setwise::models::{Model, ModelConfig, PRESETS};
use setwise::random::Generator;
use setwise::sets::PackedSet;
use setwise::train::Trainer;
use setwise::{Loss, SetBatch};
use setwise_report::{Axis, Cell, Figure, Panel, Series, Table};

use super::Reproduction;
use crate::Result;
use crate::speed::CallTime;

/// Options of the measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Presets; empty for all.
    pub models: Vec<String>,
    /// Sizes of both sets, measured at the middle width.
    pub sizes: Vec<usize>,
    /// Latent widths, measured at the middle size.
    pub widths: Vec<usize>,
    /// Examples in a batch.
    pub batch: usize,
    /// Minimum time of each measurement.
    pub min_time: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            models: Vec::new(),
            sizes: vec![32, 64, 128, 256, 512, 1024],
            widths: vec![16, 32, 64, 128],
            batch: 2,
            min_time: Duration::from_millis(100),
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Time {
    size: usize,
    width: usize,
    forward: f64,
    training: f64,
}

/// Measures the table. `progress` receives the name of each measurement.
pub fn reproduce(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Reproduction> {
    for model in &options.models {
        ModelConfig::preset(model, 2)?;
    }
    let mut options = options.clone();
    for (name, list) in [("sizes", &mut options.sizes), ("widths", &mut options.widths)] {
        // The fit of exponents uses the larger half.
        list.sort_unstable();
        list.dedup();
        if list.len() < 2 || list.contains(&0) || list.iter().any(|&n| n > 1 << 14) {
            return Err(setwise::Error::Sets(format!(
                "{name} {list:?}: at least two different values from 1 to 16384 are needed"
            ))
            .into());
        }
    }
    let options = &options;
    if options.batch == 0 || options.batch > 1 << 12 {
        return Err(setwise::Error::Sets(format!("batch {}: must be between 1 and 4096", options.batch)).into());
    }
    let columns =
        ["model", "complexity", "forward, n", "training, n", "forward, d", "training, d", "forward ms", "training ms"];
    let mut table = Table::new("Exponents of time against set size n and width d", columns);
    let selected = |model: &str| options.models.is_empty() || options.models.iter().any(|m| m == model);
    let panel = |title: &str, x: &str| Panel::new(title, Axis::log(x), Axis::log("seconds per training step"));
    let mut panels = [panel("time against set size", "set size n"), panel("time against width", "latent width d")];
    let mut json = Vec::new();
    let (middle_size, middle_width) =
        (options.sizes[options.sizes.len() / 2], options.widths[options.widths.len() / 2]);
    for preset in PRESETS.iter().filter(|p| selected(p.name)) {
        progress(preset.name);
        let by_size = measure_all(preset.name, options.sizes.iter().map(|&n| (n, middle_width)), options)?;
        let by_width = measure_all(preset.name, options.widths.iter().map(|&d| (middle_size, d)), options)?;
        let slope = |times: &[Time], x: fn(&Time) -> usize, y: fn(&Time) -> f64| {
            // Constant costs dominate small sizes, so only the larger half shows the order.
            exponent(&times[times.len() / 2 - usize::from(times.len() < 4)..], |t| (x(t) as f64, y(t)))
        };
        let exponents = [
            slope(&by_size, |t| t.size, |t| t.forward),
            slope(&by_size, |t| t.size, |t| t.training),
            slope(&by_width, |t| t.width, |t| t.forward),
            slope(&by_width, |t| t.width, |t| t.training),
        ];
        let middle = by_size[options.sizes.len() / 2];
        let mut row: Vec<Cell> = vec![preset.name.into(), preset.complexity.into()];
        row.extend(exponents.iter().map(|&e| Cell::number(e, 2)));
        row.extend([middle.forward, middle.training].map(|t| Cell::number(t * 1e3, 2)));
        table.push(row);
        let [first, second] = panels;
        let points = |times: &[Time], x: fn(&Time) -> usize| -> Vec<(f64, f64)> {
            times.iter().map(|t| (x(t) as f64, t.training)).collect()
        };
        panels = [
            first.with_series(Series::new(preset.name, points(&by_size, |t| t.size))),
            second.with_series(Series::new(preset.name, points(&by_width, |t| t.width))),
        ];
        let plain = |times: &[Time]| -> Vec<serde_json::Value> {
            let one = |t: &Time| json!({"n": t.size, "d": t.width, "forward_s": t.forward, "training_s": t.training});
            times.iter().map(one).collect()
        };
        json.push(json!({
            "model": preset.name, "complexity": preset.complexity, "by_size": plain(&by_size), "by_width": plain(&by_width),
            "exponents": {
                "forward_n": exponents[0], "training_n": exponents[1],
                "forward_d": exponents[2], "training_d": exponents[3],
            },
        }));
    }
    let [first, second] = panels;
    let figure = Figure::new("Time of a training step").with_panel(first).with_panel(second).with_columns(2);
    let notes = vec![
        format!(
            "two sets of n points each, batch {}, {} threads; n at d = {middle_width}, d at n = {middle_size}",
            options.batch,
            rayon::current_num_threads()
        ),
        "exponents are fitted over the larger half of sizes; for sums of orders, as n·d² + n²·d, they lie between"
            .to_owned(),
    ];
    Ok(Reproduction { name: "scaling", table, json: json.into(), figures: vec![("scaling".to_owned(), figure)], notes })
}

fn measure_all(preset: &str, grid: impl Iterator<Item = (usize, usize)>, options: &Options) -> Result<Vec<Time>> {
    grid.map(|(size, width)| measure(preset, size, width, options)).collect()
}

/// Median seconds of a forward pass and of a training step.
fn measure(preset: &str, size: usize, width: usize, options: &Options) -> Result<Time> {
    const DIM: usize = 2;
    let equivariant = ModelConfig::preset(preset, DIM)?.dimension_equivariant;
    // A dimension-equivariant model has its latent width once per dimension.
    let latent = if equivariant { (width / DIM).max(4) } else { width };
    let mut config = ModelConfig::preset(preset, DIM)?.with_latent(latent).with_hidden(2 * latent);
    // The width of PINE is the size of its projections.
    config.projection_size = (width / 4).max(1);
    let mut model = Model::new(config.validate()?, 1);
    let mut rng = Generator::seed_from_u64(1);
    let sets = (0..2)
        .map(|_| {
            let data = (0..options.batch * size * DIM).map(|_| rng.random::<f32>()).collect();
            PackedSet::new(data, DIM, (0..=options.batch).map(|i| i * size).collect())
        })
        .collect();
    let batch = SetBatch::new(sets)?;
    let targets = vec![0.5; options.batch];
    let forward = seconds(options.min_time, || Ok(model.predict(&batch).map(drop)?))?;
    let mut trainer = Trainer::new(model, Loss::L1);
    let training = seconds(options.min_time, || Ok(trainer.step(&batch, &targets, 1e-4).map(drop)?))?;
    Ok(Time { size, width, forward, training })
}

/// Median seconds of a call.
fn seconds(min_time: Duration, call: impl FnMut() -> Result<()>) -> Result<f64> {
    Ok(CallTime::measure(min_time, call)?.milliseconds / 1e3)
}

/// The exponent b of the least-squares fit y = a·x^b in logarithms.
fn exponent<T>(items: &[T], point: impl Fn(&T) -> (f64, f64)) -> f64 {
    let logs: Vec<(f64, f64)> = items.iter().map(&point).map(|(x, y)| (x.ln(), y.ln())).collect();
    let n = logs.len() as f64;
    let (mx, my) = (logs.iter().map(|l| l.0).sum::<f64>() / n, logs.iter().map(|l| l.1).sum::<f64>() / n);
    let covariance: f64 = logs.iter().map(|l| (l.0 - mx) * (l.1 - my)).sum();
    covariance / logs.iter().map(|l| (l.0 - mx).powi(2)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_a_power_law_is_recovered() {
        let points: Vec<(f64, f64)> = [1.0, 2.0, 5.0, 9.0].iter().map(|&x: &f64| (x, 3.0 * x.powf(1.7))).collect();
        assert!((exponent(&points, |&p| p) - 1.7).abs() < 1e-12);
    }
}
