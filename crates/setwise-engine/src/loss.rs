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

    /// The part some of `total` values have in the mean, with its gradient.
    ///
    /// # Panics
    /// If the buffers differ in length.
    pub fn part<T: Real>(self, predictions: &[T], targets: &[T], grad: &mut [T], total: usize) -> f64 {
        assert!(predictions.len() == targets.len() && predictions.len() == grad.len(), "buffers of one length");
        let share = 1.0 / total.max(1) as f64;
        let mut sum = 0.0;
        for ((&p, &t), g) in predictions.iter().zip(targets).zip(grad) {
            let (value, slope) = self.at(p.to_f64(), t.to_f64());
            sum += value;
            *g = T::from_f64(slope * share);
        }
        sum * share
    }

    /// Value and slope at one prediction.
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
