//! Rows that two samples share, which independent samples of continuous distributions do not have.

use rayon::prelude::*;
use setwise_engine::splitmix64;

use super::Points;

/// Samples with fewer shared rows, or a smaller share of them, get no warning.
const MIN_SHARED: usize = 3;
const MIN_SHARE: f64 = 0.01;
/// Shared rows of rounded or discrete data are no more than this multiple of the rows that repeat within a sample.
const MAX_TO_REPEATED: usize = 3;

/// Hashes of all rows, in ascending order. Equal rows have equal hashes.
fn sorted_hashes(points: Points) -> Vec<u64> {
    // Adding zero turns −0 into 0.
    let hash = |i: usize| points.row(i).iter().fold(1, |hash, x| splitmix64(hash ^ (x + 0.0).to_bits()));
    let mut hashes: Vec<u64> = (0..points.len()).into_par_iter().with_min_len(4096).map(hash).collect();
    hashes.par_sort_unstable();
    hashes
}

/// Whether two samples have the same rows, in any order.
pub(super) fn same_rows(p: Points, q: Points) -> bool {
    p.len() == q.len() && sorted_hashes(p) == sorted_hashes(q)
}

/// A warning about samples with the same rows, or with more equal rows than independent samples have.
pub(super) fn shared_rows_warning(p: Points, q: Points) -> Option<String> {
    let (names, rows) = ([p.name(), q.name()], [p.len(), q.len()]);
    let [mut of_p, mut of_q] = [p, q].map(sorted_hashes);
    if of_p == of_q {
        return Some(format!("{} and {} have the same rows: the estimate is no evidence", names[0], names[1]));
    }
    of_p.dedup();
    of_q.dedup();
    let repeated = rows[0] + rows[1] - of_p.len() - of_q.len();
    let shared = of_p.iter().filter(|hash| of_q.binary_search(hash).is_ok()).count();
    let few = shared < MIN_SHARED || (shared as f64) < MIN_SHARE * rows[0].min(rows[1]) as f64;
    (!few && shared > MAX_TO_REPEATED * repeated).then(|| {
        format!(
            "{} and {} share {shared} rows; the samples are not independent, and the estimate is no evidence",
            names[0], names[1]
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Generator;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn shared_rows_are_named_unless_values_are_discrete() {
        let mut rng = Generator::seed_from_u64(2);
        let mut draw = |n: usize| -> Vec<f64> { (0..2 * n).map(|_| rng.random()).collect() };
        let (x, y) = (draw(200), draw(150));
        let p = Points::new(&x, 2).named("p.csv");
        let warning = |rows: &[f64]| shared_rows_warning(p, Points::new(rows, 2).named("q.csv"));
        assert_eq!(warning(&y), None);
        let reversed: Vec<f64> = x.chunks(2).rev().flatten().copied().collect();
        assert!(warning(&reversed).unwrap().starts_with("p.csv and q.csv have the same rows"));
        for part in [&x[..100], &[&x[..20], &y].concat(), &[&x[..], &y].concat()] {
            assert!(warning(part).unwrap().contains("share"), "{}", part.len());
        }
        assert_eq!(warning(&[&x[..4], &y].concat()), None);
        let round = |rows: &[f64]| -> Vec<f64> { rows.iter().map(|v| (20.0 * v).round()).collect() };
        let (p, q) = (round(&x), round(&y));
        assert_eq!(shared_rows_warning(Points::new(&p, 2), Points::new(&q, 2)), None);
    }
}
