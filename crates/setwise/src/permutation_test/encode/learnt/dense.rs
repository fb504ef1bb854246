//! Affine maps of many rows, and their normalisation.

use setwise_engine::Real;
use setwise_engine::simd::{Kernel, Vector};

/// Output columns are padded to a multiple of this.
const PADDED: usize = 32;

/// An affine map of rows.
pub struct Dense {
    pub inputs: usize,
    pub outputs: usize,
    /// `[inputs, stride]`, padded by zeros.
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl Dense {
    /// Weights `[inputs, outputs]`, one bias for each output.
    pub fn new(weights: &[f32], bias: &[f32]) -> Self {
        let outputs = bias.len();
        let stride = outputs.next_multiple_of(PADDED);
        let pad = |row: &[f32]| {
            let zeros = stride - row.len();
            row.iter().copied().chain(std::iter::repeat_n(0.0, zeros)).collect::<Vec<f32>>()
        };
        Dense {
            inputs: weights.len() / outputs,
            outputs,
            weights: weights.chunks_exact(outputs).flat_map(pad).collect(),
            bias: pad(bias),
        }
    }

    /// Numbers of a row of outputs, padding included.
    pub fn stride(&self) -> usize {
        self.bias.len()
    }

    /// The outputs of rows, `[rows, stride]`.
    pub fn apply(&self, rows: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; rows.len() / self.inputs * self.stride()];
        // SAFETY: the kernel checks its slices.
        unsafe { f32::dispatch(Map { dense: self, rows, out: &mut out }) };
        out
    }

    /// Weights from an input to all outputs.
    pub fn weights_of(&self, input: usize) -> &[f32] {
        &self.weights[input * self.stride()..][..self.outputs]
    }

    pub fn bias(&self) -> &[f32] {
        &self.bias[..self.outputs]
    }
}

struct Map<'a> {
    dense: &'a Dense,
    rows: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel<f32> for Map<'_> {
    type Out = ();

    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn run<V: Vector<f32>>(self) {
        /// Rows of a register tile.
        const ROWS: usize = 4;
        let (inputs, stride) = (self.dense.inputs, self.dense.stride());
        let rows = self.rows.len() / inputs;
        assert!(self.out.len() == rows * stride && stride % (2 * V::LANES) == 0);
        assert!(self.dense.weights.len() == inputs * stride);
        for column in (0..stride).step_by(2 * V::LANES) {
            let mut row = 0;
            // SAFETY: rows and columns lie in the slices, whose lengths were checked.
            unsafe {
                while row + ROWS <= rows {
                    self.dense.tile::<V, ROWS>(self.rows, self.out.as_mut_ptr(), row, column);
                    row += ROWS;
                }
                while row < rows {
                    self.dense.tile::<V, 1>(self.rows, self.out.as_mut_ptr(), row, column);
                    row += 1;
                }
            }
        }
    }
}

impl Dense {
    /// `R` rows by two vectors of outputs.
    ///
    /// # Safety
    /// The machine has the instructions of `V`; the rows and columns lie in the slices.
    #[inline(always)]
    unsafe fn tile<V: Vector<f32>, const R: usize>(&self, x: &[f32], out: *mut f32, row: usize, column: usize) {
        let stride = self.stride();
        // SAFETY: the caller's contract.
        unsafe {
            let at = |p: *const f32| [V::load(p.add(column)), V::load(p.add(column + V::LANES))];
            let mut sums = [at(self.bias.as_ptr()); R];
            let first = x.as_ptr().add(row * self.inputs);
            for k in 0..self.inputs {
                let w = at(self.weights.as_ptr().add(k * stride));
                for (r, sum) in sums.iter_mut().enumerate() {
                    let x = V::splat(*first.add(r * self.inputs + k));
                    *sum = [x.mul_add(w[0], sum[0]), x.mul_add(w[1], sum[1])];
                }
            }
            for (r, sum) in sums.iter().enumerate() {
                let to = out.add((row + r) * stride + column);
                sum[0].store(to);
                sum[1].store(to.add(V::LANES));
            }
        }
    }
}

/// Scales and shifts of rows with mean zero and variance one.
pub struct Norm {
    pub scale: Vec<f32>,
    pub shift: Vec<f32>,
}

/// Added to variances.
pub const EPSILON: f32 = 1e-5;

impl Norm {
    /// Normalises rows in place.
    pub fn apply(&self, rows: &mut [f32]) {
        let width = self.scale.len() as f32;
        for row in rows.chunks_exact_mut(self.scale.len()) {
            let mean = row.iter().sum::<f32>() / width;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / width;
            let rate = 1.0 / (variance + EPSILON).sqrt();
            let columns = self.scale.iter().zip(&self.shift);
            row.iter_mut().zip(columns).for_each(|(x, (scale, shift))| *x = (*x - mean) * rate * scale + shift);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_products_of_matrices() {
        let number = |i: usize| ((i * 7919) % 101) as f32 / 50.0 - 1.0;
        for (rows, inputs, outputs) in [(1, 3, 16), (4, 5, 32), (11, 7, 64), (6, 2, 5)] {
            let x: Vec<f32> = (0..rows * inputs).map(number).collect();
            let w: Vec<f32> = (0..inputs * outputs).map(|i| number(i + 7)).collect();
            let bias: Vec<f32> = (0..outputs).map(|i| number(i + 3)).collect();
            let dense = Dense::new(&w, &bias);
            let out = dense.apply(&x);
            for (i, out) in out.chunks_exact(dense.stride()).enumerate() {
                for o in 0..outputs {
                    let sum: f32 = (0..inputs).map(|k| x[i * inputs + k] * w[k * outputs + o]).sum();
                    assert!((out[o] - sum - bias[o]).abs() < 1e-5);
                }
                assert!(out[outputs..].iter().all(|x| *x == 0.0));
            }
        }
    }

    #[test]
    fn normalised_rows_have_mean_zero_and_variance_one() {
        let norm = Norm { scale: vec![1.0, 1.0, 2.0], shift: vec![0.0, 0.0, 5.0] };
        let mut rows = vec![1.0, 2.0, 3.0];
        norm.apply(&mut rows);
        let root = 1.5f32.sqrt();
        for (x, expected) in rows.iter().zip([-root, 0.0, 2.0 * root + 5.0]) {
            assert!((x - expected).abs() < 1e-4);
        }
    }
}
