//! How products by warpgroups are cut into blocks: by how many of them there are for the card.

/// Rows of a block.
const ROWS: usize = 128;

/// The blocks of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tiles {
    /// Columns of a block.
    pub columns: usize,
    /// Steps along the sum that shared memory holds.
    pub stages: usize,
    /// Blocks to a task.
    pub blocks: usize,
}

impl Tiles {
    /// For some tasks of at most `rows` by `widest` numbers, each a sum of at most `steps` times 32 products, on a card of so many processors. With `whole_rows`
    /// a block has all columns, at most 256.
    pub fn new(rows: usize, widest: usize, tasks: usize, steps: usize, whole_rows: bool, processors: usize) -> Self {
        let blocks = |columns: usize| rows.div_ceil(ROWS) * widest.div_ceil(columns);
        let mut columns = match widest {
            ..=16 => 16,
            17..=32 => 32,
            129.. if whole_rows => 256,
            _ if (1..=64).contains(&(widest % 128)) => 64,
            _ => 128,
        };
        // Where half of the processors have nothing to do, blocks of half the width are done sooner.
        while !whole_rows && columns > 32 && 2 * tasks * blocks(columns) <= processors {
            columns /= 2;
        }
        // Two blocks to a processor have room for three stages each, one alone for more. Short sums need no more than they have steps.
        let most = match columns {
            256 => 4,
            _ if tasks * blocks(columns) <= processors => 6,
            _ => 3,
        };
        Tiles { columns, stages: steps.clamp(1, most), blocks: blocks(columns) }
    }

    /// The kernel.
    pub fn kernel(&self) -> String {
        format!("product_wide_n{}", self.columns)
    }

    /// Rows of the left and of the right operand that a block fetches at a time.
    pub fn fetched(&self) -> (usize, usize) {
        (ROWS, self.columns)
    }

    /// Bytes of shared memory: the sums take the place of the stages at the end.
    pub fn shared(&self) -> usize {
        (self.stages * (ROWS + self.columns) * 32).max(ROWS * (self.columns + 8)) * 4 + 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNELS: &str = include_str!("../kernels/wide_linear.cu");

    #[test]
    fn every_shape_has_a_kernel_and_covers_the_product() {
        for rows in [1, 128, 129, 576, 2560, 16_000] {
            for widest in [1, 16, 20, 32, 64, 100, 128, 196, 256, 384, 512, 1536, 3072] {
                for (steps, tasks, whole) in [(1, 1, false), (4, 4, true), (16, 2, false), (32, 40, true)] {
                    let whole = whole && widest <= 256;
                    let t = Tiles::new(rows, widest, tasks, steps, whole, 132);
                    let made = format!("PRODUCT_WIDE({}, ", t.columns);
                    assert!(KERNELS.contains(&made), "{} is not there", t.kernel());
                    assert!(t.blocks * t.columns * 128 >= rows * widest, "{t:?}");
                    assert!(!whole || t.columns >= widest, "{t:?}");
                    assert!((1..=steps).contains(&t.stages) && t.shared() <= 227 << 10, "{t:?}");
                }
            }
        }
    }

    #[test]
    fn few_blocks_are_made_narrower_and_read_further_ahead() {
        // Five sets of rows by four of columns for two tasks would leave 92 of 132 processors without work.
        let t = Tiles::new(576, 512, 2, 32, false, 132);
        assert_eq!((t.columns, t.stages, t.kernel().as_str()), (64, 6, "product_wide_n64"));
        assert_eq!(Tiles::new(48, 512, 1, 16, false, 132).kernel(), "product_wide_n32");
        assert_eq!(Tiles::new(2560, 512, 2, 32, false, 132).columns, 128);
        assert_eq!(Tiles::new(48, 256, 1, 16, true, 132).columns, 256);
    }
}
