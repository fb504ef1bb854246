//! Sums of a kernel over pairs of rows, for many permutations of two samples.

use std::sync::Arc;

use super::compile::load_module;
use super::driver::{Blocks, Device, Memory, Stream, launch};
use super::kernel_tasks::PermutedSumsTask;
use crate::error::Error;

/// Rows and permutations of a block of the kernel (`permuted_sums.cu`).
const ROWS: usize = 64;
const PERMUTATIONS: usize = 64;
const THREADS: u32 = 256;
/// Masks of a launch: sums of 4,096 permutations are stored for every block of rows.
const MAX_WORDS: usize = 128;

/// A kernel of two rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairKernel {
    /// −‖x − y‖
    NegativeDistance,
    /// exp(−‖x − y‖² / 2h²) with bandwidth h.
    Gaussian(f32),
}

/// Sums over ordered pairs of different rows.
#[derive(Clone, Debug, PartialEq)]
pub struct PermutedSums {
    /// For each permutation, over pairs of rows of its first sample.
    pub first: Vec<f64>,
    /// For each row, over all other rows.
    pub row_sums: Vec<f64>,
}

impl PermutedSums {
    /// Computes the sums on a GPU. No kernel matrix is stored.
    ///
    /// # Shapes
    /// `points` is `[rows, dim]`. Each of `members` has a bit mask for every row: bit k is set if permutation k of
    /// these 32 has the row in its first sample.
    pub fn new(
        device: &Arc<Device>,
        points: &[f32],
        dim: usize,
        kernel: PairKernel,
        members: &[Vec<u32>],
    ) -> Result<Self, Error> {
        let rows = points.len() / dim;
        assert!(members.iter().all(|bits| bits.len() == rows), "a mask for every row");
        let row_blocks = rows.div_ceil(ROWS);
        let module = load_module(device, include_str!("kernels/permuted_sums.cu"))?;
        let function = module.function("permuted_sums", 0)?;
        let on_device = |bytes: usize, what| Memory::new(device, bytes, what);
        let points_at = on_device(4 * points.len(), "the rows")?;
        points_at.write(0, points)?;
        let row_sums_at = on_device(8 * rows, "sums of rows")?;
        let (kernel, rate) = match kernel {
            PairKernel::NegativeDistance => (0, 0.0),
            PairKernel::Gaussian(bandwidth) => (1, -0.5 / (bandwidth * bandwidth)),
        };
        let mut first = Vec::with_capacity(32 * members.len());
        for members in members.chunks(MAX_WORDS) {
            let permutations = (32 * members.len()).next_multiple_of(PERMUTATIONS);
            // Permutations beyond the last have no member.
            let members_at = on_device(permutations / 8 * rows, "the permutations")?;
            for (word, bits) in members.iter().enumerate() {
                members_at.write(4 * word * rows, bits)?;
            }
            let first_at = on_device(8 * row_blocks * permutations, "sums of permutations")?;
            let task = PermutedSumsTask {
                points: points_at.ptr,
                members: members_at.ptr,
                first: first_at.ptr,
                row_sums: row_sums_at.ptr,
                rows: rows as i32,
                dim: dim as i32,
                permutations: permutations as i32,
                kernel,
                rate,
                pad: 0,
            };
            let task_at = on_device(size_of_val(&task), "a task")?;
            task_at.write(0, &[task])?;
            let stream = Stream::new(device)?;
            let blocks = Blocks::plain([row_blocks as u32, (permutations / PERMUTATIONS) as u32, 1], THREADS);
            // SAFETY: the task holds the addresses and sizes of live allocations; the kernel reads no shape. The module
            // and the allocations outlive the wait.
            unsafe { launch(&stream, function, blocks, task_at.ptr, task_at.ptr)? };
            stream.wait()?;
            let mut of_blocks = vec![0.0f64; row_blocks * permutations];
            first_at.read(0, &mut of_blocks)?;
            let mut sums = vec![0.0; 32 * members.len()];
            for of_block in of_blocks.chunks_exact(permutations) {
                sums.iter_mut().zip(of_block).for_each(|(sum, x)| *sum += x);
            }
            first.extend(sums);
        }
        let mut row_sums = vec![0.0f64; rows];
        row_sums_at.read(0, &mut row_sums)?;
        Ok(PermutedSums { first, row_sums })
    }
}
