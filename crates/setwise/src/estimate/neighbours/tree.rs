//! A k-d tree in flat arrays.
//!
//! Nodes are in preorder, each with the bounding box of its points. The points of a leaf are full blocks, so that a
//! leaf costs a few vector instructions. A node is split at the median of its widest column, rounded to a multiple of a
//! block.

use super::collect::Collector;
use super::measure::{Blocks, LANES, Measure, block_measures, max_measure, min_measure};
use crate::estimate::Points;

/// Points of a leaf.
const MAX_LEAF_POINTS: usize = 16;
/// Children with more points are sorted on two threads.
const MIN_PARALLEL_POINTS: usize = 1 << 12;

pub(super) struct Tree {
    nodes: Vec<Node>,
    /// Minima and maxima of the columns of each node: `[nodes, 2, dim]`.
    bounds: Vec<f64>,
    /// Rows of the points, in the order of the blocks.
    order: Vec<usize>,
}

struct Node {
    /// The range of blocks.
    start: u32,
    end: u32,
    /// Index of the second child, zero for a leaf; the first child follows its parent.
    second: u32,
    /// Number of points.
    points: u32,
}

impl Tree {
    pub fn new(points: Points) -> (Self, Blocks) {
        let mut order: Vec<usize> = (0..points.len()).collect();
        sort(points, &mut order);
        let blocks = Blocks::pack(points, order.iter().copied());
        let mut tree = Tree { nodes: Vec::new(), bounds: Vec::new(), order };
        tree.grow(points, 0, points.len());
        (tree, blocks)
    }

    /// Rows in the order of the tree, in which consecutive points are close.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Adds the node of the points `start..end` of the order, and its descendants.
    fn grow(&mut self, points: Points, start: usize, end: usize) {
        let at = self.nodes.len();
        let node_bounds = bounds(points, &self.order[start..end]);
        self.bounds.extend(node_bounds);
        self.nodes.push(Node {
            start: (start / LANES) as u32,
            end: end.div_ceil(LANES) as u32,
            second: 0,
            points: (end - start) as u32,
        });
        if end - start > MAX_LEAF_POINTS {
            let middle = start + middle(end - start);
            self.grow(points, start, middle);
            self.nodes[at].second = self.nodes.len() as u32;
            self.grow(points, middle, end);
        }
    }

    #[inline(always)]
    fn bounds(&self, node: usize, dim: usize) -> &[f64] {
        &self.bounds[node * 2 * dim..(node + 1) * 2 * dim]
    }

    /// Lets the collector visit all points that it does not exclude, nearer boxes first.
    #[inline(always)]
    pub fn search<M: Measure, C: Collector>(
        &self,
        blocks: &Blocks,
        split: usize,
        query: &[f64],
        stack: &mut Vec<(u32, f64)>,
        collector: &mut C,
    ) {
        let dim = query.len();
        stack.clear();
        stack.push((0, 0.0));
        while let Some((at, bound)) = stack.pop() {
            if collector.excludes(bound) {
                continue;
            }
            let mut at = at as usize;
            loop {
                let node = &self.nodes[at];
                if C::VISITS_BOXES {
                    let far = max_measure::<M>(self.bounds(at, dim), query, split);
                    if collector.visit_box(far, node.points as usize) {
                        break;
                    }
                }
                if node.second == 0 {
                    for block in blocks.blocks(node.start as usize..node.end as usize) {
                        collector.visit(&block_measures::<M>(block, query, split));
                    }
                    break;
                }
                let (first, second) = (at + 1, node.second as usize);
                let a = min_measure::<M>(self.bounds(first, dim), query, split);
                let b = min_measure::<M>(self.bounds(second, dim), query, split);
                let ((near, low), (far, high)) =
                    if b < a { ((second, b), (first, a)) } else { ((first, a), (second, b)) };
                if !collector.excludes(high) {
                    stack.push((far as u32, high));
                }
                if collector.excludes(low) {
                    break;
                }
                at = near;
            }
        }
    }
}

/// The index at which `len` points are split.
fn middle(len: usize) -> usize {
    (len / 2).next_multiple_of(LANES)
}

/// Minima, then maxima, of the columns.
fn bounds(points: Points, rows: &[usize]) -> Vec<f64> {
    let dim = points.dim();
    let mut out = vec![f64::INFINITY; 2 * dim];
    out[dim..].fill(f64::NEG_INFINITY);
    for &i in rows {
        let (low, high) = out.split_at_mut(dim);
        for ((l, h), &x) in low.iter_mut().zip(high).zip(points.row(i)) {
            *l = l.min(x);
            *h = h.max(x);
        }
    }
    out
}

/// Partitions rows recursively, in the order of the tree.
fn sort(points: Points, rows: &mut [usize]) {
    if rows.len() <= MAX_LEAF_POINTS {
        return;
    }
    let dim = points.dim();
    let limits = bounds(points, rows);
    let width = |c: usize| limits[dim + c] - limits[c];
    let widest = (0..dim).reduce(|a, b| if width(b) > width(a) { b } else { a }).unwrap_or(0);
    let middle = middle(rows.len());
    let key = |i: usize| points.data()[i * dim + widest];
    rows.select_nth_unstable_by(middle, |&a, &b| key(a).total_cmp(&key(b)));
    let (a, b) = rows.split_at_mut(middle);
    if a.len() > MIN_PARALLEL_POINTS {
        rayon::join(|| sort(points, a), || sort(points, b));
    } else {
        sort(points, a);
        sort(points, b);
    }
}

/// Queries in the order of a tree over them, in which consecutive queries visit the same nodes.
pub(super) fn coherent_order(queries: Points) -> Vec<usize> {
    let mut order: Vec<usize> = (0..queries.len()).collect();
    sort(queries, &mut order);
    order
}
