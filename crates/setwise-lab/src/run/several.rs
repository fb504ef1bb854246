//! Concurrent runs: a small model leaves most of a large GPU idle.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::train::{Event, Outcome, RunOptions, run};
use crate::Result;
use crate::experiment::ValidExperiment;

/// An experiment and the folder of its run.
#[derive(Clone)]
pub struct RunPlan {
    /// The name of the experiment, or its file.
    pub name: String,
    /// The experiment.
    pub experiment: ValidExperiment,
    /// The folder of the run.
    pub folder: PathBuf,
}

/// Executes all plans, `concurrency` of them at a time. Each result equals that of a run alone.
///
/// Concurrent runs share the loader threads. The folder of `options` is ignored. A failed run does not stop the others.
/// After a stop no run starts. `ended` is called with each outcome. Returns the outcomes of the runs that started, in
/// the order of the plans.
pub fn run_several(
    plans: &[RunPlan],
    concurrency: usize,
    options: &RunOptions,
    observe: &(dyn Fn(usize, Event) + Sync),
    ended: &(dyn Fn(usize, &Result<Outcome>) + Sync),
) -> Vec<(usize, Result<Outcome>)> {
    let workers = concurrency.clamp(1, plans.len().max(1));
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::with_capacity(plans.len()));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let take =
                    || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !options.stop.load(Ordering::Relaxed));
                while let Some((i, plan)) = take().and_then(|i| Some((i, plans.get(i)?))) {
                    let loader_threads = (options.loader_threads / workers).max(1);
                    let run_options = RunOptions { folder: plan.folder.clone(), loader_threads, ..options.clone() };
                    let outcome = run(&plan.experiment, &run_options, &mut |event| observe(i, event));
                    ended(i, &outcome);
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((i, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(i, _)| *i);
    outcomes
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use setwise::Device;

    use super::*;
    use crate::Error;
    use crate::experiment::Experiment;
    use crate::run::Encoders;

    fn tiny(seed: u64) -> ValidExperiment {
        let text = "[task]\nkind = 'kl'\ndim = 2\nset-size = [8, 12]\n[task.mixture]\ncomponents = [1, 2]
            [model]\nlatent = 8\nhidden = 8\nblocks = 1
            [training]\nsteps = 6\nbatch-size = 4\nloss = 'l1'\n[run]\nvalidation-examples = 8";
        Experiment { seed, ..Experiment::parse(text).unwrap() }.validate().unwrap()
    }

    #[test]
    fn concurrent_runs_equal_runs_alone_and_a_failed_run_stops_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let folder = dir.path().join("alone");
        let options = RunOptions {
            folder,
            resume: false,
            loader_threads: 2,
            device: Device::Cpu,
            encoders: Encoders::default(),
            stop: &stop,
        };
        let alone = run(&tiny(3), &options, &mut |_| {}).unwrap();
        let plan = |folder: &str, seed| {
            let (name, folder) = ("tiny".to_owned(), dir.path().join(folder));
            RunPlan { name, experiment: tiny(seed), folder }
        };
        // The second folder has a run already.
        let plans = [plan("a", 1), plan("alone", 2), plan("b", 3), plan("c", 4), plan("d", 5)];
        let steps = Mutex::new(vec![0; plans.len()]);
        let count = |i: usize, event: Event| {
            if let Event::Step { step, .. } = event {
                steps.lock().unwrap()[i] = step;
            }
        };
        let ended = AtomicUsize::new(0);
        let outcomes = run_several(&plans, 3, &options, &count, &|_, _| _ = ended.fetch_add(1, Ordering::Relaxed));
        assert_eq!(ended.load(Ordering::Relaxed), 5);
        let succeeded: Vec<_> = outcomes.iter().map(|(i, o)| (*i, o.is_ok())).collect();
        assert_eq!(succeeded, [(0, true), (1, false), (2, true), (3, true), (4, true)]);
        assert!(matches!(outcomes[1].1, Err(Error::Run { .. })));
        assert_eq!(*steps.lock().unwrap(), [6, 0, 6, 6, 6]);
        let same = outcomes[2].1.as_ref().unwrap();
        assert_eq!(same.validation, alone.validation);
        assert_eq!(std::fs::read(&same.model).unwrap(), std::fs::read(&alone.model).unwrap());
        stop.store(true, Ordering::Relaxed);
        assert!(
            run_several(&[plan("e", 6)], 1, &options, &|_, _| {}, &|_, _| {}).is_empty(),
            "a run started after the stop"
        );
    }
}
