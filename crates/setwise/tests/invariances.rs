//! Invariances of every model: to the order of elements, other examples of the batch and the number of threads.
//! Dimension-equivariant models are invariant to the order of dimensions.

mod common;

use common::{Ragged, small_presets};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use setwise::models::{ModelConfig, OutputKind, program};
use setwise_engine::{Compiled, Cpu, Mode};

/// A model for ragged batches.
struct Runner<T: Compiled> {
    cpu: Cpu<T>,
    params: Vec<T>,
    width: usize,
}

impl<T: Compiled> Runner<T> {
    fn new(config: &ModelConfig, seed: u64) -> Self {
        let config = config.clone().validate().unwrap();
        let cpu = Cpu::new(program(&config, Mode::Infer, false));
        let params = cpu.program().params().init(&mut Pcg64Mcg::seed_from_u64(seed));
        Runner { cpu, params, width: config.output_width }
    }

    /// All outputs: one per example for invariant models, else one list per set.
    fn run(&mut self, batch: &Ragged<f32>) -> Vec<Vec<T>> {
        let cast = |data: &[f32]| data.iter().map(|&x| T::from_f64(f64::from(x))).collect();
        let batch = Ragged { sets: batch.sets.iter().map(|(data, w, o)| (cast(data), *w, o.clone())).collect() };
        self.cpu.forward(&self.params, &batch.view()).unwrap();
        (0..self.cpu.program().outputs().len()).map(|i| self.cpu.output(i).to_vec()).collect()
    }
}

/// The largest difference of outputs before and after a permutation, relative to the largest output.
///
/// `new_index` has the new index of each row, by output; without it outputs stay in their order.
fn max_difference<T: Compiled>(
    config: &ModelConfig,
    seed: u64,
    [before, after]: [&Ragged<f32>; 2],
    new_index: Option<&[Vec<usize>]>,
) -> f64 {
    let mut model = Runner::<T>::new(config, seed);
    let (before, after, w) = (model.run(before), model.run(after), model.width);
    let mut max = 0.0f64;
    for (k, (a, b)) in before.iter().zip(&after).enumerate() {
        assert_eq!(a.len(), b.len());
        let scale = a.iter().fold(1e-3, |m: f64, x| m.max(x.to_f64().abs()));
        for (i, a) in a.chunks_exact(w).enumerate() {
            let i = new_index.map_or(i, |new_index| new_index[k][i]);
            for (a, b) in a.iter().zip(&b[i * w..(i + 1) * w]) {
                let difference = (a.to_f64() - b.to_f64()).abs() / scale;
                assert!(difference.is_finite());
                max = max.max(difference);
            }
        }
    }
    max
}

/// Outputs are the same after a permutation, but for rounding.
fn assert_same(
    name: &str,
    config: &ModelConfig,
    seed: u64,
    batches: [&Ragged<f32>; 2],
    new_index: Option<&[Vec<usize>]>,
) {
    let double = max_difference::<f64>(config, seed, batches, new_index);
    assert!(double <= 1e-12, "{name} in f64: {double:e}");
    let single = max_difference::<f32>(config, seed, batches, new_index);
    assert!(single <= f32_tolerance(name, double), "{name} in f32: {single:e}, in f64: {double:e}");
}

/// 1e-5. PINE's outputs may be small differences of large numbers: there, four times the difference in f64 in units of
/// the rounding of f32, at most 1e-4.
fn f32_tolerance(name: &str, double: f64) -> f64 {
    let rounding_ratio = f64::from(f32::EPSILON) / f64::EPSILON;
    if name == "pine" { (4.0 * double * rounding_ratio).clamp(1e-5, 1e-4) } else { 1e-5 }
}

/// Permutes the rows of every example of every set; returns the new index of each row, by set.
fn shuffle(batch: &mut Ragged<f32>, key: u64) -> Vec<Vec<usize>> {
    let mut permutations = Vec::new();
    for (k, (data, width, offsets)) in batch.sets.iter_mut().enumerate() {
        let old = data.clone();
        let mut new_index = vec![0; *offsets.last().unwrap()];
        for e in 0..offsets.len() - 1 {
            let n = offsets[e + 1] - offsets[e];
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_key(|&i| {
                (i as u64 + 1).wrapping_mul(key | 1).rotate_left(17 + k as u32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
            for (new, &i) in order.iter().enumerate() {
                let (from, into) = (offsets[e] + i, offsets[e] + new);
                new_index[from] = into;
                data[into * *width..(into + 1) * *width].copy_from_slice(&old[from * *width..(from + 1) * *width]);
            }
        }
        permutations.push(new_index);
    }
    permutations
}

/// Sizes of three examples of three sets, below and above every vector width and tile size.
fn ragged_sizes() -> impl Strategy<Value = Vec<Vec<usize>>> {
    let size = prop_oneof![1usize..6, 14usize..19, 30usize..50];
    prop::collection::vec(prop::collection::vec(size, 3), 3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn invariant_outputs_do_not_depend_on_the_order_of_elements(sizes in ragged_sizes(), seed in 0u64..1000, key: u64) {
        for sets in 1..=3 {
            for (name, config) in small_presets(sets, 3) {
                let batch = Ragged::random(&[3; 3][..sets], &sizes[..sets], seed);
                let mut shuffled = batch.clone();
                shuffle(&mut shuffled, key);
                assert_same(name, &config, seed, [&batch, &shuffled], None);
            }
        }
    }

    #[test]
    fn equivariant_outputs_are_permuted_with_the_elements(sizes in ragged_sizes(), seed in 0u64..1000, key: u64) {
        for sets in 1..=3 {
            for (name, config) in small_presets(sets, 3).into_iter().filter(|p| p.0 != "pine") {
                let config = config.with_output(OutputKind::Equivariant);
                let batch = Ragged::random(&[3; 3][..sets], &sizes[..sets], seed);
                let mut shuffled = batch.clone();
                let new_index = shuffle(&mut shuffled, key);
                assert_same(name, &config, seed, [&batch, &shuffled], Some(&new_index));
            }
        }
    }

    #[test]
    fn an_example_does_not_depend_on_the_rest_of_its_batch(sizes in ragged_sizes(), seed in 0u64..1000) {
        for sets in 1..=3 {
            for (name, config) in small_presets(sets, 3) {
                let mut model = Runner::<f32>::new(&config, seed);
                let batch = Ragged::random(&[3; 3][..sets], &sizes[..sets], seed);
                let together = model.run(&batch)[0].clone();
                let w = model.width;
                for e in 0..batch.examples() {
                    // Equal bits.
                    assert_eq!(&together[e * w..(e + 1) * w], &model.run(&batch.only(e))[0][..], "{}", name);
                }
            }
        }
    }

    #[test]
    fn dimension_equivariant_models_take_any_width_and_ignore_the_order_of_columns(
        sizes in ragged_sizes(), seed in 0u64..1000, dim in 1usize..6, shift in 0usize..6,
    ) {
        for sets in 1..=3 {
            let (name, config) = small_presets(sets, 3).into_iter().find(|p| p.1.dimension_equivariant).unwrap();
            let batch = Ragged::random(&vec![dim; sets], &sizes[..sets], seed);
            let mut permuted = batch.clone();
            for (data, width, _) in &mut permuted.sets {
                for row in data.chunks_exact_mut(*width) {
                    row.rotate_left(shift % dim);
                    row.reverse();
                }
            }
            assert_same(name, &config, seed, [&batch, &permuted], None);
        }
    }
}

#[test]
fn a_badly_conditioned_model_is_invariant_but_for_rounding() {
    // PINE's outputs are small here: rounding moves them by more than 1e-5 without vector instructions.
    let (seed, key) = (970, 16_474_793_345_343_202_221);
    let (name, config) = small_presets(1, 3).into_iter().find(|p| p.0 == "pine").unwrap();
    let batch = Ragged::random(&[3], &[vec![36, 46, 14]], seed);
    let mut shuffled = batch.clone();
    shuffle(&mut shuffled, key);
    assert_same(name, &config, seed, [&batch, &shuffled], None);
}

#[test]
fn the_number_of_threads_changes_no_bit_of_training() {
    let train = |threads: usize, config: &ModelConfig| -> Vec<f32> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let config = config.clone().with_dropout(0.1).validate().unwrap();
            let mut trainer = setwise::Trainer::new(setwise::Model::new(config, 4), setwise::Loss::Mse).with_seed(9);
            let targets: Vec<f32> = (0..12).map(|i| i as f32 * 0.1).collect();
            for step in 0..3 {
                let sizes = [vec![40, 3, 17, 60, 1, 33], vec![5, 64, 20, 2, 31, 48]];
                let b = Ragged::<f32>::random(&[3, 3], &sizes, step);
                let sets = b.sets.into_iter().map(|(d, w, o)| setwise::sets::PackedSet::new(d, w, o)).collect();
                trainer.step(&setwise::SetBatch::new(sets).unwrap(), &targets, 1e-3).unwrap();
            }
            trainer.model().params().to_vec()
        })
    };
    for (name, config) in small_presets(2, 3) {
        let one = train(1, &config);
        for threads in [2, 3, 7] {
            assert!(one == train(threads, &config), "{name} differs on {threads} threads");
        }
    }
}
