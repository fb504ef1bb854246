//! A k-d tree in flat arrays.
//!
//! Nodes stand in preorder, each with the tight box of its points; the points of a leaf are whole blocks, so a leaf costs a few vector
//! instructions. Halves are cut at a multiple of a block, at the median of the widest column.

use super::collect::Collector;
use super::measure::{Blocks, LANES, Measure, farthest, lanes, nearest};
use crate::estimate::Points;

/// Most points of a leaf.
const LEAF: usize = 16;
/// Halves with more points than this are sorted on two threads.
const PARALLEL: usize = 1 << 12;

pub(super) struct Tree {
    nodes: Vec<Node>,
    /// Lows and highs of each node's box.
    bounds: Vec<f64>,
    /// Rows of the points, as they stand in the blocks.
    order: Vec<usize>,
}

struct Node {
    /// Its blocks.
    start: u32,
    end: u32,
    /// Index of the second child, zero for a leaf; the first child follows its parent.
    second: u32,
    /// Number of its points.
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

    /// Rows in the order of the tree: neighbours are close.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Adds the node of the points at `start..end` of the order, and those below it.
    fn grow(&mut self, points: Points, start: usize, end: usize) {
        let at = self.nodes.len();
        let box_ = bounds(points, &self.order[start..end]);
        self.bounds.extend(box_);
        self.nodes.push(Node {
            start: (start / LANES) as u32,
            end: end.div_ceil(LANES) as u32,
            second: 0,
            points: (end - start) as u32,
        });
        if end - start > LEAF {
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

    /// Shows the collector all points it does not rule out, near boxes first.
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
            if collector.done_at(bound) {
                continue;
            }
            let mut at = at as usize;
            loop {
                let node = &self.nodes[at];
                if C::WHOLESALE {
                    let far = farthest::<M>(self.bounds(at, dim), query, split);
                    if collector.take_all(far, node.points as usize) {
                        break;
                    }
                }
                if node.second == 0 {
                    for block in blocks.blocks(node.start as usize..node.end as usize) {
                        collector.take(&lanes::<M>(block, query, split));
                    }
                    break;
                }
                let (first, second) = (at + 1, node.second as usize);
                let a = nearest::<M>(self.bounds(first, dim), query, split);
                let b = nearest::<M>(self.bounds(second, dim), query, split);
                let ((near, low), (far, high)) =
                    if b < a { ((second, b), (first, a)) } else { ((first, a), (second, b)) };
                if !collector.done_at(high) {
                    stack.push((far as u32, high));
                }
                if collector.done_at(low) {
                    break;
                }
                at = near;
            }
        }
    }
}

/// Where a run of points is cut.
fn middle(len: usize) -> usize {
    (len / 2).next_multiple_of(LANES)
}

/// Lows and highs of the columns.
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

/// Orders rows so that every cut of the tree falls between its halves.
fn sort(points: Points, rows: &mut [usize]) {
    if rows.len() <= LEAF {
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
    if a.len() > PARALLEL {
        rayon::join(|| sort(points, a), || sort(points, b));
    } else {
        sort(points, a);
        sort(points, b);
    }
}

/// Queries in the order of a tree of their own: those that follow each other visit the same nodes.
pub(super) fn coherent_order(queries: Points) -> Vec<usize> {
    let mut order: Vec<usize> = (0..queries.len()).collect();
    sort(queries, &mut order);
    order
}
