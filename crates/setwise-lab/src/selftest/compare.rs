//! One program on both, and how far they may be apart.

use std::sync::Arc;

use rand::RngExt;

use setwise::random::Generator;
use setwise_engine::cuda::{Cuda, Device, Precision};
use setwise_engine::{BatchView, Cpu, Program, SetView};

use super::Found;
use crate::Result;

pub(super) struct Inputs {
    data: Vec<Vec<f32>>,
    offsets: Vec<Vec<usize>>,
    dim: usize,
}

impl Inputs {
    pub fn random(sets: usize, sizes: &[usize], dim: usize, rng: &mut Generator) -> Self {
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

/// Numbers from −1 to 1.
pub(super) fn drawn(n: usize, rng: &mut Generator) -> Vec<f32> {
    (0..n).map(|_| rng.random::<f32>() * 2.0 - 1.0).collect()
}

/// Outputs of a program and, where it is for training, what its gradients come to, on a GPU and on the CPU.
pub(super) fn compare(
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
            input_grads.extend(
                gpu.input_grad(k)?.ok_or_else(|| setwise::Error::Device(format!("input {k} has no gradient")))?,
            );
        }
        found.extend([wide(&input_grads), wide(&grads[..trained]), wide(&grads[trained..])]);
    }
    let expected = exact(&mut cpu, params, inputs, &slopes, 0.0, rng)?;
    let unit = unit(precision);
    let first = if training { "outputs" } else { "answers" };
    let names = [first, "gradients of inputs", "gradients of parameters", "statistics of batch norms"];
    let rounded = || exact(&mut cpu, params, inputs, &slopes, unit, rng);
    let held = hold(&names, &found, &expected, unit, DRAWS, rounded)?;
    Ok(held.into_iter().zip(&expected).filter(|(_, e)| !e.is_empty()).map(|(held, _)| held).collect())
}

/// How often numbers are rounded to see how far results move, and how often where one is farther off than that allows.
pub(super) const DRAWS: usize = 4;
const MOST_DRAWS: usize = 64;

/// The error of each result, by name, and how large it may be: by how far the exact one moves when numbers are rounded, each time anew, as the GPU rounds operands. The first `draws` count `ALLOWED` times, as the GPU rounds in
/// every layer. Where a ReLU, a maximum or a row of almost equal numbers makes a result move far, the GPU's may too, and few roundings may not show it: so before one counts as missed, more are tried, of which one has to move it
/// about as far.
pub(super) fn hold(
    names: &[&'static str],
    found: &[Vec<f64>],
    expected: &[Vec<f64>],
    unit: f64,
    draws: usize,
    mut rounded: impl FnMut() -> Result<Vec<Vec<f64>>>,
) -> Result<Vec<Found>> {
    let errors = found.iter().zip(expected).map(|(a, b)| relative(a, b));
    let mut held: Vec<Found> = names.iter().zip(errors).map(|(name, error)| (*name, error, ALLOWED * unit)).collect();
    for draw in 0..MOST_DRAWS {
        if draw >= draws && held.iter().all(|(_, error, tolerance)| error <= tolerance) {
            break;
        }
        let counts = if draw < draws { ALLOWED } else { 2.0 };
        for ((_, _, tolerance), (a, b)) in held.iter_mut().zip(rounded()?.iter().zip(expected)) {
            *tolerance = tolerance.max(counts * relative(a, b));
        }
    }
    Ok(held)
}

/// Numbers off by up to `noise` of themselves.
pub(super) fn off(numbers: &[f32], noise: f64, rng: &mut Generator) -> Vec<f64> {
    numbers.iter().map(|&v| f64::from(v) * (1.0 + noise * (rng.random::<f64>() * 2.0 - 1.0))).collect()
}

/// Errors may be this many times what rounding parameters and inputs alone does.
pub(super) const ALLOWED: f64 = 16.0;

/// How far a product's operands are from what they stand for, relative to it: half the distance of neighbours where they are rounded, all of it
/// where matrix units cut them.
pub(super) fn unit(precision: Precision) -> f64 {
    match precision {
        // Products of halves keep two bits less than single precision, and sums over hundreds of rows lose as many again.
        Precision::F32 => 2f64.powi(-20),
        Precision::Tf32 => 2f64.powi(-10),
        Precision::Bf16 => 2f64.powi(-8),
    }
}

/// ‖a − b‖ / ‖b‖; no number if their lengths differ.
pub(super) fn relative(a: &[f64], b: &[f64]) -> f64 {
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
    let params = off(params, noise, rng);
    let data: Vec<Vec<f64>> = inputs.data.iter().map(|d| off(d, noise, rng)).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_missed_unless_some_rounding_moves_it_as_far() {
        let (expected, found) = ([vec![1.0, 0.0]], [vec![1.0, 0.5]]);
        let mut draws = 0;
        // Every tenth rounding moves it by so much.
        let mut held = |by: f64| {
            draws = 0;
            let held = hold(&["it"], &found, &expected, 1e-3, DRAWS, || {
                draws += 1;
                Ok(vec![vec![1.0, if draws % 10 == 0 { by } else { 0.001 }]])
            });
            (held.unwrap()[0], draws)
        };
        assert_eq!(held(0.3), (("it", 0.5, 0.6), 10));
        assert_eq!(held(0.1), (("it", 0.5, 0.2), MOST_DRAWS));
        // The first ones count more.
        let early = hold(&["it"], &found, &expected, 1e-3, DRAWS, || Ok(vec![vec![1.0, 0.04]])).unwrap();
        assert_eq!(early, [("it", 0.5, 0.64)]);
        // What is no number stays none.
        let none = hold(&["it"], &[vec![f64::NAN, 0.0]], &expected, 1e-3, DRAWS, || Ok(vec![vec![2.0, 0.0]])).unwrap();
        assert!(none[0].1.is_nan());
    }
}
