//! How far an estimate is.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How far an estimate is, for a progress bar on another thread.
///
/// Work is counted in units of roughly equal time. What is planned may grow while the estimate is made.
///
/// ```
/// use setwise::estimate::{Estimator, Points, Pretrained, Progress};
/// let p: Vec<f64> = (0..200).map(|i| f64::from(i * 37 % 101) / 101.0).collect();
/// let q: Vec<f64> = p.iter().map(|x| 2.0 * x).collect();
/// let progress = Progress::default();
/// assert_eq!(progress.share(), None);
/// Pretrained::built_in()?.estimate_observed(Points::new(&p, 1), Points::new(&q, 1), 0, &progress)?;
/// assert!(progress.share().unwrap() > 0.9);
/// # Ok::<(), setwise::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Progress {
    planned: AtomicUsize,
    done: AtomicUsize,
}

impl Progress {
    /// The share of the planned work that is done, from 0 to 1; `None` while nothing is planned.
    pub fn share(&self) -> Option<f64> {
        let [planned, done] = [&self.planned, &self.done].map(|units| units.load(Ordering::Relaxed));
        (planned > 0).then(|| (done as f64 / planned as f64).min(1.0))
    }

    /// Announces work.
    pub(crate) fn plan(&self, units: usize) {
        self.planned.fetch_add(units, Ordering::Relaxed);
    }

    /// Counts work that is done.
    pub(crate) fn advance(&self, units: usize) {
        self.done.fetch_add(units, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::estimate::{Estimator, GaussianKl, Mine, Points, Pretrained, explain_observed, log_ratio_observed};
    use crate::random::Generator;

    #[test]
    fn all_planned_work_is_done_in_the_end() {
        let mut rng = Generator::seed_from_u64(5);
        let mut draw = |n: usize| -> Vec<f64> { (0..3 * n).map(|_| rng.random()).collect() };
        let (p, q, other) = (draw(150), draw(260), draw(40));
        let (p, q, other) = (Points::new(&p, 3), Points::new(&q, 3), Points::new(&other, 3));
        let check = |work: &dyn Fn(&Progress)| {
            let progress = Progress::default();
            work(&progress);
            let [planned, done] = [&progress.planned, &progress.done].map(|units| units.load(Ordering::Relaxed));
            assert!(planned > 0 && planned == done, "{done} of {planned}");
        };
        check(&|progress| drop(Pretrained::shared().unwrap().estimate_observed(p, q, 0, progress).unwrap()));
        check(&|progress| drop(log_ratio_observed(p, q, Some(other), progress).unwrap()));
        check(&|progress| drop(explain_observed(&GaussianKl::default(), p, q, &[], 0, progress).unwrap()));
        let mine = Mine { steps: 60, ..Mine::default() };
        check(&|progress| drop(mine.estimate_observed(p, p, 0, progress).unwrap()));
    }
}
