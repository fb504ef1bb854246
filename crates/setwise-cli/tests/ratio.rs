//! `setwise ratio` as a user runs it.

mod common;
#[path = "common/samples.rs"]
mod samples;

use common::{refused, run};
use samples::{Samples, normal, path};
use serde_json::Value;

/// Numbers of a file with the columns sample, row and log_ratio.
fn ratios(text: &str) -> Vec<(String, usize, f64)> {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("sample,row,log_ratio"));
    let row = |line: &str| {
        let parts: Vec<&str> = line.split(',').collect();
        (parts[0].to_owned(), parts[1].parse().unwrap(), parts[2].parse().unwrap())
    };
    lines.map(row).collect()
}

#[test]
fn every_row_of_both_samples_has_a_log_ratio() {
    let s = Samples::new();
    let p = s.table("p.csv", 400, 1, normal);
    let q = s.table("q.csv", 300, 1, |i, c| normal(i, 10 + c) + 1.0);
    let out = s.write("ratio.csv", "");
    let (code, printed, error) = run([path("ratio"), &p, &q, path("-o"), &out]);
    assert_eq!(code, 0, "{error}");
    assert!(printed.starts_with("log p/q has mean 0.") && printed.contains("effective sample size"), "{printed}");
    assert!(printed.ends_with(&format!("log ratios: {}\n", out.display())), "{printed}");
    let rows = ratios(&std::fs::read_to_string(&out).unwrap());
    assert_eq!((rows.len(), &rows[0].0[..], rows[399].1, &rows[400].0[..], rows[699].1), (700, "p", 400, "q", 300));
    // log p/q is ½ − x.
    let error: f64 = (0..400).map(|i| (rows[i].2 - (0.5 - normal(i, 0))).powi(2)).sum::<f64>() / 400.0;
    assert!(error < 0.1, "{error}");
    // The same samples give the same file.
    let again = s.write("again.csv", "");
    run([path("ratio"), &p, &q, path("-o"), &again, path("--threads"), path("1")]);
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(&again).unwrap());
}

#[test]
fn a_third_file_is_evaluated_in_place_of_the_samples() {
    let s = Samples::new();
    let p = s.table("p.csv", 400, 2, normal);
    let q = s.table("q.csv", 400, 2, |i, c| normal(i, 10 + c) + 0.5);
    let at = s.write("at.csv", "0,0\n1,1\n");
    let out = s.write("ratio.csv", "");
    let (code, printed, error) = run([path("ratio"), &p, &q, path("--at"), &at, path("-o"), &out, path("--json")]);
    assert_eq!(code, 0, "{error}");
    let answer: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&answer["n"], &answer["dim"]), (&serde_json::json!([400, 400]), &2.into()));
    assert!(answer["effective_sample_size"].as_f64().unwrap() > 50.0, "{answer}");
    let rows = ratios(&std::fs::read_to_string(&out).unwrap());
    assert_eq!((rows.len(), &rows[0].0[..]), (2, "at"));
    // log p/q is ¼ − ½(x + y).
    assert!((rows[0].2 - 0.25).abs() < 0.3 && (rows[1].2 + 0.75).abs() < 0.4, "{rows:?}");
}

#[test]
fn mistakes_are_named_and_nothing_is_written() {
    let s = Samples::new();
    let p = s.table("p.csv", 100, 2, normal);
    let narrow = s.table("narrow.csv", 100, 1, normal);
    assert!(refused([path("ratio"), &p, &narrow]).contains("2 columns"));
    assert!(refused([path("ratio"), &p, &p, path("--at"), &narrow]).contains("2 columns"));
    assert!(refused([path("ratio"), &p, &narrow, path("-o"), &p]).contains("is both input and output"));
    let few = s.table("few.csv", 6, 2, normal);
    assert!(refused([path("ratio"), &few, &p]).contains("has 6 rows"));
}
