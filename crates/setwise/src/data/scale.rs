//! Scaling of feature rows.

use serde::{Deserialize, Serialize};

/// How rows of features are scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Rows stay as they are.
    #[default]
    None,
    /// Each row is scaled to length √width: the mean square of its numbers is one.
    Unit,
    /// Each column is standardised by the training rows, then each row is scaled to length √width.
    Standard,
}

/// Scales rows in place. `training` are the rows whose mean and variance standardise the columns.
pub fn scale(rows: &mut [f32], width: usize, scale: Scale, training: impl Iterator<Item = u32>) {
    if scale == Scale::None {
        return;
    }
    if scale == Scale::Standard {
        let (mut sum, mut squares, mut n) = (vec![0.0f64; width], vec![0.0f64; width], 0.0);
        for row in training {
            for (i, &x) in rows[row as usize * width..][..width].iter().enumerate() {
                sum[i] += f64::from(x);
                squares[i] += f64::from(x) * f64::from(x);
            }
            n += 1.0;
        }
        let standardisation = |i: usize| {
            let mean = sum[i] / n;
            let variance = squares[i] / n - mean * mean;
            // A constant column becomes zero.
            let factor = if variance > 1e-12 * squares[i] / n { variance.sqrt().recip() } else { 0.0 };
            (mean as f32, factor as f32)
        };
        let columns: Vec<(f32, f32)> = (0..width).map(standardisation).collect();
        for row in rows.chunks_exact_mut(width) {
            row.iter_mut().zip(&columns).for_each(|(x, (mean, factor))| *x = (*x - mean) * factor);
        }
    }
    for row in rows.chunks_exact_mut(width) {
        let square = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / width as f64;
        if square > 0.0 {
            let factor = square.sqrt().recip() as f32;
            row.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaled_rows_have_mean_square_one_and_standardised_columns_mean_zero() {
        let rows = [3.0f32, 4.0, 10.0, 0.0, 5.0, 5.0];
        let mut unit = rows;
        scale(&mut unit, 2, Scale::Unit, 0..0);
        for row in unit.chunks_exact(2) {
            assert!((row[0] * row[0] + row[1] * row[1] - 2.0).abs() < 1e-5);
        }
        let mut standard = rows;
        scale(&mut standard, 2, Scale::Standard, 0..2);
        assert!((standard[0] + 1.0).abs() < 1e-5 && (standard[3] + 1.0).abs() < 1e-5, "{standard:?}");
    }
}
