//! Learns how many symbols two sets have in common, from nothing but examples.
//!
//! A symbol is a one-hot vector of eight; a set is two to six draws, so a symbol may come twice. The answer is the
//! number of different symbols that are in both sets. Trains for under a minute and demands 95 % right answers on fresh
//! examples.
//!
//! ```text
//! cargo run --release -p setwise --example common_symbols [MODEL_TO_WRITE.safetensors]
//! ```

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use setwise::{Loss, Model, ModelConfig, SetBatch, Trainer};

const SYMBOLS: usize = 8;
const STEPS: usize = 1500;
const BATCH: usize = 64;

/// Draws two sets of symbols and the number of symbols that both contain.
fn draw(rng: &mut Pcg64Mcg) -> (Vec<Vec<f32>>, f32) {
    let sets: [Vec<usize>; 2] =
        std::array::from_fn(|_| (0..rng.random_range(2..=6)).map(|_| rng.random_range(0..SYMBOLS)).collect());
    let common = (0..SYMBOLS).filter(|s| sets.iter().all(|set| set.contains(s))).count();
    let one_hot = |s: &usize| (0..SYMBOLS).map(|i| if i == *s { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
    (sets.iter().map(|set| set.iter().flat_map(one_hot).collect()).collect(), common as f32)
}

fn batch(rng: &mut Pcg64Mcg, examples: usize) -> setwise::Result<(SetBatch, Vec<f32>)> {
    let (sets, targets): (Vec<_>, Vec<_>) = (0..examples).map(|_| draw(rng)).unzip();
    let views: Vec<Vec<&[f32]>> = sets.iter().map(|e| e.iter().map(Vec::as_slice).collect()).collect();
    Ok((SetBatch::from_examples(SYMBOLS, &views)?, targets))
}

fn main() -> setwise::Result<()> {
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let config = ModelConfig::preset("multi-set-transformer", SYMBOLS)?.with_latent(16).with_hidden(32).with_blocks(2);
    let mut trainer = Trainer::new(Model::new(config.validate()?, 2), Loss::Mse);
    for step in 0..STEPS {
        let (examples, targets) = batch(&mut rng, BATCH)?;
        let rate = 3e-3 * (1.0 - step as f64 / STEPS as f64);
        let loss = trainer.step(&examples, &targets, rate)?;
        if step % 250 == 0 {
            println!("step {step:5}  loss {loss:.4}");
        }
    }
    let (examples, targets) = batch(&mut rng, 2000)?;
    let answers = trainer.model().predict(&examples)?;
    let right = answers.values().iter().zip(&targets).filter(|(a, t)| a.round() == **t).count();
    let accuracy = right as f64 / targets.len() as f64;
    println!("{:.1} % of {} fresh examples right", 100.0 * accuracy, targets.len());
    if let Some(path) = std::env::args().nth(1) {
        trainer.model().save(&path)?;
        println!("wrote {path}");
    }
    assert!(accuracy >= 0.95, "accuracy is below 95 %");
    Ok(())
}
