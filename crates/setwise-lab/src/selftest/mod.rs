//! Comparison of a GPU with the CPU in double precision: every architecture and option, forward and backward.
//!
//! * `cases`: models and programs.
//! * `compare`: one program on random inputs.
//! * `steps`: training steps.
//! * `permuted_sums`: sums of a kernel for many permutations, of two-sample tests.

mod cases;
mod compare;
mod permuted_sums;
mod steps;

use std::sync::Arc;

use rand::{RngExt, SeedableRng};

use setwise::models::{ModelConfig, program};
use setwise::random::Generator;
use setwise::{Model, ValidConfig};
use setwise_engine::Mode;
use setwise_engine::cuda::{Device, Precision};

use self::cases::{LARGE, MANY, SIZES, SOME, SORTED, cases, layers, windows};
use self::compare::{Inputs, compare};
use self::steps::{classifier_steps, element_steps, muon_steps, wide_input_steps};
use crate::Result;

/// One comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Architecture and options.
    pub case: String,
    /// The compared quantity: outputs, gradients, statistics of batch norms, losses or moments.
    pub what: &'static str,
    /// ‖GPU − CPU‖ / ‖CPU‖. For Muon: the difference of decreases of the loss, or the change of parameters.
    pub error: f64,
    /// The largest allowed error.
    pub tolerance: f64,
}

impl Check {
    /// Whether the error is within the tolerance. NaN is not.
    pub fn passed(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// The compared quantity, its error and its tolerance.
type Comparison = (&'static str, f64, f64);

/// A run over some cases.
struct Suite<'a> {
    only: Option<&'a str>,
    seed: u64,
    report: &'a mut dyn FnMut(&Check),
    checks: Vec<Check>,
}

impl Suite<'_> {
    /// Runs a case if its name contains `only`. The seed and the name determine its random values.
    fn case(&mut self, name: &str, check: impl FnOnce(&mut Generator) -> Result<Vec<Comparison>>) -> Result<()> {
        if self.only.is_some_and(|part| !name.contains(part)) {
            return Ok(());
        }
        let found = check(&mut Generator::seed_from_u64(self.seed ^ u64::from(crc32fast::hash(name.as_bytes()))))?;
        for (what, error, tolerance) in found {
            let check = Check { case: name.to_owned(), what, error, tolerance };
            (self.report)(&check);
            self.checks.push(check);
        }
        Ok(())
    }
}

/// Runs all cases, or those whose names contain `only`, and reports each check.
pub fn run(
    device: &Arc<Device>,
    precision: Precision,
    seed: u64,
    only: Option<&str>,
    report: &mut dyn FnMut(&Check),
) -> Result<Vec<Check>> {
    let mut suite = Suite { only, seed, report, checks: Vec::new() };
    for (case, config, dim) in cases()? {
        suite.case(&case, |rng| {
            let config = config.validate()?;
            let model = Model::new(config.clone(), rng.random());
            let inputs = Inputs::random(config.sets, &SIZES, dim, rng);
            let of = |mode| Arc::new(program(&config, mode, true));
            let mut found = compare(device, precision, of(Mode::Train), model.params(), &inputs, rng)?;
            if config.images.is_some() {
                // Batch norms use running averages in inference.
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
    // More pairs of elements than are sorted at once, and values out of the range of f16.
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
            compare_multiplied(device, precision, &config, (sizes, 3), rng, |name| match name.rsplit('.').nth(1) {
                Some("element" | "partner") => Some(scale),
                Some("pair") if name.ends_with("weight") => Some(1.0 / scale),
                _ => None,
            })
        })?;
    }
    // Sets that fit into one block, also with heads per dimension, and values out of the range of f16.
    let mut attentions = Vec::new();
    for n in [50, 120] {
        for latent in [32, 64, 128, 256] {
            let config = ModelConfig::preset("multi-set-transformer", 3)?.with_latent(latent);
            attentions.push((format!("attention of up to {n} elements, latent {latent}"), config, 3, n, 1.0));
        }
        for dims in [4, 7, 16] {
            let config = ModelConfig::preset("multi-set-transformer-equi", dims)?;
            attentions.push((format!("attention of up to {n} elements in {dims} dimensions"), config, dims, n, 1.0));
        }
    }
    let config = ModelConfig::preset("multi-set-transformer", 3)?.with_latent(64);
    attentions.push(("attention of large and small numbers".to_owned(), config, 3, 120, 1e6));
    for (case, config, dims, longest, scale) in attentions {
        suite.case(&case, |rng| {
            let config = config.with_hidden(32).with_blocks(1).validate()?;
            let sizes = [longest, 1, longest / 2 + 3, 17, longest - 1];
            compare_multiplied(device, precision, &config, (&sizes, dims), rng, |name| match name.rsplit('.').nth(1) {
                Some("query" | "value") => Some(scale),
                Some("key") => Some(1.0 / scale),
                Some("output") if name.ends_with("weight") => Some(1.0 / scale),
                _ => None,
            })
        })?;
    }
    // Rows of 384 are too wide for a norm in the epilogue, and have an odd number of tiles.
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
    suite.case("kernel sums of permutations", |rng| permuted_sums::permuted_sums(device, rng))?;
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

/// Compares a model after scaling parameters. `factor` maps the name of a parameter to its factor, if it has one.
fn compare_multiplied(
    device: &Arc<Device>,
    precision: Precision,
    config: &ValidConfig,
    (sizes, dims): (&[usize], usize),
    rng: &mut Generator,
    factor: impl Fn(&str) -> Option<f32>,
) -> Result<Vec<Comparison>> {
    let mut params = Model::new(config.clone(), rng.random()).params().to_vec();
    let program = program(config, Mode::Train, true);
    let mut multiplied = 0;
    for spec in program.params().specs() {
        if let Some(factor) = factor(&spec.name) {
            params[spec.range()].iter_mut().for_each(|p| *p *= factor);
            multiplied += 1;
        }
    }
    assert!(multiplied > 0, "no parameter has one of these names");
    let inputs = Inputs::random(config.sets, sizes, dims, rng);
    compare(device, precision, Arc::new(program), &params, &inputs, rng)
}
