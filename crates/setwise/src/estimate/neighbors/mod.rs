//! Exact neighbours: distances to the k-th nearest point, and numbers of points within a radius.
//!
//! `measure` holds distances and the layout of points, `collect` what is gathered around a query, `brute` the pass over all points
//! and `tree` the k-d tree. Both give the same numbers to the last bit.

mod brute;
mod collect;
mod measure;
mod tree;

use rayon::prelude::*;
use setwise_engine::simd::{Isa, isa};

use super::Points;
use collect::{Collector, Count, FirstPositive, Reach, Smallest};
use measure::{Blocks, Largest, Measure, Squares};
use tree::Tree;

/// How the distance of two points is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Root of the sum of squares.
    Euclidean,
    /// Largest difference of a column.
    Maximum,
}

/// How points are searched; both ways give the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The faster of both for this number of points and columns.
    Auto,
    /// Every point against every query, in vectors.
    Brute,
    /// A k-d tree.
    Tree,
}

/// Queries a thread takes at a time.
const CHUNK: usize = 128;

/// Points prepared for searches.
///
/// ```
/// use setwise::estimate::{Norm, Points, neighbors::Neighbors};
/// let points = Points::new(&[0.0, 1.0, 3.0, 7.0], 1);
/// let neighbors = Neighbors::new(points, Norm::Euclidean);
/// // The nearest point of every point is itself, the second is its neighbour.
/// assert_eq!(neighbors.kth_distances(points, 2), [1.0, 1.0, 2.0, 4.0]);
/// ```
pub struct Neighbors {
    norm: Norm,
    /// Columns of the first group.
    split: usize,
    blocks: Blocks,
    tree: Option<Tree>,
}

impl Neighbors {
    /// Prepares points.
    pub fn new(points: Points, norm: Norm) -> Self {
        Self::with_search(points, norm, Search::Auto)
    }

    /// Prepares points for a search of one's own choice.
    pub fn with_search(points: Points, norm: Norm, search: Search) -> Self {
        Self::grouped(points, points.dim(), norm, search)
    }

    /// Columns in two groups, the first of `split` columns: the distance is the larger of both groups' distances.
    pub(super) fn grouped(points: Points, split: usize, norm: Norm, search: Search) -> Self {
        let tree = match search {
            Search::Auto => tree_wins(points.len(), points.dim()),
            Search::Brute => false,
            Search::Tree => true,
        };
        if tree {
            let (tree, blocks) = Tree::new(points);
            return Neighbors { norm, split, blocks, tree: Some(tree) };
        }
        Neighbors { norm, split, blocks: Blocks::pack(points, 0..points.len()), tree: None }
    }

    /// Number of points.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The distance from every query to its k-th nearest point, `k` from one. Where queries are the points themselves, each is its
    /// own first neighbour. With fewer than `k` points it is infinite.
    ///
    /// # Panics
    /// If `k` is zero or the widths differ.
    pub fn kth_distances(&self, queries: Points, k: usize) -> Vec<f64> {
        let mut out = self.kth(queries, &self.order_of(queries), k);
        out.iter_mut().for_each(|m| *m = measure::distance(self.norm, *m));
        out
    }

    /// How many points lie within a distance of every query, those at the distance itself included unless `strict`.
    ///
    /// # Panics
    /// If there is not one radius for every query, or the widths differ.
    pub fn counts_within(&self, queries: Points, radii: &[f64], strict: bool) -> Vec<usize> {
        assert_eq!(radii.len(), queries.len(), "a radius for every query");
        let square = |r: f64| if self.norm == Norm::Euclidean { r * r } else { r };
        let radii: Vec<f64> = radii.iter().map(|&r| square(r)).collect();
        self.count(queries, &self.order_of(queries), |i| (radii[i], strict))
    }

    /// An order of the points in which those that follow each other are close; empty where the search has no use for it.
    pub(super) fn order(&self) -> &[usize] {
        self.tree.as_ref().map_or(&[], Tree::order)
    }

    /// An order of other points.
    fn order_of(&self, queries: Points) -> Vec<usize> {
        if self.tree.is_some() { tree::coherent_order(queries) } else { Vec::new() }
    }

    /// [`Neighbors::kth_distances`] as measures. Queries are taken in the order given, which changes nothing but the speed.
    pub(super) fn kth(&self, queries: Points, order: &[usize], k: usize) -> Vec<f64> {
        assert!(k > 0, "neighbours are counted from one");
        self.collect(queries, order, |_| Smallest::new(k), |c| c.last())
    }

    /// Measures to four neighbours of every query, `ks` rising and from one, in one search.
    pub(super) fn kths(&self, queries: Points, order: &[usize], ks: [usize; 4]) -> Vec<[f64; 4]> {
        self.collect(queries, order, |_| Smallest::new(ks[3]), |c| ks.map(|k| c.best(k)))
    }

    /// Numbers of points within a measure, strictly or not, given for every query.
    pub(super) fn count(
        &self,
        queries: Points,
        order: &[usize],
        radius: impl Fn(usize) -> (f64, bool) + Sync,
    ) -> Vec<usize> {
        let start = |i| {
            let (radius, strict) = radius(i);
            // Lanes without a point are infinitely far: no radius may reach them.
            Count { radius: radius.min(f64::MAX), strict, count: 0 }
        };
        self.collect(queries, order, start, |c| c.count)
    }

    /// How many points lie within a measure of every query, and how far they reach in both groups of columns.
    pub(super) fn reach(&self, queries: Points, order: &[usize], radii: &[f64]) -> Vec<(usize, [f64; 2])> {
        let start = |i: usize| Reach { radius: radii[i], count: 0, sides: [0.0; 2] };
        self.collect(queries, order, start, |c| (c.count, c.sides))
    }

    /// The smallest positive measure from every query, and how many points are no farther; infinite if all points coincide with it.
    pub(super) fn first_positive(&self, queries: Points) -> Vec<(f64, usize)> {
        self.collect(queries, &[], |_| FirstPositive::new(), |c| (c.measure, c.zeros + c.ties))
    }

    /// Runs a collector for every query; answers in the order of the queries.
    fn collect<C: Collector, R: Copy + Default + Send>(
        &self,
        queries: Points,
        order: &[usize],
        start: impl Fn(usize) -> C + Sync,
        finish: impl Fn(C) -> R + Sync,
    ) -> Vec<R> {
        let natural: Vec<usize>;
        let rows = if order.is_empty() {
            natural = (0..queries.len()).collect();
            &natural
        } else {
            order
        };
        let part = |(rows, out): (&[usize], &mut [R])| {
            let mut collectors: Vec<C> = rows.iter().map(|&i| start(i)).collect();
            let work = Work { neighbors: self, queries, rows, collectors: &mut collectors };
            match self.norm {
                Norm::Euclidean => widest::<Squares, C>(work),
                Norm::Maximum => widest::<Largest, C>(work),
            }
            out.iter_mut().zip(collectors).for_each(|(o, c)| *o = finish(c));
        };
        let mut found = vec![R::default(); rows.len()];
        if rows.len() <= 2 * CHUNK {
            part((rows, &mut found));
        } else {
            rows.par_chunks(CHUNK).zip(found.par_chunks_mut(CHUNK)).for_each(part);
        }
        if order.is_empty() {
            return found;
        }
        let mut out = vec![R::default(); found.len()];
        for (&i, r) in rows.iter().zip(found) {
            out[i] = r;
        }
        out
    }
}

/// Whether a tree answers as many queries as it has points sooner than a pass over all of them.
///
/// Time of the pass over that of the tree, measured in one run with k = 5 on Gaussian points, two cores, AVX-512: 500 points in 3 columns 0.9,
/// 1000 in 3 1.8, 2000 in 3 1.8, in 5 1.0, 5000 in 5 1.2, in 6 1.0, 10,000 in 6 1.4, 20,000 in 3 7.6, in 5 3.2, in 7 1.4, in 8 1.2, in 16
/// 0.2. Where both are equal, a further column asks for about twice the points.
fn tree_wins(n: usize, dim: usize) -> bool {
    dim <= 12 && n >= 100 << dim.max(3)
}

/// Some queries with their collectors.
struct Work<'a, C> {
    neighbors: &'a Neighbors,
    queries: Points<'a>,
    rows: &'a [usize],
    collectors: &'a mut [C],
}

impl<C: Collector> Work<'_, C> {
    #[inline(always)]
    fn run<M: Measure>(self) {
        let n = self.neighbors;
        match &n.tree {
            None => brute::search::<M, C>(&n.blocks, n.split, self.queries, self.rows, self.collectors),
            Some(tree) => {
                let mut stack = Vec::with_capacity(64);
                for (&row, collector) in self.rows.iter().zip(self.collectors) {
                    tree.search::<M, C>(&n.blocks, n.split, self.queries.row(row), &mut stack, collector);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2")]
unsafe fn run_avx512<M: Measure, C: Collector>(work: Work<C>) {
    work.run::<M>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn run_avx2<M: Measure, C: Collector>(work: Work<C>) {
    work.run::<M>();
}

/// Runs the work compiled for the widest vectors of this machine. Products and sums are never fused, so all give the same numbers.
fn widest<M: Measure, C: Collector>(work: Work<C>) {
    // SAFETY: `isa` has found the instructions each entry point enables.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => run_avx512::<M, C>(work),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => run_avx2::<M, C>(work),
            _ => work.run::<M>(),
        }
    }
}
