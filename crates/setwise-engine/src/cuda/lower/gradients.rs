//! Gradients of parameters: who begins them, parts that are summed at the end, zeros where nobody writes.
//!
//! What writes the whole of a gradient first need not find zeros there. Only what is left is set to zero before a backward pass.

use std::ops::Range;

use super::super::tables as t;
use super::{Builder, Work};
use crate::error::Error;
use crate::params::ParamId;
use crate::program::{Op, Program};

/// Least numbers of a gradient that one block sums.
const PIECE: usize = 8192;
/// About the most blocks, so that tables stay small.
const PIECES: usize = 4096;

/// Which gradients have been begun; regions are places among the parameters.
pub(super) struct Gradients {
    begun: Vec<Range<usize>>,
    /// Those that are written rather than added to.
    written: Vec<Range<usize>>,
}

impl Gradients {
    /// Those that kernels add to in place are begun by zeros.
    pub fn new(program: &Program) -> Self {
        let added = |op: &Op| -> Vec<ParamId> {
            match op {
                Op::Repeat(r) => vec![r.param],
                Op::ToUnion(u) => u.encodings.clone(),
                Op::BatchNorm(b) => vec![b.gain, b.shift, b.mean, b.variance],
                _ => Vec::new(),
            }
        };
        let begun = program.ops.iter().flat_map(added).map(|p| program.params.spec(p).range()).collect();
        Gradients { begun, written: Vec::new() }
    }

    /// Whether nobody has begun any of it.
    pub fn fresh(&self, region: &Range<usize>) -> bool {
        !self.begun.iter().any(|b| overlap(b, region))
    }

    /// Counts it as begun. Tells whether it was fresh, so that it has to be written rather than added to.
    pub fn begin(&mut self, region: Range<usize>) -> bool {
        let fresh = self.fresh(&region);
        if fresh {
            self.written.push(region.clone());
        }
        self.begun.push(region);
        fresh
    }

    /// What nobody writes.
    fn rest(&self, len: usize) -> Vec<Range<usize>> {
        let mut written = self.written.clone();
        written.sort_unstable_by_key(|r| r.start);
        let mut rest = Vec::new();
        let mut at = 0;
        for r in written.into_iter().chain(std::iter::once(len..len)) {
            if at < r.start {
                rest.push(at..r.start);
            }
            at = at.max(r.end);
        }
        rest
    }
}

/// Cuts things into rounds that follow each other: none clashes with another of its round, each is in the first that it can be in.
pub(super) fn in_rounds<T>(things: impl IntoIterator<Item = T>, clash: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut rounds: Vec<Vec<T>> = Vec::new();
    for thing in things {
        match rounds.iter_mut().find(|round| round.iter().all(|o| !clash(o, &thing))) {
            Some(round) => round.push(thing),
            None => rounds.push(vec![thing]),
        }
    }
    rounds
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

impl<'a> Builder<'a> {
    /// Adds all parts to the gradients, and has what nobody writes set to zero before everything else. Two sums into one gradient are put into two
    /// launches, one after the other.
    pub(super) fn sum_parts(&mut self) -> Result<(), Error> {
        let grads = self.places.grads;
        let region = |s: &t::SumTask| {
            let start = (s.out - grads) as usize / 4;
            start..start + s.len as usize
        };
        let sums = std::mem::take(&mut self.sums);
        for mut round in in_rounds(sums, |a, b| overlap(&region(a), &region(b))) {
            round.iter_mut().for_each(|s| s.fresh = i32::from(self.gradients.begin(region(s))));
            self.sum(&round)?;
        }
        let zeros: Vec<t::SumTask> = self
            .gradients
            .rest(self.program.params.len())
            .into_iter()
            .map(|r| t::SumTask {
                parts: grads,
                out: grads + 4 * r.start as u64,
                stride: 0,
                count: 0,
                len: r.len() as i32,
                rows_per_part: 0,
                vec: 0,
                space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
                fresh: 1,
            })
            .collect();
        let before = self.work.len();
        self.sum(&zeros)?;
        let zeros: Vec<Work> = self.work.drain(before..).collect();
        self.work.splice(0..0, zeros);
        Ok(())
    }

    /// One launch, a block to each piece.
    fn sum(&mut self, sums: &[t::SumTask]) -> Result<(), Error> {
        let total: usize = sums.iter().map(|s| s.len as usize).sum();
        let most = (total / PIECES).next_multiple_of(1024).max(PIECE);
        let mut pieces = Vec::new();
        for s in sums {
            let places = [s.parts, s.out, 4 * s.stride, 4 * s.len as u64];
            let vec = i32::from(places.into_iter().all(|p| p.is_multiple_of(16)));
            for at in (0..s.len as usize).step_by(most) {
                let (parts, out) = (s.parts + 4 * at as u64, s.out + 4 * at as u64);
                pieces.push(t::SumTask { parts, out, len: (s.len as usize - at).min(most) as i32, vec, ..*s });
            }
        }
        self.launch("sum_parts", &pieces, [pieces.len(), 1, 1], 256, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Init;
    use crate::program::{Mode, Repeat, Space};

    #[test]
    fn what_clashes_is_in_rounds_after_each_other() {
        let rounds = in_rounds([3, 5, 3, 7, 3, 5], |a, b| a == b);
        assert_eq!(rounds, [vec![3, 5, 7], vec![3, 5], vec![3]]);
    }

    #[test]
    fn only_the_first_writes_and_what_nobody_writes_is_zero() {
        let program = Program::builder(&[3], false, Mode::Train, false).finish(Vec::new());
        let mut g = Gradients::new(&program);
        assert!(g.begin(4..10) && g.begin(20..25));
        assert!(!g.begin(4..10) && !g.begin(8..12) && !g.fresh(&(24..30)));
        assert!(g.begin(12..20));
        // What was added to beyond a region that is written needs zeros.
        assert_eq!(g.rest(30), [0..4, 10..12, 25..30]);
    }

    #[test]
    fn what_kernels_add_to_in_place_is_never_fresh() {
        let mut b = Program::builder(&[3], false, Mode::Train, false);
        let param = b.param("seeds", &[2, 5], Init::Zeros);
        let y = b.fresh(Space::PerExample(2), 5, false);
        b.op(Op::Repeat(Repeat { param, y }));
        let program = b.finish(vec![y]);
        let mut g = Gradients::new(&program);
        assert!(!g.begin(0..10));
        assert_eq!(g.rest(10).first(), Some(&(0..10)));
    }
}
