//! Label-blind columns: numbers of each row that depend on the pooled sample, never on which sample a row is from.
//!
//! | module | columns |
//! | --- | --- |
//! | `bumps` | kernels around random rows: Gaussian, Laplace, distance |
//! | `ranks` | cosines of ranks, normal scores |
//! | `pairs` | products of two columns' normal scores or cosines |
//! | `repeated` | indicators of values that many rows share |
//! | `learnt` | a network that was trained to see changes |
//! | `radius` | rows in units of their covariance; cosines of the rank of their distance from the mean |

mod bumps;
mod learnt;
mod pairs;
mod radius;
mod ranks;
mod repeated;

pub use bumps::{Bumps, Shape, bandwidths};
pub use learnt::{ENTRY_COLUMNS, Inputs, Learnt, MAX_DIM, PooledRows, ROW_COLUMNS};
pub use pairs::{PairCosines, Products};
pub use radius::{radius_cosines, whitened};
pub use ranks::{RankCosines, Ranks};
pub use repeated::RepeatedValues;

/// Columns of the rows of the pooled sample.
pub trait Encode: Sync {
    /// Number of columns.
    fn width(&self) -> usize;

    /// Writes the columns of a row.
    fn encode(&self, row: usize, out: &mut [f32]);
}

/// Columns that are computed beforehand, row-major.
pub struct Stored {
    pub values: Vec<f32>,
    pub width: usize,
}

impl Encode for Stored {
    fn width(&self) -> usize {
        self.width
    }

    fn encode(&self, row: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.values[row * self.width..(row + 1) * self.width]);
    }
}
