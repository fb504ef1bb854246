//! From features to values with intervals: set model and combiner.

use std::cell::OnceCell;

use super::super::interval::NORMAL_QUANTILE;
use super::bounded::{BoundedMeasure, MEASURES};
use super::combiner::{
    CombinerInput, HeadInput, directed_subsamples, ensemble_quantiles, feature_row, set_model_quantiles,
    single_element_sets, widen,
};
use super::directed::{Directed, estimate_index};
use super::features::PairFeatures;
use super::{Answer, FeatureBatch, Pretrained};
use crate::{Error, Result};

/// Where the Gaussian divergence exceeds this multiple of the largest trained one, the interval reaches up to it.
const OUT_OF_RANGE_FACTOR: f64 = 4.0;
/// The classifier's held-out loss of samples that are far apart.
const SEPARATED_LOSS: f64 = 0.02;

/// The answer for a pair of samples, with what its warnings depend on.
pub(super) struct PairAnswer {
    pub answer: Answer,
    /// Directions in which the samples vary.
    pub dim: usize,
    /// Duplicate rows that were removed from each sample.
    pub duplicates: [usize; 2],
    /// A dequantised column of each sample.
    pub dequantised: [Option<usize>; 2],
    /// Whether both samples have the same rows.
    pub identical: bool,
    /// What contradicts the networks.
    pub contradiction: Option<String>,
}

impl PairAnswer {
    /// KL in one direction, with what the features know of the samples: those of P and of Q, or reversed if `backward`.
    fn new(features: &PairFeatures, backward: bool, found: &DirectedAnswer) -> Self {
        // Samples with the same rows are not independent, which all estimates assume.
        let (answer, contradiction) = match features.identical {
            true => ((0.0, [0.0; 2]), None),
            false => (found.kl, found.contradiction.clone()),
        };
        PairAnswer { answer, contradiction, ..Self::unanswered(features, backward) }
    }

    /// What the features know of the samples, for answers without warnings of their own.
    fn unanswered(features: &PairFeatures, backward: bool) -> Self {
        let &PairFeatures { dim, mut duplicates, mut dequantised, identical, .. } = features;
        if backward {
            duplicates.reverse();
            dequantised.reverse();
        }
        PairAnswer { answer: (0.0, [0.0; 2]), dim, duplicates, dequantised, identical, contradiction: None }
    }
}

/// Standard errors by which an estimate lies outside of an interval that it contradicts.
const CONTRADICTION: f64 = 4.0;
/// The effective sample size of the second sample's weights from which their mean counts.
const MIN_EFFECTIVE_ROWS: f64 = 30.0;
/// Rows and directions for which neighbours have little bias.
const NEIGHBOUR_ROWS: f64 = 500.0;
const NEIGHBOUR_DIMS: f64 = 3.0;

/// Widens an interval up to the upper ends of estimates that converge and lie above it, and says so.
///
/// The Donsker–Varadhan expression at held-out rows bounds the divergence from below, if the mean weight of the second
/// sample rests on many rows. Neighbours have little bias in few directions, but saturate at large divergences, so that
/// they contradict smaller answers alone. The differences between several numbers of neighbours are a part of their
/// error.
fn contradiction((_, [_, high]): &mut Answer, direction: &Directed) -> Option<String> {
    let mut reason = None;
    let error = direction.standard_error.hypot(direction.weight_error);
    let bound = direction.estimates[estimate_index::BOOSTED + 1];
    if direction.effective_rows > MIN_EFFECTIVE_ROWS && bound - CONTRADICTION * error > *high {
        *high = bound + NORMAL_QUANTILE * error;
        reason = Some(format!("a classifier bounds the divergence from below by {bound:.2}; the interval is widened"));
    }
    if direction.rows < NEIGHBOUR_ROWS || direction.dim > NEIGHBOUR_DIMS {
        return reason;
    }
    let [near, middle, far] =
        [estimate_index::K2, estimate_index::K4, estimate_index::K8].map(|k| direction.estimates[k]);
    let bias = 2.0 * (far - near).abs();
    if middle - CONTRADICTION * direction.standard_error - bias > *high {
        *high = middle + NORMAL_QUANTILE * direction.standard_error + bias;
        reason = Some(format!("nearest neighbours say {middle:.2} nats; the interval is widened"));
    }
    reason
}

/// Answers in one direction.
pub(super) struct DirectedAnswer {
    kl: Answer,
    contradiction: Option<String>,
    /// Quantiles of the bounded divergences.
    bounded: [Vec<f64>; MEASURES],
}

/// Answers of one pair, which are computed when they are asked for.
pub(super) struct PairAnswers<'a> {
    estimator: &'a Pretrained,
    features: PairFeatures,
    directions: [OnceCell<DirectedAnswer>; 2],
}

impl<'a> PairAnswers<'a> {
    pub fn new(estimator: &'a Pretrained, features: PairFeatures) -> Self {
        PairAnswers { estimator, features, directions: [OnceCell::new(), OnceCell::new()] }
    }

    fn direction(&self, backward: bool) -> Result<&DirectedAnswer> {
        let cell = &self.directions[usize::from(backward)];
        if let Some(known) = cell.get() {
            return Ok(known);
        }
        let mut answers = self.estimator.directed_answers(&[&self.features], backward)?;
        let found = answers.pop().expect("an answer for every pair")?;
        Ok(cell.get_or_init(|| found))
    }

    /// KL(P‖Q), or KL(Q‖P) if `backward`.
    pub fn kl(&self, backward: bool) -> Result<PairAnswer> {
        Ok(PairAnswer::new(&self.features, backward, self.direction(backward)?))
    }

    /// The bounded divergences: means of both directions' answers. The pair's answer is for warnings alone.
    pub fn bounded(&self) -> Result<(PairAnswer, [Answer; MEASURES])> {
        let (forward, backward) = (&self.direction(false)?.bounded, &self.direction(true)?.bounded);
        let answer = |k: usize| {
            let measure = BoundedMeasure::ALL[k];
            let quantile = |place: usize| {
                let mean = 0.5 * (forward[k][place] + backward[k][place]);
                let mean = if self.features.identical { 0.0 } else { mean.clamp(0.0, measure.bound()) };
                if measure == BoundedMeasure::SquaredHellinger { mean.sqrt() } else { mean }
            };
            let last = forward[k].len() - 1;
            (quantile(last / 2), [quantile(0), quantile(last)])
        };
        Ok((PairAnswer::unanswered(&self.features, false), std::array::from_fn(answer)))
    }
}

impl Pretrained {
    /// Answers of pairs, or why they have none.
    pub(super) fn pair_answers(&self, FeatureBatch(features): FeatureBatch) -> Vec<Result<PairAnswer>> {
        let known: Vec<&PairFeatures> = features.iter().flatten().collect();
        let mut answers = match self.directed_answers(&known, false) {
            Ok(answers) => answers.into_iter(),
            Err(e) => {
                let reason = e.to_string();
                return features.iter().map(|_| Err(Error::Estimate(reason.clone()))).collect();
            }
        };
        let answer = |features: Result<PairFeatures>| {
            let features = features?;
            let found = answers.next().expect("an answer for every pair with features")?;
            Ok(PairAnswer::new(&features, false, &found))
        };
        features.into_iter().map(answer).collect()
    }

    /// Answers for one direction: that of KL(P‖Q), or of KL(Q‖P) if `backward`.
    fn directed_answers(&self, pairs: &[&PairFeatures], backward: bool) -> Result<Vec<Result<DirectedAnswer>>> {
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let subsamples: Vec<_> = pairs.iter().map(|pair| directed_subsamples(pair, backward)).collect();
        let quantiles = set_model_quantiles(|batch| self.set_model.predict(&batch.view()), &subsamples)?;
        let inputs: Vec<Result<CombinerInput>> = pairs
            .iter()
            .zip(subsamples.iter().zip(&quantiles))
            .map(|(pair, (subsamples, quantiles))| {
                let direction = if backward { &pair.backward } else { &pair.forward };
                let row = feature_row(direction, &pair.bounded, subsamples, quantiles, &self.targets)?;
                Ok(CombinerInput::of(&row, &self.targets))
            })
            .collect();
        let rows: Vec<f32> = inputs.iter().flatten().flat_map(|input| &input.row).copied().collect();
        let predicted = match rows.is_empty() {
            true => None,
            false => {
                let batch = single_element_sets(&rows, &self.combiner.config().input_widths)?;
                Some(self.combiner.predict(&batch.view())?)
            }
        };
        let mut example = 0;
        let answer = |(input, pair): (Result<CombinerInput>, &&PairFeatures)| {
            let heads = input?.heads;
            let outputs = predicted.as_ref().expect("features have rows").example(example);
            example += 1;
            let quantiles = |head: usize| {
                let HeadInput { standardisation, estimates } = &heads[head];
                let mut quantiles = ensemble_quantiles(outputs, head, estimates, self.targets.width());
                widen(&mut quantiles, self.widening[head]);
                quantiles.into_iter().map(|z| standardisation.invert(z)).collect::<Vec<f64>>()
            };
            let direction = if backward { &pair.backward } else { &pair.forward };
            let mut kl = self.kl(&quantiles(0), direction);
            let contradiction = contradiction(&mut kl, direction);
            Ok(DirectedAnswer { kl, contradiction, bounded: std::array::from_fn(|k| quantiles(k + 1)) })
        };
        Ok(inputs.into_iter().zip(pairs).map(answer).collect())
    }

    /// KL from quantiles of the compressed divergence.
    fn kl(&self, quantiles: &[f64], direction: &Directed) -> Answer {
        let quantiles: Vec<f32> = quantiles.iter().map(|&x| x as f32).collect();
        let estimate = self.targets.decode(&quantiles);
        let [low, mut high] = estimate.interval.unwrap_or([estimate.value; 2]);
        // Samples that are very far apart are a point each. Only their moments hold the distance.
        let gaussian = direction.estimates[estimate_index::DEBIASED_GAUSSIAN];
        let far = direction.held_out_loss < SEPARATED_LOSS;
        if far && gaussian > OUT_OF_RANGE_FACTOR * self.ranges.max_divergence {
            high = high.max(gaussian);
        }
        // Noise can make the quantiles negative.
        (estimate.value.max(0.0), [low.max(0.0), high.max(0.0)])
    }
}

#[cfg(test)]
mod tests {
    use super::super::directed::{CONTEXT, ESTIMATES};
    use super::*;

    fn direction(rows: f64, dim: f64, estimate: f64) -> Directed {
        Directed {
            estimates: [estimate; ESTIMATES],
            context: [0.0; CONTEXT],
            standard_error: 0.01,
            weight_error: 0.01,
            effective_rows: 500.0,
            held_out_loss: 0.5,
            rows,
            dim,
        }
    }

    #[test]
    fn estimates_outside_of_the_interval_widen_it_and_are_named() {
        let widened = |low: f64, high: f64, direction: &Directed| {
            let mut answer = (0.5 * (low + high), [low, high]);
            let text = contradiction(&mut answer, direction);
            (answer.1, text)
        };
        let far = direction(2000.0, 2.0, 1.0);
        let (interval, text) = widened(0.2, 0.4, &far);
        assert!(interval[0] == 0.2 && interval[1] > 1.0 && interval[1] < 1.03, "{interval:?}");
        assert!(text.unwrap().contains("from below by 1.00"));
        // Neighbours may say more than the bound.
        let mut more = direction(2000.0, 2.0, 2.0);
        more.estimates[estimate_index::BOOSTED + 1] = 1.0;
        assert!(widened(0.2, 0.4, &more).0[1] > 2.0);
        assert_eq!(widened(0.9, 0.97, &far), ([0.9, 0.97], None));
        assert_eq!(widened(1.2, 1.4, &far), ([1.2, 1.4], None));
        // Weights that rest on few rows bound nothing.
        let mut few = direction(2000.0, 2.0, 1.0);
        few.effective_rows = 3.0;
        let (interval, text) = widened(0.2, 0.4, &few);
        assert!(interval[0] == 0.2 && interval[1] > 1.0 && interval[1] < 1.03, "{interval:?}");
        assert!(text.unwrap().starts_with("nearest neighbours say 1.00 nats"));
        // Neighbours in many directions have a bias, and few rows too large an error.
        for (rows, dim) in [(2000.0, 6.0), (100.0, 2.0)] {
            assert_eq!(widened(0.2, 0.4, &Directed { effective_rows: 3.0, ..direction(rows, dim, 1.0) }).1, None);
        }
        few.estimates[estimate_index::K8] = 0.7;
        assert_eq!(widened(0.2, 0.4, &few).1, None);
    }
}
