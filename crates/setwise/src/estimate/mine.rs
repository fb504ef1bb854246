//! Mutual information from a trained network (Belghazi et al., 2018).

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;
use rayon::prelude::*;
use setwise_engine::{Adam, BatchView, Cpu, Mode, Program, SetView};

use super::points::{check_pairs, check_rows, check_varies};
use super::{Dim, Estimate, Estimator, Points, Quantity, interval};
use crate::Result;
use crate::nn::decoder;

/// The Donsker–Varadhan bound ⟨T⟩ − log⟨e^T'⟩ of values of T on pairs and T' on independent draws.
pub fn donsker_varadhan(pairs: &[f64], independent: &[f64]) -> f64 {
    pairs.iter().sum::<f64>() / pairs.len() as f64 - log_mean_exp(independent)
}

fn log_mean_exp(values: &[f64]) -> f64 {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + (values.iter().map(|v| (v - largest).exp()).sum::<f64>() / values.len() as f64).ln()
}

/// MINE: the best Donsker–Varadhan bound a network T(x, y) reaches.
///
/// Columns are standardised and rows dealt to five folds. Five networks are trained, each on three folds by Adam, with the gradient's
/// denominator averaged over steps as in the paper; each stops when the bound on a fourth fold has not risen for a while, or is above
/// the logarithm of the number of its pairs and so beyond what they can show, returns to its best
/// parameters and is evaluated on the fifth fold, which it has not seen. The estimate is the mean of the five bounds, so it
/// tends to be too low where rows are few. The interval is 1.645 standard errors of the evaluated bounds to each side, networks held fixed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mine {
    /// Width of the two hidden layers.
    pub hidden: usize,
    /// Adam's learning rate.
    pub learning_rate: f64,
    /// Pairs of a step.
    pub batch: usize,
    /// Most steps of a network.
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

/// Folds the rows are dealt to.
const FOLDS: usize = 5;
/// Steps between looks at the bound that stops.
const LOOK: usize = 20;
/// Share of the present step in the running denominator.
const PRESENT: f64 = 0.05;
/// Independent partners of a row when a bound is evaluated.
const PARTNERS: usize = 20;

impl Estimator for Mine {
    fn value(&self, x: Points, y: Points) -> Result<f64> {
        Ok(self.run(x, y)?.0)
    }

    fn estimate(&self, x: Points, y: Points, seed: u64) -> Result<Estimate> {
        let (value, deviation) = Mine { seed, ..*self }.run(x, y)?;
        let mut warnings = Vec::new();
        if x.len() < 500 {
            warnings.push(format!("{} rows are few to train a network on; ksg needs fewer", x.len()));
        }
        warnings.extend(beyond(value, x.len()));
        let mut estimate = Estimate::new(Quantity::Mi, value, "mine".to_owned(), warnings);
        (estimate.n, estimate.dim) = (vec![x.len()], Dim::Two([x.dim(), y.dim()]));
        let interval = interval::around(value, Some(deviation), interval::NORMAL);
        Ok(estimate.with_interval(interval, "standard error of the held-out bound"))
    }
}

impl Mine {
    /// The mean bound of all folds and its standard error.
    fn run(&self, x: Points, y: Points) -> Result<(f64, f64)> {
        check_pairs(x, y)?;
        check_rows(x, 4 * FOLDS, "MINE")?;
        check_varies(x)?;
        check_varies(y)?;
        let rows = Rows { x: standardised(x), y: standardised(y), widths: [x.dim(), y.dim()] };
        let mut order: Vec<usize> = (0..x.len()).collect();
        order.shuffle(&mut Pcg64Mcg::seed_from_u64(self.seed));
        let bounds: Vec<(f64, f64)> =
            (0..FOLDS).into_par_iter().map(|fold| self.fold(&rows, &order, fold)).collect::<Result<_>>()?;
        let value = bounds.iter().map(|b| b.0).sum::<f64>() / FOLDS as f64;
        let variance = bounds.iter().map(|b| b.1).sum::<f64>() / (FOLDS * FOLDS) as f64;
        Ok((value, variance.sqrt()))
    }

    /// Trains without a fold; its bound and the variance of that.
    fn fold(&self, rows: &Rows, order: &[usize], fold: usize) -> Result<(f64, f64)> {
        let part = |f: usize| order.iter().skip(f % FOLDS).step_by(FOLDS).copied().collect::<Vec<usize>>();
        let mut train: Vec<usize> = (2..FOLDS).flat_map(|f| part(fold + f)).collect();
        let (stop, held_out) = (Pairing::new(part(fold + 1)), Pairing::new(part(fold)));
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
        let (mut since, mut denominator) = (0, None::<f64>);
        let most = stop.most();
        let size = self.batch.clamp(2, train.len());
        let (mut slopes, mut at) = (vec![0.0; 2 * size], train.len());
        for step in 1..=self.steps {
            if at + size > train.len() {
                train.shuffle(&mut rng);
                at = 0;
            }
            let batch = &train[at..at + size];
            at += size;
            // A turned batch pairs every X with another row's Y.
            let turned = batch.iter().cycle().skip(1 + step % (size - 1));
            let values = network.values(&params, rows, batch.iter().zip(batch).chain(batch.iter().zip(turned)))?;
            let present = log_mean_exp(&values[size..]);
            // Running mean of ⟨e^T⟩, as a logarithm.
            let log = denominator.map_or(present, |old| log_mix(old, present, PRESENT));
            denominator = Some(log);
            slopes[..size].fill(-1.0 / size as f32);
            for (s, v) in slopes[size..].iter_mut().zip(&values[size..]) {
                *s = ((v - log).exp().min(1e3) / size as f64) as f32;
            }
            network.cpu.backward(&params, &[&slopes], &mut grads)?;
            adam.step(&mut params, &grads, self.learning_rate);
            if step % LOOK == 0 {
                let bound = network.bound(&params, rows, &stop)?.0;
                if bound > best.0 {
                    best = (bound, params.clone());
                    since = step;
                    if bound > most {
                        break;
                    }
                } else if step - since >= self.patience {
                    break;
                }
            }
        }
        network.bound(&best.1, rows, &held_out)
    }
}

/// A network that tells all pairs from all others can make the bound on finitely many rows as large as it likes; no method shows more than the
/// logarithm of their number (McAllester, Stratos, 2020).
fn beyond(value: f64, rows: usize) -> Option<String> {
    let most = (rows as f64).ln();
    (value > most).then(|| {
        format!("the estimate is above {most:.1}, the most that {rows} rows can show: take it as that or more")
    })
}

/// log((1 − share)·eᵃ + share·eᵇ).
fn log_mix(a: f64, b: f64, share: f64) -> f64 {
    let largest = a.max(b);
    largest + ((1.0 - share) * (a - largest).exp() + share * (b - largest).exp()).ln()
}

/// Standardised columns of both samples.
struct Rows {
    x: Vec<f32>,
    y: Vec<f32>,
    widths: [usize; 2],
}

/// Columns of mean zero and variance one, a constant column of zeros.
fn standardised(p: Points) -> Vec<f32> {
    let (n, d) = (p.len() as f64, p.dim());
    let mut out = vec![0.0; p.data().len()];
    for (c, deviation) in p.deviations().into_iter().enumerate() {
        let column = || p.data().iter().skip(c).step_by(d);
        let mean = column().sum::<f64>() / n;
        let scale = if deviation > 0.0 { 1.0 / deviation } else { 0.0 };
        out.iter_mut().skip(c).step_by(d).zip(column()).for_each(|(o, x)| *o = ((x - mean) * scale) as f32);
    }
    out
}

/// Rows a bound is evaluated on: each with itself, and with some others.
struct Pairing {
    rows: Vec<usize>,
    partners: usize,
}

impl Pairing {
    fn new(rows: Vec<usize>) -> Self {
        let partners = PARTNERS.min(rows.len() - 1);
        Pairing { rows, partners }
    }

    /// The largest bound these pairs can show: a network that tells them all apart raises it without end.
    fn most(&self) -> f64 {
        ((self.rows.len() * self.partners) as f64).ln()
    }

    /// The rows as they are, then turned by different amounts.
    fn pairs(&self) -> impl Iterator<Item = (&usize, &usize)> {
        let n = self.rows.len();
        let turns = std::iter::once(0).chain((0..self.partners).map(move |i| 1 + i * (n - 1) / self.partners));
        turns.flat_map(|t| self.rows.iter().zip(self.rows.iter().cycle().skip(t)))
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

    /// The bound on some rows, and its variance by the delta method: that of T + e^T'/⟨e^T'⟩ of a row over their number.
    fn bound(&mut self, params: &[f32], rows: &Rows, pairing: &Pairing) -> Result<(f64, f64)> {
        let values = self.values(params, rows, pairing.pairs())?;
        let n = pairing.rows.len();
        let (pairs, independent) = values.split_at(n);
        let log = log_mean_exp(independent);
        // What each row adds to the bound, its independent partners averaged.
        let part = |i: usize| {
            let mean: f64 = independent.iter().skip(i).step_by(n).map(|v| (v - log).exp()).sum();
            pairs[i] - mean / pairing.partners as f64
        };
        let parts: Vec<f64> = (0..n).map(part).collect();
        let mean = parts.iter().sum::<f64>() / n as f64;
        let variance = parts.iter().map(|p| (p - mean) * (p - mean)).sum::<f64>() / (n - 1) as f64;
        Ok((donsker_varadhan(pairs, independent), variance / n as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_too_large_for_exponentials_still_have_a_bound() {
        assert!((donsker_varadhan(&[2000.0], &[2000.0, 2000.0])).abs() < 1e-9);
        assert!((log_mix(1000.0, 1000.0, 0.1) - 1000.0).abs() < 1e-9);
    }

    #[test]
    fn an_estimate_above_what_the_rows_can_show_is_said() {
        assert_eq!(beyond(4.6, 100), None);
        assert!(beyond(4.7, 100).unwrap().contains("above 4.6, the most that 100 rows"));
    }

    #[test]
    fn every_row_meets_itself_and_different_partners() {
        let pairing = Pairing::new((0..30).collect());
        let pairs: Vec<_> = pairing.pairs().collect();
        assert_eq!(pairs.len(), 30 * 21);
        assert!(pairs[..30].iter().all(|(a, b)| a == b) && pairs[30..].iter().all(|(a, b)| a != b));
        let unique: std::collections::HashSet<_> = pairs.iter().collect();
        assert_eq!(unique.len(), pairs.len());
    }
}
