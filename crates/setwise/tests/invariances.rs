//! Invariances of every model: to the order of elements, other examples of the batch and the number of threads.
//! Dimension-equivariant models are invariant to the order of dimensions.

mod common;

use common::{Ragged, small_presets};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use setwise::models::{ModelConfig, OutputKind, program};
use setwise_engine::{Cpu, Mode};

/// A model in f32 for ragged batches.
struct Runner {
    cpu: Cpu<f32>,
    params: Vec<f32>,
    width: usize,
}

impl Runner {
    fn new(config: ModelConfig, seed: u64) -> Self {
        let config = config.validate().unwrap();
        let cpu = Cpu::new(program(&config, Mode::Infer, false));
        let params = cpu.program().params().init(&mut Pcg64Mcg::seed_from_u64(seed));
        Runner { cpu, params, width: config.output_width }
    }

    /// All outputs: one per example for invariant models, else one list per set.
    fn run(&mut self, batch: &Ragged<f32>) -> Vec<Vec<f32>> {
        self.cpu.forward(&self.params, &batch.view()).unwrap();
        (0..self.cpu.program().outputs().len()).map(|i| self.cpu.output(i).to_vec()).collect()
    }
}

fn assert_close(what: &str, a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "{what}");
    let scale = a.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() <= 1e-5 * scale, "{what}: {x} and {y}");
    }
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
                let mut model = Runner::new(config, seed);
                let mut batch = Ragged::random(&[3; 3][..sets], &sizes[..sets], seed);
                let before = model.run(&batch);
                shuffle(&mut batch, key);
                assert_close(name, &before[0], &model.run(&batch)[0]);
            }
        }
    }

    #[test]
    fn equivariant_outputs_are_permuted_with_the_elements(sizes in ragged_sizes(), seed in 0u64..1000, key: u64) {
        for sets in 1..=3 {
            for (name, config) in small_presets(sets, 3).into_iter().filter(|p| p.0 != "pine") {
                let mut model = Runner::new(config.with_output(OutputKind::Equivariant), seed);
                let mut batch = Ragged::random(&[3; 3][..sets], &sizes[..sets], seed);
                let before = model.run(&batch);
                let new_index = shuffle(&mut batch, key);
                let after = model.run(&batch);
                for k in 0..sets {
                    let w = model.width;
                    let unshuffled: Vec<f32> =
                        new_index[k].iter().flat_map(|&i| &after[k][i * w..(i + 1) * w]).copied().collect();
                    assert_close(name, &before[k], &unshuffled);
                }
            }
        }
    }

    #[test]
    fn an_example_does_not_depend_on_the_rest_of_its_batch(sizes in ragged_sizes(), seed in 0u64..1000) {
        for sets in 1..=3 {
            for (name, config) in small_presets(sets, 3) {
                let mut model = Runner::new(config, seed);
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
            let mut model = Runner::new(config, seed);
            let mut batch = Ragged::random(&vec![dim; sets], &sizes[..sets], seed);
            let before = model.run(&batch);
            for (data, width, _) in &mut batch.sets {
                for row in data.chunks_exact_mut(*width) {
                    row.rotate_left(shift % dim);
                    row.reverse();
                }
            }
            assert_close(name, &before[0], &model.run(&batch)[0]);
        }
    }
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
