//! Permutation tests: do samples have one distribution, and are columns independent?
//!
//! If samples P and Q are equal, the assignment of rows to samples is arbitrary. If X and Y are independent, so is the
//! assignment of rows of Y to rows of X. Random permutations assign the rows again. The p-value is the share of
//! assignments whose statistic is at least the observed one, the observed assignment included. The level of the test is
//! exact for all distributions, sizes and statistics.
//!
//! | module | holds |
//! | --- | --- |
//! | `samples` | tests of two or more samples |
//! | `independence` | tests of X against Y |
//! | `encode` | label-blind columns of rows: bumps, ranks, a trained network |
//! | `calibrate` | statistics of different kinds on one scale, fused into one |
//! | `sequential` | observed evidence against that of permutations, until the verdict is clear |
//! | `product` | products of many columns of the same rows |
//! | `standardised` | columns of mean zero and variance one |
//! | `tables` | tables of mixed columns as rows of numbers |

mod calibrate;
mod encode;
mod independence;
mod product;
mod result;
mod samples;
mod sequential;
mod standardised;
mod tables;

use crate::estimate::{Points, check_rows};
use crate::{Device, Error, Result};

pub use encode::Inputs as EncoderInputs;
pub use result::{Aspect, Finding, PairResult, Question, TestResult};
pub use samples::{Design, Statistic};
pub use tables::Encoded;

/// A permutation test. Columns are standardised or ranked, so that units have no influence.
///
/// Adaptive tests of samples use all rows, but at most 20 times those of the smallest sample; time and memory are
/// linear in them. Tests of one kernel are quadratic in the rows, and draw [`PermutationTest::max_rows`] of larger
/// samples at random. So do tests of independence.
///
/// ```
/// use setwise::estimate::Points;
/// use setwise::permutation_test::PermutationTest;
/// let p: Vec<f64> = (0..60).map(|i| f64::from(i * 37 % 60)).collect();
/// let q: Vec<f64> = (0..50).map(|i| f64::from(i * 31 % 50) + 40.0).collect();
/// let (p, q) = (Points::new(&p, 1), Points::new(&q, 1));
/// assert_eq!(PermutationTest::default().two_samples(p, q)?.p_value, 0.001);
/// assert!(PermutationTest::default().two_samples(p, p)?.p_value > 0.9);
/// # Ok::<(), setwise::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PermutationTest {
    /// The statistic of tests of samples.
    pub statistic: Statistic,
    /// Random permutations; the smallest p-value is 1 / (permutations + 1).
    pub permutations: usize,
    /// The level of significance. An adaptive test draws no more permutations once p is above it in any case.
    pub alpha: f64,
    /// Maximum number of rows of each sample where time is not linear in them; more are subsampled.
    pub max_rows: usize,
    /// Seed of the permutations, and of the rows that are drawn.
    pub seed: u64,
    /// Where tests of one kernel are computed. A GPU takes all pairs of 40,000 rows in a fraction of a second.
    pub device: Device,
}

impl Default for PermutationTest {
    /// The adaptive test at level 5 %, 999 permutations.
    fn default() -> Self {
        PermutationTest {
            statistic: Statistic::Adaptive,
            permutations: 999,
            alpha: 0.05,
            max_rows: 10_000,
            seed: 0,
            device: Device::Cpu,
        }
    }
}

/// Permutations of a test.
const MAX_PERMUTATIONS: usize = 100_000;

impl PermutationTest {
    /// Checks the settings, and that all values are finite.
    fn check(&self, all: &[Points], test: &str) -> Result<()> {
        if self.permutations == 0 || self.permutations > MAX_PERMUTATIONS {
            let n = self.permutations;
            return Err(Error::Estimate(format!("{n} permutations: must be 1 to {MAX_PERMUTATIONS}")));
        }
        if !(self.alpha > 0.0 && self.alpha < 1.0) {
            return Err(Error::Setting {
                key: "alpha".to_owned(),
                reason: format!("is {}; give a share below 1", self.alpha),
            });
        }
        if self.max_rows < 2 {
            return Err(Error::Estimate(format!("at most {} rows: must be 2 or more", self.max_rows)));
        }
        for points in all {
            if let Some(i) = points.data().iter().position(|x| !x.is_finite()) {
                let (row, column) = (i / points.dim() + 1, i % points.dim() + 1);
                let x = points.data()[i];
                return Err(Error::Estimate(format!(
                    "{}: row {row}, column {column} is {x}; every value must be a finite number",
                    points.name()
                )));
            }
        }
        all.iter().try_for_each(|s| check_rows(*s, 2, test))
    }
}

/// The error of samples whose rows belong together, but that have different numbers of them.
fn unpaired(a: Points, b: Points) -> Error {
    let [a, b] = [a, b].map(|points| format!("{} has {}", points.name(), points.len()));
    Error::Sets(format!("{a} rows, {b}: row i of one belongs to row i of the other"))
}
