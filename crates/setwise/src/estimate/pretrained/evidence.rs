//! What the estimator looks at: parts of the samples for the set model, and classical estimates on all rows.
//!
//! Everything is computed in [`Canonical`] coordinates, so no affine map of the data and no order of the rows changes it.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rayon::prelude::*;

use super::super::Points;
use super::super::points::{check_covariance, check_rows, check_samples, check_varies};
use super::classifier::verdicts;
use super::near::neighbours;
use super::repeats::Continuous;
use super::shape::{Shape, gaussian, gaussian_noise};
use crate::linalg::{moments, symmetric_eigen};
use crate::random::Generator;
use crate::sets::Canonical;
use crate::{Error, Result};

/// Fewer rows leave nothing to estimate from.
pub const FEWEST: usize = 5;
/// Fewer rows for a column leave each sample's own spread to chance: where both samples are of one distribution, estimates are far above zero.
const ROWS_FOR_COLUMN: f64 = 1.5;
/// More columns leave the classifiers without products, of which no answer was learnt.
const MOST_COLUMNS: usize = 32;
/// Most rows of a sample that are looked at together.
const MOST_ROWS: usize = 8000;
/// Most rows of a part, most parts, and rows a part keeps of the smaller sample.
const PART: usize = 256;
const PARTS: usize = 4;
const LEAST_OF_PART: usize = 30;
/// Most rows of each of many parts: attention costs the square.
const SMALL_PART: usize = 160;
/// Classical numbers per pair of samples, and how many of them, from the end, are divergences.
pub const CLASSICAL: usize = 33;
pub const DIVERGENCES: usize = 14;

/// Where some of the divergences stand among them.
pub mod place {
    /// The third neighbour's.
    pub const K3: usize = 1;
    /// That of Gaussians, freed of its bias.
    pub const GAUSSIAN: usize = 5;
    /// The first classifier's, fitted; the one left out follows.
    pub const PLAIN: usize = 8;
    /// The second classifier's; its noise is the last number before the divergences.
    pub const WIDE: usize = 11;
}

/// Two parts of the samples in coordinates of their own.
pub struct Part {
    /// Rows of P.
    pub p: Vec<f32>,
    /// Rows of Q.
    pub q: Vec<f32>,
}

/// What is seen of a pair of samples.
pub struct Evidence {
    /// Directions in which the samples vary.
    pub dim: usize,
    /// Disjoint parts.
    pub parts: Vec<Part>,
    /// Sizes, shapes and classical estimates of the divergence, those as they are.
    pub classical: [f64; CLASSICAL],
}

/// How many parts samples of these sizes are cut into, and the rows each part has of both.
fn cut(n: usize, m: usize) -> (usize, [usize; 2]) {
    let wanted = n.max(m).div_ceil(PART).min(PARTS);
    let parts = wanted.min(n.min(m) / LEAST_OF_PART).max(1);
    let most = if parts > 2 { SMALL_PART } else { PART };
    (parts, [(n / parts).min(most), (m / parts).min(most)])
}

/// What is seen of a pair of samples of any size.
pub struct Seen {
    /// Directions in which the samples vary.
    pub dim: usize,
    /// Rows of each sample that repeat another and were left out.
    pub copies: [usize; 2],
    /// A column of each sample whose values repeat and were spread.
    pub spread: [Option<usize>; 2],
    /// Of the pair as it is, or of parts of it that are no larger than can be looked at together.
    pub chunks: Vec<Evidence>,
}

impl Seen {
    /// Looks at two samples. Rows of large ones are dealt to chunks at random; a sample with fewer chunks than the other meets it with
    /// each of them several times.
    pub fn of(p: Points, q: Points) -> Result<Self> {
        check_samples(p, q)?;
        let names = [p.name(), q.name()];
        for points in [p, q] {
            check_rows(points, FEWEST, "an estimate")?;
            check_varies(points)?;
        }
        check_columns(p, q)?;
        check_covariance(p)?;
        let Continuous { rows: [x, y], copies, spread } = Continuous::of(p, q);
        let (p, q) = (Points::new(&x, p.dim()).named(names[0]), Points::new(&y, q.dim()).named(names[1]));
        let count = p.len().max(q.len()).div_ceil(MOST_ROWS);
        if count == 1 {
            let evidence = Evidence::of(p, q)?;
            return Ok(Seen { dim: evidence.dim, copies, spread, chunks: vec![evidence] });
        }
        let (x, y, dim) = canonical(p, q)?;
        let [of_p, of_q] = [(&x, 3), (&y, 4)].map(|(rows, seed)| dealt(rows, dim, seed));
        let chunk = |k: usize| {
            let (x, y) = (&of_p[k % of_p.len()], &of_q[k % of_q.len()]);
            Evidence::of(Points::new(x, dim).named(names[0]), Points::new(y, dim).named(names[1]))
        };
        Ok(Seen { dim, copies, spread, chunks: (0..count).into_par_iter().map(chunk).collect::<Result<_>>()? })
    }
}

/// Fails where there are more columns than the evidence is made for. Columns that hold one value do not count.
fn check_columns(p: Points, q: Points) -> Result<()> {
    let varies = |c: &usize| p.constant(*c).is_none() || p.constant(*c) != q.constant(*c);
    let varying = (0..p.dim()).filter(varies).count();
    if varying > MOST_COLUMNS {
        return Err(Error::Unfit(format!(
            "{} and {} have {varying} columns that vary; the pretrained estimator takes at most {MOST_COLUMNS}",
            p.name(),
            q.name()
        )));
    }
    Ok(())
}

/// Rows dealt at random to chunks of nearly one size.
fn dealt(rows: &[f64], dim: usize, seed: u64) -> Vec<Vec<f64>> {
    let order = shuffled(rows, dim, seed);
    let count = order.len().div_ceil(MOST_ROWS);
    let chunk = |k: usize| order.iter().skip(k).step_by(count).flat_map(|&i| &rows[i * dim..(i + 1) * dim]).copied();
    (0..count).map(|k| chunk(k).collect()).collect()
}

/// Both samples in coordinates of their own, along the directions in which they vary, and the number of these.
fn canonical(p: Points, q: Points) -> Result<(Vec<f64>, Vec<f64>, usize)> {
    let frame = Canonical::of(p.data(), q.data(), p.dim());
    let (x, y, dim) = if frame.rank() == p.dim() {
        (mapped(&frame, p.data()), mapped(&frame, q.data()), p.dim())
    } else {
        let Some((x, y, dim)) = varying(p, q) else {
            return Err(Error::Estimate(format!("all rows of {} and {} are one point", p.name(), q.name())));
        };
        let frame = Canonical::of(&x, &y, dim);
        (mapped(&frame, &x), mapped(&frame, &y), dim)
    };
    if x.iter().chain(&y).any(|v| !v.is_finite()) {
        return Err(Error::Estimate(format!(
            "numbers of {} and {} are beyond what can be squared; rescale the columns",
            p.name(),
            q.name()
        )));
    }
    Ok((x, y, dim))
}

impl Evidence {
    /// Looks at two samples of continuous distributions.
    pub fn of(p: Points, q: Points) -> Result<Self> {
        let (x, y, dim) = canonical(p, q)?;
        let least = (FEWEST as f64).max((ROWS_FOR_COLUMN * dim as f64).ceil()) as usize;
        for points in [p, q] {
            let (name, rows) = (points.name(), points.len());
            if rows < least {
                return Err(Error::Unfit(format!(
                    "{name}: has {rows} different rows; the samples vary in {dim} directions, for which the pretrained estimator \
                     needs at least {least}"
                )));
            }
        }
        let rows = [p.len(), q.len()];
        let (count, sizes) = cut(rows[0], rows[1]);
        let parts = match count == 1 && sizes == rows {
            true => vec![Part { p: single(&x), q: single(&y) }],
            false => {
                let (of_p, of_q) = (shuffled(&x, dim, 1), shuffled(&y, dim, 2));
                let take = |rows: &[f64], order: &[usize], k: usize, size: usize| -> Vec<f64> {
                    order[k * size..(k + 1) * size]
                        .iter()
                        .flat_map(|&i| &rows[i * dim..(i + 1) * dim])
                        .copied()
                        .collect()
                };
                let part = |k: usize| {
                    let (a, b) = (take(&x, &of_p, k, sizes[0]), take(&y, &of_q, k, sizes[1]));
                    let frame = Canonical::of(&a, &b, dim);
                    Part { p: single(&mapped(&frame, &a)), q: single(&mapped(&frame, &b)) }
                };
                (0..count).map(part).collect()
            }
        };
        let (x, y) = (Points::new(&x, dim), Points::new(&y, dim));
        Ok(Evidence { dim, parts, classical: classical(x, y) })
    }
}

fn mapped(frame: &Canonical, rows: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; rows.len()];
    frame.apply(rows, &mut out);
    out
}

fn single(rows: &[f64]) -> Vec<f32> {
    rows.iter().map(|&x| x as f32).collect()
}

/// Rows in a random order that depends on where they lie and not on how they were listed.
pub fn shuffled(rows: &[f64], dim: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows.len() / dim).collect();
    let row = |i: usize| &rows[i * dim..(i + 1) * dim];
    let compared = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x.total_cmp(y)).find(|o| o.is_ne());
    order.sort_by(|&a, &b| compared(row(a), row(b)).unwrap_or(std::cmp::Ordering::Equal));
    order.shuffle(&mut Generator::seed_from_u64(seed));
    order
}

/// The samples along the directions in which their union varies, with the number of these; none if nothing varies.
fn varying(p: Points, q: Points) -> Option<(Vec<f64>, Vec<f64>, usize)> {
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

/// Numbers about sizes and shapes, the noise of estimates, then divergences: neighbours, Gaussians, classifiers.
fn classical(x: Points, y: Points) -> [f64; CLASSICAL] {
    let (n, m, d) = (x.len() as f64, y.len() as f64, x.dim() as f64);
    let (of_x, of_y) = (Shape::of(x), Shape::of(y));
    let shift: f64 = of_x.mean.iter().zip(&of_y.mean).map(|(a, b)| (a - b) * (a - b)).sum();
    let (([k1, k3, k8, k20], of_neighbours), [plain, wide]) = rayon::join(|| neighbours(x, y), || verdicts(x, y));
    let [tails_x, fourth_x, third_x, fourths_x] = of_x.form(x);
    let [tails_y, fourth_y, third_y, fourths_y] = of_y.form(y);
    let log = |noise: f64| noise.max(1e-4).ln();
    [
        n.ln(),
        m.ln(),
        d.ln(),
        (d / n).sqrt(),
        (d / m).sqrt(),
        1.0 / d,
        shift,
        tails_x,
        tails_y,
        fourth_x,
        fourth_y,
        third_x,
        third_y,
        fourths_x,
        fourths_y,
        log(of_neighbours),
        log(gaussian_noise(&of_x, &of_y, x)),
        log(plain.noise),
        log(wide.noise),
        k1,
        k3,
        k8,
        k20,
        gaussian(&of_x, &of_y, x.dim(), false),
        gaussian(&of_x, &of_y, x.dim(), true),
        gaussian(&of_y, &of_x, x.dim(), true),
        gaussian(&of_x.shrunk(x.dim()), &of_y.shrunk(x.dim()), x.dim(), false),
        plain.fitted,
        plain.left_out,
        plain.bound,
        wide.fitted,
        wide.left_out,
        wide.bound,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_as_large_as_the_model_was_trained_for() {
        assert_eq!(cut(200, 250), (1, [200, 250]));
        assert_eq!(cut(1000, 1000), (4, [160, 160]));
        assert_eq!(cut(5000, 70), (2, [256, 35]));
        assert_eq!(cut(600, 40), (1, [256, 40]));
        assert_eq!(cut(10, 12), (1, [10, 12]));
    }

    #[test]
    fn large_samples_are_split_into_chunks() {
        let rows = |n: u64| -> Vec<f64> { (0..n).map(|i| (i * 7919 % 100_003) as f64).collect() };
        let (p, q) = (rows(20_000), rows(9_000));
        assert_eq!(Seen::of(Points::new(&p, 1), Points::new(&q, 1)).unwrap().chunks.len(), 3);
    }

    #[test]
    fn columns_that_do_not_vary_or_repeat_others_are_left_out() {
        let rows = |k: usize| -> Vec<f64> {
            (0..60).flat_map(|i| [((i * k) % 17) as f64, 3.0, 2.0 * ((i * k) % 17) as f64]).collect()
        };
        let (p, q) = (rows(5), rows(7));
        assert_eq!(Evidence::of(Points::new(&p, 3), Points::new(&q, 3)).unwrap().dim, 1);
        let same = vec![1.0; 30];
        let said = Evidence::of(Points::new(&same, 3), Points::new(&same, 3)).err().unwrap().to_string();
        assert!(said.contains("one point"), "{said}");
    }
}
