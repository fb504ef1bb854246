//! Max pooling of two by two pixels; a task takes one image.

use super::tasks::locate;
use super::worker::Worker;
use crate::program::MaxPool;
use crate::real::Real;

impl<T: Real> Worker<T> {
    /// Calls `f(input, image)` for every image of every input, in parallel.
    fn each_image(&self, op: &MaxPool, f: impl Fn(usize, usize) + Sync + Send) {
        let counts = op.xs.iter().map(|&x| self.rows_of(x));
        self.threads.run(counts.clone().sum(), |t| {
            let (k, image) = locate(t, counts.clone());
            f(k, image);
        });
    }

    /// `y` is the maximum of each 2 × 2 cell, `argmax` its pixel (0 to 3, line by line). Writes both.
    pub(super) fn max_pool_forward(&mut self, op: &MaxPool) {
        let this = &*self;
        let (from, to) = (op.from, op.to());
        let (channels, line) = (from.channels, from.width * from.channels);
        self.each_image(op, |k, image| {
            // SAFETY: `image < rows_of(xs[k])`, so all three images exist; (k, image) is this task's alone, and `ys`
            // and `argmax` are buffers of their own.
            let (x, y, argmax) = unsafe {
                (
                    std::slice::from_raw_parts(this.value(op.xs[k]).at(image * from.numbers()), from.numbers()),
                    std::slice::from_raw_parts_mut(this.value(op.ys[k]).at(image * to.numbers()), to.numbers()),
                    std::slice::from_raw_parts_mut(this.value(op.argmax[k]).at(image * to.numbers()), to.numbers()),
                )
            };
            let pixels = y.chunks_exact_mut(channels).zip(argmax.chunks_exact_mut(channels));
            for (i, (y, argmax)) in pixels.enumerate() {
                let at = i / to.width * 2 * line + i % to.width * 2 * channels;
                let corner = |at: usize| &x[at..at + channels];
                y.copy_from_slice(corner(at));
                argmax.fill(T::ZERO);
                for (corner_index, at) in [(1, at + channels), (2, at + line), (3, at + line + channels)] {
                    let corner_index = T::from_usize(corner_index);
                    for ((y, argmax), &x) in y.iter_mut().zip(argmax.iter_mut()).zip(corner(at)) {
                        // NaN wins, so that it propagates.
                        let wins = x > *y || x.partial_cmp(&x).is_none();
                        *y = if wins { x } else { *y };
                        *argmax = if wins { corner_index } else { *argmax };
                    }
                }
            }
        });
    }

    /// `dx[argmax] += dy`, all else zero on the first contribution.
    pub(super) fn max_pool_backward(&mut self, op: &MaxPool) {
        let this = &*self;
        let (from, to) = (op.from, op.to());
        let (channels, line) = (from.channels, from.width * from.channels);
        self.each_image(op, |k, image| {
            if !this.wants_grad(op.xs[k]) {
                return;
            }
            // SAFETY: `xs` are distinct (`ProgramBuilder::op`), so (k, image) names an image of one gradient, which
            // this task alone accesses.
            let (dx, dy, argmax) = unsafe {
                (
                    std::slice::from_raw_parts_mut(this.grad(op.xs[k]).at(image * from.numbers()), from.numbers()),
                    std::slice::from_raw_parts(this.grad(op.ys[k]).at(image * to.numbers()), to.numbers()),
                    std::slice::from_raw_parts(this.value(op.argmax[k]).at(image * to.numbers()), to.numbers()),
                )
            };
            if !this.grad_written(op.xs[k]) {
                dx.fill(T::ZERO);
            }
            for (i, (dy, argmax)) in dy.chunks_exact(channels).zip(argmax.chunks_exact(channels)).enumerate() {
                let at = i / to.width * 2 * line + i % to.width * 2 * channels;
                for (c, (&d, &corner)) in dy.iter().zip(argmax).enumerate() {
                    let corner = corner.to_f64() as usize;
                    dx[at + corner / 2 * line + corner % 2 * channels + c] += d;
                }
            }
        });
        op.xs.iter().for_each(|&x| self.mark_written(x));
    }
}
