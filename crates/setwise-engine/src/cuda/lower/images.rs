//! Convolutions of images.

use super::super::tables as t;
use super::Builder;
use super::batch_norm::Moments;
use crate::error::Error;
use crate::program::{Convolution, Image, Op, Value};

/// Parts a weight's gradient is summed from are spread over about this many blocks.
const WEIGHT_BLOCKS: usize = 528;

/// The same for windows that keep an image's size: two to a multiprocessor.
const SAME_WEIGHT_BLOCKS: usize = 264;

/// Pixels whose gradients of weights are summed at a time there.
const STRETCH: usize = 128;

/// Whether a program needs the kernels of images.
pub(in super::super) fn has_images(ops: &[Op]) -> bool {
    ops.iter().any(|op| matches!(op, Op::Convolution(_) | Op::BatchNorm(_) | Op::MaxPool(_)))
}

impl<'a> Builder<'a> {
    /// Kernels count numbers of a value in 32 bits.
    pub(super) fn check_images(&self, values: &[Value]) -> Result<(), Error> {
        match values.iter().map(|&v| self.len_of(v)).max() {
            Some(most) if most > i32::MAX as usize => {
                Err(Error::Device(format!("a batch makes {most} numbers of its images; lower the batch size")))
            }
            _ => Ok(()),
        }
    }

    /// Leaves moments of the results, where a batch norm wants them and the kernel takes them.
    pub(super) fn convolution_forward(&mut self, op: &Convolution, moments: bool) -> Result<(), Error> {
        self.check_images(&op.xs)?;
        self.check_images(&op.ys)?;
        if let Some(windows) = self.few(op) {
            return self.few_forward(op, &windows, moments);
        }
        if let Some(same) = self.same(op, op.from.channels, op.to.channels).filter(|_| op.bias.is_none()) {
            let blocks = self.same_blocks(&same, &op.ys);
            let moments = moments.then(|| self.moments_room(&op.ys, op.to.channels, blocks, same.bm));
            let task = |(i, (&x, &y)): (usize, (&Value, &Value))| t::SameTask {
                x: self.value(x),
                w: self.param(op.weight),
                y: self.value(y),
                moments: Moments::of(&moments, i),
                turn: 1,
                accumulate: 0,
                ..same.task(op, self.space(x))
            };
            let tasks: Vec<t::SameTask> = op.xs.iter().zip(&op.ys).enumerate().map(task).collect();
            self.moments = moments;
            return self.convolve_same(&same, &tasks, &op.ys);
        }
        let tasks: Vec<t::ConvolveTask> = op
            .xs
            .iter()
            .zip(&op.ys)
            .map(|(&x, &y)| t::ConvolveTask {
                x: self.value(x),
                w: self.param(op.weight),
                bias: op.bias.map_or(0, |b| self.param(b)),
                y: self.value(y),
                up: op.window.stride as i32,
                off: -(op.window.padding as i32),
                turn: 1,
                down: 1,
                vec_b: i32::from(op.patch().is_multiple_of(4) && self.aligned_param(op.weight)),
                ..sizes(op, op.from, op.to, self.space(x))
            })
            .collect();
        self.convolve(&tasks, &op.ys, op.to)
    }

    /// How a convolution or the gradient of its input is done where the window keeps an image's size, in whole chunks of channels.
    fn same(&self, op: &Convolution, from: usize, to: usize) -> Option<Same> {
        let window = op.window;
        let keeps = window.stride == 1 && window.kernel == 2 * window.padding + 1 && (3..=15).contains(&window.kernel);
        if !keeps || !from.is_multiple_of(32) || !to.is_multiple_of(4) || !self.aligned_param(op.weight) {
            return None;
        }
        let (bm, bn) = if to > 32 { (128, 64) } else { (256, 32) };
        // Three stages of weights, where warpgroups multiply from a multiple of 1024 bytes on.
        let (name, stages) = match (self.module.wide, to > 32) {
            (true, true) => ("image_same_group_64", 1024 + 3 * bn * 32 * 4),
            (true, false) => ("image_same_group_32", 1024 + 3 * bn * 32 * 4),
            (false, true) => ("image_same_wide", 3 * bn * 36 * 4),
            (false, false) => ("image_same_narrow", 3 * bn * 36 * 4),
        };
        // One row of zeros, and what pixels see of one chunk of channels or two.
        let seen = bm + 2 * window.padding * (op.from.width + 1);
        let shared = stages + (1 + seen * if from > 32 { 2 } else { 1 }) * 36 * 4;
        self.module.fits(shared).then_some(Same { name, bm, bn, shared, from, to })
    }

    fn convolve_same(&mut self, same: &Same, tasks: &[t::SameTask], made: &[Value]) -> Result<(), Error> {
        let grid = [self.same_blocks(same, made), same.to.div_ceil(same.bn), tasks.len()];
        self.launch(same.name, tasks, grid, 128, same.shared)
    }

    /// Blocks that share the pixels of one value.
    fn same_blocks(&self, same: &Same, made: &[Value]) -> usize {
        made.iter().map(|&v| self.len_of(v) / same.to).max().unwrap_or(0).div_ceil(same.bm)
    }

    fn convolve(&mut self, tasks: &[t::ConvolveTask], made: &[Value], to: Image) -> Result<(), Error> {
        let (name, bn, block) =
            if to.channels > 32 { ("image_convolve_wide", 64, 256) } else { ("image_convolve_narrow", 32, 128) };
        let pixels = made.iter().map(|&v| self.rows(v) * to.pixels()).max().unwrap_or(0);
        let grid = [pixels.div_ceil(128), to.channels.div_ceil(bn), tasks.len()];
        self.launch(name, tasks, grid, block, 3 * (128 + bn) * 36 * 4)
    }

    pub(super) fn convolution_backward(&mut self, op: &Convolution) -> Result<(), Error> {
        let wanted: Vec<usize> = (0..op.xs.len()).filter(|&k| self.wants_grad(op.xs[k])).collect();
        if !wanted.is_empty() {
            let spec = self.program.params.spec(op.weight);
            let turned = self.places.transposed + 4 * spec.offset as u64;
            let (outputs, channels) = (op.to.channels, op.from.channels);
            let turn = t::TurnTask {
                from: self.param(op.weight),
                to: turned,
                outputs: outputs as i32,
                taps: (spec.len() / (outputs * channels)) as i32,
                channels: channels as i32,
                pad: 0,
            };
            self.walk("image_turn", &[turn], spec.len())?;
            if let Some(same) = self.same(op, outputs, channels) {
                let task = |&k: &usize| t::SameTask {
                    x: self.grad(op.ys[k]),
                    w: turned,
                    y: self.grad(op.xs[k]),
                    turn: -1,
                    accumulate: i32::from(self.written[op.xs[k].0]),
                    ..same.task(op, self.space(op.xs[k]))
                };
                let tasks: Vec<t::SameTask> = wanted.iter().map(task).collect();
                self.convolve_same(&same, &tasks, &op.xs)?;
            } else {
                self.convolve_inputs(op, &wanted, turned)?;
            }
        }
        op.xs.iter().for_each(|x| self.written[x.0] = true);
        self.convolution_weights(op)
    }

    /// The gradient of the input for any window, from turned weights.
    fn convolve_inputs(&mut self, op: &Convolution, wanted: &[usize], turned: u64) -> Result<(), Error> {
        let vec_b = i32::from(op.to.channels.is_multiple_of(4) && self.aligned_param(op.weight));
        let tasks: Vec<t::ConvolveTask> = wanted
            .iter()
            .map(|&k| t::ConvolveTask {
                x: self.grad(op.ys[k]),
                w: turned,
                bias: 0,
                y: self.grad(op.xs[k]),
                up: 1,
                off: op.window.padding as i32,
                turn: -1,
                down: op.window.stride as i32,
                accumulate: i32::from(self.written[op.xs[k].0]),
                vec_b,
                ..sizes(op, op.to, op.from, self.space(op.xs[k]))
            })
            .collect();
        self.convolve(&tasks, &op.xs, op.from)
    }

    fn convolution_weights(&mut self, op: &Convolution) -> Result<(), Error> {
        let (n, k) = (op.to.channels, op.patch());
        let slot = n * k + n;
        // Kernels of one kind of window take no bias, and gradients in whole chunks of channels.
        let few = self.few(op).filter(|_| op.bias.is_none() && n.is_multiple_of(4));
        let (parts, splits) = match (few, self.same_weights_shared(op)) {
            (Some(windows), _) => self.few_weights(op, &windows, slot)?,
            (_, Some(shared)) => self.same_weights(op, slot, shared)?,
            _ => self.patch_weights(op, slot)?,
        };
        let sum = |offset: usize, out: u64, len: usize| t::SumTask {
            parts: parts + 4 * offset as u64,
            out,
            stride: slot as u64,
            count: (op.xs.len() * splits) as i32,
            len: len as i32,
            rows_per_part: 0,
            vec: 0,
            space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
            fresh: 0,
        };
        self.sums.push(sum(0, self.param_grad(op.weight), n * k));
        if let Some(bias) = op.bias {
            self.sums.push(sum(n * k, self.param_grad(bias), n));
        }
        Ok(())
    }

    /// Shared memory for the gradient of weights of a 3 by 3 window that keeps an image's size, where that kernel can be used.
    fn same_weights_shared(&self, op: &Convolution) -> Option<usize> {
        self.same(op, op.from.channels, op.to.channels)?;
        // Two stages of what pixels see and of gradients, and where rows of two steps lie in memory.
        let held = STRETCH + 2 * (op.from.width + 2);
        let shared = (2 * (held + STRETCH) * 32 + (held + STRETCH).next_power_of_two()) * 4;
        (op.window.kernel == 3 && op.bias.is_none() && self.module.fits(shared)).then_some(shared)
    }

    /// Leaves parts of a gradient; returns where, and how many of each value.
    fn same_weights(&mut self, op: &Convolution, slot: usize, shared: usize) -> Result<(u64, usize), Error> {
        let tiles = op.to.channels.div_ceil(32) * (op.from.channels / 32);
        let pixels = op.ys.iter().map(|&y| self.rows(y) * op.to.pixels()).max().unwrap_or(0);
        let splits = (SAME_WEIGHT_BLOCKS / (tiles * op.xs.len())).clamp(1, pixels.div_ceil(2 * STRETCH).max(1));
        let parts = self.room(op.xs.len() * splits * slot);
        let task = |(i, (&x, &y)): (usize, (&Value, &Value))| t::SameWeightsTask {
            dy: self.grad(y),
            x: self.value(x),
            parts: parts + 4 * (i * splits * slot) as u64,
            height: op.from.height as i32,
            width: op.from.width as i32,
            from_c: op.from.channels as i32,
            n: op.to.channels as i32,
            splits: splits as i32,
            space: self.space(x),
        };
        let tasks: Vec<t::SameWeightsTask> = op.xs.iter().zip(&op.ys).enumerate().map(task).collect();
        self.launch("image_same_weights", &tasks, [tiles, splits, tasks.len()], 128, shared)?;
        Ok((parts, splits))
    }

    /// The same for any window.
    fn patch_weights(&mut self, op: &Convolution, slot: usize) -> Result<(u64, usize), Error> {
        let (n, k) = (op.to.channels, op.patch());
        let (name, bm, bn, block) = match (n.min(k), k) {
            (64.., _) => ("image_weights_wide", 64, 64, 128),
            (_, 33..) => ("image_weights_flat", 32, 64, 128),
            _ => ("image_weights_narrow", 32, 32, 64),
        };
        let tiles = n.div_ceil(bm) * k.div_ceil(bn);
        let pixels = op.ys.iter().map(|&y| self.rows(y) * op.to.pixels()).max().unwrap_or(0);
        let splits = (WEIGHT_BLOCKS / (tiles * op.xs.len())).clamp(1, pixels.div_ceil(256).max(1));
        let parts = self.room(op.xs.len() * splits * slot);
        let tasks: Vec<t::PatchTask> = op
            .xs
            .iter()
            .zip(&op.ys)
            .enumerate()
            .map(|(i, (&x, &y))| t::PatchTask {
                dy: self.grad(y),
                x: self.value(x),
                parts: parts + 4 * (i * splits * slot) as u64,
                from_h: op.from.height as i32,
                from_w: op.from.width as i32,
                from_c: op.from.channels as i32,
                to_h: op.to.height as i32,
                to_w: op.to.width as i32,
                n: n as i32,
                kernel: op.window.kernel as i32,
                stride: op.window.stride as i32,
                padding: op.window.padding as i32,
                splits: splits as i32,
                vec_dy: i32::from(n.is_multiple_of(4)),
                vec_x: i32::from(op.from.channels.is_multiple_of(4)),
                space: self.space(x),
                bias: i32::from(op.bias.is_some()),
            })
            .collect();
        self.launch(name, &tasks, [tiles, splits, tasks.len()], block, 3 * 32 * (bm + bn + 16) * 4)?;
        Ok((parts, splits))
    }
}

/// A convolution or the gradient of one's input that keeps an image's size: its kernel, the pixels and channels of a block, its shared memory,
/// and the channels it goes from and to.
struct Same {
    name: &'static str,
    bm: usize,
    bn: usize,
    shared: usize,
    from: usize,
    to: usize,
}

impl Same {
    /// A task without addresses and direction.
    fn task(&self, op: &Convolution, space: t::Space) -> t::SameTask {
        t::SameTask {
            x: 0,
            w: 0,
            y: 0,
            moments: 0,
            height: op.from.height as i32,
            width: op.from.width as i32,
            from_c: self.from as i32,
            n: self.to as i32,
            kernel: op.window.kernel as i32,
            turn: 0,
            accumulate: 0,
            space,
        }
    }
}

/// A task from images of one size to images of another, without addresses and direction.
fn sizes(op: &Convolution, from: Image, to: Image, space: t::Space) -> t::ConvolveTask {
    t::ConvolveTask {
        x: 0,
        w: 0,
        bias: 0,
        y: 0,
        from_h: from.height as i32,
        from_w: from.width as i32,
        from_c: from.channels as i32,
        to_h: to.height as i32,
        to_w: to.width as i32,
        n: to.channels as i32,
        kernel: op.window.kernel as i32,
        up: 0,
        off: 0,
        turn: 0,
        down: 0,
        accumulate: 0,
        vec_a: i32::from(from.channels.is_multiple_of(4)),
        vec_b: 0,
        space,
        pad: 0,
    }
}
