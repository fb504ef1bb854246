//! Expectation maximisation (EM) from several starts, one example in each lane of a vector.
//!
//! Every function is `unsafe` for one reason: the instructions of `V` must exist. They do in a kernel that
//! `dispatch` runs, which is the only caller.

use setwise_engine::simd::Vector;

use super::points::{Key, Points, lanes};
use super::{LANES, MAX_COMPONENTS, TILE};

/// EM steps from every start.
pub(super) const FIRST_STEPS: usize = 6;
/// EM steps in all of the likeliest start.
pub(super) const STEPS: usize = 20;
/// Pseudo-counts of the prior of a covariance: as many points with [`PRIOR_VARIANCE`] in every direction.
pub(super) const PRIOR_POINTS: f32 = 5.0;
/// In units of the whitened sets' variance.
pub(super) const PRIOR_VARIANCE: f32 = 0.2;
/// Added to variances: rounding never leaves one that is not positive.
pub(super) const RIDGE: f32 = 1e-4;
/// Pseudo-points of every component at the mean of the set: no component is ever empty.
pub(super) const PSEUDO_POINTS: f32 = 1e-2;
/// Responsibility for a point that all components share evenly at a start.
pub(super) const SHARED_RESPONSIBILITY: f32 = 0.1;
/// Points whose outer products are summed while they lie in the first-level cache.
const BLOCK: usize = 16;

/// One weighted Gaussian for every example.
#[derive(Clone)]
struct Component<V> {
    mean: Vec<V>,
    /// L⁻¹ of the covariance L·Lᵀ, `[width, width]`; zero above the diagonal.
    whitening: Vec<V>,
    /// ½ log det of the covariance.
    half_log_det: V,
    /// log weight − ½ log det: the log density at the mean, without the constant −½·width·log 2π.
    log_peak: V,
}

/// A mixture for every example.
pub(super) struct Mixture<V> {
    components: Vec<Component<V>>,
}

/// Workspace that every step overwrites.
pub(super) struct Scratch<V> {
    /// Responsibilities, `[components, len]`.
    responsibilities: Vec<V>,
    /// Those of the likeliest start.
    best: Vec<V>,
    /// Log densities by component, `[components, len]`.
    component_logs: Vec<V>,
    /// Log densities of the mixture, `[len]`.
    pub mixture_logs: Vec<V>,
    /// A block of points minus a component's mean.
    centred: Vec<V>,
    /// A covariance, then its Cholesky factor.
    factor: Vec<V>,
}

impl<V: Vector<f32>> Scratch<V> {
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn of(points: &[Points<V>; 2]) -> Self {
        let (len, width) = (points[0].len.max(points[1].len), points[0].width);
        // SAFETY: the caller has the instructions of V.
        let zero = unsafe { V::zero() };
        Scratch {
            responsibilities: vec![zero; MAX_COMPONENTS * len],
            best: vec![zero; MAX_COMPONENTS * len],
            component_logs: vec![zero; MAX_COMPONENTS * len],
            mixture_logs: vec![zero; len],
            centred: vec![zero; BLOCK * width],
            factor: vec![zero; width * width],
        }
    }

    /// Responsibilities of a start: points in the order of `key`, split into groups of equal size.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn start(&mut self, points: &Points<V>, components: usize, key: Key) {
        let len = points.len;
        let mut keys = vec![[0.0; LANES]; len];
        for (i, out) in keys.iter_mut().enumerate() {
            // SAFETY: the caller has the instructions of V.
            *out = unsafe { lanes(points.key(key, i)) };
        }
        let mut sorted = Vec::with_capacity(len);
        let mut cuts = [[f32::INFINITY; LANES]; MAX_COMPONENTS - 1];
        for lane in 0..V::LANES {
            let n = points.counts[lane];
            sorted.clear();
            sorted.extend(keys[..n].iter().map(|key| key[lane]));
            for (k, cut) in cuts.iter_mut().enumerate().take(if n == 0 { 0 } else { components - 1 }) {
                cut[lane] = *sorted.select_nth_unstable_by((k + 1) * n / components, f32::total_cmp).1;
            }
        }
        let even = SHARED_RESPONSIBILITY / components as f32;
        for (i, key) in keys.iter().enumerate() {
            for k in 0..components {
                let mut lanes = [0.0; LANES];
                for lane in 0..V::LANES {
                    let group = cuts[..components - 1].iter().filter(|cut| key[lane] >= cut[lane]).count();
                    lanes[lane] = if group == k { even + 1.0 - SHARED_RESPONSIBILITY } else { even };
                }
                // SAFETY: the caller has the instructions of V, and no vector has more than LANES lanes.
                self.responsibilities[k * len + i] = unsafe { V::load(lanes.as_ptr()).mul(points.present[i]) };
            }
        }
    }

    /// Keeps the responsibilities of the examples whose log posterior exceeds the best so far.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn keep_better(&mut self, scores: [f32; LANES], best: &mut [f32; LANES], len: usize) {
        let (mut better, mut worse) = ([0.0; LANES], [1.0; LANES]);
        for lane in 0..V::LANES {
            if scores[lane] > best[lane] {
                (best[lane], better[lane], worse[lane]) = (scores[lane], 1.0, 0.0);
            }
        }
        // SAFETY: the caller has the instructions of V, and no vector has more than LANES lanes.
        unsafe {
            let (better, worse) = (V::load(better.as_ptr()), V::load(worse.as_ptr()));
            for (best, new) in self.best[..len].iter_mut().zip(&self.responsibilities) {
                *best = better.where_positive(*new).add(worse.where_positive(*best));
            }
        }
    }
}

impl<V: Vector<f32>> Mixture<V> {
    /// The likeliest of the mixtures that EM reaches from several starts.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn fit(points: &Points<V>, components: usize, scratch: &mut Scratch<V>) -> Self {
        // SAFETY: the caller has the instructions of V.
        let (width, zero) = (points.width, unsafe { V::zero() });
        let blank = Component {
            mean: vec![zero; width],
            whitening: vec![zero; width * width],
            half_log_det: zero,
            log_peak: zero,
        };
        let mut mixture = Mixture { components: vec![blank; components] };
        let len = components * points.len;
        // An example whose log posteriors are all NaN keeps responsibilities of zero.
        scratch.best[..len].fill(zero);
        let mut best = [f32::NEG_INFINITY; LANES];
        // `None` goes on from the best start.
        let starts = match (components, points.unpadded_width) {
            (1, _) => &[Some(Key::FirstAxis)][..],
            (_, 1) => &[Some(Key::FirstAxis), Some(Key::Radius), None],
            _ => &[Some(Key::FirstAxis), Some(Key::Radius), Some(Key::LastAxis), None],
        };
        for start in starts {
            let steps = match (start, components) {
                (_, 1) => 1,
                (Some(_), _) => FIRST_STEPS,
                (None, _) => STEPS - FIRST_STEPS,
            };
            match start {
                // SAFETY: the caller has the instructions of V.
                Some(key) => unsafe { scratch.start(points, components, *key) },
                None => std::mem::swap(&mut scratch.best, &mut scratch.responsibilities),
            }
            for _ in 0..steps {
                // SAFETY: the caller has the instructions of V.
                unsafe {
                    mixture.maximisation(points, scratch);
                    expectation(points, components, scratch);
                }
            }
            if start.is_some() && components > 1 {
                // SAFETY: the caller has the instructions of V.
                unsafe {
                    let scores = mixture.log_posterior(points, scratch);
                    scratch.keep_better(scores, &mut best, len);
                }
            }
        }
        mixture
    }

    /// The M-step of all components; also writes their log densities to `scratch.component_logs`.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn maximisation(&mut self, points: &Points<V>, scratch: &mut Scratch<V>) {
        let components = self.components.len();
        for (k, component) in self.components.iter_mut().enumerate() {
            // SAFETY: the caller has the instructions of V.
            unsafe {
                maximise(points, k, components, component, scratch);
                log_density(points, component, scratch, k);
            }
        }
    }

    /// Log likelihood plus log prior, from the log densities in `scratch`.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn log_posterior(&self, points: &Points<V>, scratch: &mut Scratch<V>) -> [f32; LANES] {
        // SAFETY: the caller has the instructions of V.
        unsafe {
            log_sum_exp(points.len, self.components.len(), scratch);
            let mut score = V::zero();
            // Sums of blocks lose less to rounding than one long sum.
            for (logs, present) in scratch.mixture_logs[..points.len].chunks(BLOCK).zip(points.present.chunks(BLOCK)) {
                let mut block = V::zero();
                for (log, present) in logs.iter().zip(present) {
                    block = log.mul_add(*present, block);
                }
                score = score.add(block);
            }
            for c in &self.components {
                let mut trace = V::zero();
                for row in c.whitening.chunks_exact(points.width).take(points.unpadded_width) {
                    for x in row {
                        trace = x.mul_add(*x, trace);
                    }
                }
                score = V::splat(-PRIOR_POINTS).mul_add(c.half_log_det, score);
                score = V::splat(-0.5 * PRIOR_POINTS * PRIOR_VARIANCE).mul_add(trace, score);
            }
            lanes(score)
        }
    }

    /// Writes the log density at every point to `scratch.mixture_logs`, without the constant −½·width·log 2π.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    pub unsafe fn log_densities(&self, points: &Points<V>, scratch: &mut Scratch<V>) {
        // SAFETY: the caller has the instructions of V.
        unsafe {
            for (k, component) in self.components.iter().enumerate() {
                log_density(points, component, scratch, k);
            }
            log_sum_exp(points.len, self.components.len(), scratch);
        }
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

/// The M-step of component `k`: weight, mean and covariance from its responsibilities.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn maximise<V: Vector<f32>>(
    points: &Points<V>,
    k: usize,
    components: usize,
    component: &mut Component<V>,
    scratch: &mut Scratch<V>,
) {
    let Points { width, len, .. } = *points;
    let Scratch { responsibilities, centred, factor, .. } = scratch;
    let responsibilities = &responsibilities[k * len..(k + 1) * len];
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

/// Writes a component's log density at every point to row `k` of `scratch.component_logs`: log peak − ½·|L⁻¹(x − μ)|².
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn log_density<V: Vector<f32>>(
    points: &Points<V>,
    component: &Component<V>,
    scratch: &mut Scratch<V>,
    k: usize,
) {
    let Points { width, len, .. } = *points;
    let Scratch { component_logs, centred, .. } = scratch;
    let centred = &mut centred[..TILE * width];
    let tiles = points.coordinates.chunks_exact(TILE * width);
    for (out, points) in component_logs[k * len..(k + 1) * len].chunks_exact_mut(TILE).zip(tiles) {
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

/// The maximum over components of the log density at point `i`.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn max_log<V: Vector<f32>>(logs: &[V], len: usize, components: usize, i: usize) -> V {
    let mut max = logs[i];
    for k in 1..components {
        // SAFETY: the caller has the instructions of V.
        max = unsafe { max.max(logs[k * len + i]) };
    }
    max
}

/// The E-step: responsibilities are a softmax over components of the log densities.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn expectation<V: Vector<f32>>(points: &Points<V>, components: usize, scratch: &mut Scratch<V>) {
    let len = points.len;
    let Scratch { responsibilities, component_logs, .. } = scratch;
    for i in 0..len {
        // SAFETY: the caller has the instructions of V.
        unsafe {
            let max = max_log(component_logs, len, components, i);
            let mut sum = V::zero();
            for k in 0..components {
                let e = component_logs[k * len + i].sub(max).exp();
                sum = sum.add(e);
                responsibilities[k * len + i] = e;
            }
            let scale = points.present[i].div(sum);
            for k in 0..components {
                responsibilities[k * len + i] = responsibilities[k * len + i].mul(scale);
            }
        }
    }
}

/// Writes the log-sum-exp over components of the log densities at every point to `scratch.mixture_logs`.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn log_sum_exp<V: Vector<f32>>(len: usize, components: usize, scratch: &mut Scratch<V>) {
    let Scratch { mixture_logs, component_logs, .. } = scratch;
    for (i, out) in mixture_logs[..len].iter_mut().enumerate() {
        // SAFETY: the caller has the instructions of V.
        unsafe {
            let max = max_log(component_logs, len, components, i);
            let mut sum = V::zero();
            for k in 0..components {
                sum = sum.add(component_logs[k * len + i].sub(max).exp());
            }
            *out = ln(sum).add(max);
        }
    }
}

/// Natural logarithms, lane by lane.
///
/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn ln<V: Vector<f32>>(v: V) -> V {
    // SAFETY: the caller has the instructions of V, and no vector has more than LANES lanes.
    unsafe {
        let mut lanes = lanes(v);
        for x in &mut lanes[..V::LANES] {
            *x = x.ln();
        }
        V::load(lanes.as_ptr())
    }
}
