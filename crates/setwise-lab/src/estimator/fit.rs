//! Training of the network that combines the set model's answers with classical estimates.

use std::path::Path;

use rand::SeedableRng;
use rand::seq::SliceRandom;

use super::examples::{Examples, Source};
use crate::Result;
use crate::experiment::{Combiner, ValidExperiment};
use crate::samplers::Split;
use setwise::data::Targets;
use setwise::estimate::pretrained::combiner_training::{StandardisedFeatures, input_width, single_element_sets};
use setwise::models::{Encoder, Merge, Pooling, Relations};
use setwise::random::Generator;
use setwise::{Loss, Model, ModelConfig, Trainer};

/// What is being done, and how much of it has been.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FitProgress {
    /// Examples looked at, of all.
    Examples(usize, usize),
    /// Steps made, of all, and the loss.
    Steps(u64, u64, f64),
}

/// Trains the combiner of an experiment on the outputs of its trained set model.
///
/// The same experiment, set model and device give the same combiner. `folder` caches the features of examples. An error
/// of `observe` ends the training.
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
    if !parts.config().dimension_equivariant {
        return Err(setwise::Error::Estimate(
            "an estimator for any number of columns needs a dimension-equivariant model".to_owned(),
        )
        .into());
    }
    let source = Source::new(experiment, parts, loader_threads, folder)?;
    let total = settings.examples + settings.calibration_examples;
    let mut seen = 0;
    let mut gather = |stream, count, parts: &mut Model, observe: &mut dyn FnMut(FitProgress) -> Result<()>| {
        source.gather(stream, count, parts, &mut |n| {
            seen += n;
            observe(FitProgress::Examples(seen.min(total), total))
        })
    };
    let held_out = gather(Split::Validation, settings.calibration_examples, parts, observe)?;
    let training = gather(Split::Training, settings.examples, parts, observe)?;
    let standardise = |examples: &Examples| StandardisedExamples::of(examples, &targets);
    let training = standardise(&training);
    let members: Vec<Model> = (0..settings.ensemble_size)
        .map(|k| {
            train(&settings, loss.loss(), targets.width(), &training, experiment.seed.wrapping_add(k as u64), observe)
        })
        .collect::<Result<_>>()?;
    let mut model = averaged(members)?;
    calibrate(&mut model, &standardise(&held_out), targets.width())?;
    experiment.describe(&mut model);
    Ok(model)
}

/// Examples as the combiner reads them.
struct StandardisedExamples {
    /// Rows of numbers.
    rows: Vec<f32>,
    /// Targets, standardised like the features of their example.
    targets: Vec<f32>,
}

impl StandardisedExamples {
    fn of(examples: &Examples, targets: &Targets) -> Self {
        let mut all = StandardisedExamples { rows: Vec::new(), targets: Vec::new() };
        for (features, &label) in examples.rows.chunks_exact(examples.width).zip(&examples.labels) {
            let standardised = StandardisedFeatures::of(features, targets);
            all.rows.extend(&standardised.row);
            all.targets.push(standardised.standardisation.apply(targets.target(f64::from(label))) as f32);
        }
        all
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
    loss: Loss,
    levels: usize,
    examples: &StandardisedExamples,
    seed: u64,
    observe: &mut dyn FnMut(FitProgress) -> Result<()>,
) -> Result<Model> {
    let inputs = input_width(levels);
    let scaling = Scaling::of(&examples.rows, inputs);
    let mut rows = examples.rows.clone();
    scaling.apply(&mut rows);
    let config = config(settings, inputs, levels)?.validate()?;
    let mut trainer = Trainer::new(Model::new(config, seed), loss);
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
        let numbers: Vec<f32> = chosen.iter().flat_map(|&i| &rows[i * inputs..(i + 1) * inputs]).copied().collect();
        let repeated = chosen.iter().flat_map(|&i| std::iter::repeat_n(examples.targets[i], levels));
        let targets: Vec<f32> = repeated.collect();
        let part = step as f64 / settings.steps as f64;
        let rate = settings.learning_rate * (0.01 + 0.99 * (0.5 + 0.5 * (std::f64::consts::PI * part).cos()));
        trainer.submit(&single_element_sets(&numbers, &[inputs])?, &targets, rate, Some(1.0))?;
        let value = trainer.outcome(true)?.map_or(f64::NAN, |o| o.loss);
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

/// One network that answers with the mean of several: each has a set of its own, all of which are given the same rows.
fn averaged(members: Vec<Model>) -> Result<Model> {
    let count = members.len();
    let plain = members[0].config();
    let latent = plain.latent;
    let config = ModelConfig { sets: count, input_widths: plain.input_widths.repeat(count), ..(**plain).clone() };
    let mut all = Model::new(config.validate()?, 0);
    all.params_mut().fill(0.0);
    for (k, member) in members.iter().enumerate() {
        for name in member.layout().specs().iter().map(|s| s.name.as_str()) {
            let from = &member.params()[range(member, name)?];
            let own = name.replace("input.0.", &format!("input.{k}.")).replace(".0-0.", &format!(".{k}-{k}."));
            let to = range(&all, &own)?;
            let to = &mut all.params_mut()[to];
            match name {
                "decoder.0.weight" => {
                    for (to, from) in to.chunks_exact_mut(count * latent).zip(from.chunks_exact(latent)) {
                        let place = k * latent..(k + 1) * latent;
                        to[place].iter_mut().zip(from).for_each(|(to, from)| *to = from / count as f32);
                    }
                }
                "decoder.0.bias" => to.iter_mut().zip(from).for_each(|(to, from)| *to += from / count as f32),
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

    /// Makes a network trained on scaled numbers take them as they are.
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

/// Widens or narrows the interval of the outer quantiles, so that it holds 90 % of the held-out labels.
///
/// This is conformalised quantile regression (Romano, Patterson, Candès, 2019), with scores in units of the interval's
/// width.
fn calibrate(model: &mut Model, held_out: &StandardisedExamples, levels: usize) -> Result<()> {
    let answers = model.predict(&single_element_sets(&held_out.rows, &model.config().input_widths)?)?;
    let mut scores: Vec<f64> = held_out
        .targets
        .iter()
        .enumerate()
        .map(|(i, &t)| {
            let mut q: Vec<f64> = answers.example(i).iter().map(|&x| f64::from(x)).collect();
            q.sort_by(f64::total_cmp);
            let (low, high, t) = (q[0], q[levels - 1], f64::from(t));
            (low - t).max(t - high) / (high - low).max(1e-6)
        })
        .collect();
    scores.sort_by(f64::total_cmp);
    let place = (setwise::estimate::LEVEL * (scores.len() + 1) as f64).ceil() as usize;
    // Never so far in that the quantiles would cross.
    let share = scores[place.clamp(1, scores.len()) - 1].clamp(-0.2, 5.0);
    widen(model, levels, share)
}

/// Replaces low by low − share·(high − low) and high by high + share·(high − low).
///
/// Both are linear in the outputs of the last layer, so its parameters change.
fn widen(model: &mut Model, levels: usize, share: f64) -> Result<()> {
    let (weight, bias) = (range(model, "decoder.0.weight")?, range(model, "decoder.0.bias")?);
    let columns = weight.len() / levels;
    let params = model.params_mut();
    let last = levels - 1;
    let mut pair = |low: usize, high: usize| {
        let (a, b) = (f64::from(params[low]), f64::from(params[high]));
        params[low] = (a - share * (b - a)) as f32;
        params[high] = (b + share * (b - a)) as f32;
    };
    (0..columns).for_each(|j| pair(weight.start + j, weight.start + last * columns + j));
    pair(bias.start, bias.start + last);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let settings = Combiner { latent: 8, hidden: 8, blocks: 1, ..Default::default() };
        Model::new(config(&settings, 6, 3).unwrap().validate().unwrap(), 3)
    }

    #[test]
    fn averaged_networks_answer_with_their_mean() {
        let settings = Combiner { latent: 8, hidden: 8, blocks: 2, ..Default::default() };
        let one = |seed| Model::new(config(&settings, 6, 3).unwrap().validate().unwrap(), seed);
        let mut members = vec![one(1), one(2), one(3)];
        members.iter_mut().enumerate().for_each(|(k, m)| m.params_mut().iter_mut().for_each(|p| *p += 0.01 * k as f32));
        let rows: Vec<f32> = (0..24).map(|i| ((i * 37) % 11) as f32 - 4.0).collect();
        let mut all = averaged(members.clone()).unwrap();
        let found = all.predict(&single_element_sets(&rows, &[6; 3]).unwrap()).unwrap();
        let each: Vec<_> =
            members.iter_mut().map(|m| m.predict(&single_element_sets(&rows, &[6]).unwrap()).unwrap()).collect();
        for (i, found) in found.values().iter().enumerate() {
            let mean = each.iter().map(|e| e.values()[i]).sum::<f32>() / 3.0;
            assert!((found - mean).abs() < 1e-5, "{found}, not {mean}");
        }
        let mut alone = averaged(members[..1].to_vec()).unwrap();
        assert_eq!(alone.predict(&single_element_sets(&rows, &[6]).unwrap()).unwrap(), each[0]);
    }

    #[test]
    fn a_network_with_its_scaling_folded_in_answers_as_before() {
        let rows: Vec<f32> = (0..60).map(|i| ((i * 37) % 11) as f32 * (1 + i % 6) as f32 + 5.0).collect();
        let scaling = Scaling::of(&rows, 6);
        let mut scaled = rows.clone();
        scaling.apply(&mut scaled);
        let mut m = model();
        let before = m.predict(&single_element_sets(&scaled, &[6]).unwrap()).unwrap();
        scaling.fold_into(&mut m).unwrap();
        let after = m.predict(&single_element_sets(&rows, &[6]).unwrap()).unwrap();
        for (a, b) in before.values().iter().zip(after.values()) {
            assert!((a - b).abs() < 1e-4, "{a} and {b}");
        }
    }

    #[test]
    fn widening_moves_the_outer_quantiles_by_a_share_of_their_distance() {
        let row = [0.3f32, -1.0, 2.0, 0.5, 0.1, -0.7];
        let mut m = model();
        let before = m.predict(&single_element_sets(&row, &[6]).unwrap()).unwrap().values().to_vec();
        widen(&mut m, 3, 0.25).unwrap();
        let after = m.predict(&single_element_sets(&row, &[6]).unwrap()).unwrap().values().to_vec();
        let distance = before[2] - before[0];
        assert!((after[0] - (before[0] - 0.25 * distance)).abs() < 1e-5);
        assert!((after[1] - before[1]).abs() < 1e-6);
        assert!((after[2] - (before[2] + 0.25 * distance)).abs() < 1e-5);
    }

    #[test]
    fn nine_of_ten_held_out_examples_lie_between_the_calibrated_quantiles() {
        let mut m = model();
        let rows: Vec<f32> = (0..6000).map(|i| ((i * 7919 % 1009) as f32) / 500.0 - 1.0).collect();
        let answers = m.predict(&single_element_sets(&rows, &[6]).unwrap()).unwrap();
        // Labels around the middle quantile.
        let targets: Vec<f32> =
            (0..1000).map(|i| answers.example(i)[1] + ((i * 31 % 97) as f32 / 97.0 - 0.5) * 0.8).collect();
        // Quantiles in the right order, narrow: the decoder's outer rows are made neighbours of the middle one's.
        let (weight, bias) = (range(&m, "decoder.0.weight").unwrap(), range(&m, "decoder.0.bias").unwrap());
        let columns = weight.len() / 3;
        for j in 0..columns {
            let middle = m.params()[weight.start + columns + j];
            m.params_mut()[weight.start + j] = middle;
            m.params_mut()[weight.start + 2 * columns + j] = middle;
        }
        let middle = m.params()[bias.start + 1];
        m.params_mut()[bias.start] = middle - 0.1;
        m.params_mut()[bias.start + 2] = middle + 0.1;
        let examples = StandardisedExamples { rows, targets };
        calibrate(&mut m, &examples, 3).unwrap();
        let answers = m.predict(&single_element_sets(&examples.rows, &[6]).unwrap()).unwrap();
        let within =
            |i: usize| answers.example(i)[0] <= examples.targets[i] && examples.targets[i] <= answers.example(i)[2];
        let covered = (0..1000).filter(|&i| within(i)).count();
        assert!((890..=930).contains(&covered), "{covered}");
    }
}
