//! Learning from labels of single elements.

use setwise::data::Targets;
use setwise::{Loss, Model, Trainer};
use setwise_lab::experiment::Experiment;
use setwise_lab::run::evaluate;
use setwise_lab::samplers::Split;

fn experiment(task: &str, model: &str, loss: &str) -> Experiment {
    let text = format!(
        "seed = 3\n[task]\n{task}\nset-size = [20, 40]\n[model]\n{model}\nlatent = 16\nhidden = 16\nblocks = 1\n\
         [training]\nbatch-size = 16\nloss = {loss}\n"
    );
    Experiment::parse(&text).unwrap()
}

const KL: &str = "kind = 'kl'\ndim = 2";
const ELEMENTS: &str = "{ elements = { weight = 1.0 } }";

#[test]
fn a_model_learns_the_log_ratio_of_every_element_and_estimates_by_their_mean() {
    let valid = experiment(KL, "preset = 'cross-only'", ELEMENTS).validate().unwrap();
    let mut trainer = Trainer::with_training(Model::new(valid.model().clone(), 1), &valid.training, 1);
    // Training repeats one batch, which the model can memorise.
    let batch = valid.training_batch(0).unwrap();
    let losses: Vec<f64> = (0..200).map(|_| trainer.step(&batch.sets, &batch.targets, 3e-3).unwrap()).collect();
    assert!(losses[199] < 0.6 * losses[0], "{losses:?}");
    let found = evaluate(trainer.model(), &valid, 64).unwrap();
    assert!(found.examples == 64 && found.mean_absolute_error.is_finite());

    let batch = valid.prepare(&valid.held_out(Split::Test, 0, 5).unwrap()).unwrap();
    let answers = trainer.model().predict(&batch.sets).unwrap();
    let sizes: Vec<usize> = batch.sets.sets().iter().map(|s| s.offsets()[1]).collect();
    assert_eq!([answers.set(0, 0).len(), answers.set(0, 1).len()], sizes[..]);
    assert_eq!(answers.example(0), [answers.set(0, 0), answers.set(0, 1)].concat());
    let first: f64 = answers.set(0, 0).iter().map(|&x| f64::from(x)).sum();
    assert_eq!(Targets::ElementLabels.decode_example(&answers, 0).value, first / sizes[0] as f64);
}

#[test]
fn examples_are_those_of_the_label_alone() {
    let [elements, label] =
        [ELEMENTS, "'l1'"].map(|loss| experiment(KL, "preset = 'sum-merge'", loss).validate().unwrap());
    let [elements, label] = [elements, label].map(|valid| valid.training_batch(7).unwrap());
    assert_eq!((&elements.sets, &elements.labels), (&label.sets, &label.labels));
    assert_eq!(label.targets, label.labels.iter().map(|&l| l as f32).collect::<Vec<_>>());
    let first = &elements.sets.sets()[0];
    assert_eq!(
        elements.targets.len(),
        elements.sets.sets().iter().map(|s| *s.offsets().last().unwrap()).sum::<usize>()
    );
    for (range, label) in first.offsets().windows(2).map(|o| o[0]..o[1]).zip(&elements.labels) {
        let mean = elements.targets[range.clone()].iter().map(|&x| f64::from(x)).sum::<f64>() / range.len() as f64;
        assert!((mean - label).abs() < 1e-5 * (1.0 + label.abs()));
    }
}

#[test]
fn tasks_and_models_without_labels_of_elements_are_errors() {
    for (task, model, expected) in [
        ("kind = 'mi'\ndim = 2\nrho = [-0.9, 0.9]", "preset = 'sum-merge'", "training.loss"),
        ("kind = 'kl'\ndim = 2\nlabel = { true = { points = 100 } }", "preset = 'sum-merge'", "training.loss"),
        (KL, "preset = 'sum-merge'\noutput = 'invariant'", "model.output"),
        (KL, "preset = 'pine'", "output"),
    ] {
        let error = experiment(task, model, ELEMENTS).validate().err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let valid = experiment(KL, "preset = 'sum-merge'", "'l1'").validate().unwrap();
    let batch = valid.training_batch(0).unwrap();
    let mut trainer = Trainer::new(Model::new(valid.model().clone(), 1), Loss::SetMeanL1 { element_weight: 1.0 });
    let error = trainer.step(&batch.sets, &batch.targets, 1e-3).unwrap_err().to_string();
    assert!(error.contains("output") && error.contains("elements"), "{error}");
    let zero = experiment(KL, "preset = 'sum-merge'", "{ elements = { weight = 0.0 } }").validate().err().unwrap();
    assert!(zero.to_string().contains("training.loss.elements.weight"), "{zero}");
}
