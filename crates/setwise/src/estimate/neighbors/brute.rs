//! All points against all queries: a tile of blocks stays in the first cache while a chunk of queries passes over it.

use super::collect::Collector;
use super::measure::{Blocks, Measure, lanes};
use crate::estimate::Points;

/// Numbers of a tile: half of a first cache.
const TILE: usize = 1 << 11;

/// Shows every point to the collector of every query.
#[inline(always)]
pub(super) fn search<M: Measure, C: Collector>(
    blocks: &Blocks,
    split: usize,
    queries: Points,
    rows: &[usize],
    collectors: &mut [C],
) {
    let count = blocks.count();
    let tile = (TILE / (super::measure::LANES * queries.dim())).max(4);
    let mut start = 0;
    while start < count {
        let end = count.min(start + tile);
        for (&row, collector) in rows.iter().zip(collectors.iter_mut()) {
            let query = queries.row(row);
            for block in blocks.blocks(start..end) {
                collector.take(&lanes::<M>(block, query, split));
            }
        }
        start = end;
    }
}
