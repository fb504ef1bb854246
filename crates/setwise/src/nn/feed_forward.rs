//! A feed-forward network on each element alone: `LayerNorm(x + MLP(x))`; residual and norm are optional.

use setwise_engine::{Activation, Linear, Op, ProgramBuilder, Value};

use super::{Sublayer, fresh_like, sublayers};

/// Options of a feed-forward network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeedForwardOptions {
    /// Width of hidden layers.
    pub hidden: usize,
    /// Number of hidden layers, at least one.
    pub layers: usize,
    /// Whether the input is added (residual).
    pub residual: bool,
    /// Whether a LayerNorm is last.
    pub norm: bool,
    /// Dropout rate before the residual sum.
    pub dropout: f64,
}

/// Appends one network for each value. Networks of the same name share weights.
///
/// # Shapes
/// `[rows, latent]` to `[rows, latent]`.
pub(crate) fn feed_forward(
    b: &mut ProgramBuilder,
    xs: &[Value],
    names: &[String],
    options: FeedForwardOptions,
) -> Vec<Value> {
    let mut current = xs.to_vec();
    for layer in 0..options.layers.max(1) {
        let mut maps = Vec::new();
        let mut next = Vec::new();
        for (&x, name) in current.iter().zip(names) {
            let y = fresh_like(b, x, options.hidden);
            let (x, out) = (b.full(x), b.full(y));
            maps.push(b.map(&format!("{name}.layer.{layer}"), x, out, true));
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
