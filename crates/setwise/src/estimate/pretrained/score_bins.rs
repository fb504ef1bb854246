//! Divergences of binned scores.

/// Shares of both samples in bins of a score.
pub struct ScoreBins([Vec<f64>; 2]);

impl ScoreBins {
    /// Bins of equal numbers of rows of both samples; equal scores share a bin.
    pub fn new([first, second]: &[Vec<f64>; 2], bins: usize) -> Self {
        let mut all: Vec<f64> = first.iter().chain(second).copied().collect();
        all.sort_unstable_by(f64::total_cmp);
        let bins = bins.min(all.len() / 10).max(2);
        let mut edges: Vec<f64> = (1..bins).map(|k| all[k * all.len() / bins]).collect();
        edges.dedup();
        let shares = [first, second].map(|scores| {
            let mut counts = vec![0.5; edges.len() + 1];
            scores.iter().for_each(|s| counts[edges.partition_point(|e| e < s)] += 1.0);
            let total: f64 = counts.iter().sum();
            counts.into_iter().map(|c| c / total).collect()
        });
        ScoreBins(shares)
    }

    /// KL of the first sample's shares from the second's.
    pub fn kl(&self) -> f64 {
        self.0[0].iter().zip(&self.0[1]).map(|(&p, &q)| p * (p / q).ln()).sum()
    }

    /// The mean of a function of the log ratio over bins, where both samples have the same weight.
    pub fn mean(&self, of: impl Fn(f64) -> f64) -> f64 {
        self.0[0].iter().zip(&self.0[1]).map(|(&p, &q)| 0.5 * (p + q) * of((p / q).ln())).sum()
    }
}
