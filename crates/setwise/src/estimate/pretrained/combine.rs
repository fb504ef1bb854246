//! From evidence to the numbers the last network sees, and the answers of the set model on all parts.

use super::evidence::{CLASSICAL, DIVERGENCES, Evidence};
use crate::data::{Targets, compress};
use crate::models::Prediction;
use crate::sets::PackedSet;
use crate::{Error, Result, SetBatch};

/// Parts the set model sees at once.
const BATCH: usize = 64;

/// Numbers that are kept of a pair of samples, beside the quantiles.
pub const NUMBERS: usize = 4 + CLASSICAL;

/// Numbers the last network sees, for answers with this many quantiles.
pub fn width(levels: usize) -> usize {
    levels + NUMBERS
}

/// The answers of the set model for every part of every pair: quantiles in order.
pub fn ask(mut predict: impl FnMut(&SetBatch) -> Result<Prediction>, all: &[&Evidence]) -> Result<Vec<Vec<Vec<f32>>>> {
    let mut answers: Vec<Vec<Vec<f32>>> = all.iter().map(|e| vec![Vec::new(); e.parts.len()]).collect();
    let mut order: Vec<(usize, usize)> =
        all.iter().enumerate().flat_map(|(i, e)| (0..e.parts.len()).map(move |k| (i, k))).collect();
    // One width at a time, and parts of like size together.
    order.sort_by_key(|&(i, k)| (all[i].dim, all[i].parts[k].p.len()));
    let mut rest = &order[..];
    while let Some(&(first, _)) = rest.first() {
        let dim = all[first].dim;
        let count = rest.iter().take(BATCH).take_while(|(i, _)| all[*i].dim == dim).count();
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

/// The units in which the last network answers: where estimates lie, and how far they and the noise say the truth may be.
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

/// What the last network sees: divergences in units of their own, which it answers in too.
pub struct Relative {
    pub units: Units,
    pub row: Vec<f32>,
}

impl Relative {
    /// From the numbers of a pair of samples.
    pub fn of(numbers: &[f32], _levels: usize) -> Self {
        Relative { units: Units { centre: 0.0, scale: 1.0 }, row: numbers.to_vec() }
    }
}

/// Rows of numbers as sets of one element each.
pub fn batch_of(rows: &[f32], width: usize) -> Result<SetBatch> {
    SetBatch::new(vec![PackedSet::new(rows.to_vec(), width, (0..=rows.len() / width).collect())])
}
