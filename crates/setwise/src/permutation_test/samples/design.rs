//! Which rows may be exchanged under the hypothesis.

use std::collections::{HashMap, HashSet};

use super::super::unpaired;
use crate::estimate::Points;
use crate::{Error, Result};

/// The design of a study: which rows are exchangeable if the samples are the same.
#[derive(Clone, Copy, Debug, Default)]
pub enum Design<'a> {
    /// Independent samples: all rows.
    #[default]
    Independent,
    /// Rows i of all samples are of one subject; only these.
    Paired,
    /// Rows of one block, such as a site or a day: for each sample the number of each row's block.
    Blocked(&'a [&'a [u32]]),
}

/// Most blocks with rows of several samples: labels of each block are exchanged by themselves.
const MAX_BLOCKS: usize = 10_000;

/// Blocks with rows of several samples.
fn shared_blocks(of_samples: &[&[u32]]) -> usize {
    let mut samples: HashMap<u32, usize> = HashMap::new();
    for of_sample in of_samples {
        let distinct: HashSet<u32> = of_sample.iter().copied().collect();
        distinct.into_iter().for_each(|block| *samples.entry(block).or_default() += 1);
    }
    samples.values().filter(|count| **count > 1).count()
}

impl Design<'_> {
    pub(super) fn check(&self, samples: &[Points]) -> Result<()> {
        match self {
            Design::Paired => match samples.iter().find(|s| s.len() != samples[0].len()) {
                Some(other) => Err(unpaired(samples[0], *other)),
                None => Ok(()),
            },
            Design::Blocked(blocks)
                if blocks.len() != samples.len() || blocks.iter().zip(samples).any(|(b, s)| b.len() != s.len()) =>
            {
                Err(Error::Sets("every row needs a block".to_owned()))
            }
            Design::Blocked(blocks) => match shared_blocks(blocks) {
                0 => {
                    let samples = if samples.len() == 2 { "both samples" } else { "several samples" };
                    Err(Error::Sets(format!("no block has rows of {samples}: there is nothing to exchange")))
                }
                1..=MAX_BLOCKS => Ok(()),
                _ => Err(Error::Sets(format!("there are more than {MAX_BLOCKS} blocks; join some of them"))),
            },
            Design::Independent => Ok(()),
        }
    }

    /// The block of each row of the pooled sample, numbered from zero. More subjects than `max_subjects` share blocks,
    /// whose rows must be exchanged together.
    pub(super) fn blocks(&self, kept: &[Vec<usize>], max_subjects: usize) -> Vec<u32> {
        match self {
            Design::Independent => vec![0; kept.iter().map(Vec::len).sum()],
            Design::Paired => {
                let count = kept[0].len().min(max_subjects);
                kept.iter().flat_map(|rows| (0..rows.len()).map(|row| (row % count) as u32)).collect()
            }
            Design::Blocked(blocks) => {
                let all: Vec<u32> =
                    kept.iter().zip(*blocks).flat_map(|(rows, blocks)| rows.iter().map(|&row| blocks[row])).collect();
                let mut sorted = all.clone();
                sorted.sort_unstable();
                sorted.dedup();
                all.iter().map(|block| sorted.partition_point(|b| b < block) as u32).collect()
            }
        }
    }

    /// Calls `work` with the design of some of the samples.
    pub(super) fn of_some<T>(&self, samples: &[usize], work: impl FnOnce(Design) -> T) -> T {
        match self {
            Design::Blocked(blocks) => {
                let chosen: Vec<&[u32]> = samples.iter().map(|&s| blocks[s]).collect();
                work(Design::Blocked(&chosen))
            }
            Design::Independent => work(Design::Independent),
            Design::Paired => work(Design::Paired),
        }
    }
}
