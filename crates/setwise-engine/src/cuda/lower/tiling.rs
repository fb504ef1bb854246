//! How products by warpgroups and gradients of weights are cut into blocks: by how many of them there are for the card.

/// Rows of a block.
const ROWS: usize = 128;

/// The blocks of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tiling {
    /// Columns of a block.
    pub columns: usize,
    /// Steps along the sum that shared memory holds.
    pub stages: usize,
    /// Blocks to a task.
    pub blocks: usize,
}

impl Tiling {
    /// For some tasks of at most `rows` by `widest` numbers, each a sum of at most `steps` times 32 products, on a card of so many processors. With `whole_rows`
    /// a block has all columns, at most 256.
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
        // Where half of the processors have nothing to do, blocks of half the width are done sooner.
        while !full_rows && columns > 32 && 2 * tasks * blocks(columns) <= multiprocessors {
            columns /= 2;
        }
        // Two blocks to a processor have room for three stages each, one alone for more. Short sums need no more than they have steps.
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

    /// Rows of the left and of the right operand that a block fetches at a time.
    pub fn operand_rows(&self) -> (usize, usize) {
        (ROWS, self.columns)
    }

    /// Bytes of shared memory: the sums take the place of the stages at the end.
    pub fn shared(&self) -> usize {
        (self.stages * (ROWS + self.columns) * 32).max(ROWS * (self.columns + 8)) * 4 + 1024
    }
}

/// How the rows that a weight's gradient sums over are split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SplitK {
    /// Blocks to a tile.
    pub blocks: usize,
    /// Neighbours among them that add up what they have, as a cluster, before it is written as one part.
    pub cluster: usize,
}

/// Most blocks of a cluster on every card that has them.
const MAX_CLUSTER: usize = 8;

/// What else a block does, as rows it could have multiplied meanwhile: to begin and end, to add up with others of its cluster, and, for a tile, to write a part and to read it again.
const BLOCK_OVERHEAD_ROWS: usize = 80;
const CLUSTER_OVERHEAD_ROWS: usize = 60;
const PARTIAL_OVERHEAD_ROWS: usize = 160;

/// Most blocks to a tile: parts have to be kept somewhere.
const MAX_SPLITS: usize = 264;

impl SplitK {
    /// For some tiles, each a sum over so many rows, on a card that holds so many blocks at a time, or so many clusters of a size.
    pub fn new(tiles: usize, rows: usize, blocks: usize, clusters: impl Fn(usize) -> usize) -> Self {
        let tiles = tiles.max(1);
        let at_once = |cluster: usize| if cluster == 1 { blocks } else { clusters(cluster) };
        // As many rows of one tile as are multiplied in the time that all takes.
        let cost = |s: &SplitK, at_once: usize| {
            let groups = s.blocks / s.cluster;
            let waves = (tiles * groups).div_ceil(at_once);
            let cluster_rows = if s.cluster > 1 { CLUSTER_OVERHEAD_ROWS } else { 0 };
            let partials = if groups > 1 { groups * PARTIAL_OVERHEAD_ROWS * tiles / blocks } else { 0 };
            waves * (rows.div_ceil(s.blocks) + BLOCK_OVERHEAD_ROWS + cluster_rows) + partials
        };
        let max_splits = rows.div_ceil(128).clamp(1, MAX_SPLITS);
        // Parts take place: no more than two to each block that runs at a time.
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
    fn every_shape_has_a_kernel_and_covers_the_product() {
        for rows in [1, 128, 129, 576, 2560, 16_000] {
            for widest in [1, 16, 20, 32, 64, 100, 128, 196, 256, 384, 512, 1536, 3072] {
                for (steps, tasks, full_rows) in [(1, 1, false), (4, 4, true), (16, 2, false), (32, 40, true)] {
                    let full_rows = full_rows && widest <= 256;
                    let t = Tiling::new(rows, widest, tasks, steps, full_rows, 132);
                    let made = format!("LINEAR_SM90({}, ", t.columns);
                    assert!(KERNELS.contains(&made), "{} is not there", t.kernel());
                    assert!(t.blocks * t.columns * 128 >= rows * widest, "{t:?}");
                    assert!(!full_rows || t.columns >= widest, "{t:?}");
                    assert!((1..=steps).contains(&t.stages) && t.shared() <= 227 << 10, "{t:?}");
                }
            }
        }
    }

    #[test]
    fn parts_of_a_weight_are_added_up_in_clusters_that_fit() {
        // Eight groups of sixteen processors and four processors that belong to none.
        let clusters = |size: usize| 8 * (16 / size);
        let split = |tiles, rows| SplitK::new(tiles, rows, 132, clusters);
        assert_eq!(split(16, 8000), SplitK { blocks: 8, cluster: 8 });
        assert_eq!(split(24, 8000), SplitK { blocks: 5, cluster: 5 });
        // More tiles than there is room for at once are cut as well, so that the last round is short: uncut they take three rounds.
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
        // As many as the kernel adds up.
        let sums = include_str!("../kernels/linear_weight_grad_sm90.cu");
        assert!(sums.contains(&format!("BLOCKS = {MAX_CLUSTER};")), "the kernel adds up another number of blocks");
    }

    #[test]
    fn few_blocks_are_made_narrower_and_read_further_ahead() {
        // Five sets of rows by four of columns for two tasks would leave 92 of 132 processors without work.
        let t = Tiling::new(576, 512, 2, 32, false, 132);
        assert_eq!((t.columns, t.stages, t.kernel().as_str()), (64, 6, "linear_sm90_n64"));
        assert_eq!(Tiling::new(48, 512, 1, 16, false, 132).kernel(), "linear_sm90_n32");
        assert_eq!(Tiling::new(2560, 512, 2, 32, false, 132).columns, 128);
        assert_eq!(Tiling::new(48, 256, 1, 16, true, 132).columns, 256);
    }
}
