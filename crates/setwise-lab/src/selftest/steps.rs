//! Training steps on GPU and CPU.

use std::sync::Arc;

use rand::RngExt;

use setwise::models::{ImageEncoder, Images, ModelConfig, OutputKind};
use setwise::random::Generator;
use setwise::train::BatchLimits;
use setwise::train::{Optimizer, Training};
use setwise::{Loss, Model, SetBatch, Trainer};
use setwise_engine::cuda::{Device, Precision};

use super::Comparison;
use super::compare::{ERROR_FACTOR, compare_results, perturbed, random_values, relative_error, unit_roundoff};
use crate::Result;

/// A trainer after two steps on a batch, and their losses.
fn two_steps(mut trainer: Trainer, batch: &SetBatch, targets: &[f32]) -> Result<(Trainer, Vec<f64>)> {
    let losses = (0..2).map(|_| trainer.step(batch, targets, 1e-3)).collect::<setwise::Result<_>>()?;
    Ok((trainer, losses))
}

/// A trainer that takes its steps on a GPU.
fn on_gpu(device: &Arc<Device>, precision: Precision, limits: BatchLimits, mut trainer: Trainer) -> Result<Trainer> {
    trainer.use_device(&setwise::Device::Cuda { device: device.clone(), precision }, limits)?;
    Ok(trainer)
}

/// Training steps of a classifier: losses, and running averages after them.
pub(super) fn classifier_steps(
    device: &Arc<Device>,
    precision: Precision,
    rng: &mut Generator,
) -> Result<Vec<Comparison>> {
    let images = Images::new(ImageEncoder::Mnist).with_size(9, 10, 1);
    let (classes, count) = (37, 50);
    let config = ModelConfig::classifier(images, classes).validate()?;
    let model = || Trainer::new(Model::new(config.clone(), 3), Loss::CrossEntropy { classes });
    let pixels: Vec<f32> = (0..count * images.numbers()).map(|_| rng.random()).collect();
    let batch = SetBatch::from_examples(images.numbers(), &[vec![&pixels[..]]])?;
    let labels: Vec<f32> = (0..count).map(|i| (i * 7 % classes) as f32).collect();
    let limits = BatchLimits { examples: 2, set_size: count, dims: 1 };
    let (mut gpu, found) = two_steps(on_gpu(device, precision, limits, model())?, &batch, &labels)?;
    let (mut cpu, expected) = two_steps(model(), &batch, &labels)?;
    let averages = |t: &mut Trainer| -> Vec<f64> {
        let trained = t.model().layout().trained();
        t.model().params()[trained..].iter().map(|&v| f64::from(v)).collect()
    };
    let tolerance = ERROR_FACTOR * unit_roundoff(precision);
    let averages = relative_error(&averages(&mut gpu), &averages(&mut cpu));
    let losses = relative_error(&found, &expected);
    Ok(vec![("losses of two steps", losses, tolerance), ("running averages", averages, tolerance)])
}

/// Examples of two sets of random points with the given widths and sizes.
fn random_batch(widths: [usize; 2], sizes: &[[usize; 2]], rng: &mut Generator) -> Result<SetBatch> {
    let mut set = |n: usize, set: usize| random_values(widths[set] * n, rng);
    let examples: Vec<[Vec<f32>; 2]> = sizes.iter().map(|&[a, b]| [set(a, 0), set(b, 1)]).collect();
    let examples: Vec<Vec<&[f32]>> = examples.iter().map(|e| e.iter().map(|s| &s[..]).collect()).collect();
    Ok(SetBatch::from_widths(&widths, &examples)?)
}

/// Training steps of a model with outputs per element, with the loss of elements and their means.
pub(super) fn element_steps(
    device: &Arc<Device>,
    precision: Precision,
    rng: &mut Generator,
) -> Result<Vec<Comparison>> {
    let config = ModelConfig::preset("multi-set-transformer", 3)?.with_latent(32).with_hidden(64);
    let config = config.with_output(OutputKind::Equivariant).validate()?;
    let trainer = || Trainer::new(Model::new(config.clone(), 4), Loss::SetMeanL1 { element_weight: 0.5 });
    let sizes = [[1, 40], [33, 7], [130, 64]];
    let targets = random_values(sizes.as_flattened().iter().sum(), rng);
    steps_and_moments(device, precision, trainer, &random_batch([3, 3], &sizes, rng)?, &targets, rng)
}

/// Training steps with an input set of the latent width, whose first operation has no gradient to propagate.
pub(super) fn wide_input_steps(
    device: &Arc<Device>,
    precision: Precision,
    rng: &mut Generator,
) -> Result<Vec<Comparison>> {
    let config = ModelConfig::preset("multi-set-transformer", 8)?.with_latent(16).with_hidden(32).with_blocks(1);
    let config = ModelConfig { input_widths: vec![16, 32], ..config }.validate()?;
    let trainer = || Trainer::new(Model::new(config.clone(), 6), Loss::L1);
    let sizes = [[1, 40], [33, 7], [130, 64]];
    let targets = random_values(sizes.len(), rng);
    steps_and_moments(device, precision, trainer, &random_batch([16, 32], &sizes, rng)?, &targets, rng)
}

/// Two training steps: losses, and both Adam moments after them.
fn steps_and_moments(
    device: &Arc<Device>,
    precision: Precision,
    trainer: impl Fn() -> Trainer,
    batch: &SetBatch,
    targets: &[f32],
    rng: &mut Generator,
) -> Result<Vec<Comparison>> {
    let limits = BatchLimits { examples: 4, set_size: 150, dims: 1 };
    let all = |(mut trainer, losses): (Trainer, Vec<f64>)| {
        let adam = trainer.adam();
        let moments = [&adam.first, &adam.second].map(|m| m.iter().map(|&x| f64::from(x)).collect());
        [vec![losses], moments.into()].concat()
    };
    let found = all(two_steps(on_gpu(device, precision, limits, trainer())?, batch, targets)?);
    let expected = all(two_steps(trainer(), batch, targets)?);
    let unit_roundoff = unit_roundoff(precision);
    let names = ["losses of two steps", "first moments", "second moments"];
    compare_results(&names, &found, &expected, unit_roundoff, 0, || {
        let mut trainer = trainer();
        let params = trainer.model().params_mut();
        let rounded = perturbed(params, unit_roundoff, rng);
        params.iter_mut().zip(rounded).for_each(|(p, r)| *p = r as f32);
        Ok(all(two_steps(trainer, batch, targets)?))
    })
}

/// Training steps by Muon: the decrease of the loss.
///
/// Single weights may differ, because orthogonalisation scales up directions whose gradient is rounding noise.
pub(super) fn muon_steps(
    device: &Arc<Device>,
    precision: Precision,
    [latent, hidden]: [usize; 2],
    rng: &mut Generator,
) -> Result<Vec<Comparison>> {
    let config =
        ModelConfig::preset("multi-set-transformer", 3)?.with_latent(latent).with_hidden(hidden).with_blocks(2);
    let config = config.validate()?;
    let training =
        Training { optimizer: Optimizer::Muon { learning_rate: 0.01 }, learning_rate: 1e-3, ..Training::default() };
    let trainer = || Trainer::with_training(Model::new(config.clone(), 5), &training, 0);
    let sizes: Vec<[usize; 2]> = (0..24).map(|i| [1 + 5 * i % 40, 3 + 7 * i % 50]).collect();
    let batch = random_batch([3, 3], &sizes, rng)?;
    let limits = BatchLimits { examples: 24, set_size: 60, dims: 1 };
    let targets = random_values(24, rng);
    let mut both = [on_gpu(device, precision, limits, trainer())?, trainer()];
    let (mut losses, mut moved) = ([Vec::new(), Vec::new()], 0.0f64);
    for (trainer, losses) in both.iter_mut().zip(&mut losses) {
        for _ in 0..4 {
            trainer.submit(&batch, &targets, 1e-3, Some(0.5))?;
            losses.push(trainer.outcome(true)?.map_or(f64::NAN, |o| o.loss));
        }
        trainer.sync()?;
        let before = trainer.model().params().to_vec();
        trainer.submit(&batch, &vec![f32::NAN; targets.len()], 1e-3, None)?;
        trainer.outcome(true)?;
        trainer.sync()?;
        moved = trainer.model().params().iter().zip(&before).fold(moved, |m, (a, b)| m.max(f64::from((a - b).abs())));
    }
    let fall = |losses: &[f64]| (losses[0] - losses[3]) / losses[0];
    let falls = (fall(&losses[0]) - fall(&losses[1])).abs();
    Ok(vec![
        // Besides the error of gradients, matrices are orthogonalised in bf16.
        ("decrease of the loss", falls, 0.01 + ERROR_FACTOR * unit_roundoff(precision)),
        ("parameters after a NaN loss", moved, 0.0),
    ])
}
