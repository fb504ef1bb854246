//! Images: convolutions, batch normalisation, max pooling.

use super::super::tables as t;
use super::Builder;
use crate::error::Error;
use crate::program::{Activation, BatchNorm, Convolution, Image, MaxPool, Mode, Op, Value};

/// Blocks that sum over the pixels of a value in batch normalisation.
const SUM_BLOCKS: usize = 264;

/// Parts a weight's gradient is summed from are spread over about this many blocks.
const WEIGHT_BLOCKS: usize = 1056;

/// Whether a program needs the kernels of images.
pub(in super::super) fn has_images(ops: &[Op]) -> bool {
    ops.iter().any(|op| matches!(op, Op::Convolution(_) | Op::BatchNorm(_) | Op::MaxPool(_)))
}

impl<'a> Builder<'a> {
    /// Kernels count numbers of a value in 32 bits.
    fn check_images(&self, values: &[Value]) -> Result<(), Error> {
        match values.iter().map(|&v| self.len_of(v)).max() {
            Some(most) if most > i32::MAX as usize => {
                Err(Error::Device(format!("a batch makes {most} numbers of its images; lower the batch size")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn convolution_forward(&mut self, op: &Convolution) -> Result<(), Error> {
        self.check_images(&op.xs)?;
        self.check_images(&op.ys)?;
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
            let vec_b = i32::from(outputs.is_multiple_of(4) && self.aligned_param(op.weight));
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
            self.convolve(&tasks, &op.xs, op.from)?;
        }
        op.xs.iter().for_each(|x| self.written[x.0] = true);
        self.convolution_weights(op)
    }

    fn convolution_weights(&mut self, op: &Convolution) -> Result<(), Error> {
        let (n, k) = (op.to.channels, op.patch());
        let (name, tile, block) =
            if n.min(k) >= 64 { ("image_weights_wide", 64, 128) } else { ("image_weights_narrow", 32, 64) };
        let tiles = n.div_ceil(tile) * k.div_ceil(tile);
        let pixels = op.ys.iter().map(|&y| self.rows(y) * op.to.pixels()).max().unwrap_or(0);
        let splits = (WEIGHT_BLOCKS / (tiles * op.xs.len())).clamp(1, pixels.div_ceil(256).max(1));
        let slot = n * k + n;
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
                pad: 0,
            })
            .collect();
        self.launch(name, &tasks, [tiles, splits, tasks.len()], block, 3 * 32 * (2 * tile + 16) * 4)?;
        let sum = |offset: usize, out: u64, len: usize| t::SumTask {
            parts: parts + 4 * offset as u64,
            out,
            stride: slot as u64,
            count: (op.xs.len() * splits) as i32,
            len: len as i32,
            rows_per_part: 0,
            vec: 0,
            space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
            pad2: 0,
        };
        self.sums.push(sum(0, self.param_grad(op.weight), n * k));
        if let Some(bias) = op.bias {
            self.sums.push(sum(n * k, self.param_grad(bias), n));
        }
        Ok(())
    }

    /// A task for every value, without addresses of gradients.
    fn batch_norm_tasks(&self, op: &BatchNorm, parts: u64) -> Vec<t::BatchNormTask> {
        let tasks = op.xs.iter().zip(&op.ys).enumerate();
        tasks
            .map(|(i, (&x, &y))| {
                let pixels = self.program.values[x.0].cols / op.channels;
                t::BatchNormTask {
                    x: self.value(x),
                    dy: 0,
                    gain: self.param(op.gain),
                    shift: self.param(op.shift),
                    stats: self.value(op.stats),
                    means: 0,
                    y: self.value(y),
                    dx: 0,
                    parts: parts + 8 * (i * SUM_BLOCKS * 2 * op.channels) as u64,
                    channels: op.channels as i32,
                    pixels: pixels as i32,
                    relu: i32::from(op.activation == Activation::Relu),
                    accumulate: i32::from(self.written[x.0]),
                    each: (self.rows(x) * pixels).div_ceil(SUM_BLOCKS) as i32,
                    pad: 0,
                    space: self.space(x),
                    pad2: 0,
                }
            })
            .collect()
    }

    /// Room for the parts of all values, in doubles.
    fn batch_norm_room(&mut self, op: &BatchNorm) -> u64 {
        self.room(op.xs.len() * SUM_BLOCKS * 2 * op.channels * 2)
    }

    fn channel_task(&mut self, op: &BatchNorm, tasks: &[t::BatchNormTask], parts: u64) -> t::ChannelTask {
        t::ChannelTask {
            values: self.tables.push(tasks),
            parts,
            mean: self.param(op.mean),
            variance: self.param(op.variance),
            stats: self.value(op.stats),
            means: 0,
            d_gain: self.param_grad(op.gain),
            d_shift: self.param_grad(op.shift),
            d_mean: self.param_grad(op.mean),
            d_variance: self.param_grad(op.variance),
            count: tasks.len() as i32,
            blocks: SUM_BLOCKS as i32,
            channels: op.channels as i32,
            pad: 0,
        }
    }

    pub(super) fn batch_norm_forward(&mut self, op: &BatchNorm) -> Result<(), Error> {
        self.check_images(&op.xs)?;
        let training = self.program.mode == Mode::Train;
        let parts = if training { self.batch_norm_room(op) } else { 0 };
        let tasks = self.batch_norm_tasks(op, parts);
        let channel = self.channel_task(op, &tasks, parts);
        if training {
            self.launch("image_moments", &tasks, [SUM_BLOCKS, tasks.len(), 1], 256, 0)?;
            self.launch("image_statistics", &[channel], [op.channels, 1, 1], 32, 0)?;
        } else {
            self.walk("image_running", &[channel], op.channels)?;
        }
        let most = op.xs.iter().map(|&x| self.len_of(x)).max().unwrap_or(0);
        self.walk("image_normalise", &tasks, most)
    }

    pub(super) fn batch_norm_backward(&mut self, op: &BatchNorm) -> Result<(), Error> {
        let parts = self.batch_norm_room(op);
        let means = self.room(2 * op.channels);
        let mut tasks = self.batch_norm_tasks(op, parts);
        for ((task, &x), &y) in tasks.iter_mut().zip(&op.xs).zip(&op.ys) {
            task.dy = self.grad(y);
            task.dx = if self.wants_grad(x) { self.grad(x) } else { 0 };
            task.means = means;
        }
        let channel = t::ChannelTask { means, ..self.channel_task(op, &tasks, parts) };
        self.launch("image_slopes", &tasks, [SUM_BLOCKS, tasks.len(), 1], 256, 0)?;
        self.launch("image_gradients", &[channel], [op.channels, 1, 1], 32, 0)?;
        tasks.retain(|task| task.dx != 0);
        let most = op.xs.iter().map(|&x| self.len_of(x)).max().unwrap_or(0);
        self.walk("image_normalise_backward", &tasks, most)?;
        op.xs.iter().for_each(|x| self.written[x.0] = true);
        Ok(())
    }

    pub(super) fn max_pool(&mut self, op: &MaxPool, backward: bool) -> Result<(), Error> {
        self.check_images(&op.xs)?;
        let mut tasks = Vec::new();
        for (k, (&x, &y)) in op.xs.iter().zip(&op.ys).enumerate() {
            if backward && !self.wants_grad(x) {
                continue;
            }
            let (from, to) = if backward { (self.grad(y), self.grad(x)) } else { (self.value(x), self.value(y)) };
            tasks.push(t::MaxPoolTask {
                from,
                to,
                winners: self.value(op.winners[k]),
                height: op.from.height as i32,
                width: op.from.width as i32,
                channels: op.from.channels as i32,
                accumulate: i32::from(backward && self.written[x.0]),
                space: self.space(x),
                pad: 0,
            });
        }
        let (name, made) = if backward { ("image_max_pool_backward", &op.xs) } else { ("image_max_pool", &op.ys) };
        let most = made.iter().map(|&v| self.len_of(v)).max().unwrap_or(0);
        self.walk(name, &tasks, most)?;
        if backward {
            op.xs.iter().for_each(|x| self.written[x.0] = true);
        }
        Ok(())
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
