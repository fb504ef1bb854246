//! Canonical coordinates of pairs of samples, and orders of rows that do not depend on the file.

use rand::SeedableRng;
use rand::seq::SliceRandom;

use super::super::Points;
use crate::linalg::{moments, symmetric_eigen};
use crate::random::Generator;
use crate::sets::Canonical;
use crate::{Error, Result};

/// Both samples in their canonical coordinates, and the number of these: directions in which they vary.
pub fn canonical(p: Points, q: Points) -> Result<(Vec<f64>, Vec<f64>, usize)> {
    let axes = Canonical::fit(p.data(), q.data(), p.dim());
    let (x, y, dim) = if axes.rank() == p.dim() {
        (mapped(&axes, p.data()), mapped(&axes, q.data()), p.dim())
    } else {
        let Some((x, y, dim)) = principal_axes(p, q) else {
            return Err(Error::Estimate(format!("all rows of {} and {} are one point", p.name(), q.name())));
        };
        let axes = Canonical::fit(&x, &y, dim);
        (mapped(&axes, &x), mapped(&axes, &y), dim)
    };
    if x.iter().chain(&y).any(|v| !v.is_finite()) {
        return Err(Error::Estimate(format!(
            "squares of the numbers of {} and {} overflow; rescale the columns",
            p.name(),
            q.name()
        )));
    }
    Ok((x, y, dim))
}

pub fn mapped(axes: &Canonical, rows: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; rows.len()];
    axes.apply(rows, &mut out);
    out
}

pub fn to_f32(rows: &[f64]) -> Vec<f32> {
    rows.iter().map(|&x| x as f32).collect()
}

/// A random order of rows. Rows are sorted before they are shuffled, so that their order in the file has no influence.
pub fn shuffled(rows: &[f64], dim: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows.len() / dim).collect();
    let row = |i: usize| &rows[i * dim..(i + 1) * dim];
    let compared = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x.total_cmp(y)).find(|o| o.is_ne());
    order.sort_by(|&a, &b| compared(row(a), row(b)).unwrap_or(std::cmp::Ordering::Equal));
    order.shuffle(&mut Generator::seed_from_u64(seed));
    order
}

/// Both samples along the principal axes in which their union varies, and the number of these axes; `None` without any.
fn principal_axes(p: Points, q: Points) -> Option<(Vec<f64>, Vec<f64>, usize)> {
    let d = p.dim();
    let (mean, mut cov) = moments(&[p.data(), q.data()].concat(), d, 1);
    let scale: Vec<f64> = (0..d).map(|i| cov[i * d + i].sqrt()).map(|s| if s > 0.0 { 1.0 / s } else { 0.0 }).collect();
    for (i, row) in cov.chunks_exact_mut(d).enumerate() {
        row.iter_mut().zip(&scale).for_each(|(c, s)| *c *= s * scale[i]);
    }
    let (values, vectors) = symmetric_eigen(&mut cov, d);
    let kept: Vec<&[f64]> =
        values.iter().zip(vectors.chunks_exact(d)).filter(|(v, _)| **v > 1e-9 * d as f64).map(|(_, e)| e).collect();
    let project = |points: Points| -> Vec<f64> {
        let along =
            |row: &[f64], axis: &[f64]| -> f64 { (0..d).map(|i| (row[i] - mean[i]) * scale[i] * axis[i]).sum() };
        (0..points.len())
            .flat_map(|i| kept.iter().map(move |axis| along(points.row(i), axis)).collect::<Vec<_>>())
            .collect()
    };
    (!kept.is_empty()).then(|| (project(p), project(q), kept.len()))
}
