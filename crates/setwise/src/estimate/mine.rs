//! Mutual information from a trained network (Belghazi et al., 2018).

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;
use rayon::prelude::*;
use setwise_engine::{Adam, BatchView, Cpu, Mode, Program, SetView};

use super::points::{check_pairs, check_rows, check_varies};
use super::{Dim, Estimate, Estimator, Points, Progress, Quantity, interval};
use crate::Result;
use crate::nn::decoder;

/// The Donsker–Varadhan bound ⟨T⟩ − log⟨e^T'⟩, for values T on pairs and T' on independent draws.
pub fn donsker_varadhan(pairs: &[f64], independent: &[f64]) -> f64 {
    pairs.iter().sum::<f64>() / pairs.len() as f64 - log_mean_exp(independent)
}

fn log_mean_exp(values: &[f64]) -> f64 {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + (values.iter().map(|v| (v - largest).exp()).sum::<f64>() / values.len() as f64).ln()
}

/// MINE: the best Donsker–Varadhan bound that a network T(x, y) reaches.
///
/// Columns are standardised and rows are split into five folds. Each of five networks is trained on three folds with
/// Adam. The denominator of the gradient is averaged over steps, as in the paper. The bound on a fourth fold stops the
/// training when it has not risen for `patience` steps. It also stops above the logarithm of the number of pairs, the
/// largest bound they support. The best parameters are evaluated on the fifth fold.
///
/// The estimate is the mean of the five bounds. It tends to be too low with few rows. The interval is ± 1.645 standard
/// errors of the evaluated bounds, for fixed networks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mine {
    /// Width of the two hidden layers.
    pub hidden: usize,
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// Pairs in a training step.
    pub batch: usize,
    /// Maximum number of training steps of a network.
    pub steps: usize,
    /// Steps without a better bound after which training stops.
    pub patience: usize,
    /// Seeds folds, parameters and batches.
    pub seed: u64,
}

impl Default for Mine {
    fn default() -> Self {
        Mine { hidden: 64, learning_rate: 2e-3, batch: 256, steps: 3000, patience: 300, seed: 0 }
    }
}

/// Folds of cross-fitting.
const FOLDS: usize = 5;
/// Steps between evaluations of the bound that stops the training.
const EVALUATION_INTERVAL: usize = 20;
/// Weight of the current step in the running mean of the denominator.
const CURRENT_WEIGHT: f64 = 0.05;
/// Independent partners of every row in the evaluation of a bound.
const PARTNERS: usize = 20;

impl Estimator for Mine {
    fn value(&self, x: Points, y: Points) -> Result<f64> {
        Ok(self.run(x, y, &Progress::default())?.0)
    }

    fn estimate(&self, x: Points, y: Points, seed: u64) -> Result<Estimate> {
        self.estimate_observed(x, y, seed, &Progress::default())
    }

    fn estimate_observed(&self, x: Points, y: Points, seed: u64, progress: &Progress) -> Result<Estimate> {
        let (value, standard_error) = Mine { seed, ..*self }.run(x, y, progress)?;
        let mut warnings = Vec::new();
        if x.len() < 500 {
            warnings.push(format!("{} rows are few to train a network on; use ksg", x.len()));
        }
        warnings.extend(above_sample_limit(value, x.len()));
        let mut estimate = Estimate::new(Quantity::Mi, value, "mine".to_owned(), warnings);
        (estimate.n, estimate.dim) = (vec![x.len()], Dim::Two([x.dim(), y.dim()]));
        let interval = interval::symmetric_interval(value, Some(standard_error), interval::NORMAL_QUANTILE);
        Ok(estimate.with_interval(interval, "standard error of the held-out bound"))
    }
}

impl Mine {
    /// The mean bound of all folds and its standard error.
    fn run(&self, x: Points, y: Points, progress: &Progress) -> Result<(f64, f64)> {
        check_pairs(x, y)?;
        check_rows(x, 4 * FOLDS, "MINE")?;
        check_varies(x)?;
        check_varies(y)?;
        let rows = Rows { x: standardised(x), y: standardised(y), widths: [x.dim(), y.dim()] };
        let mut order: Vec<usize> = (0..x.len()).collect();
        order.shuffle(&mut Pcg64Mcg::seed_from_u64(self.seed));
        progress.plan(FOLDS * self.steps);
        let fold = |fold| self.fold(&rows, &order, fold, progress);
        let bounds: Vec<(f64, f64)> = (0..FOLDS).into_par_iter().map(fold).collect::<Result<_>>()?;
        let value = bounds.iter().map(|b| b.0).sum::<f64>() / FOLDS as f64;
        let variance = bounds.iter().map(|b| b.1).sum::<f64>() / (FOLDS * FOLDS) as f64;
        Ok((value, variance.sqrt()))
    }

    /// Trains a network without a fold; returns the bound on the fold and its variance.
    fn fold(&self, rows: &Rows, order: &[usize], fold: usize, progress: &Progress) -> Result<(f64, f64)> {
        let in_fold = |f: usize| order.iter().skip(f % FOLDS).step_by(FOLDS).copied().collect::<Vec<usize>>();
        let mut train: Vec<usize> = (2..FOLDS).flat_map(|f| in_fold(fold + f)).collect();
        let (stop, held_out) = (Pairing::new(in_fold(fold + 1)), Pairing::new(in_fold(fold)));
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed ^ (fold as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let width = rows.widths[0] + rows.widths[1];
        let mut b = Program::builder(&[width], false, Mode::Train, false);
        let input = b.input(0);
        let outputs = decoder(&mut b, &[input], self.hidden, 2, 1);
        let mut network = Network { cpu: Cpu::new(b.finish(outputs)), data: Vec::new(), width };
        let mut params: Vec<f32> = network.cpu.program().params().init(&mut rng);
        let mut adam = Adam::new(params.len());
        let mut grads = vec![0.0; params.len()];
        let mut best = (network.bound(&params, rows, &stop)?.0, params.clone());
        let (mut best_step, mut last_step, mut denominator) = (0, 0, None::<f64>);
        let max_bound = stop.max_bound();
        let size = self.batch.clamp(2, train.len());
        let (mut output_grads, mut at) = (vec![0.0; 2 * size], train.len());
        for step in 1..=self.steps {
            if at + size > train.len() {
                train.shuffle(&mut rng);
                at = 0;
            }
            let batch = &train[at..at + size];
            at += size;
            // A cyclic shift of the batch pairs every X with the Y of another row.
            let shifted = batch.iter().cycle().skip(1 + step % (size - 1));
            let values = network.values(&params, rows, batch.iter().zip(batch).chain(batch.iter().zip(shifted)))?;
            let current = log_mean_exp(&values[size..]);
            // Logarithm of the running mean of ⟨e^T⟩.
            let log = denominator.map_or(current, |old| log_weighted_mean_exp(old, current, CURRENT_WEIGHT));
            denominator = Some(log);
            output_grads[..size].fill(-1.0 / size as f32);
            for (s, v) in output_grads[size..].iter_mut().zip(&values[size..]) {
                *s = ((v - log).exp().min(1e3) / size as f64) as f32;
            }
            network.cpu.backward(&params, &[&output_grads], &mut grads)?;
            adam.step(&mut params, &grads, self.learning_rate);
            progress.advance(1);
            last_step = step;
            if step % EVALUATION_INTERVAL == 0 {
                let bound = network.bound(&params, rows, &stop)?.0;
                if bound > best.0 {
                    best = (bound, params.clone());
                    best_step = step;
                    if bound > max_bound {
                        break;
                    }
                } else if step - best_step >= self.patience {
                    break;
                }
            }
        }
        progress.advance(self.steps - last_step);
        network.bound(&best.1, rows, &held_out)
    }
}

/// A warning about an estimate above the logarithm of the number of rows.
///
/// A network that separates all pairs from all others has an unbounded bound on finitely many rows. No method can
/// guarantee more than the logarithm of their number (McAllester, Stratos, 2020).
fn above_sample_limit(value: f64, rows: usize) -> Option<String> {
    let max_bound = (rows as f64).ln();
    (value > max_bound).then(|| {
        format!("the estimate is above {max_bound:.1}, the maximum for {rows} rows: read it as at least {max_bound:.1}")
    })
}

/// log((1 − weight)·eᵃ + weight·eᵇ).
fn log_weighted_mean_exp(a: f64, b: f64, weight: f64) -> f64 {
    let largest = a.max(b);
    largest + ((1.0 - weight) * (a - largest).exp() + weight * (b - largest).exp()).ln()
}

/// Standardised columns of both samples.
struct Rows {
    x: Vec<f32>,
    y: Vec<f32>,
    widths: [usize; 2],
}

/// Columns with mean zero and variance one; a constant column becomes zero.
fn standardised(p: Points) -> Vec<f32> {
    let (n, d) = (p.len() as f64, p.dim());
    let mut out = vec![0.0; p.data().len()];
    for (c, deviation) in p.standard_deviations().into_iter().enumerate() {
        let column = || p.data().iter().skip(c).step_by(d);
        let mean = column().sum::<f64>() / n;
        let scale = if deviation > 0.0 { 1.0 / deviation } else { 0.0 };
        out.iter_mut().skip(c).step_by(d).zip(column()).for_each(|(o, x)| *o = ((x - mean) * scale) as f32);
    }
    out
}

/// Pairs that a bound is evaluated on: each row with itself, and with some others.
struct Pairing {
    rows: Vec<usize>,
    partners: usize,
}

impl Pairing {
    fn new(rows: Vec<usize>) -> Self {
        let partners = PARTNERS.min(rows.len() - 1);
        Pairing { rows, partners }
    }

    /// The largest bound these pairs support. A network that separates all of them raises the bound without limit.
    fn max_bound(&self) -> f64 {
        ((self.rows.len() * self.partners) as f64).ln()
    }

    /// Every row with itself, then with cyclic shifts of the rows.
    fn pairs(&self) -> impl Iterator<Item = (&usize, &usize)> {
        let n = self.rows.len();
        let shifts = std::iter::once(0).chain((0..self.partners).map(move |i| 1 + i * (n - 1) / self.partners));
        shifts.flat_map(|t| self.rows.iter().zip(self.rows.iter().cycle().skip(t)))
    }
}

struct Network {
    cpu: Cpu<f32>,
    data: Vec<f32>,
    width: usize,
}

impl Network {
    /// T on pairs of a row of X and a row of Y.
    fn values<'a>(
        &mut self,
        params: &[f32],
        rows: &Rows,
        pairs: impl Iterator<Item = (&'a usize, &'a usize)>,
    ) -> Result<Vec<f64>> {
        let [dx, dy] = rows.widths;
        self.data.clear();
        for (&i, &j) in pairs {
            self.data.extend_from_slice(&rows.x[i * dx..(i + 1) * dx]);
            self.data.extend_from_slice(&rows.y[j * dy..(j + 1) * dy]);
        }
        let offsets = [0, self.data.len() / self.width];
        let sets = vec![SetView { data: &self.data, width: self.width, offsets: &offsets }];
        self.cpu.forward(params, &BatchView { sets })?;
        Ok(self.cpu.output(0).iter().map(|&v| f64::from(v)).collect())
    }

    /// The bound on some rows, and its variance by the delta method: the variance of T − e^T'/⟨e^T'⟩ over rows, divided
    /// by their number.
    fn bound(&mut self, params: &[f32], rows: &Rows, pairing: &Pairing) -> Result<(f64, f64)> {
        let values = self.values(params, rows, pairing.pairs())?;
        let n = pairing.rows.len();
        let (pairs, independent) = values.split_at(n);
        let log = log_mean_exp(independent);
        // The term of each row, averaged over its independent partners.
        let term = |i: usize| {
            let mean: f64 = independent.iter().skip(i).step_by(n).map(|v| (v - log).exp()).sum();
            pairs[i] - mean / pairing.partners as f64
        };
        let terms: Vec<f64> = (0..n).map(term).collect();
        let mean = terms.iter().sum::<f64>() / n as f64;
        let variance = terms.iter().map(|p| (p - mean) * (p - mean)).sum::<f64>() / (n - 1) as f64;
        Ok((donsker_varadhan(pairs, independent), variance / n as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_large_values_do_not_overflow() {
        assert!((donsker_varadhan(&[2000.0], &[2000.0, 2000.0])).abs() < 1e-9);
        assert!((log_weighted_mean_exp(1000.0, 1000.0, 0.1) - 1000.0).abs() < 1e-9);
    }

    #[test]
    fn an_estimate_above_the_logarithm_of_the_rows_gets_a_warning() {
        assert_eq!(above_sample_limit(4.6, 100), None);
        assert!(above_sample_limit(4.7, 100).unwrap().contains("above 4.6, the maximum for 100 rows"));
    }

    #[test]
    fn every_row_is_paired_with_itself_and_with_different_partners() {
        let pairing = Pairing::new((0..30).collect());
        let pairs: Vec<_> = pairing.pairs().collect();
        assert_eq!(pairs.len(), 30 * 21);
        assert!(pairs[..30].iter().all(|(a, b)| a == b) && pairs[30..].iter().all(|(a, b)| a != b));
        let unique: std::collections::HashSet<_> = pairs.iter().collect();
        assert_eq!(unique.len(), pairs.len());
    }
}
