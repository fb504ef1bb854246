//! Operations on images. A row is one image: pixels in row-major order, the channels of a pixel contiguous.
//!
//! An operation takes several values at once, such as the sets of an example. They share weights and, in batch
//! normalisation, statistics.

use super::{Activation, Op, ProgramBuilder, Space, Value};
use crate::params::{Init, ParamId};

/// Size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
    /// Channels of a pixel.
    pub channels: usize,
}

impl Image {
    /// Pixels of an image.
    pub fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Numbers of an image: the columns of its value.
    pub fn numbers(&self) -> usize {
        self.pixels() * self.channels
    }
}

/// `y[i, j, o] = Σ x[i·stride + p − padding, j·stride + q − padding, c] · W[o, p, q, c] + b[o]`, with zero padding.
#[derive(Clone, Debug)]
pub struct Convolution {
    /// Inputs.
    pub xs: Vec<Value>,
    /// Outputs, one for each input.
    pub ys: Vec<Value>,
    /// Size of an input image.
    pub from: Image,
    /// Size of an output image.
    pub to: Image,
    /// Weight `[to.channels, kernel, kernel, from.channels]`.
    pub weight: ParamId,
    /// Bias `[to.channels]`.
    pub bias: Option<ParamId>,
    /// The range of `p` and `q`, stride and padding.
    pub window: Window,
}

impl Convolution {
    /// Numbers of a patch, which a window covers.
    pub fn patch(&self) -> usize {
        self.window.kernel * self.window.kernel * self.from.channels
    }
}

/// Batch normalisation (Ioffe and Szegedy, 2015): `y = act(γ · (x − mean) / sqrt(var + 1e-5) + β)` for every channel,
/// over all pixels of all images of all inputs.
///
/// Training programs use mean and variance of the batch, so its examples depend on each other. The backward pass
/// writes both to the gradients of `mean` and `variance`. Inference programs use their running averages.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// Inputs.
    pub xs: Vec<Value>,
    /// Outputs, one for each input.
    pub ys: Vec<Value>,
    /// Channels of a pixel.
    pub channels: usize,
    /// γ.
    pub gain: ParamId,
    /// β.
    pub shift: ParamId,
    /// Running average of the mean.
    pub mean: ParamId,
    /// Running average of the unbiased variance.
    pub variance: ParamId,
    /// Applied last: none or ReLU.
    pub activation: Activation,
    /// Saved for the backward pass: mean and 1 / sqrt(var + ε) in use.
    pub stats: Value,
}

/// Max pooling of two by two pixels, channel by channel; an odd last line or column is dropped.
#[derive(Clone, Debug)]
pub struct MaxPool {
    /// Inputs.
    pub xs: Vec<Value>,
    /// Outputs, one for each input.
    pub ys: Vec<Value>,
    /// Size of an input image.
    pub from: Image,
    /// Saved for the backward pass: the argmax of the four pixels, the first of equals; one value for each input.
    pub argmax: Vec<Value>,
}

impl MaxPool {
    /// Size of an output image.
    pub fn to(&self) -> Image {
        Image { height: self.from.height / 2, width: self.from.width / 2, ..self.from }
    }
}

/// The window of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Side in pixels.
    pub kernel: usize,
    /// Stride in pixels.
    pub stride: usize,
    /// Zero padding on every side, in pixels.
    pub padding: usize,
}

impl Window {
    /// Size of the output of a convolution with this window.
    ///
    /// # Panics
    /// If the window is larger than the padded image, which is a mistake in the code that builds the model.
    pub fn of(&self, from: Image, channels: usize) -> Image {
        let side = |n: usize| {
            let positions = (n + 2 * self.padding).checked_sub(self.kernel).expect("a window within the image");
            positions / self.stride + 1
        };
        Image { height: side(from.height), width: side(from.width), channels }
    }
}

impl ProgramBuilder {
    fn images_like(&mut self, xs: &[Value], numbers: usize) -> Vec<Value> {
        xs.iter().map(|&x| self.fresh(self.spec(x).space, numbers, false)).collect()
    }

    /// Appends a convolution to `filters` channels, with PyTorch's default initialisation; returns its outputs and
    /// their size.
    pub fn convolution(
        &mut self,
        name: &str,
        xs: &[Value],
        from: Image,
        filters: usize,
        window: Window,
        bias: bool,
    ) -> (Vec<Value>, Image) {
        let kernel = window.kernel;
        let to = window.of(from, filters);
        let init = Init::Uniform(1.0 / ((kernel * kernel * from.channels) as f64).sqrt());
        let weight = self.param(&format!("{name}.weight"), &[filters, kernel, kernel, from.channels], init);
        let bias = bias.then(|| self.param(&format!("{name}.bias"), &[filters], init));
        let ys = self.images_like(xs, to.numbers());
        let (xs, out) = (xs.to_vec(), ys.clone());
        self.op(Op::Convolution(Convolution { xs, ys: out, from, to, weight, bias, window }));
        (ys, to)
    }

    /// Appends a batch normalisation of images of this size; returns its outputs.
    pub fn batch_norm(&mut self, name: &str, xs: &[Value], image: Image, activation: Activation) -> Vec<Value> {
        let channels = image.channels;
        let shape = [channels];
        let gain = self.param(&format!("{name}.gain"), &shape, Init::Ones);
        let shift = self.param(&format!("{name}.shift"), &shape, Init::Zeros);
        let mean = self.running(&format!("{name}.mean"), &shape, Init::Zeros);
        let variance = self.running(&format!("{name}.variance"), &shape, Init::Ones);
        let stats = self.saved(Space::Batch, 2 * channels, false);
        let ys = self.images_like(xs, image.numbers());
        let (xs, out) = (xs.to_vec(), ys.clone());
        self.op(Op::BatchNorm(BatchNorm { xs, ys: out, channels, gain, shift, mean, variance, activation, stats }));
        ys
    }

    /// Appends a max pooling; returns its outputs and their size.
    pub fn max_pool(&mut self, xs: &[Value], from: Image) -> (Vec<Value>, Image) {
        let mut op = MaxPool { xs: xs.to_vec(), ys: Vec::new(), from, argmax: Vec::new() };
        let to = op.to();
        op.ys = self.images_like(xs, to.numbers());
        op.argmax = xs.iter().map(|&x| self.saved(self.spec(x).space, to.numbers(), false)).collect();
        let ys = op.ys.clone();
        self.op(Op::MaxPool(op));
        (ys, to)
    }
}
