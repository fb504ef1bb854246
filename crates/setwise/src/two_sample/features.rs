//! Columns of the pooled sample, summed over groups of rows and ready for products with labels.

use std::collections::BTreeMap;
use std::ops::Range;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rayon::prelude::*;

use super::encode::Encode;
use super::product::{PANEL, STRIP, product, strips_of_panels};
use crate::random::Generator;

/// Rows that labels are given to together.
///
/// Small samples have one row in a group. Rows of large samples are grouped at random, each group within one sample, in
/// groups of two sizes. Exchanging labels of groups of one size is exact, since all assignments of rows to such groups
/// are equally likely under the hypothesis.
pub(super) struct Groups {
    rows: Vec<u32>,
    ends: Vec<usize>,
    /// Whether each group is of the first sample.
    pub first: Vec<bool>,
    /// The number of each group's class: groups of one class have one size and lie in one block.
    pub exchangeable: Vec<u32>,
}

impl Groups {
    /// Groups of rows with these labels, each within a block; about `max` groups where blocks are large. Where `whole`
    /// is set, the rows of a block in one sample are one group.
    pub fn new(first: &[bool], blocks: &[u32], max: usize, whole: bool, seed: u64) -> Self {
        let size = first.len().div_ceil(max);
        let mut smaller: BTreeMap<u32, [usize; 2]> = BTreeMap::new();
        first.iter().zip(blocks).for_each(|(first, b)| smaller.entry(*b).or_default()[usize::from(!first)] += 1);
        // At least L(L − 1) rows split into groups of L and L + 1 rows, so that both samples have groups of equal size.
        let length = |block: u32| size.min(smaller[&block].iter().min().map_or(1, |rows| rows.isqrt().max(1)));
        let mut rng = Generator::seed_from_u64(seed);
        let mut members: BTreeMap<(bool, u32), Vec<u32>> = BTreeMap::new();
        for (row, (first, block)) in first.iter().zip(blocks).enumerate() {
            members.entry((!first, *block)).or_default().push(row as u32);
        }
        let mut groups = Groups { rows: Vec::new(), ends: Vec::new(), first: Vec::new(), exchangeable: Vec::new() };
        let mut classes: BTreeMap<(u32, usize), u32> = BTreeMap::new();
        for ((second, block), mut rows) in members {
            let count = if whole { 1 } else { (rows.len() / length(block)).max(1) };
            if count < rows.len() {
                rows.shuffle(&mut rng);
            }
            // The first groups have a row more.
            let (least, longer) = (rows.len() / count, rows.len() % count);
            for g in 0..count {
                let length = least + usize::from(g < longer);
                let number = classes.len() as u32;
                groups.ends.push(groups.ends.last().copied().unwrap_or(0) + length);
                groups.first.push(!second);
                groups.exchangeable.push(*classes.entry((block, length)).or_insert(number));
            }
            groups.rows.extend(rows);
        }
        groups
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Each row by itself.
    fn of_single(rows: Vec<u32>) -> Self {
        Groups { ends: (1..=rows.len()).collect(), rows, first: Vec::new(), exchangeable: Vec::new() }
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
    /// The covariance of single rows, `[width, width]`, lower triangle.
    pub covariance: Vec<f64>,
    /// Centred columns of single rows, where groups have several.
    single: Option<Vec<f32>>,
}

/// Rows of large samples whose columns are kept one by one, for their covariance and for witnesses.
const MAX_SINGLE_ROWS: usize = 8192;

impl Features {
    /// Encodes all rows. Sums are centred within each block of groups. `rows` are the groups' single rows.
    pub fn new(encoder: &dyn Encode, groups: &Groups, blocks: &[Vec<u32>], rows: &[u32]) -> Self {
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
        let covariance = covariance(single.as_ref().unwrap_or(&panels), width, rows.len());
        Features { width, groups: groups.len(), panels, covariance, single }
    }

    /// Centred columns of [`Groups::single_rows`], `[panel][row][PANEL]`.
    pub fn single(&self) -> &[f32] {
        self.single.as_ref().unwrap_or(&self.panels)
    }

    /// Sums over the groups that have label one, for every column and permutation: `[width, permutations]`, and the
    /// number of permutations, which strips fill up.
    pub fn sums(&self, strips: &[f32]) -> (Vec<f32>, usize) {
        (product(&self.panels, strips, self.groups, false), strips.len() / self.groups)
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
    use super::super::encode::Stored;
    use super::*;

    fn stored(rows: usize) -> Stored {
        Stored { values: (0..rows * 2).map(|i| ((i * 7919) % 101) as f32 / 10.0).collect(), width: 2 }
    }

    fn of_sizes(n: usize, m: usize, max: usize) -> Groups {
        let first: Vec<bool> = (0..n + m).map(|i| i < n).collect();
        Groups::new(&first, &vec![0; n + m], max, false, 5)
    }

    fn in_order(groups: &Groups) -> Vec<u32> {
        (0..groups.rows.len() as u32).collect()
    }

    #[test]
    fn groups_lie_in_one_block() {
        let first: Vec<bool> = (0..900).map(|i| i % 3 == 0).collect();
        let blocks: Vec<u32> = (0..900).map(|i| i / 300).collect();
        let groups = Groups::new(&first, &blocks, 100, false, 1);
        let block = |g: usize| blocks[groups.rows[groups.range(g)][0] as usize];
        for g in 0..groups.len() {
            assert!(groups.rows[groups.range(g)].iter().all(|&row| blocks[row as usize] == block(g)));
            assert!((0..g).all(|h| groups.exchangeable[g] != groups.exchangeable[h] || block(g) == block(h)));
        }
    }

    #[test]
    fn every_row_is_in_one_group_of_its_sample() {
        for (n, m, max) in [(7, 5, 100), (1000, 333, 100), (50, 1000, 64), (3, 4000, 100)] {
            let groups = of_sizes(n, m, max);
            let mut rows = groups.rows.clone();
            rows.sort_unstable();
            assert!(rows.iter().enumerate().all(|(i, row)| i == *row as usize) && rows.len() == n + m);
            for g in 0..groups.len() {
                assert!(groups.rows[groups.range(g)].iter().all(|&row| ((row as usize) < n) == groups.first[g]));
                for h in 0..g {
                    let same = groups.range(g).len() == groups.range(h).len();
                    assert_eq!(groups.exchangeable[g] == groups.exchangeable[h], same);
                }
            }
            // Most groups can be exchanged with one of the other sample.
            let movable = |g: usize| {
                (0..groups.len())
                    .any(|h| groups.exchangeable[g] == groups.exchangeable[h] && groups.first[g] != groups.first[h])
            };
            let moved = (0..groups.len()).filter(|&g| movable(g)).count();
            assert!(10 * moved >= 8 * groups.len(), "{moved} of {}", groups.len());
        }
    }

    #[test]
    fn sums_of_labelled_groups_are_sums_of_centred_rows() {
        let encoder = stored(90);
        let mean = |c: usize| encoder.values.iter().skip(c).step_by(2).sum::<f32>() / 90.0;
        for max in [1000, 20] {
            let groups = of_sizes(40, 50, max);
            let all = vec![(0..groups.len() as u32).collect::<Vec<u32>>()];
            let features = Features::new(&encoder, &groups, &all, &groups.single_rows(&in_order(&groups)));
            let mut strips = vec![0.0; STRIP * groups.len()];
            (0..groups.len()).for_each(|g| strips[g * STRIP] = if groups.first[g] { 1.0 } else { 0.0 });
            let (sums, permutations) = features.sums(&strips);
            assert_eq!(permutations, STRIP);
            for c in 0..2 {
                let expected: f32 = (0..40).map(|i| encoder.values[2 * i + c] - mean(c)).sum();
                assert!((sums[c * STRIP] - expected).abs() < 1e-3, "{} {expected}", sums[c * STRIP]);
            }
        }
    }

    #[test]
    fn the_covariance_is_that_of_rows() {
        let encoder = stored(200);
        let groups = of_sizes(120, 80, 1000);
        let all = vec![(0..groups.len() as u32).collect::<Vec<u32>>()];
        let features = Features::new(&encoder, &groups, &all, &groups.single_rows(&in_order(&groups)));
        let values: Vec<f64> = encoder.values.iter().map(|x| f64::from(*x)).collect();
        let (_, expected) = crate::linalg::moments(&values, 2, 0);
        for (a, b) in [(0, 0), (1, 0), (1, 1)] {
            assert!((features.covariance[2 * a + b] - expected[2 * a + b]).abs() < 1e-4);
        }
    }
}
