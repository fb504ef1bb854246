//! Training of the network that combines the set model's predictions with classical estimates.

use std::path::Path;

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::examples::{Examples, Source};
use crate::Result;
use crate::experiment::{Combiner, ValidExperiment};
use crate::samplers::Split;
use setwise::data::Targets;
use setwise::estimate::pretrained::combiner_training::{
    CombinerInput, HEADS, decode, decode_gradient, ensemble_quantiles, head_outputs, input_width, output_width,
    single_element_sets,
};
use setwise::estimate::pretrained::{INPUT_VERSION, WIDENING};
use setwise::models::{Encoder, Merge, Pooling, Relations};
use setwise::random::Generator;
use setwise::{Loss, Model, ModelConfig, Trainer};

/// Progress of the training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FitProgress {
    /// Examples with features, and their total.
    Examples(usize, usize),
    /// Finished steps, their total, and the smoothed loss.
    Steps(u64, u64, f64),
    /// Mean quantile loss of KL(P‖Q) at the held-out examples of a source, in units of the targets.
    HeldOut(f64),
}

/// Trains the combiner of an experiment on the outputs of its trained set model.
///
/// The same experiment, set model and device give the same combiner. Features are cached in `folder`, if it is given.
/// An error of `observe` ends the training.
pub fn fit(
    experiment: &ValidExperiment,
    parts: &mut Model,
    loader_threads: usize,
    folder: Option<&Path>,
    observe: &mut dyn FnMut(FitProgress) -> Result<()>,
) -> Result<Model> {
    let settings = experiment.combiner.clone().unwrap_or_default();
    let loss = experiment.training.loss.clone();
    let targets = loss.targets();
    let Targets::Quantiles { levels, .. } = &targets else {
        return Err(setwise::Error::Estimate("a combiner predicts quantiles".to_owned()).into());
    };
    if !parts.config().dimension_equivariant {
        return Err(setwise::Error::Estimate(
            "an estimator for any number of columns needs a dimension-equivariant model".to_owned(),
        )
        .into());
    }
    let many = settings.many_rows.as_ref();
    let mut sources = vec![(
        Source::new(experiment, None, parts, loader_threads, folder)?,
        settings.calibration_examples,
        settings.examples,
    )];
    if let Some(many) = many {
        let source = Source::new(experiment, Some(many), parts, loader_threads, folder)?;
        sources.push((source, many.calibration_examples, many.examples));
    }
    let total = sources.iter().map(|(_, held_out, training)| held_out + training).sum();
    let mut seen = 0;
    let (mut held_out, mut training) = (Vec::new(), Examples::default());
    for (source, to_hold_out, to_train) in &sources {
        let mut gather = |stream, count| {
            source.gather(stream, count, parts, &mut |n| {
                seen += n;
                observe(FitProgress::Examples(seen.min(total), total))
            })
        };
        held_out.push(gather(Split::Validation, *to_hold_out)?);
        training.append(gather(Split::Training, *to_train)?);
    }
    let training = StandardisedExamples::of([&training], &targets);
    let members: Vec<Model> = (0..settings.ensemble_size)
        .map(|k| train(&settings, levels, &training, experiment.seed.wrapping_add(k as u64), observe))
        .collect::<Result<_>>()?;
    let mut model = ensemble(members)?;
    for source in &held_out {
        let loss = kl_loss(&mut model, &StandardisedExamples::of([source], &targets), levels)?;
        observe(FitProgress::HeldOut(loss))?;
    }
    let held_out = StandardisedExamples::of(&held_out, &targets);
    calibrate(&mut model, &held_out, levels.len(), settings.calibration_level)?;
    experiment.describe(&mut model);
    Ok(model)
}

/// Examples as the combiner reads them.
#[derive(Default)]
struct StandardisedExamples {
    /// Rows of numbers.
    rows: Vec<f32>,
    /// Estimates that each head weights.
    estimates: [Vec<f32>; HEADS],
    /// Targets of the heads, standardised like the features of their example.
    targets: Vec<[f32; HEADS]>,
    /// Units of the standardised KL(P‖Q).
    scales: Vec<f64>,
}

/// Standardised targets are clamped to this size: estimates can be far off on samples that do not show the difference.
const MAX_TARGET: f64 = 30.0;
/// Weights of the heads in the loss: KL(P‖Q), then the bounded divergences.
const HEAD_WEIGHTS: [f64; HEADS] = [1.0, 0.4, 0.4, 0.4];

impl StandardisedExamples {
    fn of<'a>(sources: impl IntoIterator<Item = &'a Examples>, targets: &Targets) -> Self {
        let mut all = StandardisedExamples::default();
        let examples = sources.into_iter().flat_map(|s| s.rows.chunks_exact(s.width).zip(s.labels.chunks_exact(HEADS)));
        for (features, labels) in examples {
            let input = CombinerInput::of(features, targets);
            all.rows.extend(&input.row);
            let mut standardised = [0.0; HEADS];
            for (k, (head, &label)) in input.heads.iter().zip(labels).enumerate() {
                all.estimates[k].extend(&head.estimates);
                let label = f64::from(label);
                let target = head.standardisation.apply(if k == 0 { targets.target(label) } else { label });
                standardised[k] = target.clamp(-MAX_TARGET, MAX_TARGET) as f32;
            }
            all.targets.push(standardised);
            let kl = input.heads[0].standardisation;
            all.scales.push(kl.invert(1.0) - kl.invert(0.0));
        }
        all
    }

    /// Estimates of a head for an example.
    fn estimates(&self, head: usize, example: usize) -> &[f32] {
        let width = self.estimates[head].len() / self.targets.len();
        &self.estimates[head][example * width..(example + 1) * width]
    }
}

/// A residual network on rows of numbers: each row is a set of one element.
fn config(settings: &Combiner, inputs: usize, outputs: usize) -> Result<ModelConfig> {
    let config = ModelConfig {
        encoder: Encoder::FeedForward,
        sets: 1,
        input_widths: vec![inputs],
        latent: settings.latent,
        hidden: settings.hidden,
        blocks: settings.blocks,
        feed_forward_layers: 1,
        relations: Relations::SelfOnly,
        merge: Merge::Sum,
        outer_residual: false,
        outer_norm: false,
        inner_norm: false,
        pooling: Pooling::Mean,
        decoder_layers: 0,
        output_width: outputs,
        always_project: true,
        heads: 1,
        ..Default::default()
    };
    Ok(config)
}

fn train(
    settings: &Combiner,
    levels: &[f64],
    examples: &StandardisedExamples,
    seed: u64,
    observe: &mut dyn FnMut(FitProgress) -> Result<()>,
) -> Result<Model> {
    let (inputs, outputs) = (input_width(levels.len()), output_width(levels.len()));
    let scaling = Scaling::of(&examples.rows, inputs);
    let mut rows = examples.rows.clone();
    scaling.apply(&mut rows);
    let config = config(settings, inputs, outputs)?.validate()?;
    // The loss is that of the quantiles the outputs encode.
    let mut trainer = Trainer::new(Model::new(config, seed), Loss::L1);
    trainer.adam().weight_decay = settings.weight_decay;
    let mut rng = Generator::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..examples.targets.len()).collect();
    let batch = settings.batch_size.min(order.len());
    let mut at = order.len();
    let mut smooth = None;
    for step in 0..settings.steps {
        if at + batch > order.len() {
            order.shuffle(&mut rng);
            at = 0;
        }
        let chosen = &order[at..at + batch];
        at += batch;
        let mut numbers: Vec<f32> = chosen.iter().flat_map(|&i| &rows[i * inputs..(i + 1) * inputs]).copied().collect();
        // Zero is the mean of an input.
        numbers.iter_mut().filter(|_| rng.random_bool(settings.input_dropout)).for_each(|x| *x = 0.0);
        let part = step as f64 / settings.steps as f64;
        let rate = settings.learning_rate * (0.01 + 0.99 * (0.5 + 0.5 * (std::f64::consts::PI * part).cos()));
        let sets = single_element_sets(&numbers, &[inputs])?;
        let value = trainer.step_with(&sets, rate, Some(1.0), |range, values, gradient| {
            let mut sum = 0.0;
            let rows = values.chunks_exact(outputs).zip(gradient.chunks_exact_mut(outputs));
            for (&i, (values, gradient)) in chosen[range].iter().zip(rows) {
                for (head, weight) in HEAD_WEIGHTS.into_iter().enumerate() {
                    let (outputs, estimates) = (head_outputs(head, levels.len()), examples.estimates(head, i));
                    let values = &values[outputs.clone()];
                    let target = f64::from(examples.targets[i][head]);
                    let (loss, mut slopes) = quantile_loss(&decode(values, estimates), target, levels, batch);
                    slopes.iter_mut().for_each(|slope| *slope *= weight);
                    decode_gradient(values, estimates, &slopes, &mut gradient[outputs]);
                    sum += weight * loss;
                }
            }
            sum
        })?;
        let mean = smooth.map_or(value, |old: f64| old + (value - old) / 100.0);
        smooth = Some(mean);
        if (step + 1) % 500 == 0 || step + 1 == settings.steps {
            observe(FitProgress::Steps(step + 1, settings.steps, mean))?;
        }
    }
    let mut model = trainer.into_model();
    scaling.fold_into(&mut model)?;
    Ok(model)
}

/// The share of one example in the mean quantile loss of a batch, and its gradient.
fn quantile_loss(quantiles: &[f64], target: f64, levels: &[f64], batch: usize) -> (f64, Vec<f64>) {
    let share = 1.0 / (levels.len() * batch) as f64;
    let mut sum = 0.0;
    let gradient = quantiles
        .iter()
        .zip(levels)
        .map(|(q, level)| {
            let slope = if target > *q { -level } else { 1.0 - level };
            sum += slope * (q - target) * share;
            slope * share
        })
        .collect();
    (sum, gradient)
}

/// One network with the outputs of several, one after the other. Each member has its own set, and all sets have the
/// same rows.
fn ensemble(members: Vec<Model>) -> Result<Model> {
    let count = members.len();
    let plain = members[0].config();
    let (latent, outputs) = (plain.latent, plain.output_width);
    let config = ModelConfig {
        sets: count,
        input_widths: plain.input_widths.repeat(count),
        output_width: count * outputs,
        ..(**plain).clone()
    };
    let mut all = Model::new(config.validate()?, 0);
    all.params_mut().fill(0.0);
    for (k, member) in members.iter().enumerate() {
        for name in member.layout().specs().iter().map(|s| s.name.as_str()) {
            let from = &member.params()[range(member, name)?];
            let own = name.replace("input.0.", &format!("input.{k}.")).replace(".0-0.", &format!(".{k}-{k}."));
            let to = range(&all, &own)?;
            let to = &mut all.params_mut()[to];
            match name {
                // Rows of a member's outputs read the member's set only.
                "decoder.0.weight" => {
                    let rows = to.chunks_exact_mut(count * latent).skip(k * outputs);
                    for (to, from) in rows.zip(from.chunks_exact(latent)) {
                        to[k * latent..(k + 1) * latent].copy_from_slice(from);
                    }
                }
                "decoder.0.bias" => to[k * outputs..(k + 1) * outputs].copy_from_slice(from),
                _ => to.copy_from_slice(from),
            }
        }
    }
    Ok(all)
}

/// Means and deviations of the numbers.
struct Scaling {
    mean: Vec<f64>,
    deviation: Vec<f64>,
}

impl Scaling {
    fn of(rows: &[f32], width: usize) -> Self {
        let n = (rows.len() / width) as f64;
        let column = |j: usize| rows.iter().skip(j).step_by(width).map(|&x| f64::from(x));
        let mean: Vec<f64> = (0..width).map(|j| column(j).sum::<f64>() / n).collect();
        let deviation =
            (0..width).map(|j| (column(j).map(|x| (x - mean[j]).powi(2)).sum::<f64>() / n).sqrt().max(1e-6)).collect();
        Scaling { mean, deviation }
    }

    fn apply(&self, rows: &mut [f32]) {
        for row in rows.chunks_exact_mut(self.mean.len()) {
            for (x, (m, d)) in row.iter_mut().zip(self.mean.iter().zip(&self.deviation)) {
                *x = ((f64::from(*x) - m) / d) as f32;
            }
        }
    }

    /// Folds the scaling into a network's first layer, so that its inputs are unscaled.
    fn fold_into(&self, model: &mut Model) -> Result<()> {
        let (weight, bias) = (range(model, "input.0.weight")?, range(model, "input.0.bias")?);
        let params = model.params_mut();
        let width = self.mean.len();
        for (i, at) in bias.enumerate() {
            let row = weight.start + i * width..weight.start + (i + 1) * width;
            let mut moved = f64::from(params[at]);
            for (w, (m, d)) in params[row].iter_mut().zip(self.mean.iter().zip(&self.deviation)) {
                let scaled = f64::from(*w) / d;
                moved -= scaled * m;
                *w = scaled as f32;
            }
            params[at] = moved as f32;
        }
        Ok(())
    }
}

fn range(model: &Model, name: &str) -> Result<std::ops::Range<usize>> {
    let found = model.layout().find(name).map(|s| s.range());
    found.ok_or_else(|| setwise::Error::Estimate(format!("the combining network has no {name:?}")).into())
}

/// The mean quantile loss of KL(P‖Q) in units of the targets.
fn kl_loss(model: &mut Model, examples: &StandardisedExamples, levels: &[f64]) -> Result<f64> {
    let answers = model.predict(&single_element_sets(&examples.rows, &model.config().input_widths)?)?;
    let loss = |(i, (targets, scale)): (usize, (&[f32; HEADS], &f64))| {
        let quantiles = ensemble_quantiles(answers.example(i), 0, examples.estimates(0, i), levels.len());
        scale * quantile_loss(&quantiles, f64::from(targets[0]), levels, examples.targets.len()).0
    };
    Ok(examples.targets.iter().zip(&examples.scales).enumerate().map(loss).sum())
}

/// Calibrates the outer quantiles so that a share of held-out labels, the level, lies between them.
///
/// This is conformalised quantile regression (Romano, Patterson, Candès, 2019) with scores relative to the interval's
/// width. The model's metadata holds the shares by which the intervals of the heads are widened.
fn calibrate(model: &mut Model, held_out: &StandardisedExamples, levels: usize, level: f64) -> Result<()> {
    let answers = model.predict(&single_element_sets(&held_out.rows, &model.config().input_widths)?)?;
    let share = |head: usize| {
        let score = |(i, targets): (usize, &[f32; HEADS])| {
            let quantiles = ensemble_quantiles(answers.example(i), head, held_out.estimates(head, i), levels);
            let (low, high, t) = (quantiles[0], quantiles[levels - 1], f64::from(targets[head]));
            (low - t).max(t - high) / (high - low).max(1e-6)
        };
        let mut scores: Vec<f64> = held_out.targets.iter().enumerate().map(score).collect();
        scores.sort_by(f64::total_cmp);
        let place = (level * (scores.len() + 1) as f64).ceil() as usize;
        // The clamp keeps the quantiles from crossing.
        scores[place.clamp(1, scores.len()) - 1].clamp(-0.2, 5.0)
    };
    let shares: [f64; HEADS] = std::array::from_fn(share);
    let [key, version] = INPUT_VERSION;
    model.set_metadata(key, version);
    model.set_metadata(WIDENING, serde_json::to_string(&shares).expect("numbers are plain data"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use setwise::estimate::pretrained::combiner_training::{weighted_estimates, widen};

    use super::*;

    fn model(seed: u64, outputs: usize) -> Model {
        let settings = Combiner { latent: 8, hidden: 8, blocks: 2, ..Default::default() };
        Model::new(config(&settings, 6, outputs).unwrap().validate().unwrap(), seed)
    }

    #[test]
    fn an_ensemble_has_the_outputs_of_its_members() {
        let mut members: Vec<Model> = (1..4).map(|seed| model(seed, 3)).collect();
        members.iter_mut().enumerate().for_each(|(k, m)| m.params_mut().iter_mut().for_each(|p| *p += 0.01 * k as f32));
        let rows: Vec<f32> = (0..24).map(|i| ((i * 37) % 11) as f32 - 4.0).collect();
        let mut all = ensemble(members.clone()).unwrap();
        let found = all.predict(&single_element_sets(&rows, &[6; 3]).unwrap()).unwrap();
        for (k, member) in members.iter_mut().enumerate() {
            let alone = member.predict(&single_element_sets(&rows, &[6]).unwrap()).unwrap();
            for i in 0..4 {
                for (a, b) in found.example(i)[3 * k..3 * k + 3].iter().zip(alone.example(i)) {
                    assert!((a - b).abs() < 1e-5, "member {k}: {a}, not {b}");
                }
            }
        }
    }

    #[test]
    fn a_network_with_its_scaling_folded_in_answers_as_before() {
        let rows: Vec<f32> = (0..60).map(|i| ((i * 37) % 11) as f32 * (1 + i % 6) as f32 + 5.0).collect();
        let scaling = Scaling::of(&rows, 6);
        let mut scaled = rows.clone();
        scaling.apply(&mut scaled);
        let mut m = model(3, 3);
        let before = m.predict(&single_element_sets(&scaled, &[6]).unwrap()).unwrap();
        scaling.fold_into(&mut m).unwrap();
        let after = m.predict(&single_element_sets(&rows, &[6]).unwrap()).unwrap();
        for (a, b) in before.values().iter().zip(after.values()) {
            assert!((a - b).abs() < 1e-4, "{a} and {b}");
        }
    }

    #[test]
    fn the_gradient_of_the_quantile_loss_points_to_the_quantile() {
        let levels = [0.05, 0.5, 0.95];
        let (loss, gradient) = quantile_loss(&[-1.0, 0.0, 1.0], 0.5, &levels, 1);
        assert!((loss - (0.05 * 1.5 + 0.5 * 0.5 + 0.05 * 0.5) / 3.0).abs() < 1e-12, "{loss}");
        assert!(gradient[0] < 0.0 && gradient[1] < 0.0 && gradient[2] > 0.0);
    }

    /// Examples whose targets are normal around the first estimate of each head.
    fn examples(count: usize, seed: u64) -> StandardisedExamples {
        use rand_distr::{Distribution, StandardNormal};
        let mut rng = Generator::seed_from_u64(seed);
        let mut normal = || -> f32 { StandardNormal.sample(&mut rng) };
        let mut all = StandardisedExamples::default();
        for _ in 0..count {
            let first = all.rows.len();
            let mut targets = [0.0; HEADS];
            for (head, target) in targets.iter_mut().enumerate() {
                let estimates: Vec<f32> = (0..weighted_estimates(head, 3)).map(|_| 2.0 * normal()).collect();
                *target = estimates[0] + 0.5 * normal();
                all.rows.extend(&estimates);
                all.estimates[head].extend(estimates);
            }
            all.targets.push(targets);
            all.scales.push(1.0);
            all.rows.resize_with(first + input_width(3), &mut normal);
        }
        all
    }

    #[test]
    fn training_finds_the_best_estimate_and_calibration_its_error() {
        let levels = [0.05, 0.5, 0.95];
        let settings =
            Combiner { latent: 16, hidden: 16, blocks: 1, steps: 400, batch_size: 128, ..Default::default() };
        let mut seen = 0;
        let mut count = |_| {
            seen += 1;
            Ok(())
        };
        let member = train(&settings, &levels, &examples(4000, 1), 3, &mut count).unwrap();
        let mut model = ensemble(vec![member]).unwrap();
        calibrate(&mut model, &examples(2000, 2), 3, setwise::estimate::LEVEL).unwrap();
        assert!(seen > 0);
        let shares: [f64; HEADS] = serde_json::from_str(&model.metadata()[WIDENING]).unwrap();
        let fresh = examples(1000, 4);
        // That of the quantiles of normal noise with deviation ½ is 0.10.
        let loss = kl_loss(&mut model, &fresh, &levels).unwrap();
        assert!((0.085..0.16).contains(&loss), "{loss}");
        let answers = model.predict(&single_element_sets(&fresh.rows, &[input_width(3)]).unwrap()).unwrap();
        for (head, share) in shares.into_iter().enumerate() {
            let (mut covered, mut error) = (0, 0.0);
            for (i, targets) in fresh.targets.iter().enumerate() {
                let target = f64::from(targets[head]);
                let mut quantiles = ensemble_quantiles(answers.example(i), head, fresh.estimates(head, i), 3);
                widen(&mut quantiles, share);
                covered += usize::from(quantiles[0] <= target && target <= quantiles[2]);
                error += (quantiles[1] - target).abs() / 1000.0;
            }
            // The mean absolute deviation of the noise is 0.4.
            assert!((860..=940).contains(&covered) && error < 0.6, "head {head}: {covered} covered, error {error}");
        }
    }
}
