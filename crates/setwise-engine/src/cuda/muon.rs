//! The launches that move weight matrices by [`Muon`].

use std::sync::Arc;

use super::compile::Kernels;
use super::driver::{Blocks, Device, Memory};
use super::kernel_tasks::{MuonTask, TaskTable};
use super::lower::Command;
use crate::error::Error;
use crate::muon::{MOMENTUM, Matrix, Muon, NEWTON_SCHULZ_STEPS, NORM_EPSILON, NORM_MARGIN, POLYNOMIAL};

/// Both sides of a matrix are padded to a multiple of it, as in the kernels.
const TILE: usize = 64;
/// Partial sums of a norm, as in the kernels.
const NORM_PARTIALS: usize = 8;

/// Addresses of all parameters and their state.
pub(super) struct Parameters {
    pub params: u64,
    pub first: u64,
    pub grads: u64,
    pub controls: u64,
    pub results: u64,
    pub len: usize,
}

/// The commands that move matrices, after Adam has moved everything else.
pub(super) struct MuonStep {
    pub commands: Vec<Command>,
    /// One byte per parameter: 1 for those of matrices.
    pub mask: Memory,
    scratch: Memory,
    task_table: Memory,
}

impl MuonStep {
    pub fn new(device: &Arc<Device>, kernels: &Kernels, muon: &Muon, at: &Parameters) -> Result<Self, Error> {
        let matrices = muon.matrices();
        let mut mask = vec![0u8; at.len];
        matrices.iter().for_each(|m| mask[m.range()].fill(1));
        let mask_at = Memory::new(device, mask.len(), "the mask of Muon's matrices")?;
        mask_at.write(0, &mask)?;
        let scratch =
            Memory::new(device, matrices.iter().map(|m| Padded::of(m).bytes()).sum(), "the scratch memory of Muon")?;
        let mut next = scratch.ptr;
        let even: Vec<MuonTask> = matrices
            .iter()
            .map(|m| {
                let padded = Padded::of(m);
                let mut alloc = |bytes: usize| {
                    next += bytes as u64;
                    next - bytes as u64
                };
                let (full, square) = (2 * padded.shorter * padded.longer, 2 * padded.shorter * padded.shorter);
                let [a, b, c] = POLYNOMIAL.map(|x| x as f32);
                MuonTask {
                    params: at.params + 4 * m.offset as u64,
                    first: at.first + 4 * m.offset as u64,
                    grads: at.grads + 4 * m.offset as u64,
                    x: alloc(full),
                    next: alloc(full),
                    gram: alloc(square),
                    polynomial: alloc(square),
                    partials: alloc(PARTIALS_BYTES),
                    controls: at.controls,
                    results: at.results,
                    rows: m.rows as i32,
                    cols: m.cols as i32,
                    shorter: padded.shorter as i32,
                    longer: padded.longer as i32,
                    transposed: i32::from(m.rows > m.cols),
                    momentum: MOMENTUM as f32,
                    gain: m.gain() as f32,
                    margin: NORM_MARGIN as f32,
                    tiny: NORM_EPSILON as f32,
                    a,
                    b,
                    c,
                }
            })
            .collect();
        // Iterations alternate between two buffers.
        let odd: Vec<MuonTask> = even.iter().map(|t| MuonTask { x: t.next, next: t.x, ..*t }).collect();
        let mut task_table = TaskTable::new(0);
        let addresses = [&even, &odd].map(|tasks| task_table.push(tasks));
        let step_tasks_at = Memory::new(device, task_table.bytes().len(), "the task table of Muon")?;
        step_tasks_at.write(0, task_table.bytes())?;
        let mut commands = Vec::new();
        let mut launch = |name: &str, blocks: usize, threads: u32, parity: usize| -> Result<(), Error> {
            let f = kernels.function(name, 0)?;
            let blocks = Blocks::plain([blocks as u32, matrices.len() as u32, 1], threads);
            let tasks = step_tasks_at.ptr + addresses[parity];
            commands.push(Command::Launch { name: name.to_owned(), f, blocks, tasks });
            Ok(())
        };
        let max_tiles = |tiles: fn(Padded) -> usize| matrices.iter().map(|m| tiles(Padded::of(m))).max().unwrap_or(1);
        let (full, square) =
            (max_tiles(|p| p.shorter * p.longer / TILE / TILE), max_tiles(|p| p.shorter * p.shorter / TILE / TILE));
        launch("muon_norm_partials", NORM_PARTIALS, 256, 0)?;
        launch("muon_normalise", full, 256, 0)?;
        for round in 0..NEWTON_SCHULZ_STEPS {
            launch("muon_gram", square, 128, round % 2)?;
            launch("muon_polynomial", square, 128, round % 2)?;
            launch("muon_iterate", full, 128, round % 2)?;
        }
        launch("muon_update", full, 256, NEWTON_SCHULZ_STEPS % 2)?;
        Ok(MuonStep { commands, mask: mask_at, scratch, task_table: step_tasks_at })
    }

    /// Bytes of device memory held.
    pub fn bytes(&self) -> usize {
        self.mask.bytes + self.scratch.bytes + self.task_table.bytes
    }
}

const PARTIALS_BYTES: usize = (8 * NORM_PARTIALS).next_multiple_of(256);

/// Padded sides of a matrix on the device.
#[derive(Clone, Copy)]
struct Padded {
    shorter: usize,
    longer: usize,
}

impl Padded {
    fn of(m: &Matrix) -> Self {
        let [shorter, longer] = [m.rows.min(m.cols), m.rows.max(m.cols)].map(|n| n.next_multiple_of(TILE));
        Padded { shorter, longer }
    }

    /// Bytes of a matrix's scratch memory.
    fn bytes(self) -> usize {
        4 * self.shorter * self.longer + 4 * self.shorter * self.shorter + PARTIALS_BYTES
    }
}
