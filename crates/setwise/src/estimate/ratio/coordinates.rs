//! Coordinates of a pair of samples in which their log density ratio is fitted.
//!
//! Canonical axes remove what an invertible affine map of the data changes. Directions in which the samples do not vary
//! are left out. [`Robust`] limits the influence of outliers and tails, and canonical axes of its coordinates follow.

use rayon::prelude::*;

use super::super::Points;
use super::robust::Robust;
use crate::linalg::{moments, symmetric_eigen};
use crate::sets::Canonical;
use crate::{Error, Result};

/// Eigenvalues of the correlation matrix below this number, times its width, are zero.
const RANK_TOLERANCE: f64 = 1e-9;

/// An invertible map of rows to canonical coordinates.
struct CanonicalMap {
    /// Axes in which the samples vary, if there are fewer than columns.
    principal: Option<PrincipalAxes>,
    axes: Canonical,
}

impl CanonicalMap {
    fn fit(p: Points, q: Points) -> Result<Self> {
        let axes = Canonical::fit(p.data(), q.data(), p.dim());
        if axes.rank() == p.dim() {
            return Ok(CanonicalMap { principal: None, axes });
        }
        let Some(principal) = PrincipalAxes::fit(p, q) else {
            return Err(Error::Estimate(format!("all rows of {} and {} are one point", p.name(), q.name())));
        };
        let axes = Canonical::fit(&principal.apply(p), &principal.apply(q), principal.rank());
        Ok(CanonicalMap { principal: Some(principal), axes })
    }

    fn apply(&self, points: Points) -> Vec<f64> {
        match &self.principal {
            None => mapped(&self.axes, points.data()),
            Some(principal) => mapped(&self.axes, &principal.apply(points)),
        }
    }
}

/// Rows in the coordinates of canonical axes.
pub fn mapped(axes: &Canonical, rows: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; rows.len()];
    axes.apply(rows, &mut out);
    out
}

/// The principal axes in which the union of two samples varies.
struct PrincipalAxes {
    mean: Vec<f64>,
    /// Inverse standard deviations of the columns; zero for constant ones.
    scale: Vec<f64>,
    /// Unit vectors, `[rank, columns]`.
    axes: Vec<f64>,
}

impl PrincipalAxes {
    /// `None` where all rows are one point.
    fn fit(p: Points, q: Points) -> Option<Self> {
        let d = p.dim();
        let (mean, mut cov) = moments(&[p.data(), q.data()].concat(), d, 1);
        let scale: Vec<f64> =
            (0..d).map(|i| cov[i * d + i].sqrt()).map(|s| if s > 0.0 { 1.0 / s } else { 0.0 }).collect();
        for (i, row) in cov.chunks_exact_mut(d).enumerate() {
            row.iter_mut().zip(&scale).for_each(|(c, s)| *c *= s * scale[i]);
        }
        let (values, vectors) = symmetric_eigen(&mut cov, d);
        let varies = |(value, _): &(&f64, &[f64])| **value > RANK_TOLERANCE * d as f64;
        let axes: Vec<f64> =
            values.iter().zip(vectors.chunks_exact(d)).filter(varies).flat_map(|(_, axis)| axis).copied().collect();
        (!axes.is_empty()).then_some(PrincipalAxes { mean, scale, axes })
    }

    fn rank(&self) -> usize {
        self.axes.len() / self.mean.len()
    }

    fn apply(&self, points: Points) -> Vec<f64> {
        let d = self.mean.len();
        let along = |row: &[f64], axis: &[f64]| -> f64 {
            (0..d).map(|i| (row[i] - self.mean[i]) * self.scale[i] * axis[i]).sum()
        };
        (0..points.len()).flat_map(|i| self.axes.chunks_exact(d).map(move |axis| along(points.row(i), axis))).collect()
    }
}

/// Two samples in canonical coordinates, which are affine.
pub struct AffineCoordinates {
    /// Directions in which the samples vary.
    pub dim: usize,
    /// Rows of P and Q.
    pub rows: [Vec<f64>; 2],
    canonical: CanonicalMap,
}

/// Two samples in canonical coordinates after tails are compressed.
pub struct PairCoordinates {
    /// Directions in which the samples vary.
    pub dim: usize,
    /// Rows of P and Q.
    pub rows: [Vec<f64>; 2],
    /// For P and Q, the share of rows that are compressed and the largest distance.
    pub tails: [[f64; 2]; 2],
    canonical: CanonicalMap,
    compression: Robust,
    axes: Canonical,
}

impl AffineCoordinates {
    /// Coordinates of two samples of one width.
    pub fn fit(p: Points, q: Points) -> Result<Self> {
        let canonical = CanonicalMap::fit(p, q)?;
        let rows = [canonical.apply(p), canonical.apply(q)];
        if rows.iter().flatten().any(|v| !v.is_finite()) {
            return Err(Error::Estimate(format!(
                "squares of the numbers of {} and {} overflow; rescale the columns",
                p.name(),
                q.name()
            )));
        }
        let dim = rows[0].len() / p.len();
        Ok(AffineCoordinates { dim, rows, canonical })
    }

    /// Rows of P and Q by index.
    pub fn select(&self, rows: [&[usize]; 2]) -> [Vec<f64>; 2] {
        select(&self.rows, self.dim, rows)
    }

    /// Compresses tails, whose scatter is that of some rows of P and Q, in place.
    pub fn compress(self, scatter_rows: [&[usize]; 2]) -> PairCoordinates {
        let [x, y] = self.select(scatter_rows);
        let AffineCoordinates { dim, mut rows, canonical } = self;
        let compression = Robust::fit(Points::new(&x, dim), Points::new(&y, dim));
        let tails = std::array::from_fn(|i| compression.apply(&mut rows[i]));
        let axes = Canonical::fit(&rows[0], &rows[1], dim);
        rows.iter_mut().for_each(|rows| map_in_place(&axes, rows, dim));
        PairCoordinates { dim, rows, tails, canonical, compression, axes }
    }
}

impl PairCoordinates {
    /// Coordinates of other rows.
    pub fn apply(&self, points: Points) -> Vec<f64> {
        let mut rows = self.canonical.apply(points);
        self.compression.apply(&mut rows);
        map_in_place(&self.axes, &mut rows, self.dim);
        rows
    }

    /// Rows of P and Q by index.
    pub fn select(&self, rows: [&[usize]; 2]) -> [Vec<f64>; 2] {
        select(&self.rows, self.dim, rows)
    }
}

/// Gathers rows of both samples by index.
fn select(samples: &[Vec<f64>; 2], dim: usize, rows: [&[usize]; 2]) -> [Vec<f64>; 2] {
    std::array::from_fn(|k| Points::new(&samples[k], dim).select(rows[k]))
}

/// Maps rows to the coordinates of canonical axes without a copy of all rows.
fn map_in_place(axes: &Canonical, rows: &mut [f64], dim: usize) {
    rows.par_chunks_mut(1024 * dim).for_each(|rows| {
        let mapped = mapped(axes, rows);
        rows.copy_from_slice(&mapped);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_sample_have_the_same_coordinates_as_other_rows() {
        // The third column is a multiple of the first, so that there are two directions.
        let rows = |k: usize| -> Vec<f64> {
            (0..80).flat_map(|i| [((i * k) % 17) as f64, (i * i % 13) as f64, 2.0 * ((i * k) % 17) as f64]).collect()
        };
        let (p, q) = (rows(5), rows(7));
        let (p, q) = (Points::new(&p, 3), Points::new(&q, 3));
        let all: Vec<usize> = (0..80).collect();
        let coordinates = AffineCoordinates::fit(p, q).unwrap().compress([&all, &all]);
        assert_eq!(coordinates.dim, 2);
        for (a, b) in coordinates.apply(q).iter().zip(&coordinates.rows[1]) {
            assert!((a - b).abs() < 1e-9, "{a} and {b}");
        }
    }
}
