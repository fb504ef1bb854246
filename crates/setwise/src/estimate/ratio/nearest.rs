//! Nearest neighbours of rows in both samples, and local estimates of the log density ratio from them.
//!
//! Every row has its [`LIST`] nearest rows of P and of Q, without itself. Samples of a few thousand rows are searched
//! in f32. There, sixteen queries share a vector, one in each lane. Vectors hold the nearest squared distances so far,
//! in ascending order within each lane. The distances of four points pass through these vectors by minima and maxima,
//! like elements through an insertion sort. The only branch skips four points that are near to none of the queries.

use rayon::prelude::*;
use setwise_engine::simd;

use super::super::neighbours::{Neighbours, Norm};
use super::super::{Points, digamma};

/// Neighbours of a row in each sample.
pub const LIST: usize = 16;
/// Values of k of the local estimates.
pub const KS: [usize; 5] = [1, 2, 4, 8, 16];
/// Local estimates of a row: one for each of [`KS`], then the pooled one.
pub const LOCAL: usize = KS.len() + 1;
/// The nearest point of a query in the set is the query.
const MAX_NEAREST: usize = LIST + 1;
/// Queries in a vector.
const LANES: usize = 16;
/// Queries of a task.
const TASK_QUERIES: usize = 8 * LANES;
/// Points whose distances are inserted together.
const POINTS_PER_STEP: usize = 4;
/// Squared distances are clamped from below: rounding separates coincident points by no more.
const MIN_SQUARED_DISTANCE: f32 = 1e-14;

/// Squared distances to the nearest points, in ascending order; infinite beyond the number of points.
pub type List = [f32; LIST];

/// Points prepared for searches.
pub struct NearestPoints {
    dim: usize,
    search: Search,
}

enum Search {
    /// All points against all queries, in f32.
    Brute(Vec<f32>),
    /// Exact distances in f64.
    Exact(Neighbours),
}

/// Whether f32 is precise enough for distances between neighbours, and faster than a tree.
fn in_f32(points: usize, dim: usize) -> bool {
    let limit = match dim {
        1..=3 => 800,
        4 => 3000,
        5 => 6000,
        6 => 12_000,
        _ => 100_000,
    };
    points <= limit
}

impl NearestPoints {
    /// Prepares points.
    pub fn new(points: Points) -> Self {
        let search = match in_f32(points.len(), points.dim()) {
            true => Search::Brute(points.data().iter().map(|&x| x as f32).collect()),
            false => Search::Exact(Neighbours::new(points, Norm::Euclidean)),
        };
        NearestPoints { dim: points.dim(), search }
    }

    /// The nearest points of every query. With `members` the queries are among the points, and are not their own
    /// neighbours. `observe` receives numbers of queries that are done.
    pub fn lists(&self, queries: Points, members: bool, observe: impl Fn(usize) + Sync) -> Vec<List> {
        match &self.search {
            Search::Exact(neighbours) => neighbours.nearest_lists(queries, usize::from(members), observe),
            Search::Brute(points) => {
                let queries: Vec<f32> = queries.data().iter().map(|&x| x as f32).collect();
                let task = |queries: &[f32]| {
                    let lists = brute_force_lists(points, queries, self.dim, members);
                    observe(lists.len());
                    lists
                };
                queries.par_chunks(TASK_QUERIES * self.dim).flat_map_iter(task).collect()
            }
        }
    }
}

/// The nearest points of every query, on one thread. Points and queries are row-major.
pub fn brute_force_lists(points: &[f32], queries: &[f32], dim: usize, members: bool) -> Vec<List> {
    let search = &BruteForce { points, queries, dim, first: usize::from(members) };
    match simd::isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` has found all instructions that this function enables.
        simd::Isa::Avx512 => unsafe { search_avx512(search) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` has found all instructions that this function enables.
        simd::Isa::Avx2 => unsafe { search_avx2(search) },
        _ => search.run::<false>(),
    }
}

/// # Safety
/// The machine has AVX-512 F, DQ, BW and VL, AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn search_avx512(search: &BruteForce) -> Vec<List> {
    search.run::<true>()
}

/// # Safety
/// The machine has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn search_avx2(search: &BruteForce) -> Vec<List> {
    search.run::<true>()
}

/// All points against some queries. Both are row-major `[rows, dim]`. Lists begin at the nearest point `first`.
struct BruteForce<'a> {
    points: &'a [f32],
    queries: &'a [f32],
    dim: usize,
    first: usize,
}

/// One squared distance, or one coordinate, of each of sixteen queries.
type Lanes = [f32; LANES];

/// The smaller and the larger number of each lane.
#[inline(always)]
fn min_max(a: &Lanes, b: &Lanes) -> (Lanes, Lanes) {
    let (mut low, mut high) = (*a, *a);
    for i in 0..LANES {
        low[i] = if a[i] < b[i] { a[i] } else { b[i] };
        high[i] = if a[i] < b[i] { b[i] } else { a[i] };
    }
    (low, high)
}

/// Squared distances of a point to sixteen queries; `columns` holds the queries' coordinates, column by column.
#[inline(always)]
fn lane_squared_distances<const FUSED: bool>(point: &[f32], columns: &[Lanes]) -> Lanes {
    let mut sums = [0.0; LANES];
    for (x, column) in point.iter().zip(columns) {
        for (sum, q) in sums.iter_mut().zip(column) {
            let difference = x - q;
            *sum = if FUSED { difference.mul_add(difference, *sum) } else { *sum + difference * difference };
        }
    }
    sums
}

impl BruteForce<'_> {
    /// Inlined into each entry point, so that the loops use its instructions. With `FUSED` these include FMA.
    #[inline(always)]
    fn run<const FUSED: bool>(&self) -> Vec<List> {
        let dim = self.dim;
        let mut out = Vec::with_capacity(self.queries.len() / dim);
        let mut columns = vec![[0.0; LANES]; dim];
        for queries in self.queries.chunks(LANES * dim) {
            let count = queries.len() / dim;
            for (c, column) in columns.iter_mut().enumerate() {
                *column = std::array::from_fn(|k| queries[k.min(count - 1) * dim + c]);
            }
            let mut nearest = [[f32::INFINITY; LANES]; MAX_NEAREST];
            for points in self.points.chunks(POINTS_PER_STEP * dim) {
                let mut new = [[f32::INFINITY; LANES]; POINTS_PER_STEP];
                for (distance, point) in new.iter_mut().zip(points.chunks_exact(dim)) {
                    *distance = lane_squared_distances::<FUSED>(point, &columns);
                }
                let last = &nearest[MAX_NEAREST - 1];
                let is_near =
                    |distance: &Lanes| distance.iter().zip(last).fold(false, |any, (m, last)| any | (m < last));
                if !new.iter().fold(false, |any, distance| any | is_near(distance)) {
                    continue;
                }
                for slot in &mut nearest {
                    let mut kept = *slot;
                    for distance in &mut new {
                        (kept, *distance) = min_max(&kept, distance);
                    }
                    *slot = kept;
                }
            }
            out.extend((0..count).map(|q| std::array::from_fn(|k| nearest[self.first + k][q])));
        }
        out
    }
}

/// Estimates of log p/q at one row: from the k-th neighbours in both samples for each of [`KS`], and from the shares of
/// both samples among the [`LIST`] nearest rows of their union.
pub type Local = [f32; LOCAL];

/// Local estimates at rows whose nearest rows in P and Q are known. `rows` are the rows of P and of Q that can be
/// neighbours.
pub fn local_ratios(of_p: &[List], of_q: &[List], rows: [usize; 2], dim: usize) -> Vec<Local> {
    let ks = KS.map(|k| k.min(rows[0]).min(rows[1]).max(1));
    let prior = (rows[1] as f64 / rows[0] as f64).ln();
    let digammas: Vec<f64> = (1..=LIST).map(|k| digamma(k as f64)).collect();
    let one = |(p, q): (&List, &List)| -> Local {
        let log_mass = |list: &List, k: usize| {
            // Where k points coincide with the row, the first farther one counts.
            let at =
                (k - 1..LIST).find(|&i| list[i] > MIN_SQUARED_DISTANCE && list[i] < f32::INFINITY).unwrap_or(k - 1);
            let square = f64::from(list[at].max(MIN_SQUARED_DISTANCE));
            digammas[at] - 0.5 * dim as f64 * square.ln()
        };
        let mut out = [0.0; LOCAL];
        for (o, k) in out.iter_mut().zip(ks) {
            *o = (log_mass(p, k) - log_mass(q, k) + prior) as f32;
        }
        out[LOCAL - 1] = (pooled_log_ratio(p, q) + prior) as f32;
        out
    };
    of_p.par_iter().zip(of_q).with_min_len(1024).map(one).collect()
}

/// log((a + ½) / (b + ½)), with a rows of P and b of Q among the nearest rows of both. Rows at one distance alternate.
pub fn pooled_log_ratio(p: &List, q: &List) -> f64 {
    let (mut a, mut b) = (0, 0);
    while a + b < LIST {
        if p[a] < q[b] || (p[a] == q[b] && a <= b) {
            a += 1;
        } else {
            b += 1;
        }
    }
    ((a as f64 + 0.5) / (b as f64 + 0.5)).ln()
}

#[cfg(test)]
mod tests {
    use super::super::super::{Estimator, Knn};
    use super::*;
    use crate::distributions::{Mixture, MixtureLaw};
    use crate::random::Generator;
    use rand::SeedableRng;

    fn samples(dim: usize, n: usize, m: usize) -> [Vec<f64>; 2] {
        let mut rng = Generator::seed_from_u64(4 + dim as u64);
        let law = Mixture::draw(&MixtureLaw::default(), dim, &mut rng);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        law.sample(n, &mut rng, &mut x);
        law.sample(m, &mut rng, &mut y);
        [x, y]
    }

    #[test]
    fn lists_agree_with_the_search_in_f64() {
        for (dim, n, m) in [(1, 5, 9), (2, 70, 33), (3, 300, 500), (9, 130, 64)] {
            let [x, y] = samples(dim, n, m);
            let (x, y) = (Points::new(&x, dim), Points::new(&y, dim));
            let exact: Vec<List> = Neighbours::new(y, Norm::Euclidean).nearest_lists(x, 0, |_| {});
            for (a, b) in NearestPoints::new(y).lists(x, false, |_| {}).iter().zip(&exact) {
                for (a, b) in a.iter().zip(b).filter(|(_, b)| b.is_finite()) {
                    assert!((a.sqrt() - b.sqrt()).abs() < 1e-5 * (1.0 + b), "{a} and {b}");
                }
            }
            let own = NearestPoints::new(x).lists(x, true, |_| {});
            assert!(own.iter().all(|list| list[0] > 0.0 && list.windows(2).all(|w| w[0] <= w[1])));
        }
    }

    #[test]
    fn mean_local_ratios_are_the_neighbour_estimates() {
        let [x, y] = samples(2, 200, 150);
        let (x, y) = (Points::new(&x, 2), Points::new(&y, 2));
        let (of_x, of_y) =
            (NearestPoints::new(x).lists(x, true, |_| {}), NearestPoints::new(y).lists(x, false, |_| {}));
        let local = local_ratios(&of_x, &of_y, [199, 150], 2);
        for (at, k) in KS.into_iter().enumerate() {
            let mean = local.iter().map(|l| f64::from(l[at])).sum::<f64>() / 200.0;
            let expected = Knn::new(k).value(x, y).unwrap();
            assert!((mean - expected).abs() < 1e-3, "k = {k}: {mean}, not {expected}");
        }
    }

    #[test]
    fn rows_of_both_samples_have_finite_ratios() {
        let [x, _] = samples(3, 60, 1);
        let points = Points::new(&x, 3);
        let near = NearestPoints::new(points);
        let local = local_ratios(&near.lists(points, true, |_| {}), &near.lists(points, false, |_| {}), [59, 60], 3);
        assert!(local.iter().flatten().all(|r| r.is_finite() && r.abs() < 20.0));
    }
}
