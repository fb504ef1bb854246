//! Convolutions of images as products (im2col): `Y = P Wᵀ + b`, see [`Convolution`]. A row of `P` is the patch of an
//! output pixel.
//!
//! Images are `[height, width, channels]`. A patch is `[window line, window column, channel]`, the order of `W[o, p, q,
//! c]`.
//!
//! A thread's scratch holds the patches of a few lines of one image: 256 KiB in f32, 512 KiB in f64. The patches of a
//! batch would take many times the memory of its images.
//!
//! Backward, a task owns the input gradient of one image: `dP = dY W`, scattered. The weight gradient `dYᵀ P` and the
//! bias gradient are sums of min(images, 16) parts, contiguous ranges of images. A part is owned by one task; then the
//! parts are added in order.

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

/// Elements of a gradient that one task adds up over all parts.
const ADD_CHUNK: usize = 4096;

/// Output lines whose patches lie in the scratch together.
fn lines_per_block(op: &Convolution) -> usize {
    (PATCHES / (op.to.width * op.patch()).max(1)).clamp(1, op.to.height)
}

/// The half-open range of window columns `q` with `0 ≤ output_column · stride + q − padding < width`. If the window
/// lies beside the image, both ends are equal.
fn inside(op: &Convolution, output_column: usize) -> (usize, usize) {
    let (kernel, padding, at) = (op.window.kernel, op.window.padding, output_column * op.window.stride);
    let left = padding.saturating_sub(at).min(kernel);
    (left, (op.from.width + padding).saturating_sub(at).min(kernel).max(left))
}

/// Writes the patches of output lines `first..first + count` of the image at `x`, one after another (im2col). It copies
/// and fills, so memory bounds it whatever the instructions: it is no `Kernel`.
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
        for output_column in 0..op.to.width {
            let (left, right) = inside(op, output_column);
            for window_line in 0..kernel {
                // SAFETY: `to` is line `window_line` of the patch of one of `count · to.width` pixels. Each line takes
                // `kernel · channels` elements, so the last `add` ends one past the patches. `left ≤ right ≤ kernel`,
                // so all parts lie in it. `padded_line − padding` is a line of the image. `inside` gives columns
                // `left..right` of the window with `0 ≤ column`, `column + right − left ≤ width`.
                unsafe {
                    let padded_line = line * stride + window_line;
                    if padded_line < padding || padded_line >= op.from.height + padding {
                        std::slice::from_raw_parts_mut(to, kernel * channels).fill(T::ZERO);
                    } else {
                        // Wraps only if `left == right`; then nothing is read.
                        let pixel = ((padded_line - padding) * op.from.width + output_column * stride + left)
                            .wrapping_sub(padding);
                        let (left_end, right_start) = (left * channels, right * channels);
                        std::slice::from_raw_parts_mut(to, left_end).fill(T::ZERO);
                        if right_start > left_end {
                            let source = x.add(pixel * channels);
                            std::ptr::copy_nonoverlapping(source, to.add(left_end), right_start - left_end);
                        }
                        std::slice::from_raw_parts_mut(to.add(right_start), kernel * channels - right_start)
                            .fill(T::ZERO);
                    }
                    to = to.add(kernel * channels);
                }
            }
        }
    }
}

/// The transpose of `gather`: adds gradients of patches to their image (col2im). Memory bounds it too.
///
/// # Safety
/// As for `gather`; nothing else accesses the image at `dx`.
unsafe fn scatter<T: Real>(op: &Convolution, dx: *mut T, first: usize, count: usize, patches: *const T) {
    debug_assert!(first + count <= op.to.height && dx.is_aligned() && patches.is_aligned());
    let channels = op.from.channels;
    let (kernel, stride, padding) = (op.window.kernel, op.window.stride, op.window.padding);
    let mut from = patches;
    for line in first..first + count {
        for output_column in 0..op.to.width {
            let (left, right) = inside(op, output_column);
            for window_line in 0..kernel {
                let padded_line = line * stride + window_line;
                if padded_line >= padding && padded_line < op.from.height + padding && right > left {
                    let pixel = ((padded_line - padding) * op.from.width + output_column * stride + left) - padding;
                    let n = (right - left) * channels;
                    // SAFETY: as in `gather`, `pixel` and the `right − left` pixels from it on lie in one line of the
                    // image, which nothing else accesses; `left..right` lies in the window line at `from`.
                    let (image, patch) = unsafe {
                        let image = std::slice::from_raw_parts_mut(dx.add(pixel * channels), n);
                        (image, std::slice::from_raw_parts(from.add(left * channels), n))
                    };
                    for (d, &g) in image.iter_mut().zip(patch) {
                        *d += g;
                    }
                }
                // SAFETY: the patches have `count · to.width · kernel` window lines; the last `add` ends one past them.
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

    /// Writes `ys`; a task owns one image of one of them.
    pub(super) fn convolution_forward(&mut self, params: &[T], packed: &PackedWeights<T>, op: &Convolution) {
        let this = &*self;
        let (lines, patch) = (lines_per_block(op), op.patch());
        let counts = this.image_counts(&op.xs);
        self.threads.run(counts.clone().sum(), |t| {
            let (k, image) = locate(t, counts.clone());
            this.scratch.with(lines * op.to.width * patch, |patches| {
                for first in (0..op.to.height).step_by(lines) {
                    let count = lines.min(op.to.height - first);
                    // SAFETY: `count ≤ lines` lines of patches fit the scratch. `image < rows_of(xs[k])`, so both
                    // images exist; no task writes `xs`. `packed.forward` is a packed `patch × channels` matrix, the
                    // bias has `channels` elements. (k, image) is this task's alone, and `ys` are buffers of their own.
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

    /// Writes the gradients of `xs`, or adds to those that hold a contribution; a task owns one image of one of them.
    fn convolution_inputs(&mut self, run: &mut Run<T>, op: &Convolution) {
        let this = &*self;
        let (lines, patch, channels) = (lines_per_block(op), op.patch(), op.to.channels);
        // Inputs without a gradient have no tasks.
        let counts = op.xs.iter().map(|&x| if this.wants_grad(x) { this.rows_of(x) } else { 0 });
        let packed = run.packed;
        self.threads.run(counts.clone().sum(), |t| {
            let (k, image) = locate(t, counts.clone());
            this.scratch.with(lines * op.to.width * patch, |patches| {
                // SAFETY: `ProgramBuilder::op` asserts that `xs` are distinct, so (k, image) names an image of one
                // gradient, and this task alone accesses it. `count ≤ lines` lines of patches fit the scratch. `dy` was
                // written by later operations; `packed.backward` is a packed `channels × patch` matrix.
                unsafe {
                    let dx = this.grad(op.xs[k]).at(image * op.from.numbers());
                    if !this.grad_written(op.xs[k]) {
                        std::slice::from_raw_parts_mut(dx, op.from.numbers()).fill(T::ZERO);
                    }
                    for first in (0..op.to.height).step_by(lines) {
                        let count = lines.min(op.to.height - first);
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

    /// Adds to the gradients of weight and bias.
    fn convolution_weights(&mut self, run: &mut Run<T>, op: &Convolution) {
        let (lines, patch, channels) = (lines_per_block(op), op.patch(), op.to.channels);
        let images: usize = self.image_counts(&op.xs).sum();
        let parts = images.clamp(1, PARTS);
        // A part: the gradient of the weight, then that of the bias.
        let len = channels * patch + channels;
        let partials = Ptr(self.partials(parts * len));
        let this = &*self;
        let counts = this.image_counts(&op.xs);
        // A multiple of 64 bytes, so that the scratch of the product is aligned as the patches are.
        let patches_len = (lines * op.to.width * patch).next_multiple_of(16);
        self.threads.run(parts, |part| {
            this.scratch.with(patches_len + weight_scratch::<T>(channels, patch), |scratch| {
                // SAFETY: `partials` has `parts · len` elements and is not resized while tasks run; elements
                // `part · len..(part + 1) · len` are this task's. The scratch holds the patches and, behind them,
                // `weight_scratch` elements. Values and the gradients of `ys` are only read.
                unsafe {
                    let (patches, scratch) = (scratch, scratch.add(patches_len));
                    let partial = partials.at(part * len);
                    std::slice::from_raw_parts_mut(partial, len).fill(T::ZERO);
                    for i in images * part / parts..images * (part + 1) / parts {
                        let (k, image) = locate(i, counts.clone());
                        let x = this.value(op.xs[k]).at(image * op.from.numbers());
                        for first in (0..op.to.height).step_by(lines) {
                            let count = lines.min(op.to.height - first);
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
                                c: partial,
                                c_row: patch,
                                bias_grad: partial.add(channels * patch),
                                scratch,
                            });
                        }
                    }
                }
            });
        });
        let grads = Ptr(run.grads.as_mut_ptr());
        // Adds the elements from `offset_in_part` on of all parts to the gradient of a parameter.
        let add = |param: ParamId, offset_in_part: usize| {
            let spec = this.program.params.spec(param);
            this.threads.run(spec.len().div_ceil(ADD_CHUNK), |c| {
                let first = c * ADD_CHUNK;
                let n = ADD_CHUNK.min(spec.len() - first);
                // SAFETY: `threads.run` above has returned, so all parts are written. The parameter has
                // `channels · patch` elements (the bias `channels`), so `offset_in_part + first + n ≤ len`. Tasks have
                // disjoint elements of the gradient, which `run` borrows exclusively.
                unsafe {
                    let grads = std::slice::from_raw_parts_mut(grads.at(spec.offset + first), n);
                    for part in 0..parts {
                        let partial = std::slice::from_raw_parts(partials.at(part * len + offset_in_part + first), n);
                        grads.iter_mut().zip(partial).for_each(|(g, p)| *g += *p);
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
