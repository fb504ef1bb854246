//! Adam and AdamW over the flat parameter buffer, in one pass, and Muon for selected matrices.

use rayon::prelude::*;

use crate::cpu::Compiled;
use crate::muon::{self, Muon};
use crate::real::Real;

/// Parameters of one task. The update is elementwise, so the split changes no bits.
const CHUNK: usize = 1 << 14;

/// Momentum of running averages: the weight of the batch's statistic.
pub(crate) const RUNNING_AVERAGE_MOMENTUM: f64 = 0.1;

/// Adam (Kingma and Ba, 2015), with decoupled weight decay (Loshchilov and Hutter, 2019) if `weight_decay` is not
/// zero.
///
/// Matrices may use [`Muon`] instead. Their momentum is stored in the first moments; they have no second moments and
/// no weight decay.
#[derive(Clone, Debug, PartialEq)]
pub struct Adam<T> {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Fraction by which a step shrinks a parameter, times the learning rate.
    pub weight_decay: f64,
    /// Steps taken.
    pub steps: u64,
    /// First moments.
    pub first: Vec<T>,
    /// Second moments.
    pub second: Vec<T>,
    /// Matrices that Muon updates.
    pub muon: Option<Muon>,
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
            muon: None,
        }
    }
}

impl<T: Compiled> Adam<T> {
    /// One step: `p −= lr · m̂ / (√v̂ + ε)`, except for matrices of [`Muon`]. Parameters beyond the moments are
    /// running averages: they move a tenth of the way to the batch's statistic, which stands in the gradient buffer.
    ///
    /// # Panics
    /// If the buffers differ in length or are shorter than the moments, or a matrix lies beyond the moments.
    pub fn step(&mut self, params: &mut [T], grads: &[T], learning_rate: f64) {
        assert!(params.len() == grads.len() && params.len() >= self.first.len(), "buffers of one length");
        let (params, averages) = params.split_at_mut(self.first.len());
        let (grads, fresh) = grads.split_at(params.len());
        let share = T::from_f64(RUNNING_AVERAGE_MOMENTUM);
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
        let trained = self.first.len();
        let Adam { first, second, muon, .. } = self;
        let mut rest = ParamChunk { params, grads, first, second };
        let by_adam = |chunk: ParamChunk<T>| {
            let moments = chunk.first.par_chunks_mut(CHUNK).zip(chunk.second.par_chunks_mut(CHUNK));
            chunk.params.par_chunks_mut(CHUNK).zip(chunk.grads.par_chunks(CHUNK)).zip(moments).for_each(
                |((p, g), (m, v))| {
                    for (((p, &g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
                        *m = *m * b1 + g * c1;
                        *v = *v * b2 + g * g * c2;
                        *p = *p * keep - rate * *m / (v.sqrt() * root + epsilon);
                    }
                },
            );
        };
        let mut matrices = Vec::new();
        let mut done = 0;
        for matrix in muon.iter().flat_map(|m| m.matrices()) {
            by_adam(rest.split_off(matrix.offset - done));
            matrices.push((matrix, rest.split_off(matrix.range().len())));
            done = matrix.range().end;
        }
        by_adam(rest.split_off(trained - done));
        let rate = learning_rate * muon.as_ref().map_or(0.0, |m| m.ratio);
        matrices.into_par_iter().for_each(|(matrix, chunk)| {
            muon::step(matrix, chunk.params, chunk.grads, chunk.first, rate);
        });
    }
}

/// Consecutive parameters with their gradients and moments.
struct ParamChunk<'a, T> {
    params: &'a mut [T],
    grads: &'a [T],
    first: &'a mut [T],
    second: &'a mut [T],
}

impl<'a, T> ParamChunk<'a, T> {
    /// Splits off the first `n`.
    fn split_off(&mut self, n: usize) -> ParamChunk<'a, T> {
        ParamChunk {
            params: self.params.split_off_mut(..n).expect("parameters for every element"),
            grads: self.grads.split_off(..n).expect("gradients for every element"),
            first: self.first.split_off_mut(..n).expect("moments for every element"),
            second: self.second.split_off_mut(..n).expect("moments for every element"),
        }
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
    fn running_averages_follow_the_batch_statistic_without_weight_decay() {
        let mut adam = Adam::<f64>::new(1);
        adam.weight_decay = 0.5;
        let mut p = [1.0, 2.0];
        adam.step(&mut p, &[0.0, 3.0], 0.1);
        assert_eq!(p, [0.95, 2.1]);
    }

    #[test]
    fn muon_updates_its_matrices_and_adam_the_rest() {
        let (start, grads) = ([1.0; 12], [0.5, -1.0, 2.0, 0.1, 0.2, -0.3, 1.0, 4.0, -2.0, 0.7, 0.6, -0.5]);
        let step = |muon: Option<Muon>| {
            let mut adam = Adam::<f64> { muon, weight_decay: 0.1, ..Adam::new(12) };
            let mut p = start;
            adam.step(&mut p, &grads, 0.1);
            (p, adam)
        };
        let matrix = |offset, rows, cols| crate::Matrix { offset, rows, cols };
        let (plain, _) = step(None);
        let (moved, adam) = step(Some(Muon::new(vec![matrix(6, 1, 4), matrix(1, 2, 2)], 0.5)));
        for i in [0, 5, 10, 11] {
            assert_eq!(moved[i], plain[i]);
        }
        // The nearest orthogonal matrix to a row is the row with norm one: the step is about 0.05.
        let length = |range: std::ops::Range<usize>| range.map(|i| (moved[i] - 1.0f64).powi(2)).sum::<f64>().sqrt();
        assert!((0.03..0.07).contains(&length(6..10)), "{moved:?}");
        assert!((0.04..0.1).contains(&length(1..5)), "{moved:?}");
        assert!((1..5).chain(6..10).all(|i| adam.first[i] == grads[i] && adam.second[i] == 0.0));
    }

    #[test]
    fn a_quadratic_is_minimised() {
        let mut adam = Adam::<f64>::new(1);
        let mut p = [3.0];
        for _ in 0..2000 {
            let g = [2.0 * p[0]];
            adam.step(&mut p, &g, 0.01);
        }
        assert!(p[0].abs() < 1e-3);
    }
}
