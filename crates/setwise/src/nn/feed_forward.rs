//! A feed-forward network on each element alone: `LayerNorm(x + MLP(x))`, residual and norm optional.

use setwise_engine::{Activation, Linear, Op, ProgramBuilder, Value};

use super::{Sublayer, fresh_like, sublayers};

/// Sizes and switches.
#[derive(Clone, Copy, Debug)]
pub struct FeedForwardOptions {
    /// Width inside.
    pub hidden: usize,
    /// Hidden layers, at least one.
    pub layers: usize,
    /// Add the input.
    pub residual: bool,
    /// LayerNorm at the end.
    pub norm: bool,
    /// Dropout before the sum.
    pub dropout: f64,
}

/// Appends one network per value; networks of one name share weights.
///
/// # Shapes
/// `[rows, latent]` to `[rows, latent]`.
pub fn feed_forward(b: &mut ProgramBuilder, xs: &[Value], names: &[String], options: FeedForwardOptions) -> Vec<Value> {
    let mut current = xs.to_vec();
    for layer in 0..options.layers.max(1) {
        let mut maps = Vec::new();
        let mut next = Vec::new();
        for (&x, name) in current.iter().zip(names) {
            let y = fresh_like(b, x, options.hidden);
            let (x, whole) = (b.full(x), b.full(y));
            maps.push(b.map(&format!("{name}.layer.{layer}"), x, whole, true));
            next.push(y);
        }
        b.op(Op::Linear(Linear { maps, activation: Activation::Relu }));
        current = next;
    }
    let mut last = Vec::new();
    let mut results = Vec::new();
    for ((&input, &x), name) in xs.iter().zip(&current).zip(names) {
        let y = fresh_like(b, input, b.spec(input).cols);
        last.push(Sublayer {
            name: format!("{name}.contract"),
            x: b.full(x),
            y: b.full(y),
            bias: true,
            residual: options.residual.then(|| b.full(input)),
            norm: options.norm.then(|| format!("{name}.feed-norm")),
        });
        results.push(y);
    }
    sublayers(b, last, options.dropout);
    results
}
