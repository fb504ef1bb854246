//! Features of a pair of samples: subsamples for the set model, and classical estimates on all rows.
//!
//! A pair is cleaned and split into chunks, and features are computed for each chunk. All of them are in [`Canonical`]
//! coordinates, so that neither affine maps of the data nor the order of rows change them.

use rayon::prelude::*;

use super::super::Points;
use super::super::points::{check_covariance, check_rows, check_samples, check_varies};
use super::classifiers::classifier_divergences;
use super::cleaning::Cleaned;
use super::coordinates::{canonical, mapped, shuffled, to_f32};
use super::moments::{Moments, gaussian_divergence, gaussian_standard_error};
use super::neighbours::neighbour_divergences;
use crate::sets::Canonical;
use crate::{Error, Result};

/// Rows of each sample that an estimate needs.
pub const MIN_ROWS: usize = 5;
/// Different rows of each sample for every direction of variation. With fewer rows covariances are noise, and estimates
/// for equal distributions are far above zero.
const MIN_ROWS_PER_DIRECTION: f64 = 1.5;
/// Columns that vary. With more of them the classifiers have no products, which the combiner was not trained for.
const MAX_COLUMNS: usize = 32;
/// Rows of each sample in a chunk.
const MAX_CHUNK_ROWS: usize = 8000;
/// Rows of each sample in one of at most two subsamples.
const MAX_SUBSAMPLE_ROWS: usize = 256;
/// Rows of each sample in one of more than two subsamples: attention costs the square of the rows.
const MAX_SMALL_SUBSAMPLE_ROWS: usize = 160;
/// Subsamples of a chunk.
const MAX_SUBSAMPLES: usize = 4;
/// Rows of the smaller sample in each of several subsamples.
const MIN_SUBSAMPLE_ROWS: usize = 30;
/// Classical features of a chunk, and how many of them, at the end, are divergences.
pub const CLASSICAL: usize = 33;
pub const DIVERGENCES: usize = 14;

/// Indices of some divergences among the last [`DIVERGENCES`] classical features.
pub mod divergence_index {
    /// Third nearest neighbour.
    pub const K3: usize = 1;
    /// Debiased Gaussian closed form.
    pub const DEBIASED_GAUSSIAN: usize = 5;
    /// Quadratic classifier, fitted; the leave-one-out divergence follows.
    pub const QUADRATIC: usize = 8;
    /// Extended classifier, fitted; the leave-one-out divergence follows. Its standard error is the last feature before
    /// the divergences.
    pub const EXTENDED: usize = 11;
}

/// Disjoint rows of both samples for the set model, in the canonical coordinates of these rows.
pub struct Subsample {
    /// Rows of P.
    pub p: Vec<f32>,
    /// Rows of Q.
    pub q: Vec<f32>,
}

/// Features of one chunk of a pair of samples.
pub struct ChunkFeatures {
    /// Directions in which the samples vary.
    pub dim: usize,
    /// Disjoint subsamples for the set model.
    pub subsamples: Vec<Subsample>,
    /// Sizes, tests of normality, standard errors, and divergences in nats.
    pub classical: [f64; CLASSICAL],
}

/// The number of subsamples of samples with `n` and `m` rows, and the rows each has of both.
fn subsample_sizes(n: usize, m: usize) -> (usize, [usize; 2]) {
    let needed = n.max(m).div_ceil(MAX_SUBSAMPLE_ROWS).min(MAX_SUBSAMPLES);
    let count = needed.min(n.min(m) / MIN_SUBSAMPLE_ROWS).max(1);
    let max_rows = if count > 2 { MAX_SMALL_SUBSAMPLE_ROWS } else { MAX_SUBSAMPLE_ROWS };
    (count, [(n / count).min(max_rows), (m / count).min(max_rows)])
}

/// Features of a pair of samples of any size.
pub struct PairFeatures {
    /// Directions in which the samples vary.
    pub dim: usize,
    /// Duplicate rows that were removed from each sample.
    pub duplicates: [usize; 2],
    /// A dequantised column of each sample.
    pub dequantised: [Option<usize>; 2],
    /// Features of the chunks of the pair: one chunk, or several of samples over 8000 rows.
    pub chunks: Vec<ChunkFeatures>,
}

impl PairFeatures {
    /// Cleans two samples, splits them into chunks at random and computes the features of each pair of chunks.
    ///
    /// The chunks of the sample with fewer of them are used several times.
    pub fn compute(p: Points, q: Points) -> Result<Self> {
        check_samples(p, q)?;
        let names = [p.name(), q.name()];
        for points in [p, q] {
            check_rows(points, MIN_ROWS, "an estimate")?;
            check_varies(points)?;
        }
        check_columns(p, q)?;
        check_covariance(p)?;
        let Cleaned { rows: [x, y], duplicates, dequantised } = Cleaned::clean(p, q);
        let (p, q) = (Points::new(&x, p.dim()).named(names[0]), Points::new(&y, q.dim()).named(names[1]));
        let count = p.len().max(q.len()).div_ceil(MAX_CHUNK_ROWS);
        if count == 1 {
            let chunk = ChunkFeatures::compute(p, q)?;
            return Ok(PairFeatures { dim: chunk.dim, duplicates, dequantised, chunks: vec![chunk] });
        }
        let (x, y, dim) = canonical(p, q)?;
        let [p_chunks, q_chunks] = [(&x, 3), (&y, 4)].map(|(rows, seed)| random_chunks(rows, dim, seed));
        let features = |k: usize| {
            let (x, y) = (&p_chunks[k % p_chunks.len()], &q_chunks[k % q_chunks.len()]);
            ChunkFeatures::compute(Points::new(x, dim).named(names[0]), Points::new(y, dim).named(names[1]))
        };
        let chunks = (0..count).into_par_iter().map(features).collect::<Result<_>>()?;
        Ok(PairFeatures { dim, duplicates, dequantised, chunks })
    }
}

/// Fails where more than [`MAX_COLUMNS`] columns vary.
fn check_columns(p: Points, q: Points) -> Result<()> {
    let varies = |c: &usize| p.constant(*c).is_none() || p.constant(*c) != q.constant(*c);
    let varying = (0..p.dim()).filter(varies).count();
    if varying > MAX_COLUMNS {
        return Err(Error::UnsupportedSamples(format!(
            "{} and {} have {varying} columns that vary; the pretrained estimator takes at most {MAX_COLUMNS}",
            p.name(),
            q.name()
        )));
    }
    Ok(())
}

/// Rows split at random into chunks of nearly equal size.
fn random_chunks(rows: &[f64], dim: usize, seed: u64) -> Vec<Vec<f64>> {
    let order = shuffled(rows, dim, seed);
    let count = order.len().div_ceil(MAX_CHUNK_ROWS);
    let chunk = |k: usize| order.iter().skip(k).step_by(count).flat_map(|&i| &rows[i * dim..(i + 1) * dim]).copied();
    (0..count).map(|k| chunk(k).collect()).collect()
}

impl ChunkFeatures {
    /// Computes the features of two samples of continuous distributions, each as one chunk.
    pub fn compute(p: Points, q: Points) -> Result<Self> {
        let (x, y, dim) = canonical(p, q)?;
        let min_rows = (MIN_ROWS as f64).max((MIN_ROWS_PER_DIRECTION * dim as f64).ceil()) as usize;
        for points in [p, q] {
            let (name, rows) = (points.name(), points.len());
            if rows < min_rows {
                return Err(Error::UnsupportedSamples(format!(
                    "{name}: has {rows} different rows; the pretrained estimator needs at least {min_rows} for {dim} \
                     directions of variation"
                )));
            }
        }
        let rows = [p.len(), q.len()];
        let (count, sizes) = subsample_sizes(rows[0], rows[1]);
        let subsamples = match count == 1 && sizes == rows {
            true => vec![Subsample { p: to_f32(&x), q: to_f32(&y) }],
            false => {
                let (p_order, q_order) = (shuffled(&x, dim, 1), shuffled(&y, dim, 2));
                let gather = |rows: &[f64], order: &[usize], k: usize, size: usize| -> Vec<f64> {
                    order[k * size..(k + 1) * size]
                        .iter()
                        .flat_map(|&i| &rows[i * dim..(i + 1) * dim])
                        .copied()
                        .collect()
                };
                let subsample = |k: usize| {
                    let (a, b) = (gather(&x, &p_order, k, sizes[0]), gather(&y, &q_order, k, sizes[1]));
                    let axes = Canonical::fit(&a, &b, dim);
                    Subsample { p: to_f32(&mapped(&axes, &a)), q: to_f32(&mapped(&axes, &b)) }
                };
                (0..count).map(subsample).collect()
            }
        };
        let (x, y) = (Points::new(&x, dim), Points::new(&y, dim));
        Ok(ChunkFeatures { dim, subsamples, classical: classical(x, y) })
    }
}

/// Sizes, tests of normality and logarithms of standard errors; then divergences of neighbours, Gaussians, classifiers.
fn classical(x: Points, y: Points) -> [f64; CLASSICAL] {
    let (n, m, d) = (x.len() as f64, y.len() as f64, x.dim() as f64);
    let (moments_x, moments_y) = (Moments::of(x), Moments::of(y));
    let shift: f64 = moments_x.mean.iter().zip(&moments_y.mean).map(|(a, b)| (a - b) * (a - b)).sum();
    let (([k1, k3, k8, k20], knn_error), [quadratic, extended]) =
        rayon::join(|| neighbour_divergences(x, y), || classifier_divergences(x, y));
    let [tails_x, kurtosis_x, skewness_x, marginal_kurtosis_x] = moments_x.non_gaussianity(x);
    let [tails_y, kurtosis_y, skewness_y, marginal_kurtosis_y] = moments_y.non_gaussianity(y);
    let log = |standard_error: f64| standard_error.max(1e-4).ln();
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
        kurtosis_x,
        kurtosis_y,
        skewness_x,
        skewness_y,
        marginal_kurtosis_x,
        marginal_kurtosis_y,
        log(knn_error),
        log(gaussian_standard_error(&moments_x, &moments_y, x)),
        log(quadratic.standard_error),
        log(extended.standard_error),
        k1,
        k3,
        k8,
        k20,
        gaussian_divergence(&moments_x, &moments_y, x.dim(), false),
        gaussian_divergence(&moments_x, &moments_y, x.dim(), true),
        gaussian_divergence(&moments_y, &moments_x, x.dim(), true),
        gaussian_divergence(
            &moments_x.shrunk_covariance(x.dim()),
            &moments_y.shrunk_covariance(x.dim()),
            x.dim(),
            false,
        ),
        quadratic.fitted,
        quadratic.leave_one_out,
        quadratic.donsker_varadhan,
        extended.fitted,
        extended.leave_one_out,
        extended.donsker_varadhan,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsamples_have_as_many_rows_as_the_set_model_was_trained_for() {
        assert_eq!(subsample_sizes(200, 250), (1, [200, 250]));
        assert_eq!(subsample_sizes(1000, 1000), (4, [160, 160]));
        assert_eq!(subsample_sizes(5000, 70), (2, [256, 35]));
        assert_eq!(subsample_sizes(600, 40), (1, [256, 40]));
        assert_eq!(subsample_sizes(10, 12), (1, [10, 12]));
    }

    #[test]
    fn samples_over_8000_rows_are_split_into_chunks() {
        let rows = |n: u64| -> Vec<f64> { (0..n).map(|i| (i * 7919 % 100_003) as f64).collect() };
        let (p, q) = (rows(20_000), rows(9_000));
        assert_eq!(PairFeatures::compute(Points::new(&p, 1), Points::new(&q, 1)).unwrap().chunks.len(), 3);
    }

    #[test]
    fn constant_and_collinear_columns_add_no_direction() {
        let rows = |k: usize| -> Vec<f64> {
            (0..60).flat_map(|i| [((i * k) % 17) as f64, 3.0, 2.0 * ((i * k) % 17) as f64]).collect()
        };
        let (p, q) = (rows(5), rows(7));
        assert_eq!(ChunkFeatures::compute(Points::new(&p, 3), Points::new(&q, 3)).unwrap().dim, 1);
        let same = vec![1.0; 30];
        let error = ChunkFeatures::compute(Points::new(&same, 3), Points::new(&same, 3)).err().unwrap().to_string();
        assert!(error.contains("one point"), "{error}");
    }
}
