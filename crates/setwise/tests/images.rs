//! Models of sets of images: training with the encoder, determinism over threads, files and running averages.

mod common;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use setwise::models::{ImageEncoder, Images, PRESETS};
use setwise::{Loss, Model, ModelConfig, SetBatch, Trainer};

const SIDE: usize = 8;
const CLASSES: usize = 4;

fn images() -> Images {
    Images { features: 16, ..Images::new(ImageEncoder::Mnist).with_size(SIDE, SIDE, 1) }
}

/// An image of a class: a row, a column, a diagonal or a frame, at a random position and with noise.
fn glyph(class: usize, rng: &mut Pcg64Mcg) -> Vec<f32> {
    let position = rng.random_range(2..SIDE - 2);
    let ink = |y: usize, x: usize| match class {
        0 => y == position,
        1 => x == position,
        2 => (x + y + position).is_multiple_of(SIDE),
        _ => [y, x].iter().any(|&p| p == 1 || p == SIDE - 2) && [y, x].iter().all(|&p| p > 0 && p < SIDE - 1),
    };
    (0..SIDE * SIDE).map(|i| rng.random::<f32>() * 0.2 + if ink(i / SIDE, i % SIDE) { 0.8 } else { 0.0 }).collect()
}

/// Pairs of sets of two to four glyphs, labelled with the number of classes that both sets contain.
fn common_classes(examples: usize, rng: &mut Pcg64Mcg) -> (SetBatch, Vec<f32>) {
    let (mut sets, mut targets) = (Vec::new(), Vec::new());
    for _ in 0..examples {
        let classes: [Vec<usize>; 2] =
            std::array::from_fn(|_| (0..rng.random_range(2..=4)).map(|_| rng.random_range(0..CLASSES)).collect());
        targets.push((0..CLASSES).filter(|c| classes.iter().all(|s| s.contains(c))).count() as f32);
        sets.push(classes.map(|s| s.iter().flat_map(|&c| glyph(c, rng)).collect::<Vec<f32>>()));
    }
    let views: Vec<Vec<&[f32]>> = sets.iter().map(|e| e.iter().map(Vec::as_slice).collect()).collect();
    (SetBatch::from_examples(SIDE * SIDE, &views).unwrap(), targets)
}

/// One set of glyphs, labelled with their classes.
fn labelled(count: usize, rng: &mut Pcg64Mcg) -> (SetBatch, Vec<f32>) {
    let classes: Vec<usize> = (0..count).map(|_| rng.random_range(0..CLASSES)).collect();
    let pixels: Vec<f32> = classes.iter().flat_map(|&c| glyph(c, rng)).collect();
    let labels = classes.iter().map(|&c| c as f32).collect();
    (SetBatch::from_examples(SIDE * SIDE, &[vec![&pixels]]).unwrap(), labels)
}

fn model(preset: &str, seed: u64) -> Model {
    let config = ModelConfig::preset(preset, 1).unwrap().with_images(images()).with_latent(16).with_hidden(32);
    let config = config.with_blocks(2).with_decoder_layers(0);
    Model::new(config.validate().unwrap(), seed)
}

#[test]
fn a_pretrained_multi_set_transformer_learns_to_count_common_glyphs() {
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let classifier = Model::new(ModelConfig::classifier(images(), CLASSES).validate().unwrap(), 3);
    let mut trainer = Trainer::new(classifier, Loss::CrossEntropy { classes: CLASSES });
    for _ in 0..60 {
        let (batch, labels) = labelled(64, &mut rng);
        trainer.step(&batch, &labels, 1e-2).unwrap();
    }
    let (batch, labels) = labelled(400, &mut rng);
    let logits = trainer.model().predict(&batch).unwrap();
    let argmax = |row: &[f32]| (0..CLASSES).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let right = logits.values().chunks(CLASSES).zip(&labels).filter(|(row, l)| argmax(row) as f32 == **l).count();
    assert!(right > 380, "{right} of 400 glyphs recognised");

    let mut start = model("multi-set-transformer", 4);
    start.copy_encoder(trainer.model()).unwrap();
    let mut trainer = Trainer::new(start, Loss::Mse);
    for step in 0..250 {
        let (batch, targets) = common_classes(32, &mut rng);
        trainer.step(&batch, &targets, 3e-3 * (1.0 - step as f64 / 250.0)).unwrap();
    }
    let (batch, targets) = common_classes(400, &mut rng);
    let outputs = trainer.model().predict(&batch).unwrap();
    let right = outputs.values().iter().zip(&targets).filter(|(a, t)| a.round() == **t).count();
    let baseline = (0..=CLASSES).map(|n| targets.iter().filter(|t| **t == n as f32).count()).max().unwrap();
    assert!(
        right > 320 && right > baseline + 100,
        "{right} of 400 counted right; the most frequent count is right {baseline} times"
    );
}

#[test]
fn every_model_of_images_trains_to_the_same_bits_on_any_number_of_threads_and_round_trips_through_its_file() {
    let dir = tempfile::tempdir().unwrap();
    for preset in PRESETS.iter().filter(|p| p.name != "multi-set-transformer-equi") {
        let train = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut rng = Pcg64Mcg::seed_from_u64(2);
                let mut trainer = Trainer::new(model(preset.name, 5), Loss::Mse);
                let losses: Vec<f64> = (0..3)
                    .map(|_| {
                        let (batch, targets) = common_classes(7, &mut rng);
                        trainer.step(&batch, &targets, 1e-3).unwrap()
                    })
                    .collect();
                (losses, trainer.into_model())
            })
        };
        let (losses, mut one) = train(1);
        for threads in [2, 5] {
            let (others, other) = train(threads);
            assert!(losses == others && one.params() == other.params(), "{} on {threads} threads", preset.name);
        }
        let fresh = model(preset.name, 5);
        let averages = fresh.layout().trained()..;
        assert!(one.params()[averages.clone()].iter().zip(&fresh.params()[averages]).all(|(a, b)| a != b));
        let path = dir.path().join("model.safetensors");
        one.save(&path).unwrap();
        let mut loaded = Model::load(&path).unwrap();
        assert_eq!((loaded.params(), loaded.config()), (one.params(), one.config()));
        let (batch, _) = common_classes(5, &mut Pcg64Mcg::seed_from_u64(3));
        assert_eq!(loaded.predict(&batch).unwrap(), one.predict(&batch).unwrap(), "{}", preset.name);
    }
}

#[test]
fn predictions_use_running_averages_and_do_not_depend_on_the_rest_of_the_batch() {
    let mut rng = Pcg64Mcg::seed_from_u64(6);
    let mut trainer = Trainer::new(model("multi-set-rn", 7), Loss::Mse);
    for _ in 0..40 {
        let (batch, targets) = common_classes(16, &mut rng);
        trainer.step(&batch, &targets, 1e-4).unwrap();
    }
    let (batch, targets) = common_classes(60, &mut rng);
    let together = trainer.model().predict(&batch).unwrap();
    for i in 0..60 {
        let example: Vec<&[f32]> = batch.sets().iter().map(|s| s.example(i)).collect();
        let alone = trainer.model().predict(&SetBatch::from_examples(SIDE * SIDE, &[example]).unwrap()).unwrap();
        assert_eq!(alone.values(), together.example(i), "example {i}");
    }
    // The averages have converged to batch statistics: the losses with either are close.
    let errors = together.values().iter().zip(&targets).map(|(a, t)| f64::from((a - t).powi(2)));
    let infer = errors.sum::<f64>() / 60.0;
    let train = trainer.gradient(&batch, &targets).unwrap();
    assert!((infer / train - 1.0).abs() < 0.2, "{infer} with running averages, {train} with batch statistics");
}

#[test]
fn labels_that_are_not_classes_are_refused_by_index() {
    let classifier = Model::new(ModelConfig::classifier(images(), CLASSES).validate().unwrap(), 3);
    let mut trainer = Trainer::new(classifier, Loss::CrossEntropy { classes: CLASSES });
    let (batch, mut labels) = labelled(3, &mut Pcg64Mcg::seed_from_u64(1));
    labels[2] = 4.0;
    let error = trainer.step(&batch, &labels, 1e-3).unwrap_err().to_string();
    assert!(error.contains("target 2 is 4") && error.contains("4 classes"), "{error}");
    assert!(trainer.step(&batch, &labels[..2], 1e-3).is_err());
    let mut other = Trainer::new(model("pine", 1), Loss::CrossEntropy { classes: 4 });
    let (batch, _) = common_classes(2, &mut Pcg64Mcg::seed_from_u64(1));
    assert!(other.step(&batch, &[0.0, 0.0], 1e-3).unwrap_err().to_string().contains("output-width"));
}
