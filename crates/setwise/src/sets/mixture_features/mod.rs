//! Gaussian mixtures fitted to each of two sets, and what they say of every point of both.
//!
//! `points` holds sets, `mixture` fits: expectation maximisation in single precision, an example in each lane of a vector. Covariances, their
//! factors and all sums over points are then plain loops, and an example costs little more than it takes to draw it.

mod mixture;
mod points;

use std::hint::black_box;

use setwise_engine::Real;
use setwise_engine::simd::{Kernel, Vector};

use super::SetView;
use mixture::{Mixture, Scratch};
use points::{Points, numbers};

/// Components of the largest mixture; all numbers up to it are fitted.
const COMPONENTS: usize = 3;
/// Numbers that stand beside a point: log p̂ − log q̂ by mixtures of one, two and three Gaussians, and what the second and third add to
/// log p̂ and to log q̂.
pub const COLUMNS: usize = 3 * COMPONENTS - 2;
/// Rows, columns and points that are computed with together.
const TILE: usize = 4;
/// Lanes of the widest vectors.
const LANES: usize = 16;
/// The number of examples that are best fitted together.
pub const GROUP: usize = LANES;
/// The maximum number of bytes for one set of every lane.
const MAX_BYTES: usize = 4 << 30;

/// LogDensities beside the points of two sets of every example, which are whitened together and of one width: [`COLUMNS`] for each point, in units
/// of √width.
///
/// An example's columns are the same whatever others stand beside it. The order of rows decides nothing but rounding, and with it, where two starts are
/// all but equally likely, from which of them a fit goes on. Numbers that are not finite have columns that are not.
pub fn log_densities(sets: [SetView<f64>; 2]) -> [Vec<f32>; 2] {
    // SAFETY: the kernel reads and writes slices, with their bounds checked.
    unsafe { f32::dispatch(LogDensities { sets }) }
}

/// Fails where sets of so many points are too large to be fitted to.
pub fn check_memory(points: usize, width: usize) -> Result<(), String> {
    // Coordinates, logarithms by set and components, shares and their like, for every lane; then covariances.
    let numbers = width.checked_add(6 + 12).and_then(|n| n.checked_mul(points));
    let numbers = numbers.and_then(|n| n.checked_add(width.checked_mul(width)?.checked_mul(8)?));
    match numbers.and_then(|n| n.checked_mul(4 * LANES)) {
        Some(bytes) if bytes <= MAX_BYTES => Ok(()),
        _ => Err(format!(
            "mixtures cannot be fitted to {points} points of {width} numbers: it would take too much memory"
        )),
    }
}

struct LogDensities<'a> {
    sets: [SetView<'a, f64>; 2],
}

impl Kernel<f32> for LogDensities<'_> {
    type Out = [Vec<f32>; 2];

    #[inline(always)]
    unsafe fn run<V: Vector<f32>>(self) -> [Vec<f32>; 2] {
        const { assert!(V::LANES <= LANES) };
        let sets = self.sets;
        let examples = sets[0].offsets.len() - 1;
        let mut columns = sets.map(|s| vec![0.0; s.offsets[examples] * COLUMNS]);
        let unit = (sets[0].width as f32).sqrt().recip();
        for first in (0..examples).step_by(V::LANES) {
            let last = examples.min(first + V::LANES);
            // SAFETY, here and below: entered through `dispatch`, and no vector has more lanes than the arrays that are loaded.
            let points = unsafe { [Points::<V>::of(sets[0], first..last), Points::<V>::of(sets[1], first..last)] };
            // Logarithms of densities by set looked at, set fitted to and number of components.
            let mut logs: [Vec<[[V; COMPONENTS]; 2]>; 2] =
                [0, 1].map(|at| vec![[[unsafe { V::zero() }; COMPONENTS]; 2]; points[at].len]);
            let mut scratch = unsafe { Scratch::of(&points) };
            // Of numbers the compiler does not know, or it would make this code anew for each of them.
            for fitted in 0..black_box(2) {
                for components in 1..=black_box(COMPONENTS) {
                    let mixture = unsafe { Mixture::fit(&points[fitted], components, &mut scratch) };
                    for at in 0..black_box(2) {
                        unsafe { mixture.log_densities(&points[at], &mut scratch) };
                        for (out, log) in logs[at].iter_mut().zip(&scratch.sums) {
                            out[fitted][components - 1] = *log;
                        }
                    }
                }
            }
            for at in 0..2 {
                for (i, [p, q]) in logs[at].iter().enumerate() {
                    let pairs = [
                        (p[0], q[0]),
                        (p[1], q[1]),
                        (p[2], q[2]),
                        (p[1], p[0]),
                        (p[2], p[1]),
                        (q[1], q[0]),
                        (q[2], q[1]),
                    ];
                    for (c, (a, b)) in pairs.into_iter().enumerate() {
                        let lanes = unsafe { numbers(a.sub(b)) };
                        for (example, x) in (first..last).zip(lanes) {
                            let row = sets[at].offsets[example] + i;
                            if row < sets[at].offsets[example + 1] {
                                columns[at][row * COLUMNS + c] = x * unit;
                            }
                        }
                    }
                }
            }
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::mixture::{FIRST_STEPS, PRIOR_POINTS, PRIOR_VARIANCE, RIDGE, SLACK, STEPS, UNDECIDED};
    use super::*;
    use crate::distributions::{Mixture as Law, MixtureLaw};
    use crate::linalg::{cholesky, log_det, moments, solve_lower};
    use crate::random::Generator;
    use crate::sets::Canonical;
    use rand::SeedableRng;

    /// Two samples in coordinates of their own.
    fn example(width: usize, sizes: [usize; 2], seed: u64) -> [Vec<f64>; 2] {
        let mut rng = Generator::seed_from_u64(seed);
        let rows = sizes.map(|n| {
            let mut rows = Vec::new();
            Law::draw(&MixtureLaw::default(), width, &mut rng).sample(n, &mut rng, &mut rows);
            rows
        });
        let map = Canonical::fit(&rows[0], &rows[1], width);
        rows.map(|rows| {
            let mut out = vec![0.0; rows.len()];
            map.apply(&rows, &mut out);
            out
        })
    }

    /// The same fit of one start, written plainly in double precision: log likelihood with the prior's, and log densities at other points.
    fn plain(rows: &[f64], width: usize, components: usize, key: &[f64], steps: usize, at: &[f64]) -> (f64, Vec<f64>) {
        let n = rows.len() / width;
        let row = |i: usize| &rows[i * width..(i + 1) * width];
        let mut sorted = key.to_vec();
        sorted.sort_by(f64::total_cmp);
        let group = |i: usize| (1..components).filter(|k| key[i] >= sorted[k * n / components]).count();
        let even = f64::from(UNDECIDED) / components as f64;
        let mut shares: Vec<Vec<f64>> = (0..components)
            .map(|k| (0..n).map(|i| even + if group(i) == k { 1.0 - f64::from(UNDECIDED) } else { 0.0 }).collect())
            .collect();
        let slack = f64::from(SLACK);
        let middle: Vec<f64> = (0..width).map(|j| (0..n).map(|i| row(i)[j]).sum::<f64>() / n as f64).collect();
        let mut found: Vec<(f64, Vec<f64>, Vec<f64>)> = Vec::new();
        let logs = |found: &[(f64, Vec<f64>, Vec<f64>)], x: &[f64]| -> Vec<f64> {
            found
                .iter()
                .map(|(share, mean, factor)| {
                    let mut z: Vec<f64> = x.iter().zip(mean).map(|(x, m)| x - m).collect();
                    solve_lower(factor, width, &mut z);
                    share.ln() - 0.5 * (log_det(factor, width) + z.iter().map(|z| z * z).sum::<f64>())
                })
                .collect()
        };
        let sum = |logs: &[f64]| logs.iter().map(|l| l.exp()).sum::<f64>().ln();
        for step in 0..steps {
            if step > 0 {
                for i in 0..n {
                    let logs = logs(&found, row(i));
                    shares.iter_mut().zip(&logs).for_each(|(s, log)| s[i] = (log - sum(&logs)).exp());
                }
            }
            found = shares
                .iter()
                .map(|s| {
                    let total: f64 = s.iter().sum();
                    let mean: Vec<f64> = (0..width)
                        .map(|j| ((0..n).map(|i| s[i] * row(i)[j]).sum::<f64>() + slack * middle[j]) / (total + slack))
                        .collect();
                    let mut factor = vec![0.0; width * width];
                    for a in 0..width {
                        for b in 0..width {
                            let square: f64 =
                                (0..n).map(|i| s[i] * (row(i)[a] - mean[a]) * (row(i)[b] - mean[b])).sum();
                            let prior = if a == b { f64::from(PRIOR_POINTS * PRIOR_VARIANCE) } else { 0.0 };
                            let ridge = if a == b { f64::from(RIDGE) } else { 0.0 };
                            factor[a * width + b] = (square + prior) / (total + f64::from(PRIOR_POINTS)) + ridge;
                        }
                    }
                    cholesky(&mut factor, width).unwrap();
                    ((total + slack) / (n as f64 + components as f64 * slack), mean, factor)
                })
                .collect();
        }
        let likelihood: f64 = (0..n).map(|i| sum(&logs(&found, row(i)))).sum();
        let prior: f64 = found
            .iter()
            .map(|(_, _, factor)| {
                let mut trace = 0.0;
                for j in 0..width {
                    let mut unit: Vec<f64> = (0..width).map(|i| f64::from(u8::from(i == j))).collect();
                    solve_lower(factor, width, &mut unit);
                    trace += unit.iter().map(|x| x * x).sum::<f64>();
                }
                -0.5 * f64::from(PRIOR_POINTS) * (log_det(factor, width) + f64::from(PRIOR_VARIANCE) * trace)
            })
            .sum();
        (likelihood + prior, at.chunks(width).map(|x| sum(&logs(&found, x))).collect())
    }

    /// LogDensities of one example.
    fn one(p: &[f64], q: &[f64], width: usize) -> [Vec<f32>; 2] {
        let offsets = [p, q].map(|rows| [0, rows.len() / width]);
        log_densities([(p, &offsets[0]), (q, &offsets[1])].map(|(data, offsets)| SetView { data, width, offsets }))
    }

    /// LogDensities of the likeliest fits, by [`plain`].
    fn plain_columns(sets: &[Vec<f64>; 2], width: usize, at: &[f64]) -> Vec<f64> {
        let best = |set: &[f64], components: usize| -> Vec<f64> {
            let middle = moments(set, width, 0).0;
            let radius = |r: &[f64]| r.iter().zip(&middle).map(|(x, m)| (x - m) * (x - m)).sum::<f64>();
            let along = |j: usize| set.chunks(width).map(|r| r[j]).collect::<Vec<_>>();
            let keys = [along(0), set.chunks(width).map(radius).collect(), along(width - 1)];
            let steps = |most: usize| if components == 1 { 1 } else { most };
            let first = |key: &&Vec<f64>| plain(set, width, components, key, steps(FIRST_STEPS), at).0;
            let start = keys.iter().reduce(|a, b| if first(&b) > first(&a) { b } else { a }).unwrap();
            plain(set, width, components, start, steps(STEPS), at).1
        };
        let (p, q) = ([1, 2, 3].map(|k| best(&sets[0], k)), [1, 2, 3].map(|k| best(&sets[1], k)));
        let pairs = [
            (&p[0], &q[0]),
            (&p[1], &q[1]),
            (&p[2], &q[2]),
            (&p[1], &p[0]),
            (&p[2], &p[1]),
            (&q[1], &q[0]),
            (&q[2], &q[1]),
        ];
        (0..at.len() / width).flat_map(|i| pairs.map(|(a, b)| (a[i] - b[i]) / (width as f64).sqrt())).collect()
    }

    /// LogDensities of several examples at once, example by example.
    fn together(examples: &[[Vec<f64>; 2]], width: usize) -> Vec<[Vec<f32>; 2]> {
        let rows = [0, 1].map(|s| examples.iter().flat_map(|e| &e[s]).copied().collect::<Vec<f64>>());
        let offsets = [0, 1].map(|s| {
            let ends = examples.iter().scan(0, |end, e| {
                *end += e[s].len() / width;
                Some(*end)
            });
            std::iter::once(0).chain(ends).collect::<Vec<usize>>()
        });
        let all = log_densities([0, 1].map(|s| SetView { data: &rows[s], width, offsets: &offsets[s] }));
        let own = |s: usize, e: usize| all[s][offsets[s][e] * COLUMNS..offsets[s][e + 1] * COLUMNS].to_vec();
        (0..examples.len()).map(|e| [own(0, e), own(1, e)]).collect()
    }

    #[test]
    fn columns_are_those_of_the_likeliest_fit_in_double_precision_alone_and_beside_other_examples() {
        // More examples than a vector has lanes, of very different sizes.
        let sizes = [[40, 30], [1, 20], [2, 1], [125, 64], [7, 150], [100, 65], [31, 5], [64, 64], [3, 3]];
        for width in [1, 2, 3, 5, 8] {
            let examples: Vec<[Vec<f64>; 2]> =
                (0..18).map(|i| example(width, sizes[i % sizes.len()], 100 + i as u64)).collect();
            for (e, (sets, found)) in examples.iter().zip(together(&examples, width)).enumerate() {
                assert_eq!(found, one(&sets[0], &sets[1], width), "width {width}, example {e}");
                // Few points in many dimensions have several starts that are as likely as each other.
                if sets.iter().any(|s| s.len() / width < 2 * width + 2) {
                    continue;
                }
                for (found, set) in found.iter().zip(sets) {
                    for (found, wanted) in found.iter().zip(plain_columns(sets, width, set)) {
                        let apart = (f64::from(*found) - wanted).abs();
                        assert!(apart < 2e-3 * (1.0 + wanted.abs()), "width {width}, example {e}: {found}, {wanted}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_single_point_has_the_densities_of_its_fit() {
        // p has one point, at zero: every fit of it is a Gaussian there, whose variance is the prior's and the ridge.
        let q = [1.0, -0.5, 0.25, 0.75, -1.5];
        let found = one(&[0.0], &q, 1);
        let variance = f64::from(PRIOR_POINTS * PRIOR_VARIANCE / (1.0 + PRIOR_POINTS) + RIDGE);
        let log = |x: f64| -0.5 * (variance.ln() + x * x / variance);
        let of_q = plain(&q, 1, 1, &q, 1, &[0.0, q[0]]).1;
        assert!((f64::from(found[0][0]) - (log(0.0) - of_q[0])).abs() < 1e-3, "{found:?}");
        assert!((f64::from(found[1][0]) - (log(q[0]) - of_q[1])).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn the_order_of_points_does_not_matter_and_two_clusters_are_told_from_one() {
        // Half of q's points lie far from the other half; p has none there.
        let [p, mut q] = example(4, [90, 120], 8);
        q.iter_mut().enumerate().for_each(|(i, x)| *x += if i % 8 == 0 { 6.0 } else { 0.0 });
        let found = one(&p, &q, 4);
        let turned = |rows: &[f64]| rows.chunks(4).rev().flatten().copied().collect::<Vec<_>>();
        let again = one(&turned(&p), &turned(&q), 4);
        for (a, b) in found.iter().zip(&again) {
            for (a, b) in a.chunks(COLUMNS).zip(b.chunks(COLUMNS).rev()) {
                assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3 * (1.0 + a.abs())), "{a:?} {b:?}");
            }
        }
        let gain: f32 = found[1].chunks(COLUMNS).map(|row| row[5]).sum::<f32>() / 120.0;
        assert!(gain > 0.2, "{gain}");
    }

    #[test]
    fn what_is_no_number_has_no_columns_and_leaves_other_examples_alone() {
        let examples: Vec<[Vec<f64>; 2]> = (0..5).map(|i| example(2, [30, 20], i)).collect();
        let clean = together(&examples, 2);
        let mut broken = examples;
        broken[3][0][7] = f64::NAN;
        let found = together(&broken, 2);
        for e in [0, 1, 2, 4] {
            assert_eq!(found[e], clean[e], "example {e}");
        }
        // All columns that p's fits have a part in, at every point of both sets.
        assert!(found[3].iter().flat_map(|s| s.chunks(COLUMNS)).all(|row| row[..5].iter().all(|x| !x.is_finite())));
        assert!(one(&[0.0; 6], &[0.0; 2], 2).concat().iter().all(|x| x.is_finite()));
    }

    #[test]
    fn sets_that_would_take_too_much_memory_are_refused() {
        assert!(check_memory(150, 16).is_ok() && check_memory(1_000_000, 4).is_ok());
        for (points, width) in [(10_000_000, 4), (1, 1 << 20), (usize::MAX, 2)] {
            assert!(check_memory(points, width).unwrap_err().contains("memory"));
        }
    }

    #[test]
    fn narrower_vectors_give_the_same() {
        setwise_engine::simd::test_with_narrower_vectors("sets::fits");
    }
}
