//! Expectation maximisation from several starts.
//!
//! Everything is a kernel's: only to be called from one that was entered through `dispatch`, which has made sure that the vectors exist.

use setwise_engine::simd::Vector;

use super::points::{Points, Start, numbers};
use super::{COMPONENTS, LANES, TILE};

/// Steps of expectation maximisation from every start, and from the first on of the best.
pub(super) const FIRST_STEPS: usize = 6;
pub(super) const STEPS: usize = 20;
/// A covariance is that of its component's points and of as many more with [`PRIOR_VARIANCE`] in every direction.
pub(super) const PRIOR_POINTS: f32 = 5.0;
/// In units of the whitened sets' variance.
pub(super) const PRIOR_VARIANCE: f32 = 0.2;
/// Added to variances, so that rounding never leaves one that is not positive.
pub(super) const RIDGE: f32 = 1e-4;
/// Points that every component has at the middle of the set, so that none is ever without any.
pub(super) const SLACK: f32 = 1e-2;
/// Share of a point that all components have alike at the start.
pub(super) const UNDECIDED: f32 = 0.1;
/// Points whose squares are summed while they are in the nearest cache.
const BLOCK: usize = 16;

/// One weighted Gaussian for every example.
#[derive(Clone)]
struct Component<V> {
    mean: Vec<V>,
    /// The inverse of the covariance's Cholesky factor, `[width, width]`; zero above the diagonal.
    whitening: Vec<V>,
    /// Half of the logarithm of the covariance's determinant.
    half_log_det: V,
    /// Logarithm of its weight and of its density at the mean, less that of a standard normal's density at zero.
    height: V,
}

/// A mixture for every example.
pub(super) struct Mixture<V> {
    components: Vec<Component<V>>,
}

/// Numbers that every step overwrites.
pub(super) struct Scratch<V> {
    /// Shares of every point by component, `[components, len]`, and those of the best start.
    shares: Vec<V>,
    best: Vec<V>,
    /// Logarithms of densities by component, `[components, len]`, and of their sums.
    logs: Vec<V>,
    pub sums: Vec<V>,
    /// A block of points less a component's mean.
    centred: Vec<V>,
    /// A covariance, then its factor.
    factor: Vec<V>,
}

impl<V: Vector<f32>> Scratch<V> {
    #[inline(always)]
    pub unsafe fn of(points: &[Points<V>; 2]) -> Self {
        let (len, width) = (points[0].len.max(points[1].len), points[0].width);
        let zeros = |n: usize| vec![unsafe { V::zero() }; n];
        Scratch {
            shares: zeros(COMPONENTS * len),
            best: zeros(COMPONENTS * len),
            logs: zeros(COMPONENTS * len),
            sums: zeros(len),
            centred: zeros(BLOCK * width),
            factor: zeros(width * width),
        }
    }

    /// Shares of points cut into groups of one size.
    #[inline(always)]
    unsafe fn start(&mut self, points: &Points<V>, components: usize, start: Start) {
        let len = points.len;
        let mut keys = vec![[0.0; LANES]; len];
        for (i, key) in keys.iter_mut().enumerate() {
            *key = unsafe { numbers(points.key(start, i)) };
        }
        let mut sorted = Vec::with_capacity(len);
        let mut cuts = [[f32::INFINITY; LANES]; COMPONENTS - 1];
        for lane in 0..V::LANES {
            let n = points.counts[lane];
            sorted.clear();
            sorted.extend(keys[..n].iter().map(|key| key[lane]));
            for (k, cut) in cuts.iter_mut().enumerate().take(if n == 0 { 0 } else { components - 1 }) {
                cut[lane] = *sorted.select_nth_unstable_by((k + 1) * n / components, f32::total_cmp).1;
            }
        }
        let even = UNDECIDED / components as f32;
        for (i, key) in keys.iter().enumerate() {
            for k in 0..components {
                let mut lanes = [0.0; LANES];
                for lane in 0..V::LANES {
                    let group = cuts[..components - 1].iter().filter(|cut| key[lane] >= cut[lane]).count();
                    lanes[lane] = if group == k { even + 1.0 - UNDECIDED } else { even };
                }
                self.shares[k * len + i] = unsafe { V::load(lanes.as_ptr()).mul(points.live[i]) };
            }
        }
    }

    /// Keeps the shares of the examples whose score is above the best so far.
    #[inline(always)]
    unsafe fn keep_better(&mut self, scores: [f32; LANES], best: &mut [f32; LANES], numbers: usize) {
        let (mut better, mut worse) = ([0.0; LANES], [1.0; LANES]);
        for lane in 0..V::LANES {
            if scores[lane] > best[lane] {
                (best[lane], better[lane], worse[lane]) = (scores[lane], 1.0, 0.0);
            }
        }
        let (better, worse) = unsafe { (V::load(better.as_ptr()), V::load(worse.as_ptr())) };
        for (best, new) in self.best[..numbers].iter_mut().zip(&self.shares) {
            *best = unsafe { better.where_positive(*new).add(worse.where_positive(*best)) };
        }
    }
}

impl<V: Vector<f32>> Mixture<V> {
    /// The likeliest of those that different starts lead to.
    #[inline(always)]
    pub unsafe fn fit(points: &Points<V>, components: usize, scratch: &mut Scratch<V>) -> Self {
        let (width, zero) = (points.width, unsafe { V::zero() });
        let whole = Component {
            mean: vec![zero; width],
            whitening: vec![zero; width * width],
            half_log_det: zero,
            height: zero,
        };
        let mut mixture = Mixture { components: vec![whole; components] };
        let numbers = components * points.len;
        // Where no likelihood is a number, shares stay those of no start.
        scratch.best[..numbers].fill(zero);
        let mut best = [f32::NEG_INFINITY; LANES];
        let starts = match (components, points.own_width) {
            (1, _) => &[Some(Start::First)][..],
            (_, 1) => &[Some(Start::First), Some(Start::Radius), None],
            _ => &[Some(Start::First), Some(Start::Radius), Some(Start::Last), None],
        };
        for start in starts {
            let steps = match (start, components) {
                (_, 1) => 1,
                (Some(_), _) => FIRST_STEPS,
                (None, _) => STEPS - FIRST_STEPS,
            };
            match start {
                Some(start) => unsafe { scratch.start(points, components, *start) },
                None => std::mem::swap(&mut scratch.best, &mut scratch.shares),
            }
            for _ in 0..steps {
                unsafe {
                    mixture.step(points, scratch);
                    share_out(points, components, scratch);
                }
            }
            if start.is_some() && components > 1 {
                unsafe {
                    let scores = mixture.score(points, scratch);
                    scratch.keep_better(scores, &mut best, numbers);
                }
            }
        }
        mixture
    }

    /// Sets all components to what the shares of the points say, and finds the logarithms of their densities.
    #[inline(always)]
    unsafe fn step(&mut self, points: &Points<V>, scratch: &mut Scratch<V>) {
        let components = self.components.len();
        for (k, component) in self.components.iter_mut().enumerate() {
            unsafe {
                maximise(points, k, components, component, scratch);
                log_density(points, component, scratch, k);
            }
        }
    }

    /// Log likelihoods, with the prior's, of the densities in `scratch`.
    #[inline(always)]
    unsafe fn score(&self, points: &Points<V>, scratch: &mut Scratch<V>) -> [f32; LANES] {
        unsafe { log_sums(points.len, self.components.len(), scratch) };
        let mut score = unsafe { V::zero() };
        // In parts, so that many points do not lose what single ones add.
        for (logs, live) in scratch.sums[..points.len].chunks(BLOCK).zip(points.live.chunks(BLOCK)) {
            let mut part = unsafe { V::zero() };
            for (log, live) in logs.iter().zip(live) {
                part = unsafe { log.mul_add(*live, part) };
            }
            score = unsafe { score.add(part) };
        }
        for c in &self.components {
            let mut trace = unsafe { V::zero() };
            for row in c.whitening.chunks_exact(points.width).take(points.own_width) {
                for x in row {
                    trace = unsafe { x.mul_add(*x, trace) };
                }
            }
            unsafe {
                score = V::splat(-PRIOR_POINTS).mul_add(c.half_log_det, score);
                score = V::splat(-0.5 * PRIOR_POINTS * PRIOR_VARIANCE).mul_add(trace, score);
            }
        }
        unsafe { numbers(score) }
    }

    /// Writes logarithms of the density at every point to `scratch.sums`, less that of a standard normal's density at zero.
    #[inline(always)]
    pub unsafe fn log_densities(&self, points: &Points<V>, scratch: &mut Scratch<V>) {
        for (k, component) in self.components.iter().enumerate() {
            unsafe { log_density(points, component, scratch, k) };
        }
        unsafe { log_sums(points.len, self.components.len(), scratch) };
    }
}

/// Writes points less a mean.
#[inline(always)]
unsafe fn centre<V: Vector<f32>>(points: &[V], mean: &[V], out: &mut [V]) {
    for (out, point) in out.chunks_exact_mut(mean.len()).zip(points.chunks_exact(mean.len())) {
        for ((out, x), m) in out.iter_mut().zip(point).zip(mean) {
            *out = unsafe { x.sub(*m) };
        }
    }
}

/// Sets a component to what the shares of the points say.
#[inline(always)]
unsafe fn maximise<V: Vector<f32>>(
    points: &Points<V>,
    k: usize,
    components: usize,
    component: &mut Component<V>,
    scratch: &mut Scratch<V>,
) {
    let Points { width, len, .. } = *points;
    let slack = unsafe { V::splat(SLACK) };
    let mut total = unsafe { V::zero() };
    for s in &scratch.shares[k * len..(k + 1) * len] {
        total = unsafe { total.add(*s) };
    }
    let share = unsafe { V::splat(1.0).div(total.add(slack)) };
    for j in (0..width).step_by(TILE) {
        let mut sums = [unsafe { V::zero() }; TILE];
        let shares = &scratch.shares[k * len..(k + 1) * len];
        for (s, point) in shares.iter().zip(points.coordinates.chunks_exact(width)) {
            for (sum, x) in sums.iter_mut().zip(&point[j..j + TILE]) {
                *sum = unsafe { s.mul_add(*x, *sum) };
            }
        }
        for (t, sum) in sums.into_iter().enumerate() {
            component.mean[j + t] = unsafe { slack.mul_add(points.middle[j + t], sum).mul(share) };
        }
    }

    let Scratch { shares, centred, factor, .. } = scratch;
    let shares = &shares[k * len..(k + 1) * len];
    factor.fill(unsafe { V::zero() });
    for (shares, points) in shares.chunks(BLOCK).zip(points.coordinates.chunks(BLOCK * width)) {
        unsafe { centre(points, &component.mean, centred) };
        for i in (0..width).step_by(TILE) {
            for j in (0..=i).step_by(TILE) {
                unsafe { add_squares(shares, centred, width, i, j, factor) };
            }
        }
    }
    let scale = unsafe { V::splat(1.0).div(total.add(V::splat(PRIOR_POINTS))) };
    let prior = unsafe { V::splat(PRIOR_POINTS * PRIOR_VARIANCE).mul_add(scale, V::splat(RIDGE)) };
    for (i, row) in factor.chunks_exact_mut(width).enumerate() {
        for x in &mut row[..=i] {
            *x = unsafe { x.mul(scale) };
        }
        row[i] = unsafe { row[i].add(prior) };
    }
    let counts = points.counts.map(|n| 1.0 / (n as f32 + components as f32 * SLACK));
    unsafe {
        let weight = total.add(slack).mul(V::load(counts.as_ptr()));
        shape(points, component, weight, factor);
    }
}

/// Adds the products of one tile of coordinates, with the points' shares, to sums of squares.
#[inline(always)]
unsafe fn add_squares<V: Vector<f32>>(shares: &[V], points: &[V], width: usize, i: usize, j: usize, out: &mut [V]) {
    let mut sums = [[unsafe { V::zero() }; TILE]; TILE];
    for (s, point) in shares.iter().zip(points.chunks_exact(width)) {
        let (rows, columns) = (&point[i..i + TILE], &point[j..j + TILE]);
        for (sums, x) in sums.iter_mut().zip(rows) {
            let x = unsafe { s.mul(*x) };
            for (sum, y) in sums.iter_mut().zip(columns) {
                *sum = unsafe { x.mul_add(*y, *sum) };
            }
        }
    }
    for (row, sums) in out[i * width..].chunks_exact_mut(width).zip(sums) {
        for (out, sum) in row[j..j + TILE].iter_mut().zip(sums) {
            *out = unsafe { out.add(sum) };
        }
    }
}

/// Sets a component's whitening and height from the lower half of its covariance, which is overwritten, and its share of all points.
#[inline(always)]
unsafe fn shape<V: Vector<f32>>(points: &Points<V>, component: &mut Component<V>, weight: V, factor: &mut [V]) {
    let Points { width, own_width, .. } = *points;
    let least = unsafe { V::splat(0.5 * RIDGE) };
    let mut half_log_det = unsafe { V::zero() };
    let mut product = unsafe { V::splat(1.0) };
    let inverse = &mut component.whitening;
    for i in 0..own_width {
        let (above, own) = factor.split_at_mut(i * width);
        for j in 0..i {
            // The factor's diagonal is the inverse's upside down.
            let mut x = own[j];
            for (a, b) in own[..j].iter().zip(&above[j * width..j * width + j]) {
                x = unsafe { x.sub(a.mul(*b)) };
            }
            own[j] = unsafe { x.mul(inverse[j * width + j]) };
        }
        let mut pivot = own[i];
        for x in &own[..i] {
            pivot = unsafe { pivot.sub(x.mul(*x)) };
        }
        let root = unsafe { pivot.max(least).sqrt() };
        let diagonal = unsafe { V::splat(1.0).div(root) };
        let (above, row) = inverse.split_at_mut(i * width);
        for j in 0..i {
            let mut x = unsafe { V::zero() };
            for (l, above) in own[j..i].iter().zip(above[j * width..].chunks_exact(width)) {
                x = unsafe { l.mul_add(above[j], x) };
            }
            row[j] = unsafe { V::zero().sub(x).mul(diagonal) };
        }
        row[i] = diagonal;
        // Few logarithms, and no product of so many that it leaves the range of numbers.
        product = unsafe { product.mul(root) };
        if i % 8 == 7 || i + 1 == own_width {
            half_log_det = unsafe { half_log_det.add(ln(product)) };
            product = unsafe { V::splat(1.0) };
        }
    }
    component.half_log_det = half_log_det;
    component.height = unsafe { ln(weight).sub(half_log_det) };
}

/// Writes logarithms of a component's density at every point to row `k` of `scratch.logs`.
#[inline(always)]
unsafe fn log_density<V: Vector<f32>>(
    points: &Points<V>,
    component: &Component<V>,
    scratch: &mut Scratch<V>,
    k: usize,
) {
    let Points { width, len, .. } = *points;
    let Scratch { logs, centred, .. } = scratch;
    let centred = &mut centred[..TILE * width];
    let tiles = points.coordinates.chunks_exact(TILE * width);
    for (out, points) in logs[k * len..(k + 1) * len].chunks_exact_mut(TILE).zip(tiles) {
        unsafe { centre(points, &component.mean, centred) };
        let mut squares = [unsafe { V::zero() }; TILE];
        for i in (0..width).step_by(TILE) {
            let mut z = [[unsafe { V::zero() }; TILE]; TILE];
            let reach = i + TILE;
            let rows: [&[V]; TILE] = std::array::from_fn(|a| &component.whitening[(i + a) * width..][..reach]);
            let points: [&[V]; TILE] = std::array::from_fn(|a| &centred[a * width..][..reach]);
            for j in 0..reach {
                for (z, point) in z.iter_mut().zip(points) {
                    for (z, row) in z.iter_mut().zip(rows) {
                        *z = unsafe { row[j].mul_add(point[j], *z) };
                    }
                }
            }
            for (square, z) in squares.iter_mut().zip(z) {
                for z in z {
                    *square = unsafe { z.mul_add(z, *square) };
                }
            }
        }
        for (out, square) in out.iter_mut().zip(squares) {
            *out = unsafe { square.mul_add(V::splat(-0.5), component.height) };
        }
    }
}

/// The largest of the logarithms of densities at a point.
#[inline(always)]
unsafe fn largest<V: Vector<f32>>(logs: &[V], len: usize, components: usize, i: usize) -> V {
    let mut largest = logs[i];
    for k in 1..components {
        largest = unsafe { largest.max(logs[k * len + i]) };
    }
    largest
}

/// Shares of every point from the logarithms of densities.
#[inline(always)]
unsafe fn share_out<V: Vector<f32>>(points: &Points<V>, components: usize, scratch: &mut Scratch<V>) {
    let len = points.len;
    let Scratch { shares, logs, .. } = scratch;
    for i in 0..len {
        let largest = unsafe { largest(logs, len, components, i) };
        let mut sum = unsafe { V::zero() };
        for k in 0..components {
            let e = unsafe { logs[k * len + i].sub(largest).exp() };
            sum = unsafe { sum.add(e) };
            shares[k * len + i] = e;
        }
        let scale = unsafe { points.live[i].div(sum) };
        for k in 0..components {
            shares[k * len + i] = unsafe { shares[k * len + i].mul(scale) };
        }
    }
}

/// Logarithms of the sum of all components' densities at every point.
#[inline(always)]
unsafe fn log_sums<V: Vector<f32>>(len: usize, components: usize, scratch: &mut Scratch<V>) {
    let Scratch { sums, logs, .. } = scratch;
    for (i, out) in sums[..len].iter_mut().enumerate() {
        let largest = unsafe { largest(logs, len, components, i) };
        let mut sum = unsafe { V::zero() };
        for k in 0..components {
            sum = unsafe { sum.add(logs[k * len + i].sub(largest).exp()) };
        }
        *out = unsafe { ln(sum).add(largest) };
    }
}

/// Logarithms of the numbers of a vector.
#[inline(always)]
unsafe fn ln<V: Vector<f32>>(v: V) -> V {
    let mut numbers = unsafe { numbers(v) };
    for x in &mut numbers[..V::LANES] {
        *x = x.ln();
    }
    unsafe { V::load(numbers.as_ptr()) }
}
