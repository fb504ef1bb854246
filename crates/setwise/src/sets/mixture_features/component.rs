//! One component of a mixture: its Gaussian from responsibilities, and its log density.
//!
//! As in `mixture`, functions are `unsafe` because the instructions of `V` must exist.

use setwise_engine::simd::Vector;

use super::TILE;
use super::points::{Points, lanes};

/// Pseudo-counts of the prior of a covariance: as many points with [`PRIOR_VARIANCE`] in every direction.
pub(super) const PRIOR_POINTS: f32 = 5.0;
/// In units of the whitened sets' variance.
pub(super) const PRIOR_VARIANCE: f32 = 0.2;
/// Added to variances: rounding never leaves one that is not positive.
pub(super) const RIDGE: f32 = 1e-4;
/// Pseudo-points of every component at the mean of the set: no component is ever empty.
pub(super) const PSEUDO_POINTS: f32 = 1e-2;
/// Points whose outer products are summed while they lie in the first-level cache.
pub(super) const BLOCK: usize = 16;

/// One weighted Gaussian for every example.
#[derive(Clone)]
pub(super) struct Component<V> {
    mean: Vec<V>,
    /// L⁻¹ of the covariance L·Lᵀ, `[width, width]`; zero above the diagonal.
    pub whitening: Vec<V>,
    /// ½ log det of the covariance.
    pub half_log_det: V,
    /// log weight − ½ log det: the log density at the mean, without the constant −½·width·log 2π.
    log_peak: V,
}

impl<V: Vector<f32>> Component<V> {
    /// A component of zeros, for a first M-step to overwrite.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn blank(width: usize) -> Self {
        // SAFETY: the caller has the instructions of V.
        let zero = unsafe { V::zero() };
        Component { mean: vec![zero; width], whitening: vec![zero; width * width], half_log_det: zero, log_peak: zero }
    }
}

/// Workspace of a component.
pub(super) struct Workspace<V> {
    /// A block of points minus the mean.
    centred: Vec<V>,
    /// The covariance, then its Cholesky factor.
    factor: Vec<V>,
}

impl<V: Vector<f32>> Workspace<V> {
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn new(width: usize) -> Self {
        // SAFETY: the caller has the instructions of V.
        let zero = unsafe { V::zero() };
        Workspace { centred: vec![zero; BLOCK * width], factor: vec![zero; width * width] }
    }
}

/// Writes points minus a mean.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn centre<V: Vector<f32>>(points: &[V], mean: &[V], out: &mut [V]) {
    for (out, point) in out.chunks_exact_mut(mean.len()).zip(points.chunks_exact(mean.len())) {
        for ((out, x), m) in out.iter_mut().zip(point).zip(mean) {
            // SAFETY: the caller has the instructions of V.
            *out = unsafe { x.sub(*m) };
        }
    }
}

/// The M-step of a component: weight, mean and covariance from its responsibilities.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn maximise<V: Vector<f32>>(
    points: &Points<V>,
    responsibilities: &[V],
    components: usize,
    component: &mut Component<V>,
    workspace: &mut Workspace<V>,
) {
    let width = points.width;
    let Workspace { centred, factor } = workspace;
    // SAFETY: the caller has the instructions of V, and no vector has more than LANES lanes.
    unsafe {
        let pseudo = V::splat(PSEUDO_POINTS);
        let mut total = V::zero();
        for r in responsibilities {
            total = total.add(*r);
        }
        let inverse_total = V::splat(1.0).div(total.add(pseudo));
        for j in (0..width).step_by(TILE) {
            let mut sums = [V::zero(); TILE];
            for (r, point) in responsibilities.iter().zip(points.coordinates.chunks_exact(width)) {
                for (sum, x) in sums.iter_mut().zip(&point[j..j + TILE]) {
                    *sum = r.mul_add(*x, *sum);
                }
            }
            for (t, sum) in sums.into_iter().enumerate() {
                component.mean[j + t] = pseudo.mul_add(points.mean[j + t], sum).mul(inverse_total);
            }
        }

        factor.fill(V::zero());
        for (responsibilities, points) in responsibilities.chunks(BLOCK).zip(points.coordinates.chunks(BLOCK * width)) {
            centre(points, &component.mean, centred);
            for i in (0..width).step_by(TILE) {
                for j in (0..=i).step_by(TILE) {
                    add_outer_products(responsibilities, centred, width, i, j, factor);
                }
            }
        }
        let scale = V::splat(1.0).div(total.add(V::splat(PRIOR_POINTS)));
        let prior = V::splat(PRIOR_POINTS * PRIOR_VARIANCE).mul_add(scale, V::splat(RIDGE));
        for (i, row) in factor.chunks_exact_mut(width).enumerate() {
            for x in &mut row[..=i] {
                *x = x.mul(scale);
            }
            row[i] = row[i].add(prior);
        }
        let inverse_counts = points.counts.map(|n| 1.0 / (n as f32 + components as f32 * PSEUDO_POINTS));
        let weight = total.add(pseudo).mul(V::load(inverse_counts.as_ptr()));
        factorise(points, component, weight, factor);
    }
}

/// Adds Σₙ rₙ·xₙ·xₙᵀ to the tile of `out` at row `i` and column `j`.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn add_outer_products<V: Vector<f32>>(
    responsibilities: &[V],
    points: &[V],
    width: usize,
    i: usize,
    j: usize,
    out: &mut [V],
) {
    // SAFETY: the caller has the instructions of V.
    unsafe {
        let mut sums = [[V::zero(); TILE]; TILE];
        for (r, point) in responsibilities.iter().zip(points.chunks_exact(width)) {
            let (rows, columns) = (&point[i..i + TILE], &point[j..j + TILE]);
            for (sums, x) in sums.iter_mut().zip(rows) {
                let x = r.mul(*x);
                for (sum, y) in sums.iter_mut().zip(columns) {
                    *sum = x.mul_add(*y, *sum);
                }
            }
        }
        for (row, sums) in out[i * width..].chunks_exact_mut(width).zip(sums) {
            for (out, sum) in row[j..j + TILE].iter_mut().zip(sums) {
                *out = out.add(sum);
            }
        }
    }
}

/// Sets a component's whitening, determinant and peak from its weight and the lower triangle of its covariance.
///
/// The covariance is overwritten by its Cholesky factor L. The whitening is L⁻¹, found row by row beside L.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn factorise<V: Vector<f32>>(points: &Points<V>, component: &mut Component<V>, weight: V, factor: &mut [V]) {
    let Points { width, unpadded_width, .. } = *points;
    let inverse = &mut component.whitening;
    // SAFETY: the caller has the instructions of V.
    unsafe {
        let min_pivot = V::splat(0.5 * RIDGE);
        let mut half_log_det = V::zero();
        let mut product = V::splat(1.0);
        for i in 0..unpadded_width {
            let (above, row) = factor.split_at_mut(i * width);
            for j in 0..i {
                let mut x = row[j];
                for (a, b) in row[..j].iter().zip(&above[j * width..j * width + j]) {
                    x = x.sub(a.mul(*b));
                }
                // The diagonal of L⁻¹ has the reciprocals of that of L.
                row[j] = x.mul(inverse[j * width + j]);
            }
            let mut pivot = row[i];
            for x in &row[..i] {
                pivot = pivot.sub(x.mul(*x));
            }
            let root = pivot.max(min_pivot).sqrt();
            let diagonal = V::splat(1.0).div(root);
            let (inverse_above, inverse_row) = inverse.split_at_mut(i * width);
            for j in 0..i {
                let mut x = V::zero();
                for (l, above) in row[j..i].iter().zip(inverse_above[j * width..].chunks_exact(width)) {
                    x = l.mul_add(above[j], x);
                }
                inverse_row[j] = V::zero().sub(x).mul(diagonal);
            }
            inverse_row[i] = diagonal;
            // One logarithm for eight pivots; a product of eight neither overflows nor underflows.
            product = product.mul(root);
            if i % 8 == 7 || i + 1 == unpadded_width {
                half_log_det = half_log_det.add(ln(product));
                product = V::splat(1.0);
            }
        }
        component.half_log_det = half_log_det;
        component.log_peak = ln(weight).sub(half_log_det);
    }
}

/// Writes a component's log density at every point: log peak − ½·|L⁻¹(x − μ)|².
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn log_density<V: Vector<f32>>(
    points: &Points<V>,
    component: &Component<V>,
    workspace: &mut Workspace<V>,
    out: &mut [V],
) {
    let width = points.width;
    let centred = &mut workspace.centred[..TILE * width];
    let tiles = points.coordinates.chunks_exact(TILE * width);
    for (out, points) in out.chunks_exact_mut(TILE).zip(tiles) {
        // SAFETY: the caller has the instructions of V.
        unsafe {
            centre(points, &component.mean, centred);
            let mut squares = [V::zero(); TILE];
            for i in (0..width).step_by(TILE) {
                let mut z = [[V::zero(); TILE]; TILE];
                // L⁻¹ is lower triangular: these rows end here.
                let end = i + TILE;
                let rows: [&[V]; TILE] = std::array::from_fn(|a| &component.whitening[(i + a) * width..][..end]);
                let points: [&[V]; TILE] = std::array::from_fn(|a| &centred[a * width..][..end]);
                for j in 0..end {
                    for (z, point) in z.iter_mut().zip(points) {
                        for (z, row) in z.iter_mut().zip(rows) {
                            *z = row[j].mul_add(point[j], *z);
                        }
                    }
                }
                for (square, z) in squares.iter_mut().zip(z) {
                    for z in z {
                        *square = z.mul_add(z, *square);
                    }
                }
            }
            for (out, square) in out.iter_mut().zip(squares) {
                *out = square.mul_add(V::splat(-0.5), component.log_peak);
            }
        }
    }
}

/// Natural logarithms, lane by lane.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn ln<V: Vector<f32>>(v: V) -> V {
    // SAFETY: the caller has the instructions of V, and no vector has more than LANES lanes.
    unsafe {
        let mut lanes = lanes(v);
        for x in &mut lanes[..V::LANES] {
            *x = x.ln();
        }
        V::load(lanes.as_ptr())
    }
}
