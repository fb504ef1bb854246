//! How well rows of both samples are told apart: the area under the ROC curve (AUC) of a cross-fitted witness.
//!
//! A witness is a function of a row that is larger on P than on Q. Each fold of rows is scored by a witness that the
//! labels of the other folds determine: the direction of each statistic in its columns, weighted by the evidence that
//! the statistic has on these folds. The AUC is the probability that a row of P scores higher than one of Q, 0.5 if the
//! distributions are equal.

use setwise_engine::splitmix64;

use super::super::product::{PANEL, STRIP};

/// Folds of rows.
pub(super) const FOLDS: usize = 5;

/// The AUC with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Separation {
    pub auc: f64,
    pub interval: [f64; 2],
}

/// The fold of each row, in which both samples have equal shares: random, since rows may be in the order of time.
pub(super) fn folds(rows: &[u32], first: &[bool], seed: u64) -> Vec<u8> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&i| (first[i], splitmix64(splitmix64(seed ^ 8) ^ u64::from(rows[i]))));
    let mut folds = vec![0; rows.len()];
    order.iter().enumerate().for_each(|(place, &i)| folds[i] = (place % FOLDS) as u8);
    folds
}

/// Labels of the rows other than those of each fold, as a strip: 1/n for rows of P, −1/m for rows of Q, so that sums of
/// columns are differences of means, times `scale` of n and m. The fold of row i is `folds[i]`.
pub(super) fn training_strip(first: &[bool], folds: &[u8], scale: impl Fn([usize; 2]) -> f64) -> Vec<f32> {
    let mut strip = vec![0.0; STRIP * first.len()];
    for fold in 0..FOLDS {
        let counts = training_counts(first, folds, fold);
        for (i, row) in strip.chunks_exact_mut(STRIP).enumerate().filter(|(i, _)| usize::from(folds[*i]) != fold) {
            let label = if first[i] { 1.0 / counts[0] as f64 } else { -1.0 / counts[1] as f64 };
            row[fold] = (label * scale(counts)) as f32;
        }
    }
    strip
}

/// Rows of P and Q outside of a fold.
fn training_counts(first: &[bool], folds: &[u8], fold: usize) -> [usize; 2] {
    let of = |label: bool| first.iter().zip(folds).filter(|(l, f)| **l == label && usize::from(**f) != fold).count();
    [of(true), of(false)]
}

/// Adds `weight` times the standardised values of a direction to the scores of all rows.
pub(super) fn add_scores(panels: &[f32], columns: &[usize], direction: &[f64], weight: f64, scores: &mut [f64]) {
    let rows = scores.len();
    let mut values = vec![0.0; rows];
    for (&c, &v) in columns.iter().zip(direction).filter(|(_, v)| **v != 0.0) {
        let panel = &panels[c / PANEL * PANEL * rows..];
        for (i, value) in values.iter_mut().enumerate() {
            *value += v * f64::from(panel[i * PANEL + c % PANEL]);
        }
    }
    let mean = values.iter().sum::<f64>() / rows as f64;
    let deviation = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / rows as f64).sqrt();
    if deviation > 0.0 {
        scores.iter_mut().zip(values).for_each(|(score, value)| *score += weight * (value - mean) / deviation);
    }
}

/// The mean AUC of folds, whose scores are of different witnesses, with its 90 % interval. `None` where a fold has too
/// few rows of a sample.
///
/// The variance of a fold is that of DeLong et al. (1988). Witnesses of different folds learn from common rows, which
/// the correction of Nadeau and Bengio (2003) allows for.
pub(super) fn separation(first: &[bool], folds: &[u8], scores: &[Vec<f64>]) -> Option<Separation> {
    const QUANTILE: f64 = 1.645;
    let (mut sum, mut variance) = (0.0, 0.0);
    for (fold, scores) in scores.iter().enumerate() {
        let of = |label: bool| -> Vec<f64> {
            let rows = (0..first.len()).filter(|&i| first[i] == label && usize::from(folds[i]) == fold);
            rows.map(|i| scores[i]).collect()
        };
        let (auc, v) = auc(&of(true), &of(false))?;
        (sum, variance) = (sum + auc, variance + v);
    }
    let folds = scores.len() as f64;
    // 1/k + n/m for k folds, n rows to test on and m to learn from.
    let correction = 1.0 + folds / (folds - 1.0);
    let (auc, error) = (sum / folds, (correction * variance).sqrt() / folds);
    Some(Separation { auc, interval: [-1.0, 1.0].map(|sign| (auc + sign * QUANTILE * error).clamp(0.0, 1.0)) })
}

/// The share of pairs in which the first number is larger, ties counted half, and the variance of this share.
fn auc(p: &[f64], q: &[f64]) -> Option<(f64, f64)> {
    if p.len() < 3 || q.len() < 3 {
        return None;
    }
    let sorted = |v: &[f64]| {
        let mut v = v.to_vec();
        v.sort_unstable_by(f64::total_cmp);
        v
    };
    // The share of the others that lie below each number.
    let below = |v: &[f64], others: &[f64]| -> Vec<f64> {
        let others = sorted(others);
        let share = |x: &f64| {
            let (less, up_to) = (others.partition_point(|y| y < x), others.partition_point(|y| y <= x));
            0.5 * (less + up_to) as f64 / others.len() as f64
        };
        v.iter().map(share).collect()
    };
    let moments = |v: &[f64]| {
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        (mean, v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (v.len() - 1) as f64)
    };
    let ((mean, of_p), (_, of_q)) = (moments(&below(p, q)), moments(&below(q, p)));
    // Separated samples have no spread; their AUC is as uncertain as a share of the smaller one.
    let fewer = p.len().min(q.len()) as f64;
    let share = mean.clamp(0.5 / fewer, 1.0 - 0.5 / fewer);
    let least = 0.5 * share * (1.0 - share) / fewer;
    Some((mean, (of_p / p.len() as f64 + of_q / q.len() as f64).max(least)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_auc_is_the_share_of_pairs_in_order() {
        let (value, variance) = auc(&[1.0, 3.0, 3.0], &[0.0, 3.0, 5.0]).unwrap();
        assert!((value - (1.0 + 1.5 + 1.5) / 9.0).abs() < 1e-12, "{value}");
        assert!(variance > 0.0);
        let (apart, variance) = auc(&[2.0, 3.0, 4.0], &[0.0, 1.0, 1.0]).unwrap();
        assert!(apart == 1.0 && variance > 0.01);
        assert_eq!(auc(&[2.0, 3.0], &[0.0, 1.0, 1.0]), None);
    }

    #[test]
    fn folds_have_equal_shares_of_both_samples() {
        let first: Vec<bool> = (0..120).map(|i| i < 20).collect();
        let folds = folds(&(0..120).collect::<Vec<u32>>(), &first, 3);
        for fold in 0..FOLDS {
            let [k, l] = training_counts(&first, &folds, fold);
            assert_eq!((20 - k, 100 - l), (4, 20));
        }
    }

    #[test]
    fn training_sums_are_differences_of_means_of_other_folds() {
        let first = [true, true, true, false, false, false];
        let folds = [0, 1, 2, 0, 1, 2];
        let strip = training_strip(&first, &folds, |_| 1.0);
        let column = |fold: usize| (0..6).map(|i| strip[i * STRIP + fold]).collect::<Vec<_>>();
        assert_eq!(column(0), [0.0, 0.5, 0.5, 0.0, -0.5, -0.5]);
        assert_eq!(training_counts(&first, &folds, 1), [2, 2]);
    }
}
