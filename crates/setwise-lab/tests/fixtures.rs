//! Outputs, gradients and training losses of the published PyTorch code, on tiny cases (`fixtures/`).
//!
//! | tensor | content |
//! | --- | --- |
//! | `w.*` | the state dict |
//! | `in.*` | inputs |
//! | `out` | the output |
//! | `grad.*` | gradients of the sum of the output with respect to inputs |
//! | `gw.*` | gradients of the sum of the output with respect to parameters |
//! | `train.*` | five Adam steps |
//!
//! Files in `fixtures/synthetic` cover the other architectures and options of the published code. A second
//! implementation, `make.py`, creates them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use setwise::models::{Encoder, RelationPool, Relations, Sharing, program};
use setwise::{Loss, Model, SetBatch, Trainer};
use setwise_engine::{
    Activation, Attention, BatchView, Cpu, Linear, Mode, Op, Program, ProgramBuilder, Relation, SetView, Slice, Space,
    Value,
};
use setwise_lab::import::{ReferenceOptions, import_reference};

struct Fixture {
    path: PathBuf,
    tensors: HashMap<String, (Vec<usize>, Vec<f64>)>,
}

impl Fixture {
    fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.safetensors"));
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file
            .iter()
            .map(|(name, t)| {
                let data = match t.dtype() {
                    Dtype::F32 => {
                        t.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
                    }
                    Dtype::F64 => t.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
                    other => panic!("{name} is {other:?}"),
                };
                (name.to_owned(), (t.shape().to_vec(), data))
            })
            .collect();
        Fixture { path, tensors }
    }

    fn get(&self, name: &str) -> &[f64] {
        &self.tensors[name].1
    }

    fn single(&self, name: &str) -> Vec<f32> {
        self.get(name).iter().map(|&x| x as f32).collect()
    }

    fn shape(&self, name: &str) -> &[usize] {
        &self.tensors[name].0
    }

    /// Inputs `[batch, points, width]` as a packed batch.
    fn batch(&self) -> SetBatch {
        let sets = ["in.x", "in.y"].map(|name| {
            let &[b, n, d] = self.shape(name) else { panic!("{name}") };
            setwise::sets::PackedSet::new(self.single(name), d, (0..=b).map(|i| i * n).collect())
        });
        SetBatch::new(sets.into()).unwrap()
    }

    /// The gradients of the parameters in the layout of `model`, made by importing them as if they were weights.
    fn parameter_gradients(&self, options: ReferenceOptions, model: &Model) -> Vec<f32> {
        let bytes = std::fs::read(&self.path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let views =
            file.iter().filter_map(|(k, t)| Some((format!("w.{}", k.strip_prefix("gw.")?), t))).collect::<Vec<_>>();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gradients.safetensors");
        safetensors::serialize_to_file(views, None, &path).unwrap();
        let gradients = import_reference(&path, options).unwrap();
        assert_eq!(gradients.config(), model.config());
        gradients.params().to_vec()
    }
}

fn close(what: &str, ours: &[f32], theirs: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let scale = theirs.iter().fold(1.0f64, |m, x| m.max(x.abs()));
    for (i, (&a, &b)) in ours.iter().zip(theirs).enumerate() {
        assert!((f64::from(a) - b).abs() <= tolerance * scale, "{what} at {i}: {a}, not {b}");
    }
}

fn check_model(name: &str, options: ReferenceOptions) {
    let fixture = Fixture::read(name);
    let mut model = import_reference(&fixture.path, options).unwrap();
    let batch = fixture.batch();
    close(&format!("{name}: output"), model.predict(&batch).unwrap().values(), fixture.get("out"), 1e-5);

    let mut cpu = Cpu::<f32>::new(program(model.config(), Mode::Train, true));
    cpu.forward(model.params(), &batch.view()).unwrap();
    let ones = vec![1.0; cpu.output(0).len()];
    let mut grads = vec![f32::NAN; model.params().len()];
    cpu.backward(model.params(), &[&ones], &mut grads).unwrap();
    close(&format!("{name}: gradient of x"), cpu.input_grad(0).unwrap(), fixture.get("grad.x"), 1e-5);
    close(&format!("{name}: gradient of y"), cpu.input_grad(1).unwrap(), fixture.get("grad.y"), 1e-5);
    let theirs = fixture.parameter_gradients(options, &model);
    for spec in model.layout().specs() {
        let expected: Vec<f64> = theirs[spec.range()].iter().map(|&x| f64::from(x)).collect();
        close(&format!("{name}: gradient of {}", spec.name), &grads[spec.range()], &expected, 1e-5);
    }

    if fixture.tensors.contains_key("train.losses") {
        let mut trainer = Trainer::new(model, Loss::L1);
        let target = fixture.single("train.target");
        for (step, &expected) in fixture.get("train.losses").iter().enumerate() {
            let loss = trainer.step(&batch, &target, 1e-3).unwrap();
            assert!((loss - expected).abs() < 1e-4, "{name}: loss of step {step} is {loss}, not {expected}");
        }
        let after = trainer.model().predict(&batch).unwrap();
        close(&format!("{name}: output after training"), after.values(), fixture.get("train.out_after"), 1e-4);
    }
}

#[test]
fn the_multi_set_transformer_equals_the_published_one() {
    check_model("mst_concat", ReferenceOptions::default());
}

#[test]
fn the_sum_merge_model_equals_the_published_one() {
    check_model("mst_sum", ReferenceOptions::default());
}

#[test]
fn the_dimension_equivariant_model_equals_the_published_one() {
    check_model("mst_equi", ReferenceOptions::default());
}

#[test]
fn the_multi_set_relation_network_equals_the_published_one() {
    check_model("multi_rn_sumpool", ReferenceOptions { relation_pool: RelationPool::Sum, ..Default::default() });
}

#[test]
fn the_single_set_transformer_equals_the_published_one() {
    check_model("naive_st", ReferenceOptions::default());
}

#[test]
fn the_union_transformer_equals_the_published_one() {
    check_model("union", ReferenceOptions::default());
}

#[test]
fn pine_equals_the_published_one() {
    check_model("pine", ReferenceOptions::default());
}

/// Imports a case of the second implementation and compares its output.
fn check_synthetic(name: &str, options: ReferenceOptions) -> Model {
    let weights = Fixture::read(&format!("synthetic/{name}"));
    let values = if weights.tensors.contains_key("out") { name.to_owned() } else { format!("{name}_io") };
    let values = Fixture::read(&format!("synthetic/{values}"));
    let mut model = import_reference(&weights.path, options).unwrap();
    close(&format!("{name}: output"), model.predict(&values.batch()).unwrap().values(), values.get("out"), 1e-5);
    model
}

#[test]
fn every_other_architecture_and_option_of_the_published_code_is_imported() {
    let max = ReferenceOptions::default();
    for name in
        ["mst_cross", "mst_noln", "mst_dec0", "mst_dec3", "mst_noproj", "equi3", "mst_noprefix", "cross_only_shared"]
    {
        check_synthetic(name, max);
    }
    assert_eq!(check_synthetic("cross_only", max).config().relations, Relations::Cross);
    assert_eq!(check_synthetic("mst_sym", max).config().sharing, Sharing::Sym);
    assert_eq!(check_synthetic("mst_dedup", max).config().sharing, Sharing::Sym);
    assert_eq!(check_synthetic("multi_rn_max", max).config().encoder, Encoder::RelationNetwork);
    check_synthetic("multi_rn_sym", max);
    assert_eq!(check_synthetic("single_rn", max).config().relation_pool, RelationPool::Sum);
    assert_eq!(check_synthetic("single_rff", max).config().encoder, Encoder::FeedForward);
    assert_eq!(check_synthetic("single_st_shared", max).config().sharing, Sharing::Sym);
    assert!(check_synthetic("union_enc", max).config().set_encoding);
}

#[test]
fn errors_name_tensors_that_are_not_understood() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.safetensors");
    let refused = |change: &dyn Fn(&str) -> Option<String>| -> String {
        let bytes = std::fs::read(Fixture::read("naive_st").path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let views: Vec<_> = file.iter().filter_map(|(k, t)| Some((change(k)?, t))).collect();
        safetensors::serialize_to_file(views, None, &path).unwrap();
        import_reference(&path, ReferenceOptions::default()).err().expect("an error").to_string()
    };
    let renamed = refused(&|k| Some(k.replace("w.encoder2.1.mab.ln1.bias", "w.encoder2.1.mab.ln1.offset")));
    assert!(renamed.contains("encoder2.1.mab.ln1.bias") && renamed.contains("missing"), "{renamed}");
    let missing = refused(&|k| (k != "w.pool2.mab.fc.2.weight").then(|| k.to_owned()));
    assert!(missing.contains("pool2.mab.fc.2.weight"), "{missing}");
    let extra = refused(&|k| Some(if k == "in.x" { "w.alpha0".to_owned() } else { k.to_owned() }));
    assert!(extra.contains("\"alpha0\"") && extra.contains("not understood"), "{extra}");
    let unknown = refused(&|k| k.starts_with("w.proj").then(|| k.to_owned()));
    assert!(unknown.contains("proj.bias") && unknown.contains("no architecture"), "{unknown}");
    let heads = import_reference(Fixture::read("naive_st").path, ReferenceOptions { heads: 3, ..Default::default() });
    assert!(heads.err().unwrap().to_string().contains("heads: is 3"));
}

/// Runs a block `[x, y] -> out` with parameters named as `names` maps them, and compares everything.
fn check_block(
    fixture: &str,
    dimensions: bool,
    build: impl Fn(&mut ProgramBuilder, Value, Value) -> Value,
    theirs: impl Fn(&str) -> String,
) {
    let f = Fixture::read(fixture);
    // [batch, points, width], or [batch, points, dimensions, width]
    let channels = *f.shape("in.x").last().unwrap();
    let width = f.shape("in.x")[2..].iter().product();
    let mut b = Program::builder(&[channels, channels], dimensions, Mode::Train, true);
    let (x, y) = (b.input(0), b.input(1));
    let out = build(&mut b, x, y);
    let mut cpu = Cpu::<f32>::new(b.finish(vec![out]));
    let mut params = vec![0.0; cpu.program().params().len()];
    for spec in cpu.program().params().specs() {
        params[spec.range()].copy_from_slice(&f.single(&format!("w.m.{}", theirs(&spec.name))));
    }
    let data = [f.single("in.x"), f.single("in.y")];
    let offsets = ["in.x", "in.y"].map(|n| (0..=f.shape(n)[0]).map(|i| i * f.shape(n)[1]).collect::<Vec<_>>());
    let sets = (0..2).map(|k| SetView { data: &data[k], width, offsets: &offsets[k] }).collect();
    cpu.forward(&params, &BatchView { sets }).unwrap();
    close(&format!("{fixture}: output"), cpu.output(0), f.get("out"), 1e-5);
    let ones = vec![1.0; cpu.output(0).len()];
    let mut grads = vec![f32::NAN; params.len()];
    cpu.backward(&params, &[&ones], &mut grads).unwrap();
    close(&format!("{fixture}: gradient of x"), cpu.input_grad(0).unwrap(), f.get("grad.x"), 1e-5);
    close(&format!("{fixture}: gradient of y"), cpu.input_grad(1).unwrap(), f.get("grad.y"), 1e-5);
    for spec in cpu.program().params().specs() {
        let expected = f.get(&format!("gw.m.{}", theirs(&spec.name)));
        close(&format!("{fixture}: gradient of {}", spec.name), &grads[spec.range()], expected, 1e-5);
    }
}

/// Projections, attention and output projection of one relation.
fn attention_block(b: &mut ProgramBuilder, x: Value, y: Value, heads: usize, bias: bool) -> Value {
    let spec = b.spec(x);
    let width = spec.cols;
    let query_value = b.fresh(spec.space, width, spec.per_dim);
    let key_value = b.fresh(b.spec(y).space, 2 * width, spec.per_dim);
    let query = b.full(query_value);
    let key = Slice { value: key_value, col: 0, cols: width };
    let value = Slice { value: key_value, col: width, cols: width };
    let maps = [("w_q", x, query), ("w_k", y, key), ("w_v", y, value)]
        .map(|(name, from, to)| b.map(name, b.full(from), to, bias))
        .to_vec();
    b.op(Op::Linear(Linear { maps, activation: Activation::None }));
    let attended = b.fresh(spec.space, width, spec.per_dim);
    let stats = b.saved(spec.space, 2 * heads, false);
    let relation = Relation { query, key, value, out: b.full(attended), stats };
    b.op(Op::Attention(Attention { relations: vec![relation], heads, scale: 1.0 / (width as f64).sqrt() }));
    let out = b.fresh(spec.space, width, spec.per_dim);
    let map = b.map("w_o", b.full(attended), b.full(out), bias);
    b.op(Op::Linear(Linear { maps: vec![map], activation: Activation::None }));
    out
}

#[test]
fn the_attention_block_equals_the_published_one() {
    check_block("block_mha", false, |b, x, y| attention_block(b, x, y, 4, true), str::to_owned);
}

#[test]
fn the_dimension_equivariant_attention_block_equals_the_published_one() {
    check_block("block_mha_equi", true, |b, x, y| attention_block(b, x, y, 4, false), str::to_owned);
}

#[test]
fn the_transformer_block_with_norms_equals_the_published_one() {
    use setwise::nn::{Relation, RelationKind, RelationOptions, relate};
    let build = |b: &mut ProgramBuilder, x: Value, y: Value| {
        let out = b.fresh(Space::Set(0), 16, false);
        let relation = Relation { name: "m".to_owned(), query: x, key: y, out: b.full(out) };
        let attention = RelationKind::Attention { heads: 4, scale: 0.25, bias: true };
        relate(b, &[relation], RelationOptions { kind: attention, latent: 16, hidden: 32, norm: true, dropout: 0.0 });
        out
    };
    let theirs = |name: &str| {
        let (layer, kind) = name.strip_prefix("m.").unwrap().rsplit_once('.').unwrap();
        let layer = match layer {
            "query" => "attn.w_q",
            "key" => "attn.w_k",
            "value" => "attn.w_v",
            "output" => "attn.w_o",
            "expand" => "fc.0",
            "contract" => "fc.2",
            "relate-norm" => "ln0",
            "feed-norm" => "ln1",
            other => panic!("{other}"),
        };
        let kind = match kind {
            "gain" => "weight",
            "shift" => "bias",
            same => same,
        };
        format!("{layer}.{kind}")
    };
    check_block("block_mab_ln", false, build, theirs);
}

#[test]
fn narrower_vectors_pass_the_same_tests() {
    setwise_engine::simd::test_with_narrower_vectors("");
}
