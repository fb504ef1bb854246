//! Gaussian mixtures fitted to each of two sets, and their log densities at every point of both.
//!
//! `points` holds sets, `component` is one Gaussian, `mixture` fits by expectation maximisation in single precision.
//! Each lane of a vector has an example, so covariances, their factors and all sums over points are plain loops.

mod component;
mod mixture;
mod points;

use std::hint::black_box;

use setwise_engine::Real;
use setwise_engine::simd::{Kernel, Vector};

use super::SetView;
use mixture::{Mixture, Scratch};
use points::{Points, lanes};

/// Components of the largest mixture; mixtures of one to this many are fitted.
const MAX_COMPONENTS: usize = 3;
/// Columns of a point: log p̂ₖ − log q̂ₖ for mixtures of k = 1, 2, 3 Gaussians, then log p̂ₖ₊₁ − log p̂ₖ and
/// log q̂ₖ₊₁ − log q̂ₖ for k = 1, 2.
pub const COLUMNS: usize = 3 * MAX_COMPONENTS - 2;
/// Rows, columns and points of a register tile.
const TILE: usize = 4;
/// Lanes of the widest vectors.
const LANES: usize = 16;
/// The number of examples that are best fitted together.
pub const GROUP: usize = LANES;
/// The maximum number of bytes for one set of every lane.
const MAX_BYTES: usize = 4 << 30;

/// Mixture log densities at the points of two sets of every example: [`COLUMNS`] for each point, divided by √width.
///
/// The two sets are whitened together and have one width. An example's columns do not depend on the other examples.
/// The order of rows changes rounding alone; where two starts are about equally likely, rounding decides between
/// them. Numbers that are not finite have columns that are not finite.
pub fn log_densities(sets: [SetView<f64>; 2]) -> [Vec<f32>; 2] {
    // SAFETY: the kernel reads and writes slices, with their bounds checked.
    unsafe { f32::dispatch(LogDensities { sets }) }
}

/// Fails if mixtures of sets of so many points need too much memory.
pub fn check_memory(points: usize, width: usize) -> Result<(), String> {
    // Coordinates, log densities by set and components, responsibilities and workspace, for every lane; covariances.
    let numbers = width.checked_add(6 + 12).and_then(|n| n.checked_mul(points));
    let numbers = numbers.and_then(|n| n.checked_add(width.checked_mul(width)?.checked_mul(8)?));
    match numbers.and_then(|n| n.checked_mul(4 * LANES)) {
        Some(bytes) if bytes <= MAX_BYTES => Ok(()),
        _ => Err(format!(
            "mixtures cannot be fitted to {points} points of {width} numbers: they need more than {} GiB of memory",
            MAX_BYTES >> 30
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
            // SAFETY: `dispatch` runs this kernel where the instructions of V exist.
            let logs = unsafe { mixture_logs::<V>(sets, first..last) };
            for (at, logs) in logs.iter().enumerate() {
                for (i, [p, q]) in logs.iter().enumerate() {
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
                        // SAFETY: as above.
                        let differences = unsafe { lanes(a.sub(b)) };
                        for (example, x) in (first..last).zip(differences) {
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

/// Log densities at every point, by the set the mixture is fitted to and its number of components.
type PointLogs<V> = [[V; MAX_COMPONENTS]; 2];

/// Log densities at the points of both sets, for the examples of one vector.
///
/// # Safety
/// The instructions of `V` exist.
#[inline(always)]
unsafe fn mixture_logs<V: Vector<f32>>(
    sets: [SetView<f64>; 2],
    examples: std::ops::Range<usize>,
) -> [Vec<PointLogs<V>>; 2] {
    // SAFETY: the caller has the instructions of V.
    unsafe {
        let points = [Points::<V>::of(sets[0], examples.clone()), Points::<V>::of(sets[1], examples)];
        let blank = [[V::zero(); MAX_COMPONENTS]; 2];
        let mut logs = [vec![blank; points[0].len], vec![blank; points[1].len]];
        let mut scratch = Scratch::of(&points);
        // `black_box` keeps the compiler from unrolling: it would compile a copy of the fit for each round.
        for fitted in 0..black_box(2) {
            for components in 1..=black_box(MAX_COMPONENTS) {
                let mixture = Mixture::fit(&points[fitted], components, &mut scratch);
                for at in 0..black_box(2) {
                    mixture.log_densities(&points[at], &mut scratch);
                    for (out, log) in logs[at].iter_mut().zip(&scratch.mixture_logs) {
                        out[fitted][components - 1] = *log;
                    }
                }
            }
        }
        logs
    }
}

#[cfg(test)]
mod tests {
    use super::component::{PRIOR_POINTS, PRIOR_VARIANCE, PSEUDO_POINTS, RIDGE};
    use super::mixture::{FIRST_STEPS, SHARED_RESPONSIBILITY, STEPS};
    use super::*;
    use crate::distributions::{Mixture as Law, MixtureLaw};
    use crate::linalg::{cholesky, log_det, moments, solve_lower};
    use crate::random::Generator;
    use crate::sets::Canonical;
    use rand::SeedableRng;

    /// Two samples in canonical axes.
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

    /// The reference: EM from one start in double precision. Returns the log posterior and the log densities at other
    /// points.
    fn reference(
        rows: &[f64],
        width: usize,
        components: usize,
        key: &[f64],
        steps: usize,
        at: &[f64],
    ) -> (f64, Vec<f64>) {
        let n = rows.len() / width;
        let row = |i: usize| &rows[i * width..(i + 1) * width];
        let mut sorted = key.to_vec();
        sorted.sort_by(f64::total_cmp);
        let group = |i: usize| (1..components).filter(|k| key[i] >= sorted[k * n / components]).count();
        let even = f64::from(SHARED_RESPONSIBILITY) / components as f64;
        let mut responsibilities: Vec<Vec<f64>> = (0..components)
            .map(|k| {
                (0..n)
                    .map(|i| even + if group(i) == k { 1.0 - f64::from(SHARED_RESPONSIBILITY) } else { 0.0 })
                    .collect()
            })
            .collect();
        let pseudo = f64::from(PSEUDO_POINTS);
        let centre: Vec<f64> = (0..width).map(|j| (0..n).map(|i| row(i)[j]).sum::<f64>() / n as f64).collect();
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
                    responsibilities.iter_mut().zip(&logs).for_each(|(s, log)| s[i] = (log - sum(&logs)).exp());
                }
            }
            found = responsibilities
                .iter()
                .map(|s| {
                    let total: f64 = s.iter().sum();
                    let mean: Vec<f64> = (0..width)
                        .map(|j| {
                            ((0..n).map(|i| s[i] * row(i)[j]).sum::<f64>() + pseudo * centre[j]) / (total + pseudo)
                        })
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
                    ((total + pseudo) / (n as f64 + components as f64 * pseudo), mean, factor)
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

    /// Columns of one example.
    fn one(p: &[f64], q: &[f64], width: usize) -> [Vec<f32>; 2] {
        let offsets = [p, q].map(|rows| [0, rows.len() / width]);
        log_densities([(p, &offsets[0]), (q, &offsets[1])].map(|(data, offsets)| SetView { data, width, offsets }))
    }

    /// Columns of the likeliest fits, by [`reference`].
    fn reference_columns(sets: &[Vec<f64>; 2], width: usize, at: &[f64]) -> Vec<f64> {
        let best = |set: &[f64], components: usize| -> Vec<f64> {
            let mean = moments(set, width, 0).0;
            let radius = |r: &[f64]| r.iter().zip(&mean).map(|(x, m)| (x - m) * (x - m)).sum::<f64>();
            let along = |j: usize| set.chunks(width).map(|r| r[j]).collect::<Vec<_>>();
            let keys = [along(0), set.chunks(width).map(radius).collect(), along(width - 1)];
            let steps = |n: usize| if components == 1 { 1 } else { n };
            let first = |key: &&Vec<f64>| reference(set, width, components, key, steps(FIRST_STEPS), at).0;
            let start = keys.iter().reduce(|a, b| if first(&b) > first(&a) { b } else { a }).unwrap();
            reference(set, width, components, start, steps(STEPS), at).1
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

    /// Columns of several examples fitted together, example by example.
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
        let columns = |s: usize, e: usize| all[s][offsets[s][e] * COLUMNS..offsets[s][e + 1] * COLUMNS].to_vec();
        (0..examples.len()).map(|e| [columns(0, e), columns(1, e)]).collect()
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
                // With few points in many dimensions several starts are about equally likely.
                if sets.iter().any(|s| s.len() / width < 2 * width + 2) {
                    continue;
                }
                for (found, set) in found.iter().zip(sets) {
                    for (found, expected) in found.iter().zip(reference_columns(sets, width, set)) {
                        let error = (f64::from(*found) - expected).abs();
                        assert!(
                            error < 2e-3 * (1.0 + expected.abs()),
                            "width {width}, example {e}: {found}, {expected}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_single_point_has_the_densities_of_its_fit() {
        // p has one point, at zero. Its mixtures are one Gaussian there, with the variance of prior and ridge.
        let q = [1.0, -0.5, 0.25, 0.75, -1.5];
        let found = one(&[0.0], &q, 1);
        let variance = f64::from(PRIOR_POINTS * PRIOR_VARIANCE / (1.0 + PRIOR_POINTS) + RIDGE);
        let log = |x: f64| -0.5 * (variance.ln() + x * x / variance);
        let of_q = reference(&q, 1, 1, &q, 1, &[0.0, q[0]]).1;
        assert!((f64::from(found[0][0]) - (log(0.0) - of_q[0])).abs() < 1e-3, "{found:?}");
        assert!((f64::from(found[1][0]) - (log(q[0]) - of_q[1])).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn the_order_of_points_does_not_matter_and_a_second_component_finds_a_second_cluster() {
        // Half of q's points lie far from the other half; p has none there.
        let [p, mut q] = example(4, [90, 120], 8);
        q.iter_mut().enumerate().for_each(|(i, x)| *x += if i % 8 == 0 { 6.0 } else { 0.0 });
        let found = one(&p, &q, 4);
        let reversed = |rows: &[f64]| rows.chunks(4).rev().flatten().copied().collect::<Vec<_>>();
        let again = one(&reversed(&p), &reversed(&q), 4);
        for (a, b) in found.iter().zip(&again) {
            for (a, b) in a.chunks(COLUMNS).zip(b.chunks(COLUMNS).rev()) {
                assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3 * (1.0 + a.abs())), "{a:?} {b:?}");
            }
        }
        let gain: f32 = found[1].chunks(COLUMNS).map(|row| row[5]).sum::<f32>() / 120.0;
        assert!(gain > 0.2, "{gain}");
    }

    #[test]
    fn columns_of_an_example_with_nan_are_not_finite_and_other_examples_are_unchanged() {
        let examples: Vec<[Vec<f64>; 2]> = (0..5).map(|i| example(2, [30, 20], i)).collect();
        let clean = together(&examples, 2);
        let mut broken = examples;
        broken[3][0][7] = f64::NAN;
        let found = together(&broken, 2);
        for e in [0, 1, 2, 4] {
            assert_eq!(found[e], clean[e], "example {e}");
        }
        // The first five columns depend on the mixtures of p.
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
        setwise_engine::simd::test_with_narrower_vectors("sets::mixture_features");
    }
}
