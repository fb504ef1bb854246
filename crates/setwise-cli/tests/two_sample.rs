//! `setwise test` as a user runs it.

mod common;
#[path = "common/samples.rs"]
mod samples;

use common::{refused, run};
use samples::{Samples, noise, normal, path};
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
    for method in ["adaptive", "energy", "mmd"] {
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
    let energy = [path("--method"), path("energy")];
    let few = [path("--rows"), path("100"), path("--permutations"), path("99")];
    let out = ok([&[path("test"), &p, &q][..], &energy, &few].concat());
    assert!(out.starts_with("p = 0.01: P and Q differ (permutation test, energy distance)\nstatistic "), "{out}");
    assert!(out.contains(", reached by 0 of 99 permutations\nrows 300 and 40, columns 1\nwarning: "), "{out}");
    assert!(out.contains("p.csv: 100 of 300 rows of P are used"), "{out}");
    let same = s.table("same.csv", 40, 1, |i, c| normal(i, 20 + c));
    let out = ok([&[path("test"), &p, &same][..], &energy].concat());
    assert!(out.contains(": no evidence that P and Q differ (permutation test, energy distance)\n"), "{out}");
}

#[test]
fn an_adaptive_test_says_what_differs_and_how_much() {
    let s = Samples::new();
    let p = s.table("p.csv", 300, 3, normal);
    let q = s.table("q.csv", 300, 3, |i, c| normal(i, 10 + c) * if c == 1 { 1.6 } else { 1.0 });
    let out = ok([path("test"), &p, &q]);
    assert!(out.starts_with("p = 0.001: P and Q differ (permutation test, adaptive)\n"), "{out}");
    assert!(out.contains("\n  spread of c1, p = 0.001\n"), "{out}");
    let json: Value = serde_json::from_str(&ok([path("test"), &p, &q, path("--json")])).unwrap();
    assert_eq!((&json["significant"], &json["alpha"]), (&true.into(), &0.05.into()));
    let (auc, interval) = (json["auc"].as_f64().unwrap(), &json["interval"]);
    assert!(auc > 0.53 && interval[0].as_f64().unwrap() < auc && auc < interval[1].as_f64().unwrap(), "{json}");
    assert_eq!(json["findings"][0]["columns"], serde_json::json!(["c1"]), "{json}");
    // A level below the smallest p-value.
    let strict: Value =
        serde_json::from_str(&ok([path("test"), &p, &q, path("--alpha"), path("0.0005"), path("--json")])).unwrap();
    assert_eq!(strict["significant"], false);
}

#[test]
fn tables_of_mixed_columns_are_tested() {
    let s = Samples::new();
    let table = |name: &str, stream: usize, oslo: f64| {
        let row = |i: usize| {
            let town = if noise(i, stream) < oslo { "Oslo" } else { "Rome" };
            let age = if noise(i, stream + 1) < 0.1 { String::new() } else { format!("{:.1}", normal(i, stream + 2)) };
            format!("{},{town},{age}\n", stream * 1000 + i)
        };
        s.write(name, "id,town,age\n".to_owned() + &(0..300).map(row).collect::<String>())
    };
    let (p, q, same) = (table("p.csv", 1, 0.5), table("q.csv", 11, 0.8), table("same.csv", 21, 0.5));
    let out = ok([path("test"), &p, &q]);
    assert!(out.contains("P and Q differ") && out.contains("town=Oslo"), "{out}");
    assert!(out.contains("rows 300 and 300, columns 3\n"), "{out}");
    assert!(out.contains("warning: column \"id\" identifies rows and is left out"), "{out}");
    let out = ok([path("test"), &p, &same]);
    assert!(out.contains("no evidence"), "{out}");
    let out = ok([path("test"), &p, &q, path("--drop"), path("town")]);
    assert!(out.contains("no evidence"), "{out}");
}

#[test]
fn pairs_and_blocks_take_differences_of_subjects_and_sites_away() {
    let s = Samples::new();
    // Subjects differ far more than before and after.
    let p = s.table("p.csv", 100, 1, |i, c| 10.0 * normal(i, c));
    let q = s.table("q.csv", 100, 1, |i, c| 10.0 * normal(i, c) + 0.5 + 0.3 * normal(i, 5));
    assert!(ok([path("test"), &p, &q]).contains("no evidence"));
    let out = ok([path("test"), &p, &q, path("--paired")]);
    assert!(out.starts_with("p = 0.001: P and Q differ"), "{out}");
    let error = refused([path("test"), &p, &s.table("short.csv", 50, 1, normal), path("--paired")]);
    assert!(error.contains("row i of one belongs to row i of the other"), "{error}");
    // Sites differ, and the samples have different shares of them.
    let sites = |name: &str, stream: usize, north: f64, shift: f64| {
        let row = |i: usize| {
            let site = if noise(i, stream) < north { "north" } else { "south" };
            let x = normal(i, stream + 1) + shift + if site == "north" { 5.0 } else { 0.0 };
            format!("{site},{x:.3}\n")
        };
        s.write(name, "site,x\n".to_owned() + &(0..200).map(row).collect::<String>())
    };
    let (a, b, c) = (sites("a.csv", 1, 0.3, 0.0), sites("b.csv", 11, 0.7, 0.0), sites("c.csv", 21, 0.7, 1.0));
    let blocks = [path("--blocks"), path("site")];
    assert!(ok([path("test"), &a, &b]).contains("P and Q differ"));
    assert!(ok([&[path("test"), &a, &b][..], &blocks].concat()).contains("no evidence"));
    assert!(ok([&[path("test"), &a, &c][..], &blocks].concat()).contains("P and Q differ"));
    let error = refused([path("test"), &a, &b, path("--blocks"), path("town")]);
    assert!(error.contains("\"town\""), "{error}");
}

#[test]
fn three_samples_are_tested_together_and_in_pairs() {
    let s = Samples::new();
    let [a, b] =
        [("a.csv", 1), ("b.csv", 31)].map(|(name, stream)| s.table(name, 150, 2, |i, c| normal(i, stream + c)));
    let c = s.table("c.csv", 150, 2, |i, c| normal(i, 21 + c) + if c == 1 { 0.9 } else { 0.0 });
    let out = ok([path("test"), &a, &b, &c]);
    assert!(out.starts_with("p = 0.001: the samples differ (permutation test, adaptive)\n"), "{out}");
    assert!(out.contains("adjusted") && out.contains("rows 150, 150, 150, columns 2\n"), "{out}");
    let json: Value = serde_json::from_str(&ok([path("test"), &a, &b, &c, path("--json")])).unwrap();
    let significant: Vec<bool> =
        json["pairs"].as_array().unwrap().iter().map(|pair| pair["significant"].as_bool().unwrap()).collect();
    assert_eq!(significant, [false, true, true], "{json}");
    let error = refused([path("test"), &a, &b, &c, path("--method"), path("energy")]);
    assert!(error.contains("3 samples: tests of one kernel are for two"), "{error}");
    let text = s.write("text.csv", "c0,c1\na,1\nb,2\n");
    let error = refused([path("test"), &a, &b, &text]);
    assert!(error.contains("column \"c0\" holds numbers in") && error.contains("--as COLUMN=TYPE"), "{error}");
}

#[test]
fn a_list_of_pairs_is_tested() {
    let s = Samples::new();
    s.table("a.csv", 100, 1, normal);
    s.table("b.csv", 100, 1, |i, c| normal(i, 10 + c));
    s.table("c.csv", 100, 1, |i, c| normal(i, 20 + c) + 1.0);
    let list = s.write("list.csv", "a.csv,b.csv\na.csv,c.csv\n");
    let out = ok([path("test"), path("--pairs"), &list]);
    assert!(out.starts_with("Different: 1 of 2 pairs.\n"), "{out}");
    let out = s.0.path().join("out.csv");
    let lines = ok([path("test"), path("--pairs"), &list, path("--json"), path("-o"), &out]);
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((&last["line"], &last["q"], &last["p_value"]), (&2.into(), &"c.csv".into(), &0.001.into()));
    assert_eq!(std::fs::read_to_string(out).unwrap().lines().count(), 3);
    let list = s.write("bad.csv", "a.csv,b.csv\na.csv,none.csv\n");
    let (code, out, error) = run([path("test"), path("--pairs"), &list]);
    assert!(code == 2 && out.starts_with("Different: 0 of 2 pairs."), "{code} {out}");
    assert!(error.contains("1 of 2 pairs cannot be tested; the first, line 2: "), "{error}");
}

#[test]
fn mutual_information_comes_with_a_test_of_independence() {
    let s = Samples::new();
    let x = s.table("x.csv", 200, 1, normal);
    let y = s.table("y.csv", 200, 1, |i, c| normal(i, c).powi(2) + normal(i, 10));
    let other = s.table("other.csv", 200, 1, |i, _| normal(i, 20));
    let out = ok([path("mi"), &x, &y, path("--test")]);
    assert!(out.contains("p = 0.001: X and Y depend on each other (permutation test, adaptive)\n"), "{out}");
    assert!(out.contains("  dependence of "), "{out}");
    let json = |y: &std::path::Path| -> Value {
        serde_json::from_str(&ok([
            path("mi"),
            &x,
            y,
            path("--test"),
            path("--permutations"),
            path("99"),
            path("--json"),
        ]))
        .unwrap()
    };
    let found = json(&y);
    assert_eq!((&found["quantity"], &found["test"]["p_value"]), (&"mi".into(), &0.01.into()));
    assert_eq!(json(&other)["test"]["significant"], false);
}

#[test]
fn samples_and_options_that_cannot_be_tested_are_refused_by_name() {
    let s = Samples::new();
    let p = s.table("p.csv", 30, 2, normal);
    let two = s.write("2.csv", "1.5,2.5\n2.5,0.5\n");
    let three = s.write("3.csv", "1.5,2.5,3.5\n2.5,0.5,1.5\n");
    let one = s.table("one.csv", 1, 2, normal);
    let refuses = |args: &[&std::path::Path], expected: &str| {
        let error = refused([&[path("test")], args].concat());
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    };
    refuses(&[&two, &three], "3.csv has 3");
    refuses(&[&p, &s.write("other.csv", "x,y\n1,2\n3,5\n")], "no column in common");
    refuses(&[&p, &one], "one.csv: has 1 rows, a test of samples needs at least 2");
    refuses(&[&p, &p, path("--permutations"), path("0")], "1 to 100000");
    refuses(&[&p, &p, path("--alpha"), path("0")], "alpha: is 0");
    refuses(&[&p, &p, path("--bandwidth"), path("1")], "--bandwidth is for --method mmd");
    refuses(&[&p, &p, path("--device"), path("cuda")], "--device is for --method energy and mmd");
    refuses(&[&p, &p, path("--method"), path("mmd"), path("--device"), path("tpu")], "there are cpu, cuda and cuda:N");
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
