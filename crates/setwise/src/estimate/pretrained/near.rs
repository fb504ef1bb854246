//! Estimates from several neighbours at once, in single precision.
//!
//! Sixteen queries meet one point in a vector. Their nearest distances so far are as many vectors, sorted down the lanes; the distances of four
//! points sink through them by minima and maxima, one behind the other, without a branch but one: where none of the four is near to any
//! of the sixteen.

use setwise_engine::simd::{Isa, isa};

use super::super::neighbors::{Neighbors, Norm};
use super::super::{Points, digamma};

/// Neighbours whose distances are taken.
pub const NEIGHBOURS: [usize; 4] = [1, 3, 8, 20];
/// The last of them, where every query is its own first.
const KEPT: usize = 21;
/// Queries in a vector.
const LANES: usize = 16;
/// Points whose distances sink together.
const TOGETHER: usize = 4;
/// Above this number of points a tree may be faster, and distances may be too small for single precision.
const MOST: usize = 4096;
/// Squared distances below this are those of coincident points.
const COINCIDENT: f64 = 1e-14;

/// KL(P‖Q) from several neighbours, and the noise of the third of them: the deviation of its terms over the root of their number. Rows of P
/// that are rows of Q too have the nearest of the others instead, with its own number, as in [`Knn`](super::super::Knn).
pub fn neighbours(x: Points, y: Points) -> ([f64; 4], f64) {
    let (n, m, d) = (x.len(), y.len(), x.dim() as f64);
    let ks = NEIGHBOURS.map(|k| k.min(n - 1).min(m));
    let (rho, mut nu) = (measures(x, x, ks.map(|k| k + 1)), measures(y, x, ks));
    let (mut sums, mut square) = (positive(&mut nu, y, x, ks), 0.0);
    for (r, v) in rho.iter().zip(&nu) {
        for i in 0..4 {
            // Coincident points are no farther apart than rounding.
            let term = (v[i].max(COINCIDENT) / r[i].max(COINCIDENT)).ln();
            sums[i] += term;
            square += if i == 2 { term * term } else { 0.0 };
        }
    }
    let variance = square / n as f64 - (sums[2] / n as f64).powi(2);
    let noise = 0.5 * d * (variance.max(0.0) / n as f64).sqrt();
    (sums.map(|s| 0.5 * d * s / n as f64 + (m as f64 / (n as f64 - 1.0)).ln()), noise)
}

/// Replaces distances of zero; gives what the numbers of neighbours then differ by, in units of the logarithms of squares.
fn positive(measures: &mut [[f64; 4]], points: Points, queries: Points, ks: [usize; 4]) -> [f64; 4] {
    let zeros: Vec<usize> = (0..measures.len()).filter(|&i| measures[i][0] == 0.0).collect();
    let mut sums = [0.0; 4];
    if zeros.is_empty() {
        return sums;
    }
    let data = queries.select(&zeros);
    let queries = Points::new(&data, queries.dim());
    let found = Neighbors::new(points, Norm::Euclidean);
    // In single precision close points coincide too; those stay.
    let exact = found.kths(queries, &[], ks);
    for ((&i, exact), (measure, count)) in zeros.iter().zip(exact).zip(found.first_positive(queries)) {
        for (j, k) in ks.into_iter().enumerate().filter(|&(j, _)| exact[j] == 0.0 && measure < f64::INFINITY) {
            measures[i][j] = measure;
            sums[j] += 2.0 / queries.dim() as f64 * (digamma(k as f64) - digamma(count.max(k) as f64));
        }
    }
    sums
}

/// Squared distances of every query to its neighbours `ks` (rising, from one) among points.
fn measures(points: Points, queries: Points, ks: [usize; 4]) -> Vec<[f64; 4]> {
    if points.len() > MOST || points.len() < 2 {
        let found = Neighbors::new(points, Norm::Euclidean);
        return found.kths(queries, &[], ks);
    }
    let single = |points: Points| -> Vec<f32> { points.data().iter().map(|&x| x as f32).collect() };
    let search = Search { points: &single(points), queries: &single(queries), dim: points.dim(), ks };
    // SAFETY: `isa` has found the instructions each entry point enables.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => search_avx512(&search),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => search_avx2(&search),
            _ => search.run::<false>(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
unsafe fn search_avx512(search: &Search) -> Vec<[f64; 4]> {
    search.run::<true>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn search_avx2(search: &Search) -> Vec<[f64; 4]> {
    search.run::<true>()
}

struct Search<'a> {
    points: &'a [f32],
    queries: &'a [f32],
    dim: usize,
    ks: [usize; 4],
}

type Lanes = [f32; LANES];

/// The smaller and the larger of two distances, lane by lane.
#[inline(always)]
fn sorted(a: &Lanes, b: &Lanes) -> (Lanes, Lanes) {
    let (mut low, mut high) = (*a, *a);
    for i in 0..LANES {
        low[i] = if a[i] < b[i] { a[i] } else { b[i] };
        high[i] = if a[i] < b[i] { b[i] } else { a[i] };
    }
    (low, high)
}

/// Squared distances of a point to sixteen queries, of which `columns` are the coordinates.
#[inline(always)]
fn squares<const FUSED: bool>(point: &[f32], columns: &[Lanes]) -> Lanes {
    let mut sums = [0.0; LANES];
    for (x, column) in point.iter().zip(columns) {
        for (sum, q) in sums.iter_mut().zip(column) {
            let difference = x - q;
            *sum = if FUSED { difference.mul_add(difference, *sum) } else { *sum + difference * difference };
        }
    }
    sums
}

impl Search<'_> {
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
            let mut nearest = [[f32::INFINITY; LANES]; KEPT];
            for points in self.points.chunks(TOGETHER * dim) {
                let mut measures = [[f32::INFINITY; LANES]; TOGETHER];
                for (measure, point) in measures.iter_mut().zip(points.chunks_exact(dim)) {
                    *measure = squares::<FUSED>(point, &columns);
                }
                let last = &nearest[KEPT - 1];
                let near = |measure: &Lanes| measure.iter().zip(last).fold(false, |any, (m, last)| any | (m < last));
                if !measures.iter().fold(false, |any, measure| any | near(measure)) {
                    continue;
                }
                for so_far in &mut nearest {
                    let mut kept = *so_far;
                    for measure in &mut measures {
                        (kept, *measure) = sorted(&kept, measure);
                    }
                    *so_far = kept;
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
    fn rows_that_both_samples_share_are_treated_as_by_the_neighbour_estimator() {
        let mut rng = Generator::seed_from_u64(5);
        let law = Mixture::draw(&MixtureLaw::default(), 2, &mut rng);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        law.sample(80, &mut rng, &mut x);
        law.sample(60, &mut rng, &mut y);
        y.extend_from_slice(&x[..100]);
        y.extend_from_slice(&x[..20]);
        let (x, y) = (Points::new(&x, 2), Points::new(&y, 2));
        for (k, found) in NEIGHBOURS.into_iter().zip(neighbours(x, y).0) {
            let expected = Knn::new(k).value(x, y).unwrap();
            assert!((found - expected).abs() < 1e-3, "k = {k}: {found}, not {expected}");
        }
    }

    #[test]
    fn distances_are_those_of_a_search_in_double_precision() {
        let mut rng = Generator::seed_from_u64(4);
        for (dim, n, m) in [(1, 5, 9), (2, 70, 33), (3, 300, 500), (9, 130, 64)] {
            let law = Mixture::draw(&MixtureLaw::default(), dim, &mut rng);
            let (mut x, mut y) = (Vec::new(), Vec::new());
            law.sample(n, &mut rng, &mut x);
            law.sample(m, &mut rng, &mut y);
            let (x, y) = (Points::new(&x, dim), Points::new(&y, dim));
            let ks = NEIGHBOURS.map(|k| k.min(m));
            let exact = Neighbors::new(y, Norm::Euclidean).kths(x, &[], ks);
            for (a, b) in measures(y, x, ks).iter().zip(&exact) {
                for i in 0..4 {
                    assert!((a[i].sqrt() - b[i].sqrt()).abs() < 1e-5 * (1.0 + b[i]), "{a:?} and {b:?}");
                }
            }
        }
    }
}
