//! Convolutions of images of few channels, such as an encoder's first.

use super::super::kernel_tasks as t;
use super::Lowering;
use super::batch_norm::Moments;
use crate::error::Error;
use crate::program::{Convolution, Value, Window};

/// Maximal channels for which bands of images are held in shared memory instead of gathering patches.
const MAX_CHANNELS: usize = 8;

/// Maximal numbers of a band, so that several blocks fit a multiprocessor.
const MAX_BAND_NUMBERS: usize = 10_240;

/// Maximal output pixels of a band, so that enough blocks exist.
const MAX_PIXELS: usize = 2_048;

/// Maximal columns of the weights: eight per product, seven products, eight warps.
const MAX_COLUMNS: usize = 8 * 7 * 8;

/// Bytes of static shared memory of the kernels.
const STATIC_SHARED: usize = 2_048;

/// Target number of blocks for the partial sums of a weight gradient: two per multiprocessor.
const WEIGHT_BLOCKS: usize = 264;

impl<'a> Lowering<'a> {
    /// The band geometry of a convolution, without its space; none for wide images or many channels.
    pub(super) fn small_c_geometry(&self, op: &Convolution) -> Option<t::BandGeometry> {
        if op.from.channels > MAX_CHANNELS || op.patch() > MAX_COLUMNS {
            return None;
        }
        let padded_width = ((op.to.width - 1) * op.window.stride + op.window.kernel) * op.from.channels;
        let (lines, held) = band(op.to.height, op.to.width, op.window, padded_width)?;
        let geometry = t::BandGeometry {
            from_h: op.from.height as i32,
            from_w: op.from.width as i32,
            from_c: op.from.channels as i32,
            to_h: op.to.height as i32,
            to_w: op.to.width as i32,
            n: op.to.channels as i32,
            kernel: op.window.kernel as i32,
            stride: op.window.stride as i32,
            padding: op.window.padding as i32,
            lines: lines as i32,
            band_numbers: (held * padded_width) as i32,
            space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
        };
        let max_lines = small_c_shared(op, &geometry).max(small_c_weight_grad_shared(op, &geometry));
        self.kernels.has_shared_memory(max_lines + STATIC_SHARED).then_some(geometry)
    }

    /// Lowers the convolution, with the moments of its results if `moments`.
    pub(super) fn small_c_forward(
        &mut self,
        op: &Convolution,
        geometry: &t::BandGeometry,
        moments: bool,
    ) -> Result<(), Error> {
        let lines = geometry.lines as usize;
        let blocks = op.ys.iter().map(|&y| (self.rows(y) * op.to.height).div_ceil(lines)).max().unwrap_or(0);
        let moments = moments.then(|| self.alloc_moments(&op.ys, op.to.channels, blocks, lines * op.to.width));
        let task = |(i, (&x, &y)): (usize, (&Value, &Value))| t::SmallChannelTask {
            x: self.value(x),
            w: self.param(op.weight),
            bias: op.bias.map_or(0, |b| self.param(b)),
            y: self.value(y),
            moments: Moments::of(&moments, i),
            geometry: t::BandGeometry { space: self.space(x), ..*geometry },
        };
        let tasks: Vec<t::SmallChannelTask> = op.xs.iter().zip(&op.ys).enumerate().map(task).collect();
        self.moments = moments;
        let grid = [blocks, op.to.channels.div_ceil(32), tasks.len()];
        self.launch("convolution_small_c", &tasks, grid, 128, small_c_shared(op, geometry))
    }

    /// Writes partial sums of the weight gradient; returns their address and their number per value.
    pub(super) fn small_c_weight_grad(
        &mut self,
        op: &Convolution,
        geometry: &t::BandGeometry,
        slot: usize,
    ) -> Result<(u64, usize), Error> {
        let steps = op.patch().div_ceil(8);
        let (name, each) = match steps {
            ..=2 => ("convolution_small_c_weight_grad_2", 2),
            3..=4 => ("convolution_small_c_weight_grad_4", 4),
            _ => ("convolution_small_c_weight_grad_7", 7),
        };
        let groups = steps.div_ceil(each);
        let bands = op.ys.iter().map(|&y| (self.rows(y) * op.to.height).div_ceil(geometry.lines as usize)).max();
        let tiles = op.to.channels.div_ceil(32);
        let splits = (WEIGHT_BLOCKS / (tiles * op.xs.len())).clamp(1, bands.unwrap_or(0).max(1));
        let partials = self.alloc_workspace(op.xs.len() * splits * slot);
        let task = |(i, (&x, &y)): (usize, (&Value, &Value))| t::SmallChannelWeightGradTask {
            dy: self.grad(y),
            x: self.value(x),
            partials: partials + 4 * (i * splits * slot) as u64,
            geometry: t::BandGeometry { space: self.space(x), ..*geometry },
            splits: splits as i32,
            pad: 0,
        };
        let tasks: Vec<t::SmallChannelWeightGradTask> = op.xs.iter().zip(&op.ys).enumerate().map(task).collect();
        let threads = 32 * groups * (8 / groups);
        let grid = [tiles, splits, tasks.len()];
        self.launch(name, &tasks, grid, threads as u32, small_c_weight_grad_shared(op, geometry))?;
        Ok((partials, splits))
    }
}

/// Bytes for weights in fragment order, an offset per column, line origins, and a band.
fn small_c_shared(op: &Convolution, geometry: &t::BandGeometry) -> usize {
    4 * (op.patch().div_ceil(8) * (256 + 8) + (geometry.lines + geometry.band_numbers) as usize)
}

/// Bytes for the sums and for two bands with their line origins.
fn small_c_weight_grad_shared(op: &Convolution, geometry: &t::BandGeometry) -> usize {
    4 * (32 * op.patch() + 2 * (geometry.lines + geometry.band_numbers) as usize)
}

/// Output lines per band, and the maximal input lines under them, of `padded_width` numbers each. A band is several
/// images, or an equal share of one.
fn band(height: usize, width: usize, window: Window, padded_width: usize) -> Option<(usize, usize)> {
    let held = |lines: usize| {
        // Images below one another are separated by the overlap of their windows.
        let ends = match (height % lines, lines % height) {
            (0, _) => 0,
            (_, 0) => lines / height - 1,
            _ => (lines + height - 2) / height,
        };
        (lines - 1) * window.stride + window.kernel + ends * window.kernel.saturating_sub(window.stride)
    };
    let fits =
        |lines: usize| held(lines) * padded_width <= MAX_BAND_NUMBERS && (lines == 1 || lines * width <= MAX_PIXELS);
    let lines = if fits(height) {
        (1..).map(|images| images * height).take_while(|&lines| fits(lines)).last()?
    } else {
        // Equal shares; a shorter band holds less, except where images meet.
        let max_lines = (1..height).rev().find(|&lines| fits(lines))?;
        (1..=height.div_ceil(height.div_ceil(max_lines))).rev().find(|&lines| fits(lines))?
    };
    Some((lines, held(lines)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(height: usize, width: usize, channels: usize, window: Window) -> Option<(usize, usize)> {
        let output = window.of(crate::program::Image { height, width, channels }, 1);
        band(output.height, output.width, window, ((output.width - 1) * window.stride + window.kernel) * channels)
    }

    #[test]
    fn bands_are_full_images_or_equal_shares_of_one() {
        let (small, large) = (Window { kernel: 3, stride: 1, padding: 1 }, Window { kernel: 7, stride: 2, padding: 3 });
        assert_eq!(of(28, 28, 1, small), Some((56, 60)), "two images with a line of zeros around each");
        assert_eq!(
            of(105, 105, 1, large),
            Some((27, 64)),
            "half an image, or the end of one and the start of the next"
        );
        assert_eq!(of(32, 32, 3, large), Some((32, 74)));
        assert_eq!(of(1, 1, 1, Window { kernel: 1, stride: 1, padding: 0 }), Some((2_048, 2_048)));
        assert_eq!(of(3, 20_000, 1, small), None, "too wide");
    }

    #[test]
    fn bands_hold_all_input_lines_of_their_windows() {
        for (height, width, kernel, stride) in
            [(9, 300, 3, 1), (40, 64, 5, 2), (7, 9, 2, 3), (13, 150, 7, 4), (60, 90, 3, 1)]
        {
            let window = Window { kernel, stride, padding: kernel / 2 };
            let output = window.of(crate::program::Image { height, width, channels: 2 }, 1).height;
            let (lines, held) = of(height, width, 2, window).unwrap();
            let above = |line: usize| line / output * ((output - 1) * stride + kernel) + line % output * stride;
            for first in (0..10 * output).step_by(lines) {
                let seen = above(first + lines - 1) + kernel - above(first);
                assert!(seen <= held, "{lines} lines from {first} on see {seen} of {held}");
            }
        }
    }
}
