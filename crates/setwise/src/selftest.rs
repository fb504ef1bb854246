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
    // Once to make room, and once more with everything in it poisoned.
    gpu.forward(model.params(), &inputs.view())?;
    gpu.poison()?;
    let outputs = gpu.forward(model.params(), &inputs.view())?;
    let slopes: Vec<Vec<f32>> =
        outputs.iter().map(|o| o.iter().map(|_| rng.random::<f32>() * 2.0 - 1.0).collect()).collect();
    let grads = gpu.backward(&slopes)?;
    let mut input_grads = Vec::new();
    for k in 0..inputs.data.len() {
        input_grads.extend(gpu.input_grad(k)?.ok_or_else(|| Error::Device("no gradient of an input".into()))?);
    }
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
    let found = [wide(&outputs.concat()), wide(&input_grads), wide(&grads)];
    let expected = exact(&mut cpu, model.params(), inputs, &slopes, 0.0, rng)?;
    // How far the exact result moves when parameters and inputs are rounded as the GPU rounds operands: where a ReLU, a maximum
    // or a row of almost equal numbers makes it move far, the GPU's may too.
    let unit = unit(precision);
    let mut moved = [0.0f64; 3];
    for _ in 0..4 {
        let rounded = exact(&mut cpu, model.params(), inputs, &slopes, unit, rng)?;
        for (m, (a, b)) in moved.iter_mut().zip(rounded.iter().zip(&expected)) {
            *m = m.max(relative(a, b));
        }
    }
    let names = ["outputs", "gradients of inputs", "gradients of parameters"];
    Ok((0..3)
        .map(|i| Check {
            case: case.to_owned(),
            what: names[i],
            error: relative(&found[i], &expected[i]),
            tolerance: ALLOWED * moved[i].max(unit),
        })
        .collect())
}

/// Errors may be this many times what rounding parameters and inputs alone does: the GPU rounds in every layer.
const ALLOWED: f64 = 16.0;

/// How far a product's operands are from what they stand for, relative to it: half the distance of neighbours where they are rounded, all of it
/// where matrix units cut them.
fn unit(precision: Precision) -> f64 {
    match precision {
        // Products of halves keep two bits less than single precision, and sums over hundreds of rows lose as many again.
        Precision::F32 => 2f64.powi(-20),
        Precision::Tf32 => 2f64.powi(-10),
        Precision::Bf16 => 2f64.powi(-8),
    }
}

/// ‖a − b‖ / ‖b‖; no number if their lengths differ.
fn relative(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::NAN;
    }
    let difference: f64 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    (difference / b.iter().map(|b| b * b).sum::<f64>().max(1e-30)).sqrt()
}

/// Outputs, gradients of inputs and of parameters in double precision, with parameters and inputs off by up to `noise` of themselves.
fn exact(
    cpu: &mut Cpu<f64>,
    params: &[f32],
    inputs: &Inputs,
    slopes: &[Vec<f32>],
    noise: f64,
    rng: &mut Generator,
) -> Result<[Vec<f64>; 3]> {
    let mut off = |x: &[f32]| -> Vec<f64> {
        x.iter().map(|&v| f64::from(v) * (1.0 + noise * (rng.random::<f64>() * 2.0 - 1.0))).collect()
    };
    let params = off(params);
    let data: Vec<Vec<f64>> = inputs.data.iter().map(|d| off(d)).collect();
    let sets = data.iter().zip(&inputs.offsets).map(|(data, offsets)| SetView { data, width: inputs.dim, offsets });
    cpu.forward(&params, &BatchView { sets: sets.collect() })?;
    let outputs = (0..slopes.len()).flat_map(|i| cpu.output(i).to_vec()).collect();
    let slopes: Vec<Vec<f64>> = slopes.iter().map(|s| s.iter().map(|&v| f64::from(v)).collect()).collect();
    let mut grads = vec![0.0; params.len()];
    cpu.backward(&params, &slopes.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut grads)?;
    let input_grads = (0..inputs.data.len()).flat_map(|k| cpu.input_grad(k).unwrap_or(&[]).to_vec()).collect();
    Ok([outputs, input_grads, grads])
}
