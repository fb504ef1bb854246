//! Exact nearest neighbours: distances to the k-th nearest point, and numbers of points within a radius.
//!
//! `measure` holds distances and the layout of points, `collect` the results around a query, `brute` the pass over all
//! points and `tree` the k-d tree. Both searches give the same bits.

mod brute;
mod collect;
mod measure;
mod tree;

use rayon::prelude::*;
use setwise_engine::simd;

use super::Points;
use collect::{Collector, Count, Extents, FirstPositive, KSmallest};
use measure::{Blocks, Chebyshev, Measure, SquaredEuclidean};
use tree::Tree;

/// Norms of the difference of two points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Root of the sum of squares.
    Euclidean,
    /// Chebyshev difference of a column.
    Maximum,
}

/// Algorithms, which give the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The faster one for this number of points and columns.
    Auto,
    /// Every point against every query.
    Brute,
    /// A k-d tree.
    Tree,
}

/// Queries of a task.
const CHUNK: usize = 128;

/// Points prepared for searches.
///
/// ```
/// use setwise::estimate::{Norm, Points, neighbours::Neighbours};
/// let points = Points::new(&[0.0, 1.0, 3.0, 7.0], 1);
/// let neighbours = Neighbours::new(points, Norm::Euclidean);
/// // The nearest point of every point is itself, the second is its neighbour.
/// assert_eq!(neighbours.kth_distances(points, 2), [1.0, 1.0, 2.0, 4.0]);
/// ```
pub struct Neighbours {
    norm: Norm,
    /// Columns of the first group.
    split: usize,
    blocks: Blocks,
    tree: Option<Tree>,
}

impl Neighbours {
    /// Prepares points.
    pub fn new(points: Points, norm: Norm) -> Self {
        Self::with_search(points, norm, Search::Auto)
    }

    /// Prepares points for an algorithm.
    pub fn with_search(points: Points, norm: Norm, search: Search) -> Self {
        Self::grouped(points, points.dim(), norm, search)
    }

    /// Prepares points with two groups of columns, `split` in the first. The distance is the larger of both groups'.
    pub(super) fn grouped(points: Points, split: usize, norm: Norm, search: Search) -> Self {
        let tree = match search {
            Search::Auto => tree_wins(points.len(), points.dim()),
            Search::Brute => false,
            Search::Tree => true,
        };
        if tree {
            let (tree, blocks) = Tree::new(points);
            return Neighbours { norm, split, blocks, tree: Some(tree) };
        }
        Neighbours { norm, split, blocks: Blocks::pack(points, 0..points.len()), tree: None }
    }

    /// Number of points.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The distance from every query to its k-th nearest point, `k` from one; infinite with fewer than `k` points.
    ///
    /// The first neighbour of a query that is one of the points is that point.
    ///
    /// # Panics
    /// If `k` is zero or the widths differ.
    pub fn kth_distances(&self, queries: Points, k: usize) -> Vec<f64> {
        let mut out = self.kth_measures(queries, &self.order_of(queries), k);
        out.iter_mut().for_each(|m| *m = measure::distance(self.norm, *m));
        out
    }

    /// The number of points within a radius of every query. Points at the radius itself count unless `strict`.
    ///
    /// # Panics
    /// If there is not one radius for every query, or the widths differ.
    pub fn counts_within(&self, queries: Points, radii: &[f64], strict: bool) -> Vec<usize> {
        assert_eq!(radii.len(), queries.len(), "a radius for every query");
        let square = |r: f64| if self.norm == Norm::Euclidean { r * r } else { r };
        let radii: Vec<f64> = radii.iter().map(|&r| square(r)).collect();
        self.counts_by_measure(queries, &self.order_of(queries), |i| (radii[i], strict))
    }

    /// An order of the points in which consecutive ones are close; empty where the search does not gain from it.
    pub(super) fn order(&self) -> &[usize] {
        self.tree.as_ref().map_or(&[], Tree::order)
    }

    /// Such an order of queries.
    fn order_of(&self, queries: Points) -> Vec<usize> {
        if self.tree.is_some() { tree::coherent_order(queries) } else { Vec::new() }
    }

    /// [`Neighbours::kth_distances`] as measures. The order of queries has an influence on the speed only.
    pub(super) fn kth_measures(&self, queries: Points, order: &[usize], k: usize) -> Vec<f64> {
        assert!(k > 0, "neighbours are counted from one");
        self.collect(queries, order, |_| KSmallest::new(k), |c| c.last())
    }

    /// Measures of every query's nearest points in ascending order, from the point `first` on, counted from zero.
    /// `observe` receives numbers of queries that are done.
    pub(super) fn nearest_lists<const K: usize>(
        &self,
        queries: Points,
        first: usize,
        observe: impl Fn(usize) + Sync,
    ) -> Vec<[f32; K]> {
        let list = |c: KSmallest| {
            observe(1);
            Listed(std::array::from_fn(|k| c.best(first + k + 1) as f32))
        };
        self.collect(queries, &self.order_of(queries), |_| KSmallest::new(K + first), list)
            .into_iter()
            .map(|Listed(list)| list)
            .collect()
    }

    /// Numbers of points within a measure, which `radius` gives for every query with its strictness.
    pub(super) fn counts_by_measure(
        &self,
        queries: Points,
        order: &[usize],
        radius: impl Fn(usize) -> (f64, bool) + Sync,
    ) -> Vec<usize> {
        let start = |i| {
            let (radius, strict) = radius(i);
            // Lanes without a point are infinite: no radius may include them.
            Count { radius: radius.min(f64::MAX), strict, count: 0 }
        };
        self.collect(queries, order, start, |c| c.count)
    }

    /// The number of points within a measure of every query, and their largest measures in both groups of columns.
    pub(super) fn extents(&self, queries: Points, order: &[usize], radii: &[f64]) -> Vec<(usize, [f64; 2])> {
        let start = |i: usize| Extents { radius: radii[i], count: 0, sides: [0.0; 2] };
        self.collect(queries, order, start, |c| (c.count, c.sides))
    }

    /// The smallest positive measure from every query, and the number of points up to it; infinite if all points
    /// coincide with the query.
    pub(super) fn first_positive(&self, queries: Points) -> Vec<(f64, usize)> {
        self.collect(queries, &[], |_| FirstPositive::new(), |c| (c.measure, c.zeros + c.ties))
    }

    /// Runs a collector for every query. Results are in the order of the queries.
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
        let run_chunk = |(rows, out): (&[usize], &mut [R])| {
            let mut collectors: Vec<C> = rows.iter().map(|&i| start(i)).collect();
            let task = Task { neighbours: self, queries, rows, collectors: &mut collectors };
            match self.norm {
                Norm::Euclidean => dispatch::<SquaredEuclidean, C>(task),
                Norm::Maximum => dispatch::<Chebyshev, C>(task),
            }
            out.iter_mut().zip(collectors).for_each(|(o, c)| *o = finish(c));
        };
        let mut results = vec![R::default(); rows.len()];
        if rows.len() <= 2 * CHUNK {
            run_chunk((rows, &mut results));
        } else {
            rows.par_chunks(CHUNK).zip(results.par_chunks_mut(CHUNK)).for_each(run_chunk);
        }
        if order.is_empty() {
            return results;
        }
        let mut out = vec![R::default(); results.len()];
        for (&i, r) in rows.iter().zip(results) {
            out[i] = r;
        }
        out
    }
}

/// Measures of the nearest points of a query.
#[derive(Clone, Copy)]
struct Listed<const K: usize>([f32; K]);

impl<const K: usize> Default for Listed<K> {
    fn default() -> Self {
        Listed([f32::INFINITY; K])
    }
}

/// Whether a tree is faster than brute force, for as many queries as points.
///
/// Time of brute force divided by that of the tree, for k = 5 on Gaussian points, two cores, AVX-512:
///
/// | points | 3 columns | 5 | 6 | 7 | 8 | 16 |
/// | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
/// | 500 | 0.9 | | | | | |
/// | 1,000 | 1.8 | | | | | |
/// | 2,000 | 1.8 | 1.0 | | | | |
/// | 5,000 | | 1.2 | 1.0 | | | |
/// | 10,000 | | | 1.4 | | | |
/// | 20,000 | 7.6 | 3.2 | | 1.4 | 1.2 | 0.2 |
///
/// Each further column doubles the number of points at which both are equal.
fn tree_wins(n: usize, dim: usize) -> bool {
    dim <= 12 && n >= 100 << dim.max(3)
}

/// A chunk of queries with their collectors.
struct Task<'a, C> {
    neighbours: &'a Neighbours,
    queries: Points<'a>,
    rows: &'a [usize],
    collectors: &'a mut [C],
}

impl<C: Collector> Task<'_, C> {
    #[inline(always)]
    fn run<M: Measure>(self) {
        let n = self.neighbours;
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

/// # Safety
/// The machine has AVX-512 F, DQ, BW and VL, and AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2")]
unsafe fn run_avx512<M: Measure, C: Collector>(task: Task<C>) {
    task.run::<M>();
}

/// # Safety
/// The machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn run_avx2<M: Measure, C: Collector>(task: Task<C>) {
    task.run::<M>();
}

/// Runs a task with the widest vectors of this machine. No version uses FMA, so that all give the same numbers.
fn dispatch<M: Measure, C: Collector>(task: Task<C>) {
    match simd::isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` has found all instructions that this function enables.
        simd::Isa::Avx512 => unsafe { run_avx512::<M, C>(task) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` has found all instructions that this function enables.
        simd::Isa::Avx2 => unsafe { run_avx2::<M, C>(task) },
        _ => task.run::<M>(),
    }
}
