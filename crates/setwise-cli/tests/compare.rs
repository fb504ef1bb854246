//! `setwise compare` as a user runs it.

mod common;
#[path = "common/samples.rs"]
mod samples;

use std::path::{Path, PathBuf};

use common::{refused, run};
use samples::{Samples, noise, normal, path};
use serde_json::Value;

const ROWS: usize = 1200;

/// A table of an identifier, a day, numbers, counts, categories and missing values. `change` edits the fields of a row.
fn table(s: &Samples, name: &str, stream: usize, change: impl Fn(usize, &mut [String; 6])) -> PathBuf {
    let mut text = "id,day,x,visits,town,plan\n".to_owned();
    for i in 0..ROWS {
        let uniform = |k: usize| noise(i, stream + k);
        let town = ["Oslo", "Rome", "Lima"][(3.0 * uniform(1)) as usize];
        let plan = if uniform(2) < 0.05 { "" } else { ["basic", "pro"][usize::from(uniform(3) < 0.3)] };
        let mut row = [
            (stream * 1000 + i).to_string(),
            format!("2026-04-{:02}", 1 + i % 30),
            format!("{:.3}", 10.0 + normal(i, stream)),
            ((8.0 * uniform(4) * uniform(5)) as usize).to_string(),
            town.to_owned(),
            plan.to_owned(),
        ];
        change(i, &mut row);
        text += &format!("{}\n", row.join(","));
    }
    s.write(name, text)
}

fn compared(a: &Path, b: &Path, more: &[&str]) -> Value {
    let args = [path("compare"), a, b, path("--json")].into_iter().chain(more.iter().map(|m| path(m)));
    let (code, out, error) = run(args);
    assert_eq!(code, 0, "{error}");
    serde_json::from_str(&out).unwrap()
}

fn column<'a>(result: &'a Value, name: &str) -> &'a Value {
    result["columns"].as_array().unwrap().iter().find(|c| c["name"] == name).unwrap()
}

fn flagged(result: &Value) -> Vec<&str> {
    let columns = result["columns"].as_array().unwrap().iter().filter(|c| c["flagged"] == true);
    columns.map(|c| c["name"].as_str().unwrap()).collect()
}

#[test]
fn two_months_of_one_distribution_are_not_flagged() {
    let s = Samples::new();
    let (a, b) = (table(&s, "a.csv", 1, |_, _| {}), table(&s, "b.csv", 20, |_, _| {}));
    let result = compared(&a, &b, &[]);
    assert_eq!((&result["changed"], flagged(&result).len()), (&false.into(), 0), "{result}");
    assert!(result["p_value"].as_f64().unwrap() > 0.05 && result["pairs"].as_array().unwrap().is_empty());
    assert_eq!(result["rows"], serde_json::json!([ROWS, ROWS]));
    let types = ["id", "day", "x", "visits", "town", "plan"].map(|name| column(&result, name)["type"].clone());
    assert_eq!(types, ["identifier", "time", "numeric", "count", "category", "category"]);
    for column in result["columns"].as_array().unwrap() {
        let effect = column["effect"].as_f64().unwrap();
        let [low, high] = [0, 1].map(|i| column["interval"][i].as_f64().unwrap());
        assert!(low <= effect && effect <= high && column["p_value"].as_f64().is_some(), "{column}");
        assert!(column["missing"].as_array().unwrap().len() == 2 && column["q_value"].as_f64().is_some());
    }
    let (code, out, _) = run([path("compare"), &a, &b, path("--fail-on-change")]);
    assert!(code == 0 && out.starts_with("No evidence of a change in 6 columns.\np = "), "{out}");
}

#[test]
fn planted_changes_are_flagged_and_told() {
    let s = Samples::new();
    let a = table(&s, "a.csv", 1, |_, _| {});
    let b = table(&s, "b.csv", 20, |i, row| {
        if i % 25 == 0 {
            row[2] = "30".to_owned();
        }
        if i % 20 == 3 {
            row[4] = "Quito".to_owned();
        }
        if i % 10 == 7 {
            row[5] = "NA".to_owned();
        }
    });
    let result = compared(&a, &b, &[]);
    assert_eq!(result["changed"], true);
    let mut found = flagged(&result);
    found.sort_unstable();
    assert_eq!(found, ["plan", "town", "x"]);
    assert_eq!(column(&result, "town")["change"], "“Quito”: new, 5.0 %");
    assert!(column(&result, "plan")["change"].as_str().unwrap().starts_with("missing values rose from "));
    assert!(column(&result, "x")["change"].as_str().unwrap().contains("30"), "{}", column(&result, "x"));
    let effect = column(&result, "x")["effect"].as_f64().unwrap();
    assert!((0.02..0.06).contains(&effect), "{effect}");
    assert!(result["effect"].as_f64().unwrap() > 0.0 && result["interval"][0].as_f64().unwrap() > 0.0);
    // Pipelines stop at a change.
    let out = s.0.path().join("columns.csv");
    let (code, text, _) = run([path("compare"), &a, &b, path("--fail-on-change"), path("-o"), &out]);
    assert!(code == 3 && text.starts_with("Changed: "), "{code} {text}");
    assert!(text.contains(" ●  town "), "{text}");
    let written = std::fs::read_to_string(&out).unwrap();
    assert!(written.starts_with("column,type,flagged,effect,low,high,noise,p_value,q_value,"), "{written}");
    assert_eq!(written.lines().count(), 7);
    // A larger least effect hides what is small, and the same seed gives the same answer.
    let large = compared(&a, &b, &["--min-effect", "0.2"]);
    assert_eq!((&large["changed"], flagged(&large).len()), (&false.into(), 0));
    assert_eq!(compared(&a, &b, &["--threads", "1"]), compared(&a, &b, &["--threads", "2"]));
}

#[test]
fn a_changed_correlation_of_unchanged_columns_is_told() {
    let s = Samples::new();
    let correlated = |stream: usize, rho: f64| {
        move |i: usize, c: usize| match c {
            0 => normal(i, stream),
            _ => rho * normal(i, stream) + (1.0 - rho * rho).sqrt() * normal(i, stream + 1),
        }
    };
    let (a, b) = (s.table("a.csv", 1500, 2, correlated(1, 0.7)), s.table("b.csv", 1500, 2, correlated(5, 0.2)));
    let result = compared(&a, &b, &[]);
    assert!(result["changed"] == true && flagged(&result).is_empty(), "{result}");
    assert_eq!(result["pairs"][0]["columns"], serde_json::json!(["c0", "c1"]));
    let before = result["pairs"][0]["correlations"][0].as_f64().unwrap();
    assert!((before - 0.7).abs() < 0.06, "{before}");
}

#[test]
fn types_and_columns_are_chosen_and_absent_columns_are_told() {
    let s = Samples::new();
    let a = s.write("a.csv", "zip,x,y\n".to_owned() + &"100,1,2\n200,2,3\n300,3,4\n".repeat(40));
    let b = s.write("b.csv", "zip,x,z\n".to_owned() + &"100,1,2\n200,2,3\n300,3,4\n".repeat(40));
    let result = compared(&a, &b, &["--as", "zip=category", "--drop", "x"]);
    assert_eq!(column(&result, "zip")["type"], "category");
    assert_eq!(result["columns"].as_array().unwrap().len(), 1);
    assert_eq!(result["only"], serde_json::json!([["y"], ["z"]]));
    let types = s.write("types.toml", "zip = \"category\"\nx = \"numeric\"\n");
    let result = compared(&a, &b, &["--types", types.to_str().unwrap()]);
    assert_eq!(column(&result, "x")["type"], "numeric");
    assert!(refused([path("compare"), &a, &b, path("--as"), path("zip=number")]).contains("is no type of a column"));
    assert!(refused([path("compare"), &a, &b, path("--as"), path("w=text")]).contains("no column is called \"w\""));
    assert!(refused([path("compare"), &a, &b, path("--columns"), path("w")]).contains("has no column \"w\""));
}

#[test]
fn what_cannot_be_compared_is_an_error_with_place_and_remedy() {
    let s = Samples::new();
    let good = s.write("good.csv", "x,town\n".to_owned() + &"1,Oslo\n2,Rome\n".repeat(20));
    let mixed = s.write("mixed.csv", "x,town\n".to_owned() + &"1,Oslo\n2,Rome\n".repeat(20) + "many,Rome\n");
    let error = refused([path("compare"), &good, &mixed]);
    assert!(
        error.contains("mixed.csv: line 42, column \"x\": \"many\" is no number, as 40 of 41 values are"),
        "{error}"
    );
    assert!(error.contains("--as COLUMN=TYPE sets a type") && error.contains("--drop leaves columns out"));
    let zeros = s.write("zeros.csv", [b"x,y\n1,2\n".as_slice(), &[0; 100]].concat());
    for (content, expected) in [
        (s.write("empty.csv", ""), "empty.csv: is empty: it has no rows"),
        (s.write("ragged.csv", "x,town\n1,Oslo\n2\n"), "ragged.csv: line 3 has 1 column, the header has 2; is a field"),
        (s.write("other.csv", "u,v\n1,2\n"), "have no column in common: the former has \"x\", \"town\""),
        (s.write("latin.csv", b"x,town\n1,\xc5lesund\n2,Rome\n"), "latin.csv: column \"town\": line 2 holds"),
        (s.write("cut.csv.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab"), "cut.csv.gz: is compressed with gzip and cannot"),
        (s.write("cut.parquet", b"PAR1\x15\x00"), "cut.parquet: is a Parquet file"),
        (zeros, "zeros.csv: is not a table: byte 9 is zero"),
        (s.0.path().join("missing.csv"), "missing.csv: "),
        (s.0.path().to_owned(), "is a folder; give one of its files"),
    ] {
        let error = refused([path("compare"), &good, &content]);
        assert!(error.contains(expected), "{error}");
    }
    // A ragged row is told together with the problems of columns.
    let both = s.write("both.csv", "x,town\n".to_owned() + &"1,Oslo\n2,Rome\n".repeat(20) + "many,Rome\n1\n");
    let error = refused([path("compare"), &good, &both]);
    assert!(
        error.contains("both.csv: line 43 has 1 column") && error.contains("both.csv: line 42, column \"x\""),
        "{error}"
    );
    let error = refused([
        "compare",
        "--drop",
        "u,v",
        "--as",
        "w=text",
        &good.display().to_string(),
        &good.display().to_string(),
    ]);
    assert!(error.contains("no column is called \"u\", \"v\", \"w\"; there are \"x\", \"town\""), "{error}");
    // Both files are named.
    let error = refused([path("compare"), &s.0.path().join("no.csv"), &s.0.path().join("none.csv")]);
    assert!(error.contains("no.csv: ") && error.contains("none.csv: "), "{error}");
    assert!(refused([path("compare"), &good, &good, path("-o"), &good]).contains("is both input and output"));
    assert!(refused([path("compare"), &good, &good, path("--alpha"), path("2")]).contains("alpha: is 2"));
    assert!(refused(["compare", "-", "-"]).contains("standard input (-) can be only one of the samples"));
    // A column without values in either file says nothing.
    let none = s.write("none.csv", "x,town\n".to_owned() + &"1,\n2,NA\n".repeat(20));
    let result = compared(&none, &none, &[]);
    assert_eq!(column(&result, "town")["missing"], serde_json::json!([1.0, 1.0]));
    assert_eq!(result["changed"], false);
}

#[test]
fn a_saved_reference_gives_the_same_answer_as_the_table() {
    let s = Samples::new();
    let a = table(&s, "a.csv", 1, |_, _| {});
    let b = table(&s, "b.csv", 20, |i, row| {
        if i % 20 == 3 {
            row[4] = "Quito".to_owned();
        }
    });
    let profile = s.0.path().join("a.profile");
    let (code, out, _) = run([path("compare"), &a, path("--save-profile"), &profile]);
    assert!(code == 0 && out.starts_with("profile: "), "{out}");
    let with_profile = run([path("compare"), path("--reference-profile"), &profile, &b, path("--json")]);
    let with_table = run([path("compare"), &a, &b, path("--json")]);
    assert_eq!(with_profile, with_table);
    // A column that is left out is not saved.
    let (code, _, _) = run([path("compare"), &a, path("--drop"), path("town"), path("--save-profile"), &profile]);
    let (_, out, _) = run([path("compare"), path("--reference-profile"), &profile, &b, path("--json")]);
    let found: Value = serde_json::from_str(&out).unwrap();
    assert!(code == 0 && found["only"] == serde_json::json!([[], ["town"]]), "{out}");
    let (code, _, error) = run([path("compare"), path("--reference-profile"), &a, &b]);
    assert!(code == 2 && error.contains("a.csv: is no profile"), "{error}");
    let (code, _, error) = run([path("compare"), &a]);
    assert!(code == 2 && error.contains("give two tables"), "{error}");
}

#[test]
fn periods_of_a_table_are_compared_with_the_first() {
    let s = Samples::new();
    let mut text = "day,x\n".to_owned();
    for i in 0..1200 {
        let month = 1 + i / 300;
        let x = normal(i, 3) + if month == 3 { 1.0 } else { 0.0 };
        text += &format!("2026-{month:02}-{:02},{x}\n", 1 + i % 28);
    }
    let t = s.write("t.csv", text);
    let (page, rows) = (s.0.path().join("t.html"), s.0.path().join("t.csv.md"));
    let (code, out, error) =
        run([path("compare"), &t, path("--by"), path("month"), path("--report"), &page, path("-o"), &rows]);
    assert!(code == 0 && out.starts_with("Changed in 1 of 3 months."), "{out}{error}");
    assert!(out.contains(" ●  2026-03  2026-01 ") && out.contains("flagged in 2026-03"), "{out}");
    assert!(std::fs::read_to_string(page).unwrap().contains("Changed in 1 of 3 months"));
    assert_eq!(std::fs::read_to_string(rows).unwrap().lines().count(), 5);
    let (_, out, _) = run([path("compare"), &t, path("--by"), path("quarter"), path("--json")]);
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&found["by"], &found["periods"][0]["against"]), (&"quarter".into(), &"2026-Q1".into()));
    let (code, _, error) = run([path("compare"), &t, path("--by"), path("year")]);
    assert!(code == 2 && error.contains("lie in 2026"), "{error}");
}

#[test]
fn pairs_of_a_list_are_compared_and_bad_ones_do_not_stop_the_others() {
    let s = Samples::new();
    table(&s, "a.csv", 1, |_, _| {});
    table(&s, "b.csv", 20, |i, row| row[2] = (if i % 3 == 0 { 30.0 } else { normal(i, 9) }).to_string());
    let list = s.write("list.txt", "a.csv,a.csv\na.csv,b.csv\na.csv,none.csv\n");
    let out = s.0.path().join("pairs.csv");
    let (code, text, error) = run([path("compare"), path("--pairs"), &list, path("-o"), &out]);
    assert!(code == 2 && text.starts_with("Changed: 1 of 3 pairs."), "{text}");
    assert!(error.contains("1 of 3 pairs cannot be compared; the first, line 3: ") && error.contains("none.csv"));
    assert_eq!(std::fs::read_to_string(out).unwrap().lines().count(), 4);
    let good = s.write("good.txt", "a.csv,b.csv\n");
    let (code, text, _) = run([path("compare"), path("--pairs"), &good, path("--fail-on-change"), path("--json")]);
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(code == 3 && line["changed"] == true && line["current"] == "b.csv", "{text}");
}
