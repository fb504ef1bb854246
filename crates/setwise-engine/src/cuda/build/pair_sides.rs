//! Gradients of elements and partners of networks on pairs through a maximum, from sorted lists of what was won.

use super::super::tables as t;
use super::Builder;
use crate::error::Error;
use crate::program::{Op, Pair, Pairs, Reduce};

/// Warps of a block that sums.
const WARPS: usize = 32;
/// Threads that sort the wins of an example.
const SORT_THREADS: u32 = 512;
/// Elements and partners of an example have indices below this in a list, and rows of the second layer places below that, in bytes.
const INDICES: usize = 1 << 13;
const PLACES: usize = 1 << 18;

/// How both sides' gradients are summed.
#[derive(Debug, PartialEq)]
pub(super) struct Sides {
    /// Hidden columns of a lane.
    columns: usize,
    /// Whether all rows of the other side have room beside those of the second layer.
    held: bool,
    /// Shared memory of a block that sums, and of one that sorts.
    bytes: usize,
    sort_bytes: usize,
}

impl Sides {
    /// As many columns as there are for a warp, or as leave room for all of the second layer's rows. None where an example's counts or one column
    /// a lane do not fit.
    fn new(hidden: usize, outputs: usize, elements: usize, partners: usize, most: usize) -> Option<Sides> {
        if elements.max(partners) >= INDICES {
            return None;
        }
        // Counts by pair, of four and of two bytes, and the beginning of every partner's wins.
        let sort_bytes = 6 * elements * partners + 4 * partners;
        if sort_bytes > most {
            return None;
        }
        let widest = hidden.div_ceil(32).next_power_of_two().min(4);
        std::iter::successors(Some(widest), |v| (*v > 1).then_some(v / 2)).find_map(|columns| {
            let bytes = |rows: usize| (outputs + WARPS + rows) * 128 * columns + WARPS * 256;
            let (plain, all) = (bytes(0), bytes(elements.max(partners)));
            let held = all <= most;
            let fits = outputs * 128 * columns <= PLACES && plain <= most;
            fits.then_some(Sides { columns, held, bytes: if held { all } else { plain }, sort_bytes })
        })
    }
}

impl Builder<'_> {
    /// How an operation's gradients of elements and partners are summed, if lists can be made of it.
    pub(super) fn sides(&self, op: &Pairs) -> Option<Sides> {
        let net = &op.nets[0];
        let in_chunks = |n: &Pair| self.aligned(n.left) && self.aligned(n.right) && self.aligned_param(n.weight);
        if net.reduce != Reduce::Max || !op.nets.iter().all(in_chunks) {
            return None;
        }
        let longest = |of: fn(&Pair) -> _| op.nets.iter().map(|n| self.longest(of(n))).max().unwrap_or(0);
        let (elements, partners) = (longest(|n| n.left.value), longest(|n| n.right.value));
        Sides::new(net.left.cols, net.y.cols, elements, partners, self.module.shared_memory)
    }

    /// Both gradients of all networks, or those of partners where elements have theirs already: a launch that sorts, one that sums.
    pub(super) fn pair_sides(&mut self, op: &Pairs, sides: &Sides, mut tasks: Vec<t::PairTask>) -> Result<(), Error> {
        let mut place = self.room_for_wins();
        let mut take = |numbers: usize| {
            let at = place;
            place += 4 * numbers.next_multiple_of(64) as u64;
            at
        };
        let both = !self.own_with_weights(op);
        let summed = if both { 2 } else { 1 };
        for (task, n) in tasks.iter_mut().zip(&op.nets) {
            let (wins, starts) = self.numbers_for_wins(n);
            task.own_wins = if both { take(wins) } else { 0 };
            (task.partner_wins, task.starts) = (take(wins), take(starts));
            task.row_bytes = 128 * sides.columns as i32;
            task.sides = summed as i32;
        }
        let examples = self.capacity.examples;
        self.launch("pair_max_sort", &tasks, [examples, tasks.len(), 1], SORT_THREADS, sides.sort_bytes)?;
        // One round of blocks: as many as the card holds, each with the same columns of several examples.
        let slabs = op.nets[0].left.cols.div_ceil(32 * sides.columns);
        let blocks = self.module.processors * (self.module.shared_memory / sides.bytes).clamp(1, 2);
        let splits = (blocks / (slabs * summed * tasks.len())).clamp(1, examples.max(1));
        let name = format!("pair_max_sides_{}{}", sides.columns, if sides.held { "_held" } else { "" });
        self.launch(&name, &tasks, [slabs, splits, summed * tasks.len()], 32 * WARPS as u32, sides.bytes)
    }

    /// Of each of a network's two lists of wins, and of the beginnings of its partners.
    fn numbers_for_wins(&self, n: &Pair) -> (usize, usize) {
        (2 * self.rows(n.left.value) * n.y.cols, self.rows(n.right.value))
    }

    /// Lists serve one operation at a time, so all share the place of the longest.
    fn room_for_wins(&mut self) -> t::Address {
        if let Some(at) = self.wins {
            return at;
        }
        let of = |n: &Pair, lists: usize| {
            let (wins, starts) = self.numbers_for_wins(n);
            lists * wins.next_multiple_of(64) + starts.next_multiple_of(64)
        };
        let all = self.program.ops.iter().filter_map(|op| match op {
            Op::Pairs(p) if self.sides(p).is_some() => {
                let lists = if self.own_with_weights(p) { 1 } else { 2 };
                Some(p.nets.iter().map(|n| of(n, lists)).sum::<usize>())
            }
            _ => None,
        });
        let numbers = all.max().unwrap_or(0);
        let at = self.room(numbers);
        self.wins = Some(at);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes a block may have on compute capability 9.
    const MOST: usize = 227 << 10;

    #[test]
    fn rows_of_the_second_layer_are_as_wide_as_they_fit_and_those_of_the_other_side_are_held_if_they_do_too() {
        let shape = |hidden, outputs, n| {
            let sides = Sides::new(hidden, outputs, n, n, MOST)?;
            assert!(sides.bytes <= MOST && sides.sort_bytes <= MOST, "{sides:?}");
            Some((sides.columns, sides.held))
        };
        assert_eq!(shape(16, 8, 20), Some((1, true)));
        assert_eq!(shape(48, 24, 20), Some((2, true)));
        assert_eq!(shape(512, 256, 150), Some((4, true)));
        assert_eq!(shape(512, 256, 151), Some((4, false)));
        assert_eq!(shape(1024, 512, 20), Some((2, true)));
        assert_eq!(shape(2048, 1024, 20), Some((1, true)));
        assert_eq!(shape(4096, 2048, 20), None);
    }

    #[test]
    fn large_examples_are_left_to_kernels_that_count_nothing() {
        assert!(Sides::new(64, 32, 190, 190, MOST).is_some());
        assert_eq!(Sides::new(64, 32, 300, 300, MOST), None);
        assert_eq!(Sides::new(64, 32, 9000, 1, MOST), None);
        assert_eq!(Sides::new(64, 32, usize::MAX / 2, usize::MAX / 2, MOST), None);
    }
}
