//! `setwise train`, `eval` and `sample` as a user runs them: runs that are killed, interrupted, out of disk space or
//! diverging.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// A run of a few seconds: small batches of small sets, a checkpoint every few steps.
const TINY: &str = "
[task]
kind = 'kl'
dim = 2
set-size = [5, 9]
[model]
latent = 8
hidden = 8
blocks = 1
[training]
steps = 600
batch-size = 8
learning-rate = 1e-3
[run]
validate-every = 97
validation-examples = 20
checkpoint-every = 7
log-every = 10
";

fn binary() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin("setwise"))
}

fn experiment(dir: &TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("tiny.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs to the end; returns the exit code, and standard output followed by standard error.
fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> (Option<i32>, String) {
    let out = binary().args(args).output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr))
}

fn train(experiment: &Path, out: &Path, more: &[&str]) -> (Option<i32>, String) {
    let mut args = vec!["train".into(), experiment.as_os_str().to_owned(), "--out".into(), out.as_os_str().to_owned()];
    args.extend(more.iter().map(|a| (*a).into()));
    run(args)
}

/// The bytes of the model, and the log without times.
fn result(out: &Path) -> (Vec<u8>, Vec<String>) {
    let log = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let lines = log.lines().map(|l| l.split(",\"seconds\"").next().unwrap().to_owned()).collect();
    (std::fs::read(out.join("model.safetensors")).unwrap(), lines)
}

#[test]
fn a_run_killed_at_any_moment_ends_with_the_bits_of_an_uninterrupted_run() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = experiment(&dir, TINY);
    let (uninterrupted, killed) = (dir.path().join("uninterrupted"), dir.path().join("killed"));
    let (code, printed) = train(&tiny, &uninterrupted, &["--threads", "2"]);
    assert_eq!(code, Some(0), "{printed}");
    let kills = std::env::var("SETWISE_KILLS").ok().and_then(|k| k.parse().ok()).unwrap_or(6);
    for kill in 0..kills {
        let mut child = binary()
            .args(["train", "--resume", "--threads", "1", "--out"])
            .args([&killed, &tiny])
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The moments spread over the start, steps, and the writing of checkpoints.
        std::thread::sleep(Duration::from_micros(7_000 + 13_331 * (kill * 7 % 11)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let (code, printed) = train(&tiny, &killed, &["--resume", "--threads", "2", "--loader-threads", "3"]);
    assert_eq!(code, Some(0), "{printed}");
    let (a, b) = (result(&uninterrupted), result(&killed));
    assert_eq!(a.1, b.1, "the logs differ");
    assert!(a.0 == b.0, "the models differ");
    // Resuming a finished run changes nothing.
    assert_eq!(train(&tiny, &killed, &["--resume"]).0, Some(0));
    assert!(result(&uninterrupted) == result(&killed), "resuming a finished run changed it");
}

#[cfg(unix)]
#[test]
fn an_interrupt_saves_and_exits_with_130() {
    let dir = tempfile::tempdir().unwrap();
    let long = experiment(&dir, &TINY.replace("steps = 600", "steps = 1000000"));
    let out = dir.path().join("run");
    let child = binary().arg("train").arg(&long).arg("--out").arg(&out).stdout(Stdio::piped()).spawn().unwrap();
    while !out.join("checkpoint.safetensors").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(130) && stdout.contains("--resume continues"), "{stdout}");
    assert!(!out.join("model.safetensors").exists());
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run_and_names_step_seed_and_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let diverging = experiment(&dir, &TINY.replace("learning-rate = 1e-3", "learning-rate = 10.0\nloss = 'mse'"));
    let text = std::fs::read_to_string(&diverging)
        .unwrap()
        .replace("[training]", "inner-norm = false\nouter-norm = false\npool-norm = false\n[training]");
    std::fs::write(&diverging, text).unwrap();
    let out = dir.path().join("run");
    let (code, printed) = train(&diverging, &out, &[]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.contains("of step") && printed.contains("batch seed") && printed.contains("checkpoint"),
        "{printed}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported_and_the_last_checkpoint_stays_intact() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = experiment(&dir, TINY);
    let out = dir.path().join("run");
    // The first part of the run has enough space.
    let mut child = binary()
        .arg("train")
        .arg(&tiny)
        .arg("--out")
        .arg(&out)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !out.join("checkpoint.previous.safetensors").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // A run killed between the two renames of a save leaves its last checkpoint under the other name.
    let last = ["checkpoint.safetensors", "checkpoint.previous.safetensors"].map(|name| out.join(name));
    let last = last.iter().find(|path| path.exists()).unwrap();
    let intact = std::fs::read(last).unwrap();
    // A limit on file sizes makes a write fail halfway, as a full disk does.
    let limited = format!(
        "trap '' XFSZ; ulimit -f 4; exec '{}' train '{}' --out '{}' --resume",
        assert_cmd::cargo::cargo_bin("setwise").display(),
        tiny.display(),
        out.display()
    );
    let output = Command::new("bash").args(["-c", &limited]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("could not be written") && stderr.contains("is intact"), "{stderr}");
    assert!(std::fs::read(last).unwrap() == intact, "the last checkpoint changed");
    assert!(!out.join("checkpoint.safetensors.partial").exists());
    assert_eq!(train(&tiny, &out, &["--resume"]).0, Some(0));
}

#[test]
fn the_folder_of_another_run_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = experiment(&dir, &TINY.replace("steps = 600", "steps = 20"));
    let out = dir.path().join("run");
    assert_eq!(train(&tiny, &out, &[]).0, Some(0));
    let before = result(&out);
    let (code, printed) = train(&tiny, &out, &[]);
    assert!(code == Some(2) && printed.contains("already holds a run") && printed.contains("--resume"), "{printed}");
    let (code, printed) = train(&tiny, &out, &["--resume", "--seed", "5"]);
    assert!(code == Some(2) && printed.contains("seed was 0, is now 5"), "{printed}");
    let (code, printed) = train(&tiny, &out, &["--resume", "--model", "pine"]);
    assert!(code == Some(2) && printed.contains("model.preset"), "{printed}");
    assert_eq!(before, result(&out));
}

#[test]
fn presets_and_seeds_are_trained_side_by_side_and_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = experiment(&dir, &TINY.replace("steps = 600", "steps = 20"));
    let out = dir.path().join("runs");
    let several = ["--model", "pine,cross-only", "--seed", "1,2", "--jobs", "3", "--json"];
    let (code, printed) = train(&tiny, &out, &several);
    assert_eq!(code, Some(0), "{printed}");
    let mut found: Vec<(String, u64)> = printed
        .lines()
        .filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok())
        .inspect(|v| assert!(v["finished"].as_bool().unwrap() && v["validation"].is_object(), "{v}"))
        .map(|v| (v["model"].as_str().unwrap().to_owned(), v["seed"].as_u64().unwrap()))
        .collect();
    found.sort();
    assert_eq!(found, [("cross-only".into(), 1), ("cross-only".into(), 2), ("pine".into(), 1), ("pine".into(), 2)]);
    // One of several runs has the bits of a single run.
    let alone = dir.path().join("alone");
    assert_eq!(train(&tiny, &alone, &["--model", "pine", "--seed", "2"]).0, Some(0));
    let model = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
    let pine = std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().path());
    let pine = pine.into_iter().find(|p| p.to_string_lossy().ends_with("pine-s2")).unwrap();
    assert_eq!(model(&pine), model(&alone));
    // The folders hold runs, and two runs cannot share one.
    let (code, printed) = train(&tiny, &out, &several[..4]);
    assert!(
        code == Some(2) && printed.contains("already holds a run") && printed.contains("4 of 4 runs failed"),
        "{printed}"
    );
    // The message names each run once.
    assert_eq!(printed.matches("pine-s1").count(), 1, "{printed}");
    let (code, printed) = train(&tiny, &out, &["--seed", "1,1"]);
    assert!(code == Some(2) && printed.contains("is the folder of two runs"), "{printed}");
    assert_eq!(train(&tiny, &out, &[&several[..], &["--resume"]].concat()).0, Some(0));
}

#[test]
fn a_trained_model_is_evaluated_on_fresh_examples_of_its_task() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = experiment(&dir, &TINY.replace("steps = 600", "steps = 20"));
    let out = dir.path().join("run");
    let (code, printed) = train(&tiny, &out, &["--json"]);
    assert_eq!(code, Some(0), "{printed}");
    let trained: serde_json::Value = serde_json::from_str(printed.trim()).unwrap();
    assert_eq!((trained["steps"].as_u64(), trained["finished"].as_bool()), (Some(20), Some(true)));
    let evaluate = |model: &Path| {
        let (code, printed) =
            run([Path::new("eval"), model, Path::new("--examples"), Path::new("130"), Path::new("--json")]);
        assert_eq!(code, Some(0), "{printed}");
        serde_json::from_str::<serde_json::Value>(printed.trim()).unwrap()["evaluation"].clone()
    };
    let by_run = evaluate(&out);
    assert_eq!(by_run["examples"], 130);
    assert_eq!(by_run, evaluate(&out.join("model.safetensors")));
    // Another experiment changes the examples, not the model.
    let other = dir.path().join("other.toml");
    std::fs::write(&other, TINY.replace("[model]", "[model]\npreset = 'pine'").replace("[5, 9]", "[7, 9]")).unwrap();
    let args = [Path::new("eval"), &out, Path::new("--on"), &other, Path::new("--examples"), Path::new("10")];
    let (code, printed) = run(args.into_iter().chain([Path::new("--json")]));
    assert_eq!(code, Some(0), "{printed}");
    let on_other: serde_json::Value = serde_json::from_str(printed.trim()).unwrap();
    assert_eq!(on_other["preset"], "multi-set-transformer");
    let (code, printed) = run([Path::new("eval"), dir.path()]);
    assert!(code == Some(2) && printed.contains("no model yet"), "{printed}");
}

#[test]
fn a_model_with_appended_columns_and_outputs_per_element_predicts_and_is_evaluated_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let text = TINY
        .replace("dim = 2", "dim = 2\naxes = 'canonical'\nappend = ['raw', 'mixture-log-densities']")
        .replace("steps = 600", "steps = 20");
    let text = text.replace("learning-rate = 1e-3", "learning-rate = 1e-3\nloss = { elements = { weight = 1.0 } }");
    let (appended, out) = (experiment(&dir, &text), dir.path().join("run"));
    let (code, printed) = train(&appended, &out, &[]);
    assert_eq!(code, Some(0), "{printed}");
    let file = |name: &str, rows: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, rows).unwrap();
        path
    };
    let (p, q) = (file("p.csv", "0.5,1\n2,3\n1,4\n0,2\n3,1\n"), file("q.csv", "1,1\n2,2.5\n0,3\n4,0\n"));
    let predict = |p: &Path| run([Path::new("predict"), &out.join("model.safetensors"), p, &q]);
    let (code, printed) = predict(&p);
    assert!(code == Some(0) && printed.trim().parse::<f32>().is_ok(), "{printed}");
    let (code, printed) = predict(&file("wide.csv", "1,2,3,4\n5,6,7,9\n"));
    assert!(code == Some(2) && printed.contains("wide.csv: has 4 columns, the model takes 2"), "{printed}");
    // The model prepares the examples of any experiment of its task as in training.
    let plain = dir.path().join("plain.toml");
    std::fs::write(&plain, TINY).unwrap();
    let error = |more: &[&Path]| {
        let args = [Path::new("eval"), &out, Path::new("--examples"), Path::new("50"), Path::new("--json")];
        let (code, printed) = run([&args[..], more].concat());
        assert_eq!(code, Some(0), "{printed}");
        serde_json::from_str::<serde_json::Value>(printed.trim()).unwrap()["evaluation"]["mean_absolute_error"].clone()
    };
    assert_eq!(error(&[]), error(&[Path::new("--on"), &plain]));
}

#[test]
fn sampled_examples_are_those_of_training_before_whitening() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = experiment(&dir, TINY);
    let draw = |name: &str, count: &str, threads: &str| {
        let out = dir.path().join(name);
        let args = ["sample", tiny.to_str().unwrap(), "--examples", count, "--seed", "3", "--threads", threads, "-o"];
        let (code, printed) = run(args.iter().map(Path::new).chain([out.as_path()]));
        assert_eq!(code, Some(0), "{printed}");
        ["x", "x_offsets", "y", "y_offsets", "label"].map(|f| std::fs::read(out.join(format!("{f}.npy"))).unwrap())
    };
    let all = draw("a", "20", "1");
    assert_eq!(all, draw("b", "20", "3"));
    // Labels are 64-bit numbers after a header of 128 bytes.
    assert_eq!(all[4].len(), 128 + 20 * 8);
    assert_eq!(draw("c", "10", "2")[4][128..], all[4][128..128 + 80]);
    let (code, printed) = run(["sample", "paper/kl-d2", "--examples", "0", "-o", "/nowhere"]);
    assert!(code == Some(2) && printed.contains("--examples 0"), "{printed}");
    let (code, printed) = run(["sample", "paper/kl-d5", "-o", "/nowhere"]);
    assert!(code == Some(2) && printed.contains("paper/kl-d16"), "{printed}");
}

/// The shape of a NPY file, and the bytes of its numbers.
fn npy(path: &Path) -> (Vec<usize>, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let (header, data) = bytes.split_at(10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]])));
    let header = String::from_utf8_lossy(header);
    let shape = header.split('(').nth(1).unwrap().split(')').next().unwrap();
    (shape.split(',').filter_map(|n| n.trim().parse().ok()).collect(), data.to_vec())
}

#[test]
fn sampled_examples_of_several_dimensions_are_padded_with_zeros_and_listed_with_their_dimensions() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[task]\nkind = 'broad-kl'\ndims = [1, 5]\nset-size = [30, 40]\nmax-divergence = 20.0
        [model]\npreset = 'multi-set-transformer-equi'\n[training]\nbatch-size = 3\n";
    let broad = experiment(&dir, text);
    let out = dir.path().join("examples");
    let (code, printed) =
        run([Path::new("sample"), &broad, Path::new("--examples"), Path::new("14"), Path::new("-o"), &out]);
    assert!(code == Some(0) && printed.contains("14 examples in 1 to 5 dimensions"), "{printed}");
    let integers = |name: &str| -> Vec<usize> {
        npy(&out.join(name)).1.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as usize).collect()
    };
    let dims = integers("dims.npy");
    assert_eq!(dims.len(), 14);
    assert!(dims.iter().any(|d| *d != dims[0]) && dims.iter().all(|d| (1..=5).contains(d)), "{dims:?}");
    for set in ["x", "y"] {
        let (shape, data) = npy(&out.join(format!("{set}.npy")));
        let rows: Vec<f64> = data.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect();
        let offsets = integers(&format!("{set}_offsets.npy"));
        assert_eq!(shape, [*offsets.last().unwrap(), 5]);
        for (i, &dim) in dims.iter().enumerate() {
            assert!((30..=40).contains(&(offsets[i + 1] - offsets[i])));
            for row in rows[offsets[i] * 5..offsets[i + 1] * 5].chunks(5) {
                assert!(row[..dim].iter().all(|x| *x != 0.0) && row[dim..].iter().all(|x| *x == 0.0), "{dim}: {row:?}");
            }
        }
    }
}

#[test]
fn the_folder_of_a_run_is_locked_until_the_run_ends() {
    let dir = tempfile::tempdir().unwrap();
    let long = experiment(&dir, &TINY.replace("steps = 600", "steps = 1000000"));
    let out = dir.path().join("run");
    let mut child = binary().arg("train").arg(&long).arg("-o").arg(&out).stderr(Stdio::null()).spawn().unwrap();
    while !out.join("checkpoint.safetensors").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (code, printed) = train(&long, &out, &["--resume", "--threads", "1"]);
    let ended = child.try_wait().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(code == Some(2) && printed.contains("run: a run is under way in this folder"), "{printed}");
    // The first run continues undisturbed. The lock ends with its process.
    assert_eq!(ended, None);
    setwise_lab::run::RunFolder::new(&out).lock().unwrap();
}

#[test]
fn the_error_of_one_of_several_experiments_names_the_experiment() {
    let dir = tempfile::tempdir().unwrap();
    let good = experiment(&dir, TINY);
    let bad = dir.path().join("bad.toml");
    let all = |text: &[u8]| {
        std::fs::write(&bad, text).unwrap();
        run([Path::new("train"), &good, &bad, Path::new("--out"), &dir.path().join("runs")])
    };
    for (text, expected) in [
        (TINY.replace("learning-rate = 1e-3", "learning-rate = -1.0"), "bad.toml: training.learning-rate: is -1"),
        (TINY.replace("latent = 8", "latent = 8\nheads = 3"), "bad.toml: model config: heads: "),
        (TINY.replace("dim = 2", "dim = -2"), "4 | dim = -2"),
    ] {
        let (code, printed) = all(text.as_bytes());
        assert!(code == Some(2) && printed.contains("bad.toml: ") && printed.contains(expected), "{printed}");
    }
    let (code, printed) = all(b"\xff\xfe\x00");
    assert!(code == Some(2) && printed.contains("bad.toml: is not text"), "{printed}");
}

#[test]
fn a_damaged_checkpoint_is_reported_and_renamed_and_the_previous_one_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = experiment(&dir, &TINY.replace("steps = 600", "steps = 30"));
    let out = dir.path().join("run");
    assert_eq!(train(&tiny, &out, &[]).0, Some(0));
    let before = result(&out);
    std::fs::write(out.join("checkpoint.safetensors"), "short").unwrap();
    let (code, printed) = train(&tiny, &out, &["--resume"]);
    assert!(code == Some(0) && printed.contains("going back to the checkpoint before it"), "{printed}");
    assert!(
        printed.contains("resumed after 28 steps") && out.join("checkpoint.damaged.safetensors").exists(),
        "{printed}"
    );
    assert!(before == result(&out), "the result differs");
    for name in ["checkpoint.safetensors", "checkpoint.previous.safetensors"] {
        std::fs::write(out.join(name), "short").unwrap();
    }
    let (code, printed) = train(&tiny, &out, &["--resume"]);
    assert!(code == Some(2) && printed.contains("no intact checkpoint") && printed.contains("--out"), "{printed}");
    // Without its experiment a checkpoint cannot be resumed.
    std::fs::remove_file(out.join("experiment.toml")).unwrap();
    let (code, printed) = train(&tiny, &out, &["--resume"]);
    assert!(code == Some(2) && printed.contains("experiment.toml is gone"), "{printed}");
}

#[test]
fn a_file_in_place_of_a_folder_is_refused_before_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = experiment(&dir, TINY);
    let (code, printed) = train(&tiny, &tiny, &[]);
    assert!(code == Some(2) && printed.contains("tiny.toml: is a file"), "{printed}");
    let (code, printed) = run([Path::new("sample"), &tiny, Path::new("-o"), &tiny]);
    assert!(code == Some(2) && printed.contains("tiny.toml: is a file"), "{printed}");
}

#[cfg(unix)]
#[test]
fn a_run_continues_if_standard_error_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let tiny = experiment(&dir, &TINY.replace("steps = 600", "steps = 20"));
    let out = dir.path().join("run");
    assert_eq!(train(&tiny, &out, &[]).0, Some(0));
    std::fs::remove_file(out.join("model.safetensors")).unwrap();
    // Standard error is a pipe without a reader, and resuming prints a line to it.
    let mut reader = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let pipe = reader.stdin.take().unwrap();
    reader.wait().unwrap();
    let status = binary().args(["train", "--resume", "--out"]).args([&out, &tiny]).stderr(pipe).status().unwrap();
    assert!(status.success(), "{status}");
    assert!(out.join("model.safetensors").exists());
}

#[test]
fn examples_with_a_singular_covariance_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let text = TINY.replace("steps = 600", "steps = 3").replace("[5, 9]", "[1, 1]").replace("dim = 2", "dim = 3");
    let flat = experiment(&dir, &text);
    let out = dir.path().join("run");
    let (code, printed) = train(&flat, &out, &[]);
    assert!(code == Some(0) && printed.contains("8 of 8 examples have a singular covariance"), "{printed}");
    let (code, printed) = run([Path::new("eval"), &out, Path::new("--examples"), Path::new("10")]);
    assert!(code == Some(0) && printed.contains("10 of 10 examples have a singular covariance"), "{printed}");
}
