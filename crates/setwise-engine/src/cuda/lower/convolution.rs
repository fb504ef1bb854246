//! Convolutions of images.

use super::super::kernel_tasks as t;
use super::Lowering;
use super::batch_norm::Moments;
use crate::error::Error;
use crate::program::{Convolution, Image, Op, Value};

/// Target number of blocks for the partial sums of a weight gradient.
const WEIGHT_BLOCKS: usize = 528;

/// The same for windows with "same" padding: two per multiprocessor.
const SAME_WEIGHT_BLOCKS: usize = 264;

/// Pixels of one step of that kernel.
const PIXEL_TILE: usize = 128;

/// Whether a program needs the convolution, batch norm or max pooling kernels.
pub(in super::super) fn has_images(ops: &[Op]) -> bool {
    ops.iter().any(|op| matches!(op, Op::Convolution(_) | Op::BatchNorm(_) | Op::MaxPool(_)))
}

impl<'a> Lowering<'a> {
    /// Kernels index numbers of a value with 32 bits.
    pub(super) fn check_images(&self, values: &[Value]) -> Result<(), Error> {
        match values.iter().map(|&v| self.len_of(v)).max() {
            Some(max_numbers) if max_numbers > i32::MAX as usize => Err(Error::Device(format!(
                "a batch has {max_numbers} numbers in its images, more than 32-bit indices allow; lower the batch size"
            ))),
            _ => Ok(()),
        }
    }

    /// Lowers a convolution; with `moments`, its kernel also writes them where it can.
    pub(super) fn convolution_forward(&mut self, op: &Convolution, moments: bool) -> Result<(), Error> {
        self.check_images(&op.xs)?;
        self.check_images(&op.ys)?;
        if let Some(geometry) = self.small_c_geometry(op) {
            return self.small_c_forward(op, &geometry, moments);
        }
        if let Some(same_tiling) = self.same_tiling(op, op.from.channels, op.to.channels).filter(|_| op.bias.is_none())
        {
            let blocks = self.same_blocks(&same_tiling, &op.ys);
            let moments = moments.then(|| self.alloc_moments(&op.ys, op.to.channels, blocks, same_tiling.bm));
            let task = |(i, (&x, &y)): (usize, (&Value, &Value))| t::SameConvolutionTask {
                x: self.value(x),
                w: self.param(op.weight),
                y: self.value(y),
                moments: Moments::of(&moments, i),
                tap_sign: 1,
                accumulate: 0,
                ..same_tiling.task(op, self.space(x))
            };
            let tasks: Vec<t::SameConvolutionTask> = op.xs.iter().zip(&op.ys).enumerate().map(task).collect();
            self.moments = moments;
            return self.launch_same(&same_tiling, &tasks, &op.ys);
        }
        let tasks: Vec<t::ConvolutionTask> = op
            .xs
            .iter()
            .zip(&op.ys)
            .map(|(&x, &y)| t::ConvolutionTask {
                x: self.value(x),
                w: self.param(op.weight),
                bias: op.bias.map_or(0, |b| self.param(b)),
                y: self.value(y),
                stride: op.window.stride as i32,
                offset: -(op.window.padding as i32),
                tap_sign: 1,
                input_dilation: 1,
                vec_b: i32::from(op.patch().is_multiple_of(4) && self.aligned_param(op.weight)),
                ..sizes(op, op.from, op.to, self.space(x))
            })
            .collect();
        self.launch_convolution(&tasks, &op.ys, op.to)
    }

    /// The tiling of a convolution, or of its input gradient, with "same" padding; none if window, channels or shared
    /// memory do not fit.
    fn same_tiling(&self, op: &Convolution, from: usize, to: usize) -> Option<SameTiling> {
        let window = op.window;
        let same_padding =
            window.stride == 1 && window.kernel == 2 * window.padding + 1 && (3..=15).contains(&window.kernel);
        if !same_padding || !from.is_multiple_of(32) || !to.is_multiple_of(4) || !self.aligned_param(op.weight) {
            return None;
        }
        let (bm, bn) = if to > 32 { (128, 64) } else { (256, 32) };
        // Three stages of weights; wgmma needs alignment to 1024 bytes.
        let (name, stages) = match (self.kernels.sm90, to > 32) {
            (true, true) => ("convolution_same_sm90_n64", 1024 + 3 * bn * 32 * 4),
            (true, false) => ("convolution_same_sm90_n32", 1024 + 3 * bn * 32 * 4),
            (false, true) => ("convolution_same_n64", 3 * bn * 36 * 4),
            (false, false) => ("convolution_same_n32", 3 * bn * 36 * 4),
        };
        // One row of zeros, and the pixels under one chunk of channels or two.
        let pixels = bm + 2 * window.padding * (op.from.width + 1);
        let shared = stages + (1 + pixels * if from > 32 { 2 } else { 1 }) * 36 * 4;
        self.kernels.has_shared_memory(shared).then_some(SameTiling { name, bm, bn, shared, from, to })
    }

    fn launch_same(
        &mut self,
        same_tiling: &SameTiling,
        tasks: &[t::SameConvolutionTask],
        outputs: &[Value],
    ) -> Result<(), Error> {
        let grid = [self.same_blocks(same_tiling, outputs), same_tiling.to.div_ceil(same_tiling.bn), tasks.len()];
        self.launch(same_tiling.name, tasks, grid, 128, same_tiling.shared)
    }

    /// Blocks per value.
    fn same_blocks(&self, same_tiling: &SameTiling, outputs: &[Value]) -> usize {
        outputs.iter().map(|&v| self.len_of(v) / same_tiling.to).max().unwrap_or(0).div_ceil(same_tiling.bm)
    }

    fn launch_convolution(&mut self, tasks: &[t::ConvolutionTask], outputs: &[Value], to: Image) -> Result<(), Error> {
        let (name, bn, block) =
            if to.channels > 32 { ("convolution_n64", 64, 256) } else { ("convolution_n32", 32, 128) };
        let pixels = outputs.iter().map(|&v| self.rows(v) * to.pixels()).max().unwrap_or(0);
        let grid = [pixels.div_ceil(128), to.channels.div_ceil(bn), tasks.len()];
        self.launch(name, tasks, grid, block, 3 * (128 + bn) * 36 * 4)
    }

    pub(super) fn convolution_backward(&mut self, op: &Convolution) -> Result<(), Error> {
        let wanted: Vec<usize> = (0..op.xs.len()).filter(|&k| self.wants_grad(op.xs[k])).collect();
        if !wanted.is_empty() {
            let spec = self.program.params.spec(op.weight);
            let transposed = self.buffers.transposed + 4 * spec.offset as u64;
            let (outputs, channels) = (op.to.channels, op.from.channels);
            let transpose = t::TransposeWeightsTask {
                from: self.param(op.weight),
                to: transposed,
                outputs: outputs as i32,
                taps: (spec.len() / (outputs * channels)) as i32,
                channels: channels as i32,
                pad: 0,
            };
            self.launch_grid_stride("convolution_transpose_weights", &[transpose], spec.len())?;
            if let Some(same_tiling) = self.same_tiling(op, outputs, channels) {
                let task = |&k: &usize| t::SameConvolutionTask {
                    x: self.grad(op.ys[k]),
                    w: transposed,
                    y: self.grad(op.xs[k]),
                    tap_sign: -1,
                    accumulate: i32::from(self.written[op.xs[k].0]),
                    ..same_tiling.task(op, self.space(op.xs[k]))
                };
                let tasks: Vec<t::SameConvolutionTask> = wanted.iter().map(task).collect();
                self.launch_same(&same_tiling, &tasks, &op.xs)?;
            } else {
                self.convolution_input_grad(op, &wanted, transposed)?;
            }
        }
        op.xs.iter().for_each(|x| self.written[x.0] = true);
        self.convolution_weight_grad(op)
    }

    /// The input gradient for any window, from transposed weights.
    fn convolution_input_grad(&mut self, op: &Convolution, wanted: &[usize], transposed: u64) -> Result<(), Error> {
        let vec_b = i32::from(op.to.channels.is_multiple_of(4) && self.aligned_param(op.weight));
        let tasks: Vec<t::ConvolutionTask> = wanted
            .iter()
            .map(|&k| t::ConvolutionTask {
                x: self.grad(op.ys[k]),
                w: transposed,
                bias: 0,
                y: self.grad(op.xs[k]),
                stride: 1,
                offset: op.window.padding as i32,
                tap_sign: -1,
                input_dilation: op.window.stride as i32,
                accumulate: i32::from(self.written[op.xs[k].0]),
                vec_b,
                ..sizes(op, op.to, op.from, self.space(op.xs[k]))
            })
            .collect();
        self.launch_convolution(&tasks, &op.xs, op.from)
    }

    fn convolution_weight_grad(&mut self, op: &Convolution) -> Result<(), Error> {
        let (n, k) = (op.to.channels, op.patch());
        let slot = n * k + n;
        // The specialised kernels have no bias and need channels in multiples of four.
        let small_c_geometry = self.small_c_geometry(op).filter(|_| op.bias.is_none() && n.is_multiple_of(4));
        let (partials, splits) = match (small_c_geometry, self.same_weight_grad_shared(op)) {
            (Some(geometry), _) => self.small_c_weight_grad(op, &geometry, slot)?,
            (_, Some(shared)) => self.same_weight_grad(op, slot, shared)?,
            _ => self.patch_weight_grad(op, slot)?,
        };
        let sum = |offset: usize, out: u64, len: usize| t::PartialSumTask {
            partials: partials + 4 * offset as u64,
            out,
            stride: slot as u64,
            count: (op.xs.len() * splits) as i32,
            len: len as i32,
            rows_per_partial: 0,
            vec: 0,
            space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
            overwrite: 0,
        };
        self.partial_sums.push(sum(0, self.param_grad(op.weight), n * k));
        if let Some(bias) = op.bias {
            self.partial_sums.push(sum(n * k, self.param_grad(bias), n));
        }
        Ok(())
    }

    /// Shared memory of `convolution_same_weight_grad` (3 by 3 windows); none where it does not apply.
    fn same_weight_grad_shared(&self, op: &Convolution) -> Option<usize> {
        self.same_tiling(op, op.from.channels, op.to.channels)?;
        // Two stages of pixels and gradients, and the row indices of two steps.
        let rows_held = PIXEL_TILE + 2 * (op.from.width + 2);
        let shared = (2 * (rows_held + PIXEL_TILE) * 32 + (rows_held + PIXEL_TILE).next_power_of_two()) * 4;
        (op.window.kernel == 3 && op.bias.is_none() && self.kernels.has_shared_memory(shared)).then_some(shared)
    }

    /// Writes partial sums of a weight gradient; returns their address and their number per value.
    fn same_weight_grad(&mut self, op: &Convolution, slot: usize, shared: usize) -> Result<(u64, usize), Error> {
        let tiles = op.to.channels.div_ceil(32) * (op.from.channels / 32);
        let pixels = op.ys.iter().map(|&y| self.rows(y) * op.to.pixels()).max().unwrap_or(0);
        let splits = (SAME_WEIGHT_BLOCKS / (tiles * op.xs.len())).clamp(1, pixels.div_ceil(2 * PIXEL_TILE).max(1));
        let partials = self.alloc_workspace(op.xs.len() * splits * slot);
        let task = |(i, (&x, &y)): (usize, (&Value, &Value))| t::SameWeightGradTask {
            dy: self.grad(y),
            x: self.value(x),
            partials: partials + 4 * (i * splits * slot) as u64,
            height: op.from.height as i32,
            width: op.from.width as i32,
            from_c: op.from.channels as i32,
            n: op.to.channels as i32,
            splits: splits as i32,
            space: self.space(x),
        };
        let tasks: Vec<t::SameWeightGradTask> = op.xs.iter().zip(&op.ys).enumerate().map(task).collect();
        self.launch("convolution_same_weight_grad", &tasks, [tiles, splits, tasks.len()], 128, shared)?;
        Ok((partials, splits))
    }

    /// The same for any window.
    fn patch_weight_grad(&mut self, op: &Convolution, slot: usize) -> Result<(u64, usize), Error> {
        let (n, k) = (op.to.channels, op.patch());
        let (name, bm, bn, block) = match (n.min(k), k) {
            (64.., _) => ("convolution_weight_grad_64x64", 64, 64, 128),
            (_, 33..) => ("convolution_weight_grad_32x64", 32, 64, 128),
            _ => ("convolution_weight_grad_32x32", 32, 32, 64),
        };
        let tiles = n.div_ceil(bm) * k.div_ceil(bn);
        let pixels = op.ys.iter().map(|&y| self.rows(y) * op.to.pixels()).max().unwrap_or(0);
        let splits = (WEIGHT_BLOCKS / (tiles * op.xs.len())).clamp(1, pixels.div_ceil(256).max(1));
        let partials = self.alloc_workspace(op.xs.len() * splits * slot);
        let tasks: Vec<t::ConvolutionWeightGradTask> = op
            .xs
            .iter()
            .zip(&op.ys)
            .enumerate()
            .map(|(i, (&x, &y))| t::ConvolutionWeightGradTask {
                dy: self.grad(y),
                x: self.value(x),
                partials: partials + 4 * (i * splits * slot) as u64,
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
        Ok((partials, splits))
    }
}

/// How a convolution with "same" padding, or its input gradient, is tiled.
struct SameTiling {
    name: &'static str,
    bm: usize,
    bn: usize,
    shared: usize,
    from: usize,
    to: usize,
}

impl SameTiling {
    /// A task without addresses and tap direction.
    fn task(&self, op: &Convolution, space: t::Space) -> t::SameConvolutionTask {
        t::SameConvolutionTask {
            x: 0,
            w: 0,
            y: 0,
            moments: 0,
            height: op.from.height as i32,
            width: op.from.width as i32,
            from_c: self.from as i32,
            n: self.to as i32,
            kernel: op.window.kernel as i32,
            tap_sign: 0,
            accumulate: 0,
            space,
        }
    }
}

/// A task between two image sizes, without addresses and direction.
fn sizes(op: &Convolution, from: Image, to: Image, space: t::Space) -> t::ConvolutionTask {
    t::ConvolutionTask {
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
        stride: 0,
        offset: 0,
        tap_sign: 0,
        input_dilation: 0,
        accumulate: 0,
        vec_a: i32::from(from.channels.is_multiple_of(4)),
        vec_b: 0,
        space,
        pad: 0,
    }
}
