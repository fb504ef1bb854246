//! Errors of predictions on held-out examples.

use serde::{Deserialize, Serialize};

use setwise::Model;
use setwise::data::{Batch, RawBatch, Targets};

use crate::experiment::{Draw, Experiment, Metric, ValidExperiment};
use crate::prefetch::Prefetcher;
use crate::samplers::Split;
use crate::{Error, Result};

/// Errors of predictions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Number of examples.
    pub examples: usize,
    /// Mean of |prediction − label|.
    pub mean_absolute_error: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Root of the mean of (prediction − label)².
    pub root_mean_square_error: f64,
    /// Mean of prediction − label.
    pub bias: f64,
    /// Fraction of labels between the lowest and the highest quantile, for models of quantiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<f64>,
    /// Number of examples with a singular covariance, which are whitened with a ridge.
    #[serde(default)]
    pub deficient: usize,
    /// Fraction of right predictions, for tasks with decisions or counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Fraction of strictly right predictions, for counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict_accuracy: Option<f64>,
}

impl Evaluation {
    /// From pairs of a prediction and a label.
    ///
    /// ```
    /// use setwise_lab::run::Evaluation;
    /// let e = Evaluation::of([(1.0, 2.0), (5.0, 2.0)]);
    /// assert_eq!((e.mean_absolute_error, e.bias, e.standard_error), (2.0, 1.0, 1.0));
    /// ```
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let errors: Vec<f64> = pairs.into_iter().map(|(p, l)| p - l).collect();
        let n = errors.len() as f64;
        let mean = |f: &dyn Fn(f64) -> f64| errors.iter().map(|&e| f(e)).sum::<f64>() / n;
        let absolute = mean(&f64::abs);
        let square = mean(&|e| e * e);
        let spread = errors.iter().map(|e| (e.abs() - absolute).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        Evaluation {
            examples: errors.len(),
            mean_absolute_error: absolute,
            standard_error: (spread / n).sqrt(),
            root_mean_square_error: square.sqrt(),
            bias: mean(&|e| e),
            coverage: None,
            deficient: 0,
            accuracy: None,
            strict_accuracy: None,
        }
    }

    /// From pairs of a prediction and a label, by the metric of a task.
    pub fn judged(metric: Metric, pairs: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let pairs: Vec<(f64, f64)> = pairs.into_iter().collect();
        let share = |right: &dyn Fn(f64, f64) -> bool| {
            Some(pairs.iter().filter(|(p, l)| right(*p, *l)).count() as f64 / pairs.len() as f64)
        };
        match metric {
            Metric::Distance => Evaluation::of(pairs),
            Metric::Count => Evaluation {
                accuracy: share(&|p, label| label == p.floor() || label == p.ceil()),
                strict_accuracy: share(&|p, label| label == p.round()),
                ..Evaluation::of(pairs.iter().copied())
            },
            Metric::Decision => Evaluation {
                accuracy: share(&|p, label| (p > 0.0) == (label > 0.5)),
                ..Evaluation::of(pairs.iter().map(|(p, label)| (1.0 / (1.0 + (-p).exp()), *label)))
            },
        }
    }

    /// Standard error of the accuracy.
    pub fn accuracy_error(&self) -> Option<f64> {
        self.accuracy.map(|a| (a * (1.0 - a) / self.examples as f64).sqrt())
    }
}

impl std::fmt::Display for Evaluation {
    /// The accuracy, if there is one, otherwise the error, with its standard error.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.accuracy, self.accuracy_error()) {
            (Some(accuracy), Some(error)) => write!(f, "accuracy {accuracy:.4} ± {error:.4}"),
            _ => write!(f, "error {:.4} ± {:.4}", self.mean_absolute_error, self.standard_error),
        }
    }
}

/// Examples of a batch.
const BATCH: usize = 64;

/// Makes batches with `examples` examples in all on threads. `use_batch` receives them in order.
///
/// `make` gets the index and the size of a batch.
fn in_batches<T: Send + 'static>(
    examples: usize,
    make: impl Fn(u64, usize) -> Result<T> + Send + Sync + 'static,
    mut use_batch: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let mut batches = Prefetcher::new(rayon::current_num_threads(), 0, move |i| {
        let done = i as usize * BATCH;
        // Threads run ahead of the last batch. Those items are empty.
        (done < examples).then(|| make(i, BATCH.min(examples - done)))
    });
    (0..examples.div_ceil(BATCH)).try_for_each(|_| use_batch(batches.next().flatten().ok_or(Error::Prefetch)??))
}

/// Draws held-out batches with `examples` examples in all on threads. `use_batch` receives them in order.
pub fn for_held_out<T: Send + 'static>(
    experiment: &ValidExperiment,
    split: Split,
    examples: usize,
    draw: impl Fn(RawBatch) -> T + Send + Sync + 'static,
    use_batch: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let source = experiment.clone();
    in_batches(examples, move |i, n| Ok(draw(source.held_out(split, i, n)?.into_raw())), use_batch)
}

/// Held-out examples that are measured repeatedly.
///
/// Generated batches are kept prepared. Of data sets only indices are kept, because their rows are large.
pub(super) struct HeldOut(Vec<HeldOutBatch>);

enum HeldOutBatch {
    Prepared(Batch),
    /// Indices of items, which are gathered again for each measurement.
    Indices(Draw),
}

impl HeldOut {
    /// Draws held-out examples of a split.
    pub fn draw(experiment: &ValidExperiment, split: Split, examples: usize) -> Result<Self> {
        let mut batches = Vec::new();
        let source = experiment.clone();
        let make = move |i, n| match source.held_out(split, i, n)? {
            indices @ Draw::Picked(_) => Ok(HeldOutBatch::Indices(indices)),
            raw => Ok(HeldOutBatch::Prepared(source.prepare(&raw)?)),
        };
        in_batches(examples, make, |batch| {
            batches.push(batch);
            Ok(())
        })?;
        Ok(HeldOut(batches))
    }

    /// Checks that a model can be measured, with the first batch.
    pub fn try_first(&self, model: &mut Model, experiment: &ValidExperiment) -> Result<()> {
        let mut tally = Tally::new(experiment);
        self.0[..1].iter().try_for_each(|batch| tally.add_held_out(model, batch))
    }

    /// Measures a model.
    pub fn measure(&self, model: &mut Model, experiment: &ValidExperiment) -> Result<Evaluation> {
        let mut tally = Tally::new(experiment);
        self.0.iter().try_for_each(|batch| tally.add_held_out(model, batch))?;
        Ok(tally.evaluation())
    }
}

/// Predictions and labels, accumulated over batches.
struct Tally<'a> {
    experiment: &'a ValidExperiment,
    /// The interpretation of predictions.
    targets: Targets,
    pairs: Vec<(f64, f64)>,
    /// Number of labels inside their interval.
    covered: usize,
    /// Number of predictions with an interval.
    intervals: usize,
    deficient: usize,
}

impl<'a> Tally<'a> {
    fn new(experiment: &'a ValidExperiment) -> Self {
        let targets = experiment.training.loss.targets();
        Tally { experiment, targets, pairs: Vec::new(), covered: 0, intervals: 0, deficient: 0 }
    }

    fn add_held_out(&mut self, model: &mut Model, batch: &HeldOutBatch) -> Result<()> {
        match batch {
            HeldOutBatch::Prepared(batch) => self.add(model, batch),
            HeldOutBatch::Indices(indices) => self.add(model, &self.experiment.prepare(indices)?),
        }
    }

    fn add(&mut self, model: &mut Model, batch: &Batch) -> Result<()> {
        let predictions = model.predict(&batch.sets)?;
        let targets = &self.targets;
        let per_element = *targets == Targets::ElementLabels;
        if predictions.width() != targets.width() || predictions.per_element() != per_element {
            let each = |per_element: bool| if per_element { "element" } else { "example" };
            let (width, expected) = (predictions.width(), targets.width());
            let (unit, expected_unit) = (each(predictions.per_element()), each(per_element));
            let reason = format!("the model's outputs have width {width} per {unit}");
            let needed = format!("the experiment needs width {expected} per {expected_unit}");
            return Err(setwise::Error::Sets(format!("{reason}, {needed}")).into());
        }
        for (i, &label) in batch.labels.iter().enumerate() {
            let estimate = targets.decode_example(&predictions, i);
            self.pairs.push((estimate.value, label));
            if let Some([low, high]) = estimate.interval {
                self.intervals += 1;
                self.covered += usize::from(low <= label && label <= high);
            }
        }
        self.deficient += batch.deficient;
        Ok(())
    }

    fn evaluation(self) -> Evaluation {
        let coverage = (self.intervals > 0).then(|| self.covered as f64 / self.intervals as f64);
        let judged = Evaluation::judged(self.experiment.task.metric(), self.pairs);
        Evaluation { deficient: self.deficient, coverage, ..judged }
    }
}

/// The error of a model on test examples of an experiment's task.
///
/// Preparation and interpretation follow the experiment in the model's metadata, if it has one.
pub fn evaluate(model: &mut Model, experiment: &ValidExperiment, examples: usize) -> Result<Evaluation> {
    let stored = Experiment::of(model)?;
    let trained_in = stored.as_ref().unwrap_or(experiment);
    let coordinates = trained_in.task.coordinates(model.config());
    let mut tally = Tally { targets: trained_in.training.loss.targets(), ..Tally::new(experiment) };
    let source = experiment.clone();
    in_batches(
        examples,
        move |i, n| source.prepare_in(coordinates, &source.held_out(Split::Test, i, n)?),
        |batch| tally.add(model, &batch),
    )?;
    Ok(tally.evaluation())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_right_at_floor_and_ceiling_and_strictly_right_when_nearest() {
        let pairs = [(2.4, 2.0), (2.6, 2.0), (3.1, 2.0), (-0.2, 0.0), (4.0, 4.0), (4.0, 5.0)];
        let e = Evaluation::judged(Metric::Count, pairs);
        assert_eq!((e.accuracy, e.strict_accuracy), (Some(4.0 / 6.0), Some(3.0 / 6.0)));
        assert!((e.mean_absolute_error - (0.4 + 0.6 + 1.1 + 0.2 + 0.0 + 1.0) / 6.0).abs() < 1e-12);
    }

    #[test]
    fn decisions_are_right_when_the_logit_has_the_sign_of_the_label() {
        let e = Evaluation::judged(Metric::Decision, [(3.0, 1.0), (-1.0, 1.0), (-2.0, 0.0), (0.5, 0.0)]);
        assert_eq!((e.accuracy, e.strict_accuracy), (Some(0.5), None));
        assert!(e.mean_absolute_error < 1.0);
        assert_eq!(Evaluation::judged(Metric::Distance, [(1.0, 2.0)]), Evaluation::of([(1.0, 2.0)]));
    }
}
