//! Times the search of the kNN divergence: every row of P among P and among Q. Prints one JSON object.
//!
//! `neighbours P Q K REPETITIONS [auto|brute|tree]`; `bench/neighbours` holds it against SciPy on the same files.

use std::time::Instant;

use setwise::estimate::neighbours::{Neighbours, Search};
use setwise::estimate::{Norm, Points};
use setwise::files::Sample;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [p, q, k, repetitions, rest @ ..] = &args[..] else {
        return Err("neighbours P Q K REPETITIONS [auto|brute|tree]".into());
    };
    let search = match rest.first().map(String::as_str) {
        None | Some("auto") => Search::Auto,
        Some("brute") => Search::Brute,
        Some("tree") => Search::Tree,
        Some(other) => return Err(format!("there is no search {other:?}").into()),
    };
    let (p, q) = (Sample::read(p)?, Sample::read(q)?);
    let (p, q) = (Points::of(&p)?, Points::of(&q)?);
    let k: usize = k.parse()?;
    let repetitions = repetitions.parse::<usize>()?.max(1);
    let mut times = Vec::new();
    let mut sum = 0.0;
    for _ in 0..=repetitions {
        let start = Instant::now();
        let within = Neighbours::with_search(p, Norm::Euclidean, search).kth_distances(p, k + 1);
        let across = Neighbours::with_search(q, Norm::Euclidean, search).kth_distances(p, k);
        times.push(start.elapsed().as_secs_f64() * 1e3);
        sum = within.iter().chain(&across).sum();
    }
    times.remove(0); // threads and memory warm up
    times.sort_by(f64::total_cmp);
    println!(r#"{{"median_ms": {}, "sum": {sum}}}"#, times[times.len() / 2]);
    Ok(())
}
