//! Gradients of every preset and every config option against finite differences, in f64.

mod common;

use common::{Ragged, small_presets};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use setwise::ModelConfig;
use setwise::models::{
    AttentionScale, Encoder, ImageEncoder, Images, Merge, OutputKind, Pooling, RelationPool, Relations, Sharing,
    program,
};
use setwise_engine::{Cpu, Mode, Space};

/// Weights of the sum of all outputs; they differ so that gradients do not cancel.
fn weights(n: usize) -> Vec<f64> {
    (0..n).map(|i| 0.3 + ((i * 7919) % 101) as f64 / 101.0).collect()
}

/// A model in f64 with its parameters and a batch.
struct Checker {
    cpu: Cpu<f64>,
    params: Vec<f64>,
    batch: Ragged<f64>,
}

impl Checker {
    fn new(config: ModelConfig, sizes: &[Vec<usize>], dim: usize) -> Self {
        let widths = if config.dimension_equivariant { vec![dim; config.sets] } else { config.input_widths.clone() };
        let config = config.validate().unwrap();
        let mut cpu = Cpu::<f64>::new(program(&config, Mode::Train, true));
        cpu.set_seed(5);
        let mut params: Vec<f64> = cpu.program().params().init(&mut Pcg64Mcg::seed_from_u64(11));
        // Gains differ from one and shifts from zero, so that their gradients are tested.
        for (i, p) in params.iter_mut().enumerate() {
            *p += ((i * 31) % 17) as f64 * 0.01;
        }
        Checker { cpu, params, batch: Ragged::random(&widths, sizes, 3) }
    }

    /// The weighted sum of all outputs.
    fn loss(&mut self) -> f64 {
        self.cpu.forward(&self.params, &self.batch.view()).unwrap();
        let outputs = self.cpu.program().outputs().len();
        (0..outputs)
            .flat_map(|i| self.cpu.output(i).iter().zip(weights(self.cpu.output(i).len())))
            .map(|(o, w)| o * w)
            .sum()
    }

    /// Compares gradients of three parameters of each tensor and of some inputs with finite differences.
    fn check(&mut self, name: &str) {
        self.loss();
        let seeds: Vec<Vec<f64>> =
            (0..self.cpu.program().outputs().len()).map(|i| weights(self.cpu.output(i).len())).collect();
        let seeds: Vec<&[f64]> = seeds.iter().map(Vec::as_slice).collect();
        let mut grads = vec![f64::NAN; self.params.len()];
        self.cpu.backward(&self.params.clone(), &seeds, &mut grads).unwrap();
        let inputs: Vec<Vec<f64>> =
            (0..self.batch.sets.len()).map(|k| self.cpu.input_grad(k).unwrap().to_vec()).collect();

        let mut offsets = Vec::new();
        for spec in self.cpu.program().params().specs().iter().filter(|s| s.trained) {
            let n = spec.len();
            offsets.extend([0, n / 3, n - 1].map(|i| (spec.name.clone(), spec.offset + i)));
        }
        let scale = grads[..self.cpu.program().params().trained()].iter().fold(0.0f64, |m, g| m.max(g.abs())).max(1.0);
        for (tensor, i) in offsets {
            self.compare(&format!("{name}: {tensor} at {i}"), grads[i], scale, |c| &mut c.params[i]);
        }
        for (k, input) in inputs.iter().enumerate() {
            for i in (0..input.len()).step_by(1 + input.len() / 7) {
                self.compare(&format!("{name}: input {k} at {i}"), input[i], scale, |c| &mut c.batch.sets[k].0[i]);
            }
        }
    }

    /// Central difference with step `h` of the number that `get` returns.
    fn difference(&mut self, get: &mut impl FnMut(&mut Self) -> &mut f64, h: f64) -> f64 {
        let x = *get(self);
        *get(self) = x + h;
        let above = self.loss();
        *get(self) = x - h;
        let below = self.loss();
        *get(self) = x;
        (above - below) / (2.0 * h)
    }

    /// Fails if no step agrees: a step may cross a kink of a ReLU or a maximum, a shorter one need not.
    fn compare(&mut self, what: &str, gradient: f64, scale: f64, mut get: impl FnMut(&mut Self) -> &mut f64) {
        let mut difference = 0.0;
        for h in [1e-6, 3e-7, 1e-7] {
            difference = self.difference(&mut get, h);
            if (gradient - difference).abs() <= 1e-6 * scale.max(difference.abs()) {
                return;
            }
        }
        panic!("{what}: gradient {gradient}, difference {difference}");
    }
}

fn sizes(sets: usize) -> Vec<Vec<usize>> {
    [vec![3, 1, 4], vec![2, 5, 1], vec![1, 3, 2]][..sets].to_vec()
}

#[test]
fn every_preset_has_the_gradients_of_finite_differences() {
    for sets in 1..=3 {
        for (name, config) in small_presets(sets, 3) {
            Checker::new(config, &sizes(sets), 3).check(&format!("{name} on {sets} sets"));
        }
    }
}

#[test]
fn equivariant_outputs_have_the_gradients_of_finite_differences() {
    for sets in 1..=3 {
        for (name, config) in small_presets(sets, 3) {
            if name != "pine" {
                let config = config.with_output(OutputKind::Equivariant);
                Checker::new(config, &sizes(sets), 3).check(&format!("{name} with equivariant output on {sets} sets"));
            }
        }
    }
}

/// Configs that differ from a base in one or a few options.
fn option_cases() -> Vec<(&'static str, ModelConfig)> {
    let base = || {
        let mut c = ModelConfig::default().with_latent(8).with_hidden(12).with_blocks(2).with_heads(2);
        c.input_widths = vec![3, 5];
        c
    };
    let mut cases: Vec<(&str, ModelConfig)> = Vec::new();
    let mut case = |name, configure: &dyn Fn(&mut ModelConfig)| {
        let mut c = base();
        configure(&mut c);
        cases.push((name, c));
    };
    for merge in [Merge::Concat, Merge::ConcatRelu, Merge::Sum] {
        for sharing in [Sharing::None, Sharing::Cross, Sharing::Sym] {
            for relations in [Relations::All, Relations::Cross, Relations::SelfOnly, Relations::Union] {
                case("merge, sharing, relations", &|c| (c.merge, c.sharing, c.relations) = (merge, sharing, relations));
            }
        }
    }
    for pooling in [Pooling::Max, Pooling::Mean, Pooling::Sum, Pooling::Pma] {
        case("pooling", &|c| c.pooling = pooling);
    }
    case("three seeds", &|c| c.seeds = 3);
    case("no decoder layer", &|c| c.decoder_layers = 0);
    case("three decoder layers", &|c| c.decoder_layers = 3);
    case("no norms", &|c| (c.inner_norm, c.outer_norm, c.pool_norm) = (false, false, false));
    case("no outer residual", &|c| c.outer_residual = false);
    case("latent scale", &|c| c.attention_scale = AttentionScale::Latent);
    case("dropout", &|c| c.dropout = 0.3);
    case("set encoding", &|c| (c.relations, c.set_encoding) = (Relations::Union, true));
    case("widths of the latent", &|c| c.input_widths = vec![8, 8]);
    case("always a projection", &|c| (c.input_widths, c.always_project) = (vec![8, 8], true));
    case("shared projection and pooling", &|c| {
        (c.input_widths, c.share_projection, c.share_pooling) = (vec![3, 3], true, true);
    });
    for pool in [RelationPool::Max, RelationPool::Sum] {
        for sharing in [Sharing::None, Sharing::Cross, Sharing::Sym] {
            case("relation network", &|c| {
                (c.encoder, c.relation_pool, c.sharing, c.dropout) = (Encoder::RelationNetwork, pool, sharing, 0.2);
            });
        }
    }
    case("plain feed-forward", &|c| {
        (c.encoder, c.relations, c.inner_residual, c.dropout) = (Encoder::FeedForward, Relations::SelfOnly, false, 0.1);
    });
    cases
}

#[test]
fn every_config_option_has_the_gradients_of_finite_differences() {
    for (name, config) in option_cases() {
        let text = toml::to_string(&config).unwrap();
        Checker::new(config, &sizes(2), 3).check(&format!("{name}\n{text}"));
    }
}

#[test]
fn models_of_images_have_the_gradients_of_finite_differences() {
    let images = Images { features: 6, ..Images::new(ImageEncoder::Mnist).with_size(5, 4, 1) };
    let presets = ["multi-set-transformer", "pine", "union-transformer"];
    for (name, config) in small_presets(2, 3).into_iter().filter(|p| presets.contains(&p.0)) {
        Checker::new(config.with_images(images), &[vec![1, 2], vec![2, 1]], 20).check(&format!("{name} on images"));
    }
    let images = Images { features: 6, ..Images::new(ImageEncoder::Omniglot).with_size(15, 17, 1) };
    Checker::new(ModelConfig::classifier(images, 3), &[vec![1, 1]], 255).check("classifier");
}

#[test]
fn gradients_hold_for_sets_larger_than_every_tile() {
    for (name, config) in small_presets(2, 3) {
        Checker::new(config, &[vec![70, 1, 33], vec![17, 90, 16]], 3).check(&format!("{name} on large sets"));
    }
}

/// Separate passes run one operation at a time on all examples. A step runs several operations on a few examples or
/// rows.
#[test]
fn a_step_has_the_gradients_of_separate_passes() {
    let mut cases = option_cases();
    for sets in 1..=3 {
        cases.extend(small_presets(sets, 3));
        cases.extend(
            small_presets(sets, 3)
                .into_iter()
                .filter(|c| c.0 != "pine")
                .map(|(name, config)| (name, config.with_output(OutputKind::Equivariant))),
        );
    }
    for (name, mut config) in cases {
        // Dropout masks depend on how a batch is split.
        config.dropout = 0.0;
        // Rows wide enough that the larger sets are several row blocks.
        config.hidden = 96;
        let rows = [vec![700, 1, 3, 40, 20], vec![2, 600, 1, 33, 5], vec![64, 1, 30, 3, 2]][..config.sets].to_vec();
        let text = toml::to_string(&config).unwrap();
        let mut checker = Checker::new(config, &rows, 3);
        checker.loss();
        let outputs = 0..checker.cpu.program().outputs().len();
        let seeds: Vec<Vec<f64>> = outputs.clone().map(|i| weights(checker.cpu.output(i).len())).collect();
        let offsets: Vec<Vec<usize>> = outputs
            .map(|i| {
                let value = checker.cpu.program().value(checker.cpu.program().outputs()[i]);
                let rows: Vec<usize> = match value.space {
                    Space::Set(k) => checker.batch.sets[k].2.clone(),
                    Space::PerExample(n) => (0..=checker.batch.examples()).map(|e| e * n).collect(),
                    other => panic!("an output in {other:?}"),
                };
                rows.iter().map(|r| r * value.cols).collect()
            })
            .collect();
        let mut passes = vec![f64::NAN; checker.params.len()];
        let views: Vec<&[f64]> = seeds.iter().map(Vec::as_slice).collect();
        checker.cpu.backward(&checker.params, &views, &mut passes).unwrap();
        let mut step = vec![f64::NAN; passes.len()];
        let loss = checker.cpu.step(&checker.params, &checker.batch.view(), &mut step, |part| {
            let mut sum = 0.0;
            for (i, grads) in part.grads.iter_mut().enumerate() {
                let range = offsets[i][part.examples.start]..offsets[i][part.examples.end];
                grads.copy_from_slice(&seeds[i][range]);
                sum += part.values[i].iter().zip(grads).map(|(v, g)| v * *g).sum::<f64>();
            }
            sum
        });
        let expected = checker.loss();
        assert!((loss.unwrap() - expected).abs() <= 1e-12 * expected.abs().max(1.0), "{name}: loss\n{text}");
        let scale = passes.iter().fold(1.0f64, |m, g| m.max(g.abs()));
        for (i, (s, p)) in step.iter().zip(&passes).enumerate() {
            assert!((s - p).abs() <= 1e-11 * scale, "{name}: parameter {i}: {s} in a step, {p} by passes\n{text}");
        }
    }
}

/// Dropout masks between operations change which operations are fused.
#[test]
fn a_step_with_dropout_has_the_gradients_of_finite_differences() {
    let mut cases = option_cases();
    cases.retain(|c| c.1.dropout > 0.0);
    cases.extend(small_presets(2, 3).into_iter().map(|(name, config)| (name, config.with_dropout(0.3))));
    cases.extend(small_presets(3, 3).into_iter().map(|(name, config)| (name, config.with_dropout(0.3))));
    for (name, config) in cases {
        let rows = [vec![3, 1, 4, 2], vec![2, 5, 1, 3], vec![1, 2, 2, 4]][..config.sets].to_vec();
        let text = toml::to_string(&config).unwrap();
        let mut checker = Checker::new(config, &rows, 3);
        let step = |c: &mut Checker| {
            let mut grads = vec![f64::NAN; c.params.len()];
            let loss = c.cpu.step(&c.params, &c.batch.view(), &mut grads, |part| {
                part.grads.iter_mut().for_each(|g| g.fill(1.0));
                part.values.iter().flat_map(|v| v.iter()).sum()
            });
            (loss.unwrap(), grads)
        };
        let (_, grads) = step(&mut checker);
        let scale = grads.iter().fold(1.0f64, |m, g| m.max(g.abs()));
        let specs = checker.cpu.program().params().specs().to_vec();
        for spec in specs.iter().filter(|s| s.trained) {
            for i in [spec.offset, spec.offset + spec.len() / 3, spec.offset + spec.len() - 1] {
                let x = checker.params[i];
                let close = [1e-6, 3e-7, 1e-7].into_iter().any(|h| {
                    let [above, below] = [x + h, x - h].map(|x| {
                        checker.params[i] = x;
                        step(&mut checker).0
                    });
                    checker.params[i] = x;
                    (grads[i] - (above - below) / (2.0 * h)).abs() <= 1e-6 * scale
                });
                assert!(close, "{name}: {} at {i}: gradient {}\n{text}", spec.name, grads[i]);
            }
        }
    }
}
