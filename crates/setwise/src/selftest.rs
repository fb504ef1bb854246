//! A GPU held against the CPU in double precision: every architecture and option, forward and backward, on fresh random inputs.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use setwise_engine::cuda::{Cuda, Device, Precision};
use setwise_engine::{Activation, BatchView, Cpu, Image, Linear, Mode, Op, Program, SetView, Value, Window};

use crate::data::Generator;
use crate::experiment::{Optimizer, Training};
use crate::models::{
    AttentionScale, ImageEncoder, Images, Merge, ModelConfig, OutputKind, PRESETS, Pooling, RelationPool, Relations,
    Sharing, program,
};
use crate::train::BatchLimits;
use crate::{Error, Loss, Model, Result, SetBatch, Trainer};

/// One comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Architecture and options.
    pub case: String,
    /// Outputs, gradients of inputs or parameters, statistics of batch norms, answers, a loss, what steps come to.
    pub what: &'static str,
    /// ‖GPU − CPU‖ / ‖CPU‖; of steps by Muon how far two falls of the loss are apart, or parameters from where they were.
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
    // Second layers of pair networks that stay in shared memory, as halves and not, that pass through it, and of widths that are no multiple of a tile.
    for (latent, hidden, blocks) in [(128, 256, 2), (256, 512, 1), (140, 300, 1), (24, 48, 1), (72, 600, 1)] {
        let config = ModelConfig::preset("multi-set-rn", 8)?.with_latent(latent).with_hidden(hidden);
        option(&format!("relation network, latent {latent}, hidden {hidden}"), config.with_blocks(blocks), 8);
    }
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
    let sized = |encoder, (height, width, channels), features| Images {
        features,
        ..Images::new(encoder).with_size(height, width, channels)
    };
    let (mnist, omniglot) = (ImageEncoder::Mnist, ImageEncoder::Omniglot);
    for (name, preset, images) in [
        ("images, encoder mnist", "multi-set-transformer", sized(mnist, (12, 13, 1), 16)),
        ("images of two channels, encoder mnist", "multi-set-rn", sized(mnist, (9, 8, 2), 10)),
        ("images, encoder omniglot", "sum-merge", sized(omniglot, (19, 17, 1), 16)),
        ("images, encoder meta", "union-transformer", sized(ImageEncoder::Meta, (16, 18, 3), 12)),
    ] {
        option(name, small(preset, 3)?.with_images(images), images.numbers());
    }
    let images = sized(mnist, (8, 8, 4), 16);
    option("classifier of images", ModelConfig::classifier(images, 5), images.numbers());
    option("own relations only", ModelConfig { relations: Relations::Own, ..base()? }, 3);
    Ok(cases)
}

/// Sizes of one set: a single element, around tiles of 64, and others.
const SIZES: [usize; 7] = [1, 130, 64, 65, 17, 63, 2];
/// Sizes whose pairs are too many for what a block can count.
const LARGE: [usize; 4] = [300, 1, 5, 230];
/// Sizes whose pairs are counted, but of whose rows a block has no room for all.
const SORTED: [usize; 4] = [190, 1, 7, 150];
/// Sizes of more elements than a GPU has blocks for at once.
const MANY: [usize; 3] = [1, 9_000, 3_777];
/// Enough for every processor of a GPU to have a block.
const SOME: [usize; 3] = [1_000, 1, 1_777];

struct Inputs {
    data: Vec<Vec<f32>>,
    offsets: Vec<Vec<usize>>,
    dim: usize,
}

impl Inputs {
    fn random(sets: usize, sizes: &[usize], dim: usize, rng: &mut Generator) -> Self {
        let mut data = Vec::new();
        let mut offsets = Vec::new();
        for k in 0..sets {
            let mut at = vec![0];
            for i in 0..sizes.len() {
                at.push(at[i] + sizes[(i + 3 * k) % sizes.len()]);
            }
            data.push((0..at[sizes.len()] * dim).map(|_| rng.random::<f32>() * 4.0 - 2.0).collect());
            offsets.push(at);
        }
        Inputs { data, offsets, dim }
    }

    fn view(&self) -> BatchView<'_, f32> {
        let sets = self.data.iter().zip(&self.offsets);
        BatchView { sets: sets.map(|(data, offsets)| SetView { data, width: self.dim, offsets }).collect() }
    }
}

/// What was compared, its error, and how large that may be.
type Found = (&'static str, f64, f64);

/// A run over some cases.
struct Suite<'a> {
    only: Option<&'a str>,
    seed: u64,
    tell: &'a mut dyn FnMut(&Check),
    checks: Vec<Check>,
}

impl Suite<'_> {
    /// Runs a case if it is wanted; its numbers follow from the seed and its name.
    fn case(&mut self, name: &str, check: impl FnOnce(&mut Generator) -> Result<Vec<Found>>) -> Result<()> {
        if self.only.is_some_and(|part| !name.contains(part)) {
            return Ok(());
        }
        let found = check(&mut Generator::seed_from_u64(self.seed ^ u64::from(crc32fast::hash(name.as_bytes()))))?;
        for (what, error, tolerance) in found {
            let check = Check { case: name.to_owned(), what, error, tolerance };
            (self.tell)(&check);
            self.checks.push(check);
        }
        Ok(())
    }
}

/// Runs all comparisons, or those of cases whose name has a part in it, and tells of each as it is done.
pub fn run(
    device: &Arc<Device>,
    precision: Precision,
    seed: u64,
    only: Option<&str>,
    tell: &mut dyn FnMut(&Check),
) -> Result<Vec<Check>> {
    let mut suite = Suite { only, seed, tell, checks: Vec::new() };
    for (case, config, dim) in cases()? {
        suite.case(&case, |rng| {
            let config = config.validate()?;
            let model = Model::new(config.clone(), rng.random());
            let inputs = Inputs::random(config.sets, &SIZES, dim, rng);
            let of = |mode| Arc::new(program(&config, mode, true));
            let mut found = compare(device, precision, of(Mode::Train), model.params(), &inputs, rng)?;
            if config.images.is_some() {
                // Batch norms do something else when they answer.
                let infer = of(Mode::Infer);
                found.extend(compare(device, precision, infer, model.params(), &inputs, rng)?);
            }
            Ok(found)
        })?;
    }
    for (case, program, image) in windows() {
        suite.case(&case, |rng| {
            let params: Vec<f32> = program.params().init(rng);
            let inputs = Inputs::random(program.inputs().len(), &SIZES, image.numbers(), rng);
            compare(device, precision, Arc::new(program), &params, &inputs, rng)
        })?;
    }
    // More pairs of elements than are sorted at once; hidden layers too large, and weights too small, for halves.
    for (case, latent, hidden, sizes, scale) in [
        ("relation network of large sets, hidden 24", 16, 24, &LARGE[..], 1.0),
        ("relation network of large sets, hidden 136", 16, 136, &LARGE, 1.0),
        ("relation network of large sets, hidden 135", 16, 135, &LARGE, 1.0),
        ("relation network of sets that are sorted and not held", 256, 512, &SORTED, 1.0),
        ("relation network of large and small numbers", 128, 256, &SIZES, 1e6),
    ] {
        suite.case(case, |rng| {
            let config = ModelConfig::preset("multi-set-rn", 3)?;
            let config = config.with_latent(latent).with_hidden(hidden).with_blocks(1).validate()?;
            let mut params = Model::new(config.clone(), rng.random()).params().to_vec();
            let program = program(&config, Mode::Train, true);
            let mut scaled = 0;
            for spec in program.params().specs() {
                let factor = match spec.name.rsplit('.').nth(1) {
                    Some("own" | "partner") => scale,
                    Some("pair") if spec.name.ends_with("weight") => 1.0 / scale,
                    _ => continue,
                };
                params[spec.range()].iter_mut().for_each(|p| *p *= factor);
                scaled += 1;
            }
            assert!(scaled > 0, "relation networks have parameters of these names");
            let inputs = Inputs::random(config.sets, sizes, 3, rng);
            compare(device, precision, Arc::new(program), &params, &inputs, rng)
        })?;
    }
    // Rows of 384 are too wide for a norm within a product, and have an odd number of tiles.
    for (case, [latent, hidden], sizes) in [
        ("many rows", [256, 512], &MANY),
        ("wide rows", [384, 256], &SOME),
        ("few wide rows", [512, 520], &[3, 140, 1]),
    ] {
        suite.case(case, |rng| {
            let program = layers(latent, hidden);
            let params: Vec<f32> = program.params().init(rng);
            let inputs = Inputs::random(program.inputs().len(), sizes, 16, rng);
            compare(device, precision, Arc::new(program), &params, &inputs, rng)
        })?;
    }
    suite.case("training a classifier", |rng| classifier_steps(device, precision, rng))?;
    suite.case("training with labels of elements", |rng| element_steps(device, precision, rng))?;
    suite.case("training on a set as wide as the model", |rng| wide_input_steps(device, precision, rng))?;
    // Matrices narrower than a tile, as wide as some, and neither.
    for (latent, hidden) in [(16, 24), (64, 128), (72, 200)] {
        let case = format!("training by Muon, latent {latent}, hidden {hidden}");
        suite.case(&case, |rng| muon_steps(device, precision, [latent, hidden], rng))?;
    }
    Ok(suite.checks)
}

/// Convolutions of windows, strides and sizes no encoder has, with and without biases, around a batch norm without ReLU and a pooling.
fn windows() -> Vec<(String, Program, Image)> {
    let mut all = Vec::new();
    let mut add = |image: Image, window: Window, filters: usize, bias: bool| {
        let mut b = Program::builder(&[image.numbers(); 2], false, Mode::Train, true);
        let xs = [b.input(0), b.input(1)];
        let (ys, made) = b.convolution("c", &xs, image, filters, window, bias);
        let ys = b.batch_norm("n", &ys, made, Activation::None);
        let (pooled, _) = b.max_pool(&xs, image);
        let Window { kernel, stride, padding } = window;
        let name = format!("window {kernel}, stride {stride}, padding {padding}, {} channels", image.channels);
        all.push((name, b.finish([ys, pooled].concat()), image));
    };
    for (kernel, stride, padding) in [(1, 1, 0), (2, 3, 2), (3, 2, 0), (5, 1, 4), (4, 2, 1)] {
        let window = Window { kernel, stride, padding };
        // Filters that are not in chunks, and more than a block has.
        for (channels, filters, bias) in [(1, 7, true), (4, 10, true), (35, 41, true), (3, 36, false)] {
            add(Image { height: 7, width: 9, channels }, window, filters, bias);
        }
    }
    // Too large to be held whole, cut where images end and where they do not.
    add(Image { height: 70, width: 33, channels: 1 }, Window { kernel: 3, stride: 1, padding: 1 }, 8, false);
    add(Image { height: 45, width: 47, channels: 3 }, Window { kernel: 7, stride: 1, padding: 3 }, 4, false);
    all
}

/// Linear maps in all the ways that layers of transformers have them: plain, with a ReLU, with a residual and a norm.
fn layers(latent: usize, hidden: usize) -> Program {
    let mut b = Program::builder(&[16; 2], false, Mode::Train, true);
    let inputs = [b.input(0), b.input(1)];
    let mut layer = |name: &str, xs: &[Value], cols: usize, residuals: Option<&[Value]>, activation: Activation| {
        let mut maps = Vec::new();
        for (k, &x) in xs.iter().enumerate() {
            let y = b.fresh(b.spec(x).space, cols, false);
            let mut map = b.map(&format!("{name}.{k}"), b.whole(x), b.whole(y), true);
            if let Some(r) = residuals {
                map.residual = Some(b.whole(r[k]));
                map.norm = Some(b.norm(&format!("{name}.{k}.norm"), y, cols));
            }
            maps.push(map);
        }
        let ys: Vec<Value> = maps.iter().map(|m| m.y.value).collect();
        b.op(Op::Linear(Linear { maps, activation }));
        ys
    };
    let xs = layer("in", &inputs, latent, None, Activation::None);
    let inner = layer("hidden", &xs, hidden, None, Activation::Relu);
    let ys = layer("out", &inner, latent, Some(&xs), Activation::None);
    b.finish(ys)
}

/// Trainers on the GPU and on the CPU after two steps on a batch, and how far their losses differ.
fn two_steps(
    device: &Arc<Device>,
    precision: Precision,
    trainer: impl Fn() -> Trainer,
    limits: BatchLimits,
    batch: &SetBatch,
    targets: &[f32],
) -> Result<([Trainer; 2], f64)> {
    let mut both = [trainer(), trainer()];
    both[0].use_device(&crate::Device::Cuda { device: device.clone(), precision }, limits)?;
    let mut losses = [Vec::new(), Vec::new()];
    for (trainer, losses) in both.iter_mut().zip(&mut losses) {
        for _ in 0..2 {
            losses.push(trainer.step(batch, targets, 1e-3)?);
        }
    }
    Ok((both, relative(&losses[0], &losses[1])))
}

/// A whole step of a classifier: its loss, and the running averages after it.
fn classifier_steps(device: &Arc<Device>, precision: Precision, rng: &mut Generator) -> Result<Vec<Found>> {
    let images = Images::new(ImageEncoder::Mnist).with_size(9, 10, 1);
    let (classes, count) = (37, 50);
    let config = ModelConfig::classifier(images, classes).validate()?;
    let model = || Trainer::new(Model::new(config.clone(), 3), Loss::CrossEntropy { classes });
    let pixels: Vec<f32> = (0..count * images.numbers()).map(|_| rng.random()).collect();
    let batch = SetBatch::from_examples(images.numbers(), &[vec![&pixels[..]]])?;
    let labels: Vec<f32> = (0..count).map(|i| (i * 7 % classes) as f32).collect();
    let limits = BatchLimits { examples: 2, set_size: count, dims: 1 };
    let ([mut gpu, mut cpu], losses) = two_steps(device, precision, model, limits, &batch, &labels)?;
    let averages = |t: &mut Trainer| -> Vec<f64> {
        let trained = t.model().layout().trained();
        t.model().params()[trained..].iter().map(|&v| f64::from(v)).collect()
    };
    let tolerance = ALLOWED * unit(precision);
    let averages = relative(&averages(&mut gpu), &averages(&mut cpu));
    Ok(vec![("losses of two steps", losses, tolerance), ("running averages", averages, tolerance)])
}

/// Numbers from −1 to 1.
fn drawn(n: usize, rng: &mut Generator) -> Vec<f32> {
    (0..n).map(|_| rng.random::<f32>() * 2.0 - 1.0).collect()
}

/// Examples of two sets of random points, with these widths and numbers of points.
fn drawn_batch(widths: [usize; 2], sizes: &[[usize; 2]], rng: &mut Generator) -> Result<SetBatch> {
    let mut set = |n: usize, set: usize| drawn(widths[set] * n, rng);
    let examples: Vec<[Vec<f32>; 2]> = sizes.iter().map(|&[a, b]| [set(a, 0), set(b, 1)]).collect();
    let examples: Vec<Vec<&[f32]>> = examples.iter().map(|e| e.iter().map(|s| &s[..]).collect()).collect();
    SetBatch::from_widths(&widths, &examples)
}

/// Whole steps of a model that answers for every element, with the loss of single elements and their means.
fn element_steps(device: &Arc<Device>, precision: Precision, rng: &mut Generator) -> Result<Vec<Found>> {
    let config = ModelConfig::preset("multi-set-transformer", 3)?.with_latent(32).with_hidden(64);
    let config = config.with_output(OutputKind::Equivariant).validate()?;
    let trainer = || Trainer::new(Model::new(config.clone(), 4), Loss::Elements { weight: 0.5 });
    let sizes = [[1, 40], [33, 7], [130, 64]];
    let targets = drawn(sizes.as_flattened().iter().sum(), rng);
    steps_and_moments(device, precision, trainer, &drawn_batch([3, 3], &sizes, rng)?, &targets)
}

/// Whole steps of a model one of whose sets is as wide as its rows, so that nothing leads back from the first operation on it.
fn wide_input_steps(device: &Arc<Device>, precision: Precision, rng: &mut Generator) -> Result<Vec<Found>> {
    let config = ModelConfig::preset("multi-set-transformer", 8)?.with_latent(16).with_hidden(32).with_blocks(2);
    let config = ModelConfig { input_widths: vec![16, 8], ..config }.validate()?;
    let trainer = || Trainer::new(Model::new(config.clone(), 6), Loss::L1);
    let sizes = [[1, 40], [33, 7], [130, 64]];
    let targets = drawn(sizes.len(), rng);
    steps_and_moments(device, precision, trainer, &drawn_batch([16, 8], &sizes, rng)?, &targets)
}

/// Two steps: losses, and both moments after them, which come back in several pieces.
fn steps_and_moments(
    device: &Arc<Device>,
    precision: Precision,
    trainer: impl Fn() -> Trainer,
    batch: &SetBatch,
    targets: &[f32],
) -> Result<Vec<Found>> {
    let limits = BatchLimits { examples: 4, set_size: 150, dims: 1 };
    let (mut both, losses) = two_steps(device, precision, trainer, limits, batch, targets)?;
    let tolerance = ALLOWED * unit(precision);
    let [gpu, cpu] = both.each_mut().map(|trainer| {
        let adam = trainer.adam();
        [&adam.first, &adam.second].map(|m| m.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>())
    });
    Ok(vec![
        ("losses of two steps", losses, tolerance),
        ("first moments", relative(&gpu[0], &cpu[0]), tolerance),
        // Squares are off by twice as much.
        ("second moments", relative(&gpu[1], &cpu[1]), 2.0 * tolerance),
    ])
}

/// Steps of a model whose matrices move by Muon: what the loss falls by. Single weights may differ: directions in which the gradient is nothing but
/// rounding are as long as all others once they are made orthogonal.
fn muon_steps(
    device: &Arc<Device>,
    precision: Precision,
    [latent, hidden]: [usize; 2],
    rng: &mut Generator,
) -> Result<Vec<Found>> {
    let config =
        ModelConfig::preset("multi-set-transformer", 3)?.with_latent(latent).with_hidden(hidden).with_blocks(2);
    let config = config.validate()?;
    let training = Training { optimizer: Optimizer::Muon { rate: 0.01 }, learning_rate: 1e-3, ..Training::default() };
    let trainer = || Trainer::of(Model::new(config.clone(), 5), &training, 0);
    let sizes: Vec<[usize; 2]> = (0..24).map(|i| [1 + 5 * i % 40, 3 + 7 * i % 50]).collect();
    let batch = drawn_batch([3, 3], &sizes, rng)?;
    let limits = BatchLimits { examples: 24, set_size: 60, dims: 1 };
    let targets = drawn(24, rng);
    let mut both = [trainer(), trainer()];
    both[0].use_device(&crate::Device::Cuda { device: device.clone(), precision }, limits)?;
    let (mut losses, mut moved) = ([Vec::new(), Vec::new()], 0.0f64);
    for (trainer, losses) in both.iter_mut().zip(&mut losses) {
        for _ in 0..4 {
            trainer.submit(&batch, &targets, 1e-3, Some(0.5))?;
            losses.push(trainer.outcome(true)?.map_or(f64::NAN, |o| o.loss));
        }
        trainer.sync()?;
        let before = trainer.model().params().to_vec();
        trainer.submit(&batch, &vec![f32::NAN; targets.len()], 1e-3, None)?;
        trainer.outcome(true)?;
        trainer.sync()?;
        moved = trainer.model().params().iter().zip(&before).fold(moved, |m, (a, b)| m.max(f64::from((a - b).abs())));
    }
    let fall = |losses: &[f64]| (losses[0] - losses[3]) / losses[0];
    let falls = (fall(&losses[0]) - fall(&losses[1])).abs();
    Ok(vec![
        // Besides what the gradient loses, matrices are made orthogonal in bf16.
        ("what the loss falls by", falls, 0.01 + ALLOWED * unit(precision)),
        ("parameters after a loss that is no number", moved, 0.0),
    ])
}

fn compare(
    device: &Arc<Device>,
    precision: Precision,
    program: Arc<Program>,
    params: &[f32],
    inputs: &Inputs,
    rng: &mut Generator,
) -> Result<Vec<Found>> {
    let (trained, training) = (program.params().trained(), program.training());
    let mut gpu = Cuda::new(device, program.clone(), precision)?;
    let mut cpu = Cpu::<f64>::new(program);
    // Once to make room, and once more with everything in it poisoned.
    gpu.forward(params, &inputs.view())?;
    gpu.poison()?;
    let outputs = gpu.forward(params, &inputs.view())?;
    let slopes: Vec<Vec<f32>> = outputs.iter().map(|o| drawn(o.len(), rng)).collect();
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
    let mut found = vec![wide(&outputs.concat())];
    if training {
        let grads = gpu.backward(&slopes)?;
        let mut input_grads = Vec::new();
        for k in 0..inputs.data.len() {
            input_grads.extend(gpu.input_grad(k)?.ok_or_else(|| Error::Device("no gradient of an input".into()))?);
        }
        found.extend([wide(&input_grads), wide(&grads[..trained]), wide(&grads[trained..])]);
    }
    let expected = exact(&mut cpu, params, inputs, &slopes, 0.0, rng)?;
    // How far the exact result moves when parameters and inputs are rounded as the GPU rounds operands: where a ReLU, a maximum
    // or a row of almost equal numbers makes it move far, the GPU's may too.
    let unit = unit(precision);
    let mut moved = vec![0.0f64; expected.len()];
    for _ in 0..4 {
        let rounded = exact(&mut cpu, params, inputs, &slopes, unit, rng)?;
        for (m, (a, b)) in moved.iter_mut().zip(rounded.iter().zip(&expected)) {
            *m = m.max(relative(a, b));
        }
    }
    let first = if training { "outputs" } else { "answers" };
    let names = [first, "gradients of inputs", "gradients of parameters", "statistics of batch norms"];
    Ok((0..expected.len())
        .filter(|&i| !expected[i].is_empty())
        .map(|i| (names[i], relative(&found[i], &expected[i]), ALLOWED * moved[i].max(unit)))
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

/// Outputs and, of training programs, gradients of inputs and of parameters and the statistics of batch norms, in double precision, with
/// parameters and inputs off by up to `noise` of themselves.
fn exact(
    cpu: &mut Cpu<f64>,
    params: &[f32],
    inputs: &Inputs,
    slopes: &[Vec<f32>],
    noise: f64,
    rng: &mut Generator,
) -> Result<Vec<Vec<f64>>> {
    let mut off = |x: &[f32]| -> Vec<f64> {
        x.iter().map(|&v| f64::from(v) * (1.0 + noise * (rng.random::<f64>() * 2.0 - 1.0))).collect()
    };
    let params = off(params);
    let data: Vec<Vec<f64>> = inputs.data.iter().map(|d| off(d)).collect();
    let sets = data.iter().zip(&inputs.offsets).map(|(data, offsets)| SetView { data, width: inputs.dim, offsets });
    cpu.forward(&params, &BatchView { sets: sets.collect() })?;
    let outputs = (0..slopes.len()).flat_map(|i| cpu.output(i).to_vec()).collect();
    if !cpu.program().training() {
        return Ok(vec![outputs]);
    }
    let slopes: Vec<Vec<f64>> = slopes.iter().map(|s| s.iter().map(|&v| f64::from(v)).collect()).collect();
    let mut grads = vec![0.0; params.len()];
    cpu.backward(&params, &slopes.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut grads)?;
    let input_grads = (0..inputs.data.len()).flat_map(|k| cpu.input_grad(k).unwrap_or(&[]).to_vec()).collect();
    let averages = grads.split_off(cpu.program().params().trained());
    Ok(vec![outputs, input_grads, grads, averages])
}
