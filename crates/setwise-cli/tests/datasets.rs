//! Training and tables on recorded data, as a user runs them, with generated files.

mod common;

use std::path::{Path, PathBuf};

use common::{refused, run, setwise};
use serde_json::Value;

/// Writes vectors of 300 words in two languages: the second has the coordinates of the first permuted and one negated.
fn write_words(dir: &Path) {
    let folder = dir.join("wordvec_en_fr");
    std::fs::create_dir_all(&folder).unwrap();
    let (mut english, mut french, mut pairs) = (String::from("300 3\n"), String::new(), String::new());
    for i in 0..300u32 {
        let x = |k: u32| f64::from((i + 1).wrapping_mul(2_654_435_761).rotate_left(k * 9) % 1000) / 500.0 - 1.0;
        english += &format!("e{i} {} {} {}\n", x(0), x(1), x(2));
        french += &format!("f{i} {} {} {}\n", x(1), -x(2), x(0));
        pairs += &format!("e{i} f{i}\n");
    }
    std::fs::write(folder.join("cc.en.300.vec"), english).unwrap();
    std::fs::write(folder.join("cc.fr.300.vec"), french).unwrap();
    std::fs::write(
        folder.join("en-fr.5000-6500.txt"),
        pairs.lines().take(60).map(|l| format!("{l}\n")).collect::<String>(),
    )
    .unwrap();
    std::fs::write(folder.join("en-fr.txt"), pairs).unwrap();
}

fn experiment(dir: &Path) -> PathBuf {
    let path = dir.join("words.toml");
    let text = "curriculum = [{ steps = 10, set-size = 1 }]\n[task]\nkind = 'align-words'\nwidth = 3\nset-size = [2, 4]\n[model]\nlatent = 16\nhidden = 16\nblocks = 1
        [training]\nsteps = 30\nbatch-size = 16\nloss = 'bce'\nlearning-rate = 3e-3\n[run]\nvalidation-examples = 100";
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs without failure; returns standard output.
fn ok(args: &[&str]) -> String {
    let (code, out, error) = run(args);
    assert_eq!(code, 0, "{args:?}: {error}");
    out
}

#[test]
fn words_are_aligned_from_generated_files_and_the_accuracy_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    write_words(dir.path());
    let (experiment, out) = (experiment(dir.path()), dir.path().join("run"));
    let [data, experiment, out] = [dir.path(), &experiment, &out].map(|p| p.to_str().unwrap());
    let printed = ok(&["train", experiment, "--data", data, "--out", out]);
    assert!(printed.contains("30 steps, accuracy 0."), "{printed}");
    let printed = ok(&["eval", out, "--data", data, "--examples", "200"]);
    assert!(printed.starts_with("accuracy ") && printed.contains("200 fresh examples in 3 dimensions"), "{printed}");
    let found: Value =
        serde_json::from_str(&ok(&["eval", out, "--data", data, "--examples", "200", "--json"])).unwrap();
    assert!(found["evaluation"]["accuracy"].as_f64().unwrap() > 0.3, "{found}");
    // The environment variable replaces the option.
    let by_variable =
        setwise().env("SETWISE_DATA", data).args(["eval", out, "--examples", "200", "--json"]).output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&by_variable.stdout).unwrap(), found);
    let examples = dir.path().join("examples");
    ok(&["sample", experiment, "--data", data, "--examples", "5", "-o", examples.to_str().unwrap()]);
    assert!(examples.join("x.npy").exists());
}

#[test]
fn missing_data_is_refused_with_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().to_str().unwrap();
    for (experiment, parts) in [
        ("paper/align-words", ["fasttext.cc", "MUSE"]),
        ("paper/align-captions", ["flickr8k", "Flickr8k"]),
        ("paper/counting-mnist", ["train-images-idx3-ubyte", "ossci-datasets"]),
        ("ours/counting-omniglot", ["images_background", "brendenlake"]),
        ("ours/distinguish-images", ["t10k-images-idx3-ubyte", "--data DIR or SETWISE_DATA"]),
    ] {
        let error = refused(["train", experiment, "--data", empty, "--out", &format!("{empty}/run")]);
        assert!(parts.iter().all(|p| error.contains(p)), "{experiment}: {error}");
    }
    let output = setwise().env_remove("SETWISE_DATA").args(["train", "paper/align-words"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains("--data DIR or SETWISE_DATA"), "{error}");
    assert!(refused(["train", "paper/align-words", "--data", "nowhere"]).contains("--data nowhere"));
    assert!(!dir.path().join("run").exists(), "no run was started");
}

#[test]
fn tables_of_accuracies_hold_the_papers_numbers_and_those_of_runs() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    // With two steps the paper's experiment on mixtures has another schedule than the paper's.
    for seed in ["0", "1"] {
        let out = runs.join(seed);
        ok(&[
            "train",
            "paper/distinguish-synthetic",
            "--steps",
            "2",
            "--seed",
            seed,
            "--model",
            "cross-only",
            "--out",
            out.to_str().unwrap(),
        ]);
    }
    let folder = dir.path().join("tables");
    let [runs, folder] = [&runs, &folder].map(|p| p.to_str().unwrap());
    let args = [
        "reproduce",
        "distinguish",
        "--runs",
        runs,
        "--examples",
        "128",
        "--models",
        "cross-only,pine",
        "--out",
        folder,
    ];
    let table = ok(&args);
    let row = |name: &str, schedule: &str| -> Vec<String> {
        let cells = |l: &str| l.trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect::<Vec<_>>();
        table
            .lines()
            .map(cells)
            .find(|c| c.len() > 2 && c[0] == name && c[1] == schedule)
            .unwrap_or_else(|| panic!("{table}"))
    };
    assert_eq!(row("pine", "paper")[2..], ["0.5012", "not run", "0.5048", "not run"]);
    assert_eq!(row("cross-only", "paper")[3], "not run");
    let ours = row("cross-only", "ours");
    assert!(ours[2] == "0.6353" && ours[3].contains(" ± ") && ours[5] == "not run", "{table}");
    assert!(table.contains("mixtures, cross-only (ours)") && table.contains("2 steps of 256"), "{table}");
    let found: Value =
        serde_json::from_slice(&std::fs::read(Path::new(folder).join("distinguish.json")).unwrap()).unwrap();
    let ours = found.as_array().unwrap().iter().find(|c| c["schedule"] == "ours" && c["column"] == "mixtures").unwrap();
    assert!(ours["runs"].as_array().unwrap().len() == 2 && ours["accuracy_sd"].is_number(), "{ours}");
    assert!(refused(["reproduce", "alignment", "--models", "knn"]).contains("sum-merge"));
    assert!(refused(["reproduce", "counting", "--examples", "0"]).contains("at least 1"));
}

#[test]
fn embed_needs_a_folder_an_encoder_and_valid_options() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let encoder = format!("{folder}/none.onnx");
    let embed = |more: &[&str]| refused([&["embed", folder, "--encoder", &encoder, "-o", "f.npy"], more].concat());
    assert!(embed(&["--mean", "1,2"]).contains("--mean: has 2 numbers; give 1, or 3 for red, green and blue"));
    assert!(embed(&["--crop", "0"]).contains("--crop 0"));
    assert!(embed(&["--std", "0"]).contains("--std"));
    let error = embed(&[]);
    assert!(error.contains("none.onnx") || error.contains("--features onnx"), "{error}");
}
