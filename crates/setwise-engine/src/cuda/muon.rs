//! The launches that move weight matrices by [`Muon`].

use std::sync::Arc;

use super::build::Work;
use super::compile::Kernels;
use super::driver::{Blocks, Device, Memory};
use super::tables::{MuonTask, Tables};
use crate::error::Error;
use crate::muon::{MOMENTUM, Matrix, Muon, NEWTON_SCHULZ_STEPS, NORM_EPSILON, NORM_MARGIN, POLYNOMIAL};

/// Both sides of a matrix are filled up to a multiple of it; as in the kernels.
const TILE: usize = 64;
/// Parts of a length, as in the kernels.
const LENGTH_PARTS: usize = 8;

/// Where the numbers of all parameters lie.
pub(super) struct Parameters {
    pub params: u64,
    pub first: u64,
    pub grads: u64,
    pub controls: u64,
    pub results: u64,
    pub len: usize,
}

/// What moves the matrices, after Adam has moved all else.
pub(super) struct Matrices {
    pub work: Vec<Work>,
    /// A byte for every parameter: one for those of matrices.
    pub mask: Memory,
    room: Memory,
    tables: Memory,
}

impl Matrices {
    pub fn new(device: &Arc<Device>, module: &Kernels, muon: &Muon, at: &Parameters) -> Result<Self, Error> {
        let matrices = muon.matrices();
        let mut mask = vec![0u8; at.len];
        matrices.iter().for_each(|m| mask[m.range()].fill(1));
        let mask_at = Memory::new(device, mask.len(), "which parameters are of matrices")?;
        mask_at.write(0, &mask)?;
        let room =
            Memory::new(device, matrices.iter().map(|m| Padded::of(m).bytes()).sum(), "matrices made orthogonal")?;
        let mut next = room.ptr;
        let even: Vec<MuonTask> = matrices
            .iter()
            .map(|m| {
                let padded = Padded::of(m);
                let mut take = |bytes: usize| {
                    next += bytes as u64;
                    next - bytes as u64
                };
                let (whole, square) = (2 * padded.shorter * padded.longer, 2 * padded.shorter * padded.shorter);
                let [a, b, c] = POLYNOMIAL.map(|x| x as f32);
                MuonTask {
                    params: at.params + 4 * m.offset as u64,
                    first: at.first + 4 * m.offset as u64,
                    grads: at.grads + 4 * m.offset as u64,
                    x: take(whole),
                    next: take(whole),
                    gram: take(square),
                    square: take(square),
                    parts: take(PARTS_BYTES),
                    controls: at.controls,
                    results: at.results,
                    rows: m.rows as i32,
                    cols: m.cols as i32,
                    shorter: padded.shorter as i32,
                    longer: padded.longer as i32,
                    turned: i32::from(m.rows > m.cols),
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
        // Every second round reads what the one before has left.
        let odd: Vec<MuonTask> = even.iter().map(|t| MuonTask { x: t.next, next: t.x, ..*t }).collect();
        let mut tables = Tables::new(0);
        let places = [&even, &odd].map(|tasks| tables.push(tasks));
        let tables_at = Memory::new(device, tables.bytes().len(), "tables of matrices")?;
        tables_at.write(0, tables.bytes())?;
        let mut work = Vec::new();
        let mut launch = |name: &str, blocks: usize, threads: u32, parity: usize| -> Result<(), Error> {
            let f = module.function(name, 0)?;
            let blocks = Blocks::plain([blocks as u32, matrices.len() as u32, 1], threads);
            let tasks = tables_at.ptr + places[parity];
            work.push(Work::Launch { name: name.to_owned(), f, blocks, tasks });
            Ok(())
        };
        let most = |tiles: fn(Padded) -> usize| matrices.iter().map(|m| tiles(Padded::of(m))).max().unwrap_or(1);
        let (whole, square) =
            (most(|p| p.shorter * p.longer / TILE / TILE), most(|p| p.shorter * p.shorter / TILE / TILE));
        launch("muon_length", LENGTH_PARTS, 256, 0)?;
        launch("muon_start", whole, 256, 0)?;
        for round in 0..NEWTON_SCHULZ_STEPS {
            launch("muon_gram", square, 128, round % 2)?;
            launch("muon_square", square, 128, round % 2)?;
            launch("muon_round", whole, 128, round % 2)?;
        }
        launch("muon_finish", whole, 256, NEWTON_SCHULZ_STEPS % 2)?;
        Ok(Matrices { work, mask: mask_at, room, tables: tables_at })
    }

    /// Bytes of device memory held.
    pub fn bytes(&self) -> usize {
        self.mask.bytes + self.room.bytes + self.tables.bytes
    }
}

const PARTS_BYTES: usize = (8 * LENGTH_PARTS).next_multiple_of(256);

/// Sides of a matrix as it lies on the device.
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

    /// Of what a matrix needs, in whole lines.
    fn bytes(self) -> usize {
        4 * self.shorter * self.longer + 4 * self.shorter * self.shorter + PARTS_BYTES
    }
}
