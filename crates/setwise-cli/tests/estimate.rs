//! `setwise kl` and `setwise mi` as a user runs them.

mod common;
#[path = "common/samples.rs"]
mod samples;

use std::path::Path;

use common::{refused, run, setwise};
use samples::{Samples, noise, normal, path};

fn json<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> serde_json::Value {
    let (code, out, error) = run(args);
    assert_eq!(code, 0, "{error}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn kl_prints_the_documented_json() {
    let s = Samples::new();
    let p = s.table("p.csv", 600, 2, normal);
    let q = s.table("q.csv", 500, 2, |i, c| 1.0 + normal(i, 10 + c));
    for method in ["knn", "gaussian"] {
        let answer = json([path("kl"), &p, &q, path("--method"), path(method), path("--json")]);
        let estimate = answer["estimate"].as_f64().unwrap();
        assert!((estimate - 1.0).abs() < 0.3, "{answer}");
        let (low, high) = (answer["interval"][0].as_f64().unwrap(), answer["interval"][1].as_f64().unwrap());
        assert!(low < estimate && estimate < high && high - low < 0.6, "{answer}");
        assert_eq!(answer["quantity"], "kl");
        assert_eq!(answer["unit"], "nats");
        assert_eq!(answer["level"], 0.9);
        assert_eq!(answer["n"], serde_json::json!([600, 500]));
        assert_eq!(answer["dim"], 2);
        assert!(answer["method"].as_str().unwrap().starts_with(method), "{answer}");
        assert_eq!(answer["interval_method"], "repeated disjoint subsamples");
        assert_eq!(answer["warnings"], serde_json::json!([]));
    }
}

#[test]
fn the_pretrained_estimator_is_the_default() {
    let s = Samples::new();
    let p = s.table("p.csv", 300, 2, normal);
    let q = s.table("q.csv", 200, 2, |i, c| 1.0 + normal(i, 10 + c));
    let answer = json([path("kl"), &p, &q, path("--json")]);
    assert_eq!((&answer["method"], &answer["level"]), (&"pretrained".into(), &0.9.into()));
    assert_eq!(answer["interval_method"], "calibrated quantiles");
    assert!(answer.get("fallback").is_none() && answer["warnings"] == serde_json::json!([]), "{answer}");
    let estimate = answer["estimate"].as_f64().unwrap();
    let (low, high) = (answer["interval"][0].as_f64().unwrap(), answer["interval"][1].as_f64().unwrap());
    assert!(0.0 <= low && low < estimate && estimate < high && low < 1.0 && high > 1.0, "{answer}");
    // Units and the number of threads do not change the estimate.
    let scaled = s.table("scaled.csv", 300, 2, |i, c| 5.0 - 1e3 * normal(i, c));
    let other = s.table("other.csv", 200, 2, |i, c| 5.0 - 1e3 * (1.0 + normal(i, 10 + c)));
    let same = json([path("kl"), &scaled, &other, path("--threads"), path("1"), path("--json")]);
    assert!((same["estimate"].as_f64().unwrap() - estimate).abs() < 1e-3, "{answer} and {same}");
    let few = s.table("few.csv", 20, 2, normal);
    let warned = json([path("kl"), &few, &q, path("--json")]);
    assert!(warned["warnings"][0].as_str().unwrap().contains("few.csv: has 20 rows"), "{warned}");
    assert_eq!(warned["fallback"]["method"], "knn, k = 3, canonical axes");
}

#[test]
fn the_same_seed_gives_the_same_answer_with_any_number_of_threads() {
    let s = Samples::new();
    let p = s.table("p.csv", 3000, 2, normal);
    let q = s.table("q.csv", 3000, 2, |i, c| normal(i, 10 + c));
    let with = |seed: &str, threads: &str| {
        let knn = [path("--method"), path("knn")];
        let options = [path("--seed"), path(seed), path("--threads"), path(threads), path("--json")];
        run([&[path("kl"), &p, &q], &knn[..], &options[..]].concat()).1
    };
    assert_eq!(with("3", "1"), with("3", "2"));
    assert_ne!(with("3", "1"), with("4", "1"));
}

#[test]
fn text_output_has_estimate_method_warnings_and_fallback() {
    let s = Samples::new();
    let p = s.table("p.csv", 200, 1, |i, _| (noise(i, 0) * 5.0).floor());
    let q = s.table("q.csv", 200, 1, |i, _| (noise(i, 1) * 5.0).floor());
    let (code, out, error) = run([path("kl"), &p, &q]);
    assert_eq!(code, 0, "{error}");
    assert!(out.starts_with("KL(P‖Q) = ") && out.contains("90 % interval"), "{out}");
    assert!(out.contains("rows 200 and 200, columns 1, method pretrained"), "{out}");
    assert!(out.contains("fallback, method knn, k = 3"), "{out}");
    assert!(out.contains("p.csv: 98 % of the values of column 1 (\"c0\") repeat another; they are spread"), "{out}");
}

#[test]
fn a_negative_estimate_is_reported_with_a_warning() {
    let s = Samples::new();
    let p = s.table("p.csv", 100, 1, |i, _| i as f64);
    let q = s.table("q.csv", 100, 1, |i, _| i as f64 + 0.25);
    let answer = json([path("kl"), &p, &q, path("--k"), path("1"), path("--json")]);
    assert!(answer["estimate"].as_f64().unwrap() < 0.0, "{answer}");
    let warnings = answer["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|w| w.as_str().unwrap().contains("estimate is negative")), "{answer}");
}

#[test]
fn mi_takes_two_files_or_one_file_and_two_dimensions() {
    let s = Samples::new();
    let x = |i: usize, c: usize| normal(i, c);
    let y = |i: usize| 0.8 * normal(i, 0) + 0.6 * normal(i, 20);
    let of_x = s.table("x.csv", 800, 2, x);
    let of_y = s.table("y.csv", 800, 1, |i, _| y(i));
    let both = s.table("both.csv", 800, 3, |i, c| if c < 2 { x(i, c) } else { y(i) });
    for method in ["ksg", "gaussian"] {
        let method = [path("--method"), path(method)];
        let two = json([&[path("mi"), &of_x, &of_y, path("--json")], &method[..]].concat());
        let one = json([&[path("mi"), &both, path("2"), path("1"), path("--json")], &method[..]].concat());
        assert_eq!(two["estimate"], one["estimate"]);
        assert_eq!((&two["dim"], &two["n"]), (&serde_json::json!([2, 1]), &serde_json::json!([800])));
        assert!((two["estimate"].as_f64().unwrap() - 0.51).abs() < 0.15, "{two}");
        let (code, plain, _) = run([&[path("mi"), &both, path("2"), path("1"), path("--plain")], &method[..]].concat());
        let plain: f64 = plain.trim().parse().unwrap();
        assert!(code == 0 && (plain - two["estimate"].as_f64().unwrap()).abs() < 1e-12, "{plain}, {two}");
    }
    let second = json([path("mi"), &of_x, &of_y, path("--variant"), path("2"), path("--k"), path("5"), path("--json")]);
    assert_eq!(second["method"], "ksg 2, k = 5");
    for option in ["--variant", "--k"] {
        let (code, _, stderr) =
            run([path("mi"), &of_x, &of_y, path("--method"), path("gaussian"), path(option), path("2")]);
        assert!(code == 2 && stderr.contains(&format!("{option} is for --method ksg")), "{stderr}");
    }
}

#[test]
fn mine_names_the_method_of_its_interval() {
    let s = Samples::new();
    let x = s.table("x.csv", 300, 1, |i, _| normal(i, 0));
    let y = s.table("y.csv", 300, 1, |i, _| normal(i, 0) + 0.3 * normal(i, 1));
    let answer = json([path("mi"), &x, &y, path("--method"), path("mine"), path("--json")]);
    let estimate = answer["estimate"].as_f64().unwrap();
    assert!((0.6..1.6).contains(&estimate), "{answer}");
    assert_eq!(answer["interval_method"], "standard error of the held-out bound");
}

#[test]
fn standard_input_can_be_only_one_sample() {
    let s = Samples::new();
    let p = s.table("p.csv", 50, 1, |i, _| noise(i, 0));
    let text = std::fs::read(&p).unwrap();
    let out = setwise().args([path("mi"), path("-"), &p]).write_stdin(text).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    assert!(refused(["kl", "-", "-"]).contains("standard input (-) can be only one of the samples"));
}

#[test]
fn samples_that_cannot_be_used_are_refused_by_file_row_and_column() {
    let s = Samples::new();
    let p = s.table("p.csv", 30, 2, noise);
    let wide = s.table("wide.csv", 30, 3, noise);
    let short = s.table("short.csv", 4, 2, noise);
    let constant = s.table("constant.csv", 30, 2, |i, c| if c == 1 { 7.0 } else { noise(i, 0) });
    let words = s.write("words.csv", "a,b\n1,2\n3,red\n");
    let same = s.table("same.csv", 30, 2, |_, _| 1.0);
    let refuses = |args: &[&Path], expected: &str| {
        let error = refused(args);
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    };
    let [kl, mi, method, gaussian] = ["kl", "mi", "--method", "gaussian"].map(path);
    refuses(&[kl, &p, &wide], "wide.csv has 3");
    refuses(&[kl, &p, &wide], "p.csv has 2 columns");
    refuses(&[kl, &short, &p, path("--k"), path("4")], "short.csv: has 4 rows, k = 4 needs at least 5");
    refuses(&[kl, &p, &words], "words.csv: line 3, column 2 (\"b\"): \"red\" is not a number");
    refuses(&[kl, &p, &constant, method, gaussian], "constant.csv: column 2 (\"c1\") holds one value only");
    refuses(&[mi, &constant, &p, method, gaussian], "constant.csv: column 2 (\"c1\") holds one value only");
    refuses(&[kl, &same, &p], "same.csv: all rows are one point");
    refuses(&[kl, &p, &p, path("--k"), path("0")], "k is 0");
    refuses(&[mi, &p, &short], "short.csv has 4: rows are pairs");
    refuses(&[mi, &short, &short, path("--k"), path("4")], "has 4 rows, k = 4 needs at least 5");
    refuses(&[mi, &same, &p], "same.csv: all rows are one point");
    refuses(&[mi, &short, &short, method, path("mine")], "MINE needs at least 20");
    refuses(&[mi, &p, &same, method, path("mine")], "same.csv: all rows are one point");
    refuses(
        &[mi, &wide, path("2"), path("2")],
        "wide.csv: has 3 columns, DIM_X and DIM_Y are 2 and 2; their sum must be 3",
    );
    refuses(
        &[mi, &constant, path("1"), path("1"), method, gaussian],
        "constant.csv (columns 2 to 2): column 1 (\"c1\") holds one value",
    );
    refuses(&[mi, &wide, path("two"), path("1")], "\"two\": is not a number of columns");
    refuses(&[mi, &p, &p, path("--variant"), path("3")], "--variant");
    refuses(&[kl, &p, path("missing.csv")], "missing.csv");
    // With a constant column neighbours are still defined; a warning names the column.
    let answer = json([kl, &constant, &p, path("--json")]);
    let text = answer["warnings"].to_string();
    assert!(text.contains(r#"constant.csv: column 2 (\"c1\") holds one value only"#), "{answer}");
}

#[test]
fn a_column_that_counts_rows_is_a_warning_and_headers_of_x_and_y_may_differ() {
    let s = Samples::new();
    let rows: String = (0..40).map(|i| format!("{i},{}\n", noise(i, 0))).collect();
    let (x, y) = (s.write("x.csv", format!("row,height\n{rows}")), s.table("y.csv", 40, 2, noise));
    let warnings = |args: &[&Path]| json(args)["warnings"].to_string();
    let [mi, as_json] = ["mi", "--json"].map(path);
    let text = warnings(&[mi, &x, &y, as_json]);
    assert!(
        text.contains(r#"x.csv: column 1 (\"row\") counts the rows"#) && !text.contains("compared by position"),
        "{text}"
    );
    let text = warnings(&[mi, &x, path("1"), path("1"), as_json]);
    assert!(text.contains(r#"x.csv (columns 1 to 1): column 1 (\"row\") counts the rows"#), "{text}");
}

#[test]
fn the_readme_shows_the_output_of_kl_and_mi() {
    let readme = include_str!("../../../README.md");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/samples");
    let [p, q, x, y] = ["p.csv", "q.csv", "x.csv", "y.csv"].map(|f| examples.join(f));
    for args in [vec![path("kl"), &p, &q], vec![path("mi"), &x, &y, path("--method"), path("gaussian")]] {
        let (code, out, error) = run(args);
        assert_eq!(code, 0, "{error}");
        assert!(readme.contains(&out), "the README lacks {out}");
    }
}

#[test]
fn stacks_of_examples_are_refused() {
    let s = Samples::new();
    let mut header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 1), }".to_owned();
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..6).flat_map(|i| (i as f32).to_le_bytes()));
    let stack = s.write("stack.npy", bytes);
    let error = refused([path("kl"), &stack, &stack]);
    assert!(error.contains("stack.npy: holds a stack of 2 examples; give one sample [rows, columns]"), "{error}");
}
