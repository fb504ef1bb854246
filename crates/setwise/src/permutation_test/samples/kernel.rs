//! Test statistics with a kernel k: the mean of k within P plus the mean within Q minus twice the mean between them.

use super::super::standardised::{Standardised, sorted_rows};
use super::permutations::Sums;
use crate::estimate::Points;
use crate::{Error, Result};

/// The statistic of a test. Its expectation in the limit is zero for equal distributions and positive for all others.
#[derive(Clone, Debug, PartialEq)]
pub enum Statistic {
    /// Many statistics of label-blind columns, fused within every permutation: kernels of several widths, ranks of
    /// columns, dependence of pairs.
    Adaptive,
    /// The energy distance 2·E‖X − Y‖ − E‖X − X′‖ − E‖Y − Y′‖ (Székely, Rizzo), means over all pairs.
    Energy,
    /// The squared maximum mean discrepancy with kernel exp(−‖x − y‖² / 2h²) (Gretton et al.). It is unbiased and may
    /// be negative.
    Mmd {
        /// h, in standard deviations of the columns; by default the median distance of rows.
        bandwidth: Option<f64>,
    },
}

/// The least bandwidth, in standard deviations; squares of much smaller ones are zero on a GPU.
const MIN_BANDWIDTH: f64 = 1e-15;
/// Rows of both samples that the median distance is computed on.
const MEDIAN_ROWS: usize = 1000;

/// The median of the positive distances between rows; one if there are none.
fn median_distance(pooled: &Standardised, seed: u64) -> f64 {
    // Rows are drawn from an order that labels do not determine, or the bandwidth would depend on them.
    let order = sorted_rows(&pooled.data, pooled.dim);
    let places = Points::new(&pooled.data, pooled.dim).subsample(MEDIAN_ROWS, seed);
    let rows: Vec<usize> = places.into_iter().map(|place| order[place] as usize).collect();
    let squared_distance =
        |a: usize, b: usize| pooled.row(a).iter().zip(pooled.row(b)).map(|(x, y)| (x - y) * (x - y)).sum::<f64>();
    let pairs = rows.iter().enumerate().flat_map(|(i, &a)| rows[..i].iter().map(move |&b| (a, b)));
    let mut squared_distances: Vec<f64> = pairs.map(|(a, b)| squared_distance(a, b)).filter(|&s| s > 0.0).collect();
    if squared_distances.is_empty() {
        return 1.0;
    }
    let middle = squared_distances.len() / 2;
    squared_distances.select_nth_unstable_by(middle, f64::total_cmp).1.sqrt()
}

/// A kernel with its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kernel {
    Energy,
    Gaussian { bandwidth: f64 },
}

impl Kernel {
    pub fn new(statistic: &Statistic, pooled: &Standardised, seed: u64) -> Result<Self> {
        match *statistic {
            Statistic::Adaptive => unreachable!("an adaptive test has no single kernel"),
            Statistic::Energy => Ok(Kernel::Energy),
            Statistic::Mmd { bandwidth: Some(h) } if !(h >= MIN_BANDWIDTH && h.is_finite()) => {
                Err(Error::Estimate(format!("bandwidth {h}: must be positive, {MIN_BANDWIDTH:e} or more")))
            }
            Statistic::Mmd { bandwidth } => Ok(Kernel::Gaussian {
                bandwidth: bandwidth.unwrap_or_else(|| median_distance(pooled, seed)).max(MIN_BANDWIDTH),
            }),
        }
    }

    /// Replaces squared distances by kernel values.
    pub fn apply(self, squared_distances: &mut [f64]) {
        match self {
            Kernel::Energy => squared_distances.iter_mut().for_each(|s| *s = -s.sqrt()),
            Kernel::Gaussian { bandwidth } => {
                let rate = -0.5 / (bandwidth * bandwidth);
                squared_distances.iter_mut().for_each(|s| *s = (*s * rate).exp());
            }
        }
    }

    /// The statistic, from sums over pairs of different rows.
    pub fn value(self, sums: Sums, n: usize, m: usize) -> f64 {
        let (n, m) = (n as f64, m as f64);
        let between = 2.0 * sums.between / (n * m);
        match self {
            Kernel::Energy => sums.first / (n * n) + sums.second / (m * m) - between,
            Kernel::Gaussian { .. } => sums.first / (n * (n - 1.0)) + sums.second / (m * (m - 1.0)) - between,
        }
    }

    pub fn name(self) -> String {
        match self {
            Kernel::Energy => "energy distance".to_owned(),
            Kernel::Gaussian { bandwidth } => format!("mmd, gaussian kernel of bandwidth {bandwidth:.4}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_distance_ignores_coincident_rows() {
        let standardised = Standardised { data: vec![0.0, 0.0, 0.0, 3.0], dim: 1, constant: None };
        assert_eq!(median_distance(&standardised, 0), 3.0);
        assert_eq!(median_distance(&Standardised { data: vec![2.0; 4], dim: 1, constant: None }, 0), 1.0);
    }
}
