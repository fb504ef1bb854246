//! From features to values with intervals: set model, combiner, and the mean over chunks.

use super::combiner::{StandardisedFeatures, feature_row, set_model_quantiles, single_element_sets};
use super::features::{ChunkFeatures, PairFeatures};
use super::{Answer, FeatureBatch, Pretrained};
use crate::{Error, Result};

/// Where the Gaussian divergence exceeds this multiple of the largest trained one, the interval reaches up to it.
const OUT_OF_RANGE_FACTOR: f64 = 4.0;

/// The answer for a pair of samples, with what its warnings depend on.
pub(super) struct PairAnswer {
    pub answer: Answer,
    /// Directions in which the samples vary.
    pub dim: usize,
    /// Duplicate rows that were removed from each sample.
    pub duplicates: [usize; 2],
    /// A dequantised column of each sample.
    pub dequantised: [Option<usize>; 2],
}

impl Pretrained {
    /// Answers of pairs: the means over the chunks of each.
    pub(super) fn pair_answers(&self, FeatureBatch(features): FeatureBatch) -> Vec<Result<PairAnswer>> {
        let chunks: Vec<&ChunkFeatures> = features.iter().flatten().flat_map(|pair| &pair.chunks).collect();
        let mut answers = match self.chunk_answers(&chunks) {
            Ok(answers) => answers.into_iter(),
            Err(e) => {
                let reason = e.to_string();
                return features.iter().map(|_| Err(Error::Estimate(reason.clone()))).collect();
            }
        };
        let answer = |features: Result<PairFeatures>| {
            let PairFeatures { dim, duplicates, dequantised, chunks } = features?;
            // All answers of the pair are consumed before an error returns: the next pair starts at the right one.
            let answers: Vec<Result<Answer>> = answers.by_ref().take(chunks.len()).collect();
            let answers = answers.into_iter().collect::<Result<Vec<Answer>>>()?;
            Ok(PairAnswer { answer: mean_answer(&answers), dim, duplicates, dequantised })
        };
        features.into_iter().map(answer).collect()
    }

    /// Answers of chunks, as the combiner predicts them: they may be negative.
    fn chunk_answers(&self, chunks: &[&ChunkFeatures]) -> Result<Vec<Result<Answer>>> {
        if chunks.is_empty() {
            return Ok(Vec::new());
        }
        let quantiles = set_model_quantiles(|batch| self.set_model.predict(&batch.view()), chunks)?;
        let features: Vec<Result<StandardisedFeatures>> = chunks
            .iter()
            .zip(&quantiles)
            .map(|(chunk, quantiles)| {
                feature_row(chunk, quantiles, &self.targets).map(|row| StandardisedFeatures::of(&row, &self.targets))
            })
            .collect();
        let rows: Vec<f32> = features.iter().flatten().flat_map(|f| &f.row).copied().collect();
        let predicted = match rows.is_empty() {
            true => None,
            false => {
                let batch = single_element_sets(&rows, &self.combiner.config().input_widths)?;
                Some(self.combiner.predict(&batch.view())?)
            }
        };
        let mut example = 0;
        let answer = |features: Result<StandardisedFeatures>| {
            let StandardisedFeatures { standardisation, gaussian_divergence, .. } = features?;
            let predicted = predicted.as_ref().expect("features have rows");
            let quantiles: Vec<f32> =
                predicted.example(example).iter().map(|&x| standardisation.invert(f64::from(x)) as f32).collect();
            let estimate = self.targets.decode(&quantiles);
            example += 1;
            let [low, mut high] = estimate.interval.unwrap_or([estimate.value; 2]);
            // Whitening leaves samples that are very far apart a point each. Only their moments hold the distance.
            let gaussian_divergence = self.targets.label(gaussian_divergence);
            if gaussian_divergence > OUT_OF_RANGE_FACTOR * self.ranges.max_divergence {
                high = high.max(gaussian_divergence);
            }
            Ok((estimate.value, [low, high]))
        };
        Ok(features.into_iter().map(answer).collect())
    }
}

/// The mean of answers of equal weight, clamped at zero: noise can make it negative.
fn mean_answer(answers: &[Answer]) -> Answer {
    let mean =
        |number: &dyn Fn(&Answer) -> f64| (answers.iter().map(number).sum::<f64>() / answers.len() as f64).max(0.0);
    (mean(&|a| a.0), [mean(&|a| a.1[0]), mean(&|a| a.1[1])])
}
