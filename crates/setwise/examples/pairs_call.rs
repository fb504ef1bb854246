//! Times the KL divergences of many pairs of samples in memory as one library call: `bench/estimates` holds SciPy's
//! estimates against it.
//!
//! ```text
//! cargo run --release -p setwise --example pairs_call LIST DEVICE REPETITIONS
//! ```

use std::time::Instant;

use setwise::Device;
use setwise::estimate::{Estimator, FeatureBatch, PairList, Pretrained};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [list, device, repetitions] = &arguments[..] else { return Err("arguments: LIST DEVICE REPETITIONS".into()) };
    let list = PairList::read(list)?;
    let pairs = list.pairs().iter().map(|pair| list.points(pair)).collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    let estimator = Pretrained::built_in()?.on_device(&Device::find(device, None)?)?;
    estimator.estimates(&pairs, 0);
    let first = start.elapsed().as_secs_f64() * 1e3;
    let median = |call: &dyn Fn()| -> Result<f64, Box<dyn std::error::Error>> {
        let mut times = Vec::new();
        for _ in 0..repetitions.parse::<usize>()?.max(1) {
            let start = Instant::now();
            call();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    };
    let all = median(&|| drop(estimator.estimates(&pairs, 0)))?;
    let features = median(&|| drop(FeatureBatch::compute(&pairs)))?;
    println!("{{\"first_ms\": {first:.1}, \"median_ms\": {all:.1}, \"features_ms\": {features:.1}}}");
    Ok(())
}
