//! Training and tables on recorded data, as a user runs them: made files here, the real ones where they are beside the repository.

mod common;

use std::path::{Path, PathBuf};

use common::{refused, run, setwise};
use serde_json::Value;

/// A folder with vectors of a few hundred words in two languages: the second is the first turned, with some noise.
fn words(dir: &Path) {
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

fn told(args: &[&str]) -> String {
    let (code, out, error) = run(args);
    assert_eq!(code, 0, "{args:?}: {error}");
    out
}

#[test]
fn words_are_aligned_from_made_files_and_accuracy_is_told() {
    let dir = tempfile::tempdir().unwrap();
    words(dir.path());
    let (experiment, out) = (experiment(dir.path()), dir.path().join("run"));
    let [data, experiment, out] = [dir.path(), &experiment, &out].map(|p| p.to_str().unwrap());
    let said = told(&["train", experiment, "--data", data, "--out", out]);
    assert!(said.contains("30 steps, accuracy 0."), "{said}");
    let said = told(&["eval", out, "--data", data, "--examples", "200"]);
    assert!(said.starts_with("accuracy ") && said.contains("200 fresh examples in 3 dimensions"), "{said}");
    let found: Value =
        serde_json::from_str(&told(&["eval", out, "--data", data, "--examples", "200", "--json"])).unwrap();
    assert!(found["evaluation"]["accuracy"].as_f64().unwrap() > 0.3, "{found}");
    // The variable serves as well as the option.
    let by_variable =
        setwise().env("SETWISE_DATA", data).args(["eval", out, "--examples", "200", "--json"]).output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&by_variable.stdout).unwrap(), found);
    let examples = dir.path().join("examples");
    told(&["sample", experiment, "--data", data, "--examples", "5", "-o", examples.to_str().unwrap()]);
    assert!(examples.join("x.npy").exists());
}

#[test]
fn data_that_is_not_there_is_told_with_where_it_comes_from() {
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
    assert!(!dir.path().join("run").exists(), "nothing was begun");
}

#[test]
fn tables_of_accuracies_hold_the_paper_and_what_was_run() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    // The paper's experiment on mixtures with two steps: no longer the paper's schedule.
    for seed in ["0", "1"] {
        let out = runs.join(seed);
        told(&[
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
    let table = told(&args);
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
fn pictures_need_a_folder_an_encoder_and_options_that_can_be() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let encoder = format!("{folder}/none.onnx");
    let embed = |more: &[&str]| refused([&["embed", folder, "--encoder", &encoder, "-o", "f.npy"], more].concat());
    assert!(embed(&["--mean", "1,2"]).contains("--mean: one number"));
    assert!(embed(&["--crop", "0"]).contains("--crop 0"));
    assert!(embed(&["--std", "0"]).contains("--std"));
    let error = embed(&[]);
    assert!(error.contains("none.onnx") || error.contains("--features onnx"), "{error}");
}
