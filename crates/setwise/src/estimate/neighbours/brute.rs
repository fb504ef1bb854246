//! Brute force: all points against all queries. A tile of blocks stays in the L1 cache for a chunk of queries.

use super::collect::Collector;
use super::measure::{Blocks, Measure, block_measures};
use crate::estimate::Points;

/// Numbers in a tile: half of an L1 cache.
const TILE_NUMBERS: usize = 1 << 11;

/// Lets the collector of every query visit every point.
#[inline(always)]
pub(super) fn search<M: Measure, C: Collector>(
    blocks: &Blocks,
    split: usize,
    queries: Points,
    rows: &[usize],
    collectors: &mut [C],
) {
    let count = blocks.count();
    let tile = (TILE_NUMBERS / (super::measure::LANES * queries.dim())).max(4);
    let mut start = 0;
    while start < count {
        let end = count.min(start + tile);
        for (&row, collector) in rows.iter().zip(collectors.iter_mut()) {
            let query = queries.row(row);
            for block in blocks.blocks(start..end) {
                collector.visit(&block_measures::<M>(block, query, split));
            }
        }
        start = end;
    }
}
