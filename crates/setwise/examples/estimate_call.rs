//! Times the KL divergence of two samples as one library call: `bench/python-calls` holds the Python call against it.
//!
//! ```text
//! cargo run --release -p setwise --example estimate_call P.npy Q.npy METHOD REPETITIONS
//! ```

use std::time::Instant;

use setwise::estimate::{KlOptions, Points, kl};
use setwise::files::Sample;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [p, q, method, repetitions] = &arguments[..] else { return Err("P Q METHOD REPETITIONS are wanted".into()) };
    let (p, q) = (Sample::read(p)?, Sample::read(q)?);
    let (p, q) = (Points::of(&p)?, Points::of(&q)?);
    let options = KlOptions { method: method.parse()?, ..Default::default() };
    let (mut fastest, mut value) = (f64::INFINITY, 0.0);
    for _ in 0..repetitions.parse::<usize>()?.max(1) {
        let start = Instant::now();
        value = kl(p, q, &options)?.value;
        fastest = start.elapsed().as_secs_f64().min(fastest);
    }
    println!("{{\"fastest_us\": {}, \"value\": {value:?}}}", fastest * 1e6);
    Ok(())
}
