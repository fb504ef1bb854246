//! The error of predictions on examples they were not made for.

use serde::{Deserialize, Serialize};

use crate::data::{Batch, Drawn, Feed, Stream};
use crate::experiment::ValidExperiment;
use crate::{Error, Model, Result};

/// How far predictions are from labels.
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
    /// Share of labels between the lowest and the highest quantile, where answers are quantiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<f64>,
    /// Examples that could only be whitened with a ridge: their points lie in fewer dimensions than they have coordinates.
    #[serde(default)]
    pub deficient: usize,
}

impl Evaluation {
    /// From pairs of a prediction and a label.
    ///
    /// ```
    /// use setwise::train::Evaluation;
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
        }
    }
}

/// Examples predicted at once.
const BATCH: usize = 64;

/// Draws held-out batches with `examples` examples in all on threads, and hands them to `use_batch` in their order.
pub fn for_held_out<T: Send + 'static>(
    experiment: &ValidExperiment,
    stream: Stream,
    examples: usize,
    draw: impl Fn(Drawn) -> T + Send + Sync + 'static,
    mut use_batch: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let source = experiment.clone();
    let mut feed = Feed::new(rayon::current_num_threads(), 0, move |i| {
        let done = i as usize * BATCH;
        draw(source.held_out(stream, i, BATCH.min(examples.saturating_sub(done))))
    });
    (0..examples.div_ceil(BATCH)).try_for_each(|_| use_batch(feed.next().ok_or(Error::Feed)?))
}

/// All held-out batches of a stream, as a model sees them.
pub(super) fn held_out(experiment: &ValidExperiment, stream: Stream, examples: usize) -> Result<Vec<Batch>> {
    let mut batches = Vec::new();
    let source = experiment.clone();
    for_held_out(
        experiment,
        stream,
        examples,
        move |drawn| source.prepare(&drawn),
        |batch| {
            batches.push(batch?);
            Ok(())
        },
    )?;
    Ok(batches)
}

/// What answers and labels come to, batch by batch.
struct Tally<'a> {
    experiment: &'a ValidExperiment,
    pairs: Vec<(f64, f64)>,
    /// Labels within their interval, of those that have one.
    within: usize,
    intervals: usize,
    deficient: usize,
}

impl<'a> Tally<'a> {
    fn new(experiment: &'a ValidExperiment) -> Self {
        Tally { experiment, pairs: Vec::new(), within: 0, intervals: 0, deficient: 0 }
    }

    fn add(&mut self, model: &mut Model, batch: &Batch) -> Result<()> {
        let answers = model.predict(&batch.sets)?;
        let targets = self.experiment.training.loss.targets();
        if answers.width() != targets.width() {
            let (found, wanted) = (answers.width(), targets.width());
            return Err(Error::Sets(format!(
                "the model answers with {found} numbers, the experiment asks for {wanted}"
            )));
        }
        for (i, &label) in batch.labels.iter().enumerate() {
            let reading = targets.read(answers.example(i));
            self.pairs.push((reading.value, label));
            if let Some([low, high]) = reading.interval {
                self.intervals += 1;
                self.within += usize::from(low <= label && label <= high);
            }
        }
        self.deficient += batch.deficient;
        Ok(())
    }

    fn evaluation(self) -> Evaluation {
        let coverage = (self.intervals > 0).then(|| self.within as f64 / self.intervals as f64);
        Evaluation { deficient: self.deficient, coverage, ..Evaluation::of(self.pairs) }
    }
}

/// The error of a model on batches.
pub(super) fn measure(model: &mut Model, experiment: &ValidExperiment, batches: &[Batch]) -> Result<Evaluation> {
    let mut tally = Tally::new(experiment);
    batches.iter().try_for_each(|batch| tally.add(model, batch))?;
    Ok(tally.evaluation())
}

/// The error of a model on fresh examples of an experiment's task, which neither training nor validation has seen.
pub fn evaluate(model: &mut Model, experiment: &ValidExperiment, examples: usize) -> Result<Evaluation> {
    let mut tally = Tally::new(experiment);
    let source = experiment.clone();
    for_held_out(
        experiment,
        Stream::Test,
        examples,
        move |drawn| source.prepare(&drawn),
        |batch| tally.add(model, &batch?),
    )?;
    Ok(tally.evaluation())
}
