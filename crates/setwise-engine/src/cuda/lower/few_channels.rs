//! Convolutions of images of few channels, such as the first of an encoder.

use super::super::tables as t;
use super::Builder;
use super::batch_norm::Moments;
use crate::error::Error;
use crate::program::{Convolution, Value, Window};

/// Channels up to which images are held whole in shared memory rather than copied window by window.
const MOST_CHANNELS: usize = 8;

/// Numbers of images a block holds at a time, so that several blocks fit a multiprocessor.
const BAND: usize = 10_240;

/// Output pixels a block takes at a time, so that there are enough blocks.
const PIXELS: usize = 2_048;

/// Columns of weights, eight to a product: the most that the warps of a block share.
const MOST_COLUMNS: usize = 8 * 7 * 8;

/// Bytes of shared memory that the kernels have of their own.
const OWN: usize = 2_048;

/// Blocks that the parts of a weight's gradient are spread over: two to a multiprocessor.
const WEIGHT_BLOCKS: usize = 264;

impl<'a> Builder<'a> {
    /// How images are held for such a convolution, without the rows it has; none where they are too wide or have too many channels.
    pub(super) fn few(&self, op: &Convolution) -> Option<t::Windows> {
        if op.from.channels > MOST_CHANNELS || op.patch() > MOST_COLUMNS {
            return None;
        }
        let wide = ((op.to.width - 1) * op.window.stride + op.window.kernel) * op.from.channels;
        let (lines, held) = band(op.to.height, op.to.width, op.window, wide)?;
        let windows = t::Windows {
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
            held: (held * wide) as i32,
            space: t::Space { offsets: 0, per_example: 0, per_dim: 0 },
        };
        let most = few_shared(op, &windows).max(few_weights_shared(op, &windows));
        self.module.fits(most + OWN).then_some(windows)
    }

    /// The convolution, with the moments of its results where they are wanted.
    pub(super) fn few_forward(&mut self, op: &Convolution, windows: &t::Windows, moments: bool) -> Result<(), Error> {
        let lines = windows.lines as usize;
        let blocks = op.ys.iter().map(|&y| (self.rows(y) * op.to.height).div_ceil(lines)).max().unwrap_or(0);
        let moments = moments.then(|| self.moments_room(&op.ys, op.to.channels, blocks, lines * op.to.width));
        let task = |(i, (&x, &y)): (usize, (&Value, &Value))| t::FewTask {
            x: self.value(x),
            w: self.param(op.weight),
            bias: op.bias.map_or(0, |b| self.param(b)),
            y: self.value(y),
            moments: Moments::of(&moments, i),
            windows: t::Windows { space: self.space(x), ..*windows },
        };
        let tasks: Vec<t::FewTask> = op.xs.iter().zip(&op.ys).enumerate().map(task).collect();
        self.moments = moments;
        let grid = [blocks, op.to.channels.div_ceil(32), tasks.len()];
        self.launch("image_few", &tasks, grid, 128, few_shared(op, windows))
    }

    /// Leaves parts of the gradient of its weights; returns where, and how many of each value.
    pub(super) fn few_weights(
        &mut self,
        op: &Convolution,
        windows: &t::Windows,
        slot: usize,
    ) -> Result<(u64, usize), Error> {
        let steps = op.patch().div_ceil(8);
        let (name, each) = match steps {
            ..=2 => ("image_few_weights_2", 2),
            3..=4 => ("image_few_weights_4", 4),
            _ => ("image_few_weights_7", 7),
        };
        let groups = steps.div_ceil(each);
        let bands = op.ys.iter().map(|&y| (self.rows(y) * op.to.height).div_ceil(windows.lines as usize)).max();
        let tiles = op.to.channels.div_ceil(32);
        let splits = (WEIGHT_BLOCKS / (tiles * op.xs.len())).clamp(1, bands.unwrap_or(0).max(1));
        let parts = self.room(op.xs.len() * splits * slot);
        let task = |(i, (&x, &y)): (usize, (&Value, &Value))| t::FewWeightsTask {
            dy: self.grad(y),
            x: self.value(x),
            parts: parts + 4 * (i * splits * slot) as u64,
            windows: t::Windows { space: self.space(x), ..*windows },
            splits: splits as i32,
            pad: 0,
        };
        let tasks: Vec<t::FewWeightsTask> = op.xs.iter().zip(&op.ys).enumerate().map(task).collect();
        let threads = 32 * groups * (8 / groups);
        let grid = [tiles, splits, tasks.len()];
        self.launch(name, &tasks, grid, threads as u32, few_weights_shared(op, windows))?;
        Ok((parts, splits))
    }
}

/// Weights as lanes read them, a place for each of their columns, where the windows of each line begin, and a band.
fn few_shared(op: &Convolution, windows: &t::Windows) -> usize {
    4 * (op.patch().div_ceil(8) * (256 + 8) + (windows.lines + windows.held) as usize)
}

/// Sums, and two bands with where the windows of each line begin.
fn few_weights_shared(op: &Convolution, windows: &t::Windows) -> usize {
    4 * (32 * op.patch() + 2 * (windows.lines + windows.held) as usize)
}

/// Lines of outputs a block takes at a time, and the most lines of images these see, `wide` numbers each: several whole images, or as much of one as
/// makes all blocks take alike.
fn band(height: usize, width: usize, window: Window, wide: usize) -> Option<(usize, usize)> {
    let held = |lines: usize| {
        // Images one below the other are as far apart as their windows reach beyond each other.
        let ends = match (height % lines, lines % height) {
            (0, _) => 0,
            (_, 0) => lines / height - 1,
            _ => (lines + height - 2) / height,
        };
        (lines - 1) * window.stride + window.kernel + ends * window.kernel.saturating_sub(window.stride)
    };
    let fits = |lines: usize| held(lines) * wide <= BAND && (lines == 1 || lines * width <= PIXELS);
    let lines = if fits(height) {
        (1..).map(|images| images * height).take_while(|&lines| fits(lines)).last()?
    } else {
        // A few lines more than fit at most, cut alike; shorter bands hold less but for where images meet.
        let most = (1..height).rev().find(|&lines| fits(lines))?;
        (1..=height.div_ceil(height.div_ceil(most))).rev().find(|&lines| fits(lines))?
    };
    Some((lines, held(lines)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(height: usize, width: usize, channels: usize, window: Window) -> Option<(usize, usize)> {
        let made = window.of(crate::program::Image { height, width, channels }, 1);
        band(made.height, made.width, window, ((made.width - 1) * window.stride + window.kernel) * channels)
    }

    #[test]
    fn bands_are_whole_images_or_like_parts_of_one() {
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
    fn bands_hold_what_their_windows_see() {
        for (height, width, kernel, stride) in
            [(9, 300, 3, 1), (40, 64, 5, 2), (7, 9, 2, 3), (13, 150, 7, 4), (60, 90, 3, 1)]
        {
            let window = Window { kernel, stride, padding: kernel / 2 };
            let made = window.of(crate::program::Image { height, width, channels: 2 }, 1).height;
            let (lines, held) = of(height, width, 2, window).unwrap();
            let above = |line: usize| line / made * ((made - 1) * stride + kernel) + line % made * stride;
            for first in (0..10 * made).step_by(lines) {
                let seen = above(first + lines - 1) + kernel - above(first);
                assert!(seen <= held, "{lines} lines from {first} on see {seen} of {held}");
            }
        }
    }
}
