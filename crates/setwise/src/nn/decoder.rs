//! The decoder: from pooled or element vectors to outputs.

use setwise_engine::{Activation, Linear, Op, ProgramBuilder, Value};

use super::fresh_like;

/// Appends `layers` hidden layers with ReLU and a projection to `width`. All values share the weights.
///
/// # Shapes
/// `[rows, columns]` to `[rows, width]`.
pub(crate) fn decoder(b: &mut ProgramBuilder, xs: &[Value], hidden: usize, layers: usize, width: usize) -> Vec<Value> {
    let mut current = xs.to_vec();
    for layer in 0..=layers {
        let (cols, activation) = if layer < layers { (hidden, Activation::Relu) } else { (width, Activation::None) };
        let mut maps = Vec::new();
        let mut next = Vec::new();
        for &x in &current {
            let y = fresh_like(b, x, cols);
            let (x, out) = (b.full(x), b.full(y));
            maps.push(b.map(&format!("decoder.{layer}"), x, out, true));
            next.push(y);
        }
        b.op(Op::Linear(Linear { maps, activation }));
        current = next;
    }
    current
}
