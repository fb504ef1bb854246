//! Inputs of the combiner: quantiles of the set model and classical features of a chunk, standardised.

use super::features::{CLASSICAL, ChunkFeatures, DIVERGENCES, divergence_index};
use crate::data::{Targets, compress};
use crate::models::Prediction;
use crate::sets::PackedSet;
use crate::{Error, Result, SetBatch};

/// Subsamples in a batch of the set model. Threads that share a batch wait for each other at its end, and so does the
/// caller of a GPU.
const MAX_BATCH: usize = 256;

/// Features of a chunk beside the quantiles of the set model: spread, number and sizes of subsamples; classical ones.
const OTHER_FEATURES: usize = 4 + CLASSICAL;

/// Numbers in a [`feature_row`], for `levels` quantiles.
pub fn feature_width(levels: usize) -> usize {
    levels + OTHER_FEATURES
}

/// Inputs of the combiner, for `levels` quantiles: the features, and centre and scale of their standardisation.
pub fn input_width(levels: usize) -> usize {
    feature_width(levels) + 2
}

/// Sorted quantiles of the set model, by chunk and subsample, computed in batches of at most 256 subsamples.
pub fn set_model_quantiles(
    mut predict: impl FnMut(&SetBatch) -> Result<Prediction>,
    chunks: &[&ChunkFeatures],
) -> Result<Vec<Vec<Vec<f32>>>> {
    let mut quantiles: Vec<Vec<Vec<f32>>> = chunks.iter().map(|c| vec![Vec::new(); c.subsamples.len()]).collect();
    let mut order: Vec<(usize, usize)> =
        chunks.iter().enumerate().flat_map(|(i, c)| (0..c.subsamples.len()).map(move |k| (i, k))).collect();
    // A batch has one width, and subsamples of similar size.
    order.sort_by_key(|&(i, k)| (chunks[i].dim, chunks[i].subsamples[k].p.len()));
    let mut rest = &order[..];
    while let Some(&(first, _)) = rest.first() {
        let dim = chunks[first].dim;
        let count = rest.iter().take(MAX_BATCH).take_while(|(i, _)| chunks[*i].dim == dim).count();
        let (batch, later) = rest.split_at(count);
        let sets = [0, 1].map(|set| {
            let rows = |&(i, k): &(usize, usize)| {
                let subsample = &chunks[i].subsamples[k];
                if set == 0 { &subsample.p } else { &subsample.q }
            };
            let mut offsets = vec![0];
            let mut data = Vec::new();
            for index in batch {
                data.extend_from_slice(rows(index));
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

/// All features of a chunk in one row of [`feature_width`] numbers.
///
/// `quantiles` holds those of the set model, by subsample. Divergences are compressed like the targets. The order is:
///
/// 1. Means of the quantiles over subsamples.
/// 2. The deviation of the medians of the subsamples.
/// 3. Logarithms of the number of subsamples and of their sizes.
/// 4. The classical features.
pub fn feature_row(chunk: &ChunkFeatures, quantiles: &[Vec<f32>], targets: &Targets) -> Result<Vec<f32>> {
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
    let subsample = &chunk.subsamples[0];
    row.extend([&subsample.p, &subsample.q].map(|rows| ((rows.len() / chunk.dim) as f64).ln()));
    let (others, divergences) = chunk.classical.split_at(CLASSICAL - DIVERGENCES);
    row.extend(others);
    row.extend(divergences.iter().map(|&kl| compress(kl.clamp(-3.0, 200.0), *scale)));
    if row.iter().any(|x| !x.is_finite()) {
        return Err(Error::Estimate("the features of the samples are not finite; rescale the columns".to_owned()));
    }
    Ok(row.into_iter().map(|x| x as f32).collect())
}

/// An affine map of compressed divergences: x ↦ (x − centre) / scale.
///
/// The centre approximates the true divergence, the scale its uncertainty. A small divergence of many rows is as hard
/// on this scale as a large one of few rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standardisation {
    centre: f64,
    scale: f64,
}

impl Standardisation {
    /// Standardises a compressed divergence.
    pub fn apply(self, compressed: f64) -> f64 {
        (compressed - self.centre) / self.scale
    }

    /// The compressed divergence of a standardised one.
    pub fn invert(self, standardised: f64) -> f64 {
        self.centre + self.scale * standardised
    }
}

/// Features as the combiner reads them: divergences are standardised, and so are its outputs.
pub struct StandardisedFeatures {
    /// How divergences are standardised.
    pub standardisation: Standardisation,
    /// The inputs of the combiner.
    pub row: Vec<f32>,
    /// The debiased divergence of Gaussians, compressed.
    pub gaussian_divergence: f64,
}

/// The smallest scale of a standardisation.
const MIN_SCALE: f64 = 3e-3;

impl StandardisedFeatures {
    /// Standardises a [`feature_row`].
    ///
    /// The centre is the median of five estimates. The scale is the root of the sum of squares of four terms:
    ///
    /// - The standard error of the extended classifier.
    /// - The median distance of the estimates from the centre.
    /// - A tenth of the range of the set model's quantiles.
    /// - A constant.
    pub fn of(features: &[f32], targets: &Targets) -> Self {
        let levels = targets.width();
        let (others, divergences) = features[levels..].split_at(OTHER_FEATURES - DIVERGENCES);
        let quantiles = &features[..levels];
        let divergence = |i: usize| f64::from(divergences[i]);
        // Half of the sum of the fitted and the leave-one-out divergence: their biases have opposite signs.
        let classifier = |first: usize| 0.5 * (divergence(first) + divergence(first + 1));
        let gaussian_divergence = divergence(divergence_index::DEBIASED_GAUSSIAN);
        let estimates = [
            f64::from(quantiles[levels / 2]),
            divergence(divergence_index::K3),
            gaussian_divergence,
            classifier(divergence_index::QUADRATIC),
            classifier(divergence_index::EXTENDED),
        ];
        let centre = median(estimates);
        let distance = median(estimates.map(|e| (e - centre).abs()));
        // The slope of the compression converts the standard error from nats to the unit of targets.
        let step = 1e-3;
        let (low, high) = (targets.label(centre.max(0.0)), targets.label(centre.max(0.0) + step));
        let standard_error = f64::from(others[others.len() - 1]).exp() * step / (high - low);
        let range = f64::from(quantiles[levels - 1]) - f64::from(quantiles[0]);
        let scale = (standard_error.powi(2) + distance.powi(2) + (0.1 * range).powi(2) + MIN_SCALE.powi(2)).sqrt();
        let standardisation = Standardisation { centre, scale };
        // asinh limits the influence of outlying estimates.
        let compressed = quantiles
            .iter()
            .chain(divergences)
            .map(|&x| 3.0 * (standardisation.apply(f64::from(x)) / 3.0).asinh() as f32);
        let row = compressed.chain(others.iter().copied()).chain([centre as f32, scale.ln() as f32]).collect();
        StandardisedFeatures { standardisation, row, gaussian_divergence }
    }
}

fn median(mut five: [f64; 5]) -> f64 {
    five.sort_by(f64::total_cmp);
    five[2]
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
        features[..3].copy_from_slice(&[0.9, 1.0, 1.1]);
        let first = features.len() - DIVERGENCES;
        features[first..].fill(1.2);
        features[first - 1] = -20.0; // no standard error
        let agreeing = StandardisedFeatures::of(&features, &targets);
        assert_eq!(agreeing.row.len(), input_width(3));
        assert!((agreeing.standardisation.invert(agreeing.standardisation.apply(0.7)) - 0.7).abs() < 1e-12);
        // The first row has four equal estimates, this one two.
        features[first + divergence_index::K3] = 2.0;
        features[first + divergence_index::DEBIASED_GAUSSIAN] = 0.2;
        let differing = StandardisedFeatures::of(&features, &targets);
        assert!(differing.standardisation.apply(2.0).abs() < 0.5 * agreeing.standardisation.apply(2.0).abs());
        assert!(differing.standardisation.apply(f64::from(features[first + divergence_index::EXTENDED])).abs() < 1e-6);
    }
}
