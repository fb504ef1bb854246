//! KL divergence from four neighbours at once, searched in f32.
//!
//! Sixteen queries share a vector, one in each lane. [`MAX_NEAREST`] vectors hold the nearest squared distances so far,
//! in ascending order within each lane. The distances of four points pass through these vectors by minima and maxima,
//! like elements through an insertion sort. The only branch skips four points that are near to none of the queries.

use setwise_engine::simd;

use super::super::neighbours::{Neighbours, Norm};
use super::super::{Points, digamma};

/// Values of k of the nearest-neighbour estimates.
pub const KS: [usize; 4] = [1, 3, 8, 20];
/// The largest of [`KS`] plus one: the nearest point of a query in the set is the query.
const MAX_NEAREST: usize = 21;
/// Queries in a vector.
const LANES: usize = 16;
/// Points whose distances are inserted together.
const POINTS_PER_STEP: usize = 4;
/// With more points a tree may be faster, and distances may be too small for f32.
const MAX_POINTS: usize = 4096;
/// Squared distances are clamped from below: rounding separates coincident points by no more.
const MIN_SQUARED_DISTANCE: f64 = 1e-14;

/// KL(P‖Q) from each of the neighbours [`KS`], and the standard error of the third estimate.
///
/// A row of both samples has distance zero. The smallest positive distance replaces it, with the number of that
/// neighbour, as in [`Knn`](super::super::Knn).
pub fn neighbour_divergences(x: Points, y: Points) -> ([f64; 4], f64) {
    let (n, m, d) = (x.len(), y.len(), x.dim() as f64);
    let ks = KS.map(|k| k.min(n - 1).min(m));
    let (rho, mut nu) = (squared_distances(x, x, ks.map(|k| k + 1)), squared_distances(y, x, ks));
    let (mut sums, mut sum_of_squares) = (replace_zeros(&mut nu, y, x, ks), 0.0);
    for (r, v) in rho.iter().zip(&nu) {
        for i in 0..4 {
            let term = (v[i].max(MIN_SQUARED_DISTANCE) / r[i].max(MIN_SQUARED_DISTANCE)).ln();
            sums[i] += term;
            sum_of_squares += if i == 2 { term * term } else { 0.0 };
        }
    }
    let variance = sum_of_squares / n as f64 - (sums[2] / n as f64).powi(2);
    let standard_error = 0.5 * d * (variance.max(0.0) / n as f64).sqrt();
    (sums.map(|s| 0.5 * d * s / n as f64 + (m as f64 / (n as f64 - 1.0)).ln()), standard_error)
}

/// Replaces zeros by the smallest positive squared distance.
///
/// Returns Σ 2/d·(ψ(k) − ψ(l)) over replaced distances, for each k: l points are no farther than the replacement.
fn replace_zeros(squared_distances: &mut [[f64; 4]], points: Points, queries: Points, ks: [usize; 4]) -> [f64; 4] {
    let zeros: Vec<usize> = (0..squared_distances.len()).filter(|&i| squared_distances[i][0] == 0.0).collect();
    let mut sums = [0.0; 4];
    if zeros.is_empty() {
        return sums;
    }
    let data = queries.select(&zeros);
    let queries = Points::new(&data, queries.dim());
    let exact_search = Neighbours::new(points, Norm::Euclidean);
    // Close points coincide in f32. Their zeros stay and are clamped.
    let exact = exact_search.four_kth_measures(queries, &[], ks);
    for ((&i, exact), (measure, count)) in zeros.iter().zip(exact).zip(exact_search.first_positive(queries)) {
        for (j, k) in ks.into_iter().enumerate().filter(|&(j, _)| exact[j] == 0.0 && measure < f64::INFINITY) {
            squared_distances[i][j] = measure;
            sums[j] += 2.0 / queries.dim() as f64 * (digamma(k as f64) - digamma(count.max(k) as f64));
        }
    }
    sums
}

/// Squared distances of every query to its `ks`-th nearest points; `ks` ascend and count from one.
fn squared_distances(points: Points, queries: Points, ks: [usize; 4]) -> Vec<[f64; 4]> {
    if points.len() > MAX_POINTS || points.len() < 2 {
        return Neighbours::new(points, Norm::Euclidean).four_kth_measures(queries, &[], ks);
    }
    let to_f32 = |points: Points| -> Vec<f32> { points.data().iter().map(|&x| x as f32).collect() };
    let search = BruteForce { points: &to_f32(points), queries: &to_f32(queries), dim: points.dim(), ks };
    match simd::isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` has found all instructions that this function enables.
        simd::Isa::Avx512 => unsafe { search_avx512(&search) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` has found all instructions that this function enables.
        simd::Isa::Avx2 => unsafe { search_avx2(&search) },
        _ => search.run::<false>(),
    }
}

/// # Safety
/// The machine has AVX-512 F, DQ, BW and VL, AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn search_avx512(search: &BruteForce) -> Vec<[f64; 4]> {
    search.run::<true>()
}

/// # Safety
/// The machine has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn search_avx2(search: &BruteForce) -> Vec<[f64; 4]> {
    search.run::<true>()
}

/// All points against all queries. Both are row-major `[rows, dim]`.
struct BruteForce<'a> {
    points: &'a [f32],
    queries: &'a [f32],
    dim: usize,
    ks: [usize; 4],
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
    fn run<const FUSED: bool>(&self) -> Vec<[f64; 4]> {
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
            out.extend((0..count).map(|q| self.ks.map(|k| f64::from(nearest[k - 1][q]))));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Estimator, Knn};
    use super::*;
    use crate::distributions::{Mixture, MixtureLaw};
    use crate::random::Generator;
    use rand::SeedableRng;

    #[test]
    fn rows_of_both_samples_get_the_same_estimate_as_from_knn() {
        let mut rng = Generator::seed_from_u64(5);
        let law = Mixture::draw(&MixtureLaw::default(), 2, &mut rng);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        law.sample(80, &mut rng, &mut x);
        law.sample(60, &mut rng, &mut y);
        y.extend_from_slice(&x[..100]);
        y.extend_from_slice(&x[..20]);
        let (x, y) = (Points::new(&x, 2), Points::new(&y, 2));
        for (k, value) in KS.into_iter().zip(neighbour_divergences(x, y).0) {
            let expected = Knn::new(k).value(x, y).unwrap();
            assert!((value - expected).abs() < 1e-3, "k = {k}: {value}, not {expected}");
        }
    }

    #[test]
    fn squared_distances_agree_with_the_search_in_f64() {
        let mut rng = Generator::seed_from_u64(4);
        for (dim, n, m) in [(1, 5, 9), (2, 70, 33), (3, 300, 500), (9, 130, 64)] {
            let law = Mixture::draw(&MixtureLaw::default(), dim, &mut rng);
            let (mut x, mut y) = (Vec::new(), Vec::new());
            law.sample(n, &mut rng, &mut x);
            law.sample(m, &mut rng, &mut y);
            let (x, y) = (Points::new(&x, dim), Points::new(&y, dim));
            let ks = KS.map(|k| k.min(m));
            let exact = Neighbours::new(y, Norm::Euclidean).four_kth_measures(x, &[], ks);
            for (a, b) in squared_distances(y, x, ks).iter().zip(&exact) {
                for i in 0..4 {
                    assert!((a[i].sqrt() - b[i].sqrt()).abs() < 1e-5 * (1.0 + b[i]), "{a:?} and {b:?}");
                }
            }
        }
    }
}
