//! A GPU held against the CPU in double precision: every architecture and option, forward and backward, on fresh random inputs.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use setwise_engine::cuda::{Cuda, Device, Precision};
use setwise_engine::{BatchView, Cpu, Mode, SetView};

use crate::data::Generator;
use crate::models::{
    AttentionScale, Merge, ModelConfig, OutputKind, PRESETS, Pooling, RelationPool, Relations, Sharing, program,
};
use crate::{Error, Result};

/// One comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Architecture and options.
    pub case: String,
    /// Outputs, gradients of inputs, or gradients of parameters.
    pub what: &'static str,
    /// ‖GPU − CPU‖ / ‖CPU‖.
    pub error: f64,
    /// What is allowed.
    pub tolerance: f64,
}

impl Check {
    /// Whether it holds; an error that is no number does not.
    pub fn passed(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// Models and batches to compare on.
fn cases() -> Result<Vec<(String, ModelConfig, usize)>> {
    let mut cases = Vec::new();
    let small = |name: &str, dim| -> Result<ModelConfig> {
        let mut config = ModelConfig::preset(name, dim)?.with_latent(16).with_hidden(24).with_blocks(2);
        config.projection_size = 5;
        Ok(config)
    };
    for preset in PRESETS {
        for sets in 1..=3 {
            if preset.name == "cross-only" && sets == 1 {
                continue;
            }
            let config = small(preset.name, 3)?.with_sets(sets);
            cases.push((format!("{}, {sets} sets", preset.name), config, 3));
        }
        // The sizes of the paper in four dimensions, and widths that are no multiple of anything.
        cases.push((format!("{}, latent 64", preset.name), ModelConfig::preset(preset.name, 4)?, 4));
        let mut odd = small(preset.name, 5)?.with_latent(6).with_hidden(7).with_heads(2);
        odd.projections = 3;
        cases.push((format!("{}, latent 6", preset.name), odd, 5));
    }
    let base = || small("multi-set-transformer", 3);
    let mut option = |name: &str, config: ModelConfig, dim: usize| cases.push((name.to_owned(), config, dim));
    option("latent 256, hidden 512", ModelConfig::preset("multi-set-transformer", 16)?.with_blocks(1), 16);
    for (name, merge) in [("concat", Merge::Concat), ("concat-relu", Merge::ConcatRelu), ("sum", Merge::Sum)] {
        option(&format!("merge {name}"), base()?.with_merge(merge), 3);
    }
    for (name, sharing) in [("cross", Sharing::Cross), ("sym", Sharing::Sym)] {
        option(&format!("sharing {name}"), base()?.with_sharing(sharing).with_sets(3), 3);
    }
    for (name, pooling) in [("max", Pooling::Max), ("mean", Pooling::Mean), ("sum", Pooling::Sum)] {
        option(&format!("pooling {name}"), base()?.with_pooling(pooling), 3);
    }
    option("three seeds", base()?.with_seeds(3), 3);
    option("no norms", ModelConfig { inner_norm: false, outer_norm: false, pool_norm: false, ..base()? }, 3);
    option("scale by latent", ModelConfig { attention_scale: AttentionScale::Latent, ..base()? }, 3);
    option("decoder without hidden layers", base()?.with_decoder_layers(0), 3);
    option("two outputs", base()?.with_output_width(2).with_decoder_layers(2), 3);
    option(
        "relation network with sums",
        ModelConfig { relation_pool: RelationPool::Sum, ..small("multi-set-rn", 3)? },
        3,
    );
    for preset in
        ["multi-set-transformer", "multi-set-transformer-equi", "union-transformer", "single-set-rff", "multi-set-rn"]
    {
        option(&format!("{preset}, per element"), small(preset, 3)?.with_output(OutputKind::Equivariant), 3);
    }
    option("set encoding", ModelConfig { set_encoding: true, ..small("union-transformer", 3)? }, 3);
    option("shared projection and pooling", ModelConfig { share_projection: true, share_pooling: true, ..base()? }, 3);
    for dim in [1, 2, 9, 17] {
        option(&format!("equivariant, {dim} dimensions"), small("multi-set-transformer-equi", 2)?, dim);
    }
    option("own relations only", ModelConfig { relations: Relations::Own, ..base()? }, 3);
    Ok(cases)
}

/// Sizes of one set: a single element, around tiles of 64, and others.
const SIZES: [usize; 7] = [1, 130, 64, 65, 17, 63, 2];

struct Inputs {
    data: Vec<Vec<f32>>,
    offsets: Vec<Vec<usize>>,
    dim: usize,
}

impl Inputs {
    fn random(sets: usize, dim: usize, rng: &mut Generator) -> Self {
        let mut data = Vec::new();
        let mut offsets = Vec::new();
        for k in 0..sets {
            let mut at = vec![0];
            for i in 0..SIZES.len() {
                at.push(at[i] + SIZES[(i + 3 * k) % SIZES.len()]);
            }
            data.push((0..at[SIZES.len()] * dim).map(|_| rng.random::<f32>() * 4.0 - 2.0).collect());
            offsets.push(at);
        }
        Inputs { data, offsets, dim }
    }

    fn view(&self) -> BatchView<'_, f32> {
        let sets = self.data.iter().zip(&self.offsets);
        BatchView { sets: sets.map(|(data, offsets)| SetView { data, width: self.dim, offsets }).collect() }
    }
}

/// Runs all comparisons, and tells of each as it is done.
pub fn run(device: &Arc<Device>, precision: Precision, seed: u64, tell: &mut dyn FnMut(&Check)) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    let mut rng = Generator::seed_from_u64(seed);
    for (case, config, dim) in cases()? {
        let config = config.validate()?;
        let model = crate::Model::new(config.clone(), rng.random());
        let inputs = Inputs::random(config.sets, dim, &mut rng);
        for check in compare(device, precision, &case, &model, &inputs, &mut rng)? {
            tell(&check);
            checks.push(check);
        }
    }
    Ok(checks)
}

fn compare(
    device: &Arc<Device>,
    precision: Precision,
    case: &str,
    model: &crate::Model,
    inputs: &Inputs,
    rng: &mut Generator,
) -> Result<Vec<Check>> {
    let program = Arc::new(program(model.config(), Mode::Train, true));
    let mut gpu = Cuda::new(device, program.clone(), precision)?;
    let mut cpu = Cpu::<f64>::new(program);
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
    let params = wide(model.params());
    let data: Vec<Vec<f64>> = inputs.data.iter().map(|d| wide(d)).collect();
    let sets = data.iter().zip(&inputs.offsets).map(|(data, offsets)| SetView { data, width: inputs.dim, offsets });
    let view = BatchView { sets: sets.collect() };
    cpu.forward(&params, &view)?;
    // Once to make room, and once more with everything in it poisoned.
    gpu.forward(model.params(), &inputs.view())?;
    gpu.poison()?;
    let outputs = gpu.forward(model.params(), &inputs.view())?;
    let count = outputs.len();
    let expected: Vec<f64> = (0..count).flat_map(|i| cpu.output(i).to_vec()).collect();
    let slopes: Vec<Vec<f32>> =
        outputs.iter().map(|o| o.iter().map(|_| rng.random::<f32>() * 2.0 - 1.0).collect()).collect();
    let grads = gpu.backward(&slopes)?;
    let exact: Vec<Vec<f64>> = slopes.iter().map(|s| wide(s)).collect();
    let mut expected_grads = vec![0.0; params.len()];
    cpu.backward(&params, &exact.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut expected_grads)?;
    let (mut input_grads, mut expected_inputs) = (Vec::new(), Vec::new());
    for k in 0..inputs.data.len() {
        input_grads.extend(gpu.input_grad(k)?.ok_or_else(|| Error::Device("no gradient of an input".into()))?);
        expected_inputs.extend_from_slice(cpu.input_grad(k).unwrap_or(&[]));
    }
    let [forward, backward] = tolerances(precision, case);
    let check = |what, found: &[f32], expected: &[f64], tolerance| {
        let difference: f64 = found.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
        let length: f64 = expected.iter().map(|b| b * b).sum();
        let error = if found.len() == expected.len() { (difference / length.max(1e-30)).sqrt() } else { f64::NAN };
        Check { case: case.to_owned(), what, error, tolerance }
    };
    Ok(vec![
        check("outputs", &outputs.concat(), &expected, forward),
        check("gradients of inputs", &input_grads, &expected_inputs, backward),
        check("gradients of parameters", &grads, &expected_grads, backward),
    ])
}

/// Largest relative errors of outputs and gradients. Rounded operands let other elements win a maximum now and then, which
/// moves whole gradients, so architectures with maxima are allowed more.
fn tolerances(precision: Precision, case: &str) -> [f64; 2] {
    let maxima = ["rn", "max", "equi", "relation"].iter().any(|m| case.contains(m));
    match (precision, maxima) {
        (Precision::F32, false) => [1e-5, 1e-4],
        (Precision::F32, true) => [1e-5, 1e-2],
        (Precision::Tf32, false) => [5e-3, 1e-2],
        (Precision::Tf32, true) => [5e-3, 1e-1],
        (Precision::Bf16, false) => [4e-2, 1e-1],
        (Precision::Bf16, true) => [4e-2, 4e-1],
    }
}
