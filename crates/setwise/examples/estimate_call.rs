//! Times the KL divergence of two samples as one library call. `bench/python-calls` compares it with the Python call,
//! `bench/estimates` with SciPy's estimate.
//!
//! ```text
//! cargo run --release -p setwise --example estimate_call P.npy Q.npy METHOD REPETITIONS
//! ```

use std::time::Instant;

use setwise::estimate::{KlOptions, Points, kl};
use setwise::files::Sample;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [p, q, method, repetitions] = &arguments[..] else { return Err("arguments: P Q METHOD REPETITIONS".into()) };
    let (p, q) = (Sample::read(p)?, Sample::read(q)?);
    let (p, q) = (Points::of(&p)?, Points::of(&q)?);
    let options = KlOptions { method: method.parse()?, ..Default::default() };
    let (mut times, mut value) = (Vec::new(), 0.0);
    for _ in 0..repetitions.parse::<usize>()?.max(1) {
        let start = Instant::now();
        value = kl(p, q, &options)?.value;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    println!("{{\"fastest_us\": {}, \"median_us\": {}, \"value\": {value:?}}}", times[0], times[times.len() / 2]);
    Ok(())
}
