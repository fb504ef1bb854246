//! Estimates from several neighbours at once, in single precision.
//!
//! Four queries meet sixteen points in a vector. The smallest distances are not sorted in one by one: the smallest of each of 64 groups of
//! points are, and what is farther than the last of these that is needed cannot be among the nearest; few points are nearer.

use setwise_engine::simd::{Isa, isa};

use super::super::Points;
use super::super::neighbors::{Neighbors, Norm};

/// Neighbours whose distances are taken.
pub const NEIGHBOURS: [usize; 4] = [1, 3, 8, 20];
/// Points in a vector, and queries that meet them together.
const LANES: usize = 16;
const QUERIES: usize = 4;
/// Groups of points whose smallest distances bound the nearest ones.
const GROUPS: usize = 4;
/// Above this number of points a tree may be faster, and distances may be too small for single precision.
const MOST: usize = 4096;
/// Squared distances below this are those of coincident points.
const COINCIDENT: f64 = 1e-14;

/// KL(P‖Q) from several neighbours, and the noise of the third of them: the deviation of its terms over the root of their number.
pub fn neighbours(x: Points, y: Points) -> ([f64; 4], f64) {
    let (n, m, d) = (x.len(), y.len(), x.dim() as f64);
    let ks = NEIGHBOURS.map(|k| k.min(n - 1).min(m));
    let (rho, nu) = (measures(x, x, ks.map(|k| k + 1)), measures(y, x, ks));
    let (mut sums, mut square) = ([0.0; 4], 0.0);
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

/// Squared distances of every query to its neighbours `ks` (rising, from one) among points.
fn measures(points: Points, queries: Points, ks: [usize; 4]) -> Vec<[f64; 4]> {
    if points.len() > MOST || points.len() < 2 {
        let found = Neighbors::new(points, Norm::Euclidean);
        return found.kths(queries, &[], ks);
    }
    let dim = points.dim();
    let blocks = points.len().div_ceil(LANES).next_multiple_of(GROUPS);
    let mut packed = vec![f32::INFINITY; blocks * LANES * dim];
    for i in 0..points.len() {
        let at = i / LANES * LANES * dim + i % LANES;
        points.row(i).iter().enumerate().for_each(|(c, &x)| packed[at + c * LANES] = x as f32);
    }
    let queries: Vec<f32> = queries.data().iter().map(|&x| x as f32).collect();
    let search = Search { packed: &packed, dim, queries: &queries, ks };
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
    /// Blocks of sixteen points, column by column; lanes without a point are infinitely far.
    packed: &'a [f32],
    dim: usize,
    queries: &'a [f32],
    ks: [usize; 4],
}

/// Adds the squares of a column's distances from a query's.
#[inline(always)]
fn add<const FUSED: bool>(sums: &mut [f32; LANES], column: &[f32; LANES], query: f32) {
    for (s, x) in sums.iter_mut().zip(column) {
        let difference = x - query;
        *s = if FUSED { difference.mul_add(difference, *s) } else { *s + difference * difference };
    }
}

#[inline(always)]
fn lower(smallest: &mut [f32; LANES], sums: &[f32; LANES]) {
    for (s, x) in smallest.iter_mut().zip(sums) {
        *s = if x < s { *x } else { *s };
    }
}

impl Search<'_> {
    #[inline(always)]
    fn run<const FUSED: bool>(&self) -> Vec<[f64; 4]> {
        let (dim, blocks) = (self.dim, self.packed.len() / (LANES * self.dim));
        let mut out = Vec::with_capacity(self.queries.len() / dim);
        let mut measures = vec![[[0.0f32; LANES]; QUERIES]; blocks];
        let mut near = Vec::new();
        let mut four = vec![[0.0; QUERIES]; dim];
        for queries in self.queries.chunks(QUERIES * dim) {
            let count = queries.len() / dim;
            for (c, four) in four.iter_mut().enumerate() {
                *four = std::array::from_fn(|k| queries[k.min(count - 1) * dim + c]);
            }
            let mut smallest = [[[f32::INFINITY; LANES]; GROUPS]; QUERIES];
            for (at, (block, measures)) in self.packed.chunks_exact(LANES * dim).zip(&mut measures).enumerate() {
                let [mut a, mut b, mut c, mut d] = [[0.0f32; LANES]; QUERIES];
                for (column, query) in block.as_chunks::<LANES>().0.iter().zip(&four) {
                    add::<FUSED>(&mut a, column, query[0]);
                    add::<FUSED>(&mut b, column, query[1]);
                    add::<FUSED>(&mut c, column, query[2]);
                    add::<FUSED>(&mut d, column, query[3]);
                }
                for (k, sums) in [a, b, c, d].into_iter().enumerate() {
                    lower(&mut smallest[k][at % GROUPS], &sums);
                    measures[k] = sums;
                }
            }
            for (k, groups) in smallest.iter().enumerate().take(count) {
                out.push(self.nearest(&measures, k, groups.as_flattened(), &mut near));
            }
        }
        out
    }

    /// The distances wanted of query `k`.
    #[inline(always)]
    fn nearest(&self, measures: &[[[f32; LANES]; QUERIES]], k: usize, groups: &[f32], near: &mut Vec<u32>) -> [f64; 4] {
        // Numbers that are not negative are in the order of their bits.
        let mut bits: [u32; LANES * GROUPS] = std::array::from_fn(|i| groups[i].to_bits());
        let last = self.ks[3] - 1;
        let bound = f32::from_bits(*bits.select_nth_unstable(last).1);
        near.clear();
        for block in measures {
            let lanes = &block[k];
            if lanes.iter().fold(false, |any, &m| any | (m <= bound)) {
                near.extend(lanes.iter().filter(|m| **m <= bound).map(|m| m.to_bits()));
            }
        }
        near.sort_unstable();
        self.ks.map(|k| f64::from(f32::from_bits(near[k - 1])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Generator, Mixture, MixtureLaw};
    use rand::SeedableRng;

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
