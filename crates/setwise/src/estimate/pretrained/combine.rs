//! From evidence to the numbers the last network sees, and the answers of the set model on all parts.

use super::evidence::{CLASSICAL, DIVERGENCES, Evidence, place};
use crate::data::{Targets, compress};
use crate::models::Prediction;
use crate::sets::PackedSet;
use crate::{Error, Result, SetBatch};

/// Parts the set model sees at once: threads that share them wait for each other after every batch, and so does a GPU for its caller.
pub const AT_ONCE: usize = 256;

/// Numbers that are kept of a pair of samples, beside the quantiles.
pub const NUMBERS: usize = 4 + CLASSICAL;

/// Numbers the last network sees, for answers with this many quantiles.
pub fn width(levels: usize) -> usize {
    levels + NUMBERS + 2
}

/// The answers of the set model for every part of every pair: quantiles in order. It sees at most [`AT_ONCE`] parts at a time.
pub fn ask(mut predict: impl FnMut(&SetBatch) -> Result<Prediction>, all: &[&Evidence]) -> Result<Vec<Vec<Vec<f32>>>> {
    let mut answers: Vec<Vec<Vec<f32>>> = all.iter().map(|e| vec![Vec::new(); e.parts.len()]).collect();
    let mut order: Vec<(usize, usize)> =
        all.iter().enumerate().flat_map(|(i, e)| (0..e.parts.len()).map(move |k| (i, k))).collect();
    // One width at a time, and parts of like size together.
    order.sort_by_key(|&(i, k)| (all[i].dim, all[i].parts[k].p.len()));
    let mut rest = &order[..];
    while let Some(&(first, _)) = rest.first() {
        let dim = all[first].dim;
        let count = rest.iter().take(AT_ONCE).take_while(|(i, _)| all[*i].dim == dim).count();
        let (now, later) = rest.split_at(count);
        let sets = [0, 1].map(|set| {
            let rows = |&(i, k): &(usize, usize)| if set == 0 { &all[i].parts[k].p } else { &all[i].parts[k].q };
            let mut offsets = vec![0];
            let mut data = Vec::new();
            for at in now {
                data.extend_from_slice(rows(at));
                offsets.push(data.len() / dim);
            }
            PackedSet::new(data, dim, offsets)
        });
        let found = predict(&SetBatch::new(sets.into())?)?;
        for (at, &(i, k)) in now.iter().enumerate() {
            let mut answer = found.example(at).to_vec();
            answer.sort_by(f32::total_cmp);
            answers[i][k] = answer;
        }
        rest = later;
    }
    Ok(answers)
}

/// What is seen of a pair of samples in one row: quantiles averaged over parts, how far the parts' medians spread, how many they are
/// and their sizes, and the classical numbers, divergences compressed like the targets.
pub fn numbers(evidence: &Evidence, answers: &[Vec<f32>], targets: &Targets) -> Result<Vec<f32>> {
    let Targets::Quantiles { levels, scale } = targets else {
        return Err(Error::Estimate("the set model does not answer with quantiles".to_owned()));
    };
    let parts = answers.len() as f64;
    let mean = |j: usize| answers.iter().map(|a| f64::from(a[j])).sum::<f64>() / parts;
    let middle = levels.len() / 2;
    let centre = mean(middle);
    let spread = answers.iter().map(|a| (f64::from(a[middle]) - centre).powi(2)).sum::<f64>() / parts;
    let mut row: Vec<f64> = (0..levels.len()).map(mean).collect();
    row.extend([spread.sqrt(), parts.ln()]);
    let part = &evidence.parts[0];
    row.extend([&part.p, &part.q].map(|rows| ((rows.len() / evidence.dim) as f64).ln()));
    let (numbers, divergences) = evidence.classical.split_at(CLASSICAL - DIVERGENCES);
    row.extend(numbers);
    row.extend(divergences.iter().map(|&kl| compress(kl.clamp(-3.0, 200.0), *scale)));
    if row.iter().any(|x| !x.is_finite()) {
        return Err(Error::Estimate("the samples are too uneven for numbers; rescale the columns".to_owned()));
    }
    Ok(row.into_iter().map(|x| x as f32).collect())
}

/// The units in which the last network answers: where the truth seems to lie, and how far from there it may be. In these units a small
/// divergence of many rows is as hard as a large one of few.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Units {
    centre: f64,
    scale: f64,
}

impl Units {
    /// A compressed divergence in these units.
    pub fn of(self, target: f64) -> f64 {
        (target - self.centre) / self.scale
    }

    /// The compressed divergence.
    pub fn back(self, answer: f64) -> f64 {
        self.centre + self.scale * answer
    }
}

/// What the last network sees: divergences in units of their own, in which it answers too; the other numbers; and the units.
pub struct Relative {
    /// The units of its divergences.
    pub units: Units,
    /// The inputs of the network.
    pub row: Vec<f32>,
    /// The divergence the moments alone have, compressed.
    pub of_moments: f64,
}

/// No scale is smaller than this.
const LEAST: f64 = 3e-3;

impl Relative {
    /// From the numbers of a pair of samples. The centre is the median of five estimates; the scale is made of their distances from it, the
    /// noise of the second classifier and the set model's own interval.
    pub fn of(numbers: &[f32], targets: &Targets) -> Self {
        let levels = targets.width();
        let (others, divergences) = numbers[levels..].split_at(NUMBERS - DIVERGENCES);
        let quantiles = &numbers[..levels];
        let at = |i: usize| f64::from(divergences[i]);
        let estimates = [
            f64::from(quantiles[levels / 2]),
            at(place::K3),
            at(place::GAUSSIAN),
            0.5 * (at(place::PLAIN) + at(place::PLAIN + 1)),
            0.5 * (at(place::WIDE) + at(place::WIDE + 1)),
        ];
        let centre = median(estimates);
        let gap = median(estimates.map(|e| (e - centre).abs()));
        // The slope of the compression turns noise in nats into noise of targets.
        let step = 1e-3;
        let (low, high) = (targets.label(centre.max(0.0)), targets.label(centre.max(0.0) + step));
        let noise = f64::from(others[others.len() - 1]).exp() * step / (high - low);
        let band = f64::from(quantiles[levels - 1]) - f64::from(quantiles[0]);
        let scale = (noise.powi(2) + gap.powi(2) + (0.1 * band).powi(2) + LEAST.powi(2)).sqrt();
        let units = Units { centre, scale };
        // Estimates that are far off are not to drown the others.
        let seen = quantiles.iter().chain(divergences).map(|&x| 3.0 * (units.of(f64::from(x)) / 3.0).asinh() as f32);
        let row = seen.chain(others.iter().copied()).chain([centre as f32, scale.ln() as f32]).collect();
        Relative { units, row, of_moments: at(place::GAUSSIAN) }
    }
}

fn median(mut five: [f64; 5]) -> f64 {
    five.sort_by(f64::total_cmp);
    five[2]
}

/// Rows of numbers as sets of one element each.
pub fn batch_of(rows: &[f32], widths: &[usize]) -> Result<SetBatch> {
    let set = |&width: &usize| PackedSet::new(rows.to_vec(), width, (0..=rows.len() / width).collect());
    SetBatch::new(widths.iter().map(set).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_in_units_of_the_estimates_distances() {
        let targets = Targets::Quantiles { levels: vec![0.05, 0.5, 0.95], scale: 1.0 };
        let mut numbers = vec![0.0f32; 3 + NUMBERS];
        numbers[..3].copy_from_slice(&[0.9, 1.0, 1.1]);
        let first = numbers.len() - DIVERGENCES;
        numbers[first..].fill(1.2);
        numbers[first - 1] = -20.0; // no noise
        let near = Relative::of(&numbers, &targets);
        assert_eq!(near.row.len(), width(3));
        assert!((near.units.back(near.units.of(0.7)) - 0.7).abs() < 1e-12);
        // Four estimates agree, so the scale is small; where they do not, it grows.
        numbers[first + place::K3] = 2.0;
        numbers[first + place::GAUSSIAN] = 0.2;
        let far = Relative::of(&numbers, &targets);
        assert!(far.units.of(2.0).abs() < 0.5 * near.units.of(2.0).abs());
        assert!(far.units.of(f64::from(numbers[first + place::WIDE])).abs() < 1e-6);
    }
}
