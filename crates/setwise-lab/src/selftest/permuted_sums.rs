//! Sums of a kernel over pairs of rows, for many permutations.

use std::sync::Arc;

use rand::RngExt;
use setwise::random::Generator;
use setwise_engine::cuda::{Device, PairKernel, PermutedSums};

use super::Comparison;
use crate::Result;
use crate::samplers::normal;

/// Rows that fill no tile, columns above and below a tile, permutations that fill no block.
pub(super) fn permuted_sums(device: &Arc<Device>, rng: &mut Generator) -> Result<Vec<Comparison>> {
    let mut found = Vec::new();
    for (rows, dim, words) in [(150, 3, 1), (1300, 40, 3)] {
        let points: Vec<f32> = (0..rows * dim).map(|_| normal(rng) as f32).collect();
        let members: Vec<Vec<u32>> = (0..words).map(|_| (0..rows).map(|_| rng.random()).collect()).collect();
        let distance = |i: usize, j: usize| {
            let [x, y] = [i, j].map(|i| &points[i * dim..(i + 1) * dim]);
            x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>().sqrt()
        };
        for kernel in [PairKernel::NegativeDistance, PairKernel::Gaussian(2.0)] {
            let of_pair = |i: usize, j: usize| match kernel {
                _ if i == j => 0.0,
                PairKernel::NegativeDistance => -distance(i, j),
                PairKernel::Gaussian(h) => (-0.5 * (distance(i, j) / f64::from(h)).powi(2)).exp(),
            };
            let matrix: Vec<f64> = (0..rows * rows).map(|k| of_pair(k / rows, k % rows)).collect();
            let row_sums: Vec<f64> = matrix.chunks_exact(rows).map(|row| row.iter().sum()).collect();
            let first = |p: usize| -> f64 {
                let chosen: Vec<usize> = (0..rows).filter(|&i| members[p / 32][i] >> (p % 32) & 1 == 1).collect();
                chosen.iter().map(|&i| chosen.iter().map(|&j| matrix[i * rows + j]).sum::<f64>()).sum()
            };
            let first: Vec<f64> = (0..32 * words).map(first).collect();
            let sums = PermutedSums::new(device, &points, dim, kernel, &members)?;
            found.push(("sums of permutations", error(&sums.first, &first), 1e-6));
            found.push(("sums of rows", error(&sums.row_sums, &row_sums), 1e-6));
        }
    }
    Ok(found)
}

/// ‖x − y‖ / ‖y‖
fn error(x: &[f64], y: &[f64]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut x.iter().zip(y).map(|(x, y)| x - y)) / norm(&mut y.iter().copied())
}
