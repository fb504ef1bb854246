//! AMX products against f64: outputs and gradients of models. On machines with AVX-512 but without AMX, the last test
//! runs them with an emulated unit.

mod common;

use common::Ragged;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use setwise::models::{SharedModel, program};
use setwise::{Device, Model, ModelConfig};
use setwise_engine::{Compiled, Cpu, Mode, Outputs};

/// Outputs, input gradients and parameter gradients of the sum of all outputs, as f64.
fn outputs_and_gradients<T: Compiled>(cpu: &mut Cpu<T>, params: &[f64], batch: &Ragged<f64>) -> [Vec<f64>; 3] {
    let from_f64 = |x: &[f64]| -> Vec<T> { x.iter().map(|&x| T::from_f64(x)).collect() };
    let to_f64 = |x: &[T]| -> Vec<f64> { x.iter().map(|x| x.to_f64()).collect() };
    let batch = Ragged { sets: batch.sets.iter().map(|s| (from_f64(&s.0), s.1, s.2.clone())).collect() };
    let params = from_f64(params);
    cpu.forward(&params, &batch.view()).unwrap();
    let outputs = to_f64(cpu.output(0));
    let mut grads = vec![T::from_f64(f64::NAN); params.len()];
    cpu.backward(&params, &[&vec![T::ONE; outputs.len()]], &mut grads).unwrap();
    let inputs = (0..batch.sets.len()).flat_map(|k| to_f64(cpu.input_grad(k).unwrap())).collect();
    [outputs, inputs, to_f64(&grads)]
}

/// Parameter gradients of a step, which runs several operations on a few examples or rows at a time.
fn step_gradients(cpu: &mut Cpu<f32>, params: &[f64], batch: &Ragged<f64>) -> Vec<f64> {
    let to_f32 = |x: &[f64]| -> Vec<f32> { x.iter().map(|&x| x as f32).collect() };
    let batch = Ragged { sets: batch.sets.iter().map(|s| (to_f32(&s.0), s.1, s.2.clone())).collect() };
    let mut grads = vec![f32::NAN; params.len()];
    let loss = |part: Outputs<f32>| {
        part.grads[0].fill(1.0);
        0.0
    };
    cpu.step(&to_f32(params), &batch.view(), &mut grads, loss).unwrap();
    grads.into_iter().map(f64::from).collect()
}

/// ‖a − b‖ / ‖b‖.
fn relative_error(a: &[f64], b: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

#[test]
fn models_with_amx_products_agree_with_f64_to_sixteen_bits() {
    if !Cpu::<f32>::has_amx() {
        return;
    }
    for (name, dim, latent, hidden) in [
        ("multi-set-transformer", 3, 32, 64),
        ("multi-set-transformer", 3, 64, 128),
        ("multi-set-transformer", 3, 128, 96),
        ("sum-merge", 3, 64, 80),
        ("multi-set-rn", 3, 64, 64),
        ("multi-set-transformer-equi", 3, 64, 64),
        ("multi-set-transformer-equi", 3, 16, 32),
        ("multi-set-transformer-equi", 2, 16, 32),
        ("sum-merge", 3, 48, 80),
    ] {
        let config = ModelConfig::preset(name, dim).unwrap().with_latent(latent).with_hidden(hidden).with_blocks(1);
        let config = config.validate().unwrap();
        let program = std::sync::Arc::new(program(&config, Mode::Train, true));
        let params: Vec<f32> = program.params().init(&mut Pcg64Mcg::seed_from_u64(11));
        let params: Vec<f64> = params.into_iter().map(f64::from).collect();
        let batch = Ragged::random(&[dim, dim], &[vec![1, 50, 33, 7], vec![17, 64, 2, 40]], 3);
        let batch = Ragged {
            sets: batch
                .sets
                .into_iter()
                .map(|s| (s.0.iter().map(|&x: &f32| f64::from(x)).collect(), s.1, s.2))
                .collect(),
        };
        let exact = outputs_and_gradients(&mut Cpu::<f64>::new(program.clone()), &params, &batch);
        let mut cpu = Cpu::<f32>::new(program);
        let single = outputs_and_gradients(&mut cpu, &params, &batch);
        cpu.use_amx(true).unwrap();
        let amx = outputs_and_gradients(&mut cpu, &params, &batch);
        for ((exact, single), (amx, what)) in
            exact.iter().zip(&single).zip(amx.iter().zip(["outputs", "input gradients", "parameter gradients"]))
        {
            let (single, error) = (relative_error(single, exact), relative_error(amx, exact));
            // Rounding can flip a ReLU or a maximum, which changes gradients by about 1e-4.
            let tolerance = if what == "outputs" { 5e-5 } else { 2e-4 };
            assert!(single < 1e-5, "{name}, latent {latent}: {what} off by {single} without AMX");
            assert!(error < tolerance, "{name}, latent {latent}: {what} off by {error}");
            assert!(error > single, "{name}, latent {latent}: {what} were not computed with AMX");
        }
        let (step, passes) = (step_gradients(&mut cpu, &params, &batch), &amx[2]);
        assert!(relative_error(&step, passes) < 1e-5, "{name}, latent {latent}: a step differs from its passes");
        cpu.use_amx(false).unwrap();
        assert_eq!(outputs_and_gradients(&mut cpu, &params, &batch), single, "{name}: back to f32");
    }
}

#[test]
fn clones_of_an_amx_model_use_amx_with_the_same_bits_on_any_number_of_threads() {
    if !Cpu::<f32>::has_amx() {
        return;
    }
    let config =
        ModelConfig::preset("multi-set-transformer", 3).unwrap().with_latent(64).with_hidden(64).with_blocks(1);
    let mut model = Model::new(config.validate().unwrap(), 1);
    let batch = Ragged::<f32>::random(&[3, 3], &[vec![40; 9], vec![33; 9]], 3);
    let shared = SharedModel::new(model.clone());
    let single = shared.predict(&batch.view()).unwrap();
    model.use_device(&Device::CpuAmx).unwrap();
    shared.use_device(&Device::CpuAmx).unwrap();
    let amx = shared.predict(&batch.view()).unwrap();
    assert_ne!(amx, single);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let copy = SharedModel::new(model.clone());
    let one_thread = pool.install(|| copy.predict(&batch.view()).unwrap());
    assert_eq!(one_thread, amx);
    shared.use_device(&Device::Cpu).unwrap();
    assert_eq!(shared.predict(&batch.view()).unwrap(), single);
}

#[test]
fn an_amx_prediction_has_the_same_bits_alone_as_in_a_batch() {
    if !Cpu::<f32>::has_amx() {
        return;
    }
    for (name, latent) in [
        ("multi-set-transformer", 32),
        ("multi-set-transformer", 64),
        ("sum-merge", 64),
        ("multi-set-transformer-equi", 16),
    ] {
        let config = ModelConfig::preset(name, 3).unwrap().with_latent(latent).with_hidden(64).with_blocks(2);
        let shared = SharedModel::new(Model::new(config.validate().unwrap(), 1));
        shared.use_device(&Device::CpuAmx).unwrap();
        let batch = Ragged::<f32>::random(&[3, 3], &[vec![1, 50, 33, 7, 125], vec![17, 64, 2, 40, 96]], 3);
        let together = shared.predict(&batch.view()).unwrap();
        assert_eq!(together.values().len(), 5);
        for (e, output) in together.values().iter().enumerate() {
            let alone = shared.predict(&batch.only(e).view()).unwrap();
            assert_eq!(alone.values(), [*output], "{name}, latent {latent}, example {e}");
        }
    }
}

#[test]
fn the_same_tests_pass_with_emulated_amx() {
    setwise_engine::simd::test_again_with("SETWISE_AMX", &["emulated"], "");
}
