//! From pooled or element vectors to answers.

use setwise_engine::{Activation, Linear, Op, ProgramBuilder, Value};

use super::fresh_like;

/// `layers` hidden layers with ReLU and a projection to `width`; several values share the weights.
pub fn decoder(b: &mut ProgramBuilder, xs: &[Value], hidden: usize, layers: usize, width: usize) -> Vec<Value> {
    let mut current = xs.to_vec();
    for layer in 0..=layers {
        let (cols, activation) = if layer < layers { (hidden, Activation::Relu) } else { (width, Activation::None) };
        let mut maps = Vec::new();
        let mut next = Vec::new();
        for &x in &current {
            let y = fresh_like(b, x, cols);
            let (x, whole) = (b.full(x), b.full(y));
            maps.push(b.map(&format!("decoder.{layer}"), x, whole, true));
            next.push(y);
        }
        b.op(Op::Linear(Linear { maps, activation }));
        current = next;
    }
    current
}
