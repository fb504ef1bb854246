//! Each two of several samples.

use super::super::result::{PairResult, TestResult};

/// The pairs of three or more samples.
pub(super) fn pairs(samples: usize) -> Vec<[usize; 2]> {
    if samples < 3 {
        return Vec::new();
    }
    (0..samples).flat_map(|a| (a + 1..samples).map(move |b| [a, b])).collect()
}

/// The tests of pairs with p-values among all of them (Holm 1979). No pair differs where all samples together do not.
pub(super) fn adjusted(all: &TestResult, pairs: &[[usize; 2]], tests: Vec<TestResult>) -> Vec<PairResult> {
    let mut order: Vec<usize> = (0..pairs.len()).collect();
    order.sort_by(|&a, &b| tests[a].p_value.total_cmp(&tests[b].p_value));
    let mut adjusted = vec![0.0; pairs.len()];
    let mut least = all.p_value;
    for (place, &pair) in order.iter().enumerate() {
        least = (tests[pair].p_value * (pairs.len() - place) as f64).clamp(least, 1.0);
        adjusted[pair] = least;
    }
    let result = |((samples, test), adjusted): ((&[usize; 2], TestResult), f64)| PairResult {
        samples: *samples,
        p_value: test.p_value,
        adjusted,
        significant: adjusted <= all.alpha,
        auc: test.auc,
        interval: test.interval,
        findings: test.findings,
        warnings: test.warnings,
    };
    pairs.iter().zip(tests).zip(adjusted).map(result).collect()
}
