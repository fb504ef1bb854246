//! Convolutions of images as products (im2col): the patches of the window, one per row, times the weight.
//!
//! A thread's scratch holds the patches of a few lines of one image, small enough for the second cache level. The
//! patches of a batch would take many times the memory of its images. Backward, a task owns full images of the input
//! gradient. The weight gradient is first summed in a fixed number of parts of the batch, each owned by one task. Then
//! the parts are added in order.

use super::packed_product::PackedProduct;
use super::packed_weights::PackedWeights;
use super::tasks::{Ptr, locate};
use super::weight_product::{WeightProduct, weight_scratch};
use super::worker::{Run, Worker};
use crate::params::ParamId;
use crate::program::{Convolution, Value};
use crate::real::Real;

/// Elements of patches in the scratch at a time, unless one line has more.
const PATCHES: usize = 1 << 16;

/// The largest number of parts a weight gradient is summed from, and so of threads that work on it.
const PARTS: usize = 16;

/// Elements of a task that adds up parts.
const SUMS: usize = 4096;

/// Output lines whose patches lie in the scratch together.
fn lines(op: &Convolution) -> usize {
    (PATCHES / (op.to.width * op.patch()).max(1)).clamp(1, op.to.height)
}

/// The columns of the window over an output pixel that lie in the image.
fn inside(op: &Convolution, pixel: usize) -> (usize, usize) {
    let (kernel, padding, at) = (op.window.kernel, op.window.padding, pixel * op.window.stride);
    let left = padding.saturating_sub(at).min(kernel);
    (left, (op.from.width + padding).saturating_sub(at).min(kernel).max(left))
}

/// Writes the patches of output lines `first..first + count` of the image at `x`, one after another (im2col).
///
/// # Safety
/// `x` is an image of `op.from`, `patches` holds `count` lines of patches, and `first + count` is at most the output's
/// height.
unsafe fn gather<T: Real>(op: &Convolution, x: *const T, first: usize, count: usize, patches: *mut T) {
    debug_assert!(first + count <= op.to.height && x.is_aligned() && patches.is_aligned());
    let channels = op.from.channels;
    let (kernel, stride, padding) = (op.window.kernel, op.window.stride, op.window.padding);
    let mut to = patches;
    for line in first..first + count {
        for pixel in 0..op.to.width {
            let (left, right) = inside(op, pixel);
            for p in 0..kernel {
                // SAFETY: the caller's patches have `kernel * channels` elements for every line of a window; reads
                // stay within lines of the image.
                unsafe {
                    let row = line * stride + p;
                    if row < padding || row >= op.from.height + padding {
                        std::slice::from_raw_parts_mut(to, kernel * channels).fill(T::ZERO);
                    } else {
                        let at = ((row - padding) * op.from.width + pixel * stride + left).wrapping_sub(padding);
                        let (a, b) = (left * channels, right * channels);
                        std::slice::from_raw_parts_mut(to, a).fill(T::ZERO);
                        if b > a {
                            std::ptr::copy_nonoverlapping(x.add(at * channels), to.add(a), b - a);
                        }
                        std::slice::from_raw_parts_mut(to.add(b), kernel * channels - b).fill(T::ZERO);
                    }
                    to = to.add(kernel * channels);
                }
            }
        }
    }
}

/// The transpose of `gather`: adds gradients of patches to their image (col2im).
///
/// # Safety
/// As for `gather`; nothing else accesses the image at `dx`.
unsafe fn scatter<T: Real>(op: &Convolution, dx: *mut T, first: usize, count: usize, patches: *const T) {
    debug_assert!(first + count <= op.to.height && dx.is_aligned() && patches.is_aligned());
    let channels = op.from.channels;
    let (kernel, stride, padding) = (op.window.kernel, op.window.stride, op.window.padding);
    let mut from = patches;
    for line in first..first + count {
        for pixel in 0..op.to.width {
            let (left, right) = inside(op, pixel);
            for p in 0..kernel {
                let row = line * stride + p;
                if row >= padding && row < op.from.height + padding && right > left {
                    let at = ((row - padding) * op.from.width + pixel * stride + left) - padding;
                    let n = (right - left) * channels;
                    // SAFETY: pixels of one line of the image, which belongs to this task.
                    let (into, out) = unsafe {
                        let into = std::slice::from_raw_parts_mut(dx.add(at * channels), n);
                        (into, std::slice::from_raw_parts(from.add(left * channels), n))
                    };
                    for (d, &g) in into.iter_mut().zip(out) {
                        *d += g;
                    }
                }
                // SAFETY: the patches lie one after another.
                from = unsafe { from.add(kernel * channels) };
            }
        }
    }
}

impl<T: Real> Worker<T> {
    /// Images of each value.
    fn image_counts<'a>(&'a self, values: &'a [Value]) -> impl Iterator<Item = usize> + Clone + 'a {
        values.iter().map(|&v| self.rows_of(v))
    }

    pub(super) fn convolution_forward(&mut self, params: &[T], packed: &PackedWeights<T>, op: &Convolution) {
        let this = &*self;
        let (step, patch) = (lines(op), op.patch());
        let counts = this.image_counts(&op.xs);
        self.threads.run(counts.clone().sum(), |t| {
            let (k, image) = locate(t, counts.clone());
            this.scratch.with(step * op.to.width * patch, |patches| {
                for first in (0..op.to.height).step_by(step) {
                    let count = step.min(op.to.height - first);
                    // SAFETY: a task writes its own image.
                    unsafe {
                        let x = this.value(op.xs[k]).at(image * op.from.numbers());
                        gather(op, x, first, count, patches);
                        let channels = op.to.channels;
                        let y = this.value(op.ys[k]).at(image * op.to.numbers() + first * op.to.width * channels);
                        T::dispatch(PackedProduct {
                            bias: op.bias.map_or(std::ptr::null(), |b| this.param(params, b)),
                            ..PackedProduct::plain(
                                [count * op.to.width, patch, channels],
                                patches,
                                packed.forward(op.weight),
                                y,
                            )
                        });
                    }
                }
            });
        });
    }

    pub(super) fn convolution_backward(&mut self, run: &mut Run<T>, op: &Convolution) {
        self.convolution_inputs(run, op);
        self.convolution_weights(run, op);
    }

    fn convolution_inputs(&mut self, run: &mut Run<T>, op: &Convolution) {
        let this = &*self;
        let (step, patch, channels) = (lines(op), op.patch(), op.to.channels);
        let counts = op.xs.iter().map(|&x| if this.wants_grad(x) { this.rows_of(x) } else { 0 });
        let packed = run.packed;
        self.threads.run(counts.clone().sum(), |t| {
            let (k, image) = locate(t, counts.clone());
            this.scratch.with(step * op.to.width * patch, |patches| {
                // SAFETY: a task changes the gradient of its own image.
                unsafe {
                    let dx = this.grad(op.xs[k]).at(image * op.from.numbers());
                    if !this.grad_written(op.xs[k]) {
                        std::slice::from_raw_parts_mut(dx, op.from.numbers()).fill(T::ZERO);
                    }
                    for first in (0..op.to.height).step_by(step) {
                        let count = step.min(op.to.height - first);
                        let dy = this.grad(op.ys[k]).at(image * op.to.numbers() + first * op.to.width * channels);
                        let packed = packed.backward(op.weight);
                        T::dispatch(PackedProduct::plain([count * op.to.width, channels, patch], dy, packed, patches));
                        scatter(op, dx, first, count, patches);
                    }
                }
            });
        });
        op.xs.iter().for_each(|&x| self.mark_written(x));
    }

    fn convolution_weights(&mut self, run: &mut Run<T>, op: &Convolution) {
        let (step, patch, channels) = (lines(op), op.patch(), op.to.channels);
        let images: usize = self.image_counts(&op.xs).sum();
        let parts = images.clamp(1, PARTS);
        // A part: the gradient of the weight, then that of the bias.
        let len = channels * patch + channels;
        let partials = Ptr(self.partials(parts * len));
        let this = &*self;
        let counts = this.image_counts(&op.xs);
        let patches_len = (step * op.to.width * patch).next_multiple_of(16);
        self.threads.run(parts, |part| {
            this.scratch.with(patches_len + weight_scratch::<T>(channels, patch), |scratch| {
                // SAFETY: the part belongs to this task; both buffers lie in its scratch.
                unsafe {
                    let (patches, scratch) = (scratch, scratch.add(patches_len));
                    let sums = partials.at(part * len);
                    std::slice::from_raw_parts_mut(sums, len).fill(T::ZERO);
                    for i in images * part / parts..images * (part + 1) / parts {
                        let (k, image) = locate(i, counts.clone());
                        let x = this.value(op.xs[k]).at(image * op.from.numbers());
                        for first in (0..op.to.height).step_by(step) {
                            let count = step.min(op.to.height - first);
                            gather(op, x, first, count, patches);
                            let dy = this.grad(op.ys[k]).at(image * op.to.numbers() + first * op.to.width * channels);
                            T::dispatch(WeightProduct {
                                m: channels,
                                n: patch,
                                rows: count * op.to.width,
                                a: dy,
                                a_row: channels,
                                b: patches,
                                b_row: patch,
                                c: sums,
                                c_row: patch,
                                sums: sums.add(channels * patch),
                                scratch,
                            });
                        }
                    }
                }
            });
        });
        let grads = Ptr(run.grads.as_mut_ptr());
        let add = |param: ParamId, at: usize| {
            let spec = this.program.params.spec(param);
            this.threads.run(spec.len().div_ceil(SUMS), |c| {
                let first = c * SUMS;
                let n = SUMS.min(spec.len() - first);
                // SAFETY: a task adds to its own elements of the gradient; all parts have been written.
                unsafe {
                    let grads = std::slice::from_raw_parts_mut(grads.at(spec.offset + first), n);
                    for part in 0..parts {
                        let sums = std::slice::from_raw_parts(partials.at(part * len + at + first), n);
                        grads.iter_mut().zip(sums).for_each(|(g, s)| *g += *s);
                    }
                }
            });
        };
        add(op.weight, 0);
        if let Some(bias) = op.bias {
            add(bias, channels * patch);
        }
    }
}
