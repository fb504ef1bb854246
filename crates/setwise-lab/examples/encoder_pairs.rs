//! Draws random pairs that the encoder of the two-sample test is trained with: `encoder_pairs SEED FOLDER`.
//!
//! Files are written until a hundred are waiting in the folder, and again when some are taken. Several processes with
//! different seeds share a folder. `weights/two-sample-encoder/train.py` reads the files.

use std::path::Path;
use std::time::Duration;

use rand::SeedableRng;
use setwise::permutation_test::EncoderInputs;
use setwise::random::Generator;
use setwise_lab::samplers::{ChangedPair, Split, batch_seed};

/// Pairs of a file, and files that wait.
const PAIRS: u64 = 512;
const WAITING: usize = 100;
/// Larger pairs are left out: columns, rows, entries.
const MOST: [usize; 3] = [32, 1400, 16_000];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, seed, folder] = arguments.as_slice() else { return Err("usage: encoder_pairs SEED FOLDER".into()) };
    let (seed, folder) = (seed.parse::<u64>()?, Path::new(folder));
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global()?;
    for file in 0.. {
        while std::fs::read_dir(folder)?.count() > WAITING {
            std::thread::sleep(Duration::from_millis(20));
        }
        let first = (seed << 40) + file * PAIRS;
        let content: Vec<u8> = (first..first + PAIRS).flat_map(pair).collect();
        let partial = folder.join(format!("{seed}-{file}.partial"));
        std::fs::write(&partial, content)?;
        std::fs::rename(&partial, partial.with_extension("pairs"))?;
    }
    Ok(())
}

/// Columns, rows of P and Q, then inputs as 16-bit numbers; empty for a pair that is too large.
fn pair(number: u64) -> Vec<u8> {
    let seed = batch_seed(21, Split::Training, number);
    let ChangedPair { dim, samples, .. } = ChangedPair::draw(&mut Generator::seed_from_u64(seed));
    let [n, m] = [0, 1].map(|s| samples[s].len() / dim);
    if dim > MOST[0] || n + m > MOST[1] || (n + m) * dim > MOST[2] {
        return Vec::new();
    }
    let inputs = EncoderInputs::of_all(&samples.concat(), dim, seed);
    let mut content: Vec<u8> = [dim, n, m].iter().flat_map(|x| (*x as u32).to_le_bytes()).collect();
    let mut put = |x: f32| content.extend((x.round().clamp(-32_000.0, 32_000.0) as i16).to_le_bytes());
    // The normal score follows from the rank.
    for &[share, _, repeats, value] in inputs.entries.as_chunks().0 {
        put((share - 0.5) * 60_000.0);
        put(repeats * 30_000.0);
        put(value * 3_000.0);
    }
    inputs.rows.iter().for_each(|x| put(x * 3_000.0));
    content
}
