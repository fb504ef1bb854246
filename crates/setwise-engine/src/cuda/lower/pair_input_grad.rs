//! Left and right gradients of pair networks through a max, from sorted argmax entries.

use super::super::kernel_tasks as t;
use super::Lowering;
use crate::error::Error;
use crate::program::{Op, Pair, Pairs, Reduce};

/// Warps of a block that sums.
const WARPS: usize = 32;
/// Threads that sort the entries of an example.
const SORT_THREADS: u32 = 512;
/// Exclusive bounds of an entry's bit fields: the index of an element or partner, and the byte offset of a row of W.
const MAX_INDEX: usize = 1 << 13;
const MAX_ROW_OFFSET: usize = 1 << 18;

/// How both gradients are summed.
#[derive(Debug, PartialEq)]
pub(super) struct SortedGrad {
    /// Hidden columns of a lane.
    columns: usize,
    /// Whether all rows of the other side fit shared memory beside W.
    cached: bool,
    /// Shared memory of a block that sums, and of one that sorts.
    bytes: usize,
    sort_bytes: usize,
}

impl SortedGrad {
    /// As many columns a lane as fit with all rows of W. None if an example's counts or one column a lane do not fit.
    fn new(hidden: usize, outputs: usize, elements: usize, partners: usize, max_bytes: usize) -> Option<SortedGrad> {
        if elements.max(partners) >= MAX_INDEX {
            return None;
        }
        // Counts per pair, of four and of two bytes, and the first entry of every partner.
        let sort_bytes = 6 * elements * partners + 4 * partners;
        if sort_bytes > max_bytes {
            return None;
        }
        let widest = hidden.div_ceil(32).next_power_of_two().min(4);
        std::iter::successors(Some(widest), |v| (*v > 1).then_some(v / 2)).find_map(|columns| {
            let bytes = |rows: usize| (outputs + WARPS + rows) * 128 * columns + WARPS * 256;
            let (plain, all) = (bytes(0), bytes(elements.max(partners)));
            let cached = all <= max_bytes;
            let fits = outputs * 128 * columns <= MAX_ROW_OFFSET && plain <= max_bytes;
            fits.then_some(SortedGrad { columns, cached, bytes: if cached { all } else { plain }, sort_bytes })
        })
    }
}

impl Lowering<'_> {
    /// How an operation's gradients are summed; none if its entries cannot be sorted.
    pub(super) fn sorted_grad(&self, op: &Pairs) -> Option<SortedGrad> {
        let net = &op.nets[0];
        let vectorisable = |n: &Pair| self.aligned(n.left) && self.aligned(n.right) && self.aligned_param(n.weight);
        if net.reduce != Reduce::Max || !op.nets.iter().all(vectorisable) {
            return None;
        }
        let max_set_len = |of: fn(&Pair) -> _| op.nets.iter().map(|n| self.max_set_len(of(n))).max().unwrap_or(0);
        let (elements, partners) = (max_set_len(|n| n.left.value), max_set_len(|n| n.right.value));
        SortedGrad::new(net.left.cols, net.y.cols, elements, partners, self.kernels.shared_memory)
    }

    /// Lowers both gradients, or only the right one if the weight gradient's kernel computes the left: one launch
    /// sorts, one sums.
    pub(super) fn pair_sorted_grads(
        &mut self,
        op: &Pairs,
        sorted: &SortedGrad,
        mut tasks: Vec<t::PairTask>,
    ) -> Result<(), Error> {
        let mut next = self.alloc_argmax_entries();
        let mut alloc = |numbers: usize| {
            let at = next;
            next += 4 * numbers.next_multiple_of(64) as u64;
            at
        };
        let both = !self.left_grad_with_weights(op);
        let summed = if both { 2 } else { 1 };
        for (task, n) in tasks.iter_mut().zip(&op.nets) {
            let (entries, starts) = self.entry_numbers(n);
            task.left_entries = if both { alloc(entries) } else { 0 };
            (task.right_entries, task.right_starts) = (alloc(entries), alloc(starts));
            task.row_bytes = 128 * sorted.columns as i32;
            task.grad_sides = summed as i32;
        }
        let examples = self.capacity.examples;
        self.launch("pair_max_sort_argmax", &tasks, [examples, tasks.len(), 1], SORT_THREADS, sorted.sort_bytes)?;
        // One wave of blocks, each with the same columns of several examples.
        let slabs = op.nets[0].left.cols.div_ceil(32 * sorted.columns);
        let blocks = self.kernels.multiprocessors * (self.kernels.shared_memory / sorted.bytes).clamp(1, 2);
        let splits = (blocks / (slabs * summed * tasks.len())).clamp(1, examples.max(1));
        let name = format!("pair_max_sorted_grad_{}{}", sorted.columns, if sorted.cached { "_cached" } else { "" });
        self.launch(&name, &tasks, [slabs, splits, summed * tasks.len()], 32 * WARPS as u32, sorted.bytes)
    }

    /// 32-bit words of a network's entry list, and of the first entries of its partners.
    fn entry_numbers(&self, n: &Pair) -> (usize, usize) {
        (2 * self.rows(n.left.value) * n.y.cols, self.rows(n.right.value))
    }

    /// Entry lists serve one operation at a time, so all operations share the largest buffer.
    fn alloc_argmax_entries(&mut self) -> t::DevicePtr {
        if let Some(at) = self.argmax_entries {
            return at;
        }
        let of = |n: &Pair, lists: usize| {
            let (entries, starts) = self.entry_numbers(n);
            lists * entries.next_multiple_of(64) + starts.next_multiple_of(64)
        };
        let all = self.program.ops.iter().filter_map(|op| match op {
            Op::Pairs(p) if self.sorted_grad(p).is_some() => {
                let lists = if self.left_grad_with_weights(p) { 1 } else { 2 };
                Some(p.nets.iter().map(|n| of(n, lists)).sum::<usize>())
            }
            _ => None,
        });
        let numbers = all.max().unwrap_or(0);
        let at = self.alloc_workspace(numbers);
        self.argmax_entries = Some(at);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes a block may have on compute capability 9.
    const MAX_BYTES: usize = 227 << 10;

    #[test]
    fn a_lane_has_as_many_columns_as_fit_and_rows_of_the_other_side_are_cached_if_they_fit() {
        let shape = |hidden, outputs, n| {
            let sorted = SortedGrad::new(hidden, outputs, n, n, MAX_BYTES)?;
            assert!(sorted.bytes <= MAX_BYTES && sorted.sort_bytes <= MAX_BYTES, "{sorted:?}");
            Some((sorted.columns, sorted.cached))
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
    fn large_examples_are_not_sorted() {
        assert!(SortedGrad::new(64, 32, 190, 190, MAX_BYTES).is_some());
        assert_eq!(SortedGrad::new(64, 32, 300, 300, MAX_BYTES), None);
        assert_eq!(SortedGrad::new(64, 32, 9000, 1, MAX_BYTES), None);
        assert_eq!(SortedGrad::new(64, 32, usize::MAX / 2, usize::MAX / 2, MAX_BYTES), None);
    }
}
