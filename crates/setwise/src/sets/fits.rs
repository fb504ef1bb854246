//! Gaussian mixtures fitted to each of two sets, and what they say of every point of both.
//!
//! Expectation maximisation in single precision, an example in each lane of a vector: covariances, their factors and all sums over points are
//! then plain loops, and an example costs hardly more than it takes to draw it.

use setwise_engine::Real;
use setwise_engine::simd::{Kernel, Vector};

/// Components of the largest mixture; all numbers up to it are fitted.
const COMPONENTS: usize = 3;
/// Numbers that stand beside a point: log p̂ − log q̂ by mixtures of one, two and three Gaussians, and what the second and third add to
/// log p̂ and to log q̂.
pub(crate) const COLUMNS: usize = 3 * COMPONENTS - 2;
/// Steps of expectation maximisation from every start, and from the first on of the best.
const FIRST_STEPS: usize = 6;
const STEPS: usize = 20;
/// A covariance is that of its component's points and of as many more with [`PRIOR_VARIANCE`] in every direction. Of the priors tried on
/// examples of eight dimensions this one left least error to a network that corrects answers by the fits.
const PRIOR_POINTS: f32 = 5.0;
/// In units of the whitened sets' variance.
const PRIOR_VARIANCE: f32 = 0.2;
/// Added to variances, so that rounding never leaves one that is not positive.
const RIDGE: f32 = 1e-4;
/// Points that every component has at the middle of the set, so that none is ever without any.
const SLACK: f32 = 1e-2;
/// Share of a point that all components have alike at the start.
const UNDECIDED: f32 = 0.1;
/// Rows, columns and points that are computed with together.
const TILE: usize = 4;
/// Lanes of the widest vectors.
const LANES: usize = 16;

/// Rows of sets of several examples, one after another; `offsets[i]..offsets[i + 1]` are those of example `i`.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub rows: &'a [f64],
    pub offsets: &'a [usize],
}

/// Columns beside the points of two sets of every example, which are whitened together and have rows of `width` numbers: [`COLUMNS`] for each
/// point, in units of √width.
///
/// The order of rows decides nothing but rounding. Numbers that are not finite, or beyond what can be squared, have columns that are no numbers.
pub(crate) fn beside(sets: [Rows; 2], width: usize) -> [Vec<f32>; 2] {
    f32::dispatch(Beside { sets, width })
}

struct Beside<'a> {
    sets: [Rows<'a>; 2],
    width: usize,
}

impl Kernel<f32> for Beside<'_> {
    type Out = [Vec<f32>; 2];

    #[inline(always)]
    unsafe fn run<V: Vector<f32>>(self) -> [Vec<f32>; 2] {
        let Beside { sets, width } = self;
        let examples = sets[0].offsets.len() - 1;
        let mut columns = sets.map(|s| vec![0.0; s.offsets[examples] * COLUMNS]);
        let unit = (width as f32).sqrt().recip();
        for first in (0..examples).step_by(V::LANES) {
            let last = examples.min(first + V::LANES);
            // SAFETY, here and in all functions below: entered through `dispatch`.
            let points =
                unsafe { [Points::<V>::of(sets[0], first..last, width), Points::<V>::of(sets[1], first..last, width)] };
            // Logarithms of densities by set looked at, set fitted to and number of components.
            let mut logs: [Vec<[[V; COMPONENTS]; 2]>; 2] =
                [0, 1].map(|at| vec![[[unsafe { V::zero() }; COMPONENTS]; 2]; points[at].len]);
            let mut scratch = unsafe { Scratch::of(&points) };
            for fitted in 0..2 {
                for components in 1..=COMPONENTS {
                    let mixture = unsafe { Mixture::fit(&points[fitted], components, &mut scratch) };
                    for at in 0..2 {
                        unsafe { mixture.log_densities(&points[at], &mut scratch) };
                        for (out, log) in logs[at].iter_mut().zip(&scratch.sums) {
                            out[fitted][components - 1] = *log;
                        }
                    }
                }
            }
            for at in 0..2 {
                for (i, [p, q]) in logs[at].iter().enumerate() {
                    let pairs = [
                        (p[0], q[0]),
                        (p[1], q[1]),
                        (p[2], q[2]),
                        (p[1], p[0]),
                        (p[2], p[1]),
                        (q[1], q[0]),
                        (q[2], q[1]),
                    ];
                    for (c, (a, b)) in pairs.into_iter().enumerate() {
                        let lanes = unsafe { numbers(a.sub(b)) };
                        for (example, x) in (first..last).zip(lanes) {
                            let row = sets[at].offsets[example] + i;
                            if row < sets[at].offsets[example + 1] {
                                columns[at][row * COLUMNS + c] = x * unit;
                            }
                        }
                    }
                }
            }
        }
        columns
    }
}

/// The numbers of a vector.
#[inline(always)]
unsafe fn numbers<V: Vector<f32>>(v: V) -> [f32; LANES] {
    let mut numbers = [0.0; LANES];
    unsafe { v.store(numbers.as_mut_ptr()) };
    numbers
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

/// One set of several examples.
struct Points<V> {
    /// `[len, width]`, zero where an example has no such point or coordinate.
    coordinates: Vec<V>,
    /// One where an example has the point, zero elsewhere.
    live: Vec<V>,
    /// Points of every example.
    counts: [usize; LANES],
    /// Their mean.
    middle: Vec<V>,
    /// Points of the largest, and coordinates, both in whole tiles.
    len: usize,
    width: usize,
    /// Coordinates that are not padding.
    own_width: usize,
}

impl<V: Vector<f32>> Points<V> {
    #[inline(always)]
    unsafe fn of(set: Rows, examples: std::ops::Range<usize>, own_width: usize) -> Self {
        let width = own_width.next_multiple_of(TILE);
        let mut counts = [0; LANES];
        for (count, i) in counts.iter_mut().zip(examples.clone()) {
            *count = set.offsets[i + 1] - set.offsets[i];
        }
        let len = counts.iter().max().map_or(0, |n| n.next_multiple_of(TILE));
        let mut coordinates = Vec::with_capacity(len * width);
        let mut live = Vec::with_capacity(len);
        for i in 0..len {
            for j in 0..width {
                let mut lanes = [0.0; LANES];
                for (lane, example) in examples.clone().enumerate() {
                    if i < counts[lane] && j < own_width {
                        lanes[lane] = set.rows[(set.offsets[example] + i) * own_width + j] as f32;
                    }
                }
                coordinates.push(unsafe { V::load(lanes.as_ptr()) });
            }
            let lanes = counts.map(|n| if i < n { 1.0 } else { 0.0 });
            live.push(unsafe { V::load(lanes.as_ptr()) });
        }
        let shares = counts.map(|n| 1.0 / n.max(1) as f32);
        let share = unsafe { V::load(shares.as_ptr()) };
        let mut middle = vec![unsafe { V::zero() }; width];
        for point in coordinates.chunks_exact(width) {
            for (m, x) in middle.iter_mut().zip(point) {
                *m = unsafe { share.mul_add(*x, *m) };
            }
        }
        Points { coordinates, live, counts, middle, len, width, own_width }
    }

    /// What starts order points by: their places along the first axis and the last, and their squared distances from the middle.
    #[inline(always)]
    unsafe fn key(&self, start: Start, i: usize) -> V {
        let point = &self.coordinates[i * self.width..(i + 1) * self.width];
        match start {
            Start::First => point[0],
            Start::Last => point[self.own_width - 1],
            Start::Radius => {
                let mut square = unsafe { V::zero() };
                for (x, m) in point.iter().zip(&self.middle) {
                    let apart = unsafe { x.sub(*m) };
                    square = unsafe { apart.mul_add(apart, square) };
                }
                square
            }
        }
    }
}

/// What points are ordered by, to be cut into groups of one size.
#[derive(Clone, Copy)]
enum Start {
    First,
    Radius,
    Last,
}

/// One weighted Gaussian for every example.
#[derive(Clone)]
struct Component<V> {
    mean: Vec<V>,
    /// The inverse of the covariance's Cholesky factor, `[width, width]`; zero above the diagonal.
    whitening: Vec<V>,
    /// Half of the logarithm of the covariance's determinant.
    half_log_det: V,
    /// Logarithm of its weight and of its density at the mean, less those of a standard normal.
    height: V,
}

/// A mixture for every example.
struct Mixture<V> {
    components: Vec<Component<V>>,
}

/// Numbers that every step overwrites.
struct Scratch<V> {
    /// Shares of every point by component, `[components, len]`, and those of the best start.
    shares: Vec<V>,
    best: Vec<V>,
    /// Logarithms of densities by component, `[components, len]`, and of their sums.
    logs: Vec<V>,
    sums: Vec<V>,
    /// Points less a component's mean.
    centred: Vec<V>,
    /// A covariance, then its factor.
    factor: Vec<V>,
}

impl<V: Vector<f32>> Scratch<V> {
    #[inline(always)]
    unsafe fn of(points: &[Points<V>; 2]) -> Self {
        let (len, width) = (points[0].len.max(points[1].len), points[0].width);
        let zeros = |n: usize| vec![unsafe { V::zero() }; n];
        Scratch {
            shares: zeros(COMPONENTS * len),
            best: zeros(COMPONENTS * len),
            logs: zeros(COMPONENTS * len),
            sums: zeros(len),
            centred: zeros(len * width),
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
        let mut better = [0.0; LANES];
        for lane in 0..V::LANES {
            if scores[lane] > best[lane] {
                (best[lane], better[lane]) = (scores[lane], 1.0);
            }
        }
        let better = unsafe { V::load(better.as_ptr()) };
        for (best, new) in self.best[..numbers].iter_mut().zip(&self.shares) {
            *best = unsafe { new.sub(*best).mul_add(better, *best) };
        }
    }
}

impl<V: Vector<f32>> Mixture<V> {
    /// The likeliest of those that different starts lead to.
    #[inline(always)]
    unsafe fn fit(points: &Points<V>, components: usize, scratch: &mut Scratch<V>) -> Self {
        let (width, zero) = (points.width, unsafe { V::zero() });
        let whole = Component {
            mean: vec![zero; width],
            whitening: vec![zero; width * width],
            half_log_det: zero,
            height: zero,
        };
        let mut mixture = Mixture { components: vec![whole; components] };
        if components == 1 {
            unsafe {
                scratch.start(points, 1, Start::First);
                mixture.step(points, scratch);
            }
            return mixture;
        }
        let numbers = components * points.len;
        let mut best = [f32::NEG_INFINITY; LANES];
        // Where no likelihood is a number, shares stay those of no start.
        scratch.best[..numbers].fill(zero);
        let starts = [Start::First, Start::Radius, Start::Last];
        for start in &starts[..if points.own_width == 1 { 2 } else { 3 }] {
            unsafe {
                scratch.start(points, components, *start);
                for _ in 0..FIRST_STEPS {
                    mixture.step(points, scratch);
                    share_out(points, components, scratch);
                }
                let scores = mixture.score(points, scratch);
                scratch.keep_better(scores, &mut best, numbers);
            }
        }
        std::mem::swap(&mut scratch.best, &mut scratch.shares);
        for step in FIRST_STEPS..STEPS {
            unsafe {
                mixture.step(points, scratch);
                if step + 1 < STEPS {
                    share_out(points, components, scratch);
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
        for (log, live) in scratch.sums.iter().zip(&points.live) {
            score = unsafe { log.mul_add(*live, score) };
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

    /// Writes logarithms of the density at every point to `scratch.sums`, less that of a standard normal but for its value at zero.
    #[inline(always)]
    unsafe fn log_densities(&self, points: &Points<V>, scratch: &mut Scratch<V>) {
        for (k, component) in self.components.iter().enumerate() {
            unsafe {
                centre(points, &component.mean, scratch);
                log_density(points, component, scratch, k);
            }
        }
        unsafe { log_sums(points.len, self.components.len(), scratch) };
    }
}

/// Writes points less a mean to `scratch.centred`.
#[inline(always)]
unsafe fn centre<V: Vector<f32>>(points: &Points<V>, mean: &[V], scratch: &mut Scratch<V>) {
    let width = points.width;
    for (out, point) in scratch.centred.chunks_exact_mut(width).zip(points.coordinates.chunks_exact(width)) {
        for ((out, x), m) in out.iter_mut().zip(point).zip(mean) {
            *out = unsafe { x.sub(*m) };
        }
    }
}

/// Sets a component to what the shares of the points say; leaves the points less its mean in `scratch.centred`.
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
    unsafe { centre(points, &component.mean, scratch) };

    let counts = points.counts.map(|n| 1.0 / (n as f32 + components as f32 * SLACK));
    let Scratch { shares, centred, factor, .. } = scratch;
    let shares = &shares[k * len..(k + 1) * len];
    let scale = unsafe { V::splat(1.0).div(total.add(V::splat(PRIOR_POINTS))) };
    let prior = unsafe { V::splat(PRIOR_POINTS * PRIOR_VARIANCE).mul_add(scale, V::splat(RIDGE)) };
    for i in (0..width).step_by(TILE) {
        for j in (0..=i).step_by(TILE) {
            let mut sums = [[unsafe { V::zero() }; TILE]; TILE];
            for (s, point) in shares.iter().zip(centred.chunks_exact(width)) {
                let (rows, columns) = (&point[i..i + TILE], &point[j..j + TILE]);
                for (sums, x) in sums.iter_mut().zip(rows) {
                    let x = unsafe { s.mul(*x) };
                    for (sum, y) in sums.iter_mut().zip(columns) {
                        *sum = unsafe { x.mul_add(*y, *sum) };
                    }
                }
            }
            for (a, sums) in sums.into_iter().enumerate() {
                for (b, sum) in sums.into_iter().enumerate() {
                    factor[(i + a) * width + j + b] = unsafe { sum.mul(scale) };
                }
            }
        }
        for a in i..i + TILE {
            factor[a * width + a] = unsafe { factor[a * width + a].add(prior) };
        }
    }
    unsafe {
        let weight = total.add(slack).mul(V::load(counts.as_ptr()));
        shape(points, component, weight, factor);
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

/// Writes logarithms of a component's density at the points in `scratch.centred` to row `k` of `scratch.logs`.
#[inline(always)]
unsafe fn log_density<V: Vector<f32>>(
    points: &Points<V>,
    component: &Component<V>,
    scratch: &mut Scratch<V>,
    k: usize,
) {
    let Points { width, len, .. } = *points;
    let logs = &mut scratch.logs[k * len..(k + 1) * len];
    for (out, points) in logs.chunks_exact_mut(TILE).zip(scratch.centred.chunks_exact(TILE * width)) {
        let mut squares = [unsafe { V::zero() }; TILE];
        for i in (0..width).step_by(TILE) {
            let mut z = [[unsafe { V::zero() }; TILE]; TILE];
            let rows = &component.whitening[i * width..(i + TILE) * width];
            for j in 0..i + TILE {
                for (z, point) in z.iter_mut().zip(points.chunks_exact(width)) {
                    for (z, row) in z.iter_mut().zip(rows.chunks_exact(width)) {
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
        if components == 1 {
            *out = logs[i];
            continue;
        }
        let largest = unsafe { largest(logs, len, components, i) };
        let mut sum = unsafe { V::zero() };
        for k in 0..components {
            sum = unsafe { sum.add(logs[k * len + i].sub(largest).exp()) };
        }
        *out = unsafe { ln(sum).add(largest) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Generator, Mixture as Law, MixtureLaw};
    use crate::linalg::{cholesky, log_det, moments, solve_lower};
    use crate::sets::Canonical;
    use rand::SeedableRng;

    /// Two samples in coordinates of their own.
    fn example(width: usize, sizes: [usize; 2], seed: u64) -> [Vec<f64>; 2] {
        let mut rng = Generator::seed_from_u64(seed);
        let rows = sizes.map(|n| {
            let mut rows = Vec::new();
            Law::draw(&MixtureLaw::default(), width, &mut rng).sample(n, &mut rng, &mut rows);
            rows
        });
        let map = Canonical::of(&rows[0], &rows[1], width);
        rows.map(|rows| {
            let mut out = vec![0.0; rows.len()];
            map.apply(&rows, &mut out);
            out
        })
    }

    /// The same fit of one start, written plainly in double precision: log likelihood with the prior's, and log densities at other points.
    fn plain(rows: &[f64], width: usize, components: usize, key: &[f64], steps: usize, at: &[f64]) -> (f64, Vec<f64>) {
        let n = rows.len() / width;
        let row = |i: usize| &rows[i * width..(i + 1) * width];
        let mut sorted = key.to_vec();
        sorted.sort_by(f64::total_cmp);
        let group = |i: usize| (1..components).filter(|k| key[i] >= sorted[k * n / components]).count();
        let even = f64::from(UNDECIDED) / components as f64;
        let mut shares: Vec<Vec<f64>> = (0..components)
            .map(|k| (0..n).map(|i| even + if group(i) == k { 1.0 - f64::from(UNDECIDED) } else { 0.0 }).collect())
            .collect();
        let slack = f64::from(SLACK);
        let middle: Vec<f64> = (0..width).map(|j| (0..n).map(|i| row(i)[j]).sum::<f64>() / n as f64).collect();
        let mut found: Vec<(f64, Vec<f64>, Vec<f64>)> = Vec::new();
        let logs = |found: &[(f64, Vec<f64>, Vec<f64>)], x: &[f64]| -> Vec<f64> {
            found
                .iter()
                .map(|(share, mean, factor)| {
                    let mut z: Vec<f64> = x.iter().zip(mean).map(|(x, m)| x - m).collect();
                    solve_lower(factor, width, &mut z);
                    share.ln() - 0.5 * (log_det(factor, width) + z.iter().map(|z| z * z).sum::<f64>())
                })
                .collect()
        };
        let sum = |logs: &[f64]| logs.iter().map(|l| l.exp()).sum::<f64>().ln();
        for step in 0..steps {
            if step > 0 {
                for i in 0..n {
                    let logs = logs(&found, row(i));
                    shares.iter_mut().zip(&logs).for_each(|(s, log)| s[i] = (log - sum(&logs)).exp());
                }
            }
            found = shares
                .iter()
                .map(|s| {
                    let total: f64 = s.iter().sum();
                    let mean: Vec<f64> = (0..width)
                        .map(|j| ((0..n).map(|i| s[i] * row(i)[j]).sum::<f64>() + slack * middle[j]) / (total + slack))
                        .collect();
                    let mut factor = vec![0.0; width * width];
                    for a in 0..width {
                        for b in 0..width {
                            let square: f64 =
                                (0..n).map(|i| s[i] * (row(i)[a] - mean[a]) * (row(i)[b] - mean[b])).sum();
                            let prior = if a == b { f64::from(PRIOR_POINTS * PRIOR_VARIANCE) } else { 0.0 };
                            let ridge = if a == b { f64::from(RIDGE) } else { 0.0 };
                            factor[a * width + b] = (square + prior) / (total + f64::from(PRIOR_POINTS)) + ridge;
                        }
                    }
                    cholesky(&mut factor, width).unwrap();
                    ((total + slack) / (n as f64 + components as f64 * slack), mean, factor)
                })
                .collect();
        }
        let likelihood: f64 = (0..n).map(|i| sum(&logs(&found, row(i)))).sum();
        let prior: f64 = found
            .iter()
            .map(|(_, _, factor)| {
                let mut trace = 0.0;
                for j in 0..width {
                    let mut unit: Vec<f64> = (0..width).map(|i| f64::from(u8::from(i == j))).collect();
                    solve_lower(factor, width, &mut unit);
                    trace += unit.iter().map(|x| x * x).sum::<f64>();
                }
                -0.5 * f64::from(PRIOR_POINTS) * (log_det(factor, width) + f64::from(PRIOR_VARIANCE) * trace)
            })
            .sum();
        (likelihood + prior, at.chunks(width).map(|x| sum(&logs(&found, x))).collect())
    }

    /// Columns of one example.
    fn one(p: &[f64], q: &[f64], width: usize) -> [Vec<f32>; 2] {
        let offsets = [p, q].map(|rows| [0, rows.len() / width]);
        beside([Rows { rows: p, offsets: &offsets[0] }, Rows { rows: q, offsets: &offsets[1] }], width)
    }

    /// Columns of the likeliest fits, by [`plain`].
    fn plain_columns(sets: &[Vec<f64>; 2], width: usize, at: &[f64]) -> Vec<f64> {
        let best = |set: &[f64], components: usize| -> Vec<f64> {
            let middle = moments(set, width, 0).0;
            let radius = |r: &[f64]| r.iter().zip(&middle).map(|(x, m)| (x - m) * (x - m)).sum::<f64>();
            let along = |j: usize| set.chunks(width).map(|r| r[j]).collect::<Vec<_>>();
            let keys = [along(0), set.chunks(width).map(radius).collect(), along(width - 1)];
            let steps = |most: usize| if components == 1 { 1 } else { most };
            let first = |key: &&Vec<f64>| plain(set, width, components, key, steps(FIRST_STEPS), at).0;
            let start = keys.iter().reduce(|a, b| if first(&b) > first(&a) { b } else { a }).unwrap();
            plain(set, width, components, start, steps(STEPS), at).1
        };
        let (p, q) = ([1, 2, 3].map(|k| best(&sets[0], k)), [1, 2, 3].map(|k| best(&sets[1], k)));
        let pairs = [
            (&p[0], &q[0]),
            (&p[1], &q[1]),
            (&p[2], &q[2]),
            (&p[1], &p[0]),
            (&p[2], &p[1]),
            (&q[1], &q[0]),
            (&q[2], &q[1]),
        ];
        (0..at.len() / width).flat_map(|i| pairs.map(|(a, b)| (a[i] - b[i]) / (width as f64).sqrt())).collect()
    }

    #[test]
    fn columns_are_those_of_the_likeliest_fit_in_double_precision_alone_and_beside_other_examples() {
        for (width, sizes) in [(1, [40, 30]), (2, [125, 64]), (3, [1, 20]), (5, [100, 65]), (8, [150, 110])] {
            // More examples than a vector has lanes, of different sizes.
            let examples: Vec<[Vec<f64>; 2]> =
                (0..18).map(|i| example(width, [sizes[0] + i % 5, sizes[1] + i % 3], 100 + i as u64)).collect();
            let rows = [0, 1].map(|s| examples.iter().flat_map(|e| &e[s]).copied().collect::<Vec<f64>>());
            let offsets = [0, 1].map(|s| {
                let ends = examples.iter().scan(0, |end, e| {
                    *end += e[s].len() / width;
                    Some(*end)
                });
                std::iter::once(0).chain(ends).collect::<Vec<usize>>()
            });
            let together = beside([0, 1].map(|s| Rows { rows: &rows[s], offsets: &offsets[s] }), width);
            for (e, sets) in examples.iter().enumerate().filter(|(e, _)| e % 5 == 2) {
                let alone = one(&sets[0], &sets[1], width);
                for s in 0..2 {
                    let own = &together[s][offsets[s][e] * COLUMNS..offsets[s][e + 1] * COLUMNS];
                    assert_eq!(own, alone[s], "width {width}, example {e}");
                    for (found, wanted) in own.iter().zip(plain_columns(sets, width, &sets[s])) {
                        let apart = (f64::from(*found) - wanted).abs();
                        assert!(
                            apart < 2e-3 * (1.0 + wanted.abs()),
                            "width {width}, example {e}: {found} and {wanted}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_order_of_points_does_not_matter_and_two_clusters_are_told_from_one() {
        // Half of q's points lie far from the other half; p has none there.
        let [p, mut q] = example(4, [90, 120], 8);
        q.iter_mut().enumerate().for_each(|(i, x)| *x += if i % 8 == 0 { 6.0 } else { 0.0 });
        let found = one(&p, &q, 4);
        let turned = |rows: &[f64]| rows.chunks(4).rev().flatten().copied().collect::<Vec<_>>();
        let again = one(&turned(&p), &turned(&q), 4);
        for (a, b) in found.iter().zip(&again) {
            for (a, b) in a.chunks(COLUMNS).zip(b.chunks(COLUMNS).rev()) {
                assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3 * (1.0 + a.abs())), "{a:?} {b:?}");
            }
        }
        let gain: f32 = found[1].chunks(COLUMNS).map(|row| row[5]).sum::<f32>() / 120.0;
        assert!(gain > 0.2, "{gain}");
    }

    #[test]
    fn what_has_no_densities_has_columns_that_are_no_numbers_and_points_in_one_place_have_finite_ones() {
        assert!(one(&[f64::NAN; 6], &[0.0; 6], 2)[0].iter().any(|x| x.is_nan()));
        assert!(one(&[0.0; 6], &[0.0; 2], 2).concat().iter().all(|x| x.is_finite()));
    }

    #[test]
    fn narrower_vectors_give_the_same() {
        setwise_engine::simd::test_with_narrower_vectors("sets::fits");
    }
}
