//! The classical estimators against published numbers, closed forms and each other.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use setwise::estimate::neighbours::{Neighbours, Search};
use setwise::estimate::{Estimator, GaussianKl, GaussianMi, Knn, Ksg, Mine, Norm, Points, Variant, donsker_varadhan};

/// A tensor of the fixture as numbers, and its shape.
fn fixture(name: &str) -> (Vec<f64>, Vec<usize>) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/utils.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    let number = |b: &[u8]| f64::from(f32::from_le_bytes(b.try_into().unwrap()));
    (tensor.data().chunks_exact(4).map(number).collect(), tensor.shape().to_vec())
}

/// The examples of a stack `[examples, rows, columns]`.
fn examples(name: &str) -> (Vec<Vec<f64>>, usize) {
    let (data, shape) = fixture(name);
    (data.chunks_exact(shape[1] * shape[2]).map(<[f64]>::to_vec).collect(), shape[2])
}

/// Draws from the standard normal distribution.
struct Normal(Pcg64Mcg);

impl Normal {
    fn new(seed: u64) -> Self {
        Normal(Pcg64Mcg::seed_from_u64(seed))
    }

    fn draw(&mut self) -> f64 {
        let (u, v): (f64, f64) = (self.0.random(), self.0.random());
        (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    fn sample(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.draw()).collect()
    }

    /// n pairs of d columns. Each column of X is correlated with that of Y by rho.
    fn pairs(&mut self, n: usize, d: usize, rho: f64) -> (Vec<f64>, Vec<f64>) {
        let x = self.sample(n * d);
        let y = x.iter().map(|x| rho * x + (1.0 - rho * rho).sqrt() * self.draw()).collect();
        (x, y)
    }
}

/// Mutual information of [`Normal::pairs`].
fn gaussian_mi(d: usize, rho: f64) -> f64 {
    -0.5 * d as f64 * (1.0 - rho * rho).ln()
}

#[test]
fn the_knn_divergence_equals_that_of_the_published_code() {
    let ((x, d), (y, _)) = (examples("kl_knn.in.x"), examples("kl_knn.in.y"));
    for k in 1..=3 {
        let (expected, _) = fixture(&format!("kl_knn.k{k}"));
        for ((x, y), e) in x.iter().zip(&y).zip(expected) {
            let value = Knn::new(k).with_offset(1e-5).value(Points::new(x, d), Points::new(y, d)).unwrap();
            assert!((value - e).abs() < 1e-6, "k = {k}: {value}, not {e}");
        }
    }
}

#[test]
fn neighbour_distances_equal_those_of_the_published_code() {
    let ((x, d), (y, _)) = (examples("kl_knn.in.x"), examples("kl_knn.in.y"));
    let (self_distances, shape) = fixture("knn_dist.self_k1");
    let (cross, _) = fixture("knn_dist.cross_k2");
    for (i, (x, y)) in x.iter().zip(&y).enumerate() {
        let (x, y, rows) = (Points::new(x, d), Points::new(y, d), i * shape[1]..(i + 1) * shape[1]);
        let mut distances = Neighbours::new(x, Norm::Euclidean).kth_distances(x, 2);
        distances.extend(Neighbours::new(y, Norm::Euclidean).kth_distances(x, 2));
        for (a, b) in distances.iter().zip(self_distances[rows.clone()].iter().chain(&cross[rows])) {
            assert!((a - b).abs() < 1e-6, "{a}, not {b}");
        }
    }
}

#[test]
fn ksg_in_the_euclidean_norm_equals_the_published_code() {
    let ((x, d), (y, _)) = (examples("kraskov.in.x"), examples("kraskov.in.y"));
    let (expected, _) = fixture("kraskov.mi1.k1");
    for ((x, y), e) in x.iter().zip(&y).zip(expected) {
        let value =
            Ksg::new(1).with_norm(Norm::Euclidean).unscaled().value(Points::new(x, d), Points::new(y, d)).unwrap();
        assert!((value - e).abs() < 1e-6, "{value}, not {e}");
    }
}

#[test]
fn the_donsker_varadhan_bound_equals_that_of_the_published_code() {
    let ((pairs, shape), (independent, other)) = (fixture("dv.tx"), fixture("dv.ty"));
    let (expected, _) = fixture("dv.out");
    for ((a, b), e) in pairs.chunks(shape[1]).zip(independent.chunks(other[1])).zip(expected) {
        assert!((donsker_varadhan(a, b) - e).abs() < 1e-6);
    }
}

#[test]
fn the_closed_form_for_correlated_gaussians_equals_that_of_the_published_code() {
    let (rho, _) = fixture("mi_corr.rho");
    for d in [2, 8] {
        for (r, e) in rho.iter().zip(fixture(&format!("mi_corr.d{d}")).0) {
            assert!((gaussian_mi(d, *r) - e).abs() < 1e-5 * e.max(1.0));
        }
    }
}

#[test]
fn the_knn_divergence_of_many_points_is_near_the_closed_form() {
    let mut normal = Normal::new(1);
    for d in [1, 3] {
        // P has mean ½ in every column, Q variance 1.5².
        let p: Vec<f64> = normal.sample(20_000 * d).iter().map(|x| x + 0.5).collect();
        let q: Vec<f64> = normal.sample(15_000 * d).iter().map(|x| 1.5 * x).collect();
        let exact = d as f64 * (1.5f64.ln() + (1.0 + 0.25) / (2.0 * 2.25) - 0.5);
        let (p, q) = (Points::new(&p, d), Points::new(&q, d));
        for k in [1, 5] {
            let value = Knn::new(k).value(p, q).unwrap();
            assert!((value - exact).abs() < 0.04, "d = {d}, k = {k}: {value}, not {exact}");
        }
        let value = GaussianKl::plug_in().value(p, q).unwrap();
        assert!((value - exact).abs() < 0.02, "gaussian: {value}, not {exact}");
    }
}

#[test]
fn the_mutual_information_of_many_pairs_is_near_the_closed_form() {
    for (d, rho) in [(1, 0.9), (1, 0.0), (2, 0.6)] {
        let (x, y) = Normal::new(2).pairs(10_000, d, rho);
        let (x, y) = (Points::new(&x, d), Points::new(&y, d));
        let exact = gaussian_mi(d, rho);
        let estimators: [(&str, &dyn Estimator); 5] = [
            ("ksg 1", &Ksg::new(3)),
            ("ksg 2", &Ksg::new(3).with_variant(Variant::Two)),
            ("ksg 1, euclidean", &Ksg::new(3).with_norm(Norm::Euclidean)),
            ("gaussian", &GaussianMi::default()),
            ("copula", &GaussianMi::copula()),
        ];
        for (name, estimator) in estimators {
            let value = estimator.value(x, y).unwrap();
            assert!((value - exact).abs() < 0.04, "{name}, d = {d}: {value}, not {exact}");
        }
    }
}

#[test]
fn mine_finds_the_mutual_information_of_correlated_gaussians() {
    let (x, y) = Normal::new(3).pairs(2000, 1, 0.8);
    let (x, y) = (Points::new(&x, 1), Points::new(&y, 1));
    let estimate = Mine::default().estimate(x, y, 1).unwrap();
    let exact = gaussian_mi(1, 0.8);
    assert!((estimate.value - exact).abs() < 0.1, "{estimate:?}, not {exact}");
    let [low, high] = estimate.interval.unwrap();
    assert!(low < exact && exact < high && high - low < 0.2, "{estimate:?}");
    assert_eq!(
        Mine { seed: 1, ..Mine::default() }.value(x, y).unwrap(),
        estimate.value,
        "the seed determines the estimate"
    );
}

/// The share of intervals that cover the true value.
fn coverage(runs: usize, exact: f64, mut run: impl FnMut(u64) -> Option<[f64; 2]>) -> f64 {
    let covered = (0..runs as u64).filter(|&s| run(s).is_some_and(|[a, b]| a <= exact && exact <= b)).count();
    covered as f64 / runs as f64
}

#[test]
fn nominal_ninety_percent_intervals_cover_between_eighty_and_ninety_eight() {
    let kl_exact = 1.3f64.ln() + (1.0 + 0.09) / (2.0 * 1.69) - 0.5;
    for (n, runs) in [(150, 200), (1000, 60)] {
        let kl = |estimator: &dyn Estimator| {
            coverage(runs, kl_exact, |seed| {
                let mut normal = Normal::new(1000 + seed);
                let p: Vec<f64> = normal.sample(n).iter().map(|x| x + 0.3).collect();
                let q: Vec<f64> = normal.sample(n).iter().map(|x| 1.3 * x).collect();
                estimator.estimate(Points::new(&p, 1), Points::new(&q, 1), seed).unwrap().interval
            })
        };
        let mi = |estimator: &dyn Estimator| {
            coverage(runs, gaussian_mi(1, 0.6), |seed| {
                let (x, y) = Normal::new(5000 + seed).pairs(n, 1, 0.6);
                estimator.estimate(Points::new(&x, 1), Points::new(&y, 1), seed).unwrap().interval
            })
        };
        let coverages = [
            ("knn", kl(&Knn::default())),
            ("gaussian kl", kl(&GaussianKl::plug_in())),
            ("ksg 1", mi(&Ksg::default())),
            ("ksg 2", mi(&Ksg::default().with_variant(Variant::Two))),
            ("gaussian mi", mi(&GaussianMi::default())),
            ("copula", mi(&GaussianMi::copula())),
        ];
        for (name, coverage) in coverages {
            println!("{name}, n = {n}: covers {coverage:.3}");
            assert!((0.8..=0.98).contains(&coverage), "{name}, n = {n}: covers {coverage}");
        }
    }
}

/// Random points: on a coarse grid with many ties, or continuous.
fn points(max_rows: usize) -> impl Strategy<Value = (Vec<f64>, usize)> {
    (1usize..6, 1usize..=max_rows, any::<bool>()).prop_flat_map(|(d, n, grid)| {
        let number = if grid { (-3i32..3).prop_map(f64::from).boxed() } else { (-1e3..1e3).boxed() };
        (prop::collection::vec(number, n * d), Just(d))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_tree_equals_brute_force_to_the_last_bit((data, d) in points(400), k in 1usize..20, strict in any::<bool>()) {
        let all = Points::new(&data, d);
        let queries = Points::new(&data[..data.len().div_ceil(2).next_multiple_of(d).min(data.len())], d);
        for norm in [Norm::Euclidean, Norm::Maximum] {
            let tree = Neighbours::with_search(all, norm, Search::Tree);
            let brute = Neighbours::with_search(all, norm, Search::Brute);
            let radii = brute.kth_distances(queries, k);
            prop_assert_eq!(&tree.kth_distances(queries, k), &radii);
            let (a, b) = (tree.counts_within(queries, &radii, strict), brute.counts_within(queries, &radii, strict));
            prop_assert_eq!(a, b);
        }
    }

    #[test]
    fn brute_force_equals_sorting((data, d) in points(60), k in 1usize..6) {
        let all = Points::new(&data, d);
        for norm in [Norm::Euclidean, Norm::Maximum] {
            let kth_distances = Neighbours::new(all, norm).kth_distances(all, k);
            for (i, kth) in kth_distances.into_iter().enumerate() {
                let differences = |j: usize| all.row(i).iter().zip(all.row(j)).map(|(a, b)| (a - b).abs());
                let mut distances: Vec<f64> = (0..all.len()).map(|j| match norm {
                    Norm::Euclidean => differences(j).map(|x| x * x).sum::<f64>().sqrt(),
                    Norm::Maximum => differences(j).fold(0.0, f64::max),
                }).collect();
                distances.sort_by(f64::total_cmp);
                prop_assert_eq!(kth, distances.get(k - 1).copied().unwrap_or(f64::INFINITY));
            }
        }
    }

    #[test]
    fn estimates_do_not_depend_on_the_order_of_rows(seed in 0u64..1000, n in 20usize..60, shift in 1usize..19) {
        let (x, y) = Normal::new(seed).pairs(n, 2, 0.5);
        let shifted = |v: &[f64]| [&v[2 * shift..], &v[..2 * shift]].concat();
        let (a, b) = (shifted(&x), shifted(&y));
        let (x, y, a, b) = (Points::new(&x, 2), Points::new(&y, 2), Points::new(&a, 2), Points::new(&b, 2));
        let close =
            |e: &dyn Estimator, one, other| (e.value(x, y).unwrap() - e.value(one, other).unwrap()).abs() < 1e-12;
        prop_assert!(close(&Knn::new(2), a, y) && close(&Knn::new(2), x, b));
        prop_assert!(close(&Ksg::new(2), a, b) && close(&Ksg::new(2).with_variant(Variant::Two), a, b));
        prop_assert!(close(&GaussianKl::plug_in(), a, b) && close(&GaussianKl::default(), a, b));
        prop_assert!(close(&GaussianMi::default(), a, b));
    }

    #[test]
    fn knn_is_invariant_to_rotations_and_scales_and_ksg_to_scales_of_marginals(
        seed in 0u64..1000, angle in 0.0..6.0f64, scale in 0.01..100.0f64, other in 0.01..100.0f64,
    ) {
        let (x, y) = Normal::new(seed).pairs(50, 2, 0.5);
        let moved = |v: &[f64]| -> Vec<f64> {
            v.chunks(2).flat_map(|p| {
                let (s, c) = angle.sin_cos();
                [scale * (c * p[0] - s * p[1]) + 3.0, scale * (s * p[0] + c * p[1]) - 7.0]
            }).collect()
        };
        let value = |e: &dyn Estimator, x: &[f64], y: &[f64]| e.value(Points::new(x, 2), Points::new(y, 2)).unwrap();
        let knn = Knn::new(3);
        prop_assert!((value(&knn, &x, &y) - value(&knn, &moved(&x), &moved(&y))).abs() < 1e-9);
        // Products with powers of two are exact. Rounding by other factors can reorder neighbours at equal distance.
        let times = |v: &[f64], s: f64| v.iter().map(|x| x * s).collect::<Vec<f64>>();
        for variant in [Variant::One, Variant::Two] {
            let ksg = Ksg::new(3).with_variant(variant);
            prop_assert_eq!(value(&ksg, &x, &y), value(&ksg, &times(&x, 1024.0), &times(&y, 0.125)));
            prop_assert!((value(&ksg, &x, &y) - value(&ksg, &times(&x, scale), &times(&y, other))).abs() < 0.03);
        }
        let gaussian = GaussianKl::default();
        prop_assert!((value(&gaussian, &x, &y) - value(&gaussian, &moved(&x), &moved(&y))).abs() < 1e-9);
        let gaussian = GaussianMi::default();
        prop_assert!((value(&gaussian, &x, &y) - value(&gaussian, &moved(&x), &times(&y, other))).abs() < 1e-9);
    }
}
