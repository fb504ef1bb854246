//! Batch normalisation of images, alone or with the max pooling that follows, and max pooling alone.

use std::ops::Range;

use super::super::tables as t;
use super::Builder;
use crate::error::Error;
use crate::program::{Activation, BatchNorm, MaxPool, Mode, Op, Program, Value};

/// Blocks that sum over the pixels of all values.
const SUM_BLOCKS: usize = 264;

/// Whether kernels take four channels at a time.
fn in_chunks(channels: usize) -> bool {
    channels.is_multiple_of(4) && channels <= 1024
}

/// Whether an operation is a batch norm whose images nobody sees but the pooling after it, so that they need not be written.
pub(super) fn is_pooled(program: &Program, i: usize) -> bool {
    let (Op::BatchNorm(norm), Some(Op::MaxPool(pool))) = (&program.ops[i], program.ops.get(i + 1)) else {
        return false;
    };
    let readers = |v: &Value| program.ops.iter().filter(|op| op.uses().reads.contains(v)).count();
    let unseen = |v: &Value| !program.outputs.contains(v) && readers(v) == 1;
    in_chunks(norm.channels) && norm.channels == pool.from.channels && norm.ys == pool.xs && norm.ys.iter().all(unseen)
}

/// Sums that convolutions leave for the batch norm that follows: parts of `2 · channels` doubles, one for every `pixels` pixels, and room for `blocks` of
/// them for each value.
pub(super) struct Moments {
    parts: u64,
    channels: usize,
    blocks: usize,
    pixels: usize,
}

impl Moments {
    /// Where those of a value begin; nowhere if they are not wanted.
    pub(super) fn of(this: &Option<Self>, value: usize) -> u64 {
        this.as_ref().map_or(0, |m| m.parts + 8 * (value * m.blocks * 2 * m.channels) as u64)
    }
}

impl<'a> Builder<'a> {
    /// Whether an operation is a batch norm that takes the statistics of these values.
    pub(super) fn wants_moments(&self, i: usize, values: &[Value]) -> bool {
        let training = self.program.mode == Mode::Train;
        training && matches!(self.program.ops.get(i), Some(Op::BatchNorm(norm)) if norm.xs == values)
    }

    /// Room for the moments of values.
    pub(super) fn moments_room(&mut self, values: &[Value], channels: usize, blocks: usize, pixels: usize) -> Moments {
        let parts = self.room(values.len() * blocks * 2 * channels * 2);
        Moments { parts, channels, blocks, pixels }
    }

    /// The pooling a group of operations ends with.
    pub(super) fn pooling(&self, group: Range<usize>) -> Option<&'a MaxPool> {
        match &self.program.ops[group.end - 1] {
            Op::MaxPool(pool) => Some(pool),
            _ => None,
        }
    }

    /// A task for every value, without addresses of gradients.
    fn batch_norm_tasks(&self, op: &BatchNorm, pool: Option<&MaxPool>, parts: u64) -> Vec<t::BatchNormTask> {
        let made = pool.map_or(&op.ys, |p| &p.ys);
        let tasks = op.xs.iter().zip(made).enumerate();
        tasks
            .map(|(i, (&x, &y))| t::BatchNormTask {
                x: self.value(x),
                dy: 0,
                gain: self.param(op.gain),
                shift: self.param(op.shift),
                stats: self.value(op.stats),
                means: 0,
                y: self.value(y),
                dx: 0,
                parts: parts + 8 * (i * sum_blocks(op) * 2 * op.channels) as u64,
                channels: op.channels as i32,
                pixels: (self.program.values[x.0].cols / op.channels) as i32,
                relu: i32::from(op.activation == Activation::Relu),
                accumulate: i32::from(self.written[x.0]),
                width: pool.map_or(0, |p| p.from.width as i32),
                space: self.space(x),
            })
            .collect()
    }

    /// Room for the parts of all values, in doubles.
    fn batch_norm_room(&mut self, op: &BatchNorm) -> u64 {
        self.room(op.xs.len() * sum_blocks(op) * 2 * op.channels * 2)
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
            blocks: sum_blocks(op) as i32,
            channels: op.channels as i32,
            pixels: 0,
        }
    }

    pub(super) fn batch_norm_forward(&mut self, op: &BatchNorm, pool: Option<&MaxPool>) -> Result<(), Error> {
        self.check_images(&op.xs)?;
        let training = self.program.mode == Mode::Train;
        let moments = self.moments.take();
        let parts = if training && moments.is_none() { self.batch_norm_room(op) } else { 0 };
        let tasks = self.batch_norm_tasks(op, pool, parts);
        let mut channel = self.channel_task(op, &tasks, parts);
        if training {
            // Statistics are those of all pixels.
            if let Some(moments) = moments {
                channel.parts = moments.parts;
                channel.blocks = moments.blocks as i32;
                channel.pixels = moments.pixels as i32;
            } else {
                let name = kernel("image_moments", op, None);
                self.launch(&name, &tasks, [sum_blocks(op), tasks.len(), 1], 256, 0)?;
            }
            self.launch("image_statistics", &[channel], [op.channels.div_ceil(4), 1, 1], 512, 0)?;
        } else {
            self.walk("image_running", &[channel], op.channels)?;
        }
        let most = self.batch_norm_numbers(op);
        self.walk(&kernel("image_normalise", op, pool), &tasks, most)
    }

    pub(super) fn batch_norm_backward(&mut self, op: &BatchNorm, pool: Option<&MaxPool>) -> Result<(), Error> {
        let parts = self.batch_norm_room(op);
        let means = self.room(2 * op.channels);
        let mut tasks = self.batch_norm_tasks(op, pool, parts);
        let made = pool.map_or(&op.ys, |p| &p.ys);
        for ((task, &x), &y) in tasks.iter_mut().zip(&op.xs).zip(made) {
            task.dy = self.grad(y);
            task.dx = if self.wants_grad(x) { self.grad(x) } else { 0 };
            task.means = means;
        }
        let channel = t::ChannelTask { means, ..self.channel_task(op, &tasks, parts) };
        let name = kernel("image_slopes", op, pool);
        self.launch(&name, &tasks, [sum_blocks(op), tasks.len(), 1], 256, 0)?;
        self.launch("image_gradients", &[channel], [op.channels.div_ceil(4), 1, 1], 512, 0)?;
        tasks.retain(|task| task.dx != 0);
        let most = self.batch_norm_numbers(op);
        self.walk(&kernel("image_normalise_backward", op, pool), &tasks, most)?;
        op.xs.iter().for_each(|x| self.written[x.0] = true);
        Ok(())
    }

    /// What the threads of a kernel that walks over all numbers have to share: one number each, or four of four pixels.
    fn batch_norm_numbers(&self, op: &BatchNorm) -> usize {
        let most = op.xs.iter().map(|&x| self.len_of(x)).max().unwrap_or(0);
        if in_chunks(op.channels) { most.div_ceil(16) } else { most }
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
                winners: self.value(op.argmax[k]),
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

/// Blocks that sum over the pixels of one value.
fn sum_blocks(op: &BatchNorm) -> usize {
    (SUM_BLOCKS / op.xs.len().max(1)).max(1)
}

/// The kernel of this name for these channels.
fn kernel(name: &str, op: &BatchNorm, pool: Option<&MaxPool>) -> String {
    let kind = match pool {
        Some(_) => "_pooled",
        None if in_chunks(op.channels) => "_vec",
        None => "",
    };
    format!("{name}{kind}")
}

#[cfg(test)]
mod tests {
    use super::super::together;
    use super::*;
    use crate::program::Image;

    #[test]
    fn a_pooling_joins_the_batch_norm_whose_images_nobody_else_sees() {
        let sizes = |channels: usize, seen: bool, twice: bool| {
            let image = Image { height: 6, width: 5, channels };
            let mut b = Program::builder(&[image.numbers(); 2], false, Mode::Train, true);
            let xs = [b.input(0), b.input(1)];
            let normed = b.batch_norm("n", &xs, image, Activation::Relu);
            let (mut outputs, _) = b.max_pool(&normed, image);
            if seen {
                outputs.push(normed[1]);
            }
            if twice {
                outputs.extend(b.max_pool(&normed[..1], image).0);
            }
            together(&b.finish(outputs), &[]).into_iter().map(|group| group.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(8, false, false), [2]);
        assert_eq!(sizes(8, true, false), [1, 1]);
        assert_eq!(sizes(8, false, true), [1, 1, 1]);
        assert_eq!(sizes(7, false, false), [1, 1], "channels that are not in chunks");
    }
}
