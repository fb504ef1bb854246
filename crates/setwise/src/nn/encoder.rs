//! The image encoder: a convolutional network from images to vectors, with weights shared by all sets.

use setwise_engine::{Activation, Image, Linear, Op, ProgramBuilder, Value, Window};

use super::fresh_like;

/// Prefix of the names of the encoder's parameters.
pub(crate) const ENCODER: &str = "images.";

/// A convolution with batch norm and ReLU. Its padding is `kernel / 2`: only stride and pooling shrink the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    /// Output channels.
    pub filters: usize,
    /// Side of the window in pixels, odd.
    pub kernel: usize,
    /// Distance between windows in pixels.
    pub stride: usize,
    /// Whether a 2×2 max pooling follows.
    pub pool: bool,
}

impl Layer {
    /// The window of the convolution.
    pub fn window(&self) -> Window {
        Window { kernel: self.kernel, stride: self.stride, padding: self.kernel / 2 }
    }

    /// Output side for an input side of `n` pixels; zero if pooling leaves no pixel.
    pub fn side(&self, n: usize) -> usize {
        let convolved = n.saturating_sub(1) / self.stride + usize::from(n > 0);
        if self.pool { convolved / 2 } else { convolved }
    }
}

/// Appends the layers and a linear map to `features`. All sets share the weights and the batch-norm statistics.
///
/// # Shapes
/// `[images, height · width · channels]` to `[images, features]`.
pub(crate) fn encode_images(
    b: &mut ProgramBuilder,
    xs: &[Value],
    image: Image,
    layers: &[Layer],
    features: usize,
) -> Vec<Value> {
    let (mut xs, mut image) = (xs.to_vec(), image);
    for (i, layer) in layers.iter().enumerate() {
        // No bias: the batch norm subtracts the mean and adds a shift.
        (xs, image) = b.convolution(&format!("{ENCODER}conv.{i}"), &xs, image, layer.filters, layer.window(), false);
        xs = b.batch_norm(&format!("{ENCODER}norm.{i}"), &xs, image, Activation::Relu);
        if layer.pool {
            (xs, image) = b.max_pool(&xs, image);
        }
    }
    let ys: Vec<Value> = xs.iter().map(|&x| fresh_like(b, x, features)).collect();
    let mut maps = Vec::new();
    for (&x, &y) in xs.iter().zip(&ys) {
        let (x, y) = (b.full(x), b.full(y));
        maps.push(b.map(&format!("{ENCODER}project"), x, y, true));
    }
    b.op(Op::Linear(Linear { maps, activation: Activation::None }));
    ys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_equal_those_of_the_operations() {
        for (kernel, stride, pool) in [(3, 1, true), (7, 2, false), (3, 2, true), (1, 1, false)] {
            let layer = Layer { filters: 2, kernel, stride, pool };
            for n in 1..40 {
                let convolved = layer.window().of(Image { height: n, width: n, channels: 1 }, 2).height;
                assert_eq!(layer.side(n), if pool { convolved / 2 } else { convolved }, "{layer:?} on {n}");
            }
            assert_eq!(layer.side(0), 0);
        }
    }
}
