//! Losses: a number for how wrong predictions are, and its gradient.

use crate::error::Error;
use crate::real::Real;

/// How predictions are held against targets; all are means over all values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// |p − t|.
    L1,
    /// (p − t)².
    Mse,
    /// Quadratic within `delta`, linear beyond.
    Huber {
        /// Where it turns linear.
        delta: f64,
    },
    /// Cross-entropy of a logit with a target in [0, 1].
    Bce,
    /// The quantile loss: its minimiser is the `level` quantile.
    Pinball {
        /// In (0, 1).
        level: f64,
    },
    /// The quantile loss with a level for every column of the answer.
    Quantiles(Levels),
}

/// Most levels of [`Loss::Quantiles`].
pub const MOST_LEVELS: usize = 8;

/// The level of each column of an answer, in (0, 1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    values: [f64; MOST_LEVELS],
    count: usize,
}

impl Levels {
    /// From one to [`MOST_LEVELS`] levels, each above 0 and below 1.
    ///
    /// ```
    /// use setwise_engine::Levels;
    /// assert_eq!(Levels::new(&[0.05, 0.5]).unwrap().as_slice(), [0.05, 0.5]);
    /// assert!(Levels::new(&[1.0]).is_none());
    /// ```
    pub fn new(levels: &[f64]) -> Option<Self> {
        let fit = (1..=MOST_LEVELS).contains(&levels.len()) && levels.iter().all(|l| *l > 0.0 && *l < 1.0);
        let mut values = [0.5; MOST_LEVELS];
        values.iter_mut().zip(levels).for_each(|(v, l)| *v = *l);
        fit.then_some(Levels { values, count: levels.len() })
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
        let expected = predictions.len();
        self.check(expected, targets, grad)?;
        Ok(self.part(predictions, targets, grad, expected))
    }

    fn check<T: Real>(self, expected: usize, targets: &[T], grad: &[T]) -> Result<(), Error> {
        for (what, found) in [("the target", targets.len()), ("the gradient of the loss", grad.len())] {
            if found != expected {
                return Err(Error::Length { what, expected, found });
            }
        }
        Ok(())
    }

    /// The part some of `total` values have in the mean, with its gradient. They are whole rows of the answer, where its columns
    /// differ in their loss.
    ///
    /// # Panics
    /// If the buffers differ in length.
    pub fn part<T: Real>(self, predictions: &[T], targets: &[T], grad: &mut [T], total: usize) -> f64 {
        assert!(predictions.len() == targets.len() && predictions.len() == grad.len(), "buffers of one length");
        let share = 1.0 / total.max(1) as f64;
        let mut sum = 0.0;
        for (i, ((&p, &t), g)) in predictions.iter().zip(targets).zip(grad).enumerate() {
            let (value, slope) = self.column(i).at(p.to_f64(), t.to_f64());
            sum += value;
            *g = T::from_f64(slope * share);
        }
        sum * share
    }

    /// The loss of value `i` of whole rows.
    fn column(self, i: usize) -> Self {
        match self {
            Loss::Quantiles(levels) => Loss::Pinball { level: levels.values[i % levels.count] },
            other => other,
        }
    }

    /// Value and slope at one prediction, of a single column.
    fn at(self, p: f64, t: f64) -> (f64, f64) {
        let d = p - t;
        match self {
            Loss::L1 => (d.abs(), if d == 0.0 { 0.0 } else { d.signum() }),
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_the_loss_of_its_level() {
        let loss = Loss::Quantiles(Levels::new(&[0.1, 0.5, 0.9]).unwrap());
        let (p, t) = ([0.0, 1.0, 2.0, 3.0, 2.5, 2.0], [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        let mut grad = [0.0f64; 6];
        let value = loss.evaluate(&p, &t, &mut grad).unwrap();
        let mut expected = 0.0;
        for (i, level) in [0.1, 0.5, 0.9, 0.1, 0.5, 0.9].into_iter().enumerate() {
            let mut slope = [0.0];
            expected += Loss::Pinball { level }.evaluate(&p[i..=i], &t[i..=i], &mut slope).unwrap();
            assert!((6.0 * grad[i] - slope[0]).abs() < 1e-15, "column {i}");
        }
        assert!((value - expected / 6.0).abs() < 1e-15);
    }

    #[test]
    fn slopes_of_all_losses_agree_with_differences() {
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
