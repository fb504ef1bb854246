//! `setwise kl` with `--explain`, `--report` and `--pairs`, as a user runs them.

mod common;
#[path = "common/samples.rs"]
mod samples;

use std::path::Path;

use common::{refused, run, setwise};
use samples::{Samples, noise, normal, path};
use serde_json::Value;

fn examples() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/samples")
}

fn ok<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let (code, out, error) = run(args);
    assert_eq!(code, 0, "{error}");
    out
}

#[test]
fn both_directions_are_those_of_two_calls() {
    let s = Samples::new();
    let p = s.table("p.csv", 120, 1, normal);
    let q = s.table("q.csv", 100, 1, |i, c| 2.0 * normal(i, 10 + c));
    let answer = |args: &[&Path]| -> Value { serde_json::from_str(&ok(args)).unwrap() };
    let both = answer(&[path("kl"), &p, &q, path("--both"), path("--json")]);
    let forward = answer(&[path("kl"), &p, &q, path("--json")]);
    let reverse = answer(&[path("kl"), &q, &p, path("--json")]);
    assert_eq!((&both["estimate"], &both["reverse"]["estimate"]), (&forward["estimate"], &reverse["estimate"]));
    assert_eq!(both["reverse"]["n"], serde_json::json!([100, 120]));
    let text = ok([path("kl"), &p, &q, path("--both")]);
    assert!(text.starts_with("KL(P‖Q) = ") && text.contains("\nKL(Q‖P) = "), "{text}");
}

#[test]
fn explain_orders_columns_by_their_contribution_with_every_method() {
    let s = Samples::new();
    // The third column differs most, the second not at all.
    let p = s.table("p.csv", 300, 3, normal);
    let q = s.table("q.csv", 300, 3, |i, c| normal(i, 10 + c) + [0.8, 0.0, 2.0][c]);
    for method in ["knn", "gaussian"] {
        let args = [path("kl"), &p, &q, path("--method"), path(method), path("--explain")];
        let out = ok(args);
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines[0].starts_with("KL(P‖Q) = ") && lines[2].is_empty(), "{out}");
        assert!(lines[3].contains("marginal KL") && lines[3].contains("drop without it"), "{out}");
        let names: Vec<&str> = lines[4..7].iter().map(|l| l.split_whitespace().next().unwrap()).collect();
        assert_eq!(names, ["c2", "c0", "c1"], "{out}");
        assert!(lines[4].contains("████") && !lines[6].contains('█'), "{out}");
        assert!(lines[7].starts_with("noise alone reaches "), "{out}");

        let answer: Value = serde_json::from_str(&ok(args.into_iter().chain([path("--json")]))).unwrap();
        let explanation = &answer["explanation"];
        assert_eq!(explanation["estimate"], answer["estimate"]);
        assert_eq!(explanation["n"], serde_json::json!([300, 300]));
        let first = &explanation["columns"][0];
        assert_eq!((&first["column"], &first["name"]), (&3.into(), &"c2".into()));
        let number = |key: &str| first[key].as_f64().unwrap();
        assert!((number("marginal") - 2.0).abs() < 0.6 && number("drop") > 1.0, "{first}");
        assert!((number("drop") - (answer["estimate"].as_f64().unwrap() - number("without"))).abs() < 1e-12);
    }
}

#[test]
fn explain_prints_twelve_columns_and_json_all() {
    let s = Samples::new();
    let p = s.table("p.csv", 60, 15, normal);
    let q = s.table("q.csv", 60, 15, |i, c| normal(i, 20 + c));
    let out = ok([path("kl"), &p, &q, path("--explain")]);
    assert!(out.contains("\nand 3 more columns; --json prints all\n"), "{out}");
    let answer: Value = serde_json::from_str(&ok([path("kl"), &p, &q, path("--explain"), path("--json")])).unwrap();
    assert_eq!(answer["explanation"]["columns"].as_array().unwrap().len(), 15);
}

#[test]
fn columns_without_a_header_are_numbered_and_names_are_printed_without_control_characters() {
    let s = Samples::new();
    let rows = |stream| (0..40).map(|i| format!("{},{}\n", noise(i, stream), noise(i, stream + 1))).collect::<String>();
    let (p, q) = (s.write("p.csv", rows(0)), s.write("q.csv", rows(2)));
    assert!(ok([path("kl"), &p, &q, path("--explain")]).contains("column 2 "));
    let named = s.write("n.csv", format!("\"\u{1b}[31mred\",x\n{}", rows(4)));
    let out = ok([path("kl"), &named, &q, path("--explain")]);
    assert!(!out.contains('\u{1b}') && out.contains("\u{fffd}[31mred"), "{out}");
}

#[test]
fn a_column_without_an_estimate_is_a_warning_and_the_others_are_explained() {
    let s = Samples::new();
    let p = s.table("p.csv", 50, 2, |i, c| if c == 1 { 7.0 } else { normal(i, 0) });
    let q = s.table("q.csv", 50, 2, |i, c| normal(i, 10 + c));
    let out = ok([path("kl"), &p, &q, path("--explain")]);
    assert!(out.contains("p.csv (column 2 \"c1\" alone): all rows are one point"), "{out}");
    assert!(out.lines().any(|l| l.trim_start().starts_with("c1") && l.contains('–')), "{out}");
}

#[test]
fn the_report_is_one_self_contained_page() {
    let s = Samples::new();
    let page = s.0.path().join("page.html");
    let p = s.write("a<b>.csv", std::fs::read(examples().join("p.csv")).unwrap());
    let out = ok([path("kl"), &p, &examples().join("q.csv"), path("--report"), &page]);
    assert!(out.contains("KL(P‖Q) = 0.7893") && out.contains(&format!("report: {}", page.display())), "{out}");
    assert!(!out.contains("marginal KL"), "{out}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    for expected in
        ["KL(P‖Q) = 0.7893 nats", "90 % interval 0.6188 to 1.0166", "a&lt;b&gt;.csv", "marginal KL", "pretrained"]
    {
        assert!(html.contains(expected), "{expected}");
    }
    assert_eq!(html.matches("<svg").count(), 3);
    for word in ["<script", "src=", "href=", "url(", "a<b>"] {
        assert!(!html.contains(word), "{word}");
    }
    // A second call writes the same page and no other file.
    ok([path("kl"), &p, &examples().join("q.csv"), path("--report"), &page]);
    assert_eq!(std::fs::read_to_string(&page).unwrap(), html);
    assert_eq!(std::fs::read_dir(s.0.path()).unwrap().count(), 2);
    let json = ok([path("kl"), &p, &p, path("--report"), &page, path("--json")]);
    assert!(serde_json::from_str::<Value>(&json).unwrap()["explanation"].is_null(), "{json}");
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_work() {
    let s = Samples::new();
    let [p, q] = ["p.csv", "q.csv"].map(|f| examples().join(f));
    let error = refused([path("kl"), &p, &q, path("--report"), &s.0.path().join("none/page.html")]);
    assert!(error.contains("none does not exist; create it first"), "{error}");
    let error = refused([path("kl"), &p, &q, path("--report"), s.0.path()]);
    assert!(error.contains("is not a regular file"), "{error}");
    let error = refused([path("kl"), &p, &q, path("--report"), &s.0.path().join("page.pdf")]);
    assert!(error.contains("page.pdf") && error.contains("there are .html"), "{error}");
}

#[test]
fn no_output_overwrites_an_input() {
    let s = Samples::new();
    let p = s.table("p.html", 60, 2, normal);
    let q = s.table("q.csv", 60, 2, |i, c| normal(i, 10 + c));
    let list = s.write("list.csv", "p.html,q.csv\n");
    let before = || [&p, &q, &list].map(|f| std::fs::read(f).unwrap());
    let content = before();
    let error = refused([path("kl"), &p, &q, path("--report"), &p]);
    assert!(error.contains("p.html: is both input and output"), "{error}");
    let error = refused([path("kl"), path("--pairs"), &list, path("-o"), &list]);
    assert!(error.contains("list.csv: is both input and output"), "{error}");
    let error = refused([path("kl"), path("--pairs"), &list, path("-o"), &s.0.path().join(".").join("q.csv")]);
    assert!(error.contains("q.csv: is both input and output"), "{error}");
    #[cfg(unix)]
    {
        let link = s.0.path().join("link.html");
        std::os::unix::fs::symlink(&p, &link).unwrap();
        let error = refused([path("kl"), &p, &q, path("--report"), &link]);
        assert!(error.contains("link.html: is the same file as the input ") && error.contains("p.html"), "{error}");
    }
    assert_eq!(before(), content);
}

#[test]
fn options_without_an_effect_are_refused() {
    let [p, q] = ["p.csv", "q.csv"].map(|f| examples().join(f));
    for (options, expected) in [
        (["--method", "gaussian", "--k", "5"], "--k is for --method knn"),
        (["--method", "gaussian", "--precision", "f32"], "--precision is for --method pretrained"),
        (["--seed", "1", "--precision", "foo"], "there is no precision \"foo\""),
    ] {
        let error = refused([path("kl"), &p, &q].into_iter().chain(options.map(path)));
        assert!(error.contains(expected), "{error}");
    }
    ok([path("kl"), &p, &q, path("--k"), path("5")]);
}

#[test]
fn a_list_of_pairs_gives_the_estimates_of_single_calls() {
    let s = Samples::new();
    let p = s.table("p.csv", 80, 2, normal);
    let q = s.table("q q.csv", 90, 2, |i, c| normal(i, 10 + c) + 0.5);
    let list = s.write("list.txt", "# pairs\n\np.csv, q q.csv\nq q.csv\tp.csv\n");
    let alone = |a: &Path, b: &Path| -> Value {
        serde_json::from_str(&ok([path("kl"), a, b, path("--seed"), path("3"), path("--json")])).unwrap()
    };
    let out = ok([path("kl"), path("--pairs"), &list, path("--seed"), path("3"), path("--json")]);
    let answers: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers.len(), 2);
    for (answer, (line, alone)) in answers.iter().zip([(3, alone(&p, &q)), (4, alone(&q, &p))]) {
        assert_eq!(answer["line"], line);
        for key in ["estimate", "interval", "n", "dim", "method", "quantity"] {
            assert_eq!(answer[key], alone[key], "{key}");
        }
    }
    assert_eq!((&answers[0]["p"], &answers[0]["q"]), (&"p.csv".into(), &"q q.csv".into()));

    let table = ok([path("kl"), path("--pairs"), &list]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.lines().nth(1).unwrap().contains("80, 90"), "{table}");

    let csv = s.0.path().join("out.csv");
    let out = ok([path("kl"), path("--pairs"), &list, path("-o"), &csv, path("--seed"), path("3")]);
    assert!(out.starts_with("2 pairs of 2 files"), "{out}");
    let csv = std::fs::read_to_string(csv).unwrap();
    let heading = "line,p,q,estimate,low,high,n_p,n_q,dim,method,warnings,error,\
        fallback_method,fallback_estimate,fallback_low,fallback_high\n";
    assert!(csv.starts_with(&format!("{heading}3,p.csv,q q.csv,")), "{csv}");
    let estimate: f64 = csv.lines().nth(1).unwrap().split(',').nth(3).unwrap().parse().unwrap();
    assert!((answers[0]["estimate"].as_f64().unwrap() - estimate).abs() < 1e-15, "{csv}");
}

#[test]
fn tables_of_pairs_hold_the_values_of_the_json() {
    let s = Samples::new();
    s.table("p.csv", 60, 17, normal);
    s.table("q.csv", 60, 17, |i, c| normal(i, 20 + c) + 0.5);
    s.table("short.csv", 2, 17, normal);
    let list = s.write("list.txt", "p.csv,q.csv\nshort.csv,p.csv\n");
    let [json, csv, md] = ["out.json", "out.csv", "out.md"].map(|name| {
        let out = s.0.path().join(name);
        assert_eq!(run([path("kl"), path("--pairs"), &list, path("-o"), &out]).0, 2);
        std::fs::read_to_string(out).unwrap()
    });
    let (_, lines, _) = run([path("kl"), path("--pairs"), &list, path("--json")]);
    let lines: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let rows: Vec<Value> = serde_json::from_str(&json).unwrap();
    let (row, line) = (&rows[0], &lines[0]);
    assert_eq!((&row["line"], &row["dim"], &row["error"]), (&1.into(), &17.into(), &Value::Null));
    assert_eq!(serde_json::json!([row["n_p"], row["n_q"]]), line["n"]);
    assert_eq!(row["warnings"], line["warnings"]);
    let fallback = &line["fallback"];
    assert!(fallback["estimate"].is_number(), "{line}");
    assert_eq!((&row["fallback_method"], &row["fallback_estimate"]), (&fallback["method"], &fallback["estimate"]));
    assert_eq!(serde_json::json!([row["fallback_low"], row["fallback_high"]]), fallback["interval"]);
    assert_eq!((&rows[1]["error"], &rows[1]["estimate"]), (&lines[1]["error"], &Value::Null));
    assert!(csv.lines().nth(1).unwrap().starts_with("1,p.csv,q.csv,"), "{csv}");
    assert!(csv.lines().nth(1).unwrap().contains(fallback["method"].as_str().unwrap()), "{csv}");
    assert!(!md.contains("not run"), "{md}");
}

#[test]
fn a_list_may_come_from_standard_input() {
    let [p, q] = ["p.csv", "q.csv"].map(|f| examples().join(f));
    let list = format!("{},{}\n", p.display(), q.display());
    let out = setwise().args(["kl", "--pairs", "-"]).write_stdin(list).output().unwrap();
    assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("0.7893"), "{out:?}");
}

#[test]
fn a_bad_list_is_refused_with_line_and_file_before_anything_is_written() {
    let s = Samples::new();
    s.table("p.csv", 30, 2, normal);
    s.table("wide.csv", 30, 3, normal);
    let csv = s.0.path().join("out.csv");
    let refuses = |text: &str, expected: &str| {
        let list = s.write("list.txt", text);
        let error = refused([path("kl"), path("--pairs"), &list, path("-o"), &csv]);
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        assert!(!csv.exists());
    };
    refuses("p.csv,p.csv\np.csv,none.csv\n", "list.txt: line 2: ");
    refuses("p.csv,p.csv\np.csv,none.csv\n", "none.csv: No such file");
    refuses("p.csv p.csv p.csv\n", "line 1: \"p.csv p.csv p.csv\" names 3 files");
    refuses("p.csv wide.csv\n", "line 1: p.csv has 2 columns, wide.csv has 3");
    refuses("", "names no files");
    let list = s.write("list.txt", "p.csv,p.csv\n");
    let with = |args: &[&Path]| refused([&[path("kl"), path("--pairs"), &list], args].concat());
    assert!(with(&[path("-o"), &s.0.path().join("out.xls")]).contains("there are .md, .csv"));
    assert!(with(&[path("--explain")]).contains("--explain"));
    assert!(refused([path("kl"), &list, &list, path("-o"), &csv]).contains("--pairs"));
}

#[test]
fn a_pair_without_an_estimate_does_not_affect_the_others() {
    let s = Samples::new();
    s.table("p.csv", 30, 2, normal);
    s.table("short.csv", 2, 2, normal);
    let list = s.write("list.txt", "short.csv,p.csv\np.csv,p.csv\n");
    let (code, out, error) = run([path("kl"), path("--pairs"), &list, path("--json")]);
    assert_eq!(code, 2);
    assert!(
        error.contains("1 of 2 pairs have no estimate; the first, line 1: ") && error.contains("short.csv"),
        "{error}"
    );
    let answers: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(answers[0]["error"].as_str().unwrap().contains("has 2 rows") && answers[0]["estimate"].is_null());
    assert!(answers[1]["estimate"].is_number() && answers[1]["error"].is_null());
}

#[test]
fn headers_that_differ_and_columns_that_count_rows_are_warnings() {
    let s = Samples::new();
    let rows = |stream| (0..40).map(|i| format!("{i},{}\n", noise(i, stream))).collect::<String>();
    let p = s.write("p.csv", format!(",x\n{}", rows(0)));
    let q = s.write("q.csv", format!(",y\n{}", rows(1)));
    let out = ok([path("kl"), &p, &q]);
    assert!(out.contains("warning: column 2 is \"x\" in") && out.contains("compared by position"), "{out}");
    assert!(out.contains("p.csv: column 1 counts the rows"), "{out}");
}

#[test]
fn columns_are_chosen_and_matched_by_name() {
    let s = Samples::new();
    let rows = |stream, shift: f64, swap: bool| -> String {
        let row = |i| {
            let (a, b) = (normal(i, stream), normal(i, stream + 1) + shift);
            if swap { format!("{b},{a},{i},note {i}\n") } else { format!("{i},2026-04-{:02},{a},{b}\n", 1 + i % 30) }
        };
        (0..60).map(row).collect()
    };
    let p = s.write("p.csv", format!("id,day,a,b\n{}", rows(1, 0.0, false)));
    let q = s.write("q.csv", format!("b,a,id,note\n{}", rows(3, 2.0, true)));
    let chosen = ok([path("kl"), &p, &q, path("--columns"), path("a,b,id"), path("--drop"), path("id")]);
    assert_eq!(chosen, ok([path("kl"), &p, &q, path("--drop"), path("id,day,note")]));
    assert!(chosen.contains("rows 60 and 60, columns 2"), "{chosen}");
    for command in ["divergence", "ratio", "test"] {
        ok([path(command), &p, &q, path("--drop"), path("id,day,note")]);
    }
    let at = ok([path("ratio"), &p, &q, path("--at"), &q, path("--columns"), path("b")]);
    assert!(at.contains("columns 1"), "{at}");
    let list = s.write("list.csv", "p.csv,p.csv\n");
    ok([path("kl"), path("--pairs"), &list, path("--columns"), path("a,b")]);
    for (arguments, expected) in [
        (vec![], "line 2, column 2 (\"day\"): \"2026-04-01\" is not a number\n--columns chooses columns"),
        (vec!["--columns", "a,c"], "p.csv: has no column \"c\"; its columns are \"id\", \"day\", \"a\", \"b\""),
        (vec!["--drop", "day,note,no"], "p.csv: has no column \"no\" to leave out, nor has any other file"),
    ] {
        let all: Vec<_> = [path("kl"), &p, &q].into_iter().chain(arguments.iter().map(|a| path(a))).collect();
        let error = refused(all);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn tabs_and_standard_input_are_read_and_other_formats_are_refused_by_name() {
    let s = Samples::new();
    let q = s.table("q.csv", 50, 2, normal);
    let tabs: String = (0..50).map(|i| format!("{}\t{}\n", normal(i, 5), normal(i, 6))).collect();
    let out = setwise().args([path("kl"), path("-"), &q]).write_stdin(format!("a\tb\n{tabs}")).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && text.contains("rows 50 and 50, columns 2"), "{text}");
    let out = setwise().args([path("kl"), path("-"), &q]).write_stdin("1,2\n3,x\n").output().unwrap();
    let error = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(error.contains("standard input: line 2, column 2: \"x\" is not a number"), "{error}");
    let parquet = s.write("p.parquet", b"PAR1\x15\x00");
    assert!(refused([path("kl"), &parquet, &q]).contains("p.parquet: is a Parquet file"));
}

#[test]
fn the_readme_shows_the_output_of_explain_and_pairs() {
    let readme = include_str!("../../../README.md");
    let [p, q] = ["p.csv", "q.csv"].map(|f| examples().join(f));
    let out = ok([path("kl"), &p, &q, path("--explain")]);
    assert!(readme.contains(&out), "the README lacks {out}");
    let out = ok([path("kl"), path("--pairs"), &examples().join("pairs.txt")]);
    assert!(readme.contains(out.trim_end()), "the README lacks {out}");
}
