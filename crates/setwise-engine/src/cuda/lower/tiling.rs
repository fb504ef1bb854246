//! How sm_90 products and weight gradients are divided into blocks, depending on their number and the GPU.

/// Rows of a block.
const ROWS: usize = 128;

/// Tiling of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tiling {
    /// Columns of a block.
    pub columns: usize,
    /// Stages in shared memory.
    pub stages: usize,
    /// Blocks per task.
    pub blocks: usize,
}

impl Tiling {
    /// For `tasks` products of up to `rows` by `widest` numbers, each a sum of up to `steps` times 32 terms. With
    /// `full_rows` a block has all columns, up to 256.
    pub fn new(
        rows: usize,
        widest: usize,
        tasks: usize,
        steps: usize,
        full_rows: bool,
        multiprocessors: usize,
    ) -> Self {
        let blocks = |columns: usize| rows.div_ceil(ROWS) * widest.div_ceil(columns);
        let mut columns = match widest {
            ..=16 => 16,
            17..=32 => 32,
            129.. if full_rows => 256,
            _ if (1..=64).contains(&(widest % 128)) => 64,
            _ => 128,
        };
        // If half of the multiprocessors were idle, blocks of half the width finish sooner.
        while !full_rows && columns > 32 && 2 * tasks * blocks(columns) <= multiprocessors {
            columns /= 2;
        }
        // Two blocks per multiprocessor have three stages each, a single one more. Short sums need no more stages than
        // steps.
        let max_splits = match columns {
            256 => 4,
            _ if tasks * blocks(columns) <= multiprocessors => 6,
            _ => 3,
        };
        Tiling { columns, stages: steps.clamp(1, max_splits), blocks: blocks(columns) }
    }

    /// The kernel.
    pub fn kernel(&self) -> String {
        format!("linear_sm90_n{}", self.columns)
    }

    /// Rows of the left and of the right operand that a block loads at a time.
    pub fn operand_rows(&self) -> (usize, usize) {
        (ROWS, self.columns)
    }

    /// Bytes of shared memory: accumulators reuse the stages at the end.
    pub fn shared(&self) -> usize {
        (self.stages * (ROWS + self.columns) * 32).max(ROWS * (self.columns + 8)) * 4 + 1024
    }
}

/// Split-K: how the rows that a weight gradient sums over are divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SplitK {
    /// Blocks per tile.
    pub blocks: usize,
    /// Blocks of a cluster, which add their sums before writing one partial sum.
    pub cluster: usize,
}

/// Maximal portable cluster size.
const MAX_CLUSTER: usize = 8;

/// Overheads in rows that could be multiplied in the same time: starting a block, adding within a cluster, writing and
/// reading a partial sum of a tile.
const BLOCK_OVERHEAD_ROWS: usize = 80;
const CLUSTER_OVERHEAD_ROWS: usize = 60;
const PARTIAL_OVERHEAD_ROWS: usize = 160;

/// Maximal blocks per tile, which bounds the memory of partial sums.
const MAX_SPLITS: usize = 264;

impl SplitK {
    /// For `tiles` tiles of `rows` rows, on a GPU that runs `blocks` blocks or `clusters(size)` clusters at once.
    pub fn new(tiles: usize, rows: usize, blocks: usize, clusters: impl Fn(usize) -> usize) -> Self {
        let tiles = tiles.max(1);
        let at_once = |cluster: usize| if cluster == 1 { blocks } else { clusters(cluster) };
        // Estimated time, in rows of one tile.
        let cost = |s: &SplitK, at_once: usize| {
            let groups = s.blocks / s.cluster;
            let waves = (tiles * groups).div_ceil(at_once);
            let cluster_rows = if s.cluster > 1 { CLUSTER_OVERHEAD_ROWS } else { 0 };
            let partials = if groups > 1 { groups * PARTIAL_OVERHEAD_ROWS * tiles / blocks } else { 0 };
            waves * (rows.div_ceil(s.blocks) + BLOCK_OVERHEAD_ROWS + cluster_rows) + partials
        };
        let max_splits = rows.div_ceil(128).clamp(1, MAX_SPLITS);
        // Partial sums need memory: at most two per running block.
        let max_groups = (2 * blocks / tiles).max(1);
        (1..=MAX_CLUSTER)
            .map(|cluster| (cluster, at_once(cluster)))
            .filter(|&(_, at_once)| at_once > 0)
            .flat_map(|(cluster, at_once)| {
                (1..=(max_splits / cluster).min(max_groups))
                    .map(move |groups| (SplitK { blocks: groups * cluster, cluster }, at_once))
            })
            .min_by_key(|(s, at_once)| cost(s, *at_once))
            .map_or(SplitK { blocks: 1, cluster: 1 }, |(s, _)| s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNELS: &str = include_str!("../kernels/linear_sm90.cu");

    #[test]
    fn every_tiling_has_a_kernel_and_covers_the_product() {
        for rows in [1, 128, 129, 576, 2560, 16_000] {
            for widest in [1, 16, 20, 32, 64, 100, 128, 196, 256, 384, 512, 1536, 3072] {
                for (steps, tasks, full_rows) in [(1, 1, false), (4, 4, true), (16, 2, false), (32, 40, true)] {
                    let full_rows = full_rows && widest <= 256;
                    let t = Tiling::new(rows, widest, tasks, steps, full_rows, 132);
                    let made = format!("LINEAR_SM90({}, ", t.columns);
                    assert!(KERNELS.contains(&made), "{} does not exist", t.kernel());
                    assert!(t.blocks * t.columns * 128 >= rows * widest, "{t:?}");
                    assert!(!full_rows || t.columns >= widest, "{t:?}");
                    assert!((1..=steps).contains(&t.stages) && t.shared() <= 227 << 10, "{t:?}");
                }
            }
        }
    }

    #[test]
    fn partial_sums_of_a_weight_are_added_in_clusters_that_fit() {
        // Eight groups of sixteen multiprocessors, and four outside of groups.
        let clusters = |size: usize| 8 * (16 / size);
        let split = |tiles, rows| SplitK::new(tiles, rows, 132, clusters);
        assert_eq!(split(16, 8000), SplitK { blocks: 8, cluster: 8 });
        assert_eq!(split(24, 8000), SplitK { blocks: 5, cluster: 5 });
        // More tiles than run at once are split as well, so that the last wave is short: unsplit they need three waves.
        let many = split(296, 8000);
        assert!(many.blocks > 1 && (296 * many.blocks).div_ceil(132) as f64 / (many.blocks as f64) <= 2.5, "{many:?}");
        // Few rows, cards without clusters, no rows at all.
        assert_eq!(split(8, 64), SplitK { blocks: 1, cluster: 1 });
        assert_eq!(SplitK::new(16, 8000, 132, |_| 0), SplitK { blocks: 8, cluster: 1 });
        assert_eq!(split(8, 0), SplitK { blocks: 1, cluster: 1 });
        for tiles in 1..400 {
            let s = split(tiles, 9600);
            assert!(s.blocks > 0 && s.blocks.is_multiple_of(s.cluster), "{tiles} {s:?}");
            assert!(s.blocks == s.cluster || s.blocks / s.cluster * tiles <= 2 * 132, "{tiles} {s:?}");
        }
        // The kernel adds up to as many.
        let sums = include_str!("../kernels/linear_weight_grad_sm90.cu");
        assert!(sums.contains(&format!("BLOCKS = {MAX_CLUSTER};")), "the kernel has another maximal cluster size");
    }

    #[test]
    fn few_blocks_are_narrower_and_have_more_stages() {
        // Five row tiles by four column tiles for two tasks would leave 92 of 132 multiprocessors idle.
        let t = Tiling::new(576, 512, 2, 32, false, 132);
        assert_eq!((t.columns, t.stages, t.kernel().as_str()), (64, 6, "linear_sm90_n64"));
        assert_eq!(Tiling::new(48, 512, 1, 16, false, 132).kernel(), "linear_sm90_n32");
        assert_eq!(Tiling::new(2560, 512, 2, 32, false, 132).columns, 128);
        assert_eq!(Tiling::new(48, 256, 1, 16, true, 132).columns, 256);
    }
}
