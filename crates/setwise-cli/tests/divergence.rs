//! `setwise divergence` as a user runs it.

mod common;
#[path = "common/samples.rs"]
mod samples;

use std::path::Path;

use common::{refused, run};
use samples::{Samples, noise, normal, path};
use serde_json::Value;

fn json(args: &[&Path]) -> Value {
    let (code, printed, error) = run(args);
    assert_eq!(code, 0, "{error}");
    serde_json::from_str(&printed).unwrap()
}

#[test]
fn divergences_of_nested_intervals_are_the_closed_forms() {
    let s = Samples::new();
    let p = s.table("p.csv", 1000, 1, noise);
    let q = s.table("q.csv", 1000, 1, |i, c| 2.0 * noise(i, 10 + c));
    let measures = path("kl,js,tv,hellinger");
    let found = json(&[path("divergence"), &p, &q, path("--measure"), measures, path("--json")]);
    // P is uniform on half of the support of Q.
    let exact = [
        ("kl", 2f64.ln()),
        ("js", 0.5 * (4f64 / 3.0).ln() + 0.25 * (2f64 / 3.0).ln() + 0.25 * 2f64.ln()),
        ("tv", 0.5),
        ("hellinger", (1.0 - 0.5f64.sqrt()).sqrt()),
    ];
    for ((name, exact), estimate) in exact.into_iter().zip(found.as_array().unwrap()) {
        assert_eq!(estimate["quantity"], name);
        let value = estimate["estimate"].as_f64().unwrap();
        assert!((value - exact).abs() < 0.08, "{name}: {value}, not {exact}");
        let [low, high] = [0, 1].map(|i| estimate["interval"][i].as_f64().unwrap());
        assert!(low <= value && value <= high, "{estimate}");
    }
    let (code, text, _) = run([path("divergence"), &p, &q]);
    let answers = text.lines().filter(|line| !line.starts_with("warning")).count();
    assert_eq!((code, answers), (0, 6), "{text}");
    assert!(text.starts_with("KL(P‖Q)  = 0.") && text.contains("\nTV(P, Q) = 0."), "{text}");
}

#[test]
fn bounded_divergences_stay_in_their_bounds_and_have_no_direction() {
    let s = Samples::new();
    let p = s.table("p.csv", 100, 1, noise);
    let far = s.table("far.csv", 100, 1, |i, c| 1000.0 + normal(i, 10 + c));
    for (measure, bound) in [("js", 2f64.ln()), ("tv", 1.0), ("hellinger", 1.0)] {
        let of =
            |p: &Path, q: &Path| json(&[path("divergence"), p, q, path("--measure"), path(measure), path("--json")]);
        let (one, other) = (of(&p, &far), of(&far, &p));
        let (value, high) = (one["estimate"].as_f64().unwrap(), one["interval"][1].as_f64().unwrap());
        assert!(value > 0.8 * bound && value <= bound && high <= bound, "{measure}: {one}");
        assert_eq!((&one["estimate"], &one["interval"]), (&other["estimate"], &other["interval"]));
        assert_eq!(of(&p, &p)["estimate"], 0.0);
    }
}

#[test]
fn unknown_measures_are_refused() {
    let s = Samples::new();
    let p = s.table("p.csv", 100, 1, noise);
    let error = refused([path("divergence"), &p, &p, path("--measure"), path("renyi")]);
    assert!(error.contains("renyi") && error.contains("hellinger"), "{error}");
}
