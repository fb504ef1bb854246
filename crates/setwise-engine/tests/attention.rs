//! Attention for any set size and head width against the textbook, and its f32 gradients against f64 gradients.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use setwise_engine::*;

/// Uniform in [−½, ½).
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    (0..n).map(|_| rng.random::<f32>() - 0.5).collect()
}

/// Attention of one example as the textbook has it, for rows of `dims` times `heads` chunks of four.
fn textbook(q: &[f32], kv: &[f32], dims: usize, heads: usize, scale: f64) -> Vec<f64> {
    let cols = 4 * heads;
    let keys = kv.len() / (2 * dims * cols);
    let mut out = vec![0.0; q.len()];
    for (i, row) in q.chunks_exact(dims * cols).enumerate() {
        for h in 0..heads {
            let columns = || (0..dims).flat_map(|c| (0..4).map(move |l| (c, h * 4 + l)));
            let at = |j: usize, c: usize, e: usize| f64::from(kv[(j * dims + c) * 2 * cols + e]);
            let score = |j| columns().map(|(c, e)| f64::from(row[c * cols + e]) * at(j, c, e)).sum::<f64>() * scale;
            let scores: Vec<f64> = (0..keys).map(score).collect();
            let largest = scores.iter().fold(f64::MIN, |a, &s| a.max(s));
            let powers: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let total: f64 = powers.iter().sum();
            for (c, e) in columns() {
                let sum: f64 = powers.iter().enumerate().map(|(j, p)| p * at(j, c, cols + e)).sum();
                out[(i * dims + c) * cols + e] = sum / total;
            }
        }
    }
    out
}

/// Two sets, the queries' rows of 8 numbers a dimension and the keys' of 16, in two heads.
fn program(mode: Mode, scale: f64) -> Program {
    let heads = 2;
    let mut b = Program::builder(&[8, 16], true, mode, mode == Mode::Train);
    let (q, kv) = (b.input(0), b.input(1));
    let out = b.fresh(Space::Set(0), 8, true);
    let stats = b.saved(Space::Set(0), 2 * heads, false);
    let slice = |value, col| Slice { value, col, cols: 8 };
    let relation = Relation { query: slice(q, 0), key: slice(kv, 0), value: slice(kv, 8), out: slice(out, 0), stats };
    b.op(Op::Attention(Attention { relations: vec![relation], heads, scale }));
    b.finish(vec![out])
}

/// Offsets of the rows of examples.
fn offsets(sizes: &[(usize, usize)], of: fn(&(usize, usize)) -> usize) -> Vec<usize> {
    (0..=sizes.len()).map(|n| sizes[..n].iter().map(of).sum()).collect()
}

/// Gradients of both inputs.
fn gradients<T: Compiled>(sizes: &[(usize, usize)], dims: usize, scale: f64) -> [Vec<f64>; 2] {
    let (queries, keys) = (offsets(sizes, |s| s.0), offsets(sizes, |s| s.1));
    let [q, kv, d] = [queries[sizes.len()] * 8, keys[sizes.len()] * 16, queries[sizes.len()] * 8].map(|n| n * dims);
    let real = |n, seed| numbers(n, seed).into_iter().map(|x| T::from_f64(x.into())).collect::<Vec<T>>();
    let (q, kv, d) = (real(q, 1), real(kv, 2), real(d, 3));
    let mut cpu = Cpu::<T>::new(program(Mode::Train, scale));
    let sets = vec![
        SetView { data: &q, width: dims * 8, offsets: &queries },
        SetView { data: &kv, width: dims * 16, offsets: &keys },
    ];
    cpu.forward(&[], &BatchView { sets }).unwrap();
    cpu.backward(&[], &[&d], &mut []).unwrap();
    [0, 1].map(|k| cpu.input_grad(k).unwrap().iter().map(|x| x.to_f64()).collect())
}

#[test]
fn f32_gradients_match_f64_gradients_for_any_head_width() {
    let sizes = [(5, 3), (40, 130), (16, 70), (33, 1), (1, 90)];
    for dims in [1, 2, 3, 4, 5, 8, 17] {
        for scale in [0.3, 20.0] {
            let (single, double) = (gradients::<f32>(&sizes, dims, scale), gradients::<f64>(&sizes, dims, scale));
            for (single, double) in single.iter().zip(&double) {
                let largest = double.iter().fold(0.0f64, |a, x| a.max(x.abs()));
                for (x, y) in single.iter().zip(double) {
                    assert!((x - y).abs() < 1e-4 * largest, "{dims} dimensions, scale {scale}: {x} and {y}");
                }
            }
        }
    }
}

#[test]
fn attention_matches_the_textbook_for_small_and_large_scores_and_any_sizes() {
    let heads = 2;
    let sizes = [(5, 3), (40, 130), (16, 300), (260, 1), (270, 30), (3, 4100)];
    for (dims, scale) in [(1, 0.5), (1, 200.0), (3, 0.5), (3, 100.0), (4, 1.0)] {
        let mut cpu = Cpu::<f32>::new(program(Mode::Infer, scale));
        let (queries, keys) = (offsets(&sizes, |s| s.0), offsets(&sizes, |s| s.1));
        let q = numbers(queries[sizes.len()] * dims * 8, 1);
        let kv = numbers(keys[sizes.len()] * dims * 16, 2);
        let sets = vec![
            SetView { data: &q, width: dims * 8, offsets: &queries },
            SetView { data: &kv, width: dims * 16, offsets: &keys },
        ];
        cpu.forward(&[], &BatchView { sets }).unwrap();
        let found = cpu.output(0);
        for e in 0..sizes.len() {
            let rows = queries[e] * dims * 8..queries[e + 1] * dims * 8;
            let kv = &kv[keys[e] * dims * 16..keys[e + 1] * dims * 16];
            let exact = textbook(&q[rows.clone()], kv, dims, heads, scale);
            for (x, y) in found[rows].iter().zip(&exact) {
                assert!((f64::from(*x) - y).abs() < 2e-5, "{dims} dimensions, scale {scale}: {x} and {y}");
            }
        }
    }
}

#[test]
fn narrower_vectors_pass_the_same_tests() {
    setwise_engine::simd::test_with_narrower_vectors("");
}
