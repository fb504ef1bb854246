//! Batch normalisation of images, alone or fused with the max pooling that follows, and max pooling alone.

use std::ops::Range;

use super::super::kernel_tasks as t;
use super::Lowering;
use crate::error::Error;
use crate::program::{Activation, BatchNorm, MaxPool, Mode, Op, Program, Value};

/// Blocks that sum over the pixels of all values.
const SUM_BLOCKS: usize = 264;

/// Whether kernels process four channels at a time.
fn vectorisable(channels: usize) -> bool {
    channels.is_multiple_of(4) && channels <= 1024
}

/// Whether an operation is a batch norm that only the max pooling after it reads, so that its images need not be
/// written.
pub(super) fn is_pooled(program: &Program, i: usize) -> bool {
    let (Op::BatchNorm(norm), Some(Op::MaxPool(pool))) = (&program.ops[i], program.ops.get(i + 1)) else {
        return false;
    };
    let readers = |v: &Value| program.ops.iter().filter(|op| op.uses().reads.contains(v)).count();
    let unseen = |v: &Value| !program.outputs.contains(v) && readers(v) == 1;
    vectorisable(norm.channels)
        && norm.channels == pool.from.channels
        && norm.ys == pool.xs
        && norm.ys.iter().all(unseen)
}

/// Moments that a convolution writes for the batch norm after it: partial sums of `2 · channels` doubles, one per
/// `pixels` pixels, and up to `blocks` of them per value.
pub(super) struct Moments {
    partials: u64,
    channels: usize,
    blocks: usize,
    pixels: usize,
}

impl Moments {
    /// The address of a value's moments; null if they are not computed.
    pub(super) fn of(this: &Option<Self>, value: usize) -> u64 {
        this.as_ref().map_or(0, |m| m.partials + 8 * (value * m.blocks * 2 * m.channels) as u64)
    }
}

impl<'a> Lowering<'a> {
    /// Whether operation `i` is a batch norm that needs the statistics of these values.
    pub(super) fn wants_moments(&self, i: usize, values: &[Value]) -> bool {
        let training = self.program.mode == Mode::Train;
        training && matches!(self.program.ops.get(i), Some(Op::BatchNorm(norm)) if norm.xs == values)
    }

    /// Allocates the moments of values.
    pub(super) fn alloc_moments(&mut self, values: &[Value], channels: usize, blocks: usize, pixels: usize) -> Moments {
        let partials = self.alloc_workspace(values.len() * blocks * 2 * channels * 2);
        Moments { partials, channels, blocks, pixels }
    }

    /// The max pooling that ends a group of operations.
    pub(super) fn pooling(&self, group: Range<usize>) -> Option<&'a MaxPool> {
        match &self.program.ops[group.end - 1] {
            Op::MaxPool(pool) => Some(pool),
            _ => None,
        }
    }

    /// A task for every value, without addresses of gradients.
    fn batch_norm_tasks(&self, op: &BatchNorm, pool: Option<&MaxPool>, partials: u64) -> Vec<t::BatchNormTask> {
        let outputs = pool.map_or(&op.ys, |p| &p.ys);
        let tasks = op.xs.iter().zip(outputs).enumerate();
        tasks
            .map(|(i, (&x, &y))| t::BatchNormTask {
                x: self.value(x),
                dy: 0,
                gain: self.param(op.gain),
                shift: self.param(op.shift),
                stats: self.value(op.stats),
                neg_grad_means: 0,
                y: self.value(y),
                dx: 0,
                partials: partials + 8 * (i * sum_blocks(op) * 2 * op.channels) as u64,
                channels: op.channels as i32,
                pixels: (self.program.values[x.0].cols / op.channels) as i32,
                relu: i32::from(op.activation == Activation::Relu),
                accumulate: i32::from(self.written[x.0]),
                width: pool.map_or(0, |p| p.from.width as i32),
                space: self.space(x),
            })
            .collect()
    }

    /// Allocates the partial sums of all values, in doubles.
    fn alloc_batch_norm_partials(&mut self, op: &BatchNorm) -> u64 {
        self.alloc_workspace(op.xs.len() * sum_blocks(op) * 2 * op.channels * 2)
    }

    fn channel_task(&mut self, op: &BatchNorm, tasks: &[t::BatchNormTask], partials: u64) -> t::ChannelStatsTask {
        t::ChannelStatsTask {
            values: self.task_table.push(tasks),
            partials,
            mean: self.param(op.mean),
            variance: self.param(op.variance),
            stats: self.value(op.stats),
            neg_grad_means: 0,
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
        let partials = if training && moments.is_none() { self.alloc_batch_norm_partials(op) } else { 0 };
        let tasks = self.batch_norm_tasks(op, pool, partials);
        let mut channel = self.channel_task(op, &tasks, partials);
        if training {
            // The batch's statistics cover all pixels.
            if let Some(moments) = moments {
                channel.partials = moments.partials;
                channel.blocks = moments.blocks as i32;
                channel.pixels = moments.pixels as i32;
            } else {
                let name = kernel("batch_norm_moments", op, None);
                self.launch(&name, &tasks, [sum_blocks(op), tasks.len(), 1], 256, 0)?;
            }
            self.launch("batch_norm_statistics", &[channel], [op.channels.div_ceil(4), 1, 1], 512, 0)?;
        } else {
            self.launch_grid_stride("batch_norm_running_statistics", &[channel], op.channels)?;
        }
        let numbers = self.batch_norm_numbers(op);
        self.launch_grid_stride(&kernel("batch_norm_apply", op, pool), &tasks, numbers)
    }

    pub(super) fn batch_norm_backward(&mut self, op: &BatchNorm, pool: Option<&MaxPool>) -> Result<(), Error> {
        let partials = self.alloc_batch_norm_partials(op);
        let neg_grad_means = self.alloc_workspace(2 * op.channels);
        let mut tasks = self.batch_norm_tasks(op, pool, partials);
        let outputs = pool.map_or(&op.ys, |p| &p.ys);
        for ((task, &x), &y) in tasks.iter_mut().zip(&op.xs).zip(outputs) {
            task.dy = self.grad(y);
            task.dx = if self.wants_grad(x) { self.grad(x) } else { 0 };
            task.neg_grad_means = neg_grad_means;
        }
        let channel = t::ChannelStatsTask { neg_grad_means, ..self.channel_task(op, &tasks, partials) };
        let name = kernel("batch_norm_grad_sums", op, pool);
        self.launch(&name, &tasks, [sum_blocks(op), tasks.len(), 1], 256, 0)?;
        self.launch("batch_norm_param_grads", &[channel], [op.channels.div_ceil(4), 1, 1], 512, 0)?;
        tasks.retain(|task| task.dx != 0);
        let numbers = self.batch_norm_numbers(op);
        self.launch_grid_stride(&kernel("batch_norm_input_grad", op, pool), &tasks, numbers)?;
        op.xs.iter().for_each(|x| self.written[x.0] = true);
        Ok(())
    }

    /// Work items of a grid-stride kernel: one number each, or four channels of four pixels.
    fn batch_norm_numbers(&self, op: &BatchNorm) -> usize {
        let numbers = op.xs.iter().map(|&x| self.len_of(x)).max().unwrap_or(0);
        if vectorisable(op.channels) { numbers.div_ceil(16) } else { numbers }
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
                argmax: self.value(op.argmax[k]),
                height: op.from.height as i32,
                width: op.from.width as i32,
                channels: op.from.channels as i32,
                accumulate: i32::from(backward && self.written[x.0]),
                space: self.space(x),
                pad: 0,
            });
        }
        let (name, outputs) = if backward { ("max_pool_backward", &op.xs) } else { ("max_pool", &op.ys) };
        let numbers = outputs.iter().map(|&v| self.len_of(v)).max().unwrap_or(0);
        self.launch_grid_stride(name, &tasks, numbers)?;
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

/// The variant of a kernel for these channels.
fn kernel(name: &str, op: &BatchNorm, pool: Option<&MaxPool>) -> String {
    let kind = match pool {
        Some(_) => "_pooled",
        None if vectorisable(op.channels) => "_vec",
        None => "",
    };
    format!("{name}{kind}")
}

#[cfg(test)]
mod tests {
    use super::super::launch_groups;
    use super::*;
    use crate::program::Image;

    #[test]
    fn a_max_pooling_fuses_with_the_batch_norm_that_only_it_reads() {
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
            launch_groups(&b.finish(outputs), &[]).into_iter().map(|group| group.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(8, false, false), [2]);
        assert_eq!(sizes(8, true, false), [1, 1]);
        assert_eq!(sizes(8, false, true), [1, 1, 1]);
        assert_eq!(sizes(7, false, false), [1, 1], "channels that are not in chunks");
    }
}
