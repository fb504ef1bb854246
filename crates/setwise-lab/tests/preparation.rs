//! Models store the preparation of their inputs, as in their experiment.

use setwise::data::{Preparation, compress};
use setwise::files::{Sample, pack_samples};
use setwise::models::{OutputKind, SharedModel};
use setwise::{Model, ModelConfig, Prediction, SetBatch};
use setwise_lab::experiment::Experiment;

fn model(task: &str, loss: &str) -> Model {
    let mut model = Model::new(ModelConfig::preset("cross-only", 2).unwrap().validate().unwrap(), 1);
    let text = format!(
        "[task]\n{task}\nset-size = [10, 20]\n[model]\npreset = \"cross-only\"\n\
         [training]\nsteps = 10\nlearning-rate = 1e-3\n{loss}"
    );
    Experiment::parse(&text).unwrap().describe(&mut model);
    model
}

fn sample(name: &str, seed: usize, map: impl Fn(f64) -> f64) -> Sample {
    let data = (0..40).map(|i| map(((i * i + seed * i) % 37) as f64)).collect();
    Sample { path: name.into(), data, examples: 2, rows: 10, width: 2, names: Vec::new() }
}

#[test]
fn sets_are_whitened_where_the_task_has_whitened_axes() {
    let samples = |map: fn(f64) -> f64| vec![sample("a.npy", 1, map), sample("b.npy", 2, map)];
    let batch = |task: &str, map| Preparation::of(&model(task, "")).unwrap().batch(samples(map)).unwrap();
    let near = |a: &SetBatch, b: &SetBatch| {
        let both = |s: &SetBatch| [s.sets()[0].data(), s.sets()[1].data()].concat();
        both(a).iter().zip(both(b)).all(|(a, b)| (a - b).abs() < 1e-4)
    };
    for (task, whitened) in [
        ("kind = \"kl\"\ndim = 2", true),
        ("kind = \"kl\"\ndim = 2\naxes = \"canonical\"", true),
        ("kind = \"kl\"\ndim = 2\naxes = \"raw\"", false),
        ("kind = \"mi\"\ndim = 2\nrho = [-0.9, 0.9]", false),
    ] {
        let (plain, moved) = (batch(task, |x| x), batch(task, |x| 10.0 * x + 1e6));
        assert_eq!(near(&plain, &moved), whitened, "{task}");
        assert_eq!(near(&plain, &pack_samples(samples(|x| x)).unwrap()), !whitened, "{task}");
    }
}

#[test]
fn raw_coordinates_and_mixture_log_densities_are_appended_unless_the_model_is_dimension_equivariant() {
    for (append, width) in [("'raw'", 4), ("'mixture-log-densities'", 9), ("'raw', 'mixture-log-densities'", 11)] {
        let text = format!("[task]\nkind = \"kl\"\ndim = 2\nset-size = 10\naxes = \"canonical\"\nappend = [{append}]");
        let trained = |preset: &str| {
            let mut experiment = Experiment::parse(&text).unwrap();
            experiment.set_preset(preset);
            let mut model = Model::new(experiment.clone().validate().unwrap().model().clone(), 1);
            experiment.describe(&mut model);
            model
        };
        let batch = |model: &Model, width: usize, examples: usize| {
            let narrow = |name, seed| {
                let all = sample(name, seed, |x| x);
                let data = all.data[..20 * examples].to_vec();
                Sample { width, rows: 20 / width, examples, data, ..all }
            };
            Preparation::of(model).unwrap().batch(vec![narrow("a.npy", 1), narrow("b.npy", 2)])
        };
        let mut model = trained("cross-only");
        let seen = batch(&model, 2, 2).unwrap();
        assert_eq!(seen.sets()[0].width(), width);
        assert!(!append.contains("'raw'") || seen.sets()[0].data()[2..4] == [0.0, 2.0]);
        // The preparation of an example does not depend on others in the batch.
        assert_eq!(batch(&model, 2, 1).unwrap().sets()[1].data(), seen.sets()[1].example(0));
        assert_eq!(model.predict(&seen).unwrap().examples(), 2);
        let error = batch(&model, 1, 2).unwrap_err().to_string();
        assert_eq!(error, "a.npy: has 1 columns, the model was trained for 2");
        let mut of_any_dimension = trained("multi-set-transformer-equi");
        for width in [1, 2] {
            let alone = batch(&of_any_dimension, width, 2).unwrap();
            assert_eq!(alone.sets()[0].width(), width);
            assert_eq!(of_any_dimension.predict(&alone).unwrap().examples(), 2);
        }
    }
}

#[test]
fn quantiles_are_those_of_the_label_in_order() {
    let loss = "loss = { quantiles = { levels = [0.05, 0.5, 0.95], scale = 1.0 } }";
    let of = Preparation::of(&model("kind = \"kl\"\ndim = 2", loss)).unwrap();
    assert_eq!(of.levels(), Some(&[0.05, 0.5, 0.95][..]));
    let answers = [2.0, 1.0, 4.0].map(|kl| compress(kl, 1.0) as f32);
    let answer = of.decode(Prediction::of_examples(answers.to_vec(), 3));
    assert!(answer.example(0).iter().zip([1.0, 2.0, 4.0]).all(|(a, b)| (a - b).abs() < 1e-5), "{answer:?}");
}

#[test]
fn the_mean_of_element_labels_over_the_first_set_is_the_estimate() {
    let of = Preparation::of(&model("kind = \"kl\"\ndim = 2", "loss = { elements = { weight = 1.0 } }")).unwrap();
    let config = ModelConfig::preset("cross-only", 2).unwrap().with_output(OutputKind::Equivariant);
    let mut per_element = Model::new(config.validate().unwrap(), 1);
    let found = per_element.predict(&of.batch(vec![sample("a", 1, |x| x), sample("b", 2, |x| x)]).unwrap()).unwrap();
    let means: Vec<f32> = (0..2).map(|i| found.set(i, 0).iter().sum::<f32>() / 10.0).collect();
    let read = of.decode(found);
    assert_eq!((read.examples(), read.width(), read.per_element()), (2, 1, false));
    assert!(read.values().iter().zip(means).all(|(a, b)| (a - b).abs() < 1e-5));
}

#[test]
fn models_without_a_stored_preparation_take_raw_sets() {
    let model = Model::new(ModelConfig::preset("cross-only", 2).unwrap().validate().unwrap(), 1);
    assert_eq!(Preparation::of(&model).unwrap(), Preparation::identity());
}

#[test]
fn the_preparation_of_a_shared_model_follows_its_latest_parameters() {
    let trained = model("kind = \"kl\"\ndim = 2", "");
    let plain = || Model::new(ModelConfig::preset("cross-only", 2).unwrap().validate().unwrap(), 1);
    let shared = SharedModel::new(plain());
    let preparation = || shared.with_metadata(Preparation::from_metadata).unwrap();
    assert!(preparation().is_identity());
    shared.update(&trained);
    assert!(!preparation().is_identity());
    assert_eq!(preparation(), Preparation::of(&trained).unwrap());
    shared.update(&plain());
    assert!(preparation().is_identity());
}

#[test]
fn a_preparation_survives_the_file_and_an_invalid_one_is_an_error() {
    let mut trained = model("kind = \"kl\"\ndim = 2\naxes = \"canonical\"\nappend = [\"raw\"]", "");
    let read = Model::from_bytes("a", &trained.to_bytes()).unwrap();
    assert_eq!(Preparation::of(&read).unwrap(), Preparation::of(&trained).unwrap());
    trained.set_metadata("preparation", "{}");
    assert!(Preparation::of(&trained).unwrap_err().to_string().contains("preparation"));
}
