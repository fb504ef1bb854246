//! `setwise test` as a user runs it.

mod common;
#[path = "common/samples.rs"]
mod samples;

use common::{refused, run};
use samples::{Samples, normal, path};
use serde_json::Value;

fn ok<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let (code, out, error) = run(args);
    assert_eq!(code, 0, "{error}");
    out
}

#[test]
fn different_samples_have_a_small_p_value_and_equal_ones_do_not() {
    let s = Samples::new();
    let p = s.table("p.csv", 150, 2, normal);
    let same = s.table("same.csv", 120, 2, |i, c| normal(i, 10 + c));
    let other = s.table("other.csv", 120, 2, |i, c| normal(i, 20 + c) + 0.7);
    for method in ["energy", "mmd"] {
        let answer = |q| -> Value {
            let out = ok([path("test"), &p, q, path("--method"), path(method), path("--json")]);
            serde_json::from_str(&out).unwrap()
        };
        let answer_same = answer(&same);
        assert!(answer_same["p_value"].as_f64().unwrap() > 0.05, "{answer_same}");
        let answer = answer(&other);
        assert_eq!(answer["p_value"], 0.001);
        assert_eq!((&answer["as_large"], &answer["permutations"]), (&0.into(), &999.into()));
        assert!(answer["statistic"].as_f64().unwrap() > 0.05, "{answer}");
        assert_eq!((&answer["quantity"], &answer["dim"]), (&"test".into(), &2.into()));
        assert_eq!(answer["n"], serde_json::json!([150, 120]));
        assert!(answer["method"].as_str().unwrap().starts_with(method), "{answer}");
        assert_eq!(answer["warnings"], serde_json::json!([]));
    }
}

#[test]
fn the_same_seed_gives_the_same_answer_with_any_number_of_threads() {
    let s = Samples::new();
    let p = s.table("p.csv", 200, 2, normal);
    let q = s.table("q.csv", 200, 2, |i, c| normal(i, 10 + c) + 0.1);
    let with = |seed: &str, threads: &str| {
        ok([path("test"), &p, &q, path("--seed"), path(seed), path("--threads"), path(threads), path("--json")])
    };
    assert_eq!(with("3", "1"), with("3", "2"));
    assert_ne!(with("3", "1"), with("4", "1"));
}

#[test]
fn text_output_begins_with_the_p_value_and_ends_with_warnings() {
    let s = Samples::new();
    let p = s.table("p.csv", 300, 1, normal);
    let q = s.table("q.csv", 40, 1, |i, c| normal(i, 10 + c) + 2.0);
    let out = ok([path("test"), &p, &q, path("--rows"), path("100"), path("--permutations"), path("99")]);
    assert!(out.starts_with("p = 0.01: P and Q differ (permutation test, energy distance)\nstatistic "), "{out}");
    assert!(out.contains(", reached by 0 of 99 permutations\nrows 300 and 40, columns 1\nwarning: "), "{out}");
    assert!(out.contains("p.csv: 100 of 300 rows of P are used"), "{out}");
    let same = s.table("same.csv", 40, 1, |i, c| normal(i, 20 + c));
    let out = ok([path("test"), &p, &same]);
    assert!(out.contains(": no evidence that P and Q differ (permutation test, energy distance)\n"), "{out}");
}

#[test]
fn samples_and_options_that_cannot_be_tested_are_refused_by_name() {
    let s = Samples::new();
    let p = s.table("p.csv", 30, 2, normal);
    let three = s.table("three.csv", 30, 3, normal);
    let one = s.table("one.csv", 1, 2, normal);
    let refuses = |args: &[&std::path::Path], expected: &str| {
        let error = refused([&[path("test")], args].concat());
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    };
    refuses(&[&p, &three], "three.csv has 3");
    refuses(&[&p, &one], "one.csv: has 1 rows, a two-sample test needs at least 2");
    refuses(&[&p, &p, path("--permutations"), path("0")], "1 to 100000");
    refuses(&[&p, &p, path("--bandwidth"), path("1")], "--bandwidth is for --method mmd");
    refuses(&[&p, &p, path("--method"), path("mmd"), path("--bandwidth"), path("0")], "must be positive");
    refuses(&[&p, path("missing.csv")], "missing.csv");
}

#[test]
fn the_readme_shows_the_output_of_test() {
    let readme = include_str!("../../../README.md");
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/samples");
    let out = ok([path("test"), &examples.join("p.csv"), &examples.join("q.csv")]);
    assert!(readme.contains(&out), "the README lacks {out}");
}
