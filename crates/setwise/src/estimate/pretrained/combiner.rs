//! The combiner: a network that weights estimates of a divergence and says how far off their sum may be.
//!
//! Its inputs are standardised: estimates relative to a centre, in units of a scale. The centre is the median of
//! estimates that converge with the number of rows. The scale combines their distances with a standard error, so it
//! shrinks where they agree. Outputs are weights of all estimates, an offset, and the distances between quantiles, all
//! in units of the scale.

use std::ops::Range;

use super::super::softplus;
use super::bounded::{BOUNDED_ESTIMATES, Bounded, MEASURES};
use super::directed::{CONTEXT, Directed, ESTIMATES, estimate_index};
use super::features::PairFeatures;
use crate::data::{Targets, compress};
use crate::models::Prediction;
use crate::sets::PackedSet;
use crate::{Error, Result, SetBatch};

/// Subsamples in a batch of the set model. Threads that share a batch wait for each other at its end, and so does the
/// caller of a GPU.
const MAX_BATCH: usize = 256;
/// Features of the set model beside its quantiles: their spread, number and sizes of subsamples.
const SET_MODEL_CONTEXT: usize = 4;
/// Standardised estimates are clamped to this size.
const MAX_STANDARDISED: f64 = 30.0;
/// The unit of the offset.
const OFFSET_UNIT: f64 = 0.5;
/// The smallest scale of a standardisation.
const MIN_SCALE: f64 = 3e-4;
/// The smallest scale the network is told.
const MIN_KNOWN_SCALE: f64 = 1e-3;
/// The part of the range of estimates that the scale has at least.
const RANGE_SHARE: f64 = 1.0 / MAX_STANDARDISED;

/// Answers of the combiner: KL(P‖Q), then the bounded divergences.
pub const HEADS: usize = 1 + MEASURES;

/// Numbers in a [`feature_row`], for `levels` quantiles of the set model.
pub fn feature_width(levels: usize) -> usize {
    levels + SET_MODEL_CONTEXT + ESTIMATES + CONTEXT + 1 + MEASURES * (BOUNDED_ESTIMATES + 1)
}

/// Estimates that a head weights, for `levels` quantiles: classical ones, and for KL the set model's quantiles.
pub fn weighted_estimates(head: usize, levels: usize) -> usize {
    if head == 0 { ESTIMATES + levels } else { BOUNDED_ESTIMATES }
}

/// Inputs of the combiner, for `levels` quantiles.
pub fn input_width(levels: usize) -> usize {
    let of_heads: usize = (0..HEADS).map(|head| weighted_estimates(head, levels) + 2).sum();
    of_heads + SET_MODEL_CONTEXT + CONTEXT
}

/// Places of a head's outputs: weights, an offset, and distances between quantiles.
pub fn head_outputs(head: usize, levels: usize) -> Range<usize> {
    let end = |heads: usize| (0..heads).map(|h| weighted_estimates(h, levels) + levels).sum();
    end(head)..end(head + 1)
}

/// Outputs of the combiner, for `levels` quantiles.
pub fn output_width(levels: usize) -> usize {
    head_outputs(HEADS - 1, levels).end
}

/// Subsamples of a pair in the order of a direction.
pub type DirectedSubsamples<'a> = (usize, Vec<[&'a [f32]; 2]>);

/// The dimension and the subsamples of a pair, with P and Q swapped in the backward direction.
pub fn directed_subsamples(features: &PairFeatures, backward: bool) -> DirectedSubsamples<'_> {
    let ordered = features
        .subsamples
        .iter()
        .map(|s| if backward { [&s.q[..], &s.p[..]] } else { [&s.p[..], &s.q[..]] })
        .collect();
    (features.dim, ordered)
}

/// Sorted quantiles of the set model, by pair and subsample, computed in batches of at most 256 subsamples.
pub fn set_model_quantiles(
    mut predict: impl FnMut(&SetBatch) -> Result<Prediction>,
    pairs: &[DirectedSubsamples],
) -> Result<Vec<Vec<Vec<f32>>>> {
    let mut quantiles: Vec<Vec<Vec<f32>>> = pairs.iter().map(|(_, s)| vec![Vec::new(); s.len()]).collect();
    let mut order: Vec<(usize, usize)> =
        pairs.iter().enumerate().flat_map(|(i, (_, s))| (0..s.len()).map(move |k| (i, k))).collect();
    // A batch has one width, and subsamples of similar size.
    order.sort_by_key(|&(i, k)| (pairs[i].0, pairs[i].1[k][0].len()));
    let mut rest = &order[..];
    while let Some(&(first, _)) = rest.first() {
        let dim = pairs[first].0;
        let count = rest.iter().take(MAX_BATCH).take_while(|(i, _)| pairs[*i].0 == dim).count();
        let (batch, later) = rest.split_at(count);
        let sets = [0, 1].map(|set| {
            let mut offsets = vec![0];
            let mut data = Vec::new();
            for &(i, k) in batch {
                data.extend_from_slice(pairs[i].1[k][set]);
                offsets.push(data.len() / dim);
            }
            PackedSet::new(data, dim, offsets)
        });
        let predicted = predict(&SetBatch::new(sets.into())?)?;
        for (example, &(i, k)) in batch.iter().enumerate() {
            let mut sorted = predicted.example(example).to_vec();
            sorted.sort_by(f32::total_cmp);
            quantiles[i][k] = sorted;
        }
        rest = later;
    }
    Ok(quantiles)
}

/// All features of one direction in one row of [`feature_width`] numbers.
///
/// `quantiles` holds those of the set model, by subsample. Divergences are compressed like the targets. The order is:
///
/// 1. Means of the quantiles over subsamples.
/// 2. The deviation of the medians of the subsamples.
/// 3. Logarithms of the number of subsamples and of their sizes.
/// 4. Estimates.
/// 5. The context, and a standard error.
/// 6. For each bounded divergence, estimates and a standard error.
pub fn feature_row(
    direction: &Directed,
    bounded: &Bounded,
    (dim, subsamples): &DirectedSubsamples,
    quantiles: &[Vec<f32>],
    targets: &Targets,
) -> Result<Vec<f32>> {
    let Targets::Quantiles { levels, scale } = targets else {
        return Err(Error::Estimate("the set model has no quantiles as outputs".to_owned()));
    };
    let count = quantiles.len() as f64;
    let mean = |j: usize| quantiles.iter().map(|q| f64::from(q[j])).sum::<f64>() / count;
    let middle = levels.len() / 2;
    let centre = mean(middle);
    let variance = quantiles.iter().map(|q| (f64::from(q[middle]) - centre).powi(2)).sum::<f64>() / count;
    let mut row: Vec<f64> = (0..levels.len()).map(mean).collect();
    row.extend([variance.sqrt(), count.ln()]);
    row.extend(subsamples[0].map(|rows| ((rows.len() / dim) as f64).ln()));
    row.extend(direction.estimates.iter().map(|&kl| compress(kl, *scale)));
    row.extend(direction.context);
    row.push(direction.standard_error);
    for (estimates, standard_error) in bounded.estimates.iter().zip(bounded.standard_errors) {
        row.extend(estimates);
        row.push(standard_error);
    }
    if row.iter().any(|x| !x.is_finite()) {
        return Err(Error::Estimate("the features of the samples are not finite; rescale the columns".to_owned()));
    }
    Ok(row.into_iter().map(|x| x as f32).collect())
}

/// An affine map of divergences, of compressed ones for KL: x ↦ (x − centre) / scale.
///
/// The centre approximates the true divergence, the scale its uncertainty. A small divergence of many rows is as hard
/// on this scale as a large one of few rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standardisation {
    centre: f64,
    scale: f64,
}

impl Standardisation {
    /// Standardises a divergence.
    pub fn apply(self, compressed: f64) -> f64 {
        (compressed - self.centre) / self.scale
    }

    /// The divergence of a standardised one.
    pub fn invert(self, standardised: f64) -> f64 {
        self.centre + self.scale * standardised
    }
}

/// What one head of the combiner reads.
pub struct HeadInput {
    /// How divergences are standardised.
    pub standardisation: Standardisation,
    /// Standardised estimates, which the head weights.
    pub estimates: Vec<f32>,
}

impl HeadInput {
    /// Standardises estimates, and appends them to the inputs of the network.
    fn new(standardisation: Standardisation, estimates: impl Iterator<Item = f32>, row: &mut Vec<f32>) -> Self {
        let standardised: Vec<f64> = estimates.map(|x| standardisation.apply(f64::from(x))).collect();
        // asinh limits the influence of outlying estimates.
        row.extend(standardised.iter().map(|z| 3.0 * (z / 3.0).asinh() as f32));
        let Standardisation { centre, scale } = standardisation;
        row.extend([centre as f32, scale.max(MIN_KNOWN_SCALE).ln() as f32]);
        let estimates = standardised.into_iter().map(|z| z.clamp(-MAX_STANDARDISED, MAX_STANDARDISED) as f32).collect();
        HeadInput { standardisation, estimates }
    }
}

/// Features as the combiner reads them.
pub struct CombinerInput {
    /// Inputs of the heads.
    pub heads: Vec<HeadInput>,
    /// The inputs of the network.
    pub row: Vec<f32>,
}

/// The centre and the scale of estimates that approximate one number.
///
/// The centre is their median. The scale is the root of the sum of squares of the median distance from the centre, a
/// part of the interquartile range, a smaller part of the range, a constant, and other terms. Estimates that do not
/// converge with the number of rows are mostly outside of the quartiles, so that the scale shrinks where the others
/// agree. The range keeps every estimate within [`MAX_STANDARDISED`] scales.
fn centre_and_scale(estimates: &mut [f64], other: impl FnOnce(f64) -> f64) -> Standardisation {
    let centre = median(estimates);
    let quarter = estimates.len() / 4;
    let range = |left_out: usize| estimates[estimates.len() - 1 - left_out] - estimates[left_out];
    let ranges = (0.15 * range(quarter)).powi(2) + (RANGE_SHARE * range(0)).powi(2);
    let mut distances: Vec<f64> = estimates.iter().map(|e| (e - centre).abs()).collect();
    let squares = median(&mut distances).powi(2) + ranges + MIN_SCALE.powi(2) + other(centre);
    Standardisation { centre, scale: squares.sqrt() }
}

impl CombinerInput {
    /// Standardises a [`feature_row`].
    ///
    /// For KL, nine estimates determine centre and scale. The standard error of the mean log ratio is a further term of
    /// the scale.
    pub fn of(features: &[f32], targets: &Targets) -> Self {
        let levels = targets.width();
        let (quantiles, rest) = features.split_at(levels);
        let (set_model, rest) = rest.split_at(SET_MODEL_CONTEXT);
        let (classical, rest) = rest.split_at(ESTIMATES);
        let (context, rest) = rest.split_at(CONTEXT);
        let (standard_error, bounded) = rest.split_at(1);
        let estimate = |i: usize| f64::from(classical[i]);
        // The biases of the fitted and the leave-one-out divergence have opposite signs.
        let classifier = 0.5 * (estimate(estimate_index::EXTENDED) + estimate(estimate_index::EXTENDED + 1));
        let mut core = [
            estimate(estimate_index::K2),
            estimate(estimate_index::K8),
            estimate(estimate_index::SELECTED_K2),
            estimate(estimate_index::SELECTED_K8),
            estimate(estimate_index::BOOSTED),
            estimate(estimate_index::BOOSTED + 1),
            estimate(estimate_index::BINNED),
            classifier,
            f64::from(quantiles[levels / 2]),
        ];
        let standardisation = centre_and_scale(&mut core, |centre| {
            // The slope of the compression converts the standard error from nats to the unit of targets.
            let step = 1e-3;
            let (low, high) = (targets.label(centre.max(0.0)), targets.label(centre.max(0.0) + step));
            (f64::from(standard_error[0]) * step / (high - low)).powi(2)
        });
        let mut row = Vec::with_capacity(input_width(levels));
        let mut heads = vec![HeadInput::new(standardisation, classical.iter().chain(quantiles).copied(), &mut row)];
        for numbers in bounded.chunks_exact(BOUNDED_ESTIMATES + 1) {
            let (estimates, standard_error) = numbers.split_at(BOUNDED_ESTIMATES);
            let mut sorted: Vec<f64> = estimates.iter().map(|&x| f64::from(x)).collect();
            let standardisation = centre_and_scale(&mut sorted, |_| f64::from(standard_error[0]).powi(2));
            heads.push(HeadInput::new(standardisation, estimates.iter().copied(), &mut row));
        }
        row.extend(context);
        row.extend(set_model);
        CombinerInput { heads, row }
    }
}

/// The median of numbers, which are sorted.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    0.5 * (numbers[(numbers.len() - 1) / 2] + numbers[numbers.len() / 2])
}

/// Standardised quantiles from a head's outputs.
///
/// The middle one is a weighted mean of the estimates plus an offset. The others follow at positive distances
/// log(1 + e^(u − 1)), so that quantiles never cross.
pub fn decode(outputs: &[f32], estimates: &[f32]) -> Vec<f64> {
    let (logits, rest) = outputs.split_at(estimates.len());
    let weights = softmax(logits);
    let mean: f64 = weights.iter().zip(estimates).map(|(w, z)| w * f64::from(*z)).sum();
    let levels = rest.len();
    let middle = levels / 2;
    let mut quantiles = vec![mean + OFFSET_UNIT * f64::from(rest[0]); levels];
    let distances: Vec<f64> = rest[1..].iter().map(|&u| softplus(f64::from(u) - 1.0)).collect();
    for i in 0..middle {
        quantiles[middle - 1 - i] = quantiles[middle - i] - distances[i];
        quantiles[middle + 1 + i] = quantiles[middle + i] + distances[middle + i];
    }
    quantiles
}

/// The gradient of a function of the quantiles with respect to the outputs, given that with respect to the quantiles.
pub fn decode_gradient(outputs: &[f32], estimates: &[f32], quantile_gradient: &[f64], gradient: &mut [f32]) {
    let (logits, rest) = outputs.split_at(estimates.len());
    let weights = softmax(logits);
    let mean: f64 = weights.iter().zip(estimates).map(|(w, z)| w * f64::from(*z)).sum();
    let total: f64 = quantile_gradient.iter().sum();
    for (g, (w, z)) in gradient.iter_mut().zip(weights.iter().zip(estimates)) {
        *g = (total * w * (f64::from(*z) - mean)) as f32;
    }
    let gradient = &mut gradient[estimates.len()..];
    gradient[0] = (OFFSET_UNIT * total) as f32;
    let middle = rest.len() / 2;
    let logistic = |u: f32| 1.0 / (1.0 + (1.0 - f64::from(u)).exp());
    for i in 0..middle {
        let below: f64 = quantile_gradient[..middle - i].iter().sum();
        let above: f64 = quantile_gradient[middle + 1 + i..].iter().sum();
        gradient[1 + i] = (-below * logistic(rest[1 + i])) as f32;
        gradient[1 + middle + i] = (above * logistic(rest[1 + middle + i])) as f32;
    }
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let exps: Vec<f64> = logits.iter().map(|&l| f64::from(l - max).exp()).collect();
    let total: f64 = exps.iter().sum();
    exps.into_iter().map(|e| e / total).collect()
}

/// The mean of a head's quantiles over all networks of an ensemble, whose outputs follow each other.
pub fn ensemble_quantiles(outputs: &[f32], head: usize, estimates: &[f32], levels: usize) -> Vec<f64> {
    let members = outputs.len() / output_width(levels);
    let mut mean = vec![0.0; levels];
    for outputs in outputs.chunks_exact(output_width(levels)) {
        let quantiles = decode(&outputs[head_outputs(head, levels)], estimates);
        mean.iter_mut().zip(quantiles).for_each(|(m, q)| *m += q / members as f64);
    }
    mean
}

/// Moves the outer quantiles outwards by a share of their distance.
pub fn widen(quantiles: &mut [f64], share: f64) {
    let last = quantiles.len() - 1;
    let distance = quantiles[last] - quantiles[0];
    quantiles[0] -= share * distance;
    quantiles[last] += share * distance;
}

/// A batch with one example for each row. Each of its sets holds the row as its only element.
pub fn single_element_sets(rows: &[f32], widths: &[usize]) -> Result<SetBatch> {
    let set = |&width: &usize| PackedSet::new(rows.to_vec(), width, (0..=rows.len() / width).collect());
    SetBatch::new(widths.iter().map(set).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_grows_with_the_distances_between_estimates() {
        let targets = Targets::Quantiles { levels: vec![0.05, 0.5, 0.95], scale: 1.0 };
        let mut features = vec![0.0f32; feature_width(3)];
        features[..3].copy_from_slice(&[1.19, 1.2, 1.21]);
        let first = 3 + SET_MODEL_CONTEXT;
        features[first..first + ESTIMATES].fill(1.2);
        let agreeing = CombinerInput::of(&features, &targets);
        assert_eq!((agreeing.row.len(), agreeing.heads.len()), (input_width(3), HEADS));
        for (k, head) in agreeing.heads.iter().enumerate() {
            assert_eq!(head.estimates.len(), weighted_estimates(k, 3));
            assert_eq!(head_outputs(k, 3).len(), head.estimates.len() + 3);
        }
        let agreeing = agreeing.heads[0].standardisation;
        assert!((agreeing.invert(agreeing.apply(0.7)) - 0.7).abs() < 1e-12);
        for (place, value) in [(estimate_index::K2, 2.0), (estimate_index::BOOSTED, 0.2)] {
            features[first + place] = value;
        }
        let differing = CombinerInput::of(&features, &targets).heads[0].standardisation;
        assert!(differing.apply(2.0).abs() < 0.5 * agreeing.apply(2.0).abs());
        assert!(differing.apply(1.2).abs() < 1e-6);
    }

    #[test]
    fn quantiles_ascend_and_follow_the_weighted_estimates() {
        let estimates = [1.0, -2.0, 5.0];
        let mut outputs = vec![0.0, 50.0, 0.0, 0.4, 0.3, -3.0, 2.0, 0.0];
        let quantiles = decode(&outputs, &estimates);
        assert!(quantiles.windows(2).all(|w| w[0] < w[1]), "{quantiles:?}");
        assert!((quantiles[2] - (-2.0 + 0.2)).abs() < 1e-6, "{quantiles:?}");
        outputs[1] = 0.0;
        assert!((decode(&outputs, &estimates)[2] - (4.0 / 3.0 + 0.2)).abs() < 1e-6);
    }

    #[test]
    fn the_gradient_of_the_quantiles_is_that_of_differences() {
        let estimates = [1.0, -2.0, 5.0, 0.3];
        let outputs = vec![0.3, 1.1, -0.4, 0.0, 0.4, 0.3, -1.0, 2.0, 0.5];
        let weights = [0.7, -0.2, 0.5, 0.1, -0.9];
        let value = |o: &[f32]| decode(o, &estimates).iter().zip(weights).map(|(q, w)| q * w).sum::<f64>();
        let mut gradient = vec![0.0; outputs.len()];
        decode_gradient(&outputs, &estimates, &weights, &mut gradient);
        for i in 0..outputs.len() {
            let (mut up, mut down) = (outputs.clone(), outputs.clone());
            up[i] += 1e-2;
            down[i] -= 1e-2;
            let difference = (value(&up) - value(&down)) / 2e-2;
            assert!((difference - f64::from(gradient[i])).abs() < 1e-3, "{i}: {difference}, not {}", gradient[i]);
        }
    }
}
