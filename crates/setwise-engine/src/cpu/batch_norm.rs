//! Batch normalisation: statistics of every channel over all pixels of all images, in parts of fixed size that are
//! merged in order.

use super::norm::EPSILON;
use super::tasks::{Ptr, locate};
use super::worker::{Run, Worker};
use crate::params::ParamId;
use crate::program::{Activation, BatchNorm, Mode};
use crate::real::Real;
use crate::simd::{Kernel, Vector, columns, load_lanes, store_lanes};

/// Pixels of a part: they stay in cache between the two passes over them.
const PIXELS: usize = 512;

/// Mean of every channel over some pixels, and the sum of squared deviations from it. Writes both.
struct Moments<T> {
    pixels: usize,
    channels: usize,
    /// `[pixels, channels]`, as all images here.
    x: *const T,
    /// `[2 · channels]`.
    out: *mut T,
}

impl<T: Real> Kernel<T> for Moments<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        let share = T::ONE / T::from_usize(self.pixels);
        // SAFETY: the contract of `Kernel::run`: `x` has `pixels` rows of `channels` numbers, `out` two rows.
        unsafe {
            columns!(V, self.channels, |j, n| {
                let mut sum = V::zero();
                for r in 0..self.pixels {
                    sum = sum.add(load_lanes(self.x.add(r * self.channels + j), n));
                }
                let mean = sum.mul(V::splat(share));
                let mut square = V::zero();
                for r in 0..self.pixels {
                    let d = load_lanes::<T, V>(self.x.add(r * self.channels + j), n).sub(mean);
                    square = d.mul_add(d, square);
                }
                store_lanes(mean, self.out.add(j), n);
                store_lanes(square, self.out.add(self.channels + j), n);
            });
        }
    }
}

/// Statistics and parameters, each `[channels]`.
#[derive(Clone, Copy)]
struct Scales<T> {
    mean: *const T,
    inv_std: *const T,
    gain: *const T,
    shift: *const T,
}

impl<T: Real> Scales<T> {
    /// x̂ and γ x̂ + β of `n` channels from `j` on.
    ///
    /// # Safety
    /// The caller runs in a kernel, and there are at least `j + n` channels.
    #[inline(always)]
    unsafe fn apply<V: Vector<T>>(&self, x: V, j: usize, n: usize) -> (V, V) {
        // SAFETY: the caller's contract: all four pointers have `j + n` channels.
        unsafe {
            let hat = x.sub(load_lanes(self.mean.add(j), n)).mul(load_lanes(self.inv_std.add(j), n));
            (hat, hat.mul_add(load_lanes(self.gain.add(j), n), load_lanes(self.shift.add(j), n)))
        }
    }
}

/// `y = act(γ x̂ + β)`, written.
struct Normalise<T> {
    pixels: usize,
    channels: usize,
    scales: Scales<T>,
    relu: bool,
    x: *const T,
    y: *mut T,
}

impl<T: Real> Kernel<T> for Normalise<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        // SAFETY: the contract of `Kernel::run`: `x` and `y` have `pixels` rows of `channels` numbers.
        unsafe {
            columns!(V, self.channels, |j, n| {
                for r in 0..self.pixels {
                    let at = r * self.channels + j;
                    let (_, y) = self.scales.apply::<V>(load_lanes(self.x.add(at), n), j, n);
                    store_lanes(if self.relu { y.max(V::zero()) } else { y }, self.y.add(at), n);
                }
            });
        }
    }
}

/// Sums of `g` and of `g x̂` over some pixels, written; `g` is the gradient before the activation.
struct GradSums<T> {
    pixels: usize,
    channels: usize,
    scales: Scales<T>,
    relu: bool,
    x: *const T,
    dy: *const T,
    /// `[2 · channels]`.
    out: *mut T,
}

impl<T: Real> Kernel<T> for GradSums<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        // SAFETY: the contract of `Kernel::run`: `x` and `dy` have `pixels` rows of `channels` numbers, `out` two
        // rows.
        unsafe {
            columns!(V, self.channels, |j, n| {
                let (mut sum, mut dot) = (V::zero(), V::zero());
                for r in 0..self.pixels {
                    let at = r * self.channels + j;
                    let (hat, y) = self.scales.apply::<V>(load_lanes(self.x.add(at), n), j, n);
                    let g = load_lanes::<T, V>(self.dy.add(at), n);
                    let g = if self.relu { y.where_positive(g) } else { g };
                    sum = sum.add(g);
                    dot = g.mul_add(hat, dot);
                }
                store_lanes(sum, self.out.add(j), n);
                store_lanes(dot, self.out.add(self.channels + j), n);
            });
        }
    }
}

/// `dx = γ / std · (g − mean(g) − x̂ · mean(g x̂))`, or `dx += …` where `accumulate`.
struct NormaliseBackward<T> {
    pixels: usize,
    channels: usize,
    scales: Scales<T>,
    relu: bool,
    x: *const T,
    dy: *const T,
    /// `[2 · channels]`: minus the means of `g` and `g x̂`.
    neg_grad_means: *const T,
    dx: *mut T,
    accumulate: bool,
}

impl<T: Real> Kernel<T> for NormaliseBackward<T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector<T>>(self) {
        // SAFETY: the contract of `Kernel::run`: `x`, `dy` and `dx` have `pixels` rows of `channels` numbers,
        // `neg_grad_means` two rows.
        unsafe {
            columns!(V, self.channels, |j, n| {
                let neg_grad_mean = load_lanes::<T, V>(self.neg_grad_means.add(j), n);
                let neg_grad_hat_mean = load_lanes::<T, V>(self.neg_grad_means.add(self.channels + j), n);
                let factor =
                    load_lanes::<T, V>(self.scales.gain.add(j), n).mul(load_lanes(self.scales.inv_std.add(j), n));
                for r in 0..self.pixels {
                    let at = r * self.channels + j;
                    let (hat, y) = self.scales.apply::<V>(load_lanes(self.x.add(at), n), j, n);
                    let g = load_lanes::<T, V>(self.dy.add(at), n);
                    let g = if self.relu { y.where_positive(g) } else { g };
                    let d = hat.mul_add(neg_grad_hat_mean, g.add(neg_grad_mean)).mul(factor);
                    let dx = self.dx.add(at);
                    store_lanes(if self.accumulate { d.add(load_lanes(dx, n)) } else { d }, dx, n);
                }
            });
        }
    }
}

/// Some pixels of one input.
struct Part {
    input: usize,
    /// Offset of the first element.
    at: usize,
    pixels: usize,
}

impl<T: Real> Worker<T> {
    /// Pixels of input `k`.
    fn pixels(&self, op: &BatchNorm, k: usize) -> usize {
        self.rows_of(op.xs[k]) * self.program.values[op.xs[k].0].cols / op.channels
    }

    /// Parts of all inputs.
    fn part_counts<'a>(&'a self, op: &'a BatchNorm) -> impl Iterator<Item = usize> + Clone + 'a {
        (0..op.xs.len()).map(|k| self.pixels(op, k).div_ceil(PIXELS))
    }

    /// Part `t` of all inputs, counted one input after another.
    fn part(&self, op: &BatchNorm, t: usize) -> Part {
        let (input, part) = locate(t, self.part_counts(op));
        let first = part * PIXELS;
        Part { input, at: first * op.channels, pixels: PIXELS.min(self.pixels(op, input) - first) }
    }

    fn scales(&self, params: &[T], op: &BatchNorm) -> Scales<T> {
        let mean: *const T = self.value(op.stats).0;
        Scales {
            mean,
            // The statistics are means and then inverse deviations.
            inv_std: mean.wrapping_add(op.channels),
            gain: self.param(params, op.gain),
            shift: self.param(params, op.shift),
        }
    }

    pub(super) fn batch_norm_forward(&mut self, params: &[T], op: &BatchNorm) {
        if self.program.mode == Mode::Train {
            self.batch_statistics(op);
        } else {
            // SAFETY: the statistics' buffer, which `self` borrows exclusively.
            let stats = unsafe { std::slice::from_raw_parts_mut(self.value(op.stats).0, 2 * op.channels) };
            let (mean, inv_std) = stats.split_at_mut(op.channels);
            let running = |p: ParamId| &params[self.program.params.spec(p).range()];
            mean.copy_from_slice(running(op.mean));
            for (i, v) in inv_std.iter_mut().zip(running(op.variance)) {
                *i = T::from_f64(1.0 / (v.to_f64() + EPSILON).sqrt());
            }
        }
        let this = &*self;
        let scales = Shared(this.scales(params, op));
        self.threads.run(this.part_counts(op).sum(), |t| {
            let Part { input, at, pixels } = this.part(op, t);
            // SAFETY: parts are disjoint ranges of pixels of distinct inputs (`ProgramBuilder::op`), so a task alone
            // writes its pixels of `ys`. Statistics and parameters have `channels` elements and are only read.
            unsafe {
                T::dispatch(Normalise {
                    pixels,
                    channels: op.channels,
                    scales: scales.get(),
                    relu: op.activation == Activation::Relu,
                    x: this.value(op.xs[input]).at(at),
                    y: this.value(op.ys[input]).at(at),
                });
            }
        });
    }

    /// Mean and one over the standard deviation of every channel of the batch.
    fn batch_statistics(&mut self, op: &BatchNorm) {
        let channels = op.channels;
        let parts: usize = self.part_counts(op).sum();
        let partials = Ptr(self.partials(parts * 2 * channels));
        let this = &*self;
        self.threads.run(parts, |t| {
            let Part { input, at, pixels } = this.part(op, t);
            // SAFETY: `partials` holds `parts` slots of `2 · channels` elements and is not resized while tasks run;
            // slot `t` belongs to this task.
            unsafe {
                let (x, out) = (this.value(op.xs[input]).at(at), partials.at(t * 2 * channels));
                T::dispatch(Moments { pixels, channels, x, out });
            }
        });
        // SAFETY: `threads.run` has returned, so all parts are written; the statistics' buffer has `2 · channels`
        // elements, and `self` is borrowed exclusively.
        let (moments, stats) = unsafe {
            let moments = std::slice::from_raw_parts(partials.at(0), parts * 2 * channels);
            (moments, std::slice::from_raw_parts_mut(this.value(op.stats).0, 2 * channels))
        };
        for c in 0..channels {
            // Chan, Golub and LeVeque (1979): moments of a union from those of its parts.
            let (mut count, mut mean, mut square) = (0.0, 0.0, 0.0);
            for t in 0..parts {
                let n = this.part(op, t).pixels as f64;
                let part = &moments[t * 2 * channels..];
                let (part_mean, part_square) = (part[c].to_f64(), part[channels + c].to_f64());
                let total = count + n;
                let distance = part_mean - mean;
                mean += distance * n / total;
                square += part_square + distance * distance * count * n / total;
                count = total;
            }
            stats[c] = T::from_f64(mean);
            stats[channels + c] = T::from_f64(1.0 / (square / count + EPSILON).sqrt());
        }
    }

    pub(super) fn batch_norm_backward(&mut self, run: &mut Run<T>, op: &BatchNorm) {
        let channels = op.channels;
        let parts: usize = self.part_counts(op).sum();
        // The last slot holds the means.
        let partials = Ptr(self.partials((parts + 1) * 2 * channels));
        let this = &*self;
        let scales = Shared(this.scales(run.params, op));
        let relu = op.activation == Activation::Relu;
        self.threads.run(parts, |t| {
            let Part { input, at, pixels } = this.part(op, t);
            // SAFETY: as for the statistics: slot `t < parts` belongs to this task.
            unsafe {
                let (x, dy) = (this.value(op.xs[input]).at(at), this.grad(op.ys[input]).at(at));
                let out = partials.at(t * 2 * channels);
                T::dispatch(GradSums { pixels, channels, scales: scales.get(), relu, x, dy, out });
            }
        });
        let total: usize = (0..op.xs.len()).map(|k| this.pixels(op, k)).sum();
        // SAFETY: `threads.run` has returned, so all parts are written; the last slot lies behind them.
        let (sums, neg_grad_means) = unsafe {
            let sums = std::slice::from_raw_parts(partials.at(0), parts * 2 * channels);
            (sums, std::slice::from_raw_parts_mut(partials.at(parts * 2 * channels), 2 * channels))
        };
        let offset = |p: ParamId| this.program.params.spec(p).offset;
        for c in 0..2 * channels {
            let sum: f64 = sums[c..].iter().step_by(2 * channels).map(|s| s.to_f64()).sum();
            let param = if c < channels { offset(op.shift) + c } else { offset(op.gain) + c - channels };
            run.grads[param] += T::from_f64(sum);
            neg_grad_means[c] = T::from_f64(-sum / total as f64);
        }
        // Running averages follow the batch statistics.
        // SAFETY: the statistics' buffer, which nobody writes here.
        let stats = unsafe { std::slice::from_raw_parts(this.value(op.stats).0, 2 * channels) };
        let unbiased = total as f64 / (total.max(2) - 1) as f64;
        for c in 0..channels {
            run.grads[offset(op.mean) + c] = stats[c];
            let variance = stats[channels + c].to_f64().powi(-2) - EPSILON;
            run.grads[offset(op.variance) + c] = T::from_f64(variance.max(0.0) * unbiased);
        }
        self.threads.run(parts, |t| {
            let Part { input, at, pixels } = this.part(op, t);
            let x = op.xs[input];
            if !this.wants_grad(x) {
                return;
            }
            // SAFETY: `xs` are distinct (`ProgramBuilder::op`), so a task alone writes its pixels of the gradient. The
            // means in the last slot are only read.
            unsafe {
                T::dispatch(NormaliseBackward {
                    pixels,
                    channels,
                    scales: scales.get(),
                    relu,
                    x: this.value(x).at(at),
                    dy: this.grad(op.ys[input]).at(at),
                    neg_grad_means: partials.at(parts * 2 * channels),
                    dx: this.grad(x).at(at),
                    accumulate: this.grad_written(x),
                });
            }
        });
        op.xs.iter().for_each(|&x| self.mark_written(x));
    }
}

/// Addresses that tasks only read.
struct Shared<T>(Scales<T>);

// SAFETY: nobody writes where these point while tasks run.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn get(&self) -> Scales<T> {
        self.0
    }
}
