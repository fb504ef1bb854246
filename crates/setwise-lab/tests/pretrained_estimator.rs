//! The pretrained KL estimator on samples of very different distributions.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use setwise::Result;
use setwise::estimate::{Answer, Estimator, Knn, Points, Pretrained};
use setwise::random::Generator;
use setwise_lab::samplers::BroadPairs;

fn samples(dim: usize, n: usize, m: usize, seed: u64) -> (Vec<f64>, Vec<f64>) {
    let mut rng = Generator::seed_from_u64(seed);
    let pair = BroadPairs { max_divergence: 10.0 }.pair(dim, &mut rng);
    let (mut p, mut q) = (Vec::new(), Vec::new());
    pair.sample_p(n, &mut rng, &mut p);
    pair.sample_q(m, &mut rng, &mut q);
    (p, q)
}

fn answer(estimator: &Pretrained, p: Points, q: Points) -> Result<Answer> {
    estimator.answers(&[(p, q)]).remove(0)
}

#[test]
fn affine_maps_keep_estimates_in_their_intervals_and_scales_and_the_order_of_rows_change_nothing() {
    let estimator = Pretrained::built_in().unwrap();
    let mut rng = Generator::seed_from_u64(1);
    for (dim, n, m) in [(1, 60, 90), (2, 200, 150), (3, 700, 300), (5, 120, 120), (16, 300, 80)] {
        let (p, q) = samples(dim, n, m, dim as u64);
        let matrix: Vec<f64> = (0..dim * dim).map(|_| rng.random::<f64>() - 0.5).collect();
        let shift: Vec<f64> = (0..dim).map(|_| 100.0 * rng.random::<f64>()).collect();
        let map = |rows: &[f64], order: &[usize], mixed: bool| -> Vec<f64> {
            let image = |r: &[f64], i: usize| {
                let dot: f64 = r.iter().zip(&matrix[i * dim..]).map(|(x, m)| x * m).sum();
                10.0 * (if mixed { dot } else { 0.0 } + 1.5 * r[i]) + shift[i]
            };
            order
                .iter()
                .flat_map(|&k| (0..dim).map(move |i| (k, i)))
                .map(|(k, i)| image(&rows[k * dim..][..dim], i))
                .collect()
        };
        let mut orders = [(0..n).collect::<Vec<_>>(), (0..m).collect()];
        orders.iter_mut().for_each(|o| o.shuffle(&mut rng));
        let (a, ia) = answer(&estimator, Points::new(&p, dim), Points::new(&q, dim)).unwrap();
        for mixed in [false, true] {
            let (p2, q2) = (map(&p, &orders[0], mixed), map(&q, &orders[1], mixed));
            let (b, ib) = answer(&estimator, Points::new(&p2, dim), Points::new(&q2, dim)).unwrap();
            let near = |a: f64, b: f64| (a - b).abs() < 1e-3 * (1.0 + a);
            let within = |a: f64, [low, high]: [f64; 2]| (low..=high).contains(&a);
            let agree = match mixed {
                // Trees split columns and the selection chooses among them, so that mixed columns move the estimate.
                true => within(a, ib) && within(b, ia),
                false => near(a, b) && near(ia[0], ib[0]) && near(ia[1], ib[1]),
            };
            assert!(agree, "d = {dim}: {a} {ia:?} and {b} {ib:?}");
        }
    }
}

#[test]
fn estimates_of_a_batch_equal_those_of_its_pairs() {
    let estimator = Pretrained::built_in().unwrap();
    let data: Vec<_> = (0..9).map(|i| samples(1 + i % 3, 40 + 60 * i, 50 + 30 * i, i as u64)).collect();
    let mut pairs: Vec<(Points, Points)> = Vec::new();
    for (i, (p, q)) in data.iter().enumerate() {
        pairs.push((Points::new(p, 1 + i % 3), Points::new(q, 1 + i % 3)));
    }
    let few = [1.0, 2.0, 3.0];
    pairs.insert(4, (Points::new(&few, 1).named("few.csv"), Points::new(&few, 1)));
    let together = estimator.estimates(&pairs, 0);
    for (i, (answer, &(p, q))) in together.iter().zip(&pairs).enumerate() {
        match answer {
            Err(e) => assert!(i == 4 && e.to_string().starts_with("few.csv: has 3 rows"), "{e}"),
            Ok(e) => {
                let alone = estimator.value(p, q).unwrap();
                assert!((e.value - alone).abs() < 1e-5 * (1.0 + alone), "{} and {alone}", e.value);
                let [low, high] = e.interval.unwrap();
                assert!(0.0 <= low && low <= e.value && e.value <= high);
            }
        }
    }
}

#[test]
fn duplicate_rows_change_an_estimate_no_more_than_their_removal() {
    let estimator = Pretrained::built_in().unwrap();
    let mut rng = Generator::seed_from_u64(2);
    for dim in [1, 3, 8] {
        let (p, q) = samples(dim, 300, 300, 10 + dim as u64);
        let value = |p: &[f64], q: &[f64]| answer(&estimator, Points::new(p, dim), Points::new(q, dim)).unwrap();
        let (plain, [low, high]) = value(&p, &q);
        let (few, _) = value(&[&p[..], &p[..15 * dim]].concat(), &[&q[..], &q[..15 * dim]].concat());
        let (twice, _) = value(&p.repeat(2), &q.repeat(2));
        for found in [few, twice] {
            assert!((found - plain).abs() < 1e-3 * (1.0 + plain), "d = {dim}: {found}, not {plain}");
        }
        let mut drawn = |rows: &[f64]| -> Vec<f64> {
            (0..300).flat_map(|_| rows[rng.random_range(0..300) * dim..][..dim].to_vec()).collect()
        };
        let (found, _) = value(&drawn(&p), &drawn(&q));
        assert!(low - 0.3 < found && found < 1.5 * high + 0.3, "d = {dim}: {found}, not {plain}");
        assert!(value(&p.repeat(2), &p.repeat(2)).0 < 0.1);
    }
}

#[test]
fn the_divergence_of_integers_is_that_of_their_frequencies() {
    let estimator = Pretrained::built_in().unwrap();
    let mut rng = Generator::seed_from_u64(3);
    // Binomial numbers of four trials, with probabilities one half and three quarters.
    let mut binomial = |chance: f64| -> Vec<f64> {
        (0..2 * 400).map(|_| (0..4).filter(|_| rng.random_bool(chance)).count() as f64).collect()
    };
    let (p, q) = (binomial(0.5), binomial(0.75));
    // A trial has the divergence ½ ln(½/¾) + ½ ln(½/¼), and there are eight.
    let exact = 4.0 * (0.5f64 / 0.75).ln() + 4.0 * 2.0f64.ln();
    let (found, [low, high]) = answer(&estimator, Points::new(&p, 2), Points::new(&q, 2)).unwrap();
    assert!(low < exact && exact < high, "{found} in {low} to {high}, not {exact}");
}

#[test]
fn estimates_of_large_samples_do_not_depend_on_the_order_of_rows() {
    let estimator = Pretrained::built_in().unwrap();
    let mut rng = Generator::seed_from_u64(4);
    let (n, m) = (20_000, 9_000);
    let law = |shift: f64, n: usize, rng: &mut Generator| -> Vec<f64> {
        (0..n).map(|_| (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0 + shift).collect()
    };
    let (mut p, q) = (law(0.0, n, &mut rng), law(1.0, m, &mut rng));
    let (a, [low, high]) = answer(&estimator, Points::new(&p, 1), Points::new(&q, 1)).unwrap();
    assert!(low < 0.5 && 0.5 < high && high - low < 0.2, "{a} in {low} to {high}");
    p.shuffle(&mut rng);
    let b = estimator.value(Points::new(&p, 1), Points::new(&q, 1)).unwrap();
    assert!((a - b).abs() < 1e-4, "{a} and {b}");
    let same = law(0.0, n, &mut rng);
    let (_, [low, _]) = answer(&estimator, Points::new(&p, 1), Points::new(&same, 1)).unwrap();
    assert_eq!(low, 0.0);
}

#[test]
fn knn_takes_over_unfit_samples_and_large_estimates_are_bounds_in_the_trained_ranges_only() {
    let estimator = Pretrained::built_in().unwrap();
    let warnings_of = |dim: usize, rows: usize| {
        let (p, q) = samples(dim, rows, 100, 5);
        let (p, q) = (Points::new(&p, dim).named("p.csv"), Points::new(&q, dim).named("q.csv"));
        let (e, other) = (estimator.estimate(p, q, 3).unwrap(), Knn::default().estimate(p, q, 3).unwrap());
        assert_eq!((&e.method, e.value, e.interval), (&other.method, other.value, other.interval));
        assert_eq!(estimator.value(p, q).unwrap(), other.value);
        e.warnings[0].clone()
    };
    assert!(
        warnings_of(33, 100)
            .starts_with("p.csv and q.csv have 33 columns that vary; the pretrained estimator takes at most 32")
    );
    let text = warnings_of(20, 29);
    assert!(text.starts_with("p.csv: has 29 different rows") && text.contains("at least 30"), "{text}");
    let far = |dim: usize| {
        let (p, q) = samples(dim, 200, 200, 5);
        let q: Vec<f64> = q.iter().map(|x| x + 1e3).collect();
        estimator.estimate(Points::new(&p, dim), Points::new(&q, dim), 0).unwrap().warnings.join("; ")
    };
    assert!(far(3).contains("of the trained range"), "{}", far(3));
    assert!(far(20).contains("nats") && !far(20).contains("at least 24"), "{}", far(20));
    // Constant columns do not count.
    let (p, q) = samples(16, 100, 100, 6);
    let wide = |rows: &[f64]| -> Vec<f64> { rows.chunks(16).flat_map(|r| [r, &[5.0]].concat()).collect() };
    let e = estimator.estimate(Points::new(&wide(&p), 17), Points::new(&wide(&q), 17), 0).unwrap();
    assert_eq!(e.warnings, ["column 17 holds one value only and has no influence"]);
}

#[test]
fn samples_outside_the_trained_ranges_get_a_warning_and_a_fallback_estimate() {
    let estimator = Pretrained::built_in().unwrap();
    let warnings_of = |p: &[f64], q: &[f64], dim: usize| {
        let e = estimator.estimate(Points::new(p, dim).named("p.csv"), Points::new(q, dim), 0).unwrap();
        (e.warnings.join("; "), e.fallback.is_some())
    };
    let (p, q) = samples(20, 120, 100, 3);
    let (text, fallback) = warnings_of(&p, &q, 20);
    assert!(text.contains("20 columns") && text.contains("at most 16") && fallback, "{text}");
    let (p, q) = samples(2, 12, 100, 3);
    let (text, fallback) = warnings_of(&p, &q, 2);
    assert!(text.contains("p.csv: has 12 rows") && fallback, "{text}");
    let (mut p, q) = samples(2, 100, 100, 4);
    p.iter_mut().skip(1).step_by(2).for_each(|x| *x = x.round());
    let (text, fallback) = warnings_of(&p, &q, 2);
    assert!(text.contains("of the values of column 2 repeat") && fallback, "{text}");
    p.iter_mut().skip(1).step_by(2).for_each(|x| *x = 7.0);
    let (text, _) = warnings_of(&p, &q, 2);
    assert!(text.contains("column 2 holds one value only"), "{text}");
    let (p, q) = samples(3, 100, 100, 5);
    assert_eq!(warnings_of(&p, &q, 3), (String::new(), false));
    let far: Vec<f64> = q.iter().map(|x| x + 1e4).collect();
    let (text, _) = warnings_of(&p, &far, 3);
    assert!(text.contains("nats"), "{text}");
}
