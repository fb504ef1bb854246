//! Sums of a kernel for many permutations at once.
//!
//! A permutation assigns row i to the first sample where z_i = 1. Let r_i be the sum of the kernel from row i to all
//! columns. The sums over ordered pairs follow from one triangle of the kernel matrix and from r:
//!
//! - within the first sample, A = 2·Σ_{i<j} z_i z_j k_ij;
//! - between both samples, C = Σ z_i r_i − A;
//! - within the second sample, Σ r_i − A − 2·C.
//!
//! The matrix is never stored. A task owns [`TILE`] rows of it and computes their tiles one after another. Each tile
//! serves all permutations, in blocks of [`BLOCK`] that lie side by side in vectors. A block is stored as one bit mask
//! for every row. Results of tasks are added in a fixed order, so that sums do not depend on the number of threads.
//!
//! On a GPU the full matrix is computed in tiles of its own (`permuted_sums.cu`). Few rows stay on the CPU.
//!
//! With many rows, sums within a tile are f32. Their errors are far below the spread of the statistic and average out
//! over tiles. All other sums are f64.

use rayon::prelude::*;
use setwise_engine::Real;
use setwise_engine::simd::{Kernel as VectorKernel, Vector};

use super::super::standardised::Standardised;
use super::kernel::Kernel;
use super::labels::Labels;
use crate::estimate::Progress;
use crate::{Device, Result};

/// Rows and columns of a tile of the matrix.
const TILE: usize = 64;
/// Permutations in a block.
const BLOCK: usize = 32;
/// Rows that share the loads of a block's members.
const ROWS_PER_STEP: usize = 4;
/// Up to this many rows all sums are f64. Few rows have many permutations with equal statistics, which stay equal.
const MAX_F64_ROWS: usize = 512;

/// Sums of the kernel over ordered pairs of different rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sums {
    /// Both rows in the first sample.
    pub first: f64,
    /// Both rows in the second sample.
    pub second: f64,
    /// One row in each sample, counted once.
    pub between: f64,
}

impl Sums {
    /// The sum of the magnitudes of terms that cancel in the statistic.
    pub fn magnitude(self) -> f64 {
        self.first.abs() + self.second.abs() + 2.0 * self.between.abs()
    }
}

/// Assignments of rows to two samples of given sizes: the observed one, then random permutations.
pub(super) struct Permutations {
    rows: usize,
    count: usize,
    /// A bit mask for every block and row. Bit k is set if permutation k of the block has the row in its first sample.
    blocks: Vec<Vec<u32>>,
}

impl Permutations {
    pub fn new(labels: &Labels, random: usize) -> Self {
        let (rows, count) = (labels.rows(), random + 1);
        let block = |block: usize| {
            let mut bits = vec![0u32; rows];
            for permutation in 0..BLOCK.min(count - block * BLOCK) {
                labels.permuted(block * BLOCK + permutation, |row, sample| {
                    bits[row] |= u32::from(sample == 0) << permutation;
                });
            }
            bits
        };
        Permutations { rows, count, blocks: (0..count.div_ceil(BLOCK)).into_par_iter().map(block).collect() }
    }

    /// Sums of a kernel for every permutation.
    pub fn sums(
        &self,
        points: &Standardised,
        kernel: Kernel,
        device: &Device,
        progress: &Progress,
    ) -> Result<Vec<Sums>> {
        let (first, row_sums) = match device {
            #[cfg(feature = "cuda")]
            Device::Cuda { device, .. } if self.rows > MAX_F64_ROWS => self.cuda_sums(points, kernel, device)?,
            _ => self.cpu_sums(points, kernel, progress),
        };
        let total: f64 = row_sums.iter().sum();
        let sums = |permutation: usize| {
            let bits = &self.blocks[permutation / BLOCK];
            let from_first = row_sums.iter().zip(bits).filter(|(_, b)| *b >> (permutation % BLOCK) & 1 == 1);
            let from_first: f64 = from_first.map(|(r, _)| r).sum();
            let first = first[permutation];
            Sums { first, second: total - 2.0 * from_first + first, between: from_first - first }
        };
        Ok((0..self.count).into_par_iter().map(sums).collect())
    }

    /// The sums within the first sample, for every permutation, and r.
    fn cpu_sums(&self, points: &Standardised, kernel: Kernel, progress: &Progress) -> (Vec<f64>, Vec<f64>) {
        let row_blocks = self.rows.div_ceil(TILE);
        progress.plan(row_blocks);
        let task = |row_block: usize| {
            let sums = match self.rows <= MAX_F64_ROWS {
                true => self.row_block_sums::<f64>(points, kernel, row_block),
                false => self.row_block_sums::<f32>(points, kernel, row_block),
            };
            progress.advance(1);
            sums
        };
        let tasks: Vec<(Vec<f64>, Vec<f64>)> = (0..row_blocks).into_par_iter().map(task).collect();
        let mut first = vec![0.0; self.blocks.len() * BLOCK];
        let mut row_sums = Vec::with_capacity(self.rows);
        for (triangle, rows) in tasks {
            first.iter_mut().zip(triangle).for_each(|(sum, x)| *sum += 2.0 * x);
            row_sums.extend(rows);
        }
        (first, row_sums)
    }

    /// The same on a GPU, for which all pairs are little work.
    #[cfg(feature = "cuda")]
    fn cuda_sums(
        &self,
        points: &Standardised,
        kernel: Kernel,
        device: &std::sync::Arc<setwise_engine::cuda::Device>,
    ) -> Result<(Vec<f64>, Vec<f64>)> {
        use setwise_engine::cuda::{PairKernel, PermutedSums};
        let kernel = match kernel {
            Kernel::Energy => PairKernel::NegativeDistance,
            Kernel::Gaussian { bandwidth } => PairKernel::Gaussian(bandwidth as f32),
        };
        let rows: Vec<f32> = points.data.iter().map(|x| *x as f32).collect();
        let sums = PermutedSums::new(device, &rows, points.dim, kernel, &self.blocks)?;
        Ok((sums.first, sums.row_sums))
    }

    /// The largest rounding error of sums, relative to their magnitude.
    pub fn relative_error(&self) -> f64 {
        /// Columns that a GPU sums in f32, more than a CPU.
        const LONGEST: usize = 1024;
        if self.rows <= MAX_F64_ROWS { 1e-12 } else { 1e-6 * LONGEST.min(self.rows) as f64 / self.rows as f64 }
    }

    /// One task: Σ z_i z_j k_ij of every permutation over pairs i < j with i in a block of rows, and r_i of these rows.
    fn row_block_sums<T: Real>(&self, points: &Standardised, kernel: Kernel, row_block: usize) -> (Vec<f64>, Vec<f64>) {
        let first = row_block * TILE;
        let count = TILE.min(self.rows - first);
        let mut triangle_sums = vec![0.0; self.blocks.len() * BLOCK];
        let mut row_sums = vec![0.0; count];
        let mut tile = vec![T::ZERO; TILE * TILE];
        let mut column_members = vec![T::ZERO; TILE * BLOCK];
        let mut row_members = vec![T::ZERO; self.blocks.len() * TILE * BLOCK];
        for (bits, row_members) in self.blocks.iter().zip(row_members.chunks_exact_mut(TILE * BLOCK)) {
            expand(&bits[first..first + count], row_members);
        }
        let mut columns = Columns::new(points.dim);
        for other in 0..self.rows.div_ceil(TILE) {
            let second = other * TILE;
            let width = TILE.min(self.rows - second);
            columns.fill(points, second, width);
            for (i, row) in tile.chunks_exact_mut(TILE).take(count).enumerate() {
                let mut values = columns.squared_distances(points.row(first + i));
                kernel.apply(&mut values[..width]);
                if other == row_block {
                    values[i] = 0.0;
                }
                for (x, &value) in row.iter_mut().zip(&values[..width]) {
                    *x = T::from_f64(value);
                }
                row_sums[i] += row[..width].iter().map(|x| x.to_f64()).sum::<f64>();
                if other == row_block {
                    row[..i].fill(T::ZERO);
                }
            }
            if other < row_block {
                continue;
            }
            let blocks = self.blocks.iter().zip(row_members.chunks_exact(TILE * BLOCK));
            for ((bits, row_members), triangle_sums) in blocks.zip(triangle_sums.chunks_exact_mut(BLOCK)) {
                expand(&bits[second..second + width], &mut column_members);
                // SAFETY: the slices have the lengths the kernel reads and writes.
                unsafe {
                    T::dispatch(TriangleSums {
                        tile: &tile,
                        column_members: &column_members[..width * BLOCK],
                        row_members,
                        triangle_sums,
                    });
                }
            }
        }
        (triangle_sums, row_sums)
    }
}

/// Up to [`TILE`] rows, transposed, so that the distances of a row to all of them are vector operations.
struct Columns(Vec<[f64; TILE]>);

impl Columns {
    fn new(dim: usize) -> Self {
        Columns(vec![[0.0; TILE]; dim])
    }

    fn fill(&mut self, points: &Standardised, first: usize, count: usize) {
        for i in 0..count {
            for (column, &x) in self.0.iter_mut().zip(points.row(first + i)) {
                column[i] = x;
            }
        }
    }

    /// Squared distances to a row.
    fn squared_distances(&self, row: &[f64]) -> [f64; TILE] {
        let mut squared_distances = [0.0; TILE];
        for (column, &x) in self.0.iter().zip(row) {
            for (s, &y) in squared_distances.iter_mut().zip(column) {
                *s += (x - y) * (x - y);
            }
        }
        squared_distances
    }
}

/// Writes the bit masks of rows as numbers zero and one, [`BLOCK`] for each row.
fn expand<T: Real>(bits: &[u32], members: &mut [T]) {
    for (row, b) in members.chunks_exact_mut(BLOCK).zip(bits) {
        for (permutation, x) in row.iter_mut().enumerate() {
            *x = if b >> permutation & 1 == 1 { T::ONE } else { T::ZERO };
        }
    }
}

/// Adds Σ_i z_i Σ_j k_ij z_j over a tile to `triangle_sums`, for every permutation of a block.
///
/// - `tile`: k_ij, `[TILE, TILE]`.
/// - `row_members`: z_i, `[TILE, BLOCK]`, zero where the tile has no row.
/// - `column_members`: z_j, `[columns, BLOCK]`, with at most `TILE` columns.
/// - `triangle_sums`: `[BLOCK]`.
///
/// [`ROWS_PER_STEP`] rows by two vectors of permutations are summed over all columns in registers.
struct TriangleSums<'a, T> {
    tile: &'a [T],
    row_members: &'a [T],
    column_members: &'a [T],
    triangle_sums: &'a mut [f64],
}

impl<T: Real> VectorKernel<T> for TriangleSums<'_, T> {
    type Out = ();

    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let mut sums = [T::ZERO; BLOCK];
        // Strips of two vectors: with four rows, the sums fill the pipelines and fit into the registers.
        for strip in (0..BLOCK).step_by(2 * V::LANES) {
            // SAFETY: the caller's contract: the machine has the instructions of `V`.
            let mut total = [unsafe { V::zero() }; 2];
            let steps =
                self.tile.chunks_exact(ROWS_PER_STEP * TILE).zip(self.row_members.chunks_exact(ROWS_PER_STEP * BLOCK));
            for (rows, row_members) in steps {
                // SAFETY: the caller's contract: the machine has the instructions of `V`.
                let mut acc = [[unsafe { V::zero() }; 2]; ROWS_PER_STEP];
                for (j, z) in self.column_members.chunks_exact(BLOCK).enumerate() {
                    // SAFETY: the caller's contract: the machine has the instructions of `V`.
                    let z = unsafe { load_two::<T, V>(z, strip) };
                    for (r, acc) in acc.iter_mut().enumerate() {
                        // z is zero or one, so that products are exact with and without FMA.
                        // SAFETY: the caller's contract: the machine has the instructions of `V`.
                        *acc = unsafe {
                            let k = V::splat(rows[r * TILE + j]);
                            [k.mul_add(z[0], acc[0]), k.mul_add(z[1], acc[1])]
                        };
                    }
                }
                for (acc, z) in acc.iter().zip(row_members.chunks_exact(BLOCK)) {
                    // SAFETY: the caller's contract: the machine has the instructions of `V`.
                    total = unsafe {
                        let z = load_two::<T, V>(z, strip);
                        [acc[0].mul_add(z[0], total[0]), acc[1].mul_add(z[1], total[1])]
                    };
                }
            }
            // SAFETY: `BLOCK` is a multiple of two vectors of any machine, so that the strip ends within `sums`.
            unsafe {
                let to = sums.as_mut_ptr().add(strip);
                total[0].store(to);
                total[1].store(to.add(V::LANES));
            }
        }
        self.triangle_sums.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum.to_f64());
    }
}

/// The two vectors that begin at `strip` of a row of a block.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn load_two<T: Real, V: Vector<T>>(row: &[T], strip: usize) -> [V; 2] {
    let row = &row[strip..strip + 2 * V::LANES];
    // SAFETY: the slice has the lanes of two vectors, and the caller guarantees the instructions.
    unsafe { [V::load(row.as_ptr()), V::load(row.as_ptr().add(V::LANES))] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_sizes(n: usize, m: usize, random: usize, seed: u64) -> Permutations {
        let sample = (0..n + m).map(|i| u8::from(i >= n)).collect();
        Permutations::new(&Labels::new(sample, &vec![0; n + m], seed), random)
    }

    fn members(permutations: &Permutations, permutation: usize) -> Vec<bool> {
        permutations.blocks[permutation / BLOCK].iter().map(|b| b >> (permutation % BLOCK) & 1 == 1).collect()
    }

    #[test]
    fn every_permutation_has_as_many_rows_in_its_first_sample_and_the_first_is_the_observed_one() {
        let permutations = of_sizes(5, 9, 99, 1);
        assert!((0..100).all(|d| members(&permutations, d).iter().filter(|&&c| c).count() == 5));
        assert_eq!(members(&permutations, 0).iter().position(|&c| !c), Some(5));
        // Every row is in the first sample equally often.
        let permutations = of_sizes(5, 5, 2000, 1);
        for row in 0..10 {
            let count = (1..2001).filter(|&d| members(&permutations, d)[row]).count();
            assert!((900..=1100).contains(&count), "{row}: {count}");
        }
    }

    #[test]
    fn sums_equal_those_over_the_full_kernel_matrix() {
        // Several tiles, the last one narrow; several blocks, the last one half empty; sums in f64 and in f32.
        for ((n, m), kernel) in [
            ((70, 81), Kernel::Energy),
            ((70, 81), Kernel::Gaussian { bandwidth: 1.3 }),
            ((301, 250), Kernel::Energy),
            ((301, 250), Kernel::Gaussian { bandwidth: 1.3 }),
        ] {
            let data: Vec<f64> = (0..(n + m) * 3).map(|i| ((i * 7919) % 1009) as f64 / 500.0).collect();
            let points = Standardised::new(data, 3);
            let permutations = of_sizes(n, m, 40, 7);
            let sums = permutations.sums(&points, kernel, &Device::Cpu, &Progress::default()).unwrap();
            assert_eq!(sums.len(), 41);
            for permutation in [0, 1, 31, 32, 40] {
                let z = members(&permutations, permutation);
                let mut expected = Sums { first: 0.0, second: 0.0, between: 0.0 };
                for i in 0..n + m {
                    for j in (0..n + m).filter(|&j| j != i) {
                        let mut k =
                            [points.row(i).iter().zip(points.row(j)).map(|(x, y)| (x - y) * (x - y)).sum::<f64>()];
                        kernel.apply(&mut k);
                        match (z[i], z[j]) {
                            (true, true) => expected.first += k[0],
                            (false, false) => expected.second += k[0],
                            (true, false) => expected.between += k[0],
                            (false, true) => {}
                        }
                    }
                }
                let close = |a: f64, b: f64| (a - b).abs() < permutations.relative_error() * b.abs();
                let computed = sums[permutation];
                assert!(
                    close(computed.first, expected.first)
                        && close(computed.second, expected.second)
                        && close(computed.between, expected.between),
                    "{computed:?}, not {expected:?}"
                );
            }
        }
    }
}
