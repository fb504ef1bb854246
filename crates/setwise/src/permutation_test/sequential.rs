//! The fused evidence of several statistics against that of permutations, until the verdict is clear.

use super::calibrate::{Calibration, fused};
use super::product::STRIP;
use super::result::Aspect;
use crate::estimate::Progress;

/// Permutations that are computed at once; the first such number calibrates, with the observed assignment.
pub(super) const CHUNK: usize = 8 * STRIP;

/// The settings of a comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    /// Random permutations.
    pub permutations: usize,
    /// The level of significance.
    pub alpha: f64,
}

/// The outcome of a comparison.
pub(super) struct Compared {
    /// Permutations that were compared, and those at least as extreme as the observed assignment.
    pub permutations: usize,
    pub as_large: usize,
    pub p_value: f64,
    /// The fused evidence, −ln of a p-value that several looks make too small.
    pub evidence: f64,
    /// The statistics one by one.
    pub statistics: Vec<StatisticCompared>,
}

/// What is known of a single statistic.
pub(super) struct StatisticCompared {
    pub calibration: Calibration,
    /// Its observed evidence.
    pub evidence: f64,
    /// The share of permutations with at least its value.
    pub p_value: f64,
}

impl Comparison {
    /// Compares the observed assignment, number zero, with permutations. `values` computes all statistics for so many
    /// assignments from a number on. The p-value of a statistic counts as if divided by its weight.
    ///
    /// It stops where so many permutations are at least as extreme that p is above `alpha` in any case; p is then the
    /// estimate of Besag and Clifford (1991).
    pub fn run(self, weights: &[f64], values: impl Fn(usize, usize) -> Vec<Vec<f64>>, progress: &Progress) -> Compared {
        let chunks = self.permutations.div_ceil(CHUNK) + 1;
        progress.plan(chunks);
        let first = values(0, CHUNK);
        let calibrations: Vec<Calibration> = first.iter().map(|values| Calibration::new(&values[1..])).collect();
        let evidence_of = |values: &[Vec<f64>], i: usize| {
            let each = weights.iter().zip(&calibrations).zip(values);
            fused(each.map(|((weight, fit), values)| fit.evidence(values[i]) + weight.ln()))
        };
        let evidence = evidence_of(&first, 0);
        // Equal splits of the rows differ by rounding errors.
        let least = evidence - 1e-4 * (1.0 + evidence.abs());
        let observed: Vec<f64> = first.iter().map(|values| values[0]).collect();
        let stop = (self.alpha * (self.permutations + 1) as f64).floor() as usize + 1;
        progress.advance(1);
        let (mut compared, mut as_large, mut done) = (0, 0, 1);
        let mut reached = vec![0usize; observed.len()];
        'all: while compared < self.permutations {
            let count = CHUNK.min(self.permutations - compared);
            let values = values(CHUNK + compared, count);
            for i in 0..count {
                compared += 1;
                as_large += usize::from(!is_less(evidence_of(&values, i), least));
                for ((reached, values), observed) in reached.iter_mut().zip(&values).zip(&observed) {
                    *reached += usize::from(!is_less(values[i], observed * (1.0 - 1e-5)));
                }
                if as_large >= stop {
                    break 'all;
                }
            }
            progress.advance(1);
            done += 1;
        }
        let p_value = match as_large >= stop {
            true => as_large as f64 / compared as f64,
            false => (1 + as_large) as f64 / (1 + compared) as f64,
        };
        // Also where it stops early.
        progress.advance(chunks - done);
        let statistic = |((calibration, observed), reached): ((Calibration, f64), usize)| StatisticCompared {
            calibration,
            evidence: calibration.evidence(observed),
            p_value: (1 + reached) as f64 / (1 + compared) as f64,
        };
        let statistics = calibrations.into_iter().zip(observed).zip(reached).map(statistic).collect();
        Compared { permutations: compared, as_large, p_value, evidence, statistics }
    }
}

/// NaN is not less than any number: a statistic that cannot be computed is no evidence.
fn is_less(x: f64, y: f64) -> bool {
    x < y
}

/// What statistics of these aspects and columns found, by p-value; of equal p-values those that name columns first,
/// then the strongest. Of equal aspects and columns the strongest alone.
pub(super) fn strongest(
    compared: &Compared,
    found: impl Iterator<Item = (Aspect, Vec<usize>)>,
) -> Vec<(Aspect, Vec<usize>, f64)> {
    let mut all: Vec<_> = compared.statistics.iter().zip(found).collect();
    all.sort_by(|a, b| b.0.evidence.total_cmp(&a.0.evidence));
    let mut strongest: Vec<(Aspect, Vec<usize>, f64)> = Vec::new();
    for (statistic, (aspect, columns)) in all {
        if !strongest.iter().any(|f| f.0 == aspect && f.1 == columns) {
            strongest.push((aspect, columns, statistic.p_value));
        }
    }
    strongest.sort_by(|a, b| a.2.total_cmp(&b.2).then(a.1.is_empty().cmp(&b.1.is_empty())));
    strongest
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::random::Generator;

    /// Statistics that are independent uniform numbers; the observed ones are given.
    fn compared(observed: [f64; 2], alpha: f64) -> Compared {
        let value = |s: usize, i: usize| {
            if i == 0 { observed[s] } else { Generator::seed_from_u64((2 * i + s) as u64).random::<f64>() }
        };
        let values = |from: usize, count: usize| -> Vec<Vec<f64>> {
            (0..2).map(|s| (from..from + count).map(|i| value(s, i)).collect()).collect()
        };
        Comparison { permutations: 999, alpha }.run(&[1.0, 1.0], values, &Progress::default())
    }

    #[test]
    fn extreme_statistics_have_the_smallest_p_value() {
        let found = compared([0.5, 2.0], 0.05);
        assert_eq!((found.p_value, found.as_large, found.permutations), (0.001, 0, 999));
        assert_eq!(found.statistics[1].p_value, 0.001);
        assert!((found.statistics[0].p_value - 0.5).abs() < 0.07);
        assert!(found.statistics[1].evidence > found.statistics[0].evidence);
    }

    #[test]
    fn it_stops_once_p_is_above_the_level() {
        let found = compared([0.6, 0.6], 0.05);
        assert_eq!(found.as_large, 51);
        assert!(found.permutations < 300 && found.p_value > 0.05, "{}", found.p_value);
        assert_eq!(compared([0.6, 0.6], 0.9999).permutations, 999);
    }
}
