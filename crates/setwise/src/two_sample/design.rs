//! Which rows may be exchanged under the hypothesis.

use std::collections::HashSet;

use crate::estimate::Points;
use crate::{Error, Result};

/// The design of a study: which rows are exchangeable if P and Q are the same.
#[derive(Clone, Copy, Debug, Default)]
pub enum Design<'a> {
    /// Independent samples: all rows.
    #[default]
    Independent,
    /// Row i of P and row i of Q are of one subject; only these two.
    Paired,
    /// Rows of one block, such as a site or a day. The numbers are those of the rows' blocks.
    Blocked {
        /// Blocks of the rows of P.
        p: &'a [u32],
        /// Blocks of the rows of Q.
        q: &'a [u32],
    },
}

/// Most blocks with rows of both samples: labels of each block are exchanged by themselves.
const MAX_BLOCKS: usize = 10_000;

/// Blocks with rows of both samples.
fn shared_blocks(p: &[u32], q: &[u32]) -> usize {
    let of_p: HashSet<u32> = p.iter().copied().collect();
    q.iter().copied().filter(|block| of_p.contains(block)).collect::<HashSet<u32>>().len()
}

impl Design<'_> {
    pub(super) fn check(&self, p: Points, q: Points) -> Result<()> {
        match self {
            Design::Paired if p.len() != q.len() => Err(Error::Sets(format!(
                "{} has {} rows, {} has {}: row i of one belongs to row i of the other",
                p.name(),
                p.len(),
                q.name(),
                q.len()
            ))),
            Design::Blocked { p: of_p, q: of_q } if of_p.len() != p.len() || of_q.len() != q.len() => {
                Err(Error::Sets("every row needs a block".to_owned()))
            }
            Design::Blocked { p: of_p, q: of_q } if shared_blocks(of_p, of_q) == 0 => {
                Err(Error::Sets("no block has rows of both samples: there is nothing to exchange".to_owned()))
            }
            Design::Blocked { p: of_p, q: of_q } if shared_blocks(of_p, of_q) > MAX_BLOCKS => {
                Err(Error::Sets(format!("there are more than {MAX_BLOCKS} blocks; join some of them")))
            }
            _ => Ok(()),
        }
    }

    /// The block of each row of the pooled sample, numbered from zero. More pairs than `max_pairs` share blocks, whose
    /// rows must be exchanged together.
    pub(super) fn blocks(&self, kept: &[Vec<usize>; 2], max_pairs: usize) -> Vec<u32> {
        match self {
            Design::Independent => vec![0; kept[0].len() + kept[1].len()],
            Design::Paired => {
                let count = kept[0].len().min(max_pairs);
                let block = |row: usize| (row % count) as u32;
                (0..kept[0].len()).map(block).chain((0..kept[1].len()).map(block)).collect()
            }
            Design::Blocked { p, q } => {
                let all: Vec<u32> =
                    kept[0].iter().map(|&row| p[row]).chain(kept[1].iter().map(|&row| q[row])).collect();
                let mut sorted = all.clone();
                sorted.sort_unstable();
                sorted.dedup();
                all.iter().map(|block| sorted.partition_point(|b| b < block) as u32).collect()
            }
        }
    }
}
