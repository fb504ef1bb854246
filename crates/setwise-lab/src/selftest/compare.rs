//! One program on GPU and CPU, and the tolerance of their difference.

use std::sync::Arc;

use rand::RngExt;

use setwise::random::Generator;
use setwise_engine::cuda::{Cuda, Device, Precision};
use setwise_engine::{BatchView, Cpu, Program, SetView};

use super::Comparison;
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

/// Draws values from −1 to 1.
pub(super) fn random_values(n: usize, rng: &mut Generator) -> Vec<f32> {
    (0..n).map(|_| rng.random::<f32>() * 2.0 - 1.0).collect()
}

/// Compares outputs of a program on GPU and CPU, and gradients if it is for training.
pub(super) fn compare(
    device: &Arc<Device>,
    precision: Precision,
    program: Arc<Program>,
    params: &[f32],
    inputs: &Inputs,
    rng: &mut Generator,
) -> Result<Vec<Comparison>> {
    let (trained, training) = (program.params().trained(), program.training());
    let mut gpu = Cuda::new(device, program.clone(), precision)?;
    let mut cpu = Cpu::<f64>::new(program);
    // The first pass allocates buffers. The second runs with poisoned buffers.
    gpu.forward(params, &inputs.view())?;
    gpu.poison()?;
    let outputs = gpu.forward(params, &inputs.view())?;
    let output_grads: Vec<Vec<f32>> = outputs.iter().map(|o| random_values(o.len(), rng)).collect();
    let to_f64 = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
    let mut found = vec![to_f64(&outputs.concat())];
    if training {
        let grads = gpu.backward(&output_grads)?;
        let mut input_grads = Vec::new();
        for k in 0..inputs.data.len() {
            input_grads.extend(
                gpu.input_grad(k)?.ok_or_else(|| setwise::Error::Device(format!("input {k} has no gradient")))?,
            );
        }
        found.extend([to_f64(&input_grads), to_f64(&grads[..trained]), to_f64(&grads[trained..])]);
    }
    let expected = exact(&mut cpu, params, inputs, &output_grads, 0.0, rng)?;
    let unit_roundoff = unit_roundoff(precision);
    let first = if training { "outputs" } else { "answers" };
    let names = [first, "gradients of inputs", "gradients of parameters", "statistics of batch norms"];
    let rounded = || exact(&mut cpu, params, inputs, &output_grads, unit_roundoff, rng);
    let comparisons = compare_results(&names, &found, &expected, unit_roundoff, ROUNDINGS, rounded)?;
    Ok(comparisons
        .into_iter()
        .zip(&expected)
        .filter(|(_, e)| !e.is_empty())
        .map(|(comparison, _)| comparison)
        .collect())
}

/// Number of random roundings that determine a tolerance.
pub(super) const ROUNDINGS: usize = 4;
/// Number of random roundings for a result beyond its tolerance.
const MAX_ROUNDINGS: usize = 64;

/// The error of each named result and its tolerance.
///
/// The tolerance is the largest movement of the exact result under random roundings of parameters and inputs, as the
/// GPU rounds operands. The first `draws` roundings count [`ERROR_FACTOR`] times, because the GPU rounds in every
/// layer.
///
/// A ReLU, a maximum or a row of almost equal values can move a result far, which few roundings may not show. So a
/// result beyond its tolerance gets up to [`MAX_ROUNDINGS`] roundings. One of them must move it half as far.
pub(super) fn compare_results(
    names: &[&'static str],
    found: &[Vec<f64>],
    expected: &[Vec<f64>],
    unit_roundoff: f64,
    draws: usize,
    mut rounded: impl FnMut() -> Result<Vec<Vec<f64>>>,
) -> Result<Vec<Comparison>> {
    let errors = found.iter().zip(expected).map(|(a, b)| relative_error(a, b));
    let mut comparisons: Vec<Comparison> =
        names.iter().zip(errors).map(|(name, error)| (*name, error, ERROR_FACTOR * unit_roundoff)).collect();
    for draw in 0..MAX_ROUNDINGS {
        if draw >= draws && comparisons.iter().all(|(_, error, tolerance)| error <= tolerance) {
            break;
        }
        let counts = if draw < draws { ERROR_FACTOR } else { 2.0 };
        for ((_, _, tolerance), (a, b)) in comparisons.iter_mut().zip(rounded()?.iter().zip(expected)) {
            *tolerance = tolerance.max(counts * relative_error(a, b));
        }
    }
    Ok(comparisons)
}

/// Perturbs values by a relative error of up to `noise`.
pub(super) fn perturbed(numbers: &[f32], noise: f64, rng: &mut Generator) -> Vec<f64> {
    numbers.iter().map(|&v| f64::from(v) * (1.0 + noise * (rng.random::<f64>() * 2.0 - 1.0))).collect()
}

/// Errors may be this many times the effect of rounding parameters and inputs alone.
pub(super) const ERROR_FACTOR: f64 = 16.0;

/// Relative error of a product's operands.
///
/// Rounding has half the distance of neighbouring numbers, truncation by matrix units the full distance.
pub(super) fn unit_roundoff(precision: Precision) -> f64 {
    match precision {
        // Split f16 products have two bits less than f32. Sums over hundreds of rows lose two more.
        Precision::F32 => 2f64.powi(-20),
        Precision::Tf32 => 2f64.powi(-10),
        Precision::Bf16 => 2f64.powi(-8),
    }
}

/// ‖a − b‖ / ‖b‖, or NaN if lengths differ.
pub(super) fn relative_error(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::NAN;
    }
    let difference: f64 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    (difference / b.iter().map(|b| b * b).sum::<f64>().max(1e-30)).sqrt()
}

/// Results in double precision, with parameters and inputs perturbed by a relative error of up to `noise`.
///
/// The results are outputs and, for training programs, gradients of inputs, gradients of parameters and statistics of
/// batch norms.
fn exact(
    cpu: &mut Cpu<f64>,
    params: &[f32],
    inputs: &Inputs,
    output_grads: &[Vec<f32>],
    noise: f64,
    rng: &mut Generator,
) -> Result<Vec<Vec<f64>>> {
    let params = perturbed(params, noise, rng);
    let data: Vec<Vec<f64>> = inputs.data.iter().map(|d| perturbed(d, noise, rng)).collect();
    let sets = data.iter().zip(&inputs.offsets).map(|(data, offsets)| SetView { data, width: inputs.dim, offsets });
    cpu.forward(&params, &BatchView { sets: sets.collect() })?;
    let outputs = (0..output_grads.len()).flat_map(|i| cpu.output(i).to_vec()).collect();
    if !cpu.program().training() {
        return Ok(vec![outputs]);
    }
    let output_grads: Vec<Vec<f64>> = output_grads.iter().map(|s| s.iter().map(|&v| f64::from(v)).collect()).collect();
    let mut grads = vec![0.0; params.len()];
    cpu.backward(&params, &output_grads.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut grads)?;
    let input_grads = (0..inputs.data.len()).flat_map(|k| cpu.input_grad(k).unwrap_or(&[]).to_vec()).collect();
    let averages = grads.split_off(cpu.program().params().trained());
    Ok(vec![outputs, input_grads, grads, averages])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_fails_unless_some_rounding_moves_it_as_far() {
        let (expected, found) = ([vec![1.0, 0.0]], [vec![1.0, 0.5]]);
        let mut draws = 0;
        // Every tenth rounding moves the result by `by`.
        let mut compare_moved = |by: f64| {
            draws = 0;
            let comparisons = compare_results(&["it"], &found, &expected, 1e-3, ROUNDINGS, || {
                draws += 1;
                Ok(vec![vec![1.0, if draws % 10 == 0 { by } else { 0.001 }]])
            });
            (comparisons.unwrap()[0], draws)
        };
        assert_eq!(compare_moved(0.3), (("it", 0.5, 0.6), 10));
        assert_eq!(compare_moved(0.1), (("it", 0.5, 0.2), MAX_ROUNDINGS));
        // The first roundings count more.
        let early = compare_results(&["it"], &found, &expected, 1e-3, ROUNDINGS, || Ok(vec![vec![1.0, 0.04]])).unwrap();
        assert_eq!(early, [("it", 0.5, 0.64)]);
        // NaN stays NaN.
        let none =
            compare_results(&["it"], &[vec![f64::NAN, 0.0]], &expected, 1e-3, ROUNDINGS, || Ok(vec![vec![2.0, 0.0]]))
                .unwrap();
        assert!(none[0].1.is_nan());
    }
}
