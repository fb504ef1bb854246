//! A convolutional network in front of the sets: from images to vectors, the same for all sets.

use setwise_engine::{Activation, Image, Linear, Op, ProgramBuilder, Value, Window};

use super::fresh_like;

/// What the names of all its parameters begin with.
pub const ENCODER: &str = "images.";

/// A convolution with its batch norm and ReLU. The window's padding keeps the size of images, but for the stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Channels it makes.
    pub filters: usize,
    /// Pixels of a side of the window, an odd number.
    pub kernel: usize,
    /// Pixels between windows.
    pub stride: usize,
    /// Whether a 2×2 max pooling follows.
    pub pool: bool,
}

impl Layer {
    /// The convolution's window.
    pub fn window(&self) -> Window {
        Window { kernel: self.kernel, stride: self.stride, padding: self.kernel / 2 }
    }

    /// What becomes of a side of `n` pixels; zero if the pooling leaves nothing.
    pub fn side(&self, n: usize) -> usize {
        let made = n.saturating_sub(1) / self.stride + usize::from(n > 0);
        if self.pool { made / 2 } else { made }
    }
}

/// Appends the layers and a linear map to `features`; sets share all weights and the statistics of the batch norms.
///
/// # Shapes
/// `[images, height · width · channels]` to `[images, features]`.
pub fn encode_images(
    b: &mut ProgramBuilder,
    xs: &[Value],
    image: Image,
    layers: &[Layer],
    features: usize,
) -> Vec<Value> {
    let (mut xs, mut image) = (xs.to_vec(), image);
    for (i, layer) in layers.iter().enumerate() {
        // The norm's shift is all the bias there can be.
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
    fn sides_are_those_the_operations_make() {
        for (kernel, stride, pool) in [(3, 1, true), (7, 2, false), (3, 2, true), (1, 1, false)] {
            let layer = Layer { filters: 2, kernel, stride, pool };
            for n in 1..40 {
                let made = layer.window().of(Image { height: n, width: n, channels: 1 }, 2).height;
                assert_eq!(layer.side(n), if pool { made / 2 } else { made }, "{layer:?} on {n}");
            }
            assert_eq!(layer.side(0), 0);
        }
    }
}
