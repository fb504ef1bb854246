//! Columns of the pooled sample, summed over groups of rows and ready for products with labels.

use std::collections::BTreeMap;
use std::ops::Range;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rayon::prelude::*;

use super::super::encode::Encode;
use super::super::product::{PANEL, STRIP, product, strips_of_panels};
use super::quadratic::Sums;
use crate::random::Generator;

/// Rows that labels are given to together.
///
/// Small samples have one row in a group. Rows of large samples are grouped at random, each group within one sample and
/// one block. Groups of a block have equal sizes, so that exchanging their labels is exact: under the hypothesis all
/// assignments of rows to groups are equally likely. Fewer rows than a group are left out of each sample of a block.
pub(super) struct Groups {
    rows: Vec<u32>,
    ends: Vec<usize>,
    /// The sample of each group.
    pub sample: Vec<u8>,
    /// The block of each group, numbered from zero.
    pub block: Vec<u32>,
}

impl Groups {
    /// Groups of rows with these labels, each within a block; about `max` groups where blocks are large. Where `whole`
    /// is set, the rows of a block in one sample are one group.
    pub fn new(sample: &[u8], blocks: &[u32], max: usize, whole: bool, seed: u64) -> Self {
        let size = sample.len().div_ceil(max);
        let mut rng = Generator::seed_from_u64(seed);
        let mut members: BTreeMap<u32, BTreeMap<u8, Vec<u32>>> = BTreeMap::new();
        for (row, (sample, block)) in sample.iter().zip(blocks).enumerate() {
            members.entry(*block).or_default().entry(*sample).or_default().push(row as u32);
        }
        let is_one_block = members.len() == 1;
        let mut groups = Groups { rows: Vec::new(), ends: Vec::new(), sample: Vec::new(), block: Vec::new() };
        for (number, of_samples) in members.into_values().enumerate() {
            let fewest = of_samples.values().map(Vec::len).min().unwrap_or(1);
            let length = match (whole, is_one_block) {
                (true, _) => fewest,
                // Less than 1 % of a sample is left out.
                (false, true) => size.min((fewest / 100).max(1)),
                // Blocks may be many and small; each leaves out less than one group.
                (false, false) => size.min(fewest.isqrt().max(1)),
            };
            for (sample, mut rows) in of_samples {
                if length > 1 {
                    rows.shuffle(&mut rng);
                    rows.truncate(rows.len() / length * length);
                }
                for group in rows.chunks_exact(length) {
                    groups.rows.extend(group);
                    groups.ends.push(groups.rows.len());
                    groups.sample.push(sample);
                    groups.block.push(number as u32);
                }
            }
        }
        groups
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Rows of each sample.
    pub fn sizes(&self) -> Vec<usize> {
        let mut sizes = vec![0; self.sample.iter().max().map_or(0, |last| usize::from(*last) + 1)];
        (0..self.len()).for_each(|g| sizes[usize::from(self.sample[g])] += self.range(g).len());
        sizes
    }

    /// Each row by itself.
    fn of_single(rows: Vec<u32>) -> Self {
        Groups { ends: (1..=rows.len()).collect(), rows, sample: Vec::new(), block: Vec::new() }
    }

    /// Rows whose columns are kept one by one: all rows, or some of `order` where groups have several rows.
    pub fn single_rows(&self, order: &[u32]) -> Vec<u32> {
        match self.rows.len() == self.len() {
            true => self.rows.clone(),
            false => order.iter().copied().step_by(order.len().div_ceil(MAX_SINGLE_ROWS)).collect(),
        }
    }

    fn range(&self, group: usize) -> Range<usize> {
        if group == 0 { 0..self.ends[0] } else { self.ends[group - 1]..self.ends[group] }
    }
}

/// Columns summed over groups of rows.
pub(super) struct Features {
    pub width: usize,
    groups: usize,
    /// Centred sums, `[panel][group][PANEL]`.
    panels: Vec<f32>,
    /// The variance of each column of single rows.
    pub variances: Vec<f64>,
    /// The covariance of single rows, `[width, width]`, lower triangle; empty if it is not asked for.
    pub covariance: Vec<f64>,
    /// Centred columns of single rows, where groups have several.
    single: Option<Vec<f32>>,
}

/// Rows of large samples whose columns are kept one by one, for their covariance and for witnesses.
const MAX_SINGLE_ROWS: usize = 8192;

impl Features {
    /// Encodes all rows. Sums are centred within each block of groups. `rows` are the groups' single rows. Covariances,
    /// which cost the square of the number of columns, are for whitening.
    pub fn new(encoder: &dyn Encode, groups: &Groups, blocks: &[Vec<u32>], rows: &[u32], whiten: bool) -> Self {
        let width = encoder.width();
        let mut sums = vec![0.0f32; groups.len() * width];
        sums.par_chunks_mut(width).enumerate().for_each(|(g, sums)| {
            let range = groups.range(g);
            if range.len() == 1 {
                return encoder.encode(groups.rows[range.start] as usize, sums);
            }
            let mut row = vec![0.0; width];
            for &i in &groups.rows[range] {
                encoder.encode(i as usize, &mut row);
                sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += x);
            }
        });
        let panels = centred_panels(&sums, width, groups, blocks);
        let single = (groups.len() < groups.rows.len()).then(|| {
            let mut values = vec![0.0f32; rows.len() * width];
            let encode = |(out, &i): (&mut [f32], &u32)| encoder.encode(i as usize, out);
            values.par_chunks_mut(width).zip(rows).for_each(encode);
            let all = vec![(0..rows.len() as u32).collect()];
            centred_panels(&values, width, &Groups::of_single(rows.to_vec()), &all)
        });
        let of_rows = single.as_ref().unwrap_or(&panels);
        let variances = variances(of_rows, width, rows.len());
        let covariance = if whiten { covariance(of_rows, width, rows.len()) } else { Vec::new() };
        Features { width, groups: groups.len(), panels, variances, covariance, single }
    }

    /// Centred columns of [`Groups::single_rows`], `[panel][row][PANEL]`.
    pub fn single(&self) -> &[f32] {
        self.single.as_ref().unwrap_or(&self.panels)
    }

    /// Sums over the groups of each sample, for strips of labels of `samples` samples.
    pub fn sums(&self, strips: &[f32], samples: usize) -> Sums {
        Sums::new(product(&self.panels, strips, self.groups, false), strips.len() / self.groups, samples)
    }
}

/// Sums without the mean of their block, in panels.
fn centred_panels(sums: &[f32], width: usize, groups: &Groups, blocks: &[Vec<u32>]) -> Vec<f32> {
    let mut panels = vec![0.0f32; width.div_ceil(PANEL) * PANEL * groups.len()];
    panels.par_chunks_mut(PANEL * groups.len()).enumerate().for_each(|(p, panel)| {
        let columns = PANEL.min(width - p * PANEL);
        for block in blocks {
            let rows: usize = block.iter().map(|&g| groups.range(g as usize).len()).sum();
            for c in 0..columns {
                let at = |g: u32| sums[g as usize * width + p * PANEL + c];
                let mean = block.iter().map(|&g| f64::from(at(g))).sum::<f64>() / rows.max(1) as f64;
                for &g in block {
                    let size = groups.range(g as usize).len() as f64;
                    panel[g as usize * PANEL + c] = (f64::from(at(g)) - size * mean) as f32;
                }
            }
        }
    });
    panels
}

/// The variances of centred columns.
fn variances(panels: &[f32], width: usize, rows: usize) -> Vec<f64> {
    let of_panel = |panel: &[f32]| {
        let mut sums = [0.0f64; PANEL];
        for row in panel.chunks_exact(PANEL) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x).powi(2));
        }
        sums
    };
    let mut variances: Vec<f64> = panels.par_chunks(PANEL * rows).flat_map_iter(of_panel).collect();
    variances.truncate(width);
    variances.iter_mut().for_each(|v| *v /= rows as f64);
    variances
}

/// The covariance of centred columns, lower triangle.
fn covariance(panels: &[f32], width: usize, rows: usize) -> Vec<f64> {
    let strips = strips_of_panels(panels, rows);
    let columns = strips.len() / rows;
    debug_assert_eq!(columns % STRIP, 0);
    let products = product(panels, &strips, rows, true);
    let mut covariance = vec![0.0; width * width];
    for a in 0..width {
        for b in 0..=a {
            covariance[a * width + b] = f64::from(products[a * columns + b]) / rows as f64;
        }
    }
    covariance
}

#[cfg(test)]
mod tests {
    use super::super::super::encode::Stored;
    use super::*;

    fn stored(rows: usize) -> Stored {
        Stored { values: (0..rows * 2).map(|i| ((i * 7919) % 101) as f32 / 10.0).collect(), width: 2 }
    }

    fn of_sizes(n: usize, m: usize, max: usize) -> Groups {
        let sample: Vec<u8> = (0..n + m).map(|i| u8::from(i >= n)).collect();
        Groups::new(&sample, &vec![0; n + m], max, false, 5)
    }

    fn in_order(groups: &Groups) -> Vec<u32> {
        (0..groups.rows.len() as u32).collect()
    }

    #[test]
    fn groups_lie_in_one_block() {
        let sample: Vec<u8> = (0..900).map(|i| (i % 3) as u8).collect();
        let blocks: Vec<u32> = (0..900).map(|i| i / 300).collect();
        let groups = Groups::new(&sample, &blocks, 100, false, 1);
        for g in 0..groups.len() {
            assert!(groups.rows[groups.range(g)].iter().all(|&row| blocks[row as usize] == groups.block[g]));
        }
    }

    #[test]
    fn groups_of_a_block_are_of_equal_size_and_hold_almost_all_rows() {
        for (n, m, max) in [(7, 5, 100), (1000, 333, 100), (50, 1000, 64), (3, 4000, 100), (5000, 105_000, 8192)] {
            let groups = of_sizes(n, m, max);
            let length = groups.range(0).len();
            let mut rows = groups.rows.clone();
            rows.sort_unstable();
            rows.dedup();
            assert!(rows.len() == groups.rows.len() && (length == 1 || 100 * length <= n.min(m)));
            for (sample, size) in [(0, n), (1, m)] {
                let of_sample: Vec<usize> = (0..groups.len()).filter(|&g| groups.sample[g] == sample).collect();
                assert_eq!(of_sample.len(), size / length);
                for g in of_sample {
                    let rows = &groups.rows[groups.range(g)];
                    assert!(rows.len() == length && rows.iter().all(|&row| u8::from(row as usize >= n) == sample));
                }
            }
        }
    }

    #[test]
    fn rows_of_a_pair_form_a_group_in_each_sample() {
        let blocks: Vec<u32> = (0..20).map(|row| row % 10 % 4).collect();
        let sample: Vec<u8> = (0..20).map(|row| u8::from(row >= 10)).collect();
        let groups = Groups::new(&sample, &blocks, 4, true, 1);
        assert_eq!((groups.len(), groups.rows.len()), (8, 20));
    }

    #[test]
    fn sums_of_labelled_groups_are_sums_of_centred_rows() {
        let encoder = stored(900);
        let mean = |c: usize| encoder.values.iter().skip(c).step_by(2).map(|x| f64::from(*x)).sum::<f64>() / 900.0;
        for max in [1000, 200] {
            let groups = of_sizes(400, 500, max);
            let all = vec![(0..groups.len() as u32).collect::<Vec<u32>>()];
            let features = Features::new(&encoder, &groups, &all, &groups.single_rows(&in_order(&groups)), false);
            let mut strips = vec![0.0; STRIP * groups.len()];
            (0..groups.len()).for_each(|g| strips[g * STRIP] = f32::from(1 - groups.sample[g]));
            let sums = features.sums(&strips, 1);
            for c in 0..2 {
                let expected: f64 = (0..400).map(|i| f64::from(encoder.values[2 * i + c]) - mean(c)).sum();
                let sum = f64::from(sums.of_strip(c, 0, 0)[0]);
                assert!((sum - expected).abs() < 1e-3, "{sum} {expected}");
            }
        }
    }

    #[test]
    fn the_covariance_is_that_of_rows() {
        let encoder = stored(200);
        let groups = of_sizes(120, 80, 1000);
        let all = vec![(0..groups.len() as u32).collect::<Vec<u32>>()];
        let features = Features::new(&encoder, &groups, &all, &groups.single_rows(&in_order(&groups)), true);
        let values: Vec<f64> = encoder.values.iter().map(|x| f64::from(*x)).collect();
        let (_, expected) = crate::linalg::moments(&values, 2, 0);
        for (a, b) in [(0, 0), (1, 0), (1, 1)] {
            assert!((features.covariance[2 * a + b] - expected[2 * a + b]).abs() < 1e-4);
        }
        (0..2).for_each(|c| assert!((features.variances[c] - expected[3 * c]).abs() < 1e-4));
    }
}
