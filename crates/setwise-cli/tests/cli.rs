//! The command line as a user runs it.

mod common;

use std::path::{Path, PathBuf};

use common::{refused, run, setwise};
use setwise::files::write_npy;
use setwise::models::{ImageEncoder, Images, Model, ModelConfig};
use tempfile::TempDir;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn fixture(name: &str) -> PathBuf {
    repository(&format!("crates/setwise-lab/tests/fixtures/{name}.safetensors"))
}

/// A folder with `model.safetensors`: the imported multi-set transformer of the fixtures, two sets of width 2.
fn with_model() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.safetensors");
    let (code, out, error) = run([Path::new("import"), &fixture("mst_concat"), Path::new("-o"), &model]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("transformer encoder") && out.contains("latent 16"), "{out}");
    (dir, model)
}

fn write(dir: &TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// The bytes of a NPY file of `f32`.
fn npy(shape: &[usize], data: &[f32]) -> Vec<u8> {
    let shape = shape.iter().map(|n| format!("{n},")).collect::<String>();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(data.iter().flat_map(|x| x.to_le_bytes()));
    out
}

#[test]
fn the_shipped_model_counts_the_symbols_of_the_shipped_sets() {
    let model = repository("weights/common-symbols.safetensors");
    let (a, b) = (repository("examples/sets/a.csv"), repository("examples/sets/b.csv"));
    let (code, out, _) = run([Path::new("predict"), &model, &a, &b]);
    let answer: f32 = out.trim().parse().unwrap();
    assert_eq!((code, answer.round()), (0, 4.0), "{out}");
}

#[test]
fn trained_models_prepare_sets_and_transform_outputs_as_in_training() {
    let [p, q] = ["p.csv", "q.csv"].map(|f| repository(&format!("examples/samples/{f}")));
    let dir = tempfile::tempdir().unwrap();
    let moved = |file: &Path, name: &str| {
        let text = std::fs::read_to_string(file).unwrap();
        let rows = text.lines().filter_map(|line| {
            line.split(',')
                .map(|x| x.parse::<f64>().ok().map(|x| format!("{}", 10.0 * x + 100.0)))
                .collect::<Option<Vec<_>>>()
        });
        write(&dir, name, rows.map(|row| row.join(",")).collect::<Vec<_>>().join("\n"))
    };
    let (far_p, far_q) = (moved(&p, "p.csv"), moved(&q, "q.csv"));
    let answer = |model: &Path, args: &[&Path]| -> Vec<f32> {
        let (code, out, error) = run([&[Path::new("predict"), model][..], args].concat());
        assert_eq!(code, 0, "{error}");
        out.split_whitespace().map(|x| x.parse().unwrap()).collect()
    };
    let model = repository("weights/kl/d2/model.safetensors");
    let (near, far, raw) = (answer(&model, &[&p, &q]), answer(&model, &[&far_p, &far_q]), Path::new("--raw"));
    assert!((near[0] - far[0]).abs() < 1e-3, "{near:?} and {far:?}");
    assert!((answer(&model, &[&p, &q, raw])[0] - answer(&model, &[&far_p, &far_q, raw])[0]).abs() > 0.1);
    // The outputs are quantiles of log(1 + KL); answers are in nats.
    let model = repository("crates/setwise/weights/kl-estimator/model.safetensors");
    let (nats, logs) = (answer(&model, &[&p, &q]), answer(&model, &[&p, &q, raw]));
    assert!(nats.len() == 5 && nats.is_sorted() && nats[4] < 10.0, "{nats:?}");
    assert_ne!(nats, logs);
    let (_, out, _) = run([Path::new("predict"), &model, &p, &q, Path::new("--json")]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["levels"], serde_json::json!([0.05, 0.25, 0.5, 0.75, 0.95]));
}

#[test]
fn a_stack_of_examples_gives_the_published_outputs_one_a_line() {
    let (dir, model) = with_model();
    let bytes = std::fs::read(fixture("mst_concat")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |name: &str| -> Vec<f32> {
        file.tensor(name).unwrap().data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let x = write(&dir, "x.npy", npy(file.tensor("in.x").unwrap().shape(), &numbers("in.x")));
    let y = write(&dir, "y.npy", npy(file.tensor("in.y").unwrap().shape(), &numbers("in.y")));
    let (code, out, error) = run([Path::new("predict"), &model, &x, &y]);
    assert_eq!(code, 0, "{error}");
    let answers: Vec<f32> = out.lines().map(|l| l.parse().unwrap()).collect();
    for (a, b) in answers.iter().zip(numbers("out")) {
        assert!((a - b).abs() < 1e-5, "{a}, not {b}");
    }
    assert_eq!(answers.len(), 3);

    let (_, out, _) = run([Path::new("predict"), &model, &x, &y, Path::new("--json")]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["examples"], 3);
    assert!((json["results"][1][0].as_f64().unwrap() - f64::from(answers[1])).abs() < 1e-6);

    // One thread and standard input give the same digits.
    let one = run([Path::new("predict"), &model, &x, &y, Path::new("--threads"), Path::new("1")]);
    assert_eq!(one.1.lines().collect::<Vec<_>>(), answers.iter().map(f32::to_string).collect::<Vec<_>>());
    let piped =
        setwise().arg("predict").arg(&model).arg("-").arg(&y).write_stdin(std::fs::read(&x).unwrap()).output().unwrap();
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), one.1);
}

#[test]
fn models_of_images_take_stacks_of_images_and_rows_of_pixels_alike() {
    let dir = tempfile::tempdir().unwrap();
    let images = Images::new(ImageEncoder::Mnist).with_size(6, 5, 1);
    let config = ModelConfig::preset("cross-only", 1).unwrap().with_images(images).with_latent(8).with_hidden(8);
    let model = dir.path().join("images.safetensors");
    Model::new(config.validate().unwrap(), 1).save(&model).unwrap();
    let bytes: Vec<u8> = (0..4 * 30).map(|i| (i * 37 % 256) as u8).collect();
    let numbers: Vec<f32> = bytes.iter().map(|&b| f32::from(b) / 255.0).collect();
    let image_stack = dir.path().join("images.npy");
    write_npy(&image_stack, &[4, 6, 5], &bytes).unwrap();
    let stack = write(&dir, "stack.npy", npy(&[2, 4, 6, 5, 1], &[numbers.clone(), numbers.clone()].concat()));
    let rows = write(&dir, "rows.npy", npy(&[4, 30], &numbers));
    let answer = |a: &Path, b: &Path| {
        let (code, out, error) = run([Path::new("predict"), &model, a, b]);
        assert_eq!(code, 0, "{error}");
        out
    };
    let one = answer(&image_stack, &rows);
    assert_eq!(one, answer(&rows, &image_stack));
    assert_eq!(answer(&stack, &stack), one.repeat(2));
    let raw: Vec<f32> = bytes.iter().map(|&b| f32::from(b)).collect();
    let raw = write(&dir, "raw.npy", npy(&[4, 6, 5], &raw));
    let error = refused([Path::new("predict"), &model, &raw, &rows]);
    assert!(
        error.contains("raw.npy: image 1, number 2 is 37; pixels are bytes (uint8) or numbers from 0 to 1"),
        "{error}"
    );
    let wide = write(&dir, "wide.npy", npy(&[4, 5, 6], &numbers));
    let error = refused([Path::new("predict"), &model, &wide, &rows]);
    assert!(error.contains("wide.npy") && error.contains("[n, 6, 5]"), "{error}");
}

#[test]
fn bad_sets_are_refused_with_file_row_and_column() {
    let (dir, model) = with_model();
    let good = write(&dir, "good.csv", "x,y\n0,1\n2,3\n");
    for (name, content, expected) in [
        ("text.csv", "0,1\n2,three\n", "text.csv: line 2, column 2: \"three\" is not a number"),
        ("nan.csv", "x,y\n0,1\nNaN,3\n", "nan.csv: line 3, column 1 (\"x\") is NaN"),
        ("inf.tsv", "0\tinf\n", "inf.tsv: line 1, column 2 is inf"),
        ("ragged.csv", "0,1\n2,3,4\n", "ragged.csv: line 2 has 3 columns"),
        ("empty.csv", "", "empty.csv: is empty"),
        ("header.csv", "x,y\n", "header.csv: is empty"),
        ("wide.csv", "1,2,3\n", "wide.csv: has 3 columns, the model takes 2 for set 1"),
    ] {
        let bad = write(&dir, name, content);
        let error = refused([Path::new("predict"), &model, &bad, &good]);
        assert!(error.contains(expected), "{error}");
    }
    let stack = write(&dir, "stack.npy", npy(&[3, 1, 2], &[0.0; 6]));
    let error = refused([Path::new("predict"), &model, &good, &stack]);
    assert!(error.contains("good.csv holds 1 examples") && error.contains("stack.npy holds 3"), "{error}");
    let flat = write(&dir, "flat.npy", npy(&[4], &[0.0; 4]));
    assert!(
        refused([Path::new("predict"), &model, &flat, &good]).contains("flat.npy: has 1 column, the model takes 2")
    );
    let none = write(&dir, "none.npy", npy(&[0, 2], &[]));
    assert!(refused([Path::new("predict"), &model, &none, &good]).contains("none.npy: is empty"));
    assert!(refused([Path::new("predict"), &model, &good]).contains("takes 2 sets, 1 set given"));
    assert!(refused([Path::new("predict"), &model, &good, Path::new("missing.csv")]).contains("missing.csv"));
}

#[test]
fn damaged_and_foreign_models_are_refused_by_name() {
    let (dir, model) = with_model();
    let set = write(&dir, "set.csv", "0,1\n");
    let bytes = std::fs::read(&model).unwrap();
    let cut = write(&dir, "cut.safetensors", &bytes[..bytes.len() - 7]);
    assert!(refused([Path::new("predict"), &cut, &set, &set]).contains("cut.safetensors"));
    let error = refused([Path::new("predict"), &fixture("mst_concat"), &set, &set]);
    assert!(error.contains("setwise import"), "{error}");
    let error = refused([Path::new("import"), &model, Path::new("-o"), Path::new("out.safetensors")]);
    assert!(error.contains("no architecture of the published code"), "{error}");
    assert!(!Path::new("out.safetensors").exists());
}

#[test]
fn import_takes_heads_and_pooling_as_options() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.safetensors");
    let import = |name: &str, options: &[&str]| {
        let mut args = vec!["import".into(), fixture(name), "-o".into(), out.clone()];
        args.extend(options.iter().map(PathBuf::from));
        run(args)
    };
    assert_eq!(import("multi_rn_sumpool", &["--relation-pool", "sum"]).0, 0);
    assert!(
        import("mst_concat", &["--heads", "3"]).2.contains("heads: is 3, which does not divide the latent width 16")
    );
    assert_eq!(import("mst_concat", &["--heads", "3"]).0, 2);
    assert_eq!(import("mst_concat", &["--relation-pool", "mean"]).0, 2);
    assert_eq!(import("block_mha", &[]).0, 2);
}

#[test]
fn import_does_not_overwrite_its_input() {
    let dir = tempfile::tempdir().unwrap();
    let weights = write(&dir, "weights.safetensors", std::fs::read(fixture("mst_concat")).unwrap());
    for out in ["-o", "--out"] {
        let error = refused([Path::new("import"), &weights, Path::new(out), &weights]);
        assert!(error.contains("weights.safetensors: is both input and output; choose another output"), "{error}");
    }
    assert_eq!(std::fs::read(&weights).unwrap(), std::fs::read(fixture("mst_concat")).unwrap());
}

#[test]
fn bench_prints_text_and_json() {
    let args = ["bench", "--model", "cross-only", "--dim", "2", "--batch", "4", "--points", "9", "--seconds", "0.01"];
    let (code, out, _) = run(args.iter().chain(&["--threads", "2", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    for (key, value) in [("batch", 4), ("points", 9), ("dim", 2), ("threads", 2), ("latent", 32), ("hidden", 64)] {
        assert_eq!(json[key], value, "{key}");
    }
    for key in ["forward_ms", "train_step_ms", "parameters", "peak_memory_bytes", "repetitions"] {
        assert!(json[key].as_f64().unwrap() > 0.0, "{key}");
    }
    let (_, out, _) = run(args.iter().chain(&["--operations"]));
    assert!(out.contains("training step") && out.contains("attention, 2 relations"), "{out}");
}

#[test]
fn amx_products_are_computed_or_refused() {
    let (code, _, error) = run(["bench", "--precision", "bf16x3", "--batch", "2", "--points", "5", "--seconds", "0"]);
    assert!(code == 0 || error.contains("AMX is not available"), "{code}: {error}");
}

#[test]
fn impossible_requests_are_refused() {
    assert!(refused(["bench", "--model", "transformer"]).contains("multi-set-rn"));
    assert!(refused(["bench", "--heads", "5"]).contains("heads: is 5"));
    assert!(refused(["bench", "--dim", "0"]).contains("is 0"));
    assert!(refused(["bench", "--points", "18446744073709551615"]).contains("must be between 1 and 268435456"));
    assert!(refused(["bench", "--batch", "1", "--points", "40000000", "--dim", "2"]).contains("memory"));
    assert!(refused(["bench", "--threads", "0"]).contains("--threads 0"));
    for seconds in ["nan", "-1", "1e300"] {
        assert!(refused(["bench", &format!("--seconds={seconds}")]).contains("--seconds "));
    }
    assert!(refused(["bench", "--precision", "bf16"]).contains("precision bf16 is for GPUs"));
    assert_eq!(run(["predict"]).0, 2);
    assert_eq!(run(["nonsense"]).0, 2);
}

#[test]
fn models_lists_every_preset_and_prints_configs_that_can_be_read_back() {
    let (code, out, _) = run(["models"]);
    assert_eq!(code, 0);
    let (_, json, _) = run(["models", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let all = json["architectures"].as_array().unwrap();
    assert_eq!(all.len(), 10);
    for preset in all {
        let name = preset["name"].as_str().unwrap();
        assert!(out.contains(name));
        let (_, text, _) = run(["models", "--config", name, "--dim", "3"]);
        let config: setwise::ModelConfig = toml::from_str(&text).unwrap();
        assert_eq!(config, setwise::ModelConfig::preset(name, 3).unwrap());
        let (_, text, _) = run(["models", "--config", name, "--dim", "3", "--json"]);
        assert_eq!(serde_json::from_str::<setwise::ModelConfig>(&text).unwrap(), config);
    }
    for encoder in json["image_encoders"].as_array().unwrap() {
        assert!(out.contains(encoder["name"].as_str().unwrap()));
        let images: Images = serde_json::from_value(encoder["images"].clone()).unwrap();
        assert_eq!(images, Images::new(images.encoder));
    }
}

#[test]
fn a_missing_device_is_refused_with_the_reason() {
    let (dir, model) = with_model();
    let set = write(&dir, "a.csv", "1,2\n3,4\n");
    let predict = |device: &str| {
        let paths = [model.as_path(), &set, &set].map(|p| p.as_os_str().to_owned());
        let mut args: Vec<std::ffi::OsString> = vec!["predict".into()];
        args.extend(paths);
        args.extend(["--device".into(), device.into()]);
        args
    };
    let error = refused(predict("tpu"));
    assert!(error.contains("\"tpu\"") && error.contains("cuda:N"), "{error}");
    let (code, _, _) = run(predict("cpu"));
    assert_eq!(code, 0);
    // With a GPU and a CUDA build this succeeds; otherwise the message names the missing part.
    let (code, _, error) = run(predict("cuda"));
    let named = ["--features cuda", "libcuda", "libnvrtc", "GPU"].iter().any(|m| error.contains(m));
    assert!(code == 0 || (code == 2 && named), "{error}");
}
