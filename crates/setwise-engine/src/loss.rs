//! Losses and their gradients.

use std::ops::Range;

use crate::error::Error;
use crate::real::Real;

/// Losses of predictions `p` for targets `t`; all are means over all targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// |p − t|.
    L1,
    /// (p − t)².
    Mse,
    /// Quadratic within `delta`, linear beyond.
    Huber {
        /// The boundary between both.
        delta: f64,
    },
    /// Cross-entropy of a logit with a target in [0, 1].
    Bce,
    /// The quantile loss: its minimiser is the `level` quantile.
    Pinball {
        /// In (0, 1).
        level: f64,
    },
    /// The quantile loss with a level for every column of the output.
    Quantiles(QuantileLevels),
    /// For outputs per element: `|mean p − mean t|` over the elements of the first set of each example, plus
    /// `element_weight · |p − t|` of every element of all sets. [`Loss::part`] computes the second term, [`Loss::mean_term`] the first.
    SetMeanL1 {
        /// Weight of the second term.
        element_weight: f64,
    },
    /// Cross-entropy of the softmax of a row of logits with the index of the right class. A row has one target.
    CrossEntropy {
        /// Logits of a row.
        classes: usize,
    },
}

/// The largest number of levels of [`Loss::Quantiles`].
pub const MAX_QUANTILE_LEVELS: usize = 8;

/// The level of each column of an output, in (0, 1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantileLevels {
    values: [f64; MAX_QUANTILE_LEVELS],
    count: usize,
}

impl QuantileLevels {
    /// From one to [`MAX_QUANTILE_LEVELS`] levels, each above 0 and below 1.
    ///
    /// ```
    /// use setwise_engine::QuantileLevels;
    /// assert_eq!(QuantileLevels::new(&[0.05, 0.5]).unwrap().as_slice(), [0.05, 0.5]);
    /// assert!(QuantileLevels::new(&[1.0]).is_none());
    /// ```
    pub fn new(levels: &[f64]) -> Option<Self> {
        let valid = (1..=MAX_QUANTILE_LEVELS).contains(&levels.len()) && levels.iter().all(|l| *l > 0.0 && *l < 1.0);
        let mut values = [0.5; MAX_QUANTILE_LEVELS];
        values.iter_mut().zip(levels).for_each(|(v, l)| *v = *l);
        valid.then_some(QuantileLevels { values, count: levels.len() })
    }

    /// The levels.
    pub fn as_slice(&self) -> &[f64] {
        &self.values[..self.count]
    }
}

impl Loss {
    /// The loss, with its gradient written to `grad`.
    ///
    /// ```
    /// use setwise_engine::Loss;
    /// let mut grad = [0.0f32; 2];
    /// let loss = Loss::L1.evaluate(&[1.0, 5.0], &[2.0, 2.0], &mut grad).unwrap();
    /// assert_eq!(loss, 2.0);
    /// assert_eq!(grad, [-0.5, 0.5]);
    /// ```
    pub fn evaluate<T: Real>(self, predictions: &[T], targets: &[T], grad: &mut [T]) -> Result<f64, Error> {
        self.check(predictions.len(), targets)?;
        if grad.len() != predictions.len() {
            let (expected, found) = (predictions.len(), grad.len());
            return Err(Error::Length { what: "the gradient of the loss", expected, found });
        }
        Ok(self.part(predictions, targets, grad, predictions.len()))
    }

    /// Number of targets for this many predicted numbers.
    pub fn targets(self, predictions: usize) -> usize {
        match self {
            Loss::CrossEntropy { classes } => predictions / classes.max(1),
            _ => predictions,
        }
    }

    /// Checks that the number of targets matches that of predictions, and that classes exist.
    pub fn check<T: Real>(self, predictions: usize, targets: &[T]) -> Result<(), Error> {
        let expected = self.targets(predictions);
        if targets.len() != expected {
            return Err(Error::Length { what: "the target", expected, found: targets.len() });
        }
        if let Loss::CrossEntropy { classes } = self {
            if classes == 0 || !predictions.is_multiple_of(classes) {
                return Err(Error::Classes { classes, predictions });
            }
            let exists = |t: f64| t >= 0.0 && t < classes as f64 && t.fract() == 0.0;
            if let Some(index) = targets.iter().position(|t| !exists(t.to_f64())) {
                return Err(Error::NoClass { index, found: targets[index].to_f64(), classes });
            }
        }
        Ok(())
    }

    /// The contribution of some of `total` predicted numbers to the mean, with its gradient. They are full rows of the
    /// output where columns differ in their loss.
    ///
    /// # Panics
    /// If the lengths of the buffers do not match, or a class does not exist; [`Loss::check`] detects both.
    pub fn part<T: Real>(self, predictions: &[T], targets: &[T], grad: &mut [T], total: usize) -> f64 {
        assert!(predictions.len() == grad.len(), "buffers of one length");
        assert!(targets.len() == self.targets(predictions.len()), "a target for every prediction");
        let share = 1.0 / self.targets(total).max(1) as f64;
        let mut sum = 0.0;
        if let Loss::CrossEntropy { classes } = self {
            for ((row, &t), grad) in predictions.chunks_exact(classes).zip(targets).zip(grad.chunks_exact_mut(classes))
            {
                sum += cross_entropy(row, t.to_f64() as usize, grad, share);
            }
            return sum * share;
        }
        for (i, ((&p, &t), g)) in predictions.iter().zip(targets).zip(grad).enumerate() {
            let (value, derivative) = self.column(i).at(p.to_f64(), t.to_f64());
            sum += value;
            *g = T::from_f64(derivative * share);
        }
        sum * share
    }

    /// The contribution of some examples' set means to the loss, out of all `examples`; zero for losses without that
    /// term. Adds to the gradient. `ranges` are the numbers of one example after another.
    ///
    /// # Panics
    /// If the lengths of the buffers do not match.
    pub fn mean_term<T: Real>(
        self,
        predictions: &[T],
        targets: &[T],
        ranges: impl Iterator<Item = Range<usize>>,
        grad: &mut [T],
        examples: usize,
    ) -> f64 {
        if !matches!(self, Loss::SetMeanL1 { .. }) {
            return 0.0;
        }
        let share = 1.0 / examples.max(1) as f64;
        let mut sum = 0.0;
        for range in ranges.filter(|r| !r.is_empty()) {
            let n = range.len() as f64;
            let differences = predictions[range.clone()].iter().zip(&targets[range.clone()]);
            let mean = differences.map(|(p, t)| p.to_f64() - t.to_f64()).sum::<f64>() / n;
            let (value, derivative) = Loss::L1.at(mean, 0.0);
            sum += value;
            grad[range].iter_mut().for_each(|g| *g = T::from_f64(g.to_f64() + derivative * share / n));
        }
        sum * share
    }

    /// The loss of number `i` of full rows.
    fn column(self, i: usize) -> Self {
        match self {
            Loss::Quantiles(levels) => Loss::Pinball { level: levels.values[i % levels.count] },
            other => other,
        }
    }

    /// Value and derivative at one prediction, of a single column.
    fn at(self, p: f64, t: f64) -> (f64, f64) {
        let d = p - t;
        match self {
            Loss::L1 => (d.abs(), if d == 0.0 { 0.0 } else { d.signum() }),
            Loss::SetMeanL1 { element_weight } => {
                let (value, derivative) = Loss::L1.at(p, t);
                (element_weight * value, element_weight * derivative)
            }
            Loss::Mse => (d * d, 2.0 * d),
            Loss::Huber { delta } if d.abs() <= delta => (0.5 * d * d, d),
            Loss::Huber { delta } => (delta * (d.abs() - 0.5 * delta), delta * d.signum()),
            Loss::Bce => {
                // log(1 + e^−|p|) never overflows.
                let value = p.max(0.0) - p * t + (-p.abs()).exp().ln_1p();
                (value, 1.0 / (1.0 + (-p).exp()) - t)
            }
            Loss::Quantiles(_) => self.column(0).at(p, t),
            Loss::Pinball { level } => {
                if d < 0.0 {
                    (-level * d, -level)
                } else {
                    ((1.0 - level) * d, if d == 0.0 { 0.0 } else { 1.0 - level })
                }
            }
            Loss::CrossEntropy { .. } => unreachable!("a loss of full rows"),
        }
    }
}

/// −log softmax(row)[class], with its gradient times `share`.
fn cross_entropy<T: Real>(row: &[T], class: usize, grad: &mut [T], share: f64) -> f64 {
    let max = row.iter().fold(f64::NEG_INFINITY, |m, x| m.max(x.to_f64()));
    let total: f64 = row.iter().map(|x| (x.to_f64() - max).exp()).sum();
    for (i, (g, x)) in grad.iter_mut().zip(row).enumerate() {
        let target = if i == class { 1.0 } else { 0.0 };
        *g = T::from_f64(((x.to_f64() - max).exp() / total - target) * share);
    }
    total.ln() + max - row[class].to_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_the_loss_of_its_level() {
        let loss = Loss::Quantiles(QuantileLevels::new(&[0.1, 0.5, 0.9]).unwrap());
        let (p, t) = ([0.0, 1.0, 2.0, 3.0, 2.5, 2.0], [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        let mut grad = [0.0f64; 6];
        let value = loss.evaluate(&p, &t, &mut grad).unwrap();
        let mut expected = 0.0;
        for (i, level) in [0.1, 0.5, 0.9, 0.1, 0.5, 0.9].into_iter().enumerate() {
            let mut derivative = [0.0];
            expected += Loss::Pinball { level }.evaluate(&p[i..=i], &t[i..=i], &mut derivative).unwrap();
            assert!((6.0 * grad[i] - derivative[0]).abs() < 1e-15, "column {i}");
        }
        assert!((value - expected / 6.0).abs() < 1e-15);
    }

    #[test]
    fn cross_entropy_and_its_gradient_match_the_textbook() {
        let loss = Loss::CrossEntropy { classes: 3 };
        let (mut logits, targets) = ([0.3, -1.0, 2.0, 500.0, 1.0, -3.0], [2.0, 1.0]);
        let mut grad = [0.0; 6];
        let value = loss.evaluate(&logits, &targets, &mut grad).unwrap();
        let softmax = |row: &[f64], t: usize| row[t].exp() / row.iter().map(|x| x.exp()).sum::<f64>();
        let exact = -(softmax(&logits[..3], 2).ln() - 499.0) / 2.0;
        assert!((value - exact).abs() < 1e-9, "{value}, not {exact}");
        for i in 0..6 {
            let mut at = |x: f64| {
                let before = std::mem::replace(&mut logits[i], x);
                let value = loss.evaluate(&logits, &targets, &mut [0.0; 6]).unwrap();
                logits[i] = before;
                value
            };
            let x = [0.3, -1.0, 2.0, 500.0, 1.0, -3.0][i];
            let difference = (at(x + 1e-5) - at(x - 1e-5)) / 2e-5;
            assert!((difference - grad[i]).abs() < 1e-6, "logit {i}: {difference} and {}", grad[i]);
        }
        for (targets, message) in [
            (vec![0.0], "expected 2"),
            (vec![0.0, 3.0], "target 1 is 3"),
            (vec![-1.0, 0.0], "target 0"),
            (vec![0.0, 0.5], "0.5"),
            (vec![f64::NAN, 0.5], "NaN"),
        ] {
            let error = loss.check(6, &targets).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        assert!(loss.check(7, &[0.0, 0.0]).unwrap_err().to_string().contains("7"));
    }

    #[test]
    fn the_element_loss_adds_set_means_and_single_elements() {
        let loss = Loss::SetMeanL1 { element_weight: 0.5 };
        let (p, t) = ([1.0, 2.0, 3.0, 0.0, 5.0], [2.0, 4.0, 1.0, 0.5, 1.0]);
        let ranges = || [0..3, 3..5].into_iter();
        let all = |p: &[f64], grad: &mut [f64]| loss.part(p, &t, grad, 5) + loss.mean_term(p, &t, ranges(), grad, 2);
        let mut grad = [0.0; 5];
        let means = (1.0 / 3.0 + 3.5 / 2.0) / 2.0;
        let single = 0.5 * (1.0 + 2.0 + 2.0 + 0.5 + 4.0) / 5.0;
        assert!((all(&p, &mut grad) - means - single).abs() < 1e-12);
        for i in 0..5 {
            let at = |h: f64| {
                let mut p = p;
                p[i] += h;
                all(&p, &mut [0.0; 5])
            };
            let difference = (at(1e-6) - at(-1e-6)) / 2e-6;
            assert!((difference - grad[i]).abs() < 1e-8, "{i}: {difference} and {}", grad[i]);
        }
        assert_eq!(Loss::L1.mean_term(&p, &t, ranges(), &mut grad, 2), 0.0);
    }

    #[test]
    fn derivatives_of_all_losses_match_finite_differences() {
        let losses = [Loss::L1, Loss::Mse, Loss::Huber { delta: 0.7 }, Loss::Bce, Loss::Pinball { level: 0.9 }];
        for loss in losses {
            for (p, t) in [(0.3, 1.0), (-2.0, 0.0), (1.5, 0.25), (40.0, 1.0)] {
                let h = 1e-6;
                let difference = (loss.at(p + h, t).0 - loss.at(p - h, t).0) / (2.0 * h);
                assert!((difference - loss.at(p, t).1).abs() < 1e-6, "{loss:?} at {p}, {t}");
            }
        }
    }
}
