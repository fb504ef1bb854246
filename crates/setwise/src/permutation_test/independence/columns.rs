//! Columns of one side, centred and scaled.

use rayon::prelude::*;

use super::super::encode::Encode;
use super::super::product::{PANEL, STRIP};
use crate::linalg::{cholesky, moments, solve_lower};

/// How columns are scaled.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scale {
    /// Mean zero.
    Centred,
    /// Mean zero and variance one.
    Standardised,
    /// Multiplied by the inverse factor of their covariance plus so many mean variances.
    Whitened(f64),
    /// Kernels around these rows: products of columns are those of the kernel (Nyström's approximation).
    Kernel(Vec<usize>),
}

/// Columns of the rows of a side, row-major.
pub(super) struct Columns {
    pub width: usize,
    values: Vec<f32>,
}

impl Columns {
    pub fn new(encoder: &dyn Encode, rows: usize, scale: Scale) -> Self {
        let width = encoder.width();
        let mut encoded = vec![0.0f32; rows * width];
        encoded.par_chunks_exact_mut(width).enumerate().for_each(|(row, out)| encoder.encode(row, out));
        let mut values: Vec<f64> = encoded.iter().map(|x| f64::from(*x)).collect();
        let (mean, mut covariance) = moments(&values, width, 0);
        values.par_chunks_exact_mut(width).for_each(|row| row.iter_mut().zip(&mean).for_each(|(x, mean)| *x -= mean));
        let at = |c: usize| c * width + c;
        let multiply = |values: &mut [f64], factor: &[f64]| {
            values.par_chunks_exact_mut(width).for_each(|row| solve_lower(factor, width, row));
        };
        match scale {
            Scale::Centred => {}
            Scale::Standardised => {
                let rates: Vec<f64> = (0..width).map(|c| rate(covariance[at(c)])).collect();
                values
                    .par_chunks_exact_mut(width)
                    .for_each(|row| row.iter_mut().zip(&rates).for_each(|(x, r)| *x *= r));
            }
            Scale::Whitened(ridge) => {
                let mean = (0..width).map(|c| covariance[at(c)]).sum::<f64>() / width as f64;
                (0..width).for_each(|c| covariance[at(c)] += ridge * mean + f64::MIN_POSITIVE);
                // All columns are constant where there is no factor.
                if mean > 0.0 && cholesky(&mut covariance, width).is_ok() {
                    multiply(&mut values, &covariance);
                }
            }
            Scale::Kernel(centres) => {
                /// Added to the kernel matrix of the centres, whose diagonal is one.
                const RIDGE: f64 = 1e-3;
                let row = |&row: &usize| encoded[row * width..(row + 1) * width].iter().map(|x| f64::from(*x));
                let mut kernel: Vec<f64> = centres.iter().flat_map(row).collect();
                (0..width).for_each(|c| kernel[at(c)] += RIDGE);
                if cholesky(&mut kernel, width).is_ok() {
                    multiply(&mut values, &kernel);
                }
            }
        }
        Columns { width, values: values.into_iter().map(|x| x as f32).collect() }
    }

    /// The columns `[panel][row][PANEL]`.
    pub fn panels(&self) -> Vec<f32> {
        self.blocks(PANEL)
    }

    /// The columns `[strip][row][STRIP]`.
    pub fn strips(&self) -> Vec<f32> {
        self.blocks(STRIP)
    }

    fn blocks(&self, size: usize) -> Vec<f32> {
        let rows = self.values.len() / self.width;
        let mut blocks = vec![0.0; self.width.div_ceil(size) * size * rows];
        blocks.par_chunks_mut(size * rows).enumerate().for_each(|(b, block)| {
            let columns = b * size..((b + 1) * size).min(self.width);
            for (row, out) in self.values.chunks_exact(self.width).zip(block.chunks_exact_mut(size)) {
                out[..columns.len()].copy_from_slice(&row[columns.clone()]);
            }
        });
        blocks
    }
}

/// One over the deviation of a column; zero for a constant one.
fn rate(variance: f64) -> f64 {
    if variance > 1e-12 { 1.0 / variance.sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::super::encode::Stored;
    use super::*;

    #[test]
    fn whitened_columns_are_uncorrelated() {
        let values: Vec<f32> = (0..400).flat_map(|i| [(i % 17) as f32, ((i % 17) + (i % 5)) as f32]).collect();
        let columns = Columns::new(&Stored { values, width: 2 }, 400, Scale::Whitened(1e-9));
        let values: Vec<f64> = columns.values.iter().map(|x| f64::from(*x)).collect();
        let (mean, covariance) = moments(&values, 2, 0);
        let close = |x: f64, y: f64| assert!((x - y).abs() < 1e-3, "{x} {y}");
        mean.iter().for_each(|m| close(*m, 0.0));
        covariance.iter().zip([1.0, 0.0, 0.0, 1.0]).for_each(|(x, y)| close(*x, y));
    }

    #[test]
    fn panels_and_strips_hold_the_same_numbers() {
        let values: Vec<f32> = (0..60).map(|i| (i * 37 % 61) as f32).collect();
        let columns = Columns::new(&Stored { values, width: 20 }, 3, Scale::Standardised);
        let (panels, strips) = (columns.panels(), columns.strips());
        assert_eq!((panels.len(), strips.len()), (2 * PANEL * 3, STRIP * 3));
        for (row, c) in [(0, 0), (2, 19), (1, 12)] {
            let expected = columns.values[row * 20 + c];
            assert_eq!(panels[c / PANEL * PANEL * 3 + row * PANEL + c % PANEL], expected);
            assert_eq!(strips[row * STRIP + c], expected);
        }
    }
}
