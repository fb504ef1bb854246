//! `setwise reproduce` as a user runs it, and `setwise bench --sampler`.

use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

/// Runs in a folder; returns the exit code, standard output and standard error.
fn run(dir: &Path, args: &str) -> (i32, String, String) {
    let out = Command::cargo_bin("setwise").unwrap().current_dir(dir).args(args.split(' ')).output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

/// Runs without failure; returns standard output.
fn ok(dir: &Path, args: &str) -> String {
    let (code, out, error) = run(dir, args);
    assert_eq!(code, 0, "{args}: {error}");
    out
}

fn json(dir: &Path, args: &str) -> Value {
    serde_json::from_str(&ok(dir, args)).unwrap()
}

fn refused(dir: &Path, args: &str, expected: &[&str]) {
    let (code, out, error) = run(dir, args);
    assert_eq!((code, out.as_str()), (2, ""), "{args}: {error}");
    assert!(expected.iter().all(|e| error.contains(e)), "{args}: {error} lacks one of {expected:?}");
}

/// The row of a Markdown table that begins with this name.
fn row<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let cells = |line: &'a str| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    table.lines().map(cells).find(|c| c[0] == name).unwrap_or_else(|| panic!("no row {name}: {table}"))
}

#[test]
fn the_errors_of_classical_and_trivial_estimators_are_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let found = json(dir.path(), "reproduce kl --models knn,gaussian,median --dims 2 --examples 200 --json");
    for (cell, (model, paper, known)) in found.as_array().unwrap().iter().zip([
        ("knn", Some(0.2047), 0.197),
        ("gaussian", None, 0.089),
        ("median", None, 0.175),
    ]) {
        assert_eq!((cell["model"].as_str(), cell["paper"].as_f64()), (Some(model), paper), "{cell}");
        let (error, deviation) =
            (cell["mean_absolute_error"].as_f64().unwrap(), cell["standard_error"].as_f64().unwrap());
        assert!((error - known).abs() < 5.0 * deviation && deviation < 0.2 * known, "{cell}");
    }
}

#[test]
fn the_table_lists_runs_with_their_training_and_marks_other_cells_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let kl = include_str!("../../setwise-lab/experiments/paper/kl-d2.toml");
    let small = "latent = 8\nhidden = 8\nblocks = 1\n[training]";
    let small_batch =
        |text: String| text.replace("batch-size = 64", "batch-size = 4") + "\n[run]\nvalidation-examples = 20\n";
    let text = small_batch(kl.replace("[training]", small));
    std::fs::write(dir.path().join("small.toml"), text).unwrap();
    for seed in 0..2 {
        ok(dir.path(), &format!("train small.toml --steps 5 --seed {seed} --model cross-only"));
    }
    // A run of another task is not listed.
    let other = include_str!("../../setwise-lab/experiments/paper/kl-d2.toml").replace("[training]", small);
    let other = small_batch(other.replace("components = [1, 10]", "components = 1"));
    std::fs::write(dir.path().join("other.toml"), other).unwrap();
    ok(dir.path(), "train other.toml --steps 5 --model cross-only");
    let table = ok(dir.path(), "reproduce kl --models cross-only,sum-merge,median --dims 2,4 --examples 64 --out o");
    let cells = row(&table, "cross-only");
    assert!(cells[1..4] == ["paper", "0.0792", "not run"], "the paper's schedule was not run: {table}");
    let ours = |name: &str| table.lines().find(|l| l.contains(name) && l.contains("| ours"));
    let cells = row(ours("cross-only").expect("a separate row for other schedules"), "cross-only");
    assert!(cells[2] == "0.0792" && cells[3].contains(" ± ") && cells[5] == "not run", "{table}");
    assert!(row(&table, "sum-merge")[3] == "not run" && row(&table, "median")[2].is_empty(), "{table}");
    assert!(ours("sum-merge").is_none(), "{table}");
    for seed in 0..2 {
        let run = std::path::Path::new("runs").join(format!("small-cross-only-s{seed}"));
        let line = format!("d = 2, cross-only: {}: 5 steps of 4, ", run.display());
        assert!(table.contains(&line), "{table} lacks {line}");
    }
    assert!(!table.contains("other-cross-only"), "{table}");
    assert_eq!(std::fs::read_to_string(dir.path().join("o/kl.md")).unwrap(), table);
    let found: Value = serde_json::from_slice(&std::fs::read(dir.path().join("o/kl.json")).unwrap()).unwrap();
    assert_eq!((&found[2]["model"], &found[2]["schedule"]), (&"cross-only".into(), &"ours".into()));
    assert_eq!(found[2]["runs"].as_array().unwrap().len(), 2);
    assert!(found[2]["trained"][1].as_str().unwrap().contains("5 steps of 4"), "{found}");
    assert_eq!(found[0]["mean_absolute_error"], Value::Null);
    refused(
        dir.path(),
        "reproduce kl --models median --runs elsewhere",
        &["--runs elsewhere", "folder does not exist"],
    );
}

#[test]
fn the_figure_of_mutual_information_is_written_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let table = ok(dir.path(), "reproduce mi --models ksg,gaussian,pine --dims 2 --examples 20 --out out/mi");
    assert_eq!(row(&table, "ksg").len(), 15);
    assert!(row(&table, "pine")[2..].iter().all(|c| *c == "not run"), "{table}");
    let read = |name: &str| std::fs::read(dir.path().join("out/mi").join(name)).unwrap();
    assert_eq!(String::from_utf8(read("mi.md")).unwrap(), table);
    assert_eq!(String::from_utf8(read("mi.csv")).unwrap().lines().count(), 4);
    let found: Value = serde_json::from_slice(&read("mi.json")).unwrap();
    let errors = |i: usize| found[i]["mean_absolute_error"].as_array().unwrap().clone();
    assert!(errors(0).iter().chain(&errors(1)).all(|e| e.as_f64().unwrap() < 1.0), "{found}");
    assert!(String::from_utf8(read("mi.svg")).unwrap().contains("d = 2"));
    assert_eq!(read("mi.png")[..8], *b"\x89PNG\r\n\x1a\n");
}

#[test]
fn lower_bounds_are_compared_with_errors_of_estimates_on_the_same_examples() {
    let dir = tempfile::tempdir().unwrap();
    let found =
        json(dir.path(), "reproduce lower-bounds --dims 2 --examples 12 --steps 200 --size 60 --out out --json");
    let column = &found.as_array().unwrap()[0];
    assert_eq!((column["dim"].as_u64(), column["size"].as_u64()), (Some(2), Some(60)), "{found}");
    let bounds = column["lower_bound"].as_array().unwrap();
    let steps: Vec<u64> = bounds.iter().map(|f| f["steps"].as_u64().unwrap()).collect();
    assert_eq!(steps, [12, 25, 50, 100, 200]);
    let full = bounds[4]["mean"].as_f64().unwrap();
    assert!(full > 0.01 && full < 0.3, "{found}");
    let methods = column["methods"].as_array().unwrap();
    let names: Vec<&str> = methods.iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["posterior median, computed", "gaussian", "knn"]);
    for method in methods {
        // The posterior median has the smallest expected error.
        let (expected, excess) = (method["expected_error"]["mean"].as_f64(), method["excess"]["mean"].as_f64());
        assert!(excess.unwrap() > 0.0 && (expected.unwrap() - full - excess.unwrap()).abs() < 1e-9, "{method}");
    }
    for name in ["lower-bounds.md", "lower-bounds.csv", "lower-bounds.json", "lower-bounds.svg", "lower-bounds.png"] {
        assert!(dir.path().join("out").join(name).exists(), "{name} is missing");
    }
    refused(dir.path(), "reproduce lower-bounds --steps 5", &["5 steps", "at least 32"]);
    refused(dir.path(), "reproduce lower-bounds --size 4", &["sets of 4 points", "20"]);
    refused(dir.path(), "reproduce lower-bounds --dims 3", &["3 dimensions", "[2, 4, 8, 16]"]);
    refused(dir.path(), "reproduce lower-bounds --runs elsewhere", &["--runs elsewhere", "folder does not exist"]);
}

#[test]
fn scaling_is_measured_over_the_given_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let found = json(
        dir.path(),
        "reproduce scaling --models pine,cross-only --sizes 16,8,8 --widths 8,16 --batch 1 --out out --json",
    );
    let sizes =
        |of: &Value, key: &str| of.as_array().unwrap().iter().map(|t| t[key].as_u64().unwrap()).collect::<Vec<_>>();
    for (found, model) in found.as_array().unwrap().iter().zip(["cross-only", "pine"]) {
        assert_eq!(found["model"], model);
        assert_eq!((sizes(&found["by_size"], "n"), sizes(&found["by_width"], "d")), (vec![8, 16], vec![8, 16]));
        assert!(found["by_size"][0]["training_s"].as_f64().unwrap() > 0.0, "{found}");
        assert!(found["exponents"]["training_n"].as_f64().unwrap().abs() < 10.0, "{found}");
    }
    for name in ["scaling.md", "scaling.csv", "scaling.json", "scaling.svg", "scaling.png"] {
        assert!(dir.path().join("out").join(name).exists(), "{name} is missing");
    }
}

#[test]
fn two_sample_tests_are_measured_on_settings_and_on_random_changes() {
    let dir = tempfile::tempdir().unwrap();
    let options = "--methods adaptive,energy --repetitions 24 --permutations 39";
    let table = ok(dir.path(), &format!("reproduce two-sample --settings classical --name rotation {options}"));
    assert_eq!(row(&table, "rotation")[1..3], ["2", "500"]);
    // A rotated square: certain for the first, hardly visible to the second.
    assert_eq!(row(&table, "rotation")[3], "1.0000");
    assert!(row(&table, "rotation")[4].parse::<f64>().unwrap() < 0.5);
    let found = json(dir.path(), &format!("reproduce two-sample --settings random {options} --json"));
    let cells = found["cells"].as_array().unwrap();
    let pairs = |cell: &Value| cell["pairs"].as_u64().unwrap();
    let (all, by_change) = cells.split_last().unwrap();
    assert_eq!((all["distributions"].as_str().unwrap(), pairs(all)), ("all", 24));
    assert_eq!(by_change.iter().map(pairs).sum::<u64>(), 24);
    let power = all["rejected"]["adaptive"].as_f64().unwrap();
    assert!((0.15..0.95).contains(&power), "{power}");
}

#[test]
fn unknown_tables_models_and_dimensions_are_refused_with_the_known_ones() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    refused(dir, "reproduce counting-sheep", &["counting-sheep"]);
    refused(dir, "reproduce kl --models knn,transformer", &["\"transformer\"", "multi-set-transformer-equi", "median"]);
    refused(dir, "reproduce mi --models knn", &["\"knn\"", "ksg", "mine"]);
    refused(dir, "reproduce scaling --models knn", &["\"knn\"", "union-transformer"]);
    refused(dir, "reproduce kl --dims 3", &["3 dimensions", "[2, 4, 8, 16]"]);
    refused(dir, "reproduce mi --dims 4", &["4 dimensions", "[2, 10, 20]"]);
    refused(dir, "reproduce kl --examples 0", &["at least 1"]);
    refused(dir, "reproduce scaling --sizes 8,8", &["sizes [8]", "at least two"]);
    refused(dir, "reproduce scaling --batch 0", &["batch 0", "4096"]);
    std::fs::write(dir.join("file"), "").unwrap();
    refused(dir, "reproduce kl --models knn --out file", &["file: is a file"]);
    // A dimension given twice is measured once.
    let found = json(dir, "reproduce kl --models knn --dims 4,2,2 --examples 8 --json");
    assert_eq!(found.as_array().unwrap().iter().map(|c| c["dim"].as_u64()).collect::<Vec<_>>(), [Some(2), Some(4)]);
}

#[test]
fn the_sampler_is_timed_on_one_thread_and_on_all() {
    let dir = tempfile::tempdir().unwrap();
    let found = json(dir.path(), "bench --sampler paper/kl-d4 --threads 2 --seconds 0.1 --json");
    assert_eq!(
        (found["dim"].as_u64(), found["batch"].as_u64(), &found["whitened"]),
        (Some(4), Some(64), &Value::Bool(true))
    );
    for (rate, threads) in found["sampler"].as_array().unwrap().iter().zip([1.0, 2.0]) {
        assert_eq!(rate["threads"].as_f64(), Some(threads));
        let (speed, ms) =
            (rate["batches_per_second"].as_f64().unwrap(), rate["ms_per_batch_per_thread"].as_f64().unwrap());
        assert!(speed > 0.0 && (speed * ms - 1e3 * threads).abs() < 1e-6, "{found}");
    }
    let printed = ok(dir.path(), "bench --sampler paper/mi-d2 --threads 1 --seconds 0.1");
    assert!(
        printed.lines().count() == 2 && printed.contains("1 thread ") && printed.contains("ms per batch and thread"),
        "{printed}"
    );
    refused(dir.path(), "bench --sampler paper/kl-d3", &["paper/kl-d3", "paper/kl-d16"]);
    refused(dir.path(), "bench --sampler paper/kl-d2 --dim 3", &["--dim"]);
}
