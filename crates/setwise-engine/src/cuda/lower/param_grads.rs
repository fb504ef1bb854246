//! Gradients of parameters: which are written first, partial sums added at the end, zeros for the rest.
//!
//! A kernel that writes a full gradient first needs no zeros there. Only the remaining regions are cleared before a
//! backward pass.

use std::ops::Range;

use super::super::kernel_tasks as t;
use super::{Command, Lowering};
use crate::error::Error;
use crate::params::ParamId;
use crate::program::{Op, Program};

/// Minimal numbers of a gradient that one block sums.
const MIN_CHUNK: usize = 8192;
/// Approximate maximal number of blocks, which keeps the task table small.
const MAX_CHUNKS: usize = 4096;

/// Regions of the parameter vector whose gradients have been started.
pub(super) struct ParamGrads {
    started: Vec<Range<usize>>,
    /// Those that are overwritten instead of added to.
    written: Vec<Range<usize>>,
}

impl ParamGrads {
    /// Gradients that kernels add to in place begin as zeros.
    pub fn new(program: &Program) -> Self {
        let added = |op: &Op| -> Vec<ParamId> {
            match op {
                Op::Repeat(r) => vec![r.param],
                Op::ToUnion(u) => u.encodings.clone(),
                Op::BatchNorm(b) => vec![b.gain, b.shift, b.mean, b.variance],
                _ => Vec::new(),
            }
        };
        let started = program.ops.iter().flat_map(added).map(|p| program.params.spec(p).range()).collect();
        ParamGrads { started, written: Vec::new() }
    }

    /// Whether no part of a region has been started.
    pub fn is_unwritten(&self, region: &Range<usize>) -> bool {
        !self.started.iter().any(|b| overlap(b, region))
    }

    /// Marks a region as started; returns whether it must be overwritten instead of added to.
    pub fn begin(&mut self, region: Range<usize>) -> bool {
        let is_unwritten = self.is_unwritten(&region);
        if is_unwritten {
            self.written.push(region.clone());
        }
        self.started.push(region);
        is_unwritten
    }

    /// Regions that no kernel overwrites.
    fn unwritten(&self, len: usize) -> Vec<Range<usize>> {
        let mut written = self.written.clone();
        written.sort_unstable_by_key(|r| r.start);
        let mut unwritten = Vec::new();
        let mut at = 0;
        for r in written.into_iter().chain(std::iter::once(len..len)) {
            if at < r.start {
                unwritten.push(at..r.start);
            }
            at = at.max(r.end);
        }
        unwritten
    }
}

/// Divides items into consecutive rounds without conflicts; each item is in the first round possible.
pub(super) fn conflict_free_rounds<T>(
    items: impl IntoIterator<Item = T>,
    conflicts: impl Fn(&T, &T) -> bool,
) -> Vec<Vec<T>> {
    let mut rounds: Vec<Vec<T>> = Vec::new();
    for item in items {
        match rounds.iter_mut().find(|round| round.iter().all(|o| !conflicts(o, &item))) {
            Some(round) => round.push(item),
            None => rounds.push(vec![item]),
        }
    }
    rounds
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

impl<'a> Lowering<'a> {
    /// Adds all partial sums to the gradients, and clears all other regions before everything else. Two sums into one
    /// gradient are separate launches.
    pub(super) fn sum_partials(&mut self) -> Result<(), Error> {
        let grads = self.buffers.grads;
        let region = |s: &t::PartialSumTask| {
            let start = (s.out - grads) as usize / 4;
            start..start + s.len as usize
        };
        let sums = std::mem::take(&mut self.partial_sums);
        for mut round in conflict_free_rounds(sums, |a, b| overlap(&region(a), &region(b))) {
            round.iter_mut().for_each(|s| s.overwrite = i32::from(self.param_grads.begin(region(s))));
            self.sum(&round)?;
        }
        let zeros: Vec<t::PartialSumTask> = self
            .param_grads
            .unwritten(self.program.params.len())
            .into_iter()
            .map(|r| t::PartialSumTask {
                partials: grads,
                out: grads + 4 * r.start as u64,
                stride: 0,
                count: 0,
                len: r.len() as i32,
                rows_per_partial: 0,
                vec: 0,
                space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
                overwrite: 1,
            })
            .collect();
        let before = self.commands.len();
        self.sum(&zeros)?;
        let zeros: Vec<Command> = self.commands.drain(before..).collect();
        self.commands.splice(0..0, zeros);
        Ok(())
    }

    /// One launch, one block per chunk.
    fn sum(&mut self, sums: &[t::PartialSumTask]) -> Result<(), Error> {
        let total: usize = sums.iter().map(|s| s.len as usize).sum();
        let chunk = (total / MAX_CHUNKS).next_multiple_of(1024).max(MIN_CHUNK);
        let mut chunks = Vec::new();
        for s in sums {
            let offsets = [s.partials, s.out, 4 * s.stride, 4 * s.len as u64];
            let vec = i32::from(offsets.into_iter().all(|p| p.is_multiple_of(16)));
            for at in (0..s.len as usize).step_by(chunk) {
                let (partials, out) = (s.partials + 4 * at as u64, s.out + 4 * at as u64);
                chunks.push(t::PartialSumTask {
                    partials,
                    out,
                    len: (s.len as usize - at).min(chunk) as i32,
                    vec,
                    ..*s
                });
            }
        }
        self.launch("sum_partials", &chunks, [chunks.len(), 1, 1], 256, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Init;
    use crate::program::{Mode, Repeat, Space};

    #[test]
    fn conflicting_items_are_in_consecutive_rounds() {
        let rounds = conflict_free_rounds([3, 5, 3, 7, 3, 5], |a, b| a == b);
        assert_eq!(rounds, [vec![3, 5, 7], vec![3, 5], vec![3]]);
    }

    #[test]
    fn only_the_first_kernel_overwrites_and_unwritten_regions_are_cleared() {
        let program = Program::builder(&[3], false, Mode::Train, false).finish(Vec::new());
        let mut g = ParamGrads::new(&program);
        assert!(g.begin(4..10) && g.begin(20..25));
        assert!(!g.begin(4..10) && !g.begin(8..12) && !g.is_unwritten(&(24..30)));
        assert!(g.begin(12..20));
        // Regions that are only added to need zeros.
        assert_eq!(g.unwritten(30), [0..4, 10..12, 25..30]);
    }

    #[test]
    fn gradients_that_kernels_add_to_in_place_are_never_overwritten() {
        let mut b = Program::builder(&[3], false, Mode::Train, false);
        let param = b.param("seeds", &[2, 5], Init::Zeros);
        let y = b.fresh(Space::PerExample(2), 5, false);
        b.op(Op::Repeat(Repeat { param, y }));
        let program = b.finish(vec![y]);
        let mut g = ParamGrads::new(&program);
        assert!(!g.begin(0..10));
        assert_eq!(g.unwritten(10).first(), Some(&(0..10)));
    }
}
