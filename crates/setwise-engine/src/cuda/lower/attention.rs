//! Attention, compiled for each head width.

use super::super::kernel_tasks as t;
use super::{Capacity, Lowering};
use crate::error::Error;
use crate::flow::group_by;
use crate::program::{Attention, Op, Program, Relation, Slice};

/// Head widths attention is compiled for.
const DEPTHS: [usize; 7] = [8, 16, 32, 64, 80, 128, 256];

/// The smallest compiled width that holds heads of a width.
pub(super) fn depth_for(width: usize) -> Result<usize, Error> {
    DEPTHS.into_iter().find(|&d| d >= width).ok_or_else(|| {
        Error::Device(format!("attention heads of {width} numbers are wider than {}; use more heads", DEPTHS[6]))
    })
}

/// Keys (or queries) in a tile of the inner loop.
pub(in super::super) fn key_tile(depth: usize) -> usize {
    if depth <= 64 { 64 } else { 32 }
}

/// The compiled head width and key tile of `attention_sm90.cu`; none for the widest heads.
pub(in super::super) fn sm90_depth(depth: usize) -> Option<(usize, usize)> {
    [(16, 64), (32, 64), (64, 32), (80, 32), (128, 32)].into_iter().find(|&(d, _)| d >= depth)
}

/// Shapes of `attention_single_block.cu` for a compiled head width: (warps, blocks per multiprocessor); a warp holds 16
/// elements. Empty for the widest heads, of which two blocks cannot hold sets of the usual size.
pub(in super::super) fn single_block_shapes(depth: usize) -> &'static [(usize, usize)] {
    match depth {
        8 => &[(4, 6), (8, 4), (10, 3)],
        16 => &[(4, 6), (8, 3), (10, 2)],
        32 => &[(4, 4), (8, 2), (10, 2)],
        64 => &[(4, 4), (8, 2), (10, 2)],
        _ => &[],
    }
}

/// Bytes of shared memory of a single-block kernel. Forward: Q, K, V and the maxima of each warp. Backward: also dO,
/// two numbers per query, and the score gradients where they fit. Otherwise clusters of two heads have staging memory.
fn single_block_bytes(depth: usize, warps: usize, backward: bool, head_pair: bool) -> usize {
    let rows = 16 * warps;
    let tile = rows * if depth == 8 { 16 } else { 2 * depth + 16 };
    let keeps_scores = depth < 64 || warps <= 8;
    let score_bytes = if keeps_scores { rows * (2 * rows + 16).max(4 * depth) } else { 0 };
    let staging = if head_pair && !keeps_scores { 2 * rows * depth } else { 0 };
    if backward { 4 * tile + score_bytes + 8 * rows + 4 * warps + staging } else { 3 * tile + 12 * warps }
}

/// Whether blocks of two heads form a cluster and write together: heads of four numbers, unless they have few
/// dimensions.
fn head_pair(depth: usize, heads: usize, r: &Relation) -> bool {
    depth > 8 && r.query.cols == 4 * heads && heads.is_multiple_of(2)
}

/// The macros of single-block kernels that a program needs for a compiled head width.
pub(in super::super) fn single_block_macros(depth: usize, ops: &[Op]) -> Vec<&'static str> {
    let has = |pairs: bool, a: &Attention| a.relations.iter().any(|r| head_pair(depth, a.heads, r) == pairs);
    let wanted = |pairs: bool| ops.iter().any(|op| matches!(op, Op::Attention(a) if has(pairs, a)));
    let kinds = [(false, "ATTENTION_SINGLE_BLOCK"), (true, "ATTENTION_HEAD_PAIR")];
    kinds.into_iter().filter(|k| wanted(k.0)).map(|k| k.1).collect()
}

/// Compiled widths of all heads of a program.
pub(in super::super) fn head_depths(program: &Program, capacity: &Capacity) -> Result<Vec<usize>, Error> {
    let mut head_depths = Vec::new();
    for op in &program.ops {
        if let Op::Attention(a) = op {
            for r in &a.relations {
                let dims = if program.values[r.query.value.0].per_dim { capacity.dims } else { 1 };
                head_depths.push(depth_for(r.query.cols / a.heads * dims)?);
            }
        }
    }
    head_depths.sort_unstable();
    head_depths.dedup();
    Ok(head_depths)
}

impl<'a> Lowering<'a> {
    pub(super) fn attention(&mut self, op: &Attention, kernels: &[&str]) -> Result<(), Error> {
        let training = kernels[0] != "attention_forward";
        let head = |b: &Self, s: Slice, grad: bool| {
            let (data, ld) = if grad { b.grad_slice(s) } else { b.slice(s) };
            t::HeadSlice { data, ld, pad: 0, space: b.space(s.value), pad2: 0 }
        };
        let none = t::HeadSlice {
            data: 0,
            ld: 0,
            pad: 0,
            space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
            pad2: 0,
        };
        for kernel in kernels {
            // Relations of the same compiled width share a launch.
            let width = |s: Slice| {
                s.cols / op.heads * if self.program.values[s.value.0].per_dim { self.capacity.dims } else { 1 }
            };
            for (depth, members) in group_by(op.relations.iter().map(|r| depth_for(width(r.query)))) {
                let depth = depth?;
                let tasks: Vec<t::AttentionTask> = members
                    .iter()
                    .map(|&i| {
                        let r = &op.relations[i];
                        let grad = |s: Slice| if training { head(self, s, true) } else { none };
                        t::AttentionTask {
                            query: head(self, r.query, false),
                            key: head(self, r.key, false),
                            value: head(self, r.value, false),
                            out: head(self, r.out, false),
                            d_query: grad(r.query),
                            d_key: grad(r.key),
                            d_value: grad(r.value),
                            d_out: grad(r.out),
                            stats: self.value(r.stats),
                            scale: op.scale as f32,
                            heads: op.heads as i32,
                            width: (r.query.cols / op.heads) as i32,
                            pad: 0,
                        }
                    })
                    .collect();
                let over = |r: &Relation| if *kernel == "attention_backward_keys" { r.key } else { r.query };
                let max_set_len =
                    members.iter().map(|&i| self.max_set_len(over(&op.relations[i]).value)).max().unwrap_or(0);
                let grid = [max_set_len.div_ceil(64), self.capacity.examples * op.heads, tasks.len()];
                let vectorisable = |s: &Slice| self.aligned(*s) && (s.cols / op.heads).is_multiple_of(4);
                let all = members.iter().map(|&i| &op.relations[i]);
                let vectorised = all.flat_map(|r| [r.query, r.key, r.value, r.out]).all(|s| vectorisable(&s));
                if let Some((padded, tile)) = sm90_depth(depth).filter(|_| self.kernels.sm90 && vectorised) {
                    let all = members.iter().flat_map(|&i| [op.relations[i].query, op.relations[i].key]);
                    let max_set_len = all.map(|s| self.max_set_len(s.value)).max().unwrap_or(0);
                    // The kernel finds the largest score as the largest dot product, so the scale must be positive.
                    let single_block = single_block_shapes(depth)
                        .iter()
                        .map(|w| w.0)
                        .find(|w| 16 * w >= max_set_len && op.scale > 0.0);
                    if let Some(warps) = single_block {
                        let backward = *kernel != "attention_forward";
                        if *kernel == "attention_backward_keys" {
                            // The single-block kernel computes all gradients in one launch.
                            continue;
                        }
                        let way = if backward { "backward" } else { "forward" };
                        let head_pair = members.iter().all(|&i| head_pair(depth, op.heads, &op.relations[i]));
                        let (kind, cluster) = if head_pair { ("head_pair", [2, 1]) } else { ("single_block", [1, 1]) };
                        let name = format!("attention_{way}_{kind}_{depth}_{warps}");
                        let bytes = single_block_bytes(depth, warps, backward, head_pair);
                        let grid = [op.heads, self.capacity.examples, tasks.len()];
                        self.launch_clusters(&name, &tasks, grid, 32 * warps as u32, bytes, cluster)?;
                        continue;
                    }
                    // Rows of 64 and of a tile in slabs of 32 columns; transposed tiles are as long as the head.
                    let (rows_of_block, tiles, transposed) = match *kernel {
                        "attention_forward" => (1, 2, 1),
                        "attention_backward_queries" => (2, 2, 1),
                        _ => (2, 2, 2),
                    };
                    let columns = padded.next_multiple_of(32);
                    let numbers = rows_of_block * 64 * columns + tiles * tile * columns + transposed * tile * padded;
                    self.launch(&format!("{kernel}_sm90_{padded}"), &tasks, grid, 128, numbers * 4 + 1024)?;
                    continue;
                }
                let tile = key_tile(depth);
                let rows = if training { 128 + 2 * tile } else { 64 + 2 * tile };
                self.launch(&format!("{kernel}_{depth}"), &tasks, grid, 128, rows * (depth + 4) * 4)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Value;

    #[test]
    fn kernels_are_compiled_for_the_heads_of_a_program() {
        let attention = |cols: usize| {
            let slice = |v| Slice { value: Value(v), col: 0, cols };
            let relation = Relation { query: slice(0), key: slice(1), value: slice(2), out: slice(3), stats: Value(4) };
            Op::Attention(Attention { relations: vec![relation], heads: 4, scale: 1.0 })
        };
        let (narrow, wide) = (attention(16), attention(64));
        assert_eq!(single_block_macros(64, std::slice::from_ref(&narrow)), ["ATTENTION_HEAD_PAIR"]);
        assert_eq!(single_block_macros(64, std::slice::from_ref(&wide)), ["ATTENTION_SINGLE_BLOCK"]);
        assert_eq!(single_block_macros(64, &[wide, narrow.clone()]), ["ATTENTION_SINGLE_BLOCK", "ATTENTION_HEAD_PAIR"]);
        // Few dimensions.
        assert_eq!(single_block_macros(8, &[narrow]), ["ATTENTION_SINGLE_BLOCK"]);
    }

    #[test]
    fn single_block_attention_fits_the_shared_memory_of_its_kernels_and_the_gpu() {
        let kernel = include_str!("../kernels/attention_single_block.cu");
        for formula in [
            "row_bytes(int depth) { return depth == 8 ? 16 : 2 * depth + 16; }",
            "keeps_score_grads(int depth, int warps) { return depth < 64 || warps <= 8; }",
            "? max(16 * warps * (32 * warps + 16), 64 * warps * depth) : 0; }",
            "PEER_BYTES = 2 * R * DEPTH;",
        ] {
            assert!(kernel.contains(formula), "{formula}");
        }
        for depth in DEPTHS {
            for &(warps, blocks) in single_block_shapes(depth) {
                // A multiprocessor of sm_90 has 228 KB; each block reserves 1 KB more than it uses.
                let all = blocks * (single_block_bytes(depth, warps, true, true) + 1024);
                assert!(all <= 228 << 10, "heads of {depth}, {warps} warps: {all} bytes");
                // Where no tile is free, a cluster has separate staging memory.
                let staging =
                    single_block_bytes(depth, warps, true, true) - single_block_bytes(depth, warps, true, false);
                assert_eq!(staging, if depth == 64 && warps == 10 { 2 * 160 * 64 } else { 0 });
                // Unconverted data fits where tiles will be.
                let tiles = single_block_bytes(depth, warps, false, false) - 12 * warps;
                assert!(2 * 16 * warps * depth * 4 <= tiles / 3 * 4);
            }
        }
    }
}
