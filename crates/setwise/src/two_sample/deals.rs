//! Sums of a kernel over many deals of the rows at once.
//!
//! For a deal with z_i = 1 where row i goes to the first sample, and r_i the sum of the kernel from row i to all others, the sums over ordered
//! pairs are A = 2·Σ_{i<j} z_i z_j k_ij within the first sample, C = Σ z_i r_i − A between both, and the rest within the second. So a deal
//! costs one product with half of the kernel matrix.
//!
//! The matrix is never stored: a task takes [`TILE`] rows and makes the tiles of its rows one after another, and each tile serves all deals, in
//! panels of [`PANEL`] that lie side by side in vectors. A panel's deals are one bit each of a number per row. Tasks are added up in their
//! order, so that the sums do not depend on the number of threads. Within a tile, sums of large samples are single precision: their errors
//! are far below the spread of the statistic and average out over tiles; all else is double.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;
use rayon::prelude::*;
use setwise_engine::simd::{Kernel as VectorKernel, Vector};
use setwise_engine::{Real, splitmix64};

use super::kernel::{Kernel, Scaled};

/// Rows and columns of a tile of the matrix.
const TILE: usize = 64;
/// Deals in a panel.
const PANEL: usize = 32;
/// Rows that share what is read of a panel.
const ROWS: usize = 4;
/// Rows up to which all sums are double precision: equal statistics of different deals, which few rows have many of, stay equal.
const DOUBLE: usize = 512;

/// Sums of the kernel over ordered pairs of different rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sums {
    /// Both in the first sample.
    pub first: f64,
    /// Both in the second.
    pub second: f64,
    /// One in each, counted once.
    pub between: f64,
}

impl Sums {
    /// What the statistic is a small difference of.
    pub fn size(self) -> f64 {
        self.first.abs() + self.second.abs() + 2.0 * self.between.abs()
    }
}

/// Deals of rows into two samples of given sizes: the observed one, then random ones.
pub(super) struct Deals {
    rows: usize,
    count: usize,
    /// For every panel, a bit for each of its deals and every row: whether it goes to the first sample.
    panels: Vec<Vec<u32>>,
}

impl Deals {
    pub fn new(n: usize, m: usize, random: usize, seed: u64) -> Self {
        let (rows, count) = (n + m, random + 1);
        let panel = |panel: usize| {
            let mut bits = vec![0u32; rows];
            let mut order: Vec<usize> = (0..rows).collect();
            for deal in 0..PANEL.min(count - panel * PANEL) {
                let number = panel * PANEL + deal;
                // Each random deal has a seed of its own and goes on from the order the last one left.
                let first = match number {
                    0 => &order[..n],
                    _ => {
                        order
                            .partial_shuffle(
                                &mut Pcg64Mcg::seed_from_u64(splitmix64(splitmix64(seed) ^ number as u64)),
                                n,
                            )
                            .0
                    }
                };
                first.iter().for_each(|&i| bits[i] |= 1 << deal);
            }
            bits
        };
        Deals { rows, count, panels: (0..count.div_ceil(PANEL)).into_par_iter().map(panel).collect() }
    }

    /// Sums of a kernel for every deal.
    pub fn sums(&self, points: &Scaled, kernel: Kernel) -> Vec<Sums> {
        let blocks = (0..self.rows.div_ceil(TILE)).into_par_iter();
        let parts: Vec<(Vec<f64>, Vec<f64>)> = match self.rows <= DOUBLE {
            true => blocks.map(|block| self.part::<f64>(points, kernel, block)).collect(),
            false => blocks.map(|block| self.part::<f32>(points, kernel, block)).collect(),
        };
        let mut halves = vec![0.0; self.panels.len() * PANEL];
        let mut row_sums = Vec::with_capacity(self.rows);
        for (half, rows) in parts {
            halves.iter_mut().zip(half).for_each(|(sum, x)| *sum += x);
            row_sums.extend(rows);
        }
        let total: f64 = row_sums.iter().sum();
        let sums = |deal: usize| {
            let bits = &self.panels[deal / PANEL];
            let from_first = row_sums.iter().zip(bits).filter(|(_, b)| *b >> (deal % PANEL) & 1 == 1);
            let from_first: f64 = from_first.map(|(r, _)| r).sum();
            let first = 2.0 * halves[deal];
            Sums { first, second: total - 2.0 * from_first + first, between: from_first - first }
        };
        (0..self.count).into_par_iter().map(sums).collect()
    }

    /// How far sums may be off, as a share of their size.
    pub fn rounding(&self) -> f64 {
        if self.rows <= DOUBLE { 1e-12 } else { 1e-6 * TILE as f64 / self.rows as f64 }
    }

    /// A task: the half sums of every deal over pairs whose first row is in the block, and the sums of the block's rows.
    fn part<T: Real>(&self, points: &Scaled, kernel: Kernel, block: usize) -> (Vec<f64>, Vec<f64>) {
        let first = block * TILE;
        let count = TILE.min(self.rows - first);
        let mut halves = vec![0.0; self.panels.len() * PANEL];
        let mut row_sums = vec![0.0; count];
        let mut tile = vec![T::ZERO; TILE * TILE];
        let mut chosen = vec![T::ZERO; TILE * PANEL];
        let mut own = vec![T::ZERO; self.panels.len() * TILE * PANEL];
        for (bits, own) in self.panels.iter().zip(own.chunks_exact_mut(TILE * PANEL)) {
            expand(&bits[first..first + count], own);
        }
        let mut others = Columns::new(points.dim);
        for other in 0..self.rows.div_ceil(TILE) {
            let second = other * TILE;
            let width = TILE.min(self.rows - second);
            others.fill(points, second, width);
            for (i, row) in tile.chunks_exact_mut(TILE).take(count).enumerate() {
                let mut values = others.squares(points.row(first + i));
                kernel.apply(&mut values[..width]);
                if other == block {
                    values[i] = 0.0;
                }
                for (x, &value) in row.iter_mut().zip(&values[..width]) {
                    *x = T::from_f64(value);
                }
                row_sums[i] += row[..width].iter().map(|x| x.to_f64()).sum::<f64>();
                if other == block {
                    row[..i].fill(T::ZERO);
                }
            }
            if other < block {
                continue;
            }
            let panels = self.panels.iter().zip(own.chunks_exact(TILE * PANEL));
            for ((bits, own), halves) in panels.zip(halves.chunks_exact_mut(PANEL)) {
                expand(&bits[second..second + width], &mut chosen);
                // SAFETY: the slices have the lengths the kernel reads and writes.
                unsafe { T::dispatch(Halves { tile: &tile, chosen: &chosen[..width * PANEL], own, halves }) };
            }
        }
        (halves, row_sums)
    }
}

/// Up to [`TILE`] rows, column by column, so that distances to all of them are taken at once.
struct Columns(Vec<[f64; TILE]>);

impl Columns {
    fn new(dim: usize) -> Self {
        Columns(vec![[0.0; TILE]; dim])
    }

    fn fill(&mut self, points: &Scaled, first: usize, count: usize) {
        for i in 0..count {
            for (column, &x) in self.0.iter_mut().zip(points.row(first + i)) {
                column[i] = x;
            }
        }
    }

    /// Squared distances from a row.
    fn squares(&self, row: &[f64]) -> [f64; TILE] {
        let mut squares = [0.0; TILE];
        for (column, &x) in self.0.iter().zip(row) {
            for (s, &y) in squares.iter_mut().zip(column) {
                *s += (x - y) * (x - y);
            }
        }
        squares
    }
}

/// Bits of rows as numbers, [`PANEL`] for each row.
fn expand<T: Real>(bits: &[u32], numbers: &mut [T]) {
    for (row, b) in numbers.chunks_exact_mut(PANEL).zip(bits) {
        for (deal, x) in row.iter_mut().enumerate() {
            *x = if b >> deal & 1 == 1 { T::ONE } else { T::ZERO };
        }
    }
}

/// Adds Σ_i z_i Σ_j k_ij z_j for every deal of a panel; `own` are the z_i, zero where the tile has no row, `chosen` the z_j.
struct Halves<'a, T> {
    tile: &'a [T],
    own: &'a [T],
    chosen: &'a [T],
    halves: &'a mut [f64],
}

impl<T: Real> VectorKernel<T> for Halves<'_, T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let mut sums = [T::ZERO; PANEL];
        // Strips of two vectors: with four rows, as many sums as keep the machine busy and fit its registers.
        for strip in (0..PANEL).step_by(2 * V::LANES) {
            let mut total = [unsafe { V::zero() }; 2];
            for (rows, own) in self.tile.chunks_exact(ROWS * TILE).zip(self.own.chunks_exact(ROWS * PANEL)) {
                let mut acc = [[unsafe { V::zero() }; 2]; ROWS];
                for (j, z) in self.chosen.chunks_exact(PANEL).enumerate() {
                    let z = unsafe { two::<T, V>(z, strip) };
                    for (r, acc) in acc.iter_mut().enumerate() {
                        // The factors z are zero or one, so that products are exact, fused or not.
                        let k = unsafe { V::splat(rows[r * TILE + j]) };
                        *acc = unsafe { [k.mul_add(z[0], acc[0]), k.mul_add(z[1], acc[1])] };
                    }
                }
                for (acc, z) in acc.iter().zip(own.chunks_exact(PANEL)) {
                    let z = unsafe { two::<T, V>(z, strip) };
                    total = unsafe { [acc[0].mul_add(z[0], total[0]), acc[1].mul_add(z[1], total[1])] };
                }
            }
            // SAFETY: a strip ends within its panel, whose width is a multiple of two vectors of any machine.
            unsafe {
                let to = sums.as_mut_ptr().add(strip);
                total[0].store(to);
                total[1].store(to.add(V::LANES));
            }
        }
        self.halves.iter_mut().zip(sums).for_each(|(half, sum)| *half += sum.to_f64());
    }
}

/// The two vectors of a row of a panel that begin at `strip`.
#[inline(always)]
unsafe fn two<T: Real, V: Vector<T>>(row: &[T], strip: usize) -> [V; 2] {
    let row = &row[strip..strip + 2 * V::LANES];
    // SAFETY: the slice holds both; the caller was entered through `dispatch`.
    unsafe { [V::load(row.as_ptr()), V::load(row.as_ptr().add(V::LANES))] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(deals: &Deals, deal: usize) -> Vec<bool> {
        deals.panels[deal / PANEL].iter().map(|b| b >> (deal % PANEL) & 1 == 1).collect()
    }

    #[test]
    fn every_deal_gives_the_first_sample_as_many_rows_and_the_first_deal_is_the_observed_one() {
        let deals = Deals::new(5, 9, 99, 1);
        assert!((0..100).all(|d| chosen(&deals, d).iter().filter(|&&c| c).count() == 5));
        assert_eq!(chosen(&deals, 0).iter().position(|&c| !c), Some(5));
        // Every row is as likely as any other.
        let deals = Deals::new(5, 5, 2000, 1);
        for row in 0..10 {
            let often = (1..2001).filter(|&d| chosen(&deals, d)[row]).count();
            assert!((900..=1100).contains(&often), "{row}: {often}");
        }
    }

    #[test]
    fn sums_are_those_of_the_whole_matrix() {
        // Several tiles, the last one narrow; several panels, the last one half empty; in double and in single precision.
        for ((n, m), kernel) in [
            ((70, 81), Kernel::Energy),
            ((70, 81), Kernel::Gaussian { bandwidth: 1.3 }),
            ((301, 250), Kernel::Energy),
            ((301, 250), Kernel::Gaussian { bandwidth: 1.3 }),
        ] {
            let data: Vec<f64> = (0..(n + m) * 3).map(|i| ((i * 7919) % 1009) as f64 / 500.0).collect();
            let points = Scaled::new(data, 3);
            let deals = Deals::new(n, m, 40, 7);
            let sums = deals.sums(&points, kernel);
            assert_eq!(sums.len(), 41);
            for deal in [0, 1, 31, 32, 40] {
                let z = chosen(&deals, deal);
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
                let close = |a: f64, b: f64| (a - b).abs() < deals.rounding() * b.abs();
                let found = sums[deal];
                assert!(
                    close(found.first, expected.first)
                        && close(found.second, expected.second)
                        && close(found.between, expected.between),
                    "{found:?}, not {expected:?}"
                );
            }
        }
    }
}
