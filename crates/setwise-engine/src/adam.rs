//! Adam and AdamW over the flat parameter buffer, in one pass.

use rayon::prelude::*;

use crate::real::Real;

/// Values of one task; elementwise, so any cut gives the same bits.
const CHUNK: usize = 1 << 14;

/// Share of a batch's statistic in its running average.
pub(crate) const FRESH: f64 = 0.1;

/// Adam (Kingma and Ba, 2015), with decoupled weight decay (Loshchilov and Hutter, 2019) if `weight_decay` is not zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Adam<T> {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Share of a parameter taken off per step and learning rate.
    pub weight_decay: f64,
    /// Steps taken.
    pub steps: u64,
    /// First moments.
    pub first: Vec<T>,
    /// Second moments.
    pub second: Vec<T>,
}

impl<T: Real> Adam<T> {
    /// For `len` trained parameters, with the usual constants and no weight decay.
    pub fn new(len: usize) -> Self {
        Adam {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            steps: 0,
            first: vec![T::ZERO; len],
            second: vec![T::ZERO; len],
        }
    }

    /// One step: `p −= lr · m̂ / (√v̂ + ε)`. Parameters beyond the moments are running averages: they move a tenth of the way to what
    /// stands in their gradient's place.
    ///
    /// # Panics
    /// If the buffers differ in length or are shorter than the moments.
    pub fn step(&mut self, params: &mut [T], grads: &[T], learning_rate: f64) {
        assert!(params.len() == grads.len() && params.len() >= self.first.len(), "buffers of one length");
        let (params, averages) = params.split_at_mut(self.first.len());
        let (grads, fresh) = grads.split_at(params.len());
        let share = T::from_f64(FRESH);
        for (average, &fresh) in averages.iter_mut().zip(fresh) {
            *average += (fresh - *average) * share;
        }
        self.steps += 1;
        let t = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let correct1 = 1.0 - self.beta1.powi(t);
        let correct2 = 1.0 - self.beta2.powi(t);
        let (b1, b2) = (T::from_f64(self.beta1), T::from_f64(self.beta2));
        let (c1, c2) = (T::ONE - b1, T::ONE - b2);
        let rate = T::from_f64(learning_rate / correct1);
        let root = T::from_f64(1.0 / correct2.sqrt());
        let epsilon = T::from_f64(self.epsilon);
        let keep = T::from_f64(1.0 - learning_rate * self.weight_decay);
        params
            .par_chunks_mut(CHUNK)
            .zip(grads.par_chunks(CHUNK))
            .zip(self.first.par_chunks_mut(CHUNK).zip(self.second.par_chunks_mut(CHUNK)))
            .for_each(|((p, g), (m, v))| {
                for (((p, &g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
                    *m = *m * b1 + g * c1;
                    *v = *v * b2 + g * g * c2;
                    *p = *p * keep - rate * *m / (v.sqrt() * root + epsilon);
                }
            });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_moves_every_parameter_by_the_learning_rate() {
        let mut adam = Adam::<f64>::new(2);
        let mut p = [1.0, -2.0];
        adam.step(&mut p, &[0.3, -40.0], 0.1);
        assert!((p[0] - 0.9).abs() < 1e-6 && (p[1] + 1.9).abs() < 1e-6, "{p:?}");
    }

    #[test]
    fn running_averages_follow_their_place_in_the_gradient_and_do_not_decay() {
        let mut adam = Adam::<f64>::new(1);
        adam.weight_decay = 0.5;
        let mut p = [1.0, 2.0];
        adam.step(&mut p, &[0.0, 3.0], 0.1);
        assert_eq!(p, [0.95, 2.1]);
    }

    #[test]
    fn a_bowl_is_descended() {
        let mut adam = Adam::<f64>::new(1);
        let mut p = [3.0];
        for _ in 0..2000 {
            let g = [2.0 * p[0]];
            adam.step(&mut p, &g, 0.01);
        }
        assert!(p[0].abs() < 1e-3);
    }
}
