//! The statistics, all of one form: with a kernel k, mean k within P + mean k within Q − twice the mean k between them.

use super::deals::Sums;
use crate::estimate::Points;
use crate::{Error, Result};

/// What of two samples is compared. Both are zero for equal distributions and positive for any others.
#[derive(Clone, Debug, PartialEq)]
pub enum Statistic {
    /// The energy distance 2·E‖X − Y‖ − E‖X − X′‖ − E‖Y − Y′‖ (Székely, Rizzo), means over all pairs.
    Energy,
    /// The squared maximum mean discrepancy with kernel exp(−‖x − y‖² / 2h²) (Gretton et al.), unbiased, so that it may fall below zero.
    Mmd {
        /// h, in standard deviations of the columns; the median distance of rows if none is given.
        bandwidth: Option<f64>,
    },
}

/// Rows of both samples that the median distance is taken over.
const MEDIAN_ROWS: usize = 1000;

/// Both samples, P first, each column with mean zero and unit variance over both.
pub(super) struct Scaled {
    pub data: Vec<f64>,
    pub dim: usize,
    constant: Option<usize>,
}

impl Scaled {
    pub fn new(mut data: Vec<f64>, dim: usize) -> Self {
        let rows = (data.len() / dim) as f64;
        let mut constant = None;
        for c in 0..dim {
            let column = |data: &[f64]| data.iter().skip(c).step_by(dim).copied().collect::<Vec<f64>>();
            let values = column(&data);
            // By the largest first: squares of what numbers just hold, or just do not, are lost.
            let largest = values.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
            let unit = |x: f64| if largest > 0.0 { x / largest } else { 0.0 };
            let mean = values.iter().map(|&x| unit(x)).sum::<f64>() / rows;
            let variance = values.iter().map(|&x| (unit(x) - mean).powi(2)).sum::<f64>() / rows;
            let same = values.iter().all(|&x| x == values[0]);
            constant = constant.or(same.then_some(c + 1));
            let scale = if same { 0.0 } else { 1.0 / variance.sqrt() };
            for x in data.iter_mut().skip(c).step_by(dim) {
                *x = (unit(*x) - mean) * scale;
            }
        }
        Scaled { data, dim, constant }
    }

    /// The first column with one value only, counted from one.
    pub fn constant(&self) -> Option<usize> {
        self.constant
    }

    pub fn row(&self, i: usize) -> &[f64] {
        &self.data[i * self.dim..(i + 1) * self.dim]
    }

    /// The median distance of different rows: those at distance zero count only if there are no others.
    fn median_distance(&self, seed: u64) -> f64 {
        let all = Points::new(&self.data, self.dim);
        let rows = all.subsample(MEDIAN_ROWS, seed);
        let square =
            |a: usize, b: usize| all.row(a).iter().zip(all.row(b)).map(|(x, y)| (x - y) * (x - y)).sum::<f64>();
        let pairs = rows.iter().enumerate().flat_map(|(i, &a)| rows[..i].iter().map(move |&b| (a, b)));
        let mut squares: Vec<f64> = pairs.map(|(a, b)| square(a, b)).filter(|&s| s > 0.0).collect();
        if squares.is_empty() {
            return 1.0;
        }
        let middle = squares.len() / 2;
        squares.select_nth_unstable_by(middle, f64::total_cmp).1.sqrt()
    }
}

/// A kernel ready to use.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kernel {
    Energy,
    Gaussian { bandwidth: f64 },
}

impl Kernel {
    pub fn new(statistic: &Statistic, pooled: &Scaled, seed: u64) -> Result<Self> {
        match *statistic {
            Statistic::Energy => Ok(Kernel::Energy),
            Statistic::Mmd { bandwidth: Some(h) } if !(h > 0.0 && h.is_finite()) => {
                Err(Error::Estimate(format!("a bandwidth of {h}: it must be positive")))
            }
            Statistic::Mmd { bandwidth } => {
                Ok(Kernel::Gaussian { bandwidth: bandwidth.unwrap_or_else(|| pooled.median_distance(seed)) })
            }
        }
    }

    /// Squares of distances to kernel values, in place.
    pub fn apply(self, squares: &mut [f64]) {
        match self {
            Kernel::Energy => squares.iter_mut().for_each(|s| *s = -s.sqrt()),
            Kernel::Gaussian { bandwidth } => {
                let rate = -0.5 / (bandwidth * bandwidth);
                squares.iter_mut().for_each(|s| *s = (*s * rate).exp());
            }
        }
    }

    /// The statistic from sums over pairs of different rows.
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
    fn columns_have_unit_variance_over_both_samples_and_constant_ones_vanish() {
        let scaled = Scaled::new(vec![1e300, 5.0, -1e300, 5.0, 1e300, 5.0, -1e300, 5.0], 2);
        assert_eq!(scaled.data, [1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0]);
        assert_eq!(scaled.constant(), Some(2));
    }

    #[test]
    fn the_median_distance_leaves_rows_out_that_coincide() {
        let scaled = Scaled { data: vec![0.0, 0.0, 0.0, 3.0], dim: 1, constant: None };
        assert_eq!(scaled.median_distance(0), 3.0);
        assert_eq!(Scaled { data: vec![2.0; 4], dim: 1, constant: None }.median_distance(0), 1.0);
    }
}
