//! Runs, then the combiners of those that are estimators.

use std::path::Path;
use std::sync::atomic::Ordering;

use crate::estimator::{FitProgress, lacks_combiner_only, train_combiner};
use crate::run::{Event, Outcome, RunOptions, RunPlan, run_several};
use crate::{Error, Result};

/// The runs and combiners to train.
pub struct Queue {
    runs: Vec<RunPlan>,
    /// Estimators whose set model is trained.
    combiners: Vec<RunPlan>,
}

/// An event while a queue is trained.
pub enum QueueEvent<'a> {
    /// An event of the run with this index in [`Queue::runs`].
    Run(usize, Event<'a>),
    /// The end of the run with this index in [`Queue::runs`].
    Ended(usize, &'a Result<Outcome>),
    /// An event of the training of an estimator's combiner.
    Combiner(&'a RunPlan, CombinerEvent<'a>),
}

/// An event in the training of a combiner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CombinerEvent<'a> {
    /// A stop comes before the training.
    Skipped,
    /// The training starts.
    Started,
    /// The training progresses.
    Progress(FitProgress),
    /// The combiner is in this file.
    Trained(&'a Path),
    /// A stop ends the training.
    Stopped,
}

impl Queue {
    /// A queue of all plans. Resumed estimators with a trained set model lack the combiner alone.
    pub fn new(plans: Vec<RunPlan>, resume: bool) -> Result<Self> {
        let mut queue = Queue { runs: Vec::new(), combiners: Vec::new() };
        for plan in plans {
            match resume && lacks_combiner_only(&plan)? {
                true => queue.combiners.push(plan),
                false => queue.runs.push(plan),
            }
        }
        Ok(queue)
    }

    /// The runs. Estimators that lack the combiner alone are not among them.
    pub fn runs(&self) -> &[RunPlan] {
        &self.runs
    }

    /// Number of plans.
    pub fn len(&self) -> usize {
        self.runs.len() + self.combiners.len()
    }

    /// Whether the queue has no plans.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Trains all runs, `concurrency` at a time, then the combiners of finished estimators one after another.
    ///
    /// The folder of `options` is ignored. A failure does not stop the rest. Returns the errors of runs and combiners,
    /// in this order.
    pub fn train(&self, concurrency: usize, options: &RunOptions, observe: &(dyn Fn(QueueEvent) + Sync)) -> Vec<Error> {
        let event = |i: usize, event: Event| observe(QueueEvent::Run(i, event));
        let ended = |i: usize, outcome: &Result<Outcome>| observe(QueueEvent::Ended(i, outcome));
        let mut combiners: Vec<&RunPlan> = self.combiners.iter().collect();
        let mut errors = Vec::new();
        for (i, outcome) in run_several(&self.runs, concurrency, options, &event, &ended) {
            match outcome {
                Ok(outcome) if outcome.finished && self.runs[i].experiment.combiner.is_some() => {
                    combiners.push(&self.runs[i]);
                }
                Ok(_) => {}
                Err(e) => errors.push(e),
            }
        }
        for plan in combiners {
            let observe = |event: CombinerEvent| observe(QueueEvent::Combiner(plan, event));
            if options.stop.load(Ordering::Relaxed) {
                observe(CombinerEvent::Skipped);
                continue;
            }
            observe(CombinerEvent::Started);
            match train_combiner(plan, options, &mut |progress| observe(CombinerEvent::Progress(progress))) {
                Ok(Some(path)) => observe(CombinerEvent::Trained(&path)),
                Ok(None) => observe(CombinerEvent::Stopped),
                Err(e) => errors.push(e),
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use setwise::Device;

    use super::*;
    use crate::experiment::Experiment;
    use crate::run::Encoders;

    const TINY: &str = "[task]\nkind = 'broad-kl'\ndims = [1, 2]\nset-size = [30, 34]\nmax-divergence = 5.0\n\
        [model]\npreset = 'multi-set-transformer-equi'\nlatent = 8\nhidden = 8\nblocks = 1\n\
        [training]\nsteps = 3\nbatch-size = 4\nloss = { quantiles = { levels = [0.05, 0.5, 0.95], scale = 1.0 } }\n[run]\nvalidation-examples = 8\n\
        [combiner]\nset-size = [30, 40]\nexamples = 40\ncalibration-examples = 40\nsteps = 3\nbatch-size = 8\nlatent = 8\nhidden = 8\n\
        blocks = 1\nensemble-size = 1";

    #[test]
    fn a_combiner_follows_its_run_and_a_resumed_estimator_lacks_it_alone() {
        let dir = tempfile::tempdir().unwrap();
        let experiment = Experiment::parse(TINY).unwrap().validate().unwrap();
        let plan = RunPlan { name: "tiny".to_owned(), experiment, folder: dir.path().join("run") };
        let stop = AtomicBool::new(false);
        let mut options = RunOptions {
            folder: dir.path().to_owned(),
            resume: false,
            loader_threads: 1,
            device: Device::Cpu,
            encoders: Encoders::default(),
            stop: &stop,
        };
        let train = |queue: &Queue, options: &RunOptions| {
            let events = Mutex::new(Vec::new());
            let errors = queue.train(1, options, &|event| {
                events.lock().unwrap().extend(match event {
                    QueueEvent::Ended(_, outcome) => Some(if outcome.is_ok() { "run" } else { "failed run" }),
                    QueueEvent::Combiner(_, CombinerEvent::Started) => Some("started"),
                    QueueEvent::Combiner(_, CombinerEvent::Trained(path)) if path.exists() => Some("combiner"),
                    QueueEvent::Combiner(_, CombinerEvent::Skipped) => Some("skipped"),
                    _ => None,
                });
            });
            (errors.len(), events.into_inner().unwrap())
        };
        let queue = Queue::new(vec![plan.clone()], false).unwrap();
        assert_eq!((queue.runs().len(), queue.len()), (1, 1));
        assert_eq!(train(&queue, &options), (0, vec!["run", "started", "combiner"]));
        assert_eq!(train(&queue, &options), (1, vec!["failed run"]));
        options.resume = true;
        let queue = Queue::new(vec![plan], true).unwrap();
        assert_eq!((queue.runs().len(), queue.len()), (0, 1));
        assert_eq!(train(&queue, &options), (0, vec!["started", "combiner"]));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(train(&queue, &options), (0, vec!["skipped"]));
    }
}
